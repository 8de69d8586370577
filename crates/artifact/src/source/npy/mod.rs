//! numpy arrays: one in a `.npy` file, several in a `.npz` archive.

mod archive;
mod header;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use ninfer_formats::FormatId;
use ninfer_formats::encoder::RowPlanes;
use ninfer_mapped::MappedFile;

use self::archive::Entry;
use super::words::{FloatType, IntegerType, floats, integers};
use super::{
    Content, SourceFile, SourceResource, SourceTensor, TensorSource, Unused, check_planes, check_rows,
    copy_rows,
};
use crate::container::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

pub(super) use header::MAGIC;
pub use header::{Header, MAX_HEADER, NpyFault};

/// The arrays of a `.npy` or `.npz` file: floats of 2, 4 and 8 bytes, integers of 1 to 8, booleans, of either byte order
/// and element order. Arrays of other types are listed and cannot be read.
///
/// The array of a `.npy` file is named after the file, those of an archive after their entries, both without `.npy`.
/// Compressed entries are unpacked to a temporary file when they are first read, stored ones are read where they are;
/// both are checked against their checksums.
#[derive(Debug)]
pub struct NpySource {
    map: MappedFile,
    files: Vec<SourceFile>,
    tensors: Vec<SourceTensor>,
    arrays: Vec<Array>,
    // As many as arrays, or none.
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
    unused: Vec<Unused>,
}

/// How an array lies in its file or entry.
#[derive(Debug)]
struct Array {
    data: Range<u64>,
    word: usize,
    big: bool,
    fortran: bool,
}

impl NpySource {
    /// Opens a file by its content.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Npy`](K::Npy) for each rule of the two formats, errors of the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArtifactError> {
        let path = path.as_ref();
        let map = MappedFile::open(path).map_err(|e| ArtifactError::io("cannot open", e).with_path(path))?;
        Self::from_map(map, path).map_err(|e| e.with_path(path))
    }

    fn from_map(map: MappedFile, path: &Path) -> Result<Self, ArtifactError> {
        let total = map.len() as u64;
        if map.starts_with(&MAGIC) {
            let header = Header::parse(&map, total)?;
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
            let file = SourceFile::of(path, total, map.get(..header.data_start as usize).unwrap_or_default());
            let (tensor, array) = describe(name, &header, total)?;
            return Ok(Self::of(map, file, vec![(tensor, array)], Vec::new(), Vec::new()));
        }
        let (entries, others) = archive::list(&map)?;
        let mut arrays = Vec::new();
        let mut digest = String::new();
        for e in &entries {
            arrays
                .push(describe(e.name.clone(), &e.header, e.size).map_err(|error| error.in_tensor(&e.name))?);
            digest.push_str(&format!("{:?} {} {:08x}\n", e.name, e.size, e.crc));
        }
        let file = SourceFile::of(path, total, digest.as_bytes());
        Ok(Self::of(map, file, arrays, entries, others))
    }

    fn of(
        map: MappedFile,
        file: SourceFile,
        arrays: Vec<(SourceTensor, Array)>,
        entries: Vec<Entry>,
        others: Vec<String>,
    ) -> Self {
        let (tensors, arrays): (Vec<SourceTensor>, Vec<Array>) = arrays.into_iter().unzip();
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let unused =
            others.into_iter().map(|name| Unused { name, reason: "it is no .npy array".into() }).collect();
        Self { map, files: vec![file], tensors, arrays, entries, index, unused }
    }

    /// The words of rows, little-endian and in C order: borrowed where the file has them so.
    fn words(
        &self,
        tensor: usize,
        rows: &Range<u64>,
        n: usize,
        k: usize,
    ) -> Result<Cow<'_, [u8]>, ArtifactError> {
        let array = &self.arrays[tensor];
        let whole = match self.entries.get(tensor) {
            Some(entry) => entry.bytes(&self.map)?,
            None => self.map.as_slice(),
        };
        let changed = || ArtifactError::new(K::SourceChanged);
        // Checked against the length of file or entry.
        let data = whole.get(array.data.start as usize..array.data.end as usize).ok_or_else(changed)?;
        let word = array.word;
        let shape = &self.tensors[tensor].shape;
        if !array.fortran || shape.len() < 2 {
            let row = k * word;
            let begin = rows.start as usize * row;
            let bytes = data.get(begin..begin + n * row).ok_or_else(changed)?;
            if !array.big || word == 1 {
                return Ok(Cow::Borrowed(bytes));
            }
            let mut swapped = bytes.to_vec();
            swapped.chunks_exact_mut(word).for_each(<[u8]>::reverse);
            return Ok(Cow::Owned(swapped));
        }
        // The first dimension runs fastest: element (i0, i1, ..) is word i0 + d0 * (i1 + d1 * (..)).
        let mut out = Vec::new();
        let memory = |_| {
            let bytes = (n as u64).saturating_mul(k as u64).saturating_mul(word as u64);
            ArtifactError::new(K::Format(ninfer_formats::FormatError::Memory { bytes }))
        };
        out.try_reserve_exact(n * k * word).map_err(memory)?;
        let leading = &shape[..shape.len() - 1];
        let step = leading.iter().product::<u64>() as usize;
        for row in rows.clone() {
            // Indices of the row, last of the leading dimensions fastest, as rows are counted.
            let mut rest = row;
            let mut first = 0u64;
            let mut stride = leading.iter().product::<u64>();
            for &d in leading.iter().rev() {
                stride /= d;
                first += rest % d * stride;
                rest /= d;
            }
            for c in 0..k {
                let at = (first as usize + c * step) * word;
                let bytes = data.get(at..at + word).ok_or_else(changed)?;
                if array.big {
                    out.extend(bytes.iter().rev());
                } else {
                    out.extend_from_slice(bytes);
                }
            }
        }
        Ok(Cow::Owned(out))
    }

    fn checked(
        &self,
        tensor: usize,
        rows: &Range<u64>,
        out: Option<usize>,
    ) -> Result<(usize, usize), ArtifactError> {
        let t = self.tensor(tensor)?;
        match t.content {
            Content::Unsupported(_) => Err(self.wrong_content(tensor, "anything readable")),
            _ => check_rows(t, rows, out).map_err(|e| self.in_tensor(tensor, e)),
        }
    }
}

