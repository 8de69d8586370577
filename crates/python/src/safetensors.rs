//! Safetensors models. Python maps the files itself for zero-copy views of stored tensors; which of them belong
//! together is decided by the Rust source, which also reads values and imports codes.

use std::path::PathBuf;

use ninfer_artifact::ArtifactError;
use ninfer_artifact::source::{Content, OpenOptions, SafetensorsSource, SourceTensor, TensorSource};
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::import_nvfp4;
use ninfer_formats::{FormatError, FormatId, encoded_size, zeroed};
use numpy::{PyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::enter::{check_signals, detached};
use crate::error::Error;
use crate::registry::format_at;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Safetensors>()
}

/// Elements read between two looks for Ctrl-C.
const CHUNK: u64 = 8 << 20;

/// An opened model: one file, an index or a folder.
#[pyclass(frozen)]
pub struct Safetensors {
    source: SafetensorsSource,
}

/// Name, type, shape, file, offset in it, bytes.
type StoredRow<'py> = (String, String, Bound<'py, PyTuple>, usize, u64, u64);

/// Name, type, shape, content, why it cannot be read, companions, bytes, file, natural format.
type TensorRow<'py> = (
    String,
    String,
    Bound<'py, PyTuple>,
    &'static str,
    Option<String>,
    Vec<String>,
    u64,
    usize,
    Option<usize>,
);

#[pymethods]
impl Safetensors {
    /// `listed`: the paths are all files of the model; else there is one, of a file, an index or a folder.
    #[new]
    fn open(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        listed: bool,
        fp8_without_scale: bool,
        ignore_quantization_config: bool,
    ) -> PyResult<Self> {
        let options = OpenOptions { fp8_without_scale, ignore_quantization_config };
        let source = detached(py, || match paths.as_slice() {
            [path] if !listed => SafetensorsSource::open(path, &options),
            paths => SafetensorsSource::open_files(paths, &options),
        })?;
        Ok(Self { source })
    }

    /// Path and bytes of each file.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.source.files().iter().map(|f| (f.path.clone(), f.bytes)).collect()
    }

    /// The strings that each file keeps about itself.
    fn metadata(&self) -> Vec<Vec<(String, String)>> {
        self.source.headers().iter().map(|h| h.metadata.clone()).collect()
    }

    /// Everything that is stored.
    fn stored<'py>(&self, py: Python<'py>) -> PyResult<Vec<StoredRow<'py>>> {
        let mut rows = Vec::new();
        for (file, header) in self.source.headers().into_iter().enumerate() {
            for t in &header.tensors {
                let shape = PyTuple::new(py, &t.shape)?;
                rows.push((t.name.to_string(), t.dtype.clone(), shape, file, t.range.start, t.bytes()));
            }
        }
        Ok(rows)
    }

    /// The logical tensors.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorRow<'py>>> {
        let rows = self.source.tensors().iter().enumerate().map(|(i, t)| self.row(py, i, t));
        rows.collect()
    }

    /// Stored tensors that no logical one uses, and why.
    fn unused(&self) -> Vec<(String, String)> {
        self.source.unused().iter().map(|u| (u.name.clone(), u.reason.clone())).collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.source.warnings()
    }

    fn quant_method(&self) -> Option<&str> {
        self.source.quant_method()
    }

    /// The model's `config.json` as JSON text.
    fn config(&self) -> Option<String> {
        self.source.config().map(ToString::to_string)
    }

    /// Values of the rows `begin..end`, into an array of as many elements.
    fn values(
        &self,
        py: Python<'_>,
        tensor: usize,
        begin: u64,
        end: u64,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let out = out.as_slice_mut()?;
        detached(py, || -> Result<(), Error> {
            let k = self.source.tensor(tensor)?.k();
            let step = (CHUNK / k.max(1)).max(1);
            let mut rest = out;
            let mut at = begin;
            loop {
                let next = end.min(at.saturating_add(step));
                let last = next >= end;
                // What is wrong with the lengths is for the source to say.
                let want = next.saturating_sub(at).saturating_mul(k);
                let length = if last { rest.len() } else { usize::try_from(want).unwrap_or(usize::MAX) };
                let (head, tail) = rest.split_at_mut(length.min(rest.len()));
                self.source.read_values(tensor, at..next, head).map_err(Error::ArtifactWrite)?;
                if last {
                    return Ok(());
                }
                check_signals()?;
                (rest, at) = (tail, next);
            }
        })
    }

    /// The payload of the tensor's codes as `format`, and its divisor count.
    fn payload<'py>(
        &self,
        py: Python<'py>,
        tensor: usize,
        format: usize,
    ) -> PyResult<(Bound<'py, PyArray1<u8>>, usize)> {
        let format = format_at(py, format)?;
        let (payload, divisors) = detached(py, || self.import(tensor, format).map_err(Error::ArtifactWrite))?;
        Ok((PyArray1::from_vec(py, payload), divisors))
    }
}

impl Safetensors {
    fn row<'py>(&self, py: Python<'py>, i: usize, t: &SourceTensor) -> PyResult<TensorRow<'py>> {
        let (content, reason) = match &t.content {
            Content::Values(_) => ("values", None),
            Content::Integers(_) => ("integers", None),
            Content::Fp8Rows => ("fp8_rows", None),
            Content::Fp8Blocks => ("fp8_blocks", None),
            Content::Nvfp4 => ("nvfp4", None),
            Content::Unsupported(reason) => ("unsupported", Some(reason.clone())),
            _ => ("unsupported", Some("this kind of content is not known here".to_owned())),
        };
        let format = self.source.importable(i).first().map(|&f| f as usize);
        let shape = PyTuple::new(py, &t.shape)?;
        let (name, dtype) = (t.name.clone(), t.type_name.clone());
        Ok((name, dtype, shape, content, reason, t.companions.clone(), t.bytes, t.file, format))
    }

    fn import(&self, tensor: usize, format: FormatId) -> Result<(Vec<u8>, usize), ArtifactError> {
        let s = &self.source;
        if format == FormatId::Nvfp4 {
            let (payload, _) = import_nvfp4(&[s.nvfp4(tensor)?]).map_err(ArtifactError::from)?;
            return Ok((payload, 1));
        }
        let t = s.tensor(tensor)?;
        let shape = [t.rows(), t.k()];
        let size = encoded_size(format, &shape, 1)?;
        let bytes = usize::try_from(size).map_err(|_| FormatError::Memory { bytes: size })?;
        let mut payload = zeroed(bytes)?;
        // The payload fits in memory, so its rows do.
        let mut planes = RowPlanes::of_payload(format, shape[0] as usize, shape[1] as usize, &mut payload)?;
        s.import_rows(tensor, format, 0..shape[0], &mut planes)?;
        Ok((payload, 1))
    }
}
