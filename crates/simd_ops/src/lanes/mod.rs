//! Products with one or a few columns: sixteen rows side by side, one in each 32-bit lane.
//!
//! The order of [`crate::order`] makes a result one chain of `fma`s over the blocks of its row, so sixteen rows make
//! sixteen chains in the lanes of one vector. Nothing has to be summed across lanes, then, if the weights lie so too:
//! four bytes of row 0, the same four bytes of row 1, and so on. [`Turn`] says which bytes of a format's rows become
//! such words. They are turned tile by tile into memory that stays in the first-level cache, or once for all by
//! [`crate::Prepared`]; either way the same kernel ([`product`]) reads them, unpacks a word to bytes of codes in all
//! lanes at once, and multiplies them with four activations broadcast.
//!
//! What may be regrouped without a change of bits is said in [`crate::panel`].

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_macros, reason = "other targets have no such kernels yet")
)]

mod along;
mod driver;
mod formats;
mod grids;
mod k_types;
pub(crate) mod many;
mod native;
mod single;
pub(crate) mod tables;
mod vector;

pub(crate) use along::{Along, Lengthwise, along};
pub(crate) use driver::{Chains, chunk, prepared, product, spread, turn_all};
pub(crate) use formats::{Codes, Factors, Ggml};
pub(crate) use native::{Grouped, Nvfp4};
pub(crate) use single::{Lay, Quads, single_beside, single_prepared};
pub(crate) use tables::Tabled;
pub(crate) use vector::{Places, Vector, Wide, safe};

use std::ops::Range;

use ninfer_formats::{FormatId, RowParts, TensorView};

use crate::q8_1::Q8_1;

/// The function `$entry`, generic over the formats of this module, for a format with an integer path.
macro_rules! lane_formats {
    ($format:expr, $entry:ident, $function:ty) => {{
        use ninfer_formats::codec::gguf;
        use ninfer_formats::{BlockKind as K, FormatId as F, Scheme};
        use $crate::lanes::{Ggml, Grouped, Nvfp4};
        let entry: Option<$function> = match $format.scheme() {
            Scheme::Direct(_) | Scheme::RowScaled(_) => None,
            Scheme::Nvfp4 => Some($entry::<Nvfp4>),
            Scheme::Grouped(_) => match $format {
                F::Q2G64Fp16 => Some($entry::<Grouped<2, 64, true>>),
                F::T2G128Fp16 => Some($entry::<Grouped<2, 128, false>>),
                F::Q4G64Fp16 => Some($entry::<Grouped<4, 64, false>>),
                F::Q5G64Fp16 => Some($entry::<Grouped<5, 64, false>>),
                F::Q6G64Fp16 => Some($entry::<Grouped<6, 64, false>>),
                F::Q8G32Fp16 => Some($entry::<Grouped<8, 32, false>>),
                _ => None,
            },
            Scheme::Gguf(kind) => Some(match kind {
                K::Q8_0 => $entry::<Ggml<gguf::Q8_0>>,
                K::Q4_0 => $entry::<Ggml<gguf::Q4_0>>,
                K::Q5_0 => $entry::<Ggml<gguf::Q5_0>>,
                K::Q2_0 => $entry::<Ggml<gguf::Q2_0>>,
                K::Q2K => $entry::<Ggml<gguf::Q2K>>,
                K::Q3K => $entry::<Ggml<gguf::Q3K>>,
                K::Q4K => $entry::<Ggml<gguf::Q4K>>,
                K::Q5K => $entry::<Ggml<gguf::Q5K>>,
                K::Q6K => $entry::<Ggml<gguf::Q6K>>,
                K::Iq2Xxs => $entry::<Ggml<gguf::Iq2Xxs>>,
                K::Iq2Xs => $entry::<Ggml<gguf::Iq2Xs>>,
                K::Iq3Xxs => $entry::<Ggml<gguf::Iq3Xxs>>,
                K::Iq1S => $entry::<Ggml<gguf::Iq1S>>,
                K::Iq4Nl => $entry::<Ggml<gguf::Iq4Nl>>,
                K::Iq3S => $entry::<Ggml<gguf::Iq3S>>,
                K::Iq2S => $entry::<Ggml<gguf::Iq2S>>,
                K::Iq4Xs => $entry::<Ggml<gguf::Iq4Xs>>,
                K::Iq1M => $entry::<Ggml<gguf::Iq1M>>,
            }),
        };
        entry
    }};
}
pub(crate) use lane_formats;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Values of a chunk, which is turned at a time.
pub(crate) const CHUNK: usize = 256;

