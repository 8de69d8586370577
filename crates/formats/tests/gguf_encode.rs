//! `gguf_search` for the K types, `iq4_xs` and `iq4_nl`: against plain quantisers, exact values, refusals, the ends of
//! the range, chunks and digests. (The types with one scale for 32 integers: `encoders.rs`.)

mod common;

use common::Rng;
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, RowPlanes, encode};
use ninfer_formats::float::f16;
use ninfer_formats::tables::IQ4_VALUES;
use ninfer_formats::{FormatError, FormatId, Place, TensorView, encoded_size};

const K: [FormatId; 3] = [FormatId::GgufQ4K, FormatId::GgufQ5K, FormatId::GgufQ6K];
const ALL: [FormatId; 5] =
    [FormatId::GgufQ4K, FormatId::GgufQ5K, FormatId::GgufQ6K, FormatId::GgufIq4Xs, FormatId::GgufIq4Nl];

fn run(format: FormatId, k: usize, x: &[f32], importance: Option<&[f32]>) -> Result<Vec<u8>, FormatError> {
    let params = Params { importance, negative_scales: false };
    encode(format, EncoderId::GgufSearch, x.len() / k, k, x, params)
}

fn decode(format: FormatId, k: usize, payload: &[u8], n: usize) -> Vec<f32> {
    let view = TensorView::new(format, &[n as u64, k as u64], 1, payload).expect("view");
    let mut y = vec![f32::NAN; n * k];
    view.decode_f32(&mut y).expect("decodes");
    y
}

