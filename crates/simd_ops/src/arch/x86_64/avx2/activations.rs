//! Rounding to 16 bits, activations to `q8_1`, and errors.

use std::arch::x86_64::*;

use ninfer_formats::codec::Half;

use super::prims::load_f32;
use crate::isa::avx2_entry;
use crate::q8_1::{Q8ColumnMut, quantize_column};
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

    /// See [`crate::kernels::QuantizeFn`]: the portable source, compiled for this token.
    pub(crate) fn quantize(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
        quantize_column(x, out)
    }

    /// See [`crate::kernels::ErrorsFn`]: the portable source, compiled for this token.
    pub(crate) fn errors(x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes) {
        scalar::errors::errors(x, y, weights, sums);
    }
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
