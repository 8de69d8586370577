//! Conversions by recipe: every method and format against encoding whole tensors, chunks, regions, stacks, importance.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::gguf::{Source, source};
use common::recipe::{convert, f32_tensor, fresh, open, plan, plan_with, run, values};
use common::{Random, names};
use ninfer_artifact::container::{Binding, BindingPart, Json, ValueOptions};
use ninfer_artifact::convert::{ImportanceFile, RecipePlan, RunOptions, Session};
use ninfer_artifact::{Artifact, ArtifactErrorKind as K};
use ninfer_formats::encoder::{ENCODERS, EncoderId, Params, encode};
use ninfer_formats::{FormatId, TensorView};
use ninfer_gguf::{GgmlType, Imatrix, Importance};
use ninfer_simd_ops::Dispatch;

fn part(object: &str, begin: u64, end: u64) -> BindingPart {
    BindingPart { object: object.into(), begin, end }
}

/// The words of a whole matrix, by the reference.
fn whole(format: FormatId, method: EncoderId, n: usize, k: usize, x: &[f32], params: Params<'_>) -> Vec<u8> {
    if method == EncoderId::CastDirect {
        use ninfer_formats::encoder::{Values, cast_direct};
        return cast_direct(format, &[n as u64, k as u64], Values::F32(x)).unwrap();
    }
    encode(format, method, n, k, x, params).unwrap()
}

#[test]
fn every_method_and_format_in_any_chunks_with_any_threads() {
    let dir = tempfile::tempdir().unwrap();
    let k = 512;
    let (x, tiles) = (values(&mut Random(1), 37 * k), values(&mut Random(2), 256 * k));
    // Integral values, for int32.
    let whole_numbers: Vec<f32> = (0..37 * k).map(|i| (i % 1000) as f32 - 500.0).collect();
    let all = [("m", 37, &x), ("i", 37, &whole_numbers), ("t", 256, &tiles)];
    let tensors: Vec<Source> = all.iter().map(|&(name, n, x)| f32_tensor(name, &[k as u64, n], x)).collect();
    let from = open(dir.path(), &tensors);
    for spec in &ENCODERS {
        for &format in spec.formats {
            let (name, n, x) = all[match format {
                FormatId::Int32 => 1,
                FormatId::Nvfp4 => 2,
                _ => 0,
            }];
            let recipe = format!(
                "[[rule]]\nmatch = '{name}'\nformat = '{format}'\nmethod = '{}'\n[[rule]]\nmatch = '*'\ndrop = true",
                spec.name
            );
            let expected = whole(format, spec.id, n as usize, k, x, Params::default());
            let plan = plan(&from, &recipe).unwrap_or_else(|e| panic!("{e}"));
            let mut files = Vec::new();
            for (memory, threads) in [(1 << 30, 1), (1 << 30, 5), (600_000, 1), (1_200_000, 2)] {
                let to = fresh(dir.path(), "out.ninfer");
                let options =
                    RunOptions { memory: Some(memory), threads: Some(threads), ..RunOptions::default() };
                let done = run(&plan, &to, options).unwrap_or_else(|e| panic!("{e}"));
                assert!(done.peak_memory() <= memory, "{} of {memory}", done.peak_memory());
                let artifact = Artifact::open(&to).unwrap();
                assert!(artifact.verify_values(&ValueOptions::default()).unwrap().is_ok());
                assert_eq!(&*artifact.payload(name).unwrap(), &expected[..], "{format} {}", spec.name);
                files.push(std::fs::read(&to).unwrap());
            }
            // Statistics and provenance included, whatever the chunks.
            assert!(files.iter().all(|f| *f == files[0]), "{format}");
        }
    }
}

