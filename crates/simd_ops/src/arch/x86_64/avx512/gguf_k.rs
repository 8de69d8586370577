//! K blocks and `iq4_xs`: 256 values with integer sub-scales.
//!
//! The products of the block's scales with its sixteen or eight sub-scales are formed at once and stored, because a
//! broadcast from memory is cheaper than one from a lane; six-bit sub-scales are put together for four rows at a time.
//! Codes of bytes are stored, too: a load widens them with one move between lanes, a register needs two. A multiply-subtract stands for the two written operations
//! where the product is exact.

#![allow(clippy::needless_range_loop, reason = "a number of several arrays and of `put`")]

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::fields;

use super::gguf_legacy::{IQ4, as_f32, codes_from, four, nibbles, table};
use super::prims::*;
use crate::column16::rows;

static TWO: [f32; 16] = four([0, 1, 2, 3]);
static NIBBLE: [f32; 16] = codes_from(0);
static ABOVE: [f32; 16] = codes_from(16);
/// By two bits and a third one that is 1 for the upper half; the fourth does not matter.
static THREE_BITS: [f32; 16] = as_f32([-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3]);

/// Numbers for the lanes of 32 values, and for those of the next 32.
const fn lower_and_upper(lower: i32, upper: i32) -> [i32; 16] {
    let mut out = [lower & 31; 16];
    let mut i = 8;
    while i < 16 {
        out[i] = upper & 31;
        i += 1;
    }
    out
}
/// Shifts of fields of two bits to the bottom.
static Q3_FIELDS: [[i32; 16]; 2] = [lower_and_upper(0, 2), lower_and_upper(4, 6)];
/// Turns of their third bits to bit 2.
static Q3_THIRDS: [[i32; 16]; 4] =
    [lower_and_upper(2, 1), lower_and_upper(0, -1), lower_and_upper(-2, -3), lower_and_upper(-4, -5)];
/// Shifts of nibbles to the bottom.
static Q5_NIBBLES: [i32; 16] = lower_and_upper(0, 4);
/// Turns of their fifth bits to bit 4.
static Q5_FIFTHS: [[i32; 16]; 4] =
    [lower_and_upper(4, 3), lower_and_upper(2, 1), lower_and_upper(0, -1), lower_and_upper(-2, -3)];

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
    let scales = q3_k_sub_scales(blocks);
    let scales = kept(&scales);
    let (two_bits, values) = (_mm512_set1_epi8(3), load_f32(&THREE_BITS));
    for p in 0..2 {
        for pair in 0..2 {
            let (shifts, turns) = (load_i32(&Q3_FIELDS[pair]), load_i32(&Q3_THIRDS[2 * p + pair]));
            let mut codes = [[0; 64]; R];
            rows!(R, r, {
                let (codes, block) = (&mut codes[r], blocks[r]);
                let q = _mm512_broadcast_i64x4(load32(at(block, fields::q3_k::Q + 32 * p)));
                let third = _mm512_broadcast_i64x4(load32(at(block, fields::q3_k::HM)));
                let (q, third) = (_mm512_srlv_epi32(q, shifts), _mm512_rolv_epi32(third, turns));
                store64(codes, select(two_bits, q, third));
            });
            let codes = kept(&codes);
            for j in 0..4 {
                let run = 8 * p + 4 * pair + j;
                rows!(R, r, {
                    let numbers = _mm512_permutexvar_ps(widen(at(&codes[r], 16 * j)), values);
                    out.put(r, run, _mm512_mul_ps(_mm512_set1_ps(scales[r][run]), numbers));
                });
            }
        }
    }
}

/// `d` times the sixteen sub-scales of `q3_k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q3_k_sub_scales<const R: usize>(blocks: [&[u8; 110]; R]) -> [[f32; 16]; R] {
    // From the last sixteen bytes: twelve with sub-scales, of which the first eight have lower nibbles of the first
    // eight, and above them of the others, the last four two upper bits of four each; then `d`.
    const { assert!(fields::q3_k::S == 96 && fields::q3_k::D == 108) };
    let bytes = beside(blocks, 94);
    let low = _mm512_shuffle_epi8(bytes, everywhere([2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9]));
    let low = _mm512_srlv_epi32(low, lanes4([0, 0, 4, 4]));
    let high = _mm512_shuffle_epi8(
        bytes,
        everywhere([10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13]),
    );
    let high = _mm512_rolv_epi32(high, lanes4([4, 2, 0, 30]));
    let six = _mm512_and_si512(select(_mm512_set1_epi8(15), low, high), _mm512_set1_epi8(63));
    let signed = quarters(_mm512_sub_epi8(six, _mm512_set1_epi8(32)));
    let signed = kept(&signed);
    let mut out = [[0.0; 16]; R];
    rows!(R, r, {
        store(&mut out[r], scaled(load16(&signed[r]), two_at::<3, 3>(blocks[r], 102)));
    });
    out
}

