//! Writing artifacts and reading them back; what happens when writing goes wrong.

mod common;

use std::io::{self, Seek, Write};
use std::path::Path;

use common::{Random, names, shape_of};
use ninfer_artifact::container::{
    ActivationPolicy, Binding, BindingPart, Component, Gap, Proposal, Use, ValueOptions,
};
use ninfer_artifact::{Artifact, ArtifactErrorKind as K, ArtifactPlan, ArtifactWriter, Json};
use ninfer_formats::{FormatId, Scheme, TensorView, encoded_size};

fn text() -> Component {
    Component::with_config(Json::object([("layers", Json::from(2u64))]))
}

/// A plan with one tensor of every format and two resources, and the payloads.
fn everything() -> (ArtifactPlan, Vec<(String, Vec<u8>)>) {
    let mut plan = ArtifactPlan::new();
    let mut payloads = Vec::new();
    let mut random = Random(0xa11);
    for format in FormatId::all() {
        let (shape, divisors) = shape_of(format);
        let bytes = encoded_size(format, &shape, divisors).unwrap() as usize;
        plan.tensor(format.name(), format, &shape, divisors).unwrap();
        plan.binding(format.name(), Binding::Object(format.name().into()));
        payloads.push((format.name().to_owned(), random.bytes(bytes)));
    }
    for (id, bytes) in [("one", 1), ("tokenizer", 777)] {
        plan.resource(id, bytes as u64).unwrap();
        payloads.push((id.to_owned(), random.bytes(bytes)));
    }
    let mut component = text();
    component.resources.push(("tokenizer".into(), "tokenizer".into()));
    plan.component("text", component);
    (plan, payloads)
}

fn write(writer: &mut ArtifactWriter, payloads: &[(String, Vec<u8>)]) {
    for (id, bytes) in payloads {
        writer.write(id, bytes).unwrap();
    }
}

fn check(path: &Path, payloads: &[(String, Vec<u8>)]) {
    let artifact = Artifact::open(path).unwrap();
    assert_eq!(artifact.objects().len(), payloads.len());
    for (id, bytes) in payloads {
        assert_eq!(&*artifact.payload(id).unwrap(), bytes, "{id}");
        let mut piece = vec![0; bytes.len().min(100)];
        let begin = bytes.len() - piece.len();
        artifact.read_at(id, begin as u64, &mut piece).unwrap();
        assert_eq!(piece, bytes[begin..], "{id}");
    }
    let report = artifact.verify_structure();
    assert!(report.is_ok(), "{:?}", report.problems);
    assert_eq!(report.gaps, []);
    assert_eq!(report.tensors, 30);
}

#[test]
fn every_format_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let (plan, payloads) = everything();
    let mut writer = plan.finish(&path).unwrap().create().unwrap();
    assert!(!path.exists());
    write(&mut writer, &payloads);
    let layout = writer.layout().clone();
    let written = writer.finish().unwrap();
    assert_eq!(written.files, std::slice::from_ref(&path));
    assert_eq!(written.bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!(written.bytes, layout.total_bytes());
    assert_eq!(names(dir.path()), ["x.ninfer"]);
    check(&path, &payloads);

    // As the specification frames it.
    let file = std::fs::read(&path).unwrap();
    let json_bytes = u64::from_le_bytes(file[8..16].try_into().unwrap()) as usize;
    assert_eq!(&file[..8], b"NINFER\0\x03");
    assert_eq!(file[16..32], written.artifact_id);
    let json: serde_json::Value = serde_json::from_slice(&file[32..32 + json_bytes]).unwrap();
    let start = (32 + json_bytes).next_multiple_of(4096);
    for object in json["objects"].as_array().unwrap() {
        let offset = object["offset"].as_u64().unwrap() as usize;
        let bytes = object["bytes"].as_u64().unwrap() as usize;
        let (_, payload) = payloads.iter().find(|(id, _)| object["id"] == id.as_str()).unwrap();
        assert_eq!(&file[start + offset..start + offset + bytes], payload);
        assert!(offset.is_multiple_of(256) || object["kind"] == "resource");
        assert_eq!(object.get("divisors").is_some(), object["format"] == "nvfp4");
    }
    assert_eq!(json["files"][0]["payload_bytes"].as_u64().unwrap() as usize, file.len() - start);
}

