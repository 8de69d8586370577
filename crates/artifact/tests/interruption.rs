//! Writing that goes wrong: nothing is half-written, overwritten or left behind.

mod common;

use std::io::{self, Read};
use std::path::Path;

use common::{Random, names};
use ninfer_artifact::container::Component;
use ninfer_artifact::{Artifact, ArtifactError, ArtifactErrorKind as K, ArtifactPlan, ArtifactWriter, Json};

fn text() -> Component {
    Component::with_config(Json::object([("layers", Json::from(2u64))]))
}

fn one_object(dir: &Path, bytes: u64, limit: Option<u64>) -> Result<ArtifactWriter, ArtifactError> {
    let mut plan = ArtifactPlan::new();
    plan.resource("a", bytes)?;
    plan.resource("b", 10)?;
    plan.component("text", text());
    if let Some(limit) = limit {
        plan.file_limit(limit);
    }
    plan.finish(dir.join("x.ninfer"))?.create()
}

#[test]
fn coverage_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = one_object(dir.path(), 100, None).unwrap();
    writer.write("a", &[1; 60]).unwrap();
    let e = writer.write("a", &[1; 41]).unwrap_err();
    assert!(matches!(e.kind(), K::TooManyBytes { given: 41, remaining: 40, planned: 100 }), "{e}");
    assert_eq!(e.object(), Some("a"));
    let e = writer.write("c", &[1]).unwrap_err();
    assert!(matches!(e.kind(), K::NoObject { objects: 2, .. }), "{e}");
    let e = writer.append(2, &[1]).unwrap_err();
    assert!(matches!(e.kind(), K::NoObject { .. }), "{e}");
    let e = writer.finish().unwrap_err();
    assert!(matches!(e.kind(), K::Coverage { incomplete: 2, objects: 2, written: 60, planned: 100 }), "{e}");
    assert!(e.to_string().contains("2 of 2 objects are incomplete; the first has 60 of 100 bytes"), "{e}");
    assert_eq!(names(dir.path()), [""; 0]);
}

/// Fails after some bytes.
struct Broken(usize);

impl Read for Broken {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the disk fell out"));
        }
        let n = out.len().min(self.0).min(1000);
        out[..n].fill(5);
        self.0 -= n;
        Ok(n)
    }
}

#[test]
fn a_failing_source_leaves_nothing() {
    for limit in [None, Some(8192)] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = one_object(dir.path(), 100_000, limit).unwrap();
        let e = writer.fill("a", &mut Broken(50_000)).unwrap_err();
        assert!(e.to_string().contains("the disk fell out"), "{e}");
        assert_eq!(e.object(), Some("a"));
        drop(writer);
        assert_eq!(names(dir.path()), [""; 0]);
        let mut writer = one_object(dir.path(), 100_000, limit).unwrap();
        let e = writer.fill("a", &mut io::Cursor::new(vec![0; 99_999])).unwrap_err();
        assert!(matches!(e.kind(), K::SourceShort { written: 99_999, planned: 100_000 }), "{e}");
        drop(writer);
        // A source that is too long is read no further than the object.
        let mut writer = one_object(dir.path(), 100_000, limit).unwrap();
        let mut source = io::Cursor::new(vec![0; 100_005]);
        writer.fill("a", &mut source).unwrap();
        assert_eq!(source.position(), 100_000);
        writer.fill("b", &mut io::repeat(1)).unwrap();
        writer.finish().unwrap();
    }
}

#[test]
fn files_are_copied_from_any_offset_across_parts() {
    for limit in [None, Some(8192), Some(20_000)] {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        let bytes = Random(5).bytes(100_300);
        std::fs::write(&source, &bytes).unwrap();
        let file = std::fs::File::open(&source).unwrap();
        let mut writer = one_object(dir.path(), 100_000, limit).unwrap();
        writer.copy_from(0, &file, 123, 77_777).unwrap();
        writer.copy_from(0, &file, 123 + 77_777, 22_223).unwrap();
        writer.copy_from(1, &file, 0, 10).unwrap();
        writer.finish().unwrap();
        let artifact = Artifact::open(dir.path().join("x.ninfer")).unwrap();
        assert_eq!(&*artifact.payload("a").unwrap(), &bytes[123..100_123]);
        assert_eq!(&*artifact.payload("b").unwrap(), &bytes[..10]);

        let other = tempfile::tempdir().unwrap();
        let mut writer = one_object(other.path(), 100_000, limit).unwrap();
        let e = writer.copy_from(0, &file, 90_000, 20_000).unwrap_err();
        assert!(matches!(e.kind(), K::SourceShort { written: 10_300, planned: 100_000 }), "{e}");
        drop(writer);
        assert_eq!(names(other.path()), [""; 0]);
    }
}

