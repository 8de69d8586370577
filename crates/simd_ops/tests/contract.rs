//! The result contract of products: error bound, and the same bits however the work is cut.

mod common;

use common::{Owned, Random, exact_row, float_formats, sane, wild, words};
use ninfer_formats::float::bf16;
use ninfer_formats::{FormatId, RowParts, Scheme, TensorView, pack_grouped};
use ninfer_simd_ops::{
    Activations, Dispatch, Isa, OpError, Precision, Q8_1, Workspace, decode_f32, matmul, matmul_in,
    matmul_q8_1, quantize_q8_1,
};

const BOTH: [Precision; 2] = [Precision::A16, Precision::A8];

fn product(view: &TensorView<'_>, x: &[f32], precision: Precision, dispatch: &Dispatch) -> Vec<f32> {
    // Canaries on both sides of the output.
    let n = view.rows() * (x.len() / view.k());
    let mut out = vec![-7.25f32; n + 16];
    let ran = matmul(view, Activations::F32(x), precision, &mut out[8..8 + n], dispatch).unwrap();
    assert!(dispatch.isa.is_none_or(|isa| ran.isa == isa && isa.chain().any(|i| i == ran.kernel)));
    assert!(out[..8].iter().chain(&out[8 + n..]).all(|&v| v == -7.25), "a write outside the output");
    out[8..8 + n].to_vec()
}

#[test]
fn results_lie_within_the_bound_of_binary64() {
    for format in float_formats() {
        let w = sane(format, 5, 700, 1);
        let view = w.view();
        let (n, k) = (view.rows(), view.k());
        let x = Random(2).values(3 * k);
        let mut values = vec![0.0; n * k];
        decode_f32(&view, &mut values, &Dispatch::isa(Isa::Scalar)).unwrap();
        let mut q = Q8_1::new();
        quantize_q8_1(Activations::F32(&x), k, &mut q, &Dispatch::default()).unwrap();
        for precision in BOTH {
            let y = product(&view, &x, precision, &Dispatch::default());
            let mut square = 0.0;
            for (r, values) in values.chunks_exact(k).enumerate() {
                let (w, s) = exact_row(&view.row(r), values);
                for t in 0..3 {
                    let column: Vec<f64> = match precision {
                        Precision::A16 => x[t * k..(t + 1) * k].iter().map(|&v| f64::from(v)).collect(),
                        Precision::A8 => {
                            let c = q.column(t);
                            (0..k).map(|i| f64::from(c.scales[i / 32]) * f64::from(c.codes[i])).collect()
                        }
                    };
                    let ideal: f64 = w.iter().zip(&column).map(|(w, x)| w * x).sum();
                    let size: f64 = s.iter().zip(&column).map(|(s, x)| s * x.abs()).sum();
                    let steps = k as f64 / if precision == Precision::A8 { 32.0 } else { 16.0 } + 8.0;
                    let error = (f64::from(y[t * n + r]) - ideal).abs();
                    let bound = steps * 2f64.powi(-24) * size;
                    assert!(
                        error <= bound,
                        "{format} {precision:?} row {r} column {t}: {error:e} > {bound:e}"
                    );
                    square += (error / size).powi(2);
                }
            }
            // The bound is rigorous and wide; a wrong order would still pass it, gross inaccuracy would not.
            let rms = (square / (3 * n) as f64).sqrt();
            assert!(rms < 2f64.powi(-22), "{format} {precision:?}: rms {rms:e}");
        }
    }
}

/// Shapes that leave tails everywhere (field reports on row lengths and on odd shares of rows).
fn shapes(format: FormatId) -> Vec<(usize, usize)> {
    let k: &[usize] = match format.scheme() {
        Scheme::Gguf(kind) if kind.values() == 32 => &[32, 64, 96, 160, 576, 608],
        Scheme::Gguf(kind) if kind.values() == 64 => &[64, 128, 192, 320],
        Scheme::Gguf(_) => &[256, 512, 768, 1280],
        Scheme::Nvfp4 => &[64, 128, 192, 320],
        _ => &[1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 192, 257],
    };
    k.iter().zip([1, 2, 3, 5, 7, 9, 13, 33].into_iter().cycle()).map(|(&k, n)| (n, k)).collect()
}

