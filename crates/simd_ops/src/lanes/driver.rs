//! The loops over tiles, chunks, blocks and columns, for any instruction set and format.

use std::ops::Range;

use ninfer_formats::TensorView;

use super::formats::{Codes, Factors, Unit};
use super::{Activation, CHUNK, HalfLine, Line, Memory, ROWS, Rows, Turn, Turned, Vector};
use crate::kernels::FEW;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Chunks between what is read and what is fetched early.
const AHEAD: usize = 2;

/// The chains of a tile: of its parts, of every column.
pub(crate) type Chains<F> = [[F; FEW]; 2];

/// The A8 product of the view's rows and the columns, at most [`FEW`]; see [`crate::kernels::A8Fn`].
#[inline(always)]
pub(crate) fn product<V: Vector, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    chunk: impl Fn(
        &[Line<super::Words>],
        &[HalfLine],
        &[Activation],
        usize,
        usize,
        &mut Chains<V::F>,
        &mut Chains<V::F>,
    ),
) {
    memory.fill::<S>(x, columns.clone(), offset::<V, S>());
    memory.words.resize(S::UNITS * S::WORDS, Line::default());
    memory.halves.resize(S::UNITS * S::HALVES.len(), HalfLine::default());
    let Memory { x: activations, words, halves, rows: room, .. } = memory;
    let blocks = x.blocks();
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = Rows::of::<S>(view, first, room);
        let (mut acc, mut min) = ([[v.zeros(); FEW]; 2], [[v.zeros(); FEW]; 2]);
        for block in (0..blocks).step_by(CHUNK / 32) {
            let units = (blocks - block).div_ceil(S::BLOCKS).min(S::UNITS);
            let next = next::<S>(&rows, block, blocks);
            for u in 0..units {
                let words = &mut words[u * S::WORDS..];
                turn::<V, S>(v, &rows, block / S::BLOCKS, u, next, words, &mut halves[u * S::HALVES.len()..]);
            }
            chunk(
                words,
                halves,
                of_chunk(activations, block, columns.len()),
                columns.len(),
                0,
                &mut acc,
                &mut min,
            );
        }
        finish::<V, S, FEW>(v, view, first, columns.clone(), out, &acc, &min);
    }
}

/// As [`product`], from words that were turned before.
#[inline(always)]
pub(crate) fn prepared<V: Vector, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    turned: Turned<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    chunk: impl Fn(
        &[Line<super::Words>],
        &[HalfLine],
        &[Activation],
        usize,
        usize,
        &mut Chains<V::F>,
        &mut Chains<V::F>,
    ),
) {
    memory.fill::<S>(x, columns.clone(), offset::<V, S>());
    let blocks = x.blocks();
    let units = blocks.div_ceil(S::BLOCKS);
    // The next tile's words lie behind those of each.
    let ahead = AHEAD * S::UNITS * S::WORDS;
    for (tile, first) in (0..view.rows()).step_by(ROWS).enumerate() {
        let words = &turned.words[tile * units * S::WORDS..(tile + 1) * units * S::WORDS];
        let halves = &turned.halves[tile * units * S::HALVES.len()..(tile + 1) * units * S::HALVES.len()];
        let (mut acc, mut min) = ([[v.zeros(); FEW]; 2], [[v.zeros(); FEW]; 2]);
        for block in (0..blocks).step_by(CHUNK / 32) {
            let u = block / S::BLOCKS;
            let (words, halves) = (&words[u * S::WORDS..], &halves[u * S::HALVES.len()..]);
            chunk(
                words,
                halves,
                of_chunk(&memory.x, block, columns.len()),
                columns.len(),
                ahead,
                &mut acc,
                &mut min,
            );
        }
        finish::<V, S, FEW>(v, view, first, columns.clone(), out, &acc, &min);
    }
}

