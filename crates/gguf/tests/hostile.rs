//! One test per attack: the variant of the error and the parts of its text that a user needs.

mod common;

use common::{Raw, array, exercise, rich, string};
use ninfer_gguf::limits::{MAX_DEPTH, MAX_NAME_BYTES};
use ninfer_gguf::{GgufErrorKind as K, GgufFile, Header, Subject};

// --- magic and version ---------------------------------------------------------------------------------------------

#[test]
fn another_kind_of_file() {
    let e = Header::parse(b"PK\x03\x04 something").unwrap_err();
    assert_error!(e, K::NotGguf { .. }, "byte 0", "PK", "expected the magic \"GGUF\"");
    let e = Header::parse(b"GGU").unwrap_err();
    assert_error!(e, K::NotGguf { .. }, "GGU");
    assert_error!(Header::parse(b"").unwrap_err(), K::NotGguf { .. }, "\"\"");
    // The older formats of the same family.
    assert_error!(Header::parse(b"tjgg\x01\0\0\0").unwrap_err(), K::NotGguf { .. }, "tjgg");
}

#[test]
fn versions() {
    for version in [2, 3] {
        let h = Raw { version, ..rich() }.parse().unwrap();
        assert_eq!(h.version(), version);
    }
    for version in [0, 1, 4, 0x0400_0000, u32::MAX] {
        let e = Raw { version, ..rich() }.refused();
        assert_error!(e, K::Version { found } if *found == version, "byte 4", version, "expected version 2 or 3");
    }
}

#[test]
fn big_endian_files_are_named_as_such() {
    for version in [1u32, 2, 3] {
        let e = Raw { version: version.swap_bytes(), ..rich() }.refused();
        assert_error!(
            e,
            K::BigEndian { version: v, .. } if *v == version,
            "big-endian GGUF",
            format!("version {version}"),
            "little-endian",
        );
        assert!(!e.to_string().contains(&version.swap_bytes().to_string()), "{e}");
    }
}

// --- counts and lengths --------------------------------------------------------------------------------------------

#[test]
fn tensor_counts_beyond_the_file() {
    for count in [1 << 63, 1 << 40, u64::MAX, 1000] {
        let e = Raw { tensor_count: Some(count), ..rich() }.refused();
        assert_error!(e, K::TooMany { found, .. } if *found == count, "byte 8", "the tensor count", count, "at most");
    }
}

#[test]
fn entry_counts_beyond_the_file() {
    for count in [1 << 63, 1 << 40, u64::MAX, 1000] {
        let e = Raw { entry_count: Some(count), ..rich() }.refused();
        assert_error!(
            e,
            K::TooMany { found, .. } if *found == count,
            "byte 16",
            "the metadata entry count",
            count,
        );
    }
}

#[test]
fn counts_above_the_caps() {
    // The bytes for so many records exist, so only the cap refuses them.
    let mut bytes = Raw { tensor_count: Some((1 << 20) + 1), ..Raw::new() }.header();
    bytes.resize(40 << 20, 0);
    let e = Header::parse(&bytes).unwrap_err();
    assert_error!(e, K::OverLimit { limit: 1_048_576, .. }, "the tensor count", "1048577", "at most 1048576");
    let mut bytes = Raw { entry_count: Some((1 << 20) + 1), ..Raw::new() }.header();
    bytes.resize(40 << 20, 0);
    let e = Header::parse(&bytes).unwrap_err();
    assert_error!(e, K::OverLimit { limit: 1_048_576, .. }, "the metadata entry count", "at most 1048576");
}

#[test]
fn counts_one_too_high_or_too_low() {
    // One more tensor than there is: its record is read from the data, or runs into the end.
    let e = Raw { tensor_count: Some(1), ..Raw::new() }.u32("k", 1).refused();
    assert_error!(e, K::TooMany { .. } | K::Truncated { .. }, "byte");
    // One entry too few: the entry is read as a tensor record.
    let mut file = rich();
    file.entry_count = Some(15);
    assert!(file.parse().is_err());
}

#[test]
fn string_lengths_beyond_the_file() {
    let file_bytes = Raw::new().text("k", "abc").build().len() as u64;
    for len in [1 << 63, u64::MAX, file_bytes + 1, file_bytes] {
        let e = Raw::new().entry("general.name", 8, [&len.to_le_bytes()[..], b"abc"].concat()).refused();
        assert_error!(
            e,
            K::TooMany { found, .. } if *found == len,
            "byte 48",
            "metadata key \"general.name\"",
            "string length",
            len,
        );
    }
}

