//! GGUF files as a source of tensors.

mod common;

use common::Random;
use common::gguf::{source, write_gguf};
use ninfer_artifact::ArtifactErrorKind as K;
use ninfer_artifact::source::{self, Content, FloatType, IntegerType, OpenOptions, TensorSource};
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::{FORMATS, FormatId, TensorView, encoded_size};
use ninfer_gguf::{GgmlType, MetaValue};

fn open(path: &std::path::Path) -> Box<dyn TensorSource> {
    source::open(path, &OpenOptions::default()).unwrap()
}

/// A payload of `rows` of a tensor, imported in runs of `step` rows.
fn import(source: &dyn TensorSource, tensor: usize, format: FormatId, n: u64, k: u64, step: u64) -> Vec<u8> {
    let mut payload = vec![0; encoded_size(format, &[n, k], 1).unwrap() as usize];
    let mut rest = RowPlanes::of_payload(format, n as usize, k as usize, &mut payload).unwrap();
    let mut at = 0;
    while at < n {
        let end = n.min(at + step);
        let (mut head, tail) = rest.split_at((end - at) as usize);
        source.import_rows(tensor, format, at..end, &mut head).unwrap();
        rest = tail;
        at = end;
    }
    payload
}

#[test]
fn every_registered_block_type_reads_and_imports() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(3);
    let kinds: Vec<FormatId> = FORMATS.iter().map(|f| f.id).filter(|f| f.ggml_type().is_some()).collect();
    let tensors: Vec<_> = kinds
        .iter()
        .map(|f| source(&mut random, f.name(), GgmlType(f.ggml_type().unwrap()), &[512, 3, 2]))
        .collect();
    write_gguf(&path, &[("general.architecture", MetaValue::text("x"))], &tensors);
    let s = open(&path);
    assert_eq!(s.kind(), "gguf");
    assert_eq!(s.tensors().len(), 18);
    for (i, (format, (_, _, _, bytes))) in kinds.iter().zip(&tensors).enumerate() {
        let t = &s.tensors()[i];
        assert_eq!((t.rows(), t.k(), t.shape.as_slice()), (6, 512, &[2, 3, 512][..]));
        assert_eq!(s.find(format.name()), Some(i));
        assert_eq!(s.importable(i)[0], *format);
        assert!(t.content.is_quantized());
        let mut wanted = vec![0.0; 6 * 512];
        TensorView::new(*format, &[6, 512], 1, bytes).unwrap().decode_f32(&mut wanted).unwrap();
        for step in [1usize, 4, 6] {
            let mut values = vec![0.0; 6 * 512];
            for (c, out) in values.chunks_mut(step * 512).enumerate() {
                let rows = (c * step) as u64..(c * step + out.len() / 512) as u64;
                s.read_values(i, rows, out).unwrap();
            }
            assert!(
                values.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{format} by {step}"
            );
            assert_eq!(&import(&*s, i, *format, 6, 512, step as u64), bytes);
        }
    }
    s.check_unchanged().unwrap();
}

