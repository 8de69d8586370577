//! Operations on one payload. Shapes count elements, payloads bytes; rows count from the view's first row.

use ninfer_formats::{FormatError, TensorView, pack_grouped, pack_nvfp4, pack_row_scaled};
use ninfer_simd_ops::Half;
use numpy::{PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;

use crate::enter::detached;
use crate::error::{Error, ViolationRecord, violation_record};
use crate::products::dispatch;
use crate::registry::format_at;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(check, m)?)?;
    m.add_function(wrap_pyfunction!(spans, m)?)?;
    m.add_function(wrap_pyfunction!(slice_divisors, m)?)?;
    m.add_function(wrap_pyfunction!(slice_payload, m)?)?;
    m.add_function(wrap_pyfunction!(gather_payload, m)?)?;
    m.add_function(wrap_pyfunction!(validate, m)?)?;
    m.add_function(wrap_pyfunction!(violations, m)?)?;
    m.add_function(wrap_pyfunction!(grouped_words, m)?)?;
    m.add_function(wrap_pyfunction!(nvfp4_words, m)?)?;
    m.add_function(wrap_pyfunction!(row_scaled_words, m)?)?;
    m.add_function(wrap_pyfunction!(py_pack_grouped, m)?)?;
    m.add_function(wrap_pyfunction!(py_pack_nvfp4, m)?)?;
    m.add_function(wrap_pyfunction!(py_pack_row_scaled, m)?)?;
    m.add_function(wrap_pyfunction!(decode_f32, m)?)?;
    m.add_function(wrap_pyfunction!(decode_half, m)?)?;
    m.add_function(wrap_pyfunction!(decode_i32, m)?)
}

/// A tensor as Python passes it: format index, shape and divisors of the whole payload, the payload, and the rows
/// `begin..end` of it that are meant.
#[derive(FromPyObject)]
pub struct View<'py>(usize, Vec<u64>, u64, PyReadonlyArray1<'py, u8>, usize, usize);

impl View<'_> {
    /// The checked view; it borrows the array, which stays borrowed while the GIL is released.
    pub fn get(&self, py: Python<'_>) -> PyResult<TensorView<'_>> {
        let payload = self.3.as_slice()?;
        TensorView::new(format_at(py, self.0)?, &self.1, self.2, payload)
            .and_then(|v| v.row_range(self.4, self.5))
            .map_err(|e| Error::from(e).into_py(py))
    }
}

type Bytes<'py> = Bound<'py, PyArray1<u8>>;
type Codes<'py> = Bound<'py, PyArray1<i8>>;
type Scales<'py> = Bound<'py, PyArray1<u16>>;

/// Checks a whole payload; returns its rows.
#[pyfunction]
fn check(
    py: Python<'_>,
    format: usize,
    shape: Vec<u64>,
    divisors: u64,
    payload: PyReadonlyArray1<'_, u8>,
) -> PyResult<usize> {
    let view = TensorView::new(format_at(py, format)?, &shape, divisors, payload.as_slice()?);
    view.map(|v| v.rows()).map_err(|e| Error::from(e).into_py(py))
}

#[pyfunction]
fn spans(py: Python<'_>, view: View<'_>) -> PyResult<Vec<(usize, usize)>> {
    let spans = view.get(py)?.spans().map_err(|e| Error::from(e).into_py(py))?;
    Ok(spans.into_iter().map(|s| (s.start, s.end)).collect())
}

#[pyfunction]
fn slice_divisors(py: Python<'_>, view: View<'_>) -> PyResult<usize> {
    view.get(py)?.slice_divisors().map_err(|e| Error::from(e).into_py(py))
}

#[pyfunction]
fn slice_payload<'py>(py: Python<'py>, view: View<'py>) -> PyResult<(Bytes<'py>, usize)> {
    let v = view.get(py)?;
    let (bytes, divisors) = detached(py, || v.slice_payload())?;
    Ok((PyArray1::from_vec(py, bytes), divisors))
}

#[pyfunction]
fn gather_payload<'py>(
    py: Python<'py>,
    view: View<'py>,
    rows: PyReadonlyArray1<'py, u64>,
) -> PyResult<(Bytes<'py>, usize)> {
    let v = view.get(py)?;
    let rows = rows.as_slice()?;
    let (bytes, divisors) = detached(py, || {
        let index: Result<Vec<usize>, _> = rows
            .iter()
            .map(|&r| {
                usize::try_from(r).map_err(|_| FormatError::RowRange {
                    format: v.format().name(),
                    begin: r,
                    end: r.saturating_add(1),
                    rows: v.rows() as u64,
                })
            })
            .collect();
        v.gather_payload(&index?)
    })?;
    Ok((PyArray1::from_vec(py, bytes), divisors))
}

#[pyfunction]
fn validate(py: Python<'_>, view: View<'_>) -> PyResult<()> {
    let v = view.get(py)?;
    detached(py, || v.validate())
}

