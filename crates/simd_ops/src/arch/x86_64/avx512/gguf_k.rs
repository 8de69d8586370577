//! K blocks and `iq4_xs`: 256 values with integer sub-scales.
//!
//! The products of the block's scales with its sixteen or eight sub-scales are formed at once and stored, because a
//! broadcast from memory is cheaper than one from a lane. A multiply-subtract stands for the two written operations
//! where the product is exact.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, q3_k_scales, six_bit_scales};

use super::gguf_legacy::{IQ4, codes_from, four, nibbles, table};
use super::prims::*;

static TWO: [f32; 16] = four([0, 1, 2, 3]);
static THREE: [f32; 16] = {
    let mut t = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        t[i] = (i % 8) as f32 - 4.0;
        i += 1;
    }
    t
};
static NIBBLE: [f32; 16] = codes_from(0);
static NIBBLE_16: [f32; 16] = codes_from(16);

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
pub(crate) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (halves(u16_at(block, fields::q2_k::D)), halves(u16_at(block, fields::q2_k::DMIN)));
    let s = load16(at(block, fields::q2_k::S));
    let low = _mm_set1_epi8(15);
    let scale = sub_scales(d, _mm_and_si128(s, low));
    let min = sub_scales(dmin, _mm_and_si128(_mm_srli_epi16::<4>(s), low));
    let codes = load_f32(&TWO);
    for p in 0..2 {
        for h in 0..2 {
            let mut q = widen(at(block, fields::q2_k::Q + 32 * p + 16 * h));
            for j in 0..4 {
                let run = 2 * (4 * p + j) + h;
                let table = _mm512_fmsub_ps(_mm512_set1_ps(scale[run]), codes, _mm512_set1_ps(min[run]));
                store(run16(out, run), _mm512_permutexvar_ps(q, table));
                q = _mm512_srli_epi32::<2>(q);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let six = q3_k_scales(at(block, fields::q3_k::S));
    let signed = _mm_sub_epi8(load16(&six), _mm_set1_epi8(32));
    let scale = sub_scales(halves(u16_at(block, fields::q3_k::D)), signed);
    let codes = load_f32(&THREE);
    let two_bits = _mm512_set1_epi32(3);
    for h in 0..2 {
        // Bit 2 of lane l: the third bit of run 0; each further run has the next bit.
        let mut third = _mm512_slli_epi32::<2>(widen(at(block, fields::q3_k::HM + 16 * h)));
        for p in 0..2 {
            let mut q = widen(at(block, fields::q3_k::Q + 32 * p + 16 * h));
            for j in 0..4 {
                let run = 2 * (4 * p + j) + h;
                let table = _mm512_mul_ps(_mm512_set1_ps(scale[run]), codes);
                // Bit 3 of the index does not matter: the table repeats after eight entries.
                let index = select(two_bits, q, third);
                store(run16(out, run), _mm512_permutexvar_ps(index, table));
                q = _mm512_srli_epi32::<2>(q);
                third = _mm512_srli_epi32::<1>(third);
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
pub(crate) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let s = scales_and_minima(block);
    let codes = load_f32(&NIBBLE);
    for i in 0..4 {
        let run = 2 * i;
        let tables =
            [run, run + 1].map(|r| _mm512_fmsub_ps(_mm512_set1_ps(s[r]), codes, _mm512_set1_ps(s[8 + r])));
        for h in 0..2 {
            let q = widen(at(block, fields::q4_k::Q + 32 * i + 16 * h));
            store(run16(out, 2 * run + h), _mm512_permutexvar_ps(q, tables[0]));
            let high = _mm512_srli_epi32::<4>(q);
            store(run16(out, 2 * run + 2 + h), _mm512_permutexvar_ps(high, tables[1]));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let s = scales_and_minima(block);
    let (codes, codes_16) = (load_f32(&NIBBLE), load_f32(&NIBBLE_16));
    let nibble = _mm512_set1_epi32(15);
    // Bit 4 of lane l is the fifth bit of run 0; each further run has the next bit.
    let mut fifth = [0, 16].map(|h| _mm512_slli_epi32::<4>(widen(at(block, fields::q5_k::QH + h))));
    for i in 0..4 {
        let mut q = [0, 16].map(|h| widen(at(block, fields::q5_k::Q + 32 * i + h)));
        for run in [2 * i, 2 * i + 1] {
            let (d, m) = (_mm512_set1_ps(s[run]), _mm512_set1_ps(s[8 + run]));
            let (low, high) = (_mm512_fmsub_ps(d, codes, m), _mm512_fmsub_ps(d, codes_16, m));
            for h in 0..2 {
                let index = select(nibble, q[h], fifth[h]);
                store(run16(out, 2 * run + h), _mm512_permutex2var_ps(low, index, high));
                q[h] = _mm512_srli_epi32::<4>(q[h]);
                fifth[h] = _mm512_srli_epi32::<1>(fifth[h]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = sub_scales(halves(u16_at(block, fields::q6_k::D)), load16(at(block, fields::q6_k::SC)));
    let (low, top, bias) = (_mm_set1_epi8(15), _mm_set1_epi8(48), _mm_set1_epi8(32));
    for p in 0..2 {
        for h in 0..2 {
            let ql = [0, 32].map(|at_| load16(at(block, fields::q6_k::QL + 64 * p + at_ + 16 * h)));
            let qh = load16(at(block, fields::q6_k::QH + 32 * p + 16 * h));
            let high = [_mm_slli_epi16::<4>(qh), _mm_slli_epi16::<2>(qh), qh, _mm_srli_epi16::<2>(qh)];
            for (r, high) in high.into_iter().enumerate() {
                let q = if r < 2 { ql[r] } else { _mm_srli_epi16::<4>(ql[r - 2]) };
                let six = _mm_or_si128(_mm_and_si128(q, low), _mm_and_si128(high, top));
                let run = 2 * (4 * p + r) + h;
                store(run16(out, run), scaled(_mm_sub_epi8(six, bias), _mm512_set1_ps(scale[run])));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq4_xs::D));
    let low = u32_at(block, fields::iq4_xs::SL);
    let high = u32::from(u16_at(block, fields::iq4_xs::SH));
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = (low >> (4 * b) & 15 | (high >> (2 * b) & 3) << 4).cast_signed() - 32;
        let scale = _mm512_cvtepi32_ps(_mm512_set1_epi32(scale));
        nibbles(at(block, fields::iq4_xs::Q + 16 * b), table(_mm512_mul_ps(d, scale), &IQ4), out);
    }
}
