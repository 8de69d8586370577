//! What belongs to the process: golden `q8_1` vectors, the environment variable, forks, foreign processor modes.

mod common;

use common::{Random, sane, words};
use ninfer_formats::FormatId;
use ninfer_simd_ops::isa::{active, available};
use ninfer_simd_ops::{Activations, Dispatch, Isa, Precision, Q8_1, matmul, quantize_q8_1};
#[cfg(target_arch = "x86_64")]
use ninfer_simd_ops::{RowErrors, decode_f32, row_errors};

fn golden(name: &str) -> serde_json::Value {
    let path = format!("{}/../../tests/data/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))).unwrap()
}

fn hex(value: &serde_json::Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect()
}

#[test]
fn golden_activation_blocks() {
    let file = golden("q8_1.json");
    let x: Vec<f32> = hex(&file["x_f32"]).as_chunks::<4>().0.iter().map(|w| f32::from_le_bytes(*w)).collect();
    for isa in available() {
        for k in [x.len(), 32, x.len() / 4] {
            let mut q = Q8_1::new();
            quantize_q8_1(Activations::F32(&x), k, &mut q, &Dispatch::isa(isa)).unwrap();
            assert_eq!(q.scale_words(), words_of(&hex(&file["d_f16"])), "{isa}");
            assert_eq!(q.sum_words(), words_of(&hex(&file["s_f16"])), "{isa}");
            let codes: Vec<u8> = q.codes().iter().map(|&c| c as u8).collect();
            assert_eq!(codes, hex(&file["q_i8"]), "{isa}");
        }
    }
}

/// Run by the next test in a process of its own: prints what is active there.
#[test]
fn reports_the_active_set() {
    match active() {
        Ok(isa) => println!("active: {isa}"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn the_environment_forces_a_set_or_is_refused() {
    let report = |value: &str| {
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["reports_the_active_set", "--exact", "--nocapture"])
            .env("NINFER_SIMD", value)
            .output()
            .unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    for isa in Isa::ALL {
        let text = report(isa.name());
        if isa.is_available() {
            assert!(text.contains(&format!("active: {isa}\n")), "{text}");
        } else {
            assert!(text.contains(&format!("refused: instruction set {isa} (NINFER_SIMD)")), "{text}");
        }
    }
    let text = report("sse2");
    assert!(
        text.contains("refused: unknown instruction set \"sse2\" in NINFER_SIMD; available here: scalar")
    );
    let best = *available().last().unwrap();
    assert!(report("").contains(&format!("active: {best}\n")));
}

#[cfg(unix)]
#[test]
fn a_child_after_fork_has_threads_of_its_own() {
    unsafe extern "C" {
        safe fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn kill(pid: i32, signal: i32) -> i32;
        safe fn _exit(status: i32) -> !;
    }
    let w = sane(FormatId::GgufQ4K, 64, 512, 100);
    let x = Random(101).values(512);
    let run = || {
        let mut y = vec![0.0; 64];
        let x = Activations::F32(&x);
        let ran = matmul(&w.view(), x, Precision::A8, &mut y, &Dispatch::threads(2)).unwrap();
        assert_eq!(ran.parts, 2);
        words(&y)
    };
    let expected = run();
    let child = fork();
    if child == 0 {
        _exit(if run() == expected { 0 } else { 1 });
    }
    assert!(child > 0);
    let mut status = -1;
    for _ in 0..2000 {
        // SAFETY: `status` is a live local variable; 1 is WNOHANG.
        if unsafe { waitpid(child, &raw mut status, 1) } == child {
            assert_eq!(status, 0, "the child failed");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SAFETY: the child is this process's own and has not been waited for.
    unsafe { kill(child, 9) };
    panic!("the child hangs");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn flushed_subnormals_in_the_callers_thread_change_nothing() {
    fn set(mode: u32) {
        // SAFETY: only defined mode bits are set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags))
        };
    }
    // Weights and activations whose products are subnormal.
    let payload: Vec<u8> = (0..3 * 64u32).flat_map(|i| (0x0010_0000 + 0x1111 * i).to_le_bytes()).collect();
    let view = ninfer_simd_ops::TensorView::new(FormatId::Fp32, &[3, 64], 1, &payload).unwrap();
    let x = vec![0.003_906_25f32; 64];
    for isa in available() {
        for threads in [1, 2] {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
            let run = || {
                let (mut y, mut z) = (vec![0.0; 3], vec![0.0; 3 * 64]);
                matmul(&view, Activations::F32(&x), Precision::A16, &mut y, &dispatch).unwrap();
                decode_f32(&view, &mut z, &dispatch).unwrap();
                let mut sums = [RowErrors::default(); 3];
                row_errors(&view, &[0.0; 3 * 64], None, &mut sums, &dispatch).unwrap();
                (words(&y), words(&z), sums)
            };
            let expected = run();
            assert!(expected.0.iter().all(|&w| w != 0 && w < 0x0080_0000));
            assert!(expected.2.iter().all(|s| s.error > 0.0));
            set(0x9fc0);
            let flushed = run();
            set(0x1f80);
            assert_eq!(flushed, expected, "{isa} threads {threads}");
        }
    }
}
