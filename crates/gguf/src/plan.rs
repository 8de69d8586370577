//! Planning a file: everything is checked and laid out before the first byte is written.

use std::collections::{HashMap, HashSet};

use crate::error::{GgufError, GgufErrorKind as K};
use crate::header::Entry;
use crate::limits::{DEFAULT_ALIGNMENT, MAX_DIMS, MAX_ENTRIES, MAX_NAME_BYTES, MAX_TENSORS};
use crate::meta::{MetaValue, encode_string};
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, measure};
use crate::types::GgmlType;
use crate::value::Value;

/// Collects the metadata and tensors of a file to be written, in order.
#[derive(Clone, Debug, Default)]
pub struct GgufPlan {
    metadata: Vec<u8>,
    // Keys and where their entries begin in the file.
    keys: HashMap<Vec<u8>, u64>,
    alignment: Option<u32>,
    tensors: Vec<PlannedTensor>,
    names: HashSet<Vec<u8>>,
}

/// One tensor of a planned file. Sizes and offsets in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name.
    pub name: Vec<u8>,
    /// Type of the data.
    pub ggml_type: GgmlType,
    /// Dimensions, fastest first.
    pub dims: Vec<u64>,
    /// Bytes of the data.
    pub bytes: u64,
    /// Offset of the data from the data start; a multiple of the alignment. 0 until the plan is finished.
    pub offset: u64,
}

impl GgufPlan {
    /// An empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry. The order of the calls is the order in the file. `general.alignment` also sets the
    /// alignment of the file; without it, it is 32 bytes and no entry is added.
    ///
    /// # Errors
    /// `EmptyName`, `OverLimit` (key longer than 65,535 bytes, or too many entries), `DuplicateKey`, `Depth`, or
    /// `Alignment` for a `general.alignment` that is not a u32 power of two.
    pub fn metadata(&mut self, key: impl AsRef<[u8]>, value: &MetaValue) -> Result<(), GgufError> {
        let key = key.as_ref();
        let alignment = self.check_entry(key, || match value {
            MetaValue::U32(n) => Ok(*n),
            other => Err(format!("of type {}", other.value_type())),
        })?;
        let before = self.metadata.len();
        encode_string(key, &mut self.metadata);
        self.metadata.extend(value.value_type().number().to_le_bytes());
        if let Err(e) = value.encode(&mut self.metadata, 0) {
            self.metadata.truncate(before);
            return Err(e.in_key(key));
        }
        self.keys.insert(key.to_vec(), PREAMBLE + before as u64);
        self.alignment = alignment.or(self.alignment);
        Ok(())
    }

    /// Adds an entry of another file as it stands there, byte for byte.
    ///
    /// # Errors
    /// As [`GgufPlan::metadata`] and [`Metadata::value`].
    pub fn copy_metadata(&mut self, source: &Metadata<'_>, entry: &Entry) -> Result<(), GgufError> {
        // Reading the value checks that the bytes still are the entry that was indexed.
        let value = source.value(entry)?;
        let key = entry.key_bytes();
        let alignment = self.check_entry(key, || match value {
            Value::U32(n) => Ok(n),
            other => Err(format!("of type {}", other.value_type())),
        })?;
        let raw = source.raw(entry)?;
        self.keys.insert(key.to_vec(), PREAMBLE + self.metadata.len() as u64);
        self.metadata.extend_from_slice(raw);
        self.alignment = alignment.or(self.alignment);
        Ok(())
    }

    /// Rules of a key; the alignment if the key sets it.
    fn check_entry(
        &self,
        key: &[u8],
        alignment: impl FnOnce() -> Result<u32, String>,
    ) -> Result<Option<u32>, GgufError> {
        check_name("metadata key", "metadata key length", key).map_err(|e| e.in_key(key))?;
        if let Some(&first) = self.keys.get(key) {
            return Err(GgufError::new(K::DuplicateKey { first }).in_key(key));
        }
        limit("the metadata entry count", self.keys.len() as u64 + 1, MAX_ENTRIES)?;
        if key != b"general.alignment" {
            return Ok(None);
        }
        match alignment() {
            Ok(n) if n.is_power_of_two() => Ok(Some(n)),
            other => {
                let found = other.map_or_else(|e| e, |n| n.to_string());
                Err(GgufError::new(K::Alignment { found }).in_key(key))
            }
        }
    }

