//! Where each format's codes and factors lie in turned words: the trait, and ggml's blocks but the grids and K types.

use std::marker::PhantomData;

use ninfer_formats::codec::gguf::{self, fields};
use ninfer_formats::tables::IQ4_VALUES;
use ninfer_formats::{BlockKind, RowParts};

use super::{HalfLine, Lay, Line, Quads, Turn, Vector, Wide, Words};

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
    /// No integer factor per 16 values is greater, signs aside.
    const MOST: u32 = 0;
    /// Whether sums are formed per 16 values.
    const SPLIT: bool = matches!(Self::FACTORS, Factors::Halves | Factors::Terms);
    /// Whether minima are subtracted; they are per 32 or per 16 values as the factors are.
    const MINIMUM: bool = false;
    /// Power of two that scales are multiplied with.
    const POWER: f32 = 1.0;
    /// How the rows' bytes lie when there is one column.
    const LAY: Lay = Lay::Turned;
    /// The piece that is turned whatever [`Self::LAY`] says: the one with the integer factors.
    const HEAD: Option<usize> = None;
    /// The block that is the first to need each piece; 0 for those not named.
    const FIRST: &'static [usize] = &[];

    /// The power of two by which the unpacked codes of block `B` are too great, because their bits were left where they
    /// were. Only without offsets.
    #[inline(always)]
    fn raised<V: Vector, const B: usize>() -> u32 {
        0
    }
    /// As [`Self::unpack`], of pieces that were not turned.
    #[inline(always)]
    fn unpack_beside<V: Quads, const B: usize>(v: V, _unit: Unit<'_>) -> [V::I; 8] {
        [v.zero(); 8]
    }
    /// Whether codes are magnitudes with signs: where vectors have [`Vector::SIGNS`], these go to the activations, and there is
    /// no offset.
    const SIGNS: bool = false;
    /// Whether [`Self::weighed`] is there: factors and minima of halves as half words, multiplied before anything is a float.
    const WEIGHED: bool = false;
    /// The factors of the halves of a block and its minima, as half words.
    #[inline(always)]
    fn weights<V: Vector, const B: usize>(v: V, _unit: Unit<'_>) -> [V::I; 3] {
        [v.zero(); 3]
    }
    /// The sum of a block with the factors of its halves, and that of its minima, where vectors have
    /// [`Vector::HALF_WORDS`].
    #[inline(always)]
    fn weighed<V: Vector, const B: usize>(
        v: V,
        _w: &Self::Unpacked<V>,
        _weights: &[V::I; 3],
        _x: &super::Activation,
    ) -> [V::I; 2] {
        [v.zero(); 2]
    }
    /// Whether [`super::Activation::eights`] are wanted.
    const EIGHTS: bool = false;
    /// Start values of a sum that is not split, for the offset in force.
    #[inline(always)]
    fn start(offset: i32, sum: i32) -> [i32; 2] {
        [-offset * sum, 0]
    }
    /// The integer sums of a block, as the sums of its halves or as one.
    fn sums<V: Vector, const B: usize>(v: V, w: &Self::Unpacked<V>, x: &super::Activation) -> [V::I; 2];
    /// Unpacked codes of a block.
    type Unpacked<V: Vector>: Copy;
    /// Unpacked codes as words of four bytes.
    fn flat<V: Wide>(v: V, w: &Self::Unpacked<V>) -> [V::I; 8];
    /// What is in the codes of [`Self::whole`].
    const WHOLE_OFFSET: i32 = Self::OFFSET;
    /// Whether [`Self::whole`] gives codes times their integer factors, and these times what: 1 or -1.
    const FOLDED: Option<f32> = None;
    /// Codes as words of four bytes that need nothing but [`Self::WHOLE_OFFSET`] taken off.
    #[inline(always)]
    fn whole<V: Wide, const B: usize>(v: V, unit: Unit<'_>) -> [V::I; 8] {
        Self::flat(v, &Self::unpack::<V, B>(v, unit))
    }
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
static IQ4_SIGNED: [u8; 16] = table(&IQ4_VALUES, 0);

/// The table of the iq4 types; signed values where these are wanted.
#[inline(always)]
fn iq4<V: Vector>(_v: V) -> &'static [u8; 16] {
    if V::SIGNED { &IQ4_SIGNED } else { &IQ4 }
}

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
        words! { |$v, $u, $b| $codes, beside { Self::unpack::<_, $b>($v, $u) } }
    };
    (|$v:ident, $u:ident, $b:ident| $codes:block, beside $beside:block) => {
        type Unpacked<V: Vector> = [V::I; 8];

        #[inline(always)]
        fn flat<V: $crate::lanes::Wide>(_v: V, w: &[V::I; 8]) -> [V::I; 8] {
            *w
        }

        #[inline(always)]
        fn unpack<V: Vector, const $b: usize>($v: V, $u: Unit<'_>) -> [V::I; 8] $codes

        #[inline(always)]
        fn unpack_beside<V: Quads, const $b: usize>($v: V, $u: Unit<'_>) -> [V::I; 8] $beside

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

/// Bytes from `first` on, each `times` times.
pub(super) const fn spread(first: usize, times: usize) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (first + i / times) as u8;
        i += 1;
    }
    out
}

/// A bit in each byte: number `first`, and `step` more in every byte that follows.
pub(super) const fn bit_numbers(first: usize, step: usize) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = 1 << ((first + step * i) % 8);
        i += 1;
    }
    out
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

