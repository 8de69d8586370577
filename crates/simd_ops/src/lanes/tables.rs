//! Grids as tables of bytes that are looked up in registers.
//!
//! The values of a grid's entries are few: their numbers take two bits each in the two-bit types, three in the three-bit
//! ones. So a byte holds the numbers of four or two values, and a grid of 256 entries is a table of 256 bytes for the first
//! half of an entry's values and one for the other, in four vectors of 64 bytes each. One look-up ([`Vector::look_up_256`])
//! takes the halves of 64 entries: of four entries of sixteen rows, whose indices are the bytes of the rows' words.
//!
//! What comes out has a byte for each entry. Signs are put into its bits beside the numbers of two values, and a table of 64
//! bytes gives each of the two with its sign and the offset ([`Vector::look_up_64`]). So the words hold the same value of four
//! entries, and activations are laid out in that order.

use std::marker::PhantomData;

use ninfer_formats::RowParts;
use ninfer_formats::codec::gguf;
use ninfer_formats::tables::{IQ2_XXS, IQ3_XXS};

use super::formats::{Codes, Factors, Ggml, Unit, dots, words};
use super::grids::OFFSET;
use super::{Quads, Turn, Vector};

/// ggml blocks whose grids are looked up in registers, for vectors with [`Vector::TABLES`].
#[derive(Debug)]
pub(crate) struct Tabled<B>(PhantomData<B>);

impl<B> Turn for Tabled<B>
where
    Ggml<B>: Turn,
{
    const BLOCKS: usize = Ggml::<B>::BLOCKS;
    const BYTES: [usize; 3] = Ggml::<B>::BYTES;
    const PIECES: &'static [(usize, usize)] = Ggml::<B>::PIECES;
    const SINGLES: &'static [(usize, usize)] = Ggml::<B>::SINGLES;
    const HALVES: &'static [(usize, usize)] = Ggml::<B>::HALVES;

    #[inline(always)]
    fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
        Ggml::<B>::planes(row)
    }
}

/// A table aligned for vectors.
#[repr(C, align(64))]
struct Aligned<T>(T);

/// The numbers of the values of eight: two bits each, four in a byte.
const fn twos(grid: &[[i8; 8]; 256]) -> [Aligned<[[u8; 128]; 2]>; 2] {
    let mut out = [[[0; 128]; 2]; 2];
    let mut i = 0;
    while i < 8 * 256 {
        let number = match grid[i / 8][i % 8] {
            8 => 0,
            25 => 1,
            43 => 2,
            _ => panic!("another value"),
        };
        out[i % 8 / 4][i / 8 / 128][i / 8 % 128] |= number << (2 * (i % 4));
        i += 1;
    }
    [Aligned(out[0]), Aligned(out[1])]
}

/// Values of the two-bit grids by their numbers.
const TWO: [u8; 4] = [8, 25, 43, 0];

/// The value numbered by the bits of the index at `at`, negative if its bit `sign` is set, plus the offset.
const fn signed<const N: usize>(values: &[u8; N], at: [u32; 3], sign: u32) -> Aligned<[u8; 64]> {
    let mut out = [0; 64];
    let mut i = 0u32;
    while i < 64 {
        let mut number = i >> at[0] & 1 | (i >> at[1] & 1) << 1;
        if N == 8 {
            number |= (i >> at[2] & 1) << 2;
        }
        let value = values[number as usize];
        out[i as usize] = if i >> sign & 1 == 0 { OFFSET + value } else { OFFSET - value };
        i += 1;
    }
    Aligned(out)
}

static XXS2: [Aligned<[[u8; 128]; 2]>; 2] = twos(&IQ2_XXS);
/// Numbers of two values in bits 0 to 3, their signs in bits 4 and 5.
static TWOS: [Aligned<[u8; 64]>; 2] = [signed(&TWO, [0, 1, 0], 4), signed(&TWO, [2, 3, 0], 5)];

/// Values of `iq3_xxs` by their numbers.
const XXS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// The numbers of the values of four, three bits each, for two values a byte. The first byte has them from bits 0 and 5 on, the
/// signs come between; the second from bits 0 and 3, with the last bit at 7, the signs come to 5 and 6.
const fn threes(grid: &[[i8; 4]; 256], values: &[u8; 8]) -> [Aligned<[[u8; 128]; 2]>; 2] {
    let mut out = [[[0; 128]; 2]; 2];
    let mut i = 0;
    while i < 256 {
        let mut numbers = [0; 4];
        let mut j = 0;
        while j < 4 {
            while values[numbers[j] as usize] != grid[i][j] as u8 {
                numbers[j] += 1;
            }
            j += 1;
        }
        let [a, b, c, d] = numbers;
        out[0][i / 128][i % 128] = a | b << 5;
        out[1][i / 128][i % 128] = c | (d & 3) << 3 | (d >> 2) << 7;
        i += 1;
    }
    [Aligned(out[0]), Aligned(out[1])]
}

