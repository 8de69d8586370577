//! Reading an artifact from disk.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ninfer_formats::{FormatError, TensorView};
use ninfer_mapped::MappedFile;

use super::directory::Directory;
use super::model::{Object, Span};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// An open artifact: its directory and its memory-mapped files.
///
/// The entry file is mapped and its directory checked at once; part files are opened, and then checked, when bytes
/// in them are first needed. Pages of the payload are read from disk when they are touched. See the `ninfer-mapped`
/// crate for what happens when another process changes a file meanwhile.
#[derive(Debug)]
pub struct Artifact {
    entry: MappedFile,
    directory: Directory,
    // `parts[i]` is file `i + 1`.
    parts: Vec<OnceLock<MappedFile>>,
}

impl Artifact {
    /// Opens the entry file and checks its directory. Objects of formats or layouts that this reader does not know
    /// are listed; reading them is the error.
    ///
    /// # Errors
    /// Whatever breaks a rule of the container specification, with the path and the byte offset or JSON member.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArtifactError> {
        let path = path.as_ref();
        let entry = MappedFile::open(path)
            .map_err(|e| ArtifactError::io("cannot open the file", e).with_path(path))?;
        let name = path.file_name().and_then(|n| n.to_str());
        let directory = Directory::parse(&entry, name).map_err(|e| e.with_path(path))?;
        let parts = directory.files().iter().skip(1).map(|_| OnceLock::new()).collect();
        Ok(Self { entry, directory, parts })
    }

    /// The path the entry file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.entry.path()
    }

    /// What the entry file says.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// All objects by increasing offset.
    #[must_use]
    pub fn objects(&self) -> &[Object] {
        self.directory.objects()
    }

    /// The object with this id.
    ///
    /// # Errors
    /// No such object.
    pub fn object(&self, id: &str) -> Result<&Object, ArtifactError> {
        self.directory.object(id).map_err(|e| e.with_path(self.path()))
    }

    /// Path of file `index`: 0 is the entry, parts lie beside it under the names that the directory gives.
    #[must_use]
    pub fn file_path(&self, index: usize) -> Option<PathBuf> {
        match self.directory.files().get(index)?.path.as_deref() {
            None => Some(self.path().to_path_buf()),
            Some(name) => Some(self.path().with_file_name(name)),
        }
    }

    /// The JSON text of the directory as it stands in the file, trailing white space included.
    #[must_use]
    pub fn json_text(&self) -> &[u8] {
        let begin = super::header::PREFIX_BYTES as usize;
        let end = begin.saturating_add(self.directory.prefix().json_bytes as usize);
        self.entry.get(begin..end).unwrap_or_default()
    }

    /// The bytes of file `index`, opening and checking it if it is a part that has not been needed yet.
    ///
    /// # Errors
    /// A part that is missing, or whose magic, index, artifact id or length is not what the entry says.
    pub fn file(&self, index: usize) -> Result<&MappedFile, ArtifactError> {
        let Some(slot) = index.checked_sub(1).and_then(|i| self.parts.get(i)) else {
            return Ok(&self.entry);
        };
        if let Some(map) = slot.get() {
            return Ok(map);
        }
        let path = self.file_path(index).unwrap_or_default();
        let map = MappedFile::open(&path)
            .map_err(|source| ArtifactError::new(K::PartMissing { index, source }).with_path(&path))?;
        self.directory.check_part(index, &map).map_err(|e| e.with_path(&path))?;
        Ok(slot.get_or_init(|| map))
    }

    /// Where the object's bytes are, file by file, for reading them without this type. Parts are not opened.
    ///
    /// # Errors
    /// No such object; one of an unknown format, layout or encoding, or of another size than its layout's.
    pub fn spans(&self, id: &str) -> Result<Vec<Span>, ArtifactError> {
        let object = self.object(id)?;
        object.check().map_err(|e| e.with_path(self.path()))?;
        self.directory.spans(object.offset, object.end())
    }

    /// The object's bytes: borrowed from the map if they lie in one file, copied together if they cross files.
    ///
    /// # Errors
    /// As [`Artifact::spans`] and [`Artifact::file`].
    pub fn payload(&self, id: &str) -> Result<Cow<'_, [u8]>, ArtifactError> {
        let spans = self.spans(id)?;
        if let [span] = spans[..] {
            return Ok(Cow::Borrowed(self.span_bytes(span)?));
        }
        let bytes = self.object(id)?.bytes;
        // All parts are opened and checked before memory is taken for their bytes.
        for span in &spans {
            self.file(span.file)?;
        }
        let len = usize::try_from(bytes).ok().filter(|&n| isize::try_from(n).is_ok());
        let Some(len) = len else {
            return Err(ArtifactError::new(K::TooLarge { bytes }).in_object(id).with_path(self.path()));
        };
        let mut payload = Vec::with_capacity(len);
        for span in spans {
            payload.extend_from_slice(self.span_bytes(span)?);
        }
        Ok(Cow::Owned(payload))
    }

    /// Copies bytes `begin..begin + out.len()` of the object, wherever they lie. For objects too large to be held.
    ///
    /// # Errors
    /// A range outside the object; as [`Artifact::spans`] and [`Artifact::file`].
    pub fn read_at(&self, id: &str, begin: u64, out: &mut [u8]) -> Result<(), ArtifactError> {
        let object = self.object(id)?;
        object.check().map_err(|e| e.with_path(self.path()))?;
        self.read_object_at(object, begin, out)
    }

    /// [`Artifact::read_at`] of an object that has been checked.
    pub(crate) fn read_object_at(
        &self,
        object: &Object,
        begin: u64,
        out: &mut [u8],
    ) -> Result<(), ArtifactError> {
        let end = u128::from(begin) + out.len() as u128;
        if end > u128::from(object.bytes) {
            let kind = K::ByteRange { begin, end, bytes: object.bytes };
            return Err(ArtifactError::new(kind).in_object(&object.id).with_path(self.path()));
        }
        let begin = object.offset + begin;
        let mut rest = out;
        for span in self.directory.spans(begin, begin + rest.len() as u64)? {
            let bytes = self.span_bytes(span)?;
            let (head, tail) = rest.split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            rest = tail;
        }
        Ok(())
    }

    /// The bytes of a span, without copying.
    ///
    /// # Errors
    /// As [`Artifact::file`]; a span that does not belong to this artifact.
    pub fn span_bytes(&self, span: Span) -> Result<&[u8], ArtifactError> {
        let file = self.file(span.file)?;
        let range = usize::try_from(span.offset)
            .ok()
            .zip(span.offset.checked_add(span.len).and_then(|e| usize::try_from(e).ok()))
            .and_then(|(begin, end)| file.get(begin..end));
        range.ok_or_else(|| {
            let end = u128::from(span.offset) + u128::from(span.len);
            let kind = K::ByteRange { begin: span.offset, end, bytes: file.len() as u64 };
            ArtifactError::new(kind).with_path(file.path())
        })
    }

    /// A view of a tensor object over its payload, as [`Artifact::payload`] gives it.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), ninfer_artifact::ArtifactError> {
    /// let artifact = ninfer_artifact::Artifact::open("model.ninfer")?;
    /// let payload = artifact.payload("output.weight")?;
    /// let tensor = artifact.tensor_view("output.weight", &payload)?;
    /// println!("{} rows of {}", tensor.rows(), tensor.k());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// No such object, a resource, an unknown format or layout, a payload of another length.
    pub fn tensor_view<'a>(&self, id: &str, payload: &'a [u8]) -> Result<TensorView<'a>, ArtifactError> {
        let spec = self.object(id)?.tensor().map_err(|e| e.with_path(self.path()))?;
        TensorView::new(spec.format, spec.shape, spec.divisors, payload)
            .map_err(|e: FormatError| ArtifactError::new(K::Format(e)).in_object(id).with_path(self.path()))
    }
}
