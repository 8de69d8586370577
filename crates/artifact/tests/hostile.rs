//! One test, or one row of a table, for each rule of the container specification: the file that breaks it is refused
//! with the right kind, the right place and a message that says what was expected.

mod common;

use common::{DIRECTORY, ID, PAYLOAD, entry, part, small};
use ninfer_artifact::container::{Directory, MAX_DEPTH, header};
use ninfer_artifact::{Artifact, ArtifactError, ArtifactErrorKind as K, Location};

fn parse(file: &[u8]) -> Result<Directory, ArtifactError> {
    Directory::parse(file, Some("x.ninfer"))
}

/// The error of the small artifact with `from` replaced by `to` in its directory.
fn changed(from: &str, to: &str) -> ArtifactError {
    assert_eq!(DIRECTORY.matches(from).count(), 1, "{from:?} must occur once");
    let file = entry(DIRECTORY.replace(from, to).as_bytes(), &[0; PAYLOAD]);
    match parse(&file) {
        Ok(_) => panic!("{from} -> {to} was accepted"),
        Err(e) => e,
    }
}

/// Checks a table of (replace, by, whole message).
fn refuse(table: &[(&str, &str, &str)]) {
    for (from, to, message) in table {
        let e = changed(from, to);
        assert_eq!(e.to_string(), *message, "{from} -> {to}");
        assert!(matches!(e.location(), Some(Location::Json(_))), "{e}");
    }
}

/// Checks that changes are accepted.
fn accept(table: &[(&str, &str)]) {
    for (from, to) in table {
        assert_eq!(DIRECTORY.matches(from).count(), 1, "{from:?} must occur once");
        let file = entry(DIRECTORY.replace(from, to).as_bytes(), &[0; PAYLOAD]);
        if let Err(e) = parse(&file) {
            panic!("{from} -> {to} was refused: {e}");
        }
    }
}

#[test]
fn the_small_artifact_is_accepted() {
    let directory = parse(&small()).unwrap();
    assert_eq!(directory.artifact_id(), ID);
    assert_eq!(directory.objects().len(), 3);
    assert_eq!(directory.name(), Some("m"));
    assert_eq!(directory.payload_bytes(), PAYLOAD as u64);
    // White space after the JSON counts into json_bytes.
    let spaced = format!("{DIRECTORY} \n\t\r ");
    assert!(parse(&entry(spaced.as_bytes(), &[0; PAYLOAD])).is_ok());
}

// ---- framing

#[test]
fn other_files_are_not_artifacts() {
    for (start, found) in [
        (&b"GGUF\x03\0\0\0rest"[..], "47 47 55 46 03 00 00 00"),
        (b"", "nothing (it is empty)"),
        (b"NINF", "4e 49 4e 46"),
        (b"NINFES\0\x03", "4e 49 4e 46 45 53 00 03"),
    ] {
        let e = parse(start).unwrap_err();
        assert!(matches!(e.kind(), K::NotArtifact { .. }), "{e}");
        let wanted = "expected the bytes 4e 49 4e 46 45 52 00 03 (\"NINFER\", 0, 3)";
        assert_eq!(
            e.to_string(),
            format!("byte 0: the file begins with {found}: not a .ninfer file; {wanted}")
        );
    }
}

#[test]
fn older_versions_are_recognised() {
    for version in [1u8, 2] {
        let json = br#"{"model_id":"m","objects":[]}"#;
        let mut file = b"NINFER\0".to_vec();
        file.push(version);
        file.extend((json.len() as u64).to_le_bytes());
        file.extend(json);
        file.resize(4096, 0);
        let e = parse(&file).unwrap_err();
        assert!(matches!(e.kind(), K::OldVersion { found } if *found == version), "{e}");
        let text = format!(
            "byte 0: this is a .ninfer file of version {version}; expected version 3, the only one read"
        );
        assert_eq!(e.to_string(), text);
    }
    let e = parse(b"NINFER\0\x04and more").unwrap_err();
    assert!(matches!(e.kind(), K::UnknownVersion { found: 4 }), "{e}");
}

