//! Blocks of grid codes: sixteen values come from two entries of eight or four of four.
//!
//! Tables hold binary32, so that an entry needs neither widening nor conversion, but for the largest, which would not
//! leave room in the first-level cache. Where a block's entries lie is worked out for all at once and stored. Signs are
//! put on the scale.

#![allow(clippy::needless_range_loop, reason = "a number of several arrays and of `put`")]

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, iq1_m_scale};
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::prims::*;
use crate::column16::rows;

static DELTAS: [[u8; 16]; 2] = [[1; 16], [255; 16]];
/// By bit 0 what is added to the first eight values, by bit 4 to the others.
static PAIRS_OF_DELTAS: [[u8; 16]; 18] = {
    let mut pairs = [[1; 16]; 18];
    let mut i = 0;
    while i < 18 * 16 {
        if (i / 16) >> (i % 16 / 8 * 4) & 1 == 1 {
            pairs[i / 16][i % 16] = 255;
        }
        i += 1;
    }
    pairs
};

/// Two entries of eight bytes, from the `i`th on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two<const N: usize>(table: &[[i8; 8]; N], places: &Places<8, N>, i: usize) -> __m128i {
    // SAFETY: each reads the eight bytes of its entry.
    let [a, b] = [i, i + 1].map(|i| unsafe { _mm_loadl_epi64(places.entry(table, i).as_ptr().cast()) });
    _mm_unpacklo_epi64(a, b)
}

/// A grid's entries as binary32.
const fn widened<const L: usize, const N: usize>(table: &[[i8; L]; N]) -> [[f32; L]; N] {
    let mut out = [[0.0; L]; N];
    let mut i = 0;
    while i < N * L {
        out[i / L][i % L] = table[i / L][i % L] as f32;
        i += 1;
    }
    out
}
static IQ2_XXS_F32: [[f32; 8]; 256] = widened(&IQ2_XXS);
static IQ2_XS_F32: [[f32; 8]; 512] = widened(&IQ2_XS);
static IQ2_S_F32: [[f32; 8]; 1024] = widened(&IQ2_S);
static IQ3_XXS_F32: [[f32; 4]; 256] = widened(&IQ3_XXS);
static IQ3_S_F32: [[f32; 4]; 512] = widened(&IQ3_S);

/// Where 32 entries of a table of `N` entries of `BYTES` bytes begin, in bytes from its beginning.
#[derive(Clone, Copy)]
struct Places<const BYTES: usize, const N: usize>([u16; 32]);

impl<const BYTES: usize, const N: usize> Places<BYTES, N> {
    const NONE: Self = Self([0; 32]);

    /// The places of entries with these numbers, which are words whose upper bits do not count. The only way to other
    /// places than [`Self::NONE`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn of(index: __m512i) -> Self {
        const { assert!(N.is_power_of_two() && BYTES.is_power_of_two() && N * BYTES <= 1 << 16) };
        let shift = _mm_cvtsi32_si128(const { BYTES.trailing_zeros() as i32 });
        let inside = _mm512_set1_epi16(const { ((N - 1) * BYTES) as i16 });
        let places = _mm512_and_si512(_mm512_sll_epi16(index, shift), inside);
        let mut out = Self::NONE;
        // SAFETY: writes the 64 bytes of the places.
        unsafe { _mm512_storeu_si512(out.0.as_mut_ptr().cast(), places) };
        out
    }

    /// Entry `i` of the 32.
    #[inline(always)]
    fn entry<'a, T>(&self, table: &'a [T; N], i: usize) -> &'a T {
        const { assert!(size_of::<T>() == BYTES) };
        // SAFETY: all places are multiples of an entry's bytes below the table's.
        unsafe { &*table.as_ptr().byte_add(usize::from(self.0[i])) }
    }
}

/// Two entries of eight values, from the `i`th on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn of_two<const N: usize>(table: &[[f32; 8]; N], places: &Places<32, N>, i: usize) -> __m512 {
    // SAFETY: each reads the 32 bytes of its entry.
    let [a, b] = [i, i + 1].map(|i| unsafe { _mm256_loadu_ps(places.entry(table, i).as_ptr()) });
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(a), b)
}

