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
//!
//! Grids of 512 and more entries of eight values would take too many look-ups. Their entries are four bytes with two numbers
//! each, of which one gather takes those of all sixteen rows; then the same, and a word holds every other value of one entry.

use std::marker::PhantomData;

use ninfer_formats::RowParts;
use ninfer_formats::codec::gguf;
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::formats::{Codes, Factors, Ggml, Unit, bits, dots, pairs, words};
use super::grids::{OFFSET, byte};
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
pub(crate) struct Aligned<T>(pub T);

/// The number of a value of the two-bit grids.
const fn number(value: i8) -> u8 {
    match value {
        8 => 0,
        25 => 1,
        43 => 2,
        _ => panic!("another value"),
    }
}

/// The numbers of the values of eight: two bits each, four in a byte.
const fn twos(grid: &[[i8; 8]; 256]) -> [Aligned<[[u8; 128]; 2]>; 2] {
    let mut out = [[[0; 128]; 2]; 2];
    let mut i = 0;
    while i < 8 * 256 {
        out[i % 8 / 4][i / 8 / 128][i / 8 % 128] |= number(grid[i / 8][i % 8]) << (2 * (i % 4));
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
pub(crate) const XXS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// The numbers of the values of four, three bits each, for two values a byte. The first byte has them from bits 0 and 5 on, the
/// signs come between; the second from bits 0 and 3, with the last bit at 7, the signs come to 5 and 6.
const fn threes<const N: usize, const P: usize>(
    grid: &[[i8; 4]; N],
    values: &[u8; 8],
) -> [Aligned<[[[u8; 128]; 2]; P]>; 2] {
    let mut out = [[[[0; 128]; 2]; P]; 2];
    let mut i = 0;
    while i < N {
        let mut numbers = [0; 4];
        let mut j = 0;
        while j < 4 {
            while values[numbers[j] as usize] != grid[i][j] as u8 {
                numbers[j] += 1;
            }
            j += 1;
        }
        let [a, b, c, d] = numbers;
        out[0][i / 256][i / 128 % 2][i % 128] = a | b << 5;
        out[1][i / 256][i / 128 % 2][i % 128] = c | (d & 3) << 3 | (d >> 2) << 7;
        i += 1;
    }
    [Aligned(out[0]), Aligned(out[1])]
}

static XXS3: [Aligned<[[[u8; 128]; 2]; 1]>; 2] = threes(&IQ3_XXS, &XXS);
/// Values of the four in turn; the index of the second and fourth is shifted by three.
const fn threes_of(values: &[u8; 8]) -> [Aligned<[u8; 64]>; 4] {
    [
        signed(values, [0, 1, 2], 3),
        // The sign is bit 4 of the byte, the second one's.
        signed(values, [2, 3, 4], 1),
        signed(values, [0, 1, 2], 5),
        signed(values, [0, 1, 4], 3),
    ]
}

static XXS3_VALUES: [Aligned<[u8; 64]>; 4] = threes_of(&XXS);

/// Values of `iq3_s` by their numbers.
pub(crate) const S: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
static S3: [Aligned<[[[u8; 128]; 2]; 2]>; 2] = threes(&IQ3_S, &S);
static S3_VALUES: [Aligned<[u8; 64]>; 4] = threes_of(&S);

/// Four entries of four values of three bits, with the signs in the lower four bits of their bytes, shifted up by three.
#[inline(always)]
fn fours<V: Vector>(v: V, [a, b]: [V::I; 2], signs: V::I, values: &[Aligned<[u8; 64]>; 4]) -> [V::I; 4] {
    let a = v.select(v.bytes(0x18), signs, a);
    let b = v.select(v.bytes(0x60), signs, b);
    [
        v.look_up_64(&values[0].0, a),
        v.look_up_64(&values[1].0, v.shift::<3>(a)),
        v.look_up_64(&values[2].0, b),
        v.look_up_64(&values[3].0, v.shift::<3>(b)),
    ]
}

/// The signs of the four entries of each half of a word of 32 bits, as [`fours`] takes them.
const SIGNS: [[i8; 4]; 2] = [[-3, 1, 5, 9], [13, 17, 21, 25]];

/// Seven bits and their parity as the eighth.
pub(crate) static WITH_PARITY: Aligned<[u8; 128]> = {
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

/// The numbers of the values of eight, two in each byte of a word: those that [`TWOS`] takes.
const fn packed<const N: usize>(grid: &[[i8; 8]; N]) -> Aligned<[[u8; 4]; N]> {
    let mut out = [[0; 4]; N];
    let mut i = 0;
    while i < 8 * N {
        out[i / 8][i % 8 / 2] |= number(grid[i / 8][i % 8]) << (2 * (i % 2));
        i += 1;
    }
    Aligned(out)
}

static XS2: Aligned<[[u8; 4]; 512]> = packed(&IQ2_XS);
static S2: Aligned<[[u8; 4]; 1024]> = packed(&IQ2_S);

/// Entries of [`packed`], with signs in bits 4 and 5 of each byte: the even values of each, and the odd ones.
#[inline(always)]
fn entries<V: Vector, const N: usize>(
    v: V,
    table: &[[u8; 4]; N],
    indices: [V::I; 4],
    signs: [V::I; 4],
    values: &[Aligned<[u8; 64]>; 2],
) -> [V::I; 8] {
    let mut w = [signs[0]; 8];
    for e in 0..4 {
        let pairs = v.select(v.bytes(15), v.entries4(table, indices[e]), signs[e]);
        w[2 * e] = v.look_up_64(&values[0].0, pairs);
        w[2 * e + 1] = v.look_up_64(&values[1].0, pairs);
    }
    w
}

/// Bytes of eight sign bits as the signs that [`entries`] takes.
#[inline(always)]
fn spread<V: Vector>(v: V, signs: V::I) -> [V::I; 4] {
    [
        v.windows(signs, [-4, -2, 0, 2]),
        v.windows(signs, [4, 6, 8, 10]),
        v.windows(signs, [12, 14, 16, 18]),
        v.windows(signs, [20, 22, 24, 26]),
    ]
}

impl Codes for Tabled<gguf::Iq2Xs> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq2Xs>::FIRST;
    const ORDER: [u8; 32] = pairs();
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 31;
    const POWER: f32 = 0.125;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let [a, b] = [u.word(v, 2 * B), u.word(v, 2 * B + 1)];
        let upper = v.select(v.ints(0xffff), v.windows(a, [9, 25, 0, 0]), v.windows(b, [0, 0, 9, 25]));
        let signs = v.look_up_128(&WITH_PARITY.0, upper);
        let indices = [bits(v, a, 0, 511), bits(v, a, 16, 511), bits(v, b, 0, 511), bits(v, b, 16, 511)];
        entries(v, &XS2.0, indices, spread(v, signs), &TWOS)
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq2Xs>::factors::<V, B>(v, u)
    }
}

impl Codes for Tabled<gguf::Iq2S> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq2S>::FIRST;
    const ORDER: [u8; 32] = pairs();
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 31;
    const POWER: f32 = 0.125;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let (q, high) = (u.word(v, B), u.word(v, 16 + B / 4));
        macro_rules! index {
            ($e:literal) => {
                v.or(byte(v, q, $e), bits(v, high, (B % 4 * 8 + 2 * $e) as i32 - 8, 0x300))
            };
        }
        let signs = spread(v, u.word(v, 8 + B));
        entries(v, &S2.0, [index!(0), index!(1), index!(2), index!(3)], signs, &TWOS)
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq2S>::factors::<V, B>(v, u)
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
        macro_rules! half {
            ($half:literal) => {{
                let q = u.word(v, 2 * B + $half);
                let numbers = [v.look_up_256(&XXS3[0].0[0], q), v.look_up_256(&XXS3[1].0[0], q)];
                fours(v, numbers, v.windows(signs, SIGNS[$half]), &XXS3_VALUES)
            }};
        }
        let ([a, b, c, d], [e, f, g, h]) = (half!(0), half!(1));
        [a, b, c, d, e, f, g, h]
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq3Xxs>::factors::<V, B>(v, u)
    }
}