#[test]
fn a_part_is_not_an_entry() {
    let e = parse(&part(3, &[0; 10])).unwrap_err();
    assert!(matches!(e.kind(), K::PartAsEntry { index: 3 }), "{e}");
    assert!(e.to_string().contains("part 3 of an artifact"), "{e}");
    assert!(e.to_string().contains("entry file"), "{e}");
}

#[test]
fn json_bytes_is_checked_before_it_is_used() {
    let with = |n: u64| {
        let mut file = small();
        file[8..16].copy_from_slice(&n.to_le_bytes());
        parse(&file).unwrap_err()
    };
    let e = with(0);
    assert_eq!(e.to_string(), "byte 8: json_bytes is 0; expected a positive length");
    let most = small().len() as u64 - 32;
    for n in [most + 1, 1 << 40, u64::MAX, u64::MAX - 31, 1 << 63] {
        let e = with(n);
        assert!(matches!(e.kind(), K::JsonBytes { found, .. } if *found == n), "{e}");
        assert!(e.to_string().contains(&format!("at most {most}, the bytes that follow the prefix")), "{e}");
    }
    // Inside the file, but the payload would start past its end.
    let mut file = entry(b"{}", b"");
    file.truncate(40);
    let e = parse(&file).unwrap_err();
    assert!(matches!(e.kind(), K::CutShort { end: 4096, file_bytes: 40, .. }), "{e}");
}

#[test]
fn a_directory_above_the_cap_is_refused_without_reading_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.ninfer");
    let mut head = b"NINFER\0\x03".to_vec();
    head.extend((header::MAX_JSON_BYTES + 1).to_le_bytes());
    head.extend(ID);
    std::fs::write(&path, head).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(header::MAX_JSON_BYTES + 8192).unwrap();
    let e = Artifact::open(&path).unwrap_err();
    assert!(matches!(e.kind(), K::JsonBytes { .. }), "{e}");
    assert!(e.to_string().contains("the limit of this reader"), "{e}");
    assert!(e.to_string().contains("huge.ninfer"), "{e}");
}

#[test]
fn padding_must_be_zero() {
    for at in [32 + DIRECTORY.len(), 4095] {
        let mut file = small();
        file[at] = 1;
        let e = parse(&file).unwrap_err();
        assert!(matches!(e.kind(), K::Padding { found: 1 }), "{e}");
        assert_eq!(e.to_string(), format!("byte {at}: padding byte 0x01; expected zero"));
    }
}

#[test]
fn the_file_has_exactly_its_length() {
    for (change, found) in [(-1i64, 4096 + 272), (1, 4096 + 274)] {
        let mut file = small();
        file.resize((file.len() as i64 + change) as usize, 0);
        let e = parse(&file).unwrap_err();
        assert!(matches!(e.kind(), K::FileLength { .. }), "{e}");
        let text = format!("files[0].payload_bytes: the file has {found} bytes; expected exactly 4369 bytes");
        assert_eq!(e.to_string(), text);
    }
}

// ---- JSON

#[test]
fn the_directory_must_be_json() {
    for text in ["{", "nul", "{}{}", "", " ", "{\"a\":1,}", "{'a':1}", "[1 2]", "{\"a\":NaN}", "{\"a\":01}"] {
        let padded = if text.is_empty() { "\n" } else { text };
        let e = parse(&entry(padded.as_bytes(), &[])).unwrap_err();
        assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{text}: {e}");
        assert!(matches!(e.location(), Some(Location::Byte(32..=48))), "{text}: {e}");
    }
    let e = parse(&entry(b"{\"a\":\"\xc3\x28\"}", &[])).unwrap_err();
    assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{e}");
    for text in ["[]", "1", "null", "\"x\""] {
        let e = parse(&entry(text.as_bytes(), &[])).unwrap_err();
        assert!(matches!(e.kind(), K::JsonType { wanted: "an object", .. }), "{e}");
        assert!(e.to_string().starts_with("the root: "), "{e}");
    }
}