#[test]
fn units_stored_in_any_order_make_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(2), 50 * 300);
    let from = open(dir.path(), &[f32_tensor("m", &[300, 50], &x)]);
    let plan =
        plan(&from, "[[rule]]\nmatch = 'm'\nformat = 'q5_g64_fp16'\nmethod = 'grouped_search'").unwrap();
    let to = fresh(dir.path(), "a.ninfer");
    run(&plan, &to, RunOptions::default()).unwrap();
    let expected = std::fs::read(&to).unwrap();
    let to = fresh(dir.path(), "b.ninfer");
    let session = Session::start(plan.clone(), &to, RunOptions::default()).unwrap();
    let mut units = plan.units(0, 7).unwrap();
    assert_eq!(units.len(), 8);
    units.reverse();
    units.swap(0, 5);
    for rows in units {
        let words = plan.encode(0, rows.clone(), &Dispatch::default()).unwrap();
        session.store(0, &rows, &words.payload, &words.statistics).unwrap();
        // Twice is once too often.
        let e = session.store(0, &rows, &words.payload, &words.statistics).unwrap_err();
        assert!(matches!(e.kind(), K::WrittenTwice { .. }), "{e}");
    }
    assert!(session.remaining().is_empty());
    session.finish().unwrap();
    assert!(std::fs::read(&to).unwrap() == expected);
    // Words of other rows, too few statistics, rows beyond the end.
    let session = Session::start(plan.clone(), fresh(dir.path(), "c"), RunOptions::default()).unwrap();
    let words = plan.encode(0, 0..3, &Dispatch::default()).unwrap();
    for (rows, payload, statistics) in [
        (0..4, &words.payload[..], &words.statistics[..]),
        (0..3, &words.payload[1..], &words.statistics[..]),
        (0..3, &words.payload[..], &words.statistics[..1]),
        (48..51, &words.payload[..], &words.statistics[..]),
        (3..3, &words.payload[..], &words.statistics[..]),
    ] {
        assert!(session.store(0, &rows, payload, statistics).is_err(), "{rows:?}");
    }
    assert!(session.store(1, &(0..3), &words.payload, &words.statistics).is_err());
    assert!(session.finish().is_err());
    assert_eq!(names(dir.path()), ["a.ninfer", "b.ninfer", "m.gguf"]);
}

#[test]
fn without_rules_every_tensor_keeps_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    let mut tensors: Vec<Source> = Vec::new();
    for format in FormatId::all() {
        if let ninfer_formats::Scheme::Gguf(kind) = format.scheme() {
            let k = kind.values() as u64;
            tensors.push(source(&mut random, format.name(), GgmlType(kind.ggml_type()), &[2 * k, 3]));
        }
    }
    for (name, ggml_type) in [("f32", 0), ("bf16", 30), ("i32", 26), ("i8", 24)] {
        tensors.push(source(&mut random, name, GgmlType(ggml_type), &[3, 4, 2]));
    }
    tensors.push(source(&mut random, "f16", GgmlType(1), &[7]));
    tensors.push(source(&mut random, "experts", GgmlType(12), &[256, 3, 4]));
    let from = open(dir.path(), &tensors);
    let (done, artifact) = convert(&from, "", &dir.path().join("out.ninfer"));
    assert!(artifact.verify_structure().is_ok());
    for (i, (name, ggml_type, dims, bytes)) in tensors.iter().enumerate() {
        let id = std::str::from_utf8(name).unwrap();
        let payload = artifact.payload(id).unwrap();
        let spec = artifact.object(id).unwrap().tensor().unwrap();
        match ggml_type.0 {
            1 => {
                let words: Vec<u8> = bytes
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .flat_map(|w| {
                        ninfer_formats::float::f16::to_f32_bits(u16::from_le_bytes(*w)).to_le_bytes()
                    })
                    .collect();
                assert_eq!(&*payload, &words[..]);
                assert_eq!(done.statistics(i).unwrap().sums.error, 0.0);
            }
            24 => {
                let words: Vec<u8> = bytes.iter().flat_map(|&b| i32::from(b as i8).to_le_bytes()).collect();
                assert_eq!((spec.format, &*payload), (FormatId::Int32, &words[..]));
            }
            _ => {
                assert_eq!(&*payload, &bytes[..], "{id}");
                assert!(done.statistics(i).is_none());
            }
        }
        let direct = matches!(spec.format.scheme(), ninfer_formats::Scheme::Direct(_));
        if direct {
            assert_eq!(spec.shape, dims.iter().rev().copied().collect::<Vec<_>>());
        }
        let sha256 = done.sha256(i).unwrap();
        use sha2::Digest;
        let expected: String = sha2::Sha256::digest(&*payload).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(sha256, expected);
    }
    // What the plain conversion makes, byte for byte.
    let set = ninfer_gguf::GgufSet::open(dir.path().join("m.gguf")).unwrap();
    let e = ninfer_artifact::plan_gguf(&set, &Default::default()).unwrap_err();
    assert!(e.to_string().contains("i8"), "only I8 is beyond it");
}

