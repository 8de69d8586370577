//! Where tensors come from: model files seen as named tensors, read by rows.
//!
//! A [`TensorSource`] lists *logical* tensors. What several stored tensors say together, the codes of a quantised
//! matrix and its scales, is one entry with the shape of the matrix; the scales are its [companions] and are not
//! listed. Every entry says what it [holds](Content), which formats take its words as they are
//! ([`TensorSource::importable`]) and gives its values exactly ([`TensorSource::read_values`]).
//!
//! Files are memory-mapped and read a range of rows at a time: the memory used does not depend on the model's size.
//! Nothing is guessed from sizes or file names; what the bytes do not say is an error.
//!
//! [companions]: SourceTensor::companions

mod gguf;
pub mod npy;
pub mod safetensors;
mod words;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::Nvfp4Source;
use ninfer_formats::{FormatError, FormatId};
use ninfer_gguf::{GgmlType, GgufSet};
use sha2::{Digest, Sha256};

use crate::container::Json;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

pub use gguf::GgufSource;
pub use npy::{NpyFault, NpySource};
pub use safetensors::{SafetensorsFault, SafetensorsSource};
pub use words::{FloatType, IntegerType};

/// What a tensor of a source holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// Floating-point numbers, one word an element.
    Values(FloatType),
    /// Integers, one word an element.
    Integers(IntegerType),
    /// Rows of ggml blocks.
    Blocks(GgmlType),
    /// E4M3FN codes with one multiplier for each row, or one for all.
    Fp8Rows,
    /// E4M3FN codes with one multiplier for each tile of 128 rows and 128 columns: values only, no registered format
    /// holds them.
    Fp8Blocks,
    /// E2M1 codes with an E4M3FN scale for 16 columns and a divisor.
    Nvfp4,
    /// Nothing that can be read; why.
    Unsupported(String),
}

impl Content {
    /// Whether the values were quantised already: encoding them anew loses precision a second time.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        match self {
            Self::Blocks(_) | Self::Fp8Rows | Self::Fp8Blocks | Self::Nvfp4 => true,
            Self::Values(kind) => *kind == FloatType::E4m3,
            Self::Integers(_) | Self::Unsupported(_) => false,
        }
    }

    /// Whether [`TensorSource::read_values`] reads it.
    #[must_use]
    pub fn has_values(&self) -> bool {
        !matches!(self, Self::Integers(_) | Self::Unsupported(_))
    }
}

/// One logical tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its name, unique in the source.
    pub name: String,
    /// What the source calls its type.
    pub type_name: String,
    /// Elements per dimension, slowest first; of packed tensors those of the matrix they stand for.
    pub shape: Vec<u64>,
    /// Stored bytes, companions included; 0 where they are not known.
    pub bytes: u64,
    /// What it holds.
    pub content: Content,
    /// Names of the stored tensors that its values need as well (scales).
    pub companions: Vec<String>,
    /// Index of its file in [`TensorSource::files`].
    pub file: usize,
}

impl SourceTensor {
    /// Elements of one row: the last dimension; 1 for a scalar.
    #[must_use]
    pub fn k(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last; 1 for a vector or scalar.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let leading = self.shape.split_last().map_or(&[][..], |(_, leading)| leading);
        // Sources check the product of all dimensions; a zero makes it zero whatever the others are.
        if leading.contains(&0) { 0 } else { leading.iter().fold(1, |n, &d| n.saturating_mul(d)) }
    }

    /// Elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows().saturating_mul(self.k())
    }
}

/// One file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path it was opened by.
    pub path: PathBuf,
    /// Its bytes when it was opened.
    pub bytes: u64,
    /// Nanoseconds since 1970 of its last change when it was opened, where the system tells.
    pub modified: Option<u128>,
    /// SHA-256 of the part that says where everything is, as hexadecimal digits.
    pub header_sha256: String,
}

impl SourceFile {
    pub(crate) fn of(path: &Path, bytes: u64, header: &[u8]) -> Self {
        Self { path: path.to_path_buf(), bytes, modified: modified(path), header_sha256: hex(header) }
    }

    /// Last component of the path: what provenance calls the file.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn modified(path: &Path) -> Option<u128> {
    let time = std::fs::metadata(path).ok()?.modified().ok()?;
    Some(time.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos())
}

