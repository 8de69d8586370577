//! Values to `nvfp4`: words by hand, nearest codes, the search against the max-abs scales, tiles, refusals, digests.

mod common;

use common::Rng;
use ninfer_formats::encoder::nvfp4::{Nvfp4Encoder, TILE_ROWS, divisor, encode_by, largest};
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, encode};
use ninfer_formats::float::{e2m1, e4m3};
use ninfer_formats::{FormatError, FormatId, Nvfp4Words, Place, TensorView};

const METHODS: [EncoderId; 2] = [EncoderId::Nvfp4Maxabs, EncoderId::Nvfp4Search];

/// Bell-shaped values from integer sums, rows of different magnitude, a few outliers.
fn matrix(rng: &mut Rng, n: usize, k: usize) -> Vec<f32> {
    (0..n * k)
        .map(|i| {
            let sum: i32 = (0..4).map(|_| (rng.next() >> 40) as i32 - (1 << 23)).sum();
            let outlier = if rng.below(500) == 0 { 24.0 } else { 1.0 };
            sum as f32 / (1 << 27) as f32 * 2f32.powi((i / k % 9) as i32 - 6) * outlier
        })
        .collect()
}

fn weights(rng: &mut Rng, k: usize) -> Vec<f32> {
    (0..k).map(|i| if i % 37 == 5 { 0.0 } else { (rng.below(1 << 20) as f32 / 1e5).powi(3) }).collect()
}

fn words(n: usize, k: usize, payload: &[u8]) -> Nvfp4Words {
    let view = TensorView::new(FormatId::Nvfp4, &[n as u64, k as u64], 1, payload).expect("view");
    view.validate().expect("valid");
    view.nvfp4_words().expect("words")
}

fn place(error: FormatError) -> Place {
    match error {
        FormatError::Refused { place, .. } => place,
        other => panic!("expected a refusal, got {other}"),
    }
}

/// Weighted squared error of every group, in binary64.
fn errors(x: &[f32], k: usize, w: &Nvfp4Words, importance: Option<&[f32]>) -> Vec<f64> {
    let d = f64::from(f32::from_bits(w.divisors[0]));
    x.chunks(16)
        .enumerate()
        .map(|(g, x)| {
            let s = f64::from(e4m3::to_f32(w.scales[g]));
            (0..16)
                .map(|i| {
                    let code = w.codes[g * 8 + i / 2] >> (4 * (i % 2));
                    let t = f64::from(x[i]) - f64::from(e2m1::to_f32(code)) * s / d;
                    importance.map_or(1.0, |v| f64::from(v[(g * 16 + i) % k])) * t * t
                })
                .sum()
        })
        .collect()
}

#[test]
fn words_by_hand() {
    let (n, k) = (128, 64);
    let mut x = vec![0.0f32; n * k];
    // The largest value gets the scale 448 and the code of 6: the divisor is 2688 / 12 = 224.
    x[..6].copy_from_slice(&[12.0, -12.0, 1.0, -0.5, 0.0, -0.0]);
    // Half of 12 gives 224 = 0x76; 2.5 units of 224/224 lie between 2 and 3, of which 2 is the even word.
    x[16..22].copy_from_slice(&[6.0, -5.0, 2.5, -2.5, 3.5, 1.25]);
    // Far below the smallest scale: 2^-9 all the same, and codes of 2^-9/224 each.
    x[32] = 2f32.powi(-9) / 224.0;
    x[33] = -1e-12;
    for method in METHODS {
        let payload = encode(FormatId::Nvfp4, method, n, k, &x, Params::default()).expect("encodes");
        let w = words(n, k, &payload);
        assert_eq!(w.divisors, [224f32.to_bits()]);
        if method == EncoderId::Nvfp4Maxabs {
            assert_eq!(w.scales[..4], [0x7e, 0x76, 0x01, 0x00]);
            // 12 = 6 * 448/224; 1 is half a unit of 2, -0.5 a quarter of one: a tie, to the even zero.
            assert_eq!(w.codes[..4], [0xf7, 0x81, 0x80, 0x00]);
            assert_eq!(w.codes[8..11], [0xe7, 0xc4, 0x26]);
            assert_eq!(w.codes[16], 0x82);
        } else {
            // The smallest scale hits the first value; the second is lost.
            assert!(errors(&x, k, &w, None)[2] < 2e-24);
        }
        assert!(w.codes[24..].iter().all(|&c| c == 0) && w.scales[4..].iter().all(|&s| s == 0));
    }
    // A matrix of zeros: divisor 1, nothing else.
    let payload = encode(FormatId::Nvfp4, METHODS[1], n, k, &vec![-0.0; n * k], Params::default());
    let w = words(n, k, &payload.expect("encodes"));
    assert_eq!(w.divisors, [1f32.to_bits()]);
    assert!(w.codes.iter().chain(&w.scales).all(|&b| b == 0));
}