impl Codes for Tabled<gguf::Iq3S> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq3S>::FIRST;
    const ORDER: [u8; 32] = by_values::<4>();
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let (signs, high) = (u.word(v, 16 + B), u.word(v, 24 + B / 4));
        macro_rules! half {
            ($half:literal) => {{
                let q = u.word(v, 2 * B + $half);
                let ninth = if $half == 0 { [0, 1, 2, 3] } else { [4, 5, 6, 7] };
                let (low, upper) = (v.look_up_256(&S3[0].0[0], q), v.look_up_256(&S3[0].0[1], q));
                let a = v.choose(high, [B as u8 % 4; 4], ninth, upper, low);
                let (low, upper) = (v.look_up_256(&S3[1].0[0], q), v.look_up_256(&S3[1].0[1], q));
                let b = v.choose(high, [B as u8 % 4; 4], ninth, upper, low);
                fours(v, [a, b], v.windows(signs, SIGNS[$half]), &S3_VALUES)
            }};
        }
        let ([a, b, c, d], [e, f, g, h]) = (half!(0), half!(1));
        [a, b, c, d, e, f, g, h]
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq3S>::factors::<V, B>(v, u)
    }
}

/// Codes of the one-bit types, `8 * grid` plus one or, if bit 4 is set, less one, with the offset of nine: by numbers, which are
/// the grid's values plus one.
static ONES: [Aligned<[u8; 64]>; 2] = [ones(0), ones(2)];