#[test]
fn an_artifact_id_is_random_unless_given() {
    let dir = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let mut plan = ArtifactPlan::new();
        plan.resource("r", 1).unwrap();
        plan.component("text", text());
        let mut writer = plan.finish(dir.path().join(name)).unwrap().create().unwrap();
        writer.write("r", b"x").unwrap();
        ids.push(writer.finish().unwrap().artifact_id);
    }
    assert_ne!(ids[0], ids[1]);
    let mut plan = ArtifactPlan::new();
    plan.resource("r", 1).unwrap();
    plan.component("text", text());
    plan.artifact_id([7; 16]);
    assert_eq!(plan.finish(dir.path().join("c")).unwrap().directory().artifact_id(), [7; 16]);
}

/// Small parts: objects, and planes inside objects, cross file boundaries.
#[test]
fn every_format_over_many_files() {
    for limit in [20_480u64, 24_000, 28_672, 40_000] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.ninfer");
        let (mut plan, payloads) = everything();
        plan.file_limit(limit);
        let mut writer = plan.finish(&path).unwrap().create().unwrap();
        // In pieces of odd sizes.
        for (id, bytes) in &payloads {
            for piece in bytes.chunks(997) {
                writer.write(id, piece).unwrap();
            }
        }
        let written = writer.finish().unwrap();
        assert!(written.files.len() > 2, "{limit}");
        let mut crossing = 0;
        let artifact = Artifact::open(&path).unwrap();
        let files = artifact.directory().files();
        for (i, file) in written.files.iter().enumerate() {
            let len = std::fs::metadata(file).unwrap().len();
            assert!(len <= limit);
            let start = if i == 0 { artifact.directory().prefix().payload_start } else { 4096 };
            assert_eq!(len, start + files[i].payload_bytes);
            if i + 1 < files.len() {
                assert_eq!(files[i].payload_bytes, (limit - start) / 4096 * 4096);
            }
            if i > 0 {
                assert_eq!(files[i].path.as_deref(), Some(format!("x.ninfer.part-{i:04}").as_str()));
                let bytes = std::fs::read(file).unwrap();
                assert_eq!(&bytes[..8], b"NINPRT\0\x03");
                assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), i as u64);
                assert_eq!(bytes[16..32], written.artifact_id);
                assert!(bytes[32..4096].iter().all(|&b| b == 0));
            }
        }
        for object in artifact.objects() {
            crossing += usize::from(artifact.spans(&object.id).unwrap().len() > 1);
        }
        assert!(crossing > 0);
        check(&path, &payloads);
        // Values are checked alike, wherever the files are cut.
        let whole = dir.path().join("whole.ninfer");
        let (plan, _) = everything();
        let mut writer = plan.finish(&whole).unwrap().create().unwrap();
        write(&mut writer, &payloads);
        writer.finish().unwrap();
        let options = ValueOptions { limit: 7, ..Default::default() };
        let a = artifact.verify_values(&options).unwrap();
        let b = Artifact::open(&whole).unwrap().verify_values(&options).unwrap();
        assert_eq!(a.tensors, b.tensors);
    }
}