fn place(result: Result<Vec<u8>, FormatError>) -> Place {
    match result {
        Err(FormatError::Refused { place, .. }) => place,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Bell-shaped values from integer sums, rows of different magnitude, outliers, a run of zeros and one of ones.
fn matrix(rng: &mut Rng, n: usize, k: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..n * k)
        .map(|i| {
            let sum: i32 = (0..4).map(|_| (rng.next() >> 40) as i32 - (1 << 23)).sum();
            let outlier = if rng.below(300) == 0 { 9.0 } else { 1.0 };
            sum as f32 / (1 << 27) as f32 * 2f32.powi((i / k % 9) as i32 - 6) * outlier
        })
        .collect();
    x[32..64].fill(0.0);
    x[96..128].fill(-0.01);
    x[128..160].fill(0.01);
    x
}

fn weights(rng: &mut Rng, k: usize) -> Vec<f32> {
    (0..k)
        .map(|i| if i / 32 % 7 == 5 || i % 37 == 5 { 0.0 } else { (rng.below(1 << 20) as f32 / 1e5).powi(3) })
        .collect()
}

fn error(x: &[f32], y: impl Fn(usize) -> f64, importance: Option<&[f32]>) -> f64 {
    let weight = |i: usize| importance.map_or(1.0, |v| f64::from(v[i]));
    x.iter().enumerate().map(|(i, v)| weight(i) * (f64::from(*v) - y(i)).powi(2)).sum()
}

/// What rounding to a grid over each run's range gives with real scales, one step coarser or finer as told.
fn plain(format: FormatId, x: &[f32], importance: Option<&[f32]>) -> f64 {
    let run = if format == FormatId::GgufQ6K { 16 } else { 32 };
    let runs = x.chunks(run).enumerate().map(|(r, x)| {
        let importance = importance.map(|v| &v[r * run..(r + 1) * run]);
        let low = f64::from(x.iter().fold(0.0f32, |m, &v| m.min(v)));
        let high = f64::from(x.iter().fold(0.0f32, |m, &v| m.max(v)));
        let extreme = if high > -low { high } else { low };
        let line = |codes: f64| {
            let step = (high - low) / codes;
            let near = |v: f64| if step == 0.0 { low } else { ((v - low) / step).round() * step + low };
            error(x, |i| near(f64::from(x[i])), importance)
        };
        match format {
            FormatId::GgufQ4K => line(15.0),
            FormatId::GgufQ5K => line(31.0),
            FormatId::GgufQ6K => {
                let step = extreme / -32.0;
                let near =
                    |v: f64| if step == 0.0 { 0.0 } else { (v / step).round().clamp(-32.0, 31.0) * step };
                error(x, |i| near(f64::from(x[i])), importance)
            }
            _ => {
                let scale = extreme / -127.0;
                let nearest = |v: f64| {
                    let tables = IQ4_VALUES.iter().map(|&t| f64::from(t) * scale);
                    tables.min_by(|a, b| (a - v).abs().total_cmp(&(b - v).abs())).expect("sixteen")
                };
                error(x, |i| nearest(f64::from(x[i])), importance)
            }
        }
    });
    runs.sum()
}

/// The search with its six-bit scales is better than rounding on each run's own range with real scales.
#[test]
fn better_than_plain_rounding() {
    let mut rng = Rng(51);
    let (n, k) = (9, 1792);
    let x = matrix(&mut rng, n, k);
    let imp = weights(&mut rng, k);
    for format in ALL {
        for importance in [None, Some(&imp[..])] {
            let y = decode(format, k, &run(format, k, &x, importance).expect("encodes"), n);
            let (mut found, mut other) = (0.0, 0.0);
            for (x, y) in x.chunks(k).zip(y.chunks(k)) {
                // Rows differ in magnitude: count each the same.
                let whole = error(x, |_| 0.0, importance);
                found += error(x, |i| f64::from(y[i]), importance) / whole;
                other += plain(format, x, importance) / whole;
            }
            assert!(found < other * 0.97, "{format} {}: {found} {other}", importance.is_some());
            if importance.is_none() {
                assert!(y[32..64].iter().all(|&v| v == 0.0), "{format}");
            }
        }
    }
}

/// No neighbouring code of any value is nearer than the code that was chosen.
#[test]
fn codes_are_the_nearest() {
    let mut rng = Rng(53);
    let (n, k) = (5, 512);
    let x = matrix(&mut rng, n, k);
    for format in ALL {
        let payload = run(format, k, &x, None).expect("encodes");
        let y = decode(format, k, &payload, n);
        let size = payload.len() / n;
        // Flipping any bit of a code's nibble must not bring the value nearer.
        let (at, block, values) = match format {
            FormatId::GgufQ4K => (16, 144, 256),
            FormatId::GgufQ5K => (48, 176, 256),
            FormatId::GgufQ6K => (0, 210, 256),
            FormatId::GgufIq4Xs => (8, 136, 256),
            _ => (2, 18, 32),
        };
        assert_eq!(size, k / values * block);
        for bit in 0..8 {
            let mut other = payload.clone();
            for block in other.chunks_mut(block) {
                block[at..at + values / 2].iter_mut().for_each(|b| *b ^= 1 << bit);
            }
            for (i, z) in decode(format, k, &other, n).iter().enumerate() {
                let (near, far) = ((x[i] - y[i]).abs(), (x[i] - z).abs());
                assert!(
                    near <= far * (1.0 + 1e-5) + f32::MIN_POSITIVE,
                    "{format} {i}: {} {} {z}",
                    x[i],
                    y[i]
                );
            }
        }
    }
}

/// Values that a block holds exactly come back with an error far below a step.
#[test]
fn exact_values() {
    let mut rng = Rng(57);
    for format in ALL {
        let x: Vec<f32> = (0..512)
            .map(|i| {
                let scale = 0.25 * ((i / 32 % 8) as f32 * 4.0 + 31.0);
                let code = match format {
                    FormatId::GgufQ4K => (if i % 32 < 16 { i % 16 } else { rng.below(16) }) as f32 - 5.0,
                    FormatId::GgufQ5K => (i % 32) as f32 - 9.0,
                    FormatId::GgufQ6K => (if i % 16 == 3 { 0 } else { rng.below(64) }) as f32 - 32.0,
                    _ => f32::from(IQ4_VALUES[if i % 32 < 16 { i % 16 } else { rng.below(16) }]),
                };
                scale * code
            })
            .collect();
        let y = decode(format, 512, &run(format, 512, &x, None).expect("encodes"), 1);
        let relative = error(&x, |i| f64::from(y[i]), None) / error(&x, |_| 0.0, None);
        let bound = if K.contains(&format) { 5e-5 } else { 2e-4 };
        assert!(relative < bound, "{format}: {relative}");
    }
}

/// A run's codes between `low` and `high`, both of which occur.
fn codes(rng: &mut Rng, run: usize, low: i32, high: i32) -> Vec<f32> {
    let mut q: Vec<i32> = (0..run).map(|_| low + rng.below((high - low + 1) as usize) as i32).collect();
    (q[run / 2], q[run - 1]) = (low, high);
    q.iter().map(|&q| q as f32).collect()
}

/// Values on the grid of a block, as requantised models have them: the runs use all codes, or all but one or two of the
/// top, or one of them all but the lowest. They come back bit by bit, with importance too.
#[test]
fn grids_are_found_again() {
    let mut rng = Rng(73);
    let k = 512;
    for round in 0..40 {
        for format in [
            FormatId::GgufQ4K,
            FormatId::GgufQ5K,
            FormatId::GgufQ6K,
            FormatId::GgufQ8_0,
            FormatId::GgufQ4_0,
            FormatId::GgufQ5_0,
        ] {
            let mut x = Vec::new();
            let d = f16::to_f32(0x2000 + rng.below(512) as u16);
            let dmin = f16::to_f32(0x2800 + rng.below(512) as u16);
            let run = if format == FormatId::GgufQ6K { 16 } else { 32 };
            for r in 0..k / run {
                let first = r % (256 / run) == 0;
                match format {
                    FormatId::GgufQ4K | FormatId::GgufQ5K => {
                        let top = if format == FormatId::GgufQ4K { 15 } else { 31 };
                        let (low, high) = [(0, top), (0, top - 1), (0, top - 2), (1, top)]
                            [rng.below(if r % 8 == 5 { 4 } else { 3 })];
                        let number = |rng: &mut Rng| if first { 63 } else { 24 + rng.below(39) };
                        let (scale, least) = (d * number(&mut rng) as f32, dmin * number(&mut rng) as f32);
                        x.extend(codes(&mut rng, 32, low, high).iter().map(|q| scale * q - least));
                    }
                    FormatId::GgufQ6K => {
                        let (low, high) = [(-32, 31), (-32, 9), (-31, 31), (-31, 30)][rng.below(4)];
                        let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
                        let scale = d * if first { -128.0 } else { sign * (60 + rng.below(67)) as f32 };
                        x.extend(codes(&mut rng, 16, low, high).iter().map(|q| scale * q));
                    }
                    _ => {
                        let low = [-128, -8, -16][format as usize - FormatId::GgufQ8_0 as usize];
                        let (low, high) = [(low, -1 - low), (low, 3), (low + 1, -1 - low)][rng.below(3)];
                        x.extend(codes(&mut rng, 32, low, high).iter().map(|q| d * q));
                    }
                }
            }
            let imp: Vec<f32> = (0..k).map(|_| (rng.below(1000) + 60) as f32 * 1e-3).collect();
            for importance in [None, Some(&imp[..])] {
                let y = decode(format, k, &run_of(format, k, &x, importance), 1);
                assert!(x == y, "{format} round {round} {}", importance.is_some());
            }
        }
    }
}

fn run_of(format: FormatId, k: usize, x: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    run(format, k, x, importance).expect("encodes")
}

#[test]
fn refusals() {
    let (n, k) = (3, 768);
    for format in ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![0.5f32; n * k];
            x[k + 700] = bad;
            x[2 * k] = bad;
            assert_eq!(place(run(format, k, &x, None)), Place::Column { row: 1, column: 700 });
        }
        let mut x = vec![0.5f32; n * k];
        x[2 * k + 530] = -3e38;
        let group = if format == FormatId::GgufIq4Nl { 16 } else { 2 };
        assert_eq!(place(run(format, k, &x, None)), Place::Group { row: 2, group });
        let text = run(format, k, &x, None).expect_err("refused").to_string();
        assert!(text.contains("overflows binary16") && text.contains('e'), "{text}");
        assert!(run(format, 40, &x[..80], None).is_err());
        assert!(run(format, k, &x[..k], Some(&[1.0; 767])).is_err());
        assert_eq!(EncoderId::default_for(format), None);
    }
    // A minimum that overflows: all values far below zero.
    let x = vec![-1e8f32; 256];
    let text = run(FormatId::GgufQ4K, 256, &x, None).expect_err("refused").to_string();
    assert!(text.contains("minima"), "{text}");
}

