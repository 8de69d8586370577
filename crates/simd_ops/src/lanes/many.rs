//! Products of many columns: sixteen rows side by side, as for a few, but unpacked once for all columns.
//!
//! A panel holds the unpacked codes of [`TILES`] tiles and [`BLOCKS`] blocks, and what their terms have in common, in
//! the first-level cache. It meets the columns in groups of [`GROUP`]. The products of a tile with a group are added to
//! chains in memory once per chunk; an element of `Y` is one lane of one chain throughout.

use std::ops::Range;

use ninfer_formats::TensorView;

use super::driver::{scales_of, term, turn};
use super::formats::{Codes, Factors, Unit};
use super::single::{AHEAD, LONG};
use super::{CHUNK, HalfLine, Line, ROWS, Rows, Wide, Words};
use crate::arch::{fetch, fetch_early};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Blocks of 32 values of a panel.
pub(crate) const BLOCKS: usize = CHUNK / 32;
/// Columns of a group.
pub(crate) const GROUP: usize = 16;
/// Tiles of a panel for many groups; for a few of them it is one, whose rows are then read in the order of memory.
const TILES: usize = 4;
/// Groups from which on panels have several tiles.
const MANY: usize = 3;
/// Activations by fours, in these by columns.
pub(crate) const FOURS: u8 = 0;
/// Activations of 32 values by columns, for tiles of bytes.
pub(crate) const COLUMNS_OF_BYTES: u8 = 1;
/// The same as bfloat16 numbers, of four the first and the third before the others.
pub(crate) const COLUMNS_OF_PAIRS: u8 = 2;
/// Chains of a span of panels: they and a chunk of all columns stay in the second-level cache while the two meet.
const SPAN: usize = 512;
/// Columns packed at a time, which bounds the memory for them to about `600 * K` bytes, `1100 * K` as bfloat16.
const COLUMNS: usize = 512;

/// Numbers of a tile's rows, or of a group's columns.
pub(crate) type Numbers = Line<[f32; 16]>;

/// What the terms of a tile's block have in common, beside the codes. What a format does not use keeps old values.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// Scales of the terms.
    pub d: [Numbers; 2],
    /// Integer factors.
    pub factors: [Numbers; 2],
    /// Integer minima.
    pub minima: [Numbers; 2],
    /// `dmin`, times the minimum where there is one for the block.
    pub min_d: Numbers,
}

const EMPTY: Block = Block {
    d: [Line([0.0; 16]); 2],
    factors: [Line([0.0; 16]); 2],
    minima: [Line([0.0; 16]); 2],
    min_d: Line([0.0; 16]),
};

/// The chains of a tile and a group: sixteen rows for every column.
pub(crate) type Chains = [Numbers; GROUP];

/// 32 activations of every column of a group, in the order of the format's codes; or half of them, see [`COLUMNS_OF_PAIRS`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct X(pub [[[i8; 4]; GROUP]; 8]);

/// A chunk of one group of columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    /// Codes, [`items`] a block.
    pub codes: &'a [X],
    /// Scales, one item a block.
    pub d: &'a [Numbers],
    /// What the integer sums start at, one or two items a block.
    pub start: &'a [Line<[i32; GROUP]>],
    /// What minima are multiplied with, one or two items a block: the sum times the scale, or the sums of the halves.
    pub sums: &'a [Numbers],
}

/// Packed activations: by chunks of [`BLOCKS`] blocks, in these by groups of columns, in these by blocks.
#[derive(Debug, Default)]
struct Packed {
    groups: usize,
    codes: Vec<X>,
    d: Vec<Numbers>,
    start: Vec<Line<[i32; GROUP]>>,
    sums: Vec<Numbers>,
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    packed: Packed,
    words: Vec<Line<Words>>,
    halves: Vec<HalfLine>,
    rows: [Vec<u8>; 3],
    /// `[tiles][blocks]`.
    panel: Vec<Block>,
    /// Unpacked codes, `[tiles][blocks][lines]`.
    codes: Vec<Line<Words>>,
    /// `[groups][tiles]`.
    acc: Vec<Chains>,
    min: Vec<Chains>,
}

/// What the integer sums of [`Codes::whole`] are multiplied with.
pub(crate) const fn factors<S: Codes>() -> Factors {
    if S::FOLDED.is_some() { Factors::None } else { S::FACTORS }
}

/// Whether the sums of the halves are wanted.
pub(crate) const fn split<S: Codes>() -> bool {
    matches!(factors::<S>(), Factors::Halves | Factors::Terms)
}

/// Items of activation codes a block.
pub(crate) const fn items(layout: u8) -> usize {
    if layout == COLUMNS_OF_PAIRS { 2 } else { 1 }
}

/// Start values a block.
const fn starts<S: Codes>() -> usize {
    if split::<S>() { 2 } else { 1 }
}

