//! Safetensors models in several files: indexes, folders, what lies beside the tensors.

mod common;

use std::path::Path;

use common::safetensors::{fault, write};
use ninfer_artifact::source::safetensors::SafetensorsFault as F;
use ninfer_artifact::source::{self, OpenOptions, SafetensorsSource, TensorSource};
use ninfer_artifact::{ArtifactError, ArtifactErrorKind as K};

const INDEX: &str = "model.safetensors.index.json";

fn try_open(path: &Path) -> Result<SafetensorsSource, ArtifactError> {
    SafetensorsSource::open(path, &OpenOptions::default())
}

/// Two shards, a and b in the first, c in the second, and an index of these entries.
fn model(dir: &Path, entries: &str) {
    write(&dir.join("one.safetensors"), &[("a", "U8", &[1], vec![1]), ("b", "F32", &[1], vec![0, 0, 0, 64])]);
    write(&dir.join("two.safetensors"), &[("c", "U8", &[2], vec![3, 4])]);
    let text = format!(r#"{{"metadata":{{"total_size":7}},"weight_map":{{{entries}}}}}"#);
    std::fs::write(dir.join(INDEX), text).unwrap();
}

const GOOD: &str = r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors""#;

#[test]
fn an_index_and_a_folder_open_all_shards() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), GOOD);
    std::fs::write(dir.path().join("config.json"), "{\"layers\":2}").unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    for path in [dir.path().join(INDEX), dir.path().to_path_buf()] {
        let s = source::open(&path, &OpenOptions::default()).unwrap();
        let names: Vec<_> = s.tensors().iter().map(|t| (t.name.as_str(), t.file)).collect();
        assert_eq!(names, [("a", 0), ("b", 0), ("c", 1)]);
        assert!(s.warnings().is_empty(), "{:?}", s.warnings());
        let mut out = [0.0];
        s.read_values(1, 0..1, &mut out).unwrap();
        assert_eq!(out, [2.0]);
        assert_eq!(s.config().unwrap().get("layers").unwrap().as_u64(), Some(2));
        let names: Vec<&str> = s.resources().iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["config.json", "tokenizer.json"]);
        assert_eq!(&*s.resource(0).unwrap(), b"{\"layers\":2}");
        assert!(matches!(s.resource(2).unwrap_err().kind(), K::NoSourceResource { index: 2, resources: 2 }));
        let description = s.describe().to_string();
        assert!(
            description.contains("two.safetensors") && !description.contains(dir.path().to_str().unwrap())
        );
    }
    let before = try_open(dir.path()).unwrap().identity();
    assert_eq!(try_open(dir.path()).unwrap().identity(), before);
    // Another configuration is another model, although no tensor changed.
    std::fs::write(dir.path().join("config.json"), "{\"layers\":3}").unwrap();
    let s = try_open(dir.path()).unwrap();
    assert_ne!(s.identity(), before);
    std::fs::write(dir.path().join("tokenizer.json"), "{ }").unwrap();
    assert!(matches!(s.resource(1).unwrap_err().kind(), K::TooLarge { .. } | K::SourceChanged));
    std::fs::write(dir.path().join("tokenizer.json"), "").unwrap();
    assert!(matches!(s.resource(1).unwrap_err().kind(), K::SourceChanged));
}

