//! Words to payload and back for arbitrary shapes, and decoding of arbitrary bytes.

use ninfer_formats::{
    FORMATS, FormatId, Scheme, TensorView, encoded_size, pack_grouped, pack_nvfp4, pack_row_scaled,
};
use proptest::prelude::*;

fn grouped_format() -> impl Strategy<Value = FormatId> {
    proptest::sample::select(
        FORMATS.iter().filter(|f| matches!(f.scheme, Scheme::Grouped(_))).map(|f| f.id).collect::<Vec<_>>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn grouped_round_trip(format in grouped_format(), n in 1usize..5, k in 1usize..400, seed in any::<u64>()) {
        let Scheme::Grouped(s) = format.scheme() else { unreachable!() };
        let width = i32::from(s.code_max) - i32::from(s.code_min) + 1;
        let mut x = seed | 1;
        let mut next = || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x };
        let codes: Vec<i8> = (0..n * k).map(|_| (i32::from(s.code_min) + (next() >> 33) as i32 % width) as i8).collect();
        let scales: Vec<u16> = (0..n * k.div_ceil(s.group)).map(|_| (next() >> 48) as u16).collect();
        let payload = pack_grouped(format, n, k, &codes, &scales).unwrap();
        prop_assert_eq!(payload.len() as u64, encoded_size(format, &[n as u64, k as u64], 1).unwrap());
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).unwrap();
        let words = view.grouped_words().unwrap();
        prop_assert_eq!(&words.codes, &codes);
        prop_assert_eq!(&words.scales, &scales);
        // Padding is canonical whatever the words are.
        prop_assert!(view.violations(usize::MAX).iter().all(|v| v.plane != "padding"));
        let mut out = vec![0.0f32; n * k];
        view.decode_f32(&mut out).unwrap();
        for (i, v) in out.iter().enumerate() {
            let scale = f64::from(ninfer_formats::float::f16::to_f32(scales[i / k * k.div_ceil(s.group) + i % k / s.group]));
            let expected = scale * f64::from(codes[i]);
            if expected.is_nan() {
                prop_assert!(v.is_nan());
            } else {
                prop_assert_eq!(f64::from(*v).to_bits(), expected.to_bits());
            }
        }
    }

    #[test]
    fn nvfp4_round_trip(tiles in 1usize..4, quads in 1usize..5, seed in any::<u64>()) {
        let (n, k) = (tiles * 128, quads * 64);
        let byte = |i: usize| (seed.wrapping_mul(i as u64 * 2 + 1) >> 56) as u8;
        let codes: Vec<u8> = (0..n * k / 2).map(byte).collect();
        let scales: Vec<u8> = (0..n * k / 16).map(|i| byte(i + 7777)).collect();
        let divisors: Vec<u32> = (0..tiles as u32).map(|i| (seed as u32).wrapping_add(i)).collect();
        let payload = pack_nvfp4(FormatId::Nvfp4, n, k, &codes, &scales, &divisors).unwrap();
        let view = TensorView::new(FormatId::Nvfp4, &[n as u64, k as u64], tiles as u64, &payload).unwrap();
        let words = view.nvfp4_words().unwrap();
        prop_assert_eq!(words.codes, codes);
        prop_assert_eq!(&words.scales, &scales);
        // The slice of a whole tensor keeps its divisors unless equal sections could share them: rows say the same.
        prop_assert_eq!(words.divisors, divisors);
        // Encoding the encoded plane again must not give the natural order back (FR-49): the swizzle is no involution.
        if n * k / 16 > 512 && scales.iter().any(|&b| b != scales[0]) {
            let plane = &payload[n * k / 2..n * k / 2 + scales.len()];
            prop_assert_ne!(plane, &scales[..]);
        }
    }

    #[test]
    fn fp8_round_trip(bf16 in any::<bool>(), n in 1usize..6, k in 1usize..70, bytes in proptest::collection::vec(any::<u8>(), 400)) {
        let format = if bf16 { FormatId::Fp8E4m3fnRowBf16 } else { FormatId::Fp8E4m3fnRowFp16 };
        let codes: Vec<u8> = bytes[..].iter().copied().cycle().take(n * k).collect();
        let scales: Vec<u16> = (0..n).map(|i| u16::from_le_bytes([bytes[i], bytes[399 - i]])).collect();
        let payload = pack_row_scaled(format, n, k, &codes, &scales).unwrap();
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).unwrap();
        let words = view.row_scaled_words().unwrap();
        prop_assert_eq!(words.codes, codes);
        prop_assert_eq!(words.scales, scales);
    }

    /// Any bytes decode and validate without a panic, in every format.
    #[test]
    fn arbitrary_payloads(index in 0usize..30, n in 1u64..4, blocks in 1u64..4, fill in proptest::collection::vec(any::<u8>(), 1..600)) {
        let format = FORMATS[index].id;
        let (n, k) = match format.scheme() {
            Scheme::Nvfp4 => (128, blocks * 64),
            Scheme::Gguf(kind) => (n, blocks * kind.values() as u64),
            _ => (n, blocks * 57),
        };
        let bytes = encoded_size(format, &[n, k], 1).unwrap() as usize;
        let payload: Vec<u8> = fill.iter().copied().cycle().take(bytes).collect();
        let view = TensorView::new(format, &[n, k], 1, &payload).unwrap();
        let _ = view.violations(10);
        if format == FormatId::Int32 {
            view.decode_i32(&mut vec![0; (n * k) as usize]).unwrap();
        } else {
            view.decode_f32(&mut vec![0.0; (n * k) as usize]).unwrap();
        }
        prop_assert_eq!(view.slice_payload().is_ok(), true);
    }

    /// Sizes of arbitrary shapes are computed or refused, never wrapped.
    #[test]
    fn sizes_never_wrap(index in 0usize..30, n in any::<u64>(), k in any::<u64>(), d in 0u64..4) {
        let format = FORMATS[index].id;
        if let Ok(bytes) = encoded_size(format, &[n, k], d) {
            // Every format spends at least 1.5 bits on an element.
            prop_assert!(u128::from(bytes) * 16 >= u128::from(n) * u128::from(k) * 3);
        }
    }
}
