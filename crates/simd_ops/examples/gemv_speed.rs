//! Products of few columns, one thread or two, beside ggml:
//! `NINFER_PEER_GGML=<folder of libggml-cpu> cargo run --release -p ninfer-simd-ops --example gemv_speed [rows] [isa]
//! [columns] [threads] [a8|a16] [format]`. K is 4,096.
//!
//! GB/s (10^9 bytes) of stored weights, the best of many short repetitions, two in every turn; quantising the activations
//! is included on both sides; one thread is timed by its processor time. ggml is its type's `from_float` and one
//! `vec_dot` a row, which is what its matrix-vector product does on one thread. "read" is a plain vector read of the
//! same bytes by as many threads; "prepared" are ours from repacked weights; "Mw/s" are millions of weights (times
//! columns) a second. Without the variable ours are timed alone. For a16, "ggml" is left out, and the line "bf16 fma"
//! is a plain matrix-vector product of bf16 weights, one vector of accumulators a row, as a library would write it.

#[cfg(target_arch = "x86_64")]
use std::hint::black_box;
use std::time::Instant;

use ninfer_formats::{FormatId, Scheme};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Activations, Dispatch, Precision, Prepared, Workspace, matmul_in};

#[path = "../tests/common/mod.rs"]
mod common;

const K: usize = 4096;

#[cfg(target_os = "linux")]
mod peer {
    use std::ffi::{CString, c_char, c_int, c_void};

    unsafe extern "C" {
        fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    #[repr(C)]
    pub struct Traits {
        pub from_float: unsafe extern "C" fn(*const f32, *mut u8, i64),
        pub vec_dot: unsafe extern "C" fn(c_int, *mut f32, usize, *const u8, usize, *const u8, usize, c_int),
        pub vec_dot_type: c_int,
        pub rows: i64,
    }

    pub struct Ggml(*mut c_void);

    impl Ggml {
        pub fn open() -> Option<Self> {
            let folder = std::env::var("NINFER_PEER_GGML").ok()?;
            let mut last = std::ptr::null_mut();
            for name in ["libggml-base.so", "libggml-cpu.so"] {
                let path = CString::new(format!("{folder}/{name}")).ok()?;
                // SAFETY: a path of this process's own choosing; 258 is RTLD_NOW | RTLD_GLOBAL.
                last = unsafe { dlopen(path.as_ptr(), 258) };
                assert!(!last.is_null(), "cannot open {folder}/{name}");
            }
            let this = Self(last);
            // SAFETY: `void ggml_cpu_init(void)`.
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(this.symbol("ggml_cpu_init"))() };
            Some(this)
        }

        fn symbol(&self, name: &str) -> *mut c_void {
            let name = CString::new(name).expect("a name");
            // SAFETY: the library is open.
            let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
            assert!(!symbol.is_null());
            symbol
        }

        pub fn traits(&self, number: u32) -> (&'static Traits, &'static Traits) {
            type Get = unsafe extern "C" fn(c_int) -> *const Traits;
            // SAFETY: ggml's function with this signature; the tables are static.
            unsafe {
                let get = std::mem::transmute::<*mut c_void, Get>(self.symbol("ggml_get_type_traits_cpu"));
                let dot = &*get(number as c_int);
                (dot, &*get(dot.vec_dot_type))
            }
        }
    }
}

/// Reads all bytes with the widest plain loads.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read(bytes: &[u8]) -> i64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm256_setzero_si256(); 8];
    for chunk in bytes.as_chunks::<256>().0 {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 32 bytes of the chunk's 256.
            let v = unsafe { _mm256_loadu_si256(chunk.as_ptr().add(32 * i).cast()) };
            *sum = _mm256_xor_si256(*sum, v);
        }
    }
    let sum = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_xor_si256(a, b));
    _mm256_extract_epi64::<0>(sum)
}

/// A row of bf16 weights and a column: four vectors of accumulators, eight values each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn bf16_row(row: &[u16], x: &[f32]) -> f32 {
    use std::arch::x86_64::*;
    let mut acc = [_mm256_setzero_ps(); 4];
    for (w, x) in row.as_chunks::<32>().0.iter().zip(x.as_chunks::<32>().0) {
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: eight words of 32, eight values of 32.
            let (w, x) = unsafe {
                (_mm_loadu_si128(w.as_ptr().add(8 * i).cast()), _mm256_loadu_ps(x.as_ptr().add(8 * i)))
            };
            let w = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(w)));
            *acc = _mm256_fmadd_ps(w, x, *acc);
        }
    }
    let sum = _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
    let mut lanes = [0.0; 8];
    // SAFETY: writes the 32 bytes of `lanes`.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    lanes.iter().sum()
}