#[test]
fn regions_drops_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(4);
    let x = values(&mut random, 20 * 64);
    let mut tensors = vec![f32_tensor("embed", &[64, 20], &x)];
    for name in ["blk.0.w", "blk.1.w", "rope", "cut", "head"] {
        tensors.push(f32_tensor(name, &[64, 20], &values(&mut random, 20 * 64)));
    }
    let from = open(dir.path(), &tensors);
    let recipe = r#"
[[rule]]
match = "embed"
rows = [4, 10]
format = "q8_g32_fp16"
[[rule]]
match = "embed"
rows = [0, 12]
name = "frequent"
format = "bf16"
[[rule]]
match = "blk.{n}.w"
name = "layer.{n}"
format = "q4_g64_fp16"
[[rule]]
match = "rope"
drop = true
[[rule]]
match = "cut"
rows = [15, 20]
drop = true
"#;
    let plan = plan(&from, recipe).unwrap();
    let got: Vec<(&str, FormatId, Vec<u64>)> =
        plan.tensors().iter().map(|t| (t.name.as_str(), t.format, t.shape.clone())).collect();
    // Two regions of one name are two tensors: refused above if they had the same.
    assert_eq!(got[1], ("embed.rows.4-10", FormatId::Q8G32Fp16, vec![6, 64]));
    drop(got);
    let to = dir.path().join("out.ninfer");
    run(&plan, &to, RunOptions::default()).unwrap();
    let artifact = Artifact::open(&to).unwrap();
    let bindings = artifact.directory().bindings();
    let Some(Binding::Parts(parts)) = bindings.get("embed") else { panic!("parts") };
    let total: u64 = parts.iter().map(|p| p.end - p.begin).sum();
    assert_eq!((parts.len(), total), (4, 20 * 64));
    assert_eq!(parts[1], part("embed.rows.4-10", 0, 6 * 64));
    let payload = artifact.payload("embed.rows.4-10").unwrap();
    let rows = &x[4 * 64..10 * 64];
    let expected = whole(FormatId::Q8G32Fp16, EncoderId::GroupedAbsmax, 6, 64, rows, Params::default());
    assert_eq!(&*payload, &expected[..]);
    assert_eq!(bindings.get("layer.1"), Some(&Binding::Object("layer.1".into())));
    assert_eq!(bindings.get("blk.1.w"), None);
    assert_eq!(bindings.get("rope"), None);
    assert_eq!(bindings.get("cut"), Some(&Binding::Object("cut.rows.0-15".into())));
    assert_eq!(artifact.object("cut.rows.0-15").unwrap().tensor().unwrap().shape, [15, 64]);
    let dropped = artifact.directory().provenance().unwrap().get("dropped").unwrap().to_string();
    assert_eq!(dropped, r#"[{"tensor":"rope","rows":null},{"tensor":"cut","rows":[15,20]}]"#);
}

#[test]
fn stacks_join_rows_and_bind_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    let k = 64u64;
    let mut tensors = Vec::new();
    let mut all: Vec<Vec<f32>> = Vec::new();
    for layer in 0..2 {
        for (name, n) in [("v", 2), ("q", 4), ("k", 3)] {
            let x = values(&mut random, (n * k) as usize);
            tensors.push(f32_tensor(&format!("l.{layer}.{name}.w"), &[k, n], &x));
            all.push(x);
        }
    }
    let from = open(dir.path(), &tensors);
    for bind in ["both", "parts", "parent"] {
        let recipe = format!(
            "[[rule]]\nstack = 'l.{{n}}.{{q,k,v}}.w'\nname = 'l.{{n}}.qkv'\nbind = '{bind}'\nformat = 'q6_g64_fp16'"
        );
        let (_, artifact) = convert(&from, &recipe, &fresh(dir.path(), "out.ninfer"));
        assert_eq!(artifact.objects().iter().filter(|o| o.as_tensor().is_some()).count(), 2);
        let joined: Vec<f32> = [&all[4][..], &all[5][..], &all[3][..]].concat();
        let expected =
            whole(FormatId::Q6G64Fp16, EncoderId::GroupedAbsmax, 9, 64, &joined, Params::default());
        assert_eq!(&*artifact.payload("l.1.qkv").unwrap(), &expected[..]);
        let bindings = artifact.directory().bindings();
        let parent = bindings.get("l.1.qkv");
        let part_k = bindings.get("l.1.k.w");
        assert_eq!(parent.is_some(), bind != "parts");
        assert_eq!(part_k.is_some(), bind != "parent");
        if let Some(found) = part_k {
            assert_eq!(*found, Binding::Parts(vec![part("l.1.qkv", 4 * k, 7 * k)]));
        }
    }
    // Kept words stack as well.
    let (_, artifact) = convert(
        &from,
        "[[rule]]\nstack = ['l.{n}.q.w', 'l.{n}.k.w', 'l.{n}.v.w']\nname = 'x.{n}'\nformat = 'keep'",
        &fresh(dir.path(), "out.ninfer"),
    );
    assert_eq!(artifact.object("x.0").unwrap().tensor().unwrap().shape, [9, 64]);
    for (recipe, why) in [
        ("[[rule]]\nstack = 'l.{n}.{q,k,x}.w'\nname = 'l.{n}'\nformat = 'fp32'", "lacks \"l.0.x.w\""),
        (
            "[[rule]]\nmatch = 'l.0.k.w'\nformat = 'fp32'\n[[rule]]\nstack = 'l.{n}.{q,k}.w'\nname = 'l.{n}'\nformat = 'fp32'",
            "is taken by rule 1",
        ),
        ("[[rule]]\nstack = 'l.{n}.{q,k}.w'\nname = 'one'\nformat = 'fp32'", "\"one\""),
        ("[[rule]]\nstack = ['l.*.q.w', 'l.0.k.w']\nname = 'one'\nformat = 'fp32'", "same part"),
    ] {
        let e = plan(&from, recipe).unwrap_err();
        assert!(matches!(e.kind(), K::Unplannable { .. }), "{e}");
        assert!(e.to_string().contains(why), "{e}");
    }
}

