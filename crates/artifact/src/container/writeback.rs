//! Starting the disk early.
//!
//! A written file must be on the disk before it is published. If nothing asks for that sooner, the operating system
//! keeps gigabytes in memory and the final wait takes as long as the writing. One thread therefore asks in the
//! background, each time a fixed amount has been written. It never decides whether the data are safe: the final
//! synchronisation does, and an error here is found again there.

use std::fs::File;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes of one file between two requests.
const STEP: u64 = 32 << 20;

#[derive(Debug)]
pub(super) struct WriteBack {
    thread: Option<(SyncSender<File>, JoinHandle<()>)>,
    pending: u64,
    file: usize,
}

impl WriteBack {
    pub(super) fn new() -> Self {
        Self { thread: None, pending: 0, file: 0 }
    }

    /// Notes that `bytes` bytes were written to file number `index`.
    pub(super) fn wrote(&mut self, index: usize, file: &File, bytes: u64) {
        if index != self.file {
            (self.file, self.pending) = (index, 0);
        }
        self.pending = self.pending.saturating_add(bytes);
        if self.pending < STEP {
            return;
        }
        let Ok(handle) = file.try_clone() else { return };
        if self.thread.is_none() {
            let (sender, receiver) = sync_channel::<File>(1);
            let work = move || {
                for file in receiver {
                    let _ = file.sync_data();
                }
            };
            let spawned = std::thread::Builder::new().name("ninfer-write-back".into()).spawn(work);
            // Without a thread everything is written at the end, only later.
            let Ok(join) = spawned else { return };
            self.thread = Some((sender, join));
        }
        if let Some((sender, _)) = &self.thread
            && sender.try_send(handle).is_ok()
        {
            self.pending = 0;
        }
    }

    /// Waits for the thread, so that no handle is open any more.
    pub(super) fn stop(&mut self) {
        if let Some((sender, join)) = self.thread.take() {
            drop(sender);
            // The thread does nothing that can panic.
            let _ = join.join();
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.stop();
    }
}
