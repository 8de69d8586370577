//! Safetensors: one file, or several with an index, with the configuration beside them.
//!
//! Which stored tensors belong together, and what is refused, is told in [`SafetensorsSource`].

mod companions;
mod fault;
mod header;
mod quantization;
mod read;
mod shards;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ninfer_formats::FormatId;
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::Nvfp4Source;

use self::companions::{At, Reading, group};
use self::quantization::Quantization;
use self::shards::Files;
use super::words::{FloatType, IntegerType};
use super::{Content, OpenOptions, SourceFile, SourceResource, SourceTensor, TensorSource, Unused, hex};
use crate::container::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

pub use fault::{MAX_HEADER, SafetensorsFault};
pub use header::{Header, StoredTensor};

/// Largest configuration file that is read.
const MAX_CONFIG: u64 = 64 << 20;
const CONFIG: &str = "config.json";
const MODELOPT: &str = "hf_quant_config.json";
/// Files beside the tensors that belong to a model.
const RESOURCES: [&str; 15] = [
    CONFIG,
    MODELOPT,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
];

/// A model in safetensors files.
///
/// The list has one entry for each *logical* tensor; N rows, K columns:
///
/// | stored tensors | entry |
/// |---|---|
/// | `X` of BF16, F16, F32, F64 | `X`, values |
/// | `X` of BOOL or an integer type | `X`, integers |
/// | `X` F8_E4M3 `[N, K]`, `X_scale` BF16, F16 or F32 `[]`, `[1]`, `[1, 1]`, `[N]` or `[N, 1]` | `X`, FP8 rows |
/// | `M.weight` F8_E4M3, `M.scale_weight` `[]`, `[1]` or `[1, 1]` | `M.weight`, FP8 rows |
/// | `X` F8_E4M3, `X_scale_inv` (it multiplies) `[ceil(N/128), ceil(K/128)]`, or one | `X`, FP8 tiles, or FP8 rows |
/// | `X_packed` U8 `[N, K/2]`, `X_scale` F8_E4M3 `[N, K/16]`, `X_global_scale` F32 (divides) | `X` `[N, K]`, NVFP4 |
/// | `X` U8 `[N, K/2]`, `X_scale` F8_E4M3 `[N, K/16]`, `X_scale_2` F32 (multiplies) | `X` `[N, K]`, NVFP4 |
///
/// `M.input_scale`, `M.input_global_scale` and `M.scale_input` beside such a weight, and scales of caches in a model with a
/// quantisation config, are listed as [unused](TensorSource::unused). Everything else that looks like part of a
/// quantised tensor is an entry of [`Content::Unsupported`] with the reason: codes without scales, scales without
/// codes, companions of other types, shapes or names, and tensors that contradict `config.json`.
#[derive(Debug)]
pub struct SafetensorsSource {
    shards: Vec<shards::Shard>,
    files: Vec<SourceFile>,
    tensors: Vec<SourceTensor>,
    readings: Vec<Reading>,
    index: HashMap<String, usize>,
    unused: Vec<Unused>,
    warnings: Vec<String>,
    resources: Vec<SourceResource>,
    resource_paths: Vec<PathBuf>,
    config: Option<Json>,
    quant_method: Option<String>,
    // Name and digest of the index and the configuration files.
    beside: Vec<(String, String)>,
}

