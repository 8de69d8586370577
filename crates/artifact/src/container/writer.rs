//! Streaming payloads into a planned artifact, and publishing it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::coverage::Coverage;
use super::header;
use super::json::Json;
use super::model::Span;
use super::plan::Layout;
use super::temp::{TempFile, directory_of, kept_path, sync_directory};
use super::writeback::WriteBack;
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Bytes moved at a time between files.
const CHUNK: usize = 1 << 20;

/// Writes the payloads of a planned artifact.
///
/// Each object receives its bytes front to back ([`ArtifactWriter::write`]) or anywhere, from any thread
/// ([`ArtifactWriter::write_at`]), in as many pieces as the caller likes but each byte once; objects may come in any
/// order or interleaved. Memory does not grow with the artifact. The artifact appears under its name in
/// [`ArtifactWriter::finish`], complete and never in place of another file; dropping the writer before, in a panic
/// too, removes everything it created.
#[derive(Debug)]
pub struct ArtifactWriter {
    layout: Layout,
    temps: Vec<TempFile>,
    file_bytes: Vec<u64>,
    // End of what was appended to each object.
    appended: Vec<u64>,
    coverage: Mutex<Vec<Coverage>>,
    write_back: WriteBack,
    failed: AtomicBool,
}

/// Gaps are never written: a file of the right length reads as zeros.
fn set_length(temp: &TempFile, bytes: u64) -> Result<(), ArtifactError> {
    let fail = |e| ArtifactError::io("cannot give the file its length", e).with_path(temp.target());
    temp.file().set_len(bytes).map_err(fail)
}

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The files; the entry comes first.
    pub files: Vec<PathBuf>,
    /// Bytes of all files together.
    pub bytes: u64,
    /// The artifact's id.
    pub artifact_id: [u8; 16],
}

impl ArtifactWriter {
    pub(super) fn new(layout: Layout) -> Result<Self, ArtifactError> {
        let mut temps = Vec::new();
        for (path, bytes) in layout.files() {
            let temp = TempFile::create(&path)?;
            set_length(&temp, bytes)?;
            temps.push(temp);
        }
        Ok(Self::with_files(layout, temps))
    }

    /// A writer whose temporary files have names and stay when it is dropped unfinished. If `continued`, those that
    /// are there must have their lengths (or none, just after they were created); else none may be there.
    pub(crate) fn resumable(layout: Layout, continued: bool) -> Result<Self, ArtifactError> {
        let mut temps: Vec<TempFile> = Vec::new();
        for (path, bytes) in layout.files() {
            let temp = Self::kept(&path, bytes, continued).inspect_err(|_| {
                if !continued {
                    temps.iter_mut().for_each(TempFile::discard);
                }
            })?;
            temps.push(temp);
        }
        Ok(Self::with_files(layout, temps))
    }

    fn kept(target: &Path, bytes: u64, continued: bool) -> Result<TempFile, ArtifactError> {
        let there = continued && kept_path(target).symlink_metadata().is_ok();
        let mut temp = TempFile::kept(target, there)?;
        let fail = |e| ArtifactError::io("cannot read the file's length", e).with_path(target);
        let found = temp.file().metadata().map_err(fail)?.len();
        if there && found != 0 && found != bytes {
            let kind = K::FileLength { found, wanted: bytes };
            return Err(ArtifactError::new(kind).with_path(temp.path()));
        }
        set_length(&temp, bytes).inspect_err(|_| {
            if !there {
                temp.discard();
            }
        })?;
        Ok(temp)
    }

    /// Handles of the temporary files.
    pub(crate) fn handles(&self) -> Result<Vec<File>, ArtifactError> {
        let handle = |temp: &TempFile| {
            let fail = |e| ArtifactError::io("cannot open once more", e).with_path(temp.path());
            temp.file().try_clone().map_err(fail)
        };
        self.temps.iter().map(handle).collect()
    }