#[test]
fn key_lengths_beyond_the_file() {
    let mut bytes = Raw::new().text("k", "abc").header();
    bytes[24..32].copy_from_slice(&(1u64 << 63).to_le_bytes());
    let e = Header::parse(&bytes).unwrap_err();
    assert_error!(e, K::TooMany { .. }, "byte 24", "metadata key length", 1u64 << 63);
}

#[test]
fn long_keys_and_names_are_capped() {
    let long = vec![b'x'; MAX_NAME_BYTES as usize + 1];
    let e = Raw::new().entry(&long, 0, [1]).refused();
    assert_error!(e, K::OverLimit { found: 65_536, .. }, "metadata key length", "at most 65535");
    let e = Raw::new().tensor(&long, &[1], 24, 0).data(32).refused();
    assert_error!(e, K::OverLimit { found: 65_536, .. }, "tensor name length", "at most 65535");
    // A value may be long.
    let h = Raw::new().text("k", &long).entry(&long[1..], 0, [1]).parse().unwrap();
    assert_eq!(h.entries().len(), 2);
}

#[test]
fn arrays_beyond_the_file() {
    for (element, each) in [(0u32, 1u64), (7, 1), (8, 8), (9, 12), (10, 8), (6, 4)] {
        for count in [1u64 << 60, u64::MAX, 1 << 40, 240 / each + 1] {
            let e = Raw::new().array("tokens", element, count, vec![0; 200]).refused();
            assert_error!(
                e,
                K::TooMany { found, .. } if *found == count,
                "byte 46",
                "metadata key \"tokens\"",
                "array length",
                count,
            );
        }
    }
    // A count that fits by its least size, with strings that do not.
    let e =
        Raw::new().array("tokens", 8, 2, [string("abc"), 5000u64.to_le_bytes().to_vec()].concat()).refused();
    assert_error!(e, K::TooMany { found: 5000, .. }, "metadata key \"tokens\"", "string length");
}

// --- metadata ------------------------------------------------------------------------------------------------------

#[test]
fn unknown_value_types() {
    for value_type in [13, 255, u32::MAX] {
        let e = Raw::new().entry("odd.key", value_type, [0; 64]).refused();
        assert_error!(
            e,
            K::ValueType { place: "value", found } if *found == value_type,
            "byte 39",
            "metadata key \"odd.key\"",
            "unknown value type",
            value_type,
        );
    }
}

#[test]
fn unknown_element_types() {
    for (count, element) in [(3, 13), (0, 13), (1, u32::MAX)] {
        let e = Raw::new().array("odd.key", element, count, [0; 64]).refused();
        assert_error!(
            e,
            K::ValueType { place: "array element", .. },
            "byte 43",
            "metadata key \"odd.key\"",
            "unknown array element type",
            element,
        );
    }
}

#[test]
fn empty_arrays_of_every_type() {
    for element in 0..=12 {
        let file = Raw::new().array("k", element, 0, []).u32("after", 5);
        let (bytes, h) = (file.build(), file.parse().unwrap());
        let m = h.metadata(&bytes).unwrap();
        let a = m.get_array("k").unwrap().unwrap();
        assert_eq!((a.len(), a.element().number(), a.iter().count()), (0, element, 0));
        assert_eq!(m.get_u64("after").unwrap(), Some(5));
    }
}

#[test]
fn nesting_is_limited() {
    let nest = |levels: u32| [array(9, 1, []).repeat(levels as usize - 1), array(0, 1, [9])].concat();
    let deepest = Raw::new().entry("deep", 9, nest(MAX_DEPTH));
    assert_eq!(exercise(&deepest.build()).unwrap(), exercise(&deepest.build()).unwrap());
    let e = Raw::new().entry("deep", 9, nest(MAX_DEPTH + 1)).refused();
    assert_error!(e, K::Depth { limit: MAX_DEPTH }, "metadata key \"deep\"", "deeper than 8 levels");
    let e = Raw::new().entry("deep", 9, nest(100_000)).refused();
    assert_error!(e, K::Depth { .. }, "metadata key \"deep\"");
}

#[test]
fn bools_are_zero_or_one() {
    for byte in [2, 0x80, 0xff] {
        let e = Raw::new().entry("flag", 7, [byte]).refused();
        assert_error!(
            e,
            K::BoolByte { found } if *found == byte,
            "byte 40",
            "metadata key \"flag\"",
            format!("{byte:#04x}"),
            "expected 0 or 1",
        );
        let e = Raw::new().array("flags", 7, 3, [0, 1, byte]).refused();
        assert_error!(e, K::BoolByte { .. }, "byte 55", "metadata key \"flags\"");
    }
}

