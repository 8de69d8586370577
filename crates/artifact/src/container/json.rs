//! The directory's JSON: a value type with exact integers, a strict parser, a compact writer.
//!
//! The parser refuses what the container specification refuses and a general parser lets pass: duplicate member
//! names, and numbers that are not exact where integers are wanted. Nesting and the number of values are limited,
//! so that a hostile directory cannot make the reader allocate much more than its own size.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{ArtifactError, ArtifactErrorKind as K, quoted};

/// Deepest nesting of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;
/// Most values of one member of an object whose members are handed over: what exists as a tree at a time.
pub(crate) const MAX_MEMBER: usize = 200_000;
/// Most values of a directory that are read. A tensor with its binding has about fifteen.
pub const MAX_VALUES: usize = 16_000_000;

/// A JSON value. Members keep their order and are unique in parsed values.
///
/// Integers are exact over the whole range of `u64` and `i64`; any other number is [`Json::Float`], the nearest
/// binary64.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer from 0 to 2^64 - 1.
    Unsigned(u64),
    /// An integer from -2^63 to -1.
    Negative(i64),
    /// A number written with a fraction or an exponent, or an integer beyond the two ranges above. A value that is
    /// not finite is written as the string `"NaN"`, `"Infinity"` or `"-Infinity"`.
    Float(f64),
    /// A string.
    Str(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, as its members in order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// An object of these members.
    pub fn object<N: Into<String>>(members: impl IntoIterator<Item = (N, Json)>) -> Self {
        Self::Object(members.into_iter().map(|(n, v)| (n.into(), v)).collect())
    }

    /// An array of these values.
    pub fn array(values: impl IntoIterator<Item = impl Into<Json>>) -> Self {
        Self::Array(values.into_iter().map(Into::into).collect())
    }

    /// The member `name`, if the value is an object that has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Object(members) => members.iter().find(|(n, _)| n == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The value of an integer in the range of `u64`.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(n) => Some(*n),
            _ => None,
        }
    }

    /// What the value is, for messages: its type, and the value itself where it is short.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(b) => format!("the boolean {b}"),
            Self::Unsigned(n) => format!("the integer {n}"),
            Self::Negative(n) => format!("the integer {n}"),
            Self::Float(x) => format!("the number {x:?}, which is not an exact integer"),
            Self::Str(s) => format!("the string {}", quoted(s)),
            Self::Array(a) => format!("an array of {} values", a.len()),
            Self::Object(m) => format!("an object of {} members", m.len()),
        }
    }

    /// Parses one JSON value followed by nothing but white space. `at` is the file offset of the first byte, for
    /// error messages.
    ///
    /// # Errors
    /// Invalid JSON or UTF-8, a duplicate member name, more than [`MAX_DEPTH`] levels or [`MAX_VALUES`] values.
    pub fn parse(text: &[u8], at: u64) -> Result<Self, ArtifactError> {
        parse(text, at, Place::Plain, &mut |_, _| Ok(()))
    }
}

/// One element of the two long lists of a directory, handed over as soon as it is parsed.
pub(super) enum Element<'a> {
    /// An element of the root's array `objects`, by position.
    Object(usize),
    /// A member of the root's object `bindings`, by name.
    Binding(&'a str),
}

