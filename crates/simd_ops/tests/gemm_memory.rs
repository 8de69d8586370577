//! Products do not allocate once the memory they keep has grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use ninfer_formats::{FormatId, TensorView, encoded_size};
use ninfer_simd_ops::{Activations, Dispatch, Precision, Prepared, Workspace, isa, matmul_in};

struct Counting;

/// Of all threads.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Of this thread: the test's harness has others.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes every request on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    let before = OWN.get();
    work();
    OWN.get() - before
}

/// One test, as the second part counts what all threads do.
#[test]
fn the_second_call_does_not_allocate() {
    let (k, most) = (768, 70);
    let x: Vec<f32> = (0..most * k).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut out = vec![0.0; most * 128];
    for format in [
        FormatId::GgufQ8_0,
        FormatId::GgufQ4K,
        FormatId::GgufQ6K,
        FormatId::Q4G64Fp16,
        FormatId::Nvfp4,
        FormatId::Bf16,
    ] {
        let n = if format == FormatId::Nvfp4 { 128 } else { 70 };
        let shape = [n as u64, k as u64];
        let payload = vec![0x21; encoded_size(format, &shape, 1).unwrap() as usize];
        let view = TensorView::new(format, &shape, 1, &payload).unwrap();
        for isa in isa::available() {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
            let prepared = Prepared::new(&view, &dispatch).unwrap();
            for (t, precision) in
                [1, 3, 16, most].into_iter().flat_map(|t| [(t, Precision::A8), (t, Precision::A16)])
            {
                let (x, out) = (&x[..t * k], &mut out[..t * n]);
                let mut workspace = Workspace::default();
                let mut run = || {
                    matmul_in(&view, Activations::F32(x), precision, out, &dispatch, &mut workspace).unwrap();
                    prepared.matmul(Activations::F32(x), precision, out, &dispatch, &mut workspace).unwrap();
                };
                run();
                assert_eq!(allocations(run), 0, "{isa} {format} {precision:?} T {t}");
            }
        }
    }
    several_threads();
}

/// With several threads there is one small allocation a part beyond the first: the closure that another thread is given.
fn several_threads() {
    let (n, k) = (512, 2048);
    let payload = vec![0x21; encoded_size(FormatId::GgufQ4_0, &[n as u64, k as u64], 1).unwrap() as usize];
    let view = TensorView::new(FormatId::GgufQ4_0, &[n as u64, k as u64], 1, &payload).unwrap();
    let (x, mut out, mut workspace) = (vec![1.0; k], vec![0.0; n], Workspace::default());
    let dispatch = Dispatch { isa: None, threads: Some(2) };
    let mut run = || {
        let x = Activations::F32(&x);
        matmul_in(&view, x, Precision::A8, &mut out, &dispatch, &mut workspace).unwrap().parts
    };
    // Which thread of the pool takes a part is not known: each has memory of its own, which must have grown.
    for _ in 0..200 {
        assert_eq!(run(), 2);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        run();
    }
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    // Now and then the pool's queue grows.
    assert!(count <= 1300, "{count} allocations in 1,000 calls");
}
