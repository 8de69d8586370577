//! Sources of conversions of any kind, as the command line looks at them: tensors by name, values by rows.

use std::ops::Range;
use std::path::PathBuf;

use ninfer_artifact::source::{self, Content, OpenOptions, SourceTensor, TensorSource};
use numpy::PyReadwriteArray1;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::enter::{check_signals, detached};
use crate::error::Error;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Source>()
}

/// Elements read between two looks for Ctrl-C.
const CHUNK: u64 = 8 << 20;

/// Name, type, shape, content, why it cannot be read, companions, bytes, file, natural format.
pub type TensorRow<'py> = (
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

/// The record of a tensor.
pub fn row<'py>(
    py: Python<'py>,
    source: &dyn TensorSource,
    i: usize,
    t: &SourceTensor,
) -> PyResult<TensorRow<'py>> {
    let (content, reason) = match &t.content {
        Content::Values(_) => ("values", None),
        Content::Integers(_) => ("integers", None),
        Content::Blocks(_) => ("blocks", None),
        Content::Fp8Rows => ("fp8_rows", None),
        Content::Fp8Blocks => ("fp8_blocks", None),
        Content::Nvfp4 => ("nvfp4", None),
        Content::Unsupported(reason) => ("unsupported", Some(reason.clone())),
        _ => ("unsupported", Some("this kind of content is not known here".to_owned())),
    };
    let format = source.importable(i).first().map(|&f| f as usize);
    let shape = PyTuple::new(py, &t.shape)?;
    let (name, dtype) = (t.name.clone(), t.type_name.clone());
    Ok((name, dtype, shape, content, reason, t.companions.clone(), t.bytes, t.file, format))
}

/// Reads `rows` of a tensor a piece at a time, without the GIL.
fn read<T: Send>(
    py: Python<'_>,
    source: &dyn TensorSource,
    tensor: usize,
    rows: Range<u64>,
    out: &mut [T],
    each: impl Fn(Range<u64>, &mut [T]) -> Result<(), ninfer_artifact::ArtifactError> + Sync,
) -> PyResult<()> {
    detached(py, || -> Result<(), Error> {
        let k = source.tensor(tensor)?.k();
        let step = (CHUNK / k.max(1)).max(1);
        let mut rest = out;
        let mut at = rows.start;
        loop {
            let next = rows.end.min(at.saturating_add(step));
            let last = next >= rows.end;
            // What is wrong with the lengths is for the source to say.
            let want = next.saturating_sub(at).saturating_mul(k);
            let length = if last { rest.len() } else { usize::try_from(want).unwrap_or(usize::MAX) };
            let (head, tail) = rest.split_at_mut(length.min(rest.len()));
            each(at..next, head).map_err(Error::ArtifactWrite)?;
            if last {
                return Ok(());
            }
            check_signals()?;
            (rest, at) = (tail, next);
        }
    })
}

/// Values of rows, into as many elements.
pub fn read_values(
    py: Python<'_>,
    source: &dyn TensorSource,
    tensor: usize,
    rows: Range<u64>,
    out: &mut [f32],
) -> PyResult<()> {
    read(py, source, tensor, rows, out, |rows, out| source.read_values(tensor, rows, out))
}

/// An opened model of any kind.
#[pyclass(frozen)]
pub struct Source {
    source: Box<dyn TensorSource>,
}

#[pymethods]
impl Source {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let source = detached(py, || source::open(&path, &OpenOptions::default()))?;
        Ok(Self { source })
    }

    /// `"gguf"`, `"safetensors"`, `"npy"` or `"npz"`.
    fn kind(&self) -> &'static str {
        self.source.kind()
    }

    /// Path and bytes of each file.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.source.files().iter().map(|f| (f.path.clone(), f.bytes)).collect()
    }

    /// The tensors.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorRow<'py>>> {
        let rows = self.source.tensors().iter().enumerate().map(|(i, t)| row(py, &*self.source, i, t));
        rows.collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.source.warnings()
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
        read_values(py, &*self.source, tensor, begin..end, out.as_slice_mut()?)
    }

    /// Integers of the rows `begin..end`, into an array of as many elements.
    fn integers(
        &self,
        py: Python<'_>,
        tensor: usize,
        begin: u64,
        end: u64,
        mut out: PyReadwriteArray1<'_, i64>,
    ) -> PyResult<()> {
        let source = &*self.source;
        let each = |rows: Range<u64>, out: &mut [i64]| source.read_integers(tensor, rows, out);
        read(py, source, tensor, begin..end, out.as_slice_mut()?, each)
    }
}
