//! Blocks of grid codes: 64 values at a time come from eight entries of eight or sixteen of four, signs from a bit mask.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{fields, iq1_m_scale};
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::prims::*;
use crate::arch::x86_64::lanes::PARITY;
use crate::column16::rows;

/// Eight entries of eight bytes; indices are taken modulo the table's length.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eights<const N: usize>(table: &[[i8; 8]; N], index: __m512i) -> __m512i {
    const { assert!(N.is_power_of_two()) };
    let index = _mm512_and_si512(index, _mm512_set1_epi64(const { N as i64 - 1 }));
    // SAFETY: every index is below N.
    unsafe { _mm512_i64gather_epi64::<8>(index, table.as_ptr().cast()) }
}

static DELTAS: [[u8; 16]; 2] = [[1; 16], [255; 16]];

/// Two entries of eight bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn two<const N: usize>(table: &[[i8; 8]; N], a: usize, b: usize) -> __m128i {
    // SAFETY: each reads the eight bytes of its entry.
    let (a, b) =
        unsafe { (_mm_loadl_epi64(table[a].as_ptr().cast()), _mm_loadl_epi64(table[b].as_ptr().cast())) };
    _mm_unpacklo_epi64(a, b)
}

/// Sixteen entries of four bytes; indices are taken modulo the table's length.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fours<const N: usize>(table: &[[i8; 4]; N], index: __m512i) -> __m512i {
    const { assert!(N.is_power_of_two()) };
    let index = _mm512_and_si512(index, _mm512_set1_epi32(const { N as i32 - 1 }));
    // SAFETY: every index is below N.
    unsafe { _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast()) }
}

/// Eight bytes as indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eight_bytes(bytes: &[u8; 8]) -> __m512i {
    // SAFETY: reads the eight bytes.
    _mm512_cvtepu8_epi64(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) })
}

/// Eight fields of a word, `step` bits apart, with bit 0 of each at bit 8 of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fields_to_8(word: u32, places: &[i64; 8]) -> __m512i {
    // SAFETY: reads the 64 bytes of `places`.
    let shifts = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
    _mm512_rorv_epi64(_mm512_set1_epi64(i64::from(word)), shifts)
}

/// `index` with the bits `mask` of `fields`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_upper(index: __m512i, fields: __m512i, mask: i64) -> __m512i {
    _mm512_ternarylogic_epi64::<0xf8>(index, fields, _mm512_set1_epi64(mask))
}

/// Rotations for [`fields_to_8`] of fields that begin at these bits.
const fn places(bits: [i64; 8]) -> [i64; 8] {
    let mut out = [0; 8];
    let mut i = 0;
    while i < 8 {
        out[i] = (bits[i] - 8) & 63;
        i += 1;
    }
    out
}
static BY_2: [i64; 8] = places([0, 2, 4, 6, 8, 10, 12, 14]);
static BY_4: [i64; 8] = places([0, 4, 8, 12, 16, 20, 24, 28]);

/// Negates the bytes whose bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn negate(codes: __m512i, signs: u64) -> __m512i {
    _mm512_mask_sub_epi8(codes, signs, _mm512_setzero_si512(), codes)
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

/// Eight bytes from `8 * i` on as bits.
#[inline(always)]
fn bits_at(bytes: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(*at(bytes, 8 * i))
}

/// The numbers of 64 values times their scales, for every row side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn put_64<const R: usize>(codes: [__m512i; R], scales: &[[f32; 16]; R], first: usize, out: &mut impl Runs) {
    let scales = kept(scales);
    for j in 0..4 {
        rows!(R, r, {
            let (codes, scale) = (codes[r], &scales[r]);
            let run = first + j;
            out.put(r, run, _mm512_mul_ps(_mm512_set1_ps(scale[run]), numbers(codes, j)));
        });
    }
}

/// `d` times `2 * s + 1` times a power of two for sixteen sub-scales of four bits, one a byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sub_scales(d: u16, s: __m128i, unit: f32) -> [f32; 16] {
    let odd = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_add_epi8(s, s)), _mm512_set1_epi32(1));
    let odd = _mm512_mul_ps(_mm512_cvtepi32_ps(odd), _mm512_set1_ps(unit));
    let mut out = [0.0; 16];
    store(&mut out, _mm512_mul_ps(halves(d), odd));
    out
}

