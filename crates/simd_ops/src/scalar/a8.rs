//! A8 products: unpack a row once into runs of 32 integer codes, then take it against every column.

use std::ops::Range;

use ninfer_formats::codec::gguf::Block;
use ninfer_formats::float::{e2m1, e4m3, f16};
use ninfer_formats::{RowParts, TensorView, unpack_codes};

use crate::kernels::Scratch;
use crate::order::{A8, Fused};
use crate::q8_1::{Q8_1, Q8Column};
use crate::tile::Tile;

/// 32 consecutive weights as a product sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Integer codes.
    codes: [i8; 32],
    /// Integer factor of each half.
    scale: [i32; 2],
    /// Integer minimum of each half.
    min: [i32; 2],
    /// `d_w` and `dmin`; for `nvfp4` the factors of the two halves.
    d: [f32; 2],
}

/// How the sums of a run's two halves enter the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Terms {
    /// One term.
    One,
    /// One term and a minimum.
    Minimum,
    /// One term a half.
    Halves,
}

/// See [`crate::kernels::A8Fn`].
#[inline(always)]
pub(crate) fn blocks<B: Block, F: Fused>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
) {
    for r in 0..view.rows() {
        let RowParts::Blocks { blocks, .. } = view.row(r) else { return };
        scratch.runs.clear();
        for block in B::blocks(blocks) {
            let f = B::factors(block);
            for b in 0..B::SUBS {
                let pair = |of: &[i8; 16]| [i32::from(of[2 * b]), i32::from(of[2 * b + 1])];
                scratch.runs.push(Run {
                    codes: B::codes(block, b),
                    scale: pair(&f.scale),
                    min: pair(&f.min),
                    d: [f.d, f.dmin],
                });
            }
        }
        for t in columns.clone() {
            let column = x.column(t);
            out.column(t)[r] = if B::HAS_MIN {
                product::<F>(&scratch.runs, &column, Terms::Minimum)
            } else {
                product::<F>(&scratch.runs, &column, Terms::One)
            };
        }
    }
}

/// See [`crate::kernels::A8Fn`].
#[inline(always)]
pub(crate) fn grouped<F: Fused>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
) {
    let runs = view.k().div_ceil(32);
    for r in 0..view.rows() {
        let RowParts::Grouped { scheme, base, high, scales } = view.row(r) else { return };
        scratch.runs.clear();
        let mut lanes = [0; 128];
        for (g, word) in scales.as_chunks::<2>().0.iter().enumerate() {
            let (b, h) = (scheme.base_bytes, scheme.high_bytes);
            let lanes = &mut lanes[..scheme.group];
            unpack_codes(&scheme, &base[g * b..(g + 1) * b], &high[g * h..(g + 1) * h], lanes);
            let d = [f16::to_f32(u16::from_le_bytes(*word)), 0.0];
            scratch.runs.extend(lanes.as_chunks().0.iter().map(|&codes| Run {
                codes,
                scale: [1; 2],
                min: [0; 2],
                d,
            }));
        }
        // Runs wholly past K, padding groups among them, do not take part.
        let runs = &scratch.runs[..runs];
        for t in columns.clone() {
            out.column(t)[r] = product::<F>(runs, &x.column(t), Terms::One);
        }
    }
}

/// See [`crate::kernels::A8Fn`].
#[inline(always)]
pub(crate) fn nvfp4<F: Fused>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
) {
    for r in 0..view.rows() {
        let RowParts::Nvfp4 { codes, scales, divisor } = view.row(r) else { return };
        scratch.runs.clear();
        for (i, bytes) in codes.as_chunks::<16>().0.iter().enumerate() {
            let mut codes = [0; 32];
            for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = [e2m1::DOUBLED[usize::from(byte & 15)], e2m1::DOUBLED[usize::from(byte >> 4)]];
            }
            let d = [0, 1].map(|half| e4m3::to_f32(scales.word(2 * i + half)) * 0.5);
            scratch.runs.push(Run { codes, scale: [1; 2], min: [0; 2], d });
        }
        for t in columns.clone() {
            out.column(t)[r] =
                product::<F>(&scratch.runs, &x.column(t), Terms::Halves) / f32::from_bits(divisor);
        }
    }
}

#[inline(always)]
fn product<F: Fused>(runs: &[Run], x: &Q8Column<'_>, terms: Terms) -> f32 {
    let mut a = A8::default();
    let x = x.codes.as_chunks::<32>().0.iter().zip(x.scales).zip(x.half_sums.as_chunks::<2>().0);
    for (run, ((codes, &d_x), sums)) in runs.iter().zip(x) {
        let [low, high] = half_dots(&run.codes, codes);
        if terms == Terms::Halves {
            a.term::<F>(low, run.d[0], d_x);
            a.term::<F>(high, run.d[1], d_x);
            continue;
        }
        a.term::<F>(run.scale[0] * low + run.scale[1] * high, run.d[0], d_x);
        if terms == Terms::Minimum {
            let msum = run.min[0] * i32::from(sums[0]) + run.min[1] * i32::from(sums[1]);
            a.minimum::<F>(msum, run.d[1], d_x);
        }
    }
    a.finish()
}

/// Exact sums of the products of two halves of 16 codes.
#[inline(always)]
fn half_dots(w: &[i8; 32], x: &[i8; 32]) -> [i32; 2] {
    [0, 16].map(|at| {
        w[at..at + 16].iter().zip(&x[at..at + 16]).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
    })
}
