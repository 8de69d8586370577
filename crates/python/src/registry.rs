//! The two tables of the registry.

use ninfer_formats::encoder::ENCODERS;
use ninfer_formats::{FORMATS, FormatId, LAYOUTS, Scheme, encoded_size};
use pyo3::prelude::*;

use crate::error::{Error, raise};

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(formats, m)?)?;
    m.add_function(wrap_pyfunction!(layouts, m)?)?;
    m.add_function(wrap_pyfunction!(encoders, m)?)?;
    m.add_function(wrap_pyfunction!(format_index, m)?)?;
    m.add_function(wrap_pyfunction!(py_encoded_size, m)?)
}

/// The format at a position of the registry.
pub fn format_at(py: Python<'_>, index: usize) -> PyResult<FormatId> {
    let known = FORMATS.get(index).map(|f| f.id);
    known.ok_or_else(|| raise(py, "UnknownFormatError", format!("no format has index {index}")))
}

/// Name, category, layout, bits per weight, group size, code bits, code min, code max, block values, block bytes,
/// ggml type: the fields of `ninfer_rs.registry.Format` in order.
type FormatRow = (
    &'static str,
    &'static str,
    &'static str,
    f64,
    Option<usize>,
    Option<u8>,
    Option<i8>,
    Option<i8>,
    Option<usize>,
    Option<usize>,
    Option<u32>,
);

#[pyfunction]
fn formats() -> Vec<FormatRow> {
    FORMATS
        .iter()
        .map(|f| {
            let (group, bits, min, max) = match f.scheme {
                Scheme::Direct(_) | Scheme::Gguf(_) => (None, None, None, None),
                Scheme::Grouped(g) => (Some(g.group), Some(g.bits), Some(g.code_min), Some(g.code_max)),
                Scheme::Nvfp4 => (Some(16), Some(4), None, None),
                Scheme::RowScaled(_) => (None, Some(8), None, None),
            };
            let (values, bytes) = match f.scheme {
                Scheme::Gguf(kind) => (Some(kind.values()), Some(kind.bytes())),
                _ => (None, None),
            };
            let category = f.scheme.category().name();
            let (layout, per_weight) = (f.layout.name(), f.id.bits_per_weight());
            (f.name, category, layout, per_weight, group, bits, min, max, values, bytes, f.id.ggml_type())
        })
        .collect()
}

#[pyfunction]
fn layouts() -> Vec<(&'static str, u64, &'static str)> {
    LAYOUTS.iter().map(|l| (l.name, l.alignment, l.shape_rule)).collect()
}

/// Name, formats, and whether it is their method when none is named.
#[pyfunction]
fn encoders() -> Vec<(&'static str, Vec<usize>, bool)> {
    ENCODERS.iter().map(|e| (e.name, e.formats.iter().map(|&f| f as usize).collect(), e.default)).collect()
}

#[pyfunction]
fn format_index(py: Python<'_>, name: &str) -> PyResult<usize> {
    FormatId::from_name(name).map(|f| f as usize).map_err(|e| Error::from(e).into_py(py))
}

#[pyfunction]
#[pyo3(name = "encoded_size")]
fn py_encoded_size(py: Python<'_>, format: usize, shape: Vec<u64>, divisors: u64) -> PyResult<u64> {
    encoded_size(format_at(py, format)?, &shape, divisors).map_err(|e| Error::from(e).into_py(py))
}
