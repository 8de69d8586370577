//! The `.ninfer` container, version 3 (container specification).

mod coverage;
mod directory;
pub mod header;
mod json;
mod model;
mod plan;
mod reader;
mod record;
mod temp;
mod verify;
mod writeback;
mod writer;

pub use directory::{Directory, TENSOR_ALIGNMENT};
pub(crate) use json::parse_members;
pub use json::{Json, MAX_DEPTH, MAX_VALUES};
pub use model::{
    ActivationPolicy, Binding, BindingPart, Component, FileEntry, Object, ObjectKind, Proposal, Span, Table,
    TensorRecord, TensorSpec, Use,
};
pub use plan::{ArtifactPlan, Layout, MAX_FILES};
pub use reader::Artifact;
pub(crate) use temp::{kept_path, open_plain};
pub use verify::{Gap, NonFinite, Progress, StructureReport, TensorValues, ValueOptions, ValueReport};
pub use writer::{ArtifactWriter, Written};