/// What the piecewise check finds is what the registry's own check of the whole payload finds.
#[test]
fn values_are_checked_like_whole_payloads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let mut plan = ArtifactPlan::new();
    let mut payloads = Vec::new();
    let mut random = Random(3);
    for format in FormatId::all() {
        // Large enough for several pieces of 2 MiB.
        let (shape, divisors): (Vec<u64>, u64) = match format.scheme() {
            Scheme::Direct(_) => (vec![3, 1 << 20], 1),
            Scheme::Grouped(_) => (vec![3001, 2200], 1),
            Scheme::Nvfp4 => (vec![4 * 1280, 2048], 4),
            Scheme::RowScaled(_) => (vec![3001, 1500], 1),
            Scheme::Gguf(kind) => (vec![2000, 10 * kind.values() as u64 * 256 / kind.values() as u64], 1),
        };
        let bytes = encoded_size(format, &shape, divisors).unwrap() as usize;
        plan.tensor(format.name(), format, &shape, divisors).unwrap();
        // Mostly zeros, which are legal nearly everywhere, with some random bytes in random places.
        // Code 0 of the offset format is not a zero byte.
        let mut payload = vec![if format == FormatId::Q2G64Fp16 { 0x55 } else { 0 }; bytes];
        if let (Scheme::Grouped(s), FormatId::Q2G64Fp16) = (format.scheme(), format) {
            let plan = ninfer_formats::layout::RowSplit::plan(&s, shape[0], shape[1]).unwrap();
            payload[(shape[0] * plan.base_row) as usize..].fill(0);
        }
        for _ in 0..60 {
            let at = random.below(bytes as u64 - 8) as usize;
            payload[at..at + 8].copy_from_slice(&random.bytes(8));
        }
        // The last byte before each plane lies between planes, with these shapes.
        match format.scheme() {
            Scheme::Grouped(s) => {
                let plan = ninfer_formats::layout::RowSplit::plan(&s, shape[0], shape[1]).unwrap();
                if !(shape[0] * plan.base_row).is_multiple_of(256) {
                    payload[plan.high_at as usize - 1] = 1;
                }
                if plan.high_row > 0 {
                    assert!(!(shape[0] * plan.high_row).is_multiple_of(256));
                    payload[plan.scale_at as usize - 1] = 1;
                }
            }
            Scheme::RowScaled(ninfer_formats::RowScale::Bf16) => {
                payload[(shape[0] * shape[1]).next_multiple_of(256) as usize - 1] = 1;
            }
            _ => {}
        }
        // Bytes near the end are scales or divisors, those in between are planes and gaps.
        payload[bytes - 1] = 0xff;
        payload[bytes - 2] = 0xff;
        payloads.push((format, shape, divisors, payload));
    }
    plan.component("text", text());
    let mut writer = plan.finish(&path).unwrap().create().unwrap();
    for (format, _, _, payload) in &payloads {
        writer.write(format.name(), payload).unwrap();
    }
    writer.finish().unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let many = usize::MAX - 1;
    let report = artifact.verify_values(&ValueOptions { limit: many, ..Default::default() }).unwrap();
    let one = ValueOptions { limit: many, threads: std::num::NonZero::new(1), progress: None };
    assert_eq!(artifact.verify_values(&one).unwrap().tensors, report.tensors);
    assert_eq!(report.tensors.len(), 30);
    let mut with_findings = 0;
    for (found, (format, shape, divisors, payload)) in report.tensors.iter().zip(&payloads) {
        assert_eq!(found.id, format.name());
        let view = TensorView::new(*format, shape, *divisors, payload).unwrap();
        let mut wanted = view.violations(many);
        let mut seen = found.violations.clone();
        // The whole check reports divisors after all rows.
        wanted.sort_by_key(|v| format!("{v:?}"));
        seen.sort_by_key(|v| format!("{v:?}"));
        assert_eq!(seen, wanted, "{format}");
        with_findings += usize::from(!seen.is_empty());
        match format.scheme() {
            Scheme::Direct(ninfer_formats::DirectKind::Int32) => assert_eq!(found.non_finite, None),
            Scheme::Direct(_) | Scheme::Gguf(_) => {
                let mut values = vec![0.0f32; view.elements()];
                view.decode_f32(&mut values).unwrap();
                let unit = match format.scheme() {
                    Scheme::Gguf(kind) => kind.values(),
                    _ => 1,
                };
                let broken: Vec<usize> = values
                    .chunks_exact(unit)
                    .enumerate()
                    .filter(|(_, c)| c.iter().any(|x| !x.is_finite()))
                    .map(|(i, _)| i)
                    .collect();
                let per_row = view.k() / unit;
                // A block with a bad scale may still decode to finite values (zero times NaN never does, but a
                // minimum of zero can hide an infinite scale): the scan finds at least what decoding shows.
                let count = found.non_finite.map_or(0, |n| n.count);
                assert!(count >= broken.len() as u64, "{format}: {count} < {}", broken.len());
                if let (Some(n), Some(&first)) = (found.non_finite, broken.first()) {
                    assert!(n.row * per_row as u64 + n.index <= first as u64, "{format}");
                }
            }
            _ => assert_eq!(found.non_finite, None),
        }
    }
    assert!(with_findings >= 8, "{with_findings}");

    // The first findings are the same for any limit and number of threads.
    for limit in [0, 1, 5] {
        for threads in [1, 2, 5] {
            let options = ValueOptions { limit, threads: std::num::NonZero::new(threads), progress: None };
            let few = artifact.verify_values(&options).unwrap();
            for (few, all) in few.tensors.iter().zip(&report.tensors) {
                assert_eq!(few.violations, all.violations[..limit.min(all.violations.len())], "{}", few.id);
                assert_eq!(few.more, all.violations.len() > limit, "{}", few.id);
                assert_eq!(few.non_finite, all.non_finite);
            }
        }
    }
}

