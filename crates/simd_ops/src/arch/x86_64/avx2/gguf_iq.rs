//! Blocks of grid codes: sixteen lanes come from two entries of eight or four of four, signs from bits.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, iq1_m_scale};
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::prims::*;
use crate::arch::x86_64::lanes::PARITY;
use crate::column16::rows;

/// Two entries of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eights(a: &[i8; 8], b: &[i8; 8]) -> __m128i {
    // SAFETY: each reads the eight bytes of its entry.
    let (a, b) = unsafe { (_mm_loadl_epi64(a.as_ptr().cast()), _mm_loadl_epi64(b.as_ptr().cast())) };
    _mm_unpacklo_epi64(a, b)
}

/// Four entries of four lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fours(e: [&[i8; 4]; 4]) -> __m128i {
    let [a, b, c, d] = e.map(|e| i32::from_le_bytes(e.map(i8::cast_unsigned)));
    _mm_set_epi32(d, c, b, a)
}

/// Negates the lanes whose bit is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negate(codes: __m128i, signs: u16) -> __m128i {
    let bytes =
        _mm_shuffle_epi8(_mm_set1_epi16(signs.cast_signed()), _mm_set_epi64x(0x0101_0101_0101_0101, 0));
    let bit = _mm_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    let set = _mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit);
    _mm_sub_epi8(_mm_xor_si128(codes, set), set)
}

/// The sign bits of runs `2 * h` and `2 * h + 1` of a word of four seven-bit indices.
#[inline(always)]
fn parity_signs(a: u32, h: usize) -> u16 {
    let index = |i: usize| (a >> (7 * i) & 127) as usize;
    u16::from_le_bytes([PARITY[index(2 * h)], PARITY[index(2 * h + 1)]])
}

/// `2 * s + 1` times a power of two, for four bits of `s`.
const fn odd(unit: f32) -> [f32; 16] {
    let mut t = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        t[i] = (2 * i + 1) as f32 * unit;
        i += 1;
    }
    t
}

/// The sub-scales; the power of two is that of the product specification's `d_w`.
static EIGHTHS: [f32; 16] = odd(0.125);
static QUARTERS: [f32; 16] = odd(0.25);
static WHOLE: [f32; 16] = odd(1.0);

