//! Files that appear under their name only when they are complete.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{GgufError, GgufErrorKind as K};

/// Bytes collected before a write reaches the operating system; larger pieces go through directly.
const BUFFER: usize = 1 << 20;

/// A new file, written under a temporary name beside its target and published under its own name at the end.
///
/// The target never exists half-written and nothing is ever overwritten. Dropping the writer without
/// [`publish`](Self::publish), after an error or not, removes the temporary file; a killed process leaves it behind
/// as `.NAME.PID-N.tmp`.
#[derive(Debug)]
pub struct AtomicFile {
    // `None` only once published or discarded.
    file: Option<io::BufWriter<File>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file for `target`, in the same directory.
    ///
    /// # Errors
    /// [`GgufErrorKind::Exists`](K::Exists) if the target exists (a dangling symbolic link too);
    /// [`GgufErrorKind::Io`](K::Io) if no file can be created there.
    pub fn create(target: impl AsRef<Path>) -> Result<Self, GgufError> {
        let target = target.as_ref();
        let error = |kind| GgufError::new(kind).with_path(target);
        let Some(name) = target.file_name() else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a file name");
            return Err(error(K::Io { what: "cannot create", source }));
        };
        match target.symlink_metadata() {
            Ok(_) => return Err(error(K::Exists)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(error(K::Io { what: "cannot create", source })),
        }
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}-{serial}.tmp", std::process::id()));
            let temporary = target.with_file_name(temporary_name);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let file = Some(io::BufWriter::with_capacity(BUFFER, file));
                    return Ok(Self { file, temporary, target: target.to_path_buf() });
                }
                // Left behind by an earlier process with this number; take the next name.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(error(K::Io { what: "cannot create a temporary file beside it", source }));
                }
            }
        }
    }

    /// The name the file will have.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes everything to the disk and gives the file its name, in one step that cannot overwrite another file.
    ///
    /// # Errors
    /// [`GgufErrorKind::Exists`](K::Exists) if the name was taken meanwhile, [`GgufErrorKind::Io`](K::Io) otherwise;
    /// the temporary file is removed.
    pub fn publish(mut self) -> Result<(), GgufError> {
        let result = self.publish_inner();
        result.map_err(|(what, source)| {
            let kind = if source.kind() == io::ErrorKind::AlreadyExists {
                K::Exists
            } else {
                K::Io { what, source }
            };
            GgufError::new(kind).with_path(&self.target)
        })
        // Dropping `self` removes the temporary name.
    }

    fn publish_inner(&mut self) -> Result<(), (&'static str, io::Error)> {
        let Some(writer) = self.file.take() else { return Ok(()) };
        let file = writer.into_inner().map_err(|e| ("cannot write", e.into_error()))?;
        file.sync_all().map_err(|e| ("cannot write to disk", e))?;
        drop(file);
        match std::fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(("cannot publish", e)),
            // Some file systems have no hard links. There the name is reserved by creating it, which fails if it
            // exists, and then replaced by the finished file.
            Err(_) => {
                let reserve = OpenOptions::new().write(true).create_new(true).open(&self.target);
                drop(reserve.map_err(|e| ("cannot publish", e))?);
                if let Err(e) = std::fs::rename(&self.temporary, &self.target) {
                    // The reserved name is ours and empty.
                    let _ = std::fs::remove_file(&self.target);
                    return Err(("cannot publish", e));
                }
            }
        }
        sync_directory(&self.target);
        Ok(())
    }
}

/// Makes the new name durable where directories can be synchronised; the file's contents already are.
fn sync_directory(target: &Path) {
    #[cfg(unix)]
    {
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Ok(directory) = File::open(parent) {
            // Some file systems refuse this; the file is published either way.
            let _ = directory.sync_all();
        }
    }
    #[cfg(not(unix))]
    let _ = target;
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(f) => f.write(bytes),
            None => Err(io::Error::other("the file is already published")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(writer) = self.file.take() {
            // Taken apart without flushing: the bytes are not wanted any more. Closed first, as Windows does not
            // remove open files.
            drop(writer.into_parts());
        }
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut v: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        v.sort();
        v
    }

    #[test]
    fn appears_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let mut f = AtomicFile::create(&target).unwrap();
        f.write_all(b"abc").unwrap();
        assert!(!target.exists());
        assert_eq!(names(dir.path()).len(), 1);
        f.publish().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"abc");
        assert_eq!(names(dir.path()), ["out"]);

        let other = dir.path().join("dropped");
        let mut f = AtomicFile::create(&other).unwrap();
        f.write_all(&vec![7; 3 << 20]).unwrap();
        drop(f);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        std::fs::write(&target, b"old").unwrap();
        let e = AtomicFile::create(&target).unwrap_err();
        assert!(matches!(e.kind(), K::Exists), "{e}");
        assert!(e.to_string().contains("out"), "{e}");

        let late = dir.path().join("late");
        let mut f = AtomicFile::create(&late).unwrap();
        f.write_all(b"new").unwrap();
        std::fs::write(&late, b"old").unwrap();
        let e = f.publish().unwrap_err();
        assert!(matches!(e.kind(), K::Exists), "{e}");
        assert_eq!(std::fs::read(&late).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["late", "out"]);
    }

    #[test]
    fn bad_targets_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for target in [dir.path().join("no/such/dir"), PathBuf::from("/")] {
            let e = AtomicFile::create(&target).unwrap_err();
            assert!(matches!(e.kind(), K::Io { .. }), "{e}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_dangling_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &target).unwrap();
        assert!(matches!(AtomicFile::create(&target).unwrap_err().kind(), K::Exists));
    }
}