#[test]
fn duplicate_keys() {
    let e = Raw::new().u32("a", 1).u32("b", 1).text("a", "again").refused();
    assert_error!(e, K::DuplicateKey { first: 24 }, "byte 58", "metadata key \"a\"", "duplicate", "byte 24");
}

#[test]
fn strings_that_are_not_utf8_open() {
    let file = Raw::new().text("k", b"ab\xff\xfe").entry(b"key\0\xf0\x9f\x98\x80\xff", 0, [7]).tensor(
        b"t\0\xfe",
        &[1],
        24,
        0,
    );
    let file = file.data(1);
    let (bytes, h) = (file.build(), file.parse().unwrap());
    let m = h.metadata(&bytes).unwrap();
    let s = m.get_str("k").unwrap().unwrap();
    assert_eq!((s.bytes(), &*s.text(), s.to_str()), (&b"ab\xff\xfe"[..], "ab\u{fffd}\u{fffd}", None));
    let entry = h.entry(b"key\0\xf0\x9f\x98\x80\xff").unwrap();
    assert_eq!(entry.key().escaped(), "key\\0\u{1f600}\\xff");
    let t = h.tensor(b"t\0\xfe").unwrap();
    assert_eq!((&*t.escaped_name(), &*t.name()), ("t\\0\\xfe", "t\0\u{fffd}"));
    let e = m.get_str(entry.key_bytes()).unwrap_err();
    assert_error!(e, K::KeyType { .. }, "key\\0\u{1f600}\\xff", "type u8", "expected a string");
}

#[test]
fn integer_getters_accept_any_width() {
    let number = |t: u32, v: &[u8]| Raw::new().entry("split.count", t, v);
    let cases: [(u32, Vec<u8>); 8] = [
        (0, vec![3]),
        (1, vec![3]),
        (2, 3u16.to_le_bytes().into()),
        (3, 3i16.to_le_bytes().into()),
        (4, 3u32.to_le_bytes().into()),
        (5, 3i32.to_le_bytes().into()),
        (10, 3u64.to_le_bytes().into()),
        (11, 3i64.to_le_bytes().into()),
    ];
    for (t, v) in cases {
        let bytes = number(t, &v).build();
        let h = Header::parse(&bytes).unwrap();
        let m = h.metadata(&bytes).unwrap();
        assert_eq!(m.get_u64("split.count").unwrap(), Some(3));
        assert_eq!(m.get_i64("split.count").unwrap(), Some(3));
        assert_eq!(m.get_f64("split.count").unwrap(), Some(3.0));
        assert_eq!(m.get_u64("absent").unwrap(), None);
    }
    let bytes = number(11, &(-1i64).to_le_bytes()).build();
    let h = Header::parse(&bytes).unwrap();
    let e = h.metadata(&bytes).unwrap().get_u64("split.count").unwrap_err();
    assert_error!(e, K::KeyRange { .. }, "byte 47", "metadata key \"split.count\"", "-1", "from 0 to 2^64-1");
    let bytes = number(10, &u64::MAX.to_le_bytes()).build();
    let h = Header::parse(&bytes).unwrap();
    let m = h.metadata(&bytes).unwrap();
    assert_eq!(m.get_u64("split.count").unwrap(), Some(u64::MAX));
    assert_error!(m.get_i64("split.count").unwrap_err(), K::KeyRange { .. }, u64::MAX, "2^63-1");
    assert_error!(m.get_f64("split.count").unwrap_err(), K::KeyRange { .. }, u64::MAX, "binary64");
}

#[test]
fn getters_name_the_type_found() {
    let file = Raw::new().array("split.count", 4, 1, [3, 0, 0, 0]).text("name", "x").entry("flag", 7, [1]);
    let (bytes, h) = (file.build(), file.parse().unwrap());
    let m = h.metadata(&bytes).unwrap();
    let e = m.get_u64("split.count").unwrap_err();
    assert_error!(
        e,
        K::KeyType { .. },
        "metadata key \"split.count\"",
        "array of 1 u32",
        "expected an integer"
    );
    assert_eq!(e.subject(), Some(&Subject::Key("split.count".into())));
    for (e, parts) in [
        (m.get_i64("name").unwrap_err(), ["string", "an integer"]),
        (m.get_f64("name").unwrap_err(), ["string", "a number"]),
        (m.get_f64("flag").unwrap_err(), ["bool", "a number"]),
        (m.get_u64("flag").unwrap_err(), ["bool", "an integer"]),
        (m.get_bool("name").unwrap_err(), ["string", "a bool"]),
        (m.get_array("name").map(drop).unwrap_err(), ["string", "an array"]),
        (m.get_str("split.count").unwrap_err(), ["array of 1 u32", "a string"]),
    ] {
        assert_error!(
            e,
            K::KeyType { .. },
            format!("of type {}", parts[0]),
            format!("expected {}", parts[1])
        );
    }
    assert_eq!(m.get_bool("flag").unwrap(), Some(true));
}

