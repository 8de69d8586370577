//! A planned conversion by recipe: what every tensor becomes, and why.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ninfer_formats::FormatId;
use ninfer_formats::encoder::EncoderId;
use ninfer_gguf::Importance;
use sha2::{Digest, Sha256};

use super::metadata::config;
use super::recipe::Recipe;
use crate::container::{ArtifactPlan, Binding, Component, Json, Layout};
use crate::error::{ArtifactError, ArtifactErrorKind as K, Refusal};
use crate::source::TensorSource;

/// How the words of a planned tensor come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MethodUsed {
    /// The source's words, as they are.
    Import,
    /// A named method on the source's values.
    Encode(EncoderId),
    /// The caller's own method, by name.
    Callable(String),
}

impl MethodUsed {
    /// Name in listings and in the provenance.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Import => ninfer_formats::import::METHOD.into(),
            Self::Encode(encoder) => encoder.name().into(),
            Self::Callable(name) => format!("callable:{name}"),
        }
    }
}

/// Rows of one source tensor that go into a planned tensor.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Position of the tensor in the source.
    pub source: usize,
    /// Its rows.
    pub rows: Range<u64>,
    /// Importance of its channels, for each expert, where the method uses it.
    pub importance: Option<Arc<Importance>>,
}

/// One tensor of the artifact to be.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// Id of the object.
    pub name: String,
    /// Its format.
    pub format: FormatId,
    /// Elements per dimension.
    pub shape: Vec<u64>,
    /// Divisors, for `nvfp4`.
    pub divisors: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// Where the rows come from, in order.
    pub pieces: Vec<Piece>,
    /// How.
    pub method: MethodUsed,
    /// Whether negative scales compete.
    pub negative_scales: bool,
    /// The rule, counted from 1 as in the recipe; `None` for the default.
    pub rule: Option<usize>,
    /// Rule and pattern, in words.
    pub why: String,
    /// Why the rule itself could not apply, where a fallback was taken.
    pub fallback: Option<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
    // Names under which the whole, and the parts, are bound.
    pub(super) bindings: Vec<(String, Range<u64>)>,
}

impl PlannedTensor {
    /// Elements of one row.
    #[must_use]
    pub fn k(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.pieces.iter().map(|p| p.rows.end - p.rows.start).sum()
    }

    /// Elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows().saturating_mul(self.k())
    }

    /// Bits per element of the whole payload.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elements() as f64
    }

    /// Whether the words are worked out from values rather than copied.
    #[must_use]
    pub fn is_encoded(&self) -> bool {
        self.method != MethodUsed::Import
    }
}

/// A resource of the artifact to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedResource {
    /// Id of the object.
    pub id: String,
    /// Role in component `text`.
    pub role: String,
    /// Bytes.
    pub bytes: u64,
}

/// An importance matrix and what its file was.
#[derive(Clone, Debug)]
pub struct ImportanceFile {
    /// The matrix.
    pub matrix: ninfer_gguf::Imatrix,
    /// File name without folders.
    pub name: String,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl ImportanceFile {
    /// Reads an importance matrix of either form.
    ///
    /// # Errors
    /// Those of [`ninfer_gguf::Imatrix::open`], and a file that cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArtifactError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|e| ArtifactError::io("cannot read the importance matrix", e).with_path(path))?;
        let matrix = ninfer_gguf::Imatrix::parse(&bytes).map_err(|e| e.with_path(path))?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { matrix, name, sha256: hex(&Sha256::digest(&bytes)) })
    }

    pub(super) fn to_json(&self) -> Json {
        let text = |s: ninfer_gguf::GgufStr<'_>| Json::from(s.text().into_owned());
        let mut members = vec![
            ("file", Json::from(self.name.as_str())),
            ("sha256", self.sha256.as_str().into()),
            ("entries", (self.matrix.entries().len() as u64).into()),
            ("datasets", Json::Array(self.matrix.datasets().map(text).collect())),
        ];
        if let Some(chunks) = self.matrix.chunk_count() {
            members.push(("chunk_count", chunks.into()));
        }
        Json::object(members)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// How to plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Leave tensors that no rule names and that cannot keep their words out, instead of refusing.
    pub skip_unsupported: bool,
    /// Largest size in bytes of one file of the artifact.
    pub file_limit: Option<u64>,
    /// Artifact id; random if not given.
    pub artifact_id: Option<[u8; 16]>,
}

