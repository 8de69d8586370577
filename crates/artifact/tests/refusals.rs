//! What refusals of conversions name: tensor, part and rows, every fault of a recipe, the least memory.

mod common;

use common::gguf::{Source, on};
use common::recipe::{convert, f32_tensor, open, plan, run, values};
use common::{Random, names};
use ninfer_artifact::convert::{Recipe, RunOptions, Session};
use ninfer_artifact::{ArtifactError, ArtifactErrorKind as K};
use ninfer_formats::FormatId;
use ninfer_formats::float::f16;
use ninfer_gguf::GgmlType;
use ninfer_simd_ops::Dispatch;

const STACK: &str = "[[rule]]\nstack = 'b.{q,\tk}.w'\nname = 'b.qk.w'\n";

fn stack(x: &[f32], bad: usize) -> Vec<Source> {
    let mut second = x.to_vec();
    second[bad] = f32::NAN;
    vec![f32_tensor("b.q.w", &[128, 200], x), f32_tensor("b.\tk.w", &[128, 200], &second)]
}

fn names_part(e: &ArtifactError, rows: &str) {
    let text = e.to_string();
    for part in ["object \"b.qk.w\": ", &format!("tensor \"b.\\tk.w\", rows {rows}: ")] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!((e.object(), e.tensor()), (Some("b.qk.w"), Some("b.\tk.w")));
    let (begin, end) = rows.split_once("..").unwrap();
    assert_eq!(e.rows(), Some(begin.parse().unwrap()..end.parse().unwrap()));
}

#[test]
fn errors_of_a_stack_name_the_part_and_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(1), 200 * 128);
    let from = open(dir.path(), &stack(&x, 130 * 128 + 7));
    let encoded = format!("{STACK}format = 'q4_g64_fp16'\nmethod = 'grouped_absmax'");
    let encoded = plan(&from, &encoded).unwrap();
    let e = encoded.encode(0, 320..340, &Dispatch::default()).unwrap_err();
    names_part(&e, "120..140");
    assert!(e.to_string().contains("row 130"), "{e}");
    let e = run(&encoded, &dir.path().join("o"), RunOptions::default()).unwrap_err();
    assert_eq!((e.object(), e.tensor()), (Some("b.qk.w"), Some("b.\tk.w")));
    assert!(e.rows().is_some_and(|r| r.contains(&130) && r.end <= 200), "{e}");
    // Rows that are there, and words that are not theirs.
    let session = Session::start(encoded.clone(), dir.path().join("o"), RunOptions::default()).unwrap();
    let words = encoded.encode(0, 200..300, &Dispatch::default()).unwrap();
    names_part(&session.store(0, &(200..300), &words.payload[1..], &words.statistics).unwrap_err(), "0..100");
    names_part(&session.store(0, &(200..300), &words.payload, &words.statistics[1..]).unwrap_err(), "0..100");
    session.store(0, &(200..300), &words.payload, &words.statistics).unwrap();
    let e = session.store(0, &(200..300), &words.payload, &words.statistics).unwrap_err();
    assert!(matches!(e.kind(), K::WrittenTwice { .. }), "{e}");
    names_part(&e, "0..100");
    // Rows across parts, and none.
    for rows in [190..210, 390..401, 5..5] {
        let e = encoded.encode(0, rows.clone(), &Dispatch::default()).unwrap_err();
        assert!(matches!(e.kind(), K::SourceRows { .. }) && e.object() == Some("b.qk.w"), "{e}");
    }
}

