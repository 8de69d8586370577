//! A16 products with one column: three-bit grids looked up in registers, and groups with two planes.
//!
//! The 64 indices of a block are the bytes of one vector. As in [`crate::lanes`] a look-up gives the numbers of two values of
//! every entry, here as the nibbles of a byte, with a bit for the sign. So a block becomes 128 bytes of nibbles in order, and
//! a table of the sixteen values that a nibble stands for, times the scale, gives sixteen weights.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::{IQ3_S, IQ3_XXS};
use ninfer_formats::{Scheme, TensorView};

use super::grouped;
use crate::arch::fetch;
use crate::arch::x86_64::avx512::column::{Acc, ROWS, Sum, add_tail, combine, scales, zero};
use crate::arch::x86_64::avx512::gguf_iq::{low_bytes, nibbles, sub_scales, twice};
use crate::arch::x86_64::avx512::prims::*;
use crate::column16::{Planes, UNIT, block_columns, column, group_columns, last_group, rows, shape};
use crate::isa::avx512_vbmi_entry;
use crate::kernels::{Columns, Scratch};
use crate::lanes::tables::{S, WITH_PARITY, XXS};
use crate::tile::Tile;

block_columns! {
    avx512_vbmi_entry;
    iq3_xxs: block_iq3_xxs, 98 -> 256;
    iq3_s: block_iq3_s, 110 -> 256;
}

group_columns! { avx512_vbmi_entry }

/// The numbers of the first two and of the last two values of every entry, in the lower three bits of nibbles.
const fn numbers_of<const N: usize>(grid: &[[i8; 4]; N], values: &[u8; 8]) -> [[u8; N]; 2] {
    let mut out = [[0; N]; 2];
    let mut i = 0;
    while i < 4 * N {
        let mut number = 0;
        while values[number] != grid[i / 4][i % 4] as u8 {
            number += 1;
        }
        out[i % 4 / 2][i / 4] |= (number as u8) << (i % 2 * 4);
        i += 1;
    }
    out
}

static XXS_NUMBERS: [[u8; 256]; 2] = numbers_of(&IQ3_XXS, &XXS);
static S_NUMBERS: [[u8; 512]; 2] = numbers_of(&IQ3_S, &S);

/// What a nibble stands for: the value of the number in its lower bits, negative if the upper bit is set.
const fn values(of: &[u8; 8]) -> [f32; 16] {
    let mut out = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        out[i] = of[i] as f32;
        out[i + 8] = -out[i];
        i += 1;
    }
    out
}

static XXS_VALUES: [f32; 16] = values(&XXS);
static S_VALUES: [f32; 16] = values(&S);

/// Of four signs of an entry the first two, or the last two, as the upper bits of nibbles.
const fn pair(first: usize) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = ((i >> first & 1) << 3 | (i >> (first + 1) & 1) << 7) as u8;
        i += 1;
    }
    out
}

static FIRST: [u8; 16] = pair(0);
static LAST: [u8; 16] = pair(2);

/// Where the nibbles of eight bytes begin.
const NIBBLES: [u8; 64] = {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 16 {
        out[4 * i] = 4 * i as u8;
        i += 1;
    }
    out
};