const fn ones(at: usize) -> Aligned<[u8; 64]> {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        out[i] = (8 * (i >> at & 3) + if i >> 4 & 1 == 0 { 2 } else { 0 }) as u8;
        i += 1;
    }
    Aligned(out)
}

static ONE: Aligned<[[u8; 4]; 2048]> = {
    let mut out = [[0; 4]; 2048];
    let mut i = 0;
    while i < 8 * 2048 {
        let number = (IQ1_TIMES_8[i / 8][i % 8] + 8) as u8;
        assert!(number.is_multiple_of(8) && number <= 16);
        out[i / 8][i % 8 / 2] |= (number / 8) << (2 * (i % 2));
        i += 1;
    }
    Aligned(out)
};

/// Four indices: the bytes of `q`, and above them the lower three bits of each of four nibbles of `high` from bit `at` on.
macro_rules! indices {
    ($v:ident, $q:ident, $high:ident, $at:expr, $step:literal) => {
        [
            $v.or(byte($v, $q, 0), bits($v, $high, $at - 8, 0x700)),
            $v.or(byte($v, $q, 1), bits($v, $high, $at + $step - 8, 0x700)),
            $v.or(byte($v, $q, 2), bits($v, $high, $at + 2 * $step - 8, 0x700)),
            $v.or(byte($v, $q, 3), bits($v, $high, $at + 3 * $step - 8, 0x700)),
        ]
    };
}

impl Codes for Tabled<gguf::Iq1S> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq1S>::FIRST;
    const ORDER: [u8; 32] = pairs();
    const OFFSET: i32 = 9;
    const RANGE: u32 = 18;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.125;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let (q, high, at) = (u.word(v, B), u.word(v, 8 + B / 2), (B % 2 * 16) as i32);
        let less = v.windows(high, [at as i8 + 11; 4]);
        entries(v, &ONE.0, indices!(v, q, high, at, 3), [less; 4], &ONES)
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq1S>::factors::<V, B>(v, u)
    }
}

