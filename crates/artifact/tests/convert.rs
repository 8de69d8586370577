//! Converting GGUF models: every type, every refusal, metadata, split sets, comparison with the source.

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::gguf::{Source, on, source, write_gguf};
use common::{Random, names};
use ninfer_artifact::container::{Binding, Json, ValueOptions};
use ninfer_artifact::convert::Action;
use ninfer_artifact::{Artifact, ArtifactErrorKind as K, ConvertOptions, compare_gguf, plan_gguf};
use ninfer_formats::{FormatId, Scheme};
use ninfer_gguf::{GgmlType, GgufPlan, GgufSet, MetaArray, MetaValue};

/// Every registered type, F16 and I32, in ranks 0 to 4.
fn all_types() -> Vec<Source> {
    let mut random = Random(0xc0);
    let mut tensors = Vec::new();
    for format in FormatId::all() {
        if let Scheme::Gguf(kind) = format.scheme() {
            let k = kind.values() as u64;
            let name = format!("blk.{}.weight", format.name());
            tensors.push(source(&mut random, &name, GgmlType(kind.ggml_type()), &[2 * k, 3]));
        }
    }
    for (name, ggml_type) in [("f32", 0), ("f16", 1), ("bf16", 30), ("i32", 26)] {
        for dims in [&[][..], &[5], &[3, 4], &[3, 4, 2], &[2, 1, 3, 1]] {
            let name = format!("{name}.rank{}", dims.len());
            tensors.push(source(&mut random, &name, GgmlType(ggml_type), dims));
        }
    }
    tensors.push(source(&mut random, "experts", GgmlType(12), &[256, 3, 4]));
    tensors.push(source(&mut random, "vector", GgmlType(8), &[64]));
    tensors.push(source(&mut random, "rank4", GgmlType(2), &[32, 2, 3, 1]));
    tensors
}

#[test]
fn every_type_goes_over_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    let tensors = all_types();
    write_gguf(&from, &[("general.name", MetaValue::text("Model"))], &tensors);
    let set = GgufSet::open(&from).unwrap();
    let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
    let total = conversion.payload_bytes();
    let mut seen = Vec::new();
    let written = conversion
        .run(&to, |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen.first(), Some(&(0, total)));
    assert_eq!(seen.last(), Some(&(total, total)));
    assert!(seen.windows(2).all(|w| w[0].0 < w[1].0));
    assert_eq!(written.bytes, std::fs::metadata(&to).unwrap().len());
    assert_eq!(names(dir.path()), ["m.gguf", "m.ninfer"]);

    let artifact = Artifact::open(&to).unwrap();
    assert!(artifact.verify_structure().is_ok());
    assert!(artifact.verify_values(&ValueOptions::default()).unwrap().is_ok());
    for (name, ggml_type, dims, bytes) in &tensors {
        let id = std::str::from_utf8(name).unwrap();
        let spec = artifact.object(id).unwrap().tensor().unwrap();
        let payload = artifact.payload(id).unwrap();
        let mut shape: Vec<u64> = dims.iter().rev().copied().collect();
        match ggml_type.0 {
            0 => assert_eq!(spec.format, FormatId::Fp32),
            30 => assert_eq!(spec.format, FormatId::Bf16),
            26 => assert_eq!(spec.format, FormatId::Int32),
            1 => {
                assert_eq!(spec.format, FormatId::Fp32);
                // Exactly: the same value, and the same bits of a NaN.
                for (half, word) in bytes.as_chunks::<2>().0.iter().zip(payload.as_chunks::<4>().0) {
                    let half = u16::from_le_bytes(*half);
                    let word = u32::from_le_bytes(*word);
                    let value = f32::from_bits(word);
                    assert_eq!(ninfer_formats::float::f16::to_f32_bits(half), word);
                    assert_eq!(value.is_nan(), half & 0x7fff > 0x7c00);
                    if !value.is_nan() {
                        assert_eq!(ninfer_formats::float::f16::from_f32(value), half);
                    } else {
                        assert_eq!((word >> 13) & 0x3ff, u32::from(half) & 0x3ff);
                    }
                }
            }
            n => {
                assert_eq!(spec.format.ggml_type(), Some(n));
                let k = shape.pop().unwrap();
                shape = vec![shape.iter().product(), k];
            }
        }
        assert_eq!(spec.shape, shape, "{id}");
        if ggml_type.0 != 1 {
            assert_eq!(&*payload, bytes, "{id}");
        }
        assert_eq!(artifact.directory().bindings().get(id), Some(&Binding::Object(id.into())));
    }
    assert_eq!(artifact.object("experts").unwrap().tensor().unwrap().shape, [12, 256]);
    assert_eq!(artifact.object("vector").unwrap().tensor().unwrap().shape, [1, 64]);
    assert_eq!(artifact.object("rank4").unwrap().tensor().unwrap().shape, [6, 32]);
    let provenance = artifact.directory().provenance().unwrap();
    let shapes = provenance.get("source_shapes").unwrap();
    assert_eq!(shapes.get("experts"), Some(&Json::array([4u64, 3, 256])));
    assert_eq!(shapes.get("vector"), Some(&Json::array([64u64])));
    assert_eq!(shapes.get("f32.rank3"), None);
    let Some(Json::Array(widened)) = provenance.get("f16_to_fp32") else { panic!("a list") };
    assert_eq!(widened.len(), 5);
    assert_eq!(artifact.directory().name(), Some("Model"));
    assert!(artifact.directory().uses().is_empty());

    let report = compare_gguf(&artifact, &set, on).unwrap();
    assert!(report.differences.is_empty(), "{:?}", report.differences);
    assert_eq!(report.equal, tensors.len());
    assert_eq!(report.bytes, total);
}

