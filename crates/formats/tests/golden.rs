//! Layouts and decoders against the golden cases, and views, slices and gathers against each other.

mod common;

use common::{Rng, bits, golden, hex, hex16, hex32, shape2};
use ninfer_formats::codec::Half;
use ninfer_formats::{
    FORMATS, FormatError, FormatId, Place, Scheme, TensorView, encoded_size, pack_grouped, pack_nvfp4,
    pack_row_scaled,
};

fn decode(format: FormatId, n: usize, k: usize, d: usize, payload: &[u8]) -> Vec<u32> {
    let view = TensorView::new(format, &[n as u64, k as u64], d as u64, payload).expect("view");
    let mut out = vec![f32::NAN; n * k];
    view.decode_f32(&mut out).expect("decode");
    bits(&out)
}

#[test]
fn row_split_golden() {
    let g = golden("row_split");
    let cases = g["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 24);
    for c in cases {
        let format = FormatId::from_name(c["format"].as_str().expect("format")).expect("registered");
        let (n, k) = shape2(c);
        let codes: Vec<i8> = hex(c, "codes_i8").iter().map(|&b| b as i8).collect();
        let scales = hex16(c, "scales_u16");
        let payload = hex(c, "payload");
        assert_eq!(pack_grouped(format, n, k, &codes, &scales).expect("pack"), payload, "{format} {n}x{k}");
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).expect("view");
        let words = view.grouped_words().expect("words");
        assert_eq!((words.codes, words.scales), (codes, scales), "{format} {n}x{k}");
        assert_eq!(decode(format, n, k, 1, &payload), hex32(c, "f32"), "{format} {n}x{k}");
    }
}

#[test]
fn nvfp4_golden() {
    let g = golden("nvfp4");
    let cases = g["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for c in cases {
        let (n, k) = shape2(c);
        let (codes, scales, divisors) =
            (hex(c, "codes_packed"), hex(c, "scales_e4m3"), hex32(c, "divisors_f32"));
        let payload = hex(c, "payload");
        assert_eq!(pack_nvfp4(FormatId::Nvfp4, n, k, &codes, &scales, &divisors).expect("pack"), payload);
        let view = TensorView::new(FormatId::Nvfp4, &[n as u64, k as u64], divisors.len() as u64, &payload)
            .expect("view");
        view.validate().expect("golden words are valid");
        let words = view.nvfp4_words().expect("words");
        assert_eq!((words.codes, words.scales, words.divisors), (codes, scales, divisors.clone()));
        assert_eq!(decode(FormatId::Nvfp4, n, k, divisors.len(), &payload), hex32(c, "f32"));
    }
}

