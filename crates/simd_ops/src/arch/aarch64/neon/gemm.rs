//! A8 matrix-matrix products, for this token and those with dot or matrix products.
//!
//! Codes are signed bytes here, so nothing is added to them. Four rows and eight columns are taken at a time.

use std::arch::aarch64::*;

use super::prims::{load_f32, load16_signed};
use crate::isa::neon_entry;
use crate::panel::{Accumulators, Codes, Group, LANES, Panel, Shape};

/// Rows that are taken together.
pub(in crate::arch::aarch64) const ABREAST: usize = 4;

/// Sums of some rows and eight columns.
pub(in crate::arch::aarch64) type Sums = [[int32x4_t; 2]; ABREAST];

/// How the products of a block are summed.
pub(in crate::arch::aarch64) trait Multiply {
    /// Exact sums over the quarters `FIRST..FIRST + COUNT` of a block (an eighth of its values each; both multiples of
    /// four) for the columns from `8 * half` on. Activations are at most 127 in magnitude, and packed as
    /// [`crate::panel::Paired`] says if the implementor is made for it.
    ///
    /// # Safety
    /// The machine must have the features of the implementor's token.
    unsafe fn sums<const FIRST: usize, const COUNT: usize>(
        rows: &[[u8; 32]; ABREAST],
        x: &Codes,
        half: usize,
    ) -> Sums;
}

neon_entry! {
    /// Sixteen codes of a row.
    #[inline]
    pub(in crate::arch::aarch64) fn codes(row: &[u8; 32], half: usize) -> int8x16_t {
        // SAFETY: reads 16 of the 32 bytes; `half` is 0 or 1 (checked).
        vreinterpretq_s8_u8(unsafe { vld1q_u8(row[16 * half..16 * half + 16].as_ptr()) })
    }

    /// Four values of each of four columns.
    #[inline]
    pub(in crate::arch::aarch64) fn columns(x: &Codes, quarter: usize, four: usize) -> int8x16_t {
        load16_signed(x.0[quarter].as_flattened().as_chunks().0.get(four).unwrap_or(&[0; 16]))
    }

    #[inline]
    fn lanes(v: int8x16_t, i: usize) -> int8x16_t {
        let v = vreinterpretq_s32_s8(v);
        vreinterpretq_s8_s32(match i {
            0 => vdupq_laneq_s32::<0>(v),
            1 => vdupq_laneq_s32::<1>(v),
            2 => vdupq_laneq_s32::<2>(v),
            _ => vdupq_laneq_s32::<3>(v),
        })
    }

    #[inline]
    fn times_lane(v: float32x4_t, of: float32x4_t, i: usize) -> float32x4_t {
        match i {
            0 => vmulq_laneq_f32::<0>(v, of),
            1 => vmulq_laneq_f32::<1>(v, of),
            2 => vmulq_laneq_f32::<2>(v, of),
            _ => vmulq_laneq_f32::<3>(v, of),
        }
    }

    #[inline]
    fn plus_times_lane(sum: float32x4_t, v: float32x4_t, of: float32x4_t, i: usize) -> float32x4_t {
        match i {
            0 => vfmaq_laneq_f32::<0>(sum, v, of),
            1 => vfmaq_laneq_f32::<1>(sum, v, of),
            2 => vfmaq_laneq_f32::<2>(sum, v, of),
            _ => vfmaq_laneq_f32::<3>(sum, v, of),
        }
    }

    /// Four values from place `i` on.
    #[inline]
    fn four(values: &[f32], i: usize) -> float32x4_t {
        load_f32(values[i..i + 4].first_chunk().expect("four values"))
    }
}

/// Products widened to 16 bits: two of them are at most 2 * 128 * 127, which 16 bits hold.
pub(in crate::arch::aarch64) struct Widening;

impl Multiply for Widening {
    #[inline(always)]
    unsafe fn sums<const FIRST: usize, const COUNT: usize>(
        rows: &[[u8; 32]; ABREAST],
        x: &Codes,
        half: usize,
    ) -> Sums {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        unsafe {
            // Per row and four columns: sums of the first two columns and of the last two, each in two parts.
            let mut parts = [[[vdupq_n_s32(0); 2]; 2]; ABREAST];
            for run in FIRST / 4..(FIRST + COUNT) / 4 {
                two!(P => {
                    let q = 4 * run + 2 * P;
                    let x = two!(I => [columns(x, q, 2 * half + I), columns(x, q + 1, 2 * half + I)]);
                    parts = four!(R => {
                        let w = codes(&rows[R], run);
                        let w = [lanes(w, 2 * P), lanes(w, 2 * P + 1)];
                        two!(C => {
                            let low = vmull_s8(vget_low_s8(x[C][0]), vget_low_s8(w[0]));
                            let low = vmlal_s8(low, vget_low_s8(x[C][1]), vget_low_s8(w[1]));
                            let high = vmlal_high_s8(vmull_high_s8(x[C][0], w[0]), x[C][1], w[1]);
                            [vpadalq_s16(parts[R][C][0], low), vpadalq_s16(parts[R][C][1], high)]
                        })
                    });
                });
            }
            four!(R => two!(C => vpaddq_s32(parts[R][C][0], parts[R][C][1])))
        }
    }
}