/// The entry of an array in the list, and how it lies in its `total` bytes.
fn describe(name: String, header: &Header, total: u64) -> Result<(SourceTensor, Array), ArtifactError> {
    let (content, word, big) = header::meaning(&header.descr);
    let data = match word {
        Some(word) => header.data(word, total)?,
        None => header.data_start.min(total)..total,
    };
    let tensor = SourceTensor {
        name,
        type_name: header.descr.clone(),
        shape: header.shape.clone(),
        bytes: data.end - data.start,
        content,
        companions: Vec::new(),
        file: 0,
    };
    Ok((tensor, Array { data, word: word.unwrap_or(1), big, fortran: header.fortran }))
}

impl TensorSource for NpySource {
    fn kind(&self) -> &'static str {
        if self.entries.is_empty() { "npy" } else { "npz" }
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    fn importable(&self, tensor: usize) -> Vec<FormatId> {
        match self.tensors.get(tensor).map(|t| &t.content) {
            Some(Content::Values(FloatType::F32)) => vec![FormatId::Fp32],
            Some(Content::Integers(IntegerType::I32)) => vec![FormatId::Int32],
            _ => Vec::new(),
        }
    }

    fn read_values(&self, tensor: usize, rows: Range<u64>, out: &mut [f32]) -> Result<(), ArtifactError> {
        let (n, k) = self.checked(tensor, &rows, Some(out.len()))?;
        let Content::Values(kind) = self.tensors[tensor].content else {
            return Err(self.wrong_content(tensor, "floating-point values"));
        };
        if out.is_empty() {
            return Ok(());
        }
        let words = self.words(tensor, &rows, n, k).map_err(|e| self.in_tensor(tensor, e))?;
        floats(kind, &words, out).map_err(|bad| self.in_tensor(tensor, super::bad_word(bad, rows.start, k)))
    }

    fn read_integers(&self, tensor: usize, rows: Range<u64>, out: &mut [i64]) -> Result<(), ArtifactError> {
        let (n, k) = self.checked(tensor, &rows, Some(out.len()))?;
        let Content::Integers(kind) = self.tensors[tensor].content else {
            return Err(self.wrong_content(tensor, "integers"));
        };
        if out.is_empty() {
            return Ok(());
        }
        let words = self.words(tensor, &rows, n, k).map_err(|e| self.in_tensor(tensor, e))?;
        integers(kind, &words, out).map_err(|bad| self.in_tensor(tensor, super::bad_word(bad, rows.start, k)))
    }

    fn import_rows(
        &self,
        tensor: usize,
        format: FormatId,
        rows: Range<u64>,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError> {
        let (n, k) = self.checked(tensor, &rows, None)?;
        if !self.importable(tensor).contains(&format) {
            return Err(self.not_importable(tensor, format));
        }
        let fail = |e| self.in_tensor(tensor, e);
        check_planes(out, format, n, k).map_err(fail)?;
        if n > 0 {
            copy_rows(&self.words(tensor, &rows, n, k).map_err(fail)?, out);
        }
        Ok(())
    }

    fn resources(&self) -> &[SourceResource] {
        &[]
    }

    fn resource(&self, index: usize) -> Result<Cow<'_, [u8]>, ArtifactError> {
        Err(ArtifactError::new(K::NoSourceResource { index: index as u64, resources: 0 }))
    }

    fn describe(&self) -> Json {
        let files = self.files.iter().map(|f| {
            let arrays = self.tensors.len() as u64;
            Json::object([
                ("name", Json::from(f.name())),
                ("bytes", f.bytes.into()),
                ("tensors", arrays.into()),
            ])
        });
        Json::object([("kind", Json::from(self.kind())), ("files", Json::Array(files.collect()))])
    }

    fn unused(&self) -> &[Unused] {
        &self.unused
    }
}
