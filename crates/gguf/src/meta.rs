//! Owned metadata values, for writing.

use crate::error::{GgufError, GgufErrorKind as K};
use crate::limits::MAX_DEPTH;
use crate::value::ValueType;

/// A metadata value to be written. Strings are bytes, normally UTF-8: a string read from a file is written back as
/// it was.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the type names of the file format")]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    Array(MetaArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array to be written: all elements of one type; arrays of arrays may mix inner types.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the element type names of the file format")]
pub enum MetaArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<Vec<u8>>),
    Array(Vec<MetaArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl MetaValue {
    /// A string value.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }

    /// An integer of the given type.
    ///
    /// # Errors
    /// [`GgufErrorKind::IntegerRange`](K::IntegerRange) if the type cannot hold it, or is not an integer type.
    pub fn integer(value_type: ValueType, value: i128) -> Result<Self, GgufError> {
        let fitted = match value_type {
            ValueType::U8 => u8::try_from(value).ok().map(Self::U8),
            ValueType::I8 => i8::try_from(value).ok().map(Self::I8),
            ValueType::U16 => u16::try_from(value).ok().map(Self::U16),
            ValueType::I16 => i16::try_from(value).ok().map(Self::I16),
            ValueType::U32 => u32::try_from(value).ok().map(Self::U32),
            ValueType::I32 => i32::try_from(value).ok().map(Self::I32),
            ValueType::U64 => u64::try_from(value).ok().map(Self::U64),
            ValueType::I64 => i64::try_from(value).ok().map(Self::I64),
            ValueType::F32 | ValueType::F64 | ValueType::Bool | ValueType::String | ValueType::Array => None,
        };
        fitted.ok_or_else(|| GgufError::new(K::IntegerRange { value, value_type: value_type.name() }))
    }

    /// The value's type.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Appends the stored form (without the type number). `depth` counts the arrays around the value.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, depth: u32) -> Result<(), GgufError> {
        match self {
            Self::U8(x) => out.push(*x),
            Self::I8(x) => out.extend(x.to_le_bytes()),
            Self::U16(x) => out.extend(x.to_le_bytes()),
            Self::I16(x) => out.extend(x.to_le_bytes()),
            Self::U32(x) => out.extend(x.to_le_bytes()),
            Self::I32(x) => out.extend(x.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::Bool(x) => out.push(u8::from(*x)),
            Self::String(s) => encode_string(s, out),
            Self::Array(a) => a.encode(out, depth)?,
            Self::U64(x) => out.extend(x.to_le_bytes()),
            Self::I64(x) => out.extend(x.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
        }
        Ok(())
    }
}

pub(crate) fn encode_string(s: &[u8], out: &mut Vec<u8>) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

/// Applies `$body` to the vector of whichever variant `$array` is.
macro_rules! each {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            MetaArray::U8($v) => $body,
            MetaArray::I8($v) => $body,
            MetaArray::U16($v) => $body,
            MetaArray::I16($v) => $body,
            MetaArray::U32($v) => $body,
            MetaArray::I32($v) => $body,
            MetaArray::F32($v) => $body,
            MetaArray::Bool($v) => $body,
            MetaArray::String($v) => $body,
            MetaArray::Array($v) => $body,
            MetaArray::U64($v) => $body,
            MetaArray::I64($v) => $body,
            MetaArray::F64($v) => $body,
        }
    };
}

impl MetaArray {
    /// An array without elements.
    #[must_use]
    pub fn empty(element: ValueType) -> Self {
        match element {
            ValueType::U8 => Self::U8(Vec::new()),
            ValueType::I8 => Self::I8(Vec::new()),
            ValueType::U16 => Self::U16(Vec::new()),
            ValueType::I16 => Self::I16(Vec::new()),
            ValueType::U32 => Self::U32(Vec::new()),
            ValueType::I32 => Self::I32(Vec::new()),
            ValueType::F32 => Self::F32(Vec::new()),
            ValueType::Bool => Self::Bool(Vec::new()),
            ValueType::String => Self::String(Vec::new()),
            ValueType::Array => Self::Array(Vec::new()),
            ValueType::U64 => Self::U64(Vec::new()),
            ValueType::I64 => Self::I64(Vec::new()),
            ValueType::F64 => Self::F64(Vec::new()),
        }
    }