#[test]
fn everything_that_does_not_fit_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(6);
    let tensors = [
        f32_tensor("a", &[896, 2], &values(&mut random, 2 * 896)),
        f32_tensor("norm", &[256], &values(&mut random, 256)),
        source(&mut random, "q", GgmlType(12), &[256, 2]),
        source(&mut random, "f64", GgmlType(28), &[32, 2]),
        source(&mut random, "i64", GgmlType(27), &[32, 2]),
        source(&mut random, "odd", GgmlType(3), &[32, 2]),
        (b"empty".to_vec(), GgmlType::F32, vec![0, 3], vec![]),
    ];
    let from = open(dir.path(), &tensors);
    let recipe = r#"
[[rule]]
match = "a"
format = "gguf_q4_k"
method = "import_encoded"
[[rule]]
match = "norm"
format = "q4_g64_fp16"
[[rule]]
match = "i64"
format = "bf16"
[[rule]]
match = "q"
rows = [1, 3]
format = "fp32"
[[rule]]
match = "nothing*"
format = "fp32"
"#;
    let e = plan(&from, recipe).unwrap_err();
    let K::Unplannable { refusals, rules } = e.kind() else { panic!("{e}") };
    let text = e.to_string();
    for part in [
        "\"a\" (F32)",
        "not importable as gguf_q4_k; they are as fp32",
        "\"norm\" (F32)",
        "it has rank 1",
        "it holds integers",
        "rows [1, 3) are beyond its 2 rows",
        "no registered format holds the words of F64",
        "no format for ggml type 3",
        "dimension 0 of [3, 0] is zero",
        "rule 5 (\"nothing*\") matches no tensor",
    ] {
        let part = if part.starts_with("dimension") { "is zero: an object cannot be empty" } else { part };
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!((refusals.len(), rules.len()), (7, 1));
    assert_eq!(names(dir.path()), ["m.gguf"]);
    let e = plan(
        &from,
        "[[rule]]\nmatch = 'a'\nformat = 'gguf_q4_0'\nmethod = 'gguf_search'\n[default]\nformat = 'refuse'",
    );
    assert!(e.unwrap_err().to_string().contains("no rule matches it"));
}

