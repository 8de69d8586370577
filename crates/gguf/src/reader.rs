//! One GGUF file, memory-mapped.

use std::path::Path;

use ninfer_mapped::MappedFile;

use crate::error::{GgufError, GgufErrorKind as K};
use crate::header::Header;
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::warning::Warning;

/// One memory-mapped GGUF file and its header. For models that may be split over several files use
/// [`GgufSet`](crate::GgufSet); this type shows a shard as it is.
///
/// See the `ninfer-mapped` crate for what happens when another process changes the file meanwhile.
#[derive(Debug)]
pub struct GgufFile {
    map: MappedFile,
    header: Header,
}

impl GgufFile {
    /// Maps a file and parses its header. Pages with tensor data are not touched.
    ///
    /// # Errors
    /// [`GgufErrorKind::Io`](K::Io) or the errors of [`Header::parse`], with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let map = MappedFile::open(path)
            .map_err(|source| GgufError::new(K::Io { what: "cannot open", source }).with_path(path))?;
        Self::from_map(map)
    }

    /// Parses the header of a mapped file.
    ///
    /// # Errors
    /// The errors of [`Header::parse`], with the path.
    pub fn from_map(map: MappedFile) -> Result<Self, GgufError> {
        let header = Header::parse(&map).map_err(|e| e.with_path(map.path()))?;
        Ok(Self { map, header })
    }

    /// The path the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes of the whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Metadata values. Their errors carry no path; add it with [`GgufError::with_path`].
    #[must_use]
    pub fn metadata(&self) -> Metadata<'_> {
        // The map never changes its length.
        Metadata::new(&self.header, &self.map)
    }

    /// Tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// The tensor with this name. Constant time.
    ///
    /// # Errors
    /// [`GgufErrorKind::NoTensor`](K::NoTensor).
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Result<&TensorInfo, GgufError> {
        self.header.tensor(name).map_err(|e| e.with_path(self.path()))
    }

    /// Data of a tensor of this file, without copying.
    ///
    /// # Errors
    /// As [`Header::data`].
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8], GgufError> {
        self.header.data(&self.map, tensor).map_err(|e| e.with_path(self.path()))
    }

    /// What llama.cpp's own reader would refuse; see [`Header::warnings`].
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        self.header.warnings()
    }
}
