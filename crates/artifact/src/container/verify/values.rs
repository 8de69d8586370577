//! Checking the words of all tensors, piece by piece, over threads, in bounded memory.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ninfer_formats::{FormatId, MatrixShape, Place, Scheme, TensorView, Violation};

use super::super::model::{Object, TensorSpec};
use super::super::reader::Artifact;
use super::pieces::{GAP_RULE, Piece, moved, pieces, slice};
use super::scales::{non_finite_blocks, non_finite_words};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Is told how many payload bytes have been checked and how many there are; stops the check by `Break`.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

/// How to check values.
#[derive(Clone, Copy)]
pub struct ValueOptions<'a> {
    /// Most violations kept per tensor; the rest are only noted as more.
    pub limit: usize,
    /// Threads; `None` for as many as there are cores. The report does not depend on it.
    pub threads: Option<NonZeroUsize>,
    /// Called between pieces, from any thread, never from two at once.
    pub progress: Option<Progress<'a>>,
}

impl Default for ValueOptions<'_> {
    fn default() -> Self {
        Self { limit: 100, threads: None, progress: None }
    }
}

impl std::fmt::Debug for ValueOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueOptions")
            .field("limit", &self.limit)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// What was found in one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorValues {
    /// Id of the object.
    pub id: String,
    /// Its format.
    pub format: FormatId,
    /// The first violations of the format's rules, in the order of rows, then bytes between planes.
    pub violations: Vec<Violation>,
    /// Whether there are more than the limit kept.
    pub more: bool,
    /// Infinite and NaN words, or blocks with such a scale. They are legal in direct and ggml formats and mean that
    /// the tensor decodes to values that are not finite; in the other formats they are violations.
    pub non_finite: Option<NonFinite>,
}

/// Words or blocks that are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonFinite {
    /// How many there are.
    pub count: u64,
    /// `"block"` or `"column"`: what [`NonFinite::index`] counts.
    pub unit: &'static str,
    /// Row of the first.
    pub row: u64,
    /// Block or column of the first within its row.
    pub index: u64,
}

/// Result of [`Artifact::verify_values`].
#[derive(Debug)]
pub struct ValueReport {
    /// Every tensor that could be checked, in the order of offsets.
    pub tensors: Vec<TensorValues>,
    /// Payload bytes checked.
    pub bytes: u64,
    /// Tensors that could not be checked, and why.
    pub problems: Vec<ArtifactError>,
}

impl ValueReport {
    /// Whether every tensor was checked and breaks no rule. Words that are not finite but legal do not count.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty() && self.tensors.iter().all(|t| t.violations.is_empty())
    }
}

#[derive(Default)]
struct Findings {
    // By the number of the piece, so that the first `limit` are the same for any order of work.
    violations: BTreeMap<usize, Vec<Violation>>,
    kept: usize,
    more: bool,
    count: u64,
    first: Option<u64>,
}

struct Work<'a> {
    object: &'a Object,
    spec: TensorSpec<'a>,
    findings: Mutex<Findings>,
}

struct Shared<'a> {
    artifact: &'a Artifact,
    work: Vec<Work<'a>>,
    pieces: Vec<(usize, usize, Piece)>,
    next: AtomicUsize,
    stop: AtomicBool,
    done: Mutex<Done>,
    total: u64,
    limit: usize,
    progress: Option<Progress<'a>>,
}

#[derive(Default)]
struct Done {
    bytes: u64,
    cancelled: bool,
    problems: Vec<ArtifactError>,
}

impl Artifact {
    /// Checks every word of every tensor against the rules of its format, and counts legal words that are not
    /// finite. Memory is a few MiB per thread, whatever the size of the artifact.
    ///
    /// # Errors
    /// [`ArtifactErrorKind::Cancelled`](K::Cancelled) if the progress callback says so. What is wrong with the artifact
    /// is in the report.
    pub fn verify_values(&self, options: &ValueOptions<'_>) -> Result<ValueReport, ArtifactError> {
        let mut problems = Vec::new();
        let mut work = Vec::new();
        let mut list = Vec::new();
        let mut total = 0u64;
        for object in self.objects().iter().filter(|o| o.as_tensor().is_some()) {
            match object.tensor() {
                Err(e) => problems.push(e.with_path(self.path())),
                Ok(spec) => {
                    let pieces = pieces(&spec, object.bytes);
                    // Integers have no word to object to, and are not read.
                    total = total.saturating_add(if pieces.is_empty() { 0 } else { object.bytes });
                    list.extend(pieces.into_iter().enumerate().map(|(i, piece)| (work.len(), i, piece)));
                    work.push(Work { object, spec, findings: Mutex::default() });
                }
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = options.threads.map_or(cores, NonZeroUsize::get).min(list.len()).max(1);
        let shared = Shared {
            artifact: self,
            work,
            pieces: list,
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            done: Mutex::default(),
            total,
            limit: options.limit,
            progress: options.progress,
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| shared.run());
            }
            shared.run();
        });
        let done = shared.done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if done.cancelled {
            let kind = K::Cancelled { done: done.bytes, total };
            return Err(ArtifactError::new(kind).with_path(self.path()));
        }
        problems.extend(done.problems);
        let tensors = shared.work.into_iter().map(Work::into_report).collect();
        Ok(ValueReport { tensors, bytes: total, problems })
    }
}

