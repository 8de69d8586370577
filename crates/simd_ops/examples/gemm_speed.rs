//! Products of many columns beside the machine's arithmetic peaks:
//! `cargo run --release -p ninfer-simd-ops --example gemm_speed [rows] [isa,...] [columns] [threads] [a8|a16]
//! [format,...] [seconds]`. K is 4,096. Several tokens take turns; the peak is that of the first.
//!
//! `least` and `median` are G operations a second (two a weight and column, quantising the activations included), taken
//! in turns with the peaks of the same number of threads: independent chains of one instruction in registers. A8 is set
//! against the 8-bit dot product of the token (`vpdpbusd` with 512 bits, with 256 for `avx_vnni`, or `vpmaddubsw`,
//! `vpmaddwd`, `vpaddd` with 256 for `avx2`), A16 against `vfmadd` with the token's width. The ratio is of the least times,
//! then of the medians.

use std::hint::black_box;
use std::time::Instant;

use ninfer_formats::{FormatId, Scheme};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Activations, Dispatch, Isa, Precision, Workspace, matmul_in};

#[path = "../tests/common/mod.rs"]
mod common;

const K: usize = 4096;
/// Rounds of one timing of a peak, of twelve chains each.
const ROUNDS: usize = 40_000;

#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::asm;

    /// Twelve chains of one instruction for `rounds` rounds, in 512-bit registers.
    macro_rules! chains {
        ($name:ident, $instruction:literal, $register:literal, $features:literal) => {
            #[target_feature(enable = $features)]
            pub fn $name(rounds: usize) {
                // SAFETY: registers only, all of them named as overwritten; the features are the function's own.
                unsafe {
                    asm!(
                        "vzeroall",
                        "2:",
                        concat!($instruction, " ", $register, "0, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "1, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "2, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "3, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "4, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "5, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "6, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "7, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "8, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "9, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "10, ", $register, "13, ", $register, "14"),
                        concat!($instruction, " ", $register, "11, ", $register, "13, ", $register, "14"),
                        "dec {rounds}",
                        "jnz 2b",
                        rounds = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    );
                }
            }
        };
    }
    chains!(fma512, "vfmadd231ps", "zmm", "avx512f");
    chains!(fma256, "vfmadd231ps", "ymm", "avx2,fma");
    chains!(dot512, "vpdpbusd", "zmm", "avx512f,avx512vnni");
    chains!(dot256, "{{vex}} vpdpbusd", "ymm", "avx2,avxvnni");

    /// Twelve times the three instructions that multiply and add bytes, for `rounds` rounds.
    #[target_feature(enable = "avx2")]
    pub fn bytes256(rounds: usize) {
        macro_rules! twelve {
            ($($sum:literal $product:literal),+) => {
                // SAFETY: as above.
                unsafe {
                    asm!(
                        "vzeroall",
                        "2:",
                        $(
                            concat!("vpmaddubsw ymm", $product, ", ymm13, ymm14"),
                            concat!("vpmaddwd ymm", $product, ", ymm", $product, ", ymm15"),
                            concat!("vpaddd ymm", $sum, ", ymm", $sum, ", ymm", $product),
                        )+
                        "dec {rounds}",
                        "jnz 2b",
                        rounds = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    );
                }
            };
        }
        twelve!("0" "6", "1" "7", "2" "8", "3" "9", "4" "10", "5" "11", "0" "6", "1" "7", "2" "8", "3" "9", "4" "10", "5" "11");
    }

    /// The peak's function and its operations in a round.
    pub fn of(isa: ninfer_simd_ops::Isa, a16: bool) -> (unsafe fn(usize), usize) {
        let wide = isa >= ninfer_simd_ops::Isa::Avx512;
        match (a16, wide) {
            (true, true) => (fma512, 12 * 32),
            (true, false) => (fma256, 12 * 16),
            (false, true) => (dot512, 12 * 128),
            (false, false) if isa == ninfer_simd_ops::Isa::AvxVnni => (dot256, 12 * 64),
            (false, false) => (bytes256, 12 * 64),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod peak {
    pub fn of(_: ninfer_simd_ops::Isa, _: bool) -> (unsafe fn(usize), usize) {
        (|_| (), 0)
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn least_and_median(times: &mut [f64]) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2]]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let rows = number(0, 4096);
    let best = ninfer_simd_ops::isa::best();
    let named = |name: &str| available().into_iter().find(|i| i.name() == name);
    let isas: Vec<Isa> =
        args.get(1).map_or(vec![best], |names| names.split(',').map(|n| named(n).unwrap_or(best)).collect());
    let isa = isas[0];
    let (columns, threads) = (number(2, 512), number(3, 1));
    let dispatches: Vec<Dispatch> =
        isas.iter().map(|&isa| Dispatch { isa: Some(isa), threads: Some(threads) }).collect();
    let a16 = args.get(4).is_some_and(|name| name == "a16");
    let precision = if a16 { Precision::A16 } else { Precision::A8 };
    let limit: f64 = args.get(6).and_then(|a| a.parse().ok()).unwrap_or(1.0);
    let (chains, operations) = peak::of(isa, a16);
    println!("{rows} x {K}, {columns} columns, {threads} threads, {}", precision.name());
    println!(
        "{:22} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "format", "least", "median", "peak", "median", "ratio", "median"
    );
    for format in FormatId::all() {
        let chosen = |name: &String| name.is_empty() || name.split(',').any(|n| format.name().contains(n));
        if (matches!(format.scheme(), Scheme::Direct(_) | Scheme::RowScaled(_)) && !a16)
            || format == FormatId::Int32
            || !args.get(5).is_none_or(chosen)
        {
            continue;
        }
        let w = common::sane(format, rows, K, 1);
        let view = w.view();
        let x = common::Random(2).values(K * columns);
        let mut out = vec![0.0f32; rows * columns];
        let mut workspace = Workspace::default();
        let mut times = vec![Vec::new(); isas.len()];
        let mut peaks = Vec::new();
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < limit || peaks.len() < 4 {
            for (times, dispatch) in times.iter_mut().zip(&dispatches) {
                times.push(seconds(|| {
                    let x = Activations::F32(&x);
                    matmul_in(&view, x, precision, &mut out, dispatch, &mut workspace).expect("legal");
                }));
            }
            peaks.push(seconds(|| {
                std::thread::scope(|scope| {
                    for _ in 1..threads {
                        // SAFETY: the token is available, and so are the instructions of its peak.
                        scope.spawn(move || unsafe { chains(ROUNDS) });
                    }
                    // SAFETY: as above.
                    unsafe { chains(ROUNDS) }
                });
            }));
            black_box(&mut out);
        }
        let amount = (operations * ROUNDS * threads) as f64;
        let [peak, peak_median] = least_and_median(&mut peaks).map(|t| amount / t * 1e-9);
        let amount = 2.0 * (rows * K * columns) as f64;
        for (times, isa) in times.iter_mut().zip(&isas) {
            let [ours, ours_median] = least_and_median(times).map(|t| amount / t * 1e-9);
            println!(
                "{:22} {ours:8.1} {ours_median:8.1} {peak:8.1} {peak_median:8.1} {:7.2} {:7.2}  {isa}",
                format.name(),
                ours / peak,
                ours_median / peak_median,
            );
        }
    }
}
