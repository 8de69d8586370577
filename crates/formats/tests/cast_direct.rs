//! `cast_direct`: every source type to every direct format.

use ninfer_formats::encoder::{ENCODERS, Values, cast_direct};
use ninfer_formats::{FormatError, FormatId};

fn u16s(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect()
}

fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect()
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect()
}

#[test]
fn same_type_keeps_every_bit() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let out = cast_direct(FormatId::Bf16, &[65536], Values::Bf16(&halves)).unwrap();
    assert_eq!(u16s(&out), halves);
    let singles: Vec<u32> = (0..=u16::MAX).map(|h| u32::from(h) << 16 | u32::from(h ^ 0x5a5a)).collect();
    let values: Vec<f32> = singles.iter().map(|&b| f32::from_bits(b)).collect();
    let out = cast_direct(FormatId::Fp32, &[256, 256], Values::F32(&values)).unwrap();
    assert_eq!(u32s(&out), singles);
}

#[test]
fn widening_is_exact_for_all_words() {
    let words: Vec<u16> = (0..=u16::MAX).collect();
    let out = u32s(&cast_direct(FormatId::Fp32, &[65536], Values::Bf16(&words)).unwrap());
    assert!(out.iter().zip(&words).all(|(&o, &w)| o == u32::from(w) << 16));
    let out = u32s(&cast_direct(FormatId::Fp32, &[65536], Values::F16(&words)).unwrap());
    // Against a formula of its own: significand times a power of two in binary64.
    for (&o, &w) in out.iter().zip(&words) {
        let (e, f) = (i32::from(w >> 10 & 31), f64::from(w & 0x3ff));
        let magnitude = match e {
            0 => f * 2f64.powi(-24),
            31 if f == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + f) * 2f64.powi(e - 25),
        };
        let got = f64::from(f32::from_bits(o));
        assert!(got.abs() == magnitude || (got.is_nan() && magnitude.is_nan()), "{w:#06x}");
        assert_eq!(o >> 31, u32::from(w >> 15), "{w:#06x}");
    }
}

#[test]
fn to_bf16_rounds_nearest_even_and_float64_rounds_twice() {
    let cases: [(u32, u16); 12] = [
        (0x0040_0000, 0x0040),
        (0x0001_8000, 0x0002),
        (0x0000_8001, 0x0001),
        (0x0000_8000, 0x0000),
        (0x8000_0000, 0x8000),
        (0xbf80_0000, 0xbf80),
        (0x3f80_8000, 0x3f80),
        (0x3f81_8000, 0x3f82),
        (0x7f7f_ffff, 0x7f80),
        (0xff7f_ffff, 0xff80),
        (0x7f80_0001, 0x7fc0),
        (0xffa1_2345, 0xffe1),
    ];
    let x: Vec<f32> = cases.iter().map(|c| f32::from_bits(c.0)).collect();
    let want: Vec<u16> = cases.iter().map(|c| c.1).collect();
    assert_eq!(u16s(&cast_direct(FormatId::Bf16, &[12], Values::F32(&x)).unwrap()), want);

    // 1 + 2^-8 + 2^-40 is above the tie of bfloat16, but binary32 rounds it onto the tie, which goes to even.
    let x = [1.0 + 2f64.powi(-8) + 2f64.powi(-40), 1.0 + 2f64.powi(-8) + 2f64.powi(-20), 1e300, -0.0];
    let out = cast_direct(FormatId::Bf16, &[4], Values::F64(&x)).unwrap();
    assert_eq!(u16s(&out), [0x3f80, 0x3f81, 0x7f80, 0x8000]);
    let out = cast_direct(FormatId::Bf16, &[3], Values::F16(&[0x3c04, 0x7c01, 0x8001])).unwrap();
    assert_eq!(u16s(&out), [0x3f80, 0x7fc0, 0xb380]);
}