/// Sums of activations a block.
const fn sums<S: Codes>() -> usize {
    match (S::MINIMUM, S::SPLIT) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    }
}

/// Two integers as bfloat16 numbers, which hold them exactly.
#[inline(always)]
fn bfloats(a: i8, b: i8) -> [i8; 4] {
    let [a, b] = [a, b].map(|x| f32::from(x).to_bits());
    (a >> 16 | b & 0xffff_0000).to_le_bytes().map(|byte| byte as i8)
}

impl Packed {
    #[inline(always)]
    fn fill<S: Codes, const LAYOUT: u8>(&mut self, x: &Q8_1, columns: Range<usize>, offset: i32) {
        let (blocks, groups) = (x.blocks(), columns.len().div_ceil(GROUP));
        self.groups = groups;
        self.codes.resize(groups * blocks * items(LAYOUT), X([[[0; 4]; GROUP]; 8]));
        self.d.resize(groups * blocks, Line([0.0; GROUP]));
        self.start.resize(groups * blocks * starts::<S>(), Line([0; GROUP]));
        self.sums.resize(groups * blocks * sums::<S>(), Line([0.0; GROUP]));
        for t in 0..columns.len().next_multiple_of(8) {
            // A column that does not exist has the values of another, and a result that nobody reads.
            let column = x.column((columns.start + t).min(columns.end - 1));
            let lane = t % GROUP;
            let runs = column.codes.as_chunks::<32>().0.iter().zip(column.half_sums.as_chunks::<2>().0);
            for (b, ((codes, sum), &d)) in runs.zip(column.scales).enumerate() {
                let at = self.place(t / GROUP, b, blocks);
                let fours = S::ORDER.as_chunks::<4>().0.iter().map(|of| of.map(|i| codes[usize::from(i)]));
                match LAYOUT {
                    FOURS => {
                        let to = &mut self.codes[at].0;
                        for (to, four) in to.iter_mut().zip(fours) {
                            to[lane] = four;
                        }
                    }
                    COLUMNS_OF_BYTES => {
                        let to = &mut self.codes[at].0.as_flattened_mut()[8 * lane..][..8];
                        for (to, four) in to.iter_mut().zip(fours) {
                            *to = four;
                        }
                    }
                    _ => {
                        let to = &mut self.codes[2 * at + lane / 8].0.as_flattened_mut();
                        let to = to[16 * (lane % 8)..][..16].as_chunks_mut::<2>().0;
                        for (to, [a, b, c, d]) in to.iter_mut().zip(fours) {
                            *to = [bfloats(a, c), bfloats(b, d)];
                        }
                    }
                }
                self.d[at].0[lane] = d;
                let [low, high] = sum.map(i32::from);
                let of =
                    if split::<S>() { [-offset * low, -offset * high] } else { [-offset * (low + high), 0] };
                for (to, of) in self.start[starts::<S>() * at..].iter_mut().zip(of).take(starts::<S>()) {
                    to.0[lane] = of;
                }
                let of = if S::SPLIT { [low as f32, high as f32] } else { [(low + high) as f32 * d, 0.0] };
                for (to, of) in self.sums[sums::<S>() * at..].iter_mut().zip(of).take(sums::<S>()) {
                    to.0[lane] = of;
                }
            }
        }
    }

    /// Where block `b` of group `g` lies.
    #[inline(always)]
    fn place(&self, g: usize, b: usize, blocks: usize) -> usize {
        let first = b / BLOCKS * BLOCKS;
        first * self.groups + g * (blocks - first).min(BLOCKS) + b - first
    }

    /// The chunk of `count` blocks from `first` on of group `g`.
    #[inline(always)]
    fn group<S: Codes, const LAYOUT: u8>(&self, g: usize, first: usize, count: usize) -> Group<'_> {
        let at = first * self.groups + g * count;
        let part = |items: usize| at * items..(at + count) * items;
        Group {
            codes: &self.codes[part(items(LAYOUT))],
            d: &self.d[part(1)],
            start: &self.start[part(starts::<S>())],
            sums: &self.sums[part(sums::<S>())],
        }
    }
}

