//! Writing a planned file: the header, then the data of each tensor in order, streamed.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::atomic::AtomicFile;
use crate::error::{GgufError, GgufErrorKind as K};
use crate::plan::{GgufLayout, PlannedTensor};
use crate::text::GgufStr;

static ZEROS: [u8; 4096] = [0; 4096];

/// Writes a planned GGUF file to any [`Write`]. Every tensor must receive exactly its bytes, in the plan's order;
/// memory does not grow with the size of the data.
///
/// After any error the output is incomplete and the writer refuses to go on.
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    sink: W,
    layout: GgufLayout,
    // The tensor that is next, or open.
    next: usize,
    // Bytes received by the open tensor; `None` between tensors.
    received: Option<u64>,
    failed: bool,
    path: Option<PathBuf>,
}

impl GgufWriter<AtomicFile> {
    /// Starts a file on disk: written under a temporary name, complete or absent, never overwriting; see
    /// [`AtomicFile`]. Ends with [`publish`](Self::publish).
    ///
    /// # Errors
    /// As [`AtomicFile::create`], and `Io`.
    pub fn create(path: impl AsRef<Path>, layout: GgufLayout) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let mut writer = Self::start(AtomicFile::create(path)?, layout, Some(path.to_path_buf()));
        writer.header()?;
        Ok(writer)
    }

    /// Checks that every tensor has its data, writes everything to the disk and gives the file its name.
    ///
    /// # Errors
    /// As [`GgufWriter::finish`] and [`AtomicFile::publish`]; the temporary file is removed.
    pub fn publish(self) -> Result<(), GgufError> {
        self.finish()?.publish()
    }
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header to `sink`. Small pieces are written as they come: give a buffered sink.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(sink: W, layout: GgufLayout) -> Result<Self, GgufError> {
        let mut writer = Self::start(sink, layout, None);
        writer.header()?;
        Ok(writer)
    }

    fn start(sink: W, layout: GgufLayout, path: Option<PathBuf>) -> Self {
        Self { sink, layout, next: 0, received: None, failed: false, path }
    }

    fn header(&mut self) -> Result<(), GgufError> {
        let written = self.sink.write_all(self.layout.header());
        self.io(written)?;
        self.pad(self.layout.data_start() - self.layout.header().len() as u64)
    }

    /// The plan being written.
    #[must_use]
    pub fn layout(&self) -> &GgufLayout {
        &self.layout
    }

    /// The tensor whose data is wanted next; `None` after the last.
    #[must_use]
    pub fn next_tensor(&self) -> Option<&PlannedTensor> {
        self.layout.tensors().get(self.next)
    }

    /// Writes the whole data of the next tensor.
    ///
    /// # Errors
    /// `WriteOrder` if `name` is not the next tensor, `WriteLength` if `data` has another length than planned (both
    /// before anything is written), `Io`, `WriterFailed`.
    pub fn tensor(&mut self, name: impl AsRef<[u8]>, data: &[u8]) -> Result<(), GgufError> {
        let planned = self.check_next(name.as_ref())?;
        if data.len() as u64 != planned {
            return Err(self.length_error(data.len() as u64));
        }
        self.begin(name)?;
        self.push(data)?;
        self.end()
    }

    /// Writes the data of the next tensor from a callback that is given a place to push chunks to. The callback's
    /// error, if any, is passed on.
    ///
    /// # Errors
    /// As [`GgufWriter::begin`], [`GgufWriter::push`] and [`GgufWriter::end`], and those of the callback.
    pub fn tensor_with<E: From<GgufError>>(
        &mut self,
        name: impl AsRef<[u8]>,
        mut fill: impl FnMut(&mut TensorSink<'_, W>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.begin(name)?;
        if let Err(e) = fill(&mut TensorSink { writer: self }) {
            self.failed = true;
            return Err(e);
        }
        Ok(self.end()?)
    }

    /// Opens the next tensor for [`push`](Self::push).
    ///
    /// # Errors
    /// `WriteOrder` if `name` is not the next tensor or a tensor is still open, `WriterFailed`.
    pub fn begin(&mut self, name: impl AsRef<[u8]>) -> Result<(), GgufError> {
        self.check_next(name.as_ref())?;
        self.received = Some(0);
        Ok(())
    }

    /// Appends bytes to the open tensor.
    ///
    /// # Errors
    /// `WriteLength` if they are more than planned (nothing of `data` is written), `WriteOrder` if no tensor is
    /// open, `Io`, `WriterFailed`.
    pub fn push(&mut self, data: &[u8]) -> Result<(), GgufError> {
        self.check_usable()?;
        let (Some(received), Some(t)) = (self.received, self.next_tensor()) else {
            return Err(self.fail(K::WriteOrder { next: self.next_name() }));
        };
        let sum = received.saturating_add(data.len() as u64);
        if sum > t.bytes {
            return Err(self.length_error(sum));
        }
        let written = self.sink.write_all(data);
        self.io(written)?;
        self.received = Some(sum);
        Ok(())
    }

    /// Closes the open tensor and pads it to the alignment.
    ///
    /// # Errors
    /// `WriteLength` if it has fewer bytes than planned, `WriteOrder` if no tensor is open, `Io`, `WriterFailed`.
    pub fn end(&mut self) -> Result<(), GgufError> {
        self.check_usable()?;
        let (Some(received), Some(t)) = (self.received, self.next_tensor()) else {
            return Err(self.fail(K::WriteOrder { next: self.next_name() }));
        };
        let bytes = t.bytes;
        if received != bytes {
            return Err(self.length_error(received));
        }
        // Below 2^62 by the plan.
        self.pad(bytes.next_multiple_of(self.layout.alignment().into()) - bytes)?;
        self.received = None;
        self.next += 1;
        Ok(())
    }

    /// Checks that every tensor has its data, flushes and returns the sink.
    ///
    /// # Errors
    /// `WriteIncomplete`, `Io`, `WriterFailed`.
    pub fn finish(mut self) -> Result<W, GgufError> {
        self.check_usable()?;
        let planned = self.layout.tensors().len() as u64;
        let missing = planned - self.next as u64;
        if missing > 0 || self.received.is_some() {
            let e = self.fail(K::WriteIncomplete { missing, planned });
            return Err(match self.next_tensor() {
                Some(t) => e.in_tensor(&t.name),
                None => e,
            });
        }
        let flushed = self.sink.flush();
        self.io(flushed)?;
        Ok(self.sink)
    }

    fn check_usable(&self) -> Result<(), GgufError> {
        if self.failed { Err(self.error(K::WriterFailed)) } else { Ok(()) }
    }

    /// Bytes of the next tensor, if it is `name` and no other is open.
    fn check_next(&mut self, name: &[u8]) -> Result<u64, GgufError> {
        self.check_usable()?;
        match self.next_tensor() {
            Some(t) if t.name == name && self.received.is_none() => Ok(t.bytes),
            _ => {
                let next = match self.received {
                    Some(_) => format!("the rest of {}", self.next_name()),
                    None => self.next_name(),
                };
                Err(self.fail(K::WriteOrder { next }).in_tensor(name))
            }
        }
    }

    fn next_name(&self) -> String {
        self.next_tensor().map_or_else(|| "the end".to_owned(), |t| format!("{:?}", GgufStr(&t.name)))
    }

    fn length_error(&mut self, found: u64) -> GgufError {
        self.failed = true;
        match self.layout.tensors().get(self.next) {
            Some(t) => self.error(K::WriteLength { found, wanted: t.bytes }).in_tensor(&t.name),
            None => self.error(K::WriteLength { found, wanted: 0 }),
        }
    }

    fn pad(&mut self, mut bytes: u64) -> Result<(), GgufError> {
        while bytes > 0 {
            let n = bytes.min(ZEROS.len() as u64);
            let written = self.sink.write_all(&ZEROS[..n as usize]);
            self.io(written)?;
            bytes -= n;
        }
        Ok(())
    }

    fn io(&mut self, result: std::io::Result<()>) -> Result<(), GgufError> {
        result.map_err(|source| self.fail(K::Io { what: "cannot write", source }))
    }

    fn fail(&mut self, kind: K) -> GgufError {
        self.failed = true;
        self.error(kind)
    }

    fn error(&self, kind: K) -> GgufError {
        let e = GgufError::new(kind);
        match &self.path {
            Some(path) => e.with_path(path),
            None => e,
        }
    }
}

/// Where a callback of [`GgufWriter::tensor_with`] pushes the data of its tensor.
#[derive(Debug)]
pub struct TensorSink<'a, W: Write> {
    writer: &'a mut GgufWriter<W>,
}

impl<W: Write> TensorSink<'_, W> {
    /// Appends bytes; see [`GgufWriter::push`].
    ///
    /// # Errors
    /// As [`GgufWriter::push`].
    pub fn push(&mut self, data: &[u8]) -> Result<(), GgufError> {
        self.writer.push(data)
    }
}
