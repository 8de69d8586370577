//! E4M3FN rows: the word is a binary16 word of the same value times 2^-8, NaN aside.

use std::arch::x86_64::*;

use super::prims::*;
use crate::arch::decoders::fp8_rows;
use crate::column16::rows;
use crate::isa::avx2_entry;

fp8_rows!(avx2_entry);

/// Decodes 64 codes, unless one of them is NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn run(bytes: &[u8; 64], factor: f32, r: usize, out: &mut impl Runs) -> bool {
    let (magnitude, keep) = (_mm256_set1_epi8(0x7f), _mm_set1_epi16(0xbf80u16.cast_signed()));
    for bytes in bytes.as_chunks::<32>().0 {
        let nan = _mm256_cmpeq_epi8(_mm256_and_si256(load32(bytes), magnitude), magnitude);
        if _mm256_testz_si256(nan, nan) == 0 {
            return false;
        }
    }
    let (factor, quarters) = (_mm256_set1_ps(factor), bytes.as_chunks::<8>().0);
    for i in 0..4 {
        // Sign to bit 15, exponent and fraction to bits 13..7; bit 14 gets a copy of the sign and is cleared.
        let eight = |c| {
            let word = _mm_and_si128(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(load8(c))), keep);
            _mm256_mul_ps(_mm256_cvtph_ps(word), factor)
        };
        out.put(r, i, [eight(&quarters[2 * i]), eight(&quarters[2 * i + 1])]);
    }
    true
}

/// Decodes 256 codes of R rows, unless one of them is NaN: nothing is put then.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn unit<const R: usize>(codes: [&[u8; 256]; R], factors: [f32; R], out: &mut impl Runs) -> bool {
    // NaNs are the codes whose sign bit changes when one is added.
    let mut changed = _mm256_setzero_si256();
    for codes in codes {
        for bytes in codes.as_chunks::<32>().0 {
            let bytes = load32(bytes);
            let next = _mm256_add_epi8(bytes, _mm256_set1_epi8(1));
            changed = _mm256_or_si256(changed, _mm256_xor_si256(bytes, next));
        }
    }
    if _mm256_movemask_epi8(changed) != 0 {
        return false;
    }
    let keep = _mm_set1_epi16(0xbf80u16.cast_signed());
    for i in 0..16 {
        rows!(R, r, {
            let (codes, factor) = (codes[r], _mm256_set1_ps(factors[r]));
            // As in `run`.
            let eight = |c| {
                let word = _mm_and_si128(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(load8(c))), keep);
                _mm256_mul_ps(_mm256_cvtph_ps(word), factor)
            };
            out.put(r, i, [eight(at(codes, 16 * i)), eight(at(codes, 16 * i + 8))]);
        });
    }
    true
}
