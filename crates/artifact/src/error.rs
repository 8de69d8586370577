//! The crate's error: in which file, at which byte or JSON member, about which object, what was found, what was
//! expected.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ninfer_formats::{FormatError, ShapeText};
use ninfer_gguf::GgufError;
use ninfer_simd_ops::OpError;

use crate::source::{NpyFault, SafetensorsFault};

/// Where in a container file an error lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Byte offset from the start of the file.
    Byte(u64),
    /// A member of the directory, written like `objects[3].shape[1]`.
    Json(String),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(offset) => write!(f, "byte {offset}"),
            Self::Json(path) => f.write_str(path),
        }
    }
}

/// Why a container was refused or an operation failed.
///
/// Printed as `path: place: object: what was found; expected what`, leaving out what is not known.
#[derive(Debug)]
pub struct ArtifactError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ArtifactErrorKind,
    path: Option<PathBuf>,
    location: Option<Location>,
    object: Option<String>,
    tensor: Option<String>,
    rows: Option<Range<u64>>,
}

impl ArtifactError {
    pub(crate) fn new(kind: ArtifactErrorKind) -> Self {
        Self(Box::new(Inner { kind, path: None, location: None, object: None, tensor: None, rows: None }))
    }

    pub(crate) fn io(what: &'static str, source: std::io::Error) -> Self {
        Self::new(ArtifactErrorKind::Io { what, source })
    }

    pub(crate) fn at_byte(mut self, offset: u64) -> Self {
        self.0.location.get_or_insert(Location::Byte(offset));
        self
    }

    pub(crate) fn at_json(mut self, path: String) -> Self {
        self.0.location.get_or_insert(Location::Json(path));
        self
    }

    pub(crate) fn in_object(mut self, id: &str) -> Self {
        self.0.object.get_or_insert_with(|| id.to_owned());
        self
    }

    pub(crate) fn in_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.to_owned());
        self
    }

    /// The rows of the tensor named by [`ArtifactError::in_tensor`] that were worked on.
    pub(crate) fn in_rows(mut self, rows: Range<u64>) -> Self {
        self.0.rows.get_or_insert(rows);
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
    pub fn kind(&self) -> &ArtifactErrorKind {
        &self.0.kind
    }

    /// The file, where one is known.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Byte offset or JSON member, where one is known.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        self.0.location.as_ref()
    }

    /// Id of the object concerned, where it is one.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }

    /// Name of the source tensor concerned, where it is one.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The rows of that tensor, counted as in the source, that were worked on, where it is some of them.
    #[must_use]
    pub fn rows(&self) -> Option<Range<u64>> {
        self.0.rows.clone()
    }

    /// What was expected instead, as a sentence fragment.
    #[must_use]
    pub fn expected(&self) -> Option<String> {
        self.0.kind.expected()
    }
}

impl fmt::Display for ArtifactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", path.display())?;
        }
        if let Some(location) = self.location() {
            write!(f, "{location}: ")?;
        }
        if let Some(object) = self.object() {
            write!(f, "object {}: ", quoted(object))?;
        }
        if let Some(tensor) = self.tensor() {
            write!(f, "tensor {}", quoted(tensor))?;
            if let Some(rows) = &self.0.rows {
                write!(f, ", rows {}..{}", rows.start, rows.end)?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.kind())?;
        if let Some(expected) = self.expected() {
            write!(f, "; expected {expected}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ArtifactError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ArtifactErrorKind::Io { source, .. } => Some(source),
            ArtifactErrorKind::Format(source) => Some(source),
            ArtifactErrorKind::Gguf(source) => Some(source),
            ArtifactErrorKind::Operation(source) => Some(source),
            _ => None,
        }
    }
}

impl From<FormatError> for ArtifactError {
    fn from(source: FormatError) -> Self {
        Self::new(ArtifactErrorKind::Format(source))
    }
}

impl From<OpError> for ArtifactError {
    fn from(source: OpError) -> Self {
        Self::new(match source {
            OpError::Format(e) => ArtifactErrorKind::Format(e),
            other => ArtifactErrorKind::Operation(other),
        })
    }
}

impl From<GgufError> for ArtifactError {
    fn from(source: GgufError) -> Self {
        Self::new(ArtifactErrorKind::Gguf(source))
    }
}

