//! `grouped_search`: estimates of 4 scales at a time, errors in the specification's eight partial sums.

use std::arch::aarch64::*;

use super::encode::{magnitudes, pack, scales};
use super::prims::{from_halves, halves, load_f32, store, to_halves};
use crate::arch::encoders::grouped_search;
use crate::isa::neon_entry;
use crate::search::{PADDED, limit_of};

grouped_search!(neon_entry);

neon_entry! {
    /// Packs the codes of a unit.
    #[inline]
    fn pack_codes<const BITS: u8>(codes: &[i8; UNIT], base: &mut [u8], high: &mut [u8]) {
        // SAFETY: four loads of 16 bytes each.
        let q = [0, 16, 32, 48].map(|i| unsafe { vld1q_s8(codes.as_ptr().add(i)) });
        pack::<BITS>(q, base, high);
    }

    /// Whether the first value of largest magnitude is negative.
    #[inline]
    fn extreme_negative<const G: usize>(w: &[f32; G], amax: f32) -> bool {
        let (mut at, mut negative) = (0u64, 0u64);
        for (i, v) in w.as_chunks::<4>().0.iter().enumerate() {
            let v = load_f32(v);
            at |= u64::from(mask(vceqq_f32(vabsq_f32(v), vdupq_n_f32(amax)))) << (4 * i);
            negative |= u64::from(mask(vreinterpretq_u32_f32(v))) << (4 * i);
        }
        negative & at & at.wrapping_neg() != 0
    }

    /// The highest bits of four lanes.
    #[inline]
    fn mask(v: uint32x4_t) -> u32 {
        let places = [0, 1, 2, 3];
        // SAFETY: a load of 4 integers.
        vaddvq_u32(vshlq_u32(vshrq_n_u32::<31>(v), unsafe { vld1q_s32(places.as_ptr()) }))
    }

    /// `sqrt(sum imp * w^2)` in binary32.
    #[inline]
    fn weight<const G: usize>(w: &[f32; G], imp: &[f32; G]) -> f32 {
        let mut sum = vdupq_n_f32(0.0);
        for (w, imp) in w.as_chunks::<4>().0.iter().zip(imp.as_chunks::<4>().0) {
            let w = load_f32(w);
            sum = vfmaq_f32(sum, vmulq_f32(load_f32(imp), w), w);
        }
        vaddvq_f32(sum).sqrt()
    }

    /// The multiples of a ratio, rounded to binary32 and binary16.
    #[inline]
    fn round(ratio: f64) -> [u16; 32] {
        let mut words = [0u16; 32];
        for (m, to) in PADDED.as_chunks::<4>().0.iter().zip(words.as_chunks_mut::<4>().0) {
            // SAFETY: two loads of 2 values, and a store of 4 words.
            unsafe {
                let a = vmulq_n_f64(vld1q_f64(m.as_ptr()), ratio);
                let b = vmulq_n_f64(vld1q_f64(m.as_ptr().add(2)), ratio);
                vst1_u16(to.as_mut_ptr(), to_halves(vcvt_high_f32_f64(vcvt_f32_f64(a), b)));
            }
        }
        words
    }

    /// Lanes within the limit of the least.
    #[inline]
    fn near(norms: &[f32], weight: f32) -> u128 {
        let runs = norms.as_chunks::<4>().0;
        let mut least = vdupq_n_f32(f32::INFINITY);
        for run in runs {
            least = vminnmq_f32(least, load_f32(run));
        }
        let limit = vdupq_n_f32(limit_of(vminnmvq_f32(least), weight));
        let mut lanes = 0;
        for (i, run) in runs.iter().enumerate() {
            lanes |= u128::from(mask(vcleq_f32(load_f32(run), limit))) << (4 * i);
        }
        lanes
    }

    /// `|s| * N` of runs of 16 scales; returns the least `N`.
    #[inline]
    fn norms_of_all<const G: usize, const WEIGHTED: bool>(
        magnitude: &[f32; G],
        limits: &[f32; G],
        imp: &[f32; G],
        words: &[u16],
        out: &mut [f32],
    ) -> f32 {
        let mut least = f32::INFINITY;
        // Four vectors together: their chains of additions overlap.
        for (words, out) in words.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
            least = least.min(norms_of::<G, WEIGHTED>(magnitude, limits, imp, words, out));
        }
        least
    }

    #[inline]
    fn norms_of<const G: usize, const WEIGHTED: bool>(
        magnitude: &[f32; G],
        limits: &[f32; G],
        imp: &[f32; G],
        words: &[u16; 16],
        out: &mut [f32; 16],
    ) -> f32 {
        const V: usize = 4;
        let mut scale = [vdupq_n_f32(0.0); V];
        let mut inv = [vdupq_n_f32(0.0); V];
        let mut sum = [vdupq_n_f32(0.0); V];
        for v in 0..V {
            // SAFETY: a load of 4 words.
            let h = unsafe { vld1_u16(words[4 * v..4 * v + 4].as_ptr()) };
            scale[v] = vabsq_f32(from_halves(h));
            inv[v] = vdivq_f32(vdupq_n_f32(1.0), scale[v]);
        }
        for i in 0..G {
            let limit = vdupq_n_f32(limits[i]);
            for v in 0..V {
                let u = vmulq_n_f32(inv[v], magnitude[i]);
                // u minus its nearest integer, ties to even; beyond the limit, u minus the limit is larger.
                let near = vsubq_f32(u, vrndnq_f32(u));
                let d = vmaxnmq_f32(near, vsubq_f32(u, limit));
                let weighted = if WEIGHTED { vmulq_n_f32(d, imp[i]) } else { d };
                sum[v] = vfmaq_f32(sum[v], weighted, d);
            }
        }
        let mut least = vdupq_n_f32(f32::INFINITY);
        for (v, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let n = vsqrtq_f32(sum[v]);
            least = vminnmq_f32(least, n);
            store(out, vmulq_f32(scale[v], n));
        }
        vminnmvq_f32(least)
    }

    /// Codes of 4 values as integral binary32 values.
    #[inline]
    fn code(s: &GroupedScheme, w: float32x4_t, inv: f32) -> float32x4_t {
        let q = vrndnq_f32(vmulq_n_f32(w, inv));
        vminq_f32(vmaxq_f32(q, vdupq_n_f32(f32::from(s.code_min))), vdupq_n_f32(f32::from(s.code_max)))
    }

    /// Value of a scale word.
    #[inline]
    fn value(word: u16) -> f32 {
        vgetq_lane_f32::<0>(halves(word))
    }

    /// Stores the codes of a scale.
    #[inline]
    fn codes_of<const G: usize>(s: &GroupedScheme, w: &[f32; G], word: u16, codes: &mut [i8; G]) {
        let inv = 1.0 / value(word);
        for (w, to) in w.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
            let w = w.as_chunks::<4>().0;
            let q = [0, 1].map(|h| vmovn_s32(vcvtnq_s32_f32(code(s, load_f32(&w[h]), inv))));
            // SAFETY: a store of 8 bytes.
            unsafe { vst1_s8(to.as_mut_ptr(), vmovn_s16(vcombine_s16(q[0], q[1]))) };
        }
    }

    /// Eight binary32 values in binary64, in order.
    #[inline]
    fn wide(low: float32x4_t, high: float32x4_t) -> [float64x2_t; 4] {
        [
            vcvt_f64_f32(vget_low_f32(low)),
            vcvt_high_f64_f32(low),
            vcvt_f64_f32(vget_low_f32(high)),
            vcvt_high_f64_f32(high),
        ]
    }

    #[inline]
    fn eight(v: &[f32; 8]) -> [float32x4_t; 2] {
        let v = v.as_chunks::<4>().0;
        [load_f32(&v[0]), load_f32(&v[1])]
    }

    /// The eight partial sums combined in the written order.
    #[inline]
    fn combine(p: [float64x2_t; 4]) -> f64 {
        // (0+4, 1+5) and (2+6, 3+7), then (04+26, 15+37), then their sum.
        let two = vaddq_f64(vaddq_f64(p[0], p[2]), vaddq_f64(p[1], p[3]));
        vgetq_lane_f64::<0>(two) + vgetq_lane_f64::<1>(two)
    }

    /// Error of a scale with its own codes.
    #[inline]
    fn error<const G: usize, const WEIGHTED: bool>(
        s: &GroupedScheme,
        w: &[f32; G],
        imp: &[f32; G],
        word: u16,
    ) -> f64 {
        let scale = value(word);
        let inv = 1.0 / scale;
        let scale = f64::from(scale);
        let mut sum = [vdupq_n_f64(0.0); 4];
        for (w, imp) in w.as_chunks::<8>().0.iter().zip(imp.as_chunks::<8>().0) {
            let ([w0, w1], [i0, i1]) = (eight(w), eight(imp));
            let (q, imp) = (wide(code(s, w0, inv), code(s, w1, inv)), wide(i0, i1));
            for (h, w) in wide(w0, w1).into_iter().enumerate() {
                let t = vsubq_f64(w, vmulq_n_f64(q[h], scale));
                let weighted = if WEIGHTED { vmulq_f64(imp[h], t) } else { t };
                sum[h] = vaddq_f64(sum[h], vmulq_f64(weighted, t));
            }
        }
        combine(sum)
    }

    /// Least-squares scale of codes.
    #[inline]
    fn fit<const G: usize, const WEIGHTED: bool>(w: &[f32; G], imp: &[f32; G], codes: &[i8; G]) -> f64 {
        let (mut num, mut den) = ([vdupq_n_f64(0.0); 4], [vdupq_n_f64(0.0); 4]);
        let chunks = w.as_chunks::<8>().0.iter().zip(imp.as_chunks::<8>().0);
        for ((w, imp), codes) in chunks.zip(codes.as_chunks::<8>().0) {
            // SAFETY: a load of 8 bytes.
            let q = vmovl_s8(unsafe { vld1_s8(codes.as_ptr()) });
            let q = wide(
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))),
                vcvtq_f32_s32(vmovl_high_s16(q)),
            );
            let ([w0, w1], [i0, i1]) = (eight(w), eight(imp));
            let imp = wide(i0, i1);
            for (h, w) in wide(w0, w1).into_iter().enumerate() {
                let (iw, iq) =
                    if WEIGHTED { (vmulq_f64(imp[h], w), vmulq_f64(imp[h], q[h])) } else { (w, q[h]) };
                num[h] = vaddq_f64(num[h], vmulq_f64(iw, q[h]));
                den[h] = vaddq_f64(den[h], vmulq_f64(iq, q[h]));
            }
        }
        let den = combine(den);
        if den == 0.0 { 0.0 } else { combine(num) / den }
    }
}
