//! Metadata values. Strings and arrays are views of the file's bytes and are decoded when they are asked for.

use std::fmt;

use crate::cursor::{Cursor, slice};
use crate::error::{GgufError, GgufErrorKind as K};
use crate::limits::MAX_DEPTH;
use crate::meta::{MetaArray, MetaValue};
use crate::text::GgufStr;

/// Type number of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "the variants are the type names of the file format")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// All 13 types in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The type's number in a file.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays.
    #[must_use]
    pub const fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Fewest bytes one array element of this type takes.
    const fn least_bytes(self) -> u64 {
        match self {
            Self::String => 8,
            Self::Array => 4 + 8,
            fixed => match fixed.fixed_bytes() {
                Some(n) => n,
                None => 1,
            },
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pub(crate) fn read_type(c: &mut Cursor<'_>, place: &'static str) -> Result<ValueType, GgufError> {
    let at = c.at();
    let found = c.u32("a value type")?;
    ValueType::from_number(found).ok_or_else(|| GgufError::new(K::ValueType { place, found }).at(at))
}

/// Element type and count of an array, read and checked against the bytes that remain.
fn read_array_head(c: &mut Cursor<'_>) -> Result<(ValueType, u64), GgufError> {
    let element = read_type(c, "array element")?;
    let count = c.count(element.least_bytes(), "array length")?;
    Ok((element, count))
}

/// Checks a value and moves past it. `depth` counts the arrays around it. Returns element type and count of an array.
pub(crate) fn skip(
    c: &mut Cursor<'_>,
    value_type: ValueType,
    depth: u32,
) -> Result<Option<(ValueType, u64)>, GgufError> {
    match value_type {
        ValueType::String => {
            c.string("string length")?;
        }
        ValueType::Array => {
            if depth == MAX_DEPTH {
                return Err(GgufError::new(K::Depth { limit: MAX_DEPTH }).at(c.at()));
            }
            let (element, count) = read_array_head(c)?;
            skip_elements(c, element, count, depth + 1)?;
            return Ok(Some((element, count)));
        }
        ValueType::Bool => {
            read_bool(c)?;
        }
        fixed => {
            c.take(fixed.least_bytes(), "a value")?;
        }
    }
    Ok(None)
}

fn skip_elements(c: &mut Cursor<'_>, element: ValueType, count: u64, depth: u32) -> Result<(), GgufError> {
    match element.fixed_bytes() {
        // The product was compared with the remaining bytes when the count was read, so it cannot overflow.
        Some(bytes) if element != ValueType::Bool => {
            c.take(count * bytes, "array elements")?;
        }
        _ => {
            for _ in 0..count {
                skip(c, element, depth)?;
            }
        }
    }
    Ok(())
}

fn read_bool(c: &mut Cursor<'_>) -> Result<bool, GgufError> {
    let at = c.at();
    match c.u8("a bool")? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::new(K::BoolByte { found }).at(at)),
    }
}

/// A metadata value. Strings and arrays borrow the bytes of the file.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the variants are the type names of the file format")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(GgufStr<'a>),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    pub(crate) fn read(c: &mut Cursor<'a>, value_type: ValueType, depth: u32) -> Result<Self, GgufError> {
        Ok(match value_type {
            ValueType::U8 => Self::U8(c.u8("a u8")?),
            ValueType::I8 => Self::I8(c.u8("an i8")?.cast_signed()),
            ValueType::U16 => Self::U16(c.u16("a u16")?),
            ValueType::I16 => Self::I16(c.u16("an i16")?.cast_signed()),
            ValueType::U32 => Self::U32(c.u32("a u32")?),
            ValueType::I32 => Self::I32(c.u32("an i32")?.cast_signed()),
            ValueType::F32 => Self::F32(f32::from_bits(c.u32("an f32")?)),
            ValueType::Bool => Self::Bool(read_bool(c)?),
            ValueType::String => Self::String(GgufStr(c.string("string length")?)),
            ValueType::Array => Self::Array(Array::read(c, depth)?),
            ValueType::U64 => Self::U64(c.u64("a u64")?),
            ValueType::I64 => Self::I64(c.u64("an i64")?.cast_signed()),
            ValueType::F64 => Self::F64(f64::from_bits(c.u64("an f64")?)),
        })
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

    /// The value as an integer, if it is of an integer type.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// What the value is, for messages: `u32`, `array of 3 string`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Array(a) => format!("array of {} {}", a.len(), a.element()),
            other => other.value_type().name().to_owned(),
        }
    }

    /// A copy that owns its strings and arrays, for writing.
    ///
    /// # Errors
    /// Those of [`Array::iter`].
    pub fn to_meta(&self) -> Result<MetaValue, GgufError> {
        Ok(match *self {
            Self::U8(x) => MetaValue::U8(x),
            Self::I8(x) => MetaValue::I8(x),
            Self::U16(x) => MetaValue::U16(x),
            Self::I16(x) => MetaValue::I16(x),
            Self::U32(x) => MetaValue::U32(x),
            Self::I32(x) => MetaValue::I32(x),
            Self::F32(x) => MetaValue::F32(x),
            Self::Bool(x) => MetaValue::Bool(x),
            Self::String(s) => MetaValue::String(s.bytes().to_vec()),
            Self::Array(a) => MetaValue::Array(a.to_meta()?),
            Self::U64(x) => MetaValue::U64(x),
            Self::I64(x) => MetaValue::I64(x),
            Self::F64(x) => MetaValue::F64(x),
        })
    }
}

