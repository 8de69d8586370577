//! What lets an interrupted conversion go on: a record, beside the temporary file, of the plan and of the tensors that
//! are complete on the disk.
//!
//! The journal of `x.ninfer` is `.x.ninfer.journal`, the temporary files are `.x.ninfer.resume` and so on. Both exist
//! only for conversions that ask for it. A line is added when a tensor's bytes have reached the disk. Each line ends in
//! a digest of itself (and of the first one), so that a line that was cut short or changed does not count. The process
//! that writes holds a lock on the journal.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::planned::{RecipePlan, hex};
use super::statistics::{RowStatistics, TensorStatistics};
use crate::container::{ArtifactWriter, Json, Layout, kept_path, open_plain};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Bytes written between two synchronisations.
const STEP: u64 = 64 << 20;
/// Longest time between two synchronisations, while tensors become complete.
const WAIT: Duration = Duration::from_secs(5);
/// Largest journal that is read.
const MAX_BYTES: u64 = 256 << 20;
/// Begins the last member of a line, the SHA-256 of what stands before it.
const SEAL: &str = ",\"digest\":\"";
/// Bytes of that member to the end of the line.
const SEAL_BYTES: usize = SEAL.len() + 64 + 2;

/// A complete tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) tensor: usize,
    pub(super) sha256: String,
    pub(super) statistics: Option<TensorStatistics>,
}

/// The journal of a running conversion. Dropping it notes what is complete.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    // Digest of the first line.
    head: String,
    // The files whose contents must be on the disk before a line says so.
    files: Vec<File>,
    state: Mutex<State>,
}

/// The journal's file with the lock on it, given back when dropped. Closing alone would not do: a process forked in the
/// meantime, even one about to run another program, has a copy of the descriptor and holds the lock with it.
#[derive(Debug)]
struct Locked {
    file: File,
    // A forked copy of this value must not give back its parent's lock.
    process: u32,
}

impl Locked {
    fn try_new(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self { file, process: std::process::id() })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Closing the file gives the lock back as well, if a little later at times.
            let _ = self.file.unlock();
        }
    }
}

#[derive(Debug)]
struct State {
    locked: Locked,
    waiting: Vec<Entry>,
    bytes: u64,
    last: Instant,
}

/// The journal's path for an artifact.
pub(super) fn path_of(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".journal");
    target.with_file_name(name)
}

