//! A16 products with many columns: 24 accumulators of sixteen rows each.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use super::prims::{load_f32, store};
use crate::arch::{fetch, fetch_early};
use crate::isa::{Isa, avx512_entry};
use crate::kernels::{self, Columns, Scratch};
use crate::panel::Lanes;
use crate::rows16::{Block, HIGH, Kernel, Part, Step, WIDE, product};
use crate::tile::Tile;

/// How far ahead weights are fetched to the first-level cache, in steps.
const AHEAD: usize = 16;

avx512_entry! {
    /// Many columns; see [`crate::kernels::A16Fn`].
    pub(super) fn columns(
        view: &TensorView<'_>, x: &Columns<'_>, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let kernel = Kernel {
            turn: |rows: &[f32], stride, steps, to: &mut [f32], apart, step| turn(rows, stride, steps, to, apart, step),
            add: |w: &[Step], x: &[f32], wide, high: usize, fresh, part: &mut Part, later| {
                macro_rules! by_width {
                    ($v:literal: $($c:literal)+) => {
                        match wide {
                            $($c => add::<$c, $v>(w, x, fresh, part, later),)+
                            _ => add::<WIDE, $v>(w, x, fresh, part, later),
                        }
                    };
                }
                if high > 16 {
                    by_width!(2: 1 2 3 4 5 6 7 8 9 10 11);
                } else {
                    by_width!(1: 1 2 3 4 5 6 7 8 9 10 11);
                }
            },
            combine: |block: &Block, sums: &mut [[f32; HIGH]; WIDE]| combine(block, sums),
        };
        let decode = kernels::decode(Isa::Avx512, view.format());
        product(view, x, columns, out, &mut scratch.rows16, &decode, &kernel);
    }

    /// Adds the products of the first `16 * V` rows of a block and `C` columns, as many steps as `w` has.
    fn add<const C: usize, const V: usize>(
        w: &[Step], x: &[f32], fresh: bool, part: &mut Part, later: *const f32,
    ) {
        let x = x.as_chunks::<C>().0;
        assert!(x.len() == w.len(), "operands of different lengths");
        let mut acc = [[_mm512_setzero_ps(); V]; C];
        if !fresh {
            for (acc, part) in acc.iter_mut().zip(&*part) {
                for (acc, lanes) in acc.iter_mut().zip(part) {
                    *acc = load_f32(&lanes.0);
                }
            }
        }
        for (step, (w, x)) in w.iter().zip(x).enumerate() {
            for lanes in w {
                fetch(lanes.0.as_ptr().wrapping_add(HIGH * AHEAD).cast());
            }
            fetch_early(later.wrapping_add(C * step).cast());
            let mut ws = [_mm512_setzero_ps(); V];
            for (v, lanes) in ws.iter_mut().zip(w) {
                *v = load_f32(&lanes.0);
            }
            for (acc, &x) in acc.iter_mut().zip(x) {
                let x = _mm512_set1_ps(x);
                for (acc, &w) in acc.iter_mut().zip(&ws) {
                    *acc = _mm512_fmadd_ps(w, x, *acc);
                }
            }
        }
        for (acc, part) in acc.iter().zip(part) {
            for (&acc, lanes) in acc.iter().zip(part) {
                store(&mut lanes.0, acc);
            }
        }
    }

    /// The sums of the sixteen accumulators of each element of a block, in the order of [`crate::order`].
    fn combine(block: &Block, sums: &mut [[f32; HIGH]; WIDE]) {
        for (c, sums) in sums.iter_mut().enumerate() {
            for (v, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let of = |l: usize| {
                    let lanes: &Lanes<f32> = &block[l][c][v];
                    load_f32(&lanes.0)
                };
                let mut s = [_mm512_setzero_ps(); 8];
                for (l, s) in s.iter_mut().enumerate() {
                    *s = _mm512_add_ps(of(l), of(l + 8));
                }
                for half in [4, 2, 1] {
                    for l in 0..half {
                        s[l] = _mm512_add_ps(s[l], s[l + half]);
                    }
                }
                store(sums, s[0]);
            }
        }
    }

    /// `16 * steps` values of sixteen rows to vectors of a value of each row; see [`Kernel::turn`].
    ///
    /// A quarter of the remainders after the other: vectors go to four places that move on, not to sixteen.
    fn turn(rows: &[f32], stride: usize, steps: usize, to: &mut [f32], apart: usize, step: usize) {
        let inside = |length: usize, distances: [(usize, usize); 2]| {
            let last = distances.iter().try_fold(16usize, |sum, &(n, d)| sum.checked_add(n.checked_mul(d)?));
            last.is_some_and(|last| last <= length)
        };
        assert!(steps > 0 && inside(rows.len(), [(15, stride), (steps - 1, 16)]), "rows are too short");
        assert!(inside(to.len(), [(15, apart), (steps - 1, step)]), "no room for the vectors");
        for quarter in 0..4 {
            for s in 0..steps {
                // Four values of rows `r`, `r + 4`, `r + 8` and `r + 12`.
                let values = |r: usize| {
                    // SAFETY: reads four of the sixteen values of step `s` of row `r`, which were found inside.
                    let four = |r: usize| unsafe {
                        _mm_loadu_ps(rows.as_ptr().add(r * stride + 16 * s + 4 * quarter))
                    };
                    let v = _mm512_insertf32x4::<1>(_mm512_castps128_ps512(four(r)), four(r + 4));
                    _mm512_insertf32x4::<3>(_mm512_insertf32x4::<2>(v, four(r + 8)), four(r + 12))
                };
                let [a, b, c, d] = [values(0), values(1), values(2), values(3)];
                let low = |a, b| _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let high = |a, b| _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let four = [
                    _mm512_unpacklo_pd(low(a, b), low(c, d)),
                    _mm512_unpackhi_pd(low(a, b), low(c, d)),
                    _mm512_unpacklo_pd(high(a, b), high(c, d)),
                    _mm512_unpackhi_pd(high(a, b), high(c, d)),
                ];
                for (i, v) in four.into_iter().enumerate() {
                    let at = (4 * quarter + i) * apart + s * step;
                    // SAFETY: writes the sixteen values from `at` on, which were found inside.
                    unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(at), _mm512_castpd_ps(v)) }
                }
            }
        }
    }
}