#[test]
fn a_callers_words_that_break_a_rule_are_placed_in_their_part() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(2), 200 * 128);
    let from = open(dir.path(), &stack(&x, 0));
    let recipe = format!("{STACK}format = 't2_g128_fp16'\nmethod = 'callable:mine'");
    let callable = plan(&from, &recipe).unwrap();
    let session = Session::start(callable, dir.path().join("o"), RunOptions::default()).unwrap();
    let bytes = ninfer_formats::encoded_size(FormatId::T2G128Fp16, &[400, 128], 1).unwrap() as usize;
    let mut words = vec![0b01_01_01_01; bytes];
    // 32 bytes of codes a row.
    words[32 * 205 + 3] = 0b10;
    let e = session.store_payload(0, &words).unwrap_err();
    assert!(e.to_string().contains("row 5,"), "{e}");
    names_part(&e, "0..200");
    let e = session.store_payload(0, &words[1..]).unwrap_err();
    assert!(e.to_string().contains("tensor \"b.q.w\""), "{e}");
}

#[test]
fn every_fault_of_a_recipe_is_told_at_once() {
    let text = r#"
verson = 1
[default]
format = "keep"
metod = "x"
fallback = 3
[[rule]]
match = "a"
formats = "keep"
negativ = true
importance = "yes"
[[rule]]
match = "b["
format = "q4_g64"
method = "magic"
layout = "no"
[[rule]]
match = "c"
format = "keep"
[[rule]]
stack = "{x}"
bind = 1
rows = [1, 2]
[[importance_name]]
match = "a"
nam = "b"
"#;
    let json = serde_json::to_string(&toml::from_str::<toml::Table>(text).unwrap()).unwrap();
    let file = std::path::Path::new("some/recipe.toml");
    for e in [Recipe::parse_toml(text).unwrap_err(), Recipe::parse_json(&json).unwrap_err()] {
        let text = e.with_path(file).to_string();
        assert!(text.starts_with("some/recipe.toml: "), "{text}");
        for part in [
            "unknown member \"verson\"",
            "default: unknown member \"metod\"",
            "default: fallback: neither a text nor a list",
            "rule 1 (\"a\"): unknown member \"formats\"",
            "rule 1 (\"a\"): unknown member \"negativ\"",
            "rule 1 (\"a\"): importance",
            "rule 2 (\"b[\"): the pattern",
            "rule 2 (\"b[\"): unknown format \"q4_g64\"",
            "rule 2 (\"b[\"): unknown method \"magic\"",
            "rule 2 (\"b[\"): unknown layout \"no\"",
            "rule 4 (\"{x}\"): bind",
            "rule 4 (\"{x}\"): stack needs two patterns",
            "rule 4 (\"{x}\"): a stack needs a name",
            "rule 4 (\"{x}\"): a stack takes neither rows",
            "importance_name 1 (\"a\"): unknown member \"nam\"",
            "importance_name 1 (\"a\"): missing field `name`",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("rule 3"), "{text}");
    }
    for (text, why) in [
        ("{\"rule\": [{\"match\": \"a\", \"match\": \"b\", \"format\": \"keep\"}]}", "duplicate"),
        ("{\"rule\": {}}", "rule"),
        ("{\"rule\": [3]}", "rule 1"),
        ("{\"default\": 3}", "default"),
        ("[]", "table"),
        ("{\"version\": \"1\"}", "version"),
    ] {
        let e = Recipe::parse_json(text).unwrap_err();
        assert!(matches!(e.kind(), K::Recipe { .. }) && e.to_string().contains(why), "{text}: {e}");
    }
}

#[test]
fn numbers_that_are_none_are_refused() {
    for text in
        ["[[rule]]\nmatch = 'a'\nformat = 'keep'\nrows = nan", "[default]\nformat = 'keep'\nmethod = inf"]
    {
        let e = Recipe::parse_toml(text).unwrap_err().to_string();
        assert!(e.contains("nan"), "{text}: {e}");
    }
}

