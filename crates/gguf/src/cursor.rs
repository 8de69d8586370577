//! The bounds-checked reader: the only code of the crate that slices input.

use crate::error::{GgufError, GgufErrorKind as K};

/// The sub-range `at..at + len` of `bytes`, if it lies inside.
pub(crate) fn slice(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let begin = usize::try_from(at).ok()?;
    let end = usize::try_from(at.checked_add(len)?).ok()?;
    bytes.get(begin..end)
}

/// Reads forward through bytes; every failure names the offset and what was wanted there.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    at: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor over `bytes`, whose first byte is at `at` in the file.
    pub(crate) fn new(bytes: &'a [u8], at: u64) -> Self {
        Self { rest: bytes, at }
    }

    /// File offset of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.rest.len() as u64
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let split = usize::try_from(len).ok().and_then(|n| self.rest.split_at_checked(n));
        let Some((head, rest)) = split else {
            let kind = K::Truncated { what, needs: len, remaining: self.remaining() };
            return Err(GgufError::new(kind).at(self.at));
        };
        self.rest = rest;
        self.at += len;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            let kind = K::Truncated { what, needs: N as u64, remaining: self.remaining() };
            return Err(GgufError::new(kind).at(self.at));
        };
        self.rest = rest;
        self.at += N as u64;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A u64 count of things that take at least `each` bytes, checked against the bytes that remain.
    pub(crate) fn count(&mut self, each: u64, what: &'static str) -> Result<u64, GgufError> {
        let at = self.at;
        let found = self.u64(what)?;
        let most = self.remaining() / each;
        if found > most {
            return Err(GgufError::new(K::TooMany { what, found, most, remaining: self.remaining() }).at(at));
        }
        Ok(found)
    }

    /// A string: u64 length, then that many bytes.
    pub(crate) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let len = self.count(1, what)?;
        self.take(len, what)
    }

    /// A key or tensor name: a string under the cap.
    pub(crate) fn name(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let at = self.at;
        let len = self.count(1, what)?;
        if len > crate::limits::MAX_NAME_BYTES {
            let kind = K::OverLimit { what, found: len, limit: crate::limits::MAX_NAME_BYTES };
            return Err(GgufError::new(kind).at(at));
        }
        self.take(len, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_only_inside() {
        let b = [1u8, 2, 3];
        assert_eq!(slice(&b, 1, 2), Some(&b[1..]));
        assert_eq!(slice(&b, 3, 0), Some(&b[3..]));
        assert_eq!(slice(&b, 2, 2), None);
        assert_eq!(slice(&b, 4, 0), None);
        assert_eq!(slice(&b, u64::MAX, 1), None);
        assert_eq!(slice(&b, 1, u64::MAX), None);
    }

    #[test]
    fn a_failed_read_moves_nothing() {
        let mut c = Cursor::new(&[1, 2, 3], 100);
        assert_eq!(c.u16("word").unwrap(), 0x0201);
        let e = c.u32("word").unwrap_err();
        assert_eq!(e.offset(), Some(102));
        assert!(matches!(e.kind(), K::Truncated { what: "word", needs: 4, remaining: 1 }));
        assert_eq!(c.u8("byte").unwrap(), 3);
        assert_eq!(c.remaining(), 0);
    }

    #[test]
    fn counts_are_bounded_by_what_remains() {
        let bytes = |count: u64| [&count.to_le_bytes()[..], &[0; 25]].concat();
        for (each, most) in [(1, 25), (8, 3), (12, 2), (24, 1)] {
            let b = bytes(most);
            assert_eq!(Cursor::new(&b, 0).count(each, "things").unwrap(), most);
            let b = bytes(most + 1);
            let e = Cursor::new(&b, 7).count(each, "things").unwrap_err();
            assert!(matches!(e.kind(), K::TooMany { remaining: 25, .. }), "{e}");
            assert_eq!((e.offset(), e.expected()), (Some(7), Some(format!("at most {most}"))));
        }
    }
}