    fn with_files(layout: Layout, temps: Vec<TempFile>) -> Self {
        let file_bytes = layout.files().into_iter().map(|(_, bytes)| bytes).collect();
        let objects = layout.directory().objects().len();
        Self {
            layout,
            temps,
            file_bytes,
            appended: vec![0; objects],
            coverage: Mutex::new(vec![Coverage::default(); objects]),
            write_back: WriteBack::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// The plan being written.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Position of an object in the plan.
    ///
    /// # Errors
    /// No such object.
    pub fn index_of(&self, id: &str) -> Result<usize, ArtifactError> {
        let directory = self.layout.directory();
        let offset = directory.object(id).map_err(|e| e.with_path(self.layout.target()))?.offset;
        Ok(directory.objects().partition_point(|o| o.offset < offset))
    }

    /// Appends `bytes` to the object with this id.
    ///
    /// # Errors
    /// No such object; more bytes than planned (nothing of `bytes` is written); the operating system's refusals.
    pub fn write(&mut self, id: &str, bytes: &[u8]) -> Result<(), ArtifactError> {
        let index = self.index_of(id)?;
        self.append(index, bytes)
    }

    /// Appends to the object at position `index` of the plan.
    ///
    /// # Errors
    /// As [`ArtifactWriter::write`].
    pub fn append(&mut self, index: usize, bytes: &[u8]) -> Result<(), ArtifactError> {
        let spans = self.reserve_spans(index, bytes.len() as u64)?;
        let mut rest = bytes;
        for span in spans {
            let (head, tail) = rest.split_at(span.len as usize);
            self.put(span, |mut file| file.write_all(head))?;
            rest = tail;
        }
        self.appended(index, bytes.len() as u64)
    }

    /// Writes `bytes` at `offset` within the object at position `index` of the plan, from any thread. No byte may be
    /// written twice.
    ///
    /// # Errors
    /// Bytes outside the object or written before (nothing is written then); the operating system's refusals.
    pub fn write_at(&self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), ArtifactError> {
        let len = bytes.len() as u64;
        let spans = self.spans_at(index, offset, len)?;
        self.cover(index, offset, len)?;
        let mut rest = bytes;
        for span in spans {
            let (head, tail) = rest.split_at(span.len as usize);
            let temp = &self.temps[span.file];
            temp.write_at(span.offset, head).map_err(|e| {
                self.failed.store(true, Ordering::Relaxed);
                ArtifactError::io("cannot write", e).with_path(temp.target())
            })?;
            rest = tail;
        }
        Ok(())
    }

    /// Leaves the `len` bytes at `offset` within the object zero, as the files begin: they count as written.
    ///
    /// # Errors
    /// As [`ArtifactWriter::write_at`].
    pub fn leave_zero(&self, index: usize, offset: u64, len: u64) -> Result<(), ArtifactError> {
        self.spans_at(index, offset, len)?;
        self.cover(index, offset, len)
    }

    /// Reads bytes of an object back, as far as they were written.
    ///
    /// # Errors
    /// Bytes outside the object; the operating system's refusals.
    pub fn read_at(&self, index: usize, offset: u64, out: &mut [u8]) -> Result<(), ArtifactError> {
        let mut rest = out;
        for span in self.spans_at(index, offset, rest.len() as u64)? {
            let (head, tail) = rest.split_at_mut(span.len as usize);
            let temp = &self.temps[span.file];
            temp.read_at(span.offset, head)
                .map_err(|e| ArtifactError::io("cannot read back", e).with_path(temp.target()))?;
            rest = tail;
        }
        Ok(())
    }

    /// Waits until everything written so far is on the disk.
    ///
    /// # Errors
    /// The operating system's refusals.
    pub fn synchronize(&self) -> Result<(), ArtifactError> {
        for temp in &self.temps {
            temp.file()
                .sync_data()
                .map_err(|e| ArtifactError::io("cannot write to disk", e).with_path(temp.target()))?;
        }
        Ok(())
    }

    /// Lets the system begin to write an object's bytes out and forget them, so that the last synchronisation does
    /// not find everything still in memory. Advice: nothing depends on it.
    pub(crate) fn write_out(&self, index: usize) {
        if let Some(object) = self.layout.directory().objects().get(index)
            && let Ok(spans) = self.spans_at(index, 0, object.bytes)
        {
            for span in spans {
                super::writeback::start(self.temps[span.file].file(), span.offset, span.len);
            }
        }
    }

    /// Makes the temporary files disappear even though they would be kept.
    pub(crate) fn discard(&mut self) {
        self.temps.iter_mut().for_each(TempFile::discard);
    }

    fn covered(&self) -> MutexGuard<'_, Vec<Coverage>> {
        // Nothing panics while holding it.
        self.coverage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cover(&self, index: usize, offset: u64, len: u64) -> Result<(), ArtifactError> {
        let mut covered = self.covered();
        let Some(coverage) = covered.get_mut(index) else { return Ok(()) };
        coverage.add(offset, offset.saturating_add(len)).map_err(|byte| {
            let id = &self.layout.directory().objects()[index].id;
            ArtifactError::new(K::WrittenTwice { byte }).in_object(id).with_path(self.layout.target())
        })
    }

    fn appended(&mut self, index: usize, len: u64) -> Result<(), ArtifactError> {
        self.cover(index, self.appended[index], len)?;
        self.appended[index] += len;
        Ok(())
    }

    /// Appends everything that `source` gives until the object is complete; `source` is not read further. For
    /// sources of exactly the object's size.
    ///
    /// # Errors
    /// A source that ends early, and as [`ArtifactWriter::write`].
    pub fn fill(&mut self, id: &str, source: &mut impl Read) -> Result<(), ArtifactError> {
        let index = self.index_of(id)?;
        let planned = self.layout.directory().objects()[index].bytes;
        let mut buffer = vec![0; CHUNK.min(usize::try_from(planned).unwrap_or(CHUNK))];
        while self.appended[index] < planned {
            let want = (planned - self.appended[index]).min(buffer.len() as u64) as usize;
            let got = loop {
                match source.read(&mut buffer[..want]) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            let got = got.map_err(|e| ArtifactError::io("cannot read the source", e).in_object(id))?;
            if got == 0 {
                let kind = K::SourceShort { written: self.appended[index], planned };
                return Err(ArtifactError::new(kind).in_object(id));
            }
            self.append(index, &buffer[..got])?;
        }
        Ok(())
    }

    /// Appends `len` bytes of `source` from `offset` on, through the operating system's own copy between files where
    /// it has one.
    ///
    /// # Errors
    /// A source that ends early, and as [`ArtifactWriter::write`].
    pub fn copy_from(
        &mut self,
        index: usize,
        source: &File,
        offset: u64,
        len: u64,
    ) -> Result<(), ArtifactError> {
        let id = self.layout.directory().objects().get(index).map(|o| o.id.clone()).unwrap_or_default();
        let mut at = offset;
        for span in self.reserve_spans(index, len)? {
            let mut from = source;
            let seek = from.seek(SeekFrom::Start(at));
            seek.map_err(|e| ArtifactError::io("cannot read the source", e).in_object(&id))?;
            let mut copied = 0;
            self.put(span, |mut file| {
                copied = io::copy(&mut from.take(span.len), &mut file)?;
                Ok(())
            })?;
            self.appended(index, copied)?;
            if copied < span.len {
                let planned = self.layout.directory().objects()[index].bytes;
                let kind = K::SourceShort { written: self.appended[index], planned };
                return Err(ArtifactError::new(kind).in_object(&id));
            }
            at += span.len;
        }
        Ok(())
    }

    /// Where the next `len` bytes of the object go.
    fn reserve_spans(&self, index: usize, len: u64) -> Result<Vec<Span>, ArtifactError> {
        self.spans_at(index, self.appended.get(index).copied().unwrap_or(0), len)
    }

    /// Where the `len` bytes at `offset` within the object go.
    fn spans_at(&self, index: usize, offset: u64, len: u64) -> Result<Vec<Span>, ArtifactError> {
        let directory = self.layout.directory();
        let Some(object) = directory.objects().get(index) else {
            let kind = K::NoObject { id: format!("#{index}"), objects: directory.objects().len() };
            return Err(ArtifactError::new(kind).with_path(self.layout.target()));
        };
        let remaining = object.bytes.saturating_sub(offset);
        if len > remaining {
            let kind = K::TooManyBytes { given: len, remaining, planned: object.bytes };
            return Err(ArtifactError::new(kind).in_object(&object.id).with_path(self.layout.target()));
        }
        let begin = object.offset + offset.min(object.bytes);
        directory.spans(begin, begin + len)
    }

    fn put(&mut self, span: Span, write: impl FnOnce(&File) -> io::Result<()>) -> Result<(), ArtifactError> {
        let temp = &self.temps[span.file];
        let mut file = temp.file();
        self.write_back.will_write(span.file, file, span.offset, span.len, self.file_bytes[span.file]);
        let result = file.seek(SeekFrom::Start(span.offset)).and_then(|_| write(file));
        if let Err(e) = result {
            self.failed.store(true, Ordering::Relaxed);
            return Err(ArtifactError::io("cannot write", e).with_path(temp.target()));
        }
        self.write_back.wrote(file, span.offset + span.len);
        Ok(())
    }

    /// Replaces the provenance, within the space that [`ArtifactPlan::reserve`](super::ArtifactPlan::reserve) kept.
    ///
    /// # Errors
    /// A value that is not an object or breaks another rule of the directory; one that does not fit.
    pub fn set_provenance(&mut self, provenance: Json) -> Result<(), ArtifactError> {
        self.layout.set_provenance(&provenance)
    }

    /// Checks that every object is complete, writes the headers, waits until everything is on the disk, and
    /// publishes the parts and then the entry.
    ///
    /// # Errors
    /// An incomplete object; a target that appeared meanwhile; the operating system's refusals. Whatever this writer
    /// created is removed.
    pub fn finish(mut self) -> Result<Written, ArtifactError> {
        let result = self.complete();
        if result.is_err() {
            self.temps.iter_mut().for_each(TempFile::withdraw);
        }
        result
    }

    fn complete(&mut self) -> Result<Written, ArtifactError> {
        self.check_coverage()?;
        let directory = self.layout.directory();
        let artifact_id = directory.artifact_id();
        let entry_header = self.layout.header();
        let files = self.layout.files();
        for (index, (temp, (path, bytes))) in self.temps.iter().zip(&files).enumerate() {
            let fail = |what| move |e| ArtifactError::io(what, e).with_path(path);
            let mut file = temp.file();
            file.seek(SeekFrom::Start(0)).map_err(fail("cannot write"))?;
            if index == 0 {
                file.write_all(&entry_header).map_err(fail("cannot write"))?;
            } else {
                let prefix = header::part_prefix(index as u64, artifact_id);
                file.write_all(&prefix).map_err(fail("cannot write"))?;
            }
            let found = file.metadata().map_err(fail("cannot read the file's length"))?.len();
            if found != *bytes {
                return Err(ArtifactError::new(K::FileLength { found, wanted: *bytes }).with_path(path));
            }
            file.sync_all().map_err(fail("cannot write to disk"))?;
        }
        let (entry, parts) = self
            .temps
            .split_first_mut()
            .ok_or_else(|| ArtifactError::new(K::TargetPath { problem: "leads to no file" }))?;
        for part in parts {
            part.publish()?;
        }
        let parent = directory_of(self.layout.target());
        if files.len() > 1 {
            // The entry must not survive a power cut without its parts.
            sync_directory(parent);
        }
        entry.publish()?;
        sync_directory(parent);
        let bytes = self.layout.total_bytes();
        Ok(Written { files: files.into_iter().map(|(path, _)| path).collect(), bytes, artifact_id })
    }

    fn check_coverage(&self) -> Result<(), ArtifactError> {
        let path = self.layout.target();
        if self.failed.load(Ordering::Relaxed) {
            let e = io::Error::other("an earlier write failed");
            return Err(ArtifactError::io("cannot finish", e).with_path(path));
        }
        let objects = self.layout.directory().objects();
        let covered = self.covered();
        let open = || objects.iter().zip(covered.iter().map(Coverage::bytes)).filter(|(o, w)| o.bytes != *w);
        match open().next() {
            None => Ok(()),
            Some((first, written)) => {
                let kind = K::Coverage {
                    incomplete: open().count(),
                    objects: objects.len(),
                    written,
                    planned: first.bytes,
                };
                Err(ArtifactError::new(kind).in_object(&first.id).with_path(path))
            }
        }
    }
}
