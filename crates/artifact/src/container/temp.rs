//! Files that appear under their name only when they are complete, and never in place of another.
//!
//! Where the system can (Linux, on most file systems) the temporary file has no name at all, so that even a killed
//! process leaves nothing behind. Elsewhere it is `.NAME.PID-N.tmp` beside the target.
//!
//! Publishing links the finished file to its name, which fails if the name exists. A file system without hard links
//! gets a rename that refuses to replace (Linux `RENAME_NOREPLACE`, macOS `RENAME_EXCL`); one with neither is an
//! error, because nothing else could give the name without risking another file.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// A file being written beside its target. Dropping it unpublished removes it.
#[derive(Debug)]
pub(super) struct TempFile {
    file: File,
    target: PathBuf,
    // `None` for a file without a name.
    temporary: Option<PathBuf>,
    published: bool,
    // Whether the file stays when it is dropped unpublished.
    kept: bool,
}

impl TempFile {
    /// Creates a temporary file for `target`, which must not exist, in the same directory.
    pub(super) fn create(target: &Path) -> Result<Self, ArtifactError> {
        check_target(target)?;
        if let Some(file) = unnamed(directory_of(target)) {
            return Ok(Self {
                file,
                target: target.to_path_buf(),
                temporary: None,
                published: false,
                kept: false,
            });
        }
        Self::create_named(target)
    }

    /// A file of a known name that stays when it is dropped unpublished: created, or if `continued` opened.
    pub(super) fn kept(target: &Path, continued: bool) -> Result<Self, ArtifactError> {
        check_target(target)?;
        let temporary = kept_path(target);
        let what = if continued { "cannot continue in" } else { "cannot create" };
        let file = open_plain(&temporary, OpenOptions::new().create_new(!continued), what)?;
        let (target, temporary) = (target.to_path_buf(), Some(temporary));
        Ok(Self { file, target, temporary, published: false, kept: true })
    }