/// FR-75: before the first byte, with the length and the block.
#[test]
fn block_lengths_are_named_and_fallbacks_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(7);
    let tensors = [
        f32_tensor("a.w", &[48, 2], &values(&mut random, 96)),
        f32_tensor("b.w", &[64, 2], &values(&mut random, 128)),
        f32_tensor("c.w", &[64], &values(&mut random, 64)),
    ];
    let from = open(dir.path(), &tensors);
    let rule = "[[rule]]\nmatch = '*.w'\nformat = 'gguf_q4_0'\nmethod = 'gguf_search'\n";
    let e = plan(&from, rule).unwrap_err().to_string();
    assert!(e.contains("row length 48 is not a multiple of 32"), "{e}");
    let (_, artifact) =
        convert(&from, &format!("{rule}fallback = ['q8_g32_fp16', 'keep']"), &dir.path().join("out"));
    let format = |id: &str| artifact.object(id).unwrap().tensor().unwrap().format;
    assert_eq!(
        [format("a.w"), format("b.w"), format("c.w")],
        [FormatId::Q8G32Fp16, FormatId::GgufQ4_0, FormatId::Fp32]
    );
    let provenance = artifact.directory().provenance().unwrap();
    let record = |name: &str| provenance.get("tensors").unwrap().get(name).unwrap();
    let reason = record("a.w").get("fallback").and_then(Json::as_str).unwrap();
    assert!(reason.contains("48 is not a multiple of 32"), "{reason}");
    assert!(record("b.w").get("fallback").is_none());
    let reason = record("c.w").get("fallback").and_then(Json::as_str).unwrap();
    assert!(reason.contains("fallback q8_g32_fp16: it has rank 1"), "{reason}");
    // A rule that earlier ones leave nothing is said to have no effect.
    let shadowed =
        plan(&from, "[[rule]]\nmatch = '*'\nformat = 'fp32'\n[[rule]]\nmatch = 'a.w'\nformat = 'bf16'");
    let shadowed = shadowed.unwrap();
    assert!(shadowed.warnings()[0].contains("rule 2 (\"a.w\") has no effect"), "{:?}", shadowed.warnings());
    assert!(plan(&from, "[[rule]]\nmatch = 'x'\noptional = true\nformat = 'fp32'").is_ok());
}

#[test]
fn quantising_what_is_quantised_warns() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(8);
    // Small scales, so that values are plausible.
    let mut q = source(&mut random, "q", GgmlType(8), &[64, 4]);
    for block in q.3.chunks_mut(34) {
        block[..2].copy_from_slice(&0x1c00u16.to_le_bytes());
        block[2..].iter_mut().for_each(|c| *c = (*c).max(0x81));
    }
    let from = open(dir.path(), &[q.clone()]);
    let (done, artifact) =
        convert(&from, "[[rule]]\nmatch = 'q'\nformat = 'q4_g64_fp16'", &fresh(dir.path(), "o"));
    let provenance = artifact.directory().provenance().unwrap().to_string();
    assert!(provenance.contains("the source is quantised already (Q8_0)"), "{provenance}");
    assert!(done.report().to_string().contains("quantised already"));
    let expected = {
        let view = TensorView::new(FormatId::GgufQ8_0, &[4, 64], 1, &q.3).unwrap();
        let mut x = vec![0.0; 256];
        view.decode_f32(&mut x).unwrap();
        whole(FormatId::Q4G64Fp16, EncoderId::GroupedAbsmax, 4, 64, &x, Params::default())
    };
    assert_eq!(&*artifact.payload("q").unwrap(), &expected[..]);
    // The format that holds these words imports them without a method, and keeps quiet.
    let (done, artifact) =
        convert(&from, "[[rule]]\nmatch = 'q'\nformat = 'q8_g32_fp16'", &fresh(dir.path(), "o"));
    assert!(!done.report().to_string().contains("quantised already"));
    assert!(done.statistics(0).is_none());
    let expected = ninfer_formats::import::import_blocks(FormatId::Q8G32Fp16, 8, 4, 64, &q.3, None).unwrap();
    assert_eq!(&*artifact.payload("q").unwrap(), &expected[..]);
}

