//! The dot product instructions, whose intrinsics are not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::arch::aarch64::neon::gemv_sums::Dot;
use crate::isa::neon_dotprod_entry;

neon_dotprod_entry! {
    /// Adds to each 32-bit lane the products of its four bytes.
    #[inline]
    pub(in crate::arch::aarch64) fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let mut out = sum;
        // SAFETY: reads and writes the named registers; the function is compiled for the feature.
        unsafe {
            asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) a, in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    /// Adds to each 32-bit lane the products of its four bytes with the four bytes of lane `LANE` of `b`.
    #[inline]
    pub(in crate::arch::aarch64) fn sdot_lane<const LANE: usize>(
        sum: int32x4_t, a: int8x16_t, b: int8x16_t,
    ) -> int32x4_t {
        const { assert!(LANE < 4) };
        let mut out = sum;
        // SAFETY: reads and writes the named registers; the function is compiled for the feature.
        unsafe {
            asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]", inout(vreg) out, in(vreg) a, in(vreg) b, const LANE,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }
}

/// [`sdot`] as a way to sum.
pub(super) struct Dotprod;

impl Dot for Dotprod {
    #[inline(always)]
    unsafe fn dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's machine has the feature.
        unsafe { sdot(sum, w, x) }
    }

    #[inline(always)]
    unsafe fn apart(sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: as above.
        unsafe { sdot(sdot(sum, w[0], x[0]), w[1], x[1]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::aarch64::neon::gemv_sums::Widening;
    use crate::isa::Isa;

    fn bytes(seed: u32) -> [i8; 16] {
        let mut s = seed;
        std::array::from_fn(|i| {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Ends of the range among them; activations are never -128.
            if seed.is_multiple_of(3) && i % 5 == 0 { -127 } else { ((s >> 24) as i8).max(-127) }
        })
    }

    neon_dotprod_entry! {
        fn lanes(a: &[i8; 16], b: &[i8; 16]) -> [[i32; 4]; 5] {
            // SAFETY: loads and stores of 16 bytes.
            unsafe {
                let (a, b) = (vld1q_s8(a.as_ptr()), vld1q_s8(b.as_ptr()));
                let sum = vdupq_n_s32(-3);
                let v = [
                    sdot(sum, a, b),
                    sdot_lane::<0>(sum, a, b),
                    sdot_lane::<1>(sum, a, b),
                    sdot_lane::<2>(sum, a, b),
                    sdot_lane::<3>(sum, a, b),
                ];
                let mut out = [[0; 4]; 5];
                for (out, v) in out.iter_mut().zip(v) {
                    vst1q_s32(out.as_mut_ptr(), v);
                }
                out
            }
        }

        fn sums<D: Dot>(a: &[i8; 16], b: &[i8; 16]) -> [[i32; 4]; 2] {
            // SAFETY: loads and stores of 16 bytes; the function is compiled for the features.
            unsafe {
                let (a, b) = (vld1q_s8(a.as_ptr()), vld1q_s8(b.as_ptr()));
                let small = vshrq_n_s8::<2>(a);
                let mut out = [[0; 4]; 2];
                vst1q_s32(out[0].as_mut_ptr(), D::dot(vdupq_n_s32(5), a, b));
                vst1q_s32(out[1].as_mut_ptr(), D::apart(vdupq_n_s32(5), [small, b], [b, small]));
                out
            }
        }
    }

    #[test]
    fn instructions_equal_the_plain_sums() {
        if !Isa::NeonDotprod.is_available() {
            return;
        }
        for seed in 0..200 {
            let (a, b) = (bytes(seed), bytes(seed + 1000));
            let four = |a: &[i8], b: &[i8]| -> i32 {
                a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
            };
            // SAFETY: the machine has the token.
            let (got, by_dot, by_widening) =
                unsafe { (lanes(&a, &b), sums::<Dotprod>(&a, &b), sums::<Widening>(&a, &b)) };
            for l in 0..4 {
                assert_eq!(got[0][l], -3 + four(&a[4 * l..4 * l + 4], &b[4 * l..4 * l + 4]));
                for of in 0..4 {
                    assert_eq!(got[1 + of][l], -3 + four(&a[4 * l..4 * l + 4], &b[4 * of..4 * of + 4]));
                }
            }
            let total = |v: [i32; 4]| v.iter().sum::<i32>();
            let half = |v: [i32; 4]| [v[0] + v[1], v[2] + v[3]];
            assert_eq!(total(by_dot[0]), total(by_widening[0]));
            assert_eq!(total(by_dot[0]), 20 + four(&a, &b));
            assert_eq!(half(by_dot[1]), half(by_widening[1]));
        }
    }
}
