//! Conversions that are interrupted and go on: the same bytes, or a refusal.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use common::gguf::{Source, on, source};
use common::recipe::{f32_tensor, open, plan, run, values};
use common::{Random, names};
use ninfer_artifact::convert::{RecipePlan, RunOptions, Session};
use ninfer_artifact::{Artifact, ArtifactErrorKind as K};
use ninfer_gguf::GgmlType;
use ninfer_simd_ops::Dispatch;

const CHILD: &str = "NINFER_RESUME_TEST_CHILD";
const RECIPE: &str = "[[rule]]\nmatch = 'm.*'\nformat = 'q5_g64_fp16'\nmethod = 'grouped_search'";

fn tensors() -> Vec<Source> {
    let mut random = Random(0x5e);
    let mut all: Vec<Source> =
        (0..6).map(|i| f32_tensor(&format!("m.{i}"), &[128, 60], &values(&mut random, 60 * 128))).collect();
    all.push(source(&mut random, "kept", GgmlType(12), &[256, 40]));
    all
}

fn planned(dir: &Path) -> Arc<RecipePlan> {
    plan(&open(dir, &tensors()), RECIPE).unwrap()
}

fn resumable() -> RunOptions {
    RunOptions { resume: true, memory: Some(300_000), threads: Some(2), ..RunOptions::default() }
}

/// Works until about half is done, then gives up.
fn half(plan: &Arc<RecipePlan>, to: &Path) {
    let session = Session::start(plan.clone(), to, resumable()).unwrap();
    for tensor in [4, 1, 6] {
        for rows in plan.units(tensor, 17).unwrap() {
            let words = plan.encode(tensor, rows.clone(), &Dispatch::default()).unwrap();
            session.store(tensor, &rows, &words.payload, &words.statistics).unwrap();
        }
    }
    // Some units of others may be begun; they do not count.
    let e = session.run(|_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(e.kind(), K::Interrupted { .. }), "{e}");
    assert!(e.to_string().contains("resume"), "{e}");
}

fn uninterrupted(plan: &Arc<RecipePlan>, dir: &Path) -> Vec<u8> {
    let to = dir.join("whole.ninfer");
    run(plan, &to, RunOptions::default()).unwrap();
    let bytes = std::fs::read(&to).unwrap();
    std::fs::remove_file(&to).unwrap();
    bytes
}

#[test]
fn an_interrupted_conversion_goes_on_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let expected = uninterrupted(&plan, dir.path());
    let to = dir.path().join("x.ninfer");
    half(&plan, &to);
    assert_eq!(names(dir.path()), [".x.ninfer.journal", ".x.ninfer.resume", "m.gguf"]);
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    assert!(session.resumed() >= 3, "{}", session.resumed());
    assert!(session.done_bytes() > 0);
    let left = session.remaining();
    assert!(![1, 4, 6].iter().any(|t| left.contains(t)), "{left:?}");
    session.run(on).unwrap();
    let done = session.finish().unwrap();
    assert!(done.report().to_string().contains("\"resumed_tensors\":"));
    assert!(std::fs::read(&to).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer"]);
    assert!(Artifact::open(&to).unwrap().verify_structure().is_ok());
    // Uninterrupted, a run that may be resumed leaves nothing else behind either.
    let to = dir.path().join("y.ninfer");
    run(&plan, &to, resumable()).unwrap();
    assert!(std::fs::read(&to).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer", "y.ninfer"]);
    let e = Session::start(plan, &to, resumable()).unwrap_err();
    assert!(matches!(e.kind(), K::Exists), "{e}");
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer", "y.ninfer"]);
}

#[test]
fn damaged_bytes_are_written_anew_and_a_torn_line_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let expected = uninterrupted(&plan, dir.path());
    let to = dir.path().join("x.ninfer");
    half(&plan, &to);
    let temporary = dir.path().join(".x.ninfer.resume");
    let offset = {
        let layout = plan.layout(&to).unwrap();
        let object = layout.directory().object("m.4").unwrap();
        (layout.directory().prefix().payload_start + object.offset + 5) as usize
    };
    let mut bytes = std::fs::read(&temporary).unwrap();
    bytes[offset] ^= 0x40;
    std::fs::write(&temporary, &bytes).unwrap();
    let journal = dir.path().join(".x.ninfer.journal");
    let mut text = std::fs::read(&journal).unwrap();
    text.extend_from_slice(b"{\"tensor\":0,\"sha");
    std::fs::write(&journal, &text).unwrap();
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    let left = session.remaining();
    assert!(left.contains(&4) && left.contains(&0) && !left.contains(&1), "{left:?}");
    session.run(on).unwrap();
    session.finish().unwrap();
    assert!(std::fs::read(&to).unwrap() == expected);
}