/// A name as messages print it: quoted, control characters escaped, cut after 200 characters.
pub(crate) fn quoted(name: &str) -> String {
    const MOST: usize = 200;
    if name.chars().nth(MOST).is_none() {
        return format!("{name:?}");
    }
    format!("{:?}...", name.chars().take(MOST).collect::<String>())
}

/// Names as messages print them: the first few, and how many more there are.
pub(crate) fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 8;
    let mut text = names.iter().take(MOST).map(|n| quoted(n.as_ref())).collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text.push_str(&format!(" and {} more", names.len() - MOST));
    }
    text
}

/// One reason why a source tensor cannot go into an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The tensor's name as displayed: escaped where it is not printable UTF-8.
    pub tensor: String,
    /// The source's type name.
    pub source_type: String,
    /// Why it is refused.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor \"{}\" ({}): {}", self.tensor, self.source_type, self.reason)
    }
}

fn refusal_list(refusals: &[Refusal]) -> String {
    let mut text = format!("{} tensor(s) cannot be converted:", refusals.len());
    for refusal in refusals {
        text.push_str("\n  ");
        text.push_str(&refusal.to_string());
    }
    text
}

fn unplannable(refusals: &[Refusal], rules: &[String]) -> String {
    let mut text = match refusals {
        [] => format!("{} rule(s) of the recipe do not fit the source:", rules.len()),
        _ => refusal_list(refusals),
    };
    for rule in rules {
        text.push_str("\n  ");
        text.push_str(rule);
    }
    text
}

