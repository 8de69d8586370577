//! The K types: 256 values per block, sub-blocks of 16 or 32 values with integer scales.

use super::{Factors, at, block_type, fields, half_at, run_scales, scale_run, u32_at};
use crate::scheme::BlockKind;

/// Splits the 12 bytes of `q4_k` and `q5_k` into eight six-bit scales and eight six-bit minima, one per 32 values.
#[inline(always)]
#[must_use]
pub fn six_bit_scales(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    // Four fields at a time in the bytes of a word; the byte order of the words is that of the block.
    let (a, b, c) = (u32_at(s, 0), u32_at(s, 4), u32_at(s, 8));
    let scale_low = a & 0x3f3f_3f3f;
    let min_low = b & 0x3f3f_3f3f;
    let scale_high = (c & 0x0f0f_0f0f) | (a >> 6 & 0x0303_0303) << 4;
    let min_high = (c >> 4 & 0x0f0f_0f0f) | (b >> 6 & 0x0303_0303) << 4;
    (join(scale_low, scale_high), join(min_low, min_high))
}

/// The sixteen six-bit scales of `q3_k`, 0..=63, before 32 is subtracted.
#[inline(always)]
#[must_use]
pub fn q3_k_scales(s: &[u8; 12]) -> [u8; 16] {
    let (a, b, c) = (u32_at(s, 0), u32_at(s, 4), u32_at(s, 8));
    let mut out = [0; 16];
    let low = [a, b, a >> 4, b >> 4];
    for i in 0..4 {
        let word = (low[i] & 0x0f0f_0f0f) | (c >> (2 * i) & 0x0303_0303) << 4;
        out[4 * i..][..4].copy_from_slice(&word.to_le_bytes());
    }
    out
}

#[inline(always)]
fn join(low: u32, high: u32) -> [u8; 8] {
    (u64::from(low) | u64::from(high) << 32).to_le_bytes()
}

/// Each of eight factors for both halves of its 32 values.
#[inline(always)]
fn twice(x: [i8; 8]) -> [i8; 16] {
    lanes!(16, i => x[i / 2])
}

#[inline(always)]
fn q2_k_factors(block: &[u8; 84]) -> Factors {
    let s = at::<16>(block, fields::q2_k::S);
    Factors {
        d: half_at(block, fields::q2_k::D),
        dmin: half_at(block, fields::q2_k::DMIN),
        scale: lanes!(16, i => (s[i] & 15) as i8),
        min: lanes!(16, i => (s[i] >> 4) as i8),
    }
}

#[inline(always)]
fn q2_k_codes(block: &[u8; 84], b: usize) -> [i8; 32] {
    let shift = 2 * (b % 4);
    let q = at::<32>(block, fields::q2_k::Q + 32 * (b / 4));
    lanes!(32, i => (q[i] >> shift & 3) as i8)
}

#[inline(always)]
fn q3_k_factors(block: &[u8; 110]) -> Factors {
    let s = q3_k_scales(at(block, fields::q3_k::S));
    Factors {
        d: half_at(block, fields::q3_k::D),
        dmin: 0.0,
        scale: lanes!(16, i => s[i] as i8 - 32),
        min: [0; 16],
    }
}

#[inline(always)]
fn q3_k_codes(block: &[u8; 110], b: usize) -> [i8; 32] {
    let (q, hm) = (at::<32>(block, fields::q3_k::Q + 32 * (b / 4)), at::<32>(block, fields::q3_k::HM));
    let shift = 2 * (b % 4);
    // The third bit is stored inverted: a clear bit subtracts 4.
    lanes!(32, i => ((q[i] >> shift & 3) | (hm[i] >> b & 1) << 2) as i8 - 4)
}

#[inline(always)]
fn k_scales_and_minima(block: &[u8]) -> Factors {
    let (scale, min) = six_bit_scales(at(block, fields::q4_k::S));
    Factors {
        d: half_at(block, fields::q4_k::D),
        dmin: half_at(block, fields::q4_k::DMIN),
        scale: twice(lanes!(8, i => scale[i] as i8)),
        min: twice(lanes!(8, i => min[i] as i8)),
    }
}

#[inline(always)]
fn q4_k_codes(block: &[u8; 144], b: usize) -> [i8; 32] {
    let shift = 4 * (b % 2);
    let q = at::<32>(block, fields::q4_k::Q + 32 * (b / 2));
    lanes!(32, i => (q[i] >> shift & 15) as i8)
}

#[inline(always)]
fn q5_k_codes(block: &[u8; 176], b: usize) -> [i8; 32] {
    let (q, qh) = (at::<32>(block, fields::q5_k::Q + 32 * (b / 2)), at::<32>(block, fields::q5_k::QH));
    let shift = 4 * (b % 2);
    lanes!(32, i => ((q[i] >> shift & 15) | (qh[i] >> b & 1) << 4) as i8)
}

#[inline(always)]
fn q6_k_factors(block: &[u8; 210]) -> Factors {
    let s = at::<16>(block, fields::q6_k::SC);
    Factors {
        d: half_at(block, fields::q6_k::D),
        dmin: 0.0,
        scale: lanes!(16, i => s[i] as i8),
        min: [0; 16],
    }
}

#[inline(always)]
fn q6_k_codes(block: &[u8; 210], b: usize) -> [i8; 32] {
    let (half, run) = (b / 4, b % 4);
    let ql = at::<32>(block, fields::q6_k::QL + 64 * half + 32 * (run % 2));
    let qh = at::<32>(block, fields::q6_k::QH + 32 * half);
    let (low_shift, high_shift) = (4 * (run / 2), 2 * run);
    lanes!(32, i => ((ql[i] >> low_shift & 15) | (qh[i] >> high_shift & 3) << 4) as i8 - 32)
}

block_type! {
    /// `q2_k`: 256 values in 84 bytes, per 16 `d*scale * q - dmin*min`.
    Q2K, q2_k, kind Q2K, split true, min true, runs [0 1 2 3 4 5 6 7], factors q2_k_factors, codes q2_k_codes
}
block_type! {
    /// `q3_k`: 256 values in 110 bytes, per 16 `d*(scale-32) * (q - 4*(third bit clear))`.
    Q3K, q3_k, kind Q3K, split true, min false, runs [0 1 2 3 4 5 6 7], factors q3_k_factors, codes q3_k_codes
}
block_type! {
    /// `q4_k`: 256 values in 144 bytes, per 32 `d*scale * q - dmin*min`.
    Q4K, q4_k, kind Q4K, split false, min true, runs [0 1 2 3 4 5 6 7],
    factors k_scales_and_minima, codes q4_k_codes
}
block_type! {
    /// `q5_k`: 256 values in 176 bytes, as `q4_k` with a fifth code bit.
    Q5K, q5_k, kind Q5K, split false, min true, runs [0 1 2 3 4 5 6 7],
    factors k_scales_and_minima, codes q5_k_codes
}
block_type! {
    /// `q6_k`: 256 values in 210 bytes, per 16 `(d*scale) * (q-32)`.
    Q6K, q6_k, kind Q6K, split true, min false, runs [0 1 2 3 4 5 6 7], factors q6_k_factors, codes q6_k_codes
}
