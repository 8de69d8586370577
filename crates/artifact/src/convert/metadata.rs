//! GGUF metadata as JSON, and what of it is left to the byte-for-byte copy.

use ninfer_gguf::{Entry, GgufError, GgufFile, GgufStr, Value};

use crate::container::Json;

/// Longest array, nested elements counted, that goes into `config`.
pub(super) const MAX_ARRAY: u64 = 1024;
/// Longest string in bytes that goes into `config`.
pub(super) const MAX_STRING: usize = 64 << 10;

/// What a file's metadata becomes.
pub(super) struct Config {
    pub(super) config: Json,
    /// One record for each entry that is not in `config`: its key, type and the reason.
    pub(super) left_out: Vec<Json>,
}

/// Converts the metadata of the model's first file.
pub(super) fn config(file: &GgufFile) -> Result<Config, GgufError> {
    let metadata = file.metadata();
    let mut members = Vec::new();
    let mut left_out = Vec::new();
    for entry in metadata.entries() {
        let value = metadata.value(entry).map_err(|e| e.with_path(file.path()))?;
        match (entry.key().to_str(), member(entry, value)?) {
            (Some(key), Ok(json)) => members.push((key.to_owned(), json)),
            (None, Ok(_)) => left_out.push(record(entry, value, "the key is not UTF-8")),
            (_, Err(reason)) => left_out.push(record(entry, value, &reason)),
        }
    }
    Ok(Config { config: Json::Object(members), left_out })
}

fn record(entry: &Entry, value: Value<'_>, reason: &str) -> Json {
    Json::object([
        ("key", Json::from(entry.key().escaped())),
        ("type", value.describe().into()),
        ("reason", reason.into()),
    ])
}

/// An entry's value, or why it stays out.
fn member(entry: &Entry, value: Value<'_>) -> Result<Result<Json, String>, GgufError> {
    // These describe the source's files, not the model.
    if [&b"split.no"[..], b"split.count", b"split.tensors.count"].contains(&entry.key_bytes()) {
        return Ok(Err("it numbers the source's files".into()));
    }
    let mut budget = MAX_ARRAY;
    json(value, &mut budget)
}

/// A value as JSON, or why it has none. `budget` is the number of array elements that may still come.
fn json(value: Value<'_>, budget: &mut u64) -> Result<Result<Json, String>, GgufError> {
    Ok(Ok(match value {
        Value::U8(x) => Json::Unsigned(x.into()),
        Value::U16(x) => Json::Unsigned(x.into()),
        Value::U32(x) => Json::Unsigned(x.into()),
        Value::U64(x) => Json::Unsigned(x),
        Value::I8(x) => i64::from(x).into(),
        Value::I16(x) => i64::from(x).into(),
        Value::I32(x) => i64::from(x).into(),
        Value::I64(x) => x.into(),
        Value::F32(x) => float(x.into()),
        Value::F64(x) => float(x),
        Value::Bool(x) => Json::Bool(x),
        Value::String(s) => match text(s) {
            Ok(s) => Json::Str(s),
            Err(reason) => return Ok(Err(reason)),
        },
        Value::Array(array) => {
            if array.len() > *budget {
                return Ok(Err(format!("it has more than {MAX_ARRAY} elements")));
            }
            *budget -= array.len();
            let mut values = Vec::new();
            for element in array.iter() {
                match json(element?, budget)? {
                    Ok(json) => values.push(json),
                    Err(reason) => return Ok(Err(reason)),
                }
            }
            Json::Array(values)
        }
    }))
}

fn float(x: f64) -> Json {
    if x.is_finite() {
        return Json::Float(x);
    }
    // JSON has no such numbers.
    Json::from(if x.is_nan() {
        "NaN"
    } else if x > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    })
}

fn text(s: GgufStr<'_>) -> Result<String, String> {
    if s.bytes().len() > MAX_STRING {
        return Err(format!("it has a string of more than {MAX_STRING} bytes"));
    }
    s.to_str().map(str::to_owned).ok_or_else(|| "it has a string that is not UTF-8".to_owned())
}

/// The file's key/value section: every entry, byte for byte, without the count before it. Empty if there are none.
pub(crate) fn section(file: &GgufFile) -> &[u8] {
    let entries = file.header().entries();
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return &[] };
    let (begin, end) = (first.range().0 as usize, last.range().1 as usize);
    // Entries follow each other without gaps, and the header was parsed from these bytes.
    file.bytes().get(begin..end).unwrap_or_default()
}
