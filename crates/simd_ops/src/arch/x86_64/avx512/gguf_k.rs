//! K blocks and `iq4_xs`: 256 values with integer sub-scales.
//!
//! The products of the block's scales with its sixteen or eight sub-scales are formed at once and stored, because a
//! broadcast from memory is cheaper than one from a lane. A multiply-subtract stands for the two written operations
//! where the product is exact.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, q3_k_scales, six_bit_scales};

use super::gguf_legacy::{IQ4, codes_from, four, nibbles, table};
use super::prims::*;
use crate::column16::rows;

static TWO: [f32; 16] = four([0, 1, 2, 3]);
static NIBBLE: [f32; 16] = codes_from(0);

/// `d` times sixteen signed bytes, in memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sub_scales(d: __m512, bytes: __m128i) -> [f32; 16] {
    let mut out = [0.0; 16];
    store(&mut out, scaled(bytes, d));
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q2_k<const R: usize>(blocks: [&[u8; 84]; R], out: &mut impl Runs) {
    let low = _mm_set1_epi8(15);
    let scales = blocks.map(|block| {
        let (d, dmin) = (halves(u16_at(block, fields::q2_k::D)), halves(u16_at(block, fields::q2_k::DMIN)));
        let s = load16(at(block, fields::q2_k::S));
        [sub_scales(d, _mm_and_si128(s, low)), sub_scales(dmin, _mm_and_si128(_mm_srli_epi16::<4>(s), low))]
    });
    let scales = kept(&scales);
    let codes = load_f32(&TWO);
    for p in 0..2 {
        let mut q = blocks.map(|block| [0, 16].map(|h| widen(at(block, fields::q2_k::Q + 32 * p + h))));
        for j in 0..4 {
            for h in 0..2 {
                let run = 2 * (4 * p + j) + h;
                rows!(R, r, {
                    let (q, [scale, min]) = (&mut q[r], &scales[r]);
                    let table = _mm512_fmsub_ps(_mm512_set1_ps(scale[run]), codes, _mm512_set1_ps(min[run]));
                    out.put(r, run, _mm512_permutexvar_ps(q[h], table));
                    q[h] = _mm512_srli_epi32::<2>(q[h]);
                });
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q3_k<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| {
        let six = q3_k_scales(at(block, fields::q3_k::S));
        let signed = _mm_sub_epi8(load16(&six), _mm_set1_epi8(32));
        sub_scales(halves(u16_at(block, fields::q3_k::D)), signed)
    });
    let scales = kept(&scales);
    let (two_bits, four) = (_mm512_set1_epi8(3), _mm512_set1_epi8(4));
    for p in 0..2 {
        for pair in 0..2 {
            // The fields and third bits of 32 values, and of the next 32.
            let shifts = two_halves(_mm256_set1_epi16(4 * pair), _mm256_set1_epi16(4 * pair + 2));
            let bit = 4 * p as i32 + 2 * i32::from(pair);
            let bits = two_halves(_mm256_set1_epi8((1 << bit) as i8), _mm256_set1_epi8((2 << bit) as i8));
            let mut codes = [_mm512_setzero_si512(); R];
            rows!(R, r, {
                let (codes, block) = (&mut codes[r], blocks[r]);
                let q = _mm512_broadcast_i64x4(load32(at(block, fields::q3_k::Q + 32 * p)));
                let third = _mm512_broadcast_i64x4(load32(at(block, fields::q3_k::HM)));
                let q = _mm512_and_si512(_mm512_srlv_epi16(q, shifts), two_bits);
                // A clear third bit subtracts 4.
                let clear = _mm512_testn_epi8_mask(third, bits);
                *codes = _mm512_mask_sub_epi8(q, clear, q, four);
            });
            for j in 0..4 {
                let run = 8 * p + 4 * pair as usize + j;
                rows!(R, r, {
                    let (codes, scale) = (codes[r], &scales[r]);
                    out.put(r, run, _mm512_mul_ps(_mm512_set1_ps(scale[run]), numbers(codes, j)));
                });
            }
        }
    }
}

/// Scales `d * scale` (first eight) and minima `dmin * min` of `q4_k` and `q5_k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scales_and_minima(block: &[u8]) -> [f32; 16] {
    let (scale, min) = six_bit_scales(at(block, fields::q4_k::S));
    let bytes = _mm_set_epi64x(i64::from_le_bytes(min), i64::from_le_bytes(scale));
    let both = _mm512_mask_blend_ps(
        0xff00,
        halves(u16_at(block, fields::q4_k::D)),
        halves(u16_at(block, fields::q4_k::DMIN)),
    );
    let mut out = [0.0; 16];
    store(&mut out, scaled(bytes, both));
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q4_k<const R: usize>(blocks: [&[u8; 144]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| scales_and_minima(block));
    let scales = kept(&scales);
    let codes = load_f32(&NIBBLE);
    for i in 0..4 {
        let mut q = blocks.map(|block| [0, 16].map(|h| widen(at(block, fields::q4_k::Q + 32 * i + h))));
        for run in [2 * i, 2 * i + 1] {
            rows!(R, r, {
                let (q, s) = (&mut q[r], &scales[r]);
                let table = _mm512_fmsub_ps(_mm512_set1_ps(s[run]), codes, _mm512_set1_ps(s[8 + run]));
                for (h, q) in q.iter_mut().enumerate() {
                    out.put(r, 2 * run + h, _mm512_permutexvar_ps(*q, table));
                    *q = _mm512_srli_epi32::<4>(*q);
                }
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q5_k<const R: usize>(blocks: [&[u8; 176]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| scales_and_minima(block));
    let scales = kept(&scales);
    let (low, sixteen) = (_mm512_set1_epi8(15), _mm512_set1_epi8(16));
    // Low nibbles for 32 values, high ones for the next 32.
    let shifts = two_halves(_mm256_setzero_si256(), _mm256_set1_epi16(4));
    for i in 0..4 {
        let bits = two_halves(_mm256_set1_epi8((1 << (2 * i)) as i8), _mm256_set1_epi8((2 << (2 * i)) as i8));
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let (codes, block) = (&mut codes[r], blocks[r]);
            let q = _mm512_broadcast_i64x4(load32(at(block, fields::q5_k::Q + 32 * i)));
            let fifth = _mm512_broadcast_i64x4(load32(at(block, fields::q5_k::QH)));
            let q = _mm512_and_si512(_mm512_srlv_epi16(q, shifts), low);
            *codes = _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(fifth, bits), q, sixteen);
        });
        for j in 0..4 {
            let run = 2 * i + j / 2;
            rows!(R, r, {
                let (codes, s) = (codes[r], &scales[r]);
                let (d, m) = (_mm512_set1_ps(s[run]), _mm512_set1_ps(s[8 + run]));
                out.put(r, 4 * i + j, _mm512_fmsub_ps(d, numbers(codes, j), m));
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q6_k<const R: usize>(blocks: [&[u8; 210]; R], out: &mut impl Runs) {
    let scales = blocks
        .map(|block| sub_scales(halves(u16_at(block, fields::q6_k::D)), load16(at(block, fields::q6_k::SC))));
    let scales = kept(&scales);
    let (low, six, bias) = (_mm512_set1_epi8(15), _mm512_set1_epi8(63), _mm512_set1_epi8(32));
    // The upper bits of 32 values, and of the next 32, to bits 4 and 5.
    let left = two_halves(_mm256_set1_epi16(4), _mm256_set1_epi16(2));
    let right = _mm512_sub_epi16(_mm512_set1_epi16(4), left);
    for p in 0..2 {
        for half in 0..2 {
            let codes = blocks.map(|block| {
                let ql = load64(at(block, fields::q6_k::QL + 64 * p));
                let qh = _mm512_broadcast_i64x4(load32(at(block, fields::q6_k::QH + 32 * p)));
                let (q, high) = if half == 0 {
                    (ql, _mm512_sllv_epi16(qh, left))
                } else {
                    (_mm512_srli_epi16::<4>(ql), _mm512_srlv_epi16(qh, right))
                };
                _mm512_sub_epi8(_mm512_and_si512(select(low, q, high), six), bias)
            });
            for j in 0..4 {
                let run = 8 * p + 4 * half + j;
                rows!(R, r, {
                    let (codes, scale) = (codes[r], &scales[r]);
                    out.put(r, run, _mm512_mul_ps(_mm512_set1_ps(scale[run]), numbers(codes, j)));
                });
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq4_xs<const R: usize>(blocks: [&[u8; 136]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq4_xs::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let low = u32_at(block, fields::iq4_xs::SL);
            let high = u32::from(u16_at(block, fields::iq4_xs::SH));
            let scale = (low >> (4 * b) & 15 | (high >> (2 * b) & 3) << 4).cast_signed() - 32;
            let scale = _mm512_cvtepi32_ps(_mm512_set1_epi32(scale));
            let d = _mm512_mul_ps(d, scale);
            nibbles(at(block, fields::iq4_xs::Q + 16 * b), table(d, &IQ4), r, 2 * b, out);
        });
    }
}
