//! A8 matrix-matrix products: eight values of two rows and two columns at a time.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::arch::aarch64::neon::gemm::{ABREAST, Multiply, Sums, a8_many, codes};
use crate::isa::neon_i8mm_entry;
use crate::panel::{Codes, Paired};

neon_i8mm_entry! {
    /// Adds the products of the two rows of `a` with the two rows of `b` (eight bytes each), those of the first row of
    /// `a` to lanes 0 and 1. The intrinsic is not stable.
    #[inline]
    fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let mut out = sum;
        // SAFETY: reads and writes the named registers; the function is compiled for the feature.
        unsafe {
            asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) a, in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    /// The lower and the upper eight bytes of two rows, side by side.
    #[inline]
    fn pair(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
    }

    /// The rows of two tiles of two rows and two columns.
    #[inline]
    fn rows_of(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
    }

    /// Eight values of columns `2 * pair` and `2 * pair + 1`, packed as [`Paired`] says.
    #[inline]
    fn columns(x: &Codes, eight: usize, pair: usize) -> int8x16_t {
        let eights = x.0.as_flattened().as_flattened().as_chunks::<16>().0;
        // SAFETY: reads the 16 bytes of one of the 32 vectors (checked).
        unsafe { vld1q_s8(eights[8 * eight + pair].as_ptr()) }
    }
}

/// See the module's text.
struct Matrix;

impl Multiply for Matrix {
    #[inline(always)]
    unsafe fn sums<const FIRST: usize, const COUNT: usize>(
        rows: &[[u8; 32]; ABREAST],
        x: &Codes,
        half: usize,
    ) -> Sums {
        // SAFETY: the caller's machine has the features.
        unsafe {
            // Per pair of rows and of columns.
            let mut tiles = [[vdupq_n_s32(0); 4]; ABREAST / 2];
            for run in FIRST / 4..(FIRST + COUNT) / 4 {
                let w = two!(R => pair(codes(&rows[2 * R], run), codes(&rows[2 * R + 1], run)));
                two!(E => {
                    let x = four!(C => columns(x, 2 * run + E, 4 * half + C));
                    tiles = two!(R => four!(C => smmla(tiles[R][C], w[R][E], x[C])));
                });
            }
            let [p, q] = two!(R => two!(C => rows_of(tiles[R][2 * C], tiles[R][2 * C + 1])));
            [[p[0][0], p[1][0]], [p[0][1], p[1][1]], [q[0][0], q[1][0]], [q[0][1], q[1][1]]]
        }
    }
}

a8_many!(neon_i8mm_entry, Matrix, Paired);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    neon_i8mm_entry! {
        fn product(a: &[i8; 16], b: &[i8; 16]) -> [i32; 4] {
            let mut out = [0; 4];
            // SAFETY: loads and a store of 16 bytes.
            unsafe {
                let sum = smmla(vdupq_n_s32(7), vld1q_s8(a.as_ptr()), vld1q_s8(b.as_ptr()));
                vst1q_s32(out.as_mut_ptr(), sum);
            }
            out
        }
    }

    #[test]
    fn the_instruction_equals_plain_sums() {
        if !Isa::NeonI8mm.is_available() {
            return;
        }
        for seed in 0..100i32 {
            let bytes = |s: i32| std::array::from_fn(|i| ((i as i32 * 37 + s * 91) % 256) as i8);
            let (a, b): ([i8; 16], [i8; 16]) = (bytes(seed), bytes(seed * 7 + 3));
            // SAFETY: the machine has the token.
            let got = unsafe { product(&a, &b) };
            for (i, got) in got.into_iter().enumerate() {
                let (a, b) = (&a[i / 2 * 8..][..8], &b[i % 2 * 8..][..8]);
                let sum: i32 = a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum();
                assert_eq!(got, 7 + sum);
            }
        }
    }
}
