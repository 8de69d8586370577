//! The evaluation order of products: the part of the contract that fixes every bit of a result.
//!
//! For a format and an activation precision, the bits of `Y[n, t]` depend on row `n` of the weights and column `t`
//! of the activations alone: not on the instruction set, the number of threads, the number of columns, the tiles, or
//! whether the row came as part of a slice. Source: product specification, result contract. `fma` below is one
//! rounding of `a * b + c` to binary32, nearest-even, subnormals kept.
//!
//! **A16** ([`dot_a16`]). Sixteen accumulators start at +0. Accumulator `l` takes the elements `k` with
//! `k mod 16 = l` in increasing `k`: `acc[l] = fma(w[k], x[k], acc[l])`, where `w` is the exact decoded binary32
//! weight. Then `acc[l] + acc[l + 8]` for `l < 8`, `acc[l] + acc[l + 4]` for `l < 4`, `+ 2`, `+ 1`; each sum rounds.
//! Elements that do not exist (K not a multiple of 16) are not taken. A kernel that must fill a vector may use the
//! weight -0 and the activation +0 there: `fma(-0, +0, acc)` is `acc` for every `acc`, also for -0, which +0 * +0
//! would turn into +0.
//!
//! **A8** ([`A8`]). Activations are `q8_1` blocks of 32 (see [`crate::q8_1`]). Within a block all sums are exact
//! integers. `acc` and `m` start at +0. Blocks are taken in increasing `k`:
//!
//! ```text
//! acc = fma(f32(isum), f32(d_w * d_x), acc)
//! m   = fma(f32(msum), f32(dmin * d_x), m)          formats with a minimum
//! ```
//!
//! and the result is `acc - m`. `d_x` is the stored binary16 scale of the activation block, `d_w` and `dmin` those of
//! the weights; `isum` and `msum` are (with the block's two halves `h` of 16 values, `x` the activation codes)
//!
//! ```text
//! isum = sum over h of scale[h] * sum(code * x)      msum = sum over h of min[h] * sum(x)
//! ```
//!
//! with the integers of [`ninfer_formats::codec::gguf::ints`]; grouped formats have `scale` 1 and the group's scale as
//! `d_w`. All of these fit in 25 bits, so that `f32(isum)` is exact. `nvfp4` has one term per 16 values, the lower
//! half first: `isum = sum(E2M1 code doubled * x)`, `d_w = f32(E4M3 scale * 0.5)`, and the result is `acc / divisor`.
//! `fp8`, `bf16` and `fp32` weights take the A16 order over the represented activations `f32(d_x * q)`.
//!
//! Only the blocks that hold logical elements are taken: padding groups of `row_split` payloads do not exist for a
//! product, and padding lanes of the last block meet activation codes of 0. A block of zeros is not skipped.
//!
//! Infinities and NaNs (legal in ggml blocks and direct weights, and in A16 activations) take part as IEEE says; a
//! result that is NaN is the word `0x7fc00000`.
//!
//! Processor modes that flush subnormal numbers or round otherwise are switched off while kernels run, and restored.

/// How an instruction set fuses.
///
/// A generic kernel takes it as a type, because a function that is inlined into code for a wider instruction set
/// cannot ask for which one it is compiled.
pub trait Fused {
    /// `a * b + c` rounded once to binary32, nearest-even.
    fn fma(a: f32, b: f32, c: f32) -> f32;
}

/// Fusing without an instruction for it: binary64, rounded to odd, then to binary32.
#[derive(Clone, Copy, Debug)]
pub struct Emulated;

impl Fused for Emulated {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        // The product of two 24-bit significands is exact in binary64, and nothing there overflows or underflows.
        let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = p + c;
        // The exact error of the addition. If it is not zero the sum is made odd, towards the error: binary64 has
        // more than two bits to spare, so the second rounding then gives what one rounding would have given.
        let from_c = sum - p;
        let error = (p - (sum - from_c)) + (c - from_c);
        let bits = sum.to_bits();
        let inexact = error.abs() > 0.0; // not for the NaN that an infinite sum leaves
        let odd = if inexact && bits & 1 == 0 {
            // An inexact sum is not zero: stepping its magnitude up or down by one word does not leave its sign.
            if (error > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 }
        } else {
            bits
        };
        f64::from_bits(odd) as f32
    }
}

/// Fusing by the instruction of the enclosing function's instruction set (elsewhere by the C library).
#[derive(Clone, Copy, Debug)]
pub struct Hardware;

impl Fused for Hardware {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// What the scalar kernels use: the instruction where every machine of the target has it.
#[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
pub type Baseline = Hardware;
/// What the scalar kernels use: the instruction where every machine of the target has it.
#[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
pub type Baseline = Emulated;

/// The quiet NaN that stands for every NaN result.
pub const RESULT_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// The A16 product of one row and one column of equal length, as the module's text says.
#[inline(always)]
#[must_use]
pub fn dot_a16<F: Fused>(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0.0f32; 16];
    let (wc, w_tail) = w.as_chunks::<16>();
    let (xc, x_tail) = x.as_chunks::<16>();
    for (w, x) in wc.iter().zip(xc) {
        for l in 0..16 {
            acc[l] = F::fma(w[l], x[l], acc[l]);
        }
    }
    for (acc, (&w, &x)) in acc.iter_mut().zip(w_tail.iter().zip(x_tail)) {
        *acc = F::fma(w, x, *acc);
    }
    combine_a16(acc)
}