/// The nibbles of eight bytes, the lower one first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nibbles(bytes: &[u8; 8]) -> __m128i {
    // SAFETY: reads the eight bytes.
    let q = _mm_cvtepu8_epi16(unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) });
    _mm_and_si128(_mm_or_si128(q, _mm_slli_epi16::<4>(q)), _mm_set1_epi8(15))
}

/// Every byte of eight twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn twice(v: __m128i) -> __m128i {
    _mm_unpacklo_epi8(v, v)
}

/// The lower bytes of eight words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn low_bytes(v: __m256i) -> __m128i {
    _mm256_cvtepi32_epi8(v)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xxs<const R: usize>(blocks: [&[u8; 66]; R], out: &mut impl Runs) {
    let mut scales = [[0.0; 16]; R];
    rows!(R, r, {
        // Four indices, then four fields of signs and a sub-scale, for 32 values.
        let records = load64(at(blocks[r], fields::iq2_xxs::Q));
        let s = _mm512_cvtepi64_epi8(_mm512_srli_epi64::<60>(records));
        scales[r] = sub_scales(u16_at(blocks[r], fields::iq2_xxs::D), twice(s), 0.125);
    });
    let scales = kept(&scales);
    for b in 0..8 {
        for h in 0..2 {
            rows!(R, r, {
                let record = at::<8>(blocks[r], fields::iq2_xxs::Q + 8 * b);
                let a = u32_at(record, fields::iq2_xxs::A_IN_RECORD);
                let signs = |i: usize| PARITY[(a >> (14 * h + 7 * i) & 127) as usize];
                let codes = two(&IQ2_XXS, record[2 * h].into(), record[2 * h + 1].into());
                let signs = u16::from_le_bytes([signs(0), signs(1)]);
                let codes = _mm_mask_sub_epi8(codes, signs, _mm_setzero_si128(), codes);
                out.put(r, 2 * b + h, scaled(codes, _mm512_set1_ps(scales[r][2 * b + h])));
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_xs<const R: usize>(blocks: [&[u8; 74]; R], out: &mut impl Runs) {
    let (mut scales, mut signs) = ([[0.0; 16]; R], [[0; 32]; R]);
    rows!(R, r, {
        let block = blocks[r];
        let s = nibbles(at(block, fields::iq2_xs::S));
        scales[r] = sub_scales(u16_at(block, fields::iq2_xs::D), s, 0.125);
        let words = load64(at(block, fields::iq2_xs::Q));
        signs[r] = with_parity(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words)));
    });
    let signs = kept(&signs);
    for i in 0..4 {
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let codes = &mut codes[r];
            // Nine bits count.
            let words = load16(at(blocks[r], fields::iq2_xs::Q + 16 * i));
            let entries = eights(&IQ2_XS, _mm512_cvtepu16_epi64(words));
            *codes = negate(entries, bits_at(&signs[r], i));
        });
        put_64(codes, &scales, 4 * i, out);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq2_s<const R: usize>(blocks: [&[u8; 82]; R], out: &mut impl Runs) {
    let mut scales = [[0.0; 16]; R];
    rows!(R, r, {
        let (scales, block) = (&mut scales[r], blocks[r]);
        *scales = sub_scales(u16_at(block, fields::iq2_s::D), nibbles(at(block, fields::iq2_s::S)), 0.125);
    });
    for i in 0..4 {
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let (codes, block) = (&mut codes[r], blocks[r]);
            let high = fields_to_8(u32::from(u16_at(block, fields::iq2_s::QH + 2 * i)), &BY_2);
            let index = with_upper(eight_bytes(at(block, fields::iq2_s::Q + 8 * i)), high, 0x300);
            *codes = negate(eights(&IQ2_S, index), bits_at(&block[fields::iq2_s::SG..], i));
        });
        put_64(codes, &scales, 4 * i, out);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_xxs<const R: usize>(blocks: [&[u8; 98]; R], out: &mut impl Runs) {
    let (mut scales, mut signs) = ([[0.0; 16]; R], [[0; 32]; R]);
    rows!(R, r, {
        let block = blocks[r];
        let a = load32(at(block, fields::iq3_xxs::A));
        let s = low_bytes(_mm256_srli_epi32::<28>(a));
        scales[r] = sub_scales(u16_at(block, fields::iq3_xxs::D), twice(s), 0.25);
        signs[r] = four_signs(a);
    });
    let signs = kept(&signs);
    for i in 0..4 {
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let codes = &mut codes[r];
            let entries = fours(&IQ3_XXS, widen(at(blocks[r], fields::iq3_xxs::Q + 16 * i)));
            *codes = negate(entries, bits_at(&signs[r], i));
        });
        put_64(codes, &scales, 4 * i, out);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq3_s<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
    let mut scales = [[0.0; 16]; R];
    rows!(R, r, {
        let (scales, block) = (&mut scales[r], blocks[r]);
        // Four bytes of two nibbles.
        let word = u32_at(block, fields::iq3_s::S);
        let s = nibbles(&u64::from(word).to_le_bytes());
        *scales = sub_scales(u16_at(block, fields::iq3_s::D), twice(s), 1.0);
    });
    for i in 0..4 {
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let (codes, block) = (&mut codes[r], blocks[r]);
            let index = widen(at(block, fields::iq3_s::Q + 16 * i));
            let ninth = u16_at(block, fields::iq3_s::QH + 2 * i);
            let index = _mm512_mask_add_epi32(index, ninth, index, _mm512_set1_epi32(256));
            *codes = negate(fours(&IQ3_S, index), bits_at(&block[fields::iq3_s::SG..], i));
        });
        put_64(codes, &scales, 4 * i, out);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_s<const R: usize>(blocks: [&[u8; 50]; R], out: &mut impl Runs) {
    let mut scales = [[0.0; 16]; R];
    rows!(R, r, {
        let words = _mm_srli_epi16::<12>(load16(at(blocks[r], fields::iq1_s::QH)));
        let s = _mm_and_si128(_mm_cvtepi16_epi8(words), _mm_set1_epi8(7));
        scales[r] = sub_scales(u16_at(blocks[r], fields::iq1_s::D), twice(s), 0.125);
    });
    let scales = kept(&scales);
    for b in 0..8 {
        for h in 0..2 {
            rows!(R, r, {
                let word = usize::from(u16_at(blocks[r], fields::iq1_s::QH + 2 * b));
                let code = |i: usize| {
                    usize::from(blocks[r][fields::iq1_s::Q + 4 * b + i]) | (word >> (3 * i) & 7) << 8
                };
                // `8 * grid - 1` where the top bit of the word is set, else `8 * grid + 1`.
                let delta = load16(&DELTAS[word >> 15 & 1]);
                let codes = _mm_add_epi8(two(&IQ1_TIMES_8, code(2 * h), code(2 * h + 1)), delta);
                out.put(r, 2 * b + h, scaled(codes, _mm512_set1_ps(scales[r][2 * b + h])));
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq1_m<const R: usize>(blocks: [&[u8; 56]; R], out: &mut impl Runs) {
    let mut scales = [[0.0; 16]; R];
    rows!(R, r, {
        let (scales, block) = (&mut scales[r], blocks[r]);
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
        *scales = sub_scales(iq1_m_scale(s), s_bytes, 0.125);
    });
    // Bit 3 of every nibble.
    let signs = _mm512_setr_epi64(1 << 3, 1 << 7, 1 << 11, 1 << 15, 1 << 19, 1 << 23, 1 << 27, 1 << 31);
    for i in 0..4 {
        let mut codes = [_mm512_setzero_si512(); R];
        rows!(R, r, {
            let (codes, block) = (&mut codes[r], blocks[r]);
            let words = u32_at(block, fields::iq1_m::QH + 4 * i);
            let index = eight_bytes(at(block, fields::iq1_m::Q + 8 * i));
            let entries = eights(&IQ1_TIMES_8, with_upper(index, fields_to_8(words, &BY_4), 0x700));
            let negative = _mm512_test_epi64_mask(_mm512_set1_epi64(i64::from(words)), signs);
            let delta = _mm512_mask_set1_epi64(_mm512_set1_epi8(1), negative, -1);
            *codes = _mm512_add_epi8(entries, delta);
        });
        put_64(codes, &scales, 4 * i, out);
    }
}