/// A view of an array value: element type, count and the elements' bytes, decoded while iterating.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    count: u64,
    bytes: &'a [u8],
    at: u64,
    depth: u32,
}

impl<'a> Array<'a> {
    fn read(c: &mut Cursor<'a>, depth: u32) -> Result<Self, GgufError> {
        if depth == MAX_DEPTH {
            return Err(GgufError::new(K::Depth { limit: MAX_DEPTH }).at(c.at()));
        }
        let (element, count) = read_array_head(c)?;
        let (at, bytes) = (c.at(), c.rest());
        skip_elements(c, element, count, depth + 1)?;
        // The cursor moved inside `bytes`, so the range exists.
        let bytes = slice(bytes, 0, c.at() - at).unwrap_or(bytes);
        Ok(Self { element, count, bytes, at, depth: depth + 1 })
    }

    /// Element type.
    #[must_use]
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements' bytes as stored: packed little-endian words for numbers and bools; for strings and arrays each
    /// element with its own header.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.bytes
    }

    /// File offset of [`Array::raw`].
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Iterates the elements. An item is an error only if the bytes changed since the array was looked up (a mapped
    /// file written by another process); iteration then ends.
    #[must_use]
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            cursor: Cursor::new(self.bytes, self.at),
            element: self.element,
            left: self.count,
            depth: self.depth,
        }
    }

    /// One element; `None` past the end. Constant time for numbers and bools; for strings and arrays the elements
    /// before it are passed over, so use [`Array::iter`] or [`Array::element_offsets`] to visit many.
    ///
    /// # Errors
    /// Those of [`Array::iter`].
    pub fn get(&self, index: u64) -> Result<Option<Value<'a>>, GgufError> {
        if index >= self.count {
            return Ok(None);
        }
        let mut c = Cursor::new(self.bytes, self.at);
        match self.element.fixed_bytes() {
            // Below the whole array's size, which exists in memory.
            Some(bytes) => {
                c.take(index * bytes, "array elements")?;
            }
            None => {
                for _ in 0..index {
                    skip(&mut c, self.element, self.depth)?;
                }
            }
        }
        Value::read(&mut c, self.element, self.depth).map(Some)
    }

    /// Byte offset of each element within [`Array::raw`], for random access to strings; eight bytes per element.
    ///
    /// # Errors
    /// Those of [`Array::iter`].
    pub fn element_offsets(&self) -> Result<Vec<u64>, GgufError> {
        let mut c = Cursor::new(self.bytes, self.at);
        let mut offsets = Vec::new();
        for _ in 0..self.count {
            offsets.push(c.at() - self.at);
            skip(&mut c, self.element, self.depth)?;
        }
        Ok(offsets)
    }

    /// The element whose bytes begin at `offset` within [`Array::raw`], one of [`Array::element_offsets`].
    ///
    /// # Errors
    /// The errors of reading a value, if no element begins there.
    pub fn get_at(&self, offset: u64) -> Result<Value<'a>, GgufError> {
        let mut c = Cursor::new(self.bytes, self.at);
        c.take(offset, "array elements")?;
        Value::read(&mut c, self.element, self.depth)
    }

    /// A copy that owns its elements, for writing.
    ///
    /// # Errors
    /// Those of [`Array::iter`].
    pub fn to_meta(&self) -> Result<MetaArray, GgufError> {
        let mut out = MetaArray::empty(self.element);
        for value in self.iter() {
            out.push(value?.to_meta()?)?;
        }
        Ok(out)
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {} at byte {})", self.count, self.element, self.at)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Result<Value<'a>, GgufError>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    cursor: Cursor<'a>,
    element: ValueType,
    left: u64,
    depth: u32,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Result<Value<'a>, GgufError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let value = Value::read(&mut self.cursor, self.element, self.depth);
        if value.is_err() {
            self.left = 0;
        }
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = usize::try_from(self.left).ok();
        // Fewer come if a value turns out unreadable.
        (0, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_numbers_are_positions() {
        for (i, t) in ValueType::ALL.into_iter().enumerate() {
            assert_eq!(t.number() as usize, i);
            assert_eq!(ValueType::from_number(t.number()), Some(t));
        }
        assert_eq!(ValueType::from_number(13), None);
        assert_eq!(ValueType::from_number(u32::MAX), None);
    }
}
