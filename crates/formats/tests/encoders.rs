//! Encoders against golden words, the rules at their ends, adversarial groups and digests of fixed matrices.

mod common;

use common::{Rng, golden, hex, hex16, hex32, shape2};
use ninfer_formats::encoder::{ENCODERS, EncoderId, Params, RowEncoder, RowPlanes, Source, encode};
use ninfer_formats::float::{bf16, f16};
use ninfer_formats::tables::IQ4_VALUES;
use ninfer_formats::{
    FORMATS, FormatError, FormatId, Place, Scheme, TensorView, encoded_size, pack_grouped, pack_row_scaled,
};

const GROUPED: [FormatId; 4] =
    [FormatId::Q4G64Fp16, FormatId::Q5G64Fp16, FormatId::Q6G64Fp16, FormatId::Q8G32Fp16];
const FP8: [FormatId; 2] = [FormatId::Fp8E4m3fnRowBf16, FormatId::Fp8E4m3fnRowFp16];

fn run(
    format: FormatId,
    method: EncoderId,
    k: usize,
    x: &[f32],
    p: Params<'_>,
) -> Result<Vec<u8>, FormatError> {
    encode(format, method, x.len() / k, k, x, p)
}

fn absmax(format: FormatId, k: usize, x: &[f32]) -> Result<Vec<u8>, FormatError> {
    run(format, EncoderId::GroupedAbsmax, k, x, Params::default())
}

fn fp8(format: FormatId, k: usize, x: &[f32]) -> Result<Vec<u8>, FormatError> {
    run(format, EncoderId::Fp8RowMaxabs, k, x, Params::default())
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&w| f32::from_bits(w)).collect()
}

/// Place and rule of a refusal.
fn refusal(result: Result<Vec<u8>, FormatError>) -> (Place, String) {
    match result {
        Err(FormatError::Refused { place, rule, .. }) => (place, rule),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn golden_words() {
    let file = golden("encoders");
    let cases = file["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 26);
    for case in cases {
        let format = FormatId::from_name(case["format"].as_str().expect("format")).expect("known");
        let method = EncoderId::from_name(case["method"].as_str().expect("method")).expect("known");
        let (n, k) = shape2(case);
        let x = floats(&hex32(case, "x_f32"));
        let importance = case
            .get("importance_f32")
            .filter(|v| !v.is_null())
            .map(|_| floats(&hex32(case, "importance_f32")));
        let negative_scales = case.get("negative_scales").is_some_and(|v| v.as_bool().expect("bool"));
        let params = Params { importance: importance.as_deref(), negative_scales };
        let payload = encode(format, method, n, k, &x, params).expect("encodes");
        let scales = hex16(case, "scales_u16");
        let expected = if matches!(format.scheme(), Scheme::Grouped(_)) {
            let codes: Vec<i8> = hex(case, "codes_i8").iter().map(|&b| b as i8).collect();
            pack_grouped(format, n, k, &codes, &scales)
        } else {
            pack_row_scaled(format, n, k, &hex(case, "codes_u8"), &scales)
        };
        assert!(payload == expected.expect("packs"), "{method:?} {format} {n}x{k} {negative_scales}");
        if case.get("payload").is_some() {
            assert!(payload == hex(case, "payload"), "{method:?} {format}: payload");
        }
    }
}

#[test]
fn table_is_consistent() {
    for (i, spec) in ENCODERS.iter().enumerate() {
        assert_eq!(spec.id as usize, i);
        assert_eq!(EncoderId::from_name(spec.name), Ok(spec.id));
        for f in &FORMATS {
            assert_eq!(spec.id.check(f.id).is_ok(), spec.formats.contains(&f.id));
        }
    }
    let defaults: Vec<_> =
        FORMATS.iter().filter_map(|f| EncoderId::default_for(f.id).map(|m| (f.name, m.name()))).collect();
    assert_eq!(
        defaults,
        [
            ("bf16", "cast_direct"),
            ("fp32", "cast_direct"),
            ("int32", "cast_direct"),
            ("q4_g64_fp16", "grouped_absmax"),
            ("q5_g64_fp16", "grouped_absmax"),
            ("q6_g64_fp16", "grouped_absmax"),
            ("q8_g32_fp16", "grouped_absmax"),
            ("fp8_e4m3fn_row_bf16", "fp8_row_maxabs"),
            ("fp8_e4m3fn_row_fp16", "fp8_row_maxabs"),
        ]
    );
    let text = EncoderId::from_name("group_search").expect_err("unknown").to_string();
    assert!(text.contains("group_search") && text.contains("grouped_search"), "{text}");
    for refused in [FormatId::Q2G64Fp16, FormatId::T2G128Fp16] {
        for method in [EncoderId::GroupedAbsmax, EncoderId::GroupedSearch] {
            let text = method.check(refused).expect_err("refused").to_string();
            assert!(text.contains(refused.name()) && text.contains("q4_g64_fp16"), "{text}");
        }
    }
}

/// FR-39: the ends of the scale range, as binary32 words of the largest magnitude.
#[test]
fn scale_range_ends() {
    let ends = [
        (FormatId::Q4G64Fp16, 0x48df_f1ffu32),
        (FormatId::Q5G64Fp16, 0x496f_f0ff),
        (FormatId::Q6G64Fp16, 0x49f7_f07f),
        (FormatId::Q8G32Fp16, 0x4afd_f01f),
    ];
    for (format, last) in ends {
        for sign in [0, 0x8000_0000] {
            let mut x = vec![0.25f32; 2 * 200];
            x[200 + 131] = f32::from_bits(last | sign);
            for method in [EncoderId::GroupedAbsmax, EncoderId::GroupedSearch] {
                let payload = run(format, method, 200, &x, Params::default()).expect("accepted");
                let view = TensorView::new(format, &[2, 200], 1, &payload).expect("view");
                view.validate().expect("valid");
                x[200 + 131] = f32::from_bits((last + 1) | sign);
                let (place, rule) = refusal(run(format, method, 200, &x, Params::default()));
                let Scheme::Grouped(s) = format.scheme() else { panic!() };
                assert_eq!(place, Place::Group { row: 1, group: 131 / s.group as u64 });
                assert!(rule.contains("overflows binary16"), "{rule}");
                x[200 + 131] = f32::from_bits(last | sign);
            }
        }
        // Values far below the smallest scale: the rescue word, codes 0.
        let payload = absmax(format, 128, &[1e-11f32; 128]).expect("accepted");
        let words =
            TensorView::new(format, &[1, 128], 1, &payload).expect("view").grouped_words().expect("words");
        assert!(words.scales.iter().all(|&s| s == 1) && words.codes.iter().all(|&q| q == 0));
    }
}

/// FR-39: NaN and infinity anywhere are refused with row and column, the first one in row order.
#[test]
fn non_finite_sources_are_named() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 63, 64, 199, 200, 3 * 200 - 1] {
            let mut x = vec![1.0f32; 3 * 200];
            x[at] = bad;
            x[3 * 200 - 1] = bad;
            let expected = Place::Column { row: (at / 200) as u64, column: (at % 200) as u64 };
            for format in GROUPED {
                for method in [EncoderId::GroupedAbsmax, EncoderId::GroupedSearch] {
                    assert_eq!(refusal(run(format, method, 200, &x, Params::default())).0, expected);
                }
            }
            for format in FP8 {
                let error = fp8(format, 200, &x).expect_err("refused");
                assert!(error.to_string().contains("must be finite"), "{error}");
                assert_eq!(refusal(Err(error)).0, expected);
            }
        }
    }
}

