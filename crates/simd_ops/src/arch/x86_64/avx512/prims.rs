//! Loads, stores and small steps shared by the kernels of this token. Unsafe code is confined to the accesses.

use std::arch::x86_64::*;

/// 64 bytes of binary32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn store(out: &mut [f32; 16], v: __m512) {
    // SAFETY: writes the 64 bytes of `out`; the instruction needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: reads the 16 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn load32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads the 32 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Sixteen binary32 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn load_f32(values: &[f32; 16]) -> __m512 {
    // SAFETY: reads the 64 bytes of `values`; the instruction needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Sixteen integers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn load_i32(values: &[i32; 16]) -> __m512i {
    // SAFETY: reads the 64 bytes of `values`; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

/// A binary16 word to sixteen lanes of binary32, exactly (the instruction ignores the subnormal modes).
///
/// A broadcast, because an insertion into a register would wait for what was in it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn halves(word: u16) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(word.cast_signed()))
}

/// Sixteen bytes to unsigned 32-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn widen(bytes: &[u8; 16]) -> __m512i {
    _mm512_cvtepu8_epi32(load16(bytes))
}

/// Sixteen signed codes times their scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn scaled(codes: __m128i, d: __m512) -> __m512 {
    _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)))
}

/// `(a & mask) | (b & !mask)`, bit by bit.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xca>(mask, a, b)
}

/// `N` bytes at a constant offset of a block.
#[inline(always)]
pub(crate) fn at<const N: usize>(bytes: &[u8], offset: usize) -> &[u8; N] {
    bytes[offset..offset + N].first_chunk().expect("the slice has N bytes")
}

/// Little-endian 16-bit word at an offset of a block.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*at(bytes, offset))
}

/// Little-endian 32-bit word at an offset of a block.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*at(bytes, offset))
}

/// The sixteen elements `16 * i..` of a block's output.
#[inline(always)]
pub(crate) fn run16(out: &mut [f32], i: usize) -> &mut [f32; 16] {
    &mut out.as_chunks_mut::<16>().0[i]
}

/// Lane numbers.
pub(crate) const LANES: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Sixteen lanes as a function of their numbers.
pub(crate) const fn ramp(first: i32, step: i32) -> [i32; 16] {
    let mut out = LANES;
    let mut i = 0;
    while i < 16 {
        out[i] = (first + step * LANES[i]) & 31;
        i += 1;
    }
    out
}
