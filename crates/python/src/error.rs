//! The one match from Rust errors to the exceptions of `ninfer_rs.errors`.

use std::path::Path;

use ninfer_artifact::{ArtifactError, ArtifactErrorKind, Location};
use ninfer_formats::{FormatError, Place, Violation};
use ninfer_gguf::{GgufError, GgufErrorKind};
use ninfer_simd_ops::OpError;
use pyo3::exceptions::{PyFileExistsError, PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Everything that can go wrong behind the GIL gate.
#[derive(Debug)]
pub enum Error {
    /// From `ninfer-formats`.
    Format(FormatError),
    /// From `ninfer-simd-ops`.
    Op(OpError),
    /// From reading with `ninfer-gguf`.
    Gguf(GgufError),
    /// From planning or writing with `ninfer-gguf`: an argument is at fault, not a file.
    GgufWrite(GgufError),
    /// From reading with `ninfer-artifact`.
    Artifact(ArtifactError),
    /// From planning or writing with `ninfer-artifact`: an argument is at fault, not a file.
    ArtifactWrite(ArtifactError),
    /// A progress callback asked to stop; what it raised goes out instead.
    Stopped,
    /// Already a Python exception.
    Python(PyErr),
    /// A panic, with its message: a bug.
    Panic(String),
}

impl From<FormatError> for Error {
    fn from(e: FormatError) -> Self {
        Self::Format(e)
    }
}

impl From<OpError> for Error {
    fn from(e: OpError) -> Self {
        match e {
            OpError::Format(e) => Self::Format(e),
            e => Self::Op(e),
        }
    }
}

impl From<GgufError> for Error {
    fn from(e: GgufError) -> Self {
        Self::Gguf(e)
    }
}

impl From<ArtifactError> for Error {
    fn from(e: ArtifactError) -> Self {
        Self::Artifact(e)
    }
}

/// A class of `ninfer_rs.errors`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("ninfer_rs.errors")?.getattr(name)?.cast_into()?)
}

/// An exception of `ninfer_rs.errors` with a message alone.
pub fn raise(py: Python<'_>, name: &str, message: String) -> PyErr {
    match class(py, name) {
        Ok(class) => PyErr::from_type(class, message),
        Err(e) => e,
    }
}

/// A record of a broken rule, as the arguments of `ninfer_rs.errors.Violation`: plane, row, column, group, divisor,
/// byte, word, rule.
pub type ViolationRecord =
    (&'static str, Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<u64>, u32, &'static str);

/// The record of a violation.
pub fn violation_record(v: &Violation) -> ViolationRecord {
    let (row, column, group, divisor, byte) = match v.place {
        Place::Column { row, column } => (Some(row), Some(column), None, None, None),
        Place::Group { row, group } => (Some(row), None, Some(group), None, None),
        Place::Row { row } => (Some(row), None, None, None, None),
        Place::Divisor { index } => (None, None, None, Some(index), None),
        Place::Byte { offset } => (None, None, None, None, Some(offset)),
    };
    (v.plane, row, column, group, divisor, byte, v.word, v.rule)
}

impl Error {
    /// The Python exception.
    pub fn into_py(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Format(e) => format_error(py, &e, e.to_string()),
            Self::Op(e) => op_error(py, &e),
            Self::Gguf(e) => gguf_error(py, &e, "FileFormatError"),
            Self::GgufWrite(e) => gguf_error(py, &e, "UnsupportedError"),
            Self::Artifact(e) => artifact_error(py, &e, true),
            Self::ArtifactWrite(e) => artifact_error(py, &e, false),
            Self::Stopped => raise(py, "UnsupportedError", "stopped on request".into()),
            Self::Python(e) => e,
            Self::Panic(message) => raise(py, "InternalError", format!("internal error: {message}")),
        }
    }
}

/// The exception for `e` with this message.
fn format_error(py: Python<'_>, e: &FormatError, message: String) -> PyErr {
    let name = match e {
        FormatError::UnknownFormat { .. } | FormatError::UnknownLayout { .. } => "UnknownFormatError",
        FormatError::Shape { .. }
        | FormatError::SizeOverflow { .. }
        | FormatError::Divisors { .. }
        | FormatError::PayloadSize { .. }
        | FormatError::BufferSize { .. }
        | FormatError::RowRange { .. } => "ShapeError",
        FormatError::Invalid { violation, .. } => {
            let args = (message, violation_record(violation));
            return match class(py, "InvalidTensorError") {
                Ok(class) => PyErr::from_type(class, args),
                Err(e) => e,
            };
        }
        FormatError::Memory { .. } => return PyMemoryError::new_err(message),
        _ => "UnsupportedError",
    };
    raise(py, name, message)
}