/// The sum of the sixteen A16 accumulators: l with l + 8, then + 4, + 2, + 1.
#[inline(always)]
#[must_use]
pub fn combine_a16(acc: [f32; 16]) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|l| acc[l] + acc[l + 8]);
    let b: [f32; 4] = std::array::from_fn(|l| a[l] + a[l + 4]);
    let c = [b[0] + b[2], b[1] + b[3]];
    c[0] + c[1]
}

/// The accumulators of one A8 result.
#[derive(Clone, Copy, Debug, Default)]
pub struct A8 {
    acc: f32,
    m: f32,
}

impl A8 {
    /// Adds the term of one activation block (or, for `nvfp4`, of half a block).
    #[inline(always)]
    pub fn term<F: Fused>(&mut self, isum: i32, d_w: f32, d_x: f32) {
        self.acc = F::fma(isum as f32, d_w * d_x, self.acc);
    }

    /// Adds the minimum of one activation block.
    #[inline(always)]
    pub fn minimum<F: Fused>(&mut self, msum: i32, dmin: f32, d_x: f32) {
        self.m = F::fma(msum as f32, dmin * d_x, self.m);
    }

    /// The result; `nvfp4` divides it by the row's divisor.
    #[inline(always)]
    #[must_use]
    pub fn finish(self) -> f32 {
        self.acc - self.m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit generator with a fixed seed (the output function of SplitMix64).
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn check(a: f32, b: f32, c: f32) {
        let (ours, theirs) = (Emulated::fma(a, b, c), a.mul_add(b, c));
        assert!(
            ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
            "fma({a:e}, {b:e}, {c:e}): {ours:e} {theirs:e}"
        );
    }

    #[test]
    fn emulated_fma_equals_the_library_on_words_that_meet() {
        let special = [0.0, -0.0, 1.0, -1.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 1e-45];
        for a in special {
            for b in special {
                for c in special {
                    check(a, b, c);
                    check(-a, b, c);
                }
            }
        }
        let mut state = 1;
        for i in 0..400_000u32 {
            let r = [next(&mut state), next(&mut state)];
            let word = |w: u64, e: u32| f32::from_bits((w as u32 & 0x807f_ffff) | (e & 255) << 23);
            let (ea, eb) = ((r[1] >> 8) as u32 & 255, (r[1] >> 16) as u32 & 255);
            // The addend's exponent is near the product's, so that their bits overlap.
            let near = (ea + eb).wrapping_sub(127).wrapping_add((r[1] >> 24) as u32 % 60).wrapping_sub(30);
            let c = word(next(&mut state), if near < 255 { near } else { i & 255 });
            check(word(r[0], ea), word(r[0] >> 32, eb), c);
        }
    }

    #[test]
    fn emulated_fma_decides_ties_by_what_lies_below() {
        // 1 + 2^-24 is a tie; a product just above or below it decides.
        let half_ulp = 2f32.powi(-24);
        for (a, expected) in [(1.0, 1.0), (1.0 + f32::EPSILON, 1.0 + f32::EPSILON), (1.0 - half_ulp, 1.0)] {
            assert_eq!(Emulated::fma(half_ulp, a, 1.0), expected);
        }
        // A tie among subnormals: 1.5 * 2^-149, less or more by far less than an ulp of binary64.
        let tiny = f32::from_bits(1);
        assert_eq!(Emulated::fma(tiny, 0.5, tiny).to_bits(), 2);
        assert_eq!(Emulated::fma(tiny, 0.5 - half_ulp, tiny).to_bits(), 1);
    }

    #[test]
    fn lanes_and_pairs_are_taken_in_the_written_order() {
        // Lane 0 takes 2^24 then 1 and 1: the ones are lost one by one. Lane 8 keeps its two.
        let mut w = vec![0.0f32; 40];
        let x = vec![1.0f32; 40];
        (w[0], w[16], w[32]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot_a16::<Baseline>(&w, &x), 16_777_216.0);
        (w[32], w[8], w[24]) = (0.0, 1.0, 1.0);
        assert_eq!(dot_a16::<Baseline>(&w, &x), 16_777_218.0);
        // Pairing: (a0 + a8) + (a4 + a12) ...; with a8 = -a0 the small ones survive only in this order.
        let mut acc = [0.0f32; 16];
        (acc[0], acc[8], acc[4]) = (1e20, -1e20, 1.0);
        assert_eq!(combine_a16(acc), 1.0);
        (acc[8], acc[4], acc[12]) = (0.0, -1e20, 1.0);
        assert_eq!(combine_a16(acc), 0.0);
    }

    #[test]
    fn filler_of_partial_vectors_changes_no_accumulator() {
        for acc in [0.0f32, -0.0, 1.5, f32::INFINITY, 1e-45] {
            assert_eq!(Emulated::fma(-0.0, 0.0, acc).to_bits(), acc.to_bits());
        }
    }

    #[test]
    fn a8_adds_in_order_and_subtracts_the_minimum_last() {
        let mut a = A8::default();
        a.term::<Baseline>(1 << 24, 1.0, 1.0);
        a.term::<Baseline>(1, 1.0, 1.0);
        a.minimum::<Baseline>(-3, 2.0, 0.5);
        // The 1 is lost in acc; 2^24 + 3 rounds to the even 2^24 + 4.
        assert_eq!(a.finish(), 16_777_220.0);
    }
}
