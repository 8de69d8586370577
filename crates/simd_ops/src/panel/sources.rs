//! The formats as panels see them: codes, scales and minima of runs of 32 values.

use ninfer_formats::codec::gguf::Block;
use ninfer_formats::float::{e2m1, e4m3, f16};
use ninfer_formats::{GroupedScheme, RowParts, unpack_codes};

use super::{Minimum, Panel, Shape, Source};

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
