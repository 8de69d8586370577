//! numpy arrays as sources: every rule of `.npy` and `.npz`, exact values in every order.

mod common;

use std::io::{Cursor, Write};
use std::path::Path;

use common::Random;
use ninfer_artifact::source::npy::Header;
use ninfer_artifact::source::{self, Content, NpyFault as F, NpySource, OpenOptions, TensorSource};
use ninfer_artifact::{ArtifactError, ArtifactErrorKind as K};
use ninfer_formats::FormatId;
use ninfer_formats::encoder::RowPlanes;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A file as numpy writes it: the header padded to a multiple of 64.
fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    raw(&text, data)
}

fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

fn npz(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn try_open(dir: &Path, name: &str, bytes: &[u8]) -> Result<NpySource, ArtifactError> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    NpySource::open(path)
}

fn fault(e: &ArtifactError) -> &F {
    match e.kind() {
        K::Npy(fault) => fault,
        _ => panic!("another kind of error: {e}"),
    }
}

fn values(s: &dyn TensorSource, i: usize, step: u64) -> Vec<f32> {
    let t = &s.tensors()[i];
    let mut out = vec![0.0; t.elements() as usize];
    let k = t.k() as usize;
    for (c, out) in out.chunks_mut(step as usize * k).enumerate() {
        let begin = c as u64 * step;
        s.read_values(i, begin..begin + (out.len() / k) as u64, out).unwrap();
    }
    out
}

#[test]
fn a_file_of_numpy() {
    // Written by numpy 2.2: np.save(f, np.array([[1, 2, 3], [4, 5, -6.5]], '<f4')).
    let mut bytes =
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".to_vec();
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    bytes.extend([1.0f32, 2.0, 3.0, 4.0, 5.0, -6.5].iter().flat_map(|x| x.to_le_bytes()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layer.npy");
    std::fs::write(&path, bytes).unwrap();
    let s = source::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((s.kind(), s.tensors()[0].name.as_str(), s.find("layer")), ("npy", "layer", Some(0)));
    assert_eq!(s.tensors()[0].shape, [2, 3]);
    assert_eq!(values(&*s, 0, 1), [1.0, 2.0, 3.0, 4.0, 5.0, -6.5]);
    s.check_unchanged().unwrap();
    assert!(s.resource(0).is_err() && s.resources().is_empty());
}

/// Words of a rank-3 array `[2, 3, 4]` in both element orders and both byte orders.
#[test]
fn every_order_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(51);
    let numbers: Vec<u32> = (0..24).map(|_| random.next() as u32).collect();
    let shape = [2usize, 3, 4];
    let mut fortran = Vec::new();
    for c in 0..shape[2] {
        for b in 0..shape[1] {
            for a in 0..shape[0] {
                fortran.push(numbers[(a * shape[1] + b) * shape[2] + c]);
            }
        }
    }
    let little = |v: &[u32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let big = |v: &[u32]| v.iter().flat_map(|x| x.to_be_bytes()).collect::<Vec<_>>();
    for (order, fort, data) in [
        ("<", "False", little(&numbers)),
        (">", "False", big(&numbers)),
        ("<", "True", little(&fortran)),
        (">", "True", big(&fortran)),
    ] {
        let s = try_open(dir.path(), "a.npy", &npy(&format!("{order}f4"), fort, "(2, 3, 4)", &data)).unwrap();
        for step in [1, 4, 6] {
            let found: Vec<u32> = values(&s, 0, step).iter().map(|x| x.to_bits()).collect();
            assert_eq!(found, numbers, "{order} {fort} by {step}");
        }
        // Words imported as they are, row by row.
        let mut plane = vec![0; 96];
        for (r, row) in plane.chunks_mut(16).enumerate() {
            let mut planes = RowPlanes::new(FormatId::Fp32, 1, 4, [row, &mut [], &mut []]).unwrap();
            s.import_rows(0, FormatId::Fp32, r as u64..r as u64 + 1, &mut planes).unwrap();
        }
        assert_eq!(plane, little(&numbers), "{order} {fort}");
        let s = try_open(dir.path(), "a.npy", &npy(&format!("{order}i4"), fort, "(2, 3, 4)", &data)).unwrap();
        let mut out = vec![0; 24];
        s.read_integers(0, 0..6, &mut out).unwrap();
        assert_eq!(out, numbers.iter().map(|&x| i64::from(x as i32)).collect::<Vec<_>>());
        assert_eq!(s.importable(0), [FormatId::Int32]);
    }
}

#[test]
fn every_type_of_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let one =
        |descr: &str, data: &[u8]| try_open(dir.path(), "a.npy", &npy(descr, "False", "(2,)", data)).unwrap();
    let integers = |descr: &str, data: &[u8]| {
        let mut out = [0; 2];
        one(descr, data).read_integers(0, 0..1, &mut out).map(|()| out)
    };
    assert_eq!(integers("|b1", &[0, 1]).unwrap(), [0, 1]);
    assert_eq!(integers("|i1", &[0xff, 1]).unwrap(), [-1, 1]);
    assert_eq!(integers("|u1", &[0xff, 1]).unwrap(), [255, 1]);
    assert_eq!(integers("<u1", &[0xff, 1]).unwrap(), [255, 1]);
    assert_eq!(integers("<i2", &[0xfe, 0xff, 1, 0]).unwrap(), [-2, 1]);
    assert_eq!(integers(">u2", &[0xfe, 0xff, 1, 0]).unwrap(), [0xfeff, 256]);
    assert_eq!(integers("<u4", &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]).unwrap(), [0xffff_ffff, 1]);
    assert_eq!(integers("<i8", &[[0xff; 8], [0; 8]].concat()).unwrap(), [-1, 0]);
    let e = integers("<u8", &[[0; 8], [0xff; 8]].concat()).unwrap_err();
    assert!(matches!(e.kind(), K::SourceWord { row: 0, column: 1, .. }), "{e}");
    let e = integers("|b1", &[2, 1]).unwrap_err();
    assert!(matches!(e.kind(), K::SourceWord { column: 0, .. }), "{e}");
    let s = one("<f2", &[0x00, 0x3c, 0x00, 0xc0]);
    assert_eq!(values(&s, 0, 1), [1.0, -2.0]);
    assert!(s.importable(0).is_empty());
    let s = one(">f8", &[0.1f64.to_be_bytes(), (-7.25f64).to_be_bytes()].concat());
    assert_eq!(values(&s, 0, 1), [0.1, -7.25]);
    assert!(s.read_integers(0, 0..1, &mut [0; 2]).is_err());
    for descr in ["<V2", "|O", "<U3", "<c8", "<M8[ns]", "=f4", "|f4", "f4", "", "<f16", "<f", "bfloat16"] {
        let s = one(descr, &[0; 8]);
        let Content::Unsupported(reason) = &s.tensors()[0].content else { panic!("{descr} is read") };
        assert!(reason.contains(&format!("{descr:?}")), "{reason}");
        let e = s.read_values(0, 0..1, &mut [0.0; 2]).unwrap_err();
        assert!(matches!(e.kind(), K::SourceContent { reason: Some(_), .. }), "{e}");
    }
    // A scalar and an empty array.
    let s = try_open(dir.path(), "a.npy", &npy("<f4", "False", "()", &2.5f32.to_le_bytes())).unwrap();
    assert_eq!(values(&s, 0, 1), [2.5]);
    let s = try_open(dir.path(), "a.npy", &npy("<f4", "True", "(0, 3)", &[])).unwrap();
    s.read_values(0, 0..0, &mut []).unwrap();
    let s = try_open(dir.path(), "a.npy", &npy("<f4", "True", "(3, 0)", &[])).unwrap();
    s.read_values(0, 0..3, &mut []).unwrap();
}

