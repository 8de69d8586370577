//! Writing a planned conversion: units of rows on all cores, in bounded memory, to their places in the file.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use ninfer_formats::{FormatError, FormatId, TensorView};
use ninfer_simd_ops::{Dispatch, Isa};
use sha2::{Digest, Sha256};

use super::encode::{Buffers, Need, SCRATCH, TILE, compare, importance, piece_of, units};
use super::geometry::{gaps, planes};
use super::journal::{Entry, Journal};
use super::planned::{MethodUsed, PlannedTensor, RecipePlan, hex};
use super::report::Converted;
use super::statistics::{Fold, RowStatistics, TensorStatistics};
use crate::container::{ArtifactWriter, Json};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Memory that a conversion may use if nothing else is said, in bytes.
pub const DEFAULT_MEMORY: u64 = 256 << 20;
/// Bytes of one unit of work: what it reads, works out and compares stays in a core's second-level cache.
const UNIT: u64 = 1 << 20;
/// Bytes read back at a time for a digest.
const DIGEST: usize = 128 << 10;
/// How often the caller hears of progress where there is none.
const TICK: Duration = Duration::from_millis(100);

/// How to run a planned conversion.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Most bytes of memory for buffers: values, encoded words, encoders' own. [`DEFAULT_MEMORY`] if not given. Not
    /// counted: the plan itself (about a kilobyte a tensor), importance vectors of an open matrix, mapped pages of
    /// the source, which the system takes back when it needs them.
    pub memory: Option<u64>,
    /// Threads; all cores if not given. Results never depend on it.
    pub threads: Option<usize>,
    /// Instruction set; the process's if not given. Results never depend on it.
    pub isa: Option<Isa>,
    /// Keep what was done when the conversion is interrupted, and go on from there if it was interrupted before.
    pub resume: bool,
}

/// What has become of one tensor.
#[derive(Debug, Default)]
struct State {
    rows: u64,
    fold: Fold,
    done: Option<Done>,
}

/// A tensor whose bytes are all written.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) sha256: String,
    pub(super) statistics: Option<TensorStatistics>,
}

/// A conversion being written. Dropping it unfinished leaves nothing behind, or if it can be resumed, what is needed
/// for that.
#[derive(Debug)]
pub struct Session {
    plan: Arc<RecipePlan>,
    writer: ArtifactWriter,
    options: RunOptions,
    threads: usize,
    most_rows: Vec<u64>,
    memory: u64,
    states: Vec<Mutex<State>>,
    journal: Option<Journal>,
    done_bytes: AtomicU64,
    peak: AtomicU64,
    resumed: usize,
}

impl Session {
    /// Lays the artifact out and creates its temporary files, or finds those of an interrupted conversion.
    ///
    /// # Errors
    /// Those of [`RecipePlan::layout`]; a target that exists; a memory budget that one row of some tensor exceeds (the
    /// least that suffices is named);
    /// with `resume`, an interrupted conversion of another plan or from a source that has changed since.
    pub fn start(
        plan: Arc<RecipePlan>,
        target: impl AsRef<Path>,
        options: RunOptions,
    ) -> Result<Self, ArtifactError> {
        let target = target.as_ref();
        let memory = options.memory.unwrap_or(DEFAULT_MEMORY);
        let wanted = options.threads.unwrap_or_else(cores);
        if wanted == 0 {
            return Err(ninfer_simd_ops::OpError::ZeroThreads.into());
        }
        let (threads, most_rows) = share(&plan, memory, wanted)?;
        plan.source.check_unchanged()?;
        let (writer, journal, entries) = if options.resume {
            let (journal, writer, entries) = Journal::begin(&plan, target)?;
            (writer, Some(journal), entries)
        } else {
            (plan.layout(target)?.create()?, None, Vec::new())
        };
        let states = plan.tensors.iter().map(|_| Mutex::default()).collect();
        let mut session = Self {
            plan,
            writer,
            options,
            threads,
            most_rows,
            memory,
            states,
            journal,
            done_bytes: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            resumed: 0,
        };
        for entry in entries {
            session.continue_from(entry)?;
        }
        Ok(session)
    }

