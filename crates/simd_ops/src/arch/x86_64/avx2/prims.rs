//! Loads, stores and small steps shared by the kernels of this token. Unsafe code is confined to the accesses.

use std::arch::x86_64::*;

pub(crate) use crate::arch::decoders::{at, u16_at, u32_at};
use crate::arch::fetch;
use crate::arch::x86_64::AHEAD;

/// 32 bytes of binary32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store(out: &mut [f32; 8], v: __m256) {
    // SAFETY: writes the 32 bytes of `out`; the instruction needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) }
}

/// Eight binary32 values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load_f32(values: &[f32; 8]) -> __m256 {
    // SAFETY: reads the 32 bytes of `values`; the instruction needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Where the values of a block go, sixteen at a time and in increasing order: those of one row into memory, or of
/// several rows, whose blocks are decoded side by side, into sums.
pub(crate) trait Runs {
    /// Takes the values `16 * i..` of the block of row `r`. Called in functions that are compiled for this token only.
    fn put(&mut self, r: usize, i: usize, v: [__m256; 2]);
}

impl<const N: usize> Runs for [f32; N] {
    #[inline(always)]
    fn put(&mut self, _r: usize, i: usize, v: [__m256; 2]) {
        let out = self.as_chunks_mut::<8>().0;
        fetch(out[2 * i].as_ptr().wrapping_add(AHEAD).cast());
        // SAFETY: callers are compiled for this token, so the machine has the instructions.
        unsafe {
            store(&mut out[2 * i], v[0]);
            store(&mut out[2 * i + 1], v[1]);
        }
    }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: reads the 16 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads the 32 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Eight bytes, the upper half zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn load8(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: reads the 8 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

/// The first lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lane_0(v: __m256) -> f32 {
    _mm256_cvtss_f32(v)
}

/// A binary16 word to eight lanes of binary32, exactly (the instruction ignores the subnormal modes).
///
/// A broadcast, because an insertion into a register would wait for what was in it.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn halves(word: u16) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(word.cast_signed()))
}

/// 32 signed codes times one scale, to the runs from `first` on of row `r`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn scaled(codes: __m256i, d: __m256, r: usize, first: usize, out: &mut impl Runs) {
    for (i, codes) in two(codes).into_iter().enumerate() {
        out.put(r, first + i, times(d, wide(codes)));
    }
}

/// Both halves of a vector.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn two(v: __m256i) -> [__m128i; 2] {
    [_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)]
}

/// Sixteen signed bytes as numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn wide(codes: __m128i) -> [__m256; 2] {
    [codes, _mm_unpackhi_epi64(codes, codes)].map(|codes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)))
}

/// `d` times sixteen numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn times(d: __m256, v: [__m256; 2]) -> [__m256; 2] {
    [_mm256_mul_ps(d, v[0]), _mm256_mul_ps(d, v[1])]
}

/// Low nibbles of sixteen bytes, then their high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn nibbles(bytes: &[u8; 16]) -> __m256i {
    let q = load16(bytes);
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(q), q), _mm256_set1_epi8(15))
}

/// Nibbles of sixteen bytes in turn, the low one of each byte first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn interleaved_nibbles(bytes: &[u8; 16]) -> __m256i {
    let q = _mm256_cvtepu8_epi16(load16(bytes));
    _mm256_and_si256(_mm256_or_si256(q, _mm256_slli_epi16::<4>(q)), _mm256_set1_epi8(15))
}

/// Two-bit fields of eight bytes in turn, the lowest of each byte first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn two_bits(bytes: &[u8; 8]) -> __m256i {
    // The four fields of a byte move to the low bits of the bytes of a word; what else lands there is masked off.
    let q = _mm256_cvtepu8_epi32(load8(bytes));
    let q = _mm256_or_si256(q, _mm256_slli_epi32::<6>(q));
    let q = _mm256_or_si256(q, _mm256_slli_epi32::<12>(q));
    _mm256_and_si256(q, _mm256_set1_epi8(3))
}

/// Bytes of all ones where the bit of the lane is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn bits(word: u32) -> __m256i {
    let byte_of_lane =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bit_of_lane = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word.cast_signed()), byte_of_lane);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of_lane), bit_of_lane)
}
