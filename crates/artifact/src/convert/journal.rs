//! What lets an interrupted conversion go on: a record, beside the temporary file, of the plan and of the tensors that
//! are complete on the disk.
//!
//! The journal of `x.ninfer` is `.x.ninfer.journal`, the temporary files are `.x.ninfer.resume` and so on. Both exist
//! only for conversions that ask for it. A line is added when a tensor's bytes have reached the disk; a last line that
//! is cut short does not count. The process that writes holds a lock on the journal.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::planned::{RecipePlan, hex};
use super::statistics::{RowStatistics, TensorStatistics};
use crate::container::{ArtifactWriter, Json};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Bytes written between two synchronisations.
const STEP: u64 = 64 << 20;
/// Longest time between two synchronisations, while tensors become complete.
const WAIT: Duration = Duration::from_secs(5);
/// Largest journal that is read.
const MAX_BYTES: u64 = 256 << 20;

/// A complete tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) tensor: usize,
    pub(super) sha256: String,
    pub(super) statistics: Option<TensorStatistics>,
}

/// The journal of a running conversion.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
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
    ) -> Result<(ArtifactWriter, Option<Self>, Vec<Entry>), ArtifactError> {
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
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(fail("cannot open the journal"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ArtifactError::new(K::JournalInUse).with_path(&path));
            }
            Err(TryLockError::Error(e)) => return Err(fail("cannot lock the journal")(e)),
        }
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
        let Some(head) = lines.next() else {
            // Nothing of an earlier run counts, whatever its temporary files hold.
            file.set_len(0).map_err(fail("cannot write the journal"))?;
            let writer = new_writer(fresh).inspect_err(|_| {
                let _ = std::fs::remove_file(&path);
            })?;
            let id = hex(&writer.layout().directory().artifact_id());
            let head = Json::object([
                ("plan", Json::from(plan_digest)),
                ("source", source),
                ("artifact_id", id.into()),
            ]);
            write_line(&mut file, 0, &head).map_err(fail("cannot write the journal"))?;
            let state = Mutex::new(State { file, waiting: Vec::new(), bytes: 0, last: Instant::now() });
            return Ok((writer, Some(Self { path, state }), Vec::new()));
        };
        let refuse = |what| Err(ArtifactError::new(K::CannotResume { what }).with_path(&path));
        let head = Json::parse(head, 0).map_err(|e| e.with_path(&path))?;
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
        let mut entries = Vec::new();
        let mut end = whole as u64;
        let mut at = 0u64;
        for line in text[..whole].split_inclusive(|&b| b == b'\n') {
            if at > 0 {
                match Json::parse(line, at).ok().as_ref().and_then(parse_entry) {
                    Some(entry) => entries.push(entry),
                    None => {
                        // From a line that was damaged on, nothing counts.
                        end = at;
                        break;
                    }
                }
            }
            at += line.len() as u64;
        }
        entries.sort_by_key(|e| e.tensor);
        entries.dedup_by_key(|e| e.tensor);
        file.set_len(end).map_err(fail("cannot write the journal"))?;
        let writer = ArtifactWriter::resumable(plan.layout_as(target, Some(id))?, true)?;
        let state = Mutex::new(State { file, waiting: Vec::new(), bytes: 0, last: Instant::now() });
        Ok((writer, Some(Self { path, state }), entries))
    }

    /// Notes a complete tensor. It counts once its bytes are on the disk, which is seen to from time to time.
    pub(super) fn note(
        &self,
        entry: Entry,
        bytes: u64,
        writer: &ArtifactWriter,
    ) -> Result<(), ArtifactError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(entry);
        state.bytes = state.bytes.saturating_add(bytes);
        if state.bytes < STEP && state.last.elapsed() < WAIT {
            return Ok(());
        }
        self.write(&mut state, writer)
    }

    /// Brings everything that is complete to the disk.
    pub(super) fn flush(&self, writer: &ArtifactWriter) -> Result<(), ArtifactError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, writer)
    }

    fn write(&self, state: &mut State, writer: &ArtifactWriter) -> Result<(), ArtifactError> {
        if state.waiting.is_empty() {
            return Ok(());
        }
        writer.synchronize()?;
        let fail = |e| ArtifactError::io("cannot write the journal", e).with_path(&self.path);
        let mut text = String::new();
        for entry in state.waiting.drain(..) {
            text.push_str(&entry_json(&entry).to_string());
            text.push('\n');
        }
        state.bytes = 0;
        state.last = Instant::now();
        state.file.seek(SeekFrom::End(0)).map_err(fail)?;
        state.file.write_all(text.as_bytes()).map_err(fail)?;
        state.file.sync_data().map_err(fail)
    }

    /// Removes the journal: the conversion is finished.
    pub(super) fn remove(self) {
        // The artifact is complete either way; a journal left behind is refused or overwritten later.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Temporary files of a run that left no journal are worthless.
fn new_writer(layout: crate::container::Layout) -> Result<ArtifactWriter, ArtifactError> {
    for (path, _) in layout.files() {
        crate::container::remove_kept(&path)?;
    }
    ArtifactWriter::resumable(layout, false)
}

fn write_line(file: &mut File, at: u64, json: &Json) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(format!("{json}\n").as_bytes())?;
    file.sync_data()
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