#[test]
fn all_65536_binary16_words_widen_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    // More than one step of the widening loop.
    let words: Vec<u8> = (0..5).flat_map(|_| (0..=u16::MAX).flat_map(u16::to_le_bytes)).collect();
    write_gguf(&from, &[], &[(b"h".to_vec(), GgmlType::F16, vec![65_536, 5], words)]);
    let set = GgufSet::open(&from).unwrap();
    let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
    assert_eq!(conversion.tensors()[0].action, Action::WidenF16);
    conversion.run(&to, on).unwrap();
    let artifact = Artifact::open(&to).unwrap();
    let payload = artifact.payload("h").unwrap();
    for (i, word) in payload.as_chunks::<4>().0.iter().enumerate() {
        let (half, word) = (i as u16, u32::from_le_bytes(*word));
        let (sign, exponent, fraction) =
            (f64::from(1 - 2 * i32::from(half >> 15)), i32::from(half >> 10 & 31), half & 1023);
        let value = f64::from(f32::from_bits(word));
        match exponent {
            31 if fraction == 0 => assert_eq!(value, sign * f64::INFINITY),
            31 => assert!(value.is_nan() && word >> 31 == u32::from(half >> 15)),
            0 => assert_eq!(value, sign * f64::from(fraction) * 2f64.powi(-24)),
            e => assert_eq!(value, sign * (1.0 + f64::from(fraction) / 1024.0) * 2f64.powi(e - 15)),
        }
        assert_eq!(word >> 31, u32::from(half >> 15));
    }
    assert!(compare_gguf(&artifact, &set, on).unwrap().differences.is_empty());
}

/// Tensors longer than a step of the copy, at an offset in the source, in one file and over several.
#[test]
fn long_tensors_are_copied_whole() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("m.gguf");
    let mut random = Random(8);
    let tensors = [
        source(&mut random, "first", GgmlType(0), &[7]),
        source(&mut random, "long", GgmlType(8), &[4096, 4300]),
        source(&mut random, "last", GgmlType(0), &[7]),
    ];
    assert!(tensors[1].3.len() > 18_000_000);
    write_gguf(&from, &[], &tensors);
    let set = GgufSet::open(&from).unwrap();
    for limit in [None, Some(9 << 20)] {
        let to = dir.path().join(format!("{}.ninfer", limit.is_some()));
        let options = ConvertOptions { file_limit: limit, ..Default::default() };
        plan_gguf(&set, &options).unwrap().run(&to, on).unwrap();
        let artifact = Artifact::open(&to).unwrap();
        for (name, _, _, bytes) in &tensors {
            let payload = artifact.payload(std::str::from_utf8(name).unwrap()).unwrap();
            assert!(*payload == *bytes, "{}", String::from_utf8_lossy(name));
        }
    }
}

// ---- refusals

