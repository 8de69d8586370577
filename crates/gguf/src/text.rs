//! Strings of a GGUF file: bytes that should be UTF-8 and sometimes are not.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use crate::limits::MAX_SHOWN;

/// A string as it stands in the file. Bytes that are not UTF-8 are kept; [`GgufStr::text`] shows them lossily.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GgufStr<'a>(pub &'a [u8]);

impl<'a> GgufStr<'a> {
    /// The bytes as stored.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, if the bytes are UTF-8.
    #[must_use]
    pub fn to_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// The text; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// The text for messages and listings: control characters and bytes that are not UTF-8 escaped, cut after 120
    /// characters.
    #[must_use]
    pub fn escaped(self) -> String {
        let mut out = String::new();
        let mut shown = 0;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if shown == MAX_SHOWN {
                    out.push_str("...");
                    return out;
                }
                out.extend(c.escape_debug());
                shown += 1;
            }
            for b in chunk.invalid() {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\x{b:02x}");
                shown += 1;
            }
        }
        out
    }
}

impl fmt::Debug for GgufStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escaped())
    }
}

impl fmt::Display for GgufStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_any_bytes() {
        assert_eq!(GgufStr(b"blk.0").escaped(), "blk.0");
        assert_eq!(GgufStr("größe".as_bytes()).escaped(), "größe");
        assert_eq!(GgufStr(b"a\0b\n\"").escaped(), "a\\0b\\n\\\"");
        assert_eq!(GgufStr(b"a\xff\xc3b").escaped(), "a\\xff\\xc3b");
        assert_eq!(GgufStr(b"a\xffb").text(), "a\u{fffd}b");
        assert_eq!(GgufStr(b"a\xffb").to_str(), None);
        let long = GgufStr(&[b'x'; 500]).escaped();
        assert_eq!(long.len(), 123);
        assert!(long.ends_with("x..."));
    }
}