    /// Adds a tensor. The order of the calls is the order of the records and of the data. `dims` counts elements,
    /// fastest first: `[K, N]` for N rows of K elements.
    ///
    /// # Errors
    /// `EmptyName`, `OverLimit` (long name, more than four dimensions, too many tensors), `DuplicateTensor`,
    /// `UnknownSpan` for a type without a known block size, `RowLength` for rows that are not whole blocks,
    /// `ElementCount`, `SizeOverflow`.
    pub fn tensor(
        &mut self,
        name: impl AsRef<[u8]>,
        ggml_type: GgmlType,
        dims: &[u64],
    ) -> Result<(), GgufError> {
        let name = name.as_ref();
        self.add_tensor(name, ggml_type, dims).map_err(|e| e.in_tensor(name))
    }

    /// Adds a tensor with the name, type and dimensions of one that was read.
    ///
    /// # Errors
    /// As [`GgufPlan::tensor`].
    pub fn copy_tensor(&mut self, tensor: &TensorInfo) -> Result<(), GgufError> {
        self.tensor(tensor.name_bytes(), tensor.ggml_type(), tensor.dims())
    }

    fn add_tensor(&mut self, name: &[u8], ggml_type: GgmlType, dims: &[u64]) -> Result<(), GgufError> {
        check_name("tensor name", "tensor name length", name)?;
        if self.names.contains(name) {
            let first = "an earlier place of the plan".to_owned();
            return Err(GgufError::new(K::DuplicateTensor { first }));
        }
        limit("the tensor count", self.tensors.len() as u64 + 1, MAX_TENSORS)?;
        limit("the number of dimensions", dims.len() as u64, MAX_DIMS.into())?;
        let (_, bytes) = measure(ggml_type, dims)?;
        let Some(bytes) = bytes else {
            let kind = K::UnknownSpan { type_id: ggml_type.0, type_name: ggml_type.name().into_owned() };
            return Err(GgufError::new(kind));
        };
        self.names.insert(name.to_vec());
        self.tensors.push(PlannedTensor {
            name: name.to_vec(),
            ggml_type,
            dims: dims.to_vec(),
            bytes,
            offset: 0,
        });
        Ok(())
    }

    /// Lays the file out: header bytes, offsets, total size.
    ///
    /// # Errors
    /// `SizeOverflow` if the file would have 2^63 bytes or more.
    pub fn finish(mut self) -> Result<GgufLayout, GgufError> {
        let alignment = self.alignment.unwrap_or(DEFAULT_ALIGNMENT);
        let align = |n: u64| n.checked_next_multiple_of(alignment.into());
        let mut offset = 0u64;
        for t in &mut self.tensors {
            t.offset = offset;
            offset =
                offset.checked_add(t.bytes).and_then(align).filter(|&n| n < 1 << 62).ok_or_else(|| {
                    GgufError::new(K::SizeOverflow { what: "the size of the file" }).in_tensor(&t.name)
                })?;
        }
        let mut header = Vec::with_capacity(self.metadata.len() + 4096);
        header.extend_from_slice(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        header.append(&mut self.metadata);
        for t in &self.tensors {
            encode_string(&t.name, &mut header);
            header.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| header.extend(d.to_le_bytes()));
            header.extend(t.ggml_type.0.to_le_bytes());
            header.extend(t.offset.to_le_bytes());
        }
        // At most 2^32 above a length in memory.
        let data_start = (header.len() as u64).next_multiple_of(alignment.into());
        Ok(GgufLayout { header, alignment, data_start, data_bytes: offset, tensors: self.tensors })
    }
}

/// Magic, version, tensor count, entry count.
const PREAMBLE: u64 = 4 + 4 + 8 + 8;

fn check_name(what: &'static str, length: &'static str, name: &[u8]) -> Result<(), GgufError> {
    if name.is_empty() {
        return Err(GgufError::new(K::EmptyName { what }));
    }
    limit(length, name.len() as u64, MAX_NAME_BYTES)
}

fn limit(what: &'static str, found: u64, limit: u64) -> Result<(), GgufError> {
    if found <= limit { Ok(()) } else { Err(GgufError::new(K::OverLimit { what, found, limit })) }
}

/// A finished plan: the header's bytes and where every tensor goes. All sizes in bytes.
#[derive(Clone, Debug)]
pub struct GgufLayout {
    header: Vec<u8>,
    alignment: u32,
    data_start: u64,
    data_bytes: u64,
    tensors: Vec<PlannedTensor>,
}

impl GgufLayout {
    /// The header's bytes, without the padding up to [`GgufLayout::data_start`].
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Alignment of the data of each tensor.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where the data starts in the file.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Length of the whole file; the last tensor is padded to the alignment like the others.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        // Both are below 2^63.
        self.data_start.saturating_add(self.data_bytes)
    }

    /// The tensors in order, with their offsets.
    #[must_use]
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }
}