impl Journal {
    /// Begins a conversion that can be resumed, or goes on with one: the writer, the journal and the tensors that are
    /// complete already.
    ///
    /// # Errors
    /// Another process at work on it; an interrupted conversion of another plan, or from a source that changed.
    pub(super) fn begin(
        plan: &RecipePlan,
        target: &Path,
    ) -> Result<(Self, ArtifactWriter, Vec<Entry>), ArtifactError> {
        // Refuse a bad target before anything is created.
        let fresh = plan.layout(target)?;
        if target.symlink_metadata().is_ok() {
            return Err(ArtifactError::new(K::Exists).with_path(target));
        }
        let path = path_of(target);
        let fail = |what| {
            let path = path.clone();
            move |e: io::Error| ArtifactError::io(what, e).with_path(&path)
        };
        let created = path.symlink_metadata().is_err();
        let mut options = OpenOptions::new();
        let file = open_plain(&path, options.create(true).truncate(false), "cannot open the journal")?;
        let mut locked = Locked::try_new(file).map_err(|e| match e {
            TryLockError::WouldBlock => ArtifactError::new(K::JournalInUse).with_path(&path),
            TryLockError::Error(e) => fail("cannot lock the journal")(e),
        })?;
        let file = &mut locked.file;
        let length = file.metadata().map_err(fail("cannot read the journal"))?.len();
        if length > MAX_BYTES {
            return Err(ArtifactError::new(K::TooLarge { bytes: length }).with_path(&path));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(fail("cannot read the journal"))?;
        // Only whole lines count.
        let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let mut lines = text[..whole].split_inclusive(|&b| b == b'\n');
        let plan_digest = digest(plan, target)?;
        let source = plan.source.identity();
        let Some(line) = lines.next() else {
            let begun = Self::begin_anew(fresh, file, plan_digest, source, &path);
            let (writer, head) = begun.inspect_err(|_| {
                if created {
                    let _ = std::fs::remove_file(&path);
                }
            })?;
            return Ok((Self::new(path, head, &writer, locked)?, writer, Vec::new()));
        };
        let refuse = |what| Err(ArtifactError::new(K::CannotResume { what }).with_path(&path));
        let Some((head, seal)) = unsealed(line, "") else {
            return refuse("the first line of its journal is damaged, or of another version");
        };
        if head.get("source") != Some(&source) {
            return refuse("the source has changed since");
        }
        if head.get("plan").and_then(Json::as_str) != Some(&plan_digest) {
            return refuse("it was another plan: recipe, options, importance or version differ");
        }
        let Some(id) = head.get("artifact_id").and_then(Json::as_str).and_then(parse_id) else {
            return refuse("its journal has no artifact id");
        };
        if plan.options.artifact_id.is_some_and(|given| given != id) {
            return refuse("it has another artifact id");
        }
        // The last word on each tensor; one whose line is damaged is done again.
        let mut entries = BTreeMap::new();
        for line in lines {
            if let Some(entry) = unsealed(line, &seal).as_ref().and_then(|(json, _)| parse_entry(json)) {
                entries.insert(entry.tensor, entry);
            }
        }
        file.set_len(whole as u64).map_err(fail("cannot write the journal"))?;
        let writer = ArtifactWriter::resumable(plan.layout_as(target, Some(id))?, true)?;
        Ok((Self::new(path, seal, &writer, locked)?, writer, entries.into_values().collect()))
    }

    /// Writes the first line and then creates the temporary files: where they are without it, they are not ours.
    fn begin_anew(
        layout: Layout,
        file: &mut File,
        plan: String,
        source: Json,
        path: &Path,
    ) -> Result<(ArtifactWriter, String), ArtifactError> {
        for (target, _) in layout.files() {
            let temporary = kept_path(&target);
            if temporary.symlink_metadata().is_ok() {
                let what = "it has no journal, and may be something else";
                return Err(ArtifactError::new(K::CannotResume { what }).with_path(&temporary));
            }
        }
        let id = hex(&layout.directory().artifact_id());
        let head = Json::object([("plan", Json::from(plan)), ("source", source), ("artifact_id", id.into())]);
        let (line, seal) = sealed(&head, "");
        let fail = |e| ArtifactError::io("cannot write the journal", e).with_path(path);
        file.set_len(0).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        file.write_all(line.as_bytes()).map_err(fail)?;
        file.sync_data().map_err(fail)?;
        let writer = ArtifactWriter::resumable(layout, false).inspect_err(|_| drop(file.set_len(0)))?;
        Ok((writer, seal))
    }

    fn new(
        path: PathBuf,
        head: String,
        writer: &ArtifactWriter,
        locked: Locked,
    ) -> Result<Self, ArtifactError> {
        let state = Mutex::new(State { locked, waiting: Vec::new(), bytes: 0, last: Instant::now() });
        Ok(Self { path, head, files: writer.handles()?, state })
    }

    /// Notes a complete tensor. It counts once its bytes are on the disk, which is seen to from time to time.
    pub(super) fn note(&self, entry: Entry, bytes: u64) -> Result<(), ArtifactError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(entry);
        state.bytes = state.bytes.saturating_add(bytes);
        if state.bytes < STEP && state.last.elapsed() < WAIT {
            return Ok(());
        }
        self.write(&mut state)
    }

    /// Brings everything that is complete to the disk.
    pub(super) fn flush(&self) -> Result<(), ArtifactError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state)
    }

    fn write(&self, state: &mut State) -> Result<(), ArtifactError> {
        if state.waiting.is_empty() {
            return Ok(());
        }
        for file in &self.files {
            let fail = |e| ArtifactError::io("cannot write to disk", e).with_path(&self.path);
            file.sync_data().map_err(fail)?;
        }
        let fail = |e| ArtifactError::io("cannot write the journal", e).with_path(&self.path);
        let mut text = String::new();
        for entry in &state.waiting {
            text.push_str(&sealed(&entry_json(entry), &self.head).0);
        }
        let file = &mut state.locked.file;
        let end = file.seek(SeekFrom::End(0)).map_err(fail)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).map_err(|e| {
            // On a full disk the beginning may be there: away with it, so that the next line begins a line.
            let _ = file.set_len(end);
            fail(e)
        })?;
        state.waiting.clear();
        state.bytes = 0;
        state.last = Instant::now();
        Ok(())
    }

    /// Removes the journal: the conversion is finished.
    pub(super) fn remove(mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).waiting.clear();
        // The artifact is complete either way; a journal left behind is refused or overwritten later.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Whoever wants to know calls [`Journal::flush`] before.
        let _ = self.flush();
    }
}

/// A line of the journal whose first line has the digest `head`, and its own digest.
fn sealed(json: &Json, head: &str) -> (String, String) {
    let text = json.to_string();
    let body = text.strip_suffix('}').unwrap_or(&text);
    let seal = seal(head, body.as_bytes());
    (format!("{body}{SEAL}{seal}\"}}\n"), seal)
}

/// What a line says, and its digest, if that is right.
fn unsealed(line: &[u8], head: &str) -> Option<(Json, String)> {
    let line = line.strip_suffix(b"\n")?;
    let (body, end) = line.split_at(line.len().checked_sub(SEAL_BYTES)?);
    let seal = seal(head, body);
    if end != format!("{SEAL}{seal}\"}}").as_bytes() {
        return None;
    }
    Some((Json::parse(line, 0).ok()?, seal))
}

fn seal(head: &str, body: &[u8]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(head.as_bytes());
    hasher.update(body);
    hex(&hasher.finalize())
}