#[test]
fn plain_types_read_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(5);
    let f64s = [1.0f64, -0.1, 1e-50, f64::INFINITY, 3.4e38, f64::from_bits(0xfff0_1234_5678_9abc)];
    let ints = [i64::MIN, i64::MAX, -1, 0, 7, 1 << 40];
    let mut tensors = vec![
        source(&mut random, "f32", GgmlType::F32, &[3, 2]),
        source(&mut random, "f16", GgmlType::F16, &[3, 2]),
        source(&mut random, "bf16", GgmlType::BF16, &[3, 2]),
        source(&mut random, "f64", GgmlType(28), &[3, 2]),
        source(&mut random, "i8", GgmlType(24), &[3, 2]),
        source(&mut random, "i16", GgmlType(25), &[6]),
        source(&mut random, "i32", GgmlType(26), &[3, 2]),
        source(&mut random, "i64", GgmlType(27), &[3, 2]),
    ];
    tensors[3].3 = f64s.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensors[7].3 = ints.iter().flat_map(|x| x.to_le_bytes()).collect();
    write_gguf(&path, &[], &tensors);
    let s = open(&path);
    let values = |name: &str| {
        let mut out = [0.0f32; 6];
        let i = s.find(name).unwrap();
        s.read_values(i, 0..s.tensors()[i].rows(), &mut out).unwrap();
        out.map(f32::to_bits)
    };
    let words = |i: usize| tensors[i].3.clone();
    let f32s: Vec<u32> = words(0).as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    assert_eq!(values("f32").to_vec(), f32s);
    let halves: Vec<u16> = words(1).as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect();
    let wide: Vec<u32> = halves.iter().map(|&h| ninfer_formats::float::f16::to_f32_bits(h)).collect();
    assert_eq!(values("f16").to_vec(), wide);
    let brains: Vec<u32> =
        words(2).as_chunks::<2>().0.iter().map(|w| u32::from(u16::from_le_bytes(*w)) << 16).collect();
    assert_eq!(values("bf16").to_vec(), brains);
    let narrow = values("f64");
    assert_eq!(narrow[..5], [1.0, -0.1, 0.0, f32::INFINITY, 3.4e38].map(f32::to_bits));
    // Sign, quiet bit and the top payload bits of the NaN.
    assert_eq!(narrow[5], 0xffc0_0000 | (0x0_1234_5678_9abc_u64 >> 29) as u32);
    let integers = |name: &str| {
        let mut out = [0; 6];
        let i = s.find(name).unwrap();
        s.read_integers(i, 0..s.tensors()[i].rows(), &mut out).unwrap();
        out
    };
    assert_eq!(integers("i64"), ints);
    assert_eq!(integers("i8").to_vec(), words(4).iter().map(|&b| i64::from(b as i8)).collect::<Vec<_>>());
    assert_eq!(s.tensors()[5].rows(), 1);
    let i32s: Vec<i64> = words(6).as_chunks::<4>().0.iter().map(|w| i32::from_le_bytes(*w).into()).collect();
    assert_eq!(integers("i32").to_vec(), i32s);
    for (name, formats) in [
        ("f32", vec![FormatId::Fp32]),
        ("bf16", vec![FormatId::Bf16]),
        ("f16", vec![]),
        ("i32", vec![FormatId::Int32]),
        ("i64", vec![]),
    ] {
        assert_eq!(s.importable(s.find(name).unwrap()), formats, "{name}");
    }
    assert_eq!(import(&*s, 2, FormatId::Bf16, 2, 3, 1), words(2));
    assert_eq!(s.tensors()[1].content, Content::Values(FloatType::F16));
    assert_eq!(s.tensors()[6].content, Content::Integers(IntegerType::I32));
}

#[test]
fn ternary_types_read_as_what_they_import_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(9);
    let mut tensors = Vec::new();
    for (name, id, bytes) in [("pq2", 142, 34usize), ("ptq1", 143, 28)] {
        let mut t = source(&mut random, name, GgmlType(id), &[256, 3]);
        for block in t.3.chunks_mut(bytes) {
            // A finite, non-zero scale; for PQ2_0 no code word 3.
            let at = if id == 142 { 0 } else { 26 };
            block[at..at + 2].copy_from_slice(&0x3c01u16.to_le_bytes());
            if id == 142 {
                block[2..].iter_mut().for_each(|b| *b &= 0xaa | (!(*b >> 1) & 0x55));
            }
        }
        tensors.push(t);
    }
    write_gguf(&path, &[], &tensors);
    let s = open(&path);
    for i in 0..2 {
        assert_eq!(s.importable(i), [FormatId::T2G128Fp16]);
        let payload = import(&*s, i, FormatId::T2G128Fp16, 3, 256, 2);
        let mut wanted = vec![0.0; 768];
        TensorView::new(FormatId::T2G128Fp16, &[3, 256], 1, &payload)
            .unwrap()
            .decode_f32(&mut wanted)
            .unwrap();
        let mut values = vec![0.0; 512];
        s.read_values(i, 1..3, &mut values).unwrap();
        assert_eq!(values, wanted[256..]);
        assert!(values.iter().any(|&v| v > 0.0) && values.iter().any(|&v| v < 0.0));
    }
}

