//! Blocks of grid codes: sixteen lanes come from two entries of eight or four of four, signs from a bit mask.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, iq1_m_scale};
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::prims::*;

/// Seven sign bits with their parity as the eighth.
pub(crate) static PARITY: [u8; 128] = {
    let mut t = [0; 128];
    let mut i = 0;
    while i < 128 {
        t[i] = i as u8 | ((i as u8).count_ones() as u8 & 1) << 7;
        i += 1;
    }
    t
};

/// Two entries of eight lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eights(a: &[i8; 8], b: &[i8; 8]) -> __m128i {
    // SAFETY: each reads the eight bytes of its entry.
    let (a, b) = unsafe { (_mm_loadl_epi64(a.as_ptr().cast()), _mm_loadl_epi64(b.as_ptr().cast())) };
    _mm_unpacklo_epi64(a, b)
}

/// Four entries of four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fours(e: [&[i8; 4]; 4]) -> __m128i {
    let [a, b, c, d] = e.map(|e| i32::from_le_bytes(e.map(i8::cast_unsigned)));
    _mm_set_epi32(d, c, b, a)
}

/// Negates the lanes whose bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn negate(codes: __m128i, signs: u16) -> __m128i {
    _mm_mask_sub_epi8(codes, signs, _mm_setzero_si128(), codes)
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sub_scale(d: __m512, table: &[f32; 16], s: usize) -> __m512 {
    _mm512_mul_ps(d, _mm512_set1_ps(table[s & 15]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq2_xxs::D));
    for b in 0..8 {
        let record = at::<8>(block, fields::iq2_xxs::Q + 8 * b);
        let a = u32_at(record, fields::iq2_xxs::A_IN_RECORD);
        let scale = sub_scale(d, &EIGHTHS, (a >> 28) as usize);
        for h in 0..2 {
            let q = |i: usize| &IQ2_XXS[usize::from(record[2 * h + i])];
            let codes = negate(eights(q(0), q(1)), parity_signs(a, h));
            store(run16(out, 2 * b + h), scaled(codes, scale));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq2_xs::D));
    for run in 0..16 {
        let s = block[fields::iq2_xs::S + run / 2] >> (4 * (run % 2)) & 15;
        let [a, b] = [0, 2].map(|i| usize::from(u16_at(block, fields::iq2_xs::Q + 4 * run + i)));
        let signs = u16::from_le_bytes([PARITY[a >> 9], PARITY[b >> 9]]);
        let codes = negate(eights(&IQ2_XS[a & 511], &IQ2_XS[b & 511]), signs);
        store(run16(out, run), scaled(codes, sub_scale(d, &EIGHTHS, usize::from(s))));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq2_s::D));
    for run in 0..16 {
        let s = block[fields::iq2_s::S + run / 2] >> (4 * (run % 2)) & 15;
        let high = usize::from(block[fields::iq2_s::QH + run / 2] >> (4 * (run % 2)));
        let low = |i: usize| usize::from(block[fields::iq2_s::Q + 2 * run + i]);
        let (a, b) = (low(0) | (high & 3) << 8, low(1) | (high >> 2 & 3) << 8);
        let signs = u16_at(block, fields::iq2_s::SG + 2 * run);
        let codes = negate(eights(&IQ2_S[a], &IQ2_S[b]), signs);
        store(run16(out, run), scaled(codes, sub_scale(d, &EIGHTHS, usize::from(s))));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq3_xxs::D));
    for b in 0..8 {
        let a = u32_at(block, fields::iq3_xxs::A + 4 * b);
        let scale = sub_scale(d, &QUARTERS, (a >> 28) as usize);
        for h in 0..2 {
            let q = at::<4>(block, fields::iq3_xxs::Q + 8 * b + 4 * h);
            let codes = fours(q.each_ref().map(|&q| &IQ3_XXS[usize::from(q)]));
            store(run16(out, 2 * b + h), scaled(negate(codes, parity_signs(a, h)), scale));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq3_s::D));
    for b in 0..8 {
        let s = block[fields::iq3_s::S + b / 2] >> (4 * (b % 2)) & 15;
        let scale = sub_scale(d, &WHOLE, usize::from(s));
        let high = usize::from(block[fields::iq3_s::QH + b]);
        for h in 0..2 {
            let q = at::<4>(block, fields::iq3_s::Q + 8 * b + 4 * h);
            let entry = |i: usize| &IQ3_S[usize::from(q[i]) | (high >> (4 * h + i) & 1) << 8];
            let codes = fours([entry(0), entry(1), entry(2), entry(3)]);
            let signs = u16_at(block, fields::iq3_s::SG + 4 * b + 2 * h);
            store(run16(out, 2 * b + h), scaled(negate(codes, signs), scale));
        }
    }
}

/// `8 * grid + 1`, or `8 * grid - 1` where the bit of the entry is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq1_s::D));
    for b in 0..8 {
        let word = usize::from(u16_at(block, fields::iq1_s::QH + 2 * b));
        let scale = sub_scale(d, &EIGHTHS, word >> 12 & 7);
        let delta = (word >> 15) * 3;
        for h in 0..2 {
            let code =
                |i: usize| usize::from(block[fields::iq1_s::Q + 4 * b + i]) | (word >> (3 * i) & 7) << 8;
            store(run16(out, 2 * b + h), scaled(iq1(code(2 * h), code(2 * h + 1), delta), scale));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let d = halves(iq1_m_scale(at(block, fields::iq1_m::S)));
    for run in 0..16 {
        let s = u16_at(block, fields::iq1_m::S + run / 4 * 2) >> (3 * (run % 4)) & 7;
        let high = usize::from(block[fields::iq1_m::QH + run]);
        let low = |i: usize| usize::from(block[fields::iq1_m::Q + 2 * run + i]);
        let (a, b) = (low(0) | (high & 7) << 8, low(1) | (high >> 4 & 7) << 8);
        let delta = high >> 3 & 1 | high >> 6 & 2;
        store(run16(out, run), scaled(iq1(a, b, delta), sub_scale(d, &EIGHTHS, usize::from(s))));
    }
}
