//! `ninfer_rs._native`: argument conversion between Python and the ninfer crates, and nothing else.
//!
//! Tensors arrive as [`tensor::View`] tuples and numpy arrays, borrowed without copies; results are written into
//! arrays that Python allocated or returned as new ones. Everything that can take long releases the GIL through
//! [`enter::detached`], and every error leaves through [`error::Error`].

mod artifact;
mod convert;
mod encode;
mod enter;
mod error;
mod gguf;
mod imatrix;
mod imports;
mod products;
mod registry;
mod safetensors;
mod sources;
mod tensor;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    registry::register(m)?;
    tensor::register(m)?;
    encode::register(m)?;
    imports::register(m)?;
    products::register(m)?;
    gguf::register(m)?;
    imatrix::register(m)?;
    artifact::register(m)?;
    safetensors::register(m)?;
    sources::register(m)?;
    convert::register(m)?;
    Ok(())
}
