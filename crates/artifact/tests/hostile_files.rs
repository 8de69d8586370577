//! Parts, objects that cannot be read, and damaged files: errors, never panics.

mod common;

use common::{DIRECTORY, PAYLOAD, Random, entry, part, small};
use ninfer_artifact::container::Directory;
use ninfer_artifact::{Artifact, ArtifactError, ArtifactErrorKind as K};

fn parse(file: &[u8]) -> Result<Directory, ArtifactError> {
    Directory::parse(file, Some("x.ninfer"))
}

/// The error of the small artifact with `from` replaced by `to` in its directory.
fn changed(from: &str, to: &str) -> ArtifactError {
    assert_eq!(DIRECTORY.matches(from).count(), 1, "{from:?} must occur once");
    parse(&entry(DIRECTORY.replace(from, to).as_bytes(), &[0; PAYLOAD])).unwrap_err()
}

// ---- files

#[test]
fn part_names_are_plain_unique_names() {
    let with = |name: &str| {
        let files =
            format!(r#""files":[{{"path":null,"payload_bytes":273}},{{"path":{name},"payload_bytes":0}}"#);
        changed(r#""files":[{"path":null,"payload_bytes":273}"#, &files)
    };
    for (name, text) in [
        (r#""../p""#, "expected a plain file name without '/', '\\' and U+0000"),
        (r#""a/b""#, "expected a plain file name"),
        (r#""/etc/passwd""#, "expected a plain file name"),
        (r#""a\\b""#, "expected a plain file name"),
        (r#""a\u0000""#, "expected a plain file name"),
        (r#""""#, "found \"\"; expected a file name"),
        (r#"".""#, "found \".\"; expected a file name"),
        (r#""..""#, "found \"..\"; expected a file name"),
        (r#""x.ninfer""#, "expected another name than the entry file's"),
        ("null", "expected the name of a part file"),
        ("7", "expected the name of a part file"),
        (
            r#""p","payload_bytes":0},{"path":"p""#,
            "files[2].path: found \"p\"; expected a name that no other part has",
        ),
    ] {
        let e = with(name);
        assert!(e.to_string().contains(text), "{name}: {e}");
    }
    let e = changed(r#""path":null"#, r#""path":"x.ninfer""#);
    assert!(e.to_string().ends_with("expected null: the first file is the entry itself"), "{e}");
    let e = changed(r#"[{"path":null,"payload_bytes":273}]"#, "[]");
    assert_eq!(e.to_string(), "files: found an empty array; expected at least the entry file");
    let e = with(r#""p","payload_bytes":18446744073709551615},{"path":"q""#);
    assert!(e.to_string().ends_with("expected a sum below 2^64"), "{e}");
}

/// The small artifact with its payload in three files, the second empty, cut at 60 and inside the fp32 tensor.
fn in_parts(dir: &std::path::Path) -> std::path::PathBuf {
    let payload = Random(7).bytes(PAYLOAD);
    let files = r#""files":[{"path":null,"payload_bytes":60},{"path":"a","payload_bytes":0},{"path":"b","payload_bytes":200},{"path":"c","payload_bytes":13}]"#;
    let json = DIRECTORY.replace(r#""files":[{"path":null,"payload_bytes":273}]"#, files);
    std::fs::write(dir.join("x.ninfer"), entry(json.as_bytes(), &payload[..60])).unwrap();
    std::fs::write(dir.join("a"), part(1, &[])).unwrap();
    std::fs::write(dir.join("b"), part(2, &payload[60..260])).unwrap();
    std::fs::write(dir.join("c"), part(3, &payload[260..])).unwrap();
    dir.join("x.ninfer")
}

#[test]
fn parts_are_opened_when_needed_and_then_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = in_parts(dir.path());
    let payload = Random(7).bytes(PAYLOAD);
    let artifact = Artifact::open(&path).unwrap();
    assert_eq!(&*artifact.payload("w").unwrap(), &payload[..68]);
    assert_eq!(&*artifact.payload("b").unwrap(), &payload[256..268]);
    assert_eq!(&*artifact.payload("tok").unwrap(), &payload[268..]);
    let spans = artifact.spans("b").unwrap();
    assert_eq!(
        spans.iter().map(|s| (s.file, s.offset, s.len)).collect::<Vec<_>>(),
        [(2, 4292, 4), (3, 4096, 8)]
    );

    let broken: [(&str, Vec<u8>, &str); 8] = [
        ("b", part(3, &[0; 200]), "byte 8: the file says it is part 3; expected part 2"),
        ("b", part(2, &[0; 199]), "the file has 4295 bytes; expected exactly 4296 bytes"),
        ("b", part(2, &[0; 201]), "the file has 4297 bytes; expected exactly 4296 bytes"),
        ("b", small(), "not a part file; expected the bytes 4e 49 4e 50 52 54 00 03"),
        ("b", Vec::new(), "the file begins with nothing (it is empty): not a part file"),
        ("b", part(2, &[])[..4000].to_vec(), "the first page ends at byte 4096, but the file has 4000 bytes"),
        (
            "b",
            {
                let mut file = part(2, &[0; 200]);
                file[17] = 0;
                file
            },
            "byte 16: artifact_id is 00002233445566778899aabbccddeeff; expected 00112233445566778899aabbccddeeff",
        ),
        (
            "b",
            {
                let mut file = part(2, &[0; 200]);
                file[4095] = 9;
                file
            },
            "byte 4095: padding byte 0x09; expected zero",
        ),
    ];
    for (name, bytes, text) in broken {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        // Opening looks at no part.
        let artifact = Artifact::open(&path).unwrap();
        let e = artifact.payload("w").unwrap_err();
        assert!(e.to_string().contains(text), "{e}");
        assert_eq!(e.path(), Some(dir.path().join(name).as_path()));
        // An object in other files is still readable.
        assert_eq!(&*artifact.payload("tok").unwrap(), &payload[268..]);
        let report = artifact.verify_structure();
        assert_eq!(report.problems.len(), 1);
    }
    std::fs::remove_file(dir.path().join("b")).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let e = artifact.payload("w").unwrap_err();
    assert!(matches!(e.kind(), K::PartMissing { index: 2, .. }), "{e}");
    assert!(artifact.payload("tok").is_ok());
}

// ---- objects that cannot be read

#[test]
fn unknown_formats_and_layouts_are_listed_but_not_read() {
    for (from, to, text) in [
        (r#""format":"fp32""#, r#""format":"fp64""#, "object \"b\": unknown format \"fp64\""),
        (r#""format":"fp32""#, r#""format":"FP32""#, "did you mean fp32"),
        (r#""layout":"contiguous_le_v1""#, r#""layout":"contiguous_be_v1""#, "unknown layout"),
        (
            r#""layout":"contiguous_le_v1""#,
            r#""layout":"row_scale_v1""#,
            "layout row_scale_v1 is not registered for format fp32; its layout is contiguous_le_v1",
        ),
        (
            r#""shape":[3]"#,
            r#""shape":[4]"#,
            "the directory gives 12 bytes; expected 16, the encoded size of fp32 with shape [4]",
        ),
        (
            r#""bytes":68"#,
            r#""bytes":70"#,
            "the directory gives 70 bytes; expected 68, the encoded size of gguf_q8_0 with shape [2, 32]",
        ),
        (r#""shape":[2,32]"#, r#""shape":[2,33]"#, "row length 33 is not a multiple of 32"),
        (r#""format":"gguf_q8_0""#, r#""format":"q9_future""#, "unknown format"),
        (r#""format":"gguf_q8_0""#, r#""divisors":4,"format":"q9_future""#, "unknown format"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.ninfer");
        std::fs::write(&path, entry(DIRECTORY.replace(from, to).as_bytes(), &[0; PAYLOAD])).unwrap();
        let artifact = Artifact::open(&path).unwrap();
        assert_eq!(artifact.objects().len(), 3);
        let id = if ["2,32", "q8_0", "68"].iter().any(|part| from.contains(part)) { "w" } else { "b" };
        for e in [
            artifact.payload(id).unwrap_err(),
            artifact.spans(id).unwrap_err(),
            artifact.read_at(id, 0, &mut [0]).unwrap_err(),
            artifact.tensor_view(id, &[]).unwrap_err(),
        ] {
            assert!(e.to_string().contains(text), "{to}: {e}");
            assert!(e.to_string().contains("x.ninfer"), "{e}");
            assert_eq!(e.object(), Some(id));
        }
        let other = if id == "w" { "b" } else { "w" };
        artifact.payload(other).unwrap();
        let report = artifact.verify_structure();
        assert_eq!(report.problems.len(), 1, "{to}");
        assert_eq!(artifact.verify_values(&Default::default()).unwrap().problems.len(), 1);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    let json = DIRECTORY.replace("raw_bytes_v1", "zstd_v1");
    std::fs::write(&path, entry(json.as_bytes(), &[0; PAYLOAD])).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    assert!(artifact.payload("tok").unwrap_err().to_string().contains("zstd_v1"));
    std::fs::write(
        &path,
        entry(DIRECTORY.replace("raw_bytes_v1", "contiguous_le_v1").as_bytes(), &[0; PAYLOAD]),
    )
    .unwrap();
    let e = Artifact::open(&path).unwrap().payload("tok").unwrap_err();
    assert!(e.to_string().contains("expected raw_bytes_v1"), "{e}");
}

#[test]
fn wrong_requests_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ninfer");
    std::fs::write(&path, small()).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let e = artifact.payload("no").unwrap_err();
    assert!(matches!(e.kind(), K::NoObject { objects: 3, .. }), "{e}");
    let e = artifact.tensor_view("tok", &[]).unwrap_err();
    assert!(matches!(e.kind(), K::ObjectKind { found: "resource", wanted: "tensor" }), "{e}");
    let e = artifact.tensor_view("b", &[0; 11]).unwrap_err();
    assert!(e.to_string().contains("exactly 12 bytes, got 11"), "{e}");
    for (begin, len) in [(0, 13), (12, 1), (u64::MAX, 1), (u64::MAX, 12)] {
        let e = artifact.read_at("b", begin, &mut vec![0; len]).unwrap_err();
        assert!(matches!(e.kind(), K::ByteRange { bytes: 12, .. }), "{e}");
    }
    artifact.read_at("b", 12, &mut []).unwrap();
    let e = Artifact::open(dir.path()).unwrap_err();
    assert!(matches!(e.kind(), K::Io { .. }), "{e}");
    let e = Artifact::open(dir.path().join("no")).unwrap_err();
    assert!(matches!(e.kind(), K::Io { .. }), "{e}");
    assert!(e.to_string().contains("cannot open the file"), "{e}");
}

// ---- damage

/// Reads whatever can be read; nothing may panic.
fn use_everything(directory: &Directory) {
    for object in directory.objects() {
        let _ = object.check();
        let spans = directory.spans(object.offset, object.end()).unwrap();
        assert_eq!(spans.iter().map(|s| s.len).sum::<u64>(), object.bytes);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let file = small();
    for len in 0..file.len() {
        assert!(parse(&file[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn no_flipped_byte_panics() {
    let file = small();
    let mut accepted = 0;
    for at in (0..32 + DIRECTORY.len()).chain([4095, 4096, file.len() - 1]) {
        for bit in 0..8 {
            let mut file = file.clone();
            file[at] ^= 1 << bit;
            if let Ok(directory) = parse(&file) {
                use_everything(&directory);
                accepted += 1;
            }
        }
    }
    // Ids, names and numbers may change into other legal ones; most changes are refused.
    assert!(accepted < 3000, "{accepted} flips of {} were accepted", 8 * DIRECTORY.len());
}

#[test]
fn no_mutated_directory_panics() {
    let mut random = Random(0x5eed);
    let pieces = [
        "null",
        "true",
        "-1",
        "0",
        "18446744073709551615",
        "18446744073709551616",
        "1e999",
        "[]",
        "{}",
        "\"\"",
        "\"w\"",
        "\"tensor\"",
        "[0,0]",
        "{\"object\":\"w\"}",
        ",",
        ":",
        "}",
        "]",
        "\\u0000",
        "9007199254740993",
    ];
    for _ in 0..20_000 {
        let mut text = DIRECTORY.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len() as u64) as usize;
            let end = (at + random.below(12) as usize).min(text.len());
            let piece = pieces[random.below(pieces.len() as u64) as usize];
            text.splice(at..end, piece.bytes());
        }
        if let Ok(directory) = parse(&entry(&text, &[0; PAYLOAD])) {
            use_everything(&directory);
        }
    }
}

#[test]
fn a_large_directory_opens() {
    // 50,000 tensors with their bindings: no search may be quadratic.
    let n = 50_000;
    let objects: Vec<String> = (0..n)
        .map(|i| {
            let offset = i * 256;
            format!(r#"{{"id":"t{i}","kind":"tensor","shape":[64],"format":"fp32","layout":"contiguous_le_v1","offset":{offset},"bytes":256}}"#)
        })
        .collect();
    let bindings: Vec<String> = (0..n).map(|i| format!(r#""t{i}":{{"object":"t{i}"}}"#)).collect();
    let json = format!(
        r#"{{"components":{{"text":{{"config":{{}}}}}},"objects":[{}],"bindings":{{{}}},"uses":[],"files":[{{"path":null,"payload_bytes":0}},{{"path":"p","payload_bytes":{}}}]}}"#,
        objects.join(","),
        bindings.join(","),
        n * 256
    );
    let file = entry(json.as_bytes(), &[]);
    let directory = parse(&file).unwrap();
    assert_eq!(directory.object("t49999").unwrap().offset, 49_999 * 256);
}
