//! A16 matrix-matrix products: four vectors of accumulators an element.

use std::arch::aarch64::*;
use std::ops::Range;

use ninfer_formats::{DirectKind, FormatId, Scheme, TensorView};

use super::prims::{load_f32, store};
use crate::isa::{Isa, neon_entry};
use crate::kernels::{self, A16Fn, Columns, Products, Scratch};
use crate::panel::Lanes;
use crate::panel16::{Block, HIGH, Operand, WIDE, few, product};
use crate::tile::Tile;

/// Rows and columns whose accumulators are in registers.
const ROWS: usize = 2;
const COLUMNS: usize = 3;

/// The entries of a format: all that decode to binary32.
pub(super) fn entries(format: FormatId) -> Products<A16Fn> {
    match format.scheme() {
        Scheme::Direct(DirectKind::Int32) => Products::NONE,
        _ => Products { one: None, few: Some(columns::<true>), many: Some(columns::<false>) },
    }
}

neon_entry! {
    /// A few columns or many; see [`crate::kernels::A16Fn`].
    fn columns<const FEW: bool>(
        view: &TensorView<'_>, x: &Columns<'_>, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let decode = kernels::decode(Isa::Neon, view.format());
        let add = |w: Operand<'_>, x: Operand<'_>, columns: usize, steps: usize, fresh: bool, block: &mut Block| {
            for r in (0..HIGH).step_by(ROWS) {
                for c in (0..columns).step_by(COLUMNS) {
                    match columns - c {
                        1 => add::<1>(w, x, r, c, steps, fresh, block),
                        2 => add::<2>(w, x, r, c, steps, fresh, block),
                        _ => add::<3>(w, x, r, c, steps, fresh, block),
                    }
                }
            }
        };
        let combine = |block: &Block, sums: &mut [[f32; HIGH]; WIDE]| combine(block, sums);
        if FEW {
            few(view, x, columns, out, &mut scratch.panel16, &decode, add, combine);
        } else {
            product(view, x, columns, out, &mut scratch.panel16, &decode, add, combine);
        }
    }

    /// Adds the products of the rows `r..r + ROWS` and the columns `c..c + C` of a block.
    fn add<const C: usize>(
        w: Operand<'_>, x: Operand<'_>, r: usize, c: usize, steps: usize, fresh: bool, block: &mut Block,
    ) {
        w.check(r + ROWS, steps);
        x.check(c + C, steps);
        let block: &mut [[Lanes<f32>; WIDE]; ROWS] = block[r..].first_chunk_mut().expect("rows come in pairs");
        let mut acc = [[[vdupq_n_f32(0.0); 4]; C]; ROWS];
        if !fresh {
            for (acc, lanes) in acc.iter_mut().zip(&*block) {
                for (acc, lanes) in acc.iter_mut().zip(&lanes[c..c + C]) {
                    *acc = fours(lanes);
                }
            }
        }
        for step in 0..steps {
            for four in 0..4 {
                let vector = |of: &Operand<'_>, i: usize| {
                    // SAFETY: `check` has found the vector of 16 values, the `step`th of row or column `i`, inside the
                    // operand; this is a quarter of it.
                    unsafe { vld1q_f32(of.values.as_ptr().add(i * of.stride + 16 * step + 4 * four)) }
                };
                let mut ws = [vdupq_n_f32(0.0); ROWS];
                for (i, v) in ws.iter_mut().enumerate() {
                    *v = vector(&w, r + i);
                }
                for i in 0..C {
                    let x = vector(&x, c + i);
                    for (acc, &w) in acc.iter_mut().zip(&ws) {
                        acc[i][four] = vfmaq_f32(acc[i][four], w, x);
                    }
                }
            }
        }
        for (acc, lanes) in acc.iter().zip(block) {
            for (acc, lanes) in acc.iter().zip(&mut lanes[c..c + C]) {
                for (acc, lanes) in acc.iter().zip(lanes.0.as_chunks_mut::<4>().0) {
                    store(lanes, *acc);
                }
            }
        }
    }

    #[inline]
    fn fours(lanes: &Lanes<f32>) -> [float32x4_t; 4] {
        let lanes = lanes.0.as_chunks::<4>().0;
        [load_f32(&lanes[0]), load_f32(&lanes[1]), load_f32(&lanes[2]), load_f32(&lanes[3])]
    }

    /// The sums of the sixteen accumulators of each element of a block, in the order of [`crate::order`], the four rows
    /// of a column at a time.
    fn combine(block: &Block, sums: &mut [[f32; HIGH]; WIDE]) {
        for (c, sums) in sums.iter_mut().enumerate() {
            // l + 8, then l + 4: four sums of an element.
            let four = |r: usize| {
                let [a, b, c, d] = fours(&block[r][c]);
                vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d))
            };
            // l + 2 of two rows.
            let two = |r: usize| {
                let (p, q) = (vreinterpretq_f64_f32(four(r)), vreinterpretq_f64_f32(four(r + 1)));
                let (low, high) = (vzip1q_f64(p, q), vzip2q_f64(p, q));
                vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
            };
            store(sums, vpaddq_f32(two(0), two(2)));
        }
    }
}
