//! The i types: codes into grids of eight or four values with separate signs, or into sixteen fixed values.

use super::{Factors, at, block_type, fields, half, half_at, run_scales, scale_run, u16_at, u32_at};
use crate::scheme::BlockKind;
use crate::tables::{
    IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_PAIRS, PARITY_MASKS, SIGN_MASKS,
};

/// Negates the lanes of `grid` whose mask is -1 ([`SIGN_MASKS`], [`PARITY_MASKS`]); lanes with mask 0 stay.
#[inline(always)]
#[must_use]
pub fn negate_lanes(grid: [i8; 8], masks: &[i8; 8]) -> [i8; 8] {
    lanes!(8, j => (grid[j] ^ masks[j]).wrapping_sub(masks[j]))
}

/// Values of 16 bytes of two nibbles of `iq4_nl` and `iq4_xs`: all low nibbles, then all high nibbles.
#[inline(always)]
#[must_use]
pub fn iq4_values(bytes: &[u8; 16]) -> [i8; 32] {
    let mut out = [0; 32];
    for i in 0..16 {
        let [low, high] = IQ4_PAIRS[usize::from(bytes[i])];
        out[i] = low;
        out[16 + i] = high;
    }
    out
}

/// The values of [`iq4_values`], each pair looked up as one 16-bit word and split by shifts.
#[inline(always)]
fn iq4_wide_values(bytes: &[u8; 16]) -> [i16; 32] {
    let pairs = lanes!(16, i => {
        let [low, high] = IQ4_PAIRS[usize::from(bytes[i])];
        i16::from_le_bytes([low as u8, high as u8])
    });
    let mut out = [0; 32];
    for i in 0..16 {
        out[i] = (pairs[i] << 8) >> 8;
        out[16 + i] = pairs[i] >> 8;
    }
    out
}

/// Binary16 word of an `iq1_m` block: the top nibbles of its four scale words, the first lowest.
#[inline(always)]
#[must_use]
pub fn iq1_m_scale(s: &[u8; 8]) -> u16 {
    u16_at(s, 0) >> 12 | u16_at(s, 2) >> 12 << 4 | u16_at(s, 4) >> 12 << 8 | u16_at(s, 6) >> 12 << 12
}

/// `2*s + 1` for each four-bit scale.
#[inline(always)]
fn odd(s: [u8; 16]) -> [i8; 16] {
    lanes!(16, i => 2 * s[i] as i8 + 1)
}

/// Nibbles of eight bytes, low nibble first.
#[inline(always)]
fn adjacent_nibbles(bytes: &[u8; 8]) -> [u8; 16] {
    lanes!(16, i => bytes[i / 2] >> (4 * (i % 2)) & 15)
}

/// Codes of 32 values as four runs of eight lanes; a loop in place like `lanes!`.
macro_rules! runs_of_8 {
    ($i:ident => $run:expr) => {{
        let mut out = [0i8; 32];
        for ($i, lanes) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *lanes = $run;
        }
        out
    }};
}