impl Shared<'_> {
    fn run(&self) {
        let mut buffer = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let Some((tensor, number, piece)) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed))
            else {
                return;
            };
            let work = &self.work[*tensor];
            let result = self.check(work, *number, piece, &mut buffer);
            let mut done = lock(&self.done);
            match result {
                Ok(bytes) => done.bytes += bytes,
                Err(e) => {
                    // One part that cannot be opened breaks every piece in it: say it once per object.
                    if !done.problems.iter().any(|p| p.object() == Some(&work.object.id)) {
                        done.problems.push(e.in_object(&work.object.id));
                    }
                }
            }
            if let Some(progress) = self.progress
                && !done.cancelled
                && progress(done.bytes.min(self.total), self.total).is_break()
            {
                done.cancelled = true;
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn read<'b>(
        &self,
        object: &Object,
        range: &Range<u64>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], ArtifactError> {
        // Pieces are a few MiB; a longer one is a single row, which had to be addressable to be mapped.
        let len = usize::try_from(range.end - range.start).map_err(|_| too_large(object))?;
        buffer.resize(len, 0);
        self.artifact.read_object_at(object, range.start, buffer)?;
        Ok(buffer)
    }

    fn check(
        &self,
        work: &Work<'_>,
        number: usize,
        piece: &Piece,
        buffer: &mut Vec<u8>,
    ) -> Result<u64, ArtifactError> {
        let (object, spec) = (work.object, &work.spec);
        match piece {
            Piece::Flat(range) => {
                let bytes = self.read(object, range, buffer)?;
                let (unit, (count, first)) = match spec.format.scheme() {
                    Scheme::Direct(kind) => (kind.word_bytes(), non_finite_words(kind, bytes)),
                    Scheme::Gguf(kind) => (kind.bytes(), non_finite_blocks(kind, bytes)),
                    _ => return Ok(0),
                };
                if count > 0 {
                    let mut findings = lock(&work.findings);
                    findings.count += count;
                    let first = first.map(|i| range.start / unit as u64 + i);
                    findings.first = [findings.first, first].into_iter().flatten().min();
                }
                Ok(range.end - range.start)
            }
            Piece::Rows(rows) => {
                let Some(slice) = slice(spec, rows) else { return Ok(0) };
                let len = usize::try_from(slice.bytes).map_err(|_| too_large(object))?;
                buffer.clear();
                buffer.resize(len, 0);
                let mut read = 0;
                for (from, to) in &slice.copies {
                    let (len, to) = ((from.end - from.start) as usize, *to as usize);
                    self.artifact.read_object_at(object, from.start, &mut buffer[to..to + len])?;
                    read += len as u64;
                }
                let shape = [rows.end - rows.start, spec.shape[1]];
                let view = TensorView::new(spec.format, &shape, 1, buffer)
                    .map_err(|e| ArtifactError::new(K::Format(e)))?;
                // One more than is kept tells whether there are more.
                let found = view.violations(self.limit.saturating_add(1));
                let found = found.into_iter().filter_map(|v| moved(v, &slice, rows)).collect();
                lock(&work.findings).add(number, found, self.limit);
                Ok(read)
            }
            Piece::Gap(range) => {
                let bytes = self.read(object, range, buffer)?;
                let broken = bytes.iter().enumerate().filter(|(_, b)| **b != 0);
                let found = broken
                    .map(|(i, &b)| Violation {
                        plane: "padding",
                        place: Place::Byte { offset: range.start + i as u64 },
                        word: u32::from(b),
                        rule: GAP_RULE,
                    })
                    .collect();
                lock(&work.findings).add(number, found, self.limit);
                Ok(range.end - range.start)
            }
        }
    }
}

fn too_large(object: &Object) -> ArtifactError {
    ArtifactError::new(K::TooLarge { bytes: object.bytes })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Findings {
    fn add(&mut self, piece: usize, found: Vec<Violation>, limit: usize) {
        if found.is_empty() {
            return;
        }
        self.kept += found.len();
        self.violations.insert(piece, found);
        while self.kept > limit {
            self.more = true;
            let Some(mut last) = self.violations.last_entry() else { return };
            let surplus = self.kept - limit;
            let list = last.get_mut();
            if list.len() <= surplus {
                self.kept -= list.len();
                last.remove();
            } else {
                list.truncate(list.len() - surplus);
                self.kept = limit;
            }
        }
    }
}

impl Work<'_> {
    fn into_report(self) -> TensorValues {
        let findings = self.findings.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let format = self.spec.format;
        let non_finite = findings.first.map(|first| {
            let k = MatrixShape::of(format, self.spec.shape).map_or(1, |m| m.k as u64);
            let (unit, per_row) = match format.scheme() {
                Scheme::Gguf(kind) => ("block", k / kind.values() as u64),
                _ => ("column", k),
            };
            let per_row = per_row.max(1);
            NonFinite { count: findings.count, unit, row: first / per_row, index: first % per_row }
        });
        TensorValues {
            id: self.object.id.clone(),
            format,
            violations: findings.violations.into_values().flatten().collect(),
            more: findings.more,
            non_finite,
        }
    }
}