#[test]
fn bits_do_not_depend_on_columns_threads_or_slices() {
    for format in float_formats() {
        for (i, (n, k)) in shapes(format).into_iter().enumerate() {
            let make: fn(FormatId, usize, usize, u64) -> Owned = if i % 3 == 2 { wild } else { sane };
            let w = make(format, n, k, 3 + i as u64);
            let view = w.view();
            let (n, k) = (view.rows(), view.k());
            let x = Random(4).values(33 * k);
            for precision in BOTH {
                let single = Dispatch::threads(1);
                let whole = product(&view, &x, precision, &single);
                for t in 0..33 {
                    let one = product(&view, &x[t * k..(t + 1) * k], precision, &single);
                    assert_eq!(words(&one), words(&whole[t * n..(t + 1) * n]), "{format} {n}x{k} column {t}");
                }
                for columns in [2, 3, 5, 7, 8, 9, 16] {
                    let some = product(&view, &x[..columns * k], precision, &single);
                    assert_eq!(words(&some), words(&whole[..columns * n]), "{format} {n}x{k} T {columns}");
                }
                for threads in [2, 3, 4, 7, 16, 64] {
                    let y = product(&view, &x, precision, &Dispatch::threads(threads));
                    assert_eq!(words(&y), words(&whole), "{format} {n}x{k} threads {threads}");
                }
                for (a, b) in [(0, 1), (n / 2, n), (n / 3, n / 3 + 1), (n, n), (n.saturating_sub(2), n)] {
                    let part = product(&view.row_range(a, b).unwrap(), &x[..2 * k], precision, &single);
                    let expected = [&whole[a..b], &whole[n + a..n + b]].concat();
                    assert_eq!(words(&part), words(&expected), "{format} {n}x{k} rows {a}..{b}");
                }
            }
        }
    }
}

#[test]
fn many_rows_over_threads_have_the_bits_of_one_thread() {
    for format in [FormatId::Q5G64Fp16, FormatId::GgufQ6K, FormatId::Nvfp4, FormatId::Fp32] {
        let w = sane(format, 257, 256, 5);
        let view = w.view();
        let x = Random(6).values(3 * view.k());
        for precision in BOTH {
            let one = product(&view, &x, precision, &Dispatch::threads(1));
            for threads in [2, 3, 5, 7, 64] {
                for _ in 0..5 {
                    let y = product(&view, &x, precision, &Dispatch::threads(threads));
                    assert_eq!(words(&y), words(&one), "{format} threads {threads}");
                }
            }
            let default = product(&view, &x, precision, &Dispatch::default());
            assert_eq!(words(&default), words(&one));
        }
    }
}

#[test]
fn padding_of_row_split_payloads_contributes_nothing() {
    for format in float_formats() {
        let Scheme::Grouped(s) = format.scheme() else { continue };
        for k in [1, 33, 65, 130, 200] {
            let mut w = sane(format, 3, k, 7);
            let x = Random(8).values(2 * k);
            let clean: Vec<_> =
                BOTH.iter().map(|&p| product(&w.view(), &x, p, &Dispatch::default())).collect();
            // Everything that is not a logical word becomes rubbish, scales of padding groups NaN.
            let groups = k.next_multiple_of(128) / s.group;
            let logical = k.div_ceil(s.group);
            let (base, high) = (3 * groups * s.base_bytes, 3 * groups * s.high_bytes);
            let high_at = base.next_multiple_of(256);
            let scale_at = high_at + high.next_multiple_of(256);
            let mut keep = vec![false; w.payload.len()];
            for r in 0..3 {
                for g in 0..logical {
                    let i = r * groups + g;
                    keep[scale_at + 2 * i] = true;
                    keep[scale_at + 2 * i + 1] = true;
                    // Bytes whose lanes are all past K may change; the others hold logical lanes.
                    let lanes = (k - g * s.group).min(s.group);
                    let full = |bytes: usize| (bytes * lanes).div_ceil(s.group);
                    keep[i * s.base_bytes..][..full(s.base_bytes)].fill(true);
                    keep[high_at + i * s.high_bytes..][..full(s.high_bytes)].fill(true);
                }
            }
            for (byte, keep) in w.payload.iter_mut().zip(keep) {
                if !keep {
                    *byte = 0x7f;
                }
            }
            for (&precision, clean) in BOTH.iter().zip(&clean) {
                let y = product(&w.view(), &x, precision, &Dispatch::default());
                assert_eq!(words(&y), words(clean), "{format} K {k} {precision:?}");
                assert!(y.iter().all(|v| v.is_finite()));
            }
        }
    }
}

#[test]
fn bfloat16_activations_are_their_exact_values() {
    let w = sane(FormatId::GgufQ4K, 7, 512, 9);
    let view = w.view();
    let half: Vec<u16> = Random(10).values(3 * 512).into_iter().map(bf16::from_f32).collect();
    let full: Vec<f32> = half.iter().map(|&h| bf16::to_f32(h)).collect();
    for precision in BOTH {
        let mut y = vec![0.0; 3 * 7];
        matmul(&view, Activations::Bf16(&half), precision, &mut y, &Dispatch::default()).unwrap();
        assert_eq!(words(&y), words(&product(&view, &full, precision, &Dispatch::default())));
    }
    // Neither weights nor activations pass through binary16 (field report on narrowing): 2^17 * 2^17 * K.
    let payload: Vec<u8> = bf16::from_f32(131_072.0).to_le_bytes().repeat(24);
    let view = TensorView::new(FormatId::Bf16, &[1, 24], 1, &payload).unwrap();
    let mut y = [0.0];
    let x = [bf16::from_f32(131_072.0); 24];
    matmul(&view, Activations::Bf16(&x), Precision::A16, &mut y, &Dispatch::default()).unwrap();
    assert_eq!(y, [24.0 * 2f32.powi(34)]);
}