#[test]
fn divisor_rule() {
    assert_eq!(divisor(0.0), 1.0);
    assert_eq!(divisor(6.0), 448.0);
    assert_eq!(divisor(f32::from_bits(1)), f32::MAX);
    assert_eq!(divisor(f32::MAX), 2688.0 / f32::MAX);
    assert_eq!(largest(&[], 64, 0), Ok(0.0));
    assert_eq!(largest(&[0.5, -3.0, 2.0], 3, 0), Ok(3.0));
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        let mut x = vec![1.0; 256];
        x[130] = bad;
        x[200] = bad;
        let at = place(largest(&x, 64, 1000).expect_err("refused"));
        assert_eq!(at, Place::Column { row: 1002, column: 2 });
    }
    // Whatever the magnitude, the largest value's own group has the scale 448.
    let mut rng = Rng(3);
    for e in -126..=127 {
        let mut x = matrix(&mut rng, 128, 64);
        x.iter_mut().for_each(|v| *v = (*v * 1e-9).min(1.0));
        let top = 2f32.powi(e) * (1.0 + rng.below(1000) as f32 / 1001.0);
        x.iter_mut().for_each(|v| *v *= 2f32.powi(e.max(-100)));
        x[77] = top;
        if e < -100 {
            x.fill(0.0);
            x[77] = -top;
        }
        let payload = encode(FormatId::Nvfp4, METHODS[0], 128, 64, &x, Params::default()).expect("encodes");
        let w = words(128, 64, &payload);
        if 2688.0 / f64::from(top) < f64::from(f32::MAX) {
            assert_eq!(w.scales[4], 0x7e, "2^{e}");
            assert_eq!(w.codes[38] >> 4 & 7, 7);
        } else {
            assert_eq!(w.divisors, [f32::MAX.to_bits()]);
        }
    }
}

/// Codes are the nearest ones under the scale that was chosen, and no word near the max-abs scale is better.
#[test]
fn codes_and_scales_are_the_best() {
    let mut rng = Rng(17);
    let (n, k) = (256, 320);
    let x = matrix(&mut rng, n, k);
    let imp = weights(&mut rng, k);
    let plain =
        words(n, k, &encode(FormatId::Nvfp4, METHODS[0], n, k, &x, Params::default()).expect("encodes"));
    let d = f32::from_bits(plain.divisors[0]);
    for (g, x) in x.chunks(16).enumerate() {
        let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert_eq!(plain.scales[g], e4m3::from_f32_saturating(amax * d / 6.0).max(1), "group {g}");
        let inverse = 1.0 / e4m3::to_f32(plain.scales[g]);
        for (i, v) in x.iter().enumerate() {
            let code = plain.codes[g * 8 + i / 2] >> (4 * (i % 2)) & 15;
            assert_eq!(code, e2m1::from_f32_saturating(v * d * inverse), "group {g} value {i}");
        }
    }
    for importance in [None, Some(&imp[..])] {
        let params = Params { importance, negative_scales: false };
        let found = words(n, k, &encode(FormatId::Nvfp4, METHODS[1], n, k, &x, params).expect("encodes"));
        let (before, after) = (errors(&x, k, &plain, importance), errors(&x, k, &found, importance));
        for (g, (b, a)) in before.iter().zip(&after).enumerate() {
            assert!(*a <= b * (1.0 + 1e-5), "group {g}: {a} {b}");
            // Every scale word within the reach of the search, with nearest codes.
            let start = i32::from(plain.scales[g]);
            let least = (start - 6..=start + 9)
                .filter(|w| (1..=126).contains(w))
                .map(|word| {
                    let s = e4m3::to_f32(word as u8);
                    let values = x[g * 16..g * 16 + 16].iter().enumerate();
                    values
                        .map(|(i, v)| {
                            let q = e2m1::to_f32(e2m1::from_f32_saturating(v * d / s));
                            let t = f64::from(*v) - f64::from(q) * f64::from(s) / f64::from(d);
                            importance.map_or(1.0, |m| f64::from(m[(g * 16 + i) % k])) * t * t
                        })
                        .sum::<f64>()
                })
                .fold(f64::INFINITY, f64::min);
            assert!(*a <= least * (1.0 + 1e-5), "group {g}: {a} {least}");
        }
        let (b, a) = (before.iter().sum::<f64>(), after.iter().sum::<f64>());
        assert!(a < b * 0.9, "{a} {b}");
    }
}

