//! Scales of four rows, a row in each lane, and the terms that they make of exact sums.

use std::arch::aarch64::*;

use super::gemv::ROWS;
use super::gemv_layout::{Place, Unit};
use super::gemv_unpack::{Form, Unpack};
use super::prims::{from_halves, load_f32};
use crate::gemv::{Factors, Scales};
use crate::isa::neon_entry;

/// Accumulators of four rows.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    pub acc: float32x4_t,
    pub m: float32x4_t,
}

/// Scales and integer factors of a unit of four rows, a row in each lane.
pub(super) struct Scaling<'a, 'b> {
    rows: &'b [Place<'a>; ROWS],
    /// Scale of the unit and of its minima, if it has such.
    unit: [float32x4_t; 2],
    /// Factors and minima: the bytes of four blocks or half-blocks a vector.
    bytes: [[int8x16_t; 4]; 2],
}

neon_entry! {
    /// Binary16 words of four rows to binary32.
    #[inline]
    fn gather(words: [u16; ROWS]) -> float32x4_t {
        // Lane by lane: as an array they would be put together in a general register, byte by byte.
        let v = vset_lane_u16::<1>(words[1], vdup_n_u16(words[0]));
        from_halves(vset_lane_u16::<3>(words[3], vset_lane_u16::<2>(words[2], v)))
    }

    /// The bytes of four rows, the rows of a place side by side.
    #[inline]
    fn turn(r: [int8x16_t; ROWS]) -> [int8x16_t; 4] {
        let (a, b) = (vzip1q_s8(r[0], r[2]), vzip1q_s8(r[1], r[3]));
        let (c, d) = (vzip2q_s8(r[0], r[2]), vzip2q_s8(r[1], r[3]));
        [vzip1q_s8(a, b), vzip2q_s8(a, b), vzip1q_s8(c, d), vzip2q_s8(c, d)]
    }

    /// Bytes `4 * i..4 * i + 4` of the sixteen of four vectors, to 32 bits.
    #[inline]
    fn four_of(bytes: &[int8x16_t; 4], i: usize) -> int32x4_t {
        let v = bytes[i / 4];
        match i % 4 {
            0 => vmovl_s16(vget_low_s16(vmovl_s8(vget_low_s8(v)))),
            1 => vmovl_high_s16(vmovl_s8(vget_low_s8(v))),
            2 => vmovl_s16(vget_low_s16(vmovl_high_s8(v))),
            _ => vmovl_high_s16(vmovl_high_s8(v)),
        }
    }

    /// Exact sums times the power of two that the codes were taken with.
    #[inline]
    fn to_f32(v: int32x4_t, fraction: i32) -> float32x4_t {
        match fraction {
            2 => vcvtq_n_f32_s32::<2>(v),
            4 => vcvtq_n_f32_s32::<4>(v),
            _ => vcvtq_f32_s32(v),
        }
    }

    /// `v` times a lane of eight or sixteen values.
    #[inline]
    fn times(v: float32x4_t, lanes: &[f32], i: usize) -> float32x4_t {
        let of: &[f32; 4] = lanes[i / 4 * 4..].first_chunk().expect("whole vectors");
        match i % 4 {
            0 => vmulq_laneq_f32::<0>(v, load_f32(of)),
            1 => vmulq_laneq_f32::<1>(v, load_f32(of)),
            2 => vmulq_laneq_f32::<2>(v, load_f32(of)),
            _ => vmulq_laneq_f32::<3>(v, load_f32(of)),
        }
    }

    /// `sum + v * lane`, fused.
    #[inline]
    fn plus_times(sum: float32x4_t, v: float32x4_t, lanes: &[f32], i: usize) -> float32x4_t {
        let of: &[f32; 4] = lanes[i / 4 * 4..].first_chunk().expect("whole vectors");
        match i % 4 {
            0 => vfmaq_laneq_f32::<0>(sum, v, load_f32(of)),
            1 => vfmaq_laneq_f32::<1>(sum, v, load_f32(of)),
            2 => vfmaq_laneq_f32::<2>(sum, v, load_f32(of)),
            _ => vfmaq_laneq_f32::<3>(sum, v, load_f32(of)),
        }
    }
}

