//! Encoders: `grouped_absmax` and `fp8_row_maxabs`, 64 columns at a time, and the packing of codes.
//!
//! The arithmetic is the method's own, operation by operation; see `ninfer_formats::encoder`.

use std::arch::x86_64::*;

use super::lanes::Wide;
use super::search;
use crate::arch::encoders::encoders;
use crate::arch::x86_64::avx2::gguf_absmax::row as gguf_absmax_row;
use crate::isa::avx512_entry;

const MAGNITUDE: i32 = 0x7fff_ffff;

/// Values that [`put_e4m3`] takes, and how many there are.
type Four = [__m512; 4];
const FP8: usize = 64;

encoders!(avx512_entry);

avx512_entry! {
    /// binary16 to binary32, exactly.
    fn widen(words: &[u16], out: &mut [f32]) {
        let (words, tail) = words.as_chunks::<16>();
        let (out, out_tail) = out.as_chunks_mut::<16>();
        for (o, w) in out.iter_mut().zip(words) {
            // SAFETY: a load of the 16 words of `w` and a store of the 16 values of `o`.
            unsafe {
                let v = _mm512_cvtph_ps(_mm256_loadu_si256(w.as_ptr().cast()));
                _mm512_storeu_ps(o.as_mut_ptr(), v);
            }
        }
        for (o, &w) in out_tail.iter_mut().zip(tail) {
            *o = ninfer_formats::float::f16::to_f32(w);
        }
    }

    /// Four vectors of 16 values.
    #[inline]
    pub(super) fn load(x: &[f32; UNIT]) -> [__m512; 4] {
        let p = x.as_ptr();
        // SAFETY: the four loads cover the 64 values of `x`.
        unsafe {
            [
                _mm512_loadu_ps(p),
                _mm512_loadu_ps(p.add(16)),
                _mm512_loadu_ps(p.add(32)),
                _mm512_loadu_ps(p.add(48)),
            ]
        }
    }

    /// Four vectors of 16 integers to 64 bytes in order, saturated.
    #[inline]
    fn narrow(c: [__m512i; 4]) -> __m512i {
        let q = _mm512_packs_epi16(_mm512_packs_epi32(c[0], c[1]), _mm512_packs_epi32(c[2], c[3]));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_epi32(order, q)
    }

    /// Stores 64 codes, one a byte, as the base and high bytes of their groups.
    #[inline]
    pub(super) fn pack<const BITS: u8>(q: __m512i, base: &mut [u8], high: &mut [u8]) {
        if BITS == 8 {
            let base: &mut [u8; 64] = base.try_into().expect("64 base bytes");
            // SAFETY: a store of 64 bytes.
            unsafe { _mm512_storeu_si512(base.as_mut_ptr().cast(), q) };
            return;
        }
        let base: &mut [u8; 32] = base.try_into().expect("32 base bytes");
        let low = _mm512_and_si512(q, _mm512_set1_epi8(15));
        let pairs = _mm512_maddubs_epi16(low, _mm512_set1_epi16(0x1001));
        // SAFETY: a store of 32 bytes.
        unsafe { _mm256_storeu_si256(base.as_mut_ptr().cast(), _mm512_cvtepi16_epi8(pairs)) };
        if BITS == 5 {
            let mask = _mm512_test_epi8_mask(q, _mm512_set1_epi8(16));
            high.copy_from_slice(&mask.to_le_bytes());
        } else if BITS == 6 {
            let two = _mm512_and_si512(_mm512_srli_epi16::<4>(q), _mm512_set1_epi8(3));
            let pairs = _mm512_maddubs_epi16(two, _mm512_set1_epi16(0x0401));
            let quads = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x0010_0001));
            let high: &mut [u8; 16] = high.try_into().expect("16 high bytes");
            // SAFETY: a store of 16 bytes.
            unsafe { _mm_storeu_si128(high.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(quads)) };
        }
    }

    /// Scale words and reciprocals of 16 groups by their largest magnitudes (binary32 words); zero for zero. `None`
    /// if a magnitude is not finite or its scale overflows.
    #[inline]
    pub(super) fn scales(amax: &[u32; BATCH], qmax: f32) -> Option<([u16; BATCH], [f32; BATCH])> {
        // SAFETY: a load of 16 words.
        let a = unsafe { _mm512_loadu_si512(amax.as_ptr().cast()) };
        let bad = _mm512_cmpge_epu32_mask(a, _mm512_set1_epi32(0x7f80_0000));
        let some = _mm512_test_epi32_mask(a, a);
        let raw = _mm512_div_ps(_mm512_castsi512_ps(a), _mm512_set1_ps(qmax));
        let h = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(raw);
        let rescued = some & _mm256_testn_epi16_mask(h, h);
        let h = _mm256_mask_mov_epi16(h, rescued, _mm256_set1_epi16(1));
        if bad | _mm256_cmpeq_epi16_mask(h, _mm256_set1_epi16(0x7c00)) != 0 {
            return None;
        }
        let inv = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0), _mm512_cvtph_ps(h));
        let (mut words, mut inverses) = ([0u16; BATCH], [0f32; BATCH]);
        // SAFETY: stores of 16 words and 16 values.
        unsafe {
            _mm256_storeu_si256(words.as_mut_ptr().cast(), h);
            _mm512_storeu_ps(inverses.as_mut_ptr(), inv);
        }
        Some((words, inverses))
    }

    /// Largest magnitude words of the groups of a unit (both equal if the group is 64 wide). What is not finite has
    /// larger words than what is.
    #[inline]
    pub(super) fn magnitudes<const BITS: u8>(x: &[f32; UNIT]) -> [u32; 2] {
        let m = load(x).map(|v| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(MAGNITUDE)));
        let halves = [_mm512_max_epu32(m[0], m[1]), _mm512_max_epu32(m[2], m[3])];
        if BITS == 8 {
            halves.map(|h| _mm512_reduce_max_epu32(h))
        } else {
            [_mm512_reduce_max_epu32(_mm512_max_epu32(halves[0], halves[1])); 2]
        }
    }

    /// Codes of a unit for the reciprocals of its two halves, one a byte.
    #[inline]
    pub(super) fn codes<const BITS: u8>(s: &GroupedScheme, x: &[f32; UNIT], inv: [f32; 2]) -> __m512i {
        let x = load(x);
        let (a, b) = (_mm512_set1_ps(inv[0]), _mm512_set1_ps(inv[1]));
        // Conversion rounds to nearest-even: the default mode, which the driver has set.
        let q = narrow([
            _mm512_cvtps_epi32(_mm512_mul_ps(x[0], a)),
            _mm512_cvtps_epi32(_mm512_mul_ps(x[1], a)),
            _mm512_cvtps_epi32(_mm512_mul_ps(x[2], b)),
            _mm512_cvtps_epi32(_mm512_mul_ps(x[3], b)),
        ]);
        // Products stay below 2^31, and bytes saturate outside the intervals.
        let q = _mm512_max_epi8(q, _mm512_set1_epi8(s.code_min));
        if BITS == 8 { q } else { _mm512_min_epi8(q, _mm512_set1_epi8(s.code_max)) }
    }

    /// E4M3FN words of 16 values, saturated at 448.
    ///
    /// Adding `2^(e+20)`, `e` the exponent or -6 if that is larger, rounds the magnitude to a multiple of `2^(e-3)`,
    /// nearest-even; the sum's fraction bits count the multiples.
    #[inline]
    fn e4m3(y: __m512) -> __m512i {
        let bits = _mm512_castps_si512(y);
        let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(MAGNITUDE));
        let magnitude = _mm512_min_epi32(magnitude, _mm512_set1_epi32(0x43e0_0000));
        let exponent = _mm512_and_si512(magnitude, _mm512_set1_epi32(0x7f80_0000));
        let exponent = _mm512_max_epi32(exponent, _mm512_set1_epi32(121 << 23));
        let big = _mm512_add_epi32(exponent, _mm512_set1_epi32(20 << 23));
        let sum = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(big));
        let multiples = _mm512_sub_epi32(_mm512_castps_si512(sum), big);
        let first = _mm512_sub_epi32(_mm512_srli_epi32::<20>(exponent), _mm512_set1_epi32(121 << 3));
        let word = _mm512_add_epi32(multiples, first);
        let sign = _mm512_and_si512(_mm512_srli_epi32::<24>(bits), _mm512_set1_epi32(0x80));
        _mm512_or_si512(word, sign)
    }

    /// E4M3FN words of values times `inv`, in order.
    #[inline]
    fn put_e4m3(values: Four, inv: f32, out: &mut [u8; FP8]) {
        let inv = _mm512_set1_ps(inv);
        let c = values.map(|v| e4m3(_mm512_mul_ps(v, inv)));
        let q = _mm512_packus_epi16(_mm512_packus_epi32(c[0], c[1]), _mm512_packus_epi32(c[2], c[3]));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        // SAFETY: a store of 64 bytes.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_permutexvar_epi32(order, q)) };
    }

    /// Rounds binary32 to bfloat16 and expands it again.
    #[inline]
    fn through_bf16(v: __m512) -> __m512 {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(0xffff_0000u32 as i32)))
    }

    /// One row of `fp8_row_maxabs` from binary32; false if it must be refused.
    fn fp8_floats(kind: RowScale, x: &[f32], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<UNIT>();
        let mut rest = [0.0f32; UNIT];
        rest[..tail.len()].copy_from_slice(tail);
        let mut largest = _mm512_setzero_si512();
        for v in chunks.iter().chain(std::iter::once(&rest)).flat_map(|c| load(c)) {
            let m = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(MAGNITUDE));
            largest = _mm512_max_epu32(largest, m);
        }
        let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
        if !largest.is_finite() {
            return false;
        }
        // Rounding keeps the order, so the largest bfloat16 is that of the largest value.
        fp8_codes(kind, ninfer_formats::float::bf16::from_f32(largest), out, k, |i| {
            load(chunks.get(i).unwrap_or(&rest)).map(|v| through_bf16(v))
        })
    }

    /// One row of `fp8_row_maxabs` from bfloat16 words; false if it must be refused.
    fn fp8_words(kind: RowScale, x: &[u16], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<UNIT>();
        let mut rest = [0u16; UNIT];
        rest[..tail.len()].copy_from_slice(tail);
        let halves = |c: &[u16; UNIT]| {
            // SAFETY: two loads of 32 words each.
            unsafe { [_mm512_loadu_si512(c.as_ptr().cast()), _mm512_loadu_si512(c.as_ptr().add(32).cast())] }
        };
        let mut largest = _mm512_setzero_si512();
        for v in chunks.iter().chain(std::iter::once(&rest)).flat_map(halves) {
            largest = _mm512_max_epu16(largest, _mm512_and_si512(v, _mm512_set1_epi16(0x7fff)));
        }
        let odd = _mm512_reduce_max_epu32(_mm512_srli_epi32::<16>(largest));
        let even = _mm512_reduce_max_epu32(_mm512_and_si512(largest, _mm512_set1_epi32(0xffff)));
        fp8_codes(kind, odd.max(even) as u16, out, k, |i| {
            let [a, b] = halves(chunks.get(i).unwrap_or(&rest));
            let expand = |v: __m256i| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v)));
            [
                expand(_mm512_castsi512_si256(a)),
                expand(_mm512_extracti64x4_epi64::<1>(a)),
                expand(_mm512_castsi512_si256(b)),
                expand(_mm512_extracti64x4_epi64::<1>(b)),
            ]
        })
    }
}