/// Turns all rows of a view, portably: `words` and `halves` take its tiles, one after the other.
pub(crate) fn turn_all<S: Turn>(
    view: &TensorView<'_>,
    words: &mut [Line<super::Words>],
    halves: &mut [HalfLine],
) {
    let units = view.k().div_ceil(32).div_ceil(S::BLOCKS);
    let mut room = Default::default();
    for (tile, first) in (0..view.rows()).step_by(ROWS).enumerate() {
        let rows = Rows::of::<S>(view, first, &mut room);
        for u in 0..units {
            let words = &mut words[(tile * units + u) * S::WORDS..][..S::WORDS];
            let pieces = S::PIECES.iter().flat_map(|&(p, at)| [0, 4, 8, 12].map(|i| (p, at + i)));
            for ((p, at), out) in pieces.chain(S::SINGLES.iter().copied()).zip(words) {
                spread(rows.bytes[p], rows.stride[p], u * rows.step[p] + at, |r, bytes| {
                    out.0[r] = u32::from_le_bytes(bytes);
                });
            }
            let halves = &mut halves[(tile * units + u) * S::HALVES.len()..][..S::HALVES.len()];
            for (&(p, at), out) in S::HALVES.iter().zip(halves) {
                spread(rows.bytes[p], rows.stride[p], u * rows.step[p] + at, |r, bytes| {
                    out.0[r] = u16::from_le_bytes(bytes);
                });
            }
        }
    }
}

/// Where the chunk lies in each plane that is to be fetched while the chunk at `block` is turned: further on in the same
/// rows, or at the beginning of the next tile's.
#[inline(always)]
pub(super) fn next<S: Turn>(rows: &Rows<'_>, block: usize, blocks: usize) -> [Option<usize>; 3] {
    let chunk = CHUNK / 32;
    let (last, ahead) = (blocks.div_ceil(chunk) * chunk, block + AHEAD * chunk);
    let mut out = [None; 3];
    for (p, out) in out.iter_mut().enumerate() {
        let at = |block: usize| block / S::BLOCKS * S::BYTES[p];
        *out = if ahead < last {
            Some(at(ahead))
        } else if rows.more {
            Some(at(ahead - last) + ROWS * rows.stride[p])
        } else {
            None
        };
    }
    out
}

/// Turns the unit `u` of the chunk that begins at unit `first`, of sixteen rows.
#[inline(always)]
pub(super) fn turn<V: Vector, S: Turn>(
    v: V,
    rows: &Rows<'_>,
    first: usize,
    u: usize,
    next: [Option<usize>; 3],
    words: &mut [Line<super::Words>],
    halves: &mut [HalfLine],
) {
    let unit = first + u;
    let (pieces, singles) = words[..S::WORDS].split_at_mut(4 * S::PIECES.len());
    let pieces = pieces.as_chunks_mut::<4>().0;
    assert_eq!(pieces.len(), S::PIECES.len());
    macro_rules! piece {
        ($($i:literal)+) => {
            $(if $i < S::PIECES.len() {
                let (p, at) = S::PIECES[$i];
                v.turn(rows.bytes[p], rows.stride[p], unit * rows.step[p] + at, &mut pieces[$i]);
                // Once for about every line.
                let at = u * S::BYTES[p] + at;
                if let (Some(next), true) = (next[p], at % 64 < 18) {
                    for r in 0..ROWS {
                        crate::arch::fetch(rows.bytes[p].as_ptr().wrapping_add(next + at + r * rows.stride[p]));
                    }
                }
            })+
        };
    }
    piece!(0 1 2 3 4 5 6 7 8 9 10 11 12);
    const { assert!(S::PIECES.len() <= 13) };
    for (&(p, at), out) in S::SINGLES.iter().zip(singles) {
        v.words(rows.bytes[p], rows.stride[p], unit * rows.step[p] + at, out);
    }
    for (&(p, at), out) in S::HALVES.iter().zip(halves) {
        v.halves(rows.bytes[p], rows.stride[p], unit * rows.step[p] + at, out);
    }
}

/// Hands out `N` bytes of each of sixteen rows.
#[inline(always)]
pub(crate) fn spread<const N: usize>(
    plane: &[u8],
    stride: usize,
    at: usize,
    mut each: impl FnMut(usize, [u8; N]),
) {
    let rows = &plane[at..];
    assert!((ROWS - 1) * stride + N <= rows.len(), "sixteen rows");
    let mut row = rows.as_ptr();
    for r in 0..ROWS {
        // SAFETY: reads `N` bytes of row `r`, which are there as asserted.
        each(r, unsafe { row.cast::<[u8; N]>().read() });
        row = row.wrapping_add(stride);
    }
}

/// The activations of the blocks from `block` on, at most a chunk of them.
#[inline(always)]
fn of_chunk(x: &[Activation], block: usize, columns: usize) -> &[Activation] {
    &x[block * columns..((block + CHUNK / 32) * columns).min(x.len())]
}

