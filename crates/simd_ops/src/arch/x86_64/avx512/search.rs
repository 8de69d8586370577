//! `grouped_search`: estimates of 16 scales at a time, errors in the specification's eight partial sums.

use std::arch::x86_64::*;

use super::encode::{magnitudes, pack, scales};
use crate::arch::encoders::grouped_search;
use crate::isa::avx512_entry;
use crate::search::{PADDED, limit_of};

const RNE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

grouped_search!(avx512_entry);

avx512_entry! {
    /// Packs the codes of a unit.
    #[inline]
    fn pack_codes<const BITS: u8>(codes: &[i8; UNIT], base: &mut [u8], high: &mut [u8]) {
        // SAFETY: a load of 64 bytes.
        let q = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
        pack::<BITS>(q, base, high);
    }

    /// Whether the first value of largest magnitude is negative.
    #[inline]
    fn extreme_negative<const G: usize>(w: &[f32; G], amax: f32) -> bool {
        let (mut at, mut negative) = (0u64, 0u64);
        for (i, v) in w.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: a load of 16 values.
            let v = unsafe { _mm512_loadu_ps(v.as_ptr()) };
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(_mm512_abs_ps(v), _mm512_set1_ps(amax));
            at |= u64::from(equal) << (16 * i);
            negative |= u64::from(_mm512_movepi32_mask(_mm512_castps_si512(v))) << (16 * i);
        }
        negative & at & at.wrapping_neg() != 0
    }

    /// `sqrt(sum imp * w^2)` in binary32.
    #[inline]
    fn weight<const G: usize>(w: &[f32; G], imp: &[f32; G]) -> f32 {
        let mut sum = _mm512_setzero_ps();
        for (w, imp) in w.as_chunks::<16>().0.iter().zip(imp.as_chunks::<16>().0) {
            // SAFETY: loads of 16 values each.
            let (w, imp) = unsafe { (_mm512_loadu_ps(w.as_ptr()), _mm512_loadu_ps(imp.as_ptr())) };
            sum = _mm512_fmadd_ps(_mm512_mul_ps(imp, w), w, sum);
        }
        _mm512_reduce_add_ps(sum).sqrt()
    }

    /// The multiples of a ratio, rounded to binary32 and binary16.
    #[inline]
    fn round(ratio: f64) -> [u16; 32] {
        let ratio = _mm512_set1_pd(ratio);
        let mut words = [0u16; 32];
        for (m, to) in PADDED.as_chunks::<16>().0.iter().zip(words.as_chunks_mut::<16>().0) {
            // SAFETY: two loads of 8 values, and a store of 16 words.
            unsafe {
                let a = _mm512_mul_pd(ratio, _mm512_loadu_pd(m.as_ptr()));
                let b = _mm512_mul_pd(ratio, _mm512_loadu_pd(m.as_ptr().add(8)));
                let both =
                    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)), _mm512_cvtpd_ps(b));
                _mm256_storeu_si256(
                    to.as_mut_ptr().cast(),
                    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(both),
                );
            }
        }
        words
    }

    /// Lanes within the limit of the least.
    #[inline]
    fn near(norms: &[f32], weight: f32) -> u128 {
        let runs = norms.as_chunks::<16>().0;
        let mut least = _mm512_set1_ps(f32::INFINITY);
        for run in runs {
            // SAFETY: a load of 16 values.
            least = _mm512_min_ps(least, unsafe { _mm512_loadu_ps(run.as_ptr()) });
        }
        let limit = _mm512_set1_ps(limit_of(_mm512_reduce_min_ps(least), weight));
        let mut lanes = 0;
        for (i, run) in runs.iter().enumerate() {
            // SAFETY: a load of 16 values.
            let run = unsafe { _mm512_loadu_ps(run.as_ptr()) };
            lanes |= u128::from(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(run, limit)) << (16 * i);
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
        let (words, out) = (words.as_chunks::<16>().0, out.as_chunks_mut::<16>().0);
        let mut at = 0;
        // As many runs together as there are: their chains of additions overlap.
        while at < words.len() {
            let run = match words.len() - at {
                1 => norms_of::<G, 1, WEIGHTED>(magnitude, limits, imp, &words[at..], &mut out[at..]),
                2 => norms_of::<G, 2, WEIGHTED>(magnitude, limits, imp, &words[at..], &mut out[at..]),
                3 => norms_of::<G, 3, WEIGHTED>(magnitude, limits, imp, &words[at..], &mut out[at..]),
                _ => norms_of::<G, 4, WEIGHTED>(magnitude, limits, imp, &words[at..], &mut out[at..]),
            };
            least = least.min(run);
            at += 4;
        }
        least
    }

    #[inline]
    fn norms_of<const G: usize, const V: usize, const WEIGHTED: bool>(
        magnitude: &[f32; G],
        limits: &[f32; G],
        imp: &[f32; G],
        words: &[[u16; 16]],
        out: &mut [[f32; 16]],
    ) -> f32 {
        let mut scale = [_mm512_setzero_ps(); V];
        let mut inv = [_mm512_setzero_ps(); V];
        let mut sum = [_mm512_setzero_ps(); V];
        for v in 0..V {
            // SAFETY: a load of 16 words.
            let h = unsafe { _mm256_loadu_si256(words[v].as_ptr().cast()) };
            scale[v] = _mm512_abs_ps(_mm512_cvtph_ps(h));
            inv[v] = _mm512_div_ps(_mm512_set1_ps(1.0), scale[v]);
        }
        for i in 0..G {
            let (w, limit) = (_mm512_set1_ps(magnitude[i]), _mm512_set1_ps(limits[i]));
            let imp = _mm512_set1_ps(imp[i]);
            for v in 0..V {
                let u = _mm512_mul_ps(w, inv[v]);
                // u minus its nearest integer, ties to even; beyond the limit, u minus the limit is larger.
                let d = _mm512_max_ps(_mm512_reduce_ps::<0>(u), _mm512_sub_ps(u, limit));
                let weighted = if WEIGHTED { _mm512_mul_ps(imp, d) } else { d };
                sum[v] = _mm512_fmadd_ps(weighted, d, sum[v]);
            }
        }
        let mut least = _mm512_set1_ps(f32::INFINITY);
        for v in 0..V {
            let n = _mm512_sqrt_ps(sum[v]);
            least = _mm512_min_ps(least, n);
            // SAFETY: a store of 16 values.
            unsafe { _mm512_storeu_ps(out[v].as_mut_ptr(), _mm512_mul_ps(scale[v], n)) };
        }
        _mm512_reduce_min_ps(least)
    }

    /// Codes of 16 values as integral binary32 values.
    #[inline]
    fn code(s: &GroupedScheme, w: __m512, inv: __m512) -> __m512 {
        let q = _mm512_roundscale_ps::<RNE>(_mm512_mul_ps(w, inv));
        _mm512_min_ps(
            _mm512_max_ps(q, _mm512_set1_ps(f32::from(s.code_min))),
            _mm512_set1_ps(f32::from(s.code_max)),
        )
    }

    /// Value of a scale word.
    #[inline]
    fn value(word: u16) -> f32 {
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(word))))
    }

    /// Stores the codes of a scale.
    #[inline]
    fn codes_of<const G: usize>(s: &GroupedScheme, w: &[f32; G], word: u16, codes: &mut [i8; G]) {
        let inv = _mm512_set1_ps(1.0 / value(word));
        for (w, to) in w.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0) {
            // SAFETY: a load of 16 values and a store of 16 bytes.
            unsafe {
                let q = _mm512_cvtps_epi32(code(s, _mm512_loadu_ps(w.as_ptr()), inv));
                _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q));
            }
        }
    }

    /// Both halves of 16 binary32 values in binary64, in order.
    #[inline]
    fn wide(v: __m512) -> [__m512d; 2] {
        [_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(v))]
    }

    /// The eight partial sums combined in the written order.
    #[inline]
    fn combine(p: __m512d) -> f64 {
        // (0+4, 1+5, 2+6, 3+7), then (04+26, 15+37), then their sum.
        let four = _mm256_add_pd(_mm512_castpd512_pd256(p), _mm512_extractf64x4_pd::<1>(p));
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
        _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two))
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
        let inv = _mm512_set1_ps(1.0 / scale);
        let scale = _mm512_set1_pd(f64::from(scale));
        let mut sum = _mm512_setzero_pd();
        for (w, imp) in w.as_chunks::<16>().0.iter().zip(imp.as_chunks::<16>().0) {
            // SAFETY: loads of 16 values each.
            let (w, imp) = unsafe { (_mm512_loadu_ps(w.as_ptr()), _mm512_loadu_ps(imp.as_ptr())) };
            let (q, imp) = (wide(code(s, w, inv)), wide(imp));
            for (h, w) in wide(w).into_iter().enumerate() {
                let t = _mm512_sub_pd(w, _mm512_mul_pd(scale, q[h]));
                let weighted = if WEIGHTED { _mm512_mul_pd(imp[h], t) } else { t };
                sum = _mm512_add_pd(sum, _mm512_mul_pd(weighted, t));
            }
        }
        combine(sum)
    }

    /// Least-squares scale of codes.
    #[inline]
    fn fit<const G: usize, const WEIGHTED: bool>(w: &[f32; G], imp: &[f32; G], codes: &[i8; G]) -> f64 {
        let (mut num, mut den) = (_mm512_setzero_pd(), _mm512_setzero_pd());
        let chunks = w.as_chunks::<16>().0.iter().zip(imp.as_chunks::<16>().0);
        for ((w, imp), codes) in chunks.zip(codes.as_chunks::<16>().0) {
            // SAFETY: loads of 16 values each.
            let (w, imp, q) = unsafe {
                (
                    _mm512_loadu_ps(w.as_ptr()),
                    _mm512_loadu_ps(imp.as_ptr()),
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.as_ptr().cast()))),
                )
            };
            let (q, imp) = (wide(q), wide(imp));
            for (h, w) in wide(w).into_iter().enumerate() {
                let (iw, iq) = if WEIGHTED {
                    (_mm512_mul_pd(imp[h], w), _mm512_mul_pd(imp[h], q[h]))
                } else {
                    (w, q[h])
                };
                num = _mm512_add_pd(num, _mm512_mul_pd(iw, q[h]));
                den = _mm512_add_pd(den, _mm512_mul_pd(iq, q[h]));
            }
        }
        let den = combine(den);
        if den == 0.0 { 0.0 } else { combine(num) / den }
    }
}
