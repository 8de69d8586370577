//! The integer side of the ggml blocks: codes, integer sub-scales and block scales.
//!
//! Every value of every type is `d * scale * code`, less `dmin * min` for the types that have a minimum, where
//! `scale` and `min` are small integers shared by 16 or 32 consecutive values and `code` is a signed byte. The
//! decoders and the products with quantised activations are both built on this one reading of the bytes. Formula
//! source: format specification, ggml block types, and product specification, sums per format. Factors of a half
//! in the written formulas are folded into `d` (a power of two, exact in binary32): `d/8` for `iq2_*` and `iq1_*`
//! with scale `2s+1`, `d/4` for `iq3_xxs`; the codes of `iq1_*` are `8*grid + 1` or `8*grid - 1`.
//!
//! For a block of activations `x` (32 codes) against values `32*b..32*b+32` of a block:
//!
//! ```text
//! isum = scale[2b] * sum(code[i]*x[i], i < 16) + scale[2b+1] * sum(code[i]*x[i], i >= 16)
//! msum = min[2b]   * sum(x[i], i < 16)         + min[2b+1]   * sum(x[i], i >= 16)
//! ```
//!
//! Both fit an `i32` for any `i8` activations: `|scale * code|` is at most 4,096 per value (`q6_k`: 128 * 32;
//! `iq4_xs`: 32 * 127), so `|isum| <= 32 * 4096 * 128 = 2^24`.

use crate::scheme::BlockKind;

/// Block scales and integer factors of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Scale of the block, binary16 expanded to binary32, with the powers of two of the module's text folded in:
    /// `d_w` of the product specification. May be infinite or NaN (legal bytes).
    pub d: f32,
    /// Scale of the minima; +0 for types without them.
    pub dmin: f32,
    /// Integer factor of each run of 16 values; entries past the block's values are 0. Types with one factor per
    /// 32 values ([`Block::SPLIT`] false) have equal entries `2b` and `2b+1`; types without sub-scales have 1.
    pub scale: [i8; 16],
    /// Integer minimum of each run of 16 values, 0..=63; 0 for types without minima.
    pub min: [i8; 16],
}

/// What a product needs of 32 consecutive values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Integer codes in element order.
    pub codes: [i8; 32],
    /// Integer factor of each half of 16 codes.
    pub scale: [i8; 2],
    /// Integer minimum of each half of 16 codes.
    pub min: [i8; 2],
}

/// One ggml block type as compile-time parameters and byte-level functions.
///
/// All functions are `#[inline(always)]` and free of unsafe code, so that a caller compiled for a wider instruction
/// set gets them compiled for that set.
pub trait Block {
    /// The type.
    const KIND: BlockKind;
    /// Runs of 32 values in a block: 1, 2 or 8.
    const SUBS: usize;
    /// Whether the two halves of a run of 32 values have factors of their own.
    const SPLIT: bool;
    /// Whether a minimum is subtracted.
    const HAS_MIN: bool;
    /// `[u8; KIND.bytes()]`.
    type Bytes: Copy + AsRef<[u8]>;
    /// `[f32; KIND.values()]`.
    type Values: Copy + AsMut<[f32]>;

    /// Whole blocks of `bytes`; trailing bytes short of a block are left out.
    fn blocks(bytes: &[u8]) -> &[Self::Bytes];
    /// Whole blocks' worth of `out`; trailing elements short of a block are left out.
    fn values(out: &mut [f32]) -> &mut [Self::Values];
    /// Block scales and integer factors.
    fn factors(block: &Self::Bytes) -> Factors;
    /// Codes of values `32*b..32*b+32`, in element order.
    ///
    /// # Panics
    /// `b >= SUBS`.
    fn codes(block: &Self::Bytes, b: usize) -> [i8; 32];
    /// Exact binary32 values of the block, signs of zeros as the written formula gives them.
    fn decode(block: &Self::Bytes, out: &mut Self::Values);

    /// Codes and integer factors of values `32*b..32*b+32`. Where all runs of a block are wanted, [`Block::factors`]
    /// once and [`Block::codes`] per run do less work.
    ///
    /// # Panics
    /// `b >= SUBS`.
    #[inline(always)]
    fn unpack(block: &Self::Bytes, b: usize) -> Unpacked {
        let f = Self::factors(block);
        Unpacked {
            codes: Self::codes(block, b),
            scale: [f.scale[2 * b], f.scale[2 * b + 1]],
            min: [f.min[2 * b], f.min[2 * b + 1]],
        }
    }
}
