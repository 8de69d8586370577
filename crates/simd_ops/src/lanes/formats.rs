//! Where each format's codes and factors lie in turned words: the trait, and ggml's blocks but the grids.

use std::marker::PhantomData;

use ninfer_formats::codec::gguf::{self, fields};
use ninfer_formats::tables::IQ4_VALUES;
use ninfer_formats::{BlockKind, RowParts};

use super::{HalfLine, Line, Turn, Vector, Words};

/// What the integer sums are multiplied with before they become a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factors {
    /// Nothing.
    None,
    /// An integer per 32 values.
    Whole,
    /// An integer per 16 values.
    Halves,
    /// Nothing, but every 16 values are a term of their own.
    Terms,
}

/// A unit of a tile in turned words, and which part of the rows is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit<'a> {
    /// Words.
    pub words: &'a [Line<Words>],
    /// Half words.
    pub halves: &'a [HalfLine],
    /// Part of the rows.
    pub part: usize,
}

impl Unit<'_> {
    #[inline(always)]
    pub(crate) fn word<V: Vector>(&self, v: V, i: usize) -> V::I {
        v.load(&self.words[i].0, self.part)
    }

    #[inline(always)]
    pub(crate) fn scale<V: Vector>(&self, v: V, i: usize) -> V::F {
        v.scales(&self.halves[i].0, self.part)
    }
}

/// A format as the kernel unpacks it. `B` is the number of a block of 32 values in its unit.
pub(crate) trait Codes: Turn {
    /// What is added to the codes.
    const OFFSET: i32;
    /// No code plus offset is greater.
    const RANGE: u32;
    /// The value of a block that each activation place takes.
    const ORDER: [u8; 32] = in_order();
    /// See [`Factors`].
    const FACTORS: Factors = Factors::None;
    /// Whether sums are formed per 16 values.
    const SPLIT: bool = matches!(Self::FACTORS, Factors::Halves | Factors::Terms);
    /// Whether minima are subtracted; they are per 32 or per 16 values as the factors are.
    const MINIMUM: bool = false;
    /// Power of two that scales are multiplied with.
    const POWER: f32 = 1.0;

    /// Start values of a sum that is not split, for the offset in force.
    #[inline(always)]
    fn start(offset: i32, sum: i32) -> [i32; 2] {
        [-offset * sum, 0]
    }
    /// The integer sums of a block, as the sums of its halves or as one.
    fn sums<V: Vector, const B: usize>(v: V, w: &Self::Unpacked<V>, x: &super::Activation) -> [V::I; 2];
    /// Unpacked codes of a block.
    type Unpacked<V: Vector>: Copy;
    /// Unpacks a block.
    fn unpack<V: Vector, const B: usize>(v: V, unit: Unit<'_>) -> Self::Unpacked<V>;
    /// The scales of a unit: `d` and `dmin`.
    #[inline(always)]
    fn scales<V: Vector>(v: V, unit: Unit<'_>) -> [V::F; 2] {
        [unit.scale(v, 0), if Self::MINIMUM { unit.scale(v, 1) } else { v.zeros() }]
    }
    /// The scales of a block's two terms, where those are its own.
    #[inline(always)]
    fn terms<V: Vector, const B: usize>(v: V, _unit: Unit<'_>) -> [V::F; 2] {
        [v.zeros(); 2]
    }
    /// Integer factors.
    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, _unit: Unit<'_>) -> [V::F; 2] {
        [v.zeros(); 2]
    }
    /// Integer minima.
    #[inline(always)]
    fn minima<V: Vector, const B: usize>(v: V, _unit: Unit<'_>) -> [V::F; 2] {
        [v.zeros(); 2]
    }
}

/// ggml blocks.
#[derive(Debug)]
pub(crate) struct Ggml<B>(PhantomData<B>);

pub(super) const fn in_order() -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = i as u8;
        i += 1;
    }
    out
}

/// Bytes of two neighbouring values: four bytes give the even values of eight, then the odd ones.
pub(super) const fn pairs() -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = (i / 8 * 8 + i % 4 * 2 + i / 4 % 2) as u8;
        i += 1;
    }
    out
}