    fn create_named(target: &Path) -> Result<Self, ArtifactError> {
        let fail = |kind| Err(ArtifactError::new(kind).with_path(target));
        let name = target.file_name().unwrap_or_default();
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{serial}.tmp", std::process::id()));
            let temporary = target.with_file_name(temporary);
            match OpenOptions::new().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let (target, temporary) = (target.to_path_buf(), Some(temporary));
                    return Ok(Self { file, target, temporary, published: false, kept: false });
                }
                // Left behind by an earlier process with this number; take the next name.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return fail(K::Io { what: "cannot create a temporary file beside it", source });
                }
            }
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// The temporary name, or the target's if there is none.
    pub(super) fn path(&self) -> &Path {
        self.temporary.as_deref().unwrap_or(&self.target)
    }

    /// Removes the file when dropped, even if it would be kept.
    pub(super) fn discard(&mut self) {
        self.kept = false;
    }

    /// Writes at an offset, whatever other threads do.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset);
        #[cfg(windows)]
        return each(bytes.len(), |done| {
            std::os::windows::fs::FileExt::seek_write(&self.file, &bytes[done..], offset + done as u64)
        });
        #[cfg(not(any(unix, windows)))]
        return Err(io::ErrorKind::Unsupported.into());
    }

    /// Reads at an offset, whatever other threads do.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset);
        #[cfg(windows)]
        return each(out.len(), |done| {
            std::os::windows::fs::FileExt::seek_read(&self.file, &mut out[done..], offset + done as u64)
        });
        #[cfg(not(any(unix, windows)))]
        return Err(io::ErrorKind::Unsupported.into());
    }

    /// Gives the file its name in one step that cannot replace another file. The contents must have been
    /// synchronised.
    pub(super) fn publish(&mut self) -> Result<(), ArtifactError> {
        let result = match &self.temporary {
            None => link_unnamed(&self.file, &self.target),
            Some(temporary) => match std::fs::hard_link(temporary, &self.target) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => rename_new(temporary, &self.target),
                other => other,
            },
        };
        match result {
            Ok(()) => {
                self.published = true;
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Err(ArtifactError::new(K::Exists).with_path(&self.target))
            }
            Err(source) => Err(ArtifactError::new(K::CannotPublish { source }).with_path(&self.target)),
        }
    }

    /// Takes the published name away again, because a later file of the artifact could not be published.
    pub(super) fn withdraw(&mut self) {
        if self.published {
            // Nothing more can be done if this fails; the entry file that would make it an artifact does not exist.
            let _ = std::fs::remove_file(&self.target);
            self.published = false;
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && (self.published || !self.kept)
        {
            // Gone already if it was renamed.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Opens for reading and writing a file that is found by its name alone, and may have been left there by anyone: a
/// regular one, never through a symbolic link, and without waiting for the other end of a pipe.
pub(crate) fn open_plain(
    path: &Path,
    options: &mut OpenOptions,
    what: &'static str,
) -> Result<File, ArtifactError> {
    let check = |kind: std::fs::FileType| {
        let problem = if kind.is_symlink() {
            "is a symbolic link, which is not followed here"
        } else if !kind.is_file() {
            "is no regular file"
        } else {
            return Ok(());
        };
        Err(ArtifactError::new(K::TargetPath { problem }).with_path(path))
    };
    let fail = |e| ArtifactError::io(what, e).with_path(path);
    if let Ok(found) = path.symlink_metadata() {
        check(found.file_type())?;
    }
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }
    let file = options.read(true).write(true).open(path).map_err(fail)?;
    // The name may have become another file's meanwhile.
    check(file.metadata().map_err(fail)?.file_type())?;
    Ok(file)
}

/// Name of the temporary file that [`TempFile::kept`] uses.
pub(crate) fn kept_path(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".resume");
    target.with_file_name(name)
}

fn check_target(target: &Path) -> Result<(), ArtifactError> {
    let fail = |kind| Err(ArtifactError::new(kind).with_path(target));
    if target.file_name().is_none() {
        return fail(K::TargetPath { problem: "does not end in a file name" });
    }
    match target.symlink_metadata() {
        Ok(_) => fail(K::Exists),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => fail(K::Io { what: "cannot create the file", source }),
    }
}

/// Calls `step` with the bytes done until all are.
#[cfg(windows)]
fn each(all: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < all {
        match step(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The directory that holds `path`.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes new names durable where directories can be synchronised; the files' contents already are.
pub(super) fn sync_directory(directory: &Path) {
    #[cfg(unix)]
    if let Ok(directory) = File::open(directory) {
        // Some file systems refuse this; the files are published either way.
        let _ = directory.sync_all();
    }
    #[cfg(not(unix))]
    let _ = directory;
}

/// A file without a name in `directory`, if the system and the file system have such files.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn unnamed(directory: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    // The name is given through /proc; without it the file could never be published.
    if !Path::new("/proc/self/fd").is_dir() {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn link_unnamed(file: &File, target: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, path, CWD, target, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn unnamed(_: &Path) -> Option<File> {
    None
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn link_unnamed(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Renames without ever replacing.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags};
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename_new(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<String> {
        let mut v: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        v.sort();
        v
    }

    #[test]
    fn both_kinds_appear_complete_or_not_at_all() {
        for create in [TempFile::create, TempFile::create_named] {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("x.ninfer");
            let mut temp = create(&target).unwrap();
            temp.file().write_all(b"abc").unwrap();
            assert!(!target.exists());
            temp.publish().unwrap();
            drop(temp);
            assert_eq!(std::fs::read(&target).unwrap(), b"abc");
            let dropped = create(&dir.path().join("y")).unwrap();
            dropped.file().write_all(b"abc").unwrap();
            drop(dropped);
            assert_eq!(names(dir.path()), ["x.ninfer"]);
        }
    }

    #[test]
    fn kept_files_stay_until_they_are_published_or_discarded() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x");
        assert!(TempFile::kept(&target, true).is_err());
        let temp = TempFile::kept(&target, false).unwrap();
        temp.write_at(2, b"cd").unwrap();
        drop(temp);
        assert_eq!(names(dir.path()), [".x.resume"]);
        assert!(TempFile::kept(&target, false).is_err());
        std::fs::create_dir(kept_path(&dir.path().join("z"))).unwrap();
        for continued in [true, false] {
            let e = TempFile::kept(&dir.path().join("z"), continued).unwrap_err();
            assert!(matches!(e.kind(), K::TargetPath { .. }), "{e}");
        }
        std::fs::remove_dir(kept_path(&dir.path().join("z"))).unwrap();
        let mut temp = TempFile::kept(&target, true).unwrap();
        temp.write_at(0, b"ab").unwrap();
        let mut back = [0; 3];
        temp.read_at(1, &mut back).unwrap();
        assert_eq!(&back, b"bcd");
        assert!(temp.read_at(2, &mut back).is_err());
        temp.publish().unwrap();
        drop(temp);
        assert_eq!(names(dir.path()), ["x"]);
        let mut temp = TempFile::kept(&dir.path().join("y"), false).unwrap();
        temp.discard();
        drop(temp);
        assert_eq!(names(dir.path()), ["x"]);
    }

    #[test]
    fn neither_kind_replaces_a_file_that_appeared_meanwhile() {
        for create in [TempFile::create, TempFile::create_named] {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("x.ninfer");
            let mut temp = create(&target).unwrap();
            std::fs::write(&target, b"other").unwrap();
            assert!(matches!(temp.publish().unwrap_err().kind(), K::Exists));
            temp.withdraw();
            drop(temp);
            assert_eq!(std::fs::read(&target).unwrap(), b"other");
            assert_eq!(names(dir.path()), ["x.ninfer"]);
        }
    }

    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    #[test]
    fn the_rename_without_links_does_not_replace() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&from, b"new").unwrap();
        std::fs::write(&to, b"old").unwrap();
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_file(&to).unwrap();
        rename_new(&from, &to).unwrap();
        assert_eq!(names(dir.path()), ["b"]);
    }

    #[test]
    fn bad_targets_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), b"").unwrap();
        assert!(matches!(TempFile::create(&dir.path().join("x")).unwrap_err().kind(), K::Exists));
        for target in [dir.path().join("no/such/dir"), PathBuf::from("")] {
            assert!(matches!(
                TempFile::create(&target).unwrap_err().kind(),
                K::Io { .. } | K::TargetPath { .. }
            ));
        }
    }
}
