//! Hostile and odd tensor lists: alignment, dimensions, ranges, names; and what is only warned about.

mod common;

use common::{Raw, rich, string};
use ninfer_gguf::{GgmlType, GgufErrorKind as K, Header, Warning};

// --- alignment -----------------------------------------------------------------------------------------------------

#[test]
fn alignments_that_are_refused() {
    for value in [0, 3, 24, 33, u32::MAX] {
        let e = Raw::new().u32("general.alignment", value).refused();
        assert_error!(
            e,
            K::Alignment { .. },
            "byte 53",
            format!("general.alignment is {value};"),
            "expected a u32 that is a power of two",
        );
    }
    for (value_type, value) in
        [(8, string("32")), (5, vec![32, 0, 0, 0]), (10, vec![32, 0, 0, 0, 0, 0, 0, 0])]
    {
        let e = Raw::new().entry("general.alignment", value_type, value).refused();
        assert_error!(e, K::Alignment { .. }, "of type", "expected a u32");
    }
}

#[test]
fn alignments_that_are_followed() {
    for alignment in [1u32, 8, 32, 64, 4096] {
        let a = u64::from(alignment);
        let second = 5u64.next_multiple_of(a);
        let mut file = Raw::new().u32("general.alignment", alignment).tensor("x", &[5], 24, 0);
        file = file.tensor("y", &[2], 24, second).data(second as usize + 2);
        file.alignment = alignment as usize;
        let bytes = file.build();
        let h = Header::parse(&bytes).unwrap();
        assert_eq!(
            (h.alignment(), h.data_start()),
            (alignment, (file.header().len() as u64).next_multiple_of(a))
        );
        let y = h.tensor("y").unwrap();
        assert_eq!(y.file_offset(), h.data_start() + second);
        assert_eq!(h.data(&bytes, y).unwrap(), &file.data[second as usize..]);
        assert!(h.warnings().is_empty(), "{:?}", h.warnings());
    }
}

#[test]
fn offsets_off_the_alignment() {
    for (alignment, offset) in [(32, 8), (32, 31), (64, 32)] {
        let e =
            Raw::new().u32("general.alignment", alignment).tensor("x", &[1], 24, offset).data(128).refused();
        assert_error!(
            e,
            K::TensorOffset { .. },
            "tensor \"x\"",
            format!("offset {offset} is not a multiple of the alignment {alignment}"),
        );
    }
}

// --- tensors -------------------------------------------------------------------------------------------------------

#[test]
fn too_many_dimensions() {
    for n_dims in [5, 9, 1_000_000, u32::MAX] {
        let e = Raw { n_dims: Some(n_dims), ..rich() }.refused();
        assert_error!(
            e,
            K::OverLimit { limit: 4, .. },
            "tensor \"first\"",
            "the number of dimensions",
            n_dims,
            "at most 4",
        );
    }
}

#[test]
fn element_counts_beyond_i64() {
    for dims in [vec![1u64 << 32, 1 << 31], vec![u64::MAX], vec![u64::MAX, u64::MAX], vec![0, 1 << 63]] {
        let e = Raw::new().tensor("big", &dims, 24, 0).refused();
        assert_error!(e, K::ElementCount { dims: d } if *d == dims, "tensor \"big\"", dims[0], "elements");
    }
    let e = Raw::new().tensor("big", &[1 << 61, 2], 28, 0).refused();
    assert_error!(e, K::SizeOverflow { .. }, "tensor \"big\"", "64 bits");
}

#[test]
fn data_ends_that_would_wrap() {
    let offset = u64::MAX - 31;
    let e = Raw::new().tensor("far", &[64], 24, offset).data(64).refused();
    assert_error!(e, K::TensorEnd { end, .. } if *end > u128::from(u64::MAX), "tensor \"far\"", "cut short");
}