#[test]
fn fp8_rows_golden() {
    let g = golden("encoders");
    let mut seen = 0;
    for c in g["cases"].as_array().expect("cases") {
        if c["method"] != "fp8_row_maxabs" {
            continue;
        }
        let format = FormatId::from_name(c["format"].as_str().expect("format")).expect("registered");
        let (n, k) = shape2(c);
        let (codes, scales, payload) = (hex(c, "codes_u8"), hex16(c, "scales_u16"), hex(c, "payload"));
        assert_eq!(pack_row_scaled(format, n, k, &codes, &scales).expect("pack"), payload);
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).expect("view");
        let words = view.row_scaled_words().expect("words");
        assert_eq!((words.codes, words.scales), (codes, scales));
        assert_eq!(decode(format, n, k, 1, &payload), hex32(c, "f32"));
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn nibble_order_and_negative_scales() {
    // The same 32 bytes 0xF0 that give q4_0 two constant halves give q4_g64 alternating values.
    let codes: Vec<i8> = (0..64).map(|i| if i % 2 == 0 { 0 } else { -1 }).collect();
    let p = pack_grouped(FormatId::Q4G64Fp16, 1, 64, &codes, &[0xb800]).expect("pack");
    assert_eq!(p[..32], [0xf0; 32]);
    let out = decode(FormatId::Q4G64Fp16, 1, 64, 1, &p);
    for (i, w) in out.iter().enumerate() {
        assert_eq!(*w, if i % 2 == 0 { (-0.0f32).to_bits() } else { 0.5f32.to_bits() });
    }
    // A negative scale multiplies: all sixteen codes.
    let codes: Vec<i8> = (0..64).map(|i| (i % 16) as i8 - 8).collect();
    let p = pack_grouped(FormatId::Q4G64Fp16, 1, 64, &codes, &[0xb800]).expect("pack");
    for (w, q) in decode(FormatId::Q4G64Fp16, 1, 64, 1, &p).iter().zip(&codes) {
        assert_eq!(*w, (-0.5 * f32::from(*q)).to_bits());
    }
}

#[test]
fn nvfp4_scale_offsets() {
    let (n, k) = (256usize, 128usize);
    for (row, group, byte) in [(33, 5, 533), (129, 7, 1555), (255, 0, 1532)] {
        let mut scales = vec![0u8; n * k / 16];
        scales[row * (k / 16) + group] = 0x38;
        let p = pack_nvfp4(FormatId::Nvfp4, n, k, &vec![0x22; n * k / 2], &scales, &[1.0f32.to_bits()])
            .expect("pack");
        let plane = n * k / 2;
        assert_eq!(p[plane + byte], 0x38);
        assert_eq!(p[plane..p.len() - 4].iter().filter(|&&b| b != 0).count(), 1);
        let out = decode(FormatId::Nvfp4, n, k, 1, &p);
        for (i, w) in out.iter().enumerate() {
            let hit = i / k == row && i % k / 16 == group;
            assert_eq!(f32::from_bits(*w), if hit { 1.0 } else { 0.0 }, "element {i}");
        }
    }
}

/// A shape every format accepts, with an odd number of rows where the layout allows it.
fn shape_for(format: FormatId) -> (usize, usize, usize) {
    match format.scheme() {
        Scheme::Nvfp4 => (512, 64, 2),
        Scheme::Gguf(kind) => (5, 3 * kind.values(), 1),
        Scheme::Grouped(_) => (5, 130, 1),
        _ => (5, 37, 1),
    }
}

#[test]
fn slices_and_gathers_equal_the_rows_of_the_whole() {
    let mut rng = Rng(7);
    for f in &FORMATS {
        let (n, k, d) = shape_for(f.id);
        let bytes = encoded_size(f.id, &[n as u64, k as u64], d as u64).expect("size") as usize;
        let payload = rng.bytes(bytes);
        let view = TensorView::new(f.id, &[n as u64, k as u64], d as u64, &payload).expect("view");
        let rows_of = |v: &TensorView<'_>| -> Vec<String> {
            (0..v.rows()).map(|r| format!("{:?}", row_words(v, r))).collect()
        };
        let whole = rows_of(&view);
        let (ranges, picks): (Vec<(usize, usize)>, Vec<Vec<usize>>) = if f.id == FormatId::Nvfp4 {
            let tiles = |t: &[usize]| t.iter().flat_map(|&t| t * 128..(t + 1) * 128).collect::<Vec<_>>();
            (
                vec![(0, 128), (128, 384), (256, 512), (0, 512)],
                vec![tiles(&[3, 0, 3]), tiles(&[0, 1]), tiles(&[1, 2])],
            )
        } else {
            (vec![(0, 1), (1, 4), (4, 5), (0, 5)], vec![vec![3, 1, 3], vec![0], vec![4, 4, 4, 4, 4, 4, 4]])
        };
        for (a, b) in ranges {
            let part = view.row_range(a, b).expect("range");
            assert_eq!(rows_of(&part), whole[a..b], "{} view {a}..{b}", f.name);
            let (fresh, d) = part.slice_payload().expect("slice");
            let again =
                TensorView::new(f.id, &[(b - a) as u64, k as u64], d as u64, &fresh).expect("fresh view");
            assert_eq!(rows_of(&again), whole[a..b], "{} slice {a}..{b}", f.name);
            if (a, b) == (0, n) {
                assert_eq!(d, view.divisors());
            }
            // The spans are where those rows are.
            let spans: usize = part.spans().expect("spans").iter().map(ExactSizeIterator::len).sum();
            let per_row = match f.scheme {
                Scheme::Nvfp4 => k / 2 + k / 16,
                Scheme::RowScaled(_) => k + 2,
                Scheme::Grouped(s) => k.next_multiple_of(128) / s.group * (s.base_bytes + s.high_bytes + 2),
                Scheme::Direct(kind) => k * kind.word_bytes(),
                Scheme::Gguf(kind) => k / kind.values() * kind.bytes(),
            };
            assert_eq!(spans, (b - a) * per_row);
        }
        for pick in picks {
            let (fresh, d) = view.gather_payload(&pick).expect("gather");
            let again =
                TensorView::new(f.id, &[pick.len() as u64, k as u64], d as u64, &fresh).expect("fresh view");
            let expected: Vec<String> = pick.iter().map(|&r| whole[r].clone()).collect();
            assert_eq!(rows_of(&again), expected, "{} gather {pick:?}", f.name);
        }
        assert!(matches!(view.gather_payload(&[n]), Err(FormatError::RowRange { .. })));
        assert!(matches!(view.gather_payload(&[]), Err(FormatError::Unsupported { .. })));
        assert!(view.row_range(2, 1).is_err() && view.row_range(0, n + 1).is_err());
    }
}

