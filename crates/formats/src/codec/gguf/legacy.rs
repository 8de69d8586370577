//! `q8_0`, `q4_0`, `q5_0` and `q2_0`: one binary16 scale per block, no sub-scales.

use super::{Factors, at, block_type, fields, half_at, run_scales, scale_run, u32_at};
use crate::scheme::BlockKind;
use crate::tables::{SIGN_MASKS, TWO_BIT_FIELDS};

/// Low nibbles of all bytes, then their high nibbles: the value order of the types with 16 bytes per 32 values.
#[inline(always)]
#[must_use]
pub fn low_then_high_nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    for i in 0..16 {
        out[i] = bytes[i] & 15;
        out[16 + i] = bytes[i] >> 4;
    }
    out
}

/// Two-bit fields of eight bytes, four consecutive values a byte, lowest bits first.
#[inline(always)]
#[must_use]
pub fn two_bit_fields(bytes: &[u8; 8]) -> [i8; 32] {
    let mut out = [0; 32];
    for (lanes, &q) in out.as_chunks_mut().0.iter_mut().zip(bytes) {
        *lanes = TWO_BIT_FIELDS[usize::from(q)];
    }
    out
}

#[inline(always)]
fn plain_factors(block: &[u8]) -> Factors {
    Factors { d: half_at(block, 0), dmin: 0.0, scale: [1; 16], min: [0; 16] }
}

#[inline(always)]
fn q8_0_codes(block: &[u8], _: usize) -> [i8; 32] {
    let q = at::<32>(block, fields::q8_0::Q);
    lanes!(32, i => q[i] as i8)
}

#[inline(always)]
fn q4_0_codes(block: &[u8], _: usize) -> [i8; 32] {
    let q = low_then_high_nibbles(at(block, fields::q4_0::Q));
    lanes!(32, i => q[i] as i8 - 8)
}

#[inline(always)]
fn q5_0_codes(block: &[u8], _: usize) -> [i8; 32] {
    let high = u32_at(block, fields::q5_0::QH).to_le_bytes();
    let q = low_then_high_nibbles(at(block, fields::q5_0::Q));
    let mut out = lanes!(32, i => q[i] as i8 - 16);
    for (lanes, high) in out.as_chunks_mut::<8>().0.iter_mut().zip(high) {
        for (q, mask) in lanes.iter_mut().zip(&SIGN_MASKS[usize::from(high)]) {
            *q += mask & 16;
        }
    }
    out
}

#[inline(always)]
fn q2_0_codes(block: &[u8], b: usize) -> [i8; 32] {
    let q = two_bit_fields(at(block, fields::q2_0::Q + 8 * b));
    lanes!(32, i => q[i] - 1)
}

block_type! {
    /// `q8_0`: 32 values in 34 bytes, `d * q`.
    Q8_0, q8_0, kind Q8_0, split false, min false, runs [0], factors plain_factors, codes q8_0_codes
}
block_type! {
    /// `q4_0`: 32 values in 18 bytes, `(nibble - 8) * d`.
    Q4_0, q4_0, kind Q4_0, split false, min false, runs [0], factors plain_factors, codes q4_0_codes
}
block_type! {
    /// `q5_0`: 32 values in 22 bytes, `((nibble | fifth bit << 4) - 16) * d`.
    Q5_0, q5_0, kind Q5_0, split false, min false, runs [0], factors plain_factors, codes q5_0_codes
}
block_type! {
    /// `q2_0`: 64 values in 18 bytes, `(two-bit field - 1) * d`.
    Q2_0, q2_0, kind Q2_0, split false, min false, runs [0 1], factors plain_factors, codes q2_0_codes
}
