//! Encoders: values to payloads.

use ninfer_formats::encoder::{EncoderId, Params, Source, Values, cast_direct};
use ninfer_simd_ops::encode;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::enter::detached;
use crate::error::Error;
use crate::products::dispatch;
use crate::registry::format_at;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(cast_f64, m)?)?;
    m.add_function(wrap_pyfunction!(cast_f32, m)?)?;
    m.add_function(wrap_pyfunction!(cast_f16, m)?)?;
    m.add_function(wrap_pyfunction!(cast_bf16, m)?)?;
    m.add_function(wrap_pyfunction!(cast_i64, m)?)?;
    m.add_function(wrap_pyfunction!(cast_u64, m)?)?;
    m.add_function(wrap_pyfunction!(encode_f64, m)?)?;
    m.add_function(wrap_pyfunction!(encode_f32, m)?)?;
    m.add_function(wrap_pyfunction!(encode_f16, m)?)?;
    m.add_function(wrap_pyfunction!(encode_bf16, m)?)
}

type Bytes<'py> = Bound<'py, PyArray1<u8>>;

fn cast<'py>(py: Python<'py>, format: usize, shape: &[u64], values: Values<'_>) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let payload = detached(py, || cast_direct(format, shape, values))?;
    Ok(PyArray1::from_vec(py, payload))
}

/// `cast_direct`. One entry point per source type: a macro, because a Python function cannot be generic.
macro_rules! cast_function {
    ($name:ident, $word:ty, $kind:ident) => {
        #[pyfunction]
        fn $name<'py>(
            py: Python<'py>,
            format: usize,
            shape: Vec<u64>,
            values: PyReadonlyArray1<'py, $word>,
        ) -> PyResult<Bytes<'py>> {
            cast(py, format, &shape, Values::$kind(values.as_slice()?))
        }
    };
}

cast_function!(cast_f64, f64, F64);
cast_function!(cast_f32, f32, F32);
cast_function!(cast_f16, u16, F16);
cast_function!(cast_bf16, u16, Bf16);
cast_function!(cast_i64, i64, I64);
cast_function!(cast_u64, u64, U64);

/// What a method is given beside the values: importance (K values or none), negative scales, threads.
type Options<'py> = (Option<PyReadonlyArray1<'py, f32>>, bool, Option<usize>);

fn rows<'py>(
    py: Python<'py>,
    format: usize,
    method: &str,
    (n, k): (usize, usize),
    values: Source<'_>,
    (importance, negative_scales, threads): &Options<'py>,
) -> PyResult<Bytes<'py>> {
    let format = format_at(py, format)?;
    let method = EncoderId::from_name(method).map_err(|e| Error::from(e).into_py(py))?;
    let importance = importance.as_ref().map(|i| i.as_slice()).transpose()?;
    let params = Params { importance, negative_scales: *negative_scales };
    let (payload, _) = detached(py, || encode(format, method, n, k, values, params, &dispatch(*threads)))?;
    Ok(PyArray1::from_vec(py, payload))
}

/// Methods that work row by row, for a matrix `[n, k]` of one source type.
macro_rules! encode_function {
    ($name:ident, $word:ty, $kind:ident) => {
        #[pyfunction]
        fn $name<'py>(
            py: Python<'py>,
            format: usize,
            method: &str,
            shape: (usize, usize),
            values: PyReadonlyArray1<'py, $word>,
            options: Options<'py>,
        ) -> PyResult<Bytes<'py>> {
            rows(py, format, method, shape, Source::$kind(values.as_slice()?), &options)
        }
    };
}

encode_function!(encode_f64, f64, F64);
encode_function!(encode_f32, f32, F32);
encode_function!(encode_f16, u16, F16);
encode_function!(encode_bf16, u16, Bf16);
