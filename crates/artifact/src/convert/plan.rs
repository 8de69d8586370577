//! What each tensor of a GGUF model becomes, and what is refused, before anything is written.

use std::collections::HashSet;
use std::path::Path;

use ninfer_formats::{FormatId, encoded_size};
use ninfer_gguf::{GgmlType, GgufFile, GgufSet, TensorInfo};

use super::metadata::{Config, config, section};
use crate::container::{ArtifactPlan, Binding, Component, Json, Layout};
use crate::error::{ArtifactError, ArtifactErrorKind as K, Refusal};

const I32: GgmlType = GgmlType(26);

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Leave tensors that cannot be converted out, and list them in the provenance, instead of refusing the model.
    pub skip_unsupported: bool,
    /// Largest size in bytes of one file of the artifact.
    pub file_limit: Option<u64>,
    /// Artifact id; random if not given.
    pub artifact_id: Option<[u8; 16]>,
}

/// How a tensor's bytes get into the artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Copied as they are.
    Copy,
    /// Each binary16 word becomes the binary32 word of the same value.
    WidenF16,
}

impl Action {
    /// Name in listings and in the provenance.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::WidenF16 => "f16_to_fp32",
        }
    }
}

/// One tensor of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedTensor {
    /// Name in the source; id of the object and name of the binding in the artifact.
    pub name: String,
    /// The source's type.
    pub source_type: GgmlType,
    /// The source's dimensions, slowest first.
    pub source_shape: Vec<u64>,
    /// Bytes in the source.
    pub source_bytes: u64,
    /// Format in the artifact.
    pub format: FormatId,
    /// Elements per dimension in the artifact.
    pub shape: Vec<u64>,
    /// Bytes in the artifact.
    pub bytes: u64,
    /// How the bytes get there.
    pub action: Action,
    // Index of the source's file and offset in it.
    pub(super) shard: usize,
    pub(super) source_offset: u64,
}

/// A source file's key/value section that becomes a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Id of the object.
    pub id: String,
    /// Role in component `text`.
    pub role: String,
    /// Bytes.
    pub bytes: u64,
    pub(super) shard: usize,
}

/// A planned conversion.
#[derive(Debug)]
pub struct Conversion<'g> {
    pub(super) set: &'g GgufSet,
    tensors: Vec<ConvertedTensor>,
    skipped: Vec<Refusal>,
    resources: Vec<Resource>,
    config: Config,
    options: ConvertOptions,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("left_out", &self.left_out.len()).finish_non_exhaustive()
    }
}

/// Plans the conversion of a model. Reads headers only.
///
/// # Errors
/// [`ArtifactErrorKind::Refused`](K::Refused) with every tensor that cannot be converted (unless `skip_unsupported`): a
/// type outside the registry, a zero dimension, a name that cannot be an id. A model without a tensor to convert.
pub fn plan_gguf<'g>(set: &'g GgufSet, options: &ConvertOptions) -> Result<Conversion<'g>, ArtifactError> {
    let path = set.shards().first().map_or(Path::new(""), GgufFile::path);
    let mut tensors = Vec::new();
    let mut refusals = Vec::new();
    for (shard, file) in set.shards().iter().enumerate() {
        for tensor in file.tensors() {
            match plan_tensor(shard, tensor) {
                Ok(planned) => tensors.push(planned),
                Err(reason) => refusals.push(Refusal {
                    tensor: tensor.escaped_name(),
                    source_type: tensor.ggml_type().name().into_owned(),
                    reason,
                }),
            }
        }
    }
    if !refusals.is_empty() && !options.skip_unsupported {
        return Err(ArtifactError::new(K::Refused { refusals }).with_path(path));
    }
    if tensors.is_empty() {
        return Err(ArtifactError::new(K::NothingToConvert).with_path(path));
    }
    let config = match set.shards().first() {
        Some(file) => config(file).map_err(ArtifactError::from)?,
        None => Config { config: Json::Object(Vec::new()), left_out: Vec::new() },
    };
    let resources = resources(set, &tensors);
    Ok(Conversion { set, tensors, skipped: refusals, resources, config, options: options.clone() })
}

/// What the tensor becomes, or why it cannot.
pub(super) fn plan_tensor(shard: usize, tensor: &TensorInfo) -> Result<ConvertedTensor, String> {
    let Ok(name) = std::str::from_utf8(tensor.name_bytes()) else {
        return Err("its name is not UTF-8, so it cannot be an object's id".into());
    };
    if name.is_empty() || name.contains('\0') {
        return Err("its name is empty or contains U+0000, so it cannot be an object's id".into());
    }
    let source_shape = tensor.shape();
    if let Some(axis) = source_shape.iter().position(|&d| d == 0) {
        return Err(format!("dimension {axis} of {source_shape:?} is zero: an object cannot be empty"));
    }
    let source_type = tensor.ggml_type();
    let (format, action) = match (source_type.format(), source_type) {
        (Some(format), _) => (format, Action::Copy),
        (None, GgmlType::F16) => (FormatId::Fp32, Action::WidenF16),
        (None, I32) => (FormatId::Int32, Action::Copy),
        (None, other) => {
            return Err(format!("the registry has no format for ggml type {} ({})", other.0, other.name()));
        }
    };
    let shape = match format.ggml_type() {
        Some(_) => tensor.matrix_shape().to_vec(),
        None => source_shape.clone(),
    };
    let bytes = encoded_size(format, &shape, 1).map_err(|e| e.to_string())?;
    let Some(source_bytes) = tensor.bytes() else {
        return Err("the size of its data is not known".into());
    };
    let expected = match action {
        Action::Copy => Some(bytes),
        Action::WidenF16 => bytes.checked_div(2),
    };
    // Both follow from the same dimensions; a difference would mean that the two tables of block sizes disagree.
    if expected != Some(source_bytes) {
        return Err(format!("it has {source_bytes} bytes where {format} needs {bytes}"));
    }
    Ok(ConvertedTensor {
        name: name.to_owned(),
        source_type,
        source_shape,
        source_bytes,
        format,
        shape,
        bytes,
        action,
        shard,
        source_offset: tensor.file_offset(),
    })
}

