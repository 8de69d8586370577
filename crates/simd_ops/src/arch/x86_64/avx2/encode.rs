//! Encoders: `grouped_absmax` and `fp8_row_maxabs`, 64 columns at a time, and the packing of codes.
//!
//! The arithmetic is the method's own, operation by operation; see `ninfer_formats::encoder`.

use std::arch::x86_64::*;

use super::gguf_absmax::row as gguf_absmax_row;
use super::lanes::Wide;
use super::search;
use crate::arch::encoders::encoders;
use crate::isa::avx2_entry;

pub(super) const RNE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
const MAGNITUDE: i32 = 0x7fff_ffff;

/// Values that [`put_e4m3`] takes, and how many there are.
type Four = [__m256; 4];
const FP8: usize = 32;

encoders!(avx2_entry);

avx2_entry! {
    /// binary16 to binary32, exactly.
    fn widen(words: &[u16], out: &mut [f32]) {
        let (words, tail) = words.as_chunks::<8>();
        let (out, out_tail) = out.as_chunks_mut::<8>();
        for (o, w) in out.iter_mut().zip(words) {
            // SAFETY: a load of the 8 words of `w` and a store of the 8 values of `o`.
            unsafe {
                let v = _mm256_cvtph_ps(_mm_loadu_si128(w.as_ptr().cast()));
                _mm256_storeu_ps(o.as_mut_ptr(), v);
            }
        }
        for (o, &w) in out_tail.iter_mut().zip(tail) {
            *o = ninfer_formats::float::f16::to_f32(w);
        }
    }

    /// Eight values.
    #[inline]
    pub(super) fn load(x: &[f32; 8]) -> __m256 {
        // SAFETY: a load of the 8 values of `x`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    /// Four vectors of 8 integers to 32 bytes in order, saturated.
    #[inline]
    pub(super) fn narrow(c: [__m256i; 4]) -> __m256i {
        let q = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
        _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }

    /// Stores 64 codes, one a byte, as the base and high bytes of their groups.
    #[inline]
    pub(super) fn pack<const BITS: u8>(q: [__m256i; 2], base: &mut [u8], high: &mut [u8]) {
        if BITS == 8 {
            let base: &mut [u8; 64] = base.try_into().expect("64 base bytes");
            // SAFETY: two stores of 32 bytes each.
            unsafe {
                _mm256_storeu_si256(base.as_mut_ptr().cast(), q[0]);
                _mm256_storeu_si256(base.as_mut_ptr().add(32).cast(), q[1]);
            }
            return;
        }
        let base: &mut [u8; 32] = base.try_into().expect("32 base bytes");
        let pairs = q.map(|q| {
            let low = _mm256_and_si256(q, _mm256_set1_epi8(15));
            _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x1001))
        });
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(pairs[0], pairs[1]));
        // SAFETY: a store of 32 bytes.
        unsafe { _mm256_storeu_si256(base.as_mut_ptr().cast(), bytes) };
        if BITS == 5 {
            let mask = q.map(|q| _mm256_movemask_epi8(_mm256_slli_epi16::<3>(q)));
            high[..4].copy_from_slice(&mask[0].to_le_bytes());
            high[4..].copy_from_slice(&mask[1].to_le_bytes());
        } else if BITS == 6 {
            let quads = q.map(|q| {
                let two = _mm256_and_si256(_mm256_srli_epi16::<4>(q), _mm256_set1_epi8(3));
                let pairs = _mm256_maddubs_epi16(two, _mm256_set1_epi16(0x0401));
                _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0010_0001))
            });
            let words = _mm256_packs_epi32(quads[0], quads[1]);
            let bytes = _mm256_packus_epi16(words, words);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
            let high: &mut [u8; 16] = high.try_into().expect("16 high bytes");
            // SAFETY: a store of 16 bytes.
            unsafe { _mm_storeu_si128(high.as_mut_ptr().cast(), _mm256_castsi256_si128(bytes)) };
        }
    }

    /// Scale words and reciprocals of 16 groups by their largest magnitudes (binary32 words); zero for zero. `None`
    /// if a magnitude is not finite or its scale overflows.
    #[inline]
    pub(super) fn scales(amax: &[u32; BATCH], qmax: f32) -> Option<([u16; BATCH], [f32; BATCH])> {
        let (mut words, mut inverses) = ([0u16; BATCH], [0f32; BATCH]);
        let mut bad = 0;
        for half in 0..2 {
            // SAFETY: a load of 8 words.
            let a = unsafe { _mm256_loadu_si256(amax.as_ptr().add(8 * half).cast()) };
            bad |= _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f7f_ffff)));
            let zero = _mm256_cmpeq_epi32(a, _mm256_setzero_si256());
            let raw = _mm256_div_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(qmax));
            let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(raw);
            let zero16 = _mm_packs_epi32(_mm256_castsi256_si128(zero), _mm256_extracti128_si256::<1>(zero));
            let rescued = _mm_andnot_si128(zero16, _mm_cmpeq_epi16(h, _mm_setzero_si128()));
            let h = _mm_or_si128(h, _mm_and_si128(rescued, _mm_set1_epi16(1)));
            bad |= _mm_movemask_epi8(_mm_cmpeq_epi16(h, _mm_set1_epi16(0x7c00)));
            let inv = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_cvtph_ps(h));
            // SAFETY: stores of 8 words and 8 values.
            unsafe {
                _mm_storeu_si128(words.as_mut_ptr().add(8 * half).cast(), h);
                let inv = _mm256_andnot_ps(_mm256_castsi256_ps(zero), inv);
                _mm256_storeu_ps(inverses.as_mut_ptr().add(8 * half), inv);
            }
        }
        (bad == 0).then_some((words, inverses))
    }

    /// Largest of eight unsigned numbers.
    #[inline]
    fn largest(v: __m256i) -> u32 {
        let v = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_max_epu32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v))) as u32
    }

    /// Largest magnitude word of 32 values.
    #[inline]
    pub(super) fn top_word(x: &[f32; 32]) -> u32 {
        let mut top = _mm256_setzero_si256();
        for x in x.as_chunks::<8>().0 {
            let m = _mm256_and_si256(_mm256_castps_si256(load(x)), _mm256_set1_epi32(MAGNITUDE));
            top = _mm256_max_epu32(top, m);
        }
        largest(top)
    }

    /// Largest magnitude words of the groups of a unit (both equal if the group is 64 wide). What is not finite has
    /// larger words than what is.
    #[inline]
    pub(super) fn magnitudes<const BITS: u8>(x: &[f32; UNIT]) -> [u32; 2] {
        let mut halves = [_mm256_setzero_si256(); 2];
        for (half, x) in halves.iter_mut().zip(x.as_chunks::<32>().0) {
            for x in x.as_chunks::<8>().0 {
                let m = _mm256_and_si256(_mm256_castps_si256(load(x)), _mm256_set1_epi32(MAGNITUDE));
                *half = _mm256_max_epu32(*half, m);
            }
        }
        if BITS == 8 {
            halves.map(|h| largest(h))
        } else {
            [largest(_mm256_max_epu32(halves[0], halves[1])); 2]
        }
    }

    /// Codes of a unit for the reciprocals of its two halves, one a byte.
    #[inline]
    fn codes<const BITS: u8>(s: &GroupedScheme, x: &[f32; UNIT], inv: [f32; 2]) -> [__m256i; 2] {
        let mut out = [_mm256_setzero_si256(); 2];
        for ((out, x), inv) in out.iter_mut().zip(x.as_chunks::<32>().0).zip(inv) {
            let inv = _mm256_set1_ps(inv);
            let x = x.as_chunks::<8>().0;
            // Conversion rounds to nearest-even: the default mode, which the driver has set.
            let q = narrow([
                _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[0]), inv)),
                _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[1]), inv)),
                _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[2]), inv)),
                _mm256_cvtps_epi32(_mm256_mul_ps(load(&x[3]), inv)),
            ]);
            // Products stay below 2^31, and bytes saturate outside the intervals.
            let q = _mm256_max_epi8(q, _mm256_set1_epi8(s.code_min));
            *out = if BITS == 8 { q } else { _mm256_min_epi8(q, _mm256_set1_epi8(s.code_max)) };
        }
        out
    }

    /// E4M3FN words of 8 values, saturated at 448.
    ///
    /// Adding `2^(e+20)`, `e` the exponent or -6 if that is larger, rounds the magnitude to a multiple of `2^(e-3)`,
    /// nearest-even; the sum's fraction bits count the multiples.
    #[inline]
    fn e4m3(y: __m256) -> __m256i {
        let bits = _mm256_castps_si256(y);
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(MAGNITUDE));
        let magnitude = _mm256_min_epi32(magnitude, _mm256_set1_epi32(0x43e0_0000));
        let exponent = _mm256_and_si256(magnitude, _mm256_set1_epi32(0x7f80_0000));
        let exponent = _mm256_max_epi32(exponent, _mm256_set1_epi32(121 << 23));
        let big = _mm256_add_epi32(exponent, _mm256_set1_epi32(20 << 23));
        let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(big));
        let multiples = _mm256_sub_epi32(_mm256_castps_si256(sum), big);
        let first = _mm256_sub_epi32(_mm256_srli_epi32::<20>(exponent), _mm256_set1_epi32(121 << 3));
        let word = _mm256_add_epi32(multiples, first);
        let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), _mm256_set1_epi32(0x80));
        _mm256_or_si256(word, sign)
    }

    /// E4M3FN words of values times `inv`, in order.
    #[inline]
    fn put_e4m3(values: Four, inv: f32, out: &mut [u8; FP8]) {
        let inv = _mm256_set1_ps(inv);
        let c = values.map(|v| e4m3(_mm256_mul_ps(v, inv)));
        let q = _mm256_packus_epi16(_mm256_packus_epi32(c[0], c[1]), _mm256_packus_epi32(c[2], c[3]));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        // SAFETY: a store of 32 bytes.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_permutevar8x32_epi32(q, order)) };
    }

    /// Rounds binary32 to bfloat16 and expands it again.
    #[inline]
    fn through_bf16(v: __m256) -> __m256 {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(0xffff_0000u32 as i32)))
    }

    /// One row of `fp8_row_maxabs` from binary32; false if it must be refused.
    fn fp8_floats(kind: RowScale, x: &[f32], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<32>();
        let mut rest = [0.0f32; 32];
        rest[..tail.len()].copy_from_slice(tail);
        let mut max = [_mm256_setzero_si256(); 4];
        for chunk in chunks.iter().chain(std::iter::once(&rest)) {
            for (max, v) in max.iter_mut().zip(chunk.as_chunks::<8>().0) {
                let m = _mm256_and_si256(_mm256_castps_si256(load(v)), _mm256_set1_epi32(MAGNITUDE));
                *max = _mm256_max_epu32(*max, m);
            }
        }
        let max = _mm256_max_epu32(_mm256_max_epu32(max[0], max[1]), _mm256_max_epu32(max[2], max[3]));
        let max = f32::from_bits(largest(max));
        if !max.is_finite() {
            return false;
        }
        // Rounding keeps the order, so the largest bfloat16 is that of the largest value.
        fp8_codes(kind, ninfer_formats::float::bf16::from_f32(max), out, k, |i| {
            let v = chunks.get(i).unwrap_or(&rest).as_chunks::<8>().0;
            [
                through_bf16(load(&v[0])),
                through_bf16(load(&v[1])),
                through_bf16(load(&v[2])),
                through_bf16(load(&v[3])),
            ]
        })
    }

    /// One row of `fp8_row_maxabs` from bfloat16 words; false if it must be refused.
    fn fp8_words(kind: RowScale, x: &[u16], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<32>();
        let mut rest = [0u16; 32];
        rest[..tail.len()].copy_from_slice(tail);
        let halves = |c: &[u16; 32]| {
            // SAFETY: two loads of 16 words each.
            unsafe { [_mm256_loadu_si256(c.as_ptr().cast()), _mm256_loadu_si256(c.as_ptr().add(16).cast())] }
        };
        let mut max = [_mm256_setzero_si256(); 2];
        for chunk in chunks.iter().chain(std::iter::once(&rest)) {
            for (max, v) in max.iter_mut().zip(halves(chunk)) {
                *max = _mm256_max_epu16(*max, _mm256_and_si256(v, _mm256_set1_epi16(0x7fff)));
            }
        }
        let max = _mm256_max_epu16(max[0], max[1]);
        let odd = largest(_mm256_srli_epi32::<16>(max));
        let even = largest(_mm256_and_si256(max, _mm256_set1_epi32(0xffff)));
        fp8_codes(kind, odd.max(even) as u16, out, k, |i| {
            let [a, b] = halves(chunks.get(i).unwrap_or(&rest));
            let expand = |v: __m128i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(v)));
            [
                expand(_mm256_castsi256_si128(a)),
                expand(_mm256_extracti128_si256::<1>(a)),
                expand(_mm256_castsi256_si128(b)),
                expand(_mm256_extracti128_si256::<1>(b)),
            ]
        })
    }
}
