//! A16 products: one 512-bit vector of accumulators an element.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::{DirectKind, FormatId, Scheme, TensorView};

use crate::arch::x86_64::avx2::gemm_a16::combine;
use crate::arch::{fetch, fetch_early};
use crate::isa::{Isa, avx512_entry};
use crate::kernels::{self, A16Fn, Columns, Products, Scratch};
use crate::panel16::{Block, HIGH, Operand, WIDE, few, product};
use crate::tile::Tile;

/// Columns from which on it is worth while to turn the weights.
const TURNED_FROM: usize = 64;

/// The entries of a format: all that decode to binary32.
pub(super) fn entries(format: FormatId) -> Products<A16Fn> {
    match format.scheme() {
        Scheme::Direct(DirectKind::Int32) => Products::NONE,
        _ => Products { one: None, few: Some(columns::<true>), many: Some(columns::<false>) },
    }
}

avx512_entry! {
    /// A few columns or many; see [`crate::kernels::A16Fn`].
    pub(in crate::arch::x86_64) fn columns<const FEW: bool>(
        view: &TensorView<'_>, x: &Columns<'_>, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        if !FEW && columns.len() >= TURNED_FROM {
            return super::gemm_rows16::columns(view, x, columns, out, scratch);
        }
        let decode = kernels::decode(Isa::Avx512, view.format());
        let add = |w: Operand<'_>, x: Operand<'_>, columns, steps, fresh, block: &mut Block| match columns {
            6 => add::<6>(w, x, steps, fresh, block),
            5 => add::<5>(w, x, steps, fresh, block),
            4 => add::<4>(w, x, steps, fresh, block),
            3 => add::<3>(w, x, steps, fresh, block),
            2 => add::<2>(w, x, steps, fresh, block),
            _ => add::<1>(w, x, steps, fresh, block),
        };
        let combine = |block: &Block, sums: &mut [[f32; HIGH]; WIDE]| combine(block, sums);
        if FEW {
            few(view, x, columns, out, &mut scratch.panel16, &decode, add, combine);
        } else {
            product(view, x, columns, out, &mut scratch.panel16, &decode, add, combine);
        }
    }

    /// Adds the products of [`HIGH`] rows and `C` columns.
    fn add<const C: usize>(w: Operand<'_>, x: Operand<'_>, steps: usize, fresh: bool, block: &mut Block) {
        w.check(HIGH, steps);
        x.check(C, steps);
        let mut acc = [[_mm512_setzero_ps(); C]; HIGH];
        if !fresh {
            for (acc, lanes) in acc.iter_mut().zip(&*block) {
                for (acc, lanes) in acc.iter_mut().zip(lanes) {
                    // SAFETY: reads the 64 bytes of the lanes, which are aligned to 64.
                    *acc = unsafe { _mm512_load_ps(lanes.0.as_ptr()) };
                }
            }
        }
        let [soon, later] = x.ahead;
        for step in 0..steps {
            if !soon.is_null() {
                fetch(soon.wrapping_add(32 * step).cast());
                fetch(soon.wrapping_add(32 * step + 16).cast());
                if step % 2 == 0 {
                    fetch_early(later.wrapping_add(8 * step).cast());
                }
            }
            let vector = |of: &Operand<'_>, i: usize| {
                // SAFETY: `check` has found this vector, the `step`th of row or column `i`, inside the operand.
                unsafe { _mm512_loadu_ps(of.values.as_ptr().add(i * of.stride + 16 * step)) }
            };
            let mut xs = [_mm512_setzero_ps(); C];
            for (c, v) in xs.iter_mut().enumerate() {
                *v = vector(&x, c);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let w = vector(&w, r);
                for (acc, &x) in acc.iter_mut().zip(&xs) {
                    *acc = _mm512_fmadd_ps(w, x, *acc);
                }
            }
        }
        for (acc, lanes) in acc.iter().zip(block) {
            for (&acc, lanes) in acc.iter().zip(lanes) {
                // SAFETY: writes the 64 bytes of the lanes, which are aligned to 64.
                unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), acc) }
            }
        }
    }
}