/// A matrix for `experts` experts of `n` rows and a plain tensor, and importance for both.
fn with_importance(dir: &std::path::Path) -> (Arc<RecipePlan>, Vec<f32>, Vec<f32>, Importance) {
    let mut random = Random(9);
    let (experts, n, k) = (3usize, 5usize, 128usize);
    let bank = values(&mut random, experts * n * k);
    let dense = values(&mut random, n * k);
    let from = open(
        dir,
        &[
            f32_tensor("ffn.exps", &[k as u64, n as u64, experts as u64], &bank),
            f32_tensor("model.dense", &[k as u64, n as u64], &dense),
        ],
    );
    let sums: Vec<f32> = (0..experts * k).map(|i| (i % 61) as f32 * 3.0).collect();
    let entry = Importance::new("ffn.exps", sums, vec![10.0, 0.0, 5.0]).unwrap();
    let mut matrix = Imatrix::new();
    matrix.insert(entry.clone()).unwrap();
    let sums = (0..k).map(|i| if i % 3 == 0 { 0.0 } else { i as f32 }).collect();
    matrix.insert(Importance::new("blk.dense", sums, vec![4.0]).unwrap()).unwrap();
    matrix.insert(Importance::new("unused", vec![1.0], vec![1.0]).unwrap()).unwrap();
    let path = dir.join("i.gguf");
    matrix.save(&path).unwrap();
    let recipe = "
[[rule]]
match = '*'
format = 'q4_g64_fp16'
method = 'grouped_search'
importance = 'required'
negative_scales = true
[[importance_name]]
match = 'model.{x}'
name = 'blk.{x}'";
    let file = ImportanceFile::open(&path).unwrap();
    (plan_with(&from, recipe, Some(file)).unwrap_or_else(|e| panic!("{e}")), bank, dense, entry)
}

#[test]
fn importance_reaches_every_expert() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, bank, dense, entry) = with_importance(dir.path());
    let (n, k) = (5, 128);
    let expected = |x: &[f32], importance: &[f32]| {
        let params = Params { importance: Some(importance), negative_scales: true };
        whole(FormatId::Q4G64Fp16, EncoderId::GroupedSearch, n, k, x, params)
    };
    let values = entry.values();
    let mut files = Vec::new();
    for memory in [1 << 30, 300_000] {
        let to = fresh(dir.path(), "o.ninfer");
        let options = RunOptions { memory: Some(memory), ..RunOptions::default() };
        let done = run(&plan, &to, options).unwrap();
        let artifact = Artifact::open(&to).unwrap();
        let payload = artifact.payload("ffn.exps").unwrap();
        let view = TensorView::new(FormatId::Q4G64Fp16, &[15, 128], 1, &payload).unwrap();
        for e in 0..3 {
            let (part, _) = view.row_range(e * n, (e + 1) * n).unwrap().slice_payload().unwrap();
            let weights = &values[e * k..(e + 1) * k];
            assert_eq!(part, expected(&bank[e * n * k..(e + 1) * n * k], weights), "expert {e}");
            if e == 1 {
                assert!(weights.iter().all(|&w| w == 1.0));
            }
        }
        let weights: Vec<f32> = (0..k).map(|i| if i % 3 == 0 { 0.0 } else { i as f32 / 4.0 }).collect();
        assert_eq!(&*artifact.payload("model.dense").unwrap(), &expected(&dense, &weights)[..]);
        assert!(done.statistics(1).unwrap().weighted_relative_rms().unwrap() > 0.0);
        files.push(std::fs::read(&to).unwrap());
    }
    assert!(files[0] == files[1]);
    let text = plan.to_json().to_string();
    assert!(text.contains(r#""experts":3,"experts_without_data":1"#), "{text}");
    assert!(plan.warnings().iter().any(|w| w.contains("1 entries are not used: \"unused\"")));
    assert!(plan.warnings().iter().any(|w| w.contains("1 of 3 experts saw no calibration data")));
}

#[test]
fn importance_that_is_missing_or_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = open(dir.path(), &[f32_tensor("m", &[64, 2], &values(&mut Random(1), 128))]);
    let rule = |use_: &str| {
        format!(
            "[[rule]]\nmatch = 'm'\nformat = 'q4_g64_fp16'\nmethod = 'grouped_search'\nimportance = '{use_}'"
        )
    };
    let e = plan(&from, &rule("required")).unwrap_err().to_string();
    assert!(e.contains("no importance matrix was given"), "{e}");
    let file = |name: &str, k: usize| {
        let mut matrix = Imatrix::new();
        matrix.insert(Importance::new(name, vec![1.0; k], vec![1.0]).unwrap()).unwrap();
        let path = fresh(dir.path(), "i.gguf");
        matrix.save(&path).unwrap();
        Some(ImportanceFile::open(&path).unwrap())
    };
    let e = plan_with(&from, &rule("required"), file("other", 64)).unwrap_err().to_string();
    assert!(e.contains("has no entry \"m\""), "{e}");
    let e = plan_with(&from, &rule("auto"), file("m", 32)).unwrap_err().to_string();
    assert!(e.contains("does not fit a tensor of 1 x 64"), "{e}");
    let plan = plan_with(&from, &rule("none"), file("m", 32)).unwrap();
    assert!(plan.tensors()[0].pieces[0].importance.is_none());
    let plan = plan_with(&from, &rule("auto"), file("m", 64)).unwrap();
    assert!(plan.tensors()[0].pieces[0].importance.is_some());
    assert!(ImportanceFile::open(dir.path().join("m.gguf")).is_err());
}