    /// Takes a finished tensor over from an interrupted run, if its bytes are still what they were.
    fn continue_from(&mut self, entry: Entry) -> Result<(), ArtifactError> {
        let Some(t) = self.plan.tensors.get(entry.tensor) else { return Ok(()) };
        let (bytes, rows) = (t.bytes, t.rows());
        if self.digest(entry.tensor)? != entry.sha256 {
            return Ok(()); // written anew
        }
        self.writer.leave_zero(entry.tensor, 0, bytes)?;
        let mut state = self.state(entry.tensor);
        state.rows = rows;
        state.done = Some(Done { sha256: entry.sha256, statistics: entry.statistics });
        drop(state);
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.resumed += 1;
        Ok(())
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<RecipePlan> {
        &self.plan
    }

    /// Tensors taken over from an interrupted run.
    #[must_use]
    pub fn resumed(&self) -> usize {
        self.resumed
    }

    /// Bytes of objects written so far.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Most bytes of buffers that were held at once so far.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Tensors that are not complete, by position.
    #[must_use]
    pub fn remaining(&self) -> Vec<usize> {
        (0..self.states.len()).filter(|&i| self.state(i).done.is_none()).collect()
    }

    /// Most rows of a tensor that are worked on at a time within the memory budget.
    #[must_use]
    pub fn unit_rows(&self, tensor: usize) -> u64 {
        self.most_rows.get(tensor).copied().unwrap_or(1)
    }

    fn state(&self, tensor: usize) -> MutexGuard<'_, State> {
        // Nothing panics while holding it; the index is a planned tensor's.
        self.states[tensor].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all tensors that are not complete, but for those of the caller's own methods; none of their rows may have
    /// been stored. `progress` is told the
    /// bytes done and their total, at least ten times a second; `Break` stops.
    ///
    /// # Errors
    /// What reading, encoding and writing refuse: of several tensors at fault always the first;
    /// [`ArtifactErrorKind::Cancelled`](K::Cancelled).
    pub fn run(&self, mut progress: impl FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), ArtifactError> {
        let work = self
            .remaining()
            .into_iter()
            .filter(|&i| !matches!(self.plan.tensors[i].method, MethodUsed::Callable(_)))
            .flat_map(|i| {
                let units = units(&self.plan, &self.plan.tensors[i], self.most_rows[i]);
                units.map(move |rows| (i, rows))
            });
        // Units are many where the model is large: they are made as they are needed.
        let work = Mutex::new((0u64..).zip(work));
        let stop = AtomicBool::new(false);
        // Number of the first unit known to fail: those before it are still done, so that the error is always the
        // same.
        let failing = AtomicU64::new(u64::MAX);
        let failed: Mutex<Option<(u64, ArtifactError)>> = Mutex::new(None);
        let held: Vec<AtomicU64> = (0..self.threads).map(|_| AtomicU64::new(0)).collect();
        let total = self.plan.payload_bytes();
        let mut cancelled = progress(self.done_bytes(), total).is_break();
        stop.store(cancelled, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel::<()>();
            for worker in 0..self.threads {
                let sender = sender.clone();
                let (work, stop, held) = (&work, &stop, &held);
                let (failing, failed) = (&failing, &failed);
                scope.spawn(move || {
                    let mut buffers = Buffers::default();
                    loop {
                        let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((number, (tensor, rows))) = next else { break };
                        if stop.load(Ordering::Relaxed) || number > failing.load(Ordering::Relaxed) {
                            break;
                        }
                        if let Err(e) = self.unit(tensor, &rows, &mut buffers, (held, worker)) {
                            failing.fetch_min(number, Ordering::Relaxed);
                            let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            if first.as_ref().is_none_or(|(n, _)| number < *n) {
                                *first = Some((number, e));
                            }
                            break;
                        }
                        let _ = sender.send(());
                    }
                });
            }
            drop(sender);
            loop {
                match receiver.recv_timeout(TICK) {
                    Ok(()) => while receiver.try_recv().is_ok() {},
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
                if !cancelled && progress(self.done_bytes(), total).is_break() {
                    cancelled = true;
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
        if let Some((_, e)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // The first error counts.
            let _ = self.checkpoint();
            return Err(e);
        }
        if !cancelled {
            cancelled = progress(self.done_bytes(), total).is_break();
        }
        self.checkpoint()?;
        if cancelled { Err(self.cancelled()) } else { Ok(()) }
    }

    /// The error of a conversion stopped on request.
    #[must_use]
    pub fn cancelled(&self) -> ArtifactError {
        let (done, total) = (self.done_bytes(), self.plan.payload_bytes());
        ArtifactError::new(match self.journal {
            None => K::Cancelled { done, total },
            Some(_) => K::Interrupted { done, total },
        })
    }

    /// Brings all complete tensors to the disk and notes them, so that a later run with `resume` takes them over;
    /// without `resume` nothing is done. It happens by itself from time to time, at the end of [`Session::run`], and
    /// when the session is dropped, where a refusal goes unheard.
    ///
    /// # Errors
    /// The operating system's refusals.
    pub fn checkpoint(&self) -> Result<(), ArtifactError> {
        match &self.journal {
            Some(journal) => journal.flush(),
            None => Ok(()),
        }
    }

    fn unit(
        &self,
        tensor: usize,
        rows: &Range<u64>,
        buffers: &mut Buffers,
        (held, worker): (&[AtomicU64], usize),
    ) -> Result<(), ArtifactError> {
        let t = &self.plan.tensors[tensor];
        let need = Need::of(&self.plan, t, rows.end - rows.start).unwrap_or_default();
        let limit = (self.memory / self.threads as u64).saturating_sub(DIGEST as u64);
        let held_now = buffers.fit(&need, limit).map_err(|e| self.plan.placed(t, rows, e))?;
        let now = held_now + DIGEST as u64;
        held[worker].store(now, Ordering::Relaxed);
        let all = held.iter().map(|h| h.load(Ordering::Relaxed)).sum();
        self.peak.fetch_max(all, Ordering::Relaxed);
        let dispatch = Dispatch { isa: self.options.isa, threads: Some(1) };
        self.plan.encode_into(tensor, rows.clone(), &dispatch, buffers)?;
        let statistics = std::mem::take(&mut buffers.out.statistics);
        let result = self.store(tensor, rows, &buffers.out.payload, &statistics);
        buffers.out.statistics = statistics;
        result
    }

    /// Writes rows that [`RecipePlan::encode`] worked out, from any thread, in any order; each row once.
    ///
    /// # Errors
    /// Rows outside the tensor or written before, words that are not those rows of its format; refusals of the
    /// operating system.
    pub fn store(
        &self,
        tensor: usize,
        rows: &Range<u64>,
        payload: &[u8],
        statistics: &[RowStatistics],
    ) -> Result<(), ArtifactError> {
        let t = self.plan.tensor(tensor)?;
        self.store_rows(tensor, t, rows, payload, statistics).map_err(|e| self.plan.placed(t, rows, e))
    }

    fn store_rows(
        &self,
        tensor: usize,
        t: &PlannedTensor,
        rows: &Range<u64>,
        payload: &[u8],
        statistics: &[RowStatistics],
    ) -> Result<(), ArtifactError> {
        let n = rows.end.saturating_sub(rows.start);
        let k = t.k();
        let outside =
            || ArtifactError::new(K::SourceRows { begin: rows.start, end: rows.end, rows: t.rows() });
        if n == 0 || rows.end > t.rows() || (t.format == FormatId::Nvfp4 && !rows.start.is_multiple_of(TILE))
        {
            return Err(outside());
        }
        let format = |e: FormatError| ArtifactError::new(K::Format(e));
        TensorView::new(t.format, &[n, k], 1, payload).map_err(format)?;
        if t.is_encoded() && t.format != FormatId::Int32 && statistics.len() as u64 != n {
            let (what, unit) = ("the statistics", "rows");
            let actual = statistics.len() as u64;
            return Err(format(FormatError::BufferSize { what, unit, expected: n, actual }));
        }
        let (Some((from, _)), Some((to, _))) = (planes(t.format, n, k), planes(t.format, t.rows(), k)) else {
            return Err(outside());
        };
        for (from, to) in from.iter().zip(&to) {
            let bytes = (from.at as usize)..(from.at + n * from.row) as usize;
            self.writer.write_at(tensor, to.at + rows.start * to.row, &payload[bytes])?;
        }
        let mut state = self.state(tensor);
        state.rows += n;
        if !statistics.is_empty() {
            state.fold.add(rows.start, statistics.to_vec());
        }
        let complete = state.rows == t.rows();
        drop(state);
        if !complete {
            // The divisors and gaps count when they are written.
            let written: u64 = from.iter().map(|p| n * p.row).sum();
            self.done_bytes.fetch_add(written, Ordering::Relaxed);
            return Ok(());
        }
        let already: u64 = to.iter().map(|p| (t.rows() - n) * p.row).sum();
        self.complete(tensor, t, None)?;
        self.done_bytes.fetch_add(t.bytes - already.min(t.bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Writes the whole payload of a tensor, for the caller's own methods: checked against the rules of its format,
    /// and compared with the source's values for the statistics.
    ///
    /// # Errors
    /// As [`Session::store`]; the first word that breaks a rule of the format.
    pub fn store_payload(&self, tensor: usize, payload: &[u8]) -> Result<(), ArtifactError> {
        let t = self.plan.tensor(tensor)?;
        let format = |e: FormatError| self.plan.of_payload(t, e);
        let view = TensorView::new(t.format, &t.shape, t.divisors, payload).map_err(format)?;
        view.validate().map_err(format)?;
        let k = t.k();
        let mut buffers = Buffers::default();
        let mut kept = None;
        let dispatch = Dispatch { isa: self.options.isa, threads: Some(1) };
        for rows in units(&self.plan, t, self.most_rows[tensor]) {
            let (_, piece, source_rows) = piece_of(t, &rows)?;
            let part = view.row_range(rows.start as usize, rows.end as usize).map_err(format)?;
            let mut statistics = Vec::new();
            if t.format != FormatId::Int32 {
                buffers.values.resize(((rows.end - rows.start) * k) as usize, 0.0);
                self.plan.values(tensor, rows.clone(), &mut buffers.values)?;
                let weights = importance(&self.plan, piece, source_rows.start, tensor, &mut kept);
                compare(&part, &buffers.values, weights, &dispatch, &mut statistics)
                    .map_err(|e| self.plan.placed(t, &rows, e))?;
            }
            self.state(tensor).fold.add(rows.start, statistics);
        }
        let Some((to, divisors_at)) = planes(t.format, t.rows(), k) else {
            return Err(ArtifactError::new(K::TooLarge { bytes: t.bytes }).in_object(&t.name));
        };
        for plane in to {
            let bytes = (plane.at as usize)..(plane.at + t.rows() * plane.row) as usize;
            self.writer.write_at(tensor, plane.at, &payload[bytes])?;
        }
        self.complete(tensor, t, payload.get(divisors_at as usize..))?;
        self.done_bytes.fetch_add(t.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Writes what is not rows, and takes the digest. `divisors` are given, or the source's.
    fn complete(
        &self,
        tensor: usize,
        t: &PlannedTensor,
        divisors: Option<&[u8]>,
    ) -> Result<(), ArtifactError> {
        let (rows, k) = (t.rows(), t.k());
        let Some((planes, divisors_at)) = planes(t.format, rows, k) else {
            return Err(ArtifactError::new(K::TooLarge { bytes: t.bytes }).in_object(&t.name));
        };
        for (at, len) in gaps(&planes, rows) {
            self.writer.leave_zero(tensor, at, len)?;
        }
        if t.format == FormatId::Nvfp4 {
            let words = match divisors {
                Some(words) => words.to_vec(),
                None => {
                    let dispatch = Dispatch { isa: self.options.isa, threads: Some(1) };
                    self.plan.divisor_words(tensor, &dispatch)?
                }
            };
            self.writer.write_at(tensor, divisors_at, &words)?;
        }
        let sha256 = self.digest(tensor)?;
        self.writer.write_out(tensor);
        let weighted = t.pieces.iter().all(|p| p.importance.is_some());
        let mut state = self.state(tensor);
        state.rows = rows;
        let statistics = (t.is_encoded() && t.format != FormatId::Int32)
            .then(|| state.fold.finish(t.elements(), weighted));
        state.done = Some(Done { sha256: sha256.clone(), statistics });
        drop(state);
        match &self.journal {
            Some(journal) => journal.note(Entry { tensor, sha256, statistics }, t.bytes),
            None => Ok(()),
        }
    }

    fn digest(&self, tensor: usize) -> Result<String, ArtifactError> {
        let bytes = self.plan.tensor(tensor)?.bytes;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; DIGEST.min(usize::try_from(bytes).unwrap_or(DIGEST))];
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(buffer.len() as u64) as usize;
            self.writer.read_at(tensor, at, &mut buffer[..len])?;
            hasher.update(&buffer[..len]);
            at += len as u64;
        }
        Ok(hex(&hasher.finalize()))
    }

    /// Writes the resources and the provenance with its statistics, checks that everything is complete, and publishes
    /// the artifact.
    ///
    /// # Errors
    /// A source that changed meanwhile; those of [`ArtifactWriter::finish`].
    pub fn finish(mut self) -> Result<Converted, ArtifactError> {
        self.plan.source.check_unchanged()?;
        for (i, resource) in self.plan.resources.iter().enumerate() {
            let position = self.plan.source.resources().iter().position(|r| r.role == resource.role);
            let bytes = self.plan.source.resource(position.unwrap_or(usize::MAX))?;
            self.writer.write_at(self.plan.tensors.len() + i, 0, &bytes)?;
        }
        let mut done: HashMap<usize, Done> = HashMap::new();
        for (i, state) in self.states.iter_mut().enumerate() {
            if let Some(found) = state.get_mut().unwrap_or_else(PoisonError::into_inner).done.take() {
                done.insert(i, found);
            }
        }
        let statistics: HashMap<usize, Json> =
            done.iter().filter_map(|(i, d)| Some((*i, d.statistics?.to_json()))).collect();
        self.writer.set_provenance(self.plan.provenance(&statistics)?)?;
        let peak_memory = self.peak_memory();
        let isa = match self.options.isa {
            Some(isa) => isa,
            None => ninfer_simd_ops::isa::active()?,
        };
        if self.journal.is_some() && done.len() < self.states.len() {
            // Nothing is lost by an attempt to finish early.
            return Err(self.cancelled());
        }
        let written = self.writer.finish()?;
        if let Some(journal) = self.journal {
            journal.remove();
        }
        let (plan, threads, resumed) = (self.plan, self.threads, self.resumed);
        Ok(Converted { written, plan, done, isa, threads, peak_memory, resumed })
    }

    /// Removes what an interrupted conversion would leave to be resumed.
    pub fn discard(mut self) {
        self.writer.discard();
        if let Some(journal) = self.journal {
            journal.remove();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads, and most rows of a unit of each tensor, so that all units together stay within the budget. Fewer threads
/// where one row is too much for as many.
fn share(plan: &RecipePlan, memory: u64, wanted: usize) -> Result<(usize, Vec<u64>), ArtifactError> {
    let mut most = 1;
    // The tensor that needs most, if that is too much: what it needs is the least budget.
    let mut largest: Option<(u64, &'static str, &PlannedTensor)> = None;
    for t in &plan.tensors {
        let need = Need::of(plan, t, least_rows(t)).map_or(u64::MAX, |n| n.total());
        let need = need.saturating_add(DIGEST as u64);
        let callable = matches!(t.method, MethodUsed::Callable(_));
        // A method of the caller's gets all values of the tensor at once and gives the whole payload.
        let need = if callable {
            t.elements().saturating_mul(4).saturating_add(t.bytes).saturating_add(need)
        } else {
            need
        };
        if need > memory && largest.is_none_or(|(n, ..)| need > n) {
            let what = match t.format {
                _ if callable => "the whole",
                FormatId::Nvfp4 => "a tile of 128 rows",
                _ => "one row",
            };
            largest = Some((need, what, t));
        }
        if !callable {
            most = most.max(need);
        }
    }
    if let Some((needed, what, t)) = largest {
        let kind = K::Memory { budget: memory, needed, fixed: SCRATCH + DIGEST as u64, what };
        return Err(ArtifactError::new(kind).in_object(&t.name));
    }
    let threads = wanted.min(usize::try_from(memory / most).unwrap_or(usize::MAX)).max(1);
    let budget = (memory / threads as u64 - DIGEST as u64).min(UNIT);
    let rows = plan.tensors.iter().map(|t| {
        // Needs grow with rows: search for the most that fit.
        let least = least_rows(t);
        let fits = |n: u64| {
            n.checked_mul(least)
                .and_then(|rows| Need::of(plan, t, rows))
                .is_some_and(|need| need.total() <= budget)
        };
        let (mut low, mut high) = (1, t.rows().div_ceil(least).max(1));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low * least
    });
    Ok((threads, rows.collect()))
}

fn least_rows(t: &PlannedTensor) -> u64 {
    if t.format == FormatId::Nvfp4 { TILE } else { 1 }
}