#[test]
fn value_checks_report_progress_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let mut plan = ArtifactPlan::new();
    plan.tensor("a", FormatId::Fp32, &[8 << 20], 1).unwrap();
    plan.component("text", text());
    let mut writer = plan.finish(&path).unwrap().create().unwrap();
    writer.fill("a", &mut io::repeat(0)).unwrap();
    writer.finish().unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let last = std::sync::Mutex::new((0, 0));
    let see = |done: u64, total: u64| {
        let mut last = last.lock().unwrap();
        assert!(done > last.0 && done <= total);
        *last = (done, total);
        std::ops::ControlFlow::Continue(())
    };
    artifact.verify_values(&ValueOptions { progress: Some(&see), ..Default::default() }).unwrap();
    assert_eq!(*last.lock().unwrap(), (32 << 20, 32 << 20));
    let stop = |_: u64, _: u64| std::ops::ControlFlow::Break(());
    let e =
        artifact.verify_values(&ValueOptions { progress: Some(&stop), ..Default::default() }).unwrap_err();
    assert!(matches!(e.kind(), K::Cancelled { .. }), "{e}");
}

#[test]
fn the_directory_survives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let mut plan = ArtifactPlan::new();
    plan.tensor("a\"\\\n\u{7f}ü", FormatId::Bf16, &[], 1).unwrap();
    plan.tensor("n", FormatId::Nvfp4, &[256, 64], 2).unwrap();
    plan.resource("r", 3).unwrap();
    let config = Json::object([
        ("f", Json::from(0.1)),
        ("tiny", Json::from(5e-324)),
        ("max", Json::from(u64::MAX)),
        ("min", Json::from(i64::MIN)),
        ("list", Json::array([1.5, -0.0])),
        ("none", Json::Null),
        ("", Json::from(true)),
    ]);
    let mut component = Component::with_config(config.clone());
    component.proposal = Some(Proposal::Full);
    component.resources.push(("role".into(), "r".into()));
    plan.component("text", component.clone());
    let mut draft = text();
    draft.target = Some("text".into());
    plan.component("draft", draft.clone());
    let parts = Binding::Parts(vec![
        BindingPart { object: "n".into(), begin: 64, end: 256 * 64 },
        BindingPart { object: "a\"\\\n\u{7f}ü".into(), begin: 0, end: 1 },
    ]);
    plan.binding("p", parts.clone());
    plan.binding("q", Binding::Object("n".into()));
    let used = Use {
        parameter: "p".into(),
        input: "x".into(),
        activation_policy: Some(ActivationPolicy::AllowA4),
        auxiliaries: vec![("scale".into(), parts.clone())],
    };
    plan.add_use(used.clone());
    plan.metadata(Json::object([("name", Json::from("model"))]));
    plan.provenance(Json::object([("from", Json::from("tests"))]));
    let mut writer = plan.finish(&path).unwrap().create().unwrap();
    writer.write("r", b"abc").unwrap();
    writer.write("n", &vec![1; encoded_size(FormatId::Nvfp4, &[256, 64], 2).unwrap() as usize]).unwrap();
    writer.write("a\"\\\n\u{7f}ü", &[1, 2]).unwrap();
    writer.finish().unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let d = artifact.directory();
    assert_eq!(d.components().get("text"), Some(&component));
    assert_eq!(d.components().get("draft"), Some(&draft));
    assert_eq!(d.bindings().get("p"), Some(&parts));
    assert_eq!(d.bindings().len(), 2);
    assert_eq!(d.uses(), [used]);
    assert_eq!(d.name(), Some("model"));
    assert_eq!(d.provenance().unwrap().get("from").unwrap().as_str(), Some("tests"));
    assert_eq!(d.object("n").unwrap().as_tensor().unwrap().divisors, 2);
    assert_eq!(d.object("a\"\\\n\u{7f}ü").unwrap().as_tensor().unwrap().shape, [0u64; 0]);
    let payload = artifact.payload("n").unwrap();
    assert_eq!(artifact.tensor_view("n", &payload).unwrap().divisors(), 2);
    let text: serde_json::Value = serde_json::from_slice(artifact.json_text()).unwrap();
    assert_eq!(text["components"]["text"]["config"]["max"], u64::MAX);
}