#[test]
fn minima_and_extreme_codes_enter_exactly() {
    // d = 0 isolates the minimum of the K types with one; all activations negative (field report).
    for (format, d_at, min_at) in
        [(FormatId::GgufQ2K, 80, 82), (FormatId::GgufQ4K, 0, 2), (FormatId::GgufQ5K, 0, 2)]
    {
        let mut w = sane(format, 1, 256, 11);
        w.payload[d_at..d_at + 2].fill(0);
        w.payload[min_at..min_at + 2].copy_from_slice(&0x3800u16.to_le_bytes());
        let x = vec![-127.0f32; 256];
        let mut values = vec![0.0; 256];
        decode_f32(&w.view(), &mut values, &Dispatch::default()).unwrap();
        let expected: f32 = -127.0 * values.iter().sum::<f32>();
        assert!(expected > 0.0);
        for precision in BOTH {
            assert_eq!(product(&w.view(), &x, precision, &Dispatch::default()), [expected], "{format}");
        }
    }
    // q8_0 code -128 (field report on unsigned left operands): 0.5 * -128 * -1 * 32 per block.
    let block = [&0x3800u16.to_le_bytes()[..], &[0x80; 32]].concat();
    let view = TensorView::new(FormatId::GgufQ8_0, &[1, 32], 1, &block).unwrap();
    for precision in BOTH {
        // d_x = f16(1/127) rounds: only A16 is exact here.
        let y = product(&view, &[-1.0; 32], precision, &Dispatch::default())[0];
        let expected = if precision == Precision::A16 { 2048.0 } else { 64.0 * 32.0 * 127.0 * 0.007_873_535 };
        assert_eq!(y, expected);
    }
    // Negative group scales are multipliers like any other (field report).
    let codes: Vec<i8> = (0..64).map(|i| (i % 16) as i8 - 8).collect();
    let payload = pack_grouped(FormatId::Q4G64Fp16, 1, 64, &codes, &[0xb800]).unwrap();
    let view = TensorView::new(FormatId::Q4G64Fp16, &[1, 64], 1, &payload).unwrap();
    let mut x = [0.0f32; 64];
    for (i, &code) in codes.iter().enumerate() {
        x.fill(0.0);
        x[i] = 127.0;
        for precision in BOTH {
            let y = product(&view, &x, precision, &Dispatch::default());
            assert_eq!(y, [-0.5 * f32::from(code) * 127.0], "{precision:?} code {code}");
        }
    }
}

