//! Read-only memory maps of regular files, behind one audited `unsafe` block.
//!
//! The crates that parse files are `forbid(unsafe_code)`. Mapping a file cannot be made safe by the type system,
//! because another process may change the file while it is mapped, so the one block that does it lives here, with
//! the rules that its users follow.
//!
//! # When the file changes under the map
//!
//! * **Written to**: the bytes seen through the map may change at any time, also between two reads of the same byte.
//!   Users must therefore treat every read as untrusted: check what was read, not what was read earlier, and never
//!   derive an unchecked index from mapped bytes. The parsers of this project read through bounds-checked cursors
//!   and decode metadata anew on each access, so they return an error or the new value, and never read out of
//!   bounds. Tensor words decoded while they are being overwritten have unspecified values.
//! * **Truncated**: reading a page past the new end raises `SIGBUS` on Unix (an access violation on Windows, which
//!   normally refuses to truncate a mapped file). That ends the process; no library can turn it into an error.
//!   Replace files by writing a new one and renaming it; a map keeps the old contents alive.
//! * **Deleted or renamed**: the map stays valid.
//!
//! ```
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("weights.bin");
//! std::fs::write(&path, b"GGUF")?;
//! let map = ninfer_mapped::MappedFile::open(&path)?;
//! assert_eq!(&map[..], b"GGUF");
//! assert_eq!(map.path(), path);
//! # Ok::<(), std::io::Error>(())
//! ```
#![deny(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

/// A regular file mapped into memory, read-only. Dereferences to its bytes.
///
/// `Send` and `Sync`; share one map between threads with an `Arc`. Pages are read from disk when they are first
/// touched, and the kernel shares them between processes.
#[derive(Debug)]
pub struct MappedFile {
    // `None` for an empty file: an empty range cannot be mapped on all systems.
    map: Option<Mmap>,
    path: PathBuf,
}

impl MappedFile {
    /// Maps the whole file. An empty file gives an empty slice.
    ///
    /// # Errors
    /// * the errors of opening the file;
    /// * [`io::ErrorKind::InvalidInput`] if the path names a directory, pipe or device (opening a pipe could block
    ///   for ever, so such paths are refused before they are opened);
    /// * [`io::ErrorKind::FileTooLarge`] if the file has more bytes than the address space of this process can hold
    ///   in one slice (2 GiB on a 32-bit machine);
    /// * the errors of mapping it.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_path_buf();
        require_regular(&std::fs::metadata(&path)?)?;
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        // Asked again of the open file: the path may name another file by now.
        require_regular(&metadata)?;
        let len = slice_len(metadata.len())?;
        let map = if len == 0 { None } else { Some(map(&file, len)?) };
        Ok(Self { map, path })
    }

    /// The path the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the map in bytes: the file's length when it was opened.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether the file was empty when it was opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the file.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

fn require_regular(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "is a directory" } else { "is not a regular file" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}; only regular files can be mapped")))
}

/// The file length as a slice length, or why it cannot be one.
fn slice_len(len: u64) -> io::Result<usize> {
    match isize::try_from(len) {
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "a file of {len} bytes cannot be mapped: this process can address at most {} bytes",
                isize::MAX
            ),
        )),
    }
}

#[expect(unsafe_code, reason = "the one mapping of the project; see the module documentation")]
fn map(file: &File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the map is private to `MappedFile`, read-only and handed out only as `&[u8]` bound to its lifetime, so
    // no write through it and no use after unmapping is possible. `len` is at most `isize::MAX` and not zero. What
    // remains is that another process may write to or truncate the file: every byte value is a valid `u8`, readers
    // in this project never rely on two reads agreeing, and truncation is documented as ending the process.
    unsafe { memmap2::MmapOptions::new().len(len).map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_the_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let bytes: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = MappedFile::open(&path).unwrap();
        assert_eq!(map.len(), 40_000);
        assert_eq!(&*map, &bytes[..]);
        assert_eq!(map.as_ref(), &bytes[..]);
        assert!(!map.is_empty());
        assert_eq!(map.path(), path);
    }

    #[test]
    fn empty_file_is_an_empty_slice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"").unwrap();
        let map = MappedFile::open(&path).unwrap();
        assert!(map.is_empty());
        assert_eq!(&*map, b"");
    }

    #[test]
    fn other_than_regular_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = MappedFile::open(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("is a directory"), "{error}");
        let error = MappedFile::open(dir.path().join("absent")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused_without_blocking() {
        let error = MappedFile::open("/dev/zero").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn survives_removal_of_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"kept").unwrap();
        let map = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&*map, b"kept");
    }

    #[test]
    fn lengths_beyond_the_address_space_are_refused() {
        assert_eq!(slice_len(0).unwrap(), 0);
        let most = isize::MAX.unsigned_abs();
        assert_eq!(slice_len(most as u64).unwrap(), most);
        for len in [most as u64 + 1, u64::MAX] {
            let error = slice_len(len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
    }
}