/// Takes elements as they come.
pub(super) type Sink<'s> = &'s mut dyn FnMut(Element<'_>, Json) -> Result<(), ArtifactError>;

/// Parses a directory. The elements of `objects` and `bindings` go to `sink`, one by one, and the two members are
/// empty in the result: a directory of 100,000 tensors never exists as a tree of values.
pub(super) fn parse_directory(text: &[u8], at: u64, sink: Sink<'_>) -> Result<Json, ArtifactError> {
    parse(text, at, Place::Root, sink)
}

/// Parses an object and hands its members to `sink` one by one, so that an object of very many members never exists as a
/// tree of values. The result is the empty object, or the value that was not an object.
pub(crate) fn parse_members(
    text: &[u8],
    at: u64,
    sink: &mut dyn FnMut(&str, Json) -> Result<(), ArtifactError>,
) -> Result<Json, ArtifactError> {
    parse_within(text, at, Place::Bindings, MAX_MEMBER, &mut |element, json| match element {
        Element::Binding(name) => sink(name, json),
        // Only the root's array `objects` has elements of this kind.
        Element::Object(_) => Ok(()),
    })
}

fn parse(text: &[u8], at: u64, place: Place, sink: Sink<'_>) -> Result<Json, ArtifactError> {
    parse_within(text, at, place, MAX_VALUES, sink)
}

fn parse_within(
    text: &[u8],
    at: u64,
    place: Place,
    member: usize,
    sink: Sink<'_>,
) -> Result<Json, ArtifactError> {
    let state = RefCell::new(State { path: Vec::new(), values: 0, kept: 0, member, fault: None, sink });
    let mut parser = serde_json::Deserializer::from_slice(text);
    let seed = Seed { state: &state, place };
    let parsed = seed.deserialize(&mut parser).and_then(|v| parser.end().map(|()| v));
    parsed.map_err(|error| {
        let state = state.into_inner();
        let path = render(&state.path);
        match state.fault {
            Some(Fault::Here(kind)) => ArtifactError::new(kind).at_json(path),
            Some(Fault::Sink(error)) => error,
            None => {
                let position = format!(" at line {} column {}", error.line(), error.column());
                let mut message = error.to_string().replace(&position, "");
                if !path.is_empty() {
                    message.push_str(&format!(" (in {path})"));
                }
                let offset = at + byte_offset(text, error.line(), error.column()) as u64;
                ArtifactError::new(K::JsonSyntax { message }).at_byte(offset)
            }
        }
    })
}

impl fmt::Display for Json {
    /// Compact JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Unsigned(n) => write!(f, "{n}"),
            Self::Negative(n) => write!(f, "{n}"),
            Self::Float(x) if x.is_nan() => f.write_str("\"NaN\""),
            Self::Float(x) if x.is_infinite() => {
                f.write_str(if *x > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" })
            }
            // The shortest digits that give the same binary64, always with a fraction or an exponent.
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Str(s) => write_string(f, s),
            Self::Array(values) => {
                f.write_str("[")?;
                for (i, v) in values.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    v.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (i, (name, v)) in members.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    write_string(f, name)?;
                    f.write_str(":")?;
                    v.fmt(f)?;
                }
                f.write_str("}")
            }
        }
    }
}

fn write_string(f: &mut fmt::Formatter<'_>, s: &str) -> fmt::Result {
    f.write_str(&serde_json::to_string(s).map_err(|_| fmt::Error)?)
}

impl From<bool> for Json {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}
impl From<u64> for Json {
    fn from(v: u64) -> Self {
        Self::Unsigned(v)
    }
}
impl From<i64> for Json {
    fn from(v: i64) -> Self {
        u64::try_from(v).map_or(Self::Negative(v), Self::Unsigned)
    }
}
impl From<f64> for Json {
    fn from(v: f64) -> Self {
        Self::Float(v)
    }
}
impl From<&str> for Json {
    fn from(v: &str) -> Self {
        Self::Str(v.to_owned())
    }
}
impl From<String> for Json {
    fn from(v: String) -> Self {
        Self::Str(v)
    }
}

/// One step from a value to a value inside it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Member(String),
    Index(usize),
}

/// A path as messages print it: `objects[3].shape[1]`, `bindings["blk.0"].object`.
pub(crate) fn render(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Index(i) => text.push_str(&format!("[{i}]")),
            Step::Member(name) if is_plain(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Step::Member(name) => text.push_str(&format!("[{}]", quoted(name))),
        }
    }
    text
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

struct State<'s> {
    path: Vec<Step>,
    values: usize,
    /// Values since one was last handed over, and how many there may be.
    kept: usize,
    member: usize,
    fault: Option<Fault>,
    sink: Sink<'s>,
}

/// The reason of a failure, where it is not the JSON grammar's.
enum Fault {
    /// At the current path.
    Here(K),
    /// From the sink, complete with its place.
    Sink(ArtifactError),
}

/// What the value being parsed is to the directory.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Objects,
    Bindings,
    Plain,
}