/// Bytes of four neighbouring values: four bytes give every fourth value of sixteen.
pub(super) const fn quads() -> [u8; 32] {
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = (i / 16 * 16 + i % 4 * 4 + i / 4 % 4) as u8;
        i += 1;
    }
    out
}

/// A table of sixteen bytes plus an offset.
pub(super) const fn table(values: &[i8; 16], offset: i32) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    out
}

static IQ4: [u8; 16] = table(&IQ4_VALUES, 128);

/// The one plane of ggml blocks.
#[inline(always)]
pub(super) fn blocks<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
    match *row {
        RowParts::Blocks { blocks, .. } => [blocks, &[], &[]],
        _ => [&[]; 3],
    }
}

/// Implements [`Turn`] for ggml blocks.
macro_rules! turn {
    ($kind:ident: pieces [$($piece:expr),*], singles [$($single:expr),*], halves [$($half:expr),*]) => {
        impl Turn for Ggml<gguf::$kind> {
            const BLOCKS: usize = BlockKind::$kind.values() / 32;
            const BYTES: [usize; 3] = [BlockKind::$kind.bytes(), 0, 0];
            const PIECES: &'static [(usize, usize)] = &[$((0, $piece)),*];
            const SINGLES: &'static [(usize, usize)] = &[$((0, $single)),*];
            const HALVES: &'static [(usize, usize)] = &[$((0, $half)),*];

            #[inline(always)]
            fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
                blocks(row)
            }
        }
    };
}
pub(super) use turn;