#[test]
fn rows_of_partial_blocks() {
    for (ggml_type, row, block, name) in [(8, 33, 32, "Q8_0"), (12, 896, 256, "Q4_K"), (42, 96, 64, "Q2_0")] {
        let e = Raw::new().tensor("w", &[row, 2], ggml_type, 0).data(4096).refused();
        assert_error!(
            e,
            K::RowLength { .. },
            "tensor \"w\"",
            format!("row length {row} is not a multiple of {block}, the block of {name}"),
        );
    }
}

#[test]
fn a_file_cut_short_names_the_first_tensor_that_does_not_fit() {
    let file =
        Raw::new().tensor("a", &[32], 8, 0).tensor("b", &[32, 2], 8, 64).tensor("c", &[8], 0, 160).data(192);
    let whole = file.build();
    let start = Header::parse(&whole).unwrap().data_start();
    let cut = |n: u64| Header::parse(&whole[..(start + n) as usize]).unwrap_err();
    let expect = |n: u64, name: &str, end: u64| {
        assert_error!(
            cut(n),
            K::TensorEnd { .. },
            format!("tensor \"{name}\""),
            format!("ends at byte {}", start + end),
            format!("the file has {} bytes", start + n),
        );
    };
    expect(0, "a", 34);
    expect(33, "a", 34);
    expect(34, "b", 132);
    expect(131, "b", 132);
    expect(191, "c", 192);
}

#[test]
fn no_padding_after_the_last_tensor_is_fine() {
    let file = Raw::new().tensor("a", &[32], 8, 0).data(34);
    let bytes = file.build();
    let h = Header::parse(&bytes).unwrap();
    assert_eq!(h.data(&bytes, h.tensor("a").unwrap()).unwrap().len(), 34);
    assert!(h.warnings().is_empty());
}

#[test]
fn no_tensors_is_fine() {
    // Padded to the data start, and ending with the header.
    for bytes in [Raw::new().u32("k", 1).build(), Raw::new().u32("k", 1).header(), Raw::new().header()] {
        let h = Header::parse(&bytes).unwrap();
        assert!(h.tensors().is_empty());
        assert_eq!(h.data_start() % 32, 0);
        let e = h.tensor("token_embd.weight").unwrap_err();
        assert_error!(
            e,
            K::NoTensor { tensors: 0 },
            "tensor \"token_embd.weight\"",
            "no tensor has this name"
        );
        assert!(!e.to_string().contains("truncated") && !e.to_string().contains("short"), "{e}");
    }
}

#[test]
fn overlapping_tensors() {
    let e = Raw::new().tensor("a", &[64], 24, 0).tensor("b", &[32], 24, 32).data(64).refused();
    assert_error!(
        e,
        K::Overlap { .. },
        "tensor \"b\"",
        "overlaps tensor \"a\"",
        "bytes 128..160",
        "bytes 96..160"
    );
    // The same range twice, in either order of the list, and a short one inside a long one.
    let e = Raw::new().tensor("a", &[32], 24, 32).tensor("b", &[32], 24, 32).data(64).refused();
    assert_error!(e, K::Overlap { .. }, "tensor \"b\"", "tensor \"a\"");
    let e = Raw::new().tensor("in", &[8], 24, 32).tensor("out", &[96], 24, 0).data(96).refused();
    assert_error!(e, K::Overlap { .. }, "tensor \"in\"", "tensor \"out\"");
    // A single shared byte.
    let mut file = Raw::new().u32("general.alignment", 1).tensor("a", &[10], 24, 0).tensor("b", &[3], 24, 9);
    file.alignment = 1;
    let file = file.data(12);
    assert_error!(file.refused(), K::Overlap { .. }, "tensor \"b\"", "tensor \"a\"");
    // Touching ranges and empty tensors in the middle of another are fine.
    Raw::new()
        .tensor("a", &[64], 24, 0)
        .tensor("b", &[32], 24, 64)
        .tensor("none", &[0], 24, 0)
        .tensor("nothing", &[0, 3], 24, 32)
        .data(96)
        .parse()
        .unwrap();
}