/// Adds the terms of a panel's blocks to 16 rows of accumulators. To be inlined into a function that is compiled for
/// the features of `M`.
///
/// # Safety
/// The machine must have the features of `M`.
#[inline(always)]
pub(in crate::arch::aarch64) unsafe fn terms<M: Multiply>(
    shape: Shape,
    panel: &Panel,
    height: usize,
    x: Group<'_>,
    acc: &mut Accumulators,
) {
    for (i, rows) in acc.as_chunks_mut::<ABREAST>().0.iter_mut().enumerate() {
        let first = 16 * height + ABREAST * i;
        for half in 0..LANES / 8 {
            // SAFETY: the caller's; Advanced SIMD is part of the AArch64 baseline; the stores write four values each.
            unsafe {
                let mut sums = four!(R => two!(C => four(&rows[R].0, 8 * half + 4 * C)));
                for b in 0..x.codes.len() {
                    let codes: &[[u8; 32]; ABREAST] =
                        panel.codes[b][first..].first_chunk().expect("whole heights");
                    let [d0, d1] = two!(H => four(&panel.d[H][b], first));
                    let [s0, s1] = two!(H => four(&panel.scale[H][b], first));
                    let d_x = two!(C => four(&x.d[b].0, 8 * half + 4 * C));
                    if matches!(shape, Shape::Plain | Shape::Scaled) {
                        let isums = M::sums::<0, 8>(codes, &x.codes[b], half);
                        sums = four!(R => two!(C => {
                            let isum = vcvtq_f32_s32(isums[R][C]);
                            let isum = if shape == Shape::Scaled { times_lane(isum, s0, R) } else { isum };
                            vfmaq_f32(sums[R][C], isum, times_lane(d_x[C], d0, R))
                        }));
                    } else {
                        let low = M::sums::<0, 4>(codes, &x.codes[b], half);
                        let high = M::sums::<4, 4>(codes, &x.codes[b], half);
                        sums = four!(R => two!(C => {
                            let (low, high) = (vcvtq_f32_s32(low[R][C]), vcvtq_f32_s32(high[R][C]));
                            let d = times_lane(d_x[C], d0, R);
                            if shape == Shape::Split {
                                let isum = plus_times_lane(times_lane(low, s0, R), high, s1, R);
                                vfmaq_f32(sums[R][C], isum, d)
                            } else {
                                vfmaq_f32(vfmaq_f32(sums[R][C], low, d), high, times_lane(d_x[C], d1, R))
                            }
                        }));
                    }
                }
                for (acc, lanes) in sums.iter().zip(rows.iter_mut()) {
                    for (c, acc) in acc.iter().enumerate() {
                        let at = 8 * half + 4 * c;
                        vst1q_f32(lanes.0[at..at + 4].as_mut_ptr(), *acc);
                    }
                }
            }
        }
    }
}

/// The entry of a token: `$entry` compiles for its features, `$multiply` sums with them, `$packed` of the source says
/// how activations are packed.
macro_rules! a8_many {
    ($entry:ident, $multiply:ty, $($packed:ident)::+) => {
        $entry! {
            /// See [`crate::kernels::A8Fn`].
            pub(in crate::arch::aarch64) fn many<S: $crate::panel::Source>(
                view: &ninfer_formats::TensorView<'_>,
                x: &$crate::q8_1::Q8_1,
                columns: std::ops::Range<usize>,
                out: &mut $crate::tile::Tile<'_>,
                scratch: &mut $crate::kernels::Scratch,
            ) {
                use $crate::panel::{Accumulators, Group, Minimum, Panel, Source, Steps};
                // Closures of this function are compiled for its features; bare functions would not be.
                let steps = Steps {
                    fetch: $crate::arch::aarch64::fetch_bytes,
                    terms: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| {
                        // SAFETY: this function is compiled for the token's features, so the machine has them.
                        unsafe { $crate::arch::aarch64::neon::gemm::terms::<$multiply>(S::SHAPE, p, h, x, acc) }
                    },
                    minima: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| match S::MINIMUM {
                        Minimum::None => {}
                        kind => $crate::panel::minima::<$crate::order::Hardware>(kind, p, h, x, acc),
                    },
                    transpose: |acc: &mut Accumulators| $crate::panel::transpose(acc),
                };
                let unpack = |row: &ninfer_formats::RowParts<'_>, first, count, offset, p: &mut Panel, r| {
                    <S as Source>::unpack(row, first, count, offset, p, r);
                };
                $crate::panel::product::<$($packed)::+<S>>(
                    view, x, columns, out, &mut scratch.panels, 0, unpack, &steps,
                );
            }
        }
    };
}
pub(in crate::arch::aarch64) use a8_many;

/// The source as it is.
pub(in crate::arch::aarch64) type Plain<S> = S;

/// The kernels of `neon` itself.
pub(super) mod entries {
    use crate::isa::neon_entry;

    super::a8_many!(neon_entry, super::Widening, super::Plain);
}