/// Two passes over pieces give the words of the whole; rows do not know of each other.
#[test]
fn tiles_and_pieces() {
    let mut rng = Rng(23);
    let (n, k) = (3 * TILE_ROWS, 192);
    let x = matrix(&mut rng, n, k);
    let imp = weights(&mut rng, k);
    for method in METHODS {
        let importance = (method == EncoderId::Nvfp4Search).then_some(&imp[..]);
        let params = Params { importance, negative_scales: false };
        let whole = encode(FormatId::Nvfp4, method, n, k, &x, params).expect("encodes");
        let top = x.chunks(k * 7).map(|x| largest(x, k, 0).expect("finite")).fold(0.0, f32::max);
        let encoder = Nvfp4Encoder::new(method, k, divisor(top), params).expect("encoder");
        let pieces = encode_by(n, k, encoder.divisor(), |row0, codes, scales| {
            encoder.encode_tile(&x[row0 * k..][..TILE_ROWS * k], row0 as u64, codes, scales)
        });
        assert!(pieces.expect("encodes") == whole);
        let w = words(n, k, &whole);
        for r in [0, 1, 127, 128, n - 1] {
            let (mut codes, mut scales) = (vec![0; k / 2], vec![0; k / 16]);
            encoder.encode_row(&x[r * k..(r + 1) * k], &mut codes, &mut scales).expect("encodes");
            assert!(codes == w.codes[r * k / 2..][..k / 2] && scales == w.scales[r * k / 16..][..k / 16]);
        }
    }
}

