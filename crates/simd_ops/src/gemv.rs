//! Products with one or a few columns, straight from the stored layouts.
//!
//! The order of [`crate::order`] makes a result one chain of `fma`s over the blocks of its row, so sixteen rows are
//! taken at a time, one row in each lane of the chain. A kernel works in two passes over such a tile:
//! 1. Row by row, in the order of memory: units of 256 values are unpacked to bytes once and multiplied with every
//!    column; the exact integer sums, sub-scales applied, are kept as binary32 (all have at most 24 bits), and with
//!    them the scale words.
//! 2. Term by term, all rows at once: the sums are turned so that the rows lie in lanes, and added by the written
//!    `fma`s.
//!
//! A kernel unpacks the values of a unit in whatever order is cheap; the activations are laid out in the same order
//! beforehand. A last unit that is not whole is copied and filled with zeros on both sides, and its missing blocks do
//! not take part in the second pass.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "other targets have drivers of their own or none")
)]

use std::marker::PhantomData;
use std::ops::Range;

use ninfer_formats::RowParts;

use crate::q8_1::Q8_1;

/// Values of a unit.
pub(crate) const UNIT: usize = 256;
/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Most bytes of one plane of a unit.
pub(crate) const MOST: usize = 272;

/// Where the words of a row lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes<'a> {
    /// Blocks, or codes.
    pub codes: &'a [u8],
    /// High bits of codes, where a plane of its own holds them.
    pub high: &'a [u8],
    /// Scales, where a plane of its own holds them.
    pub scales: &'a [u8],
}

/// What a scale word belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// A unit: there is one word for 256 values.
    Unit,
    /// A term.
    Term,
}

/// What the integer sums are multiplied with before they become a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factors {
    /// Nothing.
    None,
    /// An integer per 32 values.
    Whole,
    /// An integer per 16 values.
    Halves,
}

/// A format as these kernels see it: constants and the places of words.
pub(crate) trait Format {
    /// Bytes of a unit in the planes of codes and of high bits.
    const BYTES: [usize; 2];
    /// Terms of a unit: 8, or 16 (`nvfp4`).
    const TERMS: usize = 8;
    /// See [`Scales`].
    const SCALES: Scales;
    /// See [`Factors`].
    const FACTORS: Factors = Factors::None;
    /// Whether minima are subtracted; they are per 32 or per 16 values as the factors are.
    const MINIMUM: bool = false;
    /// Power of two that scale words are multiplied with.
    const POWER: f32 = 1.0;

    /// The planes of a row.
    fn planes<'a>(row: &RowParts<'a>) -> Planes<'a>;
    /// Scale word of term or unit `i` of a row, and the word of the minima (0 where there are none).
    fn words(planes: &Planes<'_>, i: usize) -> [u16; 2];
    /// Divisor word of a row's results.
    fn divisor(_row: &RowParts<'_>) -> u32 {
        1.0f32.to_bits()
    }
}

/// A unit of activations as a kernel wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Unit {
    /// Codes in the kernel's order.
    pub codes: [i8; UNIT],
    /// `-offset * sum(x)`, per lane of the kernel's sums.
    pub start: [i32; 16],
    /// `sum(x)`, per lane.
    pub sums: [f32; 16],
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Activations, `[T][units]`.
    pub x: Vec<Unit>,
    /// Scales of the activations, `[T][terms]`.
    pub d_x: Vec<f32>,
    /// Sums of a tile, `[T][terms / 8][rows]` of eight terms.
    pub sums: Vec<[[f32; 8]; ROWS]>,
    /// Sums of minima, as `sums`.
    pub minima: Vec<[[f32; 8]; ROWS]>,
    /// Scale words of a tile, `[terms or units][rows]`.
    pub words: Vec<[u16; ROWS]>,
    /// Scale words of minima.
    pub min_words: Vec<[u16; ROWS]>,
}

/// How a kernel orders the values of a unit and the lanes of its sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Value at each place of a unit.
    pub source: [u8; UNIT],
    /// Half-block (16 values) of each lane; ignored for whole blocks, whose lanes are in order.
    pub halves: [u8; 16],
    /// Whether lanes are half-blocks.
    pub split: bool,
    /// What was added to the codes.
    pub offset: i32,
}

/// Shape of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Units of a row, the last perhaps not whole.
    pub units: usize,
    /// Terms of a row.
    pub terms: usize,
    /// Columns.
    pub columns: usize,
}

