//! Products, activations and the choice of an instruction set.

use ninfer_simd_ops::{
    Activations, Dispatch, Precision, Q8_1, Repacked, Workspace, isa, matmul, matmul_experts, quantize_q8_1,
};
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use crate::enter::detached;
use crate::error::Error;
use crate::tensor::View;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(matmul_f32, m)?)?;
    m.add_function(wrap_pyfunction!(matmul_bf16, m)?)?;
    m.add_class::<RepackedWeights>()?;
    m.add_function(wrap_pyfunction!(matmul_experts_f32, m)?)?;
    m.add_function(wrap_pyfunction!(matmul_experts_bf16, m)?)?;
    m.add_function(wrap_pyfunction!(q8_1_f32, m)?)?;
    m.add_function(wrap_pyfunction!(q8_1_bf16, m)?)?;
    m.add_function(wrap_pyfunction!(simd_info, m)?)?;
    m.add_function(wrap_pyfunction!(simd_forced, m)?)?;
    m.add_function(wrap_pyfunction!(simd_use, m)?)
}

/// How a call is to run: the process's instruction set, at most `threads` threads.
pub fn dispatch(threads: Option<usize>) -> Dispatch {
    Dispatch { threads, ..Dispatch::default() }
}

fn product(
    py: Python<'_>,
    view: &View<'_>,
    x: Activations<'_>,
    a8: bool,
    out: &mut [f32],
    threads: Option<usize>,
) -> PyResult<&'static str> {
    let v = view.get(py)?;
    let precision = if a8 { Precision::A8 } else { Precision::A16 };
    let ran = detached(py, || matmul(&v, x, precision, out, &dispatch(threads)))?;
    Ok(ran.kernel.name())
}

/// `x` is `[T, K]`, `out` `[T, N]`, both flat. Returns the name of the instruction set whose kernel ran.
#[pyfunction]
#[pyo3(signature = (view, x, a8, out, threads))]
fn matmul_f32(
    py: Python<'_>,
    view: View<'_>,
    x: PyReadonlyArray1<'_, f32>,
    a8: bool,
    mut out: PyReadwriteArray1<'_, f32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    product(py, &view, Activations::F32(x.as_slice()?), a8, out.as_slice_mut()?, threads)
}

/// As `matmul_f32`, with bfloat16 words.
#[pyfunction]
#[pyo3(signature = (view, x, a8, out, threads))]
fn matmul_bf16(
    py: Python<'_>,
    view: View<'_>,
    x: PyReadonlyArray1<'_, u16>,
    a8: bool,
    mut out: PyReadwriteArray1<'_, f32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    product(py, &view, Activations::Bf16(x.as_slice()?), a8, out.as_slice_mut()?, threads)
}

/// Weights repacked in memory, beside the payload that they were made from.
#[pyclass(frozen, name = "Repacked")]
struct RepackedWeights(Repacked);

#[pymethods]
impl RepackedWeights {
    #[new]
    fn new(py: Python<'_>, view: View<'_>, threads: Option<usize>) -> PyResult<Self> {
        let v = view.get(py)?;
        Ok(Self(detached(py, || Repacked::new(&v, &dispatch(threads)))?))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// As `matmul_f32`, with the view that was repacked.
    #[pyo3(signature = (view, x, a8, out, threads))]
    fn matmul_f32(
        &self,
        py: Python<'_>,
        view: View<'_>,
        x: PyReadonlyArray1<'_, f32>,
        a8: bool,
        mut out: PyReadwriteArray1<'_, f32>,
        threads: Option<usize>,
    ) -> PyResult<&'static str> {
        self.product(py, &view, Activations::F32(x.as_slice()?), a8, out.as_slice_mut()?, threads)
    }

    /// As `matmul_f32`, with bfloat16 words.
    #[pyo3(signature = (view, x, a8, out, threads))]
    fn matmul_bf16(
        &self,
        py: Python<'_>,
        view: View<'_>,
        x: PyReadonlyArray1<'_, u16>,
        a8: bool,
        mut out: PyReadwriteArray1<'_, f32>,
        threads: Option<usize>,
    ) -> PyResult<&'static str> {
        self.product(py, &view, Activations::Bf16(x.as_slice()?), a8, out.as_slice_mut()?, threads)
    }
}