/// Four entries of four values, from the `i`th on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn of_four<const N: usize>(table: &[[f32; 4]; N], places: &Places<16, N>, i: usize) -> __m512 {
    // SAFETY: each reads the 16 bytes of its entry.
    let [a, b, c, d] =
        [i, i + 1, i + 2, i + 3].map(|i| unsafe { _mm_loadu_ps(places.entry(table, i).as_ptr()) });
    let ab = _mm512_insertf32x4::<1>(_mm512_castps128_ps512(a), b);
    _mm512_insertf32x4::<3>(_mm512_insertf32x4::<2>(ab, c), d)
}

/// Sixteen entries of a grid, none of which is zero, times a scale, negative where the bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn signed(grid: __m512, scale: f32, signs: u16) -> __m512 {
    let d = _mm512_set1_ps(scale);
    _mm512_mul_ps(grid, _mm512_mask_xor_ps(d, signs, d, _mm512_set1_ps(-0.0)))
}

/// Eight bytes as indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eight_bytes(bytes: &[u8; 8]) -> __m512i {
    // SAFETY: reads the eight bytes.
    _mm512_cvtepu8_epi64(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) })
}

/// Bytes of seven bits with their parity as the eighth.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_parity(s: __m256i) -> [u8; 32] {
    // Parity of a nibble, at the bit of the eighth.
    let parity = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,
    ));
    let low = _mm256_set1_epi8(15);
    let p = _mm256_shuffle_epi8(parity, _mm256_and_si256(s, low));
    let q = _mm256_shuffle_epi8(parity, _mm256_and_si256(_mm256_srli_epi16::<4>(s), low));
    let mut out = [0; 32];
    // SAFETY: writes the 32 bytes of `out`.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_or_si256(s, _mm256_xor_si256(p, q))) };
    out
}

/// Four fields of seven bits of every 32-bit lane, as signs: bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn four_signs(a: __m256i) -> [u8; 32] {
    let field = |v, mask| _mm256_and_si256(v, _mm256_set1_epi32(mask));
    let low = _mm256_or_si256(field(a, 0x7f), field(_mm256_slli_epi32::<1>(a), 0x7f00));
    let high = _mm256_or_si256(
        field(_mm256_slli_epi32::<2>(a), 0x7f_0000),
        field(_mm256_slli_epi32::<3>(a), 0x7f00_0000),
    );
    with_parity(_mm256_or_si256(low, high))
}

/// `d` times `2 * s + 1` times a power of two for sixteen sub-scales of four bits, one a byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::arch::x86_64) fn sub_scales(d: __m512, s: __m128i, unit: f32) -> [f32; 16] {
    let odd = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_add_epi8(s, s)), _mm512_set1_epi32(1));
    let odd = _mm512_mul_ps(_mm512_cvtepi32_ps(odd), _mm512_set1_ps(unit));
    let mut out = [0.0; 16];
    store(&mut out, _mm512_mul_ps(d, odd));
    out
}

/// The nibbles of eight bytes, the lower one first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::arch::x86_64) fn nibbles(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: reads the eight bytes.
    let q = _mm_cvtepu8_epi16(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) });
    _mm_and_si128(_mm_or_si128(q, _mm_slli_epi16::<4>(q)), _mm_set1_epi8(15))
}

/// Every byte of eight twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::arch::x86_64) fn twice(v: __m128i) -> __m128i {
    _mm_unpacklo_epi8(v, v)
}

