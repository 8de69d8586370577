//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::x86_64::*;

use ninfer_formats::float::f16;
use ninfer_formats::{GroupCode, GroupedScheme, unpack_codes};

use super::gguf_legacy::{BIT_TO_4, FIELDS_OF_2, as_f32, codes_from, four, table};
use super::prims::*;

static OFFSET_2: [f32; 16] = four([-1, 0, 1, 2]);
static SIGNED_2: [f32; 16] = four([0, 1, -2, -1]);
static SIGNED_4: [f32; 16] = as_f32([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
static SIGNED_5: [[f32; 16]; 2] = [codes_from(0), codes_from(-16)];
/// Shifts that bring nibble `l` of a pair of words, eight lanes each, to the bottom of lane `l`.
static NIBBLES: [i32; 16] = {
    let mut t = LANES;
    let mut i = 0;
    while i < 16 {
        t[i] = t[i] % 8 * 4;
        i += 1;
    }
    t
};
/// Rotations that bring two-bit field `l` of a word to bits 4 and 5 of lane `l`.
static FIELD_TO_4: [i32; 16] = ramp(-4, 2);

/// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
    match (s.bits, s.code) {
        (2, GroupCode::OffsetByOne) => groups::<64, 16, 0>(s, base, high, scales, out, |b, _, d, out| {
            twos(b, table(d, &OFFSET_2), out);
        }),
        (2, GroupCode::TwosComplement) => {
            groups::<128, 32, 0>(s, base, high, scales, out, |b, _, d, out| {
                twos(b, table(d, &SIGNED_2), out);
            });
        }
        (4, _) => groups::<64, 32, 0>(s, base, high, scales, out, |b, h, d, out| q4(b, h, d, out)),
        (5, _) => groups::<64, 32, 8>(s, base, high, scales, out, |b, h, d, out| q5(b, h, d, out)),
        (6, _) => groups::<64, 32, 16>(s, base, high, scales, out, |b, h, d, out| q6(b, h, d, out)),
        _ => groups::<32, 32, 0>(s, base, high, scales, out, |b, _, d, out| {
            store(run16(out, 0), scaled(load16(at(b, 0)), d));
            store(run16(out, 1), scaled(load16(at(b, 16)), d));
        }),
    }
}

/// Runs `group` over the groups of G elements, B bytes in the base plane and H in the high plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn groups<const G: usize, const B: usize, const H: usize>(
    s: &GroupedScheme,
    base: &[u8],
    high: &[u8],
    scales: &[u8],
    out: &mut [f32],
    group: impl Fn(&[u8; B], &[u8; H], __m512, &mut [f32; G]),
) {
    let base = base.as_chunks::<B>().0;
    let words = scales.as_chunks::<2>().0;
    let (whole, tail) = out.as_chunks_mut::<G>();
    let count = whole.len();
    for (g, ((out, base), word)) in whole.iter_mut().zip(base).zip(words).enumerate() {
        group(base, at(high, g * H), halves(u16::from_le_bytes(*word)), out);
    }
    if !tail.is_empty() {
        let mut lanes = [0; G];
        unpack_codes(s, &base[count], &high[count * H..(count + 1) * H], &mut lanes);
        let d = f16::to_f32(u16::from_le_bytes(words[count]));
        for (o, &q) in tail.iter_mut().zip(&lanes) {
            *o = d * f32::from(q);
        }
    }
}

/// Two-bit fields, lowest lane lowest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn twos(base: &[u8], table: __m512, out: &mut [f32]) {
    let shifts = load_i32(&FIELDS_OF_2);
    for (word, out) in base.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<16>().0) {
        let word = _mm512_set1_epi32(i32::from_le_bytes(*word));
        store(out, _mm512_permutexvar_ps(_mm512_srlv_epi32(word, shifts), table));
    }
}

/// Sixteen lanes with a nibble each at the bottom, from eight bytes of two, the lower first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn interleaved_nibbles(bytes: &[u8; 8]) -> __m512i {
    let both = _mm512_set1_epi32(u32_at(bytes, 0).cast_signed());
    let both = _mm512_mask_set1_epi32(both, 0xff00, u32_at(bytes, 4).cast_signed());
    _mm512_srlv_epi32(both, load_i32(&NIBBLES))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q4(base: &[u8; 32], _: &[u8; 0], d: __m512, out: &mut [f32; 64]) {
    let table = table(d, &SIGNED_4);
    for (i, bytes) in base.as_chunks::<8>().0.iter().enumerate() {
        store(run16(out, i), _mm512_permutexvar_ps(interleaved_nibbles(bytes), table));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q5(base: &[u8; 32], high: &[u8; 8], d: __m512, out: &mut [f32; 64]) {
    let tables = [table(d, &SIGNED_5[0]), table(d, &SIGNED_5[1])];
    let (nibble, rotations) = (_mm512_set1_epi32(15), load_i32(&BIT_TO_4[0]));
    for (i, bytes) in base.as_chunks::<8>().0.iter().enumerate() {
        let fifth = _mm512_set1_epi32(i32::from(u16_at(high, 2 * i)));
        let index = select(nibble, interleaved_nibbles(bytes), _mm512_rorv_epi32(fifth, rotations));
        store(run16(out, i), _mm512_permutex2var_ps(tables[0], index, tables[1]));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q6(base: &[u8; 32], high: &[u8; 16], d: __m512, out: &mut [f32; 64]) {
    let (nibble, rotations) = (_mm512_set1_epi32(15), load_i32(&FIELD_TO_4));
    for (i, bytes) in base.as_chunks::<8>().0.iter().enumerate() {
        let top = _mm512_set1_epi32(u32_at(high, 4 * i).cast_signed());
        let six = select(nibble, interleaved_nibbles(bytes), _mm512_rorv_epi32(top, rotations));
        // The sign bit of the code to the top of the lane and back clears what lies above.
        let code = _mm512_srai_epi32::<26>(_mm512_slli_epi32::<26>(six));
        store(run16(out, i), _mm512_mul_ps(d, _mm512_cvtepi32_ps(code)));
    }
}
