//! Importance matrices: both file forms, experts without data, and every way a file can be broken.

mod common;

use common::{Raw, array, string};
use ninfer_gguf::{GgufErrorKind as K, Imatrix, ImatrixForm, Importance};

fn floats(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn legacy_entry(name: &str, calls: i32, sums: &[f32]) -> Vec<u8> {
    let mut v = (name.len() as i32).to_le_bytes().to_vec();
    v.extend(name.as_bytes());
    v.extend(calls.to_le_bytes());
    v.extend((sums.len() as i32).to_le_bytes());
    v.extend(floats(sums));
    v
}

fn legacy(entries: &[(&str, i32, &[f32])]) -> Vec<u8> {
    let mut v = (entries.len() as i32).to_le_bytes().to_vec();
    entries.iter().for_each(|&(n, c, s)| v.extend(legacy_entry(n, c, s)));
    v
}

/// A GGUF file of F32 tensors, laid out in order.
fn gguf(tensors: &[(&str, &[u64], &[f32])]) -> Raw {
    let mut file = Raw::new().text("general.type", "imatrix");
    let mut data: Vec<u8> = Vec::new();
    for (name, dims, values) in tensors {
        file = file.tensor(name, dims, 0, data.len() as u64);
        data.extend(floats(values));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.data = data;
    file
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

/// Sums with quotients that need rounding.
fn sums(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 + 0.3) * 1.7 + 1.0 / (i as f32 + 1.0)).collect()
}

#[test]
fn both_forms_give_the_same_vectors() {
    let (a, b) = (sums(96), sums(5));
    let old = Imatrix::parse(&legacy(&[("blk.0.attn_q.weight", 7, &a), ("x", 1, &b)])).unwrap();
    let new = gguf(&[
        ("blk.0.attn_q.weight.in_sum2", &[96, 1], &a),
        ("blk.0.attn_q.weight.counts", &[1, 1], &[7.0]),
        ("x.counts", &[1], &[1.0]),
        ("x.in_sum2", &[5], &b),
    ]);
    let new = Imatrix::parse(&new.build()).unwrap();
    assert_eq!((old.form(), new.form()), (Some(ImatrixForm::Legacy), Some(ImatrixForm::Gguf)));
    assert_eq!(old.entries(), new.entries());
    let values = old.get("blk.0.attn_q.weight").unwrap().values();
    let wanted: Vec<f32> = a.iter().map(|x| x / 7.0).collect();
    assert_eq!(bits(&values), bits(&wanted));
    assert_eq!(bits(&new.get("x").unwrap().values()), bits(&b));
    assert!(old.get("y").is_none());
    assert!(old.warnings().is_empty() && new.warnings().is_empty());
}

#[test]
fn the_form_is_found_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let new = gguf(&[("x.in_sum2", &[2, 1], &[1.0, 2.0]), ("x.counts", &[1, 1], &[2.0])]).build();
    let path = dir.path().join("imatrix.dat");
    std::fs::write(&path, new).unwrap();
    assert_eq!(Imatrix::open(&path).unwrap().form(), Some(ImatrixForm::Gguf));
    let path = dir.path().join("imatrix.gguf");
    std::fs::write(&path, legacy(&[("x", 2, &[1.0, 2.0])])).unwrap();
    let m = Imatrix::open(&path).unwrap();
    assert_eq!(m.form(), Some(ImatrixForm::Legacy));
    assert_eq!(m.get("x").unwrap().values(), [0.5, 1.0]);
    std::fs::write(&path, b"").unwrap();
    assert_error!(
        Imatrix::open(&path).unwrap_err(),
        K::Truncated { .. },
        "imatrix.gguf",
        "byte 0",
        "entry count"
    );
    assert_error!(
        Imatrix::open(dir.path().join("absent")).unwrap_err(),
        K::Io { .. },
        "absent",
        "cannot open"
    );
}

