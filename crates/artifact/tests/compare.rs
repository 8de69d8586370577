//! Comparing an artifact with its source, and finding values that are not finite.

mod common;

use std::ops::ControlFlow;

use common::Random;
use common::gguf::{Source, on, source, write_gguf};
use ninfer_artifact::container::ValueOptions;
use ninfer_artifact::convert::Mismatch;
use ninfer_artifact::{Artifact, ArtifactErrorKind as K, ConvertOptions, compare_gguf, plan_gguf};
use ninfer_gguf::{GgmlType, GgufSet, MetaValue};

#[test]
fn one_flipped_bit_is_found_by_row_and_block() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    let mut random = Random(2);
    let tensors = [
        source(&mut random, "first", GgmlType(0), &[7, 3]),
        source(&mut random, "q4_k", GgmlType(12), &[512, 5]),
        source(&mut random, "half", GgmlType(1), &[6, 4]),
    ];
    write_gguf(&from, &[("a", MetaValue::U32(1))], &tensors);
    let set = GgufSet::open(&from).unwrap();
    plan_gguf(&set, &ConvertOptions::default()).unwrap().run(&to, on).unwrap();
    let good = std::fs::read(&to).unwrap();
    let artifact = Artifact::open(&to).unwrap();
    let start = artifact.directory().prefix().payload_start;
    let at = |id: &str, byte: u64| (start + artifact.object(id).unwrap().offset + byte) as usize;
    for (id, byte, place) in [
        ("q4_k", 3 * 288 + 144 + 77, "\"q4_k\": row 3, block 1: byte 1085 is "),
        ("q4_k", 0, "\"q4_k\": row 0, block 0: byte 0 is "),
        ("q4_k", 5 * 288 - 1, "\"q4_k\": row 4, block 1: byte 1439 is "),
        ("first", 4 * 9 + 2, "\"first\": row 1, column 2: byte 38 is "),
        ("half", 4 * 23 + 3, "\"half\": row 3, column 5: byte 95 is "),
    ] {
        let mut bytes = good.clone();
        bytes[at(id, byte)] ^= 0x10;
        let broken = dir.path().join("broken.ninfer");
        std::fs::write(&broken, &bytes).unwrap();
        let report = compare_gguf(&Artifact::open(&broken).unwrap(), &set, on).unwrap();
        assert_eq!(report.differences.len(), 1, "{id} {byte}");
        let text = report.differences[0].to_string();
        assert!(text.starts_with(place), "{text}");
        let (found, wanted) = (bytes[at(id, byte)], good[at(id, byte)]);
        assert!(text.ends_with(&format!("{found:#04x}; expected {wanted:#04x}")), "{text}");
        assert_eq!(report.equal, 2);
    }
    // The metadata copy.
    let mut bytes = good.clone();
    bytes[at("gguf.metadata", 9)] ^= 1;
    let broken = dir.path().join("broken.ninfer");
    std::fs::write(&broken, &bytes).unwrap();
    let report = compare_gguf(&Artifact::open(&broken).unwrap(), &set, on).unwrap();
    assert!(
        report.differences[0].to_string().starts_with("\"gguf.metadata\": byte 9 is "),
        "{:?}",
        report.differences
    );
    assert_eq!(report.equal, 3);
}

/// The place counts from the start of the object, wherever the files are cut.
#[test]
fn a_flipped_bit_in_a_later_part_is_found_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    write_gguf(&from, &[], &[source(&mut Random(6), "t", GgmlType(8), &[64, 200])]);
    let set = GgufSet::open(&from).unwrap();
    let options = ConvertOptions { file_limit: Some(8192), ..Default::default() };
    let written = plan_gguf(&set, &options).unwrap().run(&to, on).unwrap();
    assert_eq!(written.files.len(), 4);
    // 68 bytes a row: byte 4096 + 1000 of the object is row 74, block 1.
    let mut bytes = std::fs::read(&written.files[1]).unwrap();
    bytes[4096 + 1000] ^= 4;
    std::fs::write(&written.files[1], bytes).unwrap();
    let report = compare_gguf(&Artifact::open(&to).unwrap(), &set, on).unwrap();
    let text = report.differences[0].to_string();
    assert!(text.starts_with("\"t\": row 74, block 1: byte 5096 is "), "{text}");
}

