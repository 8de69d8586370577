//! Sixteen binary32 lanes in one register.

use std::arch::x86_64::*;

use ninfer_formats::encoder::lanes::{IQ4_STEPS, LANES, Lanes};

/// Sixteen values. To be used inside functions that are compiled for this token only: there every method is a few
/// instructions, inlined.
#[derive(Clone, Copy)]
pub(super) struct Wide(__m512);

impl Lanes for Wide {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        // SAFETY: callers are compiled for this token, so the machine has its instructions (also below).
        Self(unsafe { _mm512_set1_ps(v) })
    }
    #[inline(always)]
    fn load(v: &[f32; LANES]) -> Self {
        // SAFETY: a load of the 16 values of `v`.
        Self(unsafe { _mm512_loadu_ps(v.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: a store to the 16 values of `to`.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: as in `splat`.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }
    #[inline(always)]
    fn select_below(a: Self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0);
            Self(_mm512_mask_blend_ps(below, no.0, yes.0))
        }
    }
    #[inline(always)]
    fn nearest_iq4(self) -> Self {
        // Runs of eight between -128 and 127 hold at most one midpoint each: two tables of 32 say which and what
        // lies on either side.
        // SAFETY: as in `splat`.
        unsafe {
            let inside = _mm512_min_ps(_mm512_max_ps(self.0, _mm512_set1_ps(-127.0)), _mm512_set1_ps(120.0));
            let at = _mm512_cvttps_epi32(_mm512_mul_ps(
                _mm512_add_ps(inside, _mm512_set1_ps(128.0)),
                _mm512_set1_ps(0.125),
            ));
            let above = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(pick(&RUNS.0, at), self.0);
            Self(_mm512_mask_blend_ps(above, pick(&RUNS.1, at), pick(&RUNS.2, at)))
        }
    }
}

/// The values of a table at indices below 32.
#[inline(always)]
fn pick(t: &Table, at: __m512i) -> __m512 {
    // SAFETY: loads of 16 values each; as in `Wide::splat`.
    unsafe { _mm512_permutex2var_ps(_mm512_loadu_ps(t[0].as_ptr()), at, _mm512_loadu_ps(t[1].as_ptr())) }
}

type Table = [[f32; LANES]; 2];

/// For each run of eight, `-128 + 8 i ..`: its midpoint (the largest number if it has none), the table value below the
/// midpoint and the one above.
static RUNS: (Table, Table, Table) = {
    let mut runs = ([[f32::MAX; LANES]; 2], [[0.0; LANES]; 2], [[0.0; LANES]; 2]);
    let mut i = 0;
    while i < 32 {
        let begin = -128.0 + 8.0 * i as f32;
        let (mut value, mut s) = (IQ4_STEPS.0, 0);
        while s < 15 && IQ4_STEPS.1[s].0 < begin {
            value += IQ4_STEPS.1[s].1;
            s += 1;
        }
        runs.1[i / LANES][i % LANES] = value;
        runs.2[i / LANES][i % LANES] = value;
        if s < 15 && IQ4_STEPS.1[s].0 < begin + 8.0 {
            runs.0[i / LANES][i % LANES] = IQ4_STEPS.1[s].0;
            runs.2[i / LANES][i % LANES] = value + IQ4_STEPS.1[s].1;
        }
        i += 1;
    }
    runs
};
