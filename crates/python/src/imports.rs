//! Imports of encoded sources.

use ninfer_formats::FormatError;
use ninfer_formats::import::{Fp8Scales, Nvfp4Global, Nvfp4Source, import_blocks, import_fp8, import_nvfp4};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::enter::detached;
use crate::registry::format_at;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(py_import_blocks, m)?)?;
    m.add_function(wrap_pyfunction!(import_fp8_bf16, m)?)?;
    m.add_function(wrap_pyfunction!(import_fp8_f32, m)?)?;
    m.add_function(wrap_pyfunction!(py_import_nvfp4, m)?)
}

type Bytes<'py> = Bound<'py, PyArray1<u8>>;

/// ggml blocks of type `ggml_type` (`n` rows of `k` elements) to a grouped format; `rows` is an optional gather.
#[pyfunction]
#[pyo3(name = "import_blocks", signature = (format, ggml_type, n, k, blocks, rows))]
fn py_import_blocks<'py>(
    py: Python<'py>,
    format: usize,
    ggml_type: u32,
    n: usize,
    k: usize,
    blocks: PyReadonlyArray1<'py, u8>,
    rows: Option<PyReadonlyArray1<'py, u64>>,
) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let blocks = blocks.as_slice()?;
    let rows = rows.as_ref().map(|r| r.as_slice()).transpose()?;
    let payload = detached(py, || {
        let too_far = |r: u64| FormatError::RowRange {
            format: format.name(),
            begin: r,
            end: r.saturating_add(1),
            rows: n as u64,
        };
        let index = |rows: &[u64]| -> Result<Vec<usize>, FormatError> {
            rows.iter().map(|&r| usize::try_from(r).map_err(|_| too_far(r))).collect()
        };
        let rows = rows.map(index).transpose()?;
        import_blocks(format, ggml_type, n, k, blocks, rows.as_deref())
    })?;
    Ok(PyArray1::from_vec(py, payload))
}

/// E4M3FN rows with bfloat16 multipliers.
#[pyfunction]
fn import_fp8_bf16<'py>(
    py: Python<'py>,
    n: usize,
    k: usize,
    codes: PyReadonlyArray1<'py, u8>,
    scales: PyReadonlyArray1<'py, u16>,
    scale_shape: Vec<u64>,
) -> PyResult<Bytes<'py>> {
    let (codes, scales) = (codes.as_slice()?, Fp8Scales::Bf16(scales.as_slice()?));
    let payload = detached(py, || import_fp8(n, k, codes, scales, &scale_shape))?;
    Ok(PyArray1::from_vec(py, payload))
}

/// E4M3FN rows with binary32 multipliers, rounded once to bfloat16.
#[pyfunction]
fn import_fp8_f32<'py>(
    py: Python<'py>,
    n: usize,
    k: usize,
    codes: PyReadonlyArray1<'py, u8>,
    scales: PyReadonlyArray1<'py, f32>,
    scale_shape: Vec<u64>,
) -> PyResult<Bytes<'py>> {
    let (codes, scales) = (codes.as_slice()?, Fp8Scales::F32(scales.as_slice()?));
    let payload = detached(py, || import_fp8(n, k, codes, scales, &scale_shape))?;
    Ok(PyArray1::from_vec(py, payload))
}

/// One source matrix: codes, their shape, scales, their shape, global scale, whether that is a divisor.
type Nvfp4Args<'py> = (PyReadonlyArray1<'py, u8>, Vec<u64>, PyReadonlyArray1<'py, u8>, Vec<u64>, f32, bool);

/// Stacks sources by rows; returns the payload and the row count.
#[pyfunction]
#[pyo3(name = "import_nvfp4")]
fn py_import_nvfp4<'py>(py: Python<'py>, sources: Vec<Nvfp4Args<'py>>) -> PyResult<(Bytes<'py>, usize)> {
    let mut borrowed = Vec::with_capacity(sources.len());
    for (codes, codes_shape, scales, scales_shape, global, divisor) in &sources {
        borrowed.push(Nvfp4Source {
            codes: codes.as_slice()?,
            codes_shape,
            scales: scales.as_slice()?,
            scales_shape,
            global: if *divisor { Nvfp4Global::Divisor(*global) } else { Nvfp4Global::Multiplier(*global) },
        });
    }
    let (payload, rows) = detached(py, || import_nvfp4(&borrowed))?;
    Ok((PyArray1::from_vec(py, payload), rows))
}
