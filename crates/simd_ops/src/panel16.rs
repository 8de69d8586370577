//! A16 products: weights decoded once to binary32, then blocks of [`HIGH`] rows and [`WIDE`] columns.
//!
//! The sixteen accumulators that [`crate::order`] gives an element are one vector here, and K runs along it, so both
//! operands are read as they lie, but for columns, which are copied in the order in which they are met: K apart, they
//! would fall on the same few lines of the first-level cache. Accumulators are kept in memory between chunks of K, in
//! which a part of a panel's rows stays in the first-level cache; a panel's rows are decoded whole, once for [`PASS`]
//! columns. With few columns there is no use in keeping decoded rows: [`few`] takes them in pieces that stay in the
//! first-level cache.

#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "other targets have no such kernels")
)]

use std::ops::Range;

use ninfer_formats::TensorView;

use crate::kernels::{Columns, DecodeFn, Picked};
use crate::panel::Lanes;
use crate::tile::Tile;

/// Rows of a block.
pub(crate) const HIGH: usize = 4;
/// Columns of a block.
pub(crate) const WIDE: usize = 6;
/// Rows whose chunk stays in the first-level cache.
const NEAR: usize = 3 * HIGH;
/// Rows of a panel.
const ROWS: usize = 4 * NEAR;
/// Columns whose accumulators are kept at a time.
const COLUMNS: usize = 8 * WIDE;
/// Columns copied at a time, which bounds the memory for them to `1152 * K` bytes.
const PASS: usize = 6 * COLUMNS;
/// Values of a chunk: a multiple of what decoders take at a time (see [`DecodeFn`]).
const CHUNK: usize = 512;
/// Vectors of a chunk.
const STEPS: usize = CHUNK / 16;

/// Rows that are decoded at a time for few columns.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other targets have no such kernels yet"))]
const FEW_ROWS: usize = 2 * HIGH;
/// Values of such rows that are decoded at a time.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other targets have no such kernels yet"))]
const FEW_CHUNK: usize = CHUNK;

/// The accumulators of a block.
pub(crate) type Block = [[Lanes<f32>; WIDE]; HIGH];

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Decoded weights, `[chunks][ROWS][STEPS]`; the last chunk's rows are as long as it.
    weights: Vec<Lanes<f32>>,
    /// Copied columns: by [`COLUMNS`] of them, in these by chunks, in these by columns.
    packed: Vec<Lanes<f32>>,
    /// The last, partial vectors of rows and columns.
    tails: Vec<Lanes<f32>>,
    blocks: Vec<Block>,
}

/// One operand of a block: vectors of 16 values, `stride` values from one row or column to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// The values, from the first vector of the first row or column on.
    pub values: &'a [f32],
    /// Distance of rows or columns, in values.
    pub stride: usize,
    /// Where lines lie that will be wanted from the first-level cache soon, two a step, and from the second-level cache
    /// later, one every other step. Any address will do; null: none are fetched early.
    pub ahead: [*const f32; 2],
}

impl<'a> Operand<'a> {
    fn new(values: &'a [f32], stride: usize) -> Self {
        Self { values, stride, ahead: [std::ptr::null(); 2] }
    }

    /// Checks that `count` rows or columns of `steps` vectors are there.
    #[inline(always)]
    pub(crate) fn check(&self, count: usize, steps: usize) {
        let last = (count - 1).checked_mul(self.stride).and_then(|at| at.checked_add(16 * steps));
        assert!(last.is_some_and(|last| last <= self.values.len()), "an operand is too short");
    }
}

#[inline(always)]
fn flat(lanes: &[Lanes<f32>]) -> &[f32] {
    // SAFETY: a lane group is sixteen binary32 numbers without padding (64 bytes, aligned to 64).
    unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), 16 * lanes.len()) }
}

#[inline(always)]
fn flat_mut(lanes: &mut [Lanes<f32>]) -> &mut [f32] {
    // SAFETY: as in `flat`; the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), 16 * lanes.len()) }
}

/// The A16 product, see [`crate::kernels::A16Fn`].
///
/// `add(w, x, columns, steps, fresh, block)` adds `steps` vectors of [`HIGH`] rows and `columns` columns to a block,
/// which it clears first if `fresh`; `combine(block, sums)` sums the sixteen accumulators of each element, columns
/// outside.
#[inline(always)]
pub(crate) fn product(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    decode: &Picked<DecodeFn>,
    add: impl Fn(Operand<'_>, Operand<'_>, usize, usize, bool, &mut Block),
    combine: impl Fn(&Block, &mut [[f32; HIGH]; WIDE]),
) {
    for first in columns.clone().step_by(PASS) {
        pass(view, x, first..(first + PASS).min(columns.end), out, memory, decode, &add, &combine);
    }
}