#[test]
fn other_imports_and_refusals_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(11);
    let mut q8 = source(&mut random, "q8", GgmlType(8), &[64, 2]);
    for block in q8.3.chunks_mut(34) {
        block[..2].copy_from_slice(&0x3c00u16.to_le_bytes());
        block[2..].iter_mut().for_each(|b| *b = (*b).max(1) & 0x7f);
    }
    let mut bad = q8.clone();
    bad.0 = b"bad".to_vec();
    bad.3[34 * 3 + 5] = 0x80;
    let mut huge = source(&mut random, "huge", GgmlType(28), &[2, 2]);
    huge.3 = [0.0f64, 1.0, -1e39, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensors = [
        q8.clone(),
        bad,
        huge,
        source(&mut random, "q5_1", GgmlType(7), &[32, 2]),
        source(&mut random, "i8", GgmlType(24), &[4]),
    ];
    write_gguf(&path, &[("a", MetaValue::text("b"))], &tensors);
    let s = open(&path);
    assert_eq!(s.importable(0), [FormatId::GgufQ8_0, FormatId::Q8G32Fp16]);
    assert_eq!(
        import(&*s, 0, FormatId::Q8G32Fp16, 2, 64, 1),
        ninfer_formats::import::import_blocks(FormatId::Q8G32Fp16, 8, 2, 64, &q8.3, None).unwrap()
    );

    let mut plane = vec![0; encoded_size(FormatId::Q8G32Fp16, &[2, 64], 1).unwrap() as usize];
    let mut planes = RowPlanes::of_payload(FormatId::Q8G32Fp16, 2, 64, &mut plane).unwrap();
    let e = s.import_rows(1, FormatId::Q8G32Fp16, 0..2, &mut planes).unwrap_err();
    assert!(matches!(e.kind(), K::Format(ninfer_formats::FormatError::Refused { .. })), "{e}");
    assert!(e.to_string().contains("tensor \"bad\"") && e.to_string().contains("row 1"), "{e}");
    let e = s.import_rows(0, FormatId::Q8G32Fp16, 0..1, &mut planes).unwrap_err();
    assert!(matches!(e.kind(), K::Format(ninfer_formats::FormatError::BufferSize { .. })), "{e}");
    let e = s.import_rows(0, FormatId::Bf16, 0..2, &mut planes).unwrap_err();
    assert!(matches!(e.kind(), K::NotImportable { .. }), "{e}");
    assert!(e.to_string().ends_with("expected gguf_q8_0 or q8_g32_fp16"), "{e}");
    let e = s.import_rows(0, FormatId::GgufQ8_0, 0..2, &mut planes).unwrap_err();
    assert!(matches!(e.kind(), K::Format(ninfer_formats::FormatError::Unsupported { .. })), "{e}");

    let e = s.read_values(2, 0..2, &mut [0.0; 4]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceWord { row: 1, column: 0, .. }), "{e}");
    let e = s.read_values(3, 0..2, &mut [0.0; 64]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { reason: Some(_), .. }), "{e}");
    let e = s.read_values(4, 0..1, &mut [0.0; 4]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { reason: None, .. }), "{e}");
    let e = s.read_integers(0, 0..2, &mut [0; 128]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { .. }), "{e}");
    let e = s.nvfp4(0).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { .. }), "{e}");
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    for rows in [0..3, 2..1, 3..3, u64::MAX..u64::MAX] {
        let e = s.read_values(0, rows, &mut []).unwrap_err();
        assert!(matches!(e.kind(), K::SourceRows { rows: 2, .. }), "{e}");
    }
    let e = s.read_values(0, 0..2, &mut [0.0; 127]).unwrap_err();
    assert!(matches!(e.kind(), K::Format(ninfer_formats::FormatError::BufferSize { .. })), "{e}");
    s.read_values(0, 2..2, &mut []).unwrap();
    for e in [s.read_values(5, 0..0, &mut []).unwrap_err(), s.tensor(5).unwrap_err(), s.nvfp4(5).unwrap_err()]
    {
        assert!(matches!(e.kind(), K::NoSourceTensor { index: 5, tensors: 5 }), "{e}");
    }
    assert!(s.importable(5).is_empty());
    assert_eq!(s.find("none"), None);

    assert_eq!(s.resources().len(), 1);
    assert_eq!(s.resource(0).unwrap().len() as u64, s.resources()[0].bytes);
    assert!(matches!(s.resource(1).unwrap_err().kind(), K::NoSourceResource { .. }));
    assert!(!s.describe().to_string().contains(dir.path().to_str().unwrap()));
}

#[test]
fn a_changed_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(13);
    let tensors = [source(&mut random, "x", GgmlType::F32, &[8])];
    write_gguf(&path, &[], &tensors);
    let s = open(&path);
    let before = s.identity();
    assert_eq!(open(&path).identity(), before);
    std::fs::remove_file(&path).unwrap();
    let e = s.check_unchanged().unwrap_err();
    assert!(matches!(e.kind(), K::SourceChanged), "{e}");
    // Another header of the same length.
    let other = [source(&mut random, "y", GgmlType::F32, &[8])];
    write_gguf(&path, &[], &other);
    assert_ne!(open(&path).identity(), before);
}

#[test]
fn other_files_are_not_sources() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [&b""[..], b"GGU", b"NINFER\0\x03"] {
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        let e = source::open(&path, &OpenOptions::default()).unwrap_err();
        assert!(matches!(e.kind(), K::UnknownSource { .. }), "{e}");
    }
    let e = source::open(dir.path().join("none"), &OpenOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), K::Io { .. }), "{e}");
}
