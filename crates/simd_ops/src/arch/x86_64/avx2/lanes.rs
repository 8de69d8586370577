//! Sixteen binary32 lanes in two registers.

use std::arch::x86_64::*;

use ninfer_formats::encoder::lanes::{IQ4_STEPS, LANES, Lanes};

/// Sixteen values. To be used inside functions that are compiled for this token only: there every method is a few
/// instructions, inlined.
#[derive(Clone, Copy)]
pub(super) struct Wide([__m256; 2]);

impl Lanes for Wide {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        // SAFETY: callers are compiled for this token, so the machine has its instructions (also below).
        Self([unsafe { _mm256_set1_ps(v) }; 2])
    }
    #[inline(always)]
    fn load(v: &[f32; LANES]) -> Self {
        // SAFETY: loads of the 16 values of `v`.
        Self(unsafe { [_mm256_loadu_ps(v.as_ptr()), _mm256_loadu_ps(v.as_ptr().add(8))] })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: stores to the 16 values of `to`.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self.0[1]);
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_add_ps(self.0[0], other.0[0]), _mm256_add_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_sub_ps(self.0[0], other.0[0]), _mm256_sub_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_mul_ps(self.0[0], other.0[0]), _mm256_mul_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_div_ps(self.0[0], other.0[0]), _mm256_div_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_min_ps(self.0[0], other.0[0]), _mm256_min_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { [_mm256_max_ps(self.0[0], other.0[0]), _mm256_max_ps(self.0[1], other.0[1])] })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Self([_mm256_andnot_ps(sign, self.0[0]), _mm256_andnot_ps(sign, self.0[1])])
        }
    }
    #[inline(always)]
    fn select_below(a: Self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let below =
                [_mm256_cmp_ps::<_CMP_LT_OQ>(a.0[0], b.0[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a.0[1], b.0[1])];
            Self([
                _mm256_blendv_ps(no.0[0], yes.0[0], below[0]),
                _mm256_blendv_ps(no.0[1], yes.0[1], below[1]),
            ])
        }
    }
    #[inline(always)]
    fn nearest_iq4(self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let mut v = [_mm256_set1_ps(IQ4_STEPS.0); 2];
            for (half, step) in IQ4_STEPS.1 {
                let (half, step) = (_mm256_set1_ps(half), _mm256_set1_ps(step));
                for (v, u) in v.iter_mut().zip(self.0) {
                    let above = _mm256_cmp_ps::<_CMP_LT_OQ>(half, u);
                    *v = _mm256_add_ps(*v, _mm256_and_ps(above, step));
                }
            }
            Self(v)
        }
    }
}