/// Codes round half to even, after a product with the rounded reciprocal.
#[test]
fn codes_round_half_to_even() {
    // Scale 0.25 for q4: exact halves of it on either side.
    let x = [1.75f32, 0.125, -0.125, 0.375, -0.375, 0.625, -0.625, 0.875, -0.875];
    let payload = absmax(FormatId::Q4G64Fp16, 9, &x).expect("encodes");
    let view = TensorView::new(FormatId::Q4G64Fp16, &[1, 9], 1, &payload).expect("view");
    let words = view.grouped_words().expect("words");
    assert_eq!(words.scales, [0x3400]);
    assert_eq!(words.codes, [7, 0, 0, 2, -2, 2, -2, 4, -4]);
}

/// The eight partial sums are added in the written order: every other order of these rounds differently.
#[test]
fn partial_sums_have_an_order() {
    let combine = ninfer_formats::encoder::grouped_search::combine;
    // Any pair of the tree that is not added first loses the ones against 2^53.
    let big = 2f64.powi(53);
    let mut p = [0.0f64; 8];
    (p[0], p[4], p[2]) = (1.0, 1.0, big);
    assert_eq!(combine(&p), big + 2.0);
    (p[0], p[4], p[2], p[6]) = (big, 0.0, 1.0, 1.0);
    assert_eq!(combine(&p), big + 2.0);
    p = [0.0; 8];
    (p[1], p[5], p[3]) = (1.0, 1.0, big);
    assert_eq!(combine(&p), big + 2.0);
    p = [0.0; 8];
    (p[1], p[3], p[0]) = (1.0, 1.0, big);
    assert_eq!(combine(&p), big + 2.0);
    p = [0.0; 8];
    (p[1], p[0], p[2]) = (1.0, 1.0, big);
    assert_eq!(combine(&p), big);
}

/// FR-43: only logical lanes set the scale of a partial group; padding groups have scale 0.
#[test]
fn tail_groups() {
    for format in GROUPED {
        let Scheme::Grouped(s) = format.scheme() else { panic!() };
        let mut x = vec![0.0f32; 2 * 130];
        for row in x.chunks_exact_mut(130) {
            row[128..].copy_from_slice(&[1.0, -1.0]);
        }
        for method in [EncoderId::GroupedAbsmax, EncoderId::GroupedSearch] {
            let payload = run(format, method, 130, &x, Params::default()).expect("encodes");
            if format == FormatId::Q5G64Fp16 {
                assert_eq!(payload.len(), 528);
            }
            let view = TensorView::new(format, &[2, 130], 1, &payload).expect("view");
            view.validate().expect("padding is canonical");
            let words = view.grouped_words().expect("words");
            let groups = 130usize.div_ceil(s.group);
            for row in words.scales.chunks_exact(groups) {
                assert!(row[..groups - 1].iter().all(|&w| w == 0) && row[groups - 1] != 0);
            }
            if method == EncoderId::GroupedAbsmax {
                assert_eq!(words.scales[groups - 1], f16::from_f32(1.0 / f32::from(s.code_max)));
                assert_eq!(words.codes[128..130], [s.code_max, -s.code_max]);
            }
        }
    }
}

