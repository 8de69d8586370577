//! Rounding to 16 bits, activations to `q8_1`, and errors.

use std::arch::x86_64::*;

use ninfer_formats::codec::Half;

use super::prims::{load_f32, store};
use crate::isa::avx512_entry;
use crate::q8_1::{BLOCK, Q8ColumnMut};
use crate::scalar::{self, errors::ErrorLanes};

avx512_entry! {
    /// See [`crate::kernels::NarrowFn`].
    pub(crate) fn narrow(half: Half, values: &[f32], words: &mut [u16]) -> bool {
        let (runs, tail) = values.as_chunks::<16>();
        let (out, out_tail) = words.as_chunks_mut::<16>();
        let mut any = 0;
        let magnitude = _mm256_set1_epi16(0x7fff);
        for (x, out) in runs.iter().zip(out) {
            let (w, infinity) = match half {
                Half::Binary16 => (binary16(x), _mm256_set1_epi16(0x7c00)),
                Half::Bfloat16 => (bfloat16(x), _mm256_set1_epi16(0x7f80)),
            };
            any |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(w, magnitude), infinity);
            // SAFETY: writes the 32 bytes of `out`; the instruction needs no alignment.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), w) };
        }
        let in_tail = scalar::narrow(half, tail, out_tail);
        in_tail || any != 0
    }

    /// See [`crate::kernels::QuantizeFn`].
    pub(crate) fn quantize(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
        let Q8ColumnMut { mut codes, mut scales, mut scale_words, mut sum_words, mut half_sums } = out;
        for (i, x) in x.chunks(16 * BLOCK).enumerate() {
            let n = x.len().div_ceil(BLOCK);
            sixteen(x, i * 16 * BLOCK, Q8ColumnMut {
                codes: front(&mut codes, n * BLOCK),
                scales: front(&mut scales, n),
                scale_words: front(&mut scale_words, n),
                sum_words: front(&mut sum_words, n),
                half_sums: front(&mut half_sums, 2 * n),
            })?;
        }
        Ok(())
    }

    /// See [`crate::kernels::ErrorsFn`]: the portable source, compiled for this token.
    pub(crate) fn errors(x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes) {
        scalar::errors::errors(x, y, weights, sums);
    }
}

/// Splits the first `n` elements off.
fn front<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(rest).split_at_mut(n);
    *rest = tail;
    head
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn binary16(x: &[f32; 16]) -> __m256i {
    _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(load_f32(x))
}

/// By integer arithmetic: the conversion instruction of some processors flushes subnormal numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bfloat16(x: &[f32; 16]) -> __m256i {
    let x = load_f32(x);
    let bits = _mm512_castps_si512(x);
    let top = _mm512_srli_epi32::<16>(bits);
    let even = _mm512_add_epi32(_mm512_and_si512(top, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, even));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    let word = _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
    _mm512_cvtepi32_epi16(word)
}

/// Up to sixteen blocks, the first of which begins at index `first` of the column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sixteen(x: &[f32], first: usize, out: Q8ColumnMut<'_>) -> Result<(), usize> {
    let (blocks, tail) = x.as_chunks::<BLOCK>();
    let mut last = [0.0; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    let count = out.scales.len();
    let block = |b: usize| blocks.get(b).unwrap_or(&last);
    let mut amax = [0u32; 16];
    for (b, amax) in amax[..count].iter_mut().enumerate() {
        *amax = magnitude(block(b));
    }
    if amax.iter().any(|&m| m >= 0x7f80_0000) {
        return Err(first + x.iter().position(|v| !v.is_finite()).unwrap_or(0));
    }
    let amax = load_f32(&amax.map(f32::from_bits));
    let d = _mm512_div_ps(amax, _mm512_set1_ps(127.0));
    let reciprocal = _mm512_div_ps(_mm512_set1_ps(1.0), d);
    let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(reciprocal, _mm512_set1_ps(f32::INFINITY));
    let (mut id, mut unrounded, mut stored) = ([0.0; 16], [0.0; 16], [0.0; 16]);
    store(&mut id, _mm512_maskz_mov_ps(finite, reciprocal));
    store(&mut unrounded, d);
    let words = to_words(d);
    store(&mut stored, _mm512_cvtph_ps(load_words(&words)));
    out.scale_words.copy_from_slice(&words[..count]);
    out.scales.copy_from_slice(&stored[..count]);
    let mut sums = [0.0; 16];
    let codes = out.codes.as_chunks_mut::<BLOCK>().0.iter_mut();
    let halves = out.half_sums.as_chunks_mut::<2>().0.iter_mut();
    for (b, (codes, halves)) in codes.zip(halves).enumerate() {
        let id = _mm512_set1_ps(id[b]);
        let x = block(b).as_chunks::<16>().0;
        for (h, half_sum) in halves.iter_mut().enumerate() {
            let v = _mm512_mul_ps(load_f32(&x[h]), id);
            let whole = _mm512_cvttps_epi32(v);
            // Exact: |v| is below 127.5.
            let rest = _mm512_sub_ps(v, _mm512_cvtepi32_ps(whole));
            let up = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(rest, _mm512_set1_ps(0.5));
            let down = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(rest, _mm512_set1_ps(-0.5));
            let one = _mm512_set1_epi32(1);
            let q = _mm512_mask_add_epi32(whole, up, whole, one);
            let q = _mm512_mask_sub_epi32(q, down, q, one);
            let bytes = _mm512_cvtepi32_epi8(q);
            // SAFETY: writes the 16 bytes of this half of the 32 codes.
            unsafe { _mm_storeu_si128(codes.as_mut_ptr().add(16 * h).cast(), bytes) };
            // Sums of eight bytes moved to 0..=255.
            let moved = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
            let pair = _mm_sad_epu8(moved, _mm_setzero_si128());
            let sum = _mm_cvtsi128_si32(pair) + _mm_extract_epi32::<2>(pair) - 16 * 128;
            *half_sum = sum as i16;
        }
        sums[b] = (i32::from(halves[0]) + i32::from(halves[1])) as f32;
    }
    let sums = to_words(_mm512_mul_ps(load_f32(&unrounded), load_f32(&sums)));
    out.sum_words.copy_from_slice(&sums[..count]);
    Ok(())
}

/// The largest magnitude as a word; a NaN or an infinity is above all others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn magnitude(x: &[f32; BLOCK]) -> u32 {
    let x = x.as_chunks::<16>().0;
    let mask = _mm512_set1_epi32(0x7fff_ffff);
    let [a, b] = [&x[0], &x[1]].map(|x| _mm512_and_si512(_mm512_castps_si512(load_f32(x)), mask));
    _mm512_reduce_max_epu32(_mm512_max_epu32(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn to_words(values: __m512) -> [u16; 16] {
    let mut out = [0; 16];
    let words = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(values);
    // SAFETY: writes the 32 bytes of `out`.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), words) };
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_words(words: &[u16; 16]) -> __m256i {
    // SAFETY: reads the 32 bytes of `words`.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}
