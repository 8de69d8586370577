//! Importance matrices.

use std::path::PathBuf;

use ninfer_gguf::{Imatrix, ImatrixForm, Importance};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::detached;
use crate::error::{Error, raise};

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ImatrixFile>()
}

/// A file of importance data, read whole.
#[pyclass(frozen)]
struct ImatrixFile {
    inner: Imatrix,
}

type Floats<'py> = Bound<'py, PyArray1<f32>>;

#[pymethods]
impl ImatrixFile {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self { inner: detached(py, || Imatrix::open(&path))? })
    }

    /// Name, experts, channels and experts without data of each entry.
    fn entries<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, usize, usize, Vec<usize>)> {
        let row = |e: &Importance| {
            (PyBytes::new(py, e.name_bytes()), e.experts(), e.channels(), e.unreached().collect())
        };
        self.inner.entries().iter().map(row).collect()
    }

    /// `"gguf"` or `"legacy"`.
    fn form(&self) -> &'static str {
        match self.inner.form() {
            Some(ImatrixForm::Legacy) => "legacy",
            _ => "gguf",
        }
    }

    fn datasets<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.inner.datasets().map(|s| PyBytes::new(py, s.bytes())).collect()
    }

    /// Chunks of calibration text and tokens of a chunk.
    fn chunks(&self) -> (Option<u64>, Option<u64>) {
        (self.inner.chunk_count(), self.inner.chunk_size())
    }

    fn warnings(&self) -> Vec<String> {
        self.inner.warnings()
    }

    /// Normalised importance `[experts, K]`, flat, of the entry as it is or divided among experts.
    #[pyo3(signature = (name, split))]
    fn values<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        split: Option<(usize, usize)>,
    ) -> PyResult<Floats<'py>> {
        let entry = self.get(py, name)?;
        let values = match split {
            None => entry.values(),
            Some((experts, channels)) => {
                entry.split(experts, channels).map_err(|e| Error::GgufWrite(e).into_py(py))?.values()
            }
        };
        Ok(PyArray1::from_vec(py, values))
    }

    /// Sums `[experts, K]` (flat) and counts `[experts]` as stored.
    fn stored<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
    ) -> PyResult<(Floats<'py>, Bound<'py, PyArray1<f64>>)> {
        let entry = self.get(py, name)?;
        Ok((PyArray1::from_slice(py, entry.sums()), PyArray1::from_slice(py, entry.counts())))
    }
}

impl ImatrixFile {
    fn get(&self, py: Python<'_>, name: &[u8]) -> PyResult<&Importance> {
        self.inner.get(name).ok_or_else(|| raise(py, "TensorNotFoundError", "no such entry".into()))
    }
}
