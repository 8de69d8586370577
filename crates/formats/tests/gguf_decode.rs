//! Decoders of the ggml block types: golden words, field reports, every bit of a block, fixed hashes.
#![allow(missing_docs, reason = "an integration test")]

mod common;

use common::{Rng, bits, golden, hex, hex32};
use ninfer_formats::codec::gguf::{self, Block, decode_blocks, fields};
use ninfer_formats::float::f16;
use ninfer_formats::{BlockKind, FormatId, Scheme};

/// The 18 types with their canonical names.
fn kinds() -> impl Iterator<Item = (BlockKind, &'static str)> {
    FormatId::all().filter_map(|f| match f.scheme() {
        Scheme::Gguf(kind) => Some((kind, f.name())),
        _ => None,
    })
}

fn decode(kind: BlockKind, blocks: &[u8]) -> Vec<f32> {
    // A marker that no decoder writes shows elements left out.
    let mut out = vec![f32::from_bits(0x7fab_cdef); blocks.len() / kind.bytes() * kind.values()];
    decode_blocks(kind, blocks, &mut out);
    assert!(out.iter().all(|x| x.to_bits() != 0x7fab_cdef), "{kind:?} left elements unwritten");
    out
}

/// Calls `$body` with `$B` bound to the type of each of the 18 kinds.
macro_rules! for_each_type {
    ($B:ident => $body:expr) => {
        for_each_type!(@ $B => $body; Q8_0 Q4_0 Q5_0 Q2_0 Q2K Q3K Q4K Q5K Q6K Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Iq1S
            Iq1M Iq4Nl Iq4Xs)
    };
    (@ $B:ident => $body:expr; $($name:ident)+) => {
        $({
            type $B = gguf::$name;
            $body
        })+
    };
}

/// Byte offsets of the binary16 fields of a block; `iq1_m` spreads its one over the words at `S`.
fn half_fields(kind: BlockKind) -> &'static [usize] {
    match kind {
        BlockKind::Q2K => &[fields::q2_k::D, fields::q2_k::DMIN],
        BlockKind::Q3K => &[fields::q3_k::D],
        BlockKind::Q4K | BlockKind::Q5K => &[fields::q4_k::D, fields::q4_k::DMIN],
        BlockKind::Q6K => &[fields::q6_k::D],
        BlockKind::Iq1M => &[],
        _ => &[0],
    }
}

