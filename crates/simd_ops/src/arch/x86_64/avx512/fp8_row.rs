//! E4M3FN rows: the word is a binary16 word of the same value times 2^-8, NaN aside.

use std::arch::x86_64::*;

use ninfer_formats::float::e4m3;

use super::prims::*;

/// Decodes codes times the row's multiplier.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn row(codes: &[u8], scale: f32, out: &mut [f32]) {
    let wide = scale * 256.0;
    // 256 * scale is exact unless it overflows; such a multiplier takes the portable way.
    if wide.is_infinite() && scale.is_finite() {
        return portable(codes, scale, out);
    }
    let factor = _mm512_set1_ps(wide);
    let (words, tail) = codes.as_chunks::<32>();
    let (runs, out_tail) = out.as_chunks_mut::<32>();
    let magnitude = _mm256_set1_epi8(0x7f);
    let keep = _mm256_set1_epi16(0xbf80u16.cast_signed());
    for (bytes, out) in words.iter().zip(runs) {
        let c = load32(bytes);
        if _mm256_cmpeq_epi8_mask(_mm256_and_si256(c, magnitude), magnitude) != 0 {
            portable(bytes, scale, out);
            continue;
        }
        for (i, c) in [_mm256_castsi256_si128(c), _mm256_extracti128_si256::<1>(c)].into_iter().enumerate() {
            // Sign to bit 15, exponent and fraction to bits 13..7; bit 14 gets a copy of the sign and is cleared.
            let word = _mm256_and_si256(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(c)), keep);
            store(run16(out, i), _mm512_mul_ps(_mm512_cvtph_ps(word), factor));
        }
    }
    portable(tail, scale, out_tail);
}

fn portable(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (o, &c) in out.iter_mut().zip(codes) {
        *o = e4m3::to_f32(c) * scale;
    }
}
