//! Every word of the 16-bit, 8-bit and 4-bit encodings, against definitions written out in binary64.

mod common;

use common::{golden, hex16, hex32};
use ninfer_formats::float::{bf16, e2m1, e4m3, f16};

/// `(-1)^sign * value` of a word with `mant` fraction bits and `bias`, by the defining formula; `None` for an
/// all-ones exponent.
fn defined(word: u32, exp_bits: u32, mant: u32, bias: i32) -> Option<f64> {
    let sign = if word >> (exp_bits + mant) & 1 == 1 { -1.0 } else { 1.0 };
    let e = (word >> mant & ((1 << exp_bits) - 1)) as i32;
    let m = f64::from(word & ((1 << mant) - 1)) / f64::from(1u32 << mant);
    match e {
        0 => Some(sign * m * 2f64.powi(1 - bias)),
        _ if e == (1 << exp_bits) - 1 => None,
        _ => Some(sign * (1.0 + m) * 2f64.powi(e - bias)),
    }
}

fn same64(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

#[test]
fn all_binary16_words_widen_exactly() {
    for w in 0..=u16::MAX {
        let x = f16::to_f32(w);
        match defined(u32::from(w), 5, 10, 15) {
            Some(v) => assert!(same64(f64::from(x), v), "{w:#06x}"),
            None if w & 0x3ff == 0 => assert!(x.is_infinite() && (x < 0.0) == (w >> 15 == 1), "{w:#06x}"),
            None => {
                let expected = u32::from(w & 0x8000) << 16 | 0x7f80_0000 | u32::from(w & 0x3ff) << 13;
                assert_eq!(f16::to_f32_bits(w), expected, "{w:#06x}");
            }
        }
        // Back again: every non-NaN word is its own rounding, from binary32 and from binary64.
        if w & 0x7fff <= 0x7c00 {
            assert_eq!(f16::from_f32(x), w);
            assert_eq!(f16::from_f64(f64::from(x)), w);
        } else {
            assert_eq!(f16::from_f32(x), w | 0x0200);
        }
    }
}

#[test]
fn all_bfloat16_words_widen_exactly() {
    for w in 0..=u16::MAX {
        let x = bf16::to_f32(w);
        assert_eq!(x.to_bits(), u32::from(w) << 16);
        if let Some(v) = defined(u32::from(w), 8, 7, 127) {
            assert!(same64(f64::from(x), v), "{w:#06x}");
        }
        if w & 0x7fff <= 0x7f80 {
            assert_eq!(bf16::from_f32(x), w);
            assert_eq!(bf16::from_f64(f64::from(x)), w);
        } else {
            assert_eq!(bf16::from_f32(x), w | 0x0040);
        }
    }
}

#[test]
fn all_e4m3_words() {
    for w in 0..=u8::MAX {
        let x = e4m3::to_f32(w);
        if w & 0x7f == 0x7f {
            assert!(x.is_nan() && e4m3::is_nan(w));
            assert_eq!(x.to_bits() >> 31, u32::from(w >> 7));
            continue;
        }
        // The all-ones exponent is an ordinary one here.
        let sign = if w & 0x80 == 0 { 1.0 } else { -1.0 };
        let (e, m) = (i32::from(w >> 3 & 15), f64::from(w & 7) / 8.0);
        let v = if e == 0 { m * 2f64.powi(-6) } else { (1.0 + m) * 2f64.powi(e - 7) };
        assert!(same64(f64::from(x), sign * v), "{w:#04x}");
        assert_eq!(e4m3::from_f32(x), w);
        assert_eq!(e4m3::from_f32_saturating(x), w);
    }
    let g = golden("words");
    let expected = hex32(&g, "e4m3_f32");
    assert_eq!(expected.len(), 256);
    for (w, (ours, golden)) in e4m3::TO_F32_BITS.iter().zip(&expected).enumerate() {
        if w & 0x7f != 0x7f {
            assert_eq!(ours, golden, "{w:#04x}");
        }
    }
}

#[test]
fn all_e2m1_words() {
    let expected = hex32(&golden("words"), "e2m1_f32");
    for w in 0..16u8 {
        assert_eq!(e2m1::to_f32(w).to_bits(), expected[usize::from(w)]);
        assert_eq!(e2m1::from_f32_saturating(e2m1::to_f32(w)), w);
        assert_eq!(f32::from(e2m1::DOUBLED[usize::from(w)]), 2.0 * e2m1::to_f32(w) + 0.0);
    }
}

/// Nearest-even by brute force: the nearest value of a sorted list of magnitudes, ties to the even index.
fn nearest(values: &[f64], x: f64) -> usize {
    let i = values.partition_point(|&v| v < x);
    if i == 0 {
        return 0;
    }
    if i == values.len() {
        return i - 1;
    }
    let (below, above) = (x - values[i - 1], values[i] - x);
    if below < above || (below == above && (i - 1) % 2 == 0) { i - 1 } else { i }
}

/// Every value, every midpoint and its neighbours in binary32 around them, of a small encoding.
fn probe(values: &[f64], mut check: impl FnMut(f32)) {
    for pair in values.windows(2) {
        let mid = (pair[0] + pair[1]) / 2.0;
        for x in [pair[0] as f32, mid as f32, pair[1] as f32] {
            for d in -2i32..=2 {
                check(f32::from_bits(x.to_bits().saturating_add_signed(d)));
            }
        }
    }
}

#[test]
fn rounding_to_binary16_around_every_midpoint() {
    // 0x7c00 stands for 2^16, the value that the next word would have: rounding up to it is overflow.
    let mut values: Vec<f64> = (0..0x7c00u16).map(|w| f64::from(f16::to_f32(w))).collect();
    values.push(65536.0);
    let mut n = 0;
    probe(&values, |x| {
        if x.is_sign_positive() && x <= 65536.0 {
            let expected = nearest(&values, f64::from(x)) as u16;
            assert_eq!(f16::from_f32(x), expected, "{x:e}");
            assert_eq!(f16::from_f32(-x), expected | 0x8000, "-{x:e}");
            assert_eq!(f16::from_f64(f64::from(x)), expected, "{x:e}");
            n += 1;
        }
    });
    assert!(n > 400_000, "{n}");
    assert_eq!(f16::from_f32(65519.996), 0x7bff);
    assert_eq!(f16::from_f32(65520.0), 0x7c00);
    assert_eq!(f16::from_f32(f32::MAX), 0x7c00);
    assert_eq!(f16::from_f32(f32::INFINITY), 0x7c00);
    for (x, w) in
        [(2f32.powi(-15), 0x0200), (2f32.powi(-24), 1), (2f32.powi(-25), 0), (3.0 * 2f32.powi(-25), 2)]
    {
        assert_eq!(f16::from_f32(x), w);
    }
    assert_eq!(f16::from_f32(f32::from_bits(2f32.powi(-25).to_bits() + 1)), 1);
}

#[test]
fn rounding_from_binary64_does_not_round_twice() {
    // Just above a tie of binary16: through binary32 it would become the tie and go to even.
    let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    assert_eq!(f16::from_f64(x), 0x3c01);
    assert_eq!(f16::from_f32(x as f32), 0x3c00);
    let y = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(bf16::from_f64(y), 0x3f81);
    assert_eq!(bf16::from_f32(y as f32), 0x3f80);
    assert_eq!(f16::from_f64(2f64.powi(-25) * (1.0 + 2f64.powi(-50))), 1);
    assert_eq!(f16::from_f64(-2f64.powi(-25)), 0x8000);
    assert_eq!(f16::from_f64(1e300), 0x7c00);
    assert_eq!(f16::from_f64(f64::NAN) & 0x7e00, 0x7e00);
    assert_eq!(bf16::from_f64(f64::MIN_POSITIVE / 4.0), 0);
}

#[test]
fn rounding_to_bfloat16() {
    let g = golden("words");
    let (x, w) = (hex32(&g, "f32"), hex16(&g, "bf16_u16"));
    assert_eq!(x.len(), w.len());
    for (x, w) in x.iter().zip(&w) {
        assert_eq!(bf16::from_f32(f32::from_bits(*x)), *w, "{x:#010x}");
    }
    // No flushing of subnormals (FR-33), overflow to infinity, NaN quiet with sign and top payload bits.
    for (x, w) in [
        (0x0040_0000u32, 0x0040u16),
        (0x0001_8000, 0x0002),
        (0x0000_8001, 0x0001),
        (0x0000_8000, 0x0000),
        (0x7f7f_ffff, 0x7f80),
        (0x8000_0000, 0x8000),
        (0x7f80_0001, 0x7fc0),
        (0xffa1_2345, 0xffe1),
    ] {
        assert_eq!(bf16::from_f32(f32::from_bits(x)), w, "{x:#010x}");
    }
}

#[test]
fn rounding_to_e4m3_around_every_midpoint() {
    let mut values: Vec<f64> = (0..0x7fu8).map(|w| f64::from(e4m3::to_f32(w))).collect();
    values.push(480.0); // the word 0x7f, if it were a number
    let mut n = 0;
    probe(&values, |x| {
        if x.is_sign_positive() && x < 480.0 {
            let i = nearest(&values, f64::from(x)) as u8;
            assert_eq!(e4m3::from_f32(x), i, "{x:e}");
            assert_eq!(e4m3::from_f32(-x), i | 0x80, "-{x:e}");
            assert_eq!(e4m3::from_f32_saturating(x), i.min(0x7e), "{x:e}");
            n += 1;
        }
    });
    assert!(n > 1500, "{n}");
    for (x, saturated, nan) in [
        (464.0f32, 0x7e, 0x7e),
        (464.00003, 0x7e, 0x7f),
        (465.0, 0x7e, 0x7f),
        (480.0, 0x7e, 0x7f),
        (1e9, 0x7e, 0x7f),
        (f32::INFINITY, 0x7e, 0x7f),
        (f32::NEG_INFINITY, 0xfe, 0xff),
        (-0.0, 0x80, 0x80),
        (0.000_976_562_5, 0x00, 0x00),
        (1.5 * 0.000_976_562_5, 0x01, 0x01),
        (3.0 * 0.000_976_562_5, 0x02, 0x02),
        (1.0625, 0x38, 0x38),
        (1.062_501, 0x39, 0x39),
        (1.1875, 0x3a, 0x3a),
        (248.0, 0x78, 0x78),
    ] {
        assert_eq!(e4m3::from_f32_saturating(x), saturated, "{x:e}");
        assert_eq!(e4m3::from_f32(x), nan, "{x:e}");
    }
    assert_eq!(e4m3::from_f32(f32::NAN) & 0x7f, 0x7f);
}

#[test]
fn rounding_to_e2m1_around_every_midpoint() {
    let values: Vec<f64> = e2m1::TO_F32[..8].iter().map(|&v| f64::from(v)).collect();
    probe(&values, |x| {
        if x.is_sign_positive() {
            let i = nearest(&values, f64::from(x)) as u8;
            assert_eq!(e2m1::from_f32_saturating(x), i, "{x:e}");
            assert_eq!(e2m1::from_f32_saturating(-x), i | 8, "-{x:e}");
        }
    });
    assert_eq!(e2m1::from_f32_saturating(1e30), 7);
    assert_eq!(e2m1::from_f32_saturating(-0.0), 8);
}