#[test]
fn legacy_tails() {
    let body = legacy(&[("x", 4, &[1.0])]);
    let m = Imatrix::parse(&body).unwrap();
    assert_eq!((m.chunk_count(), m.datasets().count()), (None, 0));
    let with_chunks = [&body[..], &100i32.to_le_bytes()].concat();
    assert_eq!(Imatrix::parse(&with_chunks).unwrap().chunk_count(), Some(100));
    let whole = [&with_chunks[..], &8i32.to_le_bytes(), b"wiki.txt"].concat();
    let m = Imatrix::parse(&whole).unwrap();
    assert_eq!(m.datasets().map(|d| d.to_string()).collect::<Vec<_>>(), ["wiki.txt"]);
    for end in (body.len() + 1..whole.len()).filter(|&n| n != with_chunks.len()) {
        let e = Imatrix::parse(&whole[..end]).unwrap_err();
        assert_error!(e, K::Truncated { .. } | K::TooMany { .. }, "byte");
    }
    let e = Imatrix::parse(&[&whole[..], b"more"].concat()).unwrap_err();
    assert_error!(e, K::Imatrix { .. }, format!("byte {}", whole.len()), "4 bytes are left over");
}

#[test]
fn truncated_legacy_files_are_refused() {
    let whole = legacy(&[("blk.0.attn_q.weight", 7, &sums(9)), ("x", 1, &sums(2))]);
    for end in 0..whole.len() {
        let e = Imatrix::parse(&whole[..end]).unwrap_err();
        assert_error!(e, K::Truncated { .. } | K::TooMany { .. }, "byte");
    }
}

#[test]
fn legacy_numbers_are_checked() {
    let head = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for count in [0, -1, i32::MIN] {
        let e = Imatrix::parse(&head(&[count])).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "byte 0", "the entry count", count, "at least 1");
    }
    for count in [2, 1 << 30, i32::MAX] {
        let e = Imatrix::parse(&[head(&[count]), vec![0; 20]].concat()).unwrap_err();
        assert_error!(e, K::TooMany { .. }, "byte 0", "the entry count", count, "at most 1");
    }
    for len in [0, -5, i32::MIN] {
        let e = Imatrix::parse(&[head(&[1, len]), vec![0; 20]].concat()).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "byte 4", "name length", len);
    }
    let e = Imatrix::parse(&[head(&[1, 70_000]), vec![b'x'; 80_000]].concat()).unwrap_err();
    assert_error!(e, K::OverLimit { .. }, "byte 4", "name length", "at most 65535");
    let named = |v: &[i32]| [head(&[1, 1]), b"a".to_vec(), head(v), vec![0; 64]].concat();
    let e = Imatrix::parse(&named(&[-1, 1])).unwrap_err();
    assert_error!(e, K::Imatrix { .. }, "byte 9", "tensor \"a\"", "the call count is -1");
    for values in [0, -1, i32::MIN] {
        let e = Imatrix::parse(&named(&[1, values])).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "byte 13", "tensor \"a\"", "the value count", values);
    }
    for values in [17, i32::MAX] {
        let e = Imatrix::parse(&named(&[1, values])).unwrap_err();
        assert_error!(e, K::TooMany { .. }, "byte 13", "tensor \"a\"", "the value count", "at most 16");
    }
}

#[test]
fn duplicate_names_are_refused() {
    let e = Imatrix::parse(&legacy(&[("a", 1, &[1.0]), ("a", 1, &[1.0])])).unwrap_err();
    assert_error!(e, K::DuplicateTensor { .. }, "byte 21", "tensor \"a\"", "duplicate");
}

#[test]
fn sums_must_be_finite_and_not_negative() {
    for bad in [f32::NAN, f32::INFINITY, -1.0, -0.25] {
        let e = Imatrix::parse(&legacy(&[("w", 1, &[1.0, 2.0, bad, 4.0])])).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "tensor \"w\"", "expert 0, channel 2", format!("{bad}"));
        let file = gguf(&[("w.in_sum2", &[2, 2], &[1.0, 2.0, 3.0, bad]), ("w.counts", &[1, 2], &[1.0, 1.0])]);
        let e = Imatrix::parse(&file.build()).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "tensor \"w\"", "expert 1, channel 1", format!("{bad}"));
        let file = gguf(&[("w.in_sum2", &[1, 2], &[1.0, 2.0]), ("w.counts", &[1, 2], &[1.0, bad])]);
        let e = Imatrix::parse(&file.build()).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "tensor \"w\"", "count of expert 1", format!("{bad}"));
    }
    // Zero, of either sign, is a legal sum.
    assert!(Importance::new("w", vec![0.0, -0.0], vec![1.0]).is_ok());
}

