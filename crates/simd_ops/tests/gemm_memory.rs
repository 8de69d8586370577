//! Products do not allocate once the memory they keep has grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ninfer_formats::{FormatId, TensorView, encoded_size};
use ninfer_simd_ops::{Activations, Dispatch, Precision, Workspace, isa, matmul_in};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every request on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

#[test]
fn the_second_call_does_not_allocate() {
    let (n, k, t) = (70, 768, 40);
    let x: Vec<f32> = (0..t * k).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut out = vec![0.0; t * n];
    for format in [FormatId::GgufQ4K, FormatId::GgufQ6K, FormatId::Q4G64Fp16, FormatId::Bf16] {
        let bytes = encoded_size(format, &[n as u64, k as u64], 1).unwrap() as usize;
        let payload = vec![0x21; bytes];
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).unwrap();
        for isa in isa::available() {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
            for precision in [Precision::A8, Precision::A16] {
                let mut workspace = Workspace::default();
                let mut run = || {
                    let x = Activations::F32(&x);
                    matmul_in(&view, x, precision, &mut out, &dispatch, &mut workspace).unwrap();
                };
                run();
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                run();
                let after = ALLOCATIONS.load(Ordering::Relaxed);
                assert_eq!(after - before, 0, "{isa} {format} {precision:?}");
            }
        }
    }
}
