//! The 18 ggml block types: exact decoders and the integer reading of a block that products need.
//!
//! A block is read as a byte array with little-endian fields; nothing is cast. Every value is the binary32
//! expression of the format specification (ggml block types) with the signs of zeros that its written order gives:
//! the scale `d * scale` is formed first and multiplied with the code, never the two integers first. All products
//! are exact in binary32, the subtraction of a minimum rounds once, so the bits do not depend on how the compiler
//! vectorises them. Infinite and NaN scales are legal and give what IEEE arithmetic gives.
//!
//! [`decode_blocks`] decodes a run of blocks of a type known at run time; the functions named after the types decode
//! one block. All of them are safe portable code marked `#[inline(always)]` where a caller may want them compiled for
//! a wider instruction set.

/// An array of `$n` integers, lane by lane. A loop in place, not a closure: the compiler may leave a closure that is used
/// often as a function of its own, which would lose the instruction set of the caller.
macro_rules! lanes {
    ($n:literal, $i:ident => $value:expr) => {{
        let mut out = [0; $n];
        for ($i, lane) in out.iter_mut().enumerate() {
            *lane = $value;
        }
        out
    }};
}

pub mod fields;
pub mod ints;
mod iq;
mod k;
mod legacy;

pub use ints::{Block, Factors, Unpacked};
pub use iq::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs};
pub use iq::{iq1_m_scale, iq4_values, negate_lanes};
pub use k::{Q2K, Q3K, Q4K, Q5K, Q6K, q3_k_scales, six_bit_scales};
pub use legacy::{Q2_0, Q4_0, Q5_0, Q8_0, low_then_high_nibbles, two_bit_fields};

use crate::float::f16;
use crate::scheme::BlockKind;

/// Decodes whole blocks of one type to binary32.
///
/// `blocks` holds `n * kind.bytes()` bytes, `out` takes `n * kind.values()` elements.
///
/// # Panics
/// If the two lengths do not describe the same whole number of blocks.
pub fn decode_blocks(kind: BlockKind, blocks: &[u8], out: &mut [f32]) {
    match kind {
        BlockKind::Q8_0 => decode_all::<Q8_0>(blocks, out),
        BlockKind::Q4_0 => decode_all::<Q4_0>(blocks, out),
        BlockKind::Q5_0 => decode_all::<Q5_0>(blocks, out),
        BlockKind::Q2_0 => decode_all::<Q2_0>(blocks, out),
        BlockKind::Q2K => decode_all::<Q2K>(blocks, out),
        BlockKind::Q3K => decode_all::<Q3K>(blocks, out),
        BlockKind::Q4K => decode_all::<Q4K>(blocks, out),
        BlockKind::Q5K => decode_all::<Q5K>(blocks, out),
        BlockKind::Q6K => decode_all::<Q6K>(blocks, out),
        BlockKind::Iq2Xxs => decode_all::<Iq2Xxs>(blocks, out),
        BlockKind::Iq2Xs => decode_all::<Iq2Xs>(blocks, out),
        BlockKind::Iq3Xxs => decode_all::<Iq3Xxs>(blocks, out),
        BlockKind::Iq1S => decode_all::<Iq1S>(blocks, out),
        BlockKind::Iq4Nl => decode_all::<Iq4Nl>(blocks, out),
        BlockKind::Iq3S => decode_all::<Iq3S>(blocks, out),
        BlockKind::Iq2S => decode_all::<Iq2S>(blocks, out),
        BlockKind::Iq4Xs => decode_all::<Iq4Xs>(blocks, out),
        BlockKind::Iq1M => decode_all::<Iq1M>(blocks, out),
    }
}

/// Decodes whole blocks of the type `B`; see [`decode_blocks`].
///
/// # Panics
/// If the two lengths do not describe the same whole number of blocks.
#[inline(always)]
pub fn decode_all<B: Block>(blocks: &[u8], out: &mut [f32]) {
    let (bytes, values) = (B::KIND.bytes(), B::KIND.values());
    assert!(
        blocks.len().is_multiple_of(bytes)
            && out.len().is_multiple_of(values)
            && blocks.len() / bytes == out.len() / values,
        "{:?}: {} bytes of {bytes}-byte blocks and {} elements of {values}-value blocks do not match",
        B::KIND,
        blocks.len(),
        out.len(),
    );
    for (block, out) in B::blocks(blocks).iter().zip(B::values(out)) {
        B::decode(block, out);
    }
}

/// `N` bytes at a byte offset of a block.
#[inline(always)]
pub(crate) fn at<const N: usize>(bytes: &[u8], offset: usize) -> &[u8; N] {
    bytes[offset..offset + N].first_chunk().expect("the slice has N bytes")
}

/// Little-endian 16-bit word at a byte offset of a block.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*at(bytes, offset))
}

/// Little-endian 32-bit word at a byte offset of a block.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*at(bytes, offset))
}

/// Binary16 field at a byte offset of a block, expanded exactly.
#[inline(always)]
pub(crate) fn half_at(bytes: &[u8], offset: usize) -> f32 {
    half(u16_at(bytes, offset))
}