#[test]
fn duplicate_tensor_names() {
    let e = Raw::new()
        .tensor("w", &[8], 24, 0)
        .tensor("v", &[8], 24, 32)
        .tensor("w", &[8], 24, 64)
        .data(96)
        .refused();
    assert_error!(e, K::DuplicateTensor { .. }, "tensor \"w\"", "duplicate", "byte 24");
}

#[test]
fn zero_dimensions_are_empty_tensors() {
    for (dims, ggml_type) in [
        (vec![0u64], 0),
        (vec![32, 0], 8),
        (vec![0, 7], 8),
        (vec![33, 0], 8),
        (vec![4, 0, 1 << 40, 1 << 40], 0),
    ] {
        // The offset lies past the end of the file: nothing is there to be read.
        let file = Raw::new().tensor("none", &dims, ggml_type, 1 << 40).tensor("some", &[4], 24, 0).data(4);
        let bytes = file.build();
        let h = Header::parse(&bytes).unwrap();
        let t = h.tensor("none").unwrap();
        assert_eq!((t.elements(), t.bytes(), t.dims()), (0, Some(0), &dims[..]));
        assert_eq!(h.data(&bytes, t).unwrap(), b"");
        assert_eq!(t.matrix_shape().iter().filter(|&&d| d == 0).count(), 1);
        assert_eq!(h.data(&bytes, h.tensor("some").unwrap()).unwrap().len(), 4);
    }
}

#[test]
fn retired_and_unknown_types_are_listed() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 9999, u32::MAX] {
        let file = Raw::new().tensor("odd", &[7, 3], id, 0).tensor("good", &[32], 8, 4096).data(4096 + 34);
        let bytes = file.build();
        let h = Header::parse(&bytes).unwrap();
        let t = h.tensor("odd").unwrap();
        assert_eq!((t.ggml_type(), t.bytes(), t.elements(), t.format()), (GgmlType(id), None, 21, None));
        let e = h.data(&bytes, t).unwrap_err();
        assert_error!(e, K::UnknownSpan { .. }, "tensor \"odd\"", format!("ggml type {id}"), "block size");
        let retired = id < 43;
        assert_eq!(h.warnings(), [Warning::UnknownType { tensor: "odd".into(), type_id: id, retired }]);
        assert_eq!(h.data(&bytes, h.tensor("good").unwrap()).unwrap(), &file.data[4096..]);
    }
}

#[test]
fn dimensions_are_kept_as_written() {
    let file = Raw::new()
        .tensor("matrix", &[64, 3], 8, 0)
        .tensor("ones", &[4, 3, 1, 1], 0, 224)
        .tensor("experts", &[32, 5, 2], 8, 288)
        .tensor("vector", &[3840], 30, 640)
        .tensor("quantised vector", &[64], 8, 8320)
        .tensor("scalar", &[], 0, 8416)
        .data(8420);
    let h = file.parse().unwrap();
    let shapes = |name: &str| {
        let t = h.tensor(name).unwrap();
        (t.shape(), t.matrix_shape(), t.bytes().unwrap())
    };
    assert_eq!(shapes("matrix"), (vec![3, 64], [3, 64], 3 * 68));
    assert_eq!(shapes("ones"), (vec![1, 1, 3, 4], [3, 4], 48));
    assert_eq!(shapes("experts"), (vec![2, 5, 32], [10, 32], 340));
    assert_eq!(shapes("vector"), (vec![3840], [1, 3840], 7680));
    assert_eq!(shapes("quantised vector"), (vec![64], [1, 64], 68));
    assert_eq!(shapes("scalar"), (vec![], [1, 1], 4));
    assert_eq!(h.tensor("experts").unwrap().format().unwrap().name(), "gguf_q8_0");
    assert_eq!(h.tensor("vector").unwrap().format().unwrap().name(), "bf16");
    assert_eq!(h.tensor("scalar").unwrap().format().unwrap().name(), "fp32");
}

