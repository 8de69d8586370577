//! Products with chosen experts of a bank: the bits of the products of their rows, whatever is chosen and split.

mod common;

use common::{Random, float_formats, legal, sane, words};
use ninfer_formats::{FormatId, TensorView};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Activations, Dispatch, OpError, Precision, Workspace, matmul, matmul_experts};

const EXPERTS: usize = 5;

#[test]
fn chosen_experts_have_the_bits_of_their_rows() {
    let mut workspace = Workspace::default();
    for format in float_formats() {
        let (n, k) = legal(format, 37, 160);
        let (_, k) = legal(format, n, k);
        let w = sane(format, EXPERTS * n, k, 50);
        let bank = w.view();
        let columns = 3;
        let x = Random(51).values(columns * k);
        for ids in [
            vec![4, 0, 2, 1, 3, 0],               // two experts a column
            vec![1, 1, 1],                        // all columns the same
            (0..30).map(|i| i * i % 5).collect(), // ten a column, with repeats
            vec![],
        ] {
            let each = ids.len() / columns;
            for precision in [Precision::A16, Precision::A8] {
                let mut expected = vec![0.0; ids.len() * n];
                for (i, &expert) in ids.iter().enumerate() {
                    let rows = bank.row_range(expert * n, (expert + 1) * n).unwrap();
                    let t = i / each;
                    let x = Activations::F32(&x[t * k..(t + 1) * k]);
                    let out = &mut expected[i * n..(i + 1) * n];
                    matmul(&rows, x, precision, out, &Dispatch::threads(1)).unwrap();
                }
                for isa in available() {
                    for threads in [1, 2, 5] {
                        let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                        let mut out = vec![9.0; ids.len() * n];
                        let x = Activations::F32(&x);
                        let ran = matmul_experts(
                            &bank,
                            EXPERTS,
                            &ids,
                            x,
                            precision,
                            &mut out,
                            &dispatch,
                            &mut workspace,
                        );
                        let ran = ran.unwrap();
                        assert_eq!(ran.isa, isa);
                        assert!(ran.parts <= threads && (threads == 1 || ids.is_empty() || ran.parts > 1));
                        assert!(words(&out) == words(&expected), "{isa} {format} {precision:?} {ids:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_view_of_some_experts_and_a_column_for_every_choice() {
    let (n, k) = (20, 96);
    let w = sane(FormatId::Q4G64Fp16, EXPERTS * n, k, 52);
    let bank = w.view();
    let some = bank.row_range(n, 4 * n).unwrap();
    let words16: Vec<u16> = Random(53).values(4 * k).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let ids = [2, 0, 0, 1];
    for precision in [Precision::A16, Precision::A8] {
        let mut out = vec![0.0; 4 * n];
        let dispatch = Dispatch::default();
        let x = Activations::Bf16(&words16);
        matmul_experts(&some, 3, &ids, x, precision, &mut out, &dispatch, &mut Workspace::default()).unwrap();
        for (i, expert) in ids.into_iter().enumerate() {
            let rows = bank.row_range((expert + 1) * n, (expert + 2) * n).unwrap();
            let mut expected = vec![0.0; n];
            let x = Activations::Bf16(&words16[i * k..(i + 1) * k]);
            matmul(&rows, x, precision, &mut expected, &dispatch).unwrap();
            assert_eq!(words(&out[i * n..(i + 1) * n]), words(&expected), "choice {i}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    let w = sane(FormatId::GgufQ8_0, 12, 64, 54);
    let x = Random(55).values(2 * 64);
    let call = |view: &TensorView<'_>, experts, ids: &[usize], x: &[f32], out: &mut [f32]| {
        let (x, dispatch) = (Activations::F32(x), Dispatch::default());
        matmul_experts(view, experts, ids, x, Precision::A8, out, &dispatch, &mut Workspace::default())
    };
    let view = w.view();
    let mut out = vec![7.0; 2 * 4];
    assert_eq!(call(&view, 5, &[0, 1], &x, &mut out), Err(OpError::Bank { rows: 12, experts: 5 }));
    assert_eq!(call(&view, 0, &[0, 1], &x, &mut out), Err(OpError::Bank { rows: 12, experts: 0 }));
    let outside = OpError::Expert { index: 1, expert: 3, experts: 3 };
    assert_eq!(call(&view, 3, &[0, 3], &x, &mut out), Err(outside.clone()));
    assert!(outside.to_string().contains("expert 3 (choice 1) is outside the 3 experts"));
    for (ids, x, length) in
        [(&[0, 1, 2][..], &x[..], 12), (&[0, 1], &x[..], 7), (&[0], &x[..0], 4), (&[0, 1], &x[..65], 8)]
    {
        let mut out = vec![7.0; length];
        assert!(matches!(call(&view, 3, ids, x, &mut out), Err(OpError::Length { .. })), "{ids:?}");
        assert!(out.iter().all(|&y| y == 7.0));
    }
    let mut bad = x.clone();
    bad[70] = f32::NAN;
    let error = call(&view, 3, &[0, 1], &bad, &mut out).unwrap_err();
    assert!(matches!(error, OpError::NonFinite { column: 1, index: 6, .. }), "{error}");
    assert!(out.iter().all(|&y| y == 7.0));
}

#[test]
fn nans_are_one_word() {
    let k = 32;
    let mut direct: Vec<u8> = 1f32.to_le_bytes().repeat(4 * k);
    direct[4 * (2 * k + 5)..][..4].copy_from_slice(&0xffc0_1234u32.to_le_bytes());
    let mut blocks = sane(FormatId::GgufQ8_0, 4, k, 56).payload;
    blocks[2 * 34..][..2].copy_from_slice(&0xfe01u16.to_le_bytes());
    for (format, payload) in [(FormatId::Fp32, direct), (FormatId::GgufQ8_0, blocks)] {
        let bank = TensorView::new(format, &[4, k as u64], 1, &payload).unwrap();
        for precision in [Precision::A16, Precision::A8] {
            for isa in available() {
                let (mut out, x, ids) = ([0.0; 4], [1.0; 32], [1, 0]);
                let on = Dispatch { isa: Some(isa), threads: Some(1) };
                let x = Activations::F32(&x);
                matmul_experts(&bank, 2, &ids, x, precision, &mut out, &on, &mut Workspace::default())
                    .unwrap();
                assert_eq!(out[0].to_bits(), 0x7fc0_0000, "{isa} {format} {precision:?}");
                assert!(out[1..].iter().all(|y| y.is_finite()), "{isa} {format} {precision:?}");
            }
        }
    }
}