    /// Element type.
    #[must_use]
    pub fn element(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an element.
    ///
    /// # Errors
    /// [`GgufErrorKind::KeyType`](K::KeyType) if the value is not of the element type.
    pub fn push(&mut self, value: MetaValue) -> Result<(), GgufError> {
        match (&mut *self, value) {
            (Self::U8(v), MetaValue::U8(x)) => v.push(x),
            (Self::I8(v), MetaValue::I8(x)) => v.push(x),
            (Self::U16(v), MetaValue::U16(x)) => v.push(x),
            (Self::I16(v), MetaValue::I16(x)) => v.push(x),
            (Self::U32(v), MetaValue::U32(x)) => v.push(x),
            (Self::I32(v), MetaValue::I32(x)) => v.push(x),
            (Self::F32(v), MetaValue::F32(x)) => v.push(x),
            (Self::Bool(v), MetaValue::Bool(x)) => v.push(x),
            (Self::String(v), MetaValue::String(x)) => v.push(x),
            (Self::Array(v), MetaValue::Array(x)) => v.push(x),
            (Self::U64(v), MetaValue::U64(x)) => v.push(x),
            (Self::I64(v), MetaValue::I64(x)) => v.push(x),
            (Self::F64(v), MetaValue::F64(x)) => v.push(x),
            (array, value) => {
                let found = value.value_type().name().to_owned();
                return Err(GgufError::new(K::KeyType { found, wanted: array.element().name() }));
            }
        }
        Ok(())
    }

    fn encode(&self, out: &mut Vec<u8>, depth: u32) -> Result<(), GgufError> {
        if depth == MAX_DEPTH {
            return Err(GgufError::new(K::Depth { limit: MAX_DEPTH }));
        }
        out.extend(self.element().number().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        match self {
            Self::U8(v) => out.extend_from_slice(v),
            Self::I8(v) => out.extend(v.iter().map(|x| x.cast_unsigned())),
            Self::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
            Self::String(v) => v.iter().for_each(|s| encode_string(s, out)),
            Self::Array(v) => {
                for inner in v {
                    inner.encode(out, depth + 1)?;
                }
            }
            Self::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
            Self::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_range_checked() {
        let t = ValueType::U8;
        assert_eq!(MetaValue::integer(t, 255).unwrap(), MetaValue::U8(255));
        for (value_type, value) in
            [(t, 256), (t, -1), (ValueType::I64, 1 << 63), (ValueType::U64, -1), (ValueType::F32, 1)]
        {
            let e = MetaValue::integer(value_type, value).unwrap_err();
            assert!(matches!(e.kind(), K::IntegerRange { value: v, .. } if *v == value), "{e}");
            assert!(e.to_string().contains(value_type.name()), "{e}");
        }
        assert_eq!(MetaValue::integer(ValueType::I64, -(1 << 63)).unwrap(), MetaValue::I64(i64::MIN));
    }

    #[test]
    fn elements_have_one_type() {
        for t in ValueType::ALL {
            let mut a = MetaArray::empty(t);
            assert_eq!((a.element(), a.len()), (t, 0));
            let other = if t == ValueType::Bool { MetaValue::U8(1) } else { MetaValue::Bool(true) };
            assert!(matches!(a.push(other).unwrap_err().kind(), K::KeyType { .. }));
            assert!(a.is_empty());
        }
        let mut a = MetaArray::empty(ValueType::String);
        a.push(MetaValue::text("x")).unwrap();
        assert_eq!(a.len(), 1);
    }
}