#[test]
fn other_tensors_types_and_shapes_are_differences() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(2);
    let make = |name: &str, tensors: &[Source]| {
        let path = dir.path().join(name);
        write_gguf(&path, &[], tensors);
        GgufSet::open(path).unwrap()
    };
    let a = source(&mut random, "a", GgmlType(8), &[64, 4]);
    let b = source(&mut random, "b", GgmlType(8), &[64, 4]);
    let one = make("one.gguf", &[a.clone(), b.clone()]);
    let to = dir.path().join("m.ninfer");
    plan_gguf(&one, &ConvertOptions::default()).unwrap().run(&to, on).unwrap();
    let artifact = Artifact::open(&to).unwrap();

    // Another order of tensors is no difference.
    let other = make("order.gguf", &[b.clone(), a.clone()]);
    assert!(compare_gguf(&artifact, &other, on).unwrap().differences.is_empty());

    let other = make("missing.gguf", std::slice::from_ref(&a));
    let report = compare_gguf(&artifact, &other, on).unwrap();
    assert!(
        matches!(report.differences[..], [ref d] if matches!(d.mismatch, Mismatch::Extra) && d.name == "b")
    );

    let other = make("extra.gguf", &[a.clone(), b.clone(), source(&mut random, "c", GgmlType(8), &[32])]);
    let report = compare_gguf(&artifact, &other, on).unwrap();
    assert!(
        matches!(report.differences[..], [ref d] if matches!(d.mismatch, Mismatch::Missing) && d.name == "c")
    );

    let other = make("type.gguf", &[a.clone(), source(&mut random, "b", GgmlType(2), &[64, 4])]);
    let report = compare_gguf(&artifact, &other, on).unwrap();
    assert_eq!(
        report.differences[0].to_string(),
        "\"b\": gguf_q8_0 with shape [4, 64]; expected gguf_q4_0 with shape [4, 64]"
    );
    let other = make("shape.gguf", &[a.clone(), source(&mut random, "b", GgmlType(8), &[32, 8])]);
    let report = compare_gguf(&artifact, &other, on).unwrap();
    assert!(report.differences[0].to_string().contains("expected gguf_q8_0 with shape [8, 32]"));
    let other = make("odd.gguf", &[a.clone(), source(&mut random, "b", GgmlType(24), &[32, 8])]);
    let report = compare_gguf(&artifact, &other, on).unwrap();
    assert!(report.differences[0].to_string().contains("cannot be converted"), "{}", report.differences[0]);

    let stop = |_: u64, _: u64| ControlFlow::Break(());
    assert!(matches!(compare_gguf(&artifact, &one, stop).unwrap_err().kind(), K::Cancelled { .. }));
}

#[test]
fn a_scale_that_is_not_finite_is_counted_per_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    let mut q8 = vec![0u8; 34 * 4 * 3];
    for block in [5usize, 9] {
        q8[34 * block..34 * block + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    }
    let mut f32s = vec![0u8; 4 * 20];
    f32s[4 * 13..4 * 14].copy_from_slice(&f32::INFINITY.to_le_bytes());
    write_gguf(
        &from,
        &[],
        &[
            (b"clean".to_vec(), GgmlType(8), vec![128, 3], vec![0; 34 * 4 * 3]),
            (b"q8".to_vec(), GgmlType(8), vec![128, 3], q8),
            (b"f".to_vec(), GgmlType(0), vec![5, 4], f32s),
        ],
    );
    let set = GgufSet::open(&from).unwrap();
    plan_gguf(&set, &ConvertOptions::default()).unwrap().run(&to, on).unwrap();
    let report = Artifact::open(&to).unwrap().verify_values(&ValueOptions::default()).unwrap();
    assert!(report.is_ok(), "legal bytes are no violation");
    assert_eq!(report.tensors[0].non_finite, None);
    let q8 = report.tensors[1].non_finite.unwrap();
    assert_eq!((q8.count, q8.unit, q8.row, q8.index), (2, "block", 1, 1));
    let f = report.tensors[2].non_finite.unwrap();
    assert_eq!((f.count, f.unit, f.row, f.index), (1, "column", 2, 3));
}
