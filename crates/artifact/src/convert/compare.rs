//! Comparing an artifact with the GGUF model it was made from, byte for byte.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;

use ninfer_formats::float::f16;
use ninfer_formats::{FormatId, MatrixShape, Scheme, ShapeText};
use ninfer_gguf::{GgufFile, GgufSet, TensorInfo};

use super::metadata::section;
use super::plan::{Action, plan_tensor};
use crate::container::{Artifact, Binding, Json, Object};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Bytes of an artifact tensor compared at a time; whole words of any direct format.
const STEP: u64 = 4 << 20;

/// One thing that is not the same.
#[derive(Debug)]
pub struct Difference {
    /// The tensor or resource.
    pub name: String,
    /// What is different.
    pub mismatch: Mismatch,
}

/// What is different.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are named after what the messages print")]
pub enum Mismatch {
    /// The source has the tensor, the artifact has not, and its provenance does not say that it was left out.
    Missing,
    /// The artifact has the tensor, the source has not.
    Extra,
    /// The artifact's tensor has another format or shape than the source's becomes.
    Kind { found: FormatId, found_shape: ShapeText, wanted: FormatId, wanted_shape: ShapeText },
    /// The first byte that differs. `unit` is `"block"` or `"column"`, counted within the row; `byte` is the offset
    /// in the artifact's object.
    Bytes { row: u64, unit: &'static str, index: u64, byte: u64, found: u8, wanted: u8 },
    /// The first byte of a resource that differs.
    ResourceBytes { byte: u64, found: Option<u8>, wanted: Option<u8> },
    /// The artifact has a tensor of this name, but the source's cannot be converted: there is nothing to compare.
    NotConvertible { reason: String },
    /// The artifact's object, or the source's tensor, cannot be read.
    Unreadable(ArtifactError),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", crate::error::quoted(&self.name))?;
        match &self.mismatch {
            Mismatch::Missing => f.write_str("in the GGUF model, but not in the artifact"),
            Mismatch::Extra => f.write_str("in the artifact, but not in the GGUF model"),
            Mismatch::NotConvertible { reason } => write!(f, "the GGUF tensor cannot be converted: {reason}"),
            Mismatch::Kind { found, found_shape, wanted, wanted_shape } => {
                write!(f, "{found} with shape {found_shape}; expected {wanted} with shape {wanted_shape}")
            }
            Mismatch::Bytes { row, unit, index, byte, found, wanted } => {
                write!(f, "row {row}, {unit} {index}: byte {byte} is {found:#04x}; expected {wanted:#04x}")
            }
            Mismatch::ResourceBytes { byte, found, wanted } => {
                let show = |b: &Option<u8>| b.map_or("past the end".to_owned(), |b| format!("{b:#04x}"));
                write!(f, "byte {byte} is {}; expected {}", show(found), show(wanted))
            }
            Mismatch::Unreadable(e) => write!(f, "{e}"),
        }
    }
}

/// Result of [`compare_gguf`].
#[derive(Debug, Default)]
pub struct CompareReport {
    /// Tensors that are the same in both.
    pub equal: usize,
    /// Artifact bytes compared.
    pub bytes: u64,
    /// Tensors of the source that the artifact's provenance says were left out.
    pub skipped: Vec<String>,
    /// Everything that differs, in the order of the source.
    pub differences: Vec<Difference>,
}

/// Compares every tensor and metadata section of `gguf` with what [`plan_gguf`](super::plan_gguf) makes of it.
///
/// Objects are found through the artifact's bindings, and compared by bytes; where they lie in the files plays no
/// part. `progress` is told the artifact's bytes done and their total.
///
/// # Errors
/// [`ArtifactErrorKind::Cancelled`](K::Cancelled) if `progress` says so. What differs is in the report.
pub fn compare_gguf(
    artifact: &Artifact,
    gguf: &GgufSet,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<CompareReport, ArtifactError> {
    let mut report = CompareReport::default();
    let total = artifact.objects().iter().fold(0u64, |sum, o| sum.saturating_add(o.bytes));
    let mut step = |done: u64| match progress(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ArtifactError::new(K::Cancelled { done, total })),
    };
    let skipped = recorded_as_skipped(artifact);
    let mut bound: HashSet<&str> = HashSet::new();
    for (file, tensor) in gguf.tensors() {
        let name = tensor.name();
        let differs = match artifact.directory().bindings().get(&name) {
            Some(Binding::Object(id)) => {
                bound.insert(id);
                compare_tensor(artifact, artifact.object(id)?, file, tensor, &mut report.bytes, &mut step)?
            }
            Some(Binding::Parts(_)) | None if skipped.contains(tensor.escaped_name().as_str()) => {
                report.skipped.push(tensor.escaped_name());
                continue;
            }
            Some(Binding::Parts(_)) | None => Some(Mismatch::Missing),
        };
        match differs {
            None => report.equal += 1,
            Some(mismatch) => {
                report.differences.push(Difference { name: tensor.escaped_name(), mismatch });
            }
        }
    }
    for object in artifact.objects() {
        if object.as_tensor().is_some() && !bound.contains(object.id.as_str()) {
            report.differences.push(Difference { name: object.id.clone(), mismatch: Mismatch::Extra });
        }
    }
    compare_sections(artifact, gguf, &mut report);
    step(report.bytes)?;
    Ok(report)
}

