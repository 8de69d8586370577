//! From a GGUF model to an artifact, byte for byte.
//!
//! * Tensors of the 18 registered ggml block types become the `gguf_*` format of the same name, `F32` becomes `fp32`,
//!   `BF16` `bf16` and `I32` `int32`, all by copying bytes. `F16` has no registered format of its own and becomes
//!   `fp32`, exactly: every binary16 value is a binary32 value, and NaN payloads are kept.
//! * Block formats are matrices: a tensor of another rank becomes `[rows, K]`, `[experts, N, K]` for example
//!   `[experts * N, K]` and `[K]` `[1, K]`. Direct formats keep their shape. Shapes that changed are in the provenance.
//! * Anything else is refused before a byte is written, every tensor by name; or left out on request and listed in
//!   the provenance.
//! * Every tensor is bound under its own name. `uses` stays empty: which inputs a parameter meets is knowledge of the
//!   model's architecture, and a converter that guessed it would put words into the artifact that nobody checked.
//! * Metadata goes to `components.text.config` as far as JSON can say it well, and completely, byte for byte, into a
//!   resource.

mod check;
mod compare;
mod decide;
mod document;
mod encode;
mod geometry;
mod journal;
mod metadata;
mod pattern;
mod plan;
mod planned;
mod recipe;
mod report;
mod resolve;
mod run;
mod session;
mod statistics;

pub(crate) use metadata::section as metadata_section;

pub use compare::{CompareReport, Difference, Mismatch, compare_gguf};
pub use plan::{Action, Conversion, ConvertOptions, ConvertedTensor, Resource, plan_gguf};
pub use recipe::{Bind, DefaultRule, ImportanceName, ImportanceUse, OneOrMore, Recipe, Rule};

pub use encode::EncodedRows;
pub use planned::{
    ImportanceFile, MethodUsed, Piece, PlanOptions, PlannedResource, PlannedTensor, RecipePlan,
};
pub use report::Converted;
pub use resolve::plan_recipe;
pub use session::{DEFAULT_MEMORY, RunOptions, Session};
pub use statistics::{RowStatistics, TensorStatistics};
