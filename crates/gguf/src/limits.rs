//! Every cap on untrusted input, each with its reason.
//!
//! Besides these, every count and length is compared with the bytes that remain in the file before anything is
//! allocated or looped over.

/// Longest metadata key and tensor name in bytes: what the GGUF description allows for keys. ggml itself stops at 63
/// for tensor names (a [`Warning`](crate::Warning)).
pub const MAX_NAME_BYTES: u64 = 65_535;

/// Length of a tensor name from which ggml's own reader refuses a file (bytes, without a terminator).
pub const GGML_NAME_BYTES: u64 = 64;

/// Most tensors in one file. The largest mixture-of-experts models have some 100,000 when every expert is a tensor.
/// Bounds what the index of a hostile file can take to some 200 MB.
pub const MAX_TENSORS: u64 = 1 << 20;

/// Most metadata entries in one file; real ones have fewer than 200.
pub const MAX_ENTRIES: u64 = 1 << 20;

/// Most dimensions of a tensor (ggml's limit).
pub const MAX_DIMS: u32 = 4;

/// Deepest nesting of arrays: 1 is an array of scalars. Bounds the recursion of the reader; no known writer nests
/// at all.
pub const MAX_DEPTH: u32 = 8;

/// Most warnings kept per file; the rest are counted.
pub const MAX_WARNINGS: usize = 100;

/// Longest text of untrusted bytes in a message, in characters.
pub(crate) const MAX_SHOWN: usize = 120;

/// Fewest bytes a metadata entry takes: key length, value type, one value byte.
pub(crate) const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// Fewest bytes a tensor info takes: name length, dimension count, type, offset.
pub(crate) const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Alignment of a file that does not state one.
pub const DEFAULT_ALIGNMENT: u32 = 32;