/// Magnitudes from the smallest subnormal to where the scale overflows: the error stays a small part of the values,
/// or of the smallest step that binary16 scales have.
#[test]
fn ends_of_the_range() {
    let mut rng = Rng(59);
    let bell = matrix(&mut rng, 1, 512);
    let top = bell.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    for format in ALL {
        for e in (-149..=20).step_by(13).chain([-126, -127, -30, -24, -20, 22]) {
            let factor = if e < -126 { f32::from_bits(1 << (e + 149)) } else { 2f32.powi(e) };
            let x: Vec<f32> = bell.iter().map(|v| v / top * factor).collect();
            let y = decode(format, 512, &run(format, 512, &x, None).expect("encodes"), 1);
            let relative = error(&x, |i| f64::from(y[i]), None) / (error(&x, |_| 0.0, None) + 1e-300);
            assert!(relative <= 1.0, "{format} 2^{e}: {relative}");
            if e > -8 {
                assert!(relative < 0.02, "{format} 2^{e}: {relative}");
            }
        }
        let zeros = decode(format, 512, &run(format, 512, &[-0.0; 512], None).expect("encodes"), 1);
        assert!(zeros.iter().all(|&v| v == 0.0));
        // One value alone, anywhere, of either sign.
        for at in [0, 31, 32, 255, 256, 511] {
            for v in [0.75f32, -0.75] {
                let mut x = vec![0.0; 512];
                x[at] = v;
                let y = decode(format, 512, &run(format, 512, &x, None).expect("encodes"), 1);
                assert!((y[at] - v).abs() < 0.02, "{format} {at}: {}", y[at]);
                let rest: f32 = y.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, v)| v.abs()).sum();
                // A minimum and 31 steps meet as well as two binary16 scales let them. The tables of iq4 have no
                // zero: the others of the run are the smallest code.
                assert!(rest < if K.contains(&format) { 0.02 } else { 0.3 }, "{format} {at}: {rest}");
            }
        }
    }
}

