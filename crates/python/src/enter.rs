//! The one gate out of the GIL.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;

use crate::error::Error;

/// Runs `f` without the GIL. A panic inside becomes `InternalError`: it must not take the interpreter down.
pub fn detached<T: Send, E: Into<Error>>(
    py: Python<'_>,
    f: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    // The result type crosses the gate as our own error, which is Send.
    let result = py.detach(|| match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Into::into),
        Err(panic) => Err(Error::Panic(panic_text(panic.as_ref()))),
    });
    result.map_err(|e| e.into_py(py))
}

/// Lets Python run its signal handlers in the middle of long work; Ctrl-C becomes the error that ends the work.
///
/// # Errors
/// What the handler raised.
pub fn check_signals() -> Result<(), Error> {
    Python::attach(|py| py.check_signals()).map_err(Error::Python)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_string()
}