impl<'a, 'b> Scaling<'a, 'b> {
    #[inline(always)]
    pub(super) fn new<S: Unpack>(rows: &'b [Place<'a>; ROWS]) -> Self {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline; places have the lengths that `place` gives them.
        unsafe {
            let mut unit = [vdupq_n_f32(0.0); 2];
            if S::SCALES == Scales::Unit {
                let words = four!(R => S::words_at(&rows[R], 0));
                unit[0] = gather(four!(R => words[R][0]));
                if S::MINIMUM {
                    unit[1] = gather(four!(R => words[R][1]));
                }
            }
            let mut bytes = [[vdupq_n_s8(0); 4]; 2];
            if S::FACTORS != Factors::None {
                let f = four!(R => S::factors(rows[R].codes));
                bytes[0] = turn(four!(R => f[R][0]));
                if S::MINIMUM {
                    bytes[1] = turn(four!(R => f[R][1]));
                }
            }
            Self { rows, unit, bytes }
        }
    }

    /// Scales of term `i` of the unit.
    #[inline(always)]
    unsafe fn d<S: Unpack>(&self, i: usize) -> float32x4_t {
        if S::SCALES == Scales::Unit {
            return self.unit[0];
        }
        // SAFETY: as in `new`.
        unsafe { gather(four!(R => S::words_at(&self.rows[R], i)[0])) }
    }
}

/// Adds the terms of a pair of blocks. `d` and `min` are the scales of its terms and the scaled minima of its blocks or
/// the minima of its half-blocks.
#[inline(always)]
pub(super) unsafe fn add<S: Unpack>(
    chain: &mut Chain,
    sums: [int32x4_t; 4],
    scaling: &Scaling<'_, '_>,
    d: &[float32x4_t; 4],
    min: &[float32x4_t; 4],
    x: &Unit,
    p: usize,
) {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        if S::FORM == Form::Terms {
            four!(I => {
                if 2 * p + I / 2 < x.blocks {
                    let d = times(d[I], &x.d_x, 2 * p + I / 2);
                    chain.acc = vfmaq_f32(chain.acc, to_f32(sums[I], S::FRACTION), d);
                }
            });
            return;
        }
        two!(B => {
            let block = 2 * p + B;
            // A plane of scales may go on past the row's values, with an infinity.
            if S::SCALE_BYTES == 0 || block < x.blocks {
                let isum = match S::FACTORS {
                    Factors::None => sums[B],
                    Factors::Whole => vmulq_s32(sums[B], four_of(&scaling.bytes[0], block)),
                    Factors::Halves => {
                        let low = vmulq_s32(sums[2 * B], four_of(&scaling.bytes[0], 2 * block));
                        vmlaq_s32(low, sums[2 * B + 1], four_of(&scaling.bytes[0], 2 * block + 1))
                    }
                };
                chain.acc = vfmaq_f32(chain.acc, to_f32(isum, S::fraction(block)), times(d[B], &x.d_x, block));
                match (S::MINIMUM, S::FACTORS) {
                    (false, _) => {}
                    // `(min * dmin) * (sum * d_x)`: both factors are exact, so this rounds as the written order does.
                    (true, Factors::Whole) => chain.m = plus_times(chain.m, min[B], &x.sums, block),
                    (true, _) => {
                        let sum = times(min[2 * B], &x.sums, 2 * block);
                        let sum = plus_times(sum, min[2 * B + 1], &x.sums, 2 * block + 1);
                        chain.m = vfmaq_f32(chain.m, sum, times(scaling.unit[1], &x.d_x, block));
                    }
                }
            }
        });
    }
}

/// What `add` wants of a pair of blocks.
#[inline(always)]
pub(super) unsafe fn scales_of<S: Unpack>(scaling: &Scaling<'_, '_>, p: usize) -> [[float32x4_t; 4]; 2] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        let (unit, bytes) = (&scaling.unit, &scaling.bytes[1]);
        let d = match (S::SCALES, S::FORM) {
            (Scales::Unit, _) => [unit[0]; 4],
            (_, Form::Terms) => four!(I => scaling.d::<S>(4 * p + I)),
            _ if S::SHARED => [scaling.d::<S>(2 * p); 4],
            _ => {
                let [a, b] = two!(I => scaling.d::<S>(2 * p + I));
                [a, b, a, b]
            }
        };
        let min = match (S::MINIMUM, S::FACTORS) {
            (false, _) => [unit[1]; 4],
            (true, Factors::Whole) => {
                let [a, b] = two!(B => vmulq_f32(vcvtq_f32_s32(four_of(bytes, 2 * p + B)), unit[1]));
                [a, b, a, b]
            }
            (true, _) => four!(H => vcvtq_f32_s32(four_of(bytes, 4 * p + H))),
        };
        [d, min]
    }
}
