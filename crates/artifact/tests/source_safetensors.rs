//! Headers of safetensors files: every rule, legal oddities, agreement with the format's own library; plain tensors.

mod common;

use common::Random;
use common::safetensors::{fault, file, open, raw, words};
use ninfer_artifact::source::safetensors::{Header, SafetensorsFault as F};
use ninfer_artifact::source::{self, Content, FloatType, IntegerType, OpenOptions, TensorSource};
use ninfer_artifact::{ArtifactErrorKind as K, Location};
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::{FormatId, encoded_size};

fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn two(first: (u64, u64), second: (u64, u64), data: usize) -> Vec<u8> {
    let of = |name, (b, e): (u64, u64)| entry(name, "U8", &format!("[{}]", e - b), b, e);
    raw(&format!("{{{},{}}}", of("a", first), of("b", second)), &vec![7; data])
}

macro_rules! refused {
    ($file:expr, $pattern:pat $(if $guard:expr)?) => {{
        let bytes: Vec<u8> = $file;
        let e = Header::parse(&bytes).unwrap_err();
        assert!(matches!(fault(&e), $pattern $(if $guard)?), "{e}");
        // Its own library agrees that this is no file.
        assert!(safetensors::SafeTensors::deserialize(&bytes).is_err(), "{e}");
        e
    }};
}

/// FR-70.
#[test]
fn framing() {
    refused!(Vec::new(), F::TooShort { bytes: 0 });
    refused!(vec![2, 0, 0, 0, 0, 0, 0], F::TooShort { bytes: 7 });
    refused!(vec![0; 20], F::HeaderLength { found: 0 });
    let mut long = 100_000_001u64.to_le_bytes().to_vec();
    long.resize(64, b'{');
    refused!(long, F::HeaderLength { found: 100_000_001 });
    refused!(vec![0xff; 64], F::HeaderLength { found: u64::MAX });
    let mut cut = file(&[("a", "U8", &[2], vec![1, 2])]);
    cut.truncate(20);
    let e = refused!(cut, F::HeaderPastEnd { bytes: 20, .. });
    assert_eq!(e.location(), Some(&Location::Byte(0)));
    for header in ["[1]", "3", "\"x\"", "null", "[]"] {
        refused!(raw(header, &[]), F::HeaderStart { .. });
    }
    // The format asks for the object first; its library is laxer.
    let e = Header::parse(&raw(" {}", &[])).unwrap_err();
    assert!(matches!(fault(&e), F::HeaderStart { found: b' ' }), "{e}");
}

/// FR-70.
#[test]
fn ranges() {
    let e = refused!(two((0, 4), (3, 8), 8), F::Overlap { begin: 3, end: 8, other_end: 4, .. });
    assert!(e.to_string().contains("\"b\"") && e.to_string().contains("\"a\""), "{e}");
    refused!(two((0, 8), (0, 8), 8), F::Overlap { .. });
    refused!(two((0, 8), (2, 2), 8), F::Overlap { .. });
    let e = refused!(two((0, 4), (5, 8), 8), F::Hole { begin: 4, end: 5 });
    assert_eq!(e.tensor(), Some("b"));
    refused!(two((1, 4), (4, 8), 8), F::Hole { begin: 0, end: 1 });
    refused!(two((0, 4), (4, 8), 9), F::Trailing { extra: 1 });
    refused!(raw("{}", &[0]), F::Trailing { extra: 1 });
    let e = refused!(two((0, 4), (4, 8), 7), F::PastEnd { begin: 4, end: 8, bytes: 7 });
    assert_eq!(e.tensor(), Some("b"));
    refused!(
        raw(&format!("{{{}}}", entry("a", "U8", "[1]", 3, 2)), &[0; 3]),
        F::Reversed { begin: 3, end: 2 }
    );
    let most = u64::MAX;
    refused!(raw(&format!("{{{}}}", entry("a", "U8", "[1]", 0, most)), &[0; 3]), F::PastEnd { .. });
}