#[test]
fn member_names_are_unique_everywhere() {
    for (from, to, message) in [
        (r#""uses":["#, r#""uses":[],"uses":["#, "duplicate member \"uses\""),
        (r#""shape":[3]"#, r#""shape":[3],"shape":[3]"#, "objects[1]: duplicate member \"shape\""),
        (r#""mtp":{"#, r#""text":{"#, "components: duplicate member \"text\""),
        (r#""some":{"#, r#""\u0077":{"#, "bindings: duplicate member \"w\""),
        (r#""layers":2"#, r#""layers":2,"layers":2"#, "components.text.config: duplicate member \"layers\""),
        (r#"{"from":"#, r#"{"a":{"b":[{"c":1,"c":1}]},"from":"#, "provenance.a.b[0]: duplicate member \"c\""),
    ] {
        let e = changed(from, to);
        assert!(matches!(e.kind(), K::DuplicateMember { .. }), "{e}");
        assert!(e.to_string().ends_with(message), "{e}");
    }
}

#[test]
fn nesting_is_limited() {
    let deep = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    let e = changed("[1,2.5,true]", &deep);
    assert!(matches!(e.kind(), K::JsonLimit { .. }), "{e}");
    let deep = format!("{}{}", "[".repeat(MAX_DEPTH - 1), "]".repeat(MAX_DEPTH - 1));
    accept(&[("[1,2.5,true]", &deep)]);
    // A million levels do not overflow the stack.
    let e = changed("[1,2.5,true]", &"[".repeat(1_000_000));
    assert!(matches!(e.kind(), K::JsonLimit { .. }), "{e}");
}

#[test]
fn integers_are_integers() {
    // Each place that holds an integer, each thing that is none.
    let places = [
        (r#""payload_bytes":273"#, r#""payload_bytes":"#),
        (r#""shape":[3]"#, r#""shape":["#),
        (r#""offset":256"#, r#""offset":"#),
        (r#""bytes":12"#, r#""bytes":"#),
        (r#"[0,64]"#, r#"[0,"#),
        (r#"[1,3]"#, r#"["#),
        (r#""rows":7"#, r#""rows":"#),
        (r#""bytes":68"#, r#""divisors":"#),
    ];
    for (from, start) in places {
        for value in ["1.0", "2e0", "-1", "true", "\"1\"", "null", "18446744073709551616", "[1]", "{}", "-0"]
        {
            let close = if start.ends_with("[0,") || start.contains("shape") { "]" } else { "" };
            let mut to = format!("{start}{value}{close}");
            if start == "[" {
                to = format!("[{value},3]");
            }
            if start.contains("divisors") {
                to = format!(r#""bytes":68,"divisors":{value}"#);
            }
            let e = changed(from, &to);
            assert!(matches!(e.kind(), K::JsonType { .. }), "{to}: {e}");
            assert!(e.to_string().contains("expected an integer from"), "{to}: {e}");
        }
    }
}

// ---- closed records

#[test]
fn no_other_members() {
    refuse(&[
        (
            r#""uses":["#,
            r#""extra":1,"uses":["#,
            "the root: a directory has no member \"extra\"; expected only components, objects, bindings, uses, files, \
             metadata, provenance",
        ),
        (
            r#""shape":[3]"#,
            r#""name":"b","shape":[3]"#,
            "objects[1]: a tensor object has no member \"name\"; expected only id, kind, shape, format, layout, \
             offset, bytes, divisors",
        ),
        (
            r#""offset":268"#,
            r#""offset":268,"shape":[5]"#,
            "objects[2]: a resource object has no member \"shape\"; expected only id, kind, encoding, offset, bytes",
        ),
        (
            r#"{"layers":2}"#,
            r#"{"layers":2},"role":"x""#,
            "components.text: a component has no member \"role\"; expected only config, target, resources, proposal",
        ),
        (
            r#""target":"text""#,
            r#""target":"text","proposal":{"domain":"full"}"#,
            "components.mtp: a component other than text has no member \"proposal\"; expected only config, target, \
             resources",
        ),
        (
            r#""domain":"indexed""#,
            r#""domain":"indexed","columns":1"#,
            "components.text.proposal: a proposal has no member \"columns\"; expected only domain, rows",
        ),
        (
            r#""domain":"indexed""#,
            r#""domain":"full""#,
            "components.text.proposal: a proposal of domain full has no member \"rows\"; expected only domain",
        ),
        (
            r#"{"object":"w"}"#,
            r#"{"object":"w","range":[0,1]}"#,
            "bindings.w: a binding has no member \"range\"; expected only object, parts",
        ),
        (
            r#""range":[0,64]"#,
            r#""range":[0,64],"axis":0"#,
            "bindings.some.parts[0]: a binding part has no member \"axis\"; expected only object, range",
        ),
        (
            r#""input":"x""#,
            r#""input":"x","output":"y""#,
            "uses[0]: a use has no member \"output\"; expected only parameter, input, activation_policy, auxiliaries",
        ),
        (
            r#""payload_bytes":273"#,
            r#""payload_bytes":273,"sha256":"""#,
            "files[0]: a file has no member \"sha256\"; expected only path, payload_bytes",
        ),
    ]);
}

#[test]
fn the_root_members_have_their_types() {
    let value: serde_json::Value = serde_json::from_str(DIRECTORY).unwrap();
    for (member, wanted) in [
        ("components", "an object of components"),
        ("objects", "an array of objects"),
        ("bindings", "an object from parameter name to binding"),
        ("uses", "an array of uses"),
        ("files", "an array of files"),
    ] {
        for other in ["null", "7", "\"x\"", if wanted.starts_with("an array") { "{}" } else { "[]" }] {
            let mut value = value.as_object().unwrap().clone();
            value[member] = serde_json::from_str(other).unwrap();
            let text = serde_json::to_string(&value).unwrap();
            let e = parse(&entry(text.as_bytes(), &[0; PAYLOAD])).unwrap_err();
            assert!(matches!(e.kind(), K::JsonType { .. }), "{e}");
            assert!(e.to_string().starts_with(&format!("{member}: found ")), "{e}");
            assert!(e.to_string().ends_with(&format!("expected {wanted}")), "{e}");
        }
    }
    // A list of that name elsewhere is an ordinary value.
    accept(&[(r#"{"layers":2}"#, r#"{"objects":[1,2],"bindings":{"a":1}}"#)]);
}

#[test]
fn no_missing_members() {
    let whole = |member: &str| {
        // A root without one member.
        let value: serde_json::Value = serde_json::from_str(DIRECTORY).unwrap();
        let mut value = value.as_object().unwrap().clone();
        value.remove(member).unwrap();
        parse(&entry(serde_json::to_string(&value).unwrap().as_bytes(), &[0; PAYLOAD]))
    };
    for member in ["components", "objects", "bindings", "uses", "files"] {
        let e = whole(member).unwrap_err();
        assert_eq!(e.to_string(), format!("the root: the directory has no member \"{member}\""));
    }
    for member in ["metadata", "provenance"] {
        whole(member).unwrap();
    }
    refuse(&[
        (r#""id":"b","#, "", "objects[1]: the tensor object has no member \"id\""),
        (r#"{"id":"b","kind":"tensor","#, r#"{"id":"b","#, "objects[1]: the object has no member \"kind\""),
        (r#""shape":[3],"#, "", "objects[1]: the tensor object has no member \"shape\""),
        (r#""format":"fp32","#, "", "objects[1]: the tensor object has no member \"format\""),
        (r#""layout":"contiguous_le_v1","#, "", "objects[1]: the tensor object has no member \"layout\""),
        (r#""offset":256,"#, "", "objects[1]: the tensor object has no member \"offset\""),
        (r#","bytes":12"#, "", "objects[1]: the tensor object has no member \"bytes\""),
        (r#""encoding":"raw_bytes_v1","#, "", "objects[2]: the resource object has no member \"encoding\""),
        (
            r#"{"config":{},"target""#,
            r#"{"target""#,
            "components.mtp: the component other than text has no member \"config\"",
        ),
        (r#","rows":7"#, "", "components.text.proposal: the proposal has no member \"rows\""),
        (r#""domain":"indexed","#, "", "components.text.proposal: the proposal has no member \"domain\""),
        (
            r#""object":"w","range":[0,64]"#,
            r#""object":"w""#,
            "bindings.some.parts[0]: the binding part has no member \"range\"",
        ),
        (r#""parameter":"w","#, "", "uses[0]: the use has no member \"parameter\""),
        (r#""input":"x","#, "", "uses[0]: the use has no member \"input\""),
        (r#""path":null,"#, "", "files[0]: the file has no member \"path\""),
        (r#","payload_bytes":273"#, "", "files[0]: the file has no member \"payload_bytes\""),
    ]);
}

// ---- objects

#[test]
fn objects_are_in_order_disjoint_and_inside() {
    refuse(&[
        (
            r#""offset":268"#,
            r#""offset":267"#,
            "objects[2].offset: object \"tok\": found 267; expected at least 268, the end of object \"b\"",
        ),
        (
            r#""offset":256"#,
            r#""offset":0"#,
            "objects[1].offset: object \"b\": found 0; expected at least 68, the end of object \"w\"",
        ),
        (
            r#""bytes":5"#,
            r#""bytes":6"#,
            "objects[2].bytes: object \"tok\": found an end at byte 274 of the payload; expected at most 273, the \
             payload's length",
        ),
        (
            r#""bytes":5"#,
            r#""bytes":18446744073709551615"#,
            "objects[2].bytes: object \"tok\": found 18446744073709551615; expected an end below 2^64",
        ),
        (
            r#""offset":256"#,
            r#""offset":128"#,
            "objects[1].offset: object \"b\": found 128; expected a multiple of 256",
        ),
        (
            r#""id":"tok""#,
            r#""id":"b""#,
            "objects[2].id: object \"b\": found \"b\"; expected an id that no other object has",
        ),
    ]);
    // A resource may start anywhere, and a gap means nothing.
    accept(&[(r#""offset":268,"bytes":5"#, r#""offset":269,"bytes":3"#)]);
    let e = changed(r#""bytes":12"#, r#""bytes":0"#);
    assert!(e.to_string().contains("expected an integer from 1"), "{e}");
    let none = r#"{"components":{"text":{"config":{}}},"objects":[],"bindings":{},"uses":[],"files":[{"path":null,"payload_bytes":0}]}"#;
    let e = parse(&entry(none.as_bytes(), &[])).unwrap_err();
    assert_eq!(e.to_string(), "objects: found an empty array; expected at least one object");
}

#[test]
fn ids_are_non_empty_without_nul() {
    let rule = "expected an ID: a non-empty string without U+0000";
    for (from, to) in [
        (r#""id":"b""#, r#""id":"""#),
        (r#""id":"b""#, r#""id":"a\u0000b""#),
        (r#""id":"b""#, r#""id":7"#),
        (r#""format":"fp32""#, r#""format":"""#),
        (r#""layout":"contiguous_le_v1""#, r#""layout":null"#),
        (r#""encoding":"raw_bytes_v1""#, r#""encoding":"""#),
        (r#""mtp":{"#, r#""":{"#),
        (r#""some":{"#, r#""\u0000":{"#),
        (r#"{"tokenizer":"tok"}"#, r#"{"":"tok"}"#),
        (r#"{"tokenizer":"tok"}"#, r#"{"tokenizer":""}"#),
        (r#""target":"text""#, r#""target":"""#),
        (r#""parameter":"w""#, r#""parameter":"""#),
        (r#""input":"x""#, r#""input":"""#),
        (r#"{"bias":"#, r#"{"":"#),
    ] {
        let e = changed(from, to);
        assert!(matches!(e.kind(), K::JsonValue { .. } | K::JsonType { .. }), "{to}: {e}");
        assert!(e.to_string().ends_with(rule), "{to}: {e}");
    }
}

#[test]
fn shapes_have_at_most_16_positive_dimensions() {
    let e = changed(r#""shape":[3]"#, r#""shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,3]"#);
    assert_eq!(e.to_string(), "objects[1].shape: found 17 dimensions; expected at most 16");
    accept(&[(r#""shape":[3]"#, r#""shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,3]"#)]);
    for shape in ["[0]", "[3,0]"] {
        let e = changed(r#""shape":[3]"#, &format!(r#""shape":{shape}"#));
        assert!(matches!(e.kind(), K::JsonType { .. }), "{e}");
        assert!(e.to_string().contains("found the integer 0; expected an integer from 1"), "{e}");
    }
    let e = changed(r#""shape":[3]"#, r#""shape":[4294967296,4294967296]"#);
    assert_eq!(
        e.to_string(),
        "objects[1].shape: found [4294967296, 4294967296]; expected fewer than 2^64 elements"
    );
    let e = changed(r#""shape":[3]"#, r#""shape":{"0":3}"#);
    assert!(matches!(e.kind(), K::JsonType { wanted: "an array of dimensions", .. }), "{e}");
}

#[test]
fn kinds_and_divisors() {
    for kind in [r#""Tensor""#, r#""""#, "1", "null"] {
        let e = changed(r#""kind":"resource""#, &format!(r#""kind":{kind}"#));
        assert!(e.to_string().ends_with(r#"expected "tensor" or "resource""#), "{e}");
    }
    let e = changed(r#""bytes":12"#, r#""bytes":12,"divisors":2"#);
    assert_eq!(
        e.to_string(),
        "objects[1].divisors: found 2; expected 1: fp32 has no divisors, only nvfp4 has"
    );
    let e = changed(r#""bytes":12"#, r#""bytes":12,"divisors":0"#);
    assert!(e.to_string().contains("expected an integer from 1"), "{e}");
    accept(&[(r#""bytes":12"#, r#""bytes":12,"divisors":1"#)]);
}

// ---- references

#[test]
fn references_resolve_to_the_right_kind() {
    refuse(&[
        (r#"{"object":"w"}"#, r#"{"object":"no"}"#, "bindings.w.object: object \"no\" does not exist"),
        (
            r#"{"object":"w"}"#,
            r#"{"object":"tok"}"#,
            "bindings.w.object: object \"tok\" is a resource where a tensor is wanted",
        ),
        (
            r#"{"object":"w","range""#,
            r#"{"object":"tok","range""#,
            "bindings.some.parts[0].object: object \"tok\" is a resource where a tensor is wanted",
        ),
        (
            r#"{"tokenizer":"tok"}"#,
            r#"{"tokenizer":"no"}"#,
            "components.text.resources.tokenizer: object \"no\" does not exist",
        ),
        (
            r#"{"tokenizer":"tok"}"#,
            r#"{"tokenizer":"w"}"#,
            "components.text.resources.tokenizer: object \"w\" is a tensor where a resource is wanted",
        ),
        (r#""target":"text""#, r#""target":"no""#, "components.mtp.target: component \"no\" does not exist"),
        (
            r#"{"bias":{"object":"b"}}"#,
            r#"{"bias":{"object":"no"}}"#,
            "uses[0].auxiliaries.bias.object: object \"no\" does not exist",
        ),
        (r#""parameter":"w""#, r#""parameter":"no""#, "uses[0].parameter: parameter \"no\" has no binding"),
    ]);
}

#[test]
fn ranges_count_elements() {
    for range in ["[0,65]", "[64,64]", "[5,4]", "[64,65]", "[0,18446744073709551615]"] {
        let e = changed("[0,64]", range);
        assert!(matches!(e.kind(), K::JsonValue { .. }), "{e}");
        assert!(
            e.to_string().ends_with("expected 0 <= begin < end <= 64, the elements of object \"w\""),
            "{range}: {e}"
        );
    }
    accept(&[("[0,64]", "[63,64]")]);
    for (range, text) in [
        ("[0]", "found 1 values; expected two: [begin, end]"),
        ("[0,1,2]", "found 3 values"),
        ("4", "expected an array [begin, end]"),
    ] {
        let e = changed("[0,64]", range);
        assert!(e.to_string().contains(text), "{range}: {e}");
    }
}

#[test]
fn bindings_have_one_form() {
    refuse(&[
        (
            r#"{"object":"w"}"#,
            "{}",
            "bindings.w: found neither member; expected either \"object\" or \"parts\"",
        ),
        (
            r#"{"object":"w"}"#,
            r#"{"object":"w","parts":[{"object":"w","range":[0,1]}]}"#,
            "bindings.w: found both members; expected either \"object\" or \"parts\"",
        ),
        (
            r#"{"object":"w"}"#,
            r#"{"parts":[]}"#,
            "bindings.w.parts: found an empty array; expected at least one part",
        ),
    ]);
}

#[test]
fn uses_are_unique_and_known() {
    refuse(&[
        (
            r#""uses":[{"#,
            r#""uses":[{"parameter":"w","input":"x"},{"#,
            "uses[1]: found parameter \"w\" with input \"x\" again; expected each pair of parameter and input once",
        ),
        (
            r#""AllowA8""#,
            r#""AllowA9""#,
            "uses[0].activation_policy: found the string \"AllowA9\"; expected \"A16Only\", \"AllowA8\" or \"AllowA4\"",
        ),
        (
            r#""AllowA8""#,
            "8",
            "uses[0].activation_policy: found the integer 8; expected \"A16Only\", \"AllowA8\" or \"AllowA4\"",
        ),
    ]);
    accept(&[
        (r#""uses":[{"#, r#""uses":[{"parameter":"w","input":"y"},{"#),
        (r#""AllowA8""#, r#""A16Only""#),
        (r#""AllowA8""#, r#""AllowA4""#),
        (r#","activation_policy":"AllowA8""#, ""),
    ]);
}

// ---- components, metadata

#[test]
fn a_text_component_is_needed() {
    let e = changed(r#""mtp":{"config":{},"target":"text"}"#, r#""mtp":{"config":[]}"#);
    assert!(e.to_string().starts_with("components.mtp.config: found an array"), "{e}");
    let without = DIRECTORY.replace(r#","proposal":{"domain":"indexed","rows":7}"#, "");
    let renamed = without
        .replace(r#"{"text":{"#, r#"{"vision":{"#)
        .replace(r#""target":"text""#, r#""target":"vision""#);
    let e = parse(&entry(renamed.as_bytes(), &[0; PAYLOAD])).unwrap_err();
    assert_eq!(
        e.to_string(),
        "components: found no component \"text\"; expected \"text\", or \"ngram\" in a stand-alone n-gram table"
    );
    let ngram = renamed.replace("vision", "ngram");
    parse(&entry(ngram.as_bytes(), &[0; PAYLOAD])).unwrap();
    refuse(&[(
        r#""domain":"indexed""#,
        r#""domain":"some""#,
        "components.text.proposal.domain: found the string \"some\"; expected \"full\" or \"indexed\"",
    )]);
}

#[test]
fn open_objects_are_objects() {
    for (from, to) in [
        (r#""metadata":{"name":"m"}"#, r#""metadata":[]"#),
        (r#""provenance":{"from":[1,2.5,true]}"#, r#""provenance":"x""#),
        (r#"{"layers":2}"#, "null"),
    ] {
        let e = changed(from, to);
        assert!(matches!(e.kind(), K::JsonType { wanted: "an object", .. }), "{e}");
    }
    for name in [r#""""#, "1", "null"] {
        let e = changed(r#"{"name":"m"}"#, &format!(r#"{{"name":{name}}}"#));
        assert!(e.to_string().starts_with("metadata.name: "), "{e}");
        assert!(e.to_string().ends_with("expected a non-empty string"), "{e}");
    }
    // What is inside is the writer's business.
    accept(&[
        (r#"{"name":"m"}"#, r#"{"anything":[{"goes":-1.5e300}]}"#),
        (r#"{"layers":2}"#, r#"{"kind":1.5}"#),
    ]);
}