impl RepackedWeights {
    fn product(
        &self,
        py: Python<'_>,
        view: &View<'_>,
        x: Activations<'_>,
        a8: bool,
        out: &mut [f32],
        threads: Option<usize>,
    ) -> PyResult<&'static str> {
        let v = view.get(py)?;
        let precision = if a8 { Precision::A8 } else { Precision::A16 };
        let ran = detached(py, || {
            self.0.matmul(&v, x, precision, out, &dispatch(threads), &mut Workspace::default())
        })?;
        Ok(ran.kernel.name())
    }
}

/// Number of experts, and the choices.
type Choices<'py> = (usize, PyReadonlyArray1<'py, u64>);

fn experts_product(
    py: Python<'_>,
    view: &View<'_>,
    choices: &Choices<'_>,
    x: Activations<'_>,
    a8: bool,
    out: &mut [f32],
    threads: Option<usize>,
) -> PyResult<&'static str> {
    let v = view.get(py)?;
    let precision = if a8 { Precision::A8 } else { Precision::A16 };
    // A number too large for this machine is outside every bank.
    let ids: Vec<usize> =
        choices.1.as_slice()?.iter().map(|&id| usize::try_from(id).unwrap_or(usize::MAX)).collect();
    let experts = choices.0;
    let ran = detached(py, || {
        let mut workspace = Workspace::default();
        matmul_experts(&v, experts, &ids, x, precision, out, &dispatch(threads), &mut workspace)
    })?;
    Ok(ran.kernel.name())
}

/// `x` is `[T, K]`, the choices `[T, J]`, `out` `[T, J, N]`, all flat. Returns what `matmul_f32` returns.
#[pyfunction]
#[pyo3(signature = (view, choices, x, a8, out, threads))]
fn matmul_experts_f32(
    py: Python<'_>,
    view: View<'_>,
    choices: Choices<'_>,
    x: PyReadonlyArray1<'_, f32>,
    a8: bool,
    mut out: PyReadwriteArray1<'_, f32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    experts_product(py, &view, &choices, Activations::F32(x.as_slice()?), a8, out.as_slice_mut()?, threads)
}

/// As `matmul_experts_f32`, with bfloat16 words.
#[pyfunction]
#[pyo3(signature = (view, choices, x, a8, out, threads))]
fn matmul_experts_bf16(
    py: Python<'_>,
    view: View<'_>,
    choices: Choices<'_>,
    x: PyReadonlyArray1<'_, u16>,
    a8: bool,
    mut out: PyReadwriteArray1<'_, f32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    experts_product(py, &view, &choices, Activations::Bf16(x.as_slice()?), a8, out.as_slice_mut()?, threads)
}

/// Scale words, sum words, codes: flat.
type Blocks<'py> = (Bound<'py, PyArray1<u16>>, Bound<'py, PyArray1<u16>>, Bound<'py, PyArray1<i8>>);

fn quantize<'py>(py: Python<'py>, x: Activations<'_>, k: usize) -> PyResult<Blocks<'py>> {
    let q = detached(py, || {
        let mut q = Q8_1::new();
        quantize_q8_1(x, k, &mut q, &Dispatch::default())?;
        Ok::<_, ninfer_simd_ops::OpError>(q)
    })?;
    Ok((
        PyArray1::from_slice(py, q.scale_words()),
        PyArray1::from_slice(py, q.sum_words()),
        PyArray1::from_slice(py, q.codes()),
    ))
}

/// Quantises rows of `k` activations.
#[pyfunction]
fn q8_1_f32<'py>(py: Python<'py>, x: PyReadonlyArray1<'py, f32>, k: usize) -> PyResult<Blocks<'py>> {
    quantize(py, Activations::F32(x.as_slice()?), k)
}

#[pyfunction]
fn q8_1_bf16<'py>(py: Python<'py>, x: PyReadonlyArray1<'py, u16>, k: usize) -> PyResult<Blocks<'py>> {
    quantize(py, Activations::Bf16(x.as_slice()?), k)
}

/// The instruction set in force, those available, and the threads that `None` means.
#[pyfunction]
fn simd_info(py: Python<'_>) -> PyResult<(&'static str, Vec<&'static str>, usize)> {
    let active = isa::active().map_err(|e| Error::from(e).into_py(py))?;
    let available = isa::available().into_iter().map(isa::Isa::name).collect();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok((active.name(), available, threads))
}

#[pyfunction]
fn simd_forced() -> Option<&'static str> {
    isa::forced().map(isa::Isa::name)
}

#[pyfunction]
#[pyo3(signature = (name))]
fn simd_use(py: Python<'_>, name: Option<&str>) -> PyResult<()> {
    let isa = name.map(isa::Isa::from_name).transpose();
    isa.and_then(isa::set).map_err(|e| Error::from(e).into_py(py))
}
