//! The parsed header: an index that owns its names and borrows nothing, so that it can be kept beside any buffer.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cursor::{Cursor, slice};
use crate::error::{GgufError, GgufErrorKind as K};
use crate::limits::{DEFAULT_ALIGNMENT, MAX_ENTRIES, MAX_TENSORS, MIN_ENTRY_BYTES, MIN_TENSOR_BYTES};
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, check_overlap};
use crate::text::GgufStr;
use crate::value::{ValueType, read_type, skip};
use crate::warning::{Warning, collect};

/// One metadata entry: its key, its type and where its value stands. The value itself is read on demand through
/// [`Metadata`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) key: Arc<[u8]>,
    pub(crate) value_type: ValueType,
    pub(crate) array: Option<(ValueType, u64)>,
    pub(crate) begin: u64,
    pub(crate) value_begin: u64,
    pub(crate) end: u64,
}

impl Entry {
    /// The key as stored.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        &self.key
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> GgufStr<'_> {
        GgufStr(&self.key)
    }

    /// Type of the value.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// Element type and element count, if the value is an array.
    #[must_use]
    pub fn array(&self) -> Option<(ValueType, u64)> {
        self.array
    }

    /// Where the whole entry stands in the file: begin and end in bytes.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        (self.begin, self.end)
    }

    /// Where the value (after its type number) begins in the file, in bytes.
    #[must_use]
    pub fn value_offset(&self) -> u64 {
        self.value_begin
    }
}

/// Everything a GGUF file says before its data. Built by [`Header::parse`] from untrusted bytes; afterwards every
/// count, offset and range in it has been checked against the file.
///
/// The header borrows nothing. To read metadata values or tensor data, pair it with the bytes it was parsed from:
/// [`Header::metadata`], [`Header::data`].
#[derive(Clone, Debug)]
pub struct Header {
    version: u32,
    alignment: u32,
    data_start: u64,
    file_bytes: u64,
    entries: Vec<Entry>,
    tensors: Vec<TensorInfo>,
    entry_index: HashMap<Arc<[u8]>, u32>,
    tensor_index: HashMap<Arc<[u8]>, u32>,
    warnings: Vec<Warning>,
}

impl Header {
    /// Parses the header of a whole GGUF file (versions 2 and 3, little-endian).
    ///
    /// `bytes` is the whole file: tensor ranges are checked against its length. Only the header is read, so pages of
    /// a memory map that hold tensor data are not touched. Time and memory are linear in the size of the header; no
    /// count is trusted before it has been compared with the bytes that remain.
    ///
    /// # Errors
    /// A [`GgufError`] with the byte offset, the key or tensor and the rule for any file that breaks the format (see
    /// [`GgufErrorKind`](crate::GgufErrorKind)). Files that are legal but that other readers refuse are accepted;
    /// see [`Header::warnings`].
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut c = Cursor::new(bytes, 0);
        let version = read_preamble(&mut c)?;
        let at = c.at();
        let tensor_count = c.count(MIN_TENSOR_BYTES, "the tensor count")?;
        cap("the tensor count", tensor_count, MAX_TENSORS, at)?;
        let at = c.at();
        let entry_count = c.count(MIN_ENTRY_BYTES, "the metadata entry count")?;
        cap("the metadata entry count", entry_count, MAX_ENTRIES, at)?;