#[test]
fn a_budget_is_kept_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(11), 600 * 4096);
    let from = open(dir.path(), &[f32_tensor("m", &[4096, 600], &x)]);
    let plan = plan(&from, "[[rule]]\nmatch = 'm'\nformat = 'q8_g32_fp16'").unwrap();
    let mut files = Vec::new();
    for memory in [600_000, 1 << 20, 3 << 20, 1 << 30] {
        for threads in [1, 2, 9] {
            let to = fresh(dir.path(), "o");
            let options =
                RunOptions { memory: Some(memory), threads: Some(threads), ..RunOptions::default() };
            let done = run(&plan, &to, options).unwrap();
            assert!(done.peak_memory() <= memory, "{} of {memory}", done.peak_memory());
            assert!(done.peak_memory() > 100_000);
            files.push(std::fs::read(&to).unwrap());
        }
    }
    assert!(files.iter().all(|f| *f == files[0]));
    let options = RunOptions { memory: Some(200_000), ..RunOptions::default() };
    let e = Session::start(plan.clone(), dir.path().join("p"), options).unwrap_err();
    assert!(matches!(e.kind(), K::Memory { budget: 200_000, .. }), "{e}");
    assert_eq!(e.object(), Some("m"));
    let options = RunOptions { threads: Some(0), ..RunOptions::default() };
    assert!(Session::start(plan, dir.path().join("p"), options).is_err());
    assert_eq!(names(dir.path()), ["m.gguf", "o"]);
}

#[test]
fn a_fault_names_the_first_tensor_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut x = values(&mut Random(12), 400 * 256);
    let good = x.clone();
    x[300 * 256 + 17] = f32::NAN;
    x[390 * 256 + 3] = f32::INFINITY;
    let mut worse = x.clone();
    worse[5] = f32::NAN;
    let tensors = [
        f32_tensor("good", &[256, 400], &good),
        f32_tensor("bad", &[256, 400], &x),
        f32_tensor("worse", &[256, 400], &worse),
    ];
    let from = open(dir.path(), &tensors);
    let plan = plan(&from, "[[rule]]\nmatch = '*'\nformat = 'q4_g64_fp16'").unwrap();
    for (memory, threads) in [(1 << 30, 1), (400_000, 1), (1 << 20, 4)] {
        let options = RunOptions { memory: Some(memory), threads: Some(threads), ..RunOptions::default() };
        let e = run(&plan, &dir.path().join("o"), options).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("\"bad\"") && text.contains("row 300"), "{text}");
        assert_eq!(names(dir.path()), ["m.gguf"]);
    }
    // Words that cannot be imported are found on the way, and named as well.
    let mut q = source(&mut Random(1), "q", GgmlType(8), &[32, 3]);
    q.3.iter_mut().for_each(|b| *b = 1);
    q.3[34 + 7] = 0x80;
    let other = tempfile::tempdir().unwrap();
    let from = open(other.path(), &[q]);
    let plan = common::recipe::plan(&from, "[[rule]]\nmatch = 'q'\nformat = 'q8_g32_fp16'").unwrap();
    let e = run(&plan, &other.path().join("o"), RunOptions::default()).unwrap_err().to_string();
    assert!(e.contains("\"q\"") && e.contains("row 1"), "{e}");
}

#[test]
fn integers_are_checked_and_placed() {
    let dir = tempfile::tempdir().unwrap();
    let numbers: Vec<i64> = (0..60).map(|i| i * 70_000_000 - 2_147_483_648).collect();
    let bytes = numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let from = open(dir.path(), &[(b"i".to_vec(), GgmlType(27), vec![6, 5, 2], bytes)]);
    let (_, artifact) = convert(&from, "[[rule]]\nmatch = 'i'\nformat = 'int32'", &fresh(dir.path(), "o"));
    let words: Vec<u8> = numbers.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect();
    assert_eq!(&*artifact.payload("i").unwrap(), &words[..]);
    assert_eq!(artifact.object("i").unwrap().tensor().unwrap().shape, [2, 5, 6]);
    let other = tempfile::tempdir().unwrap();
    let mut numbers = numbers;
    numbers[40] = 1 << 31;
    let bytes = numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let from = open(other.path(), &[(b"i".to_vec(), GgmlType(27), vec![6, 10], bytes)]);
    let plan = plan(&from, "[[rule]]\nmatch = 'i'\nformat = 'int32'").unwrap();
    let e = run(&plan, &other.path().join("o"), RunOptions::default()).unwrap_err().to_string();
    assert!(e.contains("[6, 4]") && e.contains("2147483648"), "{e}");
}

