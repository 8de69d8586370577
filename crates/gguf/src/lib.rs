//! Hardened reader and writer for GGUF files.
//!
//! * [`Header::parse`] indexes a file from untrusted bytes without copying its data: every count, length and offset
//!   is checked before it is used, and the index borrows nothing, so it can be kept beside any buffer.
//! * [`GgufFile`] is a memory-mapped file with its header; [`GgufSet`] a whole model, split over files or not.
//! * [`Metadata`] decodes values when they are asked for; arrays of hundreds of thousands of strings cost nothing
//!   until they are read.
//! * [`GgufPlan`] lays a new file out, [`GgufWriter`] streams the data into it, [`AtomicFile`] makes it appear
//!   complete or not at all.
//! * [`Imatrix`] reads importance matrices of both file forms.
//!
//! Every failure is a [`GgufError`] that names file, byte offset, key or tensor, what was found and what was
//! expected. All multi-byte fields are little-endian, whatever the host. Source of the format: the format
//! specification's GGUF page.
//!
//! ```
//! use ninfer_gguf::{GgmlType, GgufPlan, GgufWriter, Header, MetaValue};
//!
//! let mut plan = GgufPlan::new();
//! plan.metadata("general.architecture", &MetaValue::text("llama"))?;
//! plan.tensor("output.weight", GgmlType::F32, &[4, 2])?; // two rows of four elements
//! let mut writer = GgufWriter::new(Vec::new(), plan.finish()?)?;
//! writer.tensor("output.weight", &[0; 32])?;
//! let file = writer.finish()?;
//!
//! let header = Header::parse(&file)?;
//! let architecture = header.metadata(&file)?.get_str("general.architecture")?;
//! assert_eq!(architecture.unwrap().text(), "llama");
//! let tensor = header.tensor("output.weight")?;
//! assert_eq!(tensor.shape(), [2, 4]);
//! assert_eq!(header.data(&file, tensor)?.len(), 32);
//! # Ok::<(), ninfer_gguf::GgufError>(())
//! ```
#![forbid(unsafe_code)]

mod atomic;
mod cursor;
mod error;
mod header;
mod imatrix;
pub mod limits;
mod meta;
mod metadata;
mod plan;
mod reader;
mod split;
mod tensor;
mod text;
mod types;
mod value;
mod warning;
mod writer;

pub use atomic::AtomicFile;
pub use error::{GgufError, GgufErrorKind, Subject};
pub use header::{Entry, Header};
pub use imatrix::{Imatrix, ImatrixForm, Importance};
pub use meta::{MetaArray, MetaValue};
pub use metadata::Metadata;
pub use plan::{GgufLayout, GgufPlan, PlannedTensor};
pub use reader::GgufFile;
pub use split::GgufSet;
pub use tensor::TensorInfo;
pub use text::GgufStr;
pub use types::{BlockSize, GgmlType, TYPES, TypeSpec};
pub use value::{Array, ArrayIter, Value, ValueType};
pub use warning::Warning;
pub use writer::{GgufWriter, TensorSink};
