//! `.ninfer` files. Python maps the files itself for zero-copy views; the directory is checked here.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;

use ninfer_artifact::container::{
    ActivationPolicy, Binding, BindingPart, Component, ObjectKind, Proposal, Use, ValueOptions, Written,
};
use ninfer_artifact::{Artifact, ArtifactPlan, ConvertOptions, Json, compare_gguf, plan_gguf};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::enter::{check_signals, detached};
use crate::error::{Error, ViolationRecord, raise, violation_record};
use crate::gguf::Gguf;
use crate::registry::format_at;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ArtifactFile>()?;
    m.add_function(wrap_pyfunction!(artifact_write, m)?)?;
    m.add_function(wrap_pyfunction!(convert_plan, m)?)?;
    m.add_function(wrap_pyfunction!(convert_run, m)?)
}

/// Bytes written between two calls of the progress callback.
const CHUNK: usize = 8 << 20;

/// An opened artifact.
#[pyclass(frozen)]
struct ArtifactFile {
    inner: Artifact,
}

/// Id, kind, offset, bytes; format, layout, shape and divisors of a tensor; encoding of a resource.
type ObjectRow =
    (String, &'static str, u64, u64, Option<String>, Option<String>, Option<Vec<u64>>, u64, Option<String>);

/// Count, unit, row and index of the words or blocks that are not finite.
type NonFiniteRow = (u64, &'static str, u64, u64);

/// Id, format, violations, whether there are more, words that are not finite.
type ValuesRow = (String, &'static str, Vec<ViolationRecord>, bool, Option<NonFiniteRow>);

/// Tensors equal, bytes compared, tensors left out on purpose, name and text of each difference.
type CompareRow = (usize, u64, Vec<String>, Vec<(String, String)>);

#[pymethods]
impl ArtifactFile {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self { inner: detached(py, || Artifact::open(&path))? })
    }

    fn artifact_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.directory().artifact_id())
    }

    /// Path and payload bytes of each file; the entry comes first.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let files = self.inner.directory().files().iter().enumerate();
        files.map(|(i, f)| (self.inner.file_path(i).unwrap_or_default(), f.payload_bytes)).collect()
    }

    /// Bytes of file `index`, which is opened and checked.
    fn file_bytes(&self, py: Python<'_>, index: usize) -> PyResult<usize> {
        Ok(detached(py, || self.inner.file(index))?.len())
    }

    fn json_text<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inner.json_text())
    }

    fn payload_bytes(&self) -> u64 {
        self.inner.directory().payload_bytes()
    }

    fn objects(&self) -> Vec<ObjectRow> {
        let row = |o: &ninfer_artifact::container::Object| {
            let (format, layout, shape, divisors) = match o.as_tensor() {
                Some(t) => (
                    Some(t.format.to_string()),
                    Some(t.layout.to_string()),
                    Some(t.shape.clone()),
                    t.divisors,
                ),
                None => (None, None, None, 1),
            };
            let encoding = match &o.kind {
                ObjectKind::Resource { encoding } => Some(encoding.to_string()),
                ObjectKind::Tensor(_) => None,
            };
            (o.id.clone(), o.kind_name(), o.offset, o.bytes, format, layout, shape, divisors, encoding)
        };
        self.inner.objects().iter().map(row).collect()
    }

    /// File index, offset and length of each run of the object's bytes; what cannot be read is the error.
    fn spans(&self, py: Python<'_>, id: &str) -> PyResult<Vec<(usize, u64, u64)>> {
        let spans = self.inner.spans(id).map_err(|e| Error::from(e).into_py(py))?;
        Ok(spans.into_iter().map(|s| (s.file, s.offset, s.len)).collect())
    }

    /// Problems found without reading the payload, notes, and unused payload bytes.
    fn verify_structure(&self, py: Python<'_>) -> PyResult<(Vec<String>, Vec<String>, u64)> {
        let report = detached(py, || Ok::<_, Error>(self.inner.verify_structure()))?;
        let problems = report.problems.iter().map(ToString::to_string).collect();
        let gap = |g: &ninfer_artifact::container::Gap| {
            format!("payload bytes {}..{} belong to no object", g.begin, g.end)
        };
        Ok((problems, report.gaps.iter().map(gap).collect(), report.unused_bytes))
    }

    /// What is wrong with the values of each tensor, tensors that could not be checked, bytes checked.
    #[pyo3(signature = (limit, threads, progress))]
    fn verify_values(
        &self,
        py: Python<'_>,
        limit: usize,
        threads: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<ValuesRow>, Vec<String>, u64)> {
        let report = with_progress(py, progress, |step| {
            let options =
                ValueOptions { limit, threads: threads.and_then(NonZeroUsize::new), progress: Some(step) };
            self.inner.verify_values(&options)
        })?;
        let row = |t: &ninfer_artifact::container::TensorValues| {
            let non_finite = t.non_finite.as_ref().map(|n| (n.count, n.unit, n.row, n.index));
            let violations = t.violations.iter().map(violation_record).collect();
            (t.id.clone(), t.format.name(), violations, t.more, non_finite)
        };
        let problems = report.problems.iter().map(ToString::to_string).collect();
        Ok((report.tensors.iter().map(row).collect(), problems, report.bytes))
    }

    /// Compares with the model that the artifact was converted from.
    #[pyo3(signature = (gguf, progress))]
    fn compare(
        &self,
        py: Python<'_>,
        gguf: &Bound<'_, Gguf>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<CompareRow> {
        let set = &gguf.get().set;
        let report = with_progress(py, progress, |step| compare_gguf(&self.inner, set, step))?;
        let differences = report.differences.iter().map(|d| (d.name.clone(), d.to_string())).collect();
        Ok((report.equal, report.bytes, report.skipped, differences))
    }
}

