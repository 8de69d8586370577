//! A8 products of one or a few columns, for this token and those with dot products.
//!
//! Four rows are taken at a time, one in each lane of the chain of `fma`s that [`crate::order`] asks for. A block's
//! byte products give four partial sums a row; two rounds of pairwise additions turn those of four rows into one
//! vector with a row in each lane, to which sub-scales and scales are applied as such vectors. Sums are exact integers
//! until they become a term, so the kernels may start them at `-offset * sum(x)` instead of subtracting an offset from
//! each code, and may take codes times a power of two.
//!
//! A unit of 256 values that is not whole is copied and filled with zeros on both sides. Its missing terms are left out
//! or add a zero to accumulators that are never -0, which changes no bit.

use std::arch::aarch64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use super::gemv_layout::{Memory, Unit, place};
use super::gemv_scaling::{Chain, Scaling, add, scales_of};
use super::gemv_sums::{Dot, partial, sums};
use super::gemv_unpack::Unpack;
use super::prims::load_f32;
use crate::gemv::{MOST, Planes, UNIT};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Rows of a tile.
pub(super) const ROWS: usize = 4;

/// Runs a body for the four pairs of blocks of a unit, with constants.
macro_rules! each_pair {
    ($p:ident => $body:block) => {
        each_pair!(@ $p $body 0 1 2 3);
    };
    (@ $p:ident $body:block $($i:literal)+) => {
        $({
            const $p: usize = $i;
            $body
        })+
    };
}

/// Has the vectors computed before what comes next: the compiler would else mix rows until it runs out of registers.
macro_rules! in_order {
    ($v:ident) => {
        let [mut a, mut b, mut c, mut d] = $v;
        // No instruction at all; the callers' blocks are unsafe.
        std::arch::asm!("// {0:v} {1:v} {2:v} {3:v}", inout(vreg) a, inout(vreg) b, inout(vreg) c, inout(vreg) d,
            options(nostack, preserves_flags));
        $v = [a, b, c, d];
    };
}

/// The product of four rows and one column.
#[inline(always)]
unsafe fn one<S: Unpack, D: Dot>(
    planes: &[Planes<'_>; ROWS],
    x: &[Unit],
    rooms: &mut [[[u8; MOST]; 3]; ROWS],
) -> float32x4_t {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        let mut chain = Chain { acc: vdupq_n_f32(0.0), m: vdupq_n_f32(0.0) };
        for (u, x) in x.iter().enumerate() {
            let [a, b, c, d] = &mut *rooms;
            let rows = [
                place::<S>(&planes[0], u, a),
                place::<S>(&planes[1], u, b),
                place::<S>(&planes[2], u, c),
                place::<S>(&planes[3], u, d),
            ];
            let scaling = Scaling::new::<S>(&rows);
            each_pair!(P => {
                let [d, min] = scales_of::<S>(&scaling, P);
                let v = four!(R => {
                    let mut v = partial::<S, D>(&S::pair(&rows[R], P), x, P);
                    if S::MANY_LOADS {
                        in_order!(v);
                    }
                    v
                });
                add::<S>(&mut chain, sums::<S>(&v), &scaling, &d, &min, x, P);
            });
        }
        if S::MINIMUM { vsubq_f32(chain.acc, chain.m) } else { chain.acc }
    }
}