/// Copies the columns as [`Memory::packed`] says.
#[inline(always)]
fn pack(x: &Columns<'_>, columns: Range<usize>, k: usize, packed: &mut Vec<Lanes<f32>>) {
    packed.resize((columns.len() * k).div_ceil(16), Lanes::default());
    let packed = flat_mut(packed);
    for first in columns.clone().step_by(COLUMNS) {
        let count = (columns.end - first).min(COLUMNS);
        let to = &mut packed[(first - columns.start) * k..][..count * k];
        for (c, t) in (first..first + count).enumerate() {
            for (chunk, values) in x.column(t).chunks(CHUNK).enumerate() {
                to[chunk * CHUNK * count + c * values.len()..][..values.len()].copy_from_slice(values);
            }
        }
    }
}

/// The product of at most [`PASS`] columns.
#[inline(always)]
fn pass(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    decode: &Picked<DecodeFn>,
    add: &impl Fn(Operand<'_>, Operand<'_>, usize, usize, bool, &mut Block),
    combine: &impl Fn(&Block, &mut [[f32; HIGH]; WIDE]),
) {
    let k = view.k();
    let Memory { weights, packed, tails, blocks } = memory;
    let (chunks, vectors) = (k.div_ceil(CHUNK), k.div_ceil(16));
    weights.resize(ROWS * vectors, Lanes::default());
    tails.resize(ROWS + COLUMNS, Lanes::default());
    blocks.resize(ROWS / HIGH * (COLUMNS / WIDE), [[Lanes::default(); WIDE]; HIGH]);
    pack(x, columns.clone(), k, packed);
    let packed = flat(packed);
    let (row_tails, column_tails) = tails.split_at_mut(ROWS);
    let tail = k % 16;
    // In the order in which they are met.
    let place =
        |r: usize, c: usize| (r / NEAR * (COLUMNS / WIDE) + c / WIDE) * (NEAR / HIGH) + r % NEAR / HIGH;
    for first_row in (0..view.rows()).step_by(ROWS) {
        let rows = (view.rows() - first_row).min(ROWS);
        let Ok(part) = view.row_range(first_row, first_row + rows) else { return };
        for chunk in 0..chunks {
            let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(k);
            let to = &mut flat_mut(&mut weights[ROWS * STEPS * chunk..])[..rows * range.len()];
            decode.call(&part, range.clone(), to);
            if range.end == k && tail != 0 {
                // -0 times +0 leaves every accumulator as it is.
                for (r, lanes) in row_tails.iter_mut().enumerate().take(rows) {
                    *lanes = Lanes([-0.0; 16]);
                    let end = (r + 1) * range.len();
                    lanes.0[..tail].copy_from_slice(&to[end - tail..end]);
                }
            }
        }
        for first in columns.clone().step_by(COLUMNS) {
            let count = (columns.end - first).min(COLUMNS);
            let packed = &packed[(first - columns.start) * k..];
            if tail != 0 {
                for (c, lanes) in column_tails.iter_mut().enumerate().take(count) {
                    *lanes = Lanes::default();
                    lanes.0[..tail].copy_from_slice(&x.column(first + c)[k - tail..]);
                }
            }
            for chunk in 0..chunks {
                let length = (k - chunk * CHUNK).min(CHUNK);
                let w = flat(&weights[ROWS * STEPS * chunk..]);
                let packed = &packed[chunk * CHUNK * count..];
                for near in (0..rows).step_by(NEAR) {
                    for c in (0..count).step_by(WIDE) {
                        let wide = (count - c).min(WIDE);
                        for r in (near..rows.min(near + NEAR)).step_by(HIGH) {
                            let block = &mut blocks[place(r, c)];
                            let fresh = chunk == 0;
                            // Rows past the view's are old values; their sums go nowhere.
                            let weights = Operand::new(&w[r * length..], length);
                            let mut columns = Operand::new(&packed[c * length..], length);
                            // The next columns, which these blocks share out among them; and the next chunk of these
                            // columns, of which all blocks of the panel fetch their parts.
                            let [soon, later] = [(c + WIDE) * length, (count + c) * length]
                                .map(|at| packed.as_ptr().wrapping_add(at));
                            let (part, all) = ((r - near) / HIGH, WIDE * length);
                            columns.ahead = [
                                soon.wrapping_add(all / (NEAR / HIGH) * part),
                                later.wrapping_add(all / (ROWS / HIGH) * (r / HIGH)),
                            ];
                            add(weights, columns, wide, length / 16, fresh, block);
                            if chunk + 1 == chunks && tail != 0 {
                                let weights = Operand::new(flat(&row_tails[r..]), 16);
                                let columns = Operand::new(flat(&column_tails[c..]), 16);
                                add(weights, columns, wide, 1, false, block);
                            }
                        }
                    }
                }
            }
            for c in (0..count).step_by(WIDE) {
                for r in (0..rows).step_by(HIGH) {
                    let mut sums = [[0.0; HIGH]; WIDE];
                    combine(&blocks[place(r, c)], &mut sums);
                    let rows = first_row + r..first_row + (r + HIGH).min(rows);
                    for (t, sums) in (first + c..first + count).zip(&sums) {
                        out.column(t)[rows.clone()].copy_from_slice(&sums[..rows.len()]);
                    }
                }
            }
        }
    }
}