/// The chunk that begins at unit `u` in the rows of a later tile, `left` rows before the end: of the next panel's, of `most`
/// tiles, or of one that lies [`AHEAD`]. A tile's rows lie behind each other, so that this is the order of memory.
#[inline(always)]
fn later<S: Codes>(rows: &Rows<'_>, u: usize, left: usize, most: usize) -> Ahead<'static> {
    let mut out = NOTHING;
    let tile = ROWS * rows.stride.iter().max().copied().unwrap_or(0);
    let tiles = if most > 1 { most } else { AHEAD / tile.max(1) + 1 };
    if left >= (tiles + 1) * ROWS {
        for p in 0..3 {
            if S::STEP[p] == S::BYTES[p] && rows.stride[p] < LONG {
                out.bytes[p] = ROWS * S::BYTES[p] / S::BLOCKS;
                let from = rows.bytes[p].as_ptr();
                out.rows[p] = from.wrapping_add(tiles * ROWS * rows.stride[p] + u * ROWS * S::BYTES[p]);
            }
        }
    }
    out
}

/// What is to be fetched early while a chunk is multiplied: the codes of the next group, and a chunk of the rows of a later
/// tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead<'a> {
    x: &'a [X],
    rows: [*const u8; 3],
    /// Bytes a block.
    bytes: [usize; 3],
}

/// Nothing to be fetched.
const NOTHING: Ahead<'static> = Ahead { x: &[], rows: [std::ptr::null(); 3], bytes: [0; 3] };

impl Ahead<'_> {
    /// Fetches what stands for block `b`.
    #[inline(always)]
    pub(crate) fn fetch(&self, b: usize) {
        if let Some(x) = self.x.get(b) {
            for four in &x.0 {
                fetch(four.as_ptr().cast());
            }
        }
        for p in 0..3 {
            for i in 0..self.bytes[p].div_ceil(64) {
                fetch_early(self.rows[p].wrapping_add(b * self.bytes[p] + 64 * i));
            }
        }
    }
}

/// The parts of a product that an instruction set compiles as functions of their own.
pub(crate) struct Steps<U, T, M> {
    /// Unpacks the blocks of a chunk, of which there are as many as items.
    pub unpack: U,
    /// Adds the terms of a tile's chunk to its chains with a group; told what to fetch early meanwhile.
    pub terms: T,
    /// Adds the minima; not called for formats without.
    pub minima: M,
}