/// The products of four rows and several columns, which take their weights from registers; the results are left in
/// the memory's accumulators.
#[inline(always)]
unsafe fn several<S: Unpack, D: Dot>(
    planes: &[Planes<'_>; ROWS],
    memory: &mut Memory,
    units: usize,
    rooms: &mut [[[u8; MOST]; 3]; ROWS],
) {
    let Memory { x, acc } = memory;
    acc.fill([[0.0; ROWS]; 2]);
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        for u in 0..units {
            let [a, b, c, d] = &mut *rooms;
            let rows = [
                place::<S>(&planes[0], u, a),
                place::<S>(&planes[1], u, b),
                place::<S>(&planes[2], u, c),
                place::<S>(&planes[3], u, d),
            ];
            let scaling = Scaling::new::<S>(&rows);
            each_pair!(P => {
                let [d, min] = scales_of::<S>(&scaling, P);
                let w = four!(R => {
                    let mut w = S::pair(&rows[R], P);
                    if S::MANY_LOADS {
                        in_order!(w);
                    }
                    w
                });
                for (acc, x) in acc.iter_mut().zip(x[u..].iter().step_by(units)) {
                    let mut chain = Chain { acc: load_f32(&acc[0]), m: load_f32(&acc[1]) };
                    let v = four!(R => partial::<S, D>(&w[R], x, P));
                    add::<S>(&mut chain, sums::<S>(&v), &scaling, &d, &min, x, P);
                    vst1q_f32(acc[0].as_mut_ptr(), chain.acc);
                    if S::MINIMUM {
                        vst1q_f32(acc[1].as_mut_ptr(), chain.m);
                    }
                }
            });
        }
        if S::MINIMUM {
            for [acc, m] in acc {
                let y = vsubq_f32(load_f32(acc), load_f32(m));
                vst1q_f32(acc.as_mut_ptr(), y);
            }
        }
    }
}

/// See [`crate::kernels::A8Fn`]. To be inlined into a function that is compiled for the features of `D`.
///
/// # Safety
/// The machine must have the features of `D`.
#[inline(always)]
pub(in crate::arch::aarch64) unsafe fn columns<S: Unpack, D: Dot>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    memory.prepare::<S>(x, columns.clone());
    memory.acc.resize(columns.len(), [[0.0; ROWS]; 2]);
    let units = x.blocks().div_ceil(UNIT / 32);
    let mut rooms = [[[0; MOST]; 3]; ROWS];
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = (view.rows() - first).min(ROWS);
        // Rows past the last are the last once more; their sums go nowhere.
        let parts: [_; ROWS] = std::array::from_fn(|r| view.row(first + r.min(rows - 1)));
        let planes = four!(R => S::planes(&parts[R]));
        if columns.len() == 1 {
            // SAFETY: the caller's; the store writes 16 bytes.
            unsafe {
                let y = one::<S, D>(&planes, &memory.x, &mut rooms);
                vst1q_f32(memory.acc[0][0].as_mut_ptr(), y);
            }
        } else {
            // SAFETY: the caller's.
            unsafe { several::<S, D>(&planes, memory, units, &mut rooms) };
        }
        for (t, [y, _]) in columns.clone().zip(&mut memory.acc) {
            if S::TERMS == 16 {
                for (y, parts) in y.iter_mut().zip(&parts) {
                    *y /= f32::from_bits(S::divisor(parts));
                }
            }
            out.column(t)[first..first + rows].copy_from_slice(&y[..rows]);
        }
    }
}

/// The entry of a token: `$entry` compiles for its features, `$dot` sums with them.
macro_rules! a8_columns {
    ($entry:ident, $dot:ty) => {
        $entry! {
            /// See [`crate::kernels::A8Fn`].
            pub(in crate::arch::aarch64) fn columns<S: $crate::arch::aarch64::neon::gemv_unpack::Unpack>(
                view: &ninfer_formats::TensorView<'_>,
                x: &$crate::q8_1::Q8_1,
                columns: std::ops::Range<usize>,
                out: &mut $crate::tile::Tile<'_>,
                scratch: &mut $crate::kernels::Scratch,
            ) {
                // SAFETY: this function is compiled for the token's features, so the machine has them.
                unsafe {
                    $crate::arch::aarch64::neon::gemv::columns::<S, $dot>(view, x, columns, out, &mut scratch.neon);
                }
            }
        }
    };
}
pub(in crate::arch::aarch64) use a8_columns;

/// The kernels of `neon` itself.
pub(super) mod entries {
    use crate::isa::neon_entry;

    super::a8_columns!(neon_entry, crate::arch::aarch64::neon::gemv_sums::Widening);
}
