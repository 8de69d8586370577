//! A16 products with one column: the decoders' values go into sums instead of memory.

use std::arch::x86_64::*;

use super::prims::*;
use super::{fp8_row, gguf_iq, gguf_k, gguf_legacy, grouped, nvfp4};
use crate::column16::{columns, filled};
use crate::isa::avx512_entry;

/// The accumulators of an element.
pub(in crate::arch::x86_64) type Acc = __m512;

/// Rows taken side by side.
pub(in crate::arch::x86_64) const ROWS: usize = 4;

/// Takes the products with a run of activations.
pub(in crate::arch::x86_64) struct Sum<'a> {
    pub x: &'a [f32],
    pub acc: [Acc; ROWS],
}

impl Runs for Sum<'_> {
    #[inline(always)]
    fn put(&mut self, r: usize, i: usize, v: __m512) {
        let x = &self.x.as_chunks::<16>().0[i];
        // SAFETY: callers are compiled for this token, so the machine has the instructions.
        self.acc[r] = unsafe { _mm512_fmadd_ps(v, load_f32(x), self.acc[r]) };
    }
}

columns! {
    avx512_entry;
    Q8_0 q8_0: gguf_legacy::q8_0, 34 -> 32;
    Q4_0 q4_0: gguf_legacy::q4_0, 18 -> 32;
    Q5_0 q5_0: gguf_legacy::q5_0, 22 -> 32;
    Q2_0 q2_0: gguf_legacy::q2_0, 18 -> 64;
    Iq4Nl iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    Q2K q2_k: gguf_k::q2_k, 84 -> 256;
    Q3K q3_k: gguf_k::q3_k, 110 -> 256;
    Q4K q4_k: gguf_k::q4_k, 144 -> 256;
    Q5K q5_k: gguf_k::q5_k, 176 -> 256;
    Q6K q6_k: gguf_k::q6_k, 210 -> 256;
    Iq4Xs iq4_xs: gguf_k::iq4_xs, 136 -> 256;
    Iq2Xxs iq2_xxs: gguf_iq::iq2_xxs, 66 -> 256;
    Iq2Xs iq2_xs: gguf_iq::iq2_xs, 74 -> 256;
    Iq2S iq2_s: gguf_iq::iq2_s, 82 -> 256;
    Iq3Xxs iq3_xxs: gguf_iq::iq3_xxs, 98 -> 256;
    Iq3S iq3_s: gguf_iq::iq3_s, 110 -> 256;
    Iq1S iq1_s: gguf_iq::iq1_s, 50 -> 256;
    Iq1M iq1_m: gguf_iq::iq1_m, 56 -> 256;
}

avx512_entry! {
    #[inline]
    pub(in crate::arch::x86_64) fn zero() -> Acc {
        _mm512_setzero_ps()
    }

    /// Sixteen bfloat16 or binary32 words.
    #[inline]
    fn words<const BYTES: usize>(bytes: &[u8]) -> __m512 {
        if BYTES == 2 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load32(at(bytes, 0)))))
        } else {
            _mm512_castsi512_ps(load64(at(bytes, 0)))
        }
    }

    /// Up to eight binary16 scales of neighbouring groups, as many as there are.
    #[inline]
    pub(in crate::arch::x86_64) fn scales(words: &[u8], out: &mut [f32; 8]) {
        let Some(words) = words.first_chunk() else {
            for (out, word) in out.iter_mut().zip(words.as_chunks::<2>().0) {
                *out = _mm512_cvtss_f32(halves(u16::from_le_bytes(*word)));
            }
            return;
        };
        // SAFETY: writes the 32 bytes of `out`.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(load16(words))) };
    }

    /// Adds the products with the values `x`, which may be no whole vectors.
    pub(in crate::arch::x86_64) fn add_tail(weights: impl Iterator<Item = f32>, x: &[f32], acc: Acc) -> Acc {
        let mut acc = acc;
        filled(weights, x, |w, x| acc = _mm512_fmadd_ps(load_f32(w), load_f32(x), acc));
        acc
    }

    /// The sum of the accumulators, in the order of [`crate::order`].
    #[inline]
    pub(in crate::arch::x86_64) fn combine(acc: Acc) -> f32 {
        let a = _mm256_add_ps(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps::<1>(acc));
        let b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let c = _mm_add_ps(b, _mm_movehl_ps(b, b));
        _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps::<1>(c, c)))
    }
}