#[test]
fn a_recipe_from_a_file_is_named_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.toml");
    std::fs::write(&path, "[[rule]]\nmatch = 'a'\nformat = 'x'").unwrap();
    let e = Recipe::open(&path).unwrap_err();
    assert_eq!(e.path(), Some(&*path));
    assert!(e.to_string().contains("r.toml: recipe: rule 1"), "{e}");
    std::fs::write(&path, b"# \xff").unwrap();
    assert!(Recipe::open(&path).unwrap_err().to_string().contains("UTF-8"));
    std::fs::write(&path, "[[rule]]\nmatch = 'a'\nformat = 'keep'").unwrap();
    Recipe::open(&path).unwrap();
    assert!(matches!(Recipe::open(dir.path().join("no")).unwrap_err().kind(), K::Io { .. }));
}

#[test]
fn nested_braces_are_refused_as_such() {
    for rule in ["match = 'a.{b,{c,d}}.w'", "match = '{a{n}}'", "stack = 'a.{q,{k,v}}.w'\nname = 'x'"] {
        let e = Recipe::parse_toml(&format!("[[rule]]\n{rule}\nformat = 'keep'")).unwrap_err();
        assert!(e.to_string().contains("cannot be nested"), "{rule}: {e}");
    }
}

#[test]
fn a_stack_of_f32_and_f16_keeps_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(3), 6 * 32);
    let halves: Vec<u16> =
        (0..64).map(|i| [0x3c01, 0x8001, 0x7e55, 0xfc00, 0x0000][i % 5] + (i as u16 / 5)).collect();
    let h: Source =
        (b"h".to_vec(), GgmlType::F16, vec![32, 2], halves.iter().flat_map(|h| h.to_le_bytes()).collect());
    let from = open(dir.path(), &[f32_tensor("m", &[32, 6], &x), h]);
    for (order, first) in [("['m', 'h']", true), ("['h', 'm']", false)] {
        let recipe = format!("[[rule]]\nstack = {order}\nname = 's'\nformat = 'keep'");
        let to = dir.path().join(format!("o{first}"));
        let planned = plan(&from, &recipe).unwrap();
        let t = &planned.tensors()[0];
        assert_eq!((t.format, &t.shape[..]), (FormatId::Fp32, &[8, 32][..]));
        let (_, artifact) = convert(&from, &recipe, &to);
        let wide = halves.iter().map(|&h| f16::to_f32_bits(h));
        let plain = x.iter().map(|v| v.to_bits());
        let expected: Vec<u32> =
            if first { plain.chain(wide).collect() } else { wide.chain(plain).collect() };
        let expected: Vec<u8> = expected.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(*artifact.payload("s").unwrap() == expected[..]);
    }
}

#[test]
fn the_least_memory_that_is_named_suffices() {
    let dir = tempfile::tempdir().unwrap();
    let x = values(&mut Random(4), 3 * 4096);
    let tensors = [f32_tensor("small", &[128, 3], &x[..384]), f32_tensor("large", &[4096, 3], &x)];
    let from = open(dir.path(), &tensors);
    let callable = "[[rule]]\nmatch = 'large'\nformat = 'fp32'\nmethod = 'callable:mine'";
    for recipe in ["[[rule]]\nmatch = '*'\nformat = 'q4_g64_fp16'", callable] {
        let plan = plan(&from, recipe).unwrap();
        let with = |memory| RunOptions { memory: Some(memory), ..RunOptions::default() };
        let e = Session::start(plan.clone(), dir.path().join("o"), with(1)).unwrap_err();
        let K::Memory { budget: 1, needed, fixed, .. } = *e.kind() else { panic!("{e}") };
        assert_eq!(e.object(), Some("large"));
        for part in [needed, fixed, needed - fixed] {
            assert!(e.to_string().contains(&part.to_string()), "{e}");
        }
        assert_eq!(fixed, 192 << 10);
        assert!(Session::start(plan.clone(), dir.path().join("o"), with(needed - 1)).is_err());
        let session = Session::start(plan, dir.path().join("o"), with(needed)).unwrap();
        session.run(on).unwrap();
        assert!(session.peak_memory() <= needed);
    }
    assert_eq!(names(dir.path()), ["m.gguf"]);
}
