//! Recipes: ordered rules from name patterns to formats, methods and parameters, in TOML or JSON.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ninfer_formats::FormatId;
use ninfer_formats::encoder::EncoderId;
use serde::Deserialize;
use serde_json::Value;

use super::check::{check_default, check_rule, rule_label};
use super::document::{self, Document, Place, Problem};
use super::pattern::{Pattern, Template};
use crate::container::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Largest recipe that is read, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Begins the name of a method that the caller provides.
pub(super) const CALLABLE: &str = "callable:";

/// One string or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "neither a text nor a list of texts")]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Several, in order.
    More(Vec<String>),
}

impl OneOrMore {
    pub(super) fn list(&self) -> Vec<&str> {
        match self {
            Self::One(s) => vec![s],
            Self::More(v) => v.iter().map(String::as_str).collect(),
        }
    }
}

/// How a method that takes importance uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceUse {
    /// Where the method takes it and the matrix has the tensor.
    #[default]
    Auto,
    /// Never.
    None,
    /// Always: a tensor without it is refused.
    Required,
}

/// Under which names the parts of a stack can be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// The parent under its name, and each part under its own.
    #[default]
    Both,
    /// Only the parts.
    Parts,
    /// Only the parent.
    Parent,
}

/// One rule as written. Which members go together is checked by [`Recipe::parse_toml`] and [`Recipe::parse_json`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Pattern of the names of the tensors.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// Patterns of the tensors that are stacked by rows, in order, or one pattern with alternatives in braces.
    pub stack: Option<OneOrMore>,
    /// New name, with the pattern's captures.
    pub name: Option<String>,
    /// Leave the tensor, or the rows, out.
    #[serde(default)]
    pub drop: bool,
    /// The rows `[begin, end)` that the rule is for; the others are left to later rules.
    pub rows: Option<[u64; 2]>,
    /// Target format, or `keep`.
    pub format: Option<String>,
    /// Layout; must be the format's.
    pub layout: Option<String>,
    /// Method; without one, words are imported where the source holds them, else the format's default method.
    pub method: Option<String>,
    /// Whether negative scales compete.
    #[serde(default)]
    pub negative_scales: bool,
    /// How importance is used.
    #[serde(default)]
    pub importance: ImportanceUse,
    /// Formats to try, in order, where the rule cannot apply.
    pub fallback: Option<OneOrMore>,
    /// Names of the parts of a stack.
    pub bind: Option<Bind>,
    /// Whether the rule may match nothing.
    #[serde(default)]
    pub optional: bool,
}

/// What becomes of tensors that no rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultRule {
    /// Target format, or `keep`; `refuse` demands a rule for every tensor.
    pub format: String,
    /// As [`Rule::method`].
    pub method: Option<String>,
    /// As [`Rule::negative_scales`].
    #[serde(default)]
    pub negative_scales: bool,
    /// As [`Rule::importance`].
    #[serde(default)]
    pub importance: ImportanceUse,
    /// As [`Rule::fallback`].
    pub fallback: Option<OneOrMore>,
}

impl Default for DefaultRule {
    fn default() -> Self {
        Self {
            format: "keep".into(),
            method: None,
            negative_scales: false,
            importance: ImportanceUse::Auto,
            fallback: None,
        }
    }
}

/// The name under which an importance matrix holds a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportanceName {
    /// Pattern of the tensor's name.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Name in the matrix, with the pattern's captures.
    pub name: String,
}

/// A checked recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(super) rules: Vec<Checked>,
    /// `None` demands a rule for every tensor.
    pub(super) default: Option<Treatment>,
    pub(super) names: Vec<(Pattern, Template)>,
    text: String,
}

/// What a tensor is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The source's own words.
    Keep,
    Format(FormatId),
}

/// How it becomes that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// Imported where possible, else the format's default.
    Auto,
    Import,
    Encoder(EncoderId),
    /// The caller's own, by name.
    Callable(String),
}

