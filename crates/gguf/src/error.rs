//! The crate's error: in which file, at which byte, about which key or tensor, what was found, what was expected.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::text::GgufStr;

/// What an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// A metadata entry; its key, escaped for display.
    Key(String),
    /// A tensor; its name, escaped for display.
    Tensor(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(k) => write!(f, "metadata key \"{k}\""),
            Self::Tensor(t) => write!(f, "tensor \"{t}\""),
        }
    }
}

/// Why a file was refused or an operation failed.
///
/// Printed as `path: byte offset: subject: what was found; expected what`, leaving out what is not known.
#[derive(Debug)]
pub struct GgufError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: GgufErrorKind,
    path: Option<PathBuf>,
    offset: Option<u64>,
    subject: Option<Subject>,
}

impl GgufError {
    pub(crate) fn new(kind: GgufErrorKind) -> Self {
        Self(Box::new(Inner { kind, path: None, offset: None, subject: None }))
    }

    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    pub(crate) fn in_key(mut self, key: &[u8]) -> Self {
        self.0.subject.get_or_insert_with(|| Subject::Key(GgufStr(key).escaped()));
        self
    }

    pub(crate) fn in_tensor(mut self, name: &[u8]) -> Self {
        self.0.subject.get_or_insert_with(|| Subject::Tensor(GgufStr(name).escaped()));
        self
    }

    /// Adds the path of the file, unless the error already has one.
    #[must_use]
    pub fn with_path(mut self, path: &Path) -> Self {
        self.0.path.get_or_insert_with(|| path.to_path_buf());
        self
    }

    /// The reason, for matching.
    #[must_use]
    pub fn kind(&self) -> &GgufErrorKind {
        &self.0.kind
    }

    /// The file, where one is known.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Position in the file in bytes from its start, where one is known.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The key or tensor concerned, where it is one.
    #[must_use]
    pub fn subject(&self) -> Option<&Subject> {
        self.0.subject.as_ref()
    }

