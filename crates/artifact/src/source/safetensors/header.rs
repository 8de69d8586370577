//! The header of a safetensors file: what is stored where.
//!
//! A file is 8 bytes of header length (little-endian), the header (a JSON object from tensor names to type, shape and
//! data range, and from `__metadata__` to strings), then the data, which the ranges must cover without gap or overlap.
//! Source: the format's published description.
//!
//! The format's own library is not used to read headers: it collects entries in a map, where the second of two equal
//! names silently replaces the first, refuses a whole file for one type it does not know, counts in `usize`, and its
//! errors name neither place nor numbers. The tests hold this parser against it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ninfer_formats::ShapeText;

use super::fault::{MAX_HEADER, SafetensorsFault as F};
use crate::container::{Json, parse_members};
use crate::error::{ArtifactError, ArtifactErrorKind as K, quoted};

/// Type names and their bits, in the order of the format's description.
const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// One stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name.
    pub name: Arc<str>,
    /// Its type as the file names it.
    pub dtype: String,
    /// Bits of one element; `None` for a type that is not known.
    pub bits: Option<u64>,
    /// Elements per dimension, slowest first.
    pub shape: Vec<u64>,
    /// Its bytes in the file.
    pub range: Range<u64>,
}

impl StoredTensor {
    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Number of elements; 0 if a dimension is zero.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // Checked when the header was parsed; unknown types were not.
        product(&self.shape).unwrap_or(u64::MAX)
    }
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their data.
    pub tensors: Vec<StoredTensor>,
    /// The strings of `__metadata__`, in the order of the file.
    pub metadata: Vec<(String, String)>,
    /// Where the data begin in the file.
    pub data_start: u64,
    index: HashMap<Arc<str>, usize>,
}

impl Header {
    /// Parses and checks the header of a file, given all its bytes; the data are not looked at.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Safetensors`](K::Safetensors), invalid JSON, or a name that is there twice.
    pub fn parse(file: &[u8]) -> Result<Self, ArtifactError> {
        let bytes = file.len() as u64;
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(fault(F::TooShort { bytes }).at_byte(0));
        };
        let length = u64::from_le_bytes(*length);
        if length == 0 || length > MAX_HEADER {
            return Err(fault(F::HeaderLength { found: length }).at_byte(0));
        }
        // At most MAX_HEADER, so it fits a usize.
        let Some((text, data)) = rest.split_at_checked(length as usize) else {
            return Err(fault(F::HeaderPastEnd { end: u128::from(length) + 8, bytes }).at_byte(0));
        };
        // Also what the format asks: no white space before the object.
        if text[0] != b'{' {
            return Err(fault(F::HeaderStart { found: text[0] }).at_byte(8));
        }
        let mut header = Self { data_start: 8 + length, ..Self::default() };
        let data = data.len() as u64;
        parse_members(text, 8, &mut |name, json| {
            if name == "__metadata__" {
                header.metadata = strings(json)?;
            } else {
                header.tensors.push(entry(name, &json, data).map_err(|e| e.in_tensor(name))?);
            }
            Ok(())
        })?;
        header.tensors.sort_by_key(|t| (t.range.start, t.range.end));
        header.check_coverage(data)?;
        let start = header.data_start;
        for (i, t) in header.tensors.iter_mut().enumerate() {
            t.range = t.range.start + start..t.range.end + start;
            header.index.insert(Arc::clone(&t.name), i);
        }
        Ok(header)
    }

    /// Ranges still count from the first data byte and are sorted.
    fn check_coverage(&self, data: u64) -> Result<(), ArtifactError> {
        let mut end = 0;
        let mut last: Option<&StoredTensor> = None;
        for t in &self.tensors {
            let Range { start, end: next } = t.range;
            let at = self.data_start.saturating_add(start);
            if start < end {
                let other = last.map_or(String::new(), |l| l.name.to_string());
                let kind = F::Overlap { begin: start, end: next, other, other_end: end };
                return Err(fault(kind).in_tensor(&t.name).at_byte(at));
            }
            if start > end {
                let hole = fault(F::Hole { begin: end, end: start });
                return Err(hole.in_tensor(&t.name).at_byte(self.data_start.saturating_add(end)));
            }
            (end, last) = (next, Some(t));
        }
        if end < data {
            return Err(fault(F::Trailing { extra: data - end }).at_byte(self.data_start.saturating_add(end)));
        }
        Ok(())
    }

    /// Position of the tensor of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }
}

