//! The header of a `.npy` file: element type, order and shape.
//!
//! Six bytes of magic, two of version, the header's length (2 bytes in version 1, 4 after), then the header: a Python
//! dictionary of `descr`, `fortran_order` and `shape`, and white space. Source: numpy's description of the format.

use std::ops::Range;

use ninfer_formats::ShapeText;

use crate::error::{ArtifactError, ArtifactErrorKind as K, quoted};
use crate::source::Content;
use crate::source::words::{FloatType as F, IntegerType as I};

/// First bytes of a `.npy` file.
pub(crate) const MAGIC: [u8; 6] = *b"\x93NUMPY";
/// Longest header in bytes that is read. A shape of 32 dimensions takes less than one thousand.
pub const MAX_HEADER: u64 = 1 << 16;

/// The rules of `.npy` and `.npz` files. Byte counts are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum NpyFault {
    /// Not the magic of the format.
    #[error("the array begins with {found}: not a .npy file")]
    Magic { found: String },
    /// A version of the format that is not known.
    #[error("the array is of version {major}.{minor}")]
    Version { major: u8, minor: u8 },
    /// The header, or the data, end after the file.
    #[error("{what} ends at byte {end}, but there are {bytes} bytes")]
    CutShort { what: &'static str, end: u64, bytes: u64 },
    /// A header longer than [`MAX_HEADER`].
    #[error("the header has {found} bytes")]
    HeaderLength { found: u64 },
    /// The header is not the dictionary it must be.
    #[error("the header is not read at its character {at}: {found}")]
    Header { at: usize, found: String, wanted: &'static str },
    /// More elements or bytes than can be counted.
    #[error("shape {shape} has more elements, or bytes, than 64 bits can count")]
    Overflow { shape: ShapeText },
    /// Bytes after the array.
    #[error("{extra} bytes follow the array")]
    Trailing { extra: u64 },

    /// The archive cannot be read.
    #[error("the archive cannot be read: {message}")]
    Archive { message: String },
    /// Two entries have one name, or share bytes.
    #[error("the archive has {what}")]
    Ambiguous { what: &'static str },
    /// An archive without arrays.
    #[error("none of the archive's {entries} entries is a .npy array")]
    NoArrays { entries: u64 },
    /// An entry that is encrypted or compressed in a way that is not read.
    #[error("the entry is {what}")]
    Entry { what: String },
    /// An entry's checksum is not that of its bytes.
    #[error("the checksum of the entry is {found:#010x}")]
    Checksum { found: u32, wanted: u32 },
}

impl NpyFault {
    pub(crate) fn expected(&self) -> Option<String> {
        Some(match self {
            Self::Magic { .. } => "the bytes 93 4e 55 4d 50 59 (\"NUMPY\")".into(),
            Self::Version { .. } => "1.0, 2.0 or 3.0".into(),
            Self::HeaderLength { .. } => format!("at most {MAX_HEADER}"),
            Self::Header { wanted, .. } => (*wanted).into(),
            Self::NoArrays { .. } => {
                "at least one; of a PyTorch checkpoint, save the tensors as safetensors first".into()
            }
            Self::Entry { .. } => "stored or deflated".into(),
            Self::Checksum { wanted, .. } => format!("{wanted:#010x}"),
            _ => return None,
        })
    }
}

pub(super) fn fault(fault: NpyFault) -> ArtifactError {
    ArtifactError::new(K::Npy(fault))
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// `descr` as written.
    pub descr: String,
    /// Whether the first dimension runs fastest.
    pub fortran: bool,
    /// Elements per dimension, slowest first in C order.
    pub shape: Vec<u64>,
    /// Where the data begin.
    pub data_start: u64,
}

/// What a `descr` means: content, bytes of a word, whether the words are big-endian.
pub(super) fn meaning(descr: &str) -> (Content, Option<usize>, bool) {
    let unsupported =
        |why: &str| (Content::Unsupported(format!("elements of type {} {why}", quoted(descr))), None, false);
    let mut chars = descr.chars();
    let (Some(order), kind, size) = (chars.next(), chars.next(), chars.as_str()) else {
        return unsupported("are not known");
    };
    let content = match (kind, size) {
        (Some('f'), "2") => Content::Values(F::F16),
        (Some('f'), "4") => Content::Values(F::F32),
        (Some('f'), "8") => Content::Values(F::F64),
        (Some('b'), "1") => Content::Integers(I::Bool),
        (Some('i'), "1") => Content::Integers(I::I8),
        (Some('u'), "1") => Content::Integers(I::U8),
        (Some('i'), "2") => Content::Integers(I::I16),
        (Some('u'), "2") => Content::Integers(I::U16),
        (Some('i'), "4") => Content::Integers(I::I32),
        (Some('u'), "4") => Content::Integers(I::U32),
        (Some('i'), "8") => Content::Integers(I::I64),
        (Some('u'), "8") => Content::Integers(I::U64),
        (Some('V'), _) => return unsupported("are raw bytes; save bfloat16 and FP8 arrays as safetensors"),
        (Some('O'), _) => return unsupported("are Python objects, which are never unpacked"),
        _ => return unsupported("are not numbers that are read"),
    };
    let bytes = match &content {
        Content::Values(kind) => kind.bytes(),
        Content::Integers(kind) => kind.bytes(),
        _ => return unsupported("are not read"),
    };
    match order {
        '<' => (content, Some(bytes), false),
        '>' => (content, Some(bytes), true),
        // One byte has no order.
        '|' if bytes == 1 => (content, Some(bytes), false),
        _ => unsupported("have no known byte order"),
    }
}

impl Header {
    /// Parses the header at the front of `bytes`, which may end after the header. `total` is the length of file or entry.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Npy`](K::Npy).
    pub fn parse(bytes: &[u8], total: u64) -> Result<Self, ArtifactError> {
        let short = |what, end| fault(NpyFault::CutShort { what, end, bytes: total });
        if !bytes.starts_with(&MAGIC) {
            let found = bytes.iter().take(6).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
            return Err(fault(NpyFault::Magic { found }));
        }
        let &[major, minor] = bytes.get(6..8).unwrap_or_default() else {
            return Err(short("the version", 8));
        };
        let (start, length) = match (major, minor) {
            (1, 0) => match bytes.get(8..10) {
                Some(&[a, b]) => (10u64, u64::from(u16::from_le_bytes([a, b]))),
                _ => return Err(short("the header's length", 10)),
            },
            (2 | 3, 0) => match bytes.get(8..12) {
                Some(&[a, b, c, d]) => (12, u64::from(u32::from_le_bytes([a, b, c, d]))),
                _ => return Err(short("the header's length", 12)),
            },
            _ => return Err(fault(NpyFault::Version { major, minor })),
        };
        if length > MAX_HEADER {
            return Err(fault(NpyFault::HeaderLength { found: length }));
        }
        // Both are small.
        let text = bytes.get(start as usize..(start + length) as usize);
        let text = text.ok_or_else(|| short("the header", start + length))?;
        let (descr, fortran, shape) = Parser { text, at: 0 }.header()?;
        Ok(Self { descr, fortran, shape, data_start: start + length })
    }

    /// The data's bytes of `total`, for words of `word` bytes.
    ///
    /// # Errors
    /// More or fewer bytes than the shape needs.
    pub(super) fn data(&self, word: usize, total: u64) -> Result<Range<u64>, ArtifactError> {
        let overflow = || fault(NpyFault::Overflow { shape: ShapeText::of(&self.shape) });
        let elements = if self.shape.contains(&0) {
            Some(0)
        } else {
            self.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
        };
        let bytes = elements.and_then(|n| n.checked_mul(word as u64)).ok_or_else(overflow)?;
        let end = self.data_start.checked_add(bytes).ok_or_else(overflow)?;
        if end > total {
            return Err(fault(NpyFault::CutShort { what: "the array", end, bytes: total }));
        }
        if end < total {
            return Err(fault(NpyFault::Trailing { extra: total - end }));
        }
        Ok(self.data_start..end)
    }
}

/// Reads exactly the dictionary that numpy writes; never evaluates anything.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn fail(&self, wanted: &'static str) -> ArtifactError {
        let rest = &self.text[self.at.min(self.text.len())..];
        let found = String::from_utf8_lossy(&rest[..rest.len().min(16)]).into_owned();
        fault(NpyFault::Header { at: self.at, found: quoted(&found), wanted })
    }

    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    /// Takes `token` if it comes next, after white space.
    fn take(&mut self, token: &str) -> bool {
        self.space();
        let found = self.text[self.at..].starts_with(token.as_bytes());
        if found {
            self.at += token.len();
        }
        found
    }

    fn need(&mut self, token: &str, wanted: &'static str) -> Result<(), ArtifactError> {
        if self.take(token) { Ok(()) } else { Err(self.fail(wanted)) }
    }

    /// A string without escapes, which no name or type of numbers has.
    fn string(&mut self, wanted: &'static str) -> Result<String, ArtifactError> {
        self.space();
        let rest = &self.text[self.at..];
        let quote = match rest.first() {
            Some(&q @ (b'\'' | b'"')) => q,
            _ => return Err(self.fail(wanted)),
        };
        let body = &rest[1..];
        let Some(end) = body.iter().position(|&b| b == quote) else { return Err(self.fail(wanted)) };
        match std::str::from_utf8(&body[..end]) {
            Ok(text) if !text.contains('\\') => {
                self.at += end + 2;
                Ok(text.to_owned())
            }
            _ => Err(self.fail(wanted)),
        }
    }

    fn header(mut self) -> Result<(String, bool, Vec<u64>), ArtifactError> {
        const KEY: &str = "the keys descr, fortran_order and shape, each once";
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.need("{", "a dictionary")?;
        loop {
            if self.take("}") {
                break;
            }
            let at = self.at;
            let key = self.string(KEY)?;
            self.need(":", "a colon")?;
            let again = match key.as_str() {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                _ => true,
            };
            if again {
                self.at = at;
                return Err(self.fail(KEY));
            }
            if !self.take(",") {
                self.need("}", "a comma or the end of the dictionary")?;
                break;
            }
        }
        self.space();
        if self.at != self.text.len() {
            return Err(self.fail("nothing after the dictionary"));
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok((descr, fortran, shape)),
            _ => Err(self.fail(KEY)),
        }
    }

    /// The element type. A list of fields is kept as text: nothing reads it.
    fn descr(&mut self) -> Result<String, ArtifactError> {
        self.space();
        if self.text.get(self.at) != Some(&b'[') {
            return self.string("an element type, as a string");
        }
        Err(self.fail("an element type; records of fields are not read"))
    }

    fn boolean(&mut self) -> Result<bool, ArtifactError> {
        if self.take("True") {
            return Ok(true);
        }
        self.need("False", "True or False").map(|()| false)
    }

    fn tuple(&mut self) -> Result<Vec<u64>, ArtifactError> {
        const WANTED: &str = "a tuple of integers that are not negative";
        self.need("(", WANTED)?;
        let mut values = Vec::new();
        loop {
            if self.take(")") {
                return Ok(values);
            }
            self.space();
            let rest = &self.text[self.at..];
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let value = std::str::from_utf8(&rest[..digits]).ok().and_then(|d| d.parse().ok());
            values.push(value.ok_or_else(|| self.fail(WANTED))?);
            self.at += digits;
            // Python 2 wrote long integers so.
            if self.text.get(self.at) == Some(&b'L') {
                self.at += 1;
            }
            if !self.take(",") {
                self.need(")", WANTED)?;
                // A single number in parentheses is no tuple.
                return if values.len() == 1 { Err(self.fail(WANTED)) } else { Ok(values) };
            }
        }
    }
}
