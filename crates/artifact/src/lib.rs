//! The `.ninfer` container, version 3: reading, writing, verifying, and converting from GGUF.
//!
//! * [`Artifact`] is an open artifact in one or several files, memory-mapped; [`Directory`] what its entry file says,
//!   for callers that hold the bytes themselves.
//! * [`ArtifactPlan`] lays a new artifact out and checks it before anything is written; [`ArtifactWriter`] streams the
//!   payloads into it and publishes it complete or not at all, never over an existing file.
//! * [`Artifact::verify_structure`] and [`Artifact::verify_values`] check an artifact, [`compare_gguf`] compares it
//!   with the GGUF model it was made from, byte for byte.
//! * [`plan_gguf`] turns a GGUF model into an artifact, with every refusal before the first byte (module [`convert`]).
//! * [`source::open`] opens model files as a [`TensorSource`]: named tensors, read by rows (module [`source`]).
//!
//! Every failure is an [`ArtifactError`] that names file, byte offset or JSON member, object, what was found and what
//! was expected. All numbers in files are little-endian, whatever the host. Source of the format: the container
//! specification, version 3.
//!
//! ```
//! use ninfer_artifact::container::{Binding, Component};
//! use ninfer_artifact::{Artifact, ArtifactPlan, Json};
//! use ninfer_formats::FormatId;
//!
//! # let dir = tempfile::tempdir().map_err(|e| e.to_string()).unwrap();
//! # let path = dir.path().join("model.ninfer");
//! let mut plan = ArtifactPlan::new();
//! plan.tensor("norm.weight", FormatId::Fp32, &[2], 1)?; // two elements, one divisor: not nvfp4
//! plan.binding("norm.weight", Binding::Object("norm.weight".into()));
//! plan.component("text", Component::with_config(Json::object([("layers", Json::from(1u64))])));
//! let mut writer = plan.finish(&path)?.create()?;
//! writer.write("norm.weight", &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40])?;
//! writer.finish()?;
//!
//! let artifact = Artifact::open(&path)?;
//! let payload = artifact.payload("norm.weight")?;
//! let mut values = [0.0; 2];
//! artifact.tensor_view("norm.weight", &payload)?.decode_f32(&mut values).unwrap();
//! assert_eq!(values, [1.0, 2.0]);
//! # Ok::<(), ninfer_artifact::ArtifactError>(())
//! ```
#![forbid(unsafe_code)]

pub mod container;
pub mod convert;
mod error;
pub mod source;

pub use container::{Artifact, ArtifactPlan, ArtifactWriter, Directory, Json};
pub use convert::{ConvertOptions, compare_gguf, plan_gguf};
pub use error::{ArtifactError, ArtifactErrorKind, Location, Refusal};
pub use source::TensorSource;