/// One resource for each source file that has metadata, under an id that no tensor has.
fn resources(set: &GgufSet, tensors: &[ConvertedTensor]) -> Vec<Resource> {
    let names: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let mut resources = Vec::new();
    for (shard, file) in set.shards().iter().enumerate() {
        let bytes = section(file).len() as u64;
        if bytes == 0 {
            continue;
        }
        let mut id = format!("gguf.metadata{}", number(shard));
        while names.contains(id.as_str()) {
            id.push('_');
        }
        resources.push(Resource { id, role: role(shard), bytes, shard });
    }
    resources
}

/// Role in component `text` of a source file's metadata section.
pub(super) fn role(shard: usize) -> String {
    format!("gguf_metadata{}", number(shard))
}

fn number(shard: usize) -> String {
    if shard == 0 { String::new() } else { format!(".{}", shard + 1) }
}

impl Conversion<'_> {
    /// The tensors in the order of the artifact.
    #[must_use]
    pub fn tensors(&self) -> &[ConvertedTensor] {
        &self.tensors
    }

    /// The tensors left out.
    #[must_use]
    pub fn skipped(&self) -> &[Refusal] {
        &self.skipped
    }

    /// The source's metadata sections, which follow the tensors.
    #[must_use]
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// Bytes of all objects: what the progress callback of [`Conversion::run`] counts.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let tensors = self.tensors.iter().map(|t| t.bytes);
        tensors.chain(self.resources.iter().map(|r| r.bytes)).fold(0, u64::saturating_add)
    }

    /// Lays the artifact out for the entry file `target`. Nothing is written.
    ///
    /// # Errors
    /// See [`ArtifactPlan::finish`].
    pub fn layout(&self, target: impl AsRef<Path>) -> Result<Layout, ArtifactError> {
        let mut plan = ArtifactPlan::new();
        for t in &self.tensors {
            plan.tensor(t.name.as_str(), t.format, &t.shape, 1)?;
            plan.binding(t.name.as_str(), Binding::Object(t.name.clone()));
        }
        for r in &self.resources {
            plan.resource(r.id.as_str(), r.bytes)?;
        }
        let mut text = Component::with_config(self.config.config.clone());
        text.resources = self.resources.iter().map(|r| (r.role.clone(), r.id.clone())).collect();
        plan.component("text", text);
        if let Some(name) = self.config.config.get("general.name").and_then(Json::as_str)
            && !name.is_empty()
        {
            plan.metadata(Json::object([("name", Json::from(name))]));
        }
        plan.provenance(self.provenance());
        if let Some(limit) = self.options.file_limit {
            plan.file_limit(limit);
        }
        if let Some(id) = self.options.artifact_id {
            plan.artifact_id(id);
        }
        plan.finish(target)
    }

    /// Where everything comes from. No paths and no times: the same source gives the same provenance.
    fn provenance(&self) -> Json {
        let files = self.set.shards().iter().enumerate().map(|(shard, file)| {
            let name = file.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let header = file.header();
            let mut members = vec![
                ("name", Json::from(name)),
                ("bytes", header.file_bytes().into()),
                ("gguf_version", u64::from(header.version()).into()),
                ("alignment", u64::from(header.alignment()).into()),
                ("tensors", (header.tensors().len() as u64).into()),
                ("metadata_entries", (header.entries().len() as u64).into()),
            ];
            if let Some(resource) = self.resources.iter().find(|r| r.shard == shard) {
                members.push(("metadata_resource", resource.id.as_str().into()));
            }
            Json::object(members)
        });
        let tool =
            [("name", Json::from(env!("CARGO_PKG_NAME"))), ("version", env!("CARGO_PKG_VERSION").into())];
        let source = [("kind", Json::from("gguf")), ("files", Json::Array(files.collect()))];
        let widened = self.tensors.iter().filter(|t| t.action == Action::WidenF16);
        let reshaped = self.tensors.iter().filter(|t| t.shape != t.source_shape);
        let skipped = self.skipped.iter().map(|r| {
            Json::object([
                ("tensor", Json::from(r.tensor.as_str())),
                ("type", r.source_type.as_str().into()),
                ("reason", r.reason.as_str().into()),
            ])
        });
        Json::object([
            ("tool", Json::object(tool)),
            ("source", Json::object(source)),
            ("method", Json::from("import_encoded")),
            (Action::WidenF16.name(), Json::array(widened.map(|t| t.name.as_str()))),
            (
                "source_shapes",
                Json::object(
                    reshaped.map(|t| (t.name.as_str(), Json::array(t.source_shape.iter().copied()))),
                ),
            ),
            ("skipped", Json::Array(skipped.collect())),
            ("config_left_out", Json::Array(self.config.left_out.clone())),
        ])
    }
}