#[inline(always)]
fn pair_of_4(a: [i8; 4], b: [i8; 4]) -> [i8; 8] {
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

#[inline(always)]
fn iq2_xxs_word(block: &[u8; 66], b: usize) -> u32 {
    u32_at(block, fields::iq2_xxs::Q + 8 * b + fields::iq2_xxs::A_IN_RECORD)
}

#[inline(always)]
fn iq2_xxs_factors(block: &[u8; 66]) -> Factors {
    let scale = lanes!(16, i => (iq2_xxs_word(block, i / 2) >> 28) as u8);
    let d = half_at(block, fields::iq2_xxs::D) * 0.125;
    Factors { d, dmin: 0.0, scale: odd(scale), min: [0; 16] }
}

#[inline(always)]
fn iq2_xxs_codes(block: &[u8; 66], b: usize) -> [i8; 32] {
    let q = at::<4>(block, fields::iq2_xxs::Q + 8 * b);
    let a = iq2_xxs_word(block, b);
    runs_of_8!(i => negate_lanes(IQ2_XXS[usize::from(q[i])], &PARITY_MASKS[(a >> (7 * i) & 127) as usize]))
}

#[inline(always)]
fn iq2_xs_factors(block: &[u8; 74]) -> Factors {
    let scale = odd(adjacent_nibbles(at(block, fields::iq2_xs::S)));
    Factors { d: half_at(block, fields::iq2_xs::D) * 0.125, dmin: 0.0, scale, min: [0; 16] }
}

#[inline(always)]
fn iq2_xs_codes(block: &[u8; 74], b: usize) -> [i8; 32] {
    let words = at::<8>(block, fields::iq2_xs::Q + 8 * b);
    runs_of_8!(i => {
        let q = usize::from(u16_at(words, 2 * i));
        negate_lanes(IQ2_XS[q & 511], &PARITY_MASKS[q >> 9])
    })
}

#[inline(always)]
fn iq2_s_factors(block: &[u8; 82]) -> Factors {
    let scale = odd(adjacent_nibbles(at(block, fields::iq2_s::S)));
    Factors { d: half_at(block, fields::iq2_s::D) * 0.125, dmin: 0.0, scale, min: [0; 16] }
}

#[inline(always)]
fn iq2_s_codes(block: &[u8; 82], b: usize) -> [i8; 32] {
    let q = at::<4>(block, fields::iq2_s::Q + 4 * b);
    let signs = at::<4>(block, fields::iq2_s::SG + 4 * b);
    let high = usize::from(block[fields::iq2_s::QH + b]);
    runs_of_8!(i => {
        let code = usize::from(q[i]) | (high >> (2 * i) & 3) << 8;
        negate_lanes(IQ2_S[code], &SIGN_MASKS[usize::from(signs[i])])
    })
}

#[inline(always)]
fn iq3_xxs_factors(block: &[u8; 98]) -> Factors {
    let scale = lanes!(16, i => (u32_at(block, fields::iq3_xxs::A + 4 * (i / 2)) >> 28) as u8);
    let d = half_at(block, fields::iq3_xxs::D) * 0.25;
    Factors { d, dmin: 0.0, scale: odd(scale), min: [0; 16] }
}

#[inline(always)]
fn iq3_xxs_codes(block: &[u8; 98], b: usize) -> [i8; 32] {
    let q = at::<8>(block, fields::iq3_xxs::Q + 8 * b);
    let a = u32_at(block, fields::iq3_xxs::A + 4 * b);
    runs_of_8!(i => {
        let grid = pair_of_4(IQ3_XXS[usize::from(q[2 * i])], IQ3_XXS[usize::from(q[2 * i + 1])]);
        negate_lanes(grid, &PARITY_MASKS[(a >> (7 * i) & 127) as usize])
    })
}

#[inline(always)]
fn iq3_s_factors(block: &[u8; 110]) -> Factors {
    let s = at::<4>(block, fields::iq3_s::S);
    let scale = lanes!(16, i => s[i / 4] >> (4 * (i / 2 % 2)) & 15);
    Factors { d: half_at(block, fields::iq3_s::D), dmin: 0.0, scale: odd(scale), min: [0; 16] }
}

#[inline(always)]
fn iq3_s_codes(block: &[u8; 110], b: usize) -> [i8; 32] {
    let q = at::<8>(block, fields::iq3_s::Q + 8 * b);
    let signs = at::<4>(block, fields::iq3_s::SG + 4 * b);
    let high = usize::from(block[fields::iq3_s::QH + b]);
    runs_of_8!(i => {
        let grid = pair_of_4(
            IQ3_S[usize::from(q[2 * i]) | (high >> (2 * i) & 1) << 8],
            IQ3_S[usize::from(q[2 * i + 1]) | (high >> (2 * i + 1) & 1) << 8],
        );
        negate_lanes(grid, &SIGN_MASKS[usize::from(signs[i])])
    })
}

/// `8*grid + 1`, or `8*grid - 1` where the sign bit of delta is set.
#[inline(always)]
fn iq1_lanes(code: usize, negative: bool) -> [i8; 8] {
    let delta = if negative { -1 } else { 1 };
    let grid = IQ1_TIMES_8[code];
    lanes!(8, j => grid[j] + delta)
}

#[inline(always)]
fn iq1_s_factors(block: &[u8; 50]) -> Factors {
    let scale = lanes!(16, i => (u16_at(block, fields::iq1_s::QH + 2 * (i / 2)) >> 12 & 7) as u8);
    let d = half_at(block, fields::iq1_s::D) * 0.125;
    Factors { d, dmin: 0.0, scale: odd(scale), min: [0; 16] }
}

#[inline(always)]
fn iq1_s_codes(block: &[u8; 50], b: usize) -> [i8; 32] {
    let q = at::<4>(block, fields::iq1_s::Q + 4 * b);
    let high = usize::from(u16_at(block, fields::iq1_s::QH + 2 * b));
    runs_of_8!(i => iq1_lanes(usize::from(q[i]) | (high >> (3 * i) & 7) << 8, high >> 15 != 0))
}

#[inline(always)]
fn iq1_m_factors(block: &[u8; 56]) -> Factors {
    let s = at::<8>(block, fields::iq1_m::S);
    let scale = lanes!(16, i => (u16_at(s, 2 * (i / 4)) >> (3 * (i % 4)) & 7) as u8);
    let d = half(iq1_m_scale(s)) * 0.125;
    Factors { d, dmin: 0.0, scale: odd(scale), min: [0; 16] }
}

#[inline(always)]
fn iq1_m_codes(block: &[u8; 56], b: usize) -> [i8; 32] {
    let q = at::<4>(block, fields::iq1_m::Q + 4 * b);
    let high = usize::from(u16_at(block, fields::iq1_m::QH + 2 * b));
    runs_of_8!(i => {
        let nibble = high >> (4 * i) & 15;
        iq1_lanes(usize::from(q[i]) | (nibble & 7) << 8, nibble & 8 != 0)
    })
}

#[inline(always)]
fn iq4_nl_factors(block: &[u8; 18]) -> Factors {
    Factors { d: half_at(block, fields::iq4_nl::D), dmin: 0.0, scale: [1; 16], min: [0; 16] }
}

#[inline(always)]
fn iq4_nl_codes(block: &[u8; 18], _: usize) -> [i8; 32] {
    iq4_values(at(block, fields::iq4_nl::Q))
}

#[inline(always)]
fn iq4_nl_wide(block: &[u8; 18], _: usize) -> [i16; 32] {
    iq4_wide_values(at(block, fields::iq4_nl::Q))
}

#[inline(always)]
fn iq4_xs_factors(block: &[u8; 136]) -> Factors {
    let high = u16_at(block, fields::iq4_xs::SH);
    let sl = at::<4>(block, fields::iq4_xs::SL);
    let scale = lanes!(16, i => {
        let b = i / 2;
        let low = sl[b / 2] >> (4 * (b % 2)) & 15;
        (low | ((high >> (2 * b)) as u8 & 3) << 4) as i8 - 32
    });
    Factors { d: half_at(block, fields::iq4_xs::D), dmin: 0.0, scale, min: [0; 16] }
}

#[inline(always)]
fn iq4_xs_codes(block: &[u8; 136], b: usize) -> [i8; 32] {
    iq4_values(at(block, fields::iq4_xs::Q + 16 * b))
}

#[inline(always)]
fn iq4_xs_wide(block: &[u8; 136], b: usize) -> [i16; 32] {
    iq4_wide_values(at(block, fields::iq4_xs::Q + 16 * b))
}

block_type! {
    /// `iq2_xxs`: 256 values in 66 bytes, per 32 `d*(0.5 + scale)*0.25 * grid`, signs by parity index.
    Iq2Xxs, iq2_xxs, kind Iq2Xxs, split false, min false, runs [0 1 2 3 4 5 6 7],
    factors iq2_xxs_factors, codes iq2_xxs_codes
}
block_type! {
    /// `iq2_xs`: 256 values in 74 bytes, per 16 `d*(0.5 + scale)*0.25 * grid`, signs by parity index.
    Iq2Xs, iq2_xs, kind Iq2Xs, split true, min false, runs [0 1 2 3 4 5 6 7],
    factors iq2_xs_factors, codes iq2_xs_codes
}
block_type! {
    /// `iq2_s`: 256 values in 82 bytes, per 16 `d*(0.5 + scale)*0.25 * grid`, sign bytes.
    Iq2S, iq2_s, kind Iq2S, split true, min false, runs [0 1 2 3 4 5 6 7],
    factors iq2_s_factors, codes iq2_s_codes
}
block_type! {
    /// `iq3_xxs`: 256 values in 98 bytes, per 32 `d*(0.5 + scale)*0.5 * grid`, signs by parity index.
    Iq3Xxs, iq3_xxs, kind Iq3Xxs, split false, min false, runs [0 1 2 3 4 5 6 7],
    factors iq3_xxs_factors, codes iq3_xxs_codes
}
block_type! {
    /// `iq3_s`: 256 values in 110 bytes, per 32 `d*(1 + 2*scale) * grid`, sign bytes.
    Iq3S, iq3_s, kind Iq3S, split false, min false, runs [0 1 2 3 4 5 6 7],
    factors iq3_s_factors, codes iq3_s_codes
}
block_type! {
    /// `iq1_s`: 256 values in 50 bytes, per 32 `d*(2*scale + 1) * (grid + delta)`, delta 1/8 or -1/8.
    Iq1S, iq1_s, kind Iq1S, split false, min false, runs [0 1 2 3 4 5 6 7],
    factors iq1_s_factors, codes iq1_s_codes
}
block_type! {
    /// `iq1_m`: 256 values in 56 bytes, per 16 `d*(2*scale + 1) * (grid + delta)`, delta per 8.
    Iq1M, iq1_m, kind Iq1M, split true, min false, runs [0 1 2 3 4 5 6 7],
    factors iq1_m_factors, codes iq1_m_codes
}
block_type! {
    /// `iq4_nl`: 32 values in 18 bytes, `d * value of nibble`.
    Iq4Nl, iq4_nl, kind Iq4Nl, split false, min false, runs [0],
    factors iq4_nl_factors, codes iq4_nl_codes, decoded as iq4_nl_wide
}
block_type! {
    /// `iq4_xs`: 256 values in 136 bytes, per 32 `d*(scale-32) * value of nibble`.
    Iq4Xs, iq4_xs, kind Iq4Xs, split false, min false, runs [0 1 2 3 4 5 6 7],
    factors iq4_xs_factors, codes iq4_xs_codes, decoded as iq4_xs_wide
}