/// Importance of a run counts relative to its block; a factor changes nothing; none at all counts as ones.
#[test]
fn importance_is_relative() {
    let mut rng = Rng(61);
    let k = 1024;
    let x = matrix(&mut rng, 3, k);
    let imp = weights(&mut rng, k);
    for format in ALL {
        let found = run(format, k, &x, Some(&imp)).expect("encodes");
        for factor in [2f32.powi(-80), 2f32.powi(80)] {
            let scaled: Vec<f32> = imp.iter().map(|v| v * factor).collect();
            assert!(run(format, k, &x, Some(&scaled)).expect("encodes") == found, "{format}");
        }
        let plain = run(format, k, &x, None).expect("encodes");
        assert!(plain != found);
        for uniform in [0.0, 1.0, f32::MAX, f32::from_bits(7), 3.0] {
            let same = run(format, k, &x, Some(&vec![uniform; k])).expect("encodes");
            // Factors that are no powers of two round elsewhere.
            assert!(uniform == 3.0 || uniform == f32::MAX || uniform == f32::from_bits(7) || same == plain);
        }
        let wild: Vec<f32> = (0..k).map(|i| [1e-38, 1.0, f32::MAX, 0.0, f32::from_bits(9)][i % 5]).collect();
        let y = decode(format, k, &run(format, k, &x, Some(&wild)).expect("encodes"), 3);
        assert!(y.iter().all(|v| v.is_finite()));
    }
}

