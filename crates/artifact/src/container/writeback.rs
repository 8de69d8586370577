//! Starting the disk early.
//!
//! A written file must be on the disk before it is published. If nothing asks for that sooner, the operating system
//! keeps what it was given in memory, and the final wait takes as long as the writing did. Linux begins to write a
//! range out, without waiting, when it is told that the range is not needed in memory; pages that are still being
//! written stay there. Whether the data are safe is decided by the final synchronisation alone; this only makes it
//! short.

use std::fs::File;

/// Bytes written in one run between two requests.
const STEP: u64 = 4 << 20;

/// The run of bytes written last.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    file: usize,
    begin: u64,
    end: u64,
}

impl WriteBack {
    /// Notes that `len` bytes were written to file number `index` at `offset`.
    pub(super) fn wrote(&mut self, index: usize, file: &File, offset: u64, len: u64) {
        if (index, offset) != (self.file, self.end) {
            (self.file, self.begin) = (index, offset);
        }
        self.end = offset.saturating_add(len);
        if self.end - self.begin >= STEP {
            start(file, self.begin, self.end - self.begin);
            self.begin = self.end;
        }
    }
}

#[cfg(target_os = "linux")]
fn start(file: &File, offset: u64, len: u64) {
    // Advice: a file system that does not take it writes everything at the end.
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn start(_: &File, _: u64, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_per_file_and_place() {
        let file = tempfile::tempfile().unwrap();
        let mut w = WriteBack::default();
        for (index, offset, len, begin, end) in [
            (0, 4096, STEP - 1, 4096, 4096 + STEP - 1),
            // One byte more and the run has been asked for.
            (0, 4095 + STEP, 1, 4096 + STEP, 4096 + STEP),
            (0, 4096 + STEP, 5, 4096 + STEP, 4101 + STEP),
            // Elsewhere, and in another file, a new run begins.
            (0, 0, 7, 0, 7),
            (1, 7, 9, 7, 16),
            (1, 16, 3 * STEP, 16 + 3 * STEP, 16 + 3 * STEP),
        ] {
            w.wrote(index, &file, offset, len);
            assert_eq!((w.file, w.begin, w.end), (index, begin, end));
        }
    }
}
