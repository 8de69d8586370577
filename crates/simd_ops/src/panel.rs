//! Matrix-matrix products: weights unpacked once to bytes, activations packed once by columns, then tile by tile.
//!
//! The order of [`crate::order`] leaves one freedom, and this module is built on it: a term is
//! `fma(f32(isum), f32(d_w * d_x), acc)`, and everything before that `fma` is exact, so exact steps may be regrouped.
//! * `d_w` and `d_x` are binary16 numbers (times a power of two; for `nvfp4` 4 significant bits), so `d_w * d_x` has
//!   at most 22 significant bits and lies far inside binary32's range: it never rounds.
//! * `isum` has at most 24 bits ([`ninfer_formats::codec::gguf::ints`]), and so has each of its parts, so it may be
//!   put together from its halves in binary32: `fma(scale1, sum1, scale0 * sum0)`.
//! * A minimum shared by 32 values is `(min * dmin) * (sum(x) * d_x)`: 6 + 11 and 12 + 11 bits, both exact, so that
//!   one `fma` of the two equals the written one.
//! * Small integer scales may be multiplied into the codes where the result still fits a byte (`q2_k`, `q3_k`).
//!
//! None of this depends on the values being finite: where a factor is infinite or NaN, both groupings give an
//! infinity of the same sign or a NaN, because each of their products has the same factors.
//!
//! A panel holds [`ROWS`] rows and [`CHUNK`] blocks of 32 values: small enough for the first-level cache, and walked
//! by groups of [`LANES`] columns, whose codes lie side by side so that a vector holds four values of sixteen columns.
//! The products of a panel with one group are added to accumulators in memory once per chunk. An element of `Y` is one
//! lane of one accumulator throughout, so neither tiles nor threads show in its bits.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, reason = "other targets use a part of it, or have no such kernels")
)]

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod formats;
mod sources;

use std::ops::Range;

use ninfer_formats::{RowParts, TensorView};

use crate::order::Fused;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use formats::a8_sources;
pub(crate) use sources::{Blocks, Folded, Grouped, Nvfp4};

/// Rows of a panel: two heights of an accumulator.
pub(crate) const ROWS: usize = 64;
/// Heights of an accumulator in a panel.
const HEIGHTS: usize = ROWS / 16;
/// Blocks of 32 values of a panel; a multiple of every format's blocks per super-block.
pub(crate) const CHUNK: usize = 8;
/// Columns of a group: one 512-bit vector of binary32.
pub(crate) const LANES: usize = 16;
/// Columns packed at a time, which bounds the memory for them to `512 * K` bytes and a few per cent.
pub(crate) const COLUMNS: usize = 512;

/// Sixteen lanes, one per column of a group.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Lanes<T>(pub [T; LANES]);

/// Codes of 32 consecutive values of sixteen columns: eight vectors of four values a column.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Codes(pub [[[i8; 4]; LANES]; 8]);

/// Accumulators of 16 rows (outer) and 16 columns (lanes).
pub(crate) type Accumulators = [Lanes<f32>; 16];

/// How the integer sums of a block enter its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `isum` is one sum of codes and activations.
    Plain,
    /// One sum times an integer scale.
    Scaled,
    /// Two halves with a scale each.
    Split,
    /// Two halves with a term each (`nvfp4`).
    Halves,
}

/// Whether a minimum is subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Minimum {
    /// None.
    None,
    /// One minimum per 32 values.
    Whole,
    /// One per half.
    Split,
}

/// A format as panels see it.
pub(crate) trait Source {
    /// See [`Shape`].
    const SHAPE: Shape;
    /// See [`Minimum`].
    const MINIMUM: Minimum = Minimum::None;
    /// The least number that makes every code non-negative when added to it.
    const OFFSET: u8;
    /// No code plus [`Self::OFFSET`] is greater than this.
    const RANGE: u8;
    /// Whether eight values of two columns lie together instead of four of sixteen; see [`Paired`].
    const PAIRED: bool = false;

    /// Unpacks the blocks `first..first + count` of a row (`first` a multiple of [`CHUNK`], `count` at most that)
    /// to row `r` of the panel, `offset` added to every code.
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize);
}

/// A format whose activations are packed by pairs of columns: 16 bytes hold eight values of one column, then those of
/// the next; eight such vectors are eight values of a group, and four times that a block.
#[allow(dead_code, reason = "for kernels that a target may lack")]
#[derive(Debug)]
pub(crate) struct Paired<S>(std::marker::PhantomData<S>);

