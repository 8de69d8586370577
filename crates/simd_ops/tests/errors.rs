//! Sums of errors: by their definition, the same bits on every instruction set, however rows are split.

mod common;

use common::{Random, float_formats, legal, sane};
use ninfer_formats::{FormatId, TensorView};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Dispatch, Isa, RowErrors, decode_f32, row_errors};

fn errors(view: &TensorView<'_>, x: &[f32], w: Option<&[f32]>, dispatch: &Dispatch) -> Vec<RowErrors> {
    let mut out = vec![RowErrors { error: -1.0, ..RowErrors::default() }; view.rows()];
    row_errors(view, x, w, &mut out, dispatch).unwrap();
    out
}

/// The definition, a column at a time.
fn expected(x: &[f32], y: &[f32], w: Option<&[f32]>) -> RowErrors {
    let mut sums = [[0.0f64; 8]; 4];
    let mut out = RowErrors::default();
    for k in 0..x.len() {
        if !x[k].is_finite() {
            out.non_finite += 1;
            continue;
        }
        let (x, e) = (f64::from(x[k]), f64::from(x[k]) - f64::from(y[k]));
        let w = w.map_or(0.0, |w| f64::from(w[k]));
        out.max_abs = out.max_abs.max(e.abs());
        for (sum, term) in sums.iter_mut().zip([e * e, x * x, (w * e) * e, (w * x) * x]) {
            sum[k % 8] += term;
        }
    }
    let total = |p: &[f64; 8]| ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
    let [error, signal, weighted_error, weighted_signal] = sums.each_ref().map(total);
    RowErrors { error, signal, weighted_error, weighted_signal, ..out }
}

fn bits(errors: &[RowErrors]) -> Vec<[u64; 6]> {
    let words = |e: &RowErrors| {
        let sums = [e.max_abs, e.error, e.signal, e.weighted_error, e.weighted_signal].map(f64::to_bits);
        [sums[0], sums[1], sums[2], sums[3], sums[4], e.non_finite]
    };
    errors.iter().map(words).collect()
}

#[test]
fn every_format_sums_by_the_definition_everywhere() {
    for format in float_formats() {
        for (n, k) in [(1, 1), (5, 37), (3, 700), (2, 2048), (3, 4500), (70, 64)] {
            let (n, k) = legal(format, n, k);
            let weight = sane(format, n, k, 3);
            let view = weight.view();
            let mut random = Random(k as u64);
            let mut y = vec![0.0; n * k];
            decode_f32(&view, &mut y, &Dispatch::isa(Isa::Scalar)).unwrap();
            // Values near the weights; exact ones, signed zeros and subnormal numbers among them.
            let mut x: Vec<f32> = y.iter().map(|y| y + random.value() * 0.01).collect();
            for (at, value) in [(0, y[0]), (k / 2, -0.0), (k - 1, 1e-40), (n * k - 1, 3e38)] {
                x[at] = value;
            }
            let w: Vec<f32> = (0..k).map(|i| if i % 7 == 3 { 0.0 } else { random.value().abs() }).collect();
            for bad in [None, Some((0, f32::NAN)), Some((n * k - 1, f32::NEG_INFINITY))] {
                let mut x = x.clone();
                if let Some((at, value)) = bad {
                    x[at] = value;
                }
                for w in [None, Some(&w[..])] {
                    let wanted: Vec<RowErrors> =
                        x.chunks(k).zip(y.chunks(k)).map(|(x, y)| expected(x, y, w)).collect();
                    assert_eq!(wanted.iter().map(|e| e.non_finite).sum::<u64>(), bad.iter().count() as u64);
                    for isa in available() {
                        for threads in [1, 2, 5] {
                            let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                            let found = errors(&view, &x, w, &dispatch);
                            assert_eq!(
                                bits(&found),
                                bits(&wanted),
                                "{format} {n}x{k} {isa} {threads} {bad:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn words_that_stand_for_no_number_show() {
    // An overflow to infinity is an infinite error, a NaN spoils the sum and no other.
    let x = [3e38f32, 1.0, 2.0, -1.5];
    let payload = [f32::INFINITY, 1.5, f32::NAN, -1.5].map(f32::to_le_bytes).concat();
    let view = TensorView::new(FormatId::Fp32, &[2, 2], 1, &payload).unwrap();
    for isa in available() {
        let found = errors(&view, &x, None, &Dispatch::isa(isa));
        assert_eq!(
            (found[0].max_abs, found[0].error, found[0].signal),
            (f64::INFINITY, f64::INFINITY, {
                let x = f64::from(3e38f32);
                x * x + 1.0
            })
        );
        assert!(found[1].error.is_nan() && found[1].max_abs == 0.0 && found[1].signal == 6.25);
    }
}

#[test]
fn buffers_must_fit() {
    let weight = sane(FormatId::Bf16, 3, 10, 1);
    let view = weight.view();
    let dispatch = Dispatch::default();
    let x = [0.0; 31];
    let mut out = [RowErrors::default(); 4];
    let w = [1.0; 11];
    let e = row_errors(&view, &x, None, &mut out[..3], &dispatch).unwrap_err();
    assert!(e.to_string().contains("31"), "{e}");
    let e = row_errors(&view, &x[..30], None, &mut out, &dispatch).unwrap_err();
    assert!(e.to_string().contains("errors") && e.to_string().contains('4'), "{e}");
    let e = row_errors(&view, &x[..30], Some(&w), &mut out[..3], &dispatch).unwrap_err();
    assert!(e.to_string().contains("column weights") && e.to_string().contains("11"), "{e}");
    let e = row_errors(&view, &x[..30], None, &mut out[..3], &Dispatch::threads(0)).unwrap_err();
    assert!(matches!(e, ninfer_simd_ops::OpError::ZeroThreads), "{e}");
    let integers = [0; 8];
    let view = TensorView::new(FormatId::Int32, &[1, 2], 1, &integers).unwrap();
    assert!(row_errors(&view, &x[..2], None, &mut out[..1], &dispatch).is_err());
    // No rows are no error.
    let view = weight.view().row_range(1, 1).unwrap();
    row_errors(&view, &[], None, &mut [], &dispatch).unwrap();
}
