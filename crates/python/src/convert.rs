//! Conversions by recipe: plans and sessions.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use ninfer_artifact::ArtifactError;
use ninfer_artifact::convert::{
    ImportanceFile, MethodUsed, PlanOptions, Recipe, RecipePlan, RowStatistics, RunOptions, Session,
    plan_recipe,
};
use ninfer_artifact::source::{OpenOptions, open};
use ninfer_formats::FormatError;
use ninfer_simd_ops::Dispatch;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::artifact::{WrittenRow, with_progress, written};
use crate::enter::detached;
use crate::error::{Error, raise};

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ConvertPlan>()?;
    m.add_class::<ConvertSession>()
}

/// Numbers of [`RowStatistics`] in an array of them.
const FIELDS: usize = 6;

/// Recipe as text, whether that is TOML (else JSON), and the file it is from, for messages.
#[derive(FromPyObject)]
enum RecipeText {
    #[pyo3(transparent)]
    Named((String, bool, Option<PathBuf>)),
    #[pyo3(transparent)]
    Plain((String, bool)),
}

/// Leave out what cannot keep its words, file limit in bytes, artifact id, take FP8 without scales as values.
type Options = (bool, Option<u64>, Option<[u8; 16]>, bool);

/// A planned conversion.
#[pyclass(frozen)]
struct ConvertPlan {
    inner: Arc<RecipePlan>,
}

/// Name, format index, shape, divisors, bytes, rows, K, name of the caller's method if it is one.
type TensorRow = (String, usize, Vec<u64>, u64, u64, u64, u64, Option<String>);

/// Words and row statistics of encoded rows.
type Encoded<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<f64>>);

fn plan_error(e: ArtifactError) -> Error {
    Error::from(e)
}

#[pymethods]
impl ConvertPlan {
    #[new]
    fn new(
        py: Python<'_>,
        source: PathBuf,
        recipe: RecipeText,
        importance: Option<PathBuf>,
        options: Options,
    ) -> PyResult<Self> {
        let (skip_unsupported, file_limit, artifact_id, fp8_without_scale) = options;
        let plan = detached(py, || {
            let (text, toml, file) = match &recipe {
                RecipeText::Named((text, toml, file)) => (text, *toml, file.as_deref()),
                RecipeText::Plain((text, toml)) => (text, *toml, None),
            };
            let recipe = if toml { Recipe::parse_toml(text) } else { Recipe::parse_json(text) };
            let named = |e: ArtifactError| match file {
                Some(file) => e.with_path(file),
                None => e,
            };
            let recipe = recipe.map_err(|e| Error::ArtifactWrite(named(e)))?;
            let source = open(&source, &OpenOptions { fp8_without_scale, ..OpenOptions::default() })?;
            let importance = importance.map(ImportanceFile::open).transpose()?;
            let options = PlanOptions { skip_unsupported, file_limit, artifact_id };
            plan_recipe(Arc::from(source), recipe, importance, options).map_err(plan_error)
        })?;
        Ok(Self { inner: Arc::new(plan) })
    }

    /// The plan as JSON text.
    fn json(&self) -> String {
        self.inner.to_json().to_string()
    }

    fn tensors(&self) -> Vec<TensorRow> {
        let row = |t: &ninfer_artifact::convert::PlannedTensor| {
            let callable = match &t.method {
                MethodUsed::Callable(name) => Some(name.clone()),
                _ => None,
            };
            let format = t.format as usize;
            (t.name.clone(), format, t.shape.clone(), t.divisors, t.bytes, t.rows(), t.k(), callable)
        };
        self.inner.tensors().iter().map(row).collect()
    }

    /// Ranges of rows that may be encoded on their own.
    fn units(&self, py: Python<'_>, tensor: usize, most: u64) -> PyResult<Vec<(u64, u64)>> {
        let units = self.inner.units(tensor, most).map_err(|e| plan_error(e).into_py(py))?;
        Ok(units.into_iter().map(|r| (r.start, r.end)).collect())
    }

    /// All values of a planned tensor, row-major.
    fn values<'py>(&self, py: Python<'py>, tensor: usize) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let values = detached(py, || {
            let units = self.inner.units(tensor, u64::MAX)?;
            let k = self.inner.tensors().get(tensor).map_or(0, |t| t.k());
            let all = units.last().map_or(0, |r| r.end).saturating_mul(k);
            let too_large = || Error::Format(FormatError::Memory { bytes: all.saturating_mul(4) });
            let mut values = Vec::new();
            let len = usize::try_from(all).map_err(|_| too_large())?;
            values.try_reserve_exact(len).map_err(|_| too_large())?;
            values.resize(len, 0.0f32);
            for rows in units {
                let part = (rows.start * k) as usize..(rows.end * k) as usize;
                self.inner.values(tensor, rows, &mut values[part])?;
            }
            Ok::<_, Error>(values)
        })?;
        Ok(PyArray1::from_vec(py, values))
    }

    /// Importance of the channels, `[experts, K]` flat, of each piece that has some.
    fn importance<'py>(
        &self,
        py: Python<'py>,
        tensor: usize,
    ) -> Vec<Option<(Bound<'py, PyArray1<f32>>, usize)>> {
        let pieces = self.inner.tensors().get(tensor).map_or(&[][..], |t| &t.pieces[..]);
        pieces
            .iter()
            .map(|p| p.importance.as_ref().map(|i| (PyArray1::from_vec(py, i.values()), i.experts())))
            .collect()
    }

    /// Words of some rows, and six numbers of statistics a row.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        tensor: usize,
        begin: u64,
        end: u64,
        threads: Option<usize>,
    ) -> PyResult<Encoded<'py>> {
        let dispatch = Dispatch { isa: None, threads };
        let rows = detached(py, || self.inner.encode(tensor, begin..end, &dispatch).map_err(plan_error))?;
        let statistics = rows.statistics.iter().flat_map(numbers).collect();
        Ok((PyArray1::from_vec(py, rows.payload), PyArray1::from_vec(py, statistics)))
    }
}

