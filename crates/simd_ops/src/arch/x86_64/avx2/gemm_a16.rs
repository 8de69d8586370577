//! A16 products: two 256-bit vectors of accumulators an element.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::{DirectKind, FormatId, Scheme, TensorView};

use crate::isa::{Isa, avx2_entry};
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

avx2_entry! {
    /// A few columns or many; see [`crate::kernels::A16Fn`].
    fn columns<const FEW: bool>(
        view: &TensorView<'_>, x: &Columns<'_>, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let decode = kernels::decode(Isa::Avx2, view.format());
        let add = |w: Operand<'_>, x: Operand<'_>, columns: usize, steps: usize, fresh: bool, block: &mut Block| {
            w.check(HIGH, steps);
            x.check(columns, steps);
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
        let mut acc = [[[_mm256_setzero_ps(); 2]; C]; ROWS];
        if !fresh {
            for (acc, lanes) in acc.iter_mut().zip(&*block) {
                for (acc, lanes) in acc.iter_mut().zip(&lanes[c..c + C]) {
                    *acc = halves(lanes);
                }
            }
        }
        for step in 0..steps {
            for half in 0..2 {
                let vector = |of: &Operand<'_>, i: usize| {
                    // SAFETY: `check` has found the vector of 16 values, the `step`th of row or column `i`, inside the
                    // operand; this is one half of it.
                    unsafe { _mm256_loadu_ps(of.values.as_ptr().add(i * of.stride + 16 * step + 8 * half)) }
                };
                let mut ws = [_mm256_setzero_ps(); ROWS];
                for (i, v) in ws.iter_mut().enumerate() {
                    *v = vector(&w, r + i);
                }
                for i in 0..C {
                    let x = vector(&x, c + i);
                    for (acc, &w) in acc.iter_mut().zip(&ws) {
                        acc[i][half] = _mm256_fmadd_ps(w, x, acc[i][half]);
                    }
                }
            }
        }
        for (acc, lanes) in acc.iter().zip(block) {
            for (acc, lanes) in acc.iter().zip(&mut lanes[c..c + C]) {
                // SAFETY: writes the 64 bytes of the lanes, in two halves aligned to 32.
                unsafe {
                    _mm256_store_ps(lanes.0.as_mut_ptr(), acc[0]);
                    _mm256_store_ps(lanes.0.as_mut_ptr().add(8), acc[1]);
                }
            }
        }
    }

    #[inline]
    fn halves(lanes: &Lanes<f32>) -> [__m256; 2] {
        // SAFETY: reads the 64 bytes of the lanes, in two halves aligned to 32.
        unsafe { [_mm256_load_ps(lanes.0.as_ptr()), _mm256_load_ps(lanes.0.as_ptr().add(8))] }
    }

    /// The sums of the sixteen accumulators of each element of a block, in the order of [`crate::order`], four rows
    /// and two columns at a time.
    pub(in crate::arch::x86_64) fn combine(block: &Block, sums: &mut [[f32; HIGH]; WIDE]) {
        for (pair, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // l + 8, then l + 4: four sums of each of the two columns.
            let four = |r: usize| {
                let [a, b] = [0, 1].map(|c| {
                    let [low, high] = halves(&block[r][2 * pair + c]);
                    _mm256_add_ps(low, high)
                });
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
            };
            // l + 2 of two rows.
            let two = |r: usize| {
                let (p, q) = (_mm256_castps_pd(four(r)), _mm256_castps_pd(four(r + 1)));
                let (low, high) = (_mm256_unpacklo_pd(p, q), _mm256_unpackhi_pd(p, q));
                _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
            };
            let (p, q) = (two(0), two(2));
            let all = _mm256_add_ps(_mm256_shuffle_ps::<0x88>(p, q), _mm256_shuffle_ps::<0xdd>(p, q));
            // SAFETY: writes the two columns of four binary32 numbers each.
            unsafe { _mm256_storeu_ps(sums.as_mut_ptr().cast(), all) }
        }
    }
}