#[derive(Clone, Copy)]
struct Seed<'s, 'k> {
    state: &'s RefCell<State<'k>>,
    place: Place,
}

impl Seed<'_, '_> {
    fn fail<E: serde::de::Error>(self, fault: Fault) -> E {
        self.state.borrow_mut().fault = Some(fault);
        // Replaced by the fault.
        E::custom("refused")
    }

    fn push(self, step: Step) {
        self.state.borrow_mut().path.push(step);
    }

    // Not called after an error, so that the path still names the place then.
    fn pop(self) -> Option<Step> {
        self.state.borrow_mut().path.pop()
    }

    fn inside(self, place: Place) -> Self {
        Self { state: self.state, place }
    }

    fn hand_over<E: serde::de::Error>(self, element: Element<'_>, json: Json) -> Result<(), E> {
        let handed = {
            let mut state = self.state.borrow_mut();
            state.kept = 0;
            (state.sink)(element, json)
        };
        handed.map_err(|error| self.fail(Fault::Sink(error)))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        let (depth, values, over) = {
            let mut state = self.state.borrow_mut();
            state.values += 1;
            state.kept += 1;
            (state.path.len(), state.values, (state.kept > state.member).then_some(state.member))
        };
        if let Some(limit) = over {
            return Err(
                self.fail(Fault::Here(K::JsonLimit { what: "has a member of more values than", limit }))
            );
        }
        if depth > MAX_DEPTH {
            let kind = K::JsonLimit { what: "nests deeper than", limit: MAX_DEPTH };
            return Err(self.fail(Fault::Here(kind)));
        }
        if values > MAX_VALUES {
            let kind = K::JsonLimit { what: "has more values than", limit: MAX_VALUES };
            return Err(self.fail(Fault::Here(kind)));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Json, E> {
        Ok(Json::Bool(v))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Json, E> {
        Ok(Json::Unsigned(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Json, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Json, E> {
        Ok(Json::Float(v))
    }
    fn visit_str<E>(self, v: &str) -> Result<Json, E> {
        Ok(v.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        for index in 0.. {
            self.push(Step::Index(index));
            let Some(value) = seq.next_element_seed(self.inside(Place::Plain))? else { break };
            self.pop();
            if self.place == Place::Objects {
                self.hand_over(Element::Object(index), value)?;
            } else {
                values.push(value);
            }
        }
        self.pop();
        Ok(Json::Array(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        // Small objects are searched, large ones hashed: most directories have very many small ones.
        let mut names: HashSet<String> = HashSet::new();
        const SEARCHED: usize = 16;
        while let Some(name) = map.next_key::<String>()? {
            let inside = match (self.place, name.as_str()) {
                (Place::Root, "objects") => Place::Objects,
                (Place::Root, "bindings") => Place::Bindings,
                _ => Place::Plain,
            };
            // Names that were handed over are not in `members`.
            let hashed = self.place == Place::Bindings || members.len() >= SEARCHED;
            if hashed && names.is_empty() {
                names.extend(members.iter().map(|(n, _)| n.clone()));
            }
            let seen =
                if hashed { !names.insert(name.clone()) } else { members.iter().any(|(n, _)| *n == name) };
            if seen {
                return Err(self.fail(Fault::Here(K::DuplicateMember { name })));
            }
            self.push(Step::Member(name));
            let value = map.next_value_seed(self.inside(inside))?;
            // What was pushed above.
            let Some(Step::Member(name)) = self.pop() else { break };
            if self.place == Place::Bindings {
                self.hand_over(Element::Binding(&name), value)?;
            } else {
                members.push((name, value));
            }
        }
        Ok(Json::Object(members))
    }
}

/// Offset of a position that serde_json gives as a line and a column, both counted from 1 (column 0 is the line's
/// start).
fn byte_offset(text: &[u8], line: usize, column: usize) -> usize {
    let start = match line.checked_sub(2) {
        None => 0,
        Some(n) => {
            text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(n).map_or(text.len(), |(i, _)| i + 1)
        }
    };
    (start + column.saturating_sub(1)).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Json, ArtifactError> {
        Json::parse(text.as_bytes(), 32)
    }

    #[test]
    fn integers_are_exact() {
        let text = "[0,18446744073709551615,-9223372036854775808,-1,9007199254740993]";
        let Json::Array(values) = parse(text).unwrap() else { panic!("an array") };
        assert_eq!(values[1], Json::Unsigned(u64::MAX));
        assert_eq!(values[2], Json::Negative(i64::MIN));
        assert_eq!(values[4], Json::Unsigned(9_007_199_254_740_993));
        assert_eq!(Json::Array(values).to_string(), text);
        // Beyond the ranges, or not written as an integer: never an integer.
        for text in ["18446744073709551616", "1.0", "1e3", "-9223372036854775809"] {
            assert!(matches!(parse(text).unwrap(), Json::Float(_)), "{text}");
        }
    }

    #[test]
    fn floats_survive() {
        for x in [0.1f64, -0.0, 5e-324, f64::MAX, f64::from(0.1f32), 1e6, 1e22, 123_456_789.123_456_79] {
            let text = Json::Float(x).to_string();
            let Json::Float(y) = parse(&text).unwrap() else { panic!("{text} is not a float") };
            assert_eq!(x.to_bits(), y.to_bits(), "{text}");
        }
        assert_eq!(Json::from(f64::NAN).to_string(), "\"NaN\"");
        assert_eq!(Json::from(f64::INFINITY).to_string(), "\"Infinity\"");
        assert_eq!(Json::from(f64::NEG_INFINITY).to_string(), "\"-Infinity\"");
    }

    #[test]
    fn duplicates_are_named_with_their_place() {
        let e = parse(r#"{"a":[{},{"b":1,"c":2,"b":3}]}"#).unwrap_err();
        assert!(matches!(e.kind(), K::DuplicateMember { name } if name == "b"));
        assert_eq!(e.to_string(), "a[1]: duplicate member \"b\"");
        // Also where objects are large enough to be hashed, and through escapes.
        let mut text = String::from("{");
        for i in 0..40 {
            text.push_str(&format!("\"m{i}\":{i},"));
        }
        text.push_str(r#""m\u0031\u0037":0}"#);
        assert!(matches!(parse(&text).unwrap_err().kind(), K::DuplicateMember { name } if name == "m17"));
        text = text.replace(r"m\u0031\u0037", "m40");
        assert_eq!(parse(&text).unwrap().get("m40"), Some(&Json::Unsigned(0)));
    }

    #[test]
    fn syntax_errors_have_a_byte_offset() {
        for (text, offset) in [
            ("{\"a\":}", 32 + 5),
            ("{\"a\":1}x", 32 + 7),
            ("\n\n{\"a\":tru}", 32 + 10),
            ("", 32),
            ("[1,]", 32 + 3),
            ("\u{feff}{}", 32),
        ] {
            let e = parse(text).unwrap_err();
            assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{text:?}: {e}");
            assert_eq!(e.location(), Some(&crate::error::Location::Byte(offset)), "{text:?}: {e}");
            assert!(!e.to_string().contains("line"), "{e}");
        }
        let e = Json::parse(b"{\"a\":\"\xff\"}", 32).unwrap_err();
        assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{e}");
        assert!(matches!(parse(r#""\ud800""#).unwrap_err().kind(), K::JsonSyntax { .. }));
    }

    #[test]
    fn nesting_is_limited() {
        let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(&nest(MAX_DEPTH + 1)).is_ok());
        let e = parse(&nest(MAX_DEPTH + 2)).unwrap_err();
        assert!(matches!(e.kind(), K::JsonLimit { limit: MAX_DEPTH, .. }), "{e}");
        let e = parse(&"[".repeat(1_000_000)).unwrap_err();
        assert!(matches!(e.kind(), K::JsonLimit { limit: MAX_DEPTH, .. }), "{e}");
    }

    #[test]
    fn paths_are_readable() {
        let path = [Step::Member("bindings".into()), Step::Member("blk.0".into()), Step::Index(2)];
        assert_eq!(render(&path), "bindings[\"blk.0\"][2]");
        assert_eq!(render(&[]), "");
    }
}