/// A word of every row.
pub(crate) type Words = [u32; ROWS];
/// A half word of every row.
pub(crate) type Halves = [u16; ROWS];

/// Which bytes of a unit of a row become words, and which become half words.
pub(crate) trait Turn {
    /// Blocks of 32 values of a unit.
    const BLOCKS: usize;
    /// Bytes of a unit in each plane of a row.
    const BYTES: [usize; 3];
    /// Runs of 16 bytes that become four words each: plane and offset.
    const PIECES: &'static [(usize, usize)];
    /// Runs of four bytes that become one word each, after those of the pieces.
    const SINGLES: &'static [(usize, usize)] = &[];
    /// Half words.
    const HALVES: &'static [(usize, usize)];
    /// Words of a unit.
    const WORDS: usize = 4 * Self::PIECES.len() + Self::SINGLES.len();
    /// Units of a chunk.
    const UNITS: usize = CHUNK / 32 / Self::BLOCKS;

    /// The planes of a row: codes, high bits of codes, scales.
    fn planes<'a>(row: &RowParts<'a>) -> [&'a [u8]; 3];
    /// Distance of units in each plane of a row.
    const STEP: [usize; 3] = Self::BYTES;
    /// Appends a plane of a row, unit by unit.
    fn copy(row: &RowParts<'_>, plane: usize, to: &mut Vec<u8>) {
        to.extend_from_slice(Self::planes(row)[plane]);
    }
    /// Divisor word of a row's results.
    fn divisor(_row: &RowParts<'_>) -> u32 {
        1.0f32.to_bits()
    }
}

/// 32 activations of one column, in the order of the format's codes, and what belongs to them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct Activation {
    /// Codes.
    pub codes: [[i8; 4]; 8],
    /// What the integer sums of the halves start at; one for all 32 first, where sums are not split.
    pub start: [i32; 2],
    /// Scale.
    pub d: f32,
    /// Sum of the codes times the scale.
    pub sum: f32,
    /// Sums of the codes of the halves.
    pub halves: [f32; 2],
    /// Twice the sums of eight codes each; or first the sums of the halves, as two half words.
    pub eights: [i32; 4],
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Activations, `[blocks][T]`.
    pub x: Vec<Activation>,
    /// Activations of one column, for rows that are not turned.
    pub beside: Vec<single::Beside>,
    /// Activations of one column, for rows that are read along.
    pub along: Vec<Along>,
    /// What is kept of such rows until they are sixteen.
    pub kept: Vec<[Line<Words>; ROWS]>,
    /// Words of a chunk, `[units][words]`.
    pub words: Vec<Line<Words>>,
    /// Half words of a chunk.
    pub halves: Vec<HalfLine>,
    /// What products of many columns keep.
    pub many: many::Memory,
    /// Rows of a tile that is not whole, plane by plane, filled up with zeros.
    pub rows: [Vec<u8>; 3],
}

/// Aligned for vectors.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// As [`Line`], of half words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct HalfLine(pub Halves);