#[test]
fn refusals() {
    let (n, k) = (128, 128);
    let mut x = vec![0.5f32; n * k];
    x[5 * k + 70] = f32::NAN;
    for method in METHODS {
        let run = |n, k, x: &[f32], params| encode(FormatId::Nvfp4, method, n, k, x, params);
        let error = run(n, k, &x, Params::default()).expect_err("refused");
        assert_eq!(place(error), Place::Column { row: 5, column: 70 });
        for (n, k) in [(127, 64), (128, 63), (0, 64), (128, 0), (128, 32)] {
            assert!(matches!(run(n, k, &x[..n * k], Params::default()), Err(FormatError::Shape { .. })));
        }
        assert!(run(n, k, &x[1..], Params::default()).is_err());
        let params = Params { importance: None, negative_scales: true };
        assert!(run(n, k, &x, params).expect_err("refused").to_string().contains("negative_scales"));
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = Nvfp4Encoder::new(method, k, bad, Params::default()).expect_err("refused");
            assert!(error.to_string().contains("divisor"), "{error}");
        }
        // A divisor that is not that of the matrix: scales just at and just above what rounds to 448.
        let encoder = Nvfp4Encoder::new(method, k, 2688.0, Params::default()).expect("encoder");
        let (mut codes, mut scales) = (vec![0; 64 * k], vec![0; 8 * k]);
        let mut y = vec![0.25f32; n * k];
        y[3 * k + 17] = 464.0 * 6.0 / 2688.0;
        encoder.encode_tile(&y, 40, &mut codes, &mut scales).expect("rounds to 448");
        y[3 * k + 17] = 1.0359;
        let error = encoder.encode_tile(&y, 40, &mut codes, &mut scales).expect_err("refused");
        assert!(error.to_string().contains("exceeds 448"), "{error}");
        assert_eq!(place(error), Place::Group { row: 43, group: 1 });
        for (a, b, c) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            let (codes, scales) = (&mut codes[b..], &mut scales[c..]);
            let error = encoder.encode_tile(&y[a..], 0, codes, scales).expect_err("refused");
            assert!(matches!(error, FormatError::BufferSize { .. }), "{error}");
        }
    }
    let ones = vec![1.0f32; k];
    let with = |importance| Params { importance: Some(importance), negative_scales: false };
    let error = Nvfp4Encoder::new(METHODS[0], k, 1.0, with(&ones)).expect_err("refused");
    assert!(error.to_string().contains("takes no importance"), "{error}");
    assert!(Nvfp4Encoder::new(METHODS[1], k, 1.0, with(&ones[1..])).is_err());
    let error = Nvfp4Encoder::new(METHODS[1], 64, 1.0, with(&[-1.0; 64])).expect_err("refused");
    assert!(error.to_string().contains("column 0"), "{error}");
    assert!(Nvfp4Encoder::new(EncoderId::GroupedAbsmax, k, 1.0, Params::default()).is_err());
    let error = RowEncoder::new(FormatId::Nvfp4, METHODS[0], k, Params::default()).expect_err("refused");
    assert!(error.to_string().contains("nvfp4 encoder"), "{error}");
}

/// Importance without any weight in a group counts as ones there; a factor changes nothing.
#[test]
fn importance_is_relative() {
    let mut rng = Rng(29);
    let (n, k) = (128, 256);
    let x = matrix(&mut rng, n, k);
    let mut imp = weights(&mut rng, k);
    let run = |imp: &[f32]| {
        let params = Params { importance: Some(imp), negative_scales: false };
        encode(FormatId::Nvfp4, METHODS[1], n, k, &x, params).expect("encodes")
    };
    imp[32..48].fill(0.0);
    let zeros = run(&imp);
    imp[32..48].fill(3.0);
    assert!(run(&imp) == zeros);
    for factor in [2f32.powi(-90), 2f32.powi(90)] {
        assert!(run(&imp.iter().map(|v| v * factor).collect::<Vec<_>>()) == zeros);
    }
    let plain = encode(FormatId::Nvfp4, METHODS[1], n, k, &x, Params::default()).expect("encodes");
    assert!(plain != zeros && run(&vec![0.75; k]) == plain);
    // The ends of the range.
    let wild: Vec<f32> = (0..k).map(|i| [1e-38, 1.0, f32::MAX, 0.0, f32::from_bits(9)][i % 5]).collect();
    words(n, k, &run(&wild));
}

#[test]
fn digests_of_fixed_matrices() {
    let mut rng = Rng(31);
    let (n, k) = (128, 320);
    let x = matrix(&mut rng, n, k);
    let imp = weights(&mut rng, k);
    let digest = |method, importance| {
        let params = Params { importance, negative_scales: false };
        let payload = encode(FormatId::Nvfp4, method, n, k, &x, params).expect("encodes");
        let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        format!("{:#018x}", payload.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    };
    let found = [digest(METHODS[0], None), digest(METHODS[1], None), digest(METHODS[1], Some(&imp[..]))];
    assert_eq!(found, DIGESTS);
}

/// Max-abs, search, search with importance.
const DIGESTS: [&str; 3] = ["0x1d38075bd94a9226", "0xef7e30dcdd30834c", "0x7167524aa5ae69aa"];
