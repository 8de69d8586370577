//! A16 products with many columns: sixteen rows in a vector.
//!
//! An element has sixteen accumulators ([`crate::order`]), each of which takes every sixteenth value of K. [`crate::panel16`]
//! keeps them in one vector; here a vector holds the same accumulator of sixteen rows, and K is taken by remainders: all
//! values of remainder 0, then those of 1, and so on. So the accumulators of [`HIGH`] rows and [`WIDE`] columns stay in
//! registers for a whole chunk, and a step loads two vectors and twelve numbers for its 24 multiplications, where
//! neighbouring values in a vector take ten vectors: a quarter of the bytes. Weights are turned for that when they are
//! decoded, columns when they are copied. What a vector of sums comes to are neighbouring elements of the output.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other targets have no such kernels yet"))]

use std::ops::Range;

use ninfer_formats::TensorView;

use crate::kernels::{Columns, DecodeFn, Picked};
use crate::panel::Lanes;
use crate::tile::Tile;

/// Accumulators of an element.
const PARTS: usize = 16;
/// Rows of a block: two vectors.
pub(crate) const HIGH: usize = 32;
/// Columns of a block.
pub(crate) const WIDE: usize = 12;
/// Rows of a panel, which stays in the second-level cache.
const ROWS: usize = 2 * HIGH;
/// Columns whose accumulators are kept at a time if K has several chunks.
const COLUMNS: usize = 8 * WIDE;
/// Columns copied at a time, which bounds the memory for them to about `2064 * K` bytes; so 512 columns are one pass, in
/// which weights are decoded once.
const PASS: usize = 43 * WIDE;
/// Values of a chunk.
const CHUNK: usize = 2048;
/// Values of sixteen rows or columns that are turned at a time: a multiple of what decoders take (see [`DecodeFn`]).
const PIECE: usize = 256;

/// The weights of the rows of a block for one step.
pub(crate) type Step = [Lanes<f32>; HIGH / 16];

/// One accumulator of the elements of a block.
pub(crate) type Part = [Step; WIDE];

/// The accumulators of a block.
pub(crate) type Block = [Part; PARTS];

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Decoded weights, by chunks, blocks, remainders and steps.
    weights: Vec<Step>,
    /// Copied columns: by [`COLUMNS`] of them, in these by chunks, blocks, remainders, steps and columns.
    columns: Vec<f32>,
    /// Sixteen rows or columns before they are turned, and columns afterwards.
    near: Vec<Lanes<f32>>,
    blocks: Vec<Block>,
}

#[inline(always)]
fn flat<const N: usize>(lanes: &mut [[Lanes<f32>; N]]) -> &mut [f32] {
    let count = 16 * N * lanes.len();
    // SAFETY: a lane group is sixteen binary32 numbers without padding, and the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), count) }
}

/// Moves rows of `length` values apart, so that each is whole vectors, filled up; returns the distance of rows.
#[inline(always)]
fn whole(rows: &mut [f32], count: usize, length: usize, fill: f32) -> usize {
    let stride = length.next_multiple_of(16);
    if stride != length {
        for r in (0..count).rev() {
            rows.copy_within(r * length..(r + 1) * length, r * stride);
            rows[r * stride + length..(r + 1) * stride].fill(fill);
        }
    }
    stride
}

/// The functions of a token.
pub(crate) struct Kernel<Turn, Add, Combine> {
    /// `turn(rows, stride, steps, to, apart, step)` takes `16 * steps` values of each of sixteen rows: those of remainder `l` and
    /// step `s` of all rows go to `to[l * apart + s * step..][..16]`.
    pub turn: Turn,
    /// `add(w, x, wide, high, fresh, part, later)` adds the products of steps to one accumulator of `wide` columns and
    /// `high` rows, 16 or 32, which it clears first if `fresh`. `later` is where lines lie that will be wanted from the
    /// second-level cache: any address will do.
    pub add: Add,
    /// `combine(block, sums)` sums the accumulators of each element.
    pub combine: Combine,
}