impl SafetensorsSource {
    /// Opens a safetensors file, an index (`*.safetensors.index.json`) with all shards it names, or a folder: its index
    /// (`model.safetensors.index.json` before others), else its `model.safetensors`, else its only safetensors file or
    /// only complete set of numbered shards. `config.json` and its like are read beside an index, in a folder and
    /// beside a file named `model.safetensors`.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Safetensors`](K::Safetensors) for each rule of the format and of indexes, invalid JSON,
    /// errors of the files. What a single tensor lacks is in its entry.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, ArtifactError> {
        let path = path.as_ref();
        if path.is_dir() {
            return Self::new(shards::folder(path)?, true, options);
        }
        let head = super::first_bytes(path)?;
        // A header's length begins so only for headers of more than 100 MB.
        if head.trim_ascii_start().starts_with(b"{") && !matches!(head[..], [_, _, _, _, 0, 0, 0, 0, _]) {
            return Self::new(shards::indexed(path)?, true, options);
        }
        let model = path.file_name().is_some_and(|n| n == "model.safetensors");
        Self::new(shards::one(path)?, model, options)
    }

    /// Opens these files as one model, without index or configuration.
    ///
    /// # Errors
    /// As [`SafetensorsSource::open`]; an empty list.
    pub fn open_files(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Self, ArtifactError> {
        let paths: Vec<PathBuf> = paths.iter().map(|p| p.as_ref().to_path_buf()).collect();
        if paths.is_empty() {
            let problem = "no files are given".to_owned();
            return Err(header::fault(SafetensorsFault::Folder { problem }));
        }
        Self::new(shards::listed(&paths, PathBuf::new())?, false, options)
    }

    fn new(found: Files, beside: bool, options: &OpenOptions) -> Result<Self, ArtifactError> {
        let Files { shards, index, folder, mut warnings } = found;
        let files = shards
            .iter()
            .map(|s| {
                // The header was parsed from these bytes.
                let header = s.map.get(..s.header.data_start as usize).unwrap_or_default();
                SourceFile::of(s.map.path(), s.map.len() as u64, header)
            })
            .collect();
        let mut source = Self {
            shards,
            files,
            tensors: Vec::new(),
            readings: Vec::new(),
            index: HashMap::new(),
            unused: Vec::new(),
            warnings: Vec::new(),
            resources: Vec::new(),
            resource_paths: Vec::new(),
            config: None,
            quant_method: None,
            beside: Vec::new(),
        };
        if let Some((path, bytes)) = &index {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            source.beside.push((name, hex(bytes)));
        }
        let mut modelopt = None;
        if beside {
            source.config = source.side_file(&folder, CONFIG, &mut warnings)?;
            modelopt = source.side_file(&folder, MODELOPT, &mut warnings)?;
            for name in RESOURCES {
                let path = folder.join(name);
                let Ok(metadata) = std::fs::metadata(&path) else { continue };
                if metadata.is_file() {
                    let (name, role) = (name.to_owned(), name.to_owned());
                    source.resources.push(SourceResource { name, role, bytes: metadata.len() });
                    source.resource_paths.push(path);
                }
            }
        }
        let quantization = Quantization::of(source.config.as_ref(), modelopt.as_ref());
        let grouped = group(&source.shards, &quantization, options);
        source.quant_method = quantization.method().map(str::to_owned);
        warnings.extend(grouped.warnings);
        (source.tensors, source.readings, source.unused) =
            (grouped.tensors, grouped.readings, grouped.unused);
        source.warnings = warnings;
        source.index = source.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(source)
    }

    /// Reads a JSON file of the folder, if it is there. One that cannot be parsed is a warning: it types nothing.
    fn side_file(
        &mut self,
        folder: &Path,
        name: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Json>, ArtifactError> {
        let path = folder.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = shards::small_file(&path, MAX_CONFIG)?;
        self.beside.push((name.to_owned(), hex(&bytes)));
        match Json::parse(&bytes, 0) {
            Ok(json) => Ok(Some(json)),
            Err(e) => {
                warnings.push(format!("{name} is not read: {e}"));
                Ok(None)
            }
        }
    }

    /// The stored tensors of each file.
    #[must_use]
    pub fn headers(&self) -> Vec<&Header> {
        self.shards.iter().map(|s| &s.header).collect()
    }

    /// `quant_method` of the configuration.
    #[must_use]
    pub fn quant_method(&self) -> Option<&str> {
        self.quant_method.as_deref()
    }

    /// Where the words of a tensor without companions lie: index of the file and range of bytes in it.
    #[must_use]
    pub fn words(&self, tensor: usize) -> Option<(usize, Range<u64>)> {
        match self.readings.get(tensor)? {
            Reading::Plain(at) => Some((at.0, self.stored(*at).range.clone())),
            _ => None,
        }
    }

    fn stored(&self, at: At) -> &StoredTensor {
        &self.shards[at.0].header.tensors[at.1]
    }

    /// The bytes of a stored tensor.
    fn data(&self, at: At) -> Result<&[u8], ArtifactError> {
        let range = &self.stored(at).range;
        // The header was checked against the map, which never changes its length; on 32-bit machines it fits as well.
        let bytes = self.shards[at.0].map.get(range.start as usize..range.end as usize);
        bytes.ok_or_else(|| ArtifactError::new(K::SourceChanged).with_path(self.shards[at.0].map.path()))
    }
}

impl TensorSource for SafetensorsSource {
    fn kind(&self) -> &'static str {
        "safetensors"
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
        match self.tensors.get(tensor).map(|t| &t.content) {
            Some(Content::Values(FloatType::F32)) => vec![FormatId::Fp32],
            Some(Content::Values(FloatType::Bf16)) => vec![FormatId::Bf16],
            Some(Content::Integers(IntegerType::I32)) => vec![FormatId::Int32],
            Some(Content::Fp8Rows) => vec![FormatId::Fp8E4m3fnRowBf16],
            Some(Content::Nvfp4) => vec![FormatId::Nvfp4],
            _ => Vec::new(),
        }
    }

    fn read_values(&self, tensor: usize, rows: Range<u64>, out: &mut [f32]) -> Result<(), ArtifactError> {
        self.values(tensor, rows, out)
    }

    fn read_integers(&self, tensor: usize, rows: Range<u64>, out: &mut [i64]) -> Result<(), ArtifactError> {
        self.integers(tensor, rows, out)
    }

    fn import_rows(
        &self,
        tensor: usize,
        format: FormatId,
        rows: Range<u64>,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError> {
        self.import(tensor, format, rows, out)
    }

    fn nvfp4(&self, tensor: usize) -> Result<Nvfp4Source<'_>, ArtifactError> {
        self.nvfp4_parts(tensor)
    }

    fn resources(&self) -> &[SourceResource] {
        &self.resources
    }

    fn resource(&self, index: usize) -> Result<Cow<'_, [u8]>, ArtifactError> {
        let (Some(resource), Some(path)) = (self.resources.get(index), self.resource_paths.get(index)) else {
            let kind = K::NoSourceResource { index: index as u64, resources: self.resources.len() as u64 };
            return Err(ArtifactError::new(kind));
        };
        let bytes = shards::small_file(path, resource.bytes)?;
        if bytes.len() as u64 != resource.bytes {
            return Err(ArtifactError::new(K::SourceChanged).with_path(path));
        }
        Ok(Cow::Owned(bytes))
    }

    fn config(&self) -> Option<&Json> {
        self.config.as_ref()
    }

    fn describe(&self) -> Json {
        let files = self.shards.iter().zip(&self.files).map(|(shard, file)| {
            let mut members = vec![
                ("name", Json::from(file.name())),
                ("bytes", file.bytes.into()),
                ("tensors", (shard.header.tensors.len() as u64).into()),
            ];
            // What people keep there is short; a training log is not provenance.
            let metadata = &shard.header.metadata;
            let size: usize = metadata.iter().map(|(n, v)| n.len().saturating_add(v.len())).sum();
            if size > 0 && size <= 4096 {
                let strings = metadata.iter().map(|(n, v)| (n.as_str(), Json::from(v.as_str())));
                members.push(("metadata", Json::object(strings)));
            }
            Json::object(members)
        });
        let mut members = vec![("kind", Json::from("safetensors")), ("files", Json::Array(files.collect()))];
        if !self.beside.is_empty() {
            members.push(("beside", Json::array(self.beside.iter().map(|(name, _)| name.as_str()))));
        }
        if let Some(method) = &self.quant_method {
            members.push(("quant_method", method.as_str().into()));
        }
        if !self.unused.is_empty() {
            members.push(("unused", Json::array(self.unused.iter().map(|u| u.name.as_str()))));
        }
        Json::object(members)
    }

    fn identity(&self) -> Json {
        let beside = self.beside.iter().map(|(name, digest)| (name.as_str(), Json::from(digest.as_str())));
        Json::object([
            ("kind", Json::from("safetensors")),
            ("files", super::file_identities(&self.files)),
            ("beside_sha256", Json::object(beside)),
        ])
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn unused(&self) -> &[Unused] {
        &self.unused
    }
}