fn mixed(dir: &Path) -> PathBuf {
    let mut random = Random(1);
    let path = dir.join("m.gguf");
    let tensors = [
        source(&mut random, "good", GgmlType(8), &[32, 2]),
        source(&mut random, "mx", GgmlType(39), &[32, 2]),
        source(&mut random, "tq", GgmlType(34), &[256]),
        source(&mut random, "empty", GgmlType(0), &[4, 0]),
        (b"bad\xff".to_vec(), GgmlType(0), vec![1], vec![0; 4]),
        (b"nul\0".to_vec(), GgmlType(0), vec![1], vec![0; 4]),
        source(&mut random, "i8", GgmlType(24), &[3]),
        source(&mut random, "f64", GgmlType(28), &[3]),
    ];
    write_gguf(&path, &[("general.architecture", MetaValue::text("x"))], &tensors);
    path
}

#[test]
fn everything_that_cannot_be_converted_is_refused_at_once_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = mixed(dir.path());
    let set = GgufSet::open(&path).unwrap();
    let e = plan_gguf(&set, &ConvertOptions::default()).unwrap_err();
    let K::Refused { refusals } = e.kind() else { panic!("{e}") };
    let found: Vec<&str> = refusals.iter().map(|r| r.tensor.as_str()).collect();
    assert_eq!(found, ["mx", "tq", "empty", "bad\\xff", "nul\\0", "i8", "f64"]);
    let text = e.to_string();
    for part in [
        "m.gguf: 7 tensor(s) cannot be converted:",
        "tensor \"mx\" (MXFP4): the registry has no format for ggml type 39 (MXFP4)",
        "tensor \"tq\" (TQ1_0): the registry has no format for ggml type 34",
        "tensor \"empty\" (F32): dimension 0 of [0, 4] is zero",
        "tensor \"bad\\xff\" (F32): its name is not UTF-8",
        "tensor \"nul\\0\" (F32): its name is empty or contains U+0000",
        "tensor \"i8\" (I8): the registry has no format",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(names(dir.path()), ["m.gguf"]);
}

#[test]
fn unsupported_tensors_are_left_out_on_request_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = mixed(dir.path());
    let set = GgufSet::open(&path).unwrap();
    let options = ConvertOptions { skip_unsupported: true, ..Default::default() };
    let conversion = plan_gguf(&set, &options).unwrap();
    assert_eq!(conversion.tensors().len(), 1);
    assert_eq!(conversion.skipped().len(), 7);
    let to = dir.path().join("m.ninfer");
    conversion.run(&to, on).unwrap();
    let artifact = Artifact::open(&to).unwrap();
    let Some(Json::Array(skipped)) = artifact.directory().provenance().unwrap().get("skipped") else {
        panic!("a list")
    };
    assert_eq!(skipped.len(), 7);
    assert_eq!(skipped[0].get("tensor").unwrap().as_str(), Some("mx"));
    assert_eq!(skipped[0].get("type").unwrap().as_str(), Some("MXFP4"));
    let report = compare_gguf(&artifact, &set, on).unwrap();
    assert!(report.differences.is_empty(), "{:?}", report.differences);
    assert_eq!((report.equal, report.skipped.len()), (1, 7));

    let none = dir.path().join("none.gguf");
    write_gguf(&none, &[], &[source(&mut Random(1), "i8", GgmlType(24), &[3])]);
    let set = GgufSet::open(&none).unwrap();
    let e = plan_gguf(&set, &options).unwrap_err();
    assert!(matches!(e.kind(), K::NothingToConvert), "{e}");
}

#[test]
fn a_tensor_of_unknown_type_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(1);
    write_gguf(
        &path,
        &[],
        &[
            source(&mut random, "good", GgmlType(8), &[32, 2]),
            source(&mut random, "odd", GgmlType(24), &[64]),
        ],
    );
    let mut bytes = std::fs::read(&path).unwrap();
    // The type follows the name, n_dims and one dimension.
    let at = bytes.windows(3).position(|w| w == b"odd").unwrap() + 3 + 4 + 8;
    for (id, text) in
        [(9999u32, "ggml type 9999"), (4, "ggml type 4 (Q4_2)"), (u32::MAX, "ggml type 4294967295")]
    {
        bytes[at..at + 4].copy_from_slice(&id.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let set = GgufSet::open(&path).unwrap();
        let e = plan_gguf(&set, &ConvertOptions::default()).unwrap_err();
        assert!(e.to_string().contains("tensor \"odd\""), "{e}");
        assert!(e.to_string().contains(text), "{e}");
    }
}

// ---- metadata

