//! The grids: codes are indices of entries of eight or four values, which are looked up in memory.
//!
//! The tables here hold the magnitudes plus 64, so that a sign turns an entry `e` into `128 - e`; both are positive
//! and below 128, as the dot products want them.

use ninfer_formats::BlockKind;
use ninfer_formats::RowParts;
use ninfer_formats::codec::gguf::{self, fields};
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

use super::formats::{Codes, Factors, Ggml, Unit, bits, blocks, dots, turn, words};
use super::{Activation, Quads, Turn, Vector, Wide};

/// A table aligned to its entries.
#[repr(C, align(64))]
struct Table<const L: usize, const N: usize>([[u8; L]; N]);

const fn plus<const L: usize, const N: usize>(grid: &[[i8; L]; N], offset: u8) -> Table<L, N> {
    let mut out = [[0; L]; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < L {
            out[i][j] = (grid[i][j] as u8).wrapping_add(offset);
            j += 1;
        }
        i += 1;
    }
    Table(out)
}

pub(super) const OFFSET: u8 = 64;

/// No magnitude of the tables of two-bit types is greater.
const MOST: u32 = 43;

/// A table of magnitudes plus the offset, and without.
const fn both<const N: usize>(grid: &[[i8; 8]; N]) -> [Table<8, N>; 2] {
    let mut i = 0;
    while i < 8 * N {
        assert!(grid[i / 8][i % 8] as u32 <= MOST);
        i += 1;
    }
    [plus(grid, OFFSET), plus(grid, 0)]
}