/// Runs `work` without the GIL and with a callback that tells Python the bytes done and their total. What the Python
/// callback raises (or Ctrl-C, on the main thread) stops the work and is the error.
pub fn with_progress<T: Send, E: Into<Error>>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&(dyn Fn(u64, u64) -> ControlFlow<()> + Sync)) -> Result<T, E> + Send,
) -> PyResult<T> {
    let raised: Mutex<Option<Error>> = Mutex::new(None);
    let result = detached(py, || {
        let step = |done: u64, total: u64| {
            let told = match &progress {
                Some(callback) => {
                    Python::attach(|py| callback.call1(py, (done, total)).map(drop)).map_err(Error::Python)
                }
                None => check_signals(),
            };
            match told {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    // A poisoned lock would mean a panic while holding it, and nothing here panics.
                    if let Ok(mut raised) = raised.lock() {
                        raised.get_or_insert(e);
                    }
                    ControlFlow::Break(())
                }
            }
        };
        work(&step)
    });
    match raised.into_inner() {
        Ok(Some(e)) => Err(e.into_py(py)),
        _ => result,
    }
}

/// An object's id, format index, shape and divisors (of a tensor), and bytes.
type ObjectArgs<'py> = (String, Option<(usize, Vec<u64>, u64)>, PyReadonlyArray1<'py, u8>);

/// A component's id, config as JSON text, target, resources by role, proposal (domain and rows).
type ComponentArgs = (String, String, Option<String>, Vec<(String, String)>, Option<(String, Option<u64>)>);

/// A binding: an object's id, or parts (object, begin, end).
type BindingArgs = (Option<String>, Vec<(String, u64, u64)>);

/// A use: parameter, input, activation policy, auxiliaries by role.
type UseArgs = (String, String, Option<String>, Vec<(String, BindingArgs)>);

/// The rest of the plan: components, bindings by parameter, uses, metadata and provenance as JSON text, artifact id,
/// file limit in bytes.
#[derive(FromPyObject)]
struct PlanArgs(
    Vec<ComponentArgs>,
    Vec<(String, BindingArgs)>,
    Vec<UseArgs>,
    Option<String>,
    Option<String>,
    Option<[u8; 16]>,
    Option<u64>,
);

fn binding((object, parts): BindingArgs) -> Binding {
    match object {
        Some(id) => Binding::Object(id),
        None => {
            let part = |(object, begin, end)| BindingPart { object, begin, end };
            Binding::Parts(parts.into_iter().map(part).collect())
        }
    }
}

fn json(py: Python<'_>, text: &str) -> PyResult<Json> {
    Json::parse(text.as_bytes(), 0).map_err(|e| Error::ArtifactWrite(e).into_py(py))
}

fn fill_plan(py: Python<'_>, plan: &mut ArtifactPlan, args: PlanArgs) -> PyResult<()> {
    let PlanArgs(components, bindings, uses, metadata, provenance, id, limit) = args;
    for (id, config, target, resources, proposal) in components {
        let proposal = match proposal {
            None => None,
            Some((domain, None)) if domain == "full" => Some(Proposal::Full),
            Some((domain, Some(rows))) if domain == "indexed" => Some(Proposal::Indexed { rows }),
            Some(_) => {
                let text = "a proposal is {domain: full} or {domain: indexed, rows}".to_string();
                return Err(raise(py, "UnsupportedError", text));
            }
        };
        plan.component(id, Component { config: json(py, &config)?, target, resources, proposal });
    }
    for (parameter, to) in bindings {
        plan.binding(parameter, binding(to));
    }
    for (parameter, input, policy, auxiliaries) in uses {
        let policy = policy
            .map(|name| {
                let found = ActivationPolicy::ALL.iter().find(|(_, n)| *n == name).map(|&(p, _)| p);
                found.ok_or_else(|| {
                    let names: Vec<&str> = ActivationPolicy::ALL.iter().map(|&(_, n)| n).collect();
                    let text = format!("activation policy {name:?} is none of {}", names.join(", "));
                    raise(py, "UnsupportedError", text)
                })
            })
            .transpose()?;
        let auxiliaries = auxiliaries.into_iter().map(|(role, b)| (role, binding(b))).collect();
        plan.add_use(Use { parameter, input, activation_policy: policy, auxiliaries });
    }
    if let Some(text) = metadata {
        plan.metadata(json(py, &text)?);
    }
    if let Some(text) = provenance {
        plan.provenance(json(py, &text)?);
    }
    if let Some(id) = id {
        plan.artifact_id(id);
    }
    if let Some(limit) = limit {
        plan.file_limit(limit);
    }
    Ok(())
}