#[test]
fn another_plan_or_a_changed_source_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = planned(dir.path());
    let to = dir.path().join("x.ninfer");
    half(&first, &to);
    let before = names(dir.path());
    let from = open(dir.path(), &[]);
    for recipe in [
        RECIPE.replace("q5", "q6"),
        RECIPE.replace("_search'", "_search'\nnegative_scales = true"),
        RECIPE.replace("m.*", "m.[0-4]"),
        String::new(),
    ] {
        let e = Session::start(plan(&from, &recipe).unwrap(), &to, resumable()).unwrap_err();
        assert!(matches!(e.kind(), K::CannotResume { .. }), "{e}");
        assert!(e.to_string().contains("another plan") && e.to_string().contains(".x.ninfer.journal"), "{e}");
        assert_eq!(names(dir.path()), before);
    }
    // Another process at work.
    let session = Session::start(first.clone(), &to, resumable()).unwrap();
    let e = Session::start(first.clone(), &to, resumable()).unwrap_err();
    assert!(matches!(e.kind(), K::JournalInUse), "{e}");
    drop(session);
    // The same names and shapes, other values.
    std::fs::remove_file(dir.path().join("m.gguf")).unwrap();
    let mut changed = tensors();
    changed[0].3[0] ^= 1;
    let from = open(dir.path(), &changed);
    let e = Session::start(plan(&from, RECIPE).unwrap(), &to, resumable()).unwrap_err();
    assert!(e.to_string().contains("the source has changed"), "{e}");
    // And the old plan notices before it reads.
    let e = Session::start(first, dir.path().join("y"), RunOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), K::SourceChanged), "{e}");
    // A temporary file without a journal may be anyone's: it is named, and stays.
    let (journal, temporary) = (dir.path().join(".x.ninfer.journal"), dir.path().join(".x.ninfer.resume"));
    std::fs::remove_file(&journal).unwrap();
    std::fs::write(&temporary, b"mine").unwrap();
    for torn in [false, true] {
        if torn {
            std::fs::write(&journal, b"{\"artifact_id\":").unwrap();
        }
        let e = run(&plan(&from, RECIPE).unwrap(), &to, resumable()).unwrap_err();
        assert!(matches!(e.kind(), K::CannotResume { .. }), "{e}");
        assert!(e.path() == Some(&*temporary) && e.to_string().contains("no journal"), "{e}");
        assert_eq!(std::fs::read(&temporary).unwrap(), b"mine");
        assert_eq!(journal.exists(), torn);
    }
    // Without both everything begins anew.
    std::fs::remove_file(&temporary).unwrap();
    run(&plan(&from, RECIPE).unwrap(), &to, resumable()).unwrap();
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer"]);
}

#[test]
fn a_shortened_temporary_file_is_refused_and_discarding_removes_all() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let to = dir.path().join("x.ninfer");
    half(&plan, &to);
    let temporary = dir.path().join(".x.ninfer.resume");
    let length = std::fs::metadata(&temporary).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&temporary).unwrap();
    file.set_len(length - 1).unwrap();
    let e = Session::start(plan.clone(), &to, resumable()).unwrap_err();
    assert!(matches!(e.kind(), K::FileLength { .. }), "{e}");
    file.set_len(length).unwrap();
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    session.discard();
    assert_eq!(names(dir.path()), ["m.gguf"]);
    // An attempt to finish early loses nothing.
    half(&plan, &to);
    let session = Session::start(plan, &to, resumable()).unwrap();
    assert!(session.finish().is_err());
    assert_eq!(names(dir.path()), [".x.ninfer.journal", ".x.ninfer.resume", "m.gguf"]);
}

#[test]
fn a_line_with_a_changed_byte_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let to = dir.path().join("whole.ninfer");
    let expected = run(&plan, &to, RunOptions::default()).unwrap();
    let to = dir.path().join("x.ninfer");
    half(&plan, &to);
    let journal = dir.path().join(".x.ninfer.journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    let line = text.lines().find(|l| l.contains("\"tensor\":1,") && l.contains("sums")).unwrap();
    for member in ["\"sums\":[", "\"elements\":", "\"non_finite\":", "\"tensor\":", "\"sha256\":\""] {
        let at = line.find(member).unwrap() + member.len();
        let digit = if &line[at..=at] == "5" { "6" } else { "5" };
        let changed = format!("{}{digit}{}", &line[..at], &line[at + 1..]);
        std::fs::write(&journal, text.replace(line, &changed)).unwrap();
        let session = Session::start(plan.clone(), &to, resumable()).unwrap();
        let left = session.remaining();
        // The lines around it count.
        assert!(left.contains(&1) && !left.contains(&4) && !left.contains(&6), "{member} {left:?}");
        drop(session);
    }
    let changed = line.replace("\"weighted\":false", "\"weighted\":true ");
    assert_ne!(changed, line);
    std::fs::write(&journal, text.replace(line, &changed)).unwrap();
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    session.run(on).unwrap();
    let done = session.finish().unwrap();
    assert_eq!(done.statistics(1), expected.statistics(1));
    std::fs::remove_file(&to).unwrap();
    // Every byte of the first line counts.
    half(&plan, &to);
    let text = std::fs::read(&journal).unwrap();
    let head = text.iter().position(|&b| b == b'\n').unwrap();
    for at in 0..head {
        let mut changed = text.clone();
        changed[at] ^= 1;
        std::fs::write(&journal, &changed).unwrap();
        let e = Session::start(plan.clone(), &to, resumable()).unwrap_err();
        assert!(matches!(e.kind(), K::CannotResume { .. }), "{at}: {e}");
        assert!(e.to_string().contains("damaged"), "{at}: {e}");
    }
    std::fs::write(&journal, &text).unwrap();
    assert!(Session::start(plan, &to, resumable()).unwrap().resumed() >= 3);
}