#[test]
fn shapes_and_types() {
    let one = |dtype: &str, shape: &str, bytes: u64| {
        raw(&format!("{{{}}}", entry("a", dtype, shape, 0, bytes)), &vec![0; bytes as usize])
    };
    let e = refused!(one("F32", "[2,2]", 12), F::Span { wanted: 16, .. });
    assert!(e.to_string().contains("12 bytes; expected 16, the size of F32 with shape [2, 2]"), "{e}");
    refused!(one("U8", "[]", 2), F::Span { wanted: 1, .. });
    refused!(one("F16", "[0]", 2), F::Span { wanted: 0, .. });
    refused!(one("U8", "[4294967296,4294967296]", 4), F::Overflow { .. });
    refused!(one("F64", "[2305843009213693952,2]", 4), F::Overflow { .. });
    refused!(one("F4", "[3]", 2), F::PartialByte { .. });
    refused!(one("F6_E2M3", "[2]", 2), F::PartialByte { .. });
    for shape in ["3", "[-1]", "[1.5]", "[\"2\"]", "{}", "[18446744073709551616]", "null"] {
        let e = Header::parse(&one("U8", shape, 1)).unwrap_err();
        assert!(matches!(fault(&e), F::Member { member: "shape", .. }), "{e}");
    }
    for entry in [
        "3",
        "[]",
        "null",
        "{}",
        r#"{"dtype":"U8","shape":[1]}"#,
        r#"{"dtype":"U8","data_offsets":[0,1]}"#,
        r#"{"shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":8,"shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":"01"}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}"#,
    ] {
        let e = refused!(raw(&format!(r#"{{"a":{entry}}}"#), &[0]), F::Member { .. });
        assert_eq!(e.tensor(), Some("a"));
    }
    // The library ignores what it does not know; what such a member means nobody can say.
    let e = Header::parse(&raw(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":2}}"#, &[0]))
        .unwrap_err();
    assert!(matches!(fault(&e), F::UnknownMember { name } if name == "scale"), "{e}");
}

/// FR-70, FR-71: a name given twice is called that.
#[test]
fn json() {
    let e = Header::parse(&raw(r#"{"a":"#, &[])).unwrap_err();
    assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{e}");
    assert_eq!(e.location(), Some(&Location::Byte(8 + 4)));
    let e = Header::parse(&raw("{}x", &[])).unwrap_err();
    assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{e}");
    let mut bytes = raw("{\"aa\":1}", &[]);
    bytes[10] = 0xff;
    let e = Header::parse(&bytes).unwrap_err();
    assert!(matches!(e.kind(), K::JsonSyntax { .. }), "{e}");
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    let e = Header::parse(&raw(&deep, &[])).unwrap_err();
    assert!(matches!(e.kind(), K::JsonLimit { .. }), "{e}");
    // Many small entries are many tensors; one entry of many values is none.
    let many =
        format!(r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#, "1,".repeat(300_000));
    let e = Header::parse(&raw(&many, &[0])).unwrap_err();
    assert!(matches!(e.kind(), K::JsonLimit { limit: 200_000, .. }), "{e}");
    let entries: Vec<String> = (0..50_000).map(|i| entry(&format!("t{i}"), "U8", "[0]", 0, 0)).collect();
    assert_eq!(
        Header::parse(&raw(&format!("{{{}}}", entries.join(",")), &[])).unwrap().tensors.len(),
        50_000
    );
    // Twice the same name: said so, and not something about offsets.
    let twice = format!("{{{},{}}}", entry("a", "U8", "[1]", 0, 1), entry("a", "U8", "[1]", 1, 2));
    let e = Header::parse(&raw(&twice, &[0; 2])).unwrap_err();
    assert!(matches!(e.kind(), K::DuplicateMember { name } if name == "a"), "{e}");
    assert!(e.to_string().contains("duplicate"), "{e}");
    let inner = r#"{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#;
    let e = Header::parse(&raw(inner, &[0])).unwrap_err();
    assert!(matches!(e.kind(), K::DuplicateMember { name } if name == "dtype"), "{e}");
    for metadata in ["[]", "1", "{\"a\":1}", "{\"a\":null}"] {
        refused!(
            raw(&format!(r#"{{"__metadata__":{metadata}}}"#), &[]),
            F::Member { member: "__metadata__", .. }
        );
    }
}

/// FR-72.
#[test]
fn legal_oddities() {
    for header in [
        "{}",
        "{}   ",
        r#"{"__metadata__":{}}"#,
        r#"{"__metadata__":null}"#,
        r#"{"__metadata__":{"format":"pt"}}"#,
    ] {
        let bytes = raw(header, &[]);
        assert!(Header::parse(&bytes).unwrap().tensors.is_empty());
        assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok(), "{header}");
    }
    // Empty tensors at the front, in the middle (equal offsets) and at the end; header order is not data order; a scalar.
    let header = format!(
        "{{{}}}",
        [
            entry("last", "F32", "[0,7]", 12, 12),
            entry("x", "F32", "[]", 8, 12),
            entry("w", "U8", "[2,4]", 0, 8),
            entry("first", "F32", "[3,0]", 0, 0),
            entry("mid", "I64", "[0]", 8, 8)
        ]
        .join(",")
    );
    let bytes = raw(&header, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x80, 0x3f]);
    assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let s = open(&path);
    let names: Vec<&str> = s.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["first", "w", "mid", "x", "last"]);
    let mut one = [0.0];
    s.read_values(s.find("x").unwrap(), 0..1, &mut one).unwrap();
    assert_eq!(one, [1.0]);
    s.read_values(s.find("first").unwrap(), 0..3, &mut []).unwrap();
    s.read_values(s.find("last").unwrap(), 0..0, &mut []).unwrap();
    assert_eq!(s.tensors()[4].rows(), 0);
}

#[test]
fn an_unknown_type_spoils_only_its_own_tensor() {
    let header = format!("{{{},{}}}", entry("new", "F3_NEW", "[3]", 0, 5), entry("w", "U8", "[1]", 5, 6));
    let bytes = raw(&header, &[9; 6]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let s = open(&path);
    assert!(matches!(&s.tensors()[0].content, Content::Unsupported(r) if r.contains("F3_NEW")));
    let e = s.read_values(0, 0..1, &mut [0.0; 3]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { reason: Some(_), .. }), "{e}");
    assert_eq!(s.tensors()[1].content, Content::Integers(IntegerType::U8));
}

/// Random changes of legal headers: what the library refuses is refused, what it accepts is accepted but for rules it
/// does not have; and nothing panics.
#[test]
fn agrees_with_the_library_on_mutations() {
    let base = file(&[
        ("a.weight", "F32", &[2, 3], vec![1; 24]),
        ("b", "U8", &[], vec![2]),
        ("c", "BF16", &[0], vec![]),
        ("d", "F8_E4M3", &[5], vec![3; 5]),
    ]);
    let mut random = Random(17);
    let (mut accepted, mut refused) = (0, 0);
    let palette = b"0123456789[]{},:\"ab_FU8 -\x00\xff";
    for _ in 0..60_000 {
        let mut bytes = base.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = palette[random.below(palette.len() as u64) as usize],
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, palette[random.below(palette.len() as u64) as usize]),
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        match (Header::parse(&bytes), safetensors::SafeTensors::deserialize(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                accepted += 1;
                assert_eq!(ours.tensors.len(), theirs.len());
                for t in &ours.tensors {
                    let view = theirs.tensor(&t.name).unwrap();
                    assert_eq!(view.data(), &bytes[t.range.start as usize..t.range.end as usize]);
                    assert!(view.shape().iter().map(|&d| d as u64).eq(t.shape.iter().copied()));
                }
            }
            (Err(_), Err(_)) => refused += 1,
            (Ok(ours), Err(e)) => {
                // One unknown type does not spoil a file; a shape with a zero never overflows.
                let tolerated = ours.tensors.iter().any(|t| t.bits.is_none() || t.shape.contains(&0));
                assert!(tolerated, "only the library refuses: {e}\n{}", String::from_utf8_lossy(&bytes));
            }
            (Err(e), Ok(_)) => {
                let stricter = matches!(e.kind(), K::DuplicateMember { .. })
                    || matches!(e.kind(), K::Safetensors(F::UnknownMember { .. } | F::HeaderStart { .. }));
                assert!(stricter, "only we refuse: {e}\n{}", String::from_utf8_lossy(&bytes));
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn plain_tensors_read_exactly_wherever_they_lie() {
    let mut random = Random(23);
    // The first byte of the data makes every other tensor unaligned.
    let (bf, hf, f4) = (random.bytes(24), random.bytes(24), random.bytes(48));
    let f8: Vec<u8> = [0.1f64, -2.5, 1e-60, 5e38f64.sqrt()].iter().flat_map(|x| x.to_le_bytes()).collect();
    let u64s: Vec<u8> = [1u64, u64::MAX, 2, 3].iter().flat_map(|x| x.to_le_bytes()).collect();
    let i64s: Vec<u8> = [i64::MIN, -1, 0, i64::MAX].iter().flat_map(|x| x.to_le_bytes()).collect();
    let bytes = file(&[
        ("pad", "BOOL", &[3], vec![0, 1, 2]),
        ("bf", "BF16", &[4, 3], bf.clone()),
        ("hf", "F16", &[2, 2, 3], hf.clone()),
        ("f4", "F32", &[12], f4.clone()),
        ("f8", "F64", &[4], f8),
        ("u64", "U64", &[2, 2], u64s),
        ("i64", "I64", &[2, 2], i64s),
        ("i32", "I32", &[2], vec![0xff; 8]),
        ("u16", "U16", &[2], words(&[65535, 3])),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.bin");
    std::fs::write(&path, &bytes).unwrap();
    // By content, whatever the name.
    let s = source::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(s.kind(), "safetensors");
    let values = |name: &str| {
        let i = s.find(name).unwrap();
        let t = &s.tensors()[i];
        let mut out = vec![0.0f32; t.elements() as usize];
        // Row by row, so that ranges matter.
        for (r, row) in out.chunks_mut(t.k() as usize).enumerate() {
            s.read_values(i, r as u64..r as u64 + 1, row).unwrap();
        }
        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let halves = |b: &[u8]| b.as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect::<Vec<_>>();
    assert_eq!(values("bf"), halves(&bf).iter().map(|&w| u32::from(w) << 16).collect::<Vec<_>>());
    let wide = |w: &u16| ninfer_formats::float::f16::to_f32_bits(*w);
    assert_eq!(values("hf"), halves(&hf).iter().map(wide).collect::<Vec<_>>());
    assert_eq!(
        values("f4"),
        f4.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect::<Vec<_>>()
    );
    assert_eq!(values("f8")[..3], [0.1f32, -2.5, 0.0].map(f32::to_bits));
    let integers = |name: &str| {
        let i = s.find(name).unwrap();
        let mut out = vec![0; s.tensors()[i].elements() as usize];
        s.read_integers(i, 0..s.tensors()[i].rows(), &mut out).map(|()| out)
    };
    assert_eq!(integers("i64").unwrap(), [i64::MIN, -1, 0, i64::MAX]);
    assert_eq!(integers("i32").unwrap(), [-1, -1]);
    assert_eq!(integers("u16").unwrap(), [65535, 3]);
    let e = integers("u64").unwrap_err();
    assert!(matches!(e.kind(), K::SourceWord { row: 0, column: 1, .. }), "{e}");
    let e = integers("pad").unwrap_err();
    assert!(matches!(e.kind(), K::SourceWord { row: 0, column: 2, .. }), "{e}");
    let e = integers("bf").unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { .. }), "{e}");
    let e = s.read_values(s.find("i32").unwrap(), 0..1, &mut [0.0; 2]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceContent { .. }), "{e}");
    for (name, format, k, stored) in [
        ("bf", FormatId::Bf16, 3, bf),
        ("f4", FormatId::Fp32, 12, f4),
        ("i32", FormatId::Int32, 2, vec![0xff; 8]),
    ] {
        let i = s.find(name).unwrap();
        assert_eq!(s.importable(i), [format]);
        let n = s.tensors()[i].rows();
        let mut payload = vec![0; encoded_size(format, &[n, k], 1).unwrap() as usize];
        let planes = RowPlanes::of_payload(format, n as usize, k as usize, &mut payload).unwrap();
        let (mut head, mut tail) = planes.split_at(n as usize / 2);
        s.import_rows(i, format, 0..n / 2, &mut head).unwrap();
        s.import_rows(i, format, n / 2..n, &mut tail).unwrap();
        assert_eq!(payload, stored, "{name}");
    }
    assert_eq!(s.tensors()[2].content, Content::Values(FloatType::F16));
    assert!(s.importable(2).is_empty());
    assert!(s.read_values(99, 0..1, &mut []).is_err());
    let e = s.read_values(1, 3..5, &mut [0.0; 6]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceRows { begin: 3, end: 5, rows: 4 }), "{e}");
    assert!(e.to_string().contains("tensor \"bf\""), "{e}");
    s.check_unchanged().unwrap();
    assert!(s.describe().to_string().contains("x.bin"));
}

/// A file as large as models are (sparse): opening and reading a row take neither time nor memory for the rest.
#[test]
#[cfg(target_pointer_width = "64")]
fn offsets_beyond_32_bits() {
    use std::io::{Seek, SeekFrom, Write};
    let (rows, k) = (1 << 17, 1 << 14);
    let bytes = rows * k * 4;
    let header = format!(
        "{{{},{}}}",
        entry("w", "F32", &format!("[{rows},{k}]"), 0, bytes),
        entry("x", "I32", "[]", bytes, bytes + 4)
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&raw(&header, &[])).unwrap();
    let start = 8 + header.len() as u64;
    file.set_len(start + bytes + 4).unwrap();
    file.seek(SeekFrom::Start(start + bytes - 4)).unwrap();
    file.write_all(&[0, 0, 0, 0x40, 7, 0, 0, 0]).unwrap();
    drop(file);
    let s = open(&path);
    let mut row = vec![1.0; k as usize];
    s.read_values(0, rows - 1..rows, &mut row).unwrap();
    assert_eq!((row[0], row[k as usize - 1]), (0.0, 2.0));
    let mut x = [0];
    s.read_integers(1, 0..1, &mut x).unwrap();
    assert_eq!(x, [7]);
}

#[test]
fn scaled_fp8_of_diffusion_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let tensors = [
        ("m.scaled_fp8", "F8_E4M3", &[2u64][..], vec![0, 0]),
        ("m.x.scale_input", "F32", &[], vec![0, 0, 0x80, 0x3f]),
        ("m.x.scale_weight", "F32", &[], vec![0, 0, 0, 0x3f]),
        ("m.x.weight", "F8_E4M3", &[1, 2], vec![0x38, 0xc0]),
    ];
    std::fs::write(&path, file(&tensors)).unwrap();
    let s = open(&path);
    let unused: Vec<&str> = s.unused().iter().map(|u| u.name.as_str()).collect();
    assert_eq!((unused, s.tensors().len()), (vec!["m.scaled_fp8", "m.x.scale_input"], 1));
    let mut out = [0.0; 2];
    s.read_values(0, 0..1, &mut out).unwrap();
    assert_eq!(out, [0.5, -1.0]);
}