/// Target, method and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Treatment {
    pub(super) target: Target,
    pub(super) method: Method,
    pub(super) negative_scales: bool,
    pub(super) importance: ImportanceUse,
    pub(super) fallback: Vec<Target>,
}

/// A rule with its patterns compiled.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    /// One pattern, or those of a stack.
    pub(super) patterns: Vec<Pattern>,
    /// Names of the other parts of a stack, from the captures of the first pattern.
    pub(super) parts: Vec<Template>,
    pub(super) name: Option<Template>,
    pub(super) rows: Option<(u64, u64)>,
    pub(super) bind: Bind,
    pub(super) optional: bool,
    /// `None` drops.
    pub(super) treatment: Option<Treatment>,
    pub(super) stack: bool,
}

impl Checked {
    /// The rule's pattern as messages and listings print it.
    pub(super) fn label(&self) -> String {
        let texts: Vec<&str> = self.patterns.iter().map(Pattern::text).collect();
        texts.join(" + ")
    }
}

impl Default for Recipe {
    /// Every tensor keeps its words.
    fn default() -> Self {
        let default = check_default(&DefaultRule::default()).ok().flatten();
        Self { rules: Vec::new(), default, names: Vec::new(), text: "{}".into() }
    }
}

impl Recipe {
    /// Reads a recipe in TOML.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Recipe`](K::Recipe): not TOML, an unknown member, and with all of them at once every rule
    /// that is wrong in itself.
    pub fn parse_toml(text: &str) -> Result<Self, ArtifactError> {
        limit(text)?;
        let value: Value = toml::from_str(text).map_err(|e| problem(e.to_string().trim_end()))?;
        if has_null(&value) {
            return Err(problem("nan and inf are no values of a recipe"));
        }
        let (document, problems) = document::read(value);
        Self::check(document, problems)
    }

    /// Reads a recipe in TOML from a file, whose name is in every error.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8; as [`Recipe::parse_toml`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArtifactError> {
        let path = path.as_ref();
        let read = || {
            let fail = |e| ArtifactError::io("cannot read the recipe", e);
            let mut bytes = Vec::new();
            File::open(path)
                .map_err(fail)?
                .take(MAX_BYTES as u64 + 1)
                .read_to_end(&mut bytes)
                .map_err(fail)?;
            let text = String::from_utf8(bytes).map_err(|e| problem(&format!("it is not UTF-8: {e}")))?;
            Self::parse_toml(&text)
        };
        read().map_err(|e| e.with_path(path))
    }

    /// Reads a recipe in JSON, with the same members as in TOML.
    ///
    /// # Errors
    /// As [`Recipe::parse_toml`].
    pub fn parse_json(text: &str) -> Result<Self, ArtifactError> {
        limit(text)?;
        // Refuses members that come twice, of which the next reader would take the last.
        Json::parse(text.as_bytes(), 0).map_err(|e| problem(&e.to_string()))?;
        let value: Value = serde_json::from_str(text).map_err(|e| problem(&e.to_string()))?;
        let (document, problems) = document::read(value);
        Self::check(document, problems)
    }

    /// A recipe of these rules.
    ///
    /// # Errors
    /// As [`Recipe::parse_toml`].
    pub fn new(
        rules: Vec<Rule>,
        default: DefaultRule,
        names: Vec<ImportanceName>,
    ) -> Result<Self, ArtifactError> {
        let number = |i: usize| i + 1;
        let rules = rules.into_iter().enumerate().map(|(i, r)| (number(i), r)).collect();
        let names = names.into_iter().enumerate().map(|(i, n)| (number(i), n)).collect();
        Self::check(Document { version: None, rules, default, names }, Vec::new())
    }

    fn check(document: Document, mut problems: Vec<Problem>) -> Result<Self, ArtifactError> {
        let mut note = |place: Place, what: String| problems.push(Problem { place, what });
        if let Some(version) = document.version.filter(|&v| v != 1) {
            note(Place::Top, format!("version is {version}; this reader knows 1"));
        }
        let mut rules = Vec::new();
        for (number, rule) in &document.rules {
            match check_rule(rule) {
                Ok(checked) => rules.push(checked),
                Err(faults) => {
                    let place = || Place::Rule(*number, rule_label(rule));
                    faults.into_iter().for_each(|e| note(place(), e));
                }
            }
        }
        let default = check_default(&document.default).unwrap_or_else(|faults| {
            faults.into_iter().for_each(|e| note(Place::Default, e));
            None
        });
        let mut names = Vec::new();
        for (number, n) in &document.names {
            let both = Pattern::new(&n.pattern)
                .map_err(|e| format!("the pattern {e}"))
                .and_then(|p| Template::new(&n.name, p.names()).map(|t| (p, t)));
            match both {
                Ok(both) => names.push(both),
                Err(e) => note(Place::Name(*number, n.pattern.clone()), e),
            }
        }
        if !problems.is_empty() {
            problems.sort_by_key(|p| p.place.order());
            let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(problem(&list.join("\n  ")));
        }
        let rules_text: Vec<&Rule> = document.rules.iter().map(|(_, r)| r).collect();
        let names_text: Vec<&ImportanceName> = document.names.iter().map(|(_, n)| n).collect();
        let text = format!("{rules_text:?} {:?} {names_text:?}", document.default);
        Ok(Self { rules, default, names, text })
    }

    /// A text that is the same for the same rules, whatever they were written in.
    pub(super) fn identity(&self) -> &str {
        &self.text
    }

    /// Names of the caller's own methods that the recipe uses.
    #[must_use]
    pub fn callables(&self) -> Vec<&str> {
        let treatments = self.rules.iter().filter_map(|r| r.treatment.as_ref()).chain(&self.default);
        let mut names: Vec<&str> = Vec::new();
        for t in treatments {
            if let Method::Callable(name) = &t.method
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }
}