impl<S: Source> Source for Paired<S> {
    const SHAPE: Shape = S::SHAPE;
    const MINIMUM: Minimum = S::MINIMUM;
    const OFFSET: u8 = S::OFFSET;
    const RANGE: u8 = S::RANGE;
    const PAIRED: bool = true;

    #[inline(always)]
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize) {
        S::unpack(row, first, count, offset, panel, r);
    }
}

/// Weights of up to [`ROWS`] rows and [`CHUNK`] blocks. What a format does not use keeps old values.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// Codes plus offset, 32 a block and row.
    pub codes: [[[u8; 32]; ROWS]; CHUNK],
    /// `d_w`; for [`Shape::Halves`] one per half.
    pub d: [[[f32; ROWS]; CHUNK]; 2],
    /// Integer scales of the two halves; the first only for [`Shape::Scaled`].
    pub scale: [[[f32; ROWS]; CHUNK]; 2],
    /// [`Minimum::Whole`]: `min * dmin`. [`Minimum::Split`]: the minima of the two halves and `dmin`.
    pub min: [[[f32; ROWS]; CHUNK]; 3],
}

impl Panel {
    fn new() -> Box<Self> {
        Box::new(Self {
            codes: [[[0; 32]; ROWS]; CHUNK],
            d: [[[0.0; ROWS]; CHUNK]; 2],
            scale: [[[0.0; ROWS]; CHUNK]; 2],
            min: [[[0.0; ROWS]; CHUNK]; 3],
        })
    }

    /// Places the codes of block `b` of row `r`.
    #[inline(always)]
    pub(crate) fn put(&mut self, b: usize, r: usize, codes: &[i8; 32], offset: u8) {
        // A loop, not `map`: that may stay a function outside the code of the caller's features.
        for (to, &c) in self.codes[b][r].iter_mut().zip(codes) {
            *to = (c as u8).wrapping_add(offset);
        }
    }
}

/// Packed activations of up to [`COLUMNS`] columns, in the order in which panels meet them: by chunks of [`CHUNK`] blocks,
/// in these by groups of 16 columns, in these by blocks.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    groups: usize,
    codes: Vec<Codes>,
    d: Vec<Lanes<f32>>,
    /// `-offset * sum(x)`, one per block, or one per half of it.
    start: Vec<Lanes<i32>>,
    /// [`Minimum::Whole`]: `sum(x) * d_x`. [`Minimum::Split`]: the sums of the two halves.
    sums: Vec<Lanes<f32>>,
}

/// A chunk of one group of columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    /// Codes, one item a block.
    pub codes: &'a [Codes],
    /// Codes that are wanted next, to fetch early; as many items or fewer.
    pub next: &'a [Codes],
    /// Scales, one item a block.
    pub d: &'a [Lanes<f32>],
    /// What the integer sums start at, one or two items a block.
    pub start: &'a [Lanes<i32>],
    /// See [`Packed::sums`]; none, one or two items a block.
    pub sums: &'a [Lanes<f32>],
}

/// Where block `b` of group `g` lies.
#[inline(always)]
fn place(groups: usize, g: usize, b: usize, blocks: usize) -> usize {
    let first = b / CHUNK * CHUNK;
    first * groups + g * (blocks - first).min(CHUNK) + b - first
}