/// Adds the terms of a chunk's blocks, for which there are activations of `columns` columns. Meanwhile the words that lie
/// `ahead` behind the chunk's are fetched; 0: none.
#[inline(always)]
pub(crate) fn chunk<V: Vector, S: Codes>(
    v: V,
    words: &[Line<super::Words>],
    halves: &[HalfLine],
    x: &[Activation],
    columns: usize,
    ahead: usize,
    acc: &mut Chains<V::F>,
    min: &mut Chains<V::F>,
) {
    for part in 0..ROWS / V::LANES {
        for (u, x) in x.chunks(S::BLOCKS * columns).enumerate() {
            let unit = Unit {
                words: &words[u * S::WORDS..(u + 1) * S::WORDS],
                halves: &halves[u * S::HALVES.len()..(u + 1) * S::HALVES.len()],
                part,
            };
            let (acc, min) = (&mut acc[part], &mut min[part]);
            let scales = scales_of::<V, S>(v, unit);
            macro_rules! step {
                ($($b:literal)+) => {
                    $(if $b < S::BLOCKS && $b * columns < x.len() {
                        if ahead != 0 && part == 0 {
                            let line = words.as_ptr().wrapping_add(u * S::WORDS + ahead + $b * S::WORDS / S::BLOCKS);
                            let mut i = 0;
                            while i < S::WORDS.div_ceil(S::BLOCKS) {
                                crate::arch::fetch(line.wrapping_add(i).cast());
                                i += 1;
                            }
                        }
                        self::block::<V, S, $b>(v, unit, scales, &x[$b * columns..($b + 1) * columns], acc, min);
                    })+
                };
            }
            step!(0 1 2 3 4 5 6 7);
        }
    }
}

/// What belongs to the activations of a block beside the codes: scale, sum times scale, sums of the halves.
pub(crate) trait Column {
    /// These.
    fn rest(&self) -> (f32, f32, [f32; 2]);
}

impl Column for Activation {
    #[inline(always)]
    fn rest(&self) -> (f32, f32, [f32; 2]) {
        (self.d, self.sum, self.halves)
    }
}

/// The offset that the vectors' codes have.
pub(super) const fn offset<V: Vector, S: Codes>() -> i32 {
    if (V::SIGNED && S::RANGE > 127) || (V::SIGNS && S::SIGNS) { 0 } else { S::OFFSET }
}

/// Whether sums of turned rows come from [`Codes::weighed`].
pub(super) const fn weighed<V: Vector, S: Codes>() -> bool {
    V::HALF_WORDS && S::WEIGHED
}

/// What all columns' terms of a block have in common.
#[derive(Clone, Copy)]
pub(super) struct Term<F> {
    pub(super) d: [F; 2],
    pub(super) factors: [F; 2],
    pub(super) minima: [F; 2],
    /// `dmin`, times the minimum where there is one for the block.
    pub(super) min_d: F,
}

/// The scales of a unit.
#[inline(always)]
pub(super) fn scales_of<V: Vector, S: Codes>(v: V, unit: Unit<'_>) -> [V::F; 2] {
    let mut scales = S::scales(v, unit);
    if S::POWER != 1.0 {
        scales[0] = v.mul(scales[0], v.floats(S::POWER));
    }
    scales
}

/// What block `B` of a unit gives to all columns; `scales` from [`scales_of`].
#[inline(always)]
pub(super) fn term<V: Vector, S: Codes, const B: usize>(
    v: V,
    unit: Unit<'_>,
    scales: [V::F; 2],
) -> Term<V::F> {
    let mut d = scales;
    if S::FACTORS == Factors::Terms {
        d = S::terms::<V, B>(v, unit);
        d[0] = v.mul(d[0], v.floats(S::POWER));
        d[1] = v.mul(d[1], v.floats(S::POWER));
    }
    let (minima, dmin) = (S::minima::<V, B>(v, unit), d[1]);
    let raised = S::raised::<V, B>();
    // Weighed sums are not too great.
    if raised != 0 && !weighed::<V, S>() {
        // Exact, and the sums are greater by the same power of two.
        d[0] = v.mul(d[0], v.floats(1.0 / (1 << raised) as f32));
    }
    // Both factors are exact.
    let min_d = if S::MINIMUM && !S::SPLIT { v.mul(minima[0], dmin) } else { dmin };
    Term { d, factors: S::factors::<V, B>(v, unit), minima, min_d }
}

