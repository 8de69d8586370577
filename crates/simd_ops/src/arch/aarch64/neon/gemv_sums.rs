//! Exact sums of the products of codes, of four rows at a time.

use std::arch::aarch64::*;

use super::gemv::ROWS;
use super::gemv_layout::Unit;
use super::gemv_unpack::{Form, Unpack};
use super::prims::{load_i32, load16_signed};
use crate::isa::neon_entry;

/// How the products of pairs of bytes are summed. Activations are at most 127 in magnitude.
pub(in crate::arch::aarch64) trait Dot {
    /// Adds sixteen products to the lanes, whichever to which. Weights are any bytes.
    ///
    /// # Safety
    /// The machine must have the features of the implementor's token.
    unsafe fn dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
    /// Adds the products of the lower halves of both pairs of vectors to lanes 0 and 1, those of the upper halves to
    /// lanes 2 and 3. Weights are at most 60 in magnitude.
    ///
    /// # Safety
    /// As for `dot`.
    unsafe fn apart(sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t;
}

/// Products widened to 16 bits: two of them are at most 2 * 128 * 127, which 16 bits hold.
pub(in crate::arch::aarch64) struct Widening;

impl Dot for Widening {
    #[inline(always)]
    unsafe fn dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        unsafe {
            let pairs = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            vpadalq_s16(sum, vmlal_high_s8(pairs, w, x))
        }
    }

    #[inline(always)]
    unsafe fn apart(sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: as above. Four products are at most 4 * 60 * 127.
        unsafe {
            let low = vmull_s8(vget_low_s8(w[0]), vget_low_s8(x[0]));
            let low = vmlal_s8(low, vget_low_s8(w[1]), vget_low_s8(x[1]));
            let high = vmlal_high_s8(vmull_high_s8(w[0], x[0]), w[1], x[1]);
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }
    }
}

neon_entry! {
    /// One vector from the partial sums of four rows.
    #[inline]
    fn tree(v: [int32x4_t; ROWS]) -> int32x4_t {
        vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
    }

    /// Two vectors from the partial sums of four rows, whose lanes 0 and 1 belong to the first.
    #[inline]
    fn two_trees(v: [int32x4_t; ROWS]) -> [int32x4_t; 2] {
        let (a, b) = (vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
        [vuzp1q_s32(a, b), vuzp2q_s32(a, b)]
    }
}

/// What the sums of a block or half-block start at.
#[inline(always)]
unsafe fn start<S: Unpack>(x: &Unit, i: usize) -> int32x4_t {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe { if S::OFFSET == 0 { vdupq_n_s32(0) } else { load_i32(&x.start[i]) } }
}

/// Partial sums of a pair of blocks of a row, by blocks or half-blocks ([`Form::Halves`]).
///
/// # Safety
/// The machine must have the features of `D`.
#[inline(always)]
pub(super) unsafe fn partial<S: Unpack, D: Dot>(w: &[int8x16_t; 4], x: &Unit, p: usize) -> [int32x4_t; 4] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        let codes: &[[i8; 16]; 4] = x.codes.as_chunks::<16>().0[4 * p..].first_chunk().expect("four runs");
        let codes = four!(I => load16_signed(&codes[I]));
        let zero = vdupq_n_s32(0);
        match S::FORM {
            Form::Blocks => {
                let [a, b] = two!(B => {
                    let first = D::dot(start::<S>(x, 2 * p + B), w[2 * B], codes[2 * B]);
                    D::dot(first, w[2 * B + 1], codes[2 * B + 1])
                });
                [a, b, zero, zero]
            }
            Form::Terms => {
                let [a, b] = two!(B => {
                    let start = start::<S>(x, 2 * p + B);
                    D::apart(start, [w[2 * B], w[2 * B + 1]], [codes[2 * B], codes[2 * B + 1]])
                });
                [a, b, zero, zero]
            }
            Form::Halves => four!(H => D::dot(start::<S>(x, 4 * p + H), w[H], codes[H])),
            Form::Quads => {
                let first = D::apart(start::<S>(x, p), [w[0], w[1]], [codes[0], codes[1]]);
                [D::apart(first, [w[2], w[3]], [codes[2], codes[3]]), zero, zero, zero]
            }
        }
    }
}

/// Exact sums of a pair of blocks of four rows: by blocks, or by half-blocks ([`Form::Halves`], [`Form::Terms`]).
#[inline(always)]
pub(super) unsafe fn sums<S: Unpack>(v: &[[int32x4_t; 4]; ROWS]) -> [int32x4_t; 4] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        let zero = vdupq_n_s32(0);
        match S::FORM {
            Form::Blocks => {
                let [a, b] = two!(B => tree(four!(R => v[R][B])));
                [a, b, zero, zero]
            }
            Form::Terms => {
                let [[a, b], [c, d]] = two!(B => two_trees(four!(R => v[R][B])));
                [a, b, c, d]
            }
            Form::Halves => four!(H => tree(four!(R => v[R][H]))),
            Form::Quads => {
                let [a, b] = two_trees(four!(R => v[R][0]));
                [a, b, zero, zero]
            }
        }
    }
}
