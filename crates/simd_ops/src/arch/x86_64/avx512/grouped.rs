//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::x86_64::*;

use ninfer_formats::{GroupCode, GroupedScheme};

use super::gguf_legacy::{FIELDS_OF_2, as_f32, four, table};
use super::prims::*;
use crate::column16::{OFFSET_BY_ONE, last_group, shape};

static OFFSET_2: [f32; 16] = four([-1, 0, 1, 2]);
static SIGNED_2: [f32; 16] = four([0, 1, -2, -1]);
static SIGNED_4: [f32; 16] = as_f32([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
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
/// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
    match (s.bits, s.code) {
        (2, GroupCode::OffsetByOne) => groups::<OFFSET_BY_ONE, 64>(s, base, high, scales, out),
        (2, GroupCode::TwosComplement) => groups::<2, 128>(s, base, high, scales, out),
        (4, _) => groups::<4, 64>(s, base, high, scales, out),
        (5, _) => groups::<5, 64>(s, base, high, scales, out),
        (6, _) => groups::<6, 64>(s, base, high, scales, out),
        _ => groups::<8, 32>(s, base, high, scales, out),
    }
}

/// [`row`] for one kind, with G values a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn groups<const KIND: u8, const G: usize>(
    s: &GroupedScheme,
    base: &[u8],
    high: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    let [_, b, h] = const { shape(KIND) };
    let words = scales.as_chunks::<2>().0;
    let (whole, tail) = out.as_chunks_mut::<G>();
    let count = whole.len();
    for (g, (out, word)) in whole.iter_mut().zip(words).enumerate() {
        let d = _mm512_cvtss_f32(halves(u16::from_le_bytes(*word)));
        group::<KIND>(&base[g * b..(g + 1) * b], &high[g * h..(g + 1) * h], d, 0, out);
    }
    if !tail.is_empty() {
        last_group(s, &base[count * b..], &high[count * h..], &scales[2 * count..], tail);
    }
}

/// The values of a group, given its bytes in both planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn group<const KIND: u8>(base: &[u8], high: &[u8], d: f32, r: usize, out: &mut impl Runs) {
    let d = _mm512_set1_ps(d);
    match KIND {
        OFFSET_BY_ONE => twos(base, table(d, &OFFSET_2), r, out),
        2 => twos(base, table(d, &SIGNED_2), r, out),
        4 => q4(base, d, r, out),
        5 => q5(base, high, d, r, out),
        6 => q6(base, high, d, r, out),
        _ => {
            out.put(r, 0, scaled(load16(at(base, 0)), d));
            out.put(r, 1, scaled(load16(at(base, 16)), d));
        }
    }
}

/// Two-bit fields, lowest lane lowest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn twos(base: &[u8], table: __m512, r: usize, out: &mut impl Runs) {
    let shifts = load_i32(&FIELDS_OF_2);
    for (i, word) in base.as_chunks::<4>().0.iter().enumerate() {
        let word = _mm512_set1_epi32(i32::from_le_bytes(*word));
        out.put(r, i, _mm512_permutexvar_ps(_mm512_srlv_epi32(word, shifts), table));
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
fn q4(base: &[u8], d: __m512, r: usize, out: &mut impl Runs) {
    let table = table(d, &SIGNED_4);
    for (i, bytes) in base.as_chunks::<8>().0.iter().enumerate() {
        out.put(r, i, _mm512_permutexvar_ps(interleaved_nibbles(bytes), table));
    }
}

/// 64 nibbles of 32 bytes, the lower of each byte first, as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nibbles_of_64(base: &[u8]) -> __m512i {
    let q = _mm512_cvtepu8_epi16(load32(at(base, 0)));
    _mm512_and_si512(_mm512_or_si512(q, _mm512_slli_epi16::<4>(q)), _mm512_set1_epi8(15))
}

/// 64 codes times their scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scaled_64(codes: __m512i, d: __m512, r: usize, out: &mut impl Runs) {
    for i in 0..4 {
        out.put(r, i, _mm512_mul_ps(d, numbers(codes, i)));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q5(base: &[u8], high: &[u8], d: __m512, r: usize, out: &mut impl Runs) {
    let q = nibbles_of_64(base);
    let negative = u64::from_le_bytes(*at(high, 0));
    scaled_64(_mm512_mask_sub_epi8(q, negative, q, _mm512_set1_epi8(16)), d, r, out);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q6(base: &[u8], high: &[u8], d: __m512, r: usize, out: &mut impl Runs) {
    // The four fields of a byte move to bits 4 and 5 of the bytes of a word; what else lands there is masked off.
    let top = _mm512_slli_epi32::<4>(_mm512_cvtepu8_epi32(load16(at(high, 0))));
    let top = _mm512_or_si512(top, _mm512_slli_epi32::<6>(top));
    let top = _mm512_or_si512(top, _mm512_slli_epi32::<12>(top));
    let (fields, sign) = (_mm512_set1_epi8(0x30), _mm512_set1_epi8(32));
    // Two's complement: with the sign bit flipped, greater by 32.
    let codes = _mm512_or_si512(nibbles_of_64(base), _mm512_and_si512(top, fields));
    scaled_64(_mm512_sub_epi8(_mm512_xor_si512(codes, sign), sign), d, r, out);
}
