//! Exact codecs and byte layouts of the closed registry of 30 persistent tensor formats.
//!
//! The crate knows what the words of a format mean ([`FormatId`], [`Scheme`]), where they sit in a payload
//! ([`LayoutId`], [`encoded_size`], [`TensorView`]), which words are legal ([`TensorView::violations`]) and which
//! binary32 value each element represents ([`TensorView::decode_f32`]). It does no I/O, has no unsafe code and
//! reads every multi-byte field as little-endian, whatever the host.
//!
//! Units are spelled out everywhere: *elements* are logical tensor entries, *bytes* are payload bytes, *blocks* are
//! ggml blocks, *groups* are runs of elements that share one scale.
//!
//! ```
//! use ninfer_formats::{FormatId, TensorView, encoded_size};
//!
//! let format = FormatId::from_name("gguf_q8_0")?;
//! assert_eq!(encoded_size(format, &[2, 64], 1)?, 2 * 2 * 34);
//!
//! // Two rows of two blocks: scale 0.5 (binary16 0x3800, little-endian), codes 1..=32.
//! let mut block = vec![0x00, 0x38];
//! block.extend(1..=32u8);
//! let payload = block.repeat(4);
//! let view = TensorView::new(format, &[2, 64], 1, &payload)?;
//! let mut row = vec![0.0f32; 64];
//! view.row_range(1, 2)?.decode_f32(&mut row)?;
//! assert_eq!(row[..3], [0.5, 1.0, 1.5]);
//! # Ok::<(), ninfer_formats::FormatError>(())
//! ```
#![forbid(unsafe_code)]

pub mod codec;
pub mod encoder;
mod error;
pub mod float;
pub mod import;
pub mod layout;
mod memory;
mod registry;
mod scheme;
mod shape;
pub mod tables;
mod validate;
mod view;
mod words;

pub use error::{FormatError, Place, Violation};
pub use layout::{LAYOUTS, LayoutId, LayoutSpec, encoded_size};
pub use memory::zeroed;
pub use registry::{FORMATS, FormatId, FormatSpec};
pub use scheme::{BlockKind, Category, DirectKind, GroupCode, GroupedScheme, RowScale, Scheme};
pub use shape::{MAX_RANK, ShapeText};
pub use view::{MatrixShape, Nvfp4Scales, RowParts, TensorView};
pub use words::{
    GroupedWords, Nvfp4Words, RowScaledWords, pack_grouped, pack_nvfp4, pack_row_scaled, unpack_codes,
};
