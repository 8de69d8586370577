//! Products of one column with rows that are read along, one after the other.
//!
//! Where a unit's codes fill whole vectors as they lie, nothing has to be inserted or turned: a row's 256 values are
//! unpacked and multiplied in vectors of its own. Integer factors of halves are applied before, by the same
//! instruction that adds neighbours. What is left of a unit, a vector of the sums of its blocks, is kept until sixteen
//! rows are there; then these are turned, and from there on everything is as in [`mod@super::single`].
//!
//! A row is read in order through many units ([`UNITS`]) before the next one, so the weights are read in the order of
//! memory. What comes [`AHEAD`] in it is fetched early: by itself the machine falls behind.

use ninfer_formats::TensorView;

use super::driver::{add_weighed, finish, scales_of, term};
use super::formats::Unit;
use super::single::{At, MOST_HALVES, MOST_WORDS, check};
use super::{Codes, HalfLine, Line, Memory, ROWS, Rows, Vector, Words};
use crate::arch::fetch_early;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Bytes between what is read and what is fetched early.
const AHEAD: usize = 8192;

/// Units of a row that are read before the next row is.
const UNITS: usize = 16;

/// 256 activations in order.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Along {
    /// Codes.
    pub codes: [i8; 256],
    /// What the sums of four products each start at.
    pub start: [i32; 64],
    /// Sums of the codes of the halves.
    pub halves: [i16; 16],
    /// Scales.
    pub d: [f32; 8],
}

/// Vectors that multiply rows of a format along.
pub(crate) trait Lengthwise<S: Codes>: Vector {
    /// What is kept of a row's unit: the integer sums of its blocks, times the factors of the halves.
    ///
    /// # Safety
    /// The unit must be readable.
    unsafe fn row(self, unit: *const u8, x: &Along) -> Self::I;
    /// Keeps it for row `r`.
    fn keep(self, sums: Self::I, r: usize, out: &mut [Line<Words>; ROWS]);
    /// The sums of the eight blocks, of the rows of a part.
    fn sums(self, kept: &[Line<Words>; ROWS], part: usize) -> [Self::I; 8];
}

/// Lays out the activations of column `t`.
fn fill<S: Codes>(to: &mut Vec<Along>, x: &Q8_1, t: usize) {
    let column = x.column(t);
    to.clear();
    let units = column.codes.as_chunks::<256>().0.iter().zip(column.scales.as_chunks::<8>().0);
    let units = units.zip(column.half_sums.as_chunks::<16>().0);
    to.extend(units.map(|((&codes, &d), &halves)| {
        let mut start = [0; 64];
        for (start, codes) in start.iter_mut().zip(codes.as_chunks::<4>().0) {
            *start = -S::OFFSET * codes.iter().map(|&x| i32::from(x)).sum::<i32>();
        }
        Along { codes, start, halves, d }
    }));
}

/// The A8 product of the view's rows and column `t`; see [`crate::kernels::A8Fn`].
#[inline(always)]
pub(crate) fn along<V: Lengthwise<S>, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    x: &Q8_1,
    t: usize,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    const { assert!(S::BLOCKS == 8 && S::BYTES[1] == 0 && S::BYTES[2] == 0 && !S::MINIMUM) };
    // Scales are no pieces.
    const { assert!(S::HALVES.len() == 1) };
    fill::<S>(&mut memory.along, x, t);
    let Memory { along: x, rows: room, kept, .. } = memory;
    kept.resize(UNITS.min(x.len()), [Line::default(); ROWS]);
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = Rows::of::<S>(view, first, room);
        check::<S>(&rows, x.len());
        let mut words = [Line([0; ROWS]); MOST_WORDS];
        let mut halves = [HalfLine([0; ROWS]); MOST_HALVES];
        let (mut acc, mut min) = ([[v.zeros()]; 2], [[v.zeros()]; 2]);
        for (i, x) in x.chunks(UNITS).enumerate() {
            for r in 0..ROWS {
                let mut unit =
                    rows.bytes[0].as_ptr().wrapping_add(r * rows.stride[0] + i * UNITS * rows.step[0]);
                for (x, kept) in x.iter().zip(kept.iter_mut()) {
                    for line in 0..S::BYTES[0].div_ceil(64) {
                        fetch_early(unit.wrapping_add(AHEAD + 64 * line));
                    }
                    // SAFETY: a unit of a row; they are there as `check` says.
                    v.keep(unsafe { v.row(unit, x) }, r, kept);
                    unit = unit.wrapping_add(rows.step[0]);
                }
            }
            for (u, (x, kept)) in x.iter().zip(kept.iter()).enumerate() {
                let at = At::of::<S>(&rows, i * UNITS + u);
                // SAFETY: a unit below the number that `check` was called for.
                unsafe { at.singles::<V, S>(v, &mut words, &mut halves) };
                let (words, halves) = (&words[..S::WORDS], &halves[..S::HALVES.len()]);
                for part in 0..ROWS / V::LANES {
                    let unit = Unit { words, halves, part };
                    let scales = scales_of::<V, S>(v, unit);
                    let term = term::<V, S, 0>(v, unit, scales);
                    let (acc, min) = (&mut acc[part][0], &mut min[part][0]);
                    for (sum, &d) in v.sums(kept, part).into_iter().zip(&x.d) {
                        add_weighed::<V, S>(v, &term, [sum, v.zero()], d, acc, min);
                    }
                }
            }
        }
        finish::<V, S, 1>(v, view, first, t..t + 1, out, &acc, &min);
    }
}