/// What must be the same for two runs to make one artifact: the directory without its id, which is fixed here for the
/// purpose, and what the words depend on beside it.
fn digest(plan: &RecipePlan, target: &Path) -> Result<String, ArtifactError> {
    let layout = plan.layout_as(target, Some([0; 16]))?;
    let mut hasher = Sha256::new();
    hasher.update(env!("CARGO_PKG_VERSION"));
    hasher.update(layout.text().as_bytes());
    hasher.update(plan.recipe.identity().as_bytes());
    Ok(hex(&hasher.finalize()))
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(id)
}

/// binary64 numbers as the bits of their words: exact, infinities too.
fn entry_json(entry: &Entry) -> Json {
    let mut members =
        vec![("tensor", Json::from(entry.tensor as u64)), ("sha256", entry.sha256.as_str().into())];
    if let Some(s) = &entry.statistics {
        let r = &s.sums;
        let floats = [r.max_abs, r.error, r.signal, r.weighted_error, r.weighted_signal];
        members.push(("sums", Json::array(floats.map(f64::to_bits))));
        members.push(("non_finite", r.non_finite.into()));
        members.push(("elements", s.elements.into()));
        members.push(("weighted", s.weighted.into()));
    }
    Json::object(members)
}

fn parse_entry(json: &Json) -> Option<Entry> {
    let tensor = usize::try_from(json.get("tensor")?.as_u64()?).ok()?;
    let sha256 = json.get("sha256")?.as_str()?.to_owned();
    let statistics = match json.get("sums") {
        None => None,
        Some(Json::Array(sums)) => {
            let bits: Vec<f64> =
                sums.iter().map(|b| b.as_u64().map(f64::from_bits)).collect::<Option<_>>()?;
            let &[max_abs, error, signal, weighted_error, weighted_signal] = &bits[..] else { return None };
            let non_finite = json.get("non_finite")?.as_u64()?;
            let sums = RowStatistics { max_abs, error, signal, weighted_error, weighted_signal, non_finite };
            let weighted = matches!(json.get("weighted")?, Json::Bool(true));
            Some(TensorStatistics { sums, elements: json.get("elements")?.as_u64()?, weighted })
        }
        Some(_) => return None,
    };
    Some(Entry { tensor, sha256, statistics })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_given_back_while_a_copy_of_the_descriptor_is_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let locked = Locked::try_new(open()).unwrap();
        // What a process has that was forked just now.
        let copy = locked.file.try_clone().unwrap();
        assert!(matches!(Locked::try_new(open()), Err(TryLockError::WouldBlock)));
        drop(locked);
        drop(Locked::try_new(open()).unwrap());
        // Nor does a forked copy of the value give back the lock of another process.
        let locked = Locked::try_new(open()).unwrap();
        let forked =
            Locked { file: locked.file.try_clone().unwrap(), process: locked.process.wrapping_add(1) };
        drop((forked, copy));
        assert!(matches!(Locked::try_new(open()), Err(TryLockError::WouldBlock)));
    }

    #[test]
    fn a_sealed_line_is_read_unless_any_byte_changed() {
        let json = Json::object([("tensor", Json::from(7u64)), ("sha256", "ab".into())]);
        for head in ["", "cd"] {
            let (line, own) = sealed(&json, head);
            let (read, seal) = unsealed(line.as_bytes(), head).unwrap();
            assert_eq!((read.get("tensor").and_then(Json::as_u64), &seal), (Some(7), &own));
            assert!(unsealed(line.as_bytes(), "ef").is_none());
            for at in 0..line.len() {
                let mut changed = line.clone().into_bytes();
                changed[at] ^= 1;
                assert!(unsealed(&changed, head).is_none(), "{at}");
                assert!(unsealed(&line.as_bytes()[..at], head).is_none());
            }
        }
    }

    #[test]
    fn entries_survive_exactly() {
        let sums = RowStatistics {
            max_abs: f64::INFINITY,
            error: 0.1,
            signal: 1e300,
            weighted_error: -0.0,
            weighted_signal: 5e-324,
            non_finite: 7,
        };
        let statistics = Some(TensorStatistics { sums, elements: 9, weighted: true });
        for statistics in [statistics, None] {
            let entry = Entry { tensor: 3, sha256: "ab".into(), statistics };
            let text = entry_json(&entry).to_string();
            assert_eq!(parse_entry(&Json::parse(text.as_bytes(), 0).unwrap()), Some(entry));
        }
        for bad in ["{}", r#"{"tensor":1}"#, r#"{"tensor":1,"sha256":"x","sums":[1]}"#, "[]"] {
            assert_eq!(parse_entry(&Json::parse(bad.as_bytes(), 0).unwrap()), None);
        }
        assert_eq!(parse_id(&"0f".repeat(16)), Some([15; 16]));
        assert_eq!(parse_id("0f"), None);
        assert_eq!(parse_id(&"\u{e9}".repeat(16)), None);
    }
}