/// Writes the binary16 word to every scale field of the block.
fn set_scales(kind: BlockKind, block: &mut [u8], word: u16) {
    for &at in half_fields(kind) {
        block[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    if kind == BlockKind::Iq1M {
        for i in 0..4 {
            let high = &mut block[fields::iq1_m::S + 2 * i + 1];
            *high = (*high & 15) + (word >> (4 * i) & 15) as u8 * 16;
        }
    }
}

/// A block of zero bytes with d = `word` and no minimum scale.
fn blank(kind: BlockKind, word: u16) -> Vec<u8> {
    let mut block = vec![0; kind.bytes()];
    set_scales(kind, &mut block, word);
    for &at in half_fields(kind).iter().skip(1) {
        block[at..at + 2].fill(0);
    }
    block
}

const ONE: u16 = 0x3c00;
const HALF: u16 = 0x3800;

#[test]
fn golden_words() {
    let file = golden("gguf_decode");
    let cases = file["cases"].as_array().expect("cases");
    let mut seen = Vec::new();
    for case in cases {
        let name = case["format"].as_str().expect("format");
        let (kind, _) = kinds().find(|(_, n)| *n == name).expect("registered");
        assert_eq!(u64::from(kind.ggml_type()), case["ggml_type"].as_u64().expect("ggml_type"));
        assert_eq!(bits(&decode(kind, &hex(case, "bytes"))), hex32(case, "f32"), "{name}");
        seen.push(name);
    }
    assert_eq!(seen.len(), 18);
    assert!(kinds().all(|(_, n)| seen.contains(&n)));
}

/// FR-03, FR-06: d = 1 and all other bytes zero.
#[test]
fn unit_scale_and_zero_codes() {
    for (kind, name) in kinds() {
        let expected: f32 = match kind {
            BlockKind::Q8_0 | BlockKind::Q2K | BlockKind::Q4K | BlockKind::Q5K => 0.0,
            BlockKind::Q4_0 => -8.0,
            BlockKind::Q5_0 => -16.0,
            BlockKind::Q2_0 => -1.0,
            BlockKind::Q3K => 128.0,
            BlockKind::Q6K => -0.0,
            BlockKind::Iq4Nl => -127.0,
            BlockKind::Iq4Xs => 4064.0,
            BlockKind::Iq1S | BlockKind::Iq1M => -0.875,
            BlockKind::Iq2Xxs | BlockKind::Iq2Xs | BlockKind::Iq2S | BlockKind::Iq3Xxs | BlockKind::Iq3S => {
                1.0
            }
        };
        let out = decode(kind, &blank(kind, ONE));
        assert!(out.iter().all(|x| x.to_bits() == expected.to_bits()), "{name}: {:?}", &out[..4]);
    }
}

/// FR-04: scale of each group of 16 paired with its own two-bit lanes.
#[test]
fn q2_k_order_of_groups() {
    let mut block = blank(BlockKind::Q2K, ONE);
    set_scales(BlockKind::Q2K, &mut block, ONE);
    for i in 0..16 {
        block[fields::q2_k::S + i] = (i | (15 - i) << 4) as u8;
    }
    block[fields::q2_k::Q..][..64].fill(0xe4);
    let groups = [-15, -14, -11, -9, -3, 0, 9, 13, -7, -6, 5, 7, 21, 24, 41, 45];
    for (i, x) in decode(BlockKind::Q2K, &block).iter().enumerate() {
        assert_eq!(*x, groups[i / 16] as f32, "element {i}");
    }
}

/// FR-05 and its kind: no bit of a block is without effect. Of several random blocks one suffices, since a scale that
/// happens to be zero hides the codes under it.
#[test]
fn every_bit_changes_an_element() {
    let mut rng = Rng(5);
    for (kind, name) in kinds() {
        let blocks: Vec<Vec<u8>> = (0..6)
            .map(|_| {
                let mut block = rng.bytes(kind.bytes());
                set_scales(kind, &mut block, 0x3555);
                block
            })
            .collect();
        let before: Vec<_> = blocks.iter().map(|b| bits(&decode(kind, b))).collect();
        for bit in 0..8 * kind.bytes() {
            let seen = blocks.iter().zip(&before).any(|(block, before)| {
                let mut changed = block.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                bits(&decode(kind, &changed)) != *before
            });
            assert!(seen, "{name}: bit {} of byte {} has no effect", bit % 8, bit / 8);
        }
    }
}

#[test]
fn k_scale_bytes_reach_their_own_runs_only() {
    // Runs of 32 that each of the 12 scale bytes of q4_k and q5_k reaches: a low six-bit field and, through its top
    // two bits, a field four further; the last four bytes hold the low nibbles of a scale and of a minimum.
    let mut rng = Rng(6);
    for (kind, at) in [(BlockKind::Q4K, fields::q4_k::S), (BlockKind::Q5K, fields::q5_k::S)] {
        let mut block = rng.bytes(kind.bytes());
        set_scales(kind, &mut block, ONE);
        let before = bits(&decode(kind, &block));
        for byte in 0..12 {
            for bit in 0..8 {
                let mut changed = block.clone();
                changed[at + byte] ^= 1 << bit;
                let after = bits(&decode(kind, &changed));
                let runs: Vec<usize> =
                    (0..8).filter(|r| before[32 * r..][..32] != after[32 * r..][..32]).collect();
                let expected = if byte < 8 && bit < 6 { byte % 4 } else { byte % 4 + 4 };
                assert_eq!(runs, [expected], "{kind:?}: bit {bit} of scale byte {byte}");
            }
        }
    }
}

/// FR-07: each block has its own scale and codes; then a second, distinct row.
#[test]
fn blocks_do_not_alias() {
    let mut rng = Rng(7);
    for (kind, name) in kinds() {
        let mut row = Vec::new();
        let mut alone = Vec::new();
        for b in 0..8u16 {
            let mut block = rng.bytes(kind.bytes());
            set_scales(kind, &mut block, ONE + (b % 4) * 0x400);
            alone.extend(bits(&decode(kind, &block)));
            row.extend(block);
        }
        let whole = bits(&decode(kind, &row));
        assert_eq!(whole, alone, "{name}");
        let (first, second) = row.split_at(row.len() / 2);
        assert_ne!(bits(&decode(kind, first)), bits(&decode(kind, second)), "{name}");
    }
    // In numbers: d = 2^b, nibbles b of block b in q4_0.
    let row: Vec<u8> = (0..4u8)
        .flat_map(|b| {
            let mut block = vec![b * 0x11; 18];
            block[..2].copy_from_slice(&(ONE + u16::from(b) * 0x400).to_le_bytes());
            block
        })
        .collect();
    for (i, x) in decode(BlockKind::Q4_0, &row).iter().enumerate() {
        let b = i / 32;
        assert_eq!(*x, (b as f32 - 8.0) * (1 << b) as f32);
    }
}

/// FR-08: byte j holds elements j and j + 16.
#[test]
fn nibbles_are_split_halves() {
    let mut block = blank(BlockKind::Q4_0, 0xb800);
    block[2..].fill(0xf0);
    let out = decode(BlockKind::Q4_0, &block);
    assert_eq!(out[..16], [4.0; 16]);
    assert_eq!(out[16..], [-3.5; 16]);

    let mut block = blank(BlockKind::Iq4Nl, ONE);
    for i in 0..16 {
        block[2 + i] = (i << 4 | (15 - i)) as u8;
    }
    let values =
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113].map(|v: i8| f32::from(v));
    let out = decode(BlockKind::Iq4Nl, &block);
    assert!(out[..16].iter().eq(values.iter().rev()));
    assert_eq!(out[16..], values);
}

/// FR-09: fifth bits.
#[test]
fn fifth_bits() {
    let mut block = blank(BlockKind::Q5_0, ONE);
    block[fields::q5_0::QH..][..4].copy_from_slice(&0x8000_0000u32.to_le_bytes());
    block[fields::q5_0::Q..].fill(0x88);
    let mut expected = [-8.0; 32];
    expected[31] = 8.0;
    assert_eq!(decode(BlockKind::Q5_0, &block), expected);

    let mut block = blank(BlockKind::Q5K, ONE);
    block[fields::q5_k::S..][..4].fill(1);
    block[fields::q5_k::S + 8..][..4].fill(1);
    for i in 0..32 {
        block[fields::q5_k::QH + i] = 1 << (i % 8);
    }
    for (i, x) in decode(BlockKind::Q5K, &block).iter().enumerate() {
        let (sub, position) = (i / 32, i % 32);
        assert_eq!(*x, if position % 8 == sub { 16.0 } else { 0.0 }, "element {i}");
    }
}

/// FR-10: sign indices and sub-scale order of the i types.
#[test]
fn signs_and_sub_scales() {
    let iq2_xxs = |word: u32| {
        let mut block = blank(BlockKind::Iq2Xxs, ONE);
        block[fields::iq2_xxs::Q + 4..][..4].copy_from_slice(&word.to_le_bytes());
        decode(BlockKind::Iq2Xxs, &block)
    };
    let negative =
        |x: &[f32]| x.iter().enumerate().filter(|(_, v)| **v < 0.0).map(|(i, _)| i).collect::<Vec<_>>();
    assert_eq!(negative(&iq2_xxs(1)), [0, 7]);
    assert_eq!(negative(&iq2_xxs(2)), [1, 7]);
    assert_eq!(negative(&iq2_xxs(127)), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(negative(&iq2_xxs(3)), [0, 1]);
    assert_eq!(negative(&iq2_xxs(1 << 21)), [24, 31], "the fourth index is bits 21..=27");
    let scaled = iq2_xxs(15 << 28);
    assert!(scaled[..32].iter().all(|&x| x == 31.0) && scaled[32..].iter().all(|&x| x == 1.0));
    assert!(iq2_xxs(1 << 28)[..32].iter().all(|&x| x == 3.0));

    for (kind, at, run) in [
        (BlockKind::Iq2Xs, fields::iq2_xs::S, 16),
        (BlockKind::Iq2S, fields::iq2_s::S, 16),
        (BlockKind::Iq3S, fields::iq3_s::S, 32),
    ] {
        let mut block = blank(kind, ONE);
        block[at] = 0xf0;
        let out = decode(kind, &block);
        assert!(out[..run].iter().all(|&x| x == 1.0), "{kind:?}");
        assert!(out[run..2 * run].iter().all(|&x| x == 31.0), "{kind:?}");
        assert!(out[2 * run..].iter().all(|&x| x == 1.0), "{kind:?}");
    }
}

/// FR-11: delta signs and the spread scale of `iq1_*`.
#[test]
fn iq1_deltas_and_scales() {
    let mut block = blank(BlockKind::Iq1S, ONE);
    for i in 0..8u16 {
        block[fields::iq1_s::QH + 2 * usize::from(i)..][..2]
            .copy_from_slice(&(0x8000 | i << 12).to_le_bytes());
    }
    for (i, x) in decode(BlockKind::Iq1S, &block).iter().enumerate() {
        assert_eq!(*x, -1.125 * (2 * (i / 32) + 1) as f32);
    }

    let mut block = blank(BlockKind::Iq1M, 0);
    for (i, word) in [0x029cu16, 0x0bb8, 0xc29c, 0x3bb8].into_iter().enumerate() {
        block[fields::iq1_m::S + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
    }
    assert_eq!(gguf::iq1_m_scale(block[fields::iq1_m::S..].first_chunk().expect("8 bytes")), ONE);
    let scales = [4, 3, 2, 1, 0, 7, 6, 5];
    for (i, x) in decode(BlockKind::Iq1M, &block).iter().enumerate() {
        assert_eq!(*x, -0.875 * (2 * scales[i / 16 % 8] + 1) as f32);
    }
}

/// FR-12: negative scales are multipliers like any other.
#[test]
fn negative_scales() {
    let mut block = blank(BlockKind::Q6K, 0xb800);
    for i in 0..16 {
        block[fields::q6_k::SC + i] = (i as i8 - 8) as u8;
    }
    for (i, x) in decode(BlockKind::Q6K, &block).iter().enumerate() {
        assert_eq!(*x, -128.0 + 16.0 * (i / 16) as f32);
    }
    // Negating every scale negates every value of every type: bits but for the sum of minimum types, where the value
    // of an exact zero stays +0.
    let mut rng = Rng(12);
    for (kind, name) in kinds() {
        let mut block = rng.bytes(kind.bytes());
        set_scales(kind, &mut block, 0x2e66);
        let positive = decode(kind, &block);
        set_scales(kind, &mut block, 0xae66);
        let negative = decode(kind, &block);
        assert!(positive.iter().zip(&negative).all(|(p, n)| *p == -n), "{name}");
    }
}

/// FR-13: code -128 is a value of `q8_0`.
#[test]
fn q8_0_keeps_minus_128() {
    let mut block = blank(BlockKind::Q8_0, HALF);
    block[2..].fill(0x80);
    assert_eq!(decode(BlockKind::Q8_0, &block), [-64.0; 32]);
}

/// FR-14: subnormal scales, and every binary16 word as a scale.
#[test]
fn all_scale_words() {
    let mut block = blank(BlockKind::Q8_0, 1);
    block[2..].fill(1);
    assert_eq!(decode(BlockKind::Q8_0, &block), [5.960_464_5e-8; 32]);
    for word in 0..=u16::MAX {
        set_scales(BlockKind::Q8_0, &mut block, word);
        let x = decode(BlockKind::Q8_0, &block)[0];
        assert_eq!(gguf::half(word).to_bits(), f16::to_f32_bits(word), "{word:#06x}");
        // The definition, without the crate's conversion.
        let (e, f) = (i32::from(word >> 10 & 31), f64::from(word & 1023));
        let magnitude = match e {
            0 => f * 2f64.powi(-24),
            31 if f == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + f / 1024.0) * 2f64.powi(e - 15),
        };
        let expected = if word >> 15 == 1 { -magnitude } else { magnitude };
        assert!(
            f64::from(x) == expected && x.is_sign_negative() == expected.is_sign_negative()
                || x.is_nan() && expected.is_nan(),
            "{word:#06x}: {x}"
        );
    }
}

/// The sign of zero is that of the written order, the scale first: `(d*(sc-32)) * 0`.
#[test]
fn signs_of_zeros() {
    // q3_k: scale field 0 is -32; code field 3 with the third bit set is 3, field 0 with it set is 0.
    let mut block = blank(BlockKind::Q3K, ONE);
    block[fields::q3_k::HM..][..32].fill(0xff);
    assert!(decode(BlockKind::Q3K, &block).iter().all(|x| x.to_bits() == (-0.0f32).to_bits()));
    // iq4_xs: scale field 32 (value 0) against a negative table value: +0 * -127 = -0; and d = -1.
    let mut block = blank(BlockKind::Iq4Xs, ONE);
    block[fields::iq4_xs::SH..][..2].copy_from_slice(&[0xaa, 0xaa]);
    assert!(decode(BlockKind::Iq4Xs, &block).iter().all(|x| x.to_bits() == (-0.0f32).to_bits()));
    set_scales(BlockKind::Iq4Xs, &mut block, 0xbc00);
    assert!(decode(BlockKind::Iq4Xs, &block).iter().all(|x| x.to_bits() == 0));
    // q6_k: scale -1 and code 32 (value 0).
    let mut block = blank(BlockKind::Q6K, ONE);
    block[fields::q6_k::QH..][..64].fill(0xaa);
    block[fields::q6_k::SC..][..16].fill(0xff);
    assert!(decode(BlockKind::Q6K, &block).iter().all(|x| x.to_bits() == (-0.0f32).to_bits()));
}

/// Infinite and NaN scales are legal bytes: values follow IEEE arithmetic and nothing panics.
#[test]
fn scales_that_are_not_finite() {
    let mut rng = Rng(17);
    for (kind, name) in kinds() {
        for word in [0x7c00u16, 0xfc00, 0x7c01, 0x7e00, 0xffff] {
            let mut block = rng.bytes(kind.bytes());
            set_scales(kind, &mut block, word);
            let out = decode(kind, &block);
            // A NaN scale makes every value NaN; an infinite one every value infinite or, against a zero, NaN.
            assert!(out.iter().all(|x| !x.is_finite()), "{name} {word:#06x}");
            assert!(word & 0x3ff == 0 || out.iter().all(|x| x.is_nan()), "{name} {word:#06x}");
        }
    }
}

/// The integer reading and the decoder agree: `d*scale * code - dmin*min`, in exact arithmetic.
#[test]
fn integers_reproduce_the_values() {
    let mut rng = Rng(18);
    for_each_type!(B => {
        let kind = B::KIND;
        assert_eq!(B::SUBS * 32, kind.values());
        for _ in 0..200 {
            let mut bytes = rng.bytes(kind.bytes());
            for &at in half_fields(kind) {
                bytes[at + 1] &= 0xbf;
            }
            if kind == BlockKind::Iq1M {
                bytes[fields::iq1_m::S + 7] &= 0xbf;
            }
            let out = decode(kind, &bytes);
            let block = &B::blocks(&bytes)[0];
            let f = B::factors(block);
            for b in 0..B::SUBS {
                let u = B::unpack(block, b);
                assert_eq!(u.codes, B::codes(block, b));
                assert!(B::SPLIT || (u.scale[0] == u.scale[1] && u.min[0] == u.min[1]), "{kind:?}");
                assert!(B::HAS_MIN || (u.min == [0, 0] && f.dmin == 0.0), "{kind:?}");
                for i in 0..32 {
                    // Exact in binary64; rounded once to binary32.
                    let product = f64::from(f.d) * f64::from(i32::from(u.scale[i / 16]) * i32::from(u.codes[i]));
                    let exact = product - f64::from(f.dmin) * f64::from(u.min[i / 16]);
                    assert_eq!(out[32 * b + i], exact as f32, "{kind:?} run {b} lane {i}");
                }
            }
        }
    });
}

/// The codes that products build on, as numbers.
#[test]
fn code_ranges() {
    let mut rng = Rng(19);
    for_each_type!(B => {
        let kind = B::KIND;
        let (mut low, mut high) = (i8::MAX, i8::MIN);
        for _ in 0..400 {
            let bytes = rng.bytes(kind.bytes());
            let block = &B::blocks(&bytes)[0];
            for b in 0..B::SUBS {
                for code in B::codes(block, b) {
                    (low, high) = (low.min(code), high.max(code));
                }
            }
        }
        let expected: (i8, i8) = match kind {
            BlockKind::Q8_0 => (-128, 127),
            BlockKind::Q4_0 => (-8, 7),
            BlockKind::Q5_0 => (-16, 15),
            BlockKind::Q2_0 => (-1, 2),
            BlockKind::Q2K => (0, 3),
            BlockKind::Q3K => (-4, 3),
            BlockKind::Q4K => (0, 15),
            BlockKind::Q5K => (0, 31),
            BlockKind::Q6K => (-32, 31),
            BlockKind::Iq2Xxs | BlockKind::Iq2Xs | BlockKind::Iq2S => (-43, 43),
            BlockKind::Iq3Xxs => (-62, 62),
            BlockKind::Iq3S => (-15, 15),
            BlockKind::Iq1S | BlockKind::Iq1M => (-9, 9),
            BlockKind::Iq4Nl | BlockKind::Iq4Xs => (-127, 113),
        };
        assert_eq!((low, high), expected, "{kind:?}");
    });
}

#[test]
fn lengths_that_do_not_match_are_refused() {
    for (kind, name) in kinds() {
        for (bytes, values) in [
            (kind.bytes() - 1, kind.values()),
            (kind.bytes(), kind.values() - 1),
            (2 * kind.bytes(), kind.values()),
            (0, kind.values()),
        ] {
            let refused =
                std::panic::catch_unwind(|| decode_blocks(kind, &vec![0; bytes], &mut vec![0.0; values]));
            assert!(refused.is_err(), "{name}: {bytes} bytes into {values} elements");
        }
        decode_blocks(kind, &[], &mut []);
    }
}

/// FNV-1a over the words, NaNs as one word (their payload and sign are not fixed by the format).
fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, x| {
        let word = if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
        (h ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// 10,000 blocks of random bytes per type (all scale words, infinite and NaN ones too). The constants were computed
/// once, after every word had been compared with ggml's C `dequantize_row_*` on the same bytes.
#[test]
fn random_blocks_have_fixed_hashes() {
    let expected: [(&str, u64); 18] = [
        ("gguf_q8_0", 0x4301_e728_40a1_49a5),
        ("gguf_q4_0", 0xe926_ca1b_1137_9f25),
        ("gguf_q5_0", 0x2f11_8a64_c604_5d25),
        ("gguf_q2_0", 0x5e4b_23f7_11bb_1325),
        ("gguf_q2_k", 0x3fa5_9b5a_c9bb_721c),
        ("gguf_q3_k", 0x3aca_a80d_fcb5_3ba5),
        ("gguf_q4_k", 0x4782_91dc_1d78_9785),
        ("gguf_q5_k", 0xe410_b183_cfef_4e1a),
        ("gguf_q6_k", 0xfdcc_7077_9f69_9f71),
        ("gguf_iq2_xxs", 0x8559_4867_dc72_097d),
        ("gguf_iq2_xs", 0xb9ae_ef90_b25e_5b99),
        ("gguf_iq3_xxs", 0x7129_116c_088a_cb4d),
        ("gguf_iq1_s", 0x63ea_f7db_ad1d_dee5),
        ("gguf_iq4_nl", 0xccc7_cdfe_792b_fc25),
        ("gguf_iq3_s", 0x6c5a_5e4c_e550_4b75),
        ("gguf_iq2_s", 0xb381_11f0_3bdb_dfc1),
        ("gguf_iq4_xs", 0x984f_a8e9_bf3b_c88f),
        ("gguf_iq1_m", 0x5f8c_74b9_1aec_8745),
    ];
    for ((kind, name), (expected_name, expected)) in kinds().zip(expected) {
        assert_eq!(name, expected_name);
        let blocks = Rng(u64::from(kind.ggml_type()) + 1000).bytes(10_000 * kind.bytes());
        assert_eq!(hash(&decode(kind, &blocks)), expected, "{name}");
    }
}