// ---- plans that break a rule

#[test]
fn a_plan_that_breaks_a_rule_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let refuse = |build: &dyn Fn(&mut ArtifactPlan), text_component: bool, wanted: &str| {
        let mut plan = ArtifactPlan::new();
        plan.tensor("t", FormatId::Fp32, &[4], 1).unwrap();
        if text_component {
            plan.component("text", text());
        }
        build(&mut plan);
        let e = plan.finish(&path).unwrap_err();
        assert!(e.to_string().contains(wanted), "{e}");
        assert!(e.to_string().contains("x.ninfer"), "{e}");
    };
    refuse(&|p| p.tensor("t", FormatId::Bf16, &[4], 1).unwrap(), true, "an id that no other object has");
    refuse(&|p| p.tensor("", FormatId::Bf16, &[4], 1).unwrap(), true, "expected an ID");
    refuse(&|p| p.component("text", text()), true, "duplicate member \"text\"");
    refuse(&|_| {}, false, "expected \"text\"");
    refuse(&|p| p.binding("w", Binding::Object("no".into())), true, "object \"no\" does not exist");
    refuse(
        &|p| {
            p.binding("w", Binding::Object("t".into()));
            p.binding("w", Binding::Object("t".into()));
        },
        true,
        "duplicate member \"w\"",
    );
    let part = |end| Binding::Parts(vec![BindingPart { object: "t".into(), begin: 0, end }]);
    refuse(&|p| p.binding("w", part(5)), true, "0 <= begin < end <= 4");
    refuse(&|p| p.metadata(Json::array([1u64])), true, "metadata: found an array");
    refuse(&|p| p.provenance(Json::Null), true, "provenance: found null");
    refuse(
        &|p| p.component("v", Component::with_config(Json::Null)),
        true,
        "components.v.config: found null",
    );
    refuse(&|p| p.file_limit(8191), true, "a file size limit of 8191 bytes leaves no room");
    let mut plan = ArtifactPlan::new();
    let e = plan.tensor("t", FormatId::GgufQ4K, &[2, 896], 1).unwrap_err();
    assert!(e.to_string().contains("row length 896 is not a multiple of 256"), "{e}");
    let e = plan.tensor("t", FormatId::Q4G64Fp16, &[2, 64], 2).unwrap_err();
    assert!(e.to_string().contains("only nvfp4 has divisors"), "{e}");
    let e = plan.resource("r", 0).unwrap_err();
    assert!(matches!(e.kind(), K::Format(_)), "{e}");
    plan.component("text", text());
    let e = plan.clone().finish(&path).unwrap_err();
    assert!(e.to_string().contains("at least one object"), "{e}");
    for target in ["", "/", ".."] {
        let e = plan.clone().finish(target).unwrap_err();
        assert!(matches!(e.kind(), K::TargetPath { .. }), "{e}");
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn provenance_may_follow_into_reserved_space() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let mut plan = ArtifactPlan::new();
    plan.resource("r", 5000).unwrap();
    plan.component("text", text());
    plan.reserve(10_000);
    let mut writer = plan.finish(&path).unwrap().create().unwrap();
    writer.fill("r", &mut io::repeat(9)).unwrap();
    let note = |n: usize| Json::object([("digest", Json::from("d".repeat(n)))]);
    let e = writer.set_provenance(note(20_000)).unwrap_err();
    assert!(matches!(e.kind(), K::DirectoryGrew { .. }), "{e}");
    let e = writer.set_provenance(Json::Null).unwrap_err();
    assert!(matches!(e.kind(), K::JsonType { .. }), "{e}");
    writer.set_provenance(note(9_000)).unwrap();
    writer.finish().unwrap();
    let artifact = Artifact::open(&path).unwrap();
    assert_eq!(artifact.directory().provenance(), Some(&note(9_000)));
    assert_eq!(&*artifact.payload("r").unwrap(), [9; 5000]);
}

// ---- large files