/// Expands a binary16 word to binary32, exactly; bits as [`f16::to_f32`].
///
/// Subnormal scales are as common as normal ones in the K types, so the two are told apart without a branch: a
/// subnormal `f * 2^-24` is `2^-14 * (1 + f/1024)` less `2^-14`, an exact difference of normal numbers that no
/// flush-to-zero mode touches. Infinities and NaNs take a call; that it is a call also keeps the compiler from
/// vectorising across blocks, which would transpose bytes that lie in the right order within a block.
#[inline(always)]
pub fn half(h: u16) -> f32 {
    const SMALLEST_NORMAL: u32 = 113 << 23;
    let magnitude = u32::from(h & 0x7fff);
    if magnitude >= 0x7c00 {
        return not_finite(h);
    }
    let sign = u32::from(h & 0x8000) << 16;
    let normal = (magnitude << 13) + (112 << 23);
    let subnormal = f32::from_bits((magnitude << 13) + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let bits = if magnitude < 0x400 { subnormal.to_bits() } else { normal };
    f32::from_bits(sign | bits)
}

#[cold]
#[inline(never)]
fn not_finite(h: u16) -> f32 {
    f16::to_f32(h)
}

/// Scales of a block's runs of 16 values, as binary32: `d * scale` and `dmin * min`.
#[inline(always)]
pub(crate) fn run_scales(f: &Factors) -> ([f32; 16], [f32; 16]) {
    let (mut scale, mut min) = ([0.0; 16], [0.0; 16]);
    for i in 0..16 {
        scale[i] = f.d * f32::from(f.scale[i]);
        min[i] = f.dmin * f32::from(f.min[i]);
    }
    (scale, min)
}

/// Values `32*b..32*b+32` from their codes and the scales of all runs.
#[inline(always)]
pub(crate) fn scale_run<B: Block, C: Copy>(
    (scale, min): &([f32; 16], [f32; 16]),
    b: usize,
    codes: &[C; 32],
    out: &mut [f32],
) where
    f32: From<C>,
{
    for half in 0..2 {
        let (d, m) = (scale[2 * b + half], min[2 * b + half]);
        let codes: &[C; 16] = codes[16 * half..][..16].first_chunk().expect("16 codes");
        let out: &mut [f32; 16] = out[32 * b + 16 * half..][..16].first_chunk_mut().expect("16 elements");
        for (out, &code) in out.iter_mut().zip(codes) {
            let product = d * f32::from(code);
            *out = if B::HAS_MIN { product - m } else { product };
        }
    }
}

/// Implements [`Block`] for a type from its constants, `factors` and `codes`. The decoder is unrolled over the runs
/// of 32 values, so that shifts and offsets within a block are constants; `decoded as` names a function that gives
/// it the same codes in a wider integer, where that compiles to better code.
macro_rules! block_type {
    (
        $(#[$doc:meta])*
        $name:ident, $function:ident, kind $kind:ident, split $split:literal, min $min:literal, runs $runs:tt,
        factors $factors:path, codes $codes:path
    ) => {
        block_type! {
            $(#[$doc])*
            $name, $function, kind $kind, split $split, min $min, runs $runs,
            factors $factors, codes $codes, decoded as $codes
        }
    };
    (
        $(#[$doc:meta])*
        $name:ident, $function:ident, kind $kind:ident, split $split:literal, min $min:literal, runs [$($b:literal)+],
        factors $factors:path, codes $codes:path, decoded as $decoded:path
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $crate::codec::gguf::Block for $name {
            const KIND: BlockKind = BlockKind::$kind;
            const SUBS: usize = BlockKind::$kind.values() / 32;
            const SPLIT: bool = $split;
            const HAS_MIN: bool = $min;
            type Bytes = [u8; BlockKind::$kind.bytes()];
            type Values = [f32; BlockKind::$kind.values()];

            #[inline(always)]
            fn blocks(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn values(out: &mut [f32]) -> &mut [Self::Values] {
                out.as_chunks_mut().0
            }

            #[inline(always)]
            fn factors(block: &Self::Bytes) -> Factors {
                $factors(block)
            }

            #[inline(always)]
            fn codes(block: &Self::Bytes, b: usize) -> [i8; 32] {
                assert!(b < Self::SUBS, "run of 32 values outside the block");
                $codes(block, b)
            }

            #[inline(always)]
            fn decode(block: &Self::Bytes, out: &mut Self::Values) {
                $function(block, out);
            }
        }

        /// Decodes one block to its exact binary32 values.
        #[inline(always)]
        pub fn $function(block: &[u8; BlockKind::$kind.bytes()], out: &mut [f32; BlockKind::$kind.values()]) {
            const { assert!([$($b),+].len() * 32 == BlockKind::$kind.values()) };
            let scales = run_scales(&$factors(block));
            $(scale_run::<$name, _>(&scales, $b, &$decoded(block, $b), out);)+
        }
    };
}
pub(crate) use block_type;