#[test]
fn original_shapes_must_fit() {
    let key = "comfy.gguf.orig_shape.w";
    let i32s = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let with = |element: u32, count: u64, v: Vec<u8>| {
        let file = Raw::new().array(key, element, count, v).tensor("w", &[8, 3], 0, 0).data(96);
        let (bytes, h) = (file.build(), file.parse().unwrap());
        let t = h.tensor("w").unwrap();
        h.metadata(&bytes).unwrap().original_shape(t)
    };
    assert_eq!(with(5, 4, i32s(&[3, 2, 2, 2])).unwrap(), Some(vec![3, 2, 2, 2]));
    assert_error!(
        with(5, 2, i32s(&[3, 9])).unwrap_err(),
        K::OriginalShape { .. },
        "comfy.gguf.orig_shape.w",
        "[3, 9]",
        "24"
    );
    assert_error!(with(5, 2, i32s(&[-3, -8])).unwrap_err(), K::OriginalShape { .. }, "[-3, -8]");
    assert_error!(with(6, 2, i32s(&[0, 0])).unwrap_err(), K::KeyType { .. }, "f32", "array of integers");
    assert_error!(with(5, 65, i32s(&[1; 65])).unwrap_err(), K::OverLimit { .. }, "rank");
    let file = Raw::new().tensor("w", &[8], 0, 0).data(32);
    let (bytes, h) = (file.build(), file.parse().unwrap());
    assert_eq!(h.metadata(&bytes).unwrap().original_shape(h.tensor("w").unwrap()).unwrap(), None);
}

// --- warnings ------------------------------------------------------------------------------------------------------

#[test]
fn gaps_and_disorder_are_warned_about() {
    let h = Raw::new().tensor("a", &[32], 24, 32).tensor("b", &[4], 24, 128).data(132).parse().unwrap();
    assert_eq!(
        h.warnings(),
        [
            Warning::Gap { tensor: "a".into(), offset: 32, contiguous: 0 },
            Warning::Gap { tensor: "b".into(), offset: 128, contiguous: 64 },
        ]
    );
    let h = Raw::new().tensor("late", &[32], 24, 32).tensor("early", &[32], 24, 0).data(64).parse().unwrap();
    assert_eq!(
        h.warnings()[1],
        Warning::Disorder { tensor: "early".into(), offset: 0, contiguous: 64 },
        "{:?}",
        h.warnings()
    );
    assert!(h.warnings()[1].to_string().contains("early"));
}

#[test]
fn names_of_64_bytes_are_warned_about() {
    for (len, warned) in [(63, false), (64, true), (65, true)] {
        let h = Raw::new().tensor("n".repeat(len), &[4], 24, 0).data(4).parse().unwrap();
        assert_eq!(h.warnings().len(), usize::from(warned), "{len}");
        if warned {
            assert!(h.warnings()[0].to_string().contains(&format!("{len} bytes")), "{}", h.warnings()[0]);
        }
        assert!(h.find("n".repeat(len)).is_some());
    }
}

#[test]
fn empty_names_are_warned_about() {
    let file = Raw::new().entry("", 0, [5]).tensor("", &[4], 24, 0).data(4);
    let (bytes, h) = (file.build(), file.parse().unwrap());
    assert_eq!(h.warnings(), [Warning::EmptyKey { index: 0 }, Warning::EmptyName { index: 0 }]);
    assert_eq!(h.metadata(&bytes).unwrap().get_u64("").unwrap(), Some(5));
    assert_eq!(h.tensor("").unwrap().elements(), 4);
}

#[test]
fn warnings_are_capped_and_counted() {
    let mut file = Raw::new();
    for i in 0..150u64 {
        file = file.tensor(format!("t{i}"), &[4], 24, (i + 1) * 64);
    }
    let h = file.data(151 * 64).parse().unwrap();
    assert_eq!(h.warnings().len(), 101);
    assert_eq!(h.warnings()[100], Warning::More { count: 50 });
}
