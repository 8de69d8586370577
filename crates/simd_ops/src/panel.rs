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

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other targets have no such kernels yet"))]

use std::ops::Range;

use ninfer_formats::codec::gguf::Block;
use ninfer_formats::float::{e2m1, e4m3, f16};
use ninfer_formats::{GroupedScheme, RowParts, TensorView, unpack_codes};

use crate::order::Fused;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Rows of a panel: two heights of an accumulator.
pub(crate) const ROWS: usize = 64;
/// Heights of an accumulator in a panel.
const HEIGHTS: usize = ROWS / 16;
/// Blocks of 32 values of a panel; a multiple of every format's blocks per super-block.
pub(crate) const CHUNK: usize = 16;
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

    /// Unpacks the blocks `first..first + count` of a row (`first` a multiple of [`CHUNK`], `count` at most that)
    /// to row `r` of the panel, `offset` added to every code.
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize);
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
        self.codes[b][r] = codes.map(|c| (c as u8).wrapping_add(offset));
    }
}

/// Packed activations of up to [`COLUMNS`] columns: groups of 16 columns, each `[blocks]`.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    blocks: usize,
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
        self.blocks = blocks;
        self.codes.resize(groups * blocks, Codes([[[0; 4]; LANES]; 8]));
        self.d.resize(groups * blocks, Lanes::default());
        self.start.resize(groups * blocks * starts, Lanes::default());
        self.sums.resize(groups * blocks * sums, Lanes::default());
        for g in 0..groups {
            let at = g * blocks..(g + 1) * blocks;
            let codes = &mut self.codes[at.clone()];
            let d = &mut self.d[at.clone()];
            let start = &mut self.start[at.start * starts..at.end * starts];
            let sum = &mut self.sums[at.start * sums..at.end * sums];
            for lane in 0..LANES {
                let t = columns.start + g * LANES + lane;
                if t >= columns.end {
                    // A column that does not exist: zeros, and a result that nobody reads.
                    codes.iter_mut().for_each(|c| c.0.iter_mut().for_each(|v| v[lane] = [0; 4]));
                    d.iter_mut().for_each(|d| d.0[lane] = 0.0);
                    start.iter_mut().for_each(|s| s.0[lane] = 0);
                    sum.iter_mut().for_each(|s| s.0[lane] = 0.0);
                    continue;
                }
                let column = x.column(t);
                for (to, from) in codes.iter_mut().zip(column.codes.as_chunks::<32>().0) {
                    for (v, four) in to.0.iter_mut().zip(from.as_chunks::<4>().0) {
                        v[lane] = *four;
                    }
                }
                for (to, &from) in d.iter_mut().zip(column.scales) {
                    to.0[lane] = from;
                }
                let halves = column.half_sums.as_chunks::<2>().0.iter().map(|h| h.map(i32::from));
                let offset = i32::from(offset);
                for (b, [low, high]) in halves.enumerate() {
                    if starts == 2 {
                        start[2 * b].0[lane] = -offset * low;
                        start[2 * b + 1].0[lane] = -offset * high;
                    } else {
                        start[b].0[lane] = -offset * (low + high);
                    }
                    match S::MINIMUM {
                        Minimum::None => {}
                        Minimum::Whole => sum[b].0[lane] = (low + high) as f32 * column.scales[b],
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
        let at = g * self.blocks + first;
        let part = |per_block: usize| at * per_block..(at + count) * per_block;
        // The next group's chunk, or the first group's next one.
        let next = if (g + 1) * self.blocks < self.codes.len() { at + self.blocks } else { first + count };
        let next = next.min(self.codes.len())..(next + count).min(self.codes.len());
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
pub(crate) struct Steps<M, N, T> {
    /// Adds the terms of a panel's blocks to the accumulators.
    pub terms: M,
    /// Adds the minima of a panel's blocks; not called for formats without.
    pub minima: N,
    /// Sixteen rows of sixteen columns to sixteen columns of sixteen rows.
    pub transpose: T,
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
                        out.column(t)[rows.clone()].copy_from_slice(&lanes.0[..rows.len()]);
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

/// ggml blocks whose integer scales stay beside the codes.
#[derive(Debug)]
pub(crate) struct Blocks<B>(std::marker::PhantomData<B>);

/// ggml blocks whose integer scales are multiplied into the codes, negated if `NEGATE`.
#[derive(Debug)]
pub(crate) struct Folded<B, const NEGATE: bool>(std::marker::PhantomData<B>);

/// Whole `B` blocks of a row that hold the runs `first..first + count` of 32 values.
#[inline(always)]
fn blocks_of<'a, B: Block>(row: &RowParts<'a>, first: usize, count: usize) -> &'a [B::Bytes] {
    match row {
        RowParts::Blocks { blocks, .. } => {
            &B::blocks(blocks)[first / B::SUBS..(first + count).div_ceil(B::SUBS)]
        }
        _ => &[],
    }
}

/// Repeats a body for the runs of 32 values of a block of type `$block`, with constants where a block has eight.
/// (Not a function of a closure: the compiler may leave closures outside the code of the caller's features.)
macro_rules! each_run {
    ($block:ty, $run:ident => $body:block) => {
        if <$block>::SUBS == 8 {
            each_run!(@ $run $body 0 1 2 3 4 5 6 7);
        } else {
            for $run in 0..<$block>::SUBS {
                $body
            }
        }
    };
    (@ $run:ident $body:block $($b:literal)+) => {
        $({
            let $run: usize = $b;
            $body
        })+
    };
}

impl<B: Block> Source for Blocks<B> {
    const SHAPE: Shape = match (B::SUBS == 8, B::SPLIT) {
        (false, _) => Shape::Plain,
        (true, false) => Shape::Scaled,
        (true, true) => Shape::Split,
    };
    const MINIMUM: Minimum = if B::HAS_MIN { Minimum::Whole } else { Minimum::None };
    const OFFSET: u8 = codes_of(B::KIND).0;
    const RANGE: u8 = codes_of(B::KIND).1;

    #[inline(always)]
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize) {
        for (i, block) in blocks_of::<B>(row, first, count).iter().enumerate() {
            let f = B::factors(block);
            each_run!(B, run => {
                let b = i * B::SUBS + run;
                panel.put(b, r, &B::codes(block, run), offset);
                panel.d[0][b][r] = f.d;
                if Self::SHAPE != Shape::Plain {
                    panel.scale[0][b][r] = f32::from(f.scale[2 * run]);
                }
                if Self::SHAPE == Shape::Split {
                    panel.scale[1][b][r] = f32::from(f.scale[2 * run + 1]);
                }
                if B::HAS_MIN {
                    panel.min[0][b][r] = f32::from(f.min[2 * run]) * f.dmin;
                }
            });
        }
    }
}

impl<B: Block, const NEGATE: bool> Source for Folded<B, NEGATE> {
    const SHAPE: Shape = Shape::Plain;
    const MINIMUM: Minimum = if B::HAS_MIN { Minimum::Split } else { Minimum::None };
    const OFFSET: u8 = if NEGATE { 128 } else { 0 };
    const RANGE: u8 = if NEGATE { 252 } else { 45 };

    /// `q2_k`: scale 0..=15 times code 0..=3. `q3_k`: scale -32..=31 times code -4..=3 is -124..=128, and its
    /// negative fits a byte; `d` is negated with it. A sum of zero then changes the sign of the zero that is added,
    /// which no accumulator shows: they start at +0, and +0 plus either zero is +0.
    #[inline(always)]
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize) {
        for (i, block) in blocks_of::<B>(row, first, count).iter().enumerate() {
            let f = B::factors(block);
            let sign = if NEGATE { -1 } else { 1 };
            each_run!(B, run => {
                let b = i * B::SUBS + run;
                let codes = B::codes(block, run);
                let mut folded = [0i8; 32];
                for half in 0..2 {
                    let scale = i16::from(f.scale[2 * run + half]) * sign;
                    for lane in 16 * half..16 * half + 16 {
                        folded[lane] = (scale * i16::from(codes[lane])) as i8;
                    }
                }
                panel.put(b, r, &folded, offset);
                panel.d[0][b][r] = if NEGATE { -f.d } else { f.d };
                if B::HAS_MIN {
                    panel.min[0][b][r] = f32::from(f.min[2 * run]);
                    panel.min[1][b][r] = f32::from(f.min[2 * run + 1]);
                    panel.min[2][b][r] = f.dmin;
                }
            });
        }
    }
}

/// The least code of a block type, negated, and the distance of its greatest code from the least.
const fn codes_of(kind: ninfer_formats::BlockKind) -> (u8, u8) {
    use ninfer_formats::BlockKind as B;
    match kind {
        B::Q8_0 => (128, 255),
        B::Q4_0 => (8, 15),
        B::Q5_0 => (16, 31),
        B::Q2_0 => (1, 3),
        B::Q2K => (0, 3),
        B::Q4K => (0, 15),
        B::Q5K => (0, 31),
        B::Q3K => (4, 7),
        B::Q6K => (32, 63),
        B::Iq2Xxs | B::Iq2Xs | B::Iq2S => (43, 86),
        B::Iq3Xxs => (62, 124),
        B::Iq3S => (15, 30),
        B::Iq1S | B::Iq1M => (9, 18),
        B::Iq4Nl | B::Iq4Xs => (127, 240),
    }
}

/// A grouped format with codes of `BITS` bits in groups of `GROUP`; `OFFSET` as [`Source::OFFSET`].
#[derive(Debug)]
pub(crate) struct Grouped<const BITS: u8, const GROUP: usize, const OFFSET_BY_ONE: bool>;

impl<const BITS: u8, const GROUP: usize, const OFFSET_BY_ONE: bool> Source
    for Grouped<BITS, GROUP, OFFSET_BY_ONE>
{
    const SHAPE: Shape = Shape::Plain;
    // Every word that can be stored counts, illegal codes as well.
    const OFFSET: u8 = if OFFSET_BY_ONE { 1 } else { 1 << (BITS - 1) };
    const RANGE: u8 = (1u16 << BITS).wrapping_sub(1) as u8;

    #[inline(always)]
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize) {
        let RowParts::Grouped { scheme, base, high, scales } = row else { return };
        let base_bytes = const {
            GROUP
                * if BITS == 2 {
                    2
                } else if BITS == 8 {
                    8
                } else {
                    4
                }
                / 8
        };
        let high_bytes = const { GROUP * if BITS == 5 || BITS == 6 { BITS as usize - 4 } else { 0 } / 8 };
        // The constants let the compiler specialise the unpacking.
        let scheme = GroupedScheme { bits: BITS, group: GROUP, base_bytes, high_bytes, ..*scheme };
        let per_group = GROUP / 32;
        let mut lanes = [0i8; GROUP];
        for (i, g) in (first / per_group..(first + count).div_ceil(per_group)).enumerate() {
            let d = f16::to_f32(u16::from_le_bytes([scales[2 * g], scales[2 * g + 1]]));
            unpack_codes(
                &scheme,
                &base[g * base_bytes..(g + 1) * base_bytes],
                &high[g * high_bytes..(g + 1) * high_bytes],
                &mut lanes,
            );
            for (run, codes) in lanes.as_chunks::<32>().0.iter().enumerate() {
                let b = i * per_group + run;
                panel.put(b, r, codes, offset);
                panel.d[0][b][r] = d;
            }
        }
    }
}

/// `nvfp4`: codes are doubled E2M1 values.
#[derive(Debug)]
pub(crate) struct Nvfp4;

impl Source for Nvfp4 {
    const SHAPE: Shape = Shape::Halves;
    const OFFSET: u8 = 12;
    const RANGE: u8 = 24;

    #[inline(always)]
    fn unpack(row: &RowParts<'_>, first: usize, count: usize, offset: u8, panel: &mut Panel, r: usize) {
        let RowParts::Nvfp4 { codes, scales, .. } = row else { return };
        let bytes = &codes.as_chunks::<16>().0[first..first + count];
        for (b, bytes) in bytes.iter().enumerate() {
            let mut codes = [0; 32];
            for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = [e2m1::DOUBLED[usize::from(byte & 15)], e2m1::DOUBLED[usize::from(byte >> 4)]];
            }
            panel.put(b, r, &codes, offset);
            for half in 0..2 {
                panel.d[half][b][r] = e4m3::to_f32(scales.word(2 * (first + b) + half)) * 0.5;
            }
        }
    }
}