/// The methods of [`Codes`] for codes in eight vectors of words.
macro_rules! words {
    (|$v:ident, $u:ident, $b:ident| $codes:block) => {
        type Unpacked<V: Vector> = [V::I; 8];

        #[inline(always)]
        fn unpack<V: Vector, const $b: usize>($v: V, $u: Unit<'_>) -> [V::I; 8] $codes

        #[inline(always)]
        fn sums<V: Vector, const B: usize>(v: V, w: &[V::I; 8], x: &super::Activation) -> [V::I; 2] {
            if Self::SPLIT {
                [
                    dots::<V, 0, 4>(v, Self::RANGE, w, &x.codes, v.ints(x.start[0])),
                    dots::<V, 4, 8>(v, Self::RANGE, w, &x.codes, v.ints(x.start[1])),
                ]
            } else {
                [dots::<V, 0, 8>(v, Self::RANGE, w, &x.codes, v.ints(x.start[0])), v.zero()]
            }
        }
    };
}
pub(super) use words;

/// [`Vector::dots`] for a range that is a constant after inlining: an associated one may not stand for a parameter.
#[inline(always)]
pub(super) fn dots<V: Vector, const FROM: usize, const TO: usize>(
    v: V,
    range: u32,
    w: &[V::I; 8],
    x: &[[i8; 4]; 8],
    acc: V::I,
) -> V::I {
    match range {
        0..=15 => v.dots::<FROM, TO, 15>(w, x, acc),
        16..=31 => v.dots::<FROM, TO, 31>(w, x, acc),
        32..=63 => v.dots::<FROM, TO, 63>(w, x, acc),
        64..=127 => v.dots::<FROM, TO, 127>(w, x, acc),
        _ => v.dots::<FROM, TO, 255>(w, x, acc),
    }
}

/// Words of nibbles: `w[i]` low and `w[4 + i]` high for the words `from + i`.
#[inline(always)]
pub(super) fn nibbles<V: Vector>(v: V, u: Unit<'_>, from: usize) -> [V::I; 8] {
    let low = v.bytes(15);
    let mut w = [low; 8];
    for i in 0..4 {
        let q = u.word(v, from + i);
        w[i] = v.and(q, low);
        w[4 + i] = v.and(v.shift::<4>(q), low);
    }
    w
}

/// Words of interleaved nibbles: the low ones and then the high ones of each word.
#[inline(always)]
pub(super) fn interleaved<V: Vector>(v: V, u: Unit<'_>, from: usize, flip: u8) -> [V::I; 8] {
    let low = v.bytes(15);
    let mut w = [low; 8];
    for i in 0..4 {
        let mut q = u.word(v, from + i);
        if flip != 0 {
            q = v.xor(q, v.bytes(flip));
        }
        w[2 * i] = v.and(q, low);
        w[2 * i + 1] = v.and(v.shift::<4>(q), low);
    }
    w
}

/// The four two-bit fields of two words.
#[inline(always)]
pub(super) fn fields_of_2<V: Vector>(v: V, u: Unit<'_>, from: usize, flip: u8) -> [V::I; 8] {
    let three = v.bytes(3);
    let mut w = [three; 8];
    for i in 0..2 {
        let mut q = u.word(v, from + i);
        if flip != 0 {
            q = v.xor(q, v.bytes(flip));
        }
        w[4 * i] = v.and(q, three);
        w[4 * i + 1] = v.and(v.shift::<2>(q), three);
        w[4 * i + 2] = v.and(v.shift::<4>(q), three);
        w[4 * i + 3] = v.and(v.shift::<6>(q), three);
    }
    w
}

#[inline(always)]
pub(super) fn looked_up<V: Vector>(v: V, mut w: [V::I; 8], table: &[u8; 16]) -> [V::I; 8] {
    for w in &mut w {
        *w = v.look_up(table, *w);
    }
    w
}

/// A number of a K block's scales from the bits of `word` at `shift`, as binary32.
#[inline(always)]
pub(super) fn to_right<V: Vector>(v: V, word: V::I, shift: usize) -> V::I {
    macro_rules! by {
        ($($n:literal)+) => { match shift { $($n => v.shift::<$n>(word),)+ _ => word } };
    }
    by!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
}

#[inline(always)]
fn to_left<V: Vector>(v: V, word: V::I, shift: usize) -> V::I {
    macro_rules! by {
        ($($n:literal)+) => { match shift { $($n => v.shift::<{ -$n }>(word),)+ _ => word } };
    }
    by!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
}

/// The bits `mask` after a shift to the right (to the left if negative).
#[inline(always)]
pub(super) fn bits<V: Vector>(v: V, word: V::I, shift: i32, mask: i32) -> V::I {
    let shifted =
        if shift >= 0 { to_right(v, word, shift as usize) } else { to_left(v, word, -shift as usize) };
    v.and(shifted, v.ints(mask))
}

turn! { Q8_0: pieces [fields::q8_0::Q, fields::q8_0::Q + 16], singles [], halves [fields::q8_0::D] }
impl Codes for Ggml<gguf::Q8_0> {
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    words! { |v, u, B| { eight_bits(v, u) } }
}

#[inline(always)]
pub(super) fn eight_bits<V: Vector>(v: V, u: Unit<'_>) -> [V::I; 8] {
    let sign = v.bytes(0x80);
    let mut w = [sign; 8];
    for (i, w) in w.iter_mut().enumerate() {
        *w = v.xor(u.word(v, i), sign);
    }
    w
}

turn! { Q4_0: pieces [fields::q4_0::Q], singles [], halves [fields::q4_0::D] }
impl Codes for Ggml<gguf::Q4_0> {
    const OFFSET: i32 = 8;
    const RANGE: u32 = 15;
    words! { |v, u, B| { nibbles(v, u, 0) } }
}

turn! { Iq4Nl: pieces [fields::iq4_nl::Q], singles [], halves [fields::iq4_nl::D] }
impl Codes for Ggml<gguf::Iq4Nl> {
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    words! { |v, u, B| { looked_up(v, nibbles(v, u, 0), &IQ4) } }
}

turn! { Iq4Xs: pieces [fields::iq4_xs::D, 16, 32, 48, 64, 80, 96, 112], singles [128, 132], halves [] }
impl Codes for Ggml<gguf::Iq4Xs> {
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    const FACTORS: Factors = Factors::Whole;
    words! { |v, u, B| { looked_up(v, nibbles(v, u, 2 + 4 * B), &IQ4) } }

    #[inline(always)]
    fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [v.low_scales(u.word(v, 0)), v.zeros()]
    }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let low = bits(v, u.word(v, 1), 4 * B as i32, 15);
        // Above the block's scale.
        let high = bits(v, u.word(v, 0), 16 + 2 * B as i32 - 4, 0x30);
        [v.sub(v.to_f32(v.or(low, high)), v.floats(32.0)), v.zeros()]
    }
}