fn recorded_as_skipped(artifact: &Artifact) -> HashSet<&str> {
    let list = artifact.directory().provenance().and_then(|p| p.get("skipped"));
    let Some(Json::Array(list)) = list else { return HashSet::new() };
    list.iter().filter_map(|r| r.get("tensor")?.as_str()).collect()
}

fn compare_tensor(
    artifact: &Artifact,
    object: &Object,
    file: &GgufFile,
    tensor: &TensorInfo,
    compared: &mut u64,
    step: &mut dyn FnMut(u64) -> Result<(), ArtifactError>,
) -> Result<Option<Mismatch>, ArtifactError> {
    let wanted = match plan_tensor(0, tensor) {
        Ok(planned) => planned,
        Err(reason) => return Ok(Some(Mismatch::NotConvertible { reason })),
    };
    let spec = match object.tensor() {
        Ok(spec) => spec,
        Err(e) => return Ok(Some(Mismatch::Unreadable(e))),
    };
    if spec.format != wanted.format || spec.shape != wanted.shape {
        return Ok(Some(Mismatch::Kind {
            found: spec.format,
            found_shape: ShapeText::of(spec.shape),
            wanted: wanted.format,
            wanted_shape: ShapeText::of(&wanted.shape),
        }));
    }
    let source = match file.data(tensor) {
        Ok(source) => source,
        Err(e) => return Ok(Some(Mismatch::Unreadable(e.into()))),
    };
    let mut widened = Vec::new();
    let mut at = 0u64;
    while at < object.bytes {
        let end = object.bytes.min(at + STEP);
        let wanted_bytes = match wanted.action {
            // The plan has checked that both have the same length.
            Action::Copy => &source[at as usize..end as usize],
            Action::WidenF16 => {
                widened.clear();
                for half in source[at as usize / 2..end as usize / 2].as_chunks::<2>().0 {
                    widened.extend_from_slice(&f16::to_f32_bits(u16::from_le_bytes(*half)).to_le_bytes());
                }
                &widened
            }
        };
        let mut rest = wanted_bytes;
        for span in artifact.directory().spans(object.offset + at, object.offset + end)? {
            let found = match artifact.span_bytes(span) {
                Ok(found) => found,
                Err(e) => return Ok(Some(Mismatch::Unreadable(e))),
            };
            let (head, tail) = rest.split_at(found.len());
            if found != head {
                let i = found.iter().zip(head).position(|(a, b)| a != b).unwrap_or(0);
                let byte = at + (wanted_bytes.len() - rest.len() + i) as u64;
                return Ok(Some(place(spec.format, spec.shape, byte, found[i], head[i])));
            }
            rest = tail;
        }
        *compared += end - at;
        at = end;
        step(*compared)?;
    }
    Ok(None)
}

/// Row and block or column of a byte of a payload without planes.
fn place(format: FormatId, shape: &[u64], byte: u64, found: u8, wanted: u8) -> Mismatch {
    let k = MatrixShape::of(format, shape).map_or(1, |m| m.k as u64);
    let (unit, unit_bytes, per_row) = match format.scheme() {
        Scheme::Gguf(kind) => ("block", kind.bytes() as u64, k / kind.values() as u64),
        Scheme::Direct(kind) => ("column", kind.word_bytes() as u64, k),
        _ => ("byte", 1, 1),
    };
    let index = byte / unit_bytes;
    let per_row = per_row.max(1);
    Mismatch::Bytes { row: index / per_row, unit, index: index % per_row, byte, found, wanted }
}

/// Compares the source's metadata sections with the resources that the artifact's component `text` names.
fn compare_sections(artifact: &Artifact, gguf: &GgufSet, report: &mut CompareReport) {
    let text = artifact.directory().components().get("text");
    for (shard, file) in gguf.shards().iter().enumerate() {
        let wanted = section(file);
        if wanted.is_empty() {
            continue;
        }
        let role = super::plan::role(shard);
        let id = text.and_then(|t| t.resources.iter().find(|(r, _)| *r == role)).map(|(_, id)| id);
        let mismatch = match id.map(|id| artifact.payload(id)) {
            None => Some(Mismatch::Missing),
            Some(Err(e)) => Some(Mismatch::Unreadable(e)),
            Some(Ok(found)) => {
                report.bytes += found.len() as u64;
                let differs = (0..found.len().max(wanted.len())).find(|&i| found.get(i) != wanted.get(i));
                differs.map(|i| Mismatch::ResourceBytes {
                    byte: i as u64,
                    found: found.get(i).copied(),
                    wanted: wanted.get(i).copied(),
                })
            }
        };
        if let Some(mismatch) = mismatch {
            let name = id.cloned().unwrap_or(role);
            report.differences.push(Difference { name, mismatch });
        }
    }
}
