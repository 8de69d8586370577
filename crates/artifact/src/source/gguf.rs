//! GGUF models, in one file or split.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::BlockImport;
use ninfer_formats::{FormatId, TensorView, encoded_size};
use ninfer_gguf::{GgmlType, GgufSet, TensorInfo};
use ninfer_simd_ops::{Dispatch, decode_f32};

use super::words::{FloatType, IntegerType, floats, integers};
use super::{
    Content, SourceFile, SourceResource, SourceTensor, TensorSource, bad_word, check_planes, check_rows,
    copy_rows,
};
use crate::container::Json;
use crate::convert::metadata_section;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// ggml's ternary types that have no format of their own.
const TERNARY: [GgmlType; 2] = [GgmlType(142), GgmlType(143)];

/// A GGUF model.
#[derive(Debug)]
pub struct GgufSource {
    set: GgufSet,
    files: Vec<SourceFile>,
    tensors: Vec<SourceTensor>,
    infos: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    resources: Vec<SourceResource>,
    // File of each resource.
    resource_files: Vec<usize>,
}

impl GgufSource {
    /// Opens a file, or a split model by any of its shards.
    ///
    /// # Errors
    /// Those of [`GgufSet::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArtifactError> {
        Ok(Self::new(GgufSet::open(path)?))
    }

    /// The tensors of an opened model.
    #[must_use]
    pub fn new(set: GgufSet) -> Self {
        let mut files = Vec::new();
        let (mut tensors, mut infos) = (Vec::new(), Vec::new());
        let (mut resources, mut resource_files) = (Vec::new(), Vec::new());
        for (number, file) in set.shards().iter().enumerate() {
            // Tensor infos end before the data; all of the header lies before the first tensor's bytes.
            let header = usize::try_from(file.header().data_start()).unwrap_or(usize::MAX);
            let bytes = file.bytes();
            files.push(SourceFile::of(file.path(), bytes.len() as u64, &bytes[..header.min(bytes.len())]));
            for info in file.tensors() {
                tensors.push(tensor(number, info));
                infos.push(info.clone());
            }
            let section = metadata_section(file).len() as u64;
            if section > 0 {
                let suffix = if number == 0 { String::new() } else { format!(".{}", number + 1) };
                resources.push(SourceResource {
                    name: format!("gguf.metadata{suffix}"),
                    role: format!("gguf_metadata{suffix}"),
                    bytes: section,
                });
                resource_files.push(number);
            }
        }
        let index =
            tensors.iter().enumerate().map(|(i, t): (_, &SourceTensor)| (t.name.clone(), i)).collect();
        Self { set, files, tensors, infos, index, resources, resource_files }
    }

    /// The bytes of rows, and the rows and K as this machine counts.
    fn rows(
        &self,
        tensor: usize,
        rows: &Range<u64>,
        out: Option<usize>,
    ) -> Result<(&[u8], usize, usize), ArtifactError> {
        let t = self.tensor(tensor)?;
        if let Content::Unsupported(_) = t.content {
            return Err(self.wrong_content(tensor, "anything readable"));
        }
        let (n, k) = check_rows(t, rows, out)?;
        let data = self.set.shards()[t.file].data(&self.infos[tensor])?;
        if n == 0 || k == 0 {
            return Ok((&[], n, k));
        }
        // All rows have the same bytes: the reader checked that K is whole blocks.
        let row = data.len() as u64 / t.rows();
        let (begin, end) = ((rows.start * row) as usize, (rows.end * row) as usize);
        match data.get(begin..end) {
            Some(bytes) => Ok((bytes, n, k)),
            None => Err(ArtifactError::new(K::SourceChanged)),
        }
    }
}

fn tensor(file: usize, info: &TensorInfo) -> SourceTensor {
    let ggml_type = info.ggml_type();
    let name = std::str::from_utf8(info.name_bytes());
    let content = match (name, info.bytes()) {
        (Err(_), _) => Content::Unsupported("its name is not UTF-8".into()),
        (_, None) => Content::Unsupported("the size of its data is not known".into()),
        _ => content(ggml_type),
    };
    SourceTensor {
        name: name.map_or_else(|_| info.escaped_name(), str::to_owned),
        type_name: ggml_type.name().into_owned(),
        shape: info.shape(),
        bytes: info.bytes().unwrap_or(0),
        content,
        companions: Vec::new(),
        file,
    }
}

fn content(ggml_type: GgmlType) -> Content {
    match (ggml_type, ggml_type.0) {
        (GgmlType::F32, _) => Content::Values(FloatType::F32),
        (GgmlType::F16, _) => Content::Values(FloatType::F16),
        (GgmlType::BF16, _) => Content::Values(FloatType::Bf16),
        (_, 28) => Content::Values(FloatType::F64),
        (_, 24) => Content::Integers(IntegerType::I8),
        (_, 25) => Content::Integers(IntegerType::I16),
        (_, 26) => Content::Integers(IntegerType::I32),
        (_, 27) => Content::Integers(IntegerType::I64),
        _ if ggml_type.format().is_some() || TERNARY.contains(&ggml_type) => Content::Blocks(ggml_type),
        _ => Content::Unsupported(format!(
            "the registry has no format for ggml type {} ({})",
            ggml_type.0,
            ggml_type.name()
        )),
    }
}

