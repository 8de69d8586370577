//! Turned words of ggml's K types.

use ninfer_formats::codec::gguf::{self, fields};
use ninfer_formats::{BlockKind, RowParts};

use super::formats::{
    Codes, Factors, Ggml, Unit, bits, blocks, dots, fields_where_they_are, to_left, to_right, turn, words,
};
use super::{Activation, Lay, Quads, Turn, Vector, Wide};

/// No byte, for [`Vector::pick`].
const ZERO: u8 = 0x80;

turn! {
    Q2K: pieces [fields::q2_k::S, 16, 32, 48, 64], singles [fields::q2_k::D], halves []
}
impl Codes for Ggml<gguf::Q2K> {
    const FIRST: &'static [usize] = &[0, 0, 0, 4, 4];
    const OFFSET: i32 = 0;
    const RANGE: u32 = 3;
    const FACTORS: Factors = Factors::Halves;
    const MINIMUM: bool = true;
    words! { |v, u, B| {
        fields_where_they_are(v, u, 4 + B / 4 * 8, B % 4 * 2, 3)
    } }

    #[inline(always)]
    fn raised<V: Vector, const B: usize>() -> u32 {
        if V::SIGNED { 0 } else { (B % 4 * 2) as u32 }
    }

    const WEIGHED: bool = true;

    #[inline(always)]
    fn weights<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::I; 3] {
        let (s, at) = (u.word(v, B / 2), (B % 2 * 2) as u8);
        let factors = v.and(s, v.bytes(15));
        let factor = |at: u8| if V::LOWER { [at, ZERO, ZERO, ZERO] } else { [at, ZERO, at, ZERO] };
        let minima = v.pick(v.and(v.shift::<4>(s), v.bytes(15)), [at, ZERO, at + 1, ZERO]);
        [v.pick(factors, factor(at)), v.pick(factors, factor(at + 1)), minima]
    }

    /// Sums of halves are at most 16 * 3 * 127 in magnitude.
    #[inline(always)]
    fn weighed<V: Vector, const B: usize>(
        v: V,
        w: &[V::I; 8],
        weights: &[V::I; 3],
        x: &Activation,
    ) -> [V::I; 2] {
        let (low, high) = ([w[0], w[1], w[2], w[3]], [w[4], w[5], w[6], w[7]]);
        let [x_low, x_high] = *x.codes.as_chunks::<4>().0 else { return [v.zero(); 2] };
        let raised = Self::raised::<V, B>();
        let low = v.weigh(v.half_words(&low, &x_low, raised), weights[0]);
        let high = v.weigh(v.half_words(&high, &x_high, raised), weights[1]);
        [v.plus_words(low, high), v.weigh(weights[2], v.ints(x.eights[0]))]
    }

    const FOLDED: Option<f32> = Some(1.0);

    /// Scales of at most 15 times codes of at most 3.
    #[inline(always)]
    fn whole<V: Wide, const B: usize>(v: V, u: Unit<'_>) -> [V::I; 8] {
        let (s, at) = (u.word(v, B / 2), (B % 2 * 16) as i32);
        let mut scales = [bits(v, s, at, 15), bits(v, s, at + 8, 15)];
        for s in &mut scales {
            *s = v.or(*s, v.shift::<-16>(*s));
        }
        let mut w = [s; 8];
        for (j, w) in w.iter_mut().enumerate() {
            let q = v.and(to_right(v, u.word(v, 4 + B / 4 * 8 + j), B % 4 * 2), v.bytes(3));
            *w = v.mul_halves(q, scales[j / 4]);
        }
        w
    }

    #[inline(always)]
    fn scales<V: Vector>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let both = u.word(v, 20);
        [v.low_scales(both), v.low_scales(v.shift::<16>(both))]
    }

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
    const FIRST: &'static [usize] = &[0, 0, 0, 0, 4, 4];
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
        let [low, high] = q3_scales::<V, B>(v, u);
        [v.sub(v.to_f32(low), v.floats(32.0)), v.sub(v.to_f32(high), v.floats(32.0))]
    }

    const FOLDED: Option<f32> = Some(-1.0);
    const WHOLE_OFFSET: i32 = 128;

    /// Factors of -32 to 31 times codes of -4 to 3 are -124 to 128; negated they fit a byte, and the scale is negated with
    /// them. A sum of zero then changes the sign of the zero that is added, which no chain shows: they start at +0,
    /// and +0 plus either zero is +0.
    #[inline(always)]
    fn whole<V: Wide, const B: usize>(v: V, u: Unit<'_>) -> [V::I; 8] {
        // Modulo 256: (q - 4) * (32 - s) + 128 = q * (32 - s) + 4 * s.
        let mut by = q3_scales::<V, B>(v, u);
        let mut rest = by;
        for (by, rest) in by.iter_mut().zip(&mut rest) {
            let both = v.or(*by, v.shift::<-16>(*by));
            let four = v.or(both, v.shift::<-8>(both));
            (*by, *rest) = (v.sub_bytes(v.bytes(32), four), v.shift::<-2>(four));
        }
        let mut w = Self::unpack::<V, B>(v, u);
        for (j, w) in w.iter_mut().enumerate() {
            let (by, rest) = (by[j / 4], rest[j / 4]);
            // A product of the upper bytes leaves nothing in the lower ones, and the other way round what it leaves is cut.
            let even = v.and(v.mul_halves(v.and(*w, v.ints(0x00ff_00ff)), by), v.ints(0x00ff_00ff));
            let odd = v.mul_halves(v.and(*w, v.ints(0xff00_ff00_u32.cast_signed())), by);
            *w = v.add_bytes(v.or(even, odd), rest);
        }
        w
    }
}

