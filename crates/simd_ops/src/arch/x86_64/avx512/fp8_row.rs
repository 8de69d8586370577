//! E4M3FN rows: the word is a binary16 word of the same value times 2^-8, NaN aside.

use std::arch::x86_64::*;

use super::prims::*;
use crate::arch::decoders::fp8_rows;
use crate::column16::rows;
use crate::isa::avx512_entry;

fp8_rows!(avx512_entry);

/// Decodes 64 codes, unless one of them is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn run(bytes: &[u8; 64], factor: f32, r: usize, out: &mut impl Runs) -> bool {
    let magnitude = _mm512_set1_epi8(0x7f);
    if _mm512_cmpeq_epi8_mask(_mm512_and_si512(load64(bytes), magnitude), magnitude) != 0 {
        return false;
    }
    let (keep, factor) = (_mm512_set1_epi16(0xbf80u16.cast_signed()), _mm512_set1_ps(factor));
    for (h, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
        // Sign to bit 15, exponent and fraction to bits 13..7; bit 14 gets a copy of the sign and is cleared.
        let words = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(load32(bytes)));
        let words = _mm512_and_si512(words, keep);
        let halves = [_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64::<1>(words)];
        for (i, words) in halves.into_iter().enumerate() {
            out.put(r, 2 * h + i, _mm512_mul_ps(_mm512_cvtph_ps(words), factor));
        }
    }
    true
}

/// Decodes 256 codes of R rows, unless one of them is NaN: nothing is put then.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn unit<const R: usize>(codes: [&[u8; 256]; R], factors: [f32; R], out: &mut impl Runs) -> bool {
    let keep = _mm512_set1_epi16(0xbf80u16.cast_signed());
    let mut words = [[[0u16; 32]; 8]; R];
    // NaNs are the codes whose sign bit changes when one is added.
    let mut changed = _mm512_setzero_si512();
    for (codes, words) in codes.iter().zip(&mut words) {
        for bytes in codes.as_chunks::<64>().0 {
            let bytes = load64(bytes);
            let next = _mm512_add_epi8(bytes, _mm512_set1_epi8(1));
            // changed | (bytes ^ next)
            changed = _mm512_ternarylogic_epi32::<0xf6>(changed, bytes, next);
        }
        for (bytes, words) in codes.as_chunks::<32>().0.iter().zip(words) {
            // As in `run`.
            let word = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(load32(bytes)));
            // SAFETY: writes 64 bytes of words.
            unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), _mm512_and_si512(word, keep)) };
        }
    }
    if _mm512_movepi8_mask(changed) != 0 {
        return false;
    }
    let (words, factors) = (kept(&words), kept(&factors));
    for i in 0..16 {
        rows!(R, r, {
            let words: &[u16; 16] = &words[r].as_flattened().as_chunks().0[i];
            // SAFETY: reads 32 bytes of words.
            let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
            out.put(r, i, _mm512_mul_ps(_mm512_cvtph_ps(words), _mm512_set1_ps(factors[r])));
        });
    }
    true
}