#[test]
fn headers_are_read_strictly() {
    let parse = |bytes: &[u8]| Header::parse(bytes, bytes.len() as u64);
    for text in [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n",
        "{'shape':(3,),'fortran_order':False,'descr':'<f4'}",
        " { \"descr\" : \"<f4\" , 'fortran_order' : False , 'shape' : ( 3 , ) } ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3L,), }",
    ] {
        let h = parse(&raw(text, &[])).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((h.descr.as_str(), h.fortran, h.shape.as_slice()), ("<f4", false, &[3][..]), "{text}");
    }
    for text in [
        "",
        "{",
        "{}",
        "[]",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4\\'', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (3,)}",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (3,)}",
    ] {
        let e = parse(&raw(text, &[])).expect_err(text);
        assert!(matches!(fault(&e), F::Header { .. }), "{text}: {e}");
    }
    let mut invalid = raw("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", &[]);
    invalid[21] = 0xff;
    assert!(matches!(fault(&parse(&invalid).unwrap_err()), F::Header { .. }));

    assert!(matches!(fault(&parse(b"\x93NUMPX\x01\x00").unwrap_err()), F::Magic { .. }));
    for version in [[1u8, 1], [4, 0], [0, 0], [2, 1]] {
        let e = parse(&[&b"\x93NUMPY"[..], &version, &[0; 8]].concat()).unwrap_err();
        assert!(matches!(fault(&e), F::Version { .. }), "{e}");
    }
    let whole = npy("<f4", "False", "(1,)", &[0; 4]);
    for cut in 6..whole.len() - 4 {
        let e = parse(&whole[..cut]).unwrap_err();
        assert!(matches!(fault(&e), F::CutShort { .. }), "{cut}: {e}");
    }
    // Longer lengths in version 2, and a limit.
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    for (length, long) in [(text.len() as u32, false), (70_000, true), (u32::MAX, true)] {
        let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(text.as_bytes());
        match parse(&bytes) {
            Ok(h) => assert!(!long && h.data_start == 12 + text.len() as u64),
            Err(e) => assert!(long && matches!(fault(&e), F::HeaderLength { .. }), "{e}"),
        }
    }
}