#[test]
fn nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    // Before: the entry or any part exists.
    for name in ["x.ninfer", "x.ninfer.part-0002"] {
        let path = dir.path().join(name);
        std::fs::write(&path, b"mine").unwrap();
        let e = one_object(dir.path(), 20_000, Some(8192)).unwrap_err();
        assert!(matches!(e.kind(), K::Exists), "{e}");
        assert_eq!(e.path(), Some(path.as_path()));
        assert_eq!(names(dir.path()), [name]);
        std::fs::remove_file(&path).unwrap();
    }
    // Meanwhile: what this run had published is taken away again, the other file stays.
    for name in ["x.ninfer", "x.ninfer.part-0001", "x.ninfer.part-0004"] {
        let path = dir.path().join(name);
        let mut writer = one_object(dir.path(), 20_000, Some(8192)).unwrap();
        writer.fill("a", &mut io::repeat(0)).unwrap();
        writer.fill("b", &mut io::repeat(0)).unwrap();
        std::fs::write(&path, b"mine").unwrap();
        let e = writer.finish().unwrap_err();
        assert!(matches!(e.kind(), K::Exists), "{e}");
        assert!(e.to_string().contains(name), "{e}");
        assert_eq!(names(dir.path()), [name]);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_panic_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let result = std::thread::spawn(move || {
        let mut writer = one_object(&path, 100_000, Some(8192)).unwrap();
        writer.write("a", &[1; 50_000]).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(result.is_err());
    assert_eq!(names(dir.path()), [""; 0]);
}

const CHILD: &str = "NINFER_TEST_WRITE_AND_WAIT";

/// Not a test of its own: what the killed process of the next test runs.
#[test]
fn child_that_writes_and_waits() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let mut writer = one_object(dir, 100_000, Some(8192)).unwrap();
    writer.write("a", &[1; 50_000]).unwrap();
    std::fs::write(dir.join("ready"), b"").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn a_killed_process_leaves_no_target() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_and_waits"])
        .env(CHILD, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while !dir.path().join("ready").exists() {
        assert!(
            start.elapsed().as_secs() < 50 && child.try_wait().unwrap().is_none(),
            "the child never got ready"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(dir.path().join("ready")).unwrap();
    let left = names(dir.path());
    // Where files without a name exist nothing at all is left; elsewhere hidden temporary files.
    assert!(left.iter().all(|n| n.starts_with(".x.ninfer") && n.ends_with(".tmp")), "{left:?}");
    if cfg!(target_os = "linux") && unnamed_files_work(dir.path()) {
        assert_eq!(left, [""; 0]);
    }
    // And the name is free for the next attempt.
    let mut writer = one_object(dir.path(), 100_000, Some(8192)).unwrap();
    writer.fill("a", &mut io::repeat(0)).unwrap();
    writer.fill("b", &mut io::repeat(0)).unwrap();
    writer.finish().unwrap();
}

#[cfg(unix)]
fn unnamed_files_work(dir: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    // O_TMPFILE of Linux, without O_DIRECTORY's part of it on machines where that differs.
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(dir).is_ok()
}

#[cfg(not(unix))]
fn unnamed_files_work(_: &Path) -> bool {
    false
}

/// A file system that is full shows when a file cannot get its length.
#[cfg(target_os = "linux")]
#[test]
fn a_refused_length_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = std::process::Command::new("sh")
        .arg("-c")
        // Ignored, so that writing beyond the limit is an error and not a signal. The unit is 512 bytes.
        .arg("trap '' XFSZ; ulimit -f 20; exec \"$0\" --exact child_that_hits_a_limit")
        .arg(std::env::current_exe().unwrap())
        .env(LIMITED, dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{output}{}", String::from_utf8_lossy(&run.stderr));
    assert!(output.contains("1 passed"), "{output}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[cfg(target_os = "linux")]
const LIMITED: &str = "NINFER_TEST_FILE_LIMIT";

/// Not a test of its own: runs under a limit on file sizes in the test above.
#[cfg(target_os = "linux")]
#[test]
fn child_that_hits_a_limit() {
    let Some(dir) = std::env::var_os(LIMITED) else { return };
    let e = one_object(Path::new(&dir), 100_000, None).unwrap_err();
    assert!(matches!(e.kind(), K::Io { what: "cannot give the file its length", .. }), "{e}");
}