/// FR-74.
#[test]
fn hostile_indexes_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join(INDEX);
    let with = |entries: &str| {
        model(dir.path(), entries);
        let e = try_open(&index).unwrap_err();
        assert_eq!(e.path(), Some(&*index), "{e}");
        e
    };
    for name in ["../x.safetensors", "/etc/x", "a/b.safetensors", "..", ".", "", "a\\\\b", "c:x", "x\\u0000"]
    {
        let e = with(&GOOD.replace("two.safetensors", name));
        assert!(matches!(fault(&e), F::ShardName { .. }), "{name}: {e}");
        assert_eq!(e.tensor(), Some("c"), "{e}");
    }
    let e = with(&GOOD.replace("two", "absent"));
    assert!(matches!(fault(&e), F::ShardMissing { name, .. } if name == "absent.safetensors"), "{e}");
    let e = with(&format!(r#"{GOOD},"d":"two.safetensors""#));
    assert!(matches!(fault(&e), F::NotInShard { shard } if shard == "two.safetensors"), "{e}");
    assert_eq!(e.tensor(), Some("d"));
    let e = with(r#""a":"one.safetensors","c":"two.safetensors""#);
    assert!(matches!(fault(&e), F::NotInIndex { other: None, .. }), "{e}");
    assert_eq!(e.tensor(), Some("b"));
    let e = with(r#""a":"one.safetensors","b":"two.safetensors","c":"two.safetensors""#);
    assert!(
        matches!(fault(&e), F::NotInIndex { other: Some(other), .. } if other == "two.safetensors"),
        "{e}"
    );
    let e = with(r#""a":3"#);
    assert!(matches!(fault(&e), F::Member { .. }), "{e}");
    for text in ["{}", r#"{"weight_map":[]}"#] {
        std::fs::write(&index, text).unwrap();
        let e = try_open(&index).unwrap_err();
        assert!(matches!(fault(&e), F::NoWeightMap), "{e}");
    }
    std::fs::write(&index, format!(r#"{{"weight_map":{{{GOOD},"a":"two.safetensors"}}}}"#)).unwrap();
    let e = try_open(&index).unwrap_err();
    assert!(matches!(e.kind(), K::DuplicateMember { .. }), "{e}");
    std::fs::write(&index, "{\"weight_map\":").unwrap();
    assert!(matches!(try_open(&index).unwrap_err().kind(), K::JsonSyntax { .. }));
    // A tensor in two shards.
    model(dir.path(), GOOD);
    write(&dir.path().join("two.safetensors"), &[("c", "U8", &[1], vec![3]), ("a", "U8", &[1], vec![4])]);
    let e = try_open(&index).unwrap_err();
    assert!(matches!(fault(&e), F::TwoShards { .. }), "{e}");
    assert_eq!(e.tensor(), Some("a"));
    // A shard that is itself broken names its own path.
    model(dir.path(), GOOD);
    std::fs::write(dir.path().join("two.safetensors"), [0; 16]).unwrap();
    let e = try_open(&index).unwrap_err();
    assert!(matches!(fault(&e), F::HeaderLength { found: 0 }), "{e}");
    assert!(e.path().unwrap().ends_with("two.safetensors"));
}

#[test]
fn a_wrong_total_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), GOOD);
    let text = std::fs::read_to_string(dir.path().join(INDEX)).unwrap().replace(":7}", ":8}");
    std::fs::write(dir.path().join(INDEX), text).unwrap();
    let s = try_open(dir.path()).unwrap();
    assert_eq!(s.warnings().len(), 1, "{:?}", s.warnings());
    assert!(s.warnings()[0].contains('8') && s.warnings()[0].contains('7'));
}

#[test]
fn folders_without_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |e: &ArtifactError| matches!(fault(e), F::Folder { .. });
    let x = [("x", "U8", &[1][..], vec![1])];
    assert!(folder(&try_open(dir.path()).unwrap_err()));
    write(&dir.path().join("only.safetensors"), &x);
    assert_eq!(try_open(dir.path()).unwrap().tensors().len(), 1);
    write(&dir.path().join("other.safetensors"), &x);
    let e = try_open(dir.path()).unwrap_err();
    assert!(folder(&e) && e.to_string().contains(r#""only.safetensors", "other.safetensors""#), "{e}");
    write(&dir.path().join("model.safetensors"), &[("m", "U8", &[1], vec![1])]);
    assert_eq!(try_open(dir.path()).unwrap().tensors()[0].name, "m");
    for name in ["only", "other", "model"] {
        std::fs::remove_file(dir.path().join(format!("{name}.safetensors"))).unwrap();
    }
    // Numbered shards: whole sets only.
    write(&dir.path().join("m-00001-of-00002.safetensors"), &x);
    assert!(folder(&try_open(dir.path()).unwrap_err()));
    let s = try_open(&dir.path().join("m-00001-of-00002.safetensors")).unwrap();
    assert!(s.warnings()[0].contains("1 of 2"), "{:?}", s.warnings());
    write(&dir.path().join("m-00002-of-00002.safetensors"), &[("y", "U8", &[1], vec![1])]);
    let s = try_open(dir.path()).unwrap();
    assert_eq!((s.tensors().len(), s.warnings().len()), (2, 1));
    write(&dir.path().join("n-00001-of-00002.safetensors"), &[("z", "U8", &[1], vec![1])]);
    assert!(folder(&try_open(dir.path()).unwrap_err()));
    // Indexes: the usual name before others, two others are a question.
    std::fs::write(dir.path().join("a.safetensors.index.json"), "{}").unwrap();
    assert!(matches!(fault(&try_open(dir.path()).unwrap_err()), F::NoWeightMap));
    std::fs::write(dir.path().join("b.safetensors.index.json"), "{}").unwrap();
    assert!(folder(&try_open(dir.path()).unwrap_err()));
}

#[test]
fn files_given_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), GOOD);
    let options = OpenOptions::default();
    let paths = [dir.path().join("two.safetensors"), dir.path().join("one.safetensors")];
    let s = SafetensorsSource::open_files(&paths, &options).unwrap();
    let names: Vec<_> = s.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    let e = SafetensorsSource::open_files(&[&paths[0], &paths[0]], &options).unwrap_err();
    assert!(matches!(fault(&e), F::TwoShards { .. }), "{e}");
    let none: [&Path; 0] = [];
    assert!(matches!(fault(&SafetensorsSource::open_files(&none, &options).unwrap_err()), F::Folder { .. }));
}

#[test]
fn a_configuration_that_is_no_json_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), GOOD);
    std::fs::write(dir.path().join("config.json"), "{\"x\":NaN}").unwrap();
    let s = try_open(dir.path()).unwrap();
    assert!(s.config().is_none());
    assert!(s.warnings()[0].contains("config.json"), "{:?}", s.warnings());
}

/// Opening a pipe would wait for who writes to it, and a device need not end.
#[cfg(unix)]
#[test]
fn an_index_that_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), GOOD);
    let index = dir.path().join(INDEX);
    std::fs::remove_file(&index).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &index).unwrap();
    for path in [dir.path(), &index] {
        let text = try_open(path).unwrap_err().to_string();
        assert!(text.contains(INDEX) && text.contains("is not a regular file"), "{text}");
    }
}