/// Scales `d * scale` (first eight) and minima `dmin * min` of `q4_k` and `q5_k`, whose first sixteen bytes are alike.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scales_and_minima<const N: usize, const R: usize>(blocks: [&[u8; N]; R]) -> [[f32; 16]; R] {
    const { assert!(fields::q4_k::D == 0 && fields::q4_k::DMIN == 2 && fields::q4_k::S == 4) };
    // Twelve bytes: 0..4 and 4..8 have six bits of the first four scales and minima and two upper bits of the others,
    // 8..12 the lower nibbles of the other scales, and above them of the other minima.
    let words = beside(blocks, 0);
    let low = _mm512_srlv_epi32(_mm512_shuffle_epi32::<0b11_10_11_01>(words), lanes4([0, 0, 0, 4]));
    let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_00_01_00>(words));
    let high = _mm512_and_si512(high, lanes4([0, 0x3030_3030, 0, 0x3030_3030]));
    // (low & mask) | high
    let six = _mm512_ternarylogic_epi32::<0xf8>(
        high,
        low,
        lanes4([0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f]),
    );
    let six = quarters(six);
    let six = kept(&six);
    let mut out = [[0.0; 16]; R];
    rows!(R, r, {
        let numbers = _mm512_cvtepi32_ps(widen(&six[r]));
        store(&mut out[r], _mm512_mul_ps(two_at::<0, 1>(blocks[r], 0), numbers));
    });
    out
}

/// The same four words in every lane of 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn lanes4(words: [i32; 4]) -> __m512i {
    _mm512_broadcast_i32x4(_mm_setr_epi32(words[0], words[1], words[2], words[3]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q4_k<const R: usize>(blocks: [&[u8; 144]; R], out: &mut impl Runs) {
    let scales = scales_and_minima(blocks);
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
    let scales = scales_and_minima(blocks);
    let scales = kept(&scales);
    let (low, numbers) = (_mm512_set1_epi8(15), [load_f32(&NIBBLE), load_f32(&ABOVE)]);
    let shifts = load_i32(&Q5_NIBBLES);
    for i in 0..4 {
        let turns = load_i32(&Q5_FIFTHS[i]);
        let mut codes = [[0; 64]; R];
        rows!(R, r, {
            let (codes, block) = (&mut codes[r], blocks[r]);
            let q = _mm512_broadcast_i64x4(load32(at(block, fields::q5_k::Q + 32 * i)));
            let fifth = _mm512_broadcast_i64x4(load32(at(block, fields::q5_k::QH)));
            let (q, fifth) = (_mm512_srlv_epi32(q, shifts), _mm512_rolv_epi32(fifth, turns));
            store64(codes, select(low, q, fifth));
        });
        let codes = kept(&codes);
        for run in [2 * i, 2 * i + 1] {
            let mut tables = [[_mm512_setzero_ps(); 2]; R];
            rows!(R, r, {
                let (table, s) = (&mut tables[r], &scales[r]);
                let (d, m) = (_mm512_set1_ps(s[run]), _mm512_set1_ps(s[8 + run]));
                *table = [_mm512_fmsub_ps(d, numbers[0], m), _mm512_fmsub_ps(d, numbers[1], m)];
            });
            for h in 0..2 {
                rows!(R, r, {
                    let [low, high] = tables[r];
                    let index = widen(at(&codes[r], 32 * (run % 2) + 16 * h));
                    out.put(r, 2 * run + h, _mm512_permutex2var_ps(low, index, high));
                });
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q6_k<const R: usize>(blocks: [&[u8; 210]; R], out: &mut impl Runs) {
    // `d` is the last word.
    let scales = blocks.map(|block| {
        sub_scales(two_at::<3, 3>(block, fields::q6_k::D - 6), load16(at(block, fields::q6_k::SC)))
    });
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
    let mut scales = [[0.0; 8]; R];
    rows!(R, r, {
        let block = blocks[r];
        let low = _mm256_set1_epi32(u32_at(block, fields::iq4_xs::SL).cast_signed());
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm256_set1_epi32(i32::from(u16_at(block, fields::iq4_xs::SH)));
        let high = _mm256_rolv_epi32(high, _mm256_setr_epi32(4, 2, 0, 30, 28, 26, 24, 22));
        let six = _mm256_ternarylogic_epi32::<0xca>(_mm256_set1_epi32(15), low, high);
        let six = _mm256_and_si256(six, _mm256_set1_epi32(63));
        let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)));
        let d = _mm512_castps512_ps256(half_at(block, fields::iq4_xs::D));
        // SAFETY: writes the 32 bytes of the row's scales.
        unsafe { _mm256_storeu_ps(scales[r].as_mut_ptr(), _mm256_mul_ps(d, scale)) };
    });
    let scales = kept(&scales);
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], _mm512_set1_ps(scales[r][b]));
            nibbles(at(block, fields::iq4_xs::Q + 16 * b), table(d, &IQ4), r, 2 * b, out);
        });
    }
}
