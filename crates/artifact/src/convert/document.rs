//! Recipes as written: from a tree of values to rules, with every member that is none, or holds none of its values.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::recipe::{DefaultRule, ImportanceName, Rule};
use crate::error::quoted;

/// A recipe as written. Rules and names that could not be read are missing.
#[derive(Default)]
pub(super) struct Document {
    pub(super) version: Option<u64>,
    /// With their numbers, from 1.
    pub(super) rules: Vec<(usize, Rule)>,
    pub(super) default: DefaultRule,
    /// With their numbers, from 1.
    pub(super) names: Vec<(usize, ImportanceName)>,
}

/// Which part of a recipe is wrong; rules and names with number and pattern.
pub(super) enum Place {
    Top,
    Default,
    Rule(usize, String),
    Name(usize, String),
}

/// What is wrong there.
pub(super) struct Problem {
    pub(super) place: Place,
    pub(super) what: String,
}

impl Place {
    /// In the order in which recipes are usually written.
    pub(super) fn order(&self) -> (u8, usize) {
        match self {
            Self::Top => (0, 0),
            Self::Default => (1, 0),
            Self::Rule(number, _) => (2, *number),
            Self::Name(number, _) => (3, *number),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number, label) = match &self.place {
            Place::Top => return f.write_str(&self.what),
            Place::Default => return write!(f, "default: {}", self.what),
            Place::Rule(number, label) => ("rule", number, label),
            Place::Name(number, label) => ("importance_name", number, label),
        };
        write!(f, "{kind} {number}")?;
        if !label.is_empty() {
            write!(f, " ({})", quoted(label))?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Reads a tree of values, and notes everything in it that cannot be read.
pub(super) fn read(value: Value) -> (Document, Vec<Problem>) {
    let mut out = Document::default();
    let mut problems = Vec::new();
    let mut note = |place, what| problems.push(Problem { place, what });
    let Value::Object(members) = value else {
        note(Place::Top, "it is no table".into());
        return (out, problems);
    };
    for (member, value) in members {
        match member.as_str() {
            "version" => match value.as_u64() {
                Some(version) => out.version = Some(version),
                None => note(Place::Top, format!("version is {value}; this reader knows 1")),
            },
            "default" => {
                let read = record(value, &json!({"format": "keep"}), &mut |e| note(Place::Default, e));
                out.default = read.unwrap_or_default();
            }
            "rule" => {
                for (number, value) in list(value, "rule", &mut note) {
                    let label = label(&value);
                    let read =
                        record(value, &json!({}), &mut |e| note(Place::Rule(number, label.clone()), e));
                    out.rules.extend(read.map(|rule| (number, rule)));
                }
            }
            "importance_name" => {
                let example = json!({"match": "a", "name": "a"});
                for (number, value) in list(value, "importance_name", &mut note) {
                    let label = label(&value);
                    let read = record(value, &example, &mut |e| note(Place::Name(number, label.clone()), e));
                    out.names.extend(read.map(|name| (number, name)));
                }
            }
            _ => note(Place::Top, unknown(&member, "version, default, rule, importance_name")),
        }
    }
    (out, problems)
}

fn unknown(member: &str, known: &str) -> String {
    format!("unknown member {}; expected one of {known}", quoted(member))
}

/// The elements of a list of tables, numbered from 1.
fn list(value: Value, member: &str, note: &mut dyn FnMut(Place, String)) -> Vec<(usize, Value)> {
    match value {
        Value::Array(list) => list.into_iter().enumerate().map(|(i, v)| (i + 1, v)).collect(),
        _ => {
            note(Place::Top, format!("{member} is no list of tables; write [[{member}]]"));
            Vec::new()
        }
    }
}

/// The pattern of a rule or name as written, as far as it is one.
fn label(value: &Value) -> String {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    match (value.get("match"), value.get("stack")) {
        (Some(pattern), _) => text(pattern),
        (None, Some(Value::Array(list))) => {
            Some(list.iter().filter_map(text).collect::<Vec<_>>().join(" + "))
        }
        (None, Some(pattern)) => text(pattern),
        (None, None) => None,
    }
    .unwrap_or_default()
}

/// Reads a record member by member, so that each fault is told. `example` has the members that must be there. What is
/// left without the faulty members is still worth a look, if there are no others missing.
fn record<T: DeserializeOwned>(value: Value, example: &Value, note: &mut dyn FnMut(String)) -> Option<T> {
    let Value::Object(members) = value else {
        note("it is no table".into());
        return None;
    };
    let mut good = Map::new();
    for (member, value) in members {
        let mut alone = example.clone();
        alone[&member] = value.clone();
        match T::deserialize(alone) {
            Ok(_) => {
                good.insert(member, value);
            }
            Err(e) => {
                let e = e.to_string();
                let rest = e.strip_prefix("unknown field ").and_then(|e| e.split_once(", expected "));
                note(match rest {
                    Some((_, known)) => unknown(&member, &known.replace("one of ", "").replace('`', "")),
                    None => format!("{member}: {e}"),
                });
            }
        }
    }
    T::deserialize(Value::Object(good)).map_err(|e| note(e.to_string())).ok()
}
