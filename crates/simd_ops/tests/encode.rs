//! Encoders: every instruction set of this machine and every number of threads gives the words of the portable code.

mod common;

use common::Random;
use ninfer_formats::encoder::nvfp4::{Nvfp4Encoder, divisor};
use ninfer_formats::encoder::{self, ENCODERS, EncoderId, Params, RowEncoder, RowPlanes, Source};
use ninfer_formats::float::{bf16, f16};
use ninfer_formats::{FormatError, FormatId, Place, Scheme, encoded_size};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Dispatch, Isa, OpError, encode, encode_nvfp4_tiles, encode_rows, nvfp4_largest};

/// Tokens whose encoders are their own.
const OWN: &[Isa] = &[Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

fn on(isa: Isa) -> Dispatch {
    Dispatch { isa: Some(isa), threads: Some(1) }
}

/// Every method that takes single rows, with every format it produces.
fn pairs() -> impl Iterator<Item = (EncoderId, FormatId)> {
    ENCODERS
        .iter()
        .filter(|e| e.id != EncoderId::CastDirect && e.formats != [FormatId::Nvfp4])
        .flat_map(|e| e.formats.iter().map(|&format| (e.id, format)))
}

/// The next length at or after `k` that rows of the format can have.
fn legal(format: FormatId, k: usize) -> usize {
    match format.scheme() {
        Scheme::Gguf(kind) => k.next_multiple_of(kind.values()),
        _ => k,
    }
}

/// Rows of several kinds: bell-shaped, outliers, one-hot, constant, tiny, huge, exact multiples, zeros.
fn matrix(random: &mut Random, n: usize, k: usize) -> Vec<f32> {
    let mut x = Vec::with_capacity(n * k);
    for r in 0..n {
        let bell = |random: &mut Random| (0..4).map(|_| random.value()).sum::<f32>() * 0.125;
        for c in 0..k {
            let v = bell(random);
            x.push(match (r + c / 64) % 11 {
                0..=3 => v,
                4 => v * if random.below(40) == 0 { 60.0 } else { 1.0 },
                5 => {
                    if random.below(64) == 0 {
                        v
                    } else {
                        0.0
                    }
                }
                6 => 0.37,
                7 => v * 1e-7,
                8 => v * 6000.0,
                9 => (random.below(15) as f32 - 7.0) * 0.0625,
                _ => f32::from_bits(random.word() as u32 & 0x8000_ffff),
            });
        }
    }
    x
}

fn importances(random: &mut Random, k: usize) -> Vec<Option<Vec<f32>>> {
    vec![
        None,
        Some((0..k).map(|_| random.value().powi(2) + 1e-3).collect()),
        Some((0..k).map(|_| if random.below(3) == 0 { 0.0 } else { random.value().abs() }).collect()),
        // Beyond what the binary32 estimate of the search can take.
        Some((0..k).map(|i| [1e-38, 1.0, f32::MAX, 0.0, f32::from_bits(9)][i % 5]).collect()),
        Some(vec![0.0; k]),
    ]
}

#[test]
fn every_isa_gives_the_same_words() {
    let mut random = Random(77);
    for (method, format) in pairs() {
        for (n, k) in [(11, 64), (3, 1), (4, 31), (4, 33), (3, 127), (3, 129), (5, 200), (2, 700), (11, 1088)]
        {
            let k = legal(format, k);
            let x = matrix(&mut random, n, k);
            let x: Vec<f32> = match format {
                // Their scales are too small or too large for some of these rows.
                FormatId::Fp8E4m3fnRowBf16 | FormatId::Fp8E4m3fnRowFp16 => {
                    x.iter().map(|v| v + 1e-3).collect()
                }
                _ => x,
            };
            let spec = method.spec();
            let importances = if spec.importance { importances(&mut random, k) } else { vec![None] };
            for importance in &importances {
                for negative_scales in [false, true] {
                    if negative_scales && !spec.negative_scales {
                        continue;
                    }
                    let params = Params { importance: importance.as_deref(), negative_scales };
                    let expected = encoder::encode(format, method, n, k, &x, params).unwrap();
                    for isa in available() {
                        // Another token's encoder is chosen by format and method alone: small matrices show it.
                        if !OWN.contains(&isa) && n * k > 704 {
                            continue;
                        }
                        let (payload, ran) =
                            encode(format, method, n, k, Source::F32(&x), params, &on(isa)).unwrap();
                        assert_eq!(ran.isa, isa);
                        assert!(
                            !OWN.contains(&isa) || ran.kernel == isa,
                            "{isa}: another token's encoder ran"
                        );
                        // No encoders for other processors yet: their tokens run the portable code.
                        assert!(
                            isa == Isa::Scalar || ran.kernel != Isa::Scalar || !cfg!(target_arch = "x86_64"),
                            "{isa} fell back to scalar"
                        );
                        if payload != expected {
                            let at = payload.iter().zip(&expected).position(|(a, b)| a != b);
                            panic!("{isa} {method:?} {format} {n}x{k} {params:?}: byte {at:?} differs");
                        }
                    }
                }
            }
        }
    }
}

/// Many groups of one kind at a time, so that near ties of the search are met.
#[test]
fn search_on_many_groups() {
    let mut random = Random(123);
    let (n, k) = (96, 1024);
    for format in [FormatId::Q4G64Fp16, FormatId::Q5G64Fp16, FormatId::Q6G64Fp16, FormatId::Q8G32Fp16] {
        let x: Vec<f32> = (0..n * k).map(|_| (0..4).map(|_| random.value()).sum::<f32>() * 0.01).collect();
        // Rows of values with their negatives in other lanes: scales of either sign tie but for the order of sums.
        let mut x = x;
        for group in x[n * k / 2..].chunks_exact_mut(32) {
            for i in 0..16 {
                group[16 + i] = -group[i];
            }
            for i in (1..32).rev() {
                group.swap(i, random.below(i + 1));
            }
        }
        let importance: Vec<f32> = (0..k).map(|_| random.value().powi(2)).collect();
        for (importance, negative_scales) in [(None, false), (None, true), (Some(&importance[..]), true)] {
            let params = Params { importance, negative_scales };
            let method = EncoderId::GroupedSearch;
            let expected = encoder::encode(format, method, n, k, &x, params).unwrap();
            for isa in available() {
                let (payload, _) = encode(format, method, n, k, Source::F32(&x), params, &on(isa)).unwrap();
                assert!(payload == expected, "{isa} {format}");
            }
        }
    }
}

/// All bfloat16 words, in rows of one exponent each, through both scale types: every rounding of E4M3FN is met.
#[test]
fn fp8_of_every_bfloat16() {
    for format in [FormatId::Fp8E4m3fnRowBf16, FormatId::Fp8E4m3fnRowFp16] {
        for top in 0..=0x7f7fu16 {
            if top % 97 != 0 && top < 0x7f00 {
                continue;
            }
            // The row's largest word, then words below it of either sign.
            let words: Vec<u16> = (0..133u16).map(|i| top.saturating_sub(i * 7) | (i % 2) << 15).collect();
            let x: Vec<f32> = words.iter().map(|&w| bf16::to_f32(w)).collect();
            let expected = encoder::encode(format, EncoderId::Fp8RowMaxabs, 1, 133, &x, Params::default());
            for isa in available() {
                for source in [Source::F32(&x), Source::Bf16(&words)] {
                    let found =
                        encode(format, EncoderId::Fp8RowMaxabs, 1, 133, source, Params::default(), &on(isa));
                    match (&expected, found) {
                        (Ok(expected), Ok((found, _))) => {
                            assert!(*expected == found, "{isa} {format} {top:#x}")
                        }
                        (Err(expected), Err(OpError::Format(found))) => assert_eq!(*expected, found),
                        (expected, found) => panic!("{isa} {format} {top:#x}: {expected:?} {found:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn sources_and_threads_do_not_matter() {
    let mut random = Random(5);
    for (method, format) in pairs() {
        let (n, k) = (13, legal(format, 192 + 32));
        let wide: Vec<f64> = (0..n * k).map(|_| f64::from(random.value()) + 1e-9).collect();
        let halves: Vec<u16> = wide.iter().map(|&v| f16::from_f64(v)).collect();
        let brains: Vec<u16> = wide.iter().map(|&v| bf16::from_f64(v)).collect();
        let sources = [Source::F64(&wide), Source::F16(&halves), Source::Bf16(&brains)];
        for source in sources {
            let mut scratch = Vec::new();
            let x = source.to_f32(&mut scratch).unwrap();
            let expected = encoder::encode(format, method, n, k, x, Params::default()).unwrap();
            for isa in available() {
                for threads in [1, 2, 5, 64] {
                    let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                    let (payload, ran) =
                        encode(format, method, n, k, source, Params::default(), &dispatch).unwrap();
                    assert_eq!(ran.parts, threads.min(n));
                    assert!(payload == expected, "{isa} {method:?} {format} {threads} {source:?}");
                }
            }
        }
    }
}

/// The first bad row is named whatever the threads, and nothing but the planes is written.
#[test]
fn refusals_are_those_of_the_reference() {
    for (method, format) in pairs() {
        let (n, k) = (9, legal(format, 160));
        let mut x = vec![0.5f32; n * k];
        x[4 * k + 159] = f32::NAN;
        x[7 * k] = f32::INFINITY;
        let expected = encoder::encode(format, method, n, k, &x, Params::default()).unwrap_err();
        assert!(
            matches!(&expected, FormatError::Refused { place: Place::Column { row: 4, column: 159 }, .. }),
            "{expected}"
        );
        let mut large = vec![0.5f32; n * k];
        large[5 * k + 70] = 3e38;
        let overflow = encoder::encode(format, method, n, k, &large, Params::default());
        let wide: Vec<f64> = (0..n * k).map(|i| if i == 6 * k + 3 { -1e300 } else { 1.0 }).collect();
        for isa in available() {
            for threads in [1, 2, 5] {
                let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                let run = |source| encode(format, method, n, k, source, Params::default(), &dispatch);
                assert_eq!(run(Source::F32(&x)).unwrap_err(), OpError::Format(expected.clone()));
                let found = run(Source::F32(&large)).map(|(payload, _)| payload);
                assert_eq!(found, overflow.clone().map_err(OpError::Format));
                let error = run(Source::F64(&wide)).unwrap_err().to_string();
                assert!(error.contains("row 6, column 3") && error.contains("1e300"), "{error}");
            }
        }
    }
    for (method, format) in pairs() {
        let k = legal(format, 96);
        let encoder = RowEncoder::new(format, method, k, Params::default()).unwrap();
        let size = encoded_size(format, &[2, k as u64], 1).unwrap() as usize;
        let mut payload = vec![0u8; size];
        let planes = RowPlanes::of_payload(format, 2, k, &mut payload).unwrap();
        let short = vec![0.0; 2 * k - 1];
        assert!(encode_rows(&encoder, Source::F32(&short), 0, planes, &on(Isa::Scalar)).is_err());
    }
    let dispatch = Dispatch { isa: None, threads: Some(0) };
    let zero = encode(
        FormatId::Q4G64Fp16,
        EncoderId::GroupedAbsmax,
        1,
        64,
        Source::F32(&[0.0; 64]),
        Params::default(),
        &dispatch,
    );
    assert_eq!(zero.unwrap_err(), OpError::ZeroThreads);
}

/// `nvfp4`: every token, any threads, any source, tiles apart; the reference's refusals.
#[test]
fn nvfp4_is_that_of_the_reference() {
    let mut random = Random(99);
    for (n, k) in [(128, 64), (384, 320), (256, 576)] {
        let x: Vec<f32> = matrix(&mut random, n, k).iter().map(|v| v.clamp(-1e6, 1e6)).collect();
        let wide: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        for method in [EncoderId::Nvfp4Maxabs, EncoderId::Nvfp4Search] {
            let spec = method.spec();
            let importances = if spec.importance { importances(&mut random, k) } else { vec![None] };
            for importance in &importances {
                let params = Params { importance: importance.as_deref(), negative_scales: false };
                let expected = encoder::encode(FormatId::Nvfp4, method, n, k, &x, params).unwrap();
                for isa in available() {
                    if !OWN.contains(&isa) && n > 128 {
                        continue;
                    }
                    // The other source with one count of threads: what it is does not depend on them.
                    let (single, double) = (Source::F32(&x), Source::F64(&wide));
                    for (threads, source) in [(1, single), (2, single), (2, double), (5, single)] {
                        let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                        let (payload, ran) =
                            encode(FormatId::Nvfp4, method, n, k, source, params, &dispatch).unwrap();
                        assert!(!OWN.contains(&isa) || ran.kernel == isa);
                        assert_eq!(ran.parts, threads.min(n / 128));
                        assert!(payload == expected, "{isa} {method:?} {n}x{k} {params:?}");
                    }
                }
                let largest = nvfp4_largest(Source::F32(&x), k, 0, &Dispatch::default()).unwrap();
                let encoder = Nvfp4Encoder::new(method, k, divisor(largest), params).unwrap();
                let (mut codes, mut scales) = (vec![0; n * k / 2], vec![0; n * k / 16]);
                for t in (0..n).step_by(128) {
                    let source = Source::F32(&x[t * k..(t + 128) * k]);
                    let codes = &mut codes[t * k / 2..(t + 128) * k / 2];
                    let scales = &mut scales[t * k / 16..(t + 128) * k / 16];
                    encode_nvfp4_tiles(&encoder, source, t as u64, codes, scales, &Dispatch::default())
                        .unwrap();
                }
                assert!(
                    expected[..codes.len()] == codes
                        && expected[expected.len() - 4 - scales.len()..][..scales.len()] == scales
                );
            }
        }
    }
    let (n, k) = (384, 128);
    for (what, at) in [(f32::NAN, 300 * k + 5), (f32::INFINITY, 3)] {
        let mut x = vec![0.5f32; n * k];
        x[at] = what;
        x[383 * k] = what;
        let wide: Vec<f64> = (0..n * k).map(|i| if i == 260 * k + 3 { -1e300 } else { 1.0 }).collect();
        let method = EncoderId::Nvfp4Search;
        let expected = encoder::encode(FormatId::Nvfp4, method, n, k, &x, Params::default()).unwrap_err();
        for isa in available() {
            for threads in [1, 2, 5] {
                let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
                let run =
                    |source| encode(FormatId::Nvfp4, method, n, k, source, Params::default(), &dispatch);
                assert_eq!(run(Source::F32(&x)).unwrap_err(), OpError::Format(expected.clone()));
                let error = run(Source::F64(&wide)).unwrap_err().to_string();
                assert!(error.contains("row 260, column 3") && error.contains("1e300"), "{error}");
                // A divisor of another matrix: the first row whose scale does not fit.
                let encoder = Nvfp4Encoder::new(method, k, 2688.0, Params::default()).unwrap();
                let mut y = vec![0.5f32; n * k];
                (y[129 * k + 20], y[380 * k]) = (2.0, 2.0);
                let (mut codes, mut scales) = (vec![0; n * k / 2], vec![0; n * k / 16]);
                let source = Source::F32(&y);
                let error = encode_nvfp4_tiles(&encoder, source, 1000, &mut codes, &mut scales, &dispatch);
                assert!(error.unwrap_err().to_string().contains("row 1129, group 1"));
                let short = Source::F32(&y[..k]);
                assert!(encode_nvfp4_tiles(&encoder, short, 0, &mut codes, &mut scales, &dispatch).is_err());
                let source = Source::F32(&y);
                assert!(
                    encode_nvfp4_tiles(&encoder, source, 0, &mut codes[1..], &mut scales, &dispatch).is_err()
                );
            }
        }
    }
}