/// Neither the length of a row nor its neighbours change the words of a block; rows come in any pieces.
#[test]
fn blocks_do_not_know_of_each_other() {
    let mut rng = Rng(63);
    let k = 1280;
    let x = matrix(&mut rng, 2, k);
    let imp = weights(&mut rng, k);
    for format in ALL {
        let whole = run(format, k, &x, Some(&imp)).expect("encodes");
        let block = if format == FormatId::GgufIq4Nl { 32 } else { 256 };
        let bytes = whole.len() / (2 * k / block);
        for b in [0, 1, k / block - 1] {
            let (from, to) = (b * block, (b + 1) * block);
            let one = run(format, block, &x[from..to], Some(&imp[from..to])).expect("encodes");
            assert!(one == whole[b * bytes..(b + 1) * bytes], "{format} block {b}");
        }
        let encoder = RowEncoder::new(
            format,
            EncoderId::GgufSearch,
            k,
            Params { importance: Some(&imp), negative_scales: false },
        );
        let size = encoded_size(format, &[1, k as u64], 1).expect("size") as usize;
        let mut row = vec![0u8; size];
        let mut planes = RowPlanes::of_payload(format, 1, k, &mut row).expect("planes");
        encoder.expect("encoder").encode_rows(&x[k..], 1, &mut planes).expect("encodes");
        assert!(row == whole[size..]);
    }
}

/// `gguf_absmax`: the scale of ggml's plain quantiser with the nearest codes, so its error is never above that of codes
/// by the unrounded scale; and its words by hand.
#[test]
fn absmax_blocks() {
    let run =
        |format, k, x: &[f32]| encode(format, EncoderId::GgufAbsmax, x.len() / k, k, x, Params::default());
    let mut rng = Rng(71);
    let (n, k) = (9, 320);
    let x = matrix(&mut rng, n, k);
    let types = [
        (FormatId::GgufQ8_0, 127.0f32, 127.0f32),
        (FormatId::GgufQ4_0, -8.0, 7.0),
        (FormatId::GgufQ5_0, -16.0, 15.0),
    ];
    for (format, end, high) in types {
        let payload = run(format, k, &x).expect("encodes");
        let bytes = payload.len() / (n * k / 32);
        let y = decode(format, k, &payload, n);
        for (b, (x, y)) in x.chunks(32).zip(y.chunks(32)).enumerate() {
            let extreme = x.iter().fold(0.0f32, |e, &v| if v.abs() > e.abs() { v } else { e });
            let raw = if end > 0.0 { extreme.abs() } else { extreme } / end;
            let word = if extreme == 0.0 { 0 } else { f16::from_f32(raw) };
            assert_eq!(payload[b * bytes..][..2], word.to_le_bytes(), "{format} block {b}");
            let d = f16::to_f32(word);
            let plain = |i: usize| {
                let code = if raw == 0.0 { 0.0 } else { (x[i] / raw).round().clamp(-high - 1.0, high) };
                f64::from(code * d)
            };
            let found = error(x, |i| f64::from(y[i]), None);
            assert!(found <= error(x, plain, None) * (1.0 + 1e-6), "{format} block {b}");
        }
        for (at, bad) in [(2 * k + 40, f32::NAN), (k, f32::INFINITY)] {
            let mut x = x.clone();
            x[at] = bad;
            let expected = Place::Column { row: (at / k) as u64, column: (at % k) as u64 };
            assert_eq!(place(run(format, k, &x)), expected);
        }
        let mut large = x.clone();
        large[2 * k + 40] = -3e38;
        assert_eq!(place(run(format, k, &large)), Place::Group { row: 2, group: 1 });
        assert!(run(format, 40, &x[..80]).is_err());
        // The first of two values of largest magnitude sets the sign; tiny ones get the smallest scale of their sign.
        let mut pair = [0.0; 32];
        (pair[5], pair[9]) = (0.5, -0.5);
        for sign in [1.0, -1.0] {
            for factor in [1.0, 1e-9] {
                let x: Vec<f32> = pair.iter().map(|v| v * sign * factor).collect();
                let payload = run(format, 32, &x).expect("encodes");
                let word = u16::from_le_bytes([payload[0], payload[1]]);
                assert_eq!(word & 0x8000 != 0, end < 0.0 && sign > 0.0, "{format}");
                assert_eq!(word & 0x7fff == 1, factor < 1.0);
            }
        }
        let zeros = run(format, 32, &[-0.0; 32]).expect("encodes");
        assert!(zeros[..2] == [0, 0] && decode(format, 32, &zeros, 1).iter().all(|&v| v == 0.0));
    }
    // Values (i - 8) / 4 have the exact scale 0.25 in q4_0; halves go to even codes.
    let mut x: Vec<f32> = (0..32).map(|i| (i % 16) as f32 * 0.25 - 2.0).collect();
    let payload = run(FormatId::GgufQ4_0, 32, &x).expect("encodes");
    assert_eq!(payload[..2], 0x3400u16.to_le_bytes());
    assert!(payload[2..].iter().enumerate().all(|(i, &b)| usize::from(b) == i | i << 4));
    (x[1], x[2]) = (0.125, 0.375);
    let payload = run(FormatId::GgufQ4_0, 32, &x).expect("encodes");
    assert_eq!((payload[3] & 15, payload[4] & 15), (8, 10));
}