turn! { Q5_0: pieces [fields::q5_0::Q], singles [fields::q5_0::QH], halves [fields::q5_0::D] }
impl Codes for Ggml<gguf::Q5_0> {
    const OFFSET: i32 = 16;
    const RANGE: u32 = 31;
    words! { |v, u, B| {
        let mut w = nibbles(v, u, 0);
        let high = u.word(v, 4);
        let (sixteen, none) = (v.bytes(16), v.bytes(0));
        for (j, w) in w.iter_mut().enumerate() {
            let bits = if j % 2 == 0 { [0, 1, 2, 3] } else { [4, 5, 6, 7] };
            *w = v.or(*w, v.choose(high, [j as u8 / 2; 4], bits, sixteen, none));
        }
        w
    } }
}

turn! { Q2_0: pieces [fields::q2_0::Q], singles [], halves [fields::q2_0::D] }
impl Codes for Ggml<gguf::Q2_0> {
    const OFFSET: i32 = 1;
    const RANGE: u32 = 3;
    const ORDER: [u8; 32] = quads();
    words! { |v, u, B| { fields_of_2(v, u, 2 * B, 0) } }
}

turn! {
    Q2K: pieces [fields::q2_k::S, 16, 32, 48, 64], singles [], halves [fields::q2_k::D, fields::q2_k::DMIN]
}
impl Codes for Ggml<gguf::Q2K> {
    const OFFSET: i32 = 0;
    const RANGE: u32 = 3;
    const FACTORS: Factors = Factors::Halves;
    const MINIMUM: bool = true;
    words! { |v, u, B| {
        let three = v.bytes(3);
        let mut w = [three; 8];
        for (j, w) in w.iter_mut().enumerate() {
            *w = v.and(to_right(v, u.word(v, 4 + B / 4 * 8 + j), B % 4 * 2), three);
        }
        w
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let (s, at) = (u.word(v, B / 2), (B % 2 * 16) as i32);
        [v.to_f32(bits(v, s, at, 15)), v.to_f32(bits(v, s, at + 8, 15))]
    }

    #[inline(always)]
    fn minima<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let (s, at) = (u.word(v, B / 2), (B % 2 * 16) as i32);
        [v.to_f32(bits(v, s, at + 4, 15)), v.to_f32(bits(v, s, at + 12, 15))]
    }
}

turn! {
    Q3K: pieces [fields::q3_k::HM, 16, fields::q3_k::Q, 48, 64, 80], singles [96, 100, 104],
    halves [fields::q3_k::D]
}
impl Codes for Ggml<gguf::Q3K> {
    const OFFSET: i32 = 4;
    const RANGE: u32 = 7;
    const FACTORS: Factors = Factors::Halves;
    words! { |v, u, B| {
        let (three, four) = (v.bytes(3), v.bytes(4));
        let mut w = [three; 8];
        for (j, w) in w.iter_mut().enumerate() {
            let q = v.and(to_right(v, u.word(v, 8 + B / 4 * 8 + j), B % 4 * 2), three);
            let third = u.word(v, j);
            let third = if B < 2 { to_left(v, third, 2 - B) } else { to_right(v, third, B - 2) };
            *w = v.or_and(q, third, four);
        }
        w
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let (low, high) = (u.word(v, 24 + B / 2 % 2), u.word(v, 26));
        let mut out = [v.zeros(); 2];
        for (h, out) in out.iter_mut().enumerate() {
            // Byte `k` of the words; which nibble and which two bits tells the group of four scales.
            let (group, k) = ((B / 2) as i32, ((B % 2) * 2 + h) as i32);
            let s = v.or(bits(v, low, 8 * k + group / 2 * 4, 15), bits(v, high, 8 * k + 2 * group - 4, 0x30));
            *out = v.sub(v.to_f32(s), v.floats(32.0));
        }
        out
    }
}

/// Scale or minimum `B` of `q4_k` and `q5_k`: `first` the word of the first four, `last` the common one.
#[inline(always)]
fn six_bits<V: Vector, const B: usize>(v: V, first: V::I, last: V::I, nibble: i32) -> V::F {
    let at = (B % 4 * 8) as i32;
    v.to_f32(if B < 4 {
        bits(v, first, at, 0x3f)
    } else {
        v.or(bits(v, last, at + nibble, 15), bits(v, first, at + 2, 0x30))
    })
}

/// The scales, factors and minima of `q4_k` and `q5_k`, in their first four words.
macro_rules! six_bit_factors {
    () => {
        #[inline(always)]
        fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
            let both = u.word(v, 0);
            [v.low_scales(both), v.low_scales(v.shift::<16>(both))]
        }

        #[inline(always)]
        fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
            [six_bits::<V, B>(v, u.word(v, 1), u.word(v, 3), 0), v.zeros()]
        }