/// `d` times the sub-scale `s`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sub_scale(d: __m256, table: &[f32; 16], s: usize) -> __m256 {
    _mm256_mul_ps(d, _mm256_set1_ps(table[s & 15]))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq2_xxs<const R: usize>(blocks: [&[u8; 66]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq2_xxs::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let record = at::<8>(block, fields::iq2_xxs::Q + 8 * b);
            let a = u32_at(record, fields::iq2_xxs::A_IN_RECORD);
            let scale = sub_scale(d, &EIGHTHS, (a >> 28) as usize);
            for h in 0..2 {
                let q = |i: usize| &IQ2_XXS[usize::from(record[2 * h + i])];
                let codes = negate(eights(q(0), q(1)), parity_signs(a, h));
                out.put(r, 2 * b + h, times(scale, wide(codes)));
            }
        });
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq2_xs<const R: usize>(blocks: [&[u8; 74]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq2_xs::D)));
    for run in 0..16 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let s = block[fields::iq2_xs::S + run / 2] >> (4 * (run % 2)) & 15;
            let [a, b] = [0, 2].map(|i| usize::from(u16_at(block, fields::iq2_xs::Q + 4 * run + i)));
            let signs = u16::from_le_bytes([PARITY[a >> 9], PARITY[b >> 9]]);
            let codes = negate(eights(&IQ2_XS[a & 511], &IQ2_XS[b & 511]), signs);
            out.put(r, run, times(sub_scale(d, &EIGHTHS, usize::from(s)), wide(codes)));
        });
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq2_s<const R: usize>(blocks: [&[u8; 82]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq2_s::D)));
    for run in 0..16 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let s = block[fields::iq2_s::S + run / 2] >> (4 * (run % 2)) & 15;
            let high = usize::from(block[fields::iq2_s::QH + run / 2] >> (4 * (run % 2)));
            let low = |i: usize| usize::from(block[fields::iq2_s::Q + 2 * run + i]);
            let (a, b) = (low(0) | (high & 3) << 8, low(1) | (high >> 2 & 3) << 8);
            let signs = u16_at(block, fields::iq2_s::SG + 2 * run);
            let codes = negate(eights(&IQ2_S[a], &IQ2_S[b]), signs);
            out.put(r, run, times(sub_scale(d, &EIGHTHS, usize::from(s)), wide(codes)));
        });
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq3_xxs<const R: usize>(blocks: [&[u8; 98]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq3_xxs::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let a = u32_at(block, fields::iq3_xxs::A + 4 * b);
            let scale = sub_scale(d, &QUARTERS, (a >> 28) as usize);
            for h in 0..2 {
                let q = at::<4>(block, fields::iq3_xxs::Q + 8 * b + 4 * h);
                let codes = fours(q.each_ref().map(|&q| &IQ3_XXS[usize::from(q)]));
                out.put(r, 2 * b + h, times(scale, wide(negate(codes, parity_signs(a, h)))));
            }
        });
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq3_s<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq3_s::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let s = block[fields::iq3_s::S + b / 2] >> (4 * (b % 2)) & 15;
            let scale = sub_scale(d, &WHOLE, usize::from(s));
            let high = usize::from(block[fields::iq3_s::QH + b]);
            for h in 0..2 {
                let q = at::<4>(block, fields::iq3_s::Q + 8 * b + 4 * h);
                let entry = |i: usize| &IQ3_S[usize::from(q[i]) | (high >> (4 * h + i) & 1) << 8];
                let codes = fours([entry(0), entry(1), entry(2), entry(3)]);
                let signs = u16_at(block, fields::iq3_s::SG + 4 * b + 2 * h);
                out.put(r, 2 * b + h, times(scale, wide(negate(codes, signs))));
            }
        });
    }
}

/// `8 * grid + 1`, or `8 * grid - 1` where the bit of the entry is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1(a: usize, b: usize, delta: usize) -> __m128i {
    const fn lanes(negative: usize) -> [u8; 16] {
        let mut out = [1; 16];
        let mut i = 0;
        while i < 16 {
            if negative >> (i / 8) & 1 == 1 {
                out[i] = 255;
            }
            i += 1;
        }
        out
    }
    static DELTAS: [[u8; 16]; 4] = [lanes(0), lanes(1), lanes(2), lanes(3)];
    _mm_add_epi8(eights(&IQ1_TIMES_8[a], &IQ1_TIMES_8[b]), load16(&DELTAS[delta]))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq1_s<const R: usize>(blocks: [&[u8; 50]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq1_s::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let word = usize::from(u16_at(block, fields::iq1_s::QH + 2 * b));
            let scale = sub_scale(d, &EIGHTHS, word >> 12 & 7);
            let delta = (word >> 15) * 3;
            for h in 0..2 {
                let code =
                    |i: usize| usize::from(block[fields::iq1_s::Q + 4 * b + i]) | (word >> (3 * i) & 7) << 8;
                let codes = iq1(code(2 * h), code(2 * h + 1), delta);
                out.put(r, 2 * b + h, times(scale, wide(codes)));
            }
        });
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq1_m<const R: usize>(blocks: [&[u8; 56]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(iq1_m_scale(at(block, fields::iq1_m::S))));
    for run in 0..16 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let s = u16_at(block, fields::iq1_m::S + run / 4 * 2) >> (3 * (run % 4)) & 7;
            let high = usize::from(block[fields::iq1_m::QH + run]);
            let low = |i: usize| usize::from(block[fields::iq1_m::Q + 2 * run + i]);
            let (a, b) = (low(0) | (high & 7) << 8, low(1) | (high >> 4 & 7) << 8);
            let delta = high >> 3 & 1 | high >> 6 & 2;
            let codes = iq1(a, b, delta);
            out.put(r, run, times(sub_scale(d, &EIGHTHS, usize::from(s)), wide(codes)));
        });
    }
}