/// The lower bytes of eight words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::arch::x86_64) fn low_bytes(v: __m256i) -> __m128i {
    _mm256_cvtepi32_epi8(v)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xxs<const R: usize>(blocks: [&[u8; 66]; R], out: &mut impl Runs) {
    let (mut scales, mut signs, mut places) = ([[0.0; 16]; R], [[0; 32]; R], [Places::NONE; R]);
    rows!(R, r, {
        // Four indices, then four fields of signs and a sub-scale, for 32 values.
        let records = load64(at(blocks[r], fields::iq2_xxs::Q));
        let a = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(records));
        let s = low_bytes(_mm256_srli_epi32::<28>(a));
        scales[r] = sub_scales(half_at(blocks[r], fields::iq2_xxs::D), twice(s), 0.125);
        signs[r] = four_signs(a);
        places[r] = Places::of(_mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(records)));
    });
    let (scales, signs, places) = (kept(&scales), kept(&signs), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            let grid = of_two(&IQ2_XXS_F32, &places[r], 2 * run);
            out.put(r, run, signed(grid, scales[r][run], u16_at(&signs[r], 2 * run)));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xs<const R: usize>(blocks: [&[u8; 74]; R], out: &mut impl Runs) {
    let (mut scales, mut signs, mut places) = ([[0.0; 16]; R], [[0; 32]; R], [Places::NONE; R]);
    rows!(R, r, {
        let block = blocks[r];
        let s = nibbles(at(block, fields::iq2_xs::S));
        scales[r] = sub_scales(half_at(block, fields::iq2_xs::D), s, 0.125);
        let words = load64(at(block, fields::iq2_xs::Q));
        signs[r] = with_parity(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words)));
        places[r] = Places::of(words);
    });
    let (scales, signs, places) = (kept(&scales), kept(&signs), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            let grid = of_two(&IQ2_XS_F32, &places[r], 2 * run);
            out.put(r, run, signed(grid, scales[r][run], u16_at(&signs[r], 2 * run)));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_s<const R: usize>(blocks: [&[u8; 82]; R], out: &mut impl Runs) {
    let (mut scales, mut places) = ([[0.0; 16]; R], [Places::NONE; R]);
    rows!(R, r, {
        let block = blocks[r];
        scales[r] = sub_scales(half_at(block, fields::iq2_s::D), nibbles(at(block, fields::iq2_s::S)), 0.125);
        // Four fields of a byte to bits 8 and 9 of four words.
        let high = eight_bytes(at(block, fields::iq2_s::QH));
        let even = _mm512_or_si512(_mm512_slli_epi64::<8>(high), _mm512_slli_epi64::<22>(high));
        let odd = _mm512_or_si512(_mm512_slli_epi64::<36>(high), _mm512_slli_epi64::<50>(high));
        let high = _mm512_and_si512(_mm512_or_si512(even, odd), _mm512_set1_epi16(0x300));
        let low = _mm512_cvtepu8_epi16(load32(at(block, fields::iq2_s::Q)));
        places[r] = Places::of(_mm512_or_si512(low, high));
    });
    let (scales, places) = (kept(&scales), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            let grid = of_two(&IQ2_S_F32, &places[r], 2 * run);
            let signs = u16_at(blocks[r], fields::iq2_s::SG + 2 * run);
            out.put(r, run, signed(grid, scales[r][run], signs));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_xxs<const R: usize>(blocks: [&[u8; 98]; R], out: &mut impl Runs) {
    let (mut scales, mut signs, mut places) = ([[0.0; 16]; R], [[0; 32]; R], [[Places::NONE; 2]; R]);
    rows!(R, r, {
        let block = blocks[r];
        let a = load32(at(block, fields::iq3_xxs::A));
        let s = low_bytes(_mm256_srli_epi32::<28>(a));
        scales[r] = sub_scales(half_at(block, fields::iq3_xxs::D), twice(s), 0.25);
        signs[r] = four_signs(a);
        for half in 0..2 {
            let bytes = load32(at(block, fields::iq3_xxs::Q + 32 * half));
            places[r][half] = Places::of(_mm512_cvtepu8_epi16(bytes));
        }
    });
    let (scales, signs, places) = (kept(&scales), kept(&signs), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            let grid = of_four(&IQ3_XXS_F32, &places[r][run / 8], 4 * (run % 8));
            out.put(r, run, signed(grid, scales[r][run], u16_at(&signs[r], 2 * run)));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_s<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
    let (mut scales, mut places) = ([[0.0; 16]; R], [[Places::NONE; 2]; R]);
    rows!(R, r, {
        let block = blocks[r];
        // Four bytes of two nibbles.
        let word = u32_at(block, fields::iq3_s::S);
        let s = nibbles(&u64::from(word).to_le_bytes());
        scales[r] = sub_scales(half_at(block, fields::iq3_s::D), twice(s), 1.0);
        for half in 0..2 {
            let low = _mm512_cvtepu8_epi16(load32(at(block, fields::iq3_s::Q + 32 * half)));
            let ninth = u32_at(block, fields::iq3_s::QH + 4 * half);
            places[r][half] = Places::of(_mm512_mask_add_epi16(low, ninth, low, _mm512_set1_epi16(256)));
        }
    });
    let (scales, places) = (kept(&scales), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            let grid = of_four(&IQ3_S_F32, &places[r][run / 8], 4 * (run % 8));
            let signs = u16_at(blocks[r], fields::iq3_s::SG + 2 * run);
            out.put(r, run, signed(grid, scales[r][run], signs));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_s<const R: usize>(blocks: [&[u8; 50]; R], out: &mut impl Runs) {
    let (mut scales, mut places) = ([[0.0; 16]; R], [Places::NONE; R]);
    rows!(R, r, {
        let words = load16(at(blocks[r], fields::iq1_s::QH));
        let s = _mm_and_si128(_mm_cvtepi16_epi8(_mm_srli_epi16::<12>(words)), _mm_set1_epi8(7));
        scales[r] = sub_scales(half_at(blocks[r], fields::iq1_s::D), twice(s), 0.125);
        // Four fields of a word to bits 8 to 10 of four words.
        let high = _mm512_cvtepu16_epi64(words);
        let even = _mm512_or_si512(_mm512_slli_epi64::<8>(high), _mm512_slli_epi64::<21>(high));
        let odd = _mm512_or_si512(_mm512_slli_epi64::<34>(high), _mm512_slli_epi64::<47>(high));
        let high = _mm512_and_si512(_mm512_or_si512(even, odd), _mm512_set1_epi16(0x700));
        let low = _mm512_cvtepu8_epi16(load32(at(blocks[r], fields::iq1_s::Q)));
        places[r] = Places::of(_mm512_or_si512(low, high));
    });
    let (scales, places) = (kept(&scales), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            // `8 * grid - 1` where the top bit of the word is set, else `8 * grid + 1`.
            let delta = load16(&DELTAS[usize::from(blocks[r][fields::iq1_s::QH + run / 2 * 2 + 1] >> 7)]);
            let codes = _mm_add_epi8(two(&IQ1_TIMES_8, &places[r], 2 * run), delta);
            out.put(r, run, scaled(codes, _mm512_set1_ps(scales[r][run])));
        });
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_m<const R: usize>(blocks: [&[u8; 56]; R], out: &mut impl Runs) {
    let (mut scales, mut places) = ([[0.0; 16]; R], [Places::NONE; R]);
    rows!(R, r, {
        let block = blocks[r];
        let s = at(block, fields::iq1_m::S);
        // Four words of four sub-scales of three bits.
        let words = _mm256_cvtepu16_epi64(_mm_set_epi64x(0, i64::from_le_bytes(*s)));
        let field = |v, mask| _mm256_and_si256(v, _mm256_set1_epi64x(mask));
        let low = _mm256_or_si256(field(words, 7), field(_mm256_slli_epi64::<5>(words), 0x700));
        let high = _mm256_or_si256(
            field(_mm256_slli_epi64::<10>(words), 0x7_0000),
            field(_mm256_slli_epi64::<15>(words), 0x700_0000),
        );
        let s_bytes = _mm256_cvtepi64_epi32(_mm256_or_si256(low, high));
        scales[r] = sub_scales(halves(iq1_m_scale(s)), s_bytes, 0.125);
        // The lower nibble of a byte to bits 8 to 10 of a word, the upper one to those of the next.
        let high = widen(at(block, fields::iq1_m::QH));
        let high = _mm512_or_si512(_mm512_slli_epi32::<8>(high), _mm512_slli_epi32::<20>(high));
        let low = _mm512_cvtepu8_epi16(load32(at(block, fields::iq1_m::Q)));
        places[r] = Places::of(_mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi16(0x700))));
    });
    let (scales, places) = (kept(&scales), kept(&places));
    for run in 0..16 {
        rows!(R, r, {
            // Bit 3 of every nibble.
            let delta = load16(&PAIRS_OF_DELTAS[usize::from(blocks[r][fields::iq1_m::QH + run] & 0x88) / 8]);
            let codes = _mm_add_epi8(two(&IQ1_TIMES_8, &places[r], 2 * run), delta);
            out.put(r, run, scaled(codes, _mm512_set1_ps(scales[r][run])));
        });
    }
}