        let mut entries: Vec<Entry> = Vec::new();
        let mut entry_index = HashMap::new();
        for _ in 0..entry_count {
            let entry = read_entry(&mut c)?;
            if let Some(first) = entry_index.insert(Arc::clone(&entry.key), entries.len() as u32) {
                let kind = K::DuplicateKey { first: entries[first as usize].begin };
                return Err(GgufError::new(kind).at(entry.begin).in_key(&entry.key));
            }
            entries.push(entry);
        }
        let alignment = match entry_index.get(&b"general.alignment"[..]) {
            Some(&i) => read_alignment(bytes, &entries[i as usize])?,
            None => DEFAULT_ALIGNMENT,
        };

        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut tensor_index = HashMap::new();
        for _ in 0..tensor_count {
            let t = TensorInfo::read(&mut c)?;
            if let Some(first) = tensor_index.insert(Arc::clone(&t.name), tensors.len() as u32) {
                let first = format!("the record at byte {}", tensors[first as usize].info_offset);
                return Err(GgufError::new(K::DuplicateTensor { first })
                    .at(t.info_offset)
                    .in_tensor(&t.name));
            }
            tensors.push(t);
        }
        // Cannot overflow: the cursor is inside a buffer in memory, and the alignment fits in 32 bits.
        let data_start = c.at().next_multiple_of(alignment.into());
        let file_bytes = bytes.len() as u64;
        for t in &mut tensors {
            place(t, data_start, alignment, file_bytes)?;
        }
        check_overlap(&tensors)?;
        let mut header = Self {
            version,
            alignment,
            data_start,
            file_bytes,
            entries,
            tensors,
            entry_index,
            tensor_index,
            warnings: Vec::new(),
        };
        header.warnings = collect(&header);
        Ok(header)
    }

    /// File format version: 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes: `general.alignment`, or 32.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where tensor data starts, in bytes from the start of the file. May lie past the end of a file without data.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Length in bytes of the file the header was parsed from.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Metadata entries in file order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The metadata entry with this key. Constant time.
    #[must_use]
    pub fn entry(&self, key: impl AsRef<[u8]>) -> Option<&Entry> {
        self.entry_index.get(key.as_ref()).map(|&i| &self.entries[i as usize])
    }

    /// The tensor with this name, or `None`. Constant time.
    #[must_use]
    pub fn find(&self, name: impl AsRef<[u8]>) -> Option<&TensorInfo> {
        self.tensor_index.get(name.as_ref()).map(|&i| &self.tensors[i as usize])
    }

    /// The tensor with this name. Constant time.
    ///
    /// # Errors
    /// [`GgufErrorKind::NoTensor`](K::NoTensor).
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Result<&TensorInfo, GgufError> {
        let name = name.as_ref();
        self.find(name)
            .ok_or_else(|| GgufError::new(K::NoTensor { tensors: self.tensors.len() as u64 }).in_tensor(name))
    }

    /// What this reader accepts and llama.cpp's refuses: gaps, disorder, long names, empty keys; and tensors whose
    /// data cannot be located. At most 100 and a count of the rest.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Metadata values, read from `bytes`, the buffer the header was parsed from.
    ///
    /// # Errors
    /// [`GgufErrorKind::OtherBytes`](K::OtherBytes) if `bytes` has another length than that buffer.
    pub fn metadata<'a>(&'a self, bytes: &'a [u8]) -> Result<Metadata<'a>, GgufError> {
        self.check_bytes(bytes)?;
        Ok(Metadata::new(self, bytes))
    }

    /// Data of a tensor of this header, from `bytes`, the buffer the header was parsed from. Empty tensors give an
    /// empty slice.
    ///
    /// # Errors
    /// [`GgufErrorKind::UnknownSpan`](K::UnknownSpan) if the type has no known block size;
    /// [`GgufErrorKind::OtherBytes`](K::OtherBytes) or [`GgufErrorKind::TensorEnd`](K::TensorEnd) if `bytes` or the
    /// tensor belongs to another file.
    pub fn data<'a>(&self, bytes: &'a [u8], tensor: &TensorInfo) -> Result<&'a [u8], GgufError> {
        self.check_bytes(bytes)?;
        let Some(len) = tensor.bytes() else {
            let t = tensor.ggml_type();
            let kind = K::UnknownSpan { type_id: t.0, type_name: t.name().into_owned() };
            return Err(GgufError::new(kind).at(tensor.info_offset).in_tensor(&tensor.name));
        };
        if len == 0 {
            return Ok(&[]);
        }
        slice(bytes, tensor.file_offset, len).ok_or_else(|| {
            let end = u128::from(tensor.file_offset) + u128::from(len);
            GgufError::new(K::TensorEnd { end, file_bytes: bytes.len() as u64 }).in_tensor(&tensor.name)
        })
    }

    fn check_bytes(&self, bytes: &[u8]) -> Result<(), GgufError> {
        let given = bytes.len() as u64;
        if given == self.file_bytes {
            return Ok(());
        }
        Err(GgufError::new(K::OtherBytes { parsed: self.file_bytes, given }))
    }
}

/// Magic and version.
fn read_preamble(c: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let head = c.rest();
    let magic = &head[..head.len().min(4)];
    if magic != b"GGUF" {
        let found = GgufStr(magic).escaped();
        return Err(GgufError::new(K::NotGguf { found }).at(0));
    }
    c.take(4, "the magic")?;
    let at = c.at();
    let word = c.u32("the version")?;
    match word {
        2 | 3 => Ok(word),
        _ if matches!(word.swap_bytes(), 1..=3) => {
            Err(GgufError::new(K::BigEndian { word, version: word.swap_bytes() }).at(at))
        }
        found => Err(GgufError::new(K::Version { found }).at(at)),
    }
}

fn cap(what: &'static str, found: u64, limit: u64, at: u64) -> Result<(), GgufError> {
    if found <= limit { Ok(()) } else { Err(GgufError::new(K::OverLimit { what, found, limit }).at(at)) }
}

fn read_entry(c: &mut Cursor<'_>) -> Result<Entry, GgufError> {
    let begin = c.at();
    let key = c.name("metadata key length")?;
    let rest = |c: &mut Cursor<'_>| {
        let value_type = read_type(c, "value")?;
        let value_begin = c.at();
        let array = skip(c, value_type, 0)?;
        Ok(Entry { key: key.into(), value_type, array, begin, value_begin, end: c.at() })
    };
    rest(c).map_err(|e: GgufError| e.in_key(key))
}

fn read_alignment(bytes: &[u8], entry: &Entry) -> Result<u32, GgufError> {
    let fail = |found: String| Err(GgufError::new(K::Alignment { found }).at(entry.value_begin));
    if entry.value_type != ValueType::U32 {
        return fail(format!("of type {}", entry.value_type));
    }
    let value = slice(bytes, entry.value_begin, 4).unwrap_or_default();
    let found = Cursor::new(value, entry.value_begin).u32("general.alignment")?;
    if found.is_power_of_two() { Ok(found) } else { fail(found.to_string()) }
}

/// Fills in the absolute offset and checks it.
fn place(t: &mut TensorInfo, data_start: u64, alignment: u32, file_bytes: u64) -> Result<(), GgufError> {
    if !t.offset.is_multiple_of(alignment.into()) {
        let kind = K::TensorOffset { offset: t.offset, alignment };
        return Err(GgufError::new(kind).at(t.info_offset).in_tensor(&t.name));
    }
    // An empty tensor needs no bytes, so its offset may be anywhere; the sum below only has to be representable.
    t.file_offset = data_start.saturating_add(t.offset);
    let end = u128::from(data_start) + u128::from(t.offset) + u128::from(t.bytes.unwrap_or(0));
    if t.bytes.is_some_and(|n| n > 0) && end > u128::from(file_bytes) {
        let kind = K::TensorEnd { end, file_bytes };
        return Err(GgufError::new(kind).at(t.info_offset).in_tensor(&t.name));
    }
    Ok(())
}
