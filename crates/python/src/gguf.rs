//! GGUF files. Python maps the files itself for zero-copy views of tensor data; the index and the metadata are read
//! here, through the crate's own maps of the same files.

use std::path::PathBuf;

use ninfer_formats::FormatId;
use ninfer_gguf::{
    Array, GgmlType, GgufError, GgufFile, GgufPlan, GgufSet, GgufWriter, MetaArray, MetaValue, TYPES,
    TensorInfo, Value, ValueType,
};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::enter::{check_signals, detached};
use crate::error::{Error, raise};

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Gguf>()?;
    m.add_function(wrap_pyfunction!(gguf_write, m)?)?;
    m.add_function(wrap_pyfunction!(ggml_types, m)?)
}

/// Bytes written between two looks for Ctrl-C.
const CHUNK: usize = 8 << 20;

/// An opened model: one file or all shards of a split set.
#[pyclass(frozen)]
pub struct Gguf {
    pub set: GgufSet,
}

/// Name, shape (slowest first), ggml type, type name, format index, shard, offset in its file, bytes, matrix shape.
type TensorRow<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyTuple>,
    u32,
    String,
    Option<usize>,
    usize,
    u64,
    Option<u64>,
    (u64, u64),
);

/// Key, type, element type and count of an array.
type KeyRow<'py> = (Bound<'py, PyBytes>, &'static str, Option<&'static str>, u64);

#[pymethods]
impl Gguf {
    /// `listed`: the paths are the whole set; else there is one, and its siblings are looked for.
    #[new]
    fn open(py: Python<'_>, paths: Vec<PathBuf>, listed: bool) -> PyResult<Self> {
        let set = detached(py, || match paths.as_slice() {
            [path] if !listed => GgufSet::open(path),
            paths => GgufSet::open_files(paths),
        })?;
        Ok(Self { set })
    }

    /// Path, bytes, version, alignment, data start and tensor count of each file.
    fn shards(&self) -> Vec<(PathBuf, u64, u32, u32, u64, usize)> {
        let row = |f: &GgufFile| {
            let h = f.header();
            (f.path().into(), h.file_bytes(), h.version(), h.alignment(), h.data_start(), f.tensors().len())
        };
        self.set.shards().iter().map(row).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let many = self.set.shards().len() > 1;
        let text = |(file, warning): (&GgufFile, &ninfer_gguf::Warning)| {
            if many { format!("{}: {warning}", file.path().display()) } else { warning.to_string() }
        };
        self.set.warnings().map(text).collect()
    }

    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorRow<'py>>> {
        let mut rows = Vec::with_capacity(self.set.tensor_count());
        for (shard, file) in self.set.shards().iter().enumerate() {
            for t in file.tensors() {
                rows.push(tensor_row(py, shard, t)?);
            }
        }
        Ok(rows)
    }

    fn entries<'py>(&self, py: Python<'py>) -> Vec<KeyRow<'py>> {
        let metadata = self.set.metadata();
        let row = |e: &ninfer_gguf::Entry| {
            let (element, count) = e.array().map_or((None, 0), |(t, n)| (Some(t.name()), n));
            (PyBytes::new(py, e.key_bytes()), e.value_type().name(), element, count)
        };
        metadata.entries().iter().map(row).collect()
    }

    /// The value of a key; strings as bytes. Arrays of arrays become lists of lists, other arrays are read
    /// by Python, from `array_raw` and `array_offsets`.
    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let value = self.set.metadata().get(key).map_err(|e| Error::from(self.named(e)).into_py(py))?;
        let value = value.ok_or_else(|| raise(py, "TensorNotFoundError", "no such key".into()))?;
        to_python(py, &value)
    }

    /// Offset in the first file and length in bytes of the elements of an array.
    fn array_raw(&self, py: Python<'_>, key: &[u8]) -> PyResult<(u64, usize)> {
        let array = self.array(py, key)?;
        Ok((array.offset(), array.raw().len()))
    }

    /// Byte offset of each element of an array within its elements' bytes.
    fn array_offsets<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let array = self.array(py, key)?;
        let offsets = detached(py, || array.element_offsets())?;
        Ok(PyArray1::from_vec(py, offsets))
    }
}

impl Gguf {
    fn named(&self, e: GgufError) -> GgufError {
        match self.set.shards().first() {
            Some(file) => e.with_path(file.path()),
            None => e,
        }
    }

    fn array(&self, py: Python<'_>, key: &[u8]) -> PyResult<Array<'_>> {
        let found = self.set.metadata().get_array(key).map_err(|e| Error::from(self.named(e)).into_py(py))?;
        found.ok_or_else(|| raise(py, "TensorNotFoundError", "no such key".into()))
    }
}

fn tensor_row<'py>(py: Python<'py>, shard: usize, t: &TensorInfo) -> PyResult<TensorRow<'py>> {
    let [rows, k] = t.matrix_shape();
    let kind = t.ggml_type();
    Ok((
        PyBytes::new(py, t.name_bytes()),
        PyTuple::new(py, t.shape())?,
        kind.0,
        kind.name().into_owned(),
        stored_as(kind).map(|f| f as usize),
        shard,
        t.file_offset(),
        t.bytes(),
        (rows, k),
    ))
}

/// The format that holds the words of a ggml type unchanged.
fn stored_as(kind: GgmlType) -> Option<FormatId> {
    kind.format().or(if kind == I32 { Some(FormatId::Int32) } else { None })
}

