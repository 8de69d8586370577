//! Loads, stores and small steps shared by the kernels of this token. Unsafe code is confined to the accesses.

use std::arch::x86_64::*;

pub(crate) use crate::arch::decoders::{at, u16_at, u32_at};
use crate::arch::fetch;
use crate::arch::x86_64::AHEAD;

/// 64 bytes of binary32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn store(out: &mut [f32; 16], v: __m512) {
    // SAFETY: writes the 64 bytes of `out`; the instruction needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
}

/// Where the values of a block go, sixteen at a time and in increasing order: those of one row into memory, or of
/// several rows, whose blocks are decoded side by side, into sums.
pub(crate) trait Runs {
    /// Takes the values `16 * i..` of the block of row `r`. Called in functions that are compiled for this token only.
    fn put(&mut self, r: usize, i: usize, v: __m512);
}

impl<const N: usize> Runs for [f32; N] {
    #[inline(always)]
    fn put(&mut self, _r: usize, i: usize, v: __m512) {
        let out = run16(self, i);
        fetch(out.as_ptr().wrapping_add(AHEAD).cast());
        // SAFETY: callers are compiled for this token, so the machine has the instruction.
        unsafe { store(out, v) }
    }
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

/// 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn load64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: reads the 64 bytes of `bytes`; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Writes 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn store64(out: &mut [u8; 64], v: __m512i) {
    // SAFETY: writes the 64 bytes of `out`; the instruction needs no alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) }
}

/// What is behind `v`, which the compiler is to leave in memory: loads that broadcast or widen are cheaper than the moves
/// between lanes that it would make of them.
#[inline(always)]
pub(crate) fn kept<T>(v: &T) -> &T {
    std::hint::black_box(v)
}

/// Sixteen signed bytes of 64, quarter `i`, as numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn numbers(bytes: __m512i, i: usize) -> __m512 {
    let quarter = match i {
        0 => _mm512_castsi512_si128(bytes),
        1 => _mm512_extracti32x4_epi32::<1>(bytes),
        2 => _mm512_extracti32x4_epi32::<2>(bytes),
        _ => _mm512_extracti32x4_epi32::<3>(bytes),
    };
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quarter))
}

/// A vector of two halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn two_halves(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
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

/// The first lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn lane_0(v: __m512) -> f32 {
    _mm512_cvtss_f32(v)
}

/// A binary16 word to sixteen lanes of binary32, exactly (the instruction ignores the subnormal modes).
///
/// A broadcast, because an insertion into a register would wait for what was in it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn halves(word: u16) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(word.cast_signed()))
}

/// The binary16 word at an offset of a block, as [`halves`]: with what lies behind it, which must be six bytes at least,
/// the conversion reads memory by itself and needs no shuffle.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn half_at(block: &[u8], offset: usize) -> __m512 {
    let bytes: &[u8; 8] = at(block, offset);
    // SAFETY: reads the eight bytes of `bytes`.
    let words = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    _mm512_broadcastss_ps(_mm_cvtph_ps(words))
}

/// As [`half_at`] for two of the four words at an offset: word `LOW` in the lower eight lanes, `HIGH` in the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn two_at<const LOW: i32, const HIGH: i32>(block: &[u8], offset: usize) -> __m512 {
    let bytes: &[u8; 8] = at(block, offset);
    // SAFETY: reads the eight bytes of `bytes`.
    let words = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    let index = two_halves(_mm256_set1_epi32(LOW), _mm256_set1_epi32(HIGH));
    _mm512_permutexvar_ps(index, _mm512_castps128_ps512(_mm_cvtph_ps(words)))
}

/// 16 bytes of every row at the same offset side by side, at most four.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn beside<const N: usize, const R: usize>(blocks: [&[u8; N]; R], offset: usize) -> __m512i {
    let row = |r: usize| load16(at(blocks[r.min(R - 1)], offset));
    let mut all = _mm512_castsi128_si512(row(0));
    if R > 1 {
        all = _mm512_inserti32x4::<1>(all, row(1));
        all = _mm512_inserti32x4::<2>(all, row(2));
        all = _mm512_inserti32x4::<3>(all, row(3));
    }
    all
}

/// Four times 16 bytes as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn quarters(v: __m512i) -> [[u8; 16]; 4] {
    let mut out = [[0; 16]; 4];
    // SAFETY: writes the 64 bytes of `out`.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) };
    out
}

/// The same 16 bytes in every lane of 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn everywhere(bytes: [i8; 16]) -> __m512i {
    // SAFETY: reads the 16 bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
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
