//! Safetensors models. Python maps the files itself for zero-copy views of stored tensors; which of them belong
//! together is decided by the Rust source, which also reads values and imports codes.

use std::path::PathBuf;

use ninfer_artifact::ArtifactError;
use ninfer_artifact::source::{OpenOptions, SafetensorsSource, TensorSource};
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::import_nvfp4;
use ninfer_formats::{FormatError, FormatId, encoded_size, zeroed};
use numpy::{PyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::enter::detached;
use crate::error::Error;
use crate::registry::format_at;
use crate::sources::{TensorRow, read_values, row};

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Safetensors>()
}

/// An opened model: one file, an index or a folder.
#[pyclass(frozen)]
pub struct Safetensors {
    source: SafetensorsSource,
}

/// Name, type, shape, file, offset in it, bytes.
type StoredRow<'py> = (String, String, Bound<'py, PyTuple>, usize, u64, u64);

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
        let rows = self.source.tensors().iter().enumerate().map(|(i, t)| row(py, &self.source, i, t));
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
        read_values(py, &self.source, tensor, begin..end, out.as_slice_mut()?)
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