/// A planned conversion: every tensor's format, method and size, decided from headers before a byte is written.
#[derive(Debug)]
pub struct RecipePlan {
    pub(super) source: Arc<dyn TensorSource>,
    pub(super) recipe: Recipe,
    pub(super) importance: Option<ImportanceFile>,
    pub(super) options: PlanOptions,
    pub(super) tensors: Vec<PlannedTensor>,
    pub(super) parts: Vec<(String, Binding)>,
    pub(super) skipped: Vec<Refusal>,
    pub(super) dropped: Vec<(String, Option<Range<u64>>)>,
    pub(super) warnings: Vec<String>,
    pub(super) resources: Vec<PlannedResource>,
    // Divisors of encoded `nvfp4`, by tensor and piece, as they become known.
    pub(super) divisors: Divisors,
}

/// A cell for each: whoever comes first works the divisor out, others wait for it.
pub(super) type Divisors = Mutex<HashMap<(usize, usize), Arc<Mutex<Option<f32>>>>>;

impl RecipePlan {
    /// The tensors in the order of the artifact.
    #[must_use]
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }

    /// The resources, which follow the tensors.
    #[must_use]
    pub fn resources(&self) -> &[PlannedResource] {
        &self.resources
    }

    /// Tensors left out because nothing could be done with them ([`PlanOptions::skip_unsupported`]).
    #[must_use]
    pub fn skipped(&self) -> &[Refusal] {
        &self.skipped
    }

    /// Names of what rules drop; with rows where not the whole tensor goes.
    #[must_use]
    pub fn dropped(&self) -> &[(String, Option<Range<u64>>)] {
        &self.dropped
    }

    /// What the user should know about the plan as a whole.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &dyn TensorSource {
        &*self.source
    }

    /// Bytes of all objects: what progress counts.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let tensors = self.tensors.iter().map(|t| t.bytes);
        tensors.chain(self.resources.iter().map(|r| r.bytes)).fold(0, u64::saturating_add)
    }

    /// Bits per element over all tensors.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        let (bytes, elements) =
            self.tensors.iter().fold((0.0, 0.0), |(b, n), t| (b + t.bytes as f64, n + t.elements() as f64));
        bytes * 8.0 / elements
    }

    /// Lays the artifact out for the entry file `target`. Nothing is written. Space for the statistics that follow
    /// the payload is kept in the directory.
    ///
    /// # Errors
    /// See [`ArtifactPlan::finish`].
    pub fn layout(&self, target: impl AsRef<Path>) -> Result<Layout, ArtifactError> {
        self.layout_as(target.as_ref(), self.options.artifact_id)
    }

    pub(super) fn layout_as(&self, target: &Path, id: Option<[u8; 16]>) -> Result<Layout, ArtifactError> {
        // The longest record of a tensor's statistics, with every number at its longest.
        const STATISTICS: u64 = 320;
        let mut plan = ArtifactPlan::new();
        for t in &self.tensors {
            plan.tensor(t.name.as_str(), t.format, &t.shape, t.divisors)?;
        }
        for (name, binding) in &self.parts {
            plan.binding(name.as_str(), binding.clone());
        }
        for r in &self.resources {
            plan.resource(r.id.as_str(), r.bytes)?;
        }
        let config = match self.source.as_gguf().and_then(|set| set.shards().first()) {
            Some(file) => config(file).map_err(ArtifactError::from)?.config,
            None => self.source.config().cloned().unwrap_or_else(|| Json::Object(Vec::new())),
        };
        let name = config.get("general.name").and_then(Json::as_str).filter(|n| !n.is_empty());
        if let Some(name) = name {
            plan.metadata(Json::object([("name", Json::from(name))]));
        }
        let mut text = Component::with_config(config);
        text.resources = self.resources.iter().map(|r| (r.role.clone(), r.id.clone())).collect();
        plan.component("text", text);
        plan.provenance(self.provenance(&HashMap::new())?);
        let encoded = self.tensors.iter().filter(|t| t.is_encoded()).count() as u64;
        plan.reserve(encoded * STATISTICS);
        if let Some(limit) = self.options.file_limit {
            plan.file_limit(limit);
        }
        if let Some(id) = id {
            plan.artifact_id(id);
        }
        plan.finish(target)
    }

    /// Where everything comes from and how it was made. No paths, no times, no thread counts: the same source and
    /// recipe give the same provenance. `statistics` by position of the tensor.
    pub(super) fn provenance(&self, statistics: &HashMap<usize, Json>) -> Result<Json, ArtifactError> {
        let tool =
            [("name", Json::from(env!("CARGO_PKG_NAME"))), ("version", env!("CARGO_PKG_VERSION").into())];
        let tensors = self.tensors.iter().enumerate().map(|(i, t)| {
            let mut members = self.method_record(t);
            if let Some(statistics) = statistics.get(&i) {
                members.push(("error", statistics.clone()));
            }
            (t.name.clone(), Json::object(members))
        });
        let skipped = self.skipped.iter().map(|r| {
            Json::object([
                ("tensor", Json::from(r.tensor.as_str())),
                ("type", r.source_type.as_str().into()),
                ("reason", r.reason.as_str().into()),
            ])
        });
        let dropped = self.dropped.iter().map(|(name, rows)| {
            let rows = rows.as_ref().map_or(Json::Null, |r| Json::array([r.start, r.end]));
            Json::object([("tensor", Json::from(name.as_str())), ("rows", rows)])
        });
        let mut members = vec![
            ("tool", Json::object(tool)),
            ("source", self.source.describe()),
            ("method", "recipe".into()),
            ("recipe_sha256", hex(&Sha256::digest(self.recipe.identity().as_bytes())).into()),
        ];
        if let Some(importance) = &self.importance {
            members.push(("importance", importance.to_json()));
        }
        members.push(("tensors", Json::object(tensors)));
        members.push(("skipped", Json::Array(skipped.collect())));
        members.push(("dropped", Json::Array(dropped.collect())));
        if let Some(file) = self.source.as_gguf().and_then(|set| set.shards().first()) {
            let left_out = config(file).map_err(ArtifactError::from)?.left_out;
            members.push(("config_left_out", Json::Array(left_out)));
        }
        Ok(Json::object(members))
    }

    /// Source, method and parameters of a tensor.
    pub(super) fn method_record(&self, t: &PlannedTensor) -> Vec<(&'static str, Json)> {
        let sources = self.source.tensors();
        let pieces = t.pieces.iter().filter_map(|p| {
            let s = sources.get(p.source)?;
            let mut members =
                vec![("name", Json::from(s.name.as_str())), ("type", s.type_name.as_str().into())];
            if p.rows != (0..s.rows()) {
                members.push(("rows", Json::array([p.rows.start, p.rows.end])));
            }
            if s.shape != t.shape {
                members.push(("shape", Json::array(s.shape.iter().copied())));
            }
            if let Some(importance) = &p.importance {
                members.push(("importance", coverage(importance)));
            }
            Some(Json::object(members))
        });
        let mut members =
            vec![("from", Json::Array(pieces.collect())), ("method", Json::from(t.method.name()))];
        if t.negative_scales {
            members.push(("negative_scales", true.into()));
        }
        if let Some(fallback) = &t.fallback {
            members.push(("fallback", fallback.as_str().into()));
        }
        if !t.warnings.is_empty() {
            members.push(("warnings", Json::array(t.warnings.iter().map(String::as_str))));
        }
        members
    }

    /// The plan as JSON: what `--dry-run --json` prints.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let tensors = self.tensors.iter().map(|t| {
            let mut members = vec![
                ("name", Json::from(t.name.as_str())),
                ("format", t.format.name().into()),
                ("shape", Json::array(t.shape.iter().copied())),
                ("bytes", t.bytes.into()),
                ("bits_per_weight", Json::Float(t.bits_per_weight())),
                ("rule", t.rule.map_or(Json::Null, |r| (r as u64).into())),
                ("why", t.why.as_str().into()),
            ];
            members.extend(self.method_record(t));
            Json::object(members)
        });
        let resources = self
            .resources
            .iter()
            .map(|r| Json::object([("id", Json::from(r.id.as_str())), ("bytes", r.bytes.into())]));
        Json::object([
            ("source", self.source.describe()),
            ("tensors", Json::Array(tensors.collect())),
            ("resources", Json::Array(resources.collect())),
            ("skipped", Json::array(self.skipped.iter().map(ToString::to_string))),
            ("dropped", Json::array(self.dropped.iter().map(|(name, _)| name.as_str()))),
            ("warnings", Json::array(self.warnings.iter().map(String::as_str))),
            ("payload_bytes", self.payload_bytes().into()),
            ("bits_per_weight", Json::Float(self.bits_per_weight())),
        ])
    }

    /// A tensor's position, from its name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.tensors.iter().position(|t| t.name == name)
    }

    pub(super) fn tensor(&self, index: usize) -> Result<&PlannedTensor, ArtifactError> {
        let objects = self.tensors.len();
        self.tensors
            .get(index)
            .ok_or_else(|| ArtifactError::new(K::NoObject { id: format!("#{index}"), objects }))
    }
}

/// How much of an importance vector stands on data.
fn coverage(importance: &Importance) -> Json {
    let zero = importance.sums().iter().filter(|&&s| s == 0.0).count() as u64;
    Json::object([
        ("channels", Json::from(importance.channels() as u64)),
        ("experts", (importance.experts() as u64).into()),
        ("experts_without_data", (importance.unreached().count() as u64).into()),
        ("zero_sums", zero.into()),
    ])
}
