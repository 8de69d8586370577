//! Matrix-matrix kernels at the edges of their panels: the bits of `scalar`, from the token that is asked for.

mod common;

use common::{Owned, Random, float_formats, legal, sane, wild};
use ninfer_formats::{BlockKind, FormatId, Scheme};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Activations, Dispatch, Isa, Precision, Width, matmul};

/// The token whose code must run for more columns than the kernels for a few take.
fn expected_kernel(isa: Isa, format: FormatId, precision: Precision, columns: usize) -> Isa {
    use BlockKind as K;
    let direct = matches!(format.scheme(), Scheme::Direct(_) | Scheme::RowScaled(_));
    // Formats with sums of 16 values, whose tiles are worth while for many columns only.
    let least = match format.scheme() {
        Scheme::Gguf(K::Iq1M) => 80,
        Scheme::Nvfp4 | Scheme::Gguf(K::Q6K | K::Iq2Xs | K::Iq2S) => 256,
        _ => 0,
    };
    // Grids that are looked up in registers.
    let tabled = matches!(
        format.scheme(),
        Scheme::Gguf(K::Iq1S | K::Iq1M | K::Iq2Xxs | K::Iq2Xs | K::Iq2S | K::Iq3Xxs | K::Iq3S)
    );
    match (isa, precision) {
        (Isa::AvxVnni, p) if direct || p == Precision::A16 => Isa::Avx2,
        (Isa::Avx512Vnni | Isa::Avx512Vbmi | Isa::AmxInt8, p) if direct || p == Precision::A16 => Isa::Avx512,
        (Isa::Avx512Vbmi, _) if !tabled => Isa::Avx512Vnni,
        (Isa::AmxInt8, _) if columns < least => {
            if tabled {
                Isa::Avx512Vbmi
            } else {
                Isa::Avx512Vnni
            }
        }
        (Isa::NeonDotprod | Isa::NeonI8mm, p) if direct || p == Precision::A16 => Isa::Neon,
        _ => isa,
    }
}

/// Most columns that are taken a few at a time.
fn few(isa: Isa, format: FormatId, precision: Precision, columns: usize) -> usize {
    use BlockKind as K;
    match (precision, format.scheme()) {
        _ if cfg!(not(target_arch = "x86_64")) => 8,
        (Precision::A16, _) | (_, Scheme::Direct(_) | Scheme::RowScaled(_)) => 8,
        _ if isa == Isa::AmxInt8 && expected_kernel(isa, format, precision, columns) == isa => 7,
        _ if isa >= Isa::Avx512Vnni => 11,
        (_, Scheme::Gguf(K::Q2K)) if matches!(isa, Isa::Avx2 | Isa::AvxVnni) => usize::MAX,
        (_, Scheme::Gguf(K::Q2K | K::Q3K | K::Q4K | K::Q5K | K::Q6K)) => 32,
        (_, Scheme::Nvfp4) if isa == Isa::AvxVnni => 64,
        (_, Scheme::Gguf(K::Q8_0 | K::Q4_0 | K::Q5_0 | K::Q2_0) | Scheme::Grouped(_) | Scheme::Nvfp4) => 16,
        _ if isa == Isa::AvxVnni => 48,
        (_, Scheme::Gguf(_)) => 64,
    }
}