/// ggml blocks: the error is never above that of the nearest codes under ggml's own scale, and decoding gives back
/// what the search compared.
#[test]
fn gguf_search_blocks() {
    let mut rng = Rng(31);
    let (n, k) = (6, 320);
    let mut x = normal(&mut rng, n * k);
    x[5 * k..5 * k + 64].fill(0.0);
    x[4 * k + 3] = 30.0;
    let imp: Vec<f32> = normal(&mut rng, k).iter().map(|v| v * v).collect();
    for (format, low, high) in [
        (FormatId::GgufQ8_0, -128.0f32, 127.0f32),
        (FormatId::GgufQ4_0, -8.0, 7.0),
        (FormatId::GgufQ5_0, -16.0, 15.0),
    ] {
        for importance in [None, Some(&imp[..])] {
            let params = Params { importance, negative_scales: false };
            let payload = run(format, EncoderId::GgufSearch, k, &x, params).expect("encodes");
            let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).expect("view");
            let mut y = vec![0.0f32; n * k];
            view.decode_f32(&mut y).expect("decodes");
            for (b, (x, y)) in x.chunks(32).zip(y.chunks(32)).enumerate() {
                let weight = |i: usize| importance.map_or(1.0, |v| f64::from(v[(32 * b + i) % k]));
                let error = |y: &dyn Fn(usize) -> f32| -> f64 {
                    (0..32).map(|i| weight(i) * (f64::from(x[i]) - f64::from(y(i))).powi(2)).sum()
                };
                let found = error(&|i| y[i]);
                let extreme = x.iter().fold(0.0f32, |e, &v| if v.abs() > e.abs() { v } else { e });
                for scale in [extreme / low, extreme.abs() / high] {
                    let d = f16::to_f32(f16::from_f32(scale));
                    let plain =
                        |i: usize| if d == 0.0 { 0.0 } else { (x[i] / d).round().clamp(low, high) * d };
                    assert!(found <= error(&plain) * (1.0 + 1e-9), "{format} block {b}");
                }
            }
            assert!(y[5 * k..5 * k + 64].iter().all(|&v| v == 0.0));
        }
        let mut bad = x.clone();
        bad[2 * k + 40] = 1e9;
        assert_eq!(
            refusal(run(format, EncoderId::GgufSearch, k, &bad, Params::default())).0,
            Place::Group { row: 2, group: 1 }
        );
        bad[2 * k + 40] = f32::NAN;
        assert_eq!(
            refusal(run(format, EncoderId::GgufSearch, k, &bad, Params::default())).0,
            Place::Column { row: 2, column: 40 }
        );
        assert!(run(format, EncoderId::GgufSearch, 40, &x[..80], Params::default()).is_err());
        assert_eq!(EncoderId::default_for(format), None);
    }
    // iq4_nl: the nearest of its sixteen values under ggml's plain scale.
    for importance in [None, Some(&imp[..])] {
        let params = Params { importance, negative_scales: false };
        let payload = run(FormatId::GgufIq4Nl, EncoderId::GgufSearch, k, &x, params).expect("encodes");
        let mut y = vec![0.0f32; n * k];
        let view = TensorView::new(FormatId::GgufIq4Nl, &[n as u64, k as u64], 1, &payload).expect("view");
        view.decode_f32(&mut y).expect("decodes");
        for (b, (x, y)) in x.chunks(32).zip(y.chunks(32)).enumerate() {
            let extreme = x.iter().fold(0.0f32, |e, &v| if v.abs() > e.abs() { v } else { e });
            let d = f64::from(f16::to_f32(f16::from_f32(extreme / -127.0)));
            let (mut found, mut plain) = (0.0, 0.0);
            for i in 0..32 {
                let weight = importance.map_or(1.0, |v| f64::from(v[(32 * b + i) % k]));
                let x = f64::from(x[i]);
                found += weight * (x - f64::from(y[i])).powi(2);
                let near = IQ4_VALUES.iter().map(|&v| (x - d * f64::from(v)).powi(2));
                plain += weight * near.fold(f64::INFINITY, f64::min);
            }
            // The stored scale is the rounded best one: a plain one can be rounded more luckily.
            assert!(found <= plain * (1.0 + 1e-3), "block {b}: {found} {plain}");
        }
        assert!(y[5 * k..5 * k + 64].iter().all(|&v| v == 0.0));
    }
    let mut bad = x.clone();
    bad[2 * k + 40] = -1e9;
    assert_eq!(
        refusal(run(FormatId::GgufIq4Nl, EncoderId::GgufSearch, k, &bad, Params::default())).0,
        Place::Group { row: 2, group: 1 }
    );
    // Bytes of one block, by hand: values (i - 8) / 4 have the exact scale 0.25 in q4_0.
    let x: Vec<f32> = (0..32).map(|i| (i % 16) as f32 * 0.25 - 2.0).collect();
    let payload = run(FormatId::GgufQ4_0, EncoderId::GgufSearch, 32, &x, Params::default()).expect("encodes");
    assert_eq!(payload[..2], 0x3400u16.to_le_bytes());
    assert!(payload[2..].iter().enumerate().all(|(i, &b)| usize::from(b) == i | i << 4));
}