fn file_identities(files: &[SourceFile]) -> Json {
    let files = files.iter().map(|f| {
        Json::object([
            ("name", Json::from(f.name())),
            ("bytes", f.bytes.into()),
            ("modified", f.modified.map_or(Json::Null, |t| t.to_string().into())),
            ("header_sha256", f.header_sha256.as_str().into()),
        ])
    });
    Json::Array(files.collect())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes that belong to the model and are not a tensor: GGUF metadata, configuration and tokenizer beside safetensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceResource {
    /// Name in the source: `gguf.metadata` or a file name.
    pub name: String,
    /// Role that a component names it by.
    pub role: String,
    /// Bytes.
    pub bytes: u64,
}

/// A stored tensor that is known and that no value depends on, such as a scale of activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Its name.
    pub name: String,
    /// Why it is not a tensor of the list.
    pub reason: String,
}

/// A model's tensors, by position in [`TensorSource::tensors`]; positions outside it are errors, never panics.
///
/// Methods that read run on the calling thread and may be called from many at a time.
pub trait TensorSource: Send + Sync + std::fmt::Debug {
    /// `gguf`, `safetensors`, `npy` or `npz`.
    fn kind(&self) -> &'static str;

    /// The files, in order.
    fn files(&self) -> &[SourceFile];

    /// Logical tensors, in the order of the files.
    fn tensors(&self) -> &[SourceTensor];

    /// Position of the tensor of this name.
    fn find(&self, name: &str) -> Option<usize>;

    /// The formats that `import_encoded` takes the tensor's words to without rounding, the natural one first. Empty
    /// where there is none; whether the words obey the format's rules is found when they are imported.
    fn importable(&self, tensor: usize) -> Vec<FormatId>;

    /// The values of consecutive rows as binary32, row-major; `out` holds `rows * K` elements. Exact, except that
    /// binary64 rounds once, nearest-even, and products of code and scale as their format says.
    ///
    /// # Errors
    /// A tensor without floating-point values, rows outside the tensor, another length of `out`, a finite binary64
    /// value beyond binary32; errors of the file.
    fn read_values(&self, tensor: usize, rows: Range<u64>, out: &mut [f32]) -> Result<(), ArtifactError>;

    /// The integers of consecutive rows, row-major; `out` holds `rows * K` elements.
    ///
    /// # Errors
    /// A tensor without integers, rows outside the tensor, another length of `out`, an unsigned value of 2^63 or more.
    fn read_integers(&self, tensor: usize, rows: Range<u64>, out: &mut [i64]) -> Result<(), ArtifactError>;

    /// Imports the words of consecutive rows into planes of `format`, one of [`TensorSource::importable`] other than
    /// `nvfp4`, whose planes have no rows ([`TensorSource::nvfp4`]).
    ///
    /// # Errors
    /// Another format, planes of another row count or K, rows outside the tensor,
    /// [`FormatError::Refused`] inside [`ArtifactErrorKind::Format`](K::Format) for words that the format does not
    /// admit, rows counted from the tensor's first.
    fn import_rows(
        &self,
        tensor: usize,
        format: FormatId,
        rows: Range<u64>,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError>;

    /// Codes, natural (not swizzled) scales and the global scale of an [`Content::Nvfp4`] tensor, whole and without
    /// copying; cut them by rows. See [`ninfer_formats::import::nvfp4`] for what turns them into planes.
    ///
    /// # Errors
    /// A tensor of other content.
    fn nvfp4(&self, tensor: usize) -> Result<Nvfp4Source<'_>, ArtifactError> {
        Err(self.wrong_content(tensor, "nvfp4 codes and scales"))
    }

    /// Bytes kept whole beside the tensors.
    fn resources(&self) -> &[SourceResource];

    /// The bytes of a resource, by position in [`TensorSource::resources`].
    ///
    /// # Errors
    /// A position outside the list; errors of the file.
    fn resource(&self, index: usize) -> Result<Cow<'_, [u8]>, ArtifactError>;

    /// The model's configuration (`config.json`), where the source has one as JSON. GGUF metadata are a matter of
    /// [`TensorSource::as_gguf`].
    fn config(&self) -> Option<&Json> {
        None
    }

