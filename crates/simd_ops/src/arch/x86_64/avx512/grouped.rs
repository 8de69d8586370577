//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::x86_64::*;

use super::gguf_legacy::{FIELDS_OF_2, as_f32, codes_from, four, table};
use super::prims::*;
use crate::arch::decoders::grouped_rows;
use crate::isa::avx512_entry;

grouped_rows!(avx512_entry);

static OFFSET_2: [f32; 16] = four([-1, 0, 1, 2]);
static SIGNED_2: [f32; 16] = four([0, 1, -2, -1]);
pub(in crate::arch::x86_64) static SIGNED_5: [[f32; 16]; 2] = [codes_from(0), codes_from(-16)];
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
/// A pair of words, eight lanes each.
static PAIRS: [[i32; 16]; 4] = {
    let mut t = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        t[i / 16][i % 16] = (i / 8) as i32;
        i += 1;
    }
    t
};
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
        // Turned: a shift by constants is made two instructions by the compiler.
        out.put(r, i, _mm512_permutexvar_ps(_mm512_rorv_epi32(word, shifts), table));
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
    let (words, table) = (load32(at(base, 0)), table(d, &SIGNED_4));
    for i in 0..4 {
        out.put(r, i, _mm512_permutexvar_ps(nibbles_of_pair(words, i), table));
    }
}

/// Sixteen lanes with a nibble each at the bottom, from words `2 * i` and `2 * i + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn nibbles_of_pair(words: __m256i, i: usize) -> __m512i {
    let pair = _mm512_permutexvar_epi32(load_i32(&PAIRS[i]), _mm512_castsi256_si512(words));
    _mm512_rorv_epi32(pair, load_i32(&NIBBLES))
}

/// 64 nibbles of 32 bytes, the lower of each byte first, as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nibbles_of_64(base: &[u8]) -> __m512i {
    let q = _mm512_cvtepu8_epi16(load32(at(base, 0)));
    _mm512_and_si512(_mm512_or_si512(q, _mm512_slli_epi16::<4>(q)), _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q5(base: &[u8], high: &[u8], d: __m512, r: usize, out: &mut impl Runs) {
    let q = nibbles_of_64(base);
    let negative = u64::from_le_bytes(*at(high, 0));
    let mut codes = [0; 64];
    store64(&mut codes, _mm512_mask_sub_epi8(q, negative, q, _mm512_set1_epi8(16)));
    let (codes, [low, high]) = (kept(&codes), SIGNED_5.each_ref().map(|values| table(d, values)));
    for i in 0..4 {
        out.put(r, i, _mm512_permutex2var_ps(low, widen(at(codes, 16 * i)), high));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q6(base: &[u8], high: &[u8], d: __m512, r: usize, out: &mut impl Runs) {
    // Six bits at the top of each byte: the nibbles of a byte of the base plane to bits 2 to 5 of two bytes, the fields
    // of a byte of the high plane to bits 6 and 7 of four; what else lands elsewhere is masked off.
    let q = _mm512_cvtepu8_epi16(load32(at(base, 0)));
    let low = _mm512_or_si512(_mm512_slli_epi16::<2>(q), _mm512_slli_epi16::<6>(q));
    let low = _mm512_and_si512(low, _mm512_set1_epi8(0x3c));
    let top = widen(at(high, 0));
    let top = _mm512_or_si512(_mm512_slli_epi32::<6>(top), _mm512_slli_epi32::<12>(top));
    let top = _mm512_or_si512(top, _mm512_slli_epi32::<12>(top));
    let mut codes = [0; 64];
    store64(&mut codes, select(_mm512_set1_epi8(0xc0u8.cast_signed()), top, low));
    // Four times a code times a quarter of the scale.
    let (codes, quarter) = (kept(&codes), _mm512_mul_ps(d, _mm512_set1_ps(0.25)));
    for i in 0..4 {
        out.put(r, i, scaled(load16(at(codes, 16 * i)), quarter));
    }
}
