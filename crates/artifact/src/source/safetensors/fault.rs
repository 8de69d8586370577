//! What can be wrong with a safetensors file or with the index of several.

use crate::error::quoted;
use ninfer_formats::ShapeText;

/// Largest header in bytes, the limit of the format's own library.
pub const MAX_HEADER: u64 = 100_000_000;

/// The rules of the file format and of index files. Byte counts and offsets are in bytes; offsets of data count from
/// the first byte after the header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum SafetensorsFault {
    /// No room for the header's length.
    #[error("the file has {bytes} bytes")]
    TooShort { bytes: u64 },
    /// A header of no bytes, or of more than [`MAX_HEADER`].
    #[error("the header has {found} bytes")]
    HeaderLength { found: u64 },
    /// The header does not fit in the file.
    #[error("the header ends at byte {end}, but the file has {bytes} bytes and is cut short")]
    HeaderPastEnd { end: u128, bytes: u64 },
    /// The header is not an object.
    #[error("the header begins with {found:#04x}")]
    HeaderStart { found: u8 },
    /// A member of the header has another type than it must have.
    #[error("{member} is {found}")]
    Member { member: &'static str, found: String, wanted: &'static str },
    /// A member that the format does not have.
    #[error("the entry has a member {}", quoted(name))]
    UnknownMember { name: String },
    /// The product of the dimensions overflows.
    #[error("shape {shape} has more elements, or bytes, than 64 bits can count")]
    Overflow { shape: ShapeText },
    /// A type of less than a byte that does not fill whole bytes.
    #[error("shape {shape} of {dtype} is no whole number of bytes")]
    PartialByte { shape: ShapeText, dtype: String },
    /// The data range is not what shape and type need.
    #[error("the data range {begin}..{end} has {} bytes", end - begin)]
    Span { begin: u64, end: u64, wanted: u64, shape: ShapeText, dtype: String },
    /// A data range that ends before it begins.
    #[error("the data range {begin}..{end} ends before it begins")]
    Reversed { begin: u64, end: u64 },
    /// A data range past the end of the file.
    #[error("the data range {begin}..{end} is outside the file's {bytes} bytes of data")]
    PastEnd { begin: u64, end: u64, bytes: u64 },
    /// Two tensors share bytes.
    #[error(
        "the data range {begin}..{end} overlaps that of tensor {}, which ends at {other_end}",
        quoted(other)
    )]
    Overlap { begin: u64, end: u64, other: String, other_end: u64 },
    /// Bytes before a tensor that belong to none.
    #[error("the data bytes {begin}..{end} before it belong to no tensor")]
    Hole { begin: u64, end: u64 },
    /// Bytes after the last tensor.
    #[error("the last {extra} bytes of the file belong to no tensor")]
    Trailing { extra: u64 },

    /// An index without a map of weights.
    #[error("the index has no object \"weight_map\"")]
    NoWeightMap,
    /// An index names a file that is not a plain name beside it.
    #[error("the index names the file {}", quoted(name))]
    ShardName { name: String },
    /// A shard named in the index is not there.
    #[error("the shard {} cannot be opened: {reason}", quoted(name))]
    ShardMissing { name: String, reason: String },
    /// The index places a tensor in a shard that does not have it.
    #[error("the index places it in {}, which does not have it", quoted(shard))]
    NotInShard { shard: String },
    /// A shard has a tensor that the index does not name, or places elsewhere.
    #[error("it is in {}, but the index {}", quoted(shard), match other {
        Some(other) => format!("places it in {}", quoted(other)),
        None => "does not name it".to_owned(),
    })]
    NotInIndex { shard: String, other: Option<String> },
    /// Two files have a tensor of the same name.
    #[error("both {} and {} have it", quoted(first), quoted(second))]
    TwoShards { first: String, second: String },
    /// A folder that does not say which file is the model.
    #[error("{problem}")]
    Folder { problem: String },
}

impl SafetensorsFault {
    pub(crate) fn expected(&self) -> Option<String> {
        Some(match self {
            Self::TooShort { .. } => "at least 8 bytes, the length of the header".into(),
            Self::HeaderLength { .. } => format!("1 to {MAX_HEADER}"),
            Self::HeaderStart { .. } => "0x7b ('{')".into(),
            Self::Member { wanted, .. } => (*wanted).into(),
            Self::UnknownMember { .. } => "only dtype, shape, data_offsets".into(),
            Self::Span { wanted, shape, dtype, .. } => {
                format!("{wanted}, the size of {dtype} with shape {shape}")
            }
            Self::NoWeightMap => "tensor names with the file that holds each".into(),
            Self::ShardName { .. } => "the plain name of a file beside the index".into(),
            Self::Folder { .. } => "one model; name its file or its index".into(),
            _ => return None,
        })
    }
}
