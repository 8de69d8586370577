//! `import_encoded`: words arrive unchanged, and what a target does not admit is refused by place.

mod common;

use common::Rng;
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::import::{
    BlockImport, Fp8Scales, Nvfp4Global, Nvfp4Source, import_blocks, import_fp8, import_nvfp4,
};
use ninfer_formats::{FORMATS, FormatError, FormatId, Place, Scheme, TensorView, encoded_size};

fn view<'a>(format: FormatId, n: usize, k: usize, payload: &'a [u8]) -> TensorView<'a> {
    let view = TensorView::new(format, &[n as u64, k as u64], 1, payload).expect("view");
    view.validate().expect("an import holds only valid words and canonical padding");
    view
}

fn refusal<T: std::fmt::Debug>(result: Result<T, FormatError>) -> (Place, String) {
    match result {
        Err(FormatError::Refused { place, rule, method: "import_encoded", .. }) => (place, rule),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Blocks with a scale at `scale_at`, other bytes random.
fn blocks(rng: &mut Rng, count: usize, bytes: usize, scale_at: usize) -> Vec<u8> {
    let mut out = rng.bytes(count * bytes);
    for block in out.chunks_exact_mut(bytes) {
        // Finite, either sign, not zero.
        let word = (1 + rng.below(0x7bff)) as u16 | (rng.below(2) as u16) << 15;
        block[scale_at..scale_at + 2].copy_from_slice(&word.to_le_bytes());
    }
    out
}

#[test]
fn gguf_rows_are_copied() {
    let mut rng = Rng(1);
    for spec in &FORMATS {
        let Scheme::Gguf(kind) = spec.scheme else { continue };
        let (n, k) = (3, 2 * kind.values());
        let source = rng.bytes(n * 2 * kind.bytes());
        let payload = import_blocks(spec.id, kind.ggml_type(), n, k, &source, None).expect("imports");
        assert_eq!(payload, source);
        let gathered =
            import_blocks(spec.id, kind.ggml_type(), n, k, &source, Some(&[2, 0, 2, 2])).expect("imports");
        let row = |r: usize| source[r * 2 * kind.bytes()..(r + 1) * 2 * kind.bytes()].to_vec();
        assert_eq!(gathered, [row(2), row(0), row(2), row(2)].concat());
        // Another type, a row length off the block, a row outside, no rows, missing bytes.
        for other in FORMATS.iter().filter_map(|f| f.id.ggml_type()).chain([0, 142, 143, u32::MAX]) {
            let result = import_blocks(spec.id, other, n, k, &source, None);
            assert_eq!(result.is_ok(), other == kind.ggml_type(), "{} from {other}", spec.name);
        }
        let text =
            import_blocks(spec.id, kind.ggml_type(), n, k + 1, &source, None).expect_err("k").to_string();
        assert!(text.contains(&format!("{} is not a multiple of {}", k + 1, kind.values())), "{text}");
        assert!(import_blocks(spec.id, kind.ggml_type(), n, k, &source, Some(&[3])).is_err());
        assert!(import_blocks(spec.id, kind.ggml_type(), n, k, &source, Some(&[])).is_err());
        assert!(import_blocks(spec.id, kind.ggml_type(), n, k, &source[1..], None).is_err());
    }
}

/// Same values before and after: the ggml decoder against the grouped one, K a multiple of 128 and not.
#[test]
fn q2_and_q8_keep_values() {
    let mut rng = Rng(2);
    for (format, source_format, g, bytes) in
        [(FormatId::Q2G64Fp16, FormatId::GgufQ2_0, 64, 18), (FormatId::Q8G32Fp16, FormatId::GgufQ8_0, 32, 34)]
    {
        for groups in [1, 2, 3, 4, 5, 8] {
            let (n, k) = (5, groups * g);
            let mut source = blocks(&mut rng, n * groups, bytes, 0);
            for block in source.chunks_exact_mut(bytes) {
                if format == FormatId::Q8G32Fp16 {
                    block[2..].iter_mut().filter(|b| **b == 0x80).for_each(|b| *b = 0x81);
                }
            }
            if format == FormatId::Q2G64Fp16 {
                // Both zeros and subnormals stay as they are.
                for (i, word) in [0x8000u16, 0x0000, 0x0001, 0x83ff].into_iter().enumerate() {
                    source[i * bytes..i * bytes + 2].copy_from_slice(&word.to_le_bytes());
                }
            }
            let ggml = source_format.ggml_type().expect("a ggml type");
            let payload = import_blocks(format, ggml, n, k, &source, None).expect("imports");
            let native = view(format, n, k, &payload);
            let mut expected = vec![0.0f32; n * k];
            let mut found = vec![0.0f32; n * k];
            view(source_format, n, k, &source).decode_f32(&mut expected).expect("decodes");
            native.decode_f32(&mut found).expect("decodes");
            assert!(common::bits(&expected) == common::bits(&found), "{format} {groups}");
            let words = native.grouped_words().expect("words");
            let scales: Vec<u16> =
                source.chunks_exact(bytes).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            assert_eq!(words.scales, scales);
        }
    }
}

#[test]
fn q2_and_q8_refuse_what_the_formats_refuse() {
    let mut rng = Rng(3);
    let q2 = blocks(&mut rng, 2 * 3, 18, 0);
    for bad in [0x7c00u16, 0xfc00, 0x7e00, 0xffff] {
        let mut source = q2.clone();
        source[4 * 18..4 * 18 + 2].copy_from_slice(&bad.to_le_bytes());
        let (place, rule) = refusal(import_blocks(FormatId::Q2G64Fp16, 42, 2, 192, &source, None));
        assert_eq!(place, Place::Group { row: 1, group: 1 });
        assert!(rule.contains("finite"), "{rule}");
    }
    let mut q8 = blocks(&mut rng, 2 * 3, 34, 0);
    q8.chunks_exact_mut(34).for_each(|b| b[2..].iter_mut().for_each(|c| *c &= 0x7f));
    let with = |edit: &dyn Fn(&mut [u8])| {
        let mut source = q8.clone();
        edit(&mut source[5 * 34..]);
        import_blocks(FormatId::Q8G32Fp16, 8, 2, 96, &source, None)
    };
    let at = Place::Group { row: 1, group: 2 };
    for (edit, part) in [
        (&(|b: &mut [u8]| b[2 + 7] = 0x80) as &dyn Fn(&mut [u8]), "column 71 is -128"),
        (&|b: &mut [u8]| b[..2].copy_from_slice(&[0x00, 0x80]), "negative zero"),
        (&|b: &mut [u8]| b[..2].copy_from_slice(&[0x00, 0x7c]), "not finite"),
        (&|b: &mut [u8]| b[..2].copy_from_slice(&[0x01, 0xfe]), "not finite"),
        (&|b: &mut [u8]| b[..2].copy_from_slice(&[0x00, 0x00]), "zero scale"),
    ] {
        let (place, rule) = refusal(with(edit));
        assert_eq!(place, at);
        assert!(rule.contains(part), "{rule}");
    }
    // A zero scale with zero codes is fine; a gather names the source's row.
    assert!(with(&|b| b.fill(0)).is_ok());
    let mut source = q8.clone();
    source[5 * 34 + 1] = 0x7c;
    let result = import_blocks(FormatId::Q8G32Fp16, 8, 2, 96, &source, Some(&[0, 1]));
    assert_eq!(refusal(result).0, at);
    assert!(import_blocks(FormatId::Q8G32Fp16, 8, 2, 96, &source, Some(&[0, 0])).is_ok());
    // Row-wise import names rows from its own start.
    let import = BlockImport::new(FormatId::Q8G32Fp16, 8, 96).expect("import");
    let mut payload = vec![0u8; encoded_size(FormatId::Q8G32Fp16, &[2, 96], 1).expect("size") as usize];
    let mut planes = RowPlanes::of_payload(FormatId::Q8G32Fp16, 2, 96, &mut payload).expect("planes");
    assert_eq!(refusal(import.import_rows(&source, 40, &mut planes)).0, Place::Group { row: 41, group: 2 });
}

/// Ternary blocks against a reading that takes one digit at a time.
#[test]
fn ternary_blocks() {
    let mut rng = Rng(4);
    let (n, groups) = (4, 3);
    let k = groups * 128;
    // PQ2_0: random trits, packed here.
    let trits: Vec<i8> = (0..n * k).map(|_| rng.below(3) as i8 - 1).collect();
    let mut pq2 = blocks(&mut rng, n * groups, 34, 0);
    for (block, trits) in pq2.chunks_exact_mut(34).zip(trits.chunks_exact(128)) {
        for (byte, t) in block[2..].iter_mut().zip(trits.chunks_exact(4)) {
            *byte = (0..4).map(|i| ((t[i] + 1) as u8) << (2 * i)).sum();
        }
    }
    let payload = import_blocks(FormatId::T2G128Fp16, 142, n, k, &pq2, None).expect("imports");
    let words = view(FormatId::T2G128Fp16, n, k, &payload).grouped_words().expect("words");
    assert_eq!(words.codes, trits);
    let scales: Vec<u16> = pq2.chunks_exact(34).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(words.scales, scales);
    let mut bad = pq2.clone();
    bad[7 * 34 + 2 + 9] |= 3 << 4;
    let (place, rule) = refusal(import_blocks(FormatId::T2G128Fp16, 142, n, k, &bad, None));
    assert_eq!(place, Place::Group { row: 2, group: 1 });
    assert!(rule.contains("word 3 at column 166"), "{rule}");

    // PTQ1_0: any byte is legal; the digit of position i by the written rule.
    let ptq1 = blocks(&mut rng, n * groups, 28, 26);
    let payload = import_blocks(FormatId::T2G128Fp16, 143, n, k, &ptq1, None).expect("imports");
    let words = view(FormatId::T2G128Fp16, n, k, &payload).grouped_words().expect("words");
    for (block, codes) in ptq1.chunks_exact(28).zip(words.codes.chunks_exact(128)) {
        for (i, &q) in codes.iter().enumerate() {
            let (byte, t) = match i {
                0..80 => (i % 16, i / 16),
                80..120 => (16 + (i - 80) % 8, (i - 80) / 8),
                _ => (24 + (i - 120) % 2, (i - 120) / 2),
            };
            let shifted = u32::from(block[byte]) * 3u32.pow(t as u32) % 256;
            assert_eq!(i32::from(q), (shifted * 3 / 256) as i32 - 1);
        }
    }
    for (ggml, bytes, at) in [(142, 34, 0), (143, 28, 26)] {
        for (word, part) in [(0x7c00u16, "finite"), (0x8000, "negative zero"), (0x0000, "zero scale")] {
            let mut source = if ggml == 142 { pq2.clone() } else { ptq1.clone() };
            source[bytes + at..bytes + at + 2].copy_from_slice(&word.to_le_bytes());
            let (place, rule) = refusal(import_blocks(FormatId::T2G128Fp16, ggml, n, k, &source, None));
            assert_eq!(place, Place::Group { row: 0, group: 1 });
            assert!(rule.contains(part), "{rule}");
        }
        assert!(import_blocks(FormatId::T2G128Fp16, ggml, 1, 64, &[0; 34], None).is_err());
    }
}

#[test]
fn fp8_rows() {
    let (n, k) = (5, 7);
    let mut rng = Rng(6);
    let codes: Vec<u8> =
        rng.bytes(n * k).iter().map(|&c| if c & 0x7f == 0x7f { c & 0x80 } else { c }).collect();
    let words: Vec<u16> = (0..n).map(|_| rng.below(0x7f80) as u16 | 1).collect();
    let read =
        |payload: &[u8]| view(FormatId::Fp8E4m3fnRowBf16, n, k, payload).row_scaled_words().expect("words");
    for shape in [&[5u64][..], &[5, 1]] {
        let found = read(&import_fp8(n, k, &codes, Fp8Scales::Bf16(&words), shape).expect("imports"));
        assert_eq!((found.codes, found.scales), (codes.clone(), words.clone()));
    }
    for shape in [&[][..], &[1], &[1, 1]] {
        let found = read(&import_fp8(n, k, &codes, Fp8Scales::Bf16(&[0x3f80]), shape).expect("imports"));
        assert_eq!(found.scales, [0x3f80; 5]);
        // binary32 rounds once, nearest-even: the tie 1 + 2^-8 goes down, 1 + 3 * 2^-8 up.
        for (v, word) in [(1.0 + 2f32.powi(-8), 0x3f80), (1.0 + 3.0 * 2f32.powi(-8), 0x3f82), (1e-3, 0x3a83)]
        {
            let found = read(&import_fp8(n, k, &codes, Fp8Scales::F32(&[v]), shape).expect("imports"));
            assert_eq!(found.scales, [word; 5]);
        }
    }
    for shape in [&[5u64, 2][..], &[1, 5], &[7], &[0], &[5, 1, 1], &[5, 7]] {
        let text = import_fp8(n, k, &codes, Fp8Scales::Bf16(&words), shape).expect_err("shape").to_string();
        assert!(text.contains("the scale tensor has shape"), "{text}");
    }
    assert!(import_fp8(n, k, &codes, Fp8Scales::Bf16(&words[1..]), &[5]).is_err());
    assert!(import_fp8(n, k, &codes[1..], Fp8Scales::Bf16(&words), &[5]).is_err());

    let mut scales = [1.0f32; 5];
    for (v, part) in [
        (f32::NAN, "not finite"),
        (f32::INFINITY, "not finite"),
        (-1.0, "negative"),
        (-0.0, "negative"),
        (f32::MAX, "rounds to bfloat16 infinity"),
    ] {
        scales[3] = v;
        let (place, rule) = refusal(import_fp8(n, k, &codes, Fp8Scales::F32(&scales), &[5]));
        assert_eq!(place, Place::Row { row: 3 });
        assert!(rule.contains(part), "{rule}");
    }
    for (word, part) in
        [(0x7f80u16, "not finite"), (0x7fc0, "not finite"), (0x8001, "negative"), (0x8000, "negative")]
    {
        let mut words = words.clone();
        words[2] = word;
        let (place, rule) = refusal(import_fp8(n, k, &codes, Fp8Scales::Bf16(&words), &[5]));
        assert_eq!(place, Place::Row { row: 2 });
        assert!(rule.contains(part), "{rule}");
    }
    for nan in [0x7f, 0xff] {
        let mut codes = codes.clone();
        codes[4 * k + 6] = nan;
        let (place, rule) = refusal(import_fp8(n, k, &codes, Fp8Scales::Bf16(&words), &[5]));
        assert_eq!(place, Place::Column { row: 4, column: 6 });
        assert!(rule.contains("NaN"), "{rule}");
    }
    // A zero scale, or one that rounds to zero, admits zero codes of either sign only.
    let mut codes = codes.clone();
    codes[k..2 * k].copy_from_slice(&[0, 0x80, 0, 0x80, 0, 0, 0]);
    for zero in [0.0, f32::from_bits(0x0000_7fff)] {
        let mut scales = [1.0f32; 5];
        scales[1] = zero;
        assert!(import_fp8(n, k, &codes, Fp8Scales::F32(&scales), &[5]).is_ok());
        let mut bad = codes.clone();
        bad[k + 5] = 0x81;
        let (place, rule) = refusal(import_fp8(n, k, &bad, Fp8Scales::F32(&scales), &[5]));
        assert_eq!(place, Place::Column { row: 1, column: 5 });
        assert!(rule.contains("zero"), "{rule}");
    }
}

#[test]
fn nvfp4_sources() {
    let (n, k) = (256, 128);
    let mut rng = Rng(7);
    let codes = rng.bytes(n * k / 2);
    let scales: Vec<u8> = (0..n * k / 16).map(|_| rng.below(0x7f) as u8).collect();
    let codes_shape = [n as u64, k as u64 / 2];
    let scales_shape = [n as u64, k as u64 / 16];
    let source = |global| Nvfp4Source {
        codes: &codes,
        codes_shape: &codes_shape,
        scales: &scales,
        scales_shape: &scales_shape,
        global,
    };
    let one = source(Nvfp4Global::Divisor(448.0));
    let (payload, rows) = import_nvfp4(&[one]).expect("imports");
    assert_eq!(rows, n);
    let words = view(FormatId::Nvfp4, n, k, &payload).nvfp4_words().expect("words");
    assert_eq!((&words.codes, &words.scales), (&codes, &scales));
    assert_eq!(words.divisors, [448.0f32.to_bits()]);

    // FR-49: one scale byte at a time sits where the swizzle says, and twice is not once.
    let plane = n * k / 2;
    for (row, g, at) in [(33, 5, 533), (129, 7, 1555), (255, 0, 1532)] {
        let mut single = vec![0u8; n * k / 16];
        single[row * k / 16 + g] = 0x38;
        let (payload, _) = import_nvfp4(&[Nvfp4Source { scales: &single, ..one }]).expect("imports");
        let plane = &payload[plane..plane + single.len()];
        assert_eq!(plane.iter().position(|&b| b != 0), Some(at));
        assert_eq!(plane.iter().filter(|&&b| b != 0).count(), 1);
    }
    let swizzled = payload[plane..plane + scales.len()].to_vec();
    assert_ne!(swizzled, scales);
    let mut tiles = vec![0u8; scales.len()];
    for (natural, tile) in scales.chunks_exact(8 * k).zip(tiles.chunks_exact_mut(8 * k)) {
        ninfer_formats::import::nvfp4::swizzle_tile(natural, k, tile).expect("tile");
    }
    assert_eq!(tiles, swizzled);
    let (twice, _) = import_nvfp4(&[Nvfp4Source { scales: &swizzled, ..one }]).expect("imports");
    assert_ne!(twice[plane..plane + scales.len()], swizzled);
    let flat = [scales.len() as u64];
    let text = import_nvfp4(&[Nvfp4Source { scales_shape: &flat, ..one }]).expect_err("flat").to_string();
    assert!(text.contains("swizzled"), "{text}");

    // Stacked sources keep a divisor each; a multiplier stores f32(1/v).
    let three = source(Nvfp4Global::Multiplier(3.0));
    let (payload, rows) = import_nvfp4(&[one, three]).expect("imports");
    assert_eq!(rows, 2 * n);
    let stacked = TensorView::new(FormatId::Nvfp4, &[2 * n as u64, k as u64], 2, &payload).expect("view");
    stacked.validate().expect("valid");
    let words = stacked.nvfp4_words().expect("words");
    assert_eq!(words.divisors, [448.0f32.to_bits(), (1.0f32 / 3.0).to_bits()]);
    assert_eq!(words.codes, [codes.clone(), codes.clone()].concat());
    assert_eq!(words.scales, [scales.clone(), scales.clone()].concat());

    // FR-50: shapes off the tile, scale columns other than K / 16.
    for (n, k) in [(130u64, 128u64), (128, 80), (0, 128), (128, 0)] {
        let bytes = vec![0u8; (n * k / 2) as usize];
        let text = import_nvfp4(&[Nvfp4Source {
            codes: &bytes,
            codes_shape: &[n, k / 2],
            scales: &bytes[..(n * k / 16) as usize],
            scales_shape: &[n, k / 16],
            ..one
        }])
        .expect_err("off the tile")
        .to_string();
        if n * k > 0 {
            assert!(text.contains("128") && text.contains("64"), "{text}");
        }
    }
    let text = import_nvfp4(&[Nvfp4Source { scales: &scales[..n * 4], scales_shape: &[n as u64, 4], ..one }])
        .expect_err("columns")
        .to_string();
    assert!(text.contains("[256, 4]") && text.contains("[256, 8]"), "{text}");

    // Values.
    for (bad, part) in [(0x7fu8, "NaN"), (0xff, "NaN"), (0x80, "negative"), (0xb8, "negative")] {
        let mut scales = scales.clone();
        scales[200 * 8 + 3] = bad;
        let (place, rule) = refusal(import_nvfp4(&[one, Nvfp4Source { scales: &scales, ..one }]));
        assert_eq!(place, Place::Group { row: n as u64 + 200, group: 3 });
        assert!(rule.contains(part), "{rule}");
    }
    for global in [
        Nvfp4Global::Divisor(0.0),
        Nvfp4Global::Divisor(-1.0),
        Nvfp4Global::Divisor(f32::NAN),
        Nvfp4Global::Multiplier(0.0),
        Nvfp4Global::Multiplier(f32::INFINITY),
        Nvfp4Global::Multiplier(-2.0),
        // Its reciprocal overflows.
        Nvfp4Global::Multiplier(f32::from_bits(1)),
    ] {
        let text = import_nvfp4(&[one, source(global)]).expect_err("global").to_string();
        assert!(text.contains("divisor 1"), "{text}");
    }
    assert!(import_nvfp4(&[]).is_err());
    let half = Nvfp4Source {
        codes: &codes[..codes.len() / 2],
        codes_shape: &[n as u64 / 2, k as u64 / 2],
        scales: &scales[..scales.len() / 2],
        scales_shape: &[n as u64 / 2, k as u64 / 16],
        ..one
    };
    let text = import_nvfp4(&[one, half]).expect_err("shapes").to_string();
    assert!(text.contains("source 1 is [128, 128]"), "{text}");
}
