//! Turned words of the grouped formats and `nvfp4`.

use ninfer_formats::RowParts;
use ninfer_formats::float::e2m1;

use super::formats::{
    Codes, Factors, Unit, bit_numbers, dots, eight_bits, fields_of_2, in_order, interleaved, looked_up,
    pairs, quads, spread, table, to_right, words,
};
use super::{Lay, Quads, Turn, Vector};

/// Grouped codes of `BITS` bits (`OFFSET`: stored plus one) in groups of `GROUP`.
#[derive(Debug)]
pub(crate) struct Grouped<const BITS: usize, const GROUP: usize, const OFFSET: bool>;

/// `nvfp4`.
#[derive(Debug)]
pub(crate) struct Nvfp4;

static E2M1: [u8; 16] = table(&e2m1::DOUBLED, 12);

/// Gives the even values `2 i` and the odd ones `2 i + 1` their upper two bits: byte `h` of each two has those of four
/// values.
#[inline(always)]
fn upper_two<V: Vector>(v: V, w: &mut [V::I; 8], i: usize, h: V::I) {
    let (first, second) = (v.ints(0x0030_0030), v.ints(0x3000_3000));
    w[2 * i] = v.or_and(v.or_and(w[2 * i], v.shift::<-4>(h), first), h, second);
    let odd = v.or_and(w[2 * i + 1], v.shift::<-2>(h), first);
    w[2 * i + 1] = v.or_and(odd, v.shift::<2>(h), second);
}

/// The planes of a grouped row.
#[inline(always)]
fn grouped<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
    match *row {
        RowParts::Grouped { base, high, scales, .. } => [base, high, scales],
        _ => [&[]; 3],
    }
}

/// Implements both traits for a grouped format.
macro_rules! grouped {
    ($bits:literal, $group:literal, $by_one:literal: bytes $bytes:expr, pieces $pieces:expr, singles $singles:expr,
        offset $offset:literal, order $order:expr, lay $lay:ident $first:expr,
        |$v:ident, $u:ident, $b:ident| $codes:block $(, beside $beside:block)?
    ) => {
        impl Turn for Grouped<$bits, $group, $by_one> {
            const BLOCKS: usize = $group / 32;
            const BYTES: [usize; 3] = $bytes;
            const PIECES: &'static [(usize, usize)] = &$pieces;
            const SINGLES: &'static [(usize, usize)] = &$singles;
            const HALVES: &'static [(usize, usize)] = &[(2, 0)];

            #[inline(always)]
            fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
                grouped(row)
            }
        }

        impl Codes for Grouped<$bits, $group, $by_one> {
            const OFFSET: i32 = $offset;
            const RANGE: u32 = (1 << $bits) - 1;
            const ORDER: [u8; 32] = $order;
            const LAY: Lay = Lay::$lay;
            const FIRST: &'static [usize] = &$first;
            words! { |$v, $u, $b| $codes $(, beside $beside)? }
        }
    };
}

grouped! { 8, 32, false: bytes [32, 0, 2], pieces [(0, 0), (0, 16)], singles [], offset 128, order in_order(),
lay Halves [], |v, u, B| { eight_bits(v, u) } }
grouped! { 4, 64, false: bytes [32, 0, 2], pieces [(0, 0), (0, 16)], singles [], offset 8, order pairs(),
lay Pairs [0, 1], |v, u, B| { interleaved(v, u, 4 * B, 0x88) } }
grouped! { 5, 64, false: bytes [32, 8, 2], pieces [(0, 0), (0, 16)], singles [(1, 0), (1, 4)], offset 16,
order pairs(), lay Pairs [0, 1], |v, u, B| {
    let mut w = interleaved(v, u, 4 * B, 0);
    let high = u.word(v, 8 + B);
    let (sixteen, none) = (v.bytes(16), v.bytes(0));
    for (j, w) in w.iter_mut().enumerate() {
        let bits = if j % 2 == 0 { [0, 2, 4, 6] } else { [1, 3, 5, 7] };
        // Two's complement plus 16: the fifth bit flipped.
        *w = v.or(*w, v.choose(high, [j as u8 / 2; 4], bits, none, sixteen));
    }
    w
}, beside {
    let mut w = interleaved(v, u, 4 * B, 0);
    let high = u.word(v, 8 + B);
    for i in 0..4 {
        for odd in 0..2 {
            w[2 * i + odd] =
                v.or_16(w[2 * i + odd], high, &spread(4 * i, 4), &bit_numbers(odd, 2), false);
        }
    }
    w
} }
grouped! { 6, 64, false: bytes [32, 16, 2], pieces [(0, 0), (0, 16), (1, 0)], singles [], offset 32, order pairs(),
lay Pairs [0, 1], |v, u, B| {
    let mut w = interleaved(v, u, 4 * B, 0);
    for i in 0..4 {
        // Two bytes hold the upper bits of eight values, four each; bit 5 flipped as it is two's complement.
        let high = v.xor(u.word(v, 8 + 2 * B + i / 2), v.bytes(0xaa));
        let h = v.pick(high, if i % 2 == 0 { [0, 0, 1, 1] } else { [2, 2, 3, 3] });
        upper_two(v, &mut w, i, h);
    }
    w
}, beside {
    let mut w = interleaved(v, u, 4 * B, 0);
    for i in 0..4 {
        let high = v.xor(u.word(v, 8 + i), v.bytes(0xaa));
        upper_two(v, &mut w, i, v.pick_16(high, &spread(8 * B, 2)));
    }
    w
} }
grouped! { 2, 64, true: bytes [16, 0, 2], pieces [(0, 0)], singles [], offset 1, order quads(),
lay Turned [], |v, u, B| { fields_of_2(v, u, 2 * B, 0) } }
grouped! { 2, 128, false: bytes [32, 0, 2], pieces [(0, 0), (0, 16)], singles [], offset 2, order quads(),
lay Turned [0, 2],
// Two's complement plus 2: the upper bit flipped.
|v, u, B| { fields_of_2(v, u, 2 * B, 0xaa) } }