impl Memory {
    /// Lays out the activations of the columns, for codes with this offset.
    pub(crate) fn fill<S: Codes>(&mut self, x: &Q8_1, columns: Range<usize>, offset: i32) {
        let (blocks, width) = (x.blocks(), columns.len());
        self.x.clear();
        self.x.resize(blocks * width, Activation::default());
        for (i, t) in columns.enumerate() {
            let column = x.column(t);
            let runs = column.codes.as_chunks::<32>().0.iter().zip(column.half_sums.as_chunks::<2>().0);
            let runs = runs.zip(column.scales);
            for (to, ((codes, sums), &d)) in self.x[i..].iter_mut().step_by(width).zip(runs) {
                for (to, places) in to.codes.iter_mut().zip(S::ORDER.as_chunks::<4>().0) {
                    *to = places.map(|place| codes[usize::from(place)]);
                }
                let [low, high] = sums.map(i32::from);
                to.start =
                    if S::SPLIT { [-offset * low, -offset * high] } else { S::start(offset, low + high) };
                to.d = d;
                to.sum = (low + high) as f32 * d;
                to.halves = [low as f32, high as f32];
                if S::WEIGHED {
                    to.eights[0] = low & 0xffff | high << 16;
                }
                if S::EIGHTS {
                    for (to, codes) in to.eights.iter_mut().zip(codes.as_chunks::<8>().0) {
                        *to = 2 * codes.iter().map(|&x| i32::from(x)).sum::<i32>();
                    }
                }
            }
        }
    }
}

/// Words and half words of whole tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turned<'a> {
    /// `[tiles][units][words]`.
    pub words: &'a [Line<Words>],
    /// `[tiles][units][half words]`.
    pub halves: &'a [HalfLine],
}

/// How a format's rows are turned: words and half words of a unit, its blocks, and the function that does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Words of a unit.
    pub words: usize,
    /// Half words of a unit.
    pub halves: usize,
    /// Blocks of 32 values of a unit.
    pub blocks: usize,
    /// See [`turn_all`].
    pub turn: fn(&TensorView<'_>, &mut [Line<Words>], &mut [HalfLine]),
}

/// The form of a format, if it has an integer path.
pub(crate) fn form(format: FormatId) -> Option<Form> {
    fn of<S: Turn>() -> Form {
        Form { words: S::WORDS, halves: S::HALVES.len(), blocks: S::BLOCKS, turn: turn_all::<S> }
    }
    lane_formats!(format, of, fn() -> Form).map(|of| of())
}

/// Where the planes of a tile's rows lie, rows at equal distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    /// From the first row's first byte to the last row's last, by planes.
    pub bytes: [&'a [u8]; 3],
    /// Distance of rows.
    pub stride: [usize; 3],
    /// Distance of units of a row.
    pub step: [usize; 3],
    /// Whether there are rows of another tile behind.
    pub more: bool,
}

impl<'a> Rows<'a> {
    /// The [`ROWS`] rows of a view from row `first` on. Planes whose rows do not lie at equal distances (`nvfp4` scales
    /// at rows that are no multiple of sixteen) are copied, and so are rows that are fewer; the missing ones are zeros.
    pub(crate) fn of<S: Turn>(view: &TensorView<'a>, first: usize, room: &'a mut [Vec<u8>; 3]) -> Self {
        let there = (view.rows() - first).min(ROWS);
        let at = |r: usize| S::planes(&view.row(first + r));
        let more = view.rows() >= first + 2 * ROWS;
        let mut rows = Self { bytes: [&[]; 3], stride: [0; 3], step: S::STEP, more };
        let [begin, next, last] =
            if there == ROWS { [at(0), at(1), at(ROWS - 1)] } else { [[&[][..]; 3]; 3] };
        for (p, room) in room.iter_mut().enumerate() {
            if S::BYTES[p] == 0 {
                continue;
            }
            if there == ROWS {
                let address =
                    |plane: &[u8]| plane.as_ptr().addr().wrapping_sub(view.payload().as_ptr().addr());
                let (from, stride) = (address(begin[p]), address(next[p]).wrapping_sub(address(begin[p])));
                if from.wrapping_add(stride.wrapping_mul(ROWS - 1)) == address(last[p]) {
                    rows.stride[p] = stride;
                    rows.bytes[p] = &view.payload()[from..address(last[p]) + last[p].len()];
                    continue;
                }
            }
            room.clear();
            for r in 0..there {
                S::copy(&view.row(first + r), p, room);
            }
            rows.stride[p] = room.len() / there;
            rows.step[p] = S::BYTES[p];
            room.resize(ROWS * rows.stride[p], 0);
            rows.bytes[p] = room;
        }
        rows
    }
}