/// Adds a column's term of a block to its chains.
#[inline(always)]
pub(super) fn add<V: Vector, S: Codes>(
    v: V,
    term: &Term<V::F>,
    sums: [V::I; 2],
    (d, sum_x, halves): (f32, f32, [f32; 2]),
    acc: &mut V::F,
    min: &mut V::F,
) {
    let d_x = v.floats(d);
    let sum = v.to_f32(sums[0]);
    let d = v.mul(term.d[0], d_x);
    match S::FACTORS {
        Factors::None => *acc = v.fma(sum, d, *acc),
        Factors::Whole => *acc = v.fma(v.mul(sum, term.factors[0]), d, *acc),
        Factors::Halves => {
            let sum = v.fma(v.to_f32(sums[1]), term.factors[1], v.mul(sum, term.factors[0]));
            *acc = v.fma(sum, d, *acc);
        }
        Factors::Terms => {
            *acc = v.fma(sum, d, *acc);
            *acc = v.fma(v.to_f32(sums[1]), v.mul(term.d[1], d_x), *acc);
        }
    }
    if S::MINIMUM {
        *min = if S::SPLIT {
            let low = v.mul(term.minima[0], v.floats(halves[0]));
            let sum = v.fma(term.minima[1], v.floats(halves[1]), low);
            v.fma(sum, v.mul(term.min_d, d_x), *min)
        } else {
            v.fma(term.min_d, v.floats(sum_x), *min)
        };
    }
}

/// As [`add`], for sums that have the factors of the halves, from [`Codes::weighed`] or otherwise.
#[inline(always)]
pub(super) fn add_weighed<V: Vector, S: Codes>(
    v: V,
    term: &Term<V::F>,
    [sum, minima]: [V::I; 2],
    d: f32,
    acc: &mut V::F,
    min: &mut V::F,
) {
    let d_x = v.floats(d);
    *acc = v.fma(v.to_f32(sum), v.mul(term.d[0], d_x), *acc);
    if S::MINIMUM {
        *min = v.fma(v.to_f32(minima), v.mul(term.min_d, d_x), *min);
    }
}

/// Adds the term of block `B` of a unit to every column's chain.
#[inline(always)]
fn block<V: Vector, S: Codes, const B: usize>(
    v: V,
    unit: Unit<'_>,
    scales: [V::F; 2],
    x: &[Activation],
    acc: &mut [V::F; FEW],
    min: &mut [V::F; FEW],
) {
    let codes = S::unpack::<V, B>(v, unit);
    let term = term::<V, S, B>(v, unit, scales);
    if weighed::<V, S>() {
        let weights = S::weights::<V, B>(v, unit);
        for ((x, acc), min) in x.iter().zip(acc).zip(min) {
            let sums = S::weighed::<V, B>(v, &codes, &weights, x);
            add_weighed::<V, S>(v, &term, sums, x.d, acc, min);
        }
        return;
    }
    for ((x, acc), min) in x.iter().zip(acc).zip(min) {
        let sums = S::sums::<V, B>(v, &codes, x);
        add::<V, S>(v, &term, sums, x.rest(), acc, min);
    }
}

/// Writes the results of a tile.
#[inline(always)]
pub(super) fn finish<V: Vector, S: Codes, const N: usize>(
    v: V,
    view: &TensorView<'_>,
    first: usize,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    acc: &[[V::F; N]; 2],
    min: &[[V::F; N]; 2],
) {
    let rows = (view.rows() - first).min(ROWS);
    let mut lanes = [1.0; ROWS];
    for (i, t) in columns.enumerate() {
        for part in 0..ROWS / V::LANES {
            let mut y = acc[part][i];
            if S::MINIMUM {
                y = v.sub(y, min[part][i]);
            }
            v.store(y, &mut lanes, part);
        }
        if S::FACTORS == Factors::Terms {
            for (r, y) in lanes[..rows].iter_mut().enumerate() {
                *y /= f32::from_bits(S::divisor(&view.row(first + r)));
            }
        }
        out.column(t)[first..first + rows].copy_from_slice(&lanes[..rows]);
    }
}