#[test]
fn metadata_goes_to_config_and_all_of_it_to_a_resource() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    let strings = |n: usize| {
        let mut array = MetaArray::empty(ninfer_gguf::ValueType::String);
        for i in 0..n {
            array.push(MetaValue::text(&format!("t{i}"))).unwrap();
        }
        MetaValue::Array(array)
    };
    let mut bad = MetaArray::empty(ninfer_gguf::ValueType::String);
    bad.push(MetaValue::String(vec![0xff])).unwrap();
    let mut floats = MetaArray::empty(ninfer_gguf::ValueType::F32);
    for x in [0.1f32, f32::NAN, -0.0] {
        floats.push(MetaValue::F32(x)).unwrap();
    }
    // Short arrays, but many elements together.
    let mut nested = MetaArray::empty(ninfer_gguf::ValueType::Array);
    for _ in 0..2 {
        nested.push(strings(600)).unwrap();
    }
    let metadata = [
        ("general.name", MetaValue::text("Größe")),
        ("u8", MetaValue::U8(255)),
        ("i8", MetaValue::I8(-128)),
        ("u16", MetaValue::U16(65_535)),
        ("i16", MetaValue::I16(-32_768)),
        ("u32", MetaValue::U32(u32::MAX)),
        ("i32", MetaValue::I32(i32::MIN)),
        ("u64", MetaValue::U64(u64::MAX)),
        ("i64", MetaValue::I64(i64::MIN)),
        ("f32", MetaValue::F32(0.1)),
        ("f64", MetaValue::F64(0.1)),
        ("nan", MetaValue::F32(f32::NAN)),
        ("inf", MetaValue::F64(f64::INFINITY)),
        ("ninf", MetaValue::F32(f32::NEG_INFINITY)),
        ("yes", MetaValue::Bool(true)),
        ("floats", MetaValue::Array(floats)),
        ("short", strings(1024)),
        ("long", strings(1025)),
        ("bytes", MetaValue::String(vec![b'a', 0xff])),
        ("list of bytes", MetaValue::Array(bad)),
        ("nested", MetaValue::Array(nested)),
        ("huge", MetaValue::text(&"x".repeat(65_537))),
        ("large", MetaValue::text(&"x".repeat(65_536))),
    ];
    let tensor = [source(&mut Random(1), "gguf.metadata", GgmlType(8), &[32, 2])];
    write_gguf(&from, &metadata, &tensor);
    let set = GgufSet::open(&from).unwrap();
    let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
    conversion.run(&to, on).unwrap();
    let artifact = Artifact::open(&to).unwrap();
    let component = artifact.directory().components().get("text").unwrap();
    let config = &component.config;
    for (key, wanted) in [
        ("general.name", Json::from("Größe")),
        ("u8", Json::from(255u64)),
        ("i8", Json::from(-128i64)),
        ("u16", Json::from(65_535u64)),
        ("i16", Json::from(-32_768i64)),
        ("u32", Json::from(u64::from(u32::MAX))),
        ("i32", Json::from(i64::from(i32::MIN))),
        ("u64", Json::from(u64::MAX)),
        ("i64", Json::from(i64::MIN)),
        ("f32", Json::from(f64::from(0.1f32))),
        ("f64", Json::from(0.1)),
        ("nan", Json::from("NaN")),
        ("inf", Json::from("Infinity")),
        ("ninf", Json::from("-Infinity")),
        ("yes", Json::from(true)),
        ("floats", Json::Array(vec![Json::from(f64::from(0.1f32)), Json::from("NaN"), Json::from(-0.0)])),
    ] {
        assert_eq!(config.get(key), Some(&wanted), "{key}");
    }
    assert!(matches!(config.get("short"), Some(Json::Array(a)) if a.len() == 1024));
    assert_eq!(config.get("large").unwrap().as_str().unwrap().len(), 65_536);
    let Some(Json::Array(left_out)) = artifact.directory().provenance().unwrap().get("config_left_out")
    else {
        panic!("a list")
    };
    let reasons: Vec<(&str, &str)> = left_out
        .iter()
        .map(|r| (r.get("key").unwrap().as_str().unwrap(), r.get("reason").unwrap().as_str().unwrap()))
        .collect();
    assert_eq!(
        reasons,
        [
            ("long", "it has more than 1024 elements"),
            ("bytes", "it has a string that is not UTF-8"),
            ("list of bytes", "it has a string that is not UTF-8"),
            ("nested", "it has more than 1024 elements"),
            ("huge", "it has a string of more than 65536 bytes"),
        ]
    );
    for (key, _) in reasons {
        assert_eq!(config.get(key), None, "{key}");
    }

    // The resource does not take a tensor's id, and holds every byte between the counts and the tensor infos.
    let (role, id) = &component.resources[0];
    assert_eq!((role.as_str(), id.as_str()), ("gguf_metadata", "gguf.metadata_"));
    let bytes = std::fs::read(&from).unwrap();
    let end = set.shards()[0].header().entries().last().unwrap().range().1 as usize;
    assert_eq!(&*artifact.payload(id).unwrap(), &bytes[24..end]);
    // With a header of its own it is a GGUF file again.
    let mut again = b"GGUF\x03\0\0\0".to_vec();
    again.extend(0u64.to_le_bytes());
    again.extend((metadata.len() as u64).to_le_bytes());
    again.extend(&*artifact.payload(id).unwrap());
    let header = ninfer_gguf::Header::parse(&again).unwrap();
    assert_eq!(header.entries().len(), metadata.len());
}