/// Ternary groups: no choice of non-zero columns with its own best scale is better.
#[test]
fn ternary_fit_is_the_best_fit() {
    let mut rng = Rng(41);
    let format = FormatId::T2G128Fp16;
    for round in 0..40 {
        // Rows of up to three groups, and of more than the sixteen that are encoded together.
        let k = if round % 8 < 6 { 1 + rng.below(300) } else { 2049 + rng.below(300) };
        let mut x = normal(&mut rng, k);
        x.iter_mut().for_each(|v| *v *= [1.0, 1e-3, 100.0, 1e-7][round % 4]);
        let imp: Vec<f32> = normal(&mut rng, k).iter().map(|v| v * v).collect();
        let importance = (round % 2 == 0).then_some(&imp[..]);
        let params = Params { importance, negative_scales: false };
        let payload = run(format, EncoderId::TernaryFit, k, &x, params).expect("encodes");
        let view = TensorView::new(format, &[1, k as u64], 1, &payload).expect("view");
        view.validate().expect("valid");
        let mut y = vec![0.0f32; k];
        view.decode_f32(&mut y).expect("decodes");
        for (g, (w, y)) in x.chunks(128).zip(y.chunks(128)).enumerate() {
            let weight = |i: usize| importance.map_or(1.0, |v| f64::from(v[128 * g + i]));
            let found: f64 =
                (0..w.len()).map(|i| weight(i) * (f64::from(w[i]) - f64::from(y[i])).powi(2)).sum();
            // Every threshold between two magnitudes, with the weighted mean of what lies above as the scale.
            for &limit in w {
                let above = |i: &usize| w[*i].abs() >= limit.abs();
                let (num, den) = (0..w.len())
                    .filter(above)
                    .fold((0.0, 0.0), |(n, d), i| (n + weight(i) * f64::from(w[i].abs()), d + weight(i)));
                let scale = if den == 0.0 { 0.0 } else { num / den };
                let error: f64 = (0..w.len())
                    .map(|i| {
                        let v = if above(&i) { scale } else { 0.0 };
                        weight(i) * (f64::from(w[i].abs()) - v).powi(2)
                    })
                    .sum();
                // The stored scale is rounded: up to 2^-11, or 2^-25 below the normal range.
                let slack = (scale / 2048.0).max(2f64.powi(-25)).powi(2);
                let total: f64 = (0..w.len()).map(weight).sum();
                assert!(found <= error * (1.0 + 1e-9) + slack * total, "round {round} group {g}");
            }
        }
    }
    // Exactly ternary values come back exactly, zeros and all-zero groups too.
    let x: Vec<f32> = (0..384).map(|i| if i < 128 { 0.0 } else { (i % 3) as f32 * 0.25 - 0.25 }).collect();
    let payload = run(format, EncoderId::TernaryFit, 384, &x, Params::default()).expect("encodes");
    let view = TensorView::new(format, &[1, 384], 1, &payload).expect("view");
    let mut y = vec![1.0f32; 384];
    view.decode_f32(&mut y).expect("decodes");
    assert_eq!(x, y);
    let zeros = vec![0.0f32; 384];
    let params = Params { importance: Some(&zeros), negative_scales: false };
    assert_eq!(run(format, EncoderId::TernaryFit, 384, &x, params).expect("encodes"), payload);
    assert_eq!(
        refusal(run(format, EncoderId::TernaryFit, 200, &[1e6; 200], Params::default())).0,
        Place::Group { row: 0, group: 0 }
    );
    assert_eq!(EncoderId::default_for(format), None);
}