impl TensorSource for GgufSource {
    fn kind(&self) -> &'static str {
        "gguf"
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    fn importable(&self, tensor: usize) -> Vec<FormatId> {
        let Some(t) = self.tensors.get(tensor) else { return Vec::new() };
        match t.content {
            Content::Values(FloatType::F32) => vec![FormatId::Fp32],
            Content::Values(FloatType::Bf16) => vec![FormatId::Bf16],
            Content::Integers(IntegerType::I32) => vec![FormatId::Int32],
            Content::Blocks(ggml_type) => {
                let more = match ggml_type.format() {
                    Some(FormatId::GgufQ8_0) => Some(FormatId::Q8G32Fp16),
                    Some(FormatId::GgufQ2_0) => Some(FormatId::Q2G64Fp16),
                    None => Some(FormatId::T2G128Fp16),
                    Some(_) => None,
                };
                ggml_type.format().into_iter().chain(more).collect()
            }
            _ => Vec::new(),
        }
    }

    fn read_values(&self, tensor: usize, rows: Range<u64>, out: &mut [f32]) -> Result<(), ArtifactError> {
        let (bytes, n, k) = self.rows(tensor, &rows, Some(out.len()))?;
        let mut read = || match self.tensors[tensor].content {
            Content::Values(kind) => floats(kind, bytes, out).map_err(|bad| bad_word(bad, rows.start, k)),
            Content::Blocks(_) if out.is_empty() => Ok(()),
            Content::Blocks(ggml_type) => decode(ggml_type, bytes, rows.start, n, k, out),
            _ => Err(self.wrong_content(tensor, "floating-point values")),
        };
        read().map_err(|e| self.in_tensor(tensor, e))
    }

    fn read_integers(&self, tensor: usize, rows: Range<u64>, out: &mut [i64]) -> Result<(), ArtifactError> {
        let (bytes, _, k) = self.rows(tensor, &rows, Some(out.len()))?;
        let Content::Integers(kind) = self.tensors[tensor].content else {
            return Err(self.wrong_content(tensor, "integers"));
        };
        integers(kind, bytes, out).map_err(|bad| self.in_tensor(tensor, bad_word(bad, rows.start, k)))
    }

    fn import_rows(
        &self,
        tensor: usize,
        format: FormatId,
        rows: Range<u64>,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError> {
        let (bytes, n, k) = self.rows(tensor, &rows, None)?;
        if !self.importable(tensor).contains(&format) {
            return Err(self.not_importable(tensor, format));
        }
        check_planes(out, format, n, k).map_err(|e| self.in_tensor(tensor, e))?;
        let mut import = || match self.tensors[tensor].content {
            Content::Blocks(ggml_type) => {
                BlockImport::new(format, ggml_type.0, k)?.import_rows(bytes, rows.start, out)
            }
            _ => {
                copy_rows(bytes, out);
                Ok(())
            }
        };
        import().map_err(|e| self.in_tensor(tensor, ArtifactError::new(K::Format(e))))
    }

    fn resources(&self) -> &[SourceResource] {
        &self.resources
    }

    fn resource(&self, index: usize) -> Result<Cow<'_, [u8]>, ArtifactError> {
        let file = self.resource_files.get(index).and_then(|&f| self.set.shards().get(f));
        let kind = K::NoSourceResource { index: index as u64, resources: self.resources.len() as u64 };
        Ok(Cow::Borrowed(metadata_section(file.ok_or_else(|| ArtifactError::new(kind))?)))
    }

    fn describe(&self) -> Json {
        let files = self.set.shards().iter().zip(&self.files).map(|(shard, file)| {
            let header = shard.header();
            Json::object([
                ("name", Json::from(file.name())),
                ("bytes", file.bytes.into()),
                ("gguf_version", u64::from(header.version()).into()),
                ("alignment", u64::from(header.alignment()).into()),
                ("tensors", (header.tensors().len() as u64).into()),
                ("metadata_entries", (header.entries().len() as u64).into()),
            ])
        });
        Json::object([("kind", Json::from("gguf")), ("files", Json::Array(files.collect()))])
    }

    fn warnings(&self) -> Vec<String> {
        let named = |(file, warning): (&ninfer_gguf::GgufFile, &ninfer_gguf::Warning)| {
            let name = file.path().file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            format!("{name}: {warning}")
        };
        self.set.warnings().map(named).collect()
    }

    fn as_gguf(&self) -> Option<&GgufSet> {
        Some(&self.set)
    }
}

/// Decodes rows of blocks.
fn decode(
    ggml_type: GgmlType,
    blocks: &[u8],
    row0: u64,
    n: usize,
    k: usize,
    out: &mut [f32],
) -> Result<(), ArtifactError> {
    let serial = Dispatch::threads(1);
    let shape = [n as u64, k as u64];
    let fail = |e| ArtifactError::new(K::Format(e));
    if let Some(format) = ggml_type.format() {
        let view = TensorView::new(format, &shape, 1, blocks).map_err(fail)?;
        decode_f32(&view, out, &serial)?;
        return Ok(());
    }
    // The ternary types: a row at a time through the format that holds them.
    let format = FormatId::T2G128Fp16;
    let import = BlockImport::new(format, ggml_type.0, k).map_err(fail)?;
    let size = encoded_size(format, &[1, k as u64], 1).map_err(fail)?;
    let mut payload = ninfer_formats::zeroed(size as usize).map_err(fail)?;
    for (r, (row, out)) in blocks.chunks_exact(import.row_bytes()).zip(out.chunks_exact_mut(k)).enumerate() {
        let mut planes = RowPlanes::of_payload(format, 1, k, &mut payload).map_err(fail)?;
        import.import_rows(row, row0 + r as u64, &mut planes).map_err(fail)?;
        let view = TensorView::new(format, &[1, k as u64], 1, &payload).map_err(fail)?;
        decode_f32(&view, out, &serial)?;
    }
    Ok(())
}