impl Turn for Nvfp4 {
    const BLOCKS: usize = 2;
    const BYTES: [usize; 3] = [32, 0, 4];
    const PIECES: &'static [(usize, usize)] = &[(0, 0), (0, 16)];
    const SINGLES: &'static [(usize, usize)] = &[(2, 0)];
    const HALVES: &'static [(usize, usize)] = &[];
    // Rows lie 16 bytes apart within 32 of them; where a tile crosses such a border, the distances of its first, second and
    // last row do not fit together.
    const STEP: [usize; 3] = [32, 0, ninfer_formats::Nvfp4Scales::QUAD_STRIDE];

    #[inline(always)]
    fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
        match row {
            RowParts::Nvfp4 { codes, scales, .. } => [codes, &[], scales.plane()],
            _ => [&[]; 3],
        }
    }

    fn copy(row: &RowParts<'_>, plane: usize, to: &mut Vec<u8>) {
        let RowParts::Nvfp4 { codes, scales, .. } = row else { return };
        if plane == 0 {
            to.extend_from_slice(codes);
        } else {
            for quad in scales.plane().chunks(ninfer_formats::Nvfp4Scales::QUAD_STRIDE).take(scales.len() / 4)
            {
                to.extend_from_slice(&quad[..4]);
            }
        }
    }

    fn divisor(row: &RowParts<'_>) -> u32 {
        match *row {
            RowParts::Nvfp4 { divisor, .. } => divisor,
            _ => 1.0f32.to_bits(),
        }
    }
}

impl Codes for Nvfp4 {
    const OFFSET: i32 = 12;
    const RANGE: u32 = 24;
    const ORDER: [u8; 32] = pairs();
    const FACTORS: Factors = Factors::Terms;
    // E4M3 fields as binary16 ones, whose exponents count from 8 less; half of the value is meant.
    const POWER: f32 = 128.0;
    const LAY: Lay = Lay::Pairs;
    const FIRST: &'static [usize] = &[0, 1];
    words! { |v, u, B| { looked_up(v, interleaved(v, u, 4 * B, 0), &E2M1) } }

    #[inline(always)]
    fn scales<V: Vector>(v: V, _unit: Unit<'_>) -> [V::F; 2] {
        [v.zeros(); 2]
    }

    #[inline(always)]
    fn terms<V: Vector, const B: usize>(v: V, u: Unit<'_>) -> [V::F; 2] {
        let mut out = [v.zeros(); 2];
        for (h, out) in out.iter_mut().enumerate() {
            let byte = to_right(v, u.word(v, 8), 16 * B + 8 * h);
            let sign = v.and(v.shift::<-8>(byte), v.ints(0x8000));
            let magnitude = v.and(byte, v.ints(0x7f));
            let d = v.low_scales(v.or(sign, v.shift::<-7>(magnitude)));
            // All ones are NaN.
            *out = v.nan_where_zero(v.xor(magnitude, v.ints(0x7f)), d);
        }
        out
    }
}