impl Memory {
    /// Lays out the activations and makes room for a tile.
    pub(crate) fn prepare<F: Format>(&mut self, x: &Q8_1, columns: Range<usize>, order: &Order) -> Shape {
        let blocks = x.blocks();
        let units = blocks.div_ceil(UNIT / 32);
        let per_block = F::TERMS / 8;
        let shape = Shape { units, terms: blocks * per_block, columns: columns.len() };
        let runs = units * per_block;
        self.x.clear();
        self.d_x.clear();
        for t in columns {
            let column = x.column(t);
            for u in 0..units {
                let mut unit = Unit { codes: [0; UNIT], start: [0; 16], sums: [0.0; 16] };
                let mut codes = [0; UNIT];
                let from = &column.codes[u * UNIT..];
                let from = &from[..from.len().min(UNIT)];
                codes[..from.len()].copy_from_slice(from);
                for (to, &place) in unit.codes.iter_mut().zip(&order.source) {
                    *to = codes[usize::from(place)];
                }
                let half = |h: usize| column.half_sums.get(16 * u + h).map_or(0, |&s| i32::from(s));
                for lane in 0..16 {
                    let sum = match (order.split, lane) {
                        (true, _) => half(usize::from(order.halves[lane])),
                        (false, 0..8) => half(2 * lane) + half(2 * lane + 1),
                        _ => 0,
                    };
                    unit.start[lane] = -order.offset * sum;
                    unit.sums[lane] = sum as f32;
                }
                self.x.push(unit);
            }
            for &d in column.scales {
                self.d_x.extend(std::iter::repeat_n(d, per_block));
            }
        }
        self.sums.resize(runs * shape.columns, [[0.0; 8]; ROWS]);
        let minima = if F::MINIMUM { runs * shape.columns } else { 0 };
        self.minima.resize(minima, [[0.0; 8]; ROWS]);
        let words = if F::SCALES == Scales::Unit { units } else { shape.terms };
        self.words.resize(words, [0; ROWS]);
        self.min_words.resize(if F::MINIMUM { words } else { 0 }, [0; ROWS]);
        shape
    }

    /// Keeps the scale words of a row of a tile.
    #[inline(always)]
    pub(crate) fn place_words<F: Format>(&mut self, planes: &Planes<'_>, r: usize) {
        for (i, words) in self.words.iter_mut().enumerate() {
            let [word, min] = F::words(planes, i);
            words[r] = word;
            if F::MINIMUM {
                self.min_words[i][r] = min;
            }
        }
    }
}

/// The bytes of unit `u` in a plane: as they lie, or filled up in `room`.
#[inline(always)]
pub(crate) fn unit_bytes<'a>(plane: &'a [u8], u: usize, bytes: usize, room: &'a mut [u8; MOST]) -> &'a [u8] {
    let at = u * bytes;
    match plane.get(at..at + bytes) {
        Some(unit) => unit,
        None => {
            let rest = plane.get(at..).unwrap_or(&[]);
            let rest = &rest[..rest.len().min(bytes)];
            room[..rest.len()].copy_from_slice(rest);
            room[rest.len()..].fill(0);
            &room[..bytes]
        }
    }
}

/// Values in their natural order.
pub(crate) const fn in_order() -> [u8; UNIT] {
    let mut out = [0; UNIT];
    let mut i = 0;
    while i < UNIT {
        out[i] = i as u8;
        i += 1;
    }
    out
}

/// ggml blocks.
#[derive(Debug)]
pub(crate) struct Ggml<B>(PhantomData<B>);

/// Grouped codes of `BITS` bits (`OFFSET`: stored plus one) in groups of `GROUP`.
#[derive(Debug)]
pub(crate) struct Grouped<const BITS: usize, const GROUP: usize, const OFFSET: bool>;

/// `nvfp4`.
#[derive(Debug)]
pub(crate) struct Nvfp4;

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl<const BITS: usize, const GROUP: usize, const OFFSET: bool> Format for Grouped<BITS, GROUP, OFFSET> {
    const BYTES: [usize; 2] = match BITS {
        2 => [64, 0],
        4 => [128, 0],
        5 => [128, 32],
        6 => [128, 64],
        _ => [256, 0],
    };
    const SCALES: Scales = Scales::Term;

    #[inline(always)]
    fn planes<'a>(row: &RowParts<'a>) -> Planes<'a> {
        match *row {
            RowParts::Grouped { base, high, scales, .. } => Planes { codes: base, high, scales },
            _ => NO_PLANES,
        }
    }

    #[inline(always)]
    fn words(planes: &Planes<'_>, i: usize) -> [u16; 2] {
        [word(planes.scales, i / (GROUP / 32) * 2), 0]
    }
}

const NO_PLANES: Planes<'static> = Planes { codes: &[], high: &[], scales: &[] };

/// binary16 words of half the value of every E4M3FN word: exact, as the exponents reach far enough.
static HALF_E4M3: [u16; 256] = half_e4m3();

const fn half_e4m3() -> [u16; 256] {
    let mut out = [0; 256];
    let mut w = 0;
    while w < 256 {
        let (exponent, fraction) = ((w >> 3 & 15) as u16, (w & 7) as u16);
        let magnitude = match (exponent, fraction) {
            (15, 7) => 0x7e00,
            (0, 0) => 0,
            // fraction * 2^-10, normal in binary16.
            (0, _) => {
                let top = 15 - fraction.leading_zeros() as u16;
                (top + 5) << 10 | (fraction << (10 - top) & 0x3ff)
            }
            _ => (exponent + 7) << 10 | fraction << 7,
        };
        out[w] = ((w as u16) & 0x80) << 8 | magnitude;
        w += 1;
    }
    out
}

