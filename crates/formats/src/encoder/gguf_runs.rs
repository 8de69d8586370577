//! What the searches on ggml's blocks share: sixteen runs of values side by side, one a lane, brought to a common range.

use super::grouped_search::round_candidate;
use super::lanes::{LANES, Lanes, normal_importance, normaliser};
use super::{RowFault, RowPlace};
use crate::float::f16;

/// Values of a super-block.
pub(super) const SUPER: usize = 256;

/// Sixteen runs of `RUN` consecutive values of a row, run `l` in lane `l`; missing ones are zero. Blocks of `BLOCK`
/// values each have a power of two that brings them into `[-2, 2]`.
pub(super) struct Runs<const RUN: usize> {
    /// Values times `2^-exponent` of their block.
    pub(super) w: [[f32; LANES]; RUN],
    /// Importance within each run, its largest in `[1, 2)`.
    pub(super) imp: [[f32; LANES]; RUN],
    /// What each run's importance was divided by, relative to the largest of its block.
    pub(super) weight: [f64; LANES],
    /// The exponent of each run's block.
    pub(super) exponent: [i32; LANES],
}

/// `2^e`; zero far below the range, which only relative weights reach.
#[inline(always)]
fn power(e: i32) -> f64 {
    if e < -1000 { 0.0 } else { f64::from_bits(((1023 + e) as u64) << 52) }
}

impl<const RUN: usize> Runs<RUN> {
    pub(super) const VALUES: usize = RUN * LANES;

    /// Lays out at most [`Self::VALUES`] values of whole blocks of `block` values; `at` is their first column. Refuses
    /// values that are not finite.
    #[inline(always)]
    pub(super) fn new(
        x: &[f32],
        importance: Option<&[f32]>,
        block: usize,
        at: usize,
    ) -> Result<Self, RowFault> {
        let mut runs = Self {
            w: [[0.0; LANES]; RUN],
            imp: [[1.0; LANES]; RUN],
            weight: [1.0; LANES],
            exponent: [0; LANES],
        };
        let lanes = block / RUN;
        for (b, x) in x.chunks(block).enumerate() {
            let word = x.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7fff_ffff));
            if word >= 0x7f80_0000 {
                let c = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
                return Err(RowFault::not_finite(at + b * block + c, x[c]));
            }
            let (factor, exponent) = normaliser(f32::from_bits(word));
            for (r, x) in x.as_chunks::<RUN>().0.iter().enumerate() {
                let l = b * lanes + r;
                runs.exponent[l] = exponent;
                for (row, v) in runs.w.iter_mut().zip(x) {
                    row[l] = *v * factor;
                }
            }
        }
        if let Some(importance) = importance {
            for (b, importance) in importance.chunks(block).enumerate() {
                let mut exponents = [None; LANES];
                for (r, importance) in importance.as_chunks::<RUN>().0.iter().enumerate() {
                    let l = b * lanes + r;
                    let (values, exponent) = normal_importance(importance);
                    exponents[l] = exponent;
                    for (row, v) in runs.imp.iter_mut().zip(values) {
                        row[l] = v;
                    }
                }
                // A run without importance weighs nothing beside others; if all are without, all weigh the same.
                if let Some(top) = exponents.iter().flatten().max() {
                    let weights = runs.weight.iter_mut().zip(exponents).skip(b * lanes).take(lanes);
                    for (weight, exponent) in weights {
                        *weight = exponent.map_or(0.0, |e| power((e - top).max(-1001)));
                    }
                }
            }
        }
        Ok(runs)
    }

    /// The binary16 word of a scale of block-relative size, in the way of `grouped_search`.
    #[inline(always)]
    pub(super) fn word(&self, lane: usize, scale: f64) -> Option<u16> {
        round_candidate(scale * power(self.exponent[lane]))
    }

    /// The block-relative value of a binary16 word, exactly.
    #[inline(always)]
    pub(super) fn value(&self, lane: usize, word: u16) -> f32 {
        // Below 2^15 * 2^126: finite; a power of two times eleven bits.
        (f64::from(f16::to_f32(word)) * power(-self.exponent[lane])) as f32
    }

    /// Sum over the lanes of a block, in order: `weight * term`.
    #[inline(always)]
    pub(super) fn weighted(&self, first: usize, lanes: usize, term: impl Fn(usize) -> f64) -> f64 {
        let mut sum = 0.0;
        for l in first..first + lanes {
            sum += self.weight[l] * term(l);
        }
        sum
    }
}

/// Errors of runs of the given total importance and width below which they are rounding alone: all count the same, so
/// that of lines on the same grid the first is taken.
#[inline(always)]
pub(super) fn floor<L: Lanes>(total: L, width: L) -> L {
    let part = width.mul(L::splat(1.0 / 16384.0));
    total.mul(part.mul(part))
}

/// A scale that overflows.
pub(super) fn overflow(block: usize, what: &str, scale: f64) -> RowFault {
    RowFault {
        place: RowPlace::Group(block),
        rule: format!("the {what} {scale:e} overflows binary16 (largest 65504)"),
    }
}

/// The lanes as an array.
#[inline(always)]
pub(super) fn array<L: Lanes>(v: L) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    v.store(&mut out);
    out
}