static XXS3: [Aligned<[[u8; 128]; 2]>; 2] = threes(&IQ3_XXS, &XXS);
/// Of the four values in turn; the index of the second and fourth is shifted by three.
static THREES: [Aligned<[u8; 64]>; 4] = [
    signed(&XXS, [0, 1, 2], 3),
    signed(&XXS, [2, 3, 4], 1),
    signed(&XXS, [0, 1, 2], 5),
    signed(&XXS, [0, 1, 4], 3),
];

/// Seven bits and their parity as the eighth.
static WITH_PARITY: Aligned<[u8; 128]> = {
    let mut out = [0; 128];
    let mut i = 0;
    while i < 128 {
        out[i] = i as u8 | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    Aligned(out)
};

/// Four indices of seven bits each in a word, to bytes of eight sign bits.
#[inline(always)]
fn signs<V: Vector>(v: V, indices: V::I) -> V::I {
    v.look_up_128(&WITH_PARITY.0, v.windows(indices, [0, 7, 14, 21]))
}

/// The order of words with value `i` of `N` of four entries each.
const fn by_values<const N: usize>() -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        let (word, entry) = (i / 4, i % 4);
        out[i] = ((word / N * 4 + entry) * N + word % N) as u8;
        i += 1;
    }
    out
}

/// Entries of eight values of two bits, with signs.
#[inline(always)]
fn eights<V: Vector>(v: V, numbers: [V::I; 2], signs: V::I) -> [V::I; 8] {
    let low = v.bytes(15);
    let [a, b] = numbers;
    let pairs = [
        v.select(low, a, v.shift::<-4>(signs)),
        v.select(low, v.shift::<4>(a), v.shift::<-2>(signs)),
        v.select(low, b, signs),
        v.select(low, v.shift::<4>(b), v.shift::<2>(signs)),
    ];
    let mut w = [low; 8];
    for i in 0..8 {
        w[i] = v.look_up_64(&TWOS[i % 2].0, pairs[i / 2]);
    }
    w
}

impl Codes for Tabled<gguf::Iq2Xxs> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq2Xxs>::FIRST;
    const ORDER: [u8; 32] = by_values::<8>();
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.125;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let q = u.word(v, 2 * B);
        let numbers = [v.look_up_256(&XXS2[0].0, q), v.look_up_256(&XXS2[1].0, q)];
        eights(v, numbers, signs(v, u.word(v, 2 * B + 1)))
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq2Xxs>::factors::<V, B>(v, u)
    }
}

impl Codes for Tabled<gguf::Iq3Xxs> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq3Xxs>::FIRST;
    const ORDER: [u8; 32] = by_values::<4>();
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.25;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let signs = signs(v, u.word(v, 16 + B));
        let mut w = [signs; 8];
        for half in 0..2 {
            let q = u.word(v, 2 * B + half);
            // The signs of an entry in bits 3 to 6 of its byte.
            let from = if half == 0 { [-3, 1, 5, 9] } else { [13, 17, 21, 25] };
            let signs = v.windows(signs, from);
            let a = v.select(v.bytes(0x18), signs, v.look_up_256(&XXS3[0].0, q));
            let b = v.select(v.bytes(0x60), signs, v.look_up_256(&XXS3[1].0, q));
            let indices = [a, v.shift::<3>(a), b, v.shift::<3>(b)];
            for i in 0..4 {
                w[4 * half + i] = v.look_up_64(&THREES[i].0, indices[i]);
            }
        }
        w
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq3Xxs>::factors::<V, B>(v, u)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernels do with an entry, a value at a time.
    #[test]
    fn tables_give_every_value_of_every_entry_with_either_sign() {
        let entry = |table: &[Aligned<[[u8; 128]; 2]>; 2], i: usize| {
            [0, 1].map(|half| usize::from(table[half].0[i / 128][i % 128]))
        };
        let value = |table: &Aligned<[u8; 64]>, index: usize| i32::from(table.0[index % 64]) - 64;
        for i in 0..256 {
            for signs in [0x00, 0xff, 0x5a, 0xc3, 0x29] {
                let signed = |value: i8, j: usize| i32::from(value) * (1 - (signs >> j & 1) as i32 * 2);
                let [a, b] = entry(&XXS2, i);
                let pairs = [
                    a & 15 | signs << 4 & 0x30,
                    a >> 4 | signs << 2 & 0x30,
                    b & 15 | signs & 0x30,
                    b >> 4 | signs >> 2 & 0x30,
                ];
                for j in 0..8 {
                    assert_eq!(value(&TWOS[j % 2], pairs[j / 2]), signed(IQ2_XXS[i][j], j), "{i} {j}");
                }
                let [a, b] = entry(&XXS3, i);
                let (a, b) = (a & !0x18 | signs << 3 & 0x18, b & !0x60 | signs << 3 & 0x60);
                for (j, index) in [a, a >> 3, b, b >> 3].into_iter().enumerate() {
                    assert_eq!(value(&THREES[j], index), signed(IQ3_XXS[i][j], j), "{i} {j}");
                }
            }
        }
        for i in 0..128usize {
            let signs = WITH_PARITY.0[i];
            assert_eq!((usize::from(signs) & 127, signs.count_ones() % 2), (i, 0));
        }
    }
}