/// Seconds of processor time of this thread, so that other programs disturb less.
#[cfg(target_os = "linux")]
fn thread_seconds() -> f64 {
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

/// The lesser of two turns, one right after the other: before the second the weights are where their size lets them be,
/// and not where the other's turns have pushed them.
fn twice(threads: usize, mut work: impl FnMut()) -> f64 {
    let first = time(threads, &mut work);
    first.min(time(threads, work))
}

/// Seconds that `work` takes: processor time if it runs on this thread alone.
fn time(threads: usize, mut work: impl FnMut()) -> f64 {
    #[cfg(target_os = "linux")]
    if threads == 1 {
        let start = thread_seconds();
        work();
        return thread_seconds() - start;
    }
    let _ = threads;
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let rows = number(0, 4096);
    let best = ninfer_simd_ops::isa::best();
    let isa = available().into_iter().find(|i| args.get(1).is_some_and(|n| i.name() == n)).unwrap_or(best);
    let (columns, threads) = (number(2, 1), number(3, 1));
    let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
    let a16 = args.get(4).is_some_and(|name| name == "a16");
    let precision = if a16 { Precision::A16 } else { Precision::A8 };
    let seconds = if rows > 20_000 { 3.0 } else { 0.8 };
    #[cfg(target_os = "linux")]
    let ggml = peer::Ggml::open();
    println!("{rows} x {K}, {columns} columns, {isa}, {threads} threads");
    println!(
        "{:18} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "format", "ours", "prepared", "ggml", "ratio", "p ratio", "read", "of read", "Mw/s"
    );
    #[cfg(target_arch = "x86_64")]
    if a16 && available().contains(&ninfer_simd_ops::Isa::Avx2) {
        let words: Vec<u16> =
            common::Random(3).values(rows * K).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let x = common::Random(2).values(K);
        let mut y = vec![0.0; rows];
        let least = (0..40).map(|_| {
            time(1, || {
                for (y, row) in y.iter_mut().zip(words.chunks_exact(K)) {
                    // SAFETY: the machine has AVX2 (and FMA with it).
                    *y = unsafe { bf16_row(row, &x) };
                }
            })
        });
        let least = least.fold(f64::INFINITY, f64::min);
        println!(
            "bf16 fma {:.1} GB/s, {:.0} Mw/s",
            words.len() as f64 * 2e-9 / least,
            words.len() as f64 * 1e-6 / least
        );
    }
    for format in FormatId::all() {
        if (matches!(format.scheme(), Scheme::Direct(_) | Scheme::RowScaled(_)) && !a16)
            || format == FormatId::Int32
            || args.get(5).is_some_and(|name| !format.name().contains(name.as_str()))
        {
            continue;
        }
        let w = common::sane(format, rows, K, 1);
        let view = w.view();
        let x = common::Random(2).values(K * columns);
        let mut out = vec![0.0f32; rows * columns];
        let mut workspace = Workspace::default();
        let prepared = Prepared::new(&view, &dispatch).expect("memory");
        let mut least = [f64::INFINITY; 4];
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < seconds {
            let ours = twice(threads, || {
                let x = Activations::F32(&x);
                matmul_in(&view, x, precision, &mut out, &dispatch, &mut workspace).expect("legal");
            });
            least[0] = least[0].min(ours);
            let ours = twice(threads, || {
                let x = Activations::F32(&x);
                prepared.matmul(x, precision, &mut out, &dispatch, &mut workspace).expect("legal");
            });
            least[3] = least[3].min(ours);
            #[cfg(target_arch = "x86_64")]
            if available().contains(&ninfer_simd_ops::Isa::Avx2) {
                let part = w.payload.len().div_ceil(threads);
                let reading = twice(threads, || {
                    std::thread::scope(|scope| {
                        for part in w.payload.chunks(part).skip(1) {
                            // SAFETY: the machine has AVX2.
                            scope.spawn(move || black_box(unsafe { read(part) }));
                        }
                        // SAFETY: as above.
                        black_box(unsafe { read(&w.payload[..part]) });
                    });
                });
                least[2] = least[2].min(reading);
            }
            #[cfg(target_os = "linux")]
            if let (Some(ggml), Scheme::Gguf(kind), 1, false) = (&ggml, format.scheme(), threads, a16) {
                let (dot, activation) = ggml.traits(kind.ggml_type());
                let row = K / kind.values() * kind.bytes();
                let mut quantised = vec![0u8; 2 * K];
                let theirs = twice(threads, || {
                    for (t, x) in x.chunks_exact(K).enumerate() {
                        // SAFETY: buffers of the sizes that ggml's functions take for rows of K values.
                        unsafe {
                            (activation.from_float)(x.as_ptr(), quantised.as_mut_ptr(), K as i64);
                            for r in 0..rows {
                                let y = out.as_mut_ptr().add(t * rows + r);
                                let w = w.payload.as_ptr().add(r * row);
                                (dot.vec_dot)(K as i32, y, 0, w, 0, quantised.as_ptr(), 0, 1);
                            }
                        }
                    }
                });
                least[1] = least[1].min(theirs);
            }
        }
        let [ours, theirs, read, prepared] = least.map(|t| w.payload.len() as f64 / t * 1e-9);
        let ratio = |ours: f64| if theirs > 0.0 { ours / theirs } else { f64::NAN };
        println!(
            "{:18} {ours:8.1} {prepared:8.1} {theirs:8.1} {:8.2} {:8.2} {read:8.1} {:8.2} {:8.0}",
            format.name(),
            ratio(ours),
            ratio(prepared),
            ours / read,
            (rows * K * columns) as f64 / least[0] * 1e-6,
        );
    }
}
