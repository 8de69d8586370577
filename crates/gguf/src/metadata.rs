//! Metadata look-ups: a header together with the bytes it was parsed from.

use crate::cursor::{Cursor, slice};
use crate::error::{GgufError, GgufErrorKind as K};
use crate::header::{Entry, Header};
use crate::tensor::TensorInfo;
use crate::text::GgufStr;
use crate::value::{Array, Value};

/// Metadata of a file. Values are decoded from the bytes at every call; nothing is cached.
///
/// The typed getters return `Ok(None)` for a key that is not there, and an error that names the key, the type found
/// and the type wanted for one of another type.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// `bytes` must have the length the header was parsed from.
    pub(crate) fn new(header: &'a Header, bytes: &'a [u8]) -> Self {
        Self { header, bytes }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.entries().len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries in file order.
    #[must_use]
    pub fn entries(&self) -> &'a [Entry] {
        self.header.entries()
    }

    /// Value of an entry of this header.
    ///
    /// # Errors
    /// Only if the bytes changed since the header was parsed (a mapped file written by another process), or if the
    /// entry belongs to another header.
    pub fn value(&self, entry: &Entry) -> Result<Value<'a>, GgufError> {
        let len = entry.end.saturating_sub(entry.value_begin);
        let bytes = slice(self.bytes, entry.value_begin, len).unwrap_or_default();
        let mut c = Cursor::new(bytes, entry.value_begin);
        let value = Value::read(&mut c, entry.value_type, 0).map_err(|e| e.in_key(&entry.key))?;
        if c.remaining() > 0 {
            return Err(GgufError::new(K::Changed).at(entry.value_begin).in_key(&entry.key));
        }
        Ok(value)
    }

    /// The entry's bytes in the file: key, type number and value.
    ///
    /// # Errors
    /// [`GgufErrorKind::Changed`](K::Changed) if the bytes do not hold this key and type any more.
    pub fn raw(&self, entry: &Entry) -> Result<&'a [u8], GgufError> {
        let raw = slice(self.bytes, entry.begin, entry.end.saturating_sub(entry.begin)).unwrap_or_default();
        let mut c = Cursor::new(raw, entry.begin);
        let key = c.name("metadata key length").map_err(|e| e.in_key(&entry.key))?;
        let number = c.u32("a value type").map_err(|e| e.in_key(&entry.key))?;
        if key != &*entry.key || number != entry.value_type.number() {
            return Err(GgufError::new(K::Changed).at(entry.begin).in_key(&entry.key));
        }
        Ok(raw)
    }

    /// Value of a key. Constant time to find it.
    ///
    /// # Errors
    /// Those of [`Metadata::value`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'a>>, GgufError> {
        self.header.entry(key).map(|e| self.value(e)).transpose()
    }

    fn typed<T>(
        &self,
        key: &[u8],
        wanted: &'static str,
        convert: impl FnOnce(Value<'a>) -> Converted<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(entry) = self.header.entry(key) else { return Ok(None) };
        let value = self.value(entry)?;
        let kind = match convert(value) {
            Converted::Fits(x) => return Ok(Some(x)),
            Converted::OtherType => K::KeyType { found: value.describe(), wanted },
            Converted::OutOfRange(value) => K::KeyRange { value, wanted },
        };
        Err(GgufError::new(kind).at(entry.value_begin).in_key(key))
    }

    /// An integer of any width and sign that is not negative.
    ///
    /// # Errors
    /// [`GgufErrorKind::KeyType`](K::KeyType), [`GgufErrorKind::KeyRange`](K::KeyRange), or those of
    /// [`Metadata::value`].
    pub fn get_u64(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>, GgufError> {
        self.typed(key.as_ref(), "an integer from 0 to 2^64-1", |v| integer(v, |n| u64::try_from(n).ok()))
    }

    /// An integer of any width and sign that fits in an `i64`.
    ///
    /// # Errors
    /// As [`Metadata::get_u64`].
    pub fn get_i64(&self, key: impl AsRef<[u8]>) -> Result<Option<i64>, GgufError> {
        self.typed(key.as_ref(), "an integer from -2^63 to 2^63-1", |v| integer(v, |n| i64::try_from(n).ok()))
    }

    /// A float of either width, or an integer that a binary64 holds exactly.
    ///
    /// # Errors
    /// As [`Metadata::get_u64`].
    pub fn get_f64(&self, key: impl AsRef<[u8]>) -> Result<Option<f64>, GgufError> {
        self.typed(key.as_ref(), "a number that a binary64 holds exactly", |v| match v {
            Value::F32(x) => Converted::Fits(x.into()),
            Value::F64(x) => Converted::Fits(x),
            other => integer(other, |n| {
                let x = n as f64;
                // Integers of the format are below 2^64, so the way back cannot saturate.
                (x as i128 == n).then_some(x)
            }),
        })
    }

    /// A bool.
    ///
    /// # Errors
    /// As [`Metadata::get_u64`].
    pub fn get_bool(&self, key: impl AsRef<[u8]>) -> Result<Option<bool>, GgufError> {
        self.typed(key.as_ref(), "a bool", |v| match v {
            Value::Bool(x) => Converted::Fits(x),
            _ => Converted::OtherType,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// As [`Metadata::get_u64`].
    pub fn get_str(&self, key: impl AsRef<[u8]>) -> Result<Option<GgufStr<'a>>, GgufError> {
        self.typed(key.as_ref(), "a string", |v| match v {
            Value::String(s) => Converted::Fits(s),
            _ => Converted::OtherType,
        })
    }

    /// An array.
    ///
    /// # Errors
    /// As [`Metadata::get_u64`].
    pub fn get_array(&self, key: impl AsRef<[u8]>) -> Result<Option<Array<'a>>, GgufError> {
        self.typed(key.as_ref(), "an array", |v| match v {
            Value::Array(a) => Converted::Fits(a),
            _ => Converted::OtherType,
        })
    }

    /// The shape a tensor had before it was reshaped for GGUF, slowest dimension first, as image-model converters
    /// record it under `comfy.gguf.orig_shape.NAME`; `None` if nothing is recorded.
    ///
    /// # Errors
    /// [`GgufErrorKind::KeyType`](K::KeyType) if the record is not an array of integers,
    /// [`GgufErrorKind::OriginalShape`](K::OriginalShape) if it has another element count than the tensor.
    pub fn original_shape(&self, tensor: &TensorInfo) -> Result<Option<Vec<u64>>, GgufError> {
        let key = [b"comfy.gguf.orig_shape.".as_slice(), tensor.name_bytes()].concat();
        let Some(array) = self.get_array(&key)? else { return Ok(None) };
        let fail = |kind| Err(GgufError::new(kind).at(array.offset()).in_key(&key));
        // A rank beyond any framework's is not a shape, and is not worth collecting.
        if array.len() > 64 {
            return fail(K::OverLimit {
                what: "the rank of the recorded shape",
                found: array.len(),
                limit: 64,
            });
        }
        let mut recorded = Vec::new();
        for value in array.iter() {
            match value?.as_integer().and_then(|n| i64::try_from(n).ok()) {
                Some(n) => recorded.push(n),
                None => {
                    let found = format!("array of {} {}", array.len(), array.element());
                    return fail(K::KeyType { found, wanted: "an array of integers" });
                }
            }
        }
        let shape: Option<Vec<u64>> = recorded.iter().map(|&n| u64::try_from(n).ok()).collect();
        let matches = |s: &Vec<u64>| {
            let product =
                if s.contains(&0) { Some(0) } else { s.iter().try_fold(1u64, |n, &d| n.checked_mul(d)) };
            product == Some(tensor.elements())
        };
        match shape.filter(matches) {
            Some(shape) => Ok(Some(shape)),
            None => fail(K::OriginalShape { shape: recorded, elements: tensor.elements() }),
        }
    }
}

enum Converted<T> {
    Fits(T),
    OtherType,
    OutOfRange(String),
}

fn integer<T>(value: Value<'_>, fit: impl FnOnce(i128) -> Option<T>) -> Converted<T> {
    match value.as_integer() {
        None => Converted::OtherType,
        Some(n) => fit(n).map_or_else(|| Converted::OutOfRange(n.to_string()), Converted::Fits),
    }
}