/// The one of both that the vector wants.
#[inline(always)]
fn of<V: Vector, const N: usize>(_v: V, tables: &'static [Table<8, N>; 2]) -> &'static [[u8; 8]; N] {
    &tables[usize::from(V::SIGNS)].0
}
static XXS2: [Table<8, 256>; 2] = both(&IQ2_XXS);
static XS2: [Table<8, 512>; 2] = both(&IQ2_XS);
static S2: [Table<8, 1024>; 2] = both(&IQ2_S);
static XXS3: Table<4, 256> = plus(&IQ3_XXS, OFFSET);
static S3: Table<4, 512> = plus(&IQ3_S, OFFSET);
/// `8 * grid + 8`: one more or less is added.
static ONE: Table<8, 2048> = plus(&IQ1_TIMES_8, 8);

/// The parity of four bits, as the upper bit of a byte.
static PARITY: [u8; 16] = {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    out
};

/// Four indices of seven bits to bytes of eight sign bits: the eighth is the parity of the others.
#[inline(always)]
fn with_parity<V: Vector>(v: V, s: V::I) -> V::I {
    let high = v.and(v.shift::<4>(s), v.bytes(7));
    v.xor(v.xor(s, v.look_up(&PARITY, s)), v.look_up(&PARITY, high))
}

/// Four fields of seven bits, to the bytes of a word.
#[inline(always)]
fn seven_bits<V: Vector>(v: V, a: V::I) -> V::I {
    // Two fields to each half word, and then one to each byte.
    let a = v.select(v.ints(0xffff), a, v.shift::<-2>(a));
    v.and(v.select(v.ints(0xff_00ff), a, v.shift::<-1>(a)), v.bytes(0x7f))
}

/// Byte `i` of every word.
#[inline(always)]
pub(super) fn byte<V: Vector>(v: V, words: V::I, i: usize) -> V::I {
    match i {
        0 => v.and(words, v.ints(0xff)),
        3 => v.shift::<24>(words),
        _ => v.pick(words, [i as u8, ZERO, ZERO, ZERO]),
    }
}

/// No byte, for [`Vector::pick`].
const ZERO: u8 = 0x80;

/// `2 s + 1`.
#[inline(always)]
fn odd<V: Vector>(v: V, s: V::I) -> V::F {
    v.to_f32(v.or(v.shift::<-1>(s), v.ints(1)))
}

/// Words of four bytes from entries of eight.
#[inline(always)]
fn flat<V: Wide>(v: V, w: &[V::Entry; 4]) -> [V::I; 8] {
    let [a, b, c, d] = [v.words_of(w[0]), v.words_of(w[1]), v.words_of(w[2]), v.words_of(w[3])];
    [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
}

/// Four entries. No closure, as one that is called more than once may stay a call.
macro_rules! four {
    (|$e:ident| $entry:expr) => {
        [
            { let $e: usize = 0; $entry },
            { let $e: usize = 1; $entry },
            { let $e: usize = 2; $entry },
            { let $e: usize = 3; $entry },
        ]
    };
}

/// The methods of [`Codes`] for entries of eight values in four pairs of vectors.
macro_rules! entries {
    (|$v:ident, $u:ident, $b:ident| $codes:block) => {
        type Unpacked<V: Vector> = [V::Entry; 4];

        const SIGNS: bool = true;

        #[inline(always)]
        fn flat<V: Wide>(v: V, w: &[V::Entry; 4]) -> [V::I; 8] {
            flat(v, w)
        }

        #[inline(always)]
        fn unpack<V: Vector, const $b: usize>($v: V, $u: Unit<'_>) -> [V::Entry; 4] $codes

        #[inline(always)]
        fn sums<V: Vector, const B: usize>(v: V, w: &[V::Entry; 4], x: &Activation) -> [V::I; 2] {
            if Self::SPLIT {
                [
                    v.pair_dots::<0, 2>(w, &x.codes, v.ints(x.start[0]), true, MOST),
                    v.pair_dots::<2, 4>(w, &x.codes, v.ints(x.start[1]), true, MOST),
                ]
            } else {
                [v.pair_dots::<0, 4>(w, &x.codes, v.ints(x.start[0]), true, MOST), v.zero()]
            }
        }
    };
}

turn! { Iq2Xxs: pieces [2, 18, 34, 50], singles [], halves [fields::iq2_xxs::D] }
impl Codes for Ggml<gguf::Iq2Xxs> {
    const FIRST: &'static [usize] = &[0, 2, 4, 6];
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.125;
    entries! { |v, u, B| {
        let (q, a) = (u.word(v, 2 * B), u.word(v, 2 * B + 1));
        let signs = v.signs(with_parity(v, seven_bits(v, a)));
        four!(|e| {
            v.negate8(v.entries8(of(v, &XXS2), byte(v, q, e)), signs, e)
        })
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [odd(v, v.shift::<28>(u.word(v, 2 * B + 1))), v.zeros()]
    }
}

/// The factors of sixteen halves in the nibbles of two words.
macro_rules! nibble_factors {
    ($first:literal) => {
        #[inline(always)]
        fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
            let (s, at) = (u.word(v, $first + B / 4), (B % 4 * 8) as i32);
            [odd(v, bits(v, s, at, 15)), odd(v, bits(v, s, at + 4, 15))]
        }
    };
}

turn! { Iq2Xs: pieces [2, 18, 34, 50], singles [66, 70], halves [fields::iq2_xs::D] }
impl Codes for Ggml<gguf::Iq2Xs> {
    const FIRST: &'static [usize] = &[0, 2, 4, 6];
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 31;
    const POWER: f32 = 0.125;
    entries! { |v, u, B| {
        let q = [u.word(v, 2 * B), u.word(v, 2 * B + 1)];
        // The upper seven bits of the half words.
        let upper = v.or(v.pick(q[0], [1, 3, ZERO, ZERO]), v.pick(q[1], [ZERO, ZERO, 1, 3]));
        let signs = v.signs(with_parity(v, v.and(v.shift::<1>(upper), v.bytes(0x7f))));
        four!(|e| {
            let index = bits(v, q[e / 2], (e % 2 * 16) as i32, 511);
            v.negate8(v.entries8(of(v, &XS2), index), signs, e)
        })
    } }
    nibble_factors!(16);
}

turn! { Iq2S: pieces [2, 18, 34, 50, 66], singles [], halves [fields::iq2_s::D] }
impl Codes for Ggml<gguf::Iq2S> {
    const FIRST: &'static [usize] = &[0, 4, 0, 4];
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 31;
    const POWER: f32 = 0.125;
    entries! { |v, u, B| {
        let (q, high) = (u.word(v, B), u.word(v, 16 + B / 4));
        let signs = v.signs(u.word(v, 8 + B));
        four!(|e| {
            // Two bits above the eight.
            let high = bits(v, high, (B % 4 * 8 + 2 * e) as i32 - 8, 0x300);
            let index = v.or(byte(v, q, e), high);
            v.negate8(v.entries8(of(v, &S2), index), signs, e)
        })
    } }
    nibble_factors!(18);
}

/// Gives the four values of every entry their signs: four bits of the row's word for each of eight entries.
#[inline(always)]
fn signed4<V: Vector>(v: V, mut w: [V::I; 8], signs: V::I) -> [V::I; 8] {
    for (j, w) in w.iter_mut().enumerate() {
        let places = if j % 2 == 0 { [0, 1, 2, 3] } else { [4, 5, 6, 7] };
        *w = v.negate4(*w, signs, [j as u8 / 2; 4], places);
    }
    w
}

turn! { Iq3Xxs: pieces [2, 18, 34, 50, 66, 82], singles [], halves [fields::iq3_xxs::D] }
impl Codes for Ggml<gguf::Iq3Xxs> {
    const FIRST: &'static [usize] = &[0, 2, 4, 6, 0, 4];
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.25;
    words! { |v, u, B| {
        let q = [u.word(v, 2 * B), u.word(v, 2 * B + 1)];
        let signs = with_parity(v, seven_bits(v, u.word(v, 16 + B)));
        let mut w = [signs; 8];
        for (j, w) in w.iter_mut().enumerate() {
            *w = v.entries4(&XXS3.0, byte(v, q[j / 4], j % 4));
        }
        signed4(v, w, signs)
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [odd(v, v.shift::<28>(u.word(v, 16 + B))), v.zeros()]
    }
}

turn! { Iq3S: pieces [2, 18, 34, 50, 74, 90], singles [66, 70, 106], halves [fields::iq3_s::D] }
impl Codes for Ggml<gguf::Iq3S> {
    const FIRST: &'static [usize] = &[0, 2, 4, 6, 0, 4];
    const OFFSET: i32 = OFFSET as i32;
    const RANGE: u32 = 127;
    const FACTORS: Factors = Factors::Whole;
    words! { |v, u, B| {
        let q = [u.word(v, 2 * B), u.word(v, 2 * B + 1)];
        let high = u.word(v, 24 + B / 4);
        let mut w = [high; 8];
        for (j, w) in w.iter_mut().enumerate() {
            let ninth = bits(v, high, (B % 4 * 8 + j) as i32 - 8, 0x100);
            *w = v.entries4(&S3.0, v.or(byte(v, q[j / 4], j % 4), ninth));
        }
        signed4(v, w, u.word(v, 16 + B))
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [odd(v, bits(v, u.word(v, 26), 4 * B as i32, 15)), v.zeros()]
    }
}

turn! { Iq1S: pieces [2, 18, fields::iq1_s::QH], singles [], halves [fields::iq1_s::D] }
impl Codes for Ggml<gguf::Iq1S> {
    const FIRST: &'static [usize] = &[0, 4];
    const OFFSET: i32 = 8;
    const RANGE: u32 = 18;
    const FACTORS: Factors = Factors::Whole;
    const POWER: f32 = 0.125;

    /// The codes are `8 * grid + 1` or `8 * grid - 1`, one way for all 32 values: the sum of the activations is
    /// added or taken off.
    #[inline(always)]
    fn start(offset: i32, sum: i32) -> [i32; 2] {
        [(1 - offset) * sum, (-1 - offset) * sum]
    }

    type Unpacked<V: Vector> = ([V::Entry; 4], V::I);

    const WHOLE_OFFSET: i32 = 9;

    #[inline(always)]
    fn whole<V: Wide, const B: usize>(v: V, u: Unit<'_>) -> [V::I; 8] {
        let (mut w, signs) = Self::unpack::<V, B>(v, u);
        for w in &mut w {
            *w = v.add8(*w, signs, 0x8000 << (B % 2 * 16), v.bytes(0), v.bytes(2));
        }
        flat(v, &w)
    }

    #[inline(always)]
    fn flat<V: Wide>(v: V, w: &Self::Unpacked<V>) -> [V::I; 8] {
        flat(v, &w.0)
    }

    #[inline(always)]
    fn unpack<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> Self::Unpacked<V> {
        let (q, high) = (u.word(v, B), u.word(v, 8 + B / 2));
        let w = four!(|e| {
            let high = bits(v, high, (B % 2 * 16 + 3 * e) as i32 - 8, 0x700);
            v.entries8(&ONE.0, v.or(byte(v, q, e), high))
        });
        (w, high)
    }

    #[inline(always)]
    fn sums<V: Vector, const B: usize>(v: V, w: &Self::Unpacked<V>, x: &Activation) -> [V::I; 2] {
        let start = v.where_set(w.1, 0x8000 << (B % 2 * 16), v.ints(x.start[1]), v.ints(x.start[0]));
        [v.pair_dots::<0, 4>(&w.0, &x.codes, start, false, Self::RANGE), v.zero()]
    }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [odd(v, bits(v, u.word(v, 8 + B / 2), (B % 2 * 16 + 12) as i32, 7)), v.zeros()]
    }
}

turn! { Iq1M: pieces [0, 16, fields::iq1_m::QH], singles [48, 52], halves [] }
impl Codes for Ggml<gguf::Iq1M> {
    const FIRST: &'static [usize] = &[0, 4];
    const OFFSET: i32 = 9;
    const RANGE: u32 = 18;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 15;
    const POWER: f32 = 0.125;
    const EIGHTS: bool = true;

    /// Entries of `8 * grid + 8`, and what says (bits 3, 7, 11 and 15) whether they are for `8 * grid - 1` instead of
    /// `8 * grid + 1`: twice the sum of an entry's activations is added for those that are not.
    type Unpacked<V: Vector> = ([V::Entry; 4], V::I);

    #[inline(always)]
    fn flat<V: Wide>(v: V, w: &Self::Unpacked<V>) -> [V::I; 8] {
        let mut entries = w.0;
        for (e, entry) in entries.iter_mut().enumerate() {
            *entry = v.add8(*entry, w.1, 8 << (4 * e), v.bytes(0), v.bytes(2));
        }
        flat(v, &entries)
    }

    #[inline(always)]
    fn unpack<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> Self::Unpacked<V> {
        let (q, high) = (u.word(v, B), u.word(v, 8 + B / 2));
        let high = if B.is_multiple_of(2) { high } else { v.shift::<16>(high) };
        let w = four!(|e| {
            let high = bits(v, high, 4 * e as i32 - 8, 0x700);
            v.entries8(&ONE.0, v.or(byte(v, q, e), high))
        });
        (w, high)
    }

    #[inline(always)]
    fn sums<V: Vector, const B: usize>(v: V, w: &Self::Unpacked<V>, x: &Activation) -> [V::I; 2] {
        let mut start = [v.ints(x.start[0]), v.ints(x.start[1])];
        for (e, &twice) in x.eights.iter().enumerate() {
            start[e / 2] = v.add_where_clear(start[e / 2], w.1, 8 << (4 * e), twice);
        }
        [
            v.pair_dots::<0, 2>(&w.0, &x.codes, start[0], false, Self::RANGE),
            v.pair_dots::<2, 4>(&w.0, &x.codes, start[1], false, Self::RANGE),
        ]
    }

    #[inline(always)]
    fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let s = [u.word(v, 12), u.word(v, 13)];
        let low = v.or(bits(v, s[0], 12, 0xf), bits(v, s[0], 24, 0xf0));
        let high = v.or(bits(v, s[1], 4, 0xf00), bits(v, s[1], 16, 0xf000));
        [v.low_scales(v.or(low, high)), v.zeros()]
    }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        // Four scales of three bits in each half word.
        let (s, at) = (u.word(v, 12 + B / 4), (B / 2 % 2 * 16 + B % 2 * 6) as i32);
        [odd(v, bits(v, s, at, 7)), odd(v, bits(v, s, at + 3, 7))]
    }
}