// --- other bytes, other files --------------------------------------------------------------------------------------

#[test]
fn a_header_refuses_other_bytes() {
    let bytes = rich().build();
    let h = Header::parse(&bytes).unwrap();
    let shorter = &bytes[..bytes.len() - 1];
    assert_error!(h.metadata(shorter).unwrap_err(), K::OtherBytes { .. }, bytes.len(), shorter.len());
    let t = h.tensor("first").unwrap();
    assert_error!(h.data(shorter, t).unwrap_err(), K::OtherBytes { .. }, bytes.len());
    // A tensor of a longer file.
    let long = Raw::new().tensor("x", &[4096], 24, 0).data(4096);
    let long_header = long.parse().unwrap();
    assert_error!(
        h.data(&bytes, long_header.tensor("x").unwrap()).unwrap_err(),
        K::TensorEnd { .. },
        "tensor \"x\""
    );
}

#[test]
fn bytes_that_changed_are_errors() {
    let mut bytes = rich().build();
    let h = Header::parse(&bytes).unwrap();
    let strings = h.entry("a.strings").unwrap().clone();
    let at = strings.value_offset() as usize;
    // The array now claims another count, then another length of its first string, then fewer elements.
    let sane = bytes.clone();
    bytes[at + 4..at + 12].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_error!(
        h.metadata(&bytes).unwrap().get("a.strings").map(drop).unwrap_err(),
        K::TooMany { .. },
        "\"a.strings\""
    );
    bytes.clone_from(&sane);
    bytes[at + 12] = 0xff;
    assert_error!(
        h.metadata(&bytes).unwrap().get("a.strings").map(drop).unwrap_err(),
        K::TooMany { .. },
        "\"a.strings\""
    );
    bytes.clone_from(&sane);
    bytes[at + 4] = 2;
    assert_error!(
        h.metadata(&bytes).unwrap().get("a.strings").map(drop).unwrap_err(),
        K::Changed,
        "\"a.strings\"",
        "changed"
    );
    bytes.clone_from(&sane);
    bytes[strings.range().0 as usize + 8] = b'b';
    assert_error!(h.metadata(&bytes).unwrap().raw(&strings).unwrap_err(), K::Changed, "\"a.strings\"");
}

#[test]
fn file_errors_carry_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.gguf");
    let e = GgufFile::open(&absent).unwrap_err();
    assert_error!(e, K::Io { .. }, "absent.gguf", "cannot open");
    assert_eq!(e.path(), Some(&*absent));
    assert_error!(GgufFile::open(dir.path()).unwrap_err(), K::Io { .. }, "is a directory");
    let path = dir.path().join("empty.gguf");
    std::fs::write(&path, b"").unwrap();
    assert_error!(GgufFile::open(&path).unwrap_err(), K::NotGguf { .. }, "empty.gguf");
    let path = dir.path().join("bad.gguf");
    std::fs::write(&path, Raw::new().entry("k", 13, []).build()).unwrap();
    let e = GgufFile::open(&path).unwrap_err();
    assert_error!(e, K::ValueType { .. }, "bad.gguf: byte 33: metadata key \"k\"");
    assert_eq!((e.offset(), e.expected().as_deref()), (Some(33), Some("a type from 0 to 12")));
    let path = dir.path().join("good.gguf");
    std::fs::write(&path, rich().build()).unwrap();
    let f = GgufFile::open(&path).unwrap();
    assert_error!(f.tensor("nope").unwrap_err(), K::NoTensor { tensors: 4 }, "good.gguf", "nope");
    assert_error!(f.data(f.tensor("odd").unwrap()).unwrap_err(), K::UnknownSpan { .. }, "good.gguf", "odd");
    assert_eq!(f.data(f.tensor("first").unwrap()).unwrap(), &rich().data[..68]);
}