    /// Where the tensors come from, for provenance: kind, file names without folders, bytes, details of each kind of
    /// file. No times: the same files give the same description.
    fn describe(&self) -> Json;

    /// What tells these files from others or from a later state of themselves: names, sizes, times of change and
    /// digests of headers.
    fn identity(&self) -> Json {
        Json::object([("kind", Json::from(self.kind())), ("files", file_identities(self.files()))])
    }

    /// Refuses if a file no longer has the length or time of change that it was opened with.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::SourceChanged`](K::SourceChanged) with the file's path.
    fn check_unchanged(&self) -> Result<(), ArtifactError> {
        for file in self.files() {
            let bytes = std::fs::metadata(&file.path).map(|m| m.len()).ok();
            if bytes != Some(file.bytes) || modified(&file.path) != file.modified {
                return Err(ArtifactError::new(K::SourceChanged).with_path(&file.path));
            }
        }
        Ok(())
    }

    /// What is odd about the source and does not make it unreadable, as sentences.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Stored tensors that are neither in the list nor companions of one that is.
    fn unused(&self) -> &[Unused] {
        &[]
    }

    /// The model as GGUF files, if that is what it is.
    fn as_gguf(&self) -> Option<&GgufSet> {
        None
    }

    /// The tensor at a position.
    ///
    /// # Errors
    /// A position outside the list.
    fn tensor(&self, tensor: usize) -> Result<&SourceTensor, ArtifactError> {
        let tensors = self.tensors();
        let kind = K::NoSourceTensor { index: tensor as u64, tensors: tensors.len() as u64 };
        tensors.get(tensor).ok_or_else(|| ArtifactError::new(kind))
    }

    /// The error of an operation that the tensor's content does not have.
    fn wrong_content(&self, tensor: usize, wanted: &'static str) -> ArtifactError {
        match self.tensor(tensor) {
            Ok(t) => {
                let reason = match &t.content {
                    Content::Unsupported(reason) => Some(reason.clone()),
                    _ => None,
                };
                let kind = K::SourceContent { type_name: t.type_name.clone(), wanted, reason };
                self.in_tensor(tensor, ArtifactError::new(kind))
            }
            Err(e) => e,
        }
    }

    /// The error of an import to a format that is not in [`TensorSource::importable`].
    fn not_importable(&self, tensor: usize, format: FormatId) -> ArtifactError {
        let type_name = match self.tensor(tensor) {
            Ok(t) => t.type_name.clone(),
            Err(e) => return e,
        };
        let formats: Vec<&str> = self.importable(tensor).iter().map(|f| f.name()).collect();
        let wanted = if formats.is_empty() {
            "no format: encode the values instead".to_owned()
        } else {
            formats.join(" or ")
        };
        let kind = K::NotImportable { type_name, format: format.name(), wanted };
        self.in_tensor(tensor, ArtifactError::new(kind))
    }

    /// Adds name and file of a tensor to an error.
    fn in_tensor(&self, tensor: usize, error: ArtifactError) -> ArtifactError {
        let Some(t) = self.tensors().get(tensor) else { return error };
        let error = error.in_tensor(&t.name);
        match self.files().get(t.file) {
            Some(file) => error.with_path(&file.path),
            None => error,
        }
    }
}

/// How to open a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Take E4M3FN tensors without a scale as values, each code for itself. Without it they are refused where they are
    /// read: a checkpoint that lost its scales looks the same.
    pub fp8_without_scale: bool,
    /// Believe the tensors where `config.json` says something else about their quantisation; each such case becomes a
    /// warning. Without it they are refused.
    pub ignore_quantization_config: bool,
}