avx512_vbmi_entry! {
    /// Entries of a table of 256 for every byte of `index`.
    #[inline]
    fn look_up(table: &[u8; 256], index: __m512i) -> __m512i {
        let [a, b, c, d] = table.as_chunks::<64>().0 else { return index };
        let low = _mm512_permutex2var_epi8(load64(a), index, load64(b));
        let high = _mm512_permutex2var_epi8(load64(c), index, load64(d));
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high)
    }

    /// The same of a table of 512, with the ninth bits of the indices.
    #[inline]
    fn look_up_512(table: &[u8; 512], index: __m512i, ninth: u64) -> __m512i {
        let [low, high] = table.as_chunks::<256>().0 else { return index };
        _mm512_mask_blend_epi8(ninth, look_up(low, index), look_up(high, index))
    }

    /// The nibbles of a block's values in order, but that every other 32 of them are in the second array: from the numbers of the
    /// first two and of the last two values of every entry, and the signs of eight values a byte.
    #[inline]
    fn in_order(first: __m512i, last: __m512i, signs: __m256i) -> [[u8; 64]; 2] {
        let wide = _mm512_cvtepu8_epi16(signs);
        let four = _mm512_and_si512(_mm512_or_si512(wide, _mm512_slli_epi16::<4>(wide)), _mm512_set1_epi8(15));
        let first = _mm512_or_si512(first, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(&FIRST)), four));
        let last = _mm512_or_si512(last, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(&LAST)), four));
        let mut out = [[0; 64]; 2];
        store64(&mut out[0], _mm512_unpacklo_epi8(first, last));
        store64(&mut out[1], _mm512_unpackhi_epi8(first, last));
        out
    }

    /// Hands out the values of blocks.
    #[inline]
    fn put<const R: usize>(nibbles: &[[[u8; 64]; 2]; R], scales: &[[f32; 16]; R], values: &[f32; 16], out: &mut impl Runs) {
        let (nibbles, scales, from) = (kept(nibbles), kept(scales), load64(&NIBBLES));
        for i in 0..8 {
            rows!(R, r, {
                let values = _mm512_mul_ps(load_f32(values), _mm512_set1_ps(scales[r][2 * i]));
                let bytes = &nibbles[r][i % 2][i / 2 * 16..][..16];
                for (half, bytes) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    let word = _mm512_set1_epi64(i64::from_le_bytes(*bytes));
                    // The lower four bits of a lane are its index.
                    let index = _mm512_multishift_epi64_epi8(from, word);
                    out.put(r, 2 * i + half, _mm512_permutexvar_ps(index, values));
                }
            });
        }
    }

    #[inline]
    fn block_iq3_xxs<const R: usize>(blocks: [&[u8; 98]; R], out: &mut impl Runs) {
        let (mut scales, mut nibbles) = ([[0.0; 16]; R], [[[0; 64]; 2]; R]);
        rows!(R, r, {
            let block = blocks[r];
            let a = load32(at(block, fields::iq3_xxs::A));
            let s = low_bytes(_mm256_srli_epi32::<28>(a));
            scales[r] = sub_scales(half_at(block, fields::iq3_xxs::D), twice(s), 0.25);
            // Four fields of seven bits of every word.
            let from = _mm256_set1_epi64x(0x352e_2720_150e_0700);
            let fields = _mm512_castsi256_si512(_mm256_multishift_epi64_epi8(from, a));
            let [low, high] = WITH_PARITY.0.as_chunks::<64>().0 else { return };
            let signs = _mm512_permutex2var_epi8(load64(low), fields, load64(high));
            let q = load64(at(block, fields::iq3_xxs::Q));
            let [first, last] = [look_up(&XXS_NUMBERS[0], q), look_up(&XXS_NUMBERS[1], q)];
            nibbles[r] = in_order(first, last, _mm512_castsi512_si256(signs));
        });
        put(&nibbles, &scales, &XXS_VALUES, out);
    }

    #[inline]
    fn block_iq3_s<const R: usize>(blocks: [&[u8; 110]; R], out: &mut impl Runs) {
        let (mut scales, mut all) = ([[0.0; 16]; R], [[[0; 64]; 2]; R]);
        rows!(R, r, {
            let block = blocks[r];
            // Four bytes of two nibbles.
            let s = nibbles(&u64::from(u32_at(block, fields::iq3_s::S)).to_le_bytes());
            scales[r] = sub_scales(half_at(block, fields::iq3_s::D), twice(s), 1.0);
            let q = load64(at(block, fields::iq3_s::Q));
            let ninth = u64::from_le_bytes(*at(block, fields::iq3_s::QH));
            let (first, last) = (look_up_512(&S_NUMBERS[0], q, ninth), look_up_512(&S_NUMBERS[1], q, ninth));
            all[r] = in_order(first, last, load32(at(block, fields::iq3_s::SG)));
        });
        put(&all, &scales, &S_VALUES, out);
    }
}