/// TOML has no null: this is what its numbers become that are not finite.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

fn limit(text: &str) -> Result<(), ArtifactError> {
    if text.len() > MAX_BYTES {
        return Err(problem(&format!("it has {} bytes; a recipe has at most {MAX_BYTES}", text.len())));
    }
    Ok(())
}

fn problem(message: &str) -> ArtifactError {
    ArtifactError::new(K::Recipe { message: message.to_owned() })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Format(format) => f.write_str(format.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
version = 1
[default]
format = "fp32"
fallback = "keep"
[[rule]]
match = "blk.{n}.ffn_*.weight"
format = "q4_g64_fp16"
method = "grouped_search"
negative_scales = true
importance = "required"
layout = "row_split_k128_v1"
fallback = ["q8_g32_fp16", "keep"]
[[rule]]
stack = "blk.{n}.attn_{q,k,v}.weight"
name = "blk.{n}.attn_qkv.weight"
bind = "parts"
format = "keep"
[[rule]]
match = "token_embd.weight"
rows = [0, 100]
format = "bf16"
method = "callable:mine"
optional = true
[[rule]]
match = "rope*"
drop = true
[[importance_name]]
match = "model.{n}"
name = "blk.{n}"
"#;

    #[test]
    fn toml_and_json_give_the_same_recipe() {
        let recipe = Recipe::parse_toml(FULL).unwrap();
        assert_eq!(recipe.rules.len(), 4);
        let first = recipe.rules[0].treatment.as_ref().unwrap();
        assert_eq!(first.target, Target::Format(FormatId::Q4G64Fp16));
        assert_eq!(first.method, Method::Encoder(EncoderId::GroupedSearch));
        assert_eq!(first.fallback, [Target::Format(FormatId::Q8G32Fp16), Target::Keep]);
        assert_eq!(recipe.rules[1].patterns.len(), 3);
        assert_eq!(recipe.rules[1].bind, Bind::Parts);
        assert_eq!(recipe.rules[2].rows, Some((0, 100)));
        assert!(recipe.rules[3].treatment.is_none());
        assert_eq!(recipe.callables(), ["mine"]);
        let value: serde_json::Value = toml::from_str(FULL).unwrap();
        let json = Recipe::parse_json(&value.to_string()).unwrap();
        assert_eq!(json.identity(), recipe.identity());
        assert_ne!(Recipe::default().identity(), recipe.identity());
    }

    #[test]
    fn wrong_rules_are_all_named_at_once() {
        let text = r#"
[[rule]]
match = "a"
[[rule]]
match = "b"
format = "q4_g64"
[[rule]]
match = "c"
format = "q2_g64_fp16"
method = "grouped_absmax"
"#;
        let e = Recipe::parse_toml(text).unwrap_err().to_string();
        for part in ["rule 1 (\"a\"): needs a format", "rule 2 (\"b\")", "rule 3 (\"c\"): ", "grouped_absmax"]
        {
            assert!(e.contains(part), "{part} in {e}");
        }
    }

    #[test]
    fn every_rule_has_its_refusal() {
        for (text, why) in [
            ("x = 1", "unknown member"),
            ("version = 2", "this reader knows 1"),
            ("[[rule]]\nmatch = 'a'\nformat = 'keep'\nformats = 'keep'", "unknown member"),
            ("[[rule]]\nformat = 'keep'", "either match or stack"),
            ("[[rule]]\nmatch = 'a'\nstack = ['a', 'b']\nformat = 'keep'", "either match or stack"),
            ("[[rule]]\nstack = ['a']\nname = 'n'\nformat = 'keep'", "two patterns"),
            ("[[rule]]\nstack = ['a', 'b']\nformat = 'keep'", "needs a name"),
            ("[[rule]]\nstack = ['a.{n}', 'b']\nname = 'x'\nformat = 'keep'", "lacks captures"),
            ("[[rule]]\nstack = ['a.{n}', 'b.*']\nname = 'x'\nformat = 'keep'", "may only hold captures"),
            ("[[rule]]\nmatch = 'a'\nrows = [3, 3]\nformat = 'keep'", "are empty"),
            ("[[rule]]\nmatch = 'a'\nrows = [3]\nformat = 'keep'", "rows"),
            ("[[rule]]\nmatch = 'a'\ndrop = true\nformat = 'keep'", "drop takes no format"),
            ("[[rule]]\nmatch = 'a'\nbind = 'parts'\nformat = 'keep'", "only a stack"),
            ("[[rule]]\nmatch = 'a['\nformat = 'keep'", "without its ]"),
            ("[[rule]]\nmatch = 'a'\nname = '{n}'\nformat = 'keep'", "does not capture"),
            ("[[rule]]\nmatch = 'a'\nformat = 'keep'\nmethod = 'grouped_absmax'", "keep copies"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'grouped_absmax'", "does not produce"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'magic'", "magic"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nmethod = 'callable:'", "no name"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nnegative_scales = true", "takes no negative_scales"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nimportance = 'required'", "takes no importance"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nimportance = 'yes'", "unknown variant"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nlayout = 'row_scale_v1'", "row_scale_v1"),
            ("[[rule]]\nmatch = 'a'\nformat = 'bf16'\nfallback = 'q9'", "q9"),
            ("[default]\nformat = 'x'", "default: "),
            ("[[importance_name]]\nmatch = 'a'\nname = '{n}'", "importance_name 1"),
            ("[[rule]", "rule"),
        ] {
            let e = Recipe::parse_toml(text).unwrap_err();
            assert!(matches!(e.kind(), K::Recipe { .. }), "{text}");
            assert!(e.to_string().contains(why), "{text}: {e}");
        }
        assert!(Recipe::parse_toml("[default]\nformat = 'refuse'").unwrap().default.is_none());
    }
}