impl Packed {
    #[inline(never)]
    fn fill<S: Source>(&mut self, x: &Q8_1, columns: Range<usize>, offset: u8) {
        let (blocks, groups) = (x.blocks(), columns.len().div_ceil(LANES));
        let starts = if matches!(S::SHAPE, Shape::Split | Shape::Halves) { 2 } else { 1 };
        let sums = match S::MINIMUM {
            Minimum::None => 0,
            Minimum::Whole => 1,
            Minimum::Split => 2,
        };
        self.groups = groups;
        self.codes.resize(groups * blocks, Codes([[[0; 4]; LANES]; 8]));
        self.d.resize(groups * blocks, Lanes::default());
        self.start.resize(groups * blocks * starts, Lanes::default());
        self.sums.resize(groups * blocks * sums, Lanes::default());
        let offset = i32::from(offset);
        let mut lanes = [x.column(columns.start); LANES];
        for g in 0..groups {
            for (lane, column) in lanes.iter_mut().enumerate() {
                // A column that does not exist has the values of another, and a result that nobody reads.
                *column = x.column((columns.start + g * LANES + lane).min(columns.end - 1));
            }
            for first in 0..blocks {
                let b = place(groups, g, first, blocks);
                let (codes, d) = (&mut self.codes, &mut self.d);
                let (start, sum) = (&mut self.start, &mut self.sums);
                for (lane, column) in lanes.iter().enumerate() {
                    let from: &[[i8; 4]; 8] =
                        column.codes.as_chunks::<4>().0[8 * first..].first_chunk().expect("whole blocks");
                    for (q, &four) in from.iter().enumerate() {
                        if S::PAIRED {
                            let place = 32 * (q / 2) + 4 * (lane / 2) + 2 * (lane % 2) + q % 2;
                            codes[b].0[place / LANES][place % LANES] = four;
                        } else {
                            codes[b].0[q][lane] = four;
                        }
                    }
                    let d_x = column.scales[first];
                    d[b].0[lane] = d_x;
                    let (low, high) =
                        (i32::from(column.half_sums[2 * first]), i32::from(column.half_sums[2 * first + 1]));
                    if starts == 2 {
                        start[2 * b].0[lane] = -offset * low;
                        start[2 * b + 1].0[lane] = -offset * high;
                    } else {
                        start[b].0[lane] = -offset * (low + high);
                    }
                    match S::MINIMUM {
                        Minimum::None => {}
                        Minimum::Whole => sum[b].0[lane] = (low + high) as f32 * d_x,
                        Minimum::Split => {
                            sum[2 * b].0[lane] = low as f32;
                            sum[2 * b + 1].0[lane] = high as f32;
                        }
                    }
                }
            }
        }
    }

    #[inline(never)]
    fn group(&self, g: usize, first: usize, count: usize) -> Group<'_> {
        // A chunk's groups are equally long.
        let at = first * self.groups + g * count;
        let part = |per_block: usize| at * per_block..(at + count) * per_block;
        let next = (at + count).min(self.codes.len())..(at + 2 * count).min(self.codes.len());
        let per_block = |len: usize| len.checked_div(self.codes.len()).unwrap_or(0);
        Group {
            codes: &self.codes[part(1)],
            next: &self.codes[next],
            d: &self.d[part(1)],
            start: &self.start[part(per_block(self.start.len()))],
            sums: &self.sums[part(per_block(self.sums.len()))],
        }
    }
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    packed: Packed,
    panel: Option<Box<Panel>>,
    /// Per group of columns, two heights of 16 rows.
    acc: Vec<[Accumulators; HEIGHTS]>,
    /// The same for minima.
    min: Vec<[Accumulators; HEIGHTS]>,
}

/// The parts of a product that are written per instruction set. All are told the height (0 or 1) of 16 rows.
pub(crate) struct Steps<F, M, N, T> {
    /// Hints that bytes will be wanted.
    pub fetch: F,
    /// Adds the terms of a panel's blocks to the accumulators.
    pub terms: M,
    /// Adds the minima of a panel's blocks; not called for formats without.
    pub minima: N,
    /// Sixteen rows of sixteen columns to sixteen columns of sixteen rows.
    pub transpose: T,
}

/// The planes of a row whose bytes lie in the order of its blocks.
#[inline(always)]
fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3] {
    match *row {
        RowParts::Blocks { blocks, .. } => [blocks, &[], &[]],
        RowParts::Grouped { base, high, scales, .. } => [base, high, scales],
        RowParts::Nvfp4 { codes, .. } => [codes, &[], &[]],
        RowParts::Direct { bytes, .. } => [bytes, &[], &[]],
        RowParts::RowScaled { codes, .. } => [codes, &[], &[]],
    }
}