fn tokens() -> Vec<Isa> {
    available().into_iter().filter(|isa| *isa != Isa::Scalar).collect()
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Compares every token, thread count and a slice with `scalar` on one thread.
fn check(w: &Owned, x: &[f32], threads: &[usize], what: &str) {
    let view = w.view();
    let (n, k) = (view.rows(), view.k());
    let t = x.len() / k;
    for precision in [Precision::A8, Precision::A16] {
        let mut expected = vec![0.0; t * n];
        let scalar = Dispatch { isa: Some(Isa::Scalar), threads: Some(1) };
        matmul(&view, Activations::F32(x), precision, &mut expected, &scalar).unwrap();
        for isa in tokens() {
            for &threads in threads {
                let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                let mut out = vec![7.5f32; t * n + 2];
                let ran =
                    matmul(&view, Activations::F32(x), precision, &mut out[1..=t * n], &dispatch).unwrap();
                let format = view.format();
                if t > few(isa, format, precision, t) {
                    assert_eq!(ran.kernel, expected_kernel(isa, format, precision, t), "{isa} {format}");
                    assert_eq!(ran.width, Some(Width::Many), "{isa} {format}");
                }
                assert!(out[0] == 7.5 && out[t * n + 1] == 7.5);
                assert!(
                    words(&out[1..=t * n]) == words(&expected),
                    "{isa} {format} {precision:?} {n}x{k} T {t} threads {threads}: {what}"
                );
            }
            // Rows that begin and end inside panels.
            if n > 3 {
                let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
                let rows = 1..n - 1;
                let slice = view.row_range(rows.start, rows.end).unwrap();
                let mut out = vec![0.0; t * slice.rows()];
                matmul(&slice, Activations::F32(x), precision, &mut out, &dispatch).unwrap();
                for (out, whole) in out.chunks_exact(n - 2).zip(expected.chunks_exact(n)) {
                    assert!(words(out) == words(&whole[rows.clone()]), "{isa} slice: {what}");
                }
            }
        }
    }
}

#[test]
fn panels_of_rows_chunks_of_k_and_groups_of_columns() {
    for format in float_formats() {
        // 64 rows and 256 values make a panel, 48 rows and 256 values one of A16; 16 and 6 columns a group.
        for (i, (n, k, t)) in
            [(1, 1, 65), (67, 33, 81), (25, 544, 80), (130, 129, 97), (3, 1056, 128), (75, 530, 70)]
                .into_iter()
                .enumerate()
        {
            let (n, k) = legal(format, n, k);
            let x = Random(7).values(t * k);
            for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                check(&make(format, n, k, i as u64), &x, &[1, 2, 5], "random");
            }
        }
    }
}

/// The entries with rows in lanes take sixteen columns at a time, or twelve or eight, and leave a few to those for a few.
#[test]
fn groups_of_columns_and_what_is_left_over() {
    for format in float_formats() {
        let shapes = [
            (40, 320, 8),
            (17, 544, 9),
            (70, 288, 12),
            (33, 1056, 17),
            (130, 520, 24),
            (65, 256, 27),
            (19, 64, 44),
            (9, 33, 130),
        ];
        for (i, (n, k, t)) in shapes.into_iter().enumerate() {
            let (n, k) = legal(format, n, k);
            let x = Random(8).values(t * k);
            for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                check(&make(format, n, k, 20 + i as u64), &x, &[1, 3], "groups");
            }
        }
    }
}

#[test]
fn more_columns_than_are_packed_at_a_time() {
    for format in [FormatId::GgufQ4_0, FormatId::Q6G64Fp16, FormatId::GgufQ2K, FormatId::GgufQ6K] {
        let (n, k) = legal(format, 5, 300);
        check(&sane(format, n, k, 3), &Random(4).values(530 * k), &[1], "530 columns");
    }
}

/// A16 products with rows in vectors keep accumulators between chunks of 2,048 values: blocks of 32 rows, the last of which may
/// have 16 or fewer, and of twelve columns, 96 of them at a time and 516 copied.
#[test]
fn more_values_than_a_chunk_among_blocks_of_any_size() {
    let shapes = [(35, 2100, 67), (70, 4500, 100), (20, 2049, 109), (5, 2064, 529)];
    for format in [FormatId::Bf16, FormatId::Q5G64Fp16, FormatId::GgufQ8_0, FormatId::GgufQ4K] {
        for (i, (n, k, t)) in shapes.into_iter().enumerate() {
            let (n, k) = legal(format, n, k);
            check(&sane(format, n, k, 60 + i as u64), &Random(13).values(t * k), &[1, 2], "chunks");
        }
    }
    let (n, k) = legal(FormatId::Fp32, 37, 2053);
    check(&wild(FormatId::Fp32, n, k, 70), &Random(14).values(71 * k), &[1], "chunks of any words");
}

/// Formats with sums of 16 values, of as many columns as make tiles of bfloat16 numbers worth while: their codes are
/// multiplied with their factors first.
const HALVES: [FormatId; 5] =
    [FormatId::GgufQ6K, FormatId::GgufIq2Xs, FormatId::GgufIq2S, FormatId::GgufIq1M, FormatId::Nvfp4];

