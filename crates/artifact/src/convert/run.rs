//! Streaming a planned conversion to disk.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use ninfer_formats::float::f16;
use ninfer_gguf::GgufFile;

use super::metadata::section;
use super::plan::{Action, Conversion, ConvertedTensor};
use crate::container::{ArtifactWriter, Written};
use crate::error::{ArtifactError, ArtifactErrorKind as K};

/// Bytes copied between two calls of the progress callback.
const STEP: u64 = 8 << 20;
/// binary16 words widened at a time.
const WORDS: usize = 128 << 10;

impl Conversion<'_> {
    /// Writes the artifact. `progress` is told the payload bytes done and their total, first before anything is
    /// written; `Break` stops the conversion and leaves nothing behind.
    ///
    /// Memory stays at a few MiB: tensors go from file to file, never through the source's map.
    ///
    /// # Errors
    /// What [`Conversion::layout`] and [`ArtifactWriter`] refuse; a source that changed since it was planned;
    /// [`ArtifactErrorKind::Cancelled`](K::Cancelled).
    pub fn run(
        &self,
        target: impl AsRef<Path>,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Written, ArtifactError> {
        let layout = self.layout(target)?;
        let sources = self.set.shards().iter().map(open_source).collect::<Result<Vec<_>, _>>()?;
        let mut writer = layout.create()?;
        let total = self.payload_bytes();
        let mut done = 0;
        let mut step = |done: u64| match progress(done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ArtifactError::new(K::Cancelled { done, total })),
        };
        step(0)?;
        for (index, tensor) in self.tensors().iter().enumerate() {
            let source = &sources[tensor.shard];
            let fail = |e: ArtifactError| e.with_path(self.set.shards()[tensor.shard].path());
            match tensor.action {
                Action::Copy => copy(&mut writer, index, tensor, source, &mut done, &mut step),
                Action::WidenF16 => widen(&mut writer, index, tensor, source, &mut done, &mut step),
            }
            .map_err(fail)?;
        }
        for (i, resource) in self.resources().iter().enumerate() {
            let bytes = section(&self.set.shards()[resource.shard]);
            writer.append(self.tensors().len() + i, bytes)?;
            done += bytes.len() as u64;
            step(done)?;
        }
        writer.finish()
    }
}

/// Opens a source file again for reading, and makes sure that it still is the file that was planned.
fn open_source(shard: &GgufFile) -> Result<File, ArtifactError> {
    let path = shard.path();
    let fail = |e| ArtifactError::io("cannot read the source", e).with_path(path);
    let mut file = File::open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?.len();
    let wanted = shard.bytes().len() as u64;
    if found != wanted {
        return Err(ArtifactError::new(K::FileLength { found, wanted }).with_path(path));
    }
    // The path may name another file by now: its header must be the one that was planned from.
    let end = usize::try_from(shard.header().data_start()).unwrap_or(usize::MAX).min(shard.bytes().len());
    let mut buffer = vec![0; 1 << 20];
    for (i, planned) in shard.bytes()[..end].chunks(buffer.len()).enumerate() {
        let read = &mut buffer[..planned.len()];
        file.read_exact(read).map_err(fail)?;
        if read != planned {
            let offset = (i << 20) as u64;
            return Err(ArtifactError::new(K::SourceChanged).at_byte(offset).with_path(path));
        }
    }
    Ok(file)
}

type Step<'a> = &'a mut dyn FnMut(u64) -> Result<(), ArtifactError>;

fn copy(
    writer: &mut ArtifactWriter,
    index: usize,
    tensor: &ConvertedTensor,
    source: &File,
    done: &mut u64,
    step: Step<'_>,
) -> Result<(), ArtifactError> {
    let mut copied = 0;
    while copied < tensor.bytes {
        let len = STEP.min(tensor.bytes - copied);
        writer.copy_from(index, source, tensor.source_offset + copied, len)?;
        copied += len;
        *done += len;
        step(*done)?;
    }
    Ok(())
}

fn widen(
    writer: &mut ArtifactWriter,
    index: usize,
    tensor: &ConvertedTensor,
    source: &File,
    done: &mut u64,
    step: Step<'_>,
) -> Result<(), ArtifactError> {
    use std::io::{Seek, SeekFrom};
    let fail = |e| ArtifactError::io("cannot read the source", e).in_object(&tensor.name);
    let mut source = source;
    source.seek(SeekFrom::Start(tensor.source_offset)).map_err(fail)?;
    let mut halves = vec![0; 2 * WORDS];
    let mut words = Vec::with_capacity(4 * WORDS);
    let mut left = tensor.source_bytes;
    while left > 0 {
        // At most 2 * WORDS, so it fits.
        let len = left.min(2 * WORDS as u64) as usize;
        source.read_exact(&mut halves[..len]).map_err(fail)?;
        words.clear();
        for half in halves[..len].as_chunks::<2>().0 {
            words.extend_from_slice(&f16::to_f32_bits(u16::from_le_bytes(*half)).to_le_bytes());
        }
        writer.append(index, &words)?;
        left -= len as u64;
        *done += words.len() as u64;
        step(*done)?;
    }
    Ok(())
}
