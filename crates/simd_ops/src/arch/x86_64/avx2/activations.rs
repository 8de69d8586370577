//! Rounding to 16 bits, activations to `q8_1`, and errors.

use std::arch::x86_64::*;

use ninfer_formats::codec::Half;

use super::prims::load_f32;
use crate::isa::avx2_entry;
use crate::q8_1::{BLOCK, Q8ColumnMut, quantize_blocks};
use crate::scalar::{self, errors::ErrorLanes};

avx2_entry! {
    /// See [`crate::kernels::NarrowFn`].
    pub(crate) fn narrow(half: Half, values: &[f32], words: &mut [u16]) -> bool {
        let (runs, tail) = values.as_chunks::<8>();
        let (out, out_tail) = words.as_chunks_mut::<8>();
        let mut any = _mm_setzero_si128();
        let magnitude = _mm_set1_epi16(0x7fff);
        for (x, out) in runs.iter().zip(out) {
            let (w, infinity) = match half {
                Half::Binary16 => (binary16(x), _mm_set1_epi16(0x7c00)),
                Half::Bfloat16 => (bfloat16(x), _mm_set1_epi16(0x7f80)),
            };
            any = _mm_or_si128(any, _mm_cmpeq_epi16(_mm_and_si128(w, magnitude), infinity));
            // SAFETY: writes the 16 bytes of `out`; the instruction needs no alignment.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), w) };
        }
        let in_tail = scalar::narrow(half, tail, out_tail);
        in_tail || _mm_testz_si128(any, any) == 0
    }

    /// See [`crate::kernels::QuantizeFn`].
    pub(crate) fn quantize(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
        let stored = |d: f32, sum: f32| {
            let words = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_setr_ps(d, sum, 0.0, 0.0));
            let both = _mm_cvtsi128_si32(words).cast_unsigned();
            ([both as u16, (both >> 16) as u16], _mm_cvtss_f32(_mm_cvtph_ps(words)))
        };
        // Closures of this function are compiled for its features; the bare functions would not be.
        let codes = |x: &[f32; BLOCK], id: f32, codes: &mut [i8; BLOCK]| block(x, id, codes);
        quantize_blocks(x, out, |x: &[f32; BLOCK]| magnitude(x), codes, stored)
    }

    /// See [`crate::kernels::ErrorsFn`]: the portable source, compiled for this token.
    pub(crate) fn errors(x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes) {
        scalar::errors::errors(x, y, weights, sums);
    }
}

/// The largest magnitude as a word; a NaN or an infinity is above all others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn magnitude(x: &[f32; BLOCK]) -> u32 {
    let x = x.as_chunks::<8>().0;
    let at = |i: usize| _mm256_castps_si256(load_f32(&x[i]));
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let word = |i: usize| _mm256_and_si256(at(i), mask);
    let eight = _mm256_max_epu32(_mm256_max_epu32(word(0), word(1)), _mm256_max_epu32(word(2), word(3)));
    let four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    let two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<1>(two))).cast_unsigned()
}

/// The codes of a block, and the sums of its halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block(x: &[f32; BLOCK], id: f32, codes: &mut [i8; BLOCK]) -> [i16; 2] {
    let x = x.as_chunks::<8>().0;
    let (id, half) = (_mm256_set1_ps(id), _mm256_set1_ps(0.5));
    let round = |i: usize| {
        let v = _mm256_mul_ps(load_f32(&x[i]), id);
        let whole = _mm256_cvttps_epi32(v);
        // Exact: |v| is below 127.5.
        let rest = _mm256_sub_ps(v, _mm256_cvtepi32_ps(whole));
        let up = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(rest, half));
        let down =
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(_mm256_sub_ps(_mm256_setzero_ps(), rest), half));
        _mm256_add_epi32(_mm256_sub_epi32(whole, up), down)
    };
    let low = _mm256_packs_epi32(round(0), round(1));
    let high = _mm256_packs_epi32(round(2), round(3));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    // SAFETY: writes the 32 codes.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes) };
    // Sums of eight bytes moved to 0..=255.
    let moved = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    let eights = _mm256_sad_epu8(moved, _mm256_setzero_si256());
    let sums = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
    let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums));
    [(low - 16 * 128) as i16, (high - 16 * 128) as i16]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn binary16(x: &[f32; 8]) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_f32(x))
}

/// By integer arithmetic: the conversion instruction of some processors flushes subnormal numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bfloat16(x: &[f32; 8]) -> __m128i {
    let x = load_f32(x);
    let bits = _mm256_castps_si256(x);
    let top = _mm256_srli_epi32::<16>(bits);
    let even = _mm256_add_epi32(_mm256_and_si256(top, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, even));
    let quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
    let word = _mm256_blendv_epi8(rounded, quiet, nan);
    _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256::<1>(word))
}
