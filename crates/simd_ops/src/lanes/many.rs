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
/// Columns packed at a time, which bounds the memory for them to about `600 * K` bytes.
const COLUMNS: usize = 512;

/// Numbers of a tile's rows, or of a group's columns.
pub(crate) type Numbers = Line<[f32; 16]>;

/// A block of a tile. What a format does not use keeps old values.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    /// Codes of every row by fours, with the offset or without.
    pub codes: [Line<Words>; 8],
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
    codes: [Line([0; ROWS]); 8],
    d: [Line([0.0; 16]); 2],
    factors: [Line([0.0; 16]); 2],
    minima: [Line([0.0; 16]); 2],
    min_d: Line([0.0; 16]),
};

/// The chains of a tile and a group: sixteen rows for every column.
pub(crate) type Chains = [Numbers; GROUP];

/// 32 activations of every column of a group, in the order of the format's codes: by fours, in these by columns; or as
/// runs of 32, by columns.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct X(pub [[[i8; 4]; GROUP]; 8]);

/// A chunk of one group of columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    /// Codes, one item a block.
    pub codes: &'a [X],
    /// Codes that are wanted next, to fetch early; as many items or fewer.
    pub next: &'a [X],
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

impl Packed {
    #[inline(always)]
    fn fill<S: Codes, const BY_COLUMNS: bool>(&mut self, x: &Q8_1, columns: Range<usize>, offset: i32) {
        let (blocks, groups) = (x.blocks(), columns.len().div_ceil(GROUP));
        self.groups = groups;
        self.codes.resize(groups * blocks, X([[[0; 4]; GROUP]; 8]));
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
                let to = &mut self.codes[at].0;
                for (q, places) in S::ORDER.as_chunks::<4>().0.iter().enumerate() {
                    let four = places.map(|place| codes[usize::from(place)]);
                    if BY_COLUMNS {
                        to.as_flattened_mut()[8 * lane + q] = four;
                    } else {
                        to[q][lane] = four;
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
    fn group<S: Codes>(&self, g: usize, first: usize, count: usize) -> Group<'_> {
        let at = first * self.groups + g * count;
        let part = |items: usize| at * items..(at + count) * items;
        let next = (at + count).min(self.codes.len())..(at + 2 * count).min(self.codes.len());
        Group {
            codes: &self.codes[part(1)],
            next: &self.codes[next],
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

/// The product of the view's rows and the columns; see [`crate::kernels::A8Fn`]. Activations lie `BY_COLUMNS` or by
/// fours. Of a group's columns the steps must take all that exist; the next multiple of eight has activations.
#[inline(always)]
pub(crate) fn many<V: Wide, S: Codes, const BY_COLUMNS: bool>(
    v: V,
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
    steps: &Steps<
        impl Fn(&[Line<Words>], &[HalfLine], &mut [Block]),
        impl Fn(&[Block], Group<'_>, Ahead<'_>, &mut Chains),
        impl Fn(&[Block], Group<'_>, &mut Chains),
    >,
) {
    const { assert!(V::LANES == ROWS && !V::SIGNED) };
    let Memory { packed, words, halves, rows: room, panel, acc, min } = memory;
    words.resize(S::UNITS * S::WORDS, Line::default());
    halves.resize(S::UNITS * S::HALVES.len(), HalfLine::default());
    panel.resize(TILES * BLOCKS, EMPTY);
    let blocks = x.blocks();
    for start in columns.clone().step_by(COLUMNS) {
        let part = start..(start + COLUMNS).min(columns.end);
        let groups = part.len().div_ceil(GROUP);
        packed.fill::<S, BY_COLUMNS>(x, part.clone(), S::WHOLE_OFFSET);
        let most = if groups < MANY { 1 } else { TILES };
        for first_row in (0..view.rows()).step_by(most * ROWS) {
            let tiles = (view.rows() - first_row).div_ceil(ROWS).min(most);
            acc.clear();
            acc.resize(groups * tiles, [Line([0.0; 16]); GROUP]);
            min.clear();
            min.resize(if S::MINIMUM { groups * tiles } else { 0 }, [Line([0.0; 16]); GROUP]);
            for chunk in (0..blocks).step_by(BLOCKS) {
                let count = (blocks - chunk).min(BLOCKS);
                let mut aheads = [NOTHING; TILES];
                for tile in 0..tiles {
                    let rows = Rows::of::<S>(view, first_row + ROWS * tile, room);
                    let left = view.rows() - first_row - ROWS * tile;
                    aheads[tile] = later::<S>(&rows, chunk / S::BLOCKS, left, most);
                    for u in 0..count.div_ceil(S::BLOCKS) {
                        let (words, halves) =
                            (&mut words[u * S::WORDS..], &mut halves[u * S::HALVES.len()..]);
                        turn::<V, S>(v, &rows, chunk / S::BLOCKS, u, [None; 3], words, halves);
                    }
                    (steps.unpack)(words, halves, &mut panel[tile * BLOCKS..][..count]);
                }
                for g in 0..groups {
                    let group = packed.group::<S>(g, chunk, count);
                    for tile in 0..tiles {
                        let blocks = &panel[tile * BLOCKS..][..count];
                        let ahead = Ahead {
                            x: if tile == 0 { group.next } else { &[] },
                            ..if g == 0 { aheads[tile] } else { NOTHING }
                        };
                        (steps.terms)(blocks, group, ahead, &mut acc[g * tiles + tile]);
                        if S::MINIMUM {
                            (steps.minima)(blocks, group, &mut min[g * tiles + tile]);
                        }
                    }
                }
            }
            for tile in 0..tiles {
                let first = first_row + ROWS * tile;
                let rows = (view.rows() - first).min(ROWS);
                let mut divisors = [1.0; ROWS];
                if S::FACTORS == Factors::Terms {
                    for (r, divisor) in divisors[..rows].iter_mut().enumerate() {
                        *divisor = f32::from_bits(S::divisor(&view.row(first + r)));
                    }
                }
                for (i, t) in part.clone().enumerate() {
                    let at = i / GROUP * tiles + tile;
                    let mut y = acc[at][i % GROUP].0;
                    if S::MINIMUM {
                        for (y, m) in y.iter_mut().zip(min[at][i % GROUP].0) {
                            *y -= m;
                        }
                    }
                    if S::FACTORS == Factors::Terms {
                        for (y, divisor) in y.iter_mut().zip(divisors) {
                            *y /= divisor;
                        }
                    }
                    out.column(t)[first..first + rows].copy_from_slice(&y[..rows]);
                }
            }
        }
    }
}

/// Unpacks the blocks of a chunk; see [`Steps::unpack`]. If `SIGNED`, the offset is taken off.
#[inline(always)]
pub(crate) fn unpack_chunk<V: Wide, S: Codes, const SIGNED: bool>(
    v: V,
    words: &[Line<Words>],
    halves: &[HalfLine],
    to: &mut [Block],
) {
    for (u, to) in to.chunks_mut(S::BLOCKS).enumerate() {
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
                    for (to, mut w) in to.codes.iter_mut().zip(S::whole::<V, $b>(v, unit)) {
                        if SIGNED && S::WHOLE_OFFSET != 0 {
                            w = v.sub_bytes(w, v.bytes(S::WHOLE_OFFSET as u8));
                        }
                        v.store_words(w, &mut to.0);
                    }
                    let t = term::<V, S, $b>(v, unit, scales);
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