/// The A16 product, see [`crate::kernels::A16Fn`].
#[inline(always)]
pub(crate) fn product(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    decode: &Picked<DecodeFn>,
    kernel: &Kernel<
        impl Fn(&[f32], usize, usize, &mut [f32], usize, usize),
        impl Fn(&[Step], &[f32], usize, usize, bool, &mut Part, *const f32),
        impl Fn(&Block, &mut [[f32; HIGH]; WIDE]),
    >,
) {
    let k = view.k();
    let several = k > CHUNK;
    let Memory { weights, columns: copied, near, blocks } = memory;
    near.resize(2 * PIECE, Lanes::default());
    weights.resize(ROWS / HIGH * k.next_multiple_of(16), [Lanes::default(); HIGH / 16]);
    let count = if several { (ROWS / HIGH) * (COLUMNS / WIDE) } else { 1 };
    blocks.resize(count.max(blocks.len()), [[[Lanes::default(); HIGH / 16]; WIDE]; PARTS]);
    for first in columns.clone().step_by(PASS) {
        let columns = first..(first + PASS).min(columns.end);
        copy(x, columns.clone(), k, copied, near, &kernel.turn);
        for first_row in (0..view.rows()).step_by(ROWS) {
            let rows = (view.rows() - first_row).min(ROWS);
            fill(view, first_row..first_row + rows, weights, near, decode, &kernel.turn);
            let mut rest = &copied[..];
            for group in columns.clone().step_by(COLUMNS) {
                let group = group..(group + COLUMNS).min(columns.end);
                for start in (0..k).step_by(CHUNK) {
                    let end = (start + CHUNK).min(k);
                    let steps = (end - start).div_ceil(16);
                    for c in group.clone().step_by(WIDE) {
                        let wide = (group.end - c).min(WIDE);
                        let (x, behind) = rest.split_at(PARTS * steps * wide);
                        rest = behind;
                        for r in (0..rows).step_by(HIGH) {
                            let high = (rows - r).min(HIGH);
                            let at = if several {
                                r / HIGH * (COLUMNS / WIDE) + (c - group.start) / WIDE
                            } else {
                                0
                            };
                            let (block, w) =
                                (&mut blocks[at], &weights[ROWS / HIGH * start + r / HIGH * PARTS * steps..]);
                            for (l, part) in block.iter_mut().enumerate() {
                                let x = &x[l * steps * wide..][..steps * wide];
                                let later = x.as_ptr().wrapping_add(PARTS * steps * wide);
                                let w = &w[l * steps..][..steps];
                                (kernel.add)(w, x, wide, high, start == 0, part, later);
                            }
                            if end == k {
                                let mut sums = [[0.0; HIGH]; WIDE];
                                (kernel.combine)(block, &mut sums);
                                for (t, sums) in (c..c + wide).zip(&sums) {
                                    out.column(t)[first_row + r..][..high].copy_from_slice(&sums[..high]);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Copies the columns as [`Memory::columns`] says.
#[inline(always)]
fn copy(
    x: &Columns<'_>,
    columns: Range<usize>,
    k: usize,
    copied: &mut Vec<f32>,
    near: &mut [Lanes<f32>],
    turn: &impl Fn(&[f32], usize, usize, &mut [f32], usize, usize),
) {
    copied.resize(columns.len() * k.next_multiple_of(16), 0.0);
    let (near, turned) = flat(near.as_chunks_mut::<1>().0).split_at_mut(16 * PIECE);
    let mut rest = &mut copied[..];
    for group in columns.clone().step_by(COLUMNS) {
        let group = group..(group + COLUMNS).min(columns.end);
        for start in (0..k).step_by(CHUNK) {
            let end = (start + CHUNK).min(k);
            let steps = (end - start).div_ceil(16);
            for c in group.clone().step_by(WIDE) {
                let wide = (group.end - c).min(WIDE);
                let (to, behind) = rest.split_at_mut(PARTS * steps * wide);
                rest = behind;
                for from in (start..end).step_by(PIECE) {
                    let range = from..(from + PIECE).min(end);
                    for (c, near) in (c..c + wide).zip(near.chunks_exact_mut(range.len())) {
                        near.copy_from_slice(&x.column(c)[range.clone()]);
                    }
                    let stride = whole(near, wide, range.len(), 0.0);
                    let some = stride / 16;
                    turn(near, stride, some, turned, 16 * some, 16);
                    for (l, turned) in turned.chunks_exact(16 * some).take(PARTS).enumerate() {
                        let to = &mut to[(l * steps + (from - start) / 16) * wide..][..some * wide];
                        for (to, turned) in to.chunks_exact_mut(wide).zip(turned.as_chunks::<16>().0) {
                            to.copy_from_slice(&turned[..wide]);
                        }
                    }
                }
            }
        }
    }
}

/// Decodes rows as [`Memory::weights`] says. What is there of rows past them are old values; their sums go nowhere.
#[inline(always)]
fn fill(
    view: &TensorView<'_>,
    rows: Range<usize>,
    weights: &mut [Step],
    near: &mut [Lanes<f32>],
    decode: &Picked<DecodeFn>,
    turn: &impl Fn(&[f32], usize, usize, &mut [f32], usize, usize),
) {
    let k = view.k();
    let near = flat(near.as_chunks_mut::<1>().0);
    for first in rows.clone().step_by(16) {
        let sixteen = first..(first + 16).min(rows.end);
        let Ok(part) = view.row_range(sixteen.start, sixteen.end) else { return };
        let (block, half) = ((first - rows.start) / HIGH, (first - rows.start) % HIGH / 16);
        for from in (0..k).step_by(PIECE) {
            let range = from..(from + PIECE).min(k);
            let start = from / CHUNK * CHUNK;
            let steps = (k - start).min(CHUNK).div_ceil(16);
            let to = &mut weights[ROWS / HIGH * start + block * PARTS * steps..][..PARTS * steps];
            decode.call(&part, range.clone(), &mut near[..sixteen.len() * range.len()]);
            // -0 times +0 leaves every accumulator as it is.
            let stride = whole(near, sixteen.len(), range.len(), -0.0);
            let to = &mut flat(&mut to[(from - start) / 16..])[16 * half..];
            turn(near, stride, stride / 16, to, HIGH * steps, HIGH);
        }
    }
}