/// The scales of the halves of block `B` of `q3_k`, 32 greater than the factors.
#[inline(always)]
fn q3_scales<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::I; 2] {
    let (low, high) = (u.word(v, 24 + B / 2 % 2), u.word(v, 26));
    let mut out = [low; 2];
    for (h, out) in out.iter_mut().enumerate() {
        // Byte `k` of the words; which nibble and which two bits tells the group of four scales.
        let (group, k) = ((B / 2) as i32, ((B % 2) * 2 + h) as i32);
        *out = v.or(bits(v, low, 8 * k + group / 2 * 4, 15), bits(v, high, 8 * k + 2 * group - 4, 0x30));
    }
    out
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
    const LAY: Lay = Lay::Halves;
    const HEAD: Option<usize> = Some(0);
    const FIRST: &'static [usize] = &[0, 0, 0, 2, 2, 4, 4, 6, 6];
    const OFFSET: i32 = 0;
    const RANGE: u32 = 15;
    const FACTORS: Factors = Factors::Whole;
    const MINIMUM: bool = true;
    words! { |v, u, B| {
        fields_where_they_are(v, u, 4 + B / 2 * 8, B % 2 * 4, 15)
    } }

    #[inline(always)]
    fn raised<V: Vector, const B: usize>() -> u32 {
        if V::SIGNED { 0 } else { (B % 2 * 4) as u32 }
    }

    six_bit_factors!();
}

turn! {
    Q5K: pieces [fields::q5_k::D, fields::q5_k::QH, 32, fields::q5_k::Q, 64, 80, 96, 112, 128, 144, 160],
    singles [], halves []
}
impl Codes for Ggml<gguf::Q5K> {
    const LAY: Lay = Lay::Halves;
    const HEAD: Option<usize> = Some(0);
    const FIRST: &'static [usize] = &[0, 0, 0, 0, 0, 2, 2, 4, 4, 6, 6];
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
    const LAY: Lay = Lay::Halves;
    const HEAD: Option<usize> = Some(12);
    const FIRST: &'static [usize] = &[0, 0, 1, 1, 4, 4, 5, 5, 0, 0, 4, 4];
    const OFFSET: i32 = 32;
    const RANGE: u32 = 63;
    const FACTORS: Factors = Factors::Halves;
    const MOST: u32 = 128;
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