/// ggml's 32-bit integers: the words of `int32`.
const I32: GgmlType = GgmlType(26);

/// Number, name, block values and bytes, format index.
type TypeRow = (u32, &'static str, Option<u64>, Option<u64>, Option<usize>);

/// One row per ggml type known.
#[pyfunction]
fn ggml_types() -> Vec<TypeRow> {
    TYPES
        .iter()
        .map(|t| {
            let kind = GgmlType(t.id);
            let (values, bytes) = t.block.map_or((None, None), |b| (Some(b.values), Some(b.bytes)));
            (t.id, t.name, values, bytes, stored_as(kind).map(|f| f as usize))
        })
        .collect()
}

fn to_python<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::U8(x) => x.into_pyobject(py)?.into_any(),
        Value::I8(x) => x.into_pyobject(py)?.into_any(),
        Value::U16(x) => x.into_pyobject(py)?.into_any(),
        Value::I16(x) => x.into_pyobject(py)?.into_any(),
        Value::U32(x) => x.into_pyobject(py)?.into_any(),
        Value::I32(x) => x.into_pyobject(py)?.into_any(),
        Value::F32(x) => x.into_pyobject(py)?.into_any(),
        Value::Bool(x) => x.into_pyobject(py)?.to_owned().into_any(),
        Value::String(s) => PyBytes::new(py, s.bytes()).into_any(),
        Value::U64(x) => x.into_pyobject(py)?.into_any(),
        Value::I64(x) => x.into_pyobject(py)?.into_any(),
        Value::F64(x) => x.into_pyobject(py)?.into_any(),
        Value::Array(a) => {
            let list = PyList::empty(py);
            for item in a.iter() {
                list.append(to_python(py, &item.map_err(|e| Error::from(e).into_py(py))?)?)?;
            }
            list.into_any()
        }
    })
}

fn value_type(py: Python<'_>, name: &str) -> PyResult<ValueType> {
    ValueType::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| {
        let known: Vec<&str> = ValueType::ALL.iter().map(|t| t.name()).collect();
        let text = format!("unknown value type {name:?}; the types are {}", known.join(", "));
        raise(py, "UnsupportedError", text)
    })
}

/// A value to be written: of type `kind`; for arrays `value` is the pair of element type and list.
fn meta_value(kind: ValueType, value: &Bound<'_, PyAny>) -> PyResult<MetaValue> {
    Ok(match kind {
        ValueType::F32 => MetaValue::F32(value.extract()?),
        ValueType::F64 => MetaValue::F64(value.extract()?),
        ValueType::Bool => MetaValue::Bool(value.extract()?),
        ValueType::String => MetaValue::String(value.extract()?),
        ValueType::Array => {
            let (element, items): (String, Bound<'_, PyAny>) = value.extract()?;
            let element = value_type(value.py(), &element)?;
            let mut array = MetaArray::empty(element);
            for item in items.try_iter()? {
                let item = meta_value(element, &item?)?;
                array.push(item).map_err(|e| Error::GgufWrite(e).into_py(value.py()))?;
            }
            MetaValue::Array(array)
        }
        integer => {
            let number: i128 = value.extract()?;
            MetaValue::integer(integer, number).map_err(|e| Error::GgufWrite(e).into_py(value.py()))?
        }
    })
}

/// A metadata entry: key, type name and value, or key, `"copy"` and the file to copy it from.
type EntryArgs<'py> = (Vec<u8>, String, Bound<'py, PyAny>);

/// A tensor: name, ggml type, dimensions (fastest first), data.
type TensorArgs<'py> = (Vec<u8>, u32, Vec<u64>, PyReadonlyArray1<'py, u8>);

#[pyfunction]
fn gguf_write(
    py: Python<'_>,
    path: PathBuf,
    metadata: Vec<EntryArgs<'_>>,
    tensors: Vec<TensorArgs<'_>>,
) -> PyResult<()> {
    let fail = |e: GgufError| Error::GgufWrite(e).into_py(py);
    let mut plan = GgufPlan::new();
    for (key, kind, value) in &metadata {
        if kind == "copy" {
            let source = value.cast::<Gguf>()?.get();
            let entries = source.set.metadata();
            let entry = source.set.shards().first().and_then(|f| f.header().entry(key));
            let entry = entry.ok_or_else(|| raise(py, "TensorNotFoundError", "no such key".into()))?;
            plan.copy_metadata(&entries, entry).map_err(fail)?;
        } else {
            let value = meta_value(value_type(py, kind)?, value)?;
            plan.metadata(key, &value).map_err(fail)?;
        }
    }
    let mut data = Vec::with_capacity(tensors.len());
    for (name, kind, dims, array) in &tensors {
        plan.tensor(name, GgmlType(*kind), dims).map_err(fail)?;
        data.push((name.as_slice(), array.as_slice()?));
    }
    let layout = plan.finish().map_err(fail)?;
    detached(py, || {
        let mut writer = GgufWriter::create(&path, layout).map_err(Error::GgufWrite)?;
        for (name, bytes) in data {
            writer.begin(name).map_err(Error::GgufWrite)?;
            for chunk in bytes.chunks(CHUNK) {
                check_signals()?;
                writer.push(chunk).map_err(Error::GgufWrite)?;
            }
            writer.end().map_err(Error::GgufWrite)?;
        }
        writer.publish().map_err(Error::GgufWrite)
    })
}