fn numbers(r: &RowStatistics) -> [f64; FIELDS] {
    let RowStatistics { max_abs, error, signal, weighted_error, weighted_signal, non_finite } = *r;
    // A count of columns: exact.
    [max_abs, error, signal, weighted_error, weighted_signal, non_finite as f64]
}

fn statistics(numbers: &[f64]) -> Vec<RowStatistics> {
    let row = |&[max_abs, error, signal, weighted_error, weighted_signal, non_finite]: &[f64; FIELDS]| {
        let non_finite = non_finite as u64;
        RowStatistics { max_abs, error, signal, weighted_error, weighted_signal, non_finite }
    };
    numbers.as_chunks::<FIELDS>().0.iter().map(row).collect()
}

/// A conversion being written.
#[pyclass(frozen)]
struct ConvertSession {
    inner: RwLock<Option<Session>>,
}

impl ConvertSession {
    /// Runs `work` on the session without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Session) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        detached(py, || {
            let session = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            work(session.as_ref().ok_or(Error::Stopped)?)
        })
    }

    fn take(&self) -> Option<Session> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl ConvertSession {
    #[new]
    fn new(
        py: Python<'_>,
        plan: &Bound<'_, ConvertPlan>,
        path: PathBuf,
        memory: Option<u64>,
        threads: Option<usize>,
        resume: bool,
    ) -> PyResult<Self> {
        let plan = plan.get().inner.clone();
        let options = RunOptions { memory, threads, isa: None, resume };
        let session = detached(py, || Session::start(plan, &path, options).map_err(Error::ArtifactWrite))?;
        Ok(Self { inner: RwLock::new(Some(session)) })
    }

    /// Positions of the tensors that are not complete.
    fn remaining(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.with(py, |s| Ok(s.remaining()))
    }

    /// Most rows of a tensor to be worked on at a time within the memory budget.
    fn unit_rows(&self, py: Python<'_>, tensor: usize) -> PyResult<u64> {
        self.with(py, |s| Ok(s.unit_rows(tensor)))
    }

    /// Bytes done, and their total.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |s| Ok((s.done_bytes(), s.plan().payload_bytes())))
    }

    /// Tensors taken over from an interrupted run.
    fn resumed(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |s| Ok(s.resumed()))
    }

    /// Writes all tensors but those of the caller's own methods.
    #[pyo3(signature = (progress))]
    fn run(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        with_progress(py, progress, |step| {
            let session = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            let Some(session) = session.as_ref() else { return Err(Error::Stopped) };
            let mut stopped = false;
            session
                .run(|done, total| {
                    if stopped {
                        return ControlFlow::Break(());
                    }
                    let flow = step(done, total);
                    stopped = flow.is_break();
                    flow
                })
                .map_err(Error::ArtifactWrite)
        })
    }

    /// Writes rows that a plan encoded.
    fn store(
        &self,
        py: Python<'_>,
        tensor: usize,
        begin: u64,
        end: u64,
        payload: PyReadonlyArray1<'_, u8>,
        numbers: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let (payload, numbers) = (payload.as_slice()?, numbers.as_slice()?);
        let rows: Range<u64> = begin..end;
        self.with(py, |s| s.store(tensor, &rows, payload, &statistics(numbers)).map_err(Error::ArtifactWrite))
    }

    /// Writes the payload of one of the caller's own methods.
    fn store_payload(
        &self,
        py: Python<'_>,
        tensor: usize,
        payload: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<()> {
        let payload = payload.as_slice()?;
        self.with(py, |s| s.store_payload(tensor, payload).map_err(Error::ArtifactWrite))
    }

    /// Publishes the artifact; what was written, and the report as JSON text.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<(WrittenRow<'py>, String)> {
        let Some(session) = self.take() else {
            return Err(raise(py, "UnsupportedError", "the conversion is over".into()));
        };
        let done = detached(py, || session.finish().map_err(Error::ArtifactWrite))?;
        Ok((written(py, &done.written), done.report().to_string()))
    }

    /// Ends the conversion; what it leaves behind is only what `resume` keeps.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            drop(self.take());
            Ok::<_, Error>(())
        })
    }
}