#[test]
fn float64_to_fp32_rounds_once_and_keeps_nan_bits() {
    let x = [
        1.0 + 2f64.powi(-24),
        1.0 + 3.0 * 2f64.powi(-24),
        3.5e38,
        -3.5e38,
        2f64.powi(-150),
        f64::from_bits(0x7ff0_0000_0000_0001),
        f64::from_bits(0xfff4_5678_9abc_def0),
    ];
    let out = cast_direct(FormatId::Fp32, &[7], Values::F64(&x)).unwrap();
    let want = [0x3f80_0000, 0x3f80_0002, 0x7f80_0000, 0xff80_0000, 0, 0x7fc0_0000, 0xffe2_b3c4];
    assert_eq!(u32s(&out), want);
}

#[test]
fn to_int32_takes_integral_values_in_range() {
    let x = [-2_147_483_648.0, 2_147_483_647.0, -0.0, 7.0];
    let out = cast_direct(FormatId::Int32, &[4], Values::F64(&x)).unwrap();
    assert_eq!(i32s(&out), [i32::MIN, i32::MAX, 0, 7]);
    let out = cast_direct(FormatId::Int32, &[2], Values::I64(&[-2_147_483_648, 2_147_483_647])).unwrap();
    assert_eq!(i32s(&out), [i32::MIN, i32::MAX]);
    let out = cast_direct(FormatId::Int32, &[1], Values::F16(&[0xc000])).unwrap();
    assert_eq!(i32s(&out), [-2]);
    let out = cast_direct(FormatId::Int32, &[1], Values::Bf16(&[0x4040])).unwrap();
    assert_eq!(i32s(&out), [3]);
}

#[test]
fn to_int32_names_the_first_bad_index() {
    let text = |values: Values<'_>| {
        let error = cast_direct(FormatId::Int32, &[2, 3], values).unwrap_err();
        assert!(matches!(error, FormatError::Source { .. }), "{error:?}");
        error.to_string()
    };
    let range = "int32 holds -2147483648..=2147483647";
    assert_eq!(
        text(Values::F64(&[0.0, 1.0, 2.0, 3.0, 4.5, 5.5])),
        "int32: element [1, 1] is 4.5: int32 takes integral values only"
    );
    assert_eq!(
        text(Values::F32(&[0.0, f32::NAN, 0.0, f32::INFINITY, 0.0, 0.0])),
        "int32: element [0, 1] is NaN: int32 takes finite values only"
    );
    assert_eq!(
        text(Values::F64(&[0.0, 0.0, 0.0, 2_147_483_648.0, 0.0, 0.0])),
        format!("int32: element [1, 0] is 2147483648: {range}")
    );
    assert_eq!(
        text(Values::I64(&[0, 0, -2_147_483_649, 0, 0, 0])),
        format!("int32: element [0, 2] is -2147483649: {range}")
    );
    assert_eq!(
        text(Values::U64(&[0, 0, 0, 0, 0, u64::MAX])),
        format!("int32: element [1, 2] is 18446744073709551615: {range}")
    );
    assert_eq!(
        text(Values::F16(&[0x3e00, 0, 0, 0, 0, 0])),
        "int32: element [0, 0] is 1.5: int32 takes integral values only"
    );
    assert_eq!(
        text(Values::Bf16(&[0, 0xff80, 0, 0, 0, 0])),
        "int32: element [0, 1] is -inf: int32 takes finite values only"
    );
}

#[test]
fn wrong_targets_and_lengths_are_refused() {
    for format in FormatId::all() {
        let direct = ENCODERS[0].formats.contains(&format);
        let shape = [128, 256];
        let result = cast_direct(format, &shape, Values::F32(&vec![1.0; 128 * 256]));
        assert_eq!(result.is_ok(), direct, "{format}");
    }
    let error = cast_direct(FormatId::Fp32, &[2], Values::I64(&[1, 2])).unwrap_err();
    assert!(error.to_string().contains("integers are not converted"), "{error}");
    let error = cast_direct(FormatId::Fp32, &[3], Values::F32(&[1.0])).unwrap_err();
    assert_eq!(error.to_string(), "the source must hold exactly 3 elements, got 1");
}
