//! Every instruction set of this machine, every format, every operation: the bits of `scalar`.

mod common;

use common::{Owned, Random, float_formats, half_words, legal, sane, wild, words};
use ninfer_formats::codec::Half;
use ninfer_formats::float::{bf16, f16};
use ninfer_formats::{FormatId, Scheme, TensorView};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{
    Activations, Dispatch, Isa, OpError, Precision, Q8_1, decode_f32, decode_half, decode_i32, matmul,
    quantize_q8_1,
};

/// The instruction sets to test. Where `NINFER_REQUIRE_ISA` lists names, each must be there.
fn sets() -> Vec<Isa> {
    if let Ok(required) = std::env::var("NINFER_REQUIRE_ISA") {
        for name in required.split(',').filter(|n| !n.is_empty()) {
            Isa::from_name(name).unwrap();
        }
    }
    available()
}

fn on(isa: Isa) -> Dispatch {
    Dispatch { isa: Some(isa), threads: Some(1) }
}

/// Tokens that have decoders of their own for every format.
const WITH_DECODERS: &[Isa] = &[Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

#[test]
fn decode_to_binary32() {
    for isa in sets() {
        for format in float_formats() {
            for (i, (n, k)) in
                [(1, 1), (3, 32), (2, 65), (5, 256), (3, 700), (2, 2304)].into_iter().enumerate()
            {
                for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                    let w = make(format, n, k, 20 + i as u64);
                    let view = w.view();
                    let mut expected = vec![0.0; view.elements()];
                    view.decode_f32(&mut expected).unwrap();
                    // An odd offset for the output, canaries around it.
                    let mut out = vec![7.5f32; view.elements() + 6];
                    let end = 3 + view.elements();
                    let ran = decode_f32(&view, &mut out[3..end], &on(isa)).unwrap();
                    assert_eq!(ran.isa, isa);
                    if WITH_DECODERS.contains(&isa) {
                        assert_eq!(ran.kernel, isa, "{isa} {format}: another token's decoder ran");
                    }
                    assert!(out[..3].iter().chain(&out[end..]).all(|&v| v == 7.5));
                    assert!(words(&out[3..end]) == words(&expected), "{isa} {format} {n}x{k}");
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn outputs_larger_than_caches_are_written_past_them() {
    // 2^23 values and some more: rows shorter and longer than what is decoded at a time, at odd addresses.
    let shapes = [
        (FormatId::GgufQ4_0, 2057, 4096),
        (FormatId::Q6G64Fp16, 41_001, 207),
        (FormatId::Bf16, 8_400_001, 1),
    ];
    for (format, n, k) in shapes {
        let w = wild(format, n, k, 41);
        let view = w.view();
        let mut expected = vec![0.0; view.elements()];
        view.decode_f32(&mut expected).unwrap();
        for isa in sets() {
            let mut out = vec![7.5f32; view.elements() + 6];
            let end = 3 + view.elements();
            // One thread for every second token.
            let dispatch = Dispatch { isa: Some(isa), threads: Some(1 + isa as usize % 2 * 2) };
            decode_f32(&view, &mut out[3..end], &dispatch).unwrap();
            assert!(out[..3].iter().chain(&out[end..]).all(|&v| v == 7.5));
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(out[3..end].iter().zip(&expected).all(same), "{isa} {format} {n}x{k}");
        }
    }
}

#[test]
fn decode_to_16_bits() {
    for isa in sets() {
        for format in float_formats() {
            for half in [Half::Binary16, Half::Bfloat16] {
                for (n, k) in [(1, 1), (3, 65), (5, 256), (2, 2560), (9, 160)] {
                    for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                        let w = make(format, n, k, 40);
                        let view = w.view();
                        let mut expected = vec![0; view.elements()];
                        let reference = view.decode_half(half, &mut expected).map_err(OpError::from);
                        let mut out = vec![0xabcd; view.elements() + 2];
                        let end = 1 + view.elements();
                        for threads in [1, 3] {
                            let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                            let ran = decode_half(&view, half, &mut out[1..end], &dispatch);
                            assert_eq!(ran.map(|_| ()), reference, "{isa} {format} {half:?} {n}x{k}");
                            if reference.is_ok() {
                                let same = half_words(half, &out[1..end]) == half_words(half, &expected);
                                assert!(same, "{isa} {format} {half:?} {n}x{k}");
                            }
                            assert!(out[0] == 0xabcd && out[end] == 0xabcd);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rounding_to_16_bits_of_chosen_words() {
    // Subnormals, ties and the largest finite values (field reports), and every high half of a word.
    let mut bits: Vec<u32> =
        vec![0x0040_0000, 0x0001_8000, 0x0000_8001, 0x0000_8000, 0x477f_efff, 0x477f_e000];
    bits.extend([0x3380_0000, 0x3300_0001, 0x3300_0000, 0x3340_0000, 0x3800_0000, 0x33c0_0000]);
    for high in 0..=0xffffu32 {
        let exponent = high >> 7 & 0xff;
        // Finite words whose rounding does not overflow either target.
        if exponent < 0x8e {
            bits.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0x0fff].map(|low| high << 16 | low));
        }
    }
    let payload: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    let view = TensorView::new(FormatId::Fp32, &[1, bits.len() as u64], 1, &payload).unwrap();
    for isa in sets() {
        let mut out = vec![0; bits.len()];
        decode_half(&view, Half::Binary16, &mut out, &on(isa)).unwrap();
        assert!(out.iter().zip(&bits).all(|(&o, &b)| o == f16::from_f32(f32::from_bits(b))), "{isa}");
        decode_half(&view, Half::Bfloat16, &mut out, &on(isa)).unwrap();
        assert!(out.iter().zip(&bits).all(|(&o, &b)| o == bf16::from_f32(f32::from_bits(b))), "{isa}");
        assert_eq!(out[..4], [0x0040, 0x0002, 0x0001, 0x0000]);
    }
}

/// Dropping what does not fit must not leave an infinity, and rounding must not carry into the sign.
#[test]
fn nans_stay_nans_in_16_bits() {
    let magnitudes =
        [0x7f80_0001u32, 0x7f80_1fff, 0x7f80_ffff, 0x7fbf_ffff, 0x7fc0_0000, 0x7fff_8000, 0x7fff_ffff];
    let bits: Vec<u32> = magnitudes.iter().flat_map(|m| [*m, m | 1 << 31]).cycle().take(77).collect();
    let payload: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    let view = TensorView::new(FormatId::Fp32, &[1, bits.len() as u64], 1, &payload).unwrap();
    for half in [Half::Binary16, Half::Bfloat16] {
        for isa in sets() {
            let mut out = vec![0; bits.len()];
            decode_half(&view, half, &mut out, &on(isa)).unwrap();
            assert!(half_words(half, &out).iter().all(|&w| w == 0x7fff), "{isa} {half:?} {out:x?}");
            assert!(out.iter().zip(&bits).all(|(w, b)| w >> 15 == (b >> 31) as u16), "{isa} {half:?}");
        }
    }
}

#[test]
fn infinities_among_finite_values_are_written_with_all_the_rest() {
    // An infinite source value is no overflow. One in the vectors, one in the tail, both, at every length.
    for n in 1..70usize {
        for at in [vec![0], vec![n - 1], vec![0, n - 1], vec![n / 2]] {
            let mut values: Vec<f32> = (0..n).map(|i| i as f32 * 0.75 - 9.0).collect();
            for &i in &at {
                values[i] = f32::NEG_INFINITY;
            }
            let payload: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let view = TensorView::new(FormatId::Fp32, &[1, n as u64], 1, &payload).unwrap();
            for half in [Half::Binary16, Half::Bfloat16] {
                let expected: Vec<u16> = values.iter().map(|&v| half.round(v)).collect();
                for isa in sets() {
                    let mut out = vec![0x1234; n];
                    decode_half(&view, half, &mut out, &on(isa)).unwrap();
                    assert_eq!(out, expected, "{isa} {half:?} {n} {at:?}");
                    // The same place with a finite value too large for binary16.
                    if half == Half::Binary16 {
                        let mut payload = payload.clone();
                        payload[4 * (n - 1)..].copy_from_slice(&70_000.0f32.to_le_bytes());
                        let view = TensorView::new(FormatId::Fp32, &[1, n as u64], 1, &payload).unwrap();
                        let error = decode_half(&view, half, &mut out, &on(isa)).unwrap_err().to_string();
                        assert!(error.contains(&format!("column {}:", n - 1)), "{isa} {n}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn overflow_names_the_first_element_whatever_the_threads() {
    let mut values = vec![1.0f32; 9 * 5000];
    for at in [3 * 5000 + 4321, 3 * 5000 + 4999, 8 * 5000] {
        values[at] = 65_520.0;
    }
    values[100] = f32::INFINITY;
    let payload: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(FormatId::Fp32, &[9, 5000], 1, &payload).unwrap();
    for isa in sets() {
        for threads in [1, 2, 3, 7, 64] {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
            let mut out = vec![0; values.len()];
            let error = decode_half(&view, Half::Binary16, &mut out, &dispatch).unwrap_err().to_string();
            assert!(error.contains("row 3, column 4321: 6.552e4 overflows binary16"), "{error}");
            decode_half(&view, Half::Bfloat16, &mut out, &dispatch).unwrap();
        }
    }
}

#[test]
fn decode_over_threads_slices_and_integers() {
    for isa in sets() {
        for format in FormatId::all() {
            let w = wild(format, 37, 320, 60);
            let view = w.view();
            let part = view.row_range(5, 36).unwrap();
            for threads in [1, 2, 3, 7, 16, 64] {
                let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                if format == FormatId::Int32 {
                    let mut expected = vec![0; part.elements()];
                    part.decode_i32(&mut expected).unwrap();
                    let mut out = vec![0; part.elements()];
                    decode_i32(&part, &mut out, &dispatch).unwrap();
                    assert_eq!(out, expected);
                    continue;
                }
                let mut expected = vec![0.0; part.elements()];
                part.decode_f32(&mut expected).unwrap();
                let mut out = vec![0.0; part.elements()];
                let ran = decode_f32(&part, &mut out, &dispatch).unwrap();
                assert!(ran.parts <= threads && (threads == 1 || ran.parts > 1));
                assert!(words(&out) == words(&expected), "{isa} {format} threads {threads}");
            }
        }
    }
    // A vector is one run of words, not one row per element.
    let w = wild(FormatId::Bf16, 1, 10_000, 61);
    let view = TensorView::new(FormatId::Bf16, &[10_000], 1, &w.payload).unwrap();
    let (mut a, mut b) = (vec![0.0; 10_000], vec![0.0; 10_000]);
    view.decode_f32(&mut a).unwrap();
    assert_eq!(decode_f32(&view, &mut b, &Dispatch::threads(2)).unwrap().parts, 2);
    assert_eq!(words(&a), words(&b));
    assert!(decode_i32(&view, &mut [0; 3], &Dispatch::default()).is_err());
    assert!(decode_f32(&view, &mut [0.0; 3], &Dispatch::default()).is_err());
}

#[test]
fn quantisation_of_activations() {
    let mut r = Random(70);
    let mut x: Vec<f32> = r.values(4000);
    // Every exponent, halves on the grid, zeros of both signs, subnormals.
    for (i, v) in x.iter_mut().enumerate().skip(1000) {
        *v = match i / 32 % 5 {
            0 => (r.below(512) as f32 - 256.0) * 0.5,
            1 => f32::from_bits(r.word() as u32 & 0x807f_ffff | ((i / 160 * 6) as u32 % 254) << 23),
            2 => f32::from_bits(r.word() as u32 & 0x8000_0fff),
            3 if i % 2 == 0 => -0.0,
            _ => r.value() * 1e30,
        };
        // A block with amax 127 has a grid of exactly 1.
        if i % 160 == 0 {
            *v = 127.0;
        }
    }
    for (k, columns) in [(32, 1), (33, 4), (1, 7), (4000, 1), (130, 30), (2000, 2)] {
        let mut expected = Q8_1::new();
        let source = &x[..k * columns];
        quantize_q8_1(Activations::F32(source), k, &mut expected, &on(Isa::Scalar)).unwrap();
        for isa in sets() {
            for threads in [1, 2, 5] {
                let mut q = Q8_1::new();
                let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                let ran = quantize_q8_1(Activations::F32(source), k, &mut q, &dispatch).unwrap();
                assert!(ran.parts <= threads);
                assert!(q.codes() == expected.codes(), "{isa} K {k}");
                assert_eq!(q.scale_words(), expected.scale_words());
                assert_eq!(q.sum_words(), expected.sum_words());
                for t in 0..columns {
                    assert_eq!(q.column(t).half_sums, expected.column(t).half_sums);
                    assert_eq!(words(q.column(t).scales), words(expected.column(t).scales));
                }
            }
        }
    }
    // Places beyond what is quantised at a time.
    for isa in sets() {
        for at in [511, 512, 1023, 1024, 1120, 1199] {
            let mut x = vec![0.5f32; 2400];
            x[1200 + at] = f32::INFINITY;
            let error = quantize_q8_1(Activations::F32(&x), 1200, &mut Q8_1::new(), &on(isa)).unwrap_err();
            assert_eq!(error, OpError::NonFinite { column: 1, index: at, value: "inf".into() }, "{isa}");
        }
    }
    for isa in sets() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 32, 64, 69, 70, 99, 139] {
                let mut x = vec![0.5f32; 140];
                (x[at], x[139]) = (bad, f32::NAN);
                let mut q = Q8_1::new();
                let error = quantize_q8_1(Activations::F32(&x), 70, &mut q, &on(isa)).unwrap_err();
                assert!(
                    matches!(error, OpError::NonFinite { column, index, .. } if (column, index) == (at / 70, at % 70)),
                    "{isa} {at}: {error}"
                );
            }
        }
    }
}

#[test]
fn the_first_bad_activation_is_named_whatever_the_threads() {
    let (k, columns) = (20_000, 9);
    let mut x = vec![0.5f32; k * columns];
    (x[2 * k + 777], x[2 * k + 19_999], x[5 * k], x[8 * k + 1]) =
        (f32::INFINITY, f32::NAN, f32::NAN, f32::NAN);
    for isa in sets() {
        for threads in [1, 2, 3, 9] {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
            let error = quantize_q8_1(Activations::F32(&x), k, &mut Q8_1::new(), &dispatch).unwrap_err();
            let first = OpError::NonFinite { column: 2, index: 777, value: "inf".into() };
            assert_eq!(error, first, "{isa} threads {threads}");
        }
    }
}

#[test]
fn products() {
    check_products(&[(1, 32), (5, 65), (17, 256), (33, 520), (2, 2304)], &[1, 2, 3, 7, 8, 16, 33]);
}

/// Every format and kernel within seconds, for emulated machines.
#[test]
fn products_of_one_shape() {
    check_products(&[(5, 520)], &[1, 3, 17]);
}

fn check_products(shapes: &[(usize, usize)], columns: &[usize]) {
    let most = *columns.iter().max().unwrap();
    for format in float_formats() {
        for (i, &(n, k)) in shapes.iter().enumerate() {
            let (n, k) = legal(format, n, k);
            for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                let w = make(format, n, k, 80 + i as u64);
                let view = w.view();
                let x = Random(81).values(most * k);
                for precision in [Precision::A16, Precision::A8] {
                    let mut expected = vec![0.0; most * n];
                    matmul(&view, Activations::F32(&x), precision, &mut expected, &on(Isa::Scalar)).unwrap();
                    for isa in sets().into_iter().filter(|isa| *isa != Isa::Scalar) {
                        for &t in columns {
                            let mut out = vec![7.5f32; t * n + 2];
                            let end = 1 + t * n;
                            let x = Activations::F32(&x[..t * k]);
                            let ran = matmul(&view, x, precision, &mut out[1..end], &on(isa)).unwrap();
                            assert!(ran.isa == isa && out[0] == 7.5 && out[end] == 7.5);
                            assert!(
                                words(&out[1..end]) == words(&expected[..t * n]),
                                "{isa} {format} {precision:?} {n}x{k} T {t}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_with_quotients_at_the_ends_of_their_ranges() {
    // One column of nvfp4: weights are quotients times powers of two only where these are normal numbers.
    let (n, k) = (128, 576);
    let base = sane(FormatId::Nvfp4, n, k, 96);
    for exponent in 0..=255u32 {
        let mut payload = base.payload.clone();
        let at = payload.len() - 4;
        // The least scales: what is lost of a quotient below the normal numbers shows in the sums.
        for (i, scale) in payload[n * k / 2..at].iter_mut().enumerate() {
            *scale = (1 + i % 24) as u8;
        }
        payload[at..].copy_from_slice(&(exponent << 23 | 0x1d_7a31).to_le_bytes());
        let view = TensorView::new(FormatId::Nvfp4, &[n as u64, k as u64], 1, &payload).unwrap();
        // Products with small weights stay apart from zero.
        let x: Vec<f32> =
            Random(97).values(k).iter().map(|x| x * if exponent > 127 { 1e9 } else { 1.0 }).collect();
        let mut expected = vec![0.0; n];
        matmul(&view, Activations::F32(&x), Precision::A16, &mut expected, &on(Isa::Scalar)).unwrap();
        // Few rows have no table of quotients.
        for (view, rows) in [(view, 0..n), (view.row_range(5, 21).unwrap(), 5..21)] {
            for isa in sets() {
                let mut out = vec![0.0; rows.len()];
                matmul(&view, Activations::F32(&x), Precision::A16, &mut out, &on(isa)).unwrap();
                assert!(words(&out) == words(&expected[rows.clone()]), "{isa} exponent {exponent} {rows:?}");
            }
        }
    }
}

#[test]
fn scales_at_the_ends_of_their_ranges() {
    // nvfp4 divisors and FP8 multipliers whose quotients and products overflow, underflow or meet NaN codes.
    let mut divisors: Vec<u32> = (0..=255).map(|e| e << 23 | 0x2a_aaab).collect();
    divisors.extend([1, 0x7f_ffff, 0x80_0000, 0, 0x8000_0000, 0xbf80_0000, 0x7f80_0000, 0x7fc0_0000]);
    let base = sane(FormatId::Nvfp4, 128, 64, 95);
    for divisor in divisors {
        let mut payload = base.payload.clone();
        let at = payload.len() - 4;
        payload[at..].copy_from_slice(&divisor.to_le_bytes());
        // Every scale word occurs, the illegal ones too.
        for i in 0..512 {
            payload[128 * 32 + i] = i as u8;
        }
        let view = TensorView::new(FormatId::Nvfp4, &[128, 64], 1, &payload).unwrap();
        check_decode(&view, &format!("nvfp4 divisor {divisor:#x}"));
        check_halves(&view, &format!("nvfp4 divisor {divisor:#x}"));
    }
    for format in [FormatId::Fp8E4m3fnRowBf16, FormatId::Fp8E4m3fnRowFp16] {
        let words: Vec<u16> =
            (0..=0xffu16).map(|h| h << 8 | 0x55).chain([0, 1, 0x8000, 0x7f80, 0x7c00]).collect();
        // All codes, then all but the NaNs, whose runs of 32 are decoded another way.
        let row: Vec<u8> = (0..=255).chain((0..=255).filter(|c| c & 0x7f != 0x7f)).collect();
        let (n, k) = (words.len(), row.len());
        let payload = ninfer_formats::pack_row_scaled(format, n, k, &row.repeat(n), &words).unwrap();
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).unwrap();
        check_decode(&view, format.name());
    }
}

fn check_decode(view: &TensorView<'_>, what: &str) {
    let mut expected = vec![0.0; view.elements()];
    view.decode_f32(&mut expected).unwrap();
    for isa in sets() {
        let mut out = vec![0.0; view.elements()];
        decode_f32(view, &mut out, &on(isa)).unwrap();
        assert!(words(&out) == words(&expected), "{isa} {what}");
    }
}

fn check_halves(view: &TensorView<'_>, what: &str) {
    for half in [Half::Binary16, Half::Bfloat16] {
        let mut expected = vec![0; view.elements()];
        let reference = view.decode_half(half, &mut expected).map_err(OpError::from);
        for isa in sets() {
            let mut out = vec![0; view.elements()];
            let ran = decode_half(view, half, &mut out, &on(isa));
            assert_eq!(ran.map(|_| ()), reference, "{isa} {half:?} {what}");
            if reference.is_ok() {
                assert!(half_words(half, &out) == half_words(half, &expected), "{isa} {half:?} {what}");
            }
        }
    }
}

#[test]
fn quotients_that_meet_ties_of_16_bits_are_rounded_once() {
    // Divisors for which the binary32 quotient of 1 (or 1.5) is a tie of the target that the real one is not.
    let mut found = [0; 2];
    let mut r = Random(96);
    let mut base = sane(FormatId::Nvfp4, 128, 64, 97);
    let at = base.payload.len() - 4;
    for (i, half) in [Half::Binary16, Half::Bfloat16].into_iter().enumerate() {
        let dropped = if half == Half::Binary16 { 13 } else { 16 };
        while found[i] < 20 {
            // A tie t, and the divisors next to s / t.
            let tie = f32::from_bits(
                (100 + r.below(40) as u32) << 23
                    | (r.word() as u32 & 0x7f_ffff & !0 << dropped)
                    | 1 << (dropped - 1),
            );
            for ulp in 0..5 {
                let divisor = f32::from_bits((1.0 / tie).to_bits() + ulp - 2);
                let (once, twice) = (1.0 / f64::from(divisor), 1.0 / divisor);
                let exact = match half {
                    Half::Binary16 => f16::from_f64(once),
                    Half::Bfloat16 => bf16::from_f64(once),
                };
                if half.round(twice) == exact {
                    continue;
                }
                found[i] += 1;
                base.payload[at..].copy_from_slice(&divisor.to_le_bytes());
                // Scale words of 1 give the quotient itself for the code of 1.
                base.payload[128 * 32..at].fill(0x38);
                check_halves(&base.view(), &format!("tie {tie:e} divisor {divisor:e}"));
            }
        }
    }
}

#[test]
fn unaligned_payloads() {
    for format in float_formats() {
        let w = sane(format, 3, 512, 90);
        let view = w.view();
        let mut expected = vec![0.0; view.elements()];
        view.decode_f32(&mut expected).unwrap();
        for shift in [1, 2, 3, 7] {
            let moved = [vec![0xff; shift], w.payload.clone()].concat();
            let view = TensorView::new(format, &w.shape, w.divisors, &moved[shift..]).unwrap();
            for isa in sets() {
                let mut out = vec![0.0; view.elements()];
                decode_f32(&view, &mut out, &on(isa)).unwrap();
                assert!(words(&out) == words(&expected), "{isa} {format} shift {shift}");
            }
        }
        assert!(!matches!(format.scheme(), Scheme::Direct(k) if k.word_bytes() == 8));
    }
}
