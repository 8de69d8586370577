//! Keeping the disk busy while a file is written front to back.
//!
//! A file must be on the disk before it is published. If nothing asks for that sooner, the operating system keeps what
//! it was given in memory, and the final wait takes as long as the writing did. So on Linux, while bytes come in order,
//! space is reserved ahead in large pieces, and finished pieces are advised as not needed in memory, which starts
//! writing them out without waiting (pages still being written stay in memory). Whether the data are safe is decided
//! by the final synchronisation alone, and whether there is space by the writes; all this is advice.

use std::fs::File;

/// Bytes written in one run between two requests to write out.
const STEP: u64 = 4 << 20;
/// Bytes reserved ahead of a run at a time.
const AHEAD: u64 = 64 << 20;
/// Gaps below this do not end a run: objects are aligned.
const GAP: u64 = 4096;

/// The run of bytes being written.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    file: usize,
    /// Where bytes begin that nothing was asked for yet.
    begin: u64,
    end: u64,
    reserved: u64,
}

impl WriteBack {
    /// Notes that `len` bytes will be written at `offset` of file number `index`, which has `file_bytes` bytes.
    pub(super) fn will_write(&mut self, index: usize, file: &File, offset: u64, len: u64, file_bytes: u64) {
        let end = offset.saturating_add(len);
        let follows = index == self.file && offset >= self.end && offset - self.end < GAP;
        if !follows {
            // Nothing is reserved for a single write: bytes may come in any order.
            *self = Self { file: index, begin: offset, end: offset, reserved: end };
        } else if end > self.reserved {
            let upto = end.saturating_add(AHEAD).min(file_bytes);
            if upto > self.reserved {
                reserve(file, self.reserved, upto - self.reserved);
                self.reserved = upto;
            }
        }
    }

    /// Notes that the bytes of the last [`WriteBack::will_write`] were written, up to `end`.
    pub(super) fn wrote(&mut self, file: &File, end: u64) {
        self.end = end;
        if end.saturating_sub(self.begin) >= STEP {
            start(file, self.begin, end - self.begin);
            self.begin = end;
        }
    }
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, offset: u64, len: u64) {
    let _ = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len);
}

#[cfg(target_os = "linux")]
pub(super) fn start(file: &File, offset: u64, len: u64) {
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64, _: u64) {}

#[cfg(not(target_os = "linux"))]
pub(super) fn start(_: &File, _: u64, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_over_small_gaps_only() {
        let file = tempfile::tempfile().unwrap();
        let mut w = WriteBack::default();
        let all = 1 << 40;
        let mut write = |index, offset, len| {
            w.will_write(index, &file, offset, len, all);
            w.wrote(&file, offset + len);
            (w.file, w.begin, w.end, w.reserved)
        };
        // A first write is a run of its own, and reserves nothing ahead.
        assert_eq!(write(0, 4096, 100), (0, 4096, 4196, 4196));
        // What follows, over a gap of alignment too, belongs to it.
        assert_eq!(write(0, 4196 + 60, 44), (0, 4096, 4300, 4300 + AHEAD));
        assert_eq!(write(0, 4300, STEP - 205), (0, 4096, STEP + 4095, 4300 + AHEAD));
        // The step is full: begun anew.
        assert_eq!(write(0, STEP + 4095, 1), (0, STEP + 4096, STEP + 4096, 4300 + AHEAD));
        // Elsewhere, before, and in another file, a new run begins.
        assert_eq!(write(0, STEP + 4096 + GAP, 7), (0, STEP + 8192, STEP + 8199, STEP + 8199));
        assert_eq!(write(0, 0, 7), (0, 0, 7, 7));
        assert_eq!(write(1, 7, 9), (1, 7, 16, 16));
        // Long runs reserve on and on.
        assert_eq!(write(1, 16, 3 * AHEAD), (1, 16 + 3 * AHEAD, 16 + 3 * AHEAD, 16 + 4 * AHEAD));
    }

    #[test]
    fn nothing_is_reserved_beyond_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10_000).unwrap();
        let mut w = WriteBack::default();
        for offset in [0, 4000] {
            w.will_write(0, &file, offset, 4000, 10_000);
            w.wrote(&file, offset + 4000);
        }
        assert_eq!(w.reserved, 10_000);
        assert_eq!(file.metadata().unwrap().len(), 10_000);
    }
}