        #[inline(always)]
        fn minima<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
            [six_bits::<V, B>(v, u.word(v, 2), u.word(v, 3), 4), v.zeros()]
        }
    };
}

turn! {
    Q4K: pieces [fields::q4_k::D, fields::q4_k::Q, 32, 48, 64, 80, 96, 112, 128], singles [], halves []
}
impl Codes for Ggml<gguf::Q4K> {
    const OFFSET: i32 = 0;
    const RANGE: u32 = 15;
    const FACTORS: Factors = Factors::Whole;
    const MINIMUM: bool = true;
    words! { |v, u, B| {
        let low = v.bytes(15);
        let mut w = [low; 8];
        for (j, w) in w.iter_mut().enumerate() {
            *w = v.and(to_right(v, u.word(v, 4 + B / 2 * 8 + j), B % 2 * 4), low);
        }
        w
    } }
    six_bit_factors!();
}

turn! {
    Q5K: pieces [fields::q5_k::D, fields::q5_k::QH, 32, fields::q5_k::Q, 64, 80, 96, 112, 128, 144, 160],
    singles [], halves []
}
impl Codes for Ggml<gguf::Q5K> {
    const OFFSET: i32 = 0;
    const RANGE: u32 = 31;
    const FACTORS: Factors = Factors::Whole;
    const MINIMUM: bool = true;
    words! { |v, u, B| {
        let (low, sixteen) = (v.bytes(15), v.bytes(16));
        let mut w = [low; 8];
        for (j, w) in w.iter_mut().enumerate() {
            let q = v.and(to_right(v, u.word(v, 12 + B / 2 * 8 + j), B % 2 * 4), low);
            let fifth = u.word(v, 4 + j);
            let fifth = if B < 4 { to_left(v, fifth, 4 - B) } else { to_right(v, fifth, B - 4) };
            *w = v.or_and(q, fifth, sixteen);
        }
        w
    } }
    six_bit_factors!();
}

turn! {
    Q6K: pieces [0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, fields::q6_k::SC], singles [],
    halves [fields::q6_k::D]
}
impl Codes for Ggml<gguf::Q6K> {
    const OFFSET: i32 = 32;
    const RANGE: u32 = 63;
    const FACTORS: Factors = Factors::Halves;
    words! { |v, u, B| {
        let (low, top) = (v.bytes(15), v.bytes(0x30));
        let (p, r) = (B / 4, B % 4);
        let mut w = [low; 8];
        for (j, w) in w.iter_mut().enumerate() {
            let q = v.and(to_right(v, u.word(v, 16 * p + r % 2 * 8 + j), r / 2 * 4), low);
            let high = u.word(v, 32 + 8 * p + j);
            let high = if r < 2 { to_left(v, high, 4 - 2 * r) } else { to_right(v, high, 2 * r - 4) };
            *w = v.or_and(q, high, top);
        }
        w
    } }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let s = u.word(v, 48 + B / 2);
        let (a, b) =
            if B.is_multiple_of(2) { (v.shift::<-24>(s), v.shift::<-16>(s)) } else { (v.shift::<-8>(s), s) };
        [v.to_f32(v.shift_signed::<24>(a)), v.to_f32(v.shift_signed::<24>(b))]
    }
}