#[test]
fn provenance_names_no_place_and_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("m.gguf");
    write_gguf(&from, &[], &[source(&mut Random(1), "t", GgmlType(8), &[32, 2])]);
    let set = GgufSet::open(&from).unwrap();
    let conversion =
        plan_gguf(&set, &ConvertOptions { artifact_id: Some([1; 16]), ..Default::default() }).unwrap();
    // Without metadata there is no resource.
    assert_eq!(conversion.resources(), []);
    let mut files = Vec::new();
    for name in ["a.ninfer", "b.ninfer"] {
        let to = dir.path().join(name);
        conversion.run(&to, on).unwrap();
        files.push(std::fs::read(&to).unwrap());
    }
    assert_eq!(files[0], files[1]);
    let text = String::from_utf8_lossy(&files[0][32..4096]).into_owned();
    assert!(!text.contains(dir.path().to_str().unwrap()), "{text}");
    assert!(text.contains(r#""name":"m.gguf""#), "{text}");
    assert!(text.contains(&format!(r#""bytes":{}"#, std::fs::metadata(&from).unwrap().len())), "{text}");
    let report = compare_gguf(&Artifact::open(dir.path().join("a.ninfer")).unwrap(), &set, on).unwrap();
    assert!(report.differences.is_empty());
}

#[test]
fn a_split_model_becomes_one_artifact_of_any_number_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(9);
    let mut all = Vec::new();
    for shard in 0..3u16 {
        let tensors: Vec<Source> =
            (0..3).map(|i| source(&mut random, &format!("s{shard}.t{i}"), GgmlType(8), &[64, 40])).collect();
        let mut metadata = vec![
            ("split.no", MetaValue::U16(shard)),
            ("split.count", MetaValue::U16(3)),
            ("split.tensors.count", MetaValue::I32(9)),
        ];
        if shard == 0 {
            metadata.push(("general.architecture", MetaValue::text("llama")));
        }
        write_gguf(&dir.path().join(format!("m-{:05}-of-00003.gguf", shard + 1)), &metadata, &tensors);
        all.extend(tensors);
    }
    let set = GgufSet::open(dir.path().join("m-00002-of-00003.gguf")).unwrap();
    for limit in [None, Some(12_288)] {
        let to = dir.path().join(format!("m{}.ninfer", limit.is_some()));
        let conversion =
            plan_gguf(&set, &ConvertOptions { file_limit: limit, ..Default::default() }).unwrap();
        let written = conversion.run(&to, on).unwrap();
        assert_eq!(written.files.len() > 3, limit.is_some());
        let artifact = Artifact::open(&to).unwrap();
        for (name, _, _, bytes) in &all {
            assert_eq!(&*artifact.payload(std::str::from_utf8(name).unwrap()).unwrap(), bytes);
        }
        let text = artifact.directory().components().get("text").unwrap();
        let roles: Vec<&str> = text.resources.iter().map(|(role, _)| role.as_str()).collect();
        assert_eq!(roles, ["gguf_metadata", "gguf_metadata.2", "gguf_metadata.3"]);
        assert_eq!(text.config.get("general.architecture").unwrap().as_str(), Some("llama"));
        assert_eq!(text.config.get("split.count"), None);
        let report = compare_gguf(&artifact, &set, on).unwrap();
        assert!(report.differences.is_empty(), "{:?}", report.differences);
        assert_eq!(report.equal, 9);
    }
}

// ---- interruption

#[test]
fn stopping_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("m.gguf");
    let mut random = Random(4);
    let tensors: Vec<Source> = (0..4)
        .map(|i| source(&mut random, &format!("t{i}"), GgmlType(if i == 2 { 1 } else { 8 }), &[1024, 100]))
        .collect();
    write_gguf(&from, &[("a", MetaValue::U32(1))], &tensors);
    let set = GgufSet::open(&from).unwrap();
    for limit in [None, Some(20_480)] {
        let conversion =
            plan_gguf(&set, &ConvertOptions { file_limit: limit, ..Default::default() }).unwrap();
        let mut calls = 0;
        conversion
            .run(dir.path().join("whole.ninfer"), |_, _| {
                calls += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        for name in names(dir.path()).into_iter().filter(|n| n.starts_with("whole")) {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        for stop_at in 1..=calls {
            let mut call = 0;
            let e = conversion
                .run(dir.path().join("m.ninfer"), |_, _| {
                    call += 1;
                    if call == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap_err();
            assert!(matches!(e.kind(), K::Cancelled { .. }), "{e}");
            assert_eq!(names(dir.path()), ["m.gguf"]);
        }
    }
}

#[test]
fn a_source_that_changed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("m.ninfer"));
    write_gguf(&from, &[("a", MetaValue::U32(1))], &[source(&mut Random(4), "t", GgmlType(8), &[1024, 100])]);
    let set = GgufSet::open(&from).unwrap();
    let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
    let original = std::fs::read(&from).unwrap();
    let replace = |bytes: &[u8]| {
        // A new file under the old name; the map keeps the old one.
        std::fs::remove_file(&from).unwrap();
        std::fs::write(&from, bytes).unwrap();
    };
    let mut changed = original.clone();
    changed[24 + 8 + 1 + 4] = 2;
    replace(&changed);
    let e = conversion.run(&to, on).unwrap_err();
    assert!(matches!(e.kind(), K::SourceChanged), "{e}");
    replace(&original[..original.len() - 1]);
    let e = conversion.run(&to, on).unwrap_err();
    assert!(matches!(e.kind(), K::FileLength { .. }), "{e}");
    std::fs::remove_file(&from).unwrap();
    let e = conversion.run(&to, on).unwrap_err();
    assert!(matches!(e.kind(), K::Io { .. }), "{e}");
    std::fs::write(&from, &original).unwrap();
    conversion.run(&to, on).unwrap();
    // The target exists now, and stays as it is.
    let e = conversion.run(&to, on).unwrap_err();
    assert!(matches!(e.kind(), K::Exists), "{e}");
    assert_eq!(names(dir.path()), ["m.gguf", "m.ninfer"]);
}

/// Peak memory without mapped pages stays small whatever the size, here for 512 MB of two kinds.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_model() {
    const MEASURED: &str = "NINFER_TEST_MEASURE_CONVERT";
    if let Some(dir) = std::env::var_os(MEASURED) {
        let dir = Path::new(&dir);
        let set = GgufSet::open(dir.join("m.gguf")).unwrap();
        let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
        conversion.run(dir.join("m.ninfer"), on).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak =
            status.lines().find(|l| l.starts_with("VmHWM")).unwrap().split_whitespace().nth(1).unwrap();
        let peak: u64 = peak.parse().unwrap();
        // Mapped pages included: the source's map is touched for its header only.
        assert!(peak < 128 << 10, "peak resident set of {peak} kB");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("m.gguf");
    // Sparse: the header is real, the data are holes.
    let mut plan = GgufPlan::new();
    plan.tensor("q", GgmlType(8), &[4096, 110_000]).unwrap();
    plan.tensor("h", GgmlType::F16, &[4096, 8000]).unwrap();
    for i in 0..2000 {
        plan.tensor(format!("small.{i}"), GgmlType::F32, &[16]).unwrap();
    }
    let layout = plan.finish().unwrap();
    assert!(layout.file_bytes() > 480 << 20);
    std::fs::write(&from, layout.header()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&from).unwrap().set_len(layout.file_bytes()).unwrap();
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_does_not_grow_with_the_model"])
        .env(MEASURED, dir.path())
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    let set = GgufSet::open(&from).unwrap();
    let conversion = plan_gguf(&set, &ConvertOptions::default()).unwrap();
    let written = std::fs::metadata(dir.path().join("m.ninfer")).unwrap().len();
    assert_eq!(written, conversion.layout("x").unwrap().total_bytes());
}