/// Opens a model by its content, not its name: a GGUF file (any shard of a split model), a safetensors file, the JSON index
/// of several, a folder with safetensors ([`SafetensorsSource::open`]), a `.npy` array or a `.npz` archive.
///
/// # Errors
/// [`ArtifactErrorKind::UnknownSource`](K::UnknownSource) for other files; the errors of each kind.
pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Box<dyn TensorSource>, ArtifactError> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(Box::new(SafetensorsSource::open(path, options)?));
    }
    let head = first_bytes(path)?;
    match &head[..] {
        [b'G', b'G', b'U', b'F', ..] => Ok(Box::new(GgufSource::open(path)?)),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] | [b'P', b'K', 3, 4, ..] => {
            Ok(Box::new(NpySource::open(path)?))
        }
        // The header's length, below 2^32, and its first byte; or JSON.
        [_, _, _, _, 0, 0, 0, 0, b'{'] => Ok(Box::new(SafetensorsSource::open(path, options)?)),
        head if head.trim_ascii_start().starts_with(b"{") => {
            Ok(Box::new(SafetensorsSource::open(path, options)?))
        }
        _ if is_safetensors_name(path) => Ok(Box::new(SafetensorsSource::open(path, options)?)),
        _ => {
            let found = head.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
            Err(ArtifactError::new(K::UnknownSource { found }).with_path(path))
        }
    }
}

/// Only chooses which parser's error a file gets that is of no known kind.
fn is_safetensors_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
}

/// Opens a regular file: opening a pipe could block for ever, and reading a device need not end.
fn regular_file(path: &Path) -> std::io::Result<std::fs::File> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "is a folder" } else { "is not a regular file" };
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
    }
    std::fs::File::open(path)
}

/// The first bytes of a file, at most nine.
fn first_bytes(path: &Path) -> Result<Vec<u8>, ArtifactError> {
    use std::io::Read;
    let fail = |e| ArtifactError::io("cannot open the source", e).with_path(path);
    let mut head = Vec::new();
    regular_file(path).and_then(|f| f.take(9).read_to_end(&mut head)).map_err(fail)?;
    Ok(head)
}

/// A range of rows and the output's length checked against a tensor: rows and K as this machine counts.
fn check_rows(
    t: &SourceTensor,
    rows: &Range<u64>,
    out: Option<usize>,
) -> Result<(usize, usize), ArtifactError> {
    let all = t.rows();
    if rows.start > rows.end || rows.end > all {
        let kind = K::SourceRows { begin: rows.start, end: rows.end, rows: all };
        return Err(ArtifactError::new(kind).in_tensor(&t.name));
    }
    let elements = (rows.end - rows.start).saturating_mul(t.k());
    let actual = out.map_or(elements, |n| n as u64);
    if elements != actual {
        let (what, unit) = ("the output", "elements");
        let error = FormatError::BufferSize { what, unit, expected: elements, actual };
        return Err(ArtifactError::new(K::Format(error)).in_tensor(&t.name));
    }
    match (usize::try_from(rows.end - rows.start), usize::try_from(t.k()), usize::try_from(elements)) {
        (Ok(n), Ok(k), Ok(_)) => Ok((n, k)),
        _ => Err(ArtifactError::new(K::TooLarge { bytes: elements }).in_tensor(&t.name)),
    }
}

/// The error of a word that cannot be read, by its position among rows of `k` words from `row0` on.
fn bad_word((i, rule): words::BadWord, row0: u64, k: usize) -> ArtifactError {
    let k = k.max(1);
    ArtifactError::new(K::SourceWord { row: row0 + (i / k) as u64, column: (i % k) as u64, rule })
}

/// Checks that the planes are `rows` rows of `k` elements of `format`.
fn check_planes(out: &RowPlanes<'_>, format: FormatId, rows: usize, k: usize) -> Result<(), ArtifactError> {
    let wrong = |what, unit, expected: usize, actual: usize| {
        let (expected, actual) = (expected as u64, actual as u64);
        Err(ArtifactError::new(K::Format(FormatError::BufferSize { what, unit, expected, actual })))
    };
    if out.format() != format {
        let what = format!("the output planes are of format {}", out.format());
        return Err(ArtifactError::new(K::Format(FormatError::Unsupported { format: format.name(), what })));
    }
    if out.k() != k {
        return wrong("a row of the output planes", "elements", k, out.k());
    }
    if out.rows() != rows {
        return wrong("the output planes", "rows", rows, out.rows());
    }
    Ok(())
}

/// Copies rows of one plane; the planes were checked and `bytes` are as many rows.
fn copy_rows(bytes: &[u8], out: &mut RowPlanes<'_>) {
    let row = out.row_bytes()[0];
    if row == 0 {
        return;
    }
    for (r, bytes) in bytes.chunks_exact(row).enumerate().take(out.rows()) {
        out.row(r).planes[0].copy_from_slice(bytes);
    }
}