#[test]
fn digests_of_fixed_matrices() {
    let mut rng = Rng(67);
    let (n, k) = (9, 1792);
    let x = matrix(&mut rng, n, k);
    let imp = weights(&mut rng, k);
    let mut found = Vec::new();
    for format in ALL {
        for importance in [None, Some(&imp[..])] {
            let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
            let payload = run(format, k, &x, importance).expect("encodes");
            found.push(format!("{:#018x}", payload.iter().fold(0xcbf2_9ce4_8422_2325, fnv)));
        }
    }
    for format in [FormatId::GgufQ8_0, FormatId::GgufQ4_0, FormatId::GgufQ5_0] {
        let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        let payload = encode(format, EncoderId::GgufAbsmax, n, k, &x, Params::default()).expect("encodes");
        found.push(format!("{:#018x}", payload.iter().fold(0xcbf2_9ce4_8422_2325, fnv)));
    }
    assert_eq!(found, DIGESTS, "{found:#?}");
}

/// Values on more than one grid at once (codes that are all even, say): rounding must not choose between them, or the
/// words would hang on it. Errors below rounding count the same, and the first grid is taken.
#[test]
fn of_equal_grids_the_first_is_taken() {
    let mut rng = Rng(79);
    let k = 256;
    let mut found = [0xcbf2_9ce4_8422_2325_u64; ALL.len()];
    for _ in 0..40 {
        for (format, found) in ALL.into_iter().zip(&mut found) {
            let run = if format == FormatId::GgufQ6K { 16 } else { 32 };
            let d = f16::to_f32(0x2000 + rng.below(512) as u16);
            let mut x = Vec::new();
            for _ in 0..k / run {
                let (scale, step) = (d * (20 + rng.below(100)) as f32, [1, 2, 3][rng.below(3)]);
                let offset = [5, -3][rng.below(2)];
                x.extend((0..run).map(|_| {
                    scale
                        * match format {
                            FormatId::GgufIq4Xs | FormatId::GgufIq4Nl => f32::from(IQ4_VALUES[rng.below(16)]),
                            FormatId::GgufQ6K => ((rng.below(64) as i32 - 32) / step * step) as f32,
                            // Every other run has one sign: no minimum below it.
                            _ => (rng.below(16) as i32 / step * step - offset) as f32,
                        }
                }));
            }
            let imp = weights(&mut rng, k);
            for importance in [None, Some(&imp[..])] {
                for byte in run_of(format, k, &x, importance) {
                    *found = (*found ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }
    let expected = [
        0x63c2_d761_3f6c_3f65,
        0x573f_4f6f_5a67_76da,
        0x6f81_ae99_88b6_96d3,
        0x4719_674d_5957_68c1,
        0x1daf_a529_9260_9a59,
    ];
    assert_eq!(found, expected, "{found:#x?}");
}

/// In the order of `ALL`, without and with importance; then `gguf_absmax`.
const DIGESTS: [&str; 13] = [
    "0x8af4e259a84ec03e",
    "0xc2efadfc3965c8d9",
    "0x96f87d7fcc6de255",
    "0xbfdfd6a3f3377fd1",
    "0x4fefab1b4ab8d925",
    "0x7ade4092039a60fb",
    "0x1485d0a7d865efc7",
    "0xe95d455116ac1908",
    "0x14d2204735b56963",
    "0x8dbab4f485f29216",
    "0x5b8a54c8d70dc0ac",
    "0x077152aed4d51509",
    "0x66737a2a512c3203",
];
