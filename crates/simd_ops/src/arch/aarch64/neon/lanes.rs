//! Sixteen binary32 lanes in four registers.

use std::arch::aarch64::*;

use ninfer_formats::encoder::lanes::{IQ4_STEPS, LANES, Lanes};

/// Sixteen values. To be used inside functions that are compiled for this token only: there every method is a few
/// instructions, inlined.
#[derive(Clone, Copy)]
pub(super) struct Wide([float32x4_t; 4]);

/// An instruction on each register of one or two vectors.
macro_rules! each {
    ($a:expr, |$x:ident| $value:expr) => {{
        let a = $a.0;
        let one = |$x: float32x4_t| {
            // SAFETY: Advanced SIMD is part of the AArch64 baseline.
            unsafe { $value }
        };
        Self([one(a[0]), one(a[1]), one(a[2]), one(a[3])])
    }};
    ($a:expr, $b:expr, |$x:ident, $y:ident| $value:expr) => {{
        let (a, b) = ($a.0, $b.0);
        let one = |$x: float32x4_t, $y: float32x4_t| {
            // SAFETY: Advanced SIMD is part of the AArch64 baseline.
            unsafe { $value }
        };
        Self([one(a[0], b[0]), one(a[1], b[1]), one(a[2], b[2]), one(a[3], b[3])])
    }};
}

impl Lanes for Wide {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        Self([unsafe { vdupq_n_f32(v) }; 4])
    }
    #[inline(always)]
    fn load(v: &[f32; LANES]) -> Self {
        let v = v.as_chunks::<4>().0;
        // SAFETY: loads of the 16 values of `v`.
        let four = |i: usize| unsafe { vld1q_f32(v[i].as_ptr()) };
        Self([four(0), four(1), four(2), four(3)])
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        for (to, v) in to.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            // SAFETY: a store to the 4 values of `to`.
            unsafe { vst1q_f32(to.as_mut_ptr(), v) }
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        each!(self, other, |a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        each!(self, other, |a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        each!(self, other, |a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        each!(self, other, |a, b| vdivq_f32(a, b))
    }
    // The minimum and maximum instructions order zeros and keep NaNs; a comparison is what is asked for.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        each!(self, other, |a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        each!(self, other, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        each!(self, |a| vabsq_f32(a))
    }
    #[inline(always)]
    fn select_below(a: Self, b: Self, yes: Self, no: Self) -> Self {
        let four = |i: usize| {
            // SAFETY: Advanced SIMD is part of the AArch64 baseline.
            unsafe { vbslq_f32(vcltq_f32(a.0[i], b.0[i]), yes.0[i], no.0[i]) }
        };
        Self([four(0), four(1), four(2), four(3)])
    }
    #[inline(always)]
    fn nearest_iq4(self) -> Self {
        each!(self, |u| {
            let mut v = vdupq_n_f32(IQ4_STEPS.0);
            for (half, step) in IQ4_STEPS.1 {
                let above = vcltq_f32(vdupq_n_f32(half), u);
                let step = vandq_u32(above, vreinterpretq_u32_f32(vdupq_n_f32(step)));
                v = vaddq_f32(v, vreinterpretq_f32_u32(step));
            }
            v
        })
    }
}