    /// What was expected instead, as a sentence fragment.
    #[must_use]
    pub fn expected(&self) -> Option<String> {
        self.0.kind.expected()
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        if let Some(offset) = self.offset() {
            write!(f, "byte {offset}: ")?;
        }
        if let Some(subject) = self.subject() {
            write!(f, "{subject}: ")?;
        }
        write!(f, "{}", self.kind())?;
        if let Some(expected) = self.expected() {
            write!(f, "; expected {expected}")?;
        }
        Ok(())
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            GgufErrorKind::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The reasons. Byte counts and offsets are in bytes, dimensions in elements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum GgufErrorKind {
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    /// The file does not begin with the magic.
    #[error("the file begins with {found:?}: not a GGUF file")]
    NotGguf { found: String },
    /// The version word is byte-swapped.
    #[error(
        "version word {word:#010x} is version {version} in the other byte order: this is a big-endian GGUF file"
    )]
    BigEndian { word: u32, version: u32 },
    /// A version this reader does not know.
    #[error("GGUF version {found}")]
    Version { found: u32 },
    /// The file ends inside a header field.
    #[error("the file ends here: {what} needs {needs} bytes, {remaining} remain")]
    Truncated { what: &'static str, needs: u64, remaining: u64 },
    /// A count or length that the rest of the file cannot hold.
    #[error("{what} is {found}, more than the {remaining} bytes that remain can hold")]
    TooMany { what: &'static str, found: u64, most: u64, remaining: u64 },
    /// A count or length above a cap of this reader (module `limits`).
    #[error("{what} is {found}")]
    OverLimit { what: &'static str, found: u64, limit: u64 },
    /// A value type number outside 0..=12; `place` is `value` or `array element`.
    #[error("unknown {place} type {found}")]
    ValueType { place: &'static str, found: u32 },
    /// Arrays nested too deep.
    #[error("arrays nest deeper than {limit} levels")]
    Depth { limit: u32 },
    /// A bool that is neither 0 nor 1.
    #[error("bool byte {found:#04x}")]
    BoolByte { found: u8 },
    /// Two entries with one key.
    #[error("duplicate key; the first is at byte {first}")]
    DuplicateKey { first: u64 },
    /// Two tensors with one name, in one file or in two shards.
    #[error("duplicate tensor name; the first is in {first}")]
    DuplicateTensor { first: String },
    /// `general.alignment` breaks its rule.
    #[error("general.alignment is {found}")]
    Alignment { found: String },
    /// The dimensions' product is too large.
    #[error("dimensions {dims:?} have more elements than a signed 64-bit integer can count")]
    ElementCount { dims: Vec<u64> },
    /// Rows are not whole blocks.
    #[error("row length {row} is not a multiple of {block}, the block of {type_name}")]
    RowLength { row: u64, block: u64, type_name: &'static str },
    /// A tensor offset off the alignment.
    #[error("data offset {offset} is not a multiple of the alignment {alignment}")]
    TensorOffset { offset: u64, alignment: u32 },
    /// Tensor data outside the file.
    #[error("its data ends at byte {end}, but the file has {file_bytes} bytes and is cut short")]
    TensorEnd { end: u128, file_bytes: u64 },
    /// Two tensors share bytes.
    #[error("its data, bytes {begin}..{end}, overlaps tensor \"{other}\", bytes {other_begin}..{other_end}")]
    Overlap { begin: u64, end: u64, other: String, other_begin: u64, other_end: u64 },
    /// A metadata value has another type than the one asked for.
    #[error("the value is of type {found}")]
    KeyType { found: String, wanted: &'static str },
    /// A metadata value does not fit in the type asked for.
    #[error("the value is {value}")]
    KeyRange { value: String, wanted: &'static str },
    /// A metadata key that must be there is not.
    #[error("the key is missing")]
    KeyMissing,
    /// No tensor has this name.
    #[error("no tensor has this name; there are {tensors} tensors")]
    NoTensor { tensors: u64 },
    /// The byte span of the tensor is not known.
    #[error("ggml type {type_id} ({type_name}) has no known block size, so its bytes cannot be located")]
    UnknownSpan { type_id: u32, type_name: String },
    /// A header is used with other bytes than it was parsed from.
    #[error("the header was parsed from {parsed} bytes and is used with {given}")]
    OtherBytes { parsed: u64, given: u64 },
    /// The bytes of a metadata entry are not what they were when the header was parsed.
    #[error("the file changed since its header was parsed")]
    Changed,
    /// A recorded original shape does not fit its tensor.
    #[error("the recorded shape {shape:?} has another element count than the tensor's {elements}")]
    OriginalShape { shape: Vec<i64>, elements: u64 },

    /// An importance matrix breaks a rule.
    #[error("importance matrix: {rule}")]
    Imatrix { rule: String },

    /// No file was given.
    #[error("no file was given")]
    NoFiles,
    /// The file says it is one of several, but its name does not lead to the others.
    #[error("the file is shard {number} of {count}, and its name does not say where the others are")]
    SplitIncomplete { number: String, count: u64 },
    /// `split.count` and the file name disagree.
    #[error("the file name says {named} shards, split.count is {found}")]
    SplitNameCount { named: u64, found: String },
    /// `split.count` of two shards disagree.
    #[error("split.count is {found}, the first file opened says {count}")]
    SplitCount { found: u64, count: u64 },
    /// `split.no` is not the shard's position.
    #[error("split.no is {found}")]
    SplitNumber { found: u64, wanted: Option<u64>, count: u64 },
    /// A shard's file is absent.
    #[error("shard {number} of {count} is missing: {source}")]
    SplitMissing { number: u64, count: u64, source: std::io::Error },
    /// A list of files that is not the whole set.
    #[error("{given} files were given, split.count is {count}")]
    SplitListed { given: u64, count: u64 },
    /// Two files of a list have the same `split.no`.
    #[error("split.no {number} is also that of {other}")]
    SplitRepeated { number: u64, other: String },
    /// `split.tensors.count` is not the number of tensors in the set.
    #[error("split.tensors.count is {found}, the shards hold {sum} tensors")]
    SplitTotal { found: u64, sum: u64 },

    /// A key or tensor name to be written is empty.
    #[error("the {what} is empty")]
    EmptyName { what: &'static str },
    /// An integer to be written does not fit in its value type.
    #[error("{value} does not fit in a value of type {value_type}")]
    IntegerRange { value: i128, value_type: &'static str },
    /// A size of the file to be written does not fit in 64 bits.
    #[error("{what} does not fit in 64 bits")]
    SizeOverflow { what: &'static str },
    /// The target exists; nothing is ever overwritten.
    #[error("the file exists and is not overwritten")]
    Exists,
    /// Tensor data came out of order.
    #[error("data arrived for this tensor, but the plan's next is {next}")]
    WriteOrder { next: String },
    /// A tensor received too many or too few bytes.
    #[error("the tensor received {found} bytes")]
    WriteLength { found: u64, wanted: u64 },
    /// The file was to be finished before all tensors were written.
    #[error("{missing} of {planned} tensors have no data yet")]
    WriteIncomplete { missing: u64, planned: u64 },
    /// An earlier failure left the output unusable.
    #[error("an earlier write failed; the output is incomplete")]
    WriterFailed,
}

impl GgufErrorKind {
    fn expected(&self) -> Option<String> {
        Some(match self {
            Self::NotGguf { .. } => "the magic \"GGUF\"".into(),
            Self::BigEndian { .. } => "a little-endian file".into(),
            Self::Version { .. } => "version 2 or 3".into(),
            Self::TooMany { most, .. } => format!("at most {most}"),
            Self::OverLimit { limit, .. } => format!("at most {limit}"),
            Self::ValueType { .. } => "a type from 0 to 12".into(),
            Self::BoolByte { .. } => "0 or 1".into(),
            Self::Alignment { .. } => "a u32 that is a power of two".into(),
            Self::TensorEnd { end, .. } => format!("at least {end} bytes"),
            Self::KeyType { wanted, .. } | Self::KeyRange { wanted, .. } => (*wanted).into(),
            Self::SplitIncomplete { count, .. } => {
                format!("a name ending in -00001-of-{count:05}.gguf, or a list of all {count} files")
            }
            Self::SplitCount { count, .. } => format!("{count}"),
            Self::SplitNumber { wanted: Some(n), count, .. } => {
                format!("{n} (shard {} of {count}; split.no counts from 0)", n + 1)
            }
            Self::SplitNumber { wanted: None, count, .. } => format!("a number below {count}"),
            Self::SplitListed { count, .. } => format!("all {count} files"),
            Self::SplitTotal { sum, .. } => format!("{sum}"),
            Self::WriteLength { wanted, .. } => format!("exactly {wanted}"),
            Self::UnknownSpan { .. } => "a type listed by GgmlType::all".into(),
            _ => return None,
        })
    }
}
