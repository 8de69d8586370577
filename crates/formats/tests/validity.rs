//! One broken rule at a time: what `violations` reports, where, and that valid neighbours pass.

use ninfer_formats::{
    FormatError, FormatId, Place, Scheme, TensorView, pack_grouped, pack_nvfp4, pack_row_scaled,
};

fn found(
    format: FormatId,
    shape: [u64; 2],
    d: u64,
    payload: &[u8],
) -> Vec<(&'static str, Place, u32, &'static str)> {
    let view = TensorView::new(format, &shape, d, payload).expect("view");
    view.violations(100).iter().map(|v| (v.plane, v.place, v.word, v.rule)).collect()
}

fn grouped(name: &str) -> (FormatId, usize) {
    let format = FormatId::from_name(name).expect("registered");
    let Scheme::Grouped(s) = format.scheme() else { panic!("grouped") };
    (format, s.group)
}

/// A valid [3, 200] payload: codes all 1, scales all 0.5.
fn valid(name: &str) -> (FormatId, usize, Vec<u8>) {
    let (format, group) = grouped(name);
    let payload =
        pack_grouped(format, 3, 200, &[1; 600], &vec![0x3800; 3 * 200usize.div_ceil(group)]).expect("pack");
    (format, group, payload)
}

const GROUPED: [&str; 6] =
    ["q2_g64_fp16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "t2_g128_fp16"];

#[test]
fn grouped_scales() {
    for name in GROUPED {
        let (format, group, _) = valid(name);
        let groups = 200usize.div_ceil(group);
        let with = |word: u16, code: i8| {
            let mut scales = vec![0x3800; 3 * groups];
            scales[groups + 1] = word;
            let mut codes = [code; 600];
            codes[..200].fill(1);
            let p = pack_grouped(format, 3, 200, &codes, &scales).expect("pack");
            found(format, [3, 200], 1, &p)
        };
        let place = Place::Group { row: 1, group: 1 };
        for word in [0x7c00u16, 0xfc00, 0x7c01, 0xfe00] {
            assert_eq!(
                with(word, 1),
                [("scale", place, u32::from(word), "a scale must be finite")],
                "{name}"
            );
        }
        // Subnormal, negative and largest finite scales are legal.
        for word in [0x0001u16, 0x8001, 0xb800, 0x7bff, 0xfbff] {
            assert_eq!(with(word, 1), [], "{name} {word:#06x}");
        }
        if name == "q2_g64_fp16" {
            assert_eq!(with(0x8000, 1), []);
            assert_eq!(with(0x0000, 1), []);
        } else {
            assert_eq!(
                with(0x8000, 0),
                [("scale", place, 0x8000, "a scale must not be negative zero")],
                "{name}"
            );
            assert_eq!(with(0x0000, 0), [], "{name}");
            assert_eq!(
                with(0x0000, 1),
                [("scale", place, 0, "a zero scale allows only zero codes in its group")],
                "{name}"
            );
        }
    }
}

#[test]
fn grouped_codes_outside_the_interval() {
    // Only two formats have words outside their interval.
    let (format, _, mut p) = valid("q8_g32_fp16");
    p[256 + 5] = 0x80; // row 1 starts at 256: K padded to 256 bytes
    let e = found(format, [3, 200], 1, &p);
    assert_eq!(e.len(), 1);
    assert_eq!((e[0].0, e[0].1, e[0].2), ("code", Place::Column { row: 1, column: 5 }, 0x80));
    assert!(e[0].3.contains("-127"));
    let (format, _, mut p) = valid("t2_g128_fp16");
    p[64 + 3] = 0b01_10_01_01; // row 1: 64 bytes a row, lanes 12..16
    let e = found(format, [3, 200], 1, &p);
    assert_eq!((e.len(), e[0].0, e[0].1), (1, "code", Place::Column { row: 1, column: 14 }));
}

#[test]
fn padding_must_be_canonical() {
    for name in GROUPED {
        let (format, group, p) = valid(name);
        assert_eq!(found(format, [3, 200], 1, &p), [], "{name}");
        let view = TensorView::new(format, &[3, 200], 1, &p).expect("view");
        let Scheme::Grouped(s) = format.scheme() else { panic!("grouped") };
        // The last byte of row 0's base plane holds padding lanes.
        let row = 256 / group * s.base_bytes;
        let mut bad = p.clone();
        bad[row - 1] ^= 0x01;
        let e = found(format, [3, 200], 1, &bad);
        assert!(!e.is_empty() && e.iter().all(|v| v.0 == "padding"), "{name} {e:?}");
        assert!(matches!(e[0].1, Place::Column { row: 0, column } if column >= 200), "{name} {e:?}");
        // A reader ignores padding: logical values are the same.
        let (mut a, mut b) = (vec![0.0f32; 600], vec![0.0f32; 600]);
        view.decode_f32(&mut a).expect("decode");
        TensorView::new(format, &[3, 200], 1, &bad).expect("view").decode_f32(&mut b).expect("decode");
        assert_eq!(a, b);
        // The last word of the payload is the scale of row 2's last group; wholly padding for groups of 32.
        if 200usize.div_ceil(group) * group <= 256 - group {
            let mut bad = p.clone();
            let at = bad.len() - 1;
            bad[at] = 0x3c;
            let e = found(format, [3, 200], 1, &bad);
            let place = Place::Group { row: 2, group: (256 / group - 1) as u64 };
            assert_eq!(e, [("padding", place, 0x3c00, "scales of padding groups must be 0x0000")], "{name}");
        }
        // A gap byte between planes.
        let end = 3 * row;
        if end % 256 != 0 {
            let mut bad = p.clone();
            bad[end] = 7;
            assert_eq!(
                found(format, [3, 200], 1, &bad),
                [("padding", Place::Byte { offset: end as u64 }, 7, "bytes between planes must be zero")],
                "{name}"
            );
        }
    }
}

#[test]
fn q5_worked_example_is_528_bytes_with_canonical_padding() {
    let p = pack_grouped(FormatId::Q5G64Fp16, 2, 130, &[-16; 260], &[0x3c00; 6]).expect("pack");
    assert_eq!(p.len(), 528);
    assert_eq!(found(FormatId::Q5G64Fp16, [2, 130], 1, &p), []);
    // Third group of row 0: lanes 0 and 1 logical, the others zero.
    assert_eq!(p[64..96], {
        let mut g = [0u8; 32];
        g[0] = 0;
        g
    });
    assert_eq!(p[256 + 16], 0b11);
    // Fourth group is padding: scale word zero.
    assert_eq!(p[512..520], [0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0, 0]);
}

#[test]
fn q2_padding_is_the_offset_of_zero() {
    let p = pack_grouped(FormatId::Q2G64Fp16, 1, 66, &[2; 66], &[0x3c00; 2]).expect("pack");
    assert_eq!(p[..16], [0xff; 16]);
    assert_eq!(p[16], 0x5f);
    assert_eq!(p[17..32], [0x55; 15]);
}

#[test]
fn nvfp4_scales_and_divisors() {
    let one = 1.0f32.to_bits();
    let with = |row: usize, group: usize, word: u8, d: &[u32]| {
        let mut scales = vec![0x38u8; 256 * 4];
        scales[row * 4 + group] = word;
        let p = pack_nvfp4(FormatId::Nvfp4, 256, 64, &vec![0x8f; 256 * 32], &scales, d).expect("pack");
        found(FormatId::Nvfp4, [256, 64], d.len() as u64, &p)
    };
    for word in [0x00, 0x01, 0x7e] {
        assert_eq!(with(200, 3, word, &[one]), []);
    }
    let place = Place::Group { row: 200, group: 3 };
    for word in [0x80, 0x81, 0xfe, 0xff] {
        assert_eq!(
            with(200, 3, word, &[one]),
            [("scale", place, u32::from(word), "a block scale must have sign bit 0")]
        );
    }
    assert_eq!(with(200, 3, 0x7f, &[one]), [("scale", place, 0x7f, "a block scale must not be NaN")]);
    for d in [0u32, 0x8000_0000, 0xbf80_0000, 0x7f80_0000, 0x7fc0_0000] {
        let e = with(0, 0, 0x38, &[one, d]);
        assert_eq!(e, [("divisor", Place::Divisor { index: 1 }, d, "a divisor must be finite and positive")]);
    }
    assert_eq!(with(0, 0, 0x38, &[1, 0x7f7f_ffff]), []);
}

#[test]
fn fp8_rows() {
    for (format, inf) in [(FormatId::Fp8E4m3fnRowBf16, 0x7f80u16), (FormatId::Fp8E4m3fnRowFp16, 0x7c00)] {
        let with = |code: u8, scale: u16| {
            let mut codes = vec![0x38u8; 15];
            codes[5..10].fill(0x80);
            codes[7] = code;
            let p = pack_row_scaled(format, 3, 5, &codes, &[0x3c00, scale, 0x3c00]).expect("pack");
            found(format, [3, 5], 1, &p)
        };
        let column = Place::Column { row: 1, column: 2 };
        for code in [0x7f, 0xff] {
            assert_eq!(
                with(code, 0x3c00),
                [("code", column, u32::from(code), "NaN codes (0x7f, 0xff) are illegal")]
            );
        }
        for code in [0x7e, 0xfe, 0x00, 0x80, 0x01] {
            assert_eq!(with(code, 0x0001), []);
        }
        let row = Place::Row { row: 1 };
        for scale in [inf, inf | 0x8000, inf | 1] {
            assert_eq!(with(0, scale), [("scale", row, u32::from(scale), "a scale must be finite")]);
        }
        for scale in [0x8000, 0xbc00, 0x8001] {
            assert_eq!(
                with(0, scale),
                [("scale", row, u32::from(scale), "a row scale must not be negative")]
            );
        }
        assert_eq!(with(0x00, 0), []);
        assert_eq!(
            with(0x01, 0),
            [("scale", row, 0, "a zero row scale allows only the codes 0x00 and 0x80")]
        );
    }
    let mut p = pack_row_scaled(FormatId::Fp8E4m3fnRowBf16, 3, 5, &[0x38; 15], &[0x3c00; 3]).expect("pack");
    p[255] = 1;
    let e = found(FormatId::Fp8E4m3fnRowBf16, [3, 5], 1, &p);
    assert_eq!(e, [("padding", Place::Byte { offset: 255 }, 1, "bytes between planes must be zero")]);
}

#[test]
fn validate_reports_the_first_and_names_it() {
    let (format, _, mut p) = valid("q8_g32_fp16");
    p[256 + 5] = 0x80;
    let e = TensorView::new(format, &[3, 200], 1, &p).expect("view").validate().expect_err("invalid");
    assert!(matches!(e, FormatError::Invalid { .. }));
    let text = e.to_string();
    for part in ["q8_g32_fp16", "code", "row 1", "column 5", "0x80", "-128"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    // Rows of a view count from its own first row; the limit holds.
    let view = TensorView::new(format, &[3, 200], 1, &p).expect("view").row_range(1, 3).expect("range");
    assert_eq!(view.violations(5)[0].place, Place::Column { row: 0, column: 5 });
    let all = vec![0x80u8; p.len()];
    assert_eq!(TensorView::new(format, &[3, 200], 1, &all).expect("view").violations(7).len(), 7);
    assert_eq!(TensorView::new(format, &[3, 200], 1, &all).expect("view").violations(0).len(), 0);
}
