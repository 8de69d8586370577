//! Memory and time of opening, with an allocator that counts. One test, so that nothing else allocates meanwhile.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Raw, string};
use ninfer_gguf::Header;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `ptr` came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Result of `f`, peak of bytes allocated above the start, and number of allocations.
///
/// There are no time limits: what would be quadratic in 100,000 tensors does not end within a test run.
fn measured<T>(f: impl FnOnce() -> T) -> (T, usize, usize) {
    let (before, calls) = (NOW.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
    PEAK.store(before, Ordering::Relaxed);
    let result = f();
    (result, PEAK.load(Ordering::Relaxed) - before, CALLS.load(Ordering::Relaxed) - calls)
}

#[test]
fn opening_costs_what_it_should() {
    token_arrays_are_lazy();
    hostile_counts_allocate_nothing();
    many_tensors_are_not_quadratic();
}

fn token_arrays_are_lazy() {
    let count = 250_000u64;
    let tokens: Vec<u8> = (0..count).flat_map(|i| string(format!("token {i}"))).collect();
    let bytes = Raw::new()
        .array("tokenizer.ggml.tokens", 8, count, &tokens)
        .array("tokenizer.ggml.merges", 8, count, &tokens)
        .array("tokenizer.ggml.scores", 6, count, vec![0; 1_000_000])
        .build();
    let (header, peak, calls) = measured(|| Header::parse(&bytes).unwrap());
    assert!(peak < 64 << 10, "{peak} bytes");
    assert!(calls < 100, "{calls} allocations");
    let metadata = header.metadata(&bytes).unwrap();
    let array = metadata.get_array("tokenizer.ggml.tokens").unwrap().unwrap();
    let (sum, peak, _) = measured(|| array.iter().filter(|v| v.is_ok()).count());
    assert_eq!(sum as u64, count);
    assert!(peak < 1024, "{peak} bytes to iterate");
    let offsets = array.element_offsets().unwrap();
    let ninfer_gguf::Value::String(s) = array.get_at(offsets[249_999]).unwrap() else {
        panic!("not a string")
    };
    assert_eq!(s.text(), "token 249999");
}

fn hostile_counts_allocate_nothing() {
    let zeros = vec![0u8; 1 << 20];
    let string_length = [&(1u64 << 63).to_le_bytes()[..], &zeros].concat();
    let n_dims = Raw { n_dims: Some(u32::MAX), ..Raw::new() };
    let files = [
        Raw { tensor_count: Some(1 << 63), ..Raw::new() }.entry("k", 0, [1]),
        Raw { tensor_count: Some(1 << 40), ..Raw::new() }.entry("k", 0, [1]),
        Raw { entry_count: Some(1 << 63), ..Raw::new() }.entry("k", 0, [1]),
        Raw { entry_count: Some(1 << 40), ..Raw::new() }.entry("k", 0, [1]),
        Raw::new().entry("k", 8, &string_length),
        Raw::new().array("k", 8, 1 << 60, &zeros),
        Raw::new().array("k", 0, 1 << 60, &zeros),
        Raw::new().array("k", 9, 1 << 60, &zeros),
        // As many empty nested arrays, strings and tensor records as the bytes can hold.
        Raw::new().array("k", 9, (1 << 20) / 12, &zeros).entry("k", 0, [0]),
        Raw::new().array("k", 8, (1 << 20) / 8, &zeros).entry("k", 0, [0]),
        Raw { tensor_count: Some(40_000), data: zeros.clone(), ..Raw::new() },
        n_dims.tensor("x", &[1, 1, 1, 1], 0, 0),
    ];
    for (i, file) in files.iter().enumerate() {
        let bytes = file.build();
        let (result, peak, _) = measured(|| Header::parse(&bytes));
        assert!(result.is_err(), "file {i} opened");
        assert!(peak < 64 << 10, "file {i}: {peak} bytes");
    }
}

fn many_tensors_are_not_quadratic() {
    let count = 100_000u64;
    let mut file = Raw::new();
    for i in 0..count {
        // Not in the order of the offsets, so that the overlap check has to sort.
        let place = i * 7919 % count;
        file = file.tensor(format!("blk.{i}.ffn_gate_exps.weight"), &[32], 8, place * 64);
    }
    let bytes = file.data(count as usize * 64).build();
    let (header, peak, _) = measured(|| Header::parse(&bytes).unwrap());
    assert!(peak < 64 << 20, "{peak} bytes");
    let (found, _, calls) = measured(|| {
        (0..count).filter(|i| header.find(format!("blk.{i}.ffn_gate_exps.weight")).is_some()).count()
    });
    assert_eq!(found as u64, count);
    assert!(calls as u64 <= 4 * count, "{calls} allocations");
}