/// FR-37: the row FP8 profile.
#[test]
fn fp8_row_rules() {
    // 448 * 2^-25: raw is 2^-25, a tie that rounds to zero in binary16 and is rescued.
    let x = [448.0 * 2f32.powi(-25), -0.0, 0.0, 1e-9];
    let payload = fp8(FormatId::Fp8E4m3fnRowFp16, 4, &x).expect("encodes");
    // 448 * 2^-25 / 2^-24 = 224 = 0x76.
    assert_eq!(payload, [0x76, 0x80, 0x00, 0x09, 0x01, 0x00]);
    // All-zero rows, negative zeros included.
    for format in FP8 {
        let payload = fp8(format, 3, &[0.0, -0.0, -0.0, -0.0, -0.0, -0.0]).expect("encodes");
        assert!(payload.iter().all(|&b| b == 0));
    }
    // Codes use the reciprocal of the stored scale: 1.0 / 448 as bfloat16 is 0x3b12 = 0.00222778.
    let payload = fp8(FormatId::Fp8E4m3fnRowBf16, 2, &[1.0, -0.5]).expect("encodes");
    assert_eq!(payload[256..], [0x12, 0x3b]);
    assert_eq!(payload[..2], [0x7e, 0xf6]);
    // A finite value that bfloat16 cannot hold; a scale that binary16 cannot hold.
    let (place, rule) = refusal(fp8(FormatId::Fp8E4m3fnRowBf16, 2, &[0.0, 0.0, 1.0, f32::MAX]));
    assert_eq!(place, Place::Column { row: 1, column: 1 });
    assert!(rule.contains("rounds to infinity"), "{rule}");
    // The largest bfloat16 itself is fine with a bfloat16 scale.
    let largest = bf16::to_f32(0x7f7f);
    assert!(fp8(FormatId::Fp8E4m3fnRowBf16, 2, &[1.0, largest]).is_ok());
    let (place, rule) = refusal(fp8(FormatId::Fp8E4m3fnRowFp16, 2, &[0.0, 1.0, 1.0, -largest]));
    assert_eq!(place, Place::Row { row: 1 });
    assert!(rule.contains("binary16"), "{rule}");
    // The largest bfloat16 below 65504 * 448, and the next one, whose scale would be 65536.
    let edge = (65504.0f32 * 448.0).to_bits() >> 16;
    assert!(fp8(FormatId::Fp8E4m3fnRowFp16, 1, &[f32::from_bits(edge << 16)]).is_ok());
    assert!(fp8(FormatId::Fp8E4m3fnRowFp16, 1, &[f32::from_bits((edge + 1) << 16)]).is_err());
    // A bfloat16 scale whose reciprocal is infinite: below 2^-127.
    let small = |e: i32| 2f32.powi(e) * 448.0;
    assert!(fp8(FormatId::Fp8E4m3fnRowBf16, 1, &[small(-127)]).is_ok());
    let (place, rule) = refusal(fp8(FormatId::Fp8E4m3fnRowBf16, 1, &[small(-129)]));
    assert_eq!(place, Place::Row { row: 0 });
    assert!(rule.contains("reciprocal"), "{rule}");
    // The smallest bfloat16 magnitude: raw rounds to zero in binary32 already, the rescued word has no reciprocal.
    let tiny = f32::from_bits(0x0001_0000);
    assert_eq!(refusal(fp8(FormatId::Fp8E4m3fnRowBf16, 1, &[tiny])).0, Place::Row { row: 0 });
    let payload = fp8(FormatId::Fp8E4m3fnRowFp16, 1, &[tiny]).expect("rescued by the smallest binary16");
    assert_eq!(payload, [0x00, 0x01, 0x00]);
}

/// Results do not depend on how rows are chunked, nor on the plane buffers being parts of a payload.
#[test]
fn chunks_do_not_matter() {
    let mut rng = Rng(11);
    for format in GROUPED.into_iter().chain(FP8) {
        let methods: &[EncoderId] = if FP8.contains(&format) {
            &[EncoderId::Fp8RowMaxabs]
        } else {
            &[EncoderId::GroupedAbsmax, EncoderId::GroupedSearch]
        };
        for &method in methods {
            let (n, k) = (7, 193);
            let x = normal(&mut rng, n * k);
            let whole = run(format, method, k, &x, Params::default()).expect("encodes");
            let encoder = RowEncoder::new(format, method, k, Params::default()).expect("encoder");
            let size = encoded_size(format, &[n as u64, k as u64], 1).expect("size") as usize;
            let mut parts = vec![0u8; size];
            let mut rest = RowPlanes::of_payload(format, n, k, &mut parts).expect("planes");
            let mut at = 0;
            for rows in [1, 3, 2, 1] {
                let (mut chunk, next) = rest.split_at(rows);
                encoder.encode_rows(&x[at * k..(at + rows) * k], at as u64, &mut chunk).expect("encodes");
                rest = next;
                at += rows;
            }
            assert_eq!(rest.rows(), 0);
            assert!(whole == parts, "{format} {method:?}");
        }
    }
}

#[test]
fn parameters_are_checked() {
    let new = |method, importance: Option<&[f32]>, negative_scales| {
        let format = if method == EncoderId::Fp8RowMaxabs { FP8[0] } else { GROUPED[0] };
        RowEncoder::new(format, method, 4, Params { importance, negative_scales }).map(|_| ())
    };
    let ones = [1.0f32; 4];
    assert!(new(EncoderId::GroupedSearch, Some(&ones), true).is_ok());
    for method in [EncoderId::GroupedAbsmax, EncoderId::Fp8RowMaxabs] {
        let text = new(method, Some(&ones), false).expect_err("refused").to_string();
        assert!(text.contains("takes no importance"), "{text}");
        let text = new(method, None, true).expect_err("refused").to_string();
        assert!(text.contains("negative_scales"), "{text}");
    }
    let text = new(EncoderId::GroupedSearch, Some(&ones[..3]), false).expect_err("length").to_string();
    assert!(text.contains('3') && text.contains('4'), "{text}");
    for bad in [-1.0, f32::NAN, f32::INFINITY, -f32::from_bits(1)] {
        let text =
            new(EncoderId::GroupedSearch, Some(&[1.0, 1.0, bad, 1.0]), false).expect_err("value").to_string();
        assert!(text.contains("column 2"), "{text}");
    }
    assert!(new(EncoderId::GroupedSearch, Some(&[0.0, -0.0, f32::MAX, f32::from_bits(1)]), false).is_ok());
    assert!(RowEncoder::new(FormatId::Bf16, EncoderId::CastDirect, 4, Params::default()).is_err());
    assert!(RowEncoder::new(GROUPED[0], EncoderId::GroupedAbsmax, 0, Params::default()).is_err());
    assert!(encode(GROUPED[0], EncoderId::GroupedAbsmax, 2, 4, &[0.0; 7], Params::default()).is_err());
    assert!(encode(GROUPED[0], EncoderId::GroupedAbsmax, 0, 4, &[], Params::default()).is_err());
    assert!(encode(GROUPED[0], EncoderId::GroupedAbsmax, usize::MAX, 4, &[], Params::default()).is_err());
    // Planes of another format or row length.
    let encoder =
        RowEncoder::new(GROUPED[0], EncoderId::GroupedAbsmax, 4, Params::default()).expect("encoder");
    let mut payload = vec![0u8; encoded_size(GROUPED[1], &[1, 4], 1).expect("size") as usize];
    let mut other = RowPlanes::of_payload(GROUPED[1], 1, 4, &mut payload).expect("planes");
    assert!(encoder.encode_rows(&[0.0; 4], 0, &mut other).is_err());
}

