//! A16 products with one column: the exact weights of sixteen rows in lanes, one vector of accumulators for each of the
//! sixteen virtual lanes of [`crate::order`].
//!
//! A byte of a code (its offset included) placed in the fraction of 2^23 makes a number from which the same power plus
//! the offset is subtracted: the code, exactly, and +0 for zero. A byte in bits 8 to 15 gives 256 times that; its
//! scale is 2^-8 times the other's, which no scale of a format is too small for. The weights of `nvfp4` are quotients
//! and come about by table ([`quotients`]).

use ninfer_formats::TensorView;

use super::driver::{next, scales_of, turn};
use super::formats::{Codes, Factors, Unit};
use super::{CHUNK, Floats, HalfLine, Line, Memory, ROWS, Rows};
use crate::tile::Tile;

/// 2^23 and its bits.
const MAGIC: f32 = 8_388_608.0;
const MAGIC_BITS: i32 = 0x4b00_0000;

/// The accumulators of a tile: virtual lanes of sixteen rows.
pub(crate) type Sums<F> = [F; 16];

/// The product of the view's rows with the column `x`, whose values are a multiple of 32, to column `t`; see
/// [`crate::kernels::A16Fn`].
#[inline(always)]
pub(crate) fn floats<V: Floats, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    x: &[f32],
    t: usize,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    chunk: impl Fn(&[Line<super::Words>], &[HalfLine], &[[f32; 32]], &[f32; ROWS], &mut Sums<V::F>),
) {
    const { assert!(V::LANES == ROWS) };
    memory.words.resize(S::UNITS * S::WORDS, Line::default());
    memory.halves.resize(S::UNITS * S::HALVES.len(), HalfLine::default());
    let Memory { words, halves, rows: room, .. } = memory;
    let x = x.as_chunks::<32>().0;
    let blocks = x.len();
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = Rows::of::<S>(view, first, room);
        let mut by = [1.0; ROWS];
        if S::FACTORS == Factors::Terms {
            for (by, r) in by.iter_mut().zip(first..view.rows()) {
                *by = f32::from_bits(S::divisor(&view.row(r)));
            }
        }
        let mut acc = [v.zeros(); 16];
        for (block, x) in (0..blocks).step_by(CHUNK / 32).zip(x.chunks(CHUNK / 32)) {
            let units = (blocks - block).div_ceil(S::BLOCKS).min(S::UNITS);
            let next = next::<S>(&rows, block, blocks);
            for u in 0..units {
                let words = &mut words[u * S::WORDS..];
                turn::<V, S>(v, &rows, block / S::BLOCKS, u, next, words, &mut halves[u * S::HALVES.len()..]);
            }
            chunk(words, halves, x, &by, &mut acc);
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                acc[l] = v.add(acc[l], acc[l + half]);
            }
        }
        let mut lanes = [0.0; ROWS];
        v.store(acc[0], &mut lanes, 0);
        let rows = (view.rows() - first).min(ROWS);
        out.column(t)[first..first + rows].copy_from_slice(&lanes[..rows]);
    }
}

/// Adds the products of a chunk's blocks, of which there are as many as there are runs in `x`.
#[inline(always)]
pub(crate) fn chunk_of_floats<V: Floats, S: Codes>(
    v: V,
    words: &[Line<super::Words>],
    halves: &[HalfLine],
    x: &[[f32; 32]],
    by: &[f32; ROWS],
    acc: &mut Sums<V::F>,
) {
    let by = v.load_floats(by);
    let mut sums = *acc;
    for (u, x) in x.chunks(S::BLOCKS).enumerate() {
        let unit = Unit {
            words: &words[u * S::WORDS..(u + 1) * S::WORDS],
            halves: &halves[u * S::HALVES.len()..(u + 1) * S::HALVES.len()],
            part: 0,
        };
        let scales = scales_of::<V, S>(v, unit);
        macro_rules! step {
            ($($b:literal)+) => {
                $(if $b < S::BLOCKS && $b < x.len() {
                    if S::FACTORS == Factors::Terms {
                        quotients::<V, S, $b>(v, unit, by, &x[$b], &mut sums);
                    } else {
                        block::<V, S, $b>(v, unit, scales, &x[$b], &mut sums);
                    }
                })+
            };
        }
        step!(0 1 2 3 4 5 6 7);
    }
    *acc = sums;
}

/// Whether all divisors of an `nvfp4` view are such that quotients of scales by them, and a few powers of two times
/// these, are normal numbers (or zero, or NaN of a NaN).
pub(crate) fn plain_divisors(view: &TensorView<'_>) -> bool {
    let (first, per) = (view.first_row(), view.rows_per_divisor());
    view.rows() == 0
        || (first / per..=(first + view.rows() - 1) / per).all(|i| {
            let divisor = f32::from_bits(view.divisor_word(i)).abs();
            (2f32.powi(-60)..=2f32.powi(60)).contains(&divisor)
        })
}