#[test]
fn sizes_must_be_exact() {
    let dir = tempfile::tempdir().unwrap();
    let of = |shape: &str, bytes: usize| {
        try_open(dir.path(), "a.npy", &npy("<f4", "False", shape, &vec![0; bytes])).unwrap_err()
    };
    assert!(matches!(fault(&of("(2, 2)", 15)), F::CutShort { .. }));
    assert!(matches!(fault(&of("(2, 2)", 17)), F::Trailing { extra: 1 }));
    assert!(matches!(fault(&of("(4294967296, 4294967296)", 8)), F::Overflow { .. }));
    assert!(matches!(fault(&of("(4611686018427387904,)", 8)), F::Overflow { .. }));
    assert!(matches!(fault(&of("(4611686018427387900,)", 8)), F::Overflow { .. } | F::CutShort { .. }));
    let e = of("(2, 2)", 17);
    assert!(e.path().unwrap().ends_with("a.npy"), "{e}");
}

#[test]
fn archives_stored_and_deflated() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..6000).flat_map(|i| (i as f32 / 7.0).to_le_bytes()).collect();
    let entries = [
        ("w.npy", npy("<f4", "False", "(60, 100)", &data)),
        ("sub/x.npy", npy(">i2", "False", "(1,)", &[1, 2])),
        ("note.txt", b"hello".to_vec()),
    ];
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let s = try_open(dir.path(), "m.npz", &npz(&entries, method)).unwrap();
        assert_eq!(s.kind(), "npz");
        let names: Vec<&str> = s.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["w", "sub/x"]);
        assert_eq!(s.unused()[0].name, "note.txt");
        assert_eq!(s.tensors()[0].bytes, 24_000);
        let expected: Vec<f32> = (0..6000).map(|i| i as f32 / 7.0).collect();
        // From several threads at a time.
        std::thread::scope(|scope| {
            for step in [1, 7, 60] {
                let (s, expected) = (&s, &expected);
                scope.spawn(move || assert_eq!(&values(s, 0, step), expected));
            }
        });
        let mut out = [0];
        s.read_integers(1, 0..1, &mut out).unwrap();
        assert_eq!(out, [0x0102]);
        assert_eq!(NpySource::open(dir.path().join("m.npz")).unwrap().identity(), s.identity());
    }
    // By content, whatever the name.
    let path = dir.path().join("x.bin");
    std::fs::write(&path, npz(&entries, CompressionMethod::Stored)).unwrap();
    assert_eq!(source::open(&path, &OpenOptions::default()).unwrap().tensors().len(), 2);
}

#[test]
fn broken_archives_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let array = npy("<f4", "False", "(500,)", &[7; 2000]);
    let open = |bytes: &[u8]| try_open(dir.path(), "m.npz", bytes);
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let good = npz(&[("a.npy", array.clone()), ("b.npy", array.clone())], method);
        // A changed byte of the data: found when it is read.
        let mut bad = good.clone();
        let at = if method == CompressionMethod::Stored { 600 } else { 40 };
        bad[at] ^= 0x10;
        match open(&bad) {
            Ok(s) => {
                let e = s.read_values(0, 0..1, &mut [0.0; 500]).unwrap_err();
                let known =
                    matches!(e.kind(), K::Npy(F::Checksum { .. } | F::CutShort { .. }) | K::Io { .. });
                assert!(known && e.to_string().contains("tensor \"a\""), "{method}: {e}");
            }
            // The header was hit.
            Err(e) => assert!(method == CompressionMethod::Deflated && matches!(e.kind(), K::Npy(_)), "{e}"),
        }
        // Any prefix and any changed byte: an error or the same numbers, never a panic.
        let mut random = Random(61);
        for round in 0..400 {
            let mut bytes = good.clone();
            if round < 100 {
                bytes.truncate(random.below(good.len() as u64) as usize);
            } else {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            if let Ok(s) = open(&bytes) {
                for (i, t) in s.tensors().iter().enumerate() {
                    let mut out = vec![0.0; t.elements().min(10_000) as usize];
                    if s.read_values(i, 0..t.rows(), &mut out).is_ok() {
                        assert!(out.iter().all(|x| x.to_bits() == 0x0707_0707), "round {round}");
                    }
                }
            }
        }
    }
    let e = open(&npz(&[("a.txt", vec![1])], CompressionMethod::Stored)).unwrap_err();
    assert!(matches!(fault(&e), F::NoArrays { entries: 1 }), "{e}");
    assert!(e.to_string().contains("PyTorch"), "{e}");
    let e = open(&npz(&[("a.npy", vec![1; 100])], CompressionMethod::Stored)).unwrap_err();
    assert!(matches!(fault(&e), F::Magic { .. }) && e.tensor() == Some("a"), "{e}");
    // Two entries of one name: the writer refuses them, so a name is changed afterwards.
    let mut twice = npz(&[("a.npy", array.clone()), ("b.npy", array)], CompressionMethod::Stored);
    while let Some(at) = twice.windows(5).position(|w| w == b"b.npy") {
        twice[at] = b'a';
    }
    let e = open(&twice).unwrap_err();
    assert!(matches!(fault(&e), F::Ambiguous { .. }), "{e}");
}