/// Offsets beyond 32 bits, in a sparse file: the last tensor is written and read where it belongs.
#[test]
fn beyond_four_gib() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big.ninfer");
    let rows = 5u64 << 15;
    let offset = rows * 1024 * 34;
    assert!(offset > u64::from(u32::MAX));
    let json = format!(
        r#"{{"components":{{"text":{{"config":{{}}}}}},"objects":[{{"id":"head","kind":"tensor","shape":[{rows},32768],"format":"gguf_q8_0","layout":"gguf_blocks_v1","offset":0,"bytes":{offset}}},{{"id":"tail","kind":"tensor","shape":[4],"format":"fp32","layout":"contiguous_le_v1","offset":{offset},"bytes":16}}],"bindings":{{}},"uses":[],"files":[{{"path":null,"payload_bytes":{}}}]}}"#,
        offset + 16
    );
    let header = common::entry(json.as_bytes(), &[]);
    assert_eq!(header.len(), 4096);
    std::fs::write(&path, &header).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096 + offset + 16).unwrap();
    let mut file = file;
    file.seek(io::SeekFrom::Start(4096 + offset)).unwrap();
    let values: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    file.write_all(&values).unwrap();
    // A block in a row past 4 GiB.
    let row = 140_000u64;
    file.seek(io::SeekFrom::Start(4096 + row * 1024 * 34)).unwrap();
    file.write_all(&[0x00, 0x3c, 7]).unwrap();
    drop(file);

    if usize::BITS < 64 {
        // Opening reads the directory alone or refuses the file by its size; nothing wraps.
        let error = Artifact::open(&path).and_then(|a| a.payload("tail").map(|_| ())).unwrap_err();
        assert!(error.to_string().contains("5704257552 bytes cannot be mapped"), "{error}");
        return;
    }
    let artifact = Artifact::open(&path).unwrap();
    assert_eq!(&*artifact.payload("tail").unwrap(), values);
    let head = artifact.payload("head").unwrap();
    let view = artifact.tensor_view("head", &head).unwrap();
    let (gathered, _) = view.gather_payload(&[row as usize, 0]).unwrap();
    assert_eq!(gathered[..3], [0x00, 0x3c, 7]);
    let mut piece = [0; 3];
    artifact.read_at("head", row * 1024 * 34, &mut piece).unwrap();
    assert_eq!(piece, [0x00, 0x3c, 7]);
    assert!(artifact.verify_structure().is_ok());
}

/// The writer puts bytes beyond 4 GiB where they belong, also when parts begin there.
#[test]
fn the_writer_counts_beyond_four_gib() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = ArtifactPlan::new();
    plan.tensor("head", FormatId::GgufQ8_0, &[5 << 15, 32 * 1024], 1).unwrap();
    plan.tensor("tail", FormatId::Fp32, &[4], 1).unwrap();
    plan.component("text", text());
    plan.file_limit((4 << 30) + 8192);
    let layout = plan.finish(dir.path().join("x.ninfer")).unwrap();
    let sizes: Vec<u64> = layout.directory().files().iter().map(|f| f.payload_bytes).collect();
    let total = 5 * (1u64 << 15) * 1024 * 34 + 16;
    assert_eq!(sizes, [(4 << 30) + 4096, total - (4 << 30) - 4096]);
    let spans = layout.directory().spans(total - 16, total).unwrap();
    assert_eq!((spans[0].file, spans[0].len), (1, 16));
    // Only `tail` is written; the sparse files cost no space and vanish with the writer.
    let mut writer = layout.create().unwrap();
    writer.write("tail", &[7; 16]).unwrap();
    let e = writer.finish().unwrap_err();
    assert!(matches!(e.kind(), K::Coverage { incomplete: 1, .. }), "{e}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn gaps_are_noted_and_mean_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let json = common::DIRECTORY
        .replace(r#""offset":256"#, r#""offset":512"#)
        .replace(r#""offset":268"#, r#""offset":600"#)
        .replace(r#""payload_bytes":273"#, r#""payload_bytes":700"#);
    std::fs::write(&path, common::entry(json.as_bytes(), &Random(1).bytes(700))).unwrap();
    let report = Artifact::open(&path).unwrap().verify_structure();
    assert!(report.is_ok());
    assert_eq!(
        report.gaps,
        [Gap { begin: 68, end: 512 }, Gap { begin: 524, end: 600 }, Gap { begin: 605, end: 700 }]
    );
    assert_eq!(report.unused_bytes, 444 + 76 + 95);
    assert_eq!((report.tensors, report.resources, report.payload_bytes), (2, 1, 700));
}