#[test]
fn progress_tells_bytes_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(13), 3000 * 512);
    let from = open(dir.path(), &[f32_tensor("m", &[512, 3000], &x)]);
    let plan = plan(&from, "[[rule]]\nmatch = 'm'\nformat = 'q4_g64_fp16'").unwrap();
    let options = RunOptions { memory: Some(400_000), ..RunOptions::default() };
    let session = Session::start(plan.clone(), dir.path().join("o"), options.clone()).unwrap();
    let mut seen = Vec::new();
    session
        .run(|done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.windows(2).all(|w| w[0].0 <= w[1].0));
    assert_eq!(seen[0].0, 0);
    assert_eq!(seen.last().unwrap().0, plan.tensors()[0].bytes);
    assert_eq!(seen[0].1, plan.payload_bytes());
    drop(session);
    assert_eq!(names(dir.path()), ["m.gguf"]);
    let session = Session::start(plan, dir.path().join("o"), options).unwrap();
    let e = session.run(|_, _| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(e.kind(), K::Cancelled { .. }), "{e}");
    drop(session);
    assert_eq!(names(dir.path()), ["m.gguf"]);
}

#[test]
fn a_callers_method_is_checked_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(14), 10 * 128);
    let from = open(dir.path(), &[f32_tensor("m", &[128, 10], &x), f32_tensor("n", &[128, 10], &x)]);
    let recipe = "[[rule]]\nmatch = 'm'\nformat = 't2_g128_fp16'\nmethod = 'callable:mine'";
    let plan = plan(&from, recipe).unwrap();
    let to = dir.path().join("o");
    let session = Session::start(plan.clone(), &to, RunOptions::default()).unwrap();
    session.run(|_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(session.remaining(), [0]);
    assert!(plan.encode(0, 0..10, &Dispatch::default()).is_err());
    let words = whole(FormatId::T2G128Fp16, EncoderId::TernaryFit, 10, 128, &x, Params::default());
    assert!(session.store_payload(0, &words[1..]).is_err());
    let mut illegal = words.clone();
    illegal[0] = 0b10;
    let e = session.store_payload(0, &illegal).unwrap_err();
    assert_eq!(e.object(), Some("m"));
    session.store_payload(0, &words).unwrap();
    let done = session.finish().unwrap();
    // The same statistics as the built-in method's.
    let built_in = common::recipe::plan(&from, &recipe.replace("callable:mine", "ternary_fit")).unwrap();
    let other = run(&built_in, &dir.path().join("p"), RunOptions::default()).unwrap();
    assert_eq!(done.statistics(0), other.statistics(0));
    assert!(done.report().to_string().contains("callable:mine"));
    // All of its values at once count.
    let options = RunOptions { memory: Some(200_000), ..RunOptions::default() };
    let e = Session::start(plan, dir.path().join("q"), options).unwrap_err();
    assert!(e.to_string().contains("for the whole of this tensor"), "{e}");
}

#[test]
fn every_byte_of_a_file_limit_split_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(15), 300 * 256);
    let from = open(dir.path(), &[f32_tensor("m", &[256, 300], &x)]);
    let recipe = "[[rule]]\nmatch = 'm'\nformat = 'q6_g64_fp16'";
    let (_, one) = convert(&from, recipe, &dir.path().join("one"));
    let options = ninfer_artifact::convert::PlanOptions { file_limit: Some(16384), ..Default::default() };
    let recipe = ninfer_artifact::convert::Recipe::parse_toml(recipe).unwrap();
    let plan = ninfer_artifact::convert::plan_recipe(from, recipe, None, options).unwrap();
    let to = dir.path().join("many");
    run(&Arc::new(plan), &to, RunOptions { memory: Some(400_000), ..RunOptions::default() }).unwrap();
    let many = Artifact::open(&to).unwrap();
    assert!(many.directory().files().len() > 3);
    assert_eq!(one.payload("m").unwrap(), many.payload("m").unwrap());
}