/// The binary16 word of half the value of an E4M3FN word.
#[inline(always)]
pub(crate) fn half_e4m3_word(word: u8) -> u16 {
    HALF_E4M3[usize::from(word)]
}

impl Format for Nvfp4 {
    const BYTES: [usize; 2] = [128, 0];
    const TERMS: usize = 16;
    const SCALES: Scales = Scales::Term;

    #[inline(always)]
    fn planes<'a>(row: &RowParts<'a>) -> Planes<'a> {
        match row {
            RowParts::Nvfp4 { codes, scales, .. } => Planes { codes, high: &[], scales: scales.plane() },
            _ => NO_PLANES,
        }
    }

    #[inline(always)]
    fn words(planes: &Planes<'_>, i: usize) -> [u16; 2] {
        let at = i / 4 * ninfer_formats::Nvfp4Scales::QUAD_STRIDE + i % 4;
        [half_e4m3_word(planes.scales[at]), 0]
    }

    fn divisor(row: &RowParts<'_>) -> u32 {
        match *row {
            RowParts::Nvfp4 { divisor, .. } => divisor,
            _ => 1.0f32.to_bits(),
        }
    }
}

/// Implements [`Format`] for ggml blocks of a type.
macro_rules! ggml {
    ($($kind:ident: $scales:ident, $factors:ident, $power:literal, $words:expr;)+) => {
        $(impl Format for Ggml<ninfer_formats::codec::gguf::$kind> {
            const BYTES: [usize; 2] = {
                let kind = ninfer_formats::BlockKind::$kind;
                [UNIT / kind.values() * kind.bytes(), 0]
            };
            const SCALES: Scales = Scales::$scales;
            const FACTORS: Factors = Factors::$factors;
            const MINIMUM: bool =
                <ninfer_formats::codec::gguf::$kind as ninfer_formats::codec::gguf::Block>::HAS_MIN;
            const POWER: f32 = $power;

            #[inline(always)]
            fn planes<'a>(row: &RowParts<'a>) -> Planes<'a> {
                match *row {
                    RowParts::Blocks { blocks, .. } => Planes { codes: blocks, ..NO_PLANES },
                    _ => NO_PLANES,
                }
            }

            #[inline(always)]
            fn words(planes: &Planes<'_>, i: usize) -> [u16; 2] {
                let kind = ninfer_formats::BlockKind::$kind;
                // Terms of 32 values, or units of one block.
                let block = if Self::SCALES == Scales::Unit { i } else { i / (kind.values() / 32) };
                let words: fn(&[u8]) -> [u16; 2] = $words;
                words(&planes.codes[block * kind.bytes()..(block + 1) * kind.bytes()])
            }
        })+
    };
}

ggml! {
    Q8_0: Term, None, 1.0, |b| [word(b, 0), 0];
    Q4_0: Term, None, 1.0, |b| [word(b, 0), 0];
    Q5_0: Term, None, 1.0, |b| [word(b, 0), 0];
    Q2_0: Term, None, 1.0, |b| [word(b, 0), 0];
    Iq4Nl: Term, None, 1.0, |b| [word(b, 0), 0];
    Q2K: Unit, Halves, 1.0, |b| [word(b, 80), word(b, 82)];
    Q3K: Unit, Halves, 1.0, |b| [word(b, 108), 0];
    Q4K: Unit, Whole, 1.0, |b| [word(b, 0), word(b, 2)];
    Q5K: Unit, Whole, 1.0, |b| [word(b, 0), word(b, 2)];
    Q6K: Unit, Halves, 1.0, |b| [word(b, 208), 0];
    Iq2Xxs: Unit, Whole, 0.125, |b| [word(b, 0), 0];
    Iq2Xs: Unit, Halves, 0.125, |b| [word(b, 0), 0];
    Iq2S: Unit, Halves, 0.125, |b| [word(b, 0), 0];
    Iq3Xxs: Unit, Whole, 0.25, |b| [word(b, 0), 0];
    Iq3S: Unit, Whole, 1.0, |b| [word(b, 0), 0];
    Iq1S: Unit, Whole, 0.125, |b| [word(b, 0), 0];
    Iq1M: Unit, Halves, 0.125, |b| {
        [ninfer_formats::codec::gguf::iq1_m_scale(b[48..56].first_chunk().expect("8 bytes")), 0]
    };
    Iq4Xs: Unit, Whole, 1.0, |b| [word(b, 0), 0];
}

/// The entry `$entry`, generic over the formats of this module, for a format with an integer path.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! a8_formats {
    ($format:expr, $entry:ident) => {{
        use ninfer_formats::codec::gguf;
        use ninfer_formats::{BlockKind as K, FormatId as F, Scheme};
        use $crate::gemv::{Ggml, Grouped, Nvfp4};
        use $crate::kernels::A8Fn;
        let entry: Option<A8Fn> = match $format.scheme() {
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use a8_formats;