#[test]
fn factors_of_sixteen_values_among_many_columns() {
    for format in HALVES {
        for (i, (n, k, t)) in [(70, 544, 256), (17, 33, 261), (5, 300, 530)].into_iter().enumerate() {
            let (n, k) = legal(format, n, k);
            let x = Random(11).values(t * k);
            for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                check(&make(format, n, k, 40 + i as u64), &x, &[1, 3], "halves");
            }
        }
    }
}

#[test]
fn the_greatest_factors_and_codes_are_exact_among_many_columns() {
    // Codes -32 (every bit clear) or 31 with scales -128 or 127: 13 bits, and sums of up to 2^24.
    let (n, k, t) = (3, 256, 256);
    for (code, scale) in [(0x00, 0x80), (0x00, 0x7f), (0xff, 0x80), (0xff, 0x7f)] {
        let mut w = sane(FormatId::GgufQ6K, n, k, 6);
        for (row, block) in w.payload.chunks_exact_mut(210).enumerate() {
            block[..192].fill(code);
            block[192..208].fill(scale);
            // Row 1: the sum of the one half is taken off again by the other, but for one value.
            if row == 1 {
                block[..192].copy_from_slice(&std::array::from_fn::<u8, 192, _>(|i| {
                    if i % 32 < 16 { 0 } else { 0xff }
                }));
            }
        }
        let x: Vec<f32> = (0..t * k)
            .map(|i| match i / k % 3 {
                0 => 1.0,
                1 => -1.0,
                _ if i % 32 == 5 => 0.5,
                _ if i % 32 < 16 => 1.0,
                _ => -1.0,
            })
            .collect();
        check(&w, &x, &[1], &format!("codes {code:#x}, scales {scale:#x}"));
    }
}

/// With 512 columns a span is 256 rows.
#[test]
fn more_rows_than_a_span() {
    for format in [FormatId::GgufQ4_0, FormatId::Q4G64Fp16, FormatId::GgufQ2K, FormatId::GgufIq1M] {
        let (n, k) = legal(format, 291, 32);
        check(&sane(format, n, k, 9), &Random(12).values(515 * k), &[1], "291 rows");
    }
}

#[test]
fn codes_at_the_ends_of_their_ranges_do_not_saturate() {
    // Every activation code is 127 or -127, in runs and alternating; every byte of the codes is the same.
    for format in float_formats().filter(|f| matches!(f.scheme(), Scheme::Gguf(_) | Scheme::Grouped(_))) {
        let (n, k) = legal(format, 6, 64);
        let mut w = sane(format, n, k, 5);
        let sane_bytes = w.payload.clone();
        for byte in [0x00, 0x7f, 0x80, 0xff, 0x81] {
            w.payload.copy_from_slice(&sane_bytes);
            fill_codes(&mut w, byte);
            let x: Vec<f32> = (0..80 * k)
                .map(|i| match i / k % 4 {
                    0 => 1.0,
                    1 => -1.0,
                    2 if i % 2 == 0 => 1.0,
                    2 => -1.0,
                    _ if i % 32 < 16 => 1.0,
                    _ => -1.0,
                })
                .collect();
            for columns in [16, 80] {
                check(&w, &x[..columns * k], &[1], &format!("code bytes {byte:#x}"));
            }
        }
    }
}

/// Sets the bytes that hold codes of the simple formats to one value; of the others every byte but the first and the
/// last four of a block, so that some scales take part.
fn fill_codes(w: &mut Owned, byte: u8) {
    match w.format.scheme() {
        Scheme::Gguf(kind) => {
            let (first, last) = match kind {
                BlockKind::Q8_0 | BlockKind::Q4_0 | BlockKind::Iq4Nl | BlockKind::Q2_0 => (2, 0),
                BlockKind::Q2K => (0, 4),
                BlockKind::Q3K | BlockKind::Q6K => (0, 2),
                BlockKind::Iq1M => (0, 8),
                _ => (4, 0),
            };
            for block in w.payload.chunks_exact_mut(kind.bytes()) {
                let end = block.len() - last;
                block[first..end].fill(byte);
            }
        }
        Scheme::Grouped(scheme) => {
            let groups = w.shape[0] as usize * (w.shape[1] as usize).next_multiple_of(128) / scheme.group;
            w.payload[..groups * scheme.base_bytes].fill(byte);
        }
        _ => {}
    }
}