/// The fields `mask` of the bytes of eight words, `shift` bits from the right: left there, where sums may be so great
/// ([`Codes::raised`]).
#[inline(always)]
pub(super) fn fields_where_they_are<V: Vector>(
    v: V,
    u: Unit<'_>,
    from: usize,
    shift: usize,
    mask: u8,
) -> [V::I; 8] {
    let (low, there) = (v.bytes(mask), v.bytes(mask << shift));
    let mut w = [low; 8];
    for (j, w) in w.iter_mut().enumerate() {
        let word = u.word(v, from + j);
        *w = if V::SIGNED { v.and(to_right(v, word, shift), low) } else { v.and(word, there) };
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
pub(super) fn to_left<V: Vector>(v: V, word: V::I, shift: usize) -> V::I {
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
    const LAY: Lay = Lay::Halves;
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    words! { |v, u, B| { eight_bits(v, u) } }
}

#[inline(always)]
pub(super) fn eight_bits<V: Vector>(v: V, u: Unit<'_>) -> [V::I; 8] {
    let sign = v.bytes(0x80);
    let mut w = [sign; 8];
    for (i, w) in w.iter_mut().enumerate() {
        *w = u.word(v, i);
        if !V::SIGNED {
            *w = v.xor(*w, sign);
        }
    }
    w
}

turn! { Q4_0: pieces [fields::q4_0::Q], singles [], halves [fields::q4_0::D] }
impl Codes for Ggml<gguf::Q4_0> {
    const LAY: Lay = Lay::Halves;
    const OFFSET: i32 = 8;
    const RANGE: u32 = 15;
    words! { |v, u, B| { nibbles(v, u, 0) } }
}

turn! { Iq4Nl: pieces [fields::iq4_nl::Q], singles [], halves [fields::iq4_nl::D] }
impl Codes for Ggml<gguf::Iq4Nl> {
    const LAY: Lay = Lay::Halves;
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    words! { |v, u, B| { looked_up(v, nibbles(v, u, 0), iq4(v)) } }
}

turn! { Iq4Xs: pieces [fields::iq4_xs::Q, 24, 40, 56, 72, 88, 104, 120], singles [fields::iq4_xs::D, 4], halves [] }
impl Codes for Ggml<gguf::Iq4Xs> {
    const LAY: Lay = Lay::Halves;
    const FIRST: &'static [usize] = &[0, 1, 2, 3, 4, 5, 6, 7];
    const OFFSET: i32 = 128;
    const RANGE: u32 = 255;
    const FACTORS: Factors = Factors::Whole;
    words! { |v, u, B| { looked_up(v, nibbles(v, u, 4 * B), iq4(v)) } }

    #[inline(always)]
    fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
        [v.low_scales(u.word(v, 32)), v.zeros()]
    }

    #[inline(always)]
    fn factors<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let low = bits(v, u.word(v, 33), 4 * B as i32, 15);
        // Above the block's scale.
        let high = bits(v, u.word(v, 32), 16 + 2 * B as i32 - 4, 0x30);
        [v.sub(v.to_f32(v.or(low, high)), v.floats(32.0)), v.zeros()]
    }
}

turn! { Q5_0: pieces [fields::q5_0::Q], singles [fields::q5_0::QH], halves [fields::q5_0::D] }
impl Codes for Ggml<gguf::Q5_0> {
    const OFFSET: i32 = 16;
    const RANGE: u32 = 31;
    const LAY: Lay = Lay::Halves;
    words! { |v, u, B| {
        let mut w = nibbles(v, u, 0);
        let high = u.word(v, 4);
        let (sixteen, none) = (v.bytes(16), v.bytes(0));
        for (j, w) in w.iter_mut().enumerate() {
            let bits = if j % 2 == 0 { [0, 1, 2, 3] } else { [4, 5, 6, 7] };
            *w = v.or(*w, v.choose(high, [j as u8 / 2; 4], bits, sixteen, none));
        }
        w
    }, beside {
        let mut w = nibbles(v, u, 0);
        let high = u.word(v, 4);
        for i in 0..4 {
            w[i] = v.or_16(w[i], high, &spread(4 * i, 8), &bit_numbers(0, 1), true);
            w[4 + i] = v.or_16(w[4 + i], high, &spread(4 * i + 2, 8), &bit_numbers(0, 1), true);
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
