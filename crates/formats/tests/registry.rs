//! The registry's table against the format specification, and its look-ups.
use ninfer_formats::{FORMATS, FormatError, FormatId, LAYOUTS, LayoutId, Scheme, encoded_size};

/// Name, layout, bits per weight: written out from the specification's tables, not derived.
const EXPECTED: [(&str, &str, f64); 30] = [
    ("bf16", "contiguous_le_v1", 16.0),
    ("fp32", "contiguous_le_v1", 32.0),
    ("int32", "contiguous_le_v1", 32.0),
    ("q2_g64_fp16", "row_split_k128_v1", 2.25),
    ("q4_g64_fp16", "row_split_k128_v1", 4.25),
    ("q5_g64_fp16", "row_split_k128_v1", 5.25),
    ("q6_g64_fp16", "row_split_k128_v1", 6.25),
    ("q8_g32_fp16", "row_split_k128_v1", 8.5),
    ("t2_g128_fp16", "row_split_k128_v1", 2.125),
    ("nvfp4", "block_scale_k16_m128x4_v1", 4.5),
    ("fp8_e4m3fn_row_bf16", "row_scale_v1", 8.0),
    ("fp8_e4m3fn_row_fp16", "row_interleaved_v1", 8.0),
    ("gguf_q8_0", "gguf_blocks_v1", 8.5),
    ("gguf_q4_0", "gguf_blocks_v1", 4.5),
    ("gguf_q5_0", "gguf_blocks_v1", 5.5),
    ("gguf_q2_0", "gguf_blocks_v1", 2.25),
    ("gguf_q2_k", "gguf_blocks_v1", 2.625),
    ("gguf_q3_k", "gguf_blocks_v1", 3.4375),
    ("gguf_q4_k", "gguf_blocks_v1", 4.5),
    ("gguf_q5_k", "gguf_blocks_v1", 5.5),
    ("gguf_q6_k", "gguf_blocks_v1", 6.5625),
    ("gguf_iq2_xxs", "gguf_blocks_v1", 2.0625),
    ("gguf_iq2_xs", "gguf_blocks_v1", 2.3125),
    ("gguf_iq3_xxs", "gguf_blocks_v1", 3.0625),
    ("gguf_iq1_s", "gguf_blocks_v1", 1.5625),
    ("gguf_iq4_nl", "gguf_blocks_v1", 4.5),
    ("gguf_iq3_s", "gguf_blocks_v1", 3.4375),
    ("gguf_iq2_s", "gguf_blocks_v1", 2.5625),
    ("gguf_iq4_xs", "gguf_blocks_v1", 4.25),
    ("gguf_iq1_m", "gguf_blocks_v1", 1.75),
];

/// ggml type, values and bytes of each block, written out from the specification.
const BLOCKS: [(&str, u32, usize, usize); 18] = [
    ("gguf_q8_0", 8, 32, 34),
    ("gguf_q4_0", 2, 32, 18),
    ("gguf_q5_0", 6, 32, 22),
    ("gguf_q2_0", 42, 64, 18),
    ("gguf_q2_k", 10, 256, 84),
    ("gguf_q3_k", 11, 256, 110),
    ("gguf_q4_k", 12, 256, 144),
    ("gguf_q5_k", 13, 256, 176),
    ("gguf_q6_k", 14, 256, 210),
    ("gguf_iq2_xxs", 16, 256, 66),
    ("gguf_iq2_xs", 17, 256, 74),
    ("gguf_iq3_xxs", 18, 256, 98),
    ("gguf_iq1_s", 19, 256, 50),
    ("gguf_iq4_nl", 20, 32, 18),
    ("gguf_iq3_s", 21, 256, 110),
    ("gguf_iq2_s", 22, 256, 82),
    ("gguf_iq4_xs", 23, 256, 136),
    ("gguf_iq1_m", 29, 256, 56),
];

#[test]
fn table_matches_the_specification() {
    assert_eq!(FORMATS.len(), EXPECTED.len());
    for (f, (name, layout, bits)) in FORMATS.iter().zip(EXPECTED) {
        assert_eq!((f.name, f.layout.name()), (name, layout));
        assert_eq!(f.id.bits_per_weight(), bits, "{name}");
        assert_eq!(FormatId::from_name(name), Ok(f.id));
        assert_eq!(name.parse(), Ok(f.id));
        assert_eq!(f.id.to_string(), name);
    }
    let blocks: Vec<_> = FORMATS
        .iter()
        .filter_map(|f| match f.scheme {
            Scheme::Gguf(k) => Some((f.name, k.ggml_type(), k.values(), k.bytes())),
            _ => None,
        })
        .collect();
    assert_eq!(blocks, BLOCKS);
}

#[test]
fn ggml_types_outside_the_registry_are_unknown() {
    for t in (0..200).chain([9999, u32::MAX]) {
        let expected = BLOCKS.iter().find(|b| b.1 == t).map(|b| b.0);
        assert_eq!(FormatId::from_ggml_type(t).map(FormatId::name), expected, "type {t}");
    }
}