#[cfg(unix)]
#[test]
fn files_to_resume_from_are_plain_files() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let to = dir.path().join("x.ninfer");
    half(&plan, &to);
    for name in [".x.ninfer.journal", ".x.ninfer.resume"] {
        let (path, aside) = (dir.path().join(name), dir.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let before = std::fs::read(&aside).unwrap();
        for what in ["link", "dangling", "fifo", "folder"] {
            match what {
                "link" => std::os::unix::fs::symlink(&aside, &path).unwrap(),
                "dangling" => std::os::unix::fs::symlink(dir.path().join("nowhere"), &path).unwrap(),
                "fifo" => {
                    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success())
                }
                _ => std::fs::create_dir(&path).unwrap(),
            }
            let e = Session::start(plan.clone(), &to, resumable()).unwrap_err();
            let why = if what == "link" || what == "dangling" { "symbolic" } else { "regular" };
            assert!(e.to_string().contains(name) && e.to_string().contains(why), "{what}: {e}");
            assert!(!dir.path().join("nowhere").exists());
            if what == "folder" {
                std::fs::remove_dir(&path).unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
        }
        assert!(std::fs::read(&aside).unwrap() == before);
        std::fs::rename(&aside, &path).unwrap();
    }
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    assert!(session.resumed() >= 3);
    session.discard();
    // A conversion that begins anew does not follow links either.
    std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join(".x.ninfer.resume")).unwrap();
    assert!(Session::start(plan, &to, resumable()).is_err());
    assert_eq!(names(dir.path()), [".x.ninfer.resume", "m.gguf"]);
}

#[test]
fn a_dropped_session_keeps_what_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let expected = uninterrupted(&plan, dir.path());
    let to = dir.path().join("x.ninfer");
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    for tensor in [2, 5] {
        let words = plan.encode(tensor, 0..60, &Dispatch::default()).unwrap();
        session.store(tensor, &(0..60), &words.payload, &words.statistics).unwrap();
        // As after an error: the second time it is refused.
        assert!(session.store(tensor, &(0..60), &words.payload, &words.statistics).is_err());
    }
    drop(session);
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    assert_eq!(session.resumed(), 2);
    let words = plan.encode(0, 0..60, &Dispatch::default()).unwrap();
    session.store(0, &(0..60), &words.payload, &words.statistics).unwrap();
    // Asked for, as from another thread while the session lives.
    session.checkpoint().unwrap();
    let lines = std::fs::read_to_string(dir.path().join(".x.ninfer.journal")).unwrap().lines().count();
    assert_eq!(lines, 4);
    session.run(on).unwrap();
    session.finish().unwrap();
    assert!(std::fs::read(&to).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer"]);
}

/// Not a test of its own: what the killed process of the next test runs.
#[test]
fn child_that_converts_and_waits() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let plan = planned(dir);
    let to = dir.join("x.ninfer");
    half(&plan, &to);
    let session = Session::start(plan.clone(), &to, resumable()).unwrap();
    // Written, but not noted: it does not count.
    let words = plan.encode(3, 0..60, &Dispatch::default()).unwrap();
    session.store(3, &(0..60), &words.payload, &words.statistics).unwrap();
    std::fs::write(dir.join("ready"), b"").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(120));
}

/// FR-75, FR-83.
#[test]
fn a_killed_conversion_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let plan = planned(dir.path());
    let expected = uninterrupted(&plan, dir.path());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_converts_and_waits"])
        .env(CHILD, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while !dir.path().join("ready").exists() {
        assert!(
            start.elapsed().as_secs() < 110 && child.try_wait().unwrap().is_none(),
            "the child never got ready"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(dir.path().join("ready")).unwrap();
    let to = dir.path().join("x.ninfer");
    let session = Session::start(plan, &to, resumable()).unwrap();
    assert!(session.resumed() >= 3);
    session.run(on).unwrap();
    session.finish().unwrap();
    assert!(std::fs::read(&to).unwrap() == expected);
    assert_eq!(names(dir.path()), ["m.gguf", "x.ninfer"]);
}