#[test]
fn sources_round_once() {
    let mut scratch = Vec::new();
    let half: Vec<u16> = vec![0x3c00, 0x0001, 0xfbff];
    let x = Source::F16(&half).to_f32(&mut scratch).expect("exact").to_vec();
    assert_eq!(x, [1.0, 2f32.powi(-24), -65504.0]);
    let x = Source::Bf16(&[0x3f80, 0x0001]).to_f32(&mut scratch).expect("exact").to_vec();
    assert_eq!(x, [1.0, f32::from_bits(0x0001_0000)]);
    // 1 + 2^-24 + 2^-40 rounds up only if it is rounded once.
    let wide = [1.0 + 2f64.powi(-24) + 2f64.powi(-40), f64::from(f32::MAX) + 1e20, f64::INFINITY];
    let x = Source::F64(&wide).to_f32(&mut scratch).expect("fits").to_vec();
    assert_eq!(x[..2], [1.0 + f32::EPSILON, f32::MAX]);
    let fault = Source::F64(&[0.0, 1e39]).to_f32(&mut scratch).expect_err("too large");
    assert!(fault.rule.contains("1e39"), "{}", fault.rule);
    assert_eq!(fault.place.at(3), Place::Column { row: 3, column: 1 });
}

/// FR-42 and its kind: odd groups give valid words, and the search is never worse than max-abs.
#[test]
fn adversarial_groups() {
    let g = 64;
    let mut groups: Vec<Vec<f32>> = Vec::new();
    for v in [1.0, -1.0, 0.1, 1e-30, f32::from_bits(1), -f32::from_bits(0x7f_ffff), 65504.0, 3e-6, 448_000.0]
    {
        groups.push(vec![v; g]);
        groups.push((0..g).map(|i| if i == 17 { v } else { 0.0 }).collect());
        groups.push((0..g).map(|i| if i % 2 == 0 { v } else { -v }).collect());
        groups.push((0..g).map(|i| if i == 0 { v } else { v * 1e-6 }).collect());
        groups.push((0..g).map(|i| v * (i as f32 + 0.5) / 64.0).collect());
    }
    groups.push(vec![-0.0; g]);
    groups.push((0..g).map(|i| f32::from_bits(i as u32)).collect());
    groups.push((0..g).map(|i| (i as f32 - 32.0) * 0.5).collect());
    let x: Vec<f32> = groups.concat();
    let importances: Vec<Option<Vec<f32>>> = vec![
        None,
        Some(vec![0.0; g]),
        Some((0..g).map(|i| if i % 3 == 0 { 0.0 } else { i as f32 }).collect()),
        Some((0..g).map(|i| if i == 17 { f32::MAX } else { f32::from_bits(i as u32) }).collect()),
    ];
    for format in GROUPED {
        let base = absmax(format, g, &x).expect("encodes");
        let base = TensorView::new(format, &[groups.len() as u64, g as u64], 1, &base).expect("view");
        base.validate().expect("valid");
        let base = base.grouped_words().expect("words");
        for importance in &importances {
            for negative_scales in [false, true] {
                let params = Params { importance: importance.as_deref(), negative_scales };
                let payload = run(format, EncoderId::GroupedSearch, g, &x, params).expect("encodes");
                let view =
                    TensorView::new(format, &[groups.len() as u64, g as u64], 1, &payload).expect("view");
                view.validate().expect("valid");
                let words = view.grouped_words().expect("words");
                assert!(negative_scales || words.scales.iter().all(|&s| s & 0x8000 == 0));
                if importance.as_ref().is_some_and(|i| i.iter().all(|&v| v == 0.0)) {
                    assert!(words == base, "no error is smaller than zero");
                }
                let Scheme::Grouped(s) = format.scheme() else { panic!() };
                for (i, (w, q)) in x.chunks(s.group).zip(words.codes.chunks(s.group)).enumerate() {
                    let imp =
                        |j: usize| importance.as_ref().map_or(1.0, |v| f64::from(v[(i * s.group + j) % g]));
                    let error = |scale: u16, q: &[i8]| -> f64 {
                        let s = f64::from(f16::to_f32(scale));
                        w.iter()
                            .zip(q)
                            .enumerate()
                            .map(|(j, (&w, &q))| imp(j) * (f64::from(w) - s * f64::from(q)).powi(2))
                            .sum()
                    };
                    let before = error(base.scales[i], &base.codes[i * s.group..(i + 1) * s.group]);
                    assert!(error(words.scales[i], q) <= before * (1.0 + 1e-12), "{format} group {i}");
                }
            }
        }
    }
}