/// The reasons. Byte counts and offsets are in bytes, dimensions and ranges in elements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum ArtifactErrorKind {
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    /// The file does not begin with a container magic.
    #[error("the file begins with {found}: not a .ninfer file")]
    NotArtifact { found: String },
    /// Version 1 or 2 of the container.
    #[error("this is a .ninfer file of version {found}")]
    OldVersion { found: u8 },
    /// A version that this reader does not know.
    #[error("this is a .ninfer file of version {found}")]
    UnknownVersion { found: u16 },
    /// A part file was opened as an entry file.
    #[error("this is part {index} of an artifact in several files")]
    PartAsEntry { index: u64 },
    /// The file is shorter than its own framing says.
    #[error("{what} ends at byte {end}, but the file has {file_bytes} bytes and is cut short")]
    CutShort { what: &'static str, end: u64, file_bytes: u64 },
    /// `json_bytes` breaks a rule.
    #[error("json_bytes is {found}")]
    JsonBytes { found: u64, rule: String },
    /// Padding that is not zero.
    #[error("padding byte {found:#04x}")]
    Padding { found: u8 },
    /// A file has another length than the directory says.
    #[error("the file has {found} bytes")]
    FileLength { found: u64, wanted: u64 },
    /// A part file carries another index.
    #[error("the file says it is part {found}")]
    PartIndex { found: u64, wanted: u64 },
    /// A part file belongs to another write.
    #[error("artifact_id is {found}")]
    PartId { found: String, wanted: String },
    /// A part file does not begin with the part magic.
    #[error("the file begins with {found}: not a part file")]
    NotPart { found: String },
    /// A part file is needed and cannot be opened.
    #[error("part {index} is needed and cannot be opened: {source}")]
    PartMissing { index: usize, source: std::io::Error },

    /// The directory, header or index is not JSON.
    #[error("not valid JSON: {message}")]
    JsonSyntax { message: String },
    /// JSON that nests too deep or has too many values.
    #[error("the JSON {what} {limit}")]
    JsonLimit { what: &'static str, limit: usize },
    /// An object has a member twice.
    #[error("duplicate member {}", quoted(name))]
    DuplicateMember { name: String },
    /// A record has a member that its kind does not have.
    #[error("a {record} has no member {}", quoted(member))]
    UnknownMember { record: &'static str, member: String, allowed: &'static [&'static str] },
    /// A record lacks a member.
    #[error("the {record} has no member {member:?}")]
    MissingMember { record: &'static str, member: &'static str },
    /// A value has another type than the member's.
    #[error("found {found}")]
    JsonType { found: String, wanted: &'static str },
    /// A value breaks a rule of its member.
    #[error("found {found}")]
    JsonValue { found: String, wanted: String },
    /// A reference to something that does not exist or is of another kind.
    #[error("{what} {} {problem}", quoted(id))]
    Reference { what: &'static str, id: String, problem: &'static str },

    /// No object has this id.
    #[error("no object has the id {}; there are {objects} objects", quoted(id))]
    NoObject { id: String, objects: usize },
    /// The object is of the other kind.
    #[error("the object is a {found}")]
    ObjectKind { found: &'static str, wanted: &'static str },
    /// Format, layout, shape or size of an object, or its values.
    #[error(transparent)]
    Format(FormatError),
    /// `bytes` of an object is not the encoded size of its layout.
    #[error("the directory gives {found} bytes")]
    ObjectBytes { found: u64, wanted: u64, format: &'static str, shape: ShapeText },
    /// A byte range outside an object.
    #[error("bytes {begin}..{end} are outside the object's {bytes}")]
    ByteRange { begin: u64, end: u128, bytes: u64 },
    /// The object is too large for this process.
    #[error("the object has {bytes} bytes, more than this process can address")]
    TooLarge { bytes: u64 },

    /// The target exists; nothing is ever overwritten.
    #[error("the file exists and is not overwritten")]
    Exists,
    /// The target's file system can neither link nor rename without replacing.
    #[error(
        "the file system can publish a file neither by a hard link nor by a rename that never replaces: {source}"
    )]
    CannotPublish { source: std::io::Error },
    /// The target path cannot be used.
    #[error("the path {problem}")]
    TargetPath { problem: &'static str },
    /// A size of the file to be written does not fit in 64 bits.
    #[error("{what} does not fit in 64 bits")]
    SizeOverflow { what: &'static str },
    /// The size limit leaves no room.
    #[error(
        "a file size limit of {limit} bytes leaves no room for payload: {file} alone needs {needs} bytes"
    )]
    LimitTooSmall { limit: u64, file: &'static str, needs: u64 },
    /// The size limit leads to too many files.
    #[error("a file size limit of {limit} bytes leads to {files} files")]
    TooManyFiles { limit: u64, files: u64, most: u64 },
    /// An object received too many bytes.
    #[error("{given} bytes are more than the {remaining} that remain of the planned {planned}")]
    TooManyBytes { given: u64, remaining: u64, planned: u64 },
    /// Bytes of an object were written before.
    #[error("byte {byte} was written already")]
    WrittenTwice { byte: u64 },
    /// A source ended before its object was complete.
    #[error("the source ended after {written} of {planned} bytes")]
    SourceShort { written: u64, planned: u64 },
    /// Objects that did not receive all their bytes.
    #[error("{incomplete} of {objects} objects are incomplete; the first has {written} of {planned} bytes")]
    Coverage { incomplete: usize, objects: usize, written: u64, planned: u64 },
    /// The directory grew beyond the space reserved for it.
    #[error("the directory needs {needs} bytes, {reserved} are reserved")]
    DirectoryGrew { needs: u64, reserved: u64 },
    /// The operation was stopped by its progress callback.
    #[error("stopped on request after {done} of {total} bytes; nothing was written")]
    Cancelled { done: u64, total: u64 },
    /// As [`Cancelled`](Self::Cancelled), of a conversion that can be resumed.
    #[error("stopped after {done} of {total} bytes; run it again with resume to go on")]
    Interrupted { done: u64, total: u64 },
    /// A memory budget that does not suffice.
    #[error(
        "the conversion needs at least {needed} bytes of memory, more than the budget of {budget}: {} for {what} of \
         this tensor and {fixed} in any case",
        needed.saturating_sub(*fixed)
    )]
    Memory { budget: u64, needed: u64, fixed: u64, what: &'static str },
    /// An interrupted conversion that is not this one.
    #[error(
        "the interrupted conversion cannot go on: {what}; to begin anew, remove its .journal and .resume files"
    )]
    CannotResume { what: &'static str },
    /// Another process has the conversion in hand.
    #[error("another process is at work on this conversion")]
    JournalInUse,
    /// No randomness for a new artifact id.
    #[error("the operating system gave no random bytes for the artifact id: {message}")]
    NoRandomness { message: String },

    /// A conversion recipe breaks a rule.
    #[error("recipe: {message}")]
    Recipe { message: String },
    /// Source tensors that cannot be converted; all of them.
    #[error("{}", refusal_list(refusals))]
    Refused { refusals: Vec<Refusal> },
    /// A recipe and a source that do not go together: every tensor and every rule concerned.
    #[error("{}", unplannable(refusals, rules))]
    Unplannable { refusals: Vec<Refusal>, rules: Vec<String> },
    /// A source file is not the one that was planned from.
    #[error("the file changed since the conversion was planned")]
    SourceChanged,
    /// Nothing would be left to write.
    #[error("the source has no tensor that can be converted")]
    NothingToConvert,
    /// Reading the GGUF source failed.
    #[error(transparent)]
    Gguf(GgufError),

    /// The file is of no kind that tensors are read from.
    #[error("the file begins with {found}: not a model that can be read")]
    UnknownSource { found: String },
    /// A position that is not in the source's list of tensors.
    #[error("tensor {index} of {tensors}")]
    NoSourceTensor { index: u64, tensors: u64 },
    /// A position that is not in the source's list of resources.
    #[error("resource {index} of {resources}")]
    NoSourceResource { index: u64, resources: u64 },
    /// The tensor does not hold what was asked for.
    #[error("{type_name} does not hold {wanted}{}", reason.as_ref().map_or(String::new(), |r| format!(": {r}")))]
    SourceContent { type_name: String, wanted: &'static str, reason: Option<String> },
    /// Rows outside a source tensor.
    #[error("rows {begin}..{end} are outside the tensor's {rows}")]
    SourceRows { begin: u64, end: u64, rows: u64 },
    /// A stored number that cannot be read as what was asked for.
    #[error("row {row}, column {column}: {rule}")]
    SourceWord { row: u64, column: u64, rule: String },
    /// The words of the tensor are not importable as the format.
    #[error("the words of {type_name} are not importable as {format}")]
    NotImportable { type_name: String, format: &'static str, wanted: String },
    /// A safetensors file, or the index of several, breaks a rule.
    #[error(transparent)]
    Safetensors(SafetensorsFault),
    /// A `.npy` or `.npz` file breaks a rule.
    #[error(transparent)]
    Npy(NpyFault),
    /// Decoding failed for another reason than the tensor.
    #[error(transparent)]
    Operation(OpError),
}

impl ArtifactErrorKind {
    fn expected(&self) -> Option<String> {
        Some(match self {
            Self::NotArtifact { .. } => "the bytes 4e 49 4e 46 45 52 00 03 (\"NINFER\", 0, 3)".into(),
            Self::OldVersion { .. } | Self::UnknownVersion { .. } => "version 3, the only one read".into(),
            Self::PartAsEntry { .. } => "the entry file, whose name has no part suffix".into(),
            Self::JsonBytes { rule, .. } => rule.clone(),
            Self::Padding { .. } => "zero".into(),
            Self::FileLength { wanted, .. } => format!("exactly {wanted} bytes"),
            Self::PartIndex { wanted, .. } => format!("part {wanted}"),
            Self::PartId { wanted, .. } => format!("{wanted}, the entry file's"),
            Self::NotPart { .. } => "the bytes 4e 49 4e 50 52 54 00 03 (\"NINPRT\", 0, 3)".into(),
            Self::UnknownMember { allowed, .. } => format!("only {}", allowed.join(", ")),
            Self::JsonType { wanted, .. } => (*wanted).into(),
            Self::JsonValue { wanted, .. } => wanted.clone(),
            Self::TooManyFiles { most, .. } => format!("at most {most}"),
            Self::ObjectKind { wanted, .. } => format!("a {wanted}"),
            Self::UnknownSource { .. } => "a GGUF, safetensors, .npy or .npz file".into(),
            Self::Safetensors(fault) => return fault.expected(),
            Self::Npy(fault) => return fault.expected(),
            Self::NotImportable { wanted, .. } => wanted.clone(),
            Self::ObjectBytes { wanted, format, shape, .. } => {
                format!("{wanted}, the encoded size of {format} with shape {shape}")
            }
            _ => return None,
        })
    }
}