/// All words of one row, padding included, in a comparable form.
fn row_words(v: &TensorView<'_>, r: usize) -> (Vec<u8>, Vec<u8>, Vec<u8>, u32) {
    use ninfer_formats::RowParts as P;
    match v.row(r) {
        P::Direct { bytes, .. } | P::Blocks { blocks: bytes, .. } => (bytes.to_vec(), vec![], vec![], 0),
        P::Grouped { base, high, scales, .. } => (base.to_vec(), high.to_vec(), scales.to_vec(), 0),
        P::Nvfp4 { codes, scales, divisor } => {
            (codes.to_vec(), (0..scales.len()).map(|g| scales.word(g)).collect(), vec![], divisor)
        }
        P::RowScaled { codes, scale, .. } => (codes.to_vec(), vec![], vec![], u32::from(scale)),
    }
}

#[test]
fn nvfp4_slices_keep_each_source_divisor() {
    let (n, k) = (512usize, 64usize);
    let d: Vec<u32> = [1.0f32, 2.0].map(f32::to_bits).to_vec();
    let p =
        pack_nvfp4(FormatId::Nvfp4, n, k, &vec![0x21; n * k / 2], &vec![0x38; n * k / 16], &d).expect("pack");
    let view = TensorView::new(FormatId::Nvfp4, &[512, 64], 2, &p).expect("view");
    // Rows 128..384 straddle both sources: one divisor per tile.
    let part = view.row_range(128, 384).expect("range");
    assert_eq!(part.slice_payload().expect("slice").1, 2);
    assert_eq!(part.nvfp4_words().expect("words").divisors, d);
    assert_eq!(view.row_range(0, 256).expect("range").nvfp4_words().expect("words").divisors, d[..1]);
    // Off the tiles.
    for (a, b) in [(0, 64), (64, 192)] {
        assert!(matches!(
            view.row_range(a, b).expect("range").slice_payload(),
            Err(FormatError::Unsupported { .. })
        ));
    }
    let mut rows: Vec<usize> = (0..128).collect();
    rows.swap(5, 6);
    assert!(matches!(view.gather_payload(&rows), Err(FormatError::Unsupported { .. })));
}

#[test]
fn half_decoding_rounds_the_real_value_once() {
    // A quotient so close to a tie of binary16 that its binary32 rounding is the tie: rounding through binary32 would
    // send it to the even neighbour, the real quotient says which side it lies on.
    let (n, k) = (128usize, 64usize);
    let (c, s) = (3.0f64, 1.0f64);
    let mut pinned = false;
    for m in 1024..2048u32 {
        // Tie between two binary16 numbers in [1, 2): (2m + 1) / 2048.
        let tie = f64::from(2 * m + 1) / 2048.0;
        let d = (c * s / tie) as f32;
        let q = c * s / f64::from(d);
        if q as f32 == tie as f32 && q != tie {
            let p = pack_nvfp4(
                FormatId::Nvfp4,
                n,
                k,
                &vec![0x55; n * k / 2],
                &vec![0x38; n * k / 16],
                &[d.to_bits()],
            )
            .expect("pack");
            let view = TensorView::new(FormatId::Nvfp4, &[128, 64], 1, &p).expect("view");
            let mut halves = vec![0u16; n * k];
            view.decode_half(Half::Binary16, &mut halves).expect("decode");
            let upper = q > tie;
            let word = 0x3c00 + (m - 1024) as u16 + u16::from(upper);
            assert_eq!(halves[0], word, "tie {tie}, divisor {d}");
            pinned = true;
        }
    }
    assert!(pinned, "no divisor puts a quotient on a binary32 tie: the test tests nothing");
}

#[test]
fn half_decoding_never_writes_infinity_for_a_finite_value() {
    let words: Vec<u8> =
        [1.0f32, 65519.0, 65520.0, f32::INFINITY].iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(FormatId::Fp32, &[2, 2], 1, &words).expect("view");
    let mut out = [0u16; 4];
    let e = view.decode_half(Half::Binary16, &mut out).expect_err("overflow");
    assert!(matches!(e, FormatError::HalfOverflow { row: 1, column: 0, .. }), "{e}");
    assert!(e.to_string().contains("6.552e4"), "{e}");
    view.decode_half(Half::Bfloat16, &mut out).expect("bfloat16 has the range");
    assert_eq!(out, [0x3f80, 0x4780, 0x4780, 0x7f80]);
    let max = f32::MAX.to_le_bytes();
    let view = TensorView::new(FormatId::Fp32, &[1, 1], 1, &max).expect("view");
    assert!(view.decode_half(Half::Bfloat16, &mut out[..1]).is_err());
}