/// The A8 product of the view's rows and the columns, see [`crate::kernels::A8Fn`]: packs, unpacks, and calls the
/// steps. `offset` is what the steps expect to have been added to the codes: 0, or the source's offset or more.
#[inline(always)]
pub(crate) fn product<S: Source>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    offset: u8,
    unpack: impl Fn(&RowParts<'_>, usize, usize, u8, &mut Panel, usize),
    steps: &Steps<
        impl Fn(&[u8]),
        impl Fn(&Panel, usize, Group<'_>, &mut Accumulators),
        impl Fn(&Panel, usize, Group<'_>, &mut Accumulators),
        impl Fn(&mut Accumulators),
    >,
) {
    let Memory { packed, panel, acc, min } = memory;
    let panel = panel.get_or_insert_with(Panel::new);
    let blocks = x.blocks();
    for start in columns.clone().step_by(COLUMNS) {
        let part = start..(start + COLUMNS).min(columns.end);
        let groups = part.len().div_ceil(LANES);
        packed.fill::<S>(x, part.clone(), offset);
        for first_row in (0..view.rows()).step_by(ROWS) {
            let rows = (view.rows() - first_row).min(ROWS);
            let heights = rows.div_ceil(16);
            acc.clear();
            acc.resize(groups, [[Lanes::default(); 16]; HEIGHTS]);
            if S::MINIMUM != Minimum::None {
                min.clear();
                min.resize(groups, [[Lanes::default(); 16]; HEIGHTS]);
            }
            for first in (0..blocks).step_by(CHUNK) {
                let count = (blocks - first).min(CHUNK);
                for r in 0..rows {
                    // Rows are far apart: the memory system does not see what comes next.
                    let ahead = if first + CHUNK < blocks {
                        Some((first_row + r, first + CHUNK))
                    } else {
                        Some((first_row + ROWS + r, 0)).filter(|(row, _)| *row < view.rows())
                    };
                    if let Some((row, first)) = ahead {
                        for plane in planes(&view.row(row)) {
                            let at = |b: usize| plane.len() * b.min(blocks) / blocks;
                            (steps.fetch)(&plane[at(first)..at(first + CHUNK)]);
                        }
                    }
                    unpack(&view.row(first_row + r), first, count, offset, panel, r);
                }
                for g in 0..groups {
                    let group = packed.group(g, first, count);
                    for h in 0..heights {
                        (steps.terms)(panel, h, group, &mut acc[g][h]);
                        if S::MINIMUM != Minimum::None {
                            (steps.minima)(panel, h, group, &mut min[g][h]);
                        }
                    }
                }
            }
            for g in 0..groups {
                let columns = part.start + g * LANES..(part.start + (g + 1) * LANES).min(part.end);
                for h in 0..heights {
                    let tile = &mut acc[g][h];
                    if S::MINIMUM != Minimum::None {
                        for (a, m) in tile.iter_mut().zip(&min[g][h]) {
                            for (a, m) in a.0.iter_mut().zip(&m.0) {
                                *a -= m;
                            }
                        }
                    }
                    if S::SHAPE == Shape::Halves {
                        divide(view, first_row + 16 * h, tile);
                    }
                    (steps.transpose)(tile);
                    let rows = first_row + 16 * h..(first_row + rows).min(first_row + 16 * h + 16);
                    for (t, lanes) in columns.clone().zip(tile.iter()) {
                        let out = &mut out.column(t)[rows.clone()];
                        match out.first_chunk_mut::<16>() {
                            Some(out) => *out = lanes.0,
                            None => out.copy_from_slice(&lanes.0[..out.len()]),
                        }
                    }
                }
            }
        }
    }
}

/// [`Steps::minima`] for whatever instruction set the caller is compiled for; `F` says how that fuses.
#[inline(always)]
pub(crate) fn minima<F: Fused>(
    kind: Minimum,
    panel: &Panel,
    height: usize,
    x: Group<'_>,
    acc: &mut Accumulators,
) {
    for b in 0..x.codes.len() {
        for (r, acc) in acc.iter_mut().enumerate() {
            let [m0, m1, dmin] = [0, 1, 2].map(|i| panel.min[i][b][16 * height + r]);
            match kind {
                Minimum::None => {}
                Minimum::Whole => {
                    for lane in 0..LANES {
                        acc.0[lane] = F::fma(m0, x.sums[b].0[lane], acc.0[lane]);
                    }
                }
                Minimum::Split => {
                    let (low, high) = (&x.sums[2 * b].0, &x.sums[2 * b + 1].0);
                    for lane in 0..LANES {
                        // At most 15 * 2032 * 2, an exact integer.
                        let msum = m0 * low[lane] + m1 * high[lane];
                        acc.0[lane] = F::fma(msum, dmin * x.d[b].0[lane], acc.0[lane]);
                    }
                }
            }
        }
    }
}

/// [`Steps::transpose`], portable.
#[inline(always)]
pub(crate) fn transpose(acc: &mut Accumulators) {
    for i in 1..16 {
        let (before, rest) = acc.split_at_mut(i);
        for (j, lanes) in before.iter_mut().enumerate() {
            std::mem::swap(&mut lanes.0[i], &mut rest[0].0[j]);
        }
    }
}

/// Divides each row of a tile by the divisor of its row of an `nvfp4` view.
#[inline(always)]
fn divide(view: &TensorView<'_>, first_row: usize, tile: &mut Accumulators) {
    for (r, lanes) in (first_row..view.rows()).zip(tile.iter_mut()) {
        let divisor = f32::from_bits(view.divisor_word((view.first_row() + r) / view.rows_per_divisor()));
        for y in &mut lanes.0 {
            *y /= divisor;
        }
    }
}