fn op_error(py: Python<'_>, e: &OpError) -> PyErr {
    match e {
        OpError::Length { .. } | OpError::TooLarge { .. } | OpError::Bank { .. } | OpError::Expert { .. } => {
            raise(py, "ShapeError", e.to_string())
        }
        OpError::Memory { .. } => PyMemoryError::new_err(e.to_string()),
        // The system refused threads; the request itself is fine.
        OpError::Workers { .. } => PyRuntimeError::new_err(e.to_string()),
        _ => raise(py, "UnsupportedError", e.to_string()),
    }
}

/// An `OSError` (of the subclass that fits its number) with the path.
fn os_error(source: &std::io::Error, what: &str, path: Option<&Path>) -> PyErr {
    match source.raw_os_error() {
        Some(number) => {
            // The text ends in " (os error N)", which Python prints in its own way.
            let text = source.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_string();
            PyOSError::new_err((
                number,
                format!("{what}: {text}"),
                path.map(|p| p.as_os_str().to_os_string()),
            ))
        }
        None => PyOSError::new_err(format!("{what}: {source}")),
    }
}

fn gguf_error(py: Python<'_>, e: &GgufError, general: &str) -> PyErr {
    match e.kind() {
        GgufErrorKind::Io { what, source } => os_error(source, what, e.path()),
        GgufErrorKind::Exists => PyFileExistsError::new_err(e.to_string()),
        GgufErrorKind::NoTensor { .. } => raise(py, "TensorNotFoundError", e.to_string()),
        GgufErrorKind::UnknownSpan { .. } => raise(py, "UnsupportedError", e.to_string()),
        _ if general == "FileFormatError" => {
            file_format(py, e.to_string(), e.path(), e.offset(), e.expected())
        }
        _ => raise(py, general, e.to_string()),
    }
}

fn artifact_error(py: Python<'_>, e: &ArtifactError, reading: bool) -> PyErr {
    use ArtifactErrorKind as K;
    let message = || e.to_string();
    match e.kind() {
        K::Io { what, source } => {
            let place = match (e.tensor(), e.rows(), e.object()) {
                (Some(t), Some(r), _) => format!("tensor {t:?}, rows {}..{}: ", r.start, r.end),
                (Some(name), None, _) => format!("tensor {name:?}: "),
                (None, _, Some(id)) => format!("object {id:?}: "),
                (None, _, None) => String::new(),
            };
            os_error(source, &format!("{place}{what}"), e.path())
        }
        K::CannotPublish { source } => os_error(source, "cannot publish the file", e.path()),
        K::PartMissing { source, .. } if source.raw_os_error().is_some() => {
            os_error(source, &message(), e.path())
        }
        K::Exists => PyFileExistsError::new_err(message()),
        K::NoObject { .. } => raise(py, "TensorNotFoundError", message()),
        K::Gguf(inner) => gguf_error(py, inner, "FileFormatError"),
        // Its message, and in front of it which tensor and rows.
        K::Format(inner) if !reading => format_error(py, inner, message()),
        K::Refused { .. }
        | K::Unplannable { .. }
        | K::Recipe { .. }
        | K::Memory { .. }
        | K::NothingToConvert
        | K::ObjectKind { .. }
        | K::Interrupted { .. }
        | K::Cancelled { .. } => raise(py, "UnsupportedError", message()),
        K::ByteRange { .. } | K::TooLarge { .. } | K::SourceRows { .. } => raise(py, "ShapeError", message()),
        K::NoSourceTensor { .. } => raise(py, "TensorNotFoundError", message()),
        K::SourceContent { .. } | K::NotImportable { .. } | K::SourceWord { .. } => {
            raise(py, "UnsupportedError", message())
        }
        K::SourceChanged => file_format(py, message(), e.path(), None, e.expected()),
        _ if reading => {
            let offset = match e.location() {
                Some(Location::Byte(at)) => Some(*at),
                _ => None,
            };
            file_format(py, message(), e.path(), offset, e.expected())
        }
        _ => raise(py, "UnsupportedError", message()),
    }
}

fn file_format(
    py: Python<'_>,
    message: String,
    path: Option<&Path>,
    offset: Option<u64>,
    expected: Option<String>,
) -> PyErr {
    let path = path.map(|p| p.display().to_string());
    match class(py, "FileFormatError") {
        Ok(class) => PyErr::from_type(class, (message, path, offset, expected)),
        Err(e) => e,
    }
}