/// What was written: paths (the entry first), bytes of all files, artifact id.
pub type WrittenRow<'py> = (Vec<PathBuf>, u64, Bound<'py, PyBytes>);

/// The row of what was written.
pub fn written<'py>(py: Python<'py>, w: &Written) -> WrittenRow<'py> {
    (w.files.clone(), w.bytes, PyBytes::new(py, &w.artifact_id))
}

#[pyfunction]
#[pyo3(signature = (path, objects, plan, progress))]
fn artifact_write<'py>(
    py: Python<'py>,
    path: PathBuf,
    objects: Vec<ObjectArgs<'py>>,
    plan: PlanArgs,
    progress: Option<Py<PyAny>>,
) -> PyResult<WrittenRow<'py>> {
    let mut artifact = ArtifactPlan::new();
    let mut data = Vec::with_capacity(objects.len());
    for (id, tensor, bytes) in &objects {
        let bytes = bytes.as_slice()?;
        match tensor {
            Some((format, shape, divisors)) => {
                artifact.tensor(id.as_str(), format_at(py, *format)?, shape, *divisors)
            }
            None => artifact.resource(id.as_str(), bytes.len() as u64),
        }
        .map_err(|e| Error::ArtifactWrite(e).into_py(py))?;
        data.push((id.as_str(), bytes));
    }
    fill_plan(py, &mut artifact, plan)?;
    let result = with_progress(py, progress, |step| {
        let total = data.iter().map(|(_, b)| b.len() as u64).sum();
        let mut done = 0;
        let mut writer = artifact.finish(&path).and_then(|l| l.create()).map_err(Error::ArtifactWrite)?;
        for (id, bytes) in data {
            for chunk in bytes.chunks(CHUNK) {
                if step(done, total).is_break() {
                    return Err(Error::Stopped);
                }
                writer.write(id, chunk).map_err(Error::ArtifactWrite)?;
                done += chunk.len() as u64;
            }
        }
        writer.finish().map_err(Error::ArtifactWrite)
    })?;
    Ok(written(py, &result))
}

/// Options of a conversion: leave out what is not supported, file limit in bytes, artifact id.
type ConvertArgs = (bool, Option<u64>, Option<[u8; 16]>);

fn options((skip_unsupported, file_limit, artifact_id): ConvertArgs) -> ConvertOptions {
    ConvertOptions { skip_unsupported, file_limit, artifact_id }
}

/// Name, source type, source shape, source bytes, format, shape, bytes, action.
type PlannedRow = (String, String, Vec<u64>, u64, &'static str, Vec<u64>, u64, &'static str);

/// Name, source type and reason of a tensor left out.
type SkippedRow = (String, String, String);

/// Tensors, tensors left out, resources (id and bytes), payload bytes.
type PlanRow = (Vec<PlannedRow>, Vec<SkippedRow>, Vec<(String, u64)>, u64);

/// What a conversion would do.
#[pyfunction]
fn convert_plan(py: Python<'_>, gguf: &Bound<'_, Gguf>, args: ConvertArgs) -> PyResult<PlanRow> {
    let set = &gguf.get().set;
    let plan = plan_gguf(set, &options(args)).map_err(|e| Error::from(e).into_py(py))?;
    let tensor = |t: &ninfer_artifact::convert::ConvertedTensor| {
        let (source, shape) = (t.source_type.to_string(), t.source_shape.clone());
        let (format, action) = (t.format.name(), t.action.name());
        (t.name.clone(), source, shape, t.source_bytes, format, t.shape.clone(), t.bytes, action)
    };
    let skipped = plan.skipped().iter().map(|r| (r.tensor.clone(), r.source_type.clone(), r.reason.clone()));
    let resources = plan.resources().iter().map(|r| (r.id.clone(), r.bytes));
    Ok((
        plan.tensors().iter().map(tensor).collect(),
        skipped.collect(),
        resources.collect(),
        plan.payload_bytes(),
    ))
}

#[pyfunction]
#[pyo3(signature = (gguf, path, args, progress))]
fn convert_run<'py>(
    py: Python<'py>,
    gguf: &Bound<'py, Gguf>,
    path: PathBuf,
    args: ConvertArgs,
    progress: Option<Py<PyAny>>,
) -> PyResult<WrittenRow<'py>> {
    let set = &gguf.get().set;
    let result = with_progress(py, progress, |step| plan_gguf(set, &options(args))?.run(&path, step))?;
    Ok(written(py, &result))
}