#[test]
fn integers_decode_to_integers_only() {
    let words: Vec<u8> = [i32::MIN, -1, 0, i32::MAX].iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(FormatId::Int32, &[4], 1, &words).expect("view");
    let mut out = [0i32; 4];
    view.decode_i32(&mut out).expect("decode");
    assert_eq!(out, [i32::MIN, -1, 0, i32::MAX]);
    assert!(view.decode_f32(&mut [0.0; 4]).expect_err("refused").to_string().contains("int32"));
    assert!(matches!(
        view.decode_i32(&mut [0; 3]),
        Err(FormatError::BufferSize { expected: 4, actual: 3, .. })
    ));
    let view = TensorView::new(FormatId::Fp32, &[4], 1, &words).expect("view");
    assert!(view.decode_i32(&mut out).is_err());
    assert!(matches!(view.decode_f32(&mut [0.0; 5]), Err(FormatError::BufferSize { .. })));
}

#[test]
fn direct_words_survive_bit_for_bit() {
    let words =
        [0u32, 0x8000_0000, 1, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7fc1_2345, 0xffff_ffff, 0x0080_0000];
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    for shape in [&[9][..], &[3, 3], &[1, 9, 1]] {
        let view = TensorView::new(FormatId::Fp32, shape, 1, &bytes).expect("view");
        let mut out = [0.0f32; 9];
        view.decode_f32(&mut out).expect("decode");
        assert_eq!(bits(&out), words);
    }
    let scalar = TensorView::new(FormatId::Bf16, &[], 1, &[0x80, 0x3f]).expect("scalar");
    let mut out = [0.0f32];
    scalar.decode_f32(&mut out).expect("decode");
    assert_eq!(out, [1.0]);
    // Words at an odd address: nothing is cast to an aligned pointer.
    let mut shifted = vec![0u8];
    shifted.extend_from_slice(&bytes);
    let view = TensorView::new(FormatId::Fp32, &[9], 1, &shifted[1..]).expect("view");
    let mut out = [0.0f32; 9];
    view.decode_f32(&mut out).expect("decode");
    assert_eq!(bits(&out), words);
}

#[test]
fn payloads_have_exactly_the_encoded_size() {
    for f in &FORMATS {
        let (n, k, d) = shape_for(f.id);
        let shape = [n as u64, k as u64];
        let bytes = encoded_size(f.id, &shape, d as u64).expect("size") as usize;
        for len in [0, bytes - 1, bytes + 1] {
            let e = TensorView::new(f.id, &shape, d as u64, &vec![1; len]).expect_err("refused");
            let text = e.to_string();
            assert!(text.contains(&bytes.to_string()) && text.contains(&len.to_string()), "{text}");
        }
    }
}

#[test]
fn pack_refuses_codes_outside_the_interval() {
    for (name, bad) in [
        ("q2_g64_fp16", 3i8),
        ("t2_g128_fp16", -2),
        ("q4_g64_fp16", 8),
        ("q5_g64_fp16", -17),
        ("q6_g64_fp16", 32),
        ("q8_g32_fp16", -128),
    ] {
        let format = FormatId::from_name(name).expect("registered");
        let Scheme::Grouped(s) = format.scheme() else { panic!("grouped") };
        let (n, k) = (3usize, 130usize);
        let mut codes = vec![1i8; n * k];
        codes[2 * k + 129] = bad;
        let e =
            pack_grouped(format, n, k, &codes, &vec![0x3c00; n * k.div_ceil(s.group)]).expect_err("refused");
        let FormatError::Invalid { violation, .. } = &e else { panic!("{e}") };
        assert_eq!(violation.place, Place::Column { row: 2, column: 129 });
        assert!(pack_grouped(format, n, k, &codes[1..], &[]).is_err());
    }
}

/// A payload beyond any address space is an error; the process goes on.
#[test]
fn memory_that_cannot_be_had_is_an_error() {
    let k = 1 << 24;
    let payload = vec![0u8; 2 * k];
    let view = TensorView::new(FormatId::Bf16, &[1, k as u64], 1, &payload).unwrap();
    let error = view.gather_payload(&vec![0; 1 << 23]).unwrap_err();
    if usize::BITS < 64 {
        assert!(matches!(error, FormatError::SizeOverflow { .. }), "{error}");
    } else {
        assert_eq!(error, FormatError::Memory { bytes: 1 << 48 });
    }
}
