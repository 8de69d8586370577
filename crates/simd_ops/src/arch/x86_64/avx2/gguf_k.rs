//! K blocks: 256 values with integer sub-scales, 32 codes at a time.
//!
//! A multiply-subtract stands for the two written operations where the product is exact.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, q3_k_scales, six_bit_scales};

use super::prims::*;
use crate::column16::rows;

/// `d` times sixteen signed bytes, in memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sub_scales(d: __m256, bytes: __m128i) -> [f32; 16] {
    let mut out = [0.0; 16];
    out.put(0, 0, times(d, wide(bytes)));
    out
}

/// The codes of two runs times their scales.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_runs(codes: __m256i, scale: &[f32; 16], r: usize, run: usize, out: &mut impl Runs) {
    for (h, codes) in two(codes).into_iter().enumerate() {
        out.put(r, run + h, times(_mm256_set1_ps(scale[run + h]), wide(codes)));
    }
}

/// The codes of two runs times `d`, minus `m`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_minima(codes: __m256i, d: [f32; 2], m: [f32; 2], r: usize, run: usize, out: &mut impl Runs) {
    for (h, codes) in two(codes).into_iter().enumerate() {
        let (d, m) = (_mm256_set1_ps(d[h]), _mm256_set1_ps(m[h]));
        out.put(r, run + h, wide(codes).map(|codes| _mm256_fmsub_ps(d, codes, m)));
    }
}

/// Bytes of all ones where bit `i` is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bit_set(bytes: __m256i, i: usize) -> __m256i {
    let bit = _mm256_set1_epi8((1u8 << i).cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q2_k<const R: usize>(blocks: [&[u8; 84]; R], out: &mut impl Runs) {
    let low = _mm_set1_epi8(15);
    let scales = blocks.map(|block| {
        let (d, dmin) = (halves(u16_at(block, fields::q2_k::D)), halves(u16_at(block, fields::q2_k::DMIN)));
        let s = load16(at(block, fields::q2_k::S));
        [sub_scales(d, _mm_and_si128(s, low)), sub_scales(dmin, _mm_and_si128(_mm_srli_epi16::<4>(s), low))]
    });
    for p in 0..2 {
        let mut q = blocks.map(|block| load32(at(block, fields::q2_k::Q + 32 * p)));
        for j in 0..4 {
            let run = 2 * (4 * p + j);
            rows!(R, r, {
                let (q, [scale, min]) = (&mut q[r], &scales[r]);
                let codes = _mm256_and_si256(*q, _mm256_set1_epi8(3));
                with_minima(codes, [scale[run], scale[run + 1]], [min[run], min[run + 1]], r, run, out);
                *q = _mm256_srli_epi16::<2>(*q);
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q3_k<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| {
        let six = q3_k_scales(at(block, fields::q3_k::S));
        let signed = _mm_sub_epi8(load16(&six), _mm_set1_epi8(32));
        sub_scales(halves(u16_at(block, fields::q3_k::D)), signed)
    });
    for p in 0..2 {
        let mut q = blocks.map(|block| load32(at(block, fields::q3_k::Q + 32 * p)));
        for j in 0..4 {
            rows!(R, r, {
                let (q, scale, block) = (&mut q[r], &scales[r], blocks[r]);
                // A clear third bit subtracts 4.
                let third = bit_set(load32(at(block, fields::q3_k::HM)), 4 * p + j);
                let clear = _mm256_andnot_si256(third, _mm256_set1_epi8(4));
                let codes = _mm256_sub_epi8(_mm256_and_si256(*q, _mm256_set1_epi8(3)), clear);
                two_runs(codes, scale, r, 2 * (4 * p + j), out);
                *q = _mm256_srli_epi16::<2>(*q);
            });
        }
    }
}

/// Scales `d * scale` (first eight) and minima `dmin * min` of `q4_k` and `q5_k`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_minima(block: &[u8]) -> [f32; 16] {
    let (scale, min) = six_bit_scales(at(block, fields::q4_k::S));
    let [scale, min] = wide(_mm_set_epi64x(i64::from_le_bytes(min), i64::from_le_bytes(scale)));
    let (d, dmin) = (halves(u16_at(block, fields::q4_k::D)), halves(u16_at(block, fields::q4_k::DMIN)));
    let mut out = [0.0; 16];
    out.put(0, 0, [_mm256_mul_ps(d, scale), _mm256_mul_ps(dmin, min)]);
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q4_k<const R: usize>(blocks: [&[u8; 144]; R], out: &mut impl Runs) {
    let (scales, low) = (blocks.map(|block| scales_and_minima(block)), _mm256_set1_epi8(15));
    for i in 0..4 {
        for j in 0..2 {
            let run = 2 * i + j;
            rows!(R, r, {
                let (block, s) = (blocks[r], &scales[r]);
                let q = load32(at(block, fields::q4_k::Q + 32 * i));
                let q = if j == 0 { q } else { _mm256_srli_epi16::<4>(q) };
                with_minima(_mm256_and_si256(q, low), [s[run]; 2], [s[8 + run]; 2], r, 2 * run, out);
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q5_k<const R: usize>(blocks: [&[u8; 176]; R], out: &mut impl Runs) {
    let (scales, low) = (blocks.map(|block| scales_and_minima(block)), _mm256_set1_epi8(15));
    for i in 0..4 {
        for j in 0..2 {
            let run = 2 * i + j;
            rows!(R, r, {
                let (block, s) = (blocks[r], &scales[r]);
                let q = load32(at(block, fields::q5_k::Q + 32 * i));
                let q = if j == 0 { q } else { _mm256_srli_epi16::<4>(q) };
                let fifth = bit_set(load32(at(block, fields::q5_k::QH)), run);
                let sixteen = _mm256_and_si256(fifth, _mm256_set1_epi8(16));
                let codes = _mm256_or_si256(_mm256_and_si256(q, low), sixteen);
                with_minima(codes, [s[run]; 2], [s[8 + run]; 2], r, 2 * run, out);
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q6_k<const R: usize>(blocks: [&[u8; 210]; R], out: &mut impl Runs) {
    let scales = blocks
        .map(|block| sub_scales(halves(u16_at(block, fields::q6_k::D)), load16(at(block, fields::q6_k::SC))));
    let (low, top, bias) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48), _mm256_set1_epi8(32));
    for p in 0..2 {
        for i in 0..4 {
            rows!(R, r, {
                let (block, scale) = (blocks[r], &scales[r]);
                let q = load32(at(block, fields::q6_k::QL + 64 * p + i % 2 * 32));
                let q = if i < 2 { q } else { _mm256_srli_epi16::<4>(q) };
                let qh = load32(at(block, fields::q6_k::QH + 32 * p));
                let high = match i {
                    0 => _mm256_slli_epi16::<4>(qh),
                    1 => _mm256_slli_epi16::<2>(qh),
                    2 => qh,
                    _ => _mm256_srli_epi16::<2>(qh),
                };
                let six = _mm256_or_si256(_mm256_and_si256(q, low), _mm256_and_si256(high, top));
                two_runs(_mm256_sub_epi8(six, bias), scale, r, 2 * (4 * p + i), out);
            });
        }
    }
}