#[test]
fn experts_without_data_weigh_alike() {
    let file = gguf(&[
        ("ffn.in_sum2", &[3, 3], &[10.0, 20.0, 30.0, 0.0, 0.0, 0.0, 5.0, 0.0, 1.0]),
        ("ffn.counts", &[1, 3], &[10.0, 0.0, 5.0]),
    ]);
    let m = Imatrix::parse(&file.build()).unwrap();
    let e = m.get("ffn").unwrap();
    assert_eq!((e.experts(), e.channels()), (3, 3));
    assert_eq!(bits(&e.values()), bits(&[1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.2]));
    assert_eq!(e.unreached().collect::<Vec<_>>(), [1]);
    assert_eq!(m.warnings().len(), 1);
    assert!(m.warnings()[0].contains("\"ffn\": 1 of 3 experts"), "{:?}", m.warnings());
    // A dense tensor keeps its sums.
    let dense = Importance::new("d", vec![3.0, 0.0], vec![0.0]).unwrap();
    assert_eq!(dense.values(), [3.0, 0.0]);
    let mut m = Imatrix::new();
    m.insert(dense).unwrap();
    assert!(m.warnings()[0].contains("\"d\": no calibration data"), "{:?}", m.warnings());
    // A count below one does not enlarge.
    assert_eq!(Importance::new("d", vec![3.0], vec![0.25]).unwrap().values(), [3.0]);
}

#[test]
fn legacy_vectors_are_divided_among_experts() {
    let m = Imatrix::parse(&legacy(&[("ffn", 2, &[2.0, 4.0, 0.0, 0.0, 6.0, 0.0])])).unwrap();
    let flat = m.get("ffn").unwrap();
    assert_eq!((flat.experts(), flat.channels()), (1, 6));
    let split = flat.split(3, 2).unwrap();
    assert_eq!((split.experts(), split.channels()), (3, 2));
    assert_eq!(split.values(), [1.0, 2.0, 1.0, 1.0, 3.0, 0.0]);
    assert_eq!(split.unreached().collect::<Vec<_>>(), [1]);
    assert_eq!(split.split(3, 2).unwrap(), split);
    for (experts, channels) in [(3, 3), (1, 5), (0, 6), (6, 0), (usize::MAX, 2)] {
        let e = flat.split(experts, channels).unwrap_err();
        assert_error!(e, K::Imatrix { .. }, "tensor \"ffn\"", "1 x 6", format!("{experts} x {channels}"));
    }
    assert_error!(split.split(2, 3).unwrap_err(), K::Imatrix { .. }, "3 x 2", "2 x 3");
}

#[test]
fn gguf_pairs_must_fit() {
    let one = |tensors: &[(&str, &[u64], &[f32])]| Imatrix::parse(&gguf(tensors).build()).unwrap_err();
    let e = one(&[("w.in_sum2", &[2], &[1.0, 2.0])]);
    assert_error!(e, K::Imatrix { .. }, "tensor \"w.in_sum2\"", "no counts beside them");
    let e = one(&[("v.in_sum2", &[1], &[1.0]), ("v.counts", &[1], &[1.0]), ("w.counts", &[1], &[1.0])]);
    assert_error!(e, K::Imatrix { .. }, "tensor \"w.counts\"", "no sums beside them");
    let e = one(&[("w.in_sum2", &[2, 3], &[1.0; 6]), ("w.counts", &[1, 2], &[1.0, 1.0])]);
    assert_error!(e, K::Imatrix { .. }, "tensor \"w\"", "sums of shape [3, 2]", "counts of shape [2, 1]");
    let e = one(&[("w.in_sum2", &[0, 1], &[]), ("w.counts", &[1], &[1.0])]);
    assert_error!(e, K::Imatrix { .. }, "tensor \"w\"", "sums of shape [1, 0]");
    let e = one(&[("output.weight", &[2], &[1.0, 2.0])]);
    assert_error!(e, K::Imatrix { .. }, "none of the 1 tensors", "NAME.in_sum2");
    let mut file = gguf(&[("w.in_sum2", &[2], &[1.0, 2.0]), ("w.counts", &[1], &[1.0])]);
    file.tensors[1].2 = 26;
    let e = Imatrix::parse(&file.build()).unwrap_err();
    assert_error!(e, K::Imatrix { .. }, "tensor \"w.counts\"", "I32", "F32");
    let e = one(&[(".in_sum2", &[1], &[1.0]), (".counts", &[1], &[1.0])]);
    assert_error!(e, K::Imatrix { .. }, "the name of the tensor is empty");
}

