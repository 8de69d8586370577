//! Sixteen binary32 lanes: the arithmetic that our own searching methods are written in.
//!
//! A search is written once, over [`Lanes`], and runs on whatever implements them: [`Portable`] here, vector registers
//! elsewhere. Every operation is one IEEE-754 operation with one rounding in each lane, or a comparison, and lanes never
//! meet, so every implementation gives the same bits.

/// Lanes of one vector.
pub const LANES: usize = 16;

/// Sixteen binary32 values. Operations round each lane once, nearest-even.
pub trait Lanes: Copy {
    /// All lanes `v`.
    #[must_use]
    fn splat(v: f32) -> Self;
    /// The values of an array.
    #[must_use]
    fn load(v: &[f32; LANES]) -> Self;
    /// Stores the values.
    fn store(self, to: &mut [f32; LANES]);
    /// `self + other`.
    #[must_use]
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    #[must_use]
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    #[must_use]
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    #[must_use]
    fn div(self, other: Self) -> Self;
    /// `self` where it is below `other`, else `other`.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// `self` where it is above `other`, else `other`.
    #[must_use]
    fn max(self, other: Self) -> Self;
    /// The magnitude.
    #[must_use]
    fn abs(self) -> Self;
    /// `yes` where `a < b`, else `no`.
    #[must_use]
    fn select_below(a: Self, b: Self, yes: Self, no: Self) -> Self;

    /// The nearest integer, ties to even, of magnitudes below 2^22.
    #[must_use]
    #[inline(always)]
    fn round(self) -> Self {
        // Beyond 2^23 the spacing of binary32 is one.
        let big = Self::splat(12_582_912.0);
        self.add(big).sub(big)
    }

    /// The value of the table [`IQ4_VALUES`](crate::tables::IQ4_VALUES) nearest to each lane; of two equally near the
    /// smaller: the smallest plus the steps across the midpoints that lie below the lane.
    #[must_use]
    #[inline(always)]
    fn nearest_iq4(self) -> Self {
        let mut v = Self::splat(IQ4_STEPS.0);
        for (half, step) in IQ4_STEPS.1 {
            let stepped = v.add(Self::splat(step));
            v = Self::select_below(Self::splat(half), self, stepped, v);
        }
        v
    }
}

/// The smallest value of the table of `iq4_nl`; midpoints between neighbours, and the steps across them.
pub const IQ4_STEPS: (f32, [(f32, f32); 15]) = {
    use crate::tables::IQ4_VALUES;
    let mut steps = [(0.0, 0.0); 15];
    let mut i = 0;
    while i < 15 {
        let (a, b) = (IQ4_VALUES[i] as f32, IQ4_VALUES[i + 1] as f32);
        steps[i] = ((a + b) * 0.5, b - a);
        i += 1;
    }
    (IQ4_VALUES[0] as f32, steps)
};

/// The portable lanes.
#[derive(Clone, Copy, Debug)]
pub struct Portable([f32; LANES]);

#[inline(always)]
fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> Portable {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    Portable(out)
}

impl Lanes for Portable {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        Self([v; LANES])
    }
    #[inline(always)]
    fn load(v: &[f32; LANES]) -> Self {
        Self(*v)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| a / b)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        map2(self.0, other.0, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }
    #[inline(always)]
    fn select_below(a: Self, b: Self, yes: Self, no: Self) -> Self {
        let mut out = no.0;
        for (i, out) in out.iter_mut().enumerate() {
            *out = if a.0[i] < b.0[i] { yes.0[i] } else { *out };
        }
        Self(out)
    }
}

/// The power of two that brings a positive finite magnitude into `[1, 2)` (a subnormal one below), and its exponent:
/// `factor = 2^-exponent`.
#[must_use]
#[inline(always)]
pub(super) fn normaliser(magnitude: f32) -> (f32, i32) {
    let exponent = ((magnitude.to_bits() >> 23) & 255).max(1);
    // 2^(127 - 254) is a subnormal number, but a power of two all the same.
    let factor = if exponent == 254 { 1 << 22 } else { (254 - exponent) << 23 };
    (f32::from_bits(factor), exponent as i32 - 127)
}

/// Importance of one run of values brought into `[0, 2)` by a power of two, with the exponent taken out; ones and
/// `None` where nothing in the run has importance.
#[inline(always)]
pub(super) fn normal_importance<const N: usize>(importance: &[f32; N]) -> ([f32; N], Option<i32>) {
    let largest = importance.iter().fold(0.0f32, |m, &v| if v > m { v } else { m });
    if largest == 0.0 {
        return ([1.0; N], None);
    }
    let (factor, exponent) = normaliser(largest);
    (importance.map(|v| v * factor), Some(exponent))
}