#[test]
fn infinities_and_nans_show_as_ieee_says_with_one_nan_word() {
    let mut w = sane(FormatId::GgufQ8_0, 3, 64, 12);
    w.payload[0..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    w.payload[2..34].fill(1);
    w.payload[68..70].copy_from_slice(&0xfe01u16.to_le_bytes());
    let x = vec![1.0f32; 64];
    for precision in BOTH {
        let y = product(&w.view(), &x, precision, &Dispatch::default());
        assert_eq!(y[0], f32::INFINITY);
        assert_eq!(y[1].to_bits(), 0x7fc0_0000);
        assert!(y[2].is_finite());
    }
    // An infinite activation is legal with A16, refused with A8.
    let mut x = vec![1.0f32; 128];
    x[64 + 5] = f32::NEG_INFINITY;
    let mut y = vec![0.0; 6];
    matmul(&w.view(), Activations::F32(&x), Precision::A16, &mut y, &Dispatch::default()).unwrap();
    assert!(y[5].is_infinite() && y[2].is_finite());
    for threads in [1, 2, 3] {
        let dispatch = Dispatch::threads(threads);
        let error = matmul(&w.view(), Activations::F32(&x), Precision::A8, &mut y, &dispatch).unwrap_err();
        assert_eq!(error, OpError::NonFinite { column: 1, index: 5, value: "-inf".into() });
    }
}

#[test]
fn bad_lengths_and_formats_are_refused_by_name() {
    let w = sane(FormatId::GgufQ8_0, 3, 64, 13);
    let view = w.view();
    let run = |x: &[f32], n: usize| {
        let mut out = vec![0.0; n];
        matmul(&view, Activations::F32(x), Precision::A16, &mut out, &Dispatch::default())
    };
    let error = run(&[0.0; 65], 3).unwrap_err().to_string();
    assert!(error.contains("128 values, got 65"), "{error}");
    let error = run(&[0.0; 128], 3).unwrap_err().to_string();
    assert!(error.contains("the output must hold exactly 6 elements, got 3"), "{error}");
    assert!(run(&[], 0).is_ok());
    let dispatch = Dispatch::threads(0);
    let mut out = [0.0; 3];
    let x = Activations::F32(&[0.0; 64]);
    assert_eq!(matmul(&view, x, Precision::A16, &mut out, &dispatch), Err(OpError::ZeroThreads));
    let missing = Isa::ALL.into_iter().find(|i| !i.is_available()).unwrap();
    let error = matmul(&view, x, Precision::A8, &mut out, &Dispatch::isa(missing)).unwrap_err();
    assert!(matches!(error, OpError::UnavailableIsa { name, .. } if name == missing.name()));

    let ints = wild(FormatId::Int32, 3, 64, 14);
    for precision in BOTH {
        let error = matmul(&ints.view(), x, precision, &mut out, &Dispatch::default()).unwrap_err();
        assert!(error.to_string().starts_with("int32: "), "{error}");
    }
    let mut q = Q8_1::new();
    quantize_q8_1(Activations::F32(&[0.0; 32]), 32, &mut q, &Dispatch::default()).unwrap();
    let error = matmul_q8_1(&view, &q, &mut out, &Dispatch::default(), &mut Workspace::default());
    assert!(matches!(error, Err(OpError::Length { expected: 64, actual: 32, .. })));
}

#[test]
fn a_workspace_serves_changing_shapes_and_shared_activations() {
    let mut workspace = Workspace::default();
    for (format, n, k, t) in [
        (FormatId::GgufQ4K, 9, 512, 3),
        (FormatId::Bf16, 3, 33, 1),
        (FormatId::Q6G64Fp16, 17, 130, 9),
        (FormatId::Fp8E4m3fnRowFp16, 5, 160, 2),
    ] {
        let w = sane(format, n, k, 15);
        let x = Random(16).values(t * k);
        for precision in BOTH {
            let mut y = vec![0.0; n * t];
            let view = w.view();
            matmul_in(&view, Activations::F32(&x), precision, &mut y, &Dispatch::default(), &mut workspace)
                .unwrap();
            assert_eq!(words(&y), words(&product(&view, &x, precision, &Dispatch::default())), "{format}");
            if precision == Precision::A8 {
                let mut q = Q8_1::new();
                quantize_q8_1(Activations::F32(&x), k, &mut q, &Dispatch::threads(2)).unwrap();
                let mut z = vec![0.0; n * t];
                matmul_q8_1(&view, &q, &mut z, &Dispatch::default(), &mut workspace).unwrap();
                assert_eq!(words(&y), words(&z), "{format}");
            }
        }
    }
}

#[test]
fn float_weights_with_quantised_activations_follow_a16_over_the_represented_values() {
    let w = sane(FormatId::Fp8E4m3fnRowBf16, 4, 70, 17);
    let x = Random(18).values(2 * 70);
    let mut q = Q8_1::new();
    quantize_q8_1(Activations::F32(&x), 70, &mut q, &Dispatch::default()).unwrap();
    let represented: Vec<f32> = (0..2)
        .flat_map(|t| {
            let c = q.column(t);
            (0..70).map(|i| c.scales[i / 32] * f32::from(c.codes[i])).collect::<Vec<_>>()
        })
        .collect();
    let a8 = product(&w.view(), &x, Precision::A8, &Dispatch::default());
    assert_eq!(words(&a8), words(&product(&w.view(), &represented, Precision::A16, &Dispatch::default())));
}

#[test]
fn a8_follows_the_written_order_on_a_row_worked_by_hand() {
    // Two blocks of q8_0: 2^24 from the first absorbs the 1 of the second only if blocks are added in order and
    // nothing is added in a wider type.
    let mut payload = Vec::new();
    for (d, q) in [(0x6c00u16, 127i8), (0x3c00, 1), (0x3c00, 1)] {
        payload.extend(d.to_le_bytes());
        payload.push(q as u8);
        payload.extend([0; 31]);
    }
    let view = TensorView::new(FormatId::GgufQ8_0, &[1, 96], 1, &payload).unwrap();
    let mut x = [0.0f32; 96];
    (x[0], x[32], x[64]) = (127.0, 127.0, 127.0);
    // d_x = 1, codes 127: 4096 * 127 * 127 = 66064384 = 2^26 - ..., then 127 twice, each rounded to a multiple of 4.
    let y = product(&view, &x, Precision::A8, &Dispatch::default());
    assert_eq!(y, [66_064_384.0 + 128.0 + 128.0]);
    assert!(matches!(view.row(0), RowParts::Blocks { .. }));
}