#[test]
fn unknown_names_list_near_ones() {
    for (name, near) in [
        ("q4_g64", "q4_g64_fp16"),
        ("Q4_G64_FP16", "q4_g64_fp16"),
        ("gguf_q4k", "gguf_q4_k"),
        ("q6_k", "gguf_q6_k"),
        ("fp8-e4m3fn-row-bf16", "fp8_e4m3fn_row_bf16"),
        ("bf61", "bf16"),
    ] {
        let text = FormatId::from_name(name).expect_err("refused").to_string();
        assert!(text.contains(&format!("{name:?}")) && text.contains(near), "{text}");
    }
    // Names are identifiers, not a grammar; case and spaces count.
    for name in ["", " bf16", "bf16\0", "q3_g64_fp16", "q8_g64_fp16", &"x".repeat(10_000)] {
        let e = FormatId::from_name(name).expect_err("refused");
        assert!(matches!(e, FormatError::UnknownFormat { .. }));
        assert!(e.to_string().len() < 600);
    }
    let e = LayoutId::from_name("row_split_k128").expect_err("refused").to_string();
    assert!(e.contains("row_split_k128_v1"), "{e}");
    for l in &LAYOUTS {
        assert_eq!(LayoutId::from_name(l.name), Ok(l.id));
    }
}

#[test]
fn each_format_has_one_layout() {
    for f in &FORMATS {
        for l in &LAYOUTS {
            let r = l.id.check(f.id);
            if l.id == f.layout {
                assert_eq!(r, Ok(()));
            } else {
                let text = r.expect_err("refused").to_string();
                assert!(
                    text.contains(f.name) && text.contains(l.name) && text.contains(f.layout.name()),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn encoded_sizes_of_worked_examples() {
    let size = |name: &str, shape: &[u64], d| encoded_size(FormatId::from_name(name).unwrap(), shape, d);
    assert_eq!(size("q5_g64_fp16", &[2, 130], 1), Ok(528));
    assert_eq!(size("q4_g64_fp16", &[7168, 5120], 1), Ok(19_496_960));
    assert_eq!(size("fp8_e4m3fn_row_fp16", &[3, 160], 1), Ok(3 * 162));
    assert_eq!(size("fp8_e4m3fn_row_bf16", &[3, 160], 1), Ok(512 + 6));
    assert_eq!(size("nvfp4", &[256, 128], 2), Ok(256 * 64 + 256 * 8 + 8));
    assert_eq!(size("bf16", &[], 1), Ok(2));
    assert_eq!(size("fp32", &[1; 16], 1), Ok(4));
    assert_eq!(size("gguf_q4_k", &[3, 512], 1), Ok(3 * 2 * 144));
    // Past 32 bits.
    assert_eq!(size("gguf_q8_0", &[1 << 20, 1 << 13], 1), Ok((1u64 << 20) * (1 << 8) * 34));
}

#[test]
fn illegal_shapes_are_refused_with_the_rule() {
    let size = |name: &str, shape: &[u64], d| encoded_size(FormatId::from_name(name).unwrap(), shape, d);
    let text = |name: &str, shape: &[u64], d| size(name, shape, d).expect_err("refused").to_string();
    let t = text("gguf_q4_k", &[4, 896], 1);
    assert!(t.contains("row length 896 is not a multiple of 256"), "{t}");
    for shape in [&[130, 128][..], &[128, 80]] {
        let t = text("nvfp4", shape, 1);
        assert!(t.contains("multiple of 128") && t.contains("multiple of 64"), "{t}");
    }
    for (d, word) in [(0, "at least one"), (3, "divide N"), (4, "128 rows")] {
        let t = text("nvfp4", &[256, 64], d);
        assert!(t.contains(word), "{t}");
    }
    assert!(text("bf16", &[2, 2], 2).contains("divisors"));
    assert!(text("bf16", &[2, 0, 2], 1).contains("dimension 1 is zero"));
    assert!(text("bf16", &[1; 17], 1).contains("rank 17"));
    for name in ["q4_g64_fp16", "nvfp4", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16", "gguf_q8_0"] {
        for shape in [&[][..], &[64], &[2, 128, 64], &[0, 64], &[128, 0]] {
            assert!(size(name, shape, 1).is_err(), "{name} {shape:?}");
        }
    }
    // Overflow is an error, never a wrap.
    for f in &FORMATS {
        for shape in
            [[u64::MAX / 256 * 256, u64::MAX / 256 * 256], [1 << 40, 1 << 40], [1 << 63, 256], [128, 1 << 63]]
        {
            let e = encoded_size(f.id, &shape, 1);
            assert!(matches!(e, Err(FormatError::SizeOverflow { .. })), "{} {shape:?}: {e:?}", f.name);
        }
    }
}