#[pyfunction]
fn violations(py: Python<'_>, view: View<'_>, limit: u64) -> PyResult<Vec<ViolationRecord>> {
    let v = view.get(py)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = detached(py, || Ok::<_, Error>(v.violations(limit)))?;
    Ok(found.iter().map(violation_record).collect())
}

#[pyfunction]
fn grouped_words<'py>(py: Python<'py>, view: View<'py>) -> PyResult<(Codes<'py>, Scales<'py>)> {
    let v = view.get(py)?;
    let words = detached(py, || v.grouped_words())?;
    Ok((PyArray1::from_vec(py, words.codes), PyArray1::from_vec(py, words.scales)))
}

/// Packed codes, natural scales, divisors as binary32 bits.
#[pyfunction]
fn nvfp4_words<'py>(
    py: Python<'py>,
    view: View<'py>,
) -> PyResult<(Bytes<'py>, Bytes<'py>, Bound<'py, PyArray1<u32>>)> {
    let v = view.get(py)?;
    let words = detached(py, || v.nvfp4_words())?;
    Ok((
        PyArray1::from_vec(py, words.codes),
        PyArray1::from_vec(py, words.scales),
        PyArray1::from_vec(py, words.divisors),
    ))
}

#[pyfunction]
fn row_scaled_words<'py>(py: Python<'py>, view: View<'py>) -> PyResult<(Bytes<'py>, Scales<'py>)> {
    let v = view.get(py)?;
    let words = detached(py, || v.row_scaled_words())?;
    Ok((PyArray1::from_vec(py, words.codes), PyArray1::from_vec(py, words.scales)))
}

#[pyfunction]
#[pyo3(name = "pack_grouped")]
fn py_pack_grouped<'py>(
    py: Python<'py>,
    format: usize,
    n: usize,
    k: usize,
    codes: PyReadonlyArray1<'py, i8>,
    scales: PyReadonlyArray1<'py, u16>,
) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let (codes, scales) = (codes.as_slice()?, scales.as_slice()?);
    let payload = detached(py, || pack_grouped(format, n, k, codes, scales))?;
    Ok(PyArray1::from_vec(py, payload))
}

#[pyfunction]
#[pyo3(name = "pack_nvfp4")]
fn py_pack_nvfp4<'py>(
    py: Python<'py>,
    format: usize,
    n: usize,
    k: usize,
    codes: PyReadonlyArray1<'py, u8>,
    scales: PyReadonlyArray1<'py, u8>,
    divisors: PyReadonlyArray1<'py, u32>,
) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let (codes, scales, divisors) = (codes.as_slice()?, scales.as_slice()?, divisors.as_slice()?);
    let payload = detached(py, || pack_nvfp4(format, n, k, codes, scales, divisors))?;
    Ok(PyArray1::from_vec(py, payload))
}

#[pyfunction]
#[pyo3(name = "pack_row_scaled")]
fn py_pack_row_scaled<'py>(
    py: Python<'py>,
    format: usize,
    n: usize,
    k: usize,
    codes: PyReadonlyArray1<'py, u8>,
    scales: PyReadonlyArray1<'py, u16>,
) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let (codes, scales) = (codes.as_slice()?, scales.as_slice()?);
    let payload = detached(py, || pack_row_scaled(format, n, k, codes, scales))?;
    Ok(PyArray1::from_vec(py, payload))
}

/// Returns the name of the instruction set whose kernel ran.
#[pyfunction]
#[pyo3(signature = (view, out, threads))]
fn decode_f32(
    py: Python<'_>,
    view: View<'_>,
    mut out: PyReadwriteArray1<'_, f32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    let (v, out) = (view.get(py)?, out.as_slice_mut()?);
    let ran = detached(py, || ninfer_simd_ops::decode_f32(&v, out, &dispatch(threads)))?;
    Ok(ran.kernel.name())
}

/// binary16 words, or bfloat16 words if `bfloat16`. Returns the instruction set whose kernel ran.
#[pyfunction]
#[pyo3(signature = (view, bfloat16, out, threads))]
fn decode_half(
    py: Python<'_>,
    view: View<'_>,
    bfloat16: bool,
    mut out: PyReadwriteArray1<'_, u16>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    let half = if bfloat16 { Half::Bfloat16 } else { Half::Binary16 };
    let (v, out) = (view.get(py)?, out.as_slice_mut()?);
    let ran = detached(py, || ninfer_simd_ops::decode_half(&v, half, out, &dispatch(threads)))?;
    Ok(ran.kernel.name())
}

#[pyfunction]
#[pyo3(signature = (view, out, threads))]
fn decode_i32(
    py: Python<'_>,
    view: View<'_>,
    mut out: PyReadwriteArray1<'_, i32>,
    threads: Option<usize>,
) -> PyResult<&'static str> {
    let (v, out) = (view.get(py)?, out.as_slice_mut()?);
    let ran = detached(py, || ninfer_simd_ops::decode_i32(&v, out, &dispatch(threads)))?;
    Ok(ran.kernel.name())
}
