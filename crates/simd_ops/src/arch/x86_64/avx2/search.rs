//! `grouped_search`: estimates of 8 scales at a time, errors in the specification's eight partial sums.

use std::arch::x86_64::*;

use super::encode::{RNE, load, magnitudes, pack, scales};
use crate::arch::encoders::grouped_search;
use crate::isa::avx2_entry;
use crate::search::{PADDED, limit_of};

grouped_search!(avx2_entry);

avx2_entry! {
    /// Packs the codes of a unit.
    #[inline]
    fn pack_codes<const BITS: u8>(codes: &[i8; UNIT], base: &mut [u8], high: &mut [u8]) {
        // SAFETY: two loads of 32 bytes each.
        let q = unsafe {
            [_mm256_loadu_si256(codes.as_ptr().cast()), _mm256_loadu_si256(codes.as_ptr().add(32).cast())]
        };
        pack::<BITS>(q, base, high);
    }

    /// Magnitudes of eight values.
    #[inline]
    fn abs(v: __m256) -> __m256 {
        _mm256_andnot_ps(_mm256_set1_ps(-0.0), v)
    }

    /// Whether the first value of largest magnitude is negative.
    #[inline]
    pub(super) fn extreme_negative<const G: usize>(w: &[f32; G], amax: f32) -> bool {
        let (mut at, mut negative) = (0u64, 0u64);
        for (i, v) in w.as_chunks::<8>().0.iter().enumerate() {
            let v = load(v);
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(abs(v), _mm256_set1_ps(amax));
            at |= (_mm256_movemask_ps(equal) as u64) << (8 * i);
            negative |= (_mm256_movemask_ps(v) as u64) << (8 * i);
        }
        negative & at & at.wrapping_neg() != 0
    }

    /// `sqrt(sum imp * w^2)` in binary32.
    #[inline]
    fn weight<const G: usize>(w: &[f32; G], imp: &[f32; G]) -> f32 {
        let mut sum = _mm256_setzero_ps();
        for (w, imp) in w.as_chunks::<8>().0.iter().zip(imp.as_chunks::<8>().0) {
            let w = load(w);
            sum = _mm256_fmadd_ps(_mm256_mul_ps(load(imp), w), w, sum);
        }
        let mut lanes = [0.0f32; 8];
        // SAFETY: a store of 8 values.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes.iter().sum::<f32>().sqrt()
    }

    /// The multiples of a ratio, rounded to binary32 and binary16.
    #[inline]
    fn round(ratio: f64) -> [u16; 32] {
        let ratio = _mm256_set1_pd(ratio);
        let mut words = [0u16; 32];
        for (m, to) in PADDED.as_chunks::<8>().0.iter().zip(words.as_chunks_mut::<8>().0) {
            // SAFETY: two loads of 4 values, and a store of 8 words.
            unsafe {
                let a = _mm256_mul_pd(ratio, _mm256_loadu_pd(m.as_ptr()));
                let b = _mm256_mul_pd(ratio, _mm256_loadu_pd(m.as_ptr().add(4)));
                let both = _mm256_set_m128(_mm256_cvtpd_ps(b), _mm256_cvtpd_ps(a));
                _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(both));
            }
        }
        words
    }

    /// Least of eight values.
    #[inline]
    fn smallest(v: __m256) -> f32 {
        let v = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_min_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_min_ps(v, _mm_movehdup_ps(v)))
    }

    /// Lanes within the limit of the least.
    #[inline]
    fn near(norms: &[f32], weight: f32) -> u128 {
        let runs = norms.as_chunks::<8>().0;
        let mut least = _mm256_set1_ps(f32::INFINITY);
        for run in runs {
            least = _mm256_min_ps(least, load(run));
        }
        let limit = _mm256_set1_ps(limit_of(smallest(least), weight));
        let mut lanes = 0;
        for (i, run) in runs.iter().enumerate() {
            let below = _mm256_cmp_ps::<_CMP_LE_OQ>(load(run), limit);
            lanes |= (_mm256_movemask_ps(below) as u128) << (8 * i);
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
        let (words, out) = (words.as_chunks::<8>().0, out.as_chunks_mut::<8>().0);
        let mut at = 0;
        // Four vectors together: their chains of additions overlap, and more would not fit the registers.
        while at < words.len() {
            let run = match words.len() - at {
                2 => norms_of::<G, 2, WEIGHTED>(magnitude, limits, imp, &words[at..], &mut out[at..]),
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
        words: &[[u16; 8]],
        out: &mut [[f32; 8]],
    ) -> f32 {
        let mut scale = [_mm256_setzero_ps(); V];
        let mut inv = [_mm256_setzero_ps(); V];
        let mut sum = [_mm256_setzero_ps(); V];
        for v in 0..V {
            // SAFETY: a load of 8 words.
            let h = unsafe { _mm_loadu_si128(words[v].as_ptr().cast()) };
            scale[v] = abs(_mm256_cvtph_ps(h));
            inv[v] = _mm256_div_ps(_mm256_set1_ps(1.0), scale[v]);
        }
        for i in 0..G {
            let (w, limit) = (_mm256_set1_ps(magnitude[i]), _mm256_set1_ps(limits[i]));
            let imp = _mm256_set1_ps(imp[i]);
            for v in 0..V {
                let u = _mm256_mul_ps(w, inv[v]);
                // u minus its nearest integer, ties to even; beyond the limit, u minus the limit is larger.
                let near = _mm256_sub_ps(u, _mm256_round_ps::<RNE>(u));
                let d = _mm256_max_ps(near, _mm256_sub_ps(u, limit));
                let weighted = if WEIGHTED { _mm256_mul_ps(imp, d) } else { d };
                sum[v] = _mm256_fmadd_ps(weighted, d, sum[v]);
            }
        }
        let mut least = _mm256_set1_ps(f32::INFINITY);
        for v in 0..V {
            let n = _mm256_sqrt_ps(sum[v]);
            least = _mm256_min_ps(least, n);
            // SAFETY: a store of 8 values.
            unsafe { _mm256_storeu_ps(out[v].as_mut_ptr(), _mm256_mul_ps(scale[v], n)) };
        }
        smallest(least)
    }

    /// Codes of 8 values as integral binary32 values.
    #[inline]
    fn code(s: &GroupedScheme, w: __m256, inv: __m256) -> __m256 {
        let q = _mm256_round_ps::<RNE>(_mm256_mul_ps(w, inv));
        _mm256_min_ps(
            _mm256_max_ps(q, _mm256_set1_ps(f32::from(s.code_min))),
            _mm256_set1_ps(f32::from(s.code_max)),
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
        let inv = _mm256_set1_ps(1.0 / value(word));
        for (w, to) in w.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
            let q = _mm256_cvtps_epi32(code(s, load(w), inv));
            let q = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
            let q = _mm_packs_epi16(q, q);
            // SAFETY: a store of 8 bytes.
            unsafe { _mm_storel_epi64(to.as_mut_ptr().cast(), q) };
        }
    }

    /// Both halves of 8 binary32 values in binary64, in order.
    #[inline]
    fn wide(v: __m256) -> [__m256d; 2] {
        [_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v))]
    }

    /// The eight partial sums combined in the written order.
    #[inline]
    fn combine(p: [__m256d; 2]) -> f64 {
        // (0+4, 1+5, 2+6, 3+7), then (04+26, 15+37), then their sum.
        let four = _mm256_add_pd(p[0], p[1]);
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
        let inv = _mm256_set1_ps(1.0 / scale);
        let scale = _mm256_set1_pd(f64::from(scale));
        let mut sum = [_mm256_setzero_pd(); 2];
        for (w, imp) in w.as_chunks::<8>().0.iter().zip(imp.as_chunks::<8>().0) {
            let w = load(w);
            let (q, imp) = (wide(code(s, w, inv)), wide(load(imp)));
            for (h, w) in wide(w).into_iter().enumerate() {
                let t = _mm256_sub_pd(w, _mm256_mul_pd(scale, q[h]));
                let weighted = if WEIGHTED { _mm256_mul_pd(imp[h], t) } else { t };
                sum[h] = _mm256_add_pd(sum[h], _mm256_mul_pd(weighted, t));
            }
        }
        combine(sum)
    }

    /// Least-squares scale of codes.
    #[inline]
    fn fit<const G: usize, const WEIGHTED: bool>(w: &[f32; G], imp: &[f32; G], codes: &[i8; G]) -> f64 {
        let (mut num, mut den) = ([_mm256_setzero_pd(); 2], [_mm256_setzero_pd(); 2]);
        let chunks = w.as_chunks::<8>().0.iter().zip(imp.as_chunks::<8>().0);
        for ((w, imp), codes) in chunks.zip(codes.as_chunks::<8>().0) {
            // SAFETY: a load of 8 bytes.
            let q = unsafe { _mm_loadl_epi64(codes.as_ptr().cast()) };
            let q = wide(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
            let imp = wide(load(imp));
            for (h, w) in wide(load(w)).into_iter().enumerate() {
                let (iw, iq) = if WEIGHTED {
                    (_mm256_mul_pd(imp[h], w), _mm256_mul_pd(imp[h], q[h]))
                } else {
                    (w, q[h])
                };
                num[h] = _mm256_add_pd(num[h], _mm256_mul_pd(iw, q[h]));
                den[h] = _mm256_add_pd(den[h], _mm256_mul_pd(iq, q[h]));
            }
        }
        let den = combine(den);
        if den == 0.0 { 0.0 } else { combine(num) / den }
    }
}