#[test]
fn gguf_metadata() {
    let base = gguf(&[("w.in_sum2", &[1], &[1.0]), ("w.counts", &[1], &[1.0]), ("extra", &[1], &[0.0])]);
    let names = array(8, 2, [string("wiki.train"), string("code")].concat());
    let file = base.clone().entry("imatrix.datasets", 9, names).u32("imatrix.chunk_count", 300);
    let m = Imatrix::parse(&file.u32("imatrix.chunk_size", 512).build()).unwrap();
    assert_eq!(m.datasets().map(|d| d.to_string()).collect::<Vec<_>>(), ["wiki.train", "code"]);
    assert_eq!((m.chunk_count(), m.chunk_size()), (Some(300), Some(512)));
    assert!(m.warnings()[0].contains("\"extra\""), "{:?}", m.warnings());
    let file = base.entry("imatrix.datasets", 9, array(4, 1, [0; 4]));
    let e = Imatrix::parse(&file.build()).unwrap_err();
    assert_error!(e, K::KeyType { .. }, "imatrix.datasets", "u32", "array of strings");
}

#[test]
fn saving_keeps_sums_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let body = legacy(&[("a", 7, &sums(40)), ("b", 0, &sums(3))]);
    let old =
        Imatrix::parse(&[&body[..], &9i32.to_le_bytes(), &4i32.to_le_bytes(), b"wiki"].concat()).unwrap();
    let path = dir.path().join("saved.gguf");
    old.save(&path).unwrap();
    let new = Imatrix::open(&path).unwrap();
    assert_eq!(new.form(), Some(ImatrixForm::Gguf));
    assert_eq!(new.entries(), old.entries());
    assert_eq!(new.chunk_count(), Some(9));
    assert_eq!(new.datasets().map(|d| d.to_string()).collect::<Vec<_>>(), ["wiki"]);
    assert_error!(old.save(&path).unwrap_err(), K::Exists, "saved.gguf");
    let again = dir.path().join("again.gguf");
    new.save(&again).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
    let mut m = Imatrix::new();
    m.insert(Importance::new("experts", vec![1.0; 6], vec![3.0, 0.0]).unwrap()).unwrap();
    assert_error!(
        m.insert(Importance::new("experts", vec![1.0], vec![1.0]).unwrap()).unwrap_err(),
        K::DuplicateTensor { .. },
        "experts"
    );
    let path = dir.path().join("experts.gguf");
    m.save(&path).unwrap();
    assert_eq!(Imatrix::open(&path).unwrap().entries(), m.entries());
    // A count that binary32 cannot hold is not rounded.
    let many = Imatrix::parse(&legacy(&[("a", (1 << 24) + 1, &[1.0])])).unwrap();
    assert_eq!(many.entries()[0].counts(), [16_777_217.0]);
    let path = dir.path().join("many.gguf");
    assert_error!(many.save(&path).unwrap_err(), K::Imatrix { .. }, "tensor \"a\"", "16777217");
    assert!(!path.exists());
}

#[test]
fn importance_needs_whole_rows() {
    for (sums, counts) in [(0, 1), (3, 0), (3, 2)] {
        let e = Importance::new("w", vec![1.0; sums], vec![1.0; counts]).unwrap_err();
        assert_error!(
            e,
            K::Imatrix { .. },
            "tensor \"w\"",
            format!("{sums} sums do not belong to {counts} counts")
        );
    }
}

#[test]
fn mutated_files_never_panic() {
    let old = legacy(&[("blk.0", 7, &sums(9)), ("x", 1, &sums(2))]);
    let new = gguf(&[("w.in_sum2", &[2, 2], &[1.0; 4]), ("w.counts", &[1, 2], &[1.0, 0.0])]).build();
    for good in [old, new] {
        Imatrix::parse(&good).unwrap();
        let mut bytes = good.clone();
        for i in 0..bytes.len() {
            for byte in (0..8).map(|b| good[i] ^ (1 << b)).chain([0, 0x7f, 0x80, 0xff]) {
                bytes[i] = byte;
                if let Ok(m) = Imatrix::parse(&bytes) {
                    let _ = m.warnings();
                    assert!(m.entries().iter().all(|e| e.values().len() == e.sums().len()));
                }
            }
            bytes[i] = good[i];
            let _ = Imatrix::parse(&good[..i]);
        }
    }
}
