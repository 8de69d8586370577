//! Threads: rows split into fixed contiguous parts, run by one pool of workers that the whole process shares.
//!
//! The caller's thread runs the first part itself, the pool's workers the others, so several callers at once (for
//! example threads of an interpreter) use at most one thread each beyond the machine's cores. A child process after
//! `fork` has none of its parent's workers: the pool belongs to a process id and is built anew there.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::float_mode;
use crate::error::OpError;

struct Shared {
    process: u32,
    pool: rayon::ThreadPool,
}

static CURRENT: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// This process's pool. No lock is held at any time, so a fork in the middle leaves the child nothing to wait for.
fn shared() -> Result<&'static rayon::ThreadPool, OpError> {
    let process = std::process::id();
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or comes from `Box::into_raw` below and is never freed.
    if let Some(shared) = unsafe { current.as_ref() }
        && shared.process == process
    {
        return Ok(&shared.pool);
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(cores())
        .thread_name(|i| format!("ninfer-{i}"))
        .build()
        .map_err(|error| OpError::Workers { reason: error.to_string() })?;
    let fresh = Box::into_raw(Box::new(Shared { process, pool }));
    match CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // A parent's pool stays where it is: its threads do not exist here, so it must not be dropped.
        Ok(_) => {
            // SAFETY: `fresh` was just published and is never freed.
            Ok(unsafe { &(*fresh).pool })
        }
        Err(other) => {
            // SAFETY: `fresh` was not published, so this is its only owner.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: another thread of this process published `other`; published pools are never freed.
            Ok(unsafe { &(*other).pool })
        }
    }
}

/// Splits `rows` rows into at most `parts` contiguous ranges whose lengths are multiples of `grain`, the last aside.
/// The ranges depend on the three numbers alone.
pub(crate) fn split(rows: usize, parts: usize, grain: usize) -> impl Iterator<Item = Range<usize>> {
    let grains = rows.div_ceil(grain);
    let parts = parts.clamp(1, grains.max(1));
    (0..parts).map(move |i| {
        let at = |i: usize| (grains / parts * i + (grains % parts).min(i)).saturating_mul(grain).min(rows);
        at(i)..at(i + 1)
    })
}

/// Runs `work` on every item, the first on the calling thread, the others on the shared pool, and waits.
/// Kernels run in the default floating-point mode whatever the thread's is.
pub(crate) fn run<T: Send>(
    mut items: impl Iterator<Item = T>,
    work: impl Fn(T) + Sync,
) -> Result<(), OpError> {
    let work = |item| {
        let _mode = float_mode::Default::enter();
        work(item);
    };
    let Some(first) = items.next() else { return Ok(()) };
    let Some(second) = items.next() else {
        work(first);
        return Ok(());
    };
    let work = &work;
    shared()?.in_place_scope(|scope| {
        scope.spawn(move |_| work(second));
        for item in items {
            scope.spawn(move |_| work(item));
        }
        work(first);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn parts_cover_the_rows_once_in_order() {
        for rows in [0, 1, 2, 3, 5, 15, 16, 17, 100, 4096] {
            for parts in [1, 2, 3, 7, 16, 64] {
                for grain in [1, 8, 16] {
                    let ranges: Vec<_> = split(rows, parts, grain).collect();
                    assert!(ranges.len() <= parts);
                    let mut at = 0;
                    for r in &ranges {
                        assert_eq!(r.start, at);
                        assert!(rows == 0 || !r.is_empty());
                        at = r.end;
                    }
                    assert_eq!(at, rows);
                    assert!(ranges.iter().rev().skip(1).all(|r| r.len() % grain == 0));
                }
            }
        }
    }

    #[test]
    fn many_callers_and_nested_calls_finish() {
        let done = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..20 {
                        run(0..5, |_| {
                            run(0..3, |_| {
                                done.fetch_add(1, Ordering::Relaxed);
                            })
                            .unwrap();
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 8 * 20 * 5 * 3);
    }
}
