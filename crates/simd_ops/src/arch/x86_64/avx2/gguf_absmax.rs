//! `gguf_absmax`: sixteen blocks of 32 values at a time. Longer vectors would gain little: reductions within a block and
//! the packing of its codes take most of the time.

use std::arch::x86_64::*;

use ninfer_formats::BlockKind;
use ninfer_formats::encoder::gguf_search::VALUES;

use super::encode::{load, narrow, scales, top_word};
use super::search::extreme_negative;
use crate::arch::encoders::BATCH;
use crate::isa::avx2_entry;

avx2_entry! {
    /// One row; false if it must be refused.
    pub(in crate::arch::x86_64) fn row(kind: BlockKind, x: &[f32], out: &mut [u8]) -> bool {
        match kind {
            BlockKind::Q8_0 => blocks::<8, 34>(x, out),
            BlockKind::Q4_0 => blocks::<4, 18>(x, out),
            BlockKind::Q5_0 => blocks::<5, 22>(x, out),
            _ => false,
        }
    }

    fn blocks<const BITS: u8, const BYTES: usize>(x: &[f32], out: &mut [u8]) -> bool {
        let low = -1i8 << (BITS - 1);
        // The code of a value of largest magnitude; 8 bits leave their lowest code out.
        let end = if BITS == 8 { 127.0 } else { -f32::from(low) };
        let (x, out) = (x.as_chunks::<VALUES>().0, out.as_chunks_mut::<BYTES>().0);
        assert_eq!(x.len(), out.len());
        for (x, out) in x.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut amax = [0u32; BATCH];
            for (amax, x) in amax.iter_mut().zip(x) {
                *amax = top_word(x);
            }
            let Some((mut words, mut inverses)) = scales(&amax, end) else { return false };
            for (i, (x, out)) in x.iter().zip(out).enumerate() {
                if BITS != 8 && words[i] != 0 && !extreme_negative(x, f32::from_bits(amax[i])) {
                    words[i] |= 0x8000;
                    inverses[i] = -inverses[i];
                }
                let inv = _mm256_set1_ps(inverses[i]);
                let x = x.as_chunks::<8>().0;
                // Nearest-even; products stay below 2^31, and bytes saturate.
                let q = narrow([
                    _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[0]), inv)),
                    _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[1]), inv)),
                    _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[2]), inv)),
                    _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[3]), inv)),
                ]);
                let (scale, rest) = out.split_at_mut(2);
                scale.copy_from_slice(&words[i].to_le_bytes());
                store::<BITS>(q, low, rest);
            }
        }
        true
    }

    /// Stores 32 codes as the bytes of a block after its scale.
    #[inline]
    fn store<const BITS: u8>(q: __m256i, low: i8, out: &mut [u8]) {
        if BITS == 8 {
            let out: &mut [u8; 32] = out.try_into().expect("32 code bytes");
            // SAFETY: a store of 32 bytes.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), q) };
            return;
        }
        let q = _mm256_min_epi8(_mm256_max_epi8(q, _mm256_set1_epi8(low)), _mm256_set1_epi8(-1 - low));
        let q = _mm256_sub_epi8(q, _mm256_set1_epi8(low));
        let (high, nibbles) = out.split_at_mut(if BITS == 5 { 4 } else { 0 });
        if BITS == 5 {
            high.copy_from_slice(&_mm256_movemask_epi8(_mm256_slli_epi16::<3>(q)).to_le_bytes());
        }
        // Value i and value i + 16 share a byte.
        let q = _mm256_and_si256(q, _mm256_set1_epi8(15));
        let upper = _mm_slli_epi16::<4>(_mm256_extracti128_si256::<1>(q));
        let nibbles: &mut [u8; 16] = nibbles.try_into().expect("16 code bytes");
        // SAFETY: a store of 16 bytes.
        unsafe {
            _mm_storeu_si128(nibbles.as_mut_ptr().cast(), _mm_or_si128(_mm256_castsi256_si128(q), upper));
        }
    }
}
