//! Decode rates of one thread: `cargo run --release -p ninfer-simd-ops --example decode_speed [format] [isa]`.
//!
//! "cache" decodes 128 different rows of 4,096 elements in turn into one buffer of 16 KiB; "memory" decodes
//! 4096 x 4096 elements into 64 MiB. Both are GB/s (10^9 bytes) of binary32 output, the best of many repetitions,
//! by the thread's processor time where the system tells it, so that other programs disturb less. Plain stores of the
//! same 64 MiB are timed in turn with them.

use std::hint::black_box;

use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Dispatch, Half, decode_f32, decode_half};

#[path = "../tests/common/mod.rs"]
mod common;

/// Seconds of processor time of this thread.
#[cfg(target_os = "linux")]
fn now() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: 3 is CLOCK_THREAD_CPUTIME_ID; `time` is a live local variable of the 64-bit layout.
    unsafe { clock_gettime(3, &raw mut time) };
    time.seconds as f64 + time.nanoseconds as f64 * 1e-9
}

#[cfg(not(target_os = "linux"))]
fn now() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

/// Zeroed memory in huge pages where the system has them.
fn memory(len: usize) -> &'static mut [f32] {
    let layout = std::alloc::Layout::from_size_align(len * 4, 1 << 21).expect("a valid layout");
    // SAFETY: the layout is not empty; the result is checked. It is never freed.
    let p = unsafe { std::alloc::alloc(layout) };
    assert!(!p.is_null());
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(address: *mut u8, length: usize, advice: i32) -> i32;
        }
        // SAFETY: 14 is MADV_HUGEPAGE, which does not change contents, on memory allocated above.
        unsafe { madvise(p, len * 4, 14) };
    }
    // SAFETY: `len * 4` bytes at `p` were just allocated with a larger alignment, and are zeroed first.
    unsafe {
        p.write_bytes(0, len * 4);
        std::slice::from_raw_parts_mut(p.cast(), len)
    }
}

/// Least time of each task, all run in turn.
fn least<const N: usize>(seconds: f64, tasks: &mut [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    let begin = std::time::Instant::now();
    let mut runs = 0;
    while runs < 5 || begin.elapsed().as_secs_f64() < seconds {
        for (best, task) in best.iter_mut().zip(tasks.iter_mut()) {
            let start = now();
            task();
            *best = best.min(now() - start);
        }
        runs += 1;
    }
    best
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |i: usize, name: &str| arguments.get(i).is_none_or(|a| a == "all" || a == name);
    let (rows, k, few) = (4096usize, 4096usize, 128usize);
    let target = memory(rows * k);
    let plain = memory(rows * k);
    let (mut cache, mut narrow) = (vec![0.0f32; k], vec![0u16; k]);
    let mut value = 0.0;
    println!("GB/s of output; binary32: cache, memory (plain stores); binary16 and bfloat16: cache");
    for format in common::float_formats().filter(|f| wanted(0, f.name())) {
        let w = common::sane(format, rows, k, 1);
        let view = w.view();
        for isa in available().into_iter().filter(|i| wanted(1, i.name())) {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
            let part: Vec<_> = (0..few).map(|r| view.row_range(r, r + 1).expect("a row")).collect();
            let mut kernel = isa;
            let mut halves = |half: Half| {
                for row in &part {
                    decode_half(row, half, black_box(&mut narrow), &dispatch).expect("small values");
                }
            };
            let half = least(0.05, &mut [&mut || halves(Half::Binary16)])[0];
            let bf16 = least(0.05, &mut [&mut || halves(Half::Bfloat16)])[0];
            let row = least(
                0.1,
                &mut [&mut || {
                    for row in &part {
                        let ran = decode_f32(row, black_box(&mut cache), &dispatch).expect("its size");
                        kernel = ran.kernel;
                    }
                }],
            )[0];
            let [whole, stores] = least(
                0.4,
                &mut [
                    &mut || {
                        decode_f32(&view, black_box(target), &dispatch).expect("its size");
                    },
                    &mut || {
                        value += 1.0;
                        black_box(&mut *plain).fill(value);
                    },
                ],
            );
            if kernel == isa {
                let rate = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
                println!(
                    "{:22} {:12} {:6.1} {:6.1} ({:5.1}, {:3.0} %)  {:6.1} {:6.1}",
                    format.name(),
                    isa.name(),
                    rate(few * k * 4, row),
                    rate(rows * k * 4, whole),
                    rate(rows * k * 4, stores),
                    100.0 * stores / whole,
                    rate(few * k * 2, half),
                    rate(few * k * 2, bf16),
                );
            }
        }
    }
}