pub(super) fn fault(fault: F) -> ArtifactError {
    ArtifactError::new(K::Safetensors(fault))
}

fn wrong(member: &'static str, found: &Json, wanted: &'static str) -> ArtifactError {
    fault(F::Member { member, found: found.describe(), wanted })
}

fn strings(json: Json) -> Result<Vec<(String, String)>, ArtifactError> {
    const MEMBER: &str = "__metadata__";
    const WANTED: &str = "an object of strings";
    let members = match json {
        Json::Object(members) => members,
        Json::Null => return Ok(Vec::new()),
        other => return Err(wrong(MEMBER, &other, WANTED)),
    };
    members
        .into_iter()
        .map(|(name, value)| match value {
            Json::Str(text) => Ok((name, text)),
            other => {
                let found = format!("{} under {}", other.describe(), quoted(&name));
                Err(fault(F::Member { member: MEMBER, found, wanted: WANTED }))
            }
        })
        .collect()
}

/// Reads one entry; its range counts from the first of `data` bytes of data.
fn entry(name: &str, json: &Json, data: u64) -> Result<StoredTensor, ArtifactError> {
    let Json::Object(members) = json else {
        return Err(wrong("the entry", json, "an object of dtype, shape, data_offsets"));
    };
    if let Some((name, _)) =
        members.iter().find(|(n, _)| !["dtype", "shape", "data_offsets"].contains(&n.as_str()))
    {
        return Err(fault(F::UnknownMember { name: name.clone() }));
    }
    let get = |name| json.get(name).unwrap_or(&Json::Null);
    let Json::Str(dtype) = get("dtype") else {
        return Err(wrong("dtype", get("dtype"), "a string"));
    };
    let integers = |member, wanted| match get(member) {
        Json::Array(values) => {
            let number = |v: &Json| v.as_u64().ok_or_else(|| wrong(member, v, wanted));
            values.iter().map(number).collect::<Result<Vec<u64>, _>>()
        }
        other => Err(wrong(member, other, wanted)),
    };
    let shape = integers("shape", "an array of integers that are not negative")?;
    let offsets = integers("data_offsets", "an array of two integers that are not negative")?;
    let &[begin, end] = &offsets[..] else {
        return Err(wrong(
            "data_offsets",
            get("data_offsets"),
            "an array of two integers that are not negative",
        ));
    };
    if begin > end {
        return Err(fault(F::Reversed { begin, end }));
    }
    if end > data {
        return Err(fault(F::PastEnd { begin, end, bytes: data }));
    }
    let bits = DTYPES.iter().find(|(name, _)| name == dtype).map(|&(_, bits)| bits);
    if let Some(bits) = bits {
        let text = || ShapeText::of(&shape);
        let Some(total) = product(&shape).and_then(|n| n.checked_mul(bits)) else {
            return Err(fault(F::Overflow { shape: text() }));
        };
        if total % 8 != 0 {
            return Err(fault(F::PartialByte { shape: text(), dtype: dtype.clone() }));
        }
        if total / 8 != end - begin {
            let kind = F::Span { begin, end, wanted: total / 8, shape: text(), dtype: dtype.clone() };
            return Err(fault(kind));
        }
    }
    Ok(StoredTensor { name: name.into(), dtype: dtype.clone(), bits, shape, range: begin..end })
}

/// Product of the dimensions; a zero makes it zero, whatever the others are.
fn product(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}