impl Codes for Tabled<gguf::Iq1M> {
    const FIRST: &'static [usize] = Ggml::<gguf::Iq1M>::FIRST;
    const ORDER: [u8; 32] = pairs();
    const OFFSET: i32 = 9;
    const RANGE: u32 = 18;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 15;
    const POWER: f32 = 0.125;
    words! { |v, u, B| {
        const { assert!(V::TABLES) };
        let (q, high, at) = (u.word(v, B), u.word(v, 8 + B / 2), (B % 2 * 16) as i32);
        let first = at as i8 - 1;
        let less = [
            v.windows(high, [first; 4]),
            v.windows(high, [first + 4; 4]),
            v.windows(high, [first + 8; 4]),
            v.windows(high, [first + 12; 4]),
        ];
        entries(v, &ONE.0, indices!(v, q, high, at, 4), less, &ONES)
    } }

    #[inline(always)]
    fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq1M>::scales(v, u)
    }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        Ggml::<gguf::Iq1M>::factors::<V, B>(v, u)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernels do with an entry, a value at a time.
    #[test]
    fn tables_give_every_value_of_every_entry_with_either_sign() {
        let at = |table: &[[[u8; 128]; 2]], i: usize| usize::from(table[i / 256][i / 128 % 2][i % 128]);
        let value = |table: &Aligned<[u8; 64]>, index: usize| i32::from(table.0[index % 64]) - 64;
        for (i, signs) in (0..1024).flat_map(|i| [0x00, 0xff, 0x5a, 0xc3, 0x29].map(|signs| (i, signs))) {
            let signed = |value: i8, j: usize| i32::from(value) * (1 - (signs >> j & 1) as i32 * 2);
            if let Some(entry) = IQ2_XXS.get(i) {
                let [a, b] = [0, 1].map(|half| at(&[XXS2[half].0], i));
                let pairs = [
                    a & 15 | signs << 4 & 0x30,
                    a >> 4 | signs << 2 & 0x30,
                    b & 15 | signs & 0x30,
                    b >> 4 | signs >> 2 & 0x30,
                ];
                for j in 0..8 {
                    assert_eq!(value(&TWOS[j % 2], pairs[j / 2]), signed(entry[j], j), "iq2_xxs {i} {j}");
                }
            }
            for (entry, packed) in [(IQ2_XS.get(i), XS2.0.get(i)), (IQ2_S.get(i), S2.0.get(i))] {
                for (j, &value_there) in entry.into_iter().flatten().enumerate() {
                    let pair = usize::from(packed.unwrap()[j / 2]) | (signs >> (j / 2 * 2) & 3) << 4;
                    assert_eq!(value(&TWOS[j % 2], pair), signed(value_there, j), "{i} {j}");
                }
            }
            let threes = [
                (IQ3_XXS.get(i), [0, 1].map(|p| &XXS3[p].0[..]), &XXS3_VALUES),
                (IQ3_S.get(i), [0, 1].map(|p| &S3[p].0[..]), &S3_VALUES),
            ];
            for (entry, [first, second], values) in threes {
                let Some(entry) = entry else { continue };
                let a = at(first, i) & !0x18 | signs << 3 & 0x18;
                let b = at(second, i) & !0x60 | signs << 3 & 0x60;
                for (j, index) in [a, a >> 3, b, b >> 3].into_iter().enumerate() {
                    assert_eq!(value(&values[j], index), signed(entry[j], j), "{i} {j}");
                }
            }
        }
        for (i, entry) in IQ1_TIMES_8.iter().enumerate() {
            for (j, less) in (0..8).flat_map(|j| [(j, 0), (j, 1)]) {
                let code = i32::from(ONES[j % 2].0[usize::from(ONE.0[i][j / 2] | less << 4)]) - 9;
                assert_eq!(code, i32::from(entry[j]) + 1 - 2 * i32::from(less), "iq1 {i} {j}");
            }
        }
        for i in 0..128usize {
            let signs = WITH_PARITY.0[i];
            assert_eq!((usize::from(signs) & 127, signs.count_ones() % 2), (i, 0));
        }
    }
}