/// The product of the view's rows and the columns; see [`crate::kernels::A8Fn`]. Activations lie as `LAYOUT` says, and a
/// block's unpacked codes are `lines`. Of a group's columns the steps must take all that exist; the next multiple of eight has activations.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "those of an entry, and what one set of instructions adds")]
pub(crate) fn many<V: Wide, S: Codes, const LAYOUT: u8>(
    v: V,
    lines: usize,
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    steps: &Steps<
        impl Fn(&[Line<Words>], &[HalfLine], &mut [Block], &mut [Line<Words>]),
        impl Fn(&[Block], &[Line<Words>], Group<'_>, Ahead<'_>, &mut Chains),
        impl Fn(&[Block], Group<'_>, &mut Chains),
    >,
) {
    const { assert!(V::LANES == ROWS && !V::SIGNED) };
    let Memory { packed, words, halves, rows: room, panel, codes, acc, min } = memory;
    words.resize(S::UNITS * S::WORDS, Line::default());
    halves.resize(S::UNITS * S::HALVES.len(), HalfLine::default());
    panel.resize(TILES * BLOCKS, EMPTY);
    codes.resize(TILES * BLOCKS * lines, Line::default());
    let blocks = x.blocks();
    for start in columns.clone().step_by(COLUMNS) {
        let part = start..(start + COLUMNS).min(columns.end);
        let groups = part.len().div_ceil(GROUP);
        packed.fill::<S, LAYOUT>(x, part.clone(), S::WHOLE_OFFSET);
        let most = if groups < MANY { 1 } else { TILES };
        // Whole panels.
        let span = if most == 1 { 1 } else { (SPAN / groups).next_multiple_of(most) };
        for first_row in (0..view.rows()).step_by(span * ROWS) {
            let all = (view.rows() - first_row).div_ceil(ROWS).min(span);
            acc.clear();
            acc.resize(groups * all, [Line([0.0; 16]); GROUP]);
            min.clear();
            min.resize(if S::MINIMUM { groups * all } else { 0 }, [Line([0.0; 16]); GROUP]);
            for chunk in (0..blocks).step_by(BLOCKS) {
                let count = (blocks - chunk).min(BLOCKS);
                for from in (0..all).step_by(most) {
                    let tiles = (all - from).min(most);
                    let mut aheads = [NOTHING; TILES];
                    for tile in 0..tiles {
                        let row = first_row + ROWS * (from + tile);
                        let rows = Rows::of::<S>(view, row, room);
                        aheads[tile] = later::<S>(&rows, chunk / S::BLOCKS, view.rows() - row, most);
                        for u in 0..count.div_ceil(S::BLOCKS) {
                            let (words, halves) =
                                (&mut words[u * S::WORDS..], &mut halves[u * S::HALVES.len()..]);
                            turn::<V, S>(v, &rows, chunk / S::BLOCKS, u, [None; 3], words, halves);
                        }
                        let codes = &mut codes[tile * BLOCKS * lines..][..count * lines];
                        (steps.unpack)(words, halves, &mut panel[tile * BLOCKS..][..count], codes);
                    }
                    for g in 0..groups {
                        let group = packed.group::<S, LAYOUT>(g, chunk, count);
                        for tile in 0..tiles {
                            let blocks = &panel[tile * BLOCKS..][..count];
                            let codes = &codes[tile * BLOCKS * lines..][..count * lines];
                            // The first group of columns fetches rows of later tiles, the first tile later columns.
                            let ahead = Ahead {
                                x: if tile == 0 && g + 1 < groups {
                                    packed.group::<S, LAYOUT>(g + 1, chunk, count).codes
                                } else {
                                    &[]
                                },
                                ..if g == 0 { aheads[tile] } else { NOTHING }
                            };
                            let at = g * all + from + tile;
                            (steps.terms)(blocks, codes, group, ahead, &mut acc[at]);
                            if S::MINIMUM {
                                (steps.minima)(blocks, group, &mut min[at]);
                            }
                        }
                    }
                }
            }
            if S::FACTORS == Factors::Terms {
                for tile in 0..all {
                    let first = first_row + ROWS * tile;
                    let mut divisors = [1.0; ROWS];
                    for (r, divisor) in (first..view.rows()).zip(&mut divisors) {
                        *divisor = f32::from_bits(S::divisor(&view.row(r)));
                    }
                    for g in 0..groups {
                        for y in &mut acc[g * all + tile] {
                            for (y, divisor) in y.0.iter_mut().zip(divisors) {
                                *y /= divisor;
                            }
                        }
                    }
                }
            }
            // Column by column: what lies behind each other in memory is written one after the other.
            for (i, t) in part.clone().enumerate() {
                let (g, lane) = (i / GROUP, i % GROUP);
                let out = &mut out.column(t)[first_row..];
                for (tile, out) in out.chunks_mut(ROWS).enumerate().take(all) {
                    let at = g * all + tile;
                    let mut y = acc[at][lane].0;
                    if S::MINIMUM {
                        for (y, m) in y.iter_mut().zip(min[at][lane].0) {
                            *y -= m;
                        }
                    }
                    match out.first_chunk_mut::<ROWS>() {
                        Some(out) => *out = y,
                        None => out.copy_from_slice(&y[..out.len()]),
                    }
                }
            }
        }
    }
}

/// Unpacks the blocks of a chunk; see [`Steps::unpack`]. `put` writes the codes of a block, given with
/// their offset, and what the sums of the halves are to be multiplied with.
#[inline(always)]
pub(crate) fn unpack_chunk<V: Wide, S: Codes>(
    v: V,
    words: &[Line<Words>],
    halves: &[HalfLine],
    to: &mut [Block],
    codes: &mut [Line<Words>],
    put: impl Fn([V::I; 8], [V::F; 2], &mut [Line<Words>]),
) {
    let lines = codes.len() / to.len();
    let to = to.chunks_mut(S::BLOCKS).zip(codes.chunks_mut(S::BLOCKS * lines));
    for (u, (to, codes)) in to.enumerate() {
        let unit = Unit {
            words: &words[u * S::WORDS..(u + 1) * S::WORDS],
            halves: &halves[u * S::HALVES.len()..(u + 1) * S::HALVES.len()],
            part: 0,
        };
        let scales = scales_of::<V, S>(v, unit);
        macro_rules! step {
            ($($b:literal)+) => {
                $(if $b < S::BLOCKS && $b < to.len() {
                    let to = &mut to[$b];
                    let t = term::<V, S, $b>(v, unit, scales);
                    let by = if factors::<S>() == Factors::Terms { t.d } else { t.factors };
                    put(S::whole::<V, $b>(v, unit), by, &mut codes[$b * lines..($b + 1) * lines]);
                    let mut d = t.d[0];
                    if let Some(sign) = S::FOLDED {
                        d = v.mul(d, v.floats(sign * (1 << S::raised::<V, $b>()) as f32));
                    }
                    v.store(d, &mut to.d[0].0, 0);
                    if factors::<S>() == Factors::Terms {
                        v.store(t.d[1], &mut to.d[1].0, 0);
                    }
                    if matches!(factors::<S>(), Factors::Whole | Factors::Halves) {
                        v.store(t.factors[0], &mut to.factors[0].0, 0);
                    }
                    if factors::<S>() == Factors::Halves {
                        v.store(t.factors[1], &mut to.factors[1].0, 0);
                    }
                    if S::MINIMUM {
                        v.store(t.min_d, &mut to.min_d.0, 0);
                        if S::SPLIT {
                            v.store(t.minima[0], &mut to.minima[0].0, 0);
                            v.store(t.minima[1], &mut to.minima[1].0, 0);
                        }
                    }
                })+
            };
        }
        step!(0 1 2 3 4 5 6 7);
    }
}