/// A brute-force reading of the search, straight from the specification's list, on random groups.
#[test]
fn search_equals_the_plain_reading() {
    let mut rng = Rng(5);
    for format in GROUPED {
        let Scheme::Grouped(s) = format.scheme() else { panic!() };
        for round in 0..400 {
            let k = 1 + rng.below(s.group);
            let mut w = normal(&mut rng, k);
            if round % 4 == 3 {
                // Values and their negatives in different lanes: scales of either sign tie but for rounding.
                for i in 0..k / 2 {
                    w[k - 1 - i] = -w[i];
                }
                for i in (1..k).rev() {
                    w.swap(i, rng.below(i + 1));
                }
            }
            if round % 5 == 0 {
                w[rng.below(k)] *= 20.0;
            }
            let scale = [1.0, 1e-6, 1e-3, 1e4][round % 4];
            w.iter_mut().for_each(|v| *v *= scale);
            let imp: Vec<f32> = normal(&mut rng, k).iter().map(|v| v * v).collect();
            let importance = (round % 3 != 0).then_some(&imp[..]);
            let negative_scales = round % 2 == 1;
            let payload =
                run(format, EncoderId::GroupedSearch, k, &w, Params { importance, negative_scales });
            let payload = payload.expect("encodes");
            let view = TensorView::new(format, &[1, k as u64], 1, &payload).expect("view");
            let words = view.grouped_words().expect("words");
            let (scale, q) = plain::search(&s, &w, importance, negative_scales);
            assert_eq!(words.scales, [scale], "{format} {k} {round}");
            assert_eq!(words.codes, q, "{format} {k} {round}");
        }
    }
}

/// The specification's text, one line at a time, without the shortcuts of the library.
mod plain {
    use ninfer_formats::GroupedScheme;
    use ninfer_formats::float::f16;

    fn codes(s: &GroupedScheme, w: &[f32], word: u16) -> Vec<i8> {
        let inv = 1.0f32 / f16::to_f32(word);
        w.iter()
            .map(|&v| (v * inv).round_ties_even().clamp(s.code_min.into(), s.code_max.into()) as i8)
            .collect()
    }

    fn sum(terms: impl Iterator<Item = f64>) -> f64 {
        let mut p = [0.0f64; 8];
        for (i, t) in terms.enumerate() {
            p[i % 8] += t;
        }
        ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
    }

    fn round(c: f64) -> Option<u16> {
        let word = f16::from_f32(c as f32);
        if c == 0.0 || c.is_nan() || word & 0x7fff == 0x7c00 {
            None
        } else if word & 0x7fff == 0 {
            Some(if c < 0.0 { 0x8001 } else { 1 })
        } else {
            Some(word)
        }
    }

    fn step(word: u16, d: i32) -> Option<u16> {
        let m = i32::from(word & 0x7fff) + d;
        (1..=0x7bff).contains(&m).then_some(word & 0x8000 | m as u16)
    }

    pub fn search(
        s: &GroupedScheme,
        w: &[f32],
        importance: Option<&[f32]>,
        negative: bool,
    ) -> (u16, Vec<i8>) {
        let imp = |i: usize| importance.map_or(1.0, |v| f64::from(v[i]));
        let error = |word: u16, q: &[i8]| {
            let scale = f64::from(f16::to_f32(word));
            sum(w.iter().zip(q).enumerate().map(|(i, (&w, &q))| {
                let t = f64::from(w) - scale * f64::from(q);
                imp(i) * t * t
            }))
        };
        let fit = |q: &[i8]| {
            let den = sum(q.iter().enumerate().map(|(i, &q)| imp(i) * f64::from(q) * f64::from(q)));
            let num =
                sum(w.iter().zip(q).enumerate().map(|(i, (&w, &q))| imp(i) * f64::from(w) * f64::from(q)));
            if den == 0.0 { 0.0 } else { num / den }
        };
        let extreme = w.iter().fold(0.0f32, |e, &v| if v.abs() > e.abs() { v } else { e });
        let amax = extreme.abs();
        if amax == 0.0 {
            return (0, vec![0; w.len()]);
        }
        let start = f16::from_f32(amax / f32::from(s.code_max)).max(1);
        let start_codes = codes(s, w, start);
        let mut best = (start, start_codes.clone(), error(start, &start_codes));
        let compete = |word: Option<u16>, best: &mut (u16, Vec<i8>, f64)| {
            let Some(word) = word else { return };
            if word & 0x8000 != 0 && !negative {
                return;
            }
            let q = codes(s, w, word);
            let e = error(word, &q);
            if e < best.2 {
                *best = (word, q, e);
            }
        };
        for base in [f64::from(amax) / f64::from(s.code_max), f64::from(extreme) / f64::from(s.code_min)] {
            for percent in (70..=118).step_by(2) {
                let r: f64 = format!("{}.{:02}", percent / 100, percent % 100).parse().expect("decimal");
                compete(round(base * r), &mut best);
            }
        }
        let value = |word: u16| f64::from(f16::to_f32(word));
        for factor in [0.25, 0.5, 2.0, 4.0] {
            compete(round(value(start) * factor), &mut best);
        }
        for d in [-2, -1, 1, 2] {
            compete(step(start, d), &mut best);
        }
        if let Some(f) = round(fit(&start_codes)) {
            compete(Some(f), &mut best);
            compete(round(value(f) * 0.5), &mut best);
            compete(round(value(f) * 2.0), &mut best);
            for d in [-2, -1, 1, 2] {
                compete(step(f, d), &mut best);
            }
        }
        if let Some(f) = round(fit(&best.1)) {
            compete(Some(f), &mut best);
            compete(step(f, -1), &mut best);
            compete(step(f, 1), &mut best);
        }
        (best.0, best.1)
    }
}