/// The A16 product of at most [`crate::kernels::FEW`] columns; otherwise as [`product`].
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "other targets have no such kernels yet")
)]
#[inline(always)]
pub(crate) fn few(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    decode: &Picked<DecodeFn>,
    add: impl Fn(Operand<'_>, Operand<'_>, usize, usize, bool, &mut Block),
    combine: impl Fn(&Block, &mut [[f32; HIGH]; WIDE]),
) {
    let k = view.k();
    let Memory { weights, tails, blocks, .. } = memory;
    let (count, tail) = (columns.len(), k % 16);
    let groups = count.div_ceil(WIDE);
    weights.resize(FEW_ROWS * FEW_CHUNK / 16, Lanes::default());
    tails.resize(ROWS + COLUMNS, Lanes::default());
    blocks.resize(FEW_ROWS / HIGH * groups, [[Lanes::default(); WIDE]; HIGH]);
    let (row_tails, column_tails) = tails.split_at_mut(ROWS);
    for (lanes, t) in column_tails.iter_mut().zip(columns.clone()) {
        *lanes = Lanes::default();
        lanes.0[..tail].copy_from_slice(&x.column(t)[k - tail..]);
    }
    for first_row in (0..view.rows()).step_by(FEW_ROWS) {
        let rows = (view.rows() - first_row).min(FEW_ROWS);
        let Ok(part) = view.row_range(first_row, first_row + rows) else { return };
        for start in (0..k).step_by(FEW_CHUNK) {
            let length = (k - start).min(FEW_CHUNK);
            let w = &mut flat_mut(weights)[..rows * length];
            decode.call(&part, start..start + length, w);
            let last = start + length == k && tail != 0;
            if last {
                for (lanes, row) in row_tails.iter_mut().zip(w.chunks_exact(length)) {
                    *lanes = Lanes([-0.0; 16]);
                    lanes.0[..tail].copy_from_slice(&row[length - tail..]);
                }
            }
            // Rows past the view's are old values; their sums go nowhere.
            let w = flat(weights);
            for (s, r) in (0..rows).step_by(HIGH).enumerate() {
                for (g, c) in (0..count).step_by(WIDE).enumerate() {
                    let (wide, block) = ((count - c).min(WIDE), &mut blocks[s * groups + g]);
                    let x = Operand::new(&x.from(columns.start + c)[start..], k);
                    add(Operand::new(&w[r * length..], length), x, wide, length / 16, start == 0, block);
                    if last {
                        let w = Operand::new(flat(&row_tails[r..]), 16);
                        add(w, Operand::new(flat(&column_tails[c..]), 16), wide, 1, false, block);
                    }
                }
            }
        }
        for (s, r) in (0..rows).step_by(HIGH).enumerate() {
            for (g, c) in (0..count).step_by(WIDE).enumerate() {
                let mut sums = [[0.0; HIGH]; WIDE];
                combine(&blocks[s * groups + g], &mut sums);
                let rows = first_row + r..first_row + (r + HIGH).min(rows);
                for (t, sums) in (columns.start + c..columns.end).zip(&sums) {
                    out.column(t)[rows.clone()].copy_from_slice(&sums[..rows.len()]);
                }
            }
        }
    }
}