/// The codes' values that are powers of two, as multiples of one, and the others as multiples of one and a half.
static TWOS: [f32; 16] =
    [0.0, 0.5, 1.0, 0.0, 2.0, 0.0, 4.0, 0.0, -0.0, -0.5, -1.0, -0.0, -2.0, -0.0, -4.0, -0.0];
static THREES: [f32; 16] =
    [0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 4.0, -0.0, -0.0, -0.0, -1.0, -0.0, -2.0, -0.0, -4.0];

/// [`block`] for `nvfp4`: a weight is a power of two times one of two quotients of its group, `scale / by` and
/// `1.5 * scale / by`. The other's product is a zero of the same sign.
#[inline(always)]
fn quotients<V: Floats, S: Codes, const B: usize>(
    v: V,
    unit: Unit<'_>,
    by: V::F,
    x: &[f32; 32],
    sums: &mut Sums<V::F>,
) {
    let w = S::stored::<V, B>(v, unit);
    let terms = S::terms::<V, B>(v, unit);
    macro_rules! half {
        ($h:literal: $($j:literal)+) => {
            // Codes are doubled where terms are meant.
            let scale = v.mul(terms[$h], v.floats(2.0 * S::POWER));
            let one = v.div(scale, by);
            let more = v.div(v.mul(scale, v.floats(1.5)), by);
            $(
                macro_rules! byte {
                    ($index:expr, $at:literal) => {
                        let (k, index) = (const { S::ORDER[4 * $j + $at] as usize }, $index);
                        let weight = v.mul(v.entries16(&TWOS, index), one);
                        let weight = v.fma(v.entries16(&THREES, index), more, weight);
                        sums[k % 16] = v.fma(weight, v.floats(x[k]), sums[k % 16]);
                    };
                }
                byte!(w[$j], 0);
                byte!(v.shift::<8>(w[$j]), 1);
                byte!(v.shift::<16>(w[$j]), 2);
                byte!(v.shift::<24>(w[$j]), 3);
            )+
        };
    }
    half!(0: 0 1 2 3);
    half!(1: 4 5 6 7);
}

/// Adds the products of block `B` of a unit.
#[inline(always)]
fn block<V: Floats, S: Codes, const B: usize>(
    v: V,
    unit: Unit<'_>,
    [d, dmin]: [V::F; 2],
    x: &[f32; 32],
    sums: &mut Sums<V::F>,
) {
    let codes = S::unpack::<V, B>(v, unit);
    let w = S::flat(v, &codes);
    let raised = S::raised::<V, B>();
    // Codes may have stayed where their bits were: greater by a power of two.
    let d = if raised == 0 { d } else { v.mul(d, v.floats(1.0 / (1 << raised) as f32)) };
    let zero = S::zero_point::<V, B>(v, &codes);
    let factors = S::factors::<V, B>(v, unit);
    let minima = S::minima::<V, B>(v, unit);
    // For the lower byte of 16 bits and for the upper one.
    let zeros = [v.add(v.floats(MAGIC), zero), v.fma(zero, v.floats(256.0), v.floats(MAGIC))];
    let small = v.floats(1.0 / 256.0);
    let masks = [v.ints(0xff), v.ints(0xff00)];
    let magic = v.ints(MAGIC_BITS);
    let none = v.zeros();
    macro_rules! half {
        ($h:literal: $($j:literal)+) => {
            let d = match S::FACTORS {
                Factors::None | Factors::Terms => d,
                Factors::Whole => v.mul(d, factors[0]),
                Factors::Halves => v.mul(d, factors[$h]),
            };
            let d = [d, v.mul(d, small)];
            let min = if !S::MINIMUM {
                none
            } else if matches!(S::FACTORS, Factors::Halves) {
                v.mul(dmin, minima[$h])
            } else {
                v.mul(dmin, minima[0])
            };
            $(
                let upper = v.shift::<16>(w[$j]);
                macro_rules! byte {
                    ($word:expr, $i:literal, $at:literal) => {
                        let k = const { S::ORDER[4 * $j + $at] as usize };
                        let code = v.sub(v.as_floats(v.or_and(magic, $word, masks[$i])), zeros[$i]);
                        let weight = if S::MINIMUM { v.fma_less(code, d[$i], min) } else { v.mul(code, d[$i]) };
                        sums[k % 16] = v.fma(weight, v.floats(x[k]), sums[k % 16]);
                    };
                }
                byte!(w[$j], 0, 0);
                byte!(w[$j], 1, 1);
                byte!(upper, 0, 2);
                byte!(upper, 1, 3);
            )+
        };
    }
    // Every order has the first sixteen values in the first four words: a lane's products come in increasing k.
    const {
        let mut place = 0;
        while place < 32 {
            assert!((S::ORDER[place] < 16) == (place < 16));
            place += 1;
        }
    }
    half!(0: 0 1 2 3);
    half!(1: 4 5 6 7);
}