/// Approximately normal values from integer sums: the same binary32 values everywhere, no library functions.
fn normal(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| {
            let sum: i32 = (0..4).map(|_| (rng.next() >> 40) as i32 - (1 << 23)).sum();
            sum as f32 / (1 << 27) as f32
        })
        .collect()
}

/// FNV-1a of 64 bits.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// FR-40: the bytes of fixed 64 x 256 matrices are constants, whatever machine, optimisation or instruction set.
#[test]
fn digests_of_fixed_matrices() {
    let mut rng = Rng(20);
    let mut x = normal(&mut rng, 64 * 256);
    for (i, v) in x.iter_mut().enumerate() {
        // Rows of different magnitude, a few outliers.
        *v *= 2f32.powi((i / 256 % 9) as i32 - 6);
        if i % 509 == 0 {
            *v *= 24.0;
        }
    }
    let importance: Vec<f32> = normal(&mut rng, 256).iter().map(|v| v * v + 0.001).collect();
    let mut found = Vec::new();
    for format in GROUPED {
        found.push(digest(&absmax(format, 256, &x).expect("encodes")));
        for (importance, negative_scales) in
            [(None, false), (None, true), (Some(&importance[..]), false), (Some(&importance[..]), true)]
        {
            let params = Params { importance, negative_scales };
            found.push(digest(&run(format, EncoderId::GroupedSearch, 256, &x, params).expect("encodes")));
        }
    }
    for format in FP8 {
        found.push(digest(&fp8(format, 256, &x).expect("encodes")));
    }
    for format in [FormatId::GgufQ8_0, FormatId::GgufQ4_0, FormatId::GgufQ5_0, FormatId::GgufIq4Nl] {
        for importance in [None, Some(&importance[..])] {
            let params = Params { importance, negative_scales: false };
            found.push(digest(&run(format, EncoderId::GgufSearch, 256, &x, params).expect("encodes")));
        }
    }
    for importance in [None, Some(&importance[..])] {
        let params = Params { importance, negative_scales: false };
        let t2 = run(FormatId::T2G128Fp16, EncoderId::TernaryFit, 256, &x, params);
        found.push(digest(&t2.expect("encodes")));
    }
    let text: Vec<String> = found.iter().map(|d| format!("{d:#018x}")).collect();
    assert_eq!(text, DIGESTS, "{text:#?}");
}

/// Per grouped format: max-abs, then search without and with importance, each with positive and with both signs of
/// scales; then the two FP8 formats; the four ggml types and the ternary one, each without and with importance.
const DIGESTS: [&str; 32] = [
    "0x4cc274d9b132ebf2",
    "0x6758f51dec2b9ed7",
    "0x39c2807d59a5aac2",
    "0x3e65ce7f75e06cf6",
    "0x77d81afea8b3201c",
    "0xae6164ced13f2ad2",
    "0x5ef4716a9424892a",
    "0x9157ca41dec027cc",
    "0x2a558765b58abe29",
    "0x6d3a74f2cabc5926",
    "0x68f18d8b203ede35",
    "0x755dd5171742d5fe",
    "0x0055f32349ef6bce",
    "0xfc67ed6abebe1cb2",
    "0x4f00fd98b9b1624c",
    "0x9188de6fb0ecbf0e",
    "0x8d2efa18bb3cfe28",
    "0x8d2efa18bb3cfe28",
    "0x166ff56ab574c262",
    "0x166ff56ab574c262",
    "0x080d72c1746b0db5",
    "0xc3784bc2b489581e",
    "0xba75301df7ae7227",
    "0x7ce354f4c729185b",
    "0x90fe7d9ae8e5b356",
    "0x9feefca47a171a1e",
    "0xb8166706790966ed",
    "0x6807bd3fe4348f22",
    "0xff776ba4339964b2",
    "0x1349c28d8c84a2e6",
    "0xc0ba1ba540d52097",
    "0x021846b6a34b74fb",
];
