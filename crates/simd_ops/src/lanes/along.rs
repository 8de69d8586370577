//! Products of one column with rows that are read along, one after the other.
//!
//! Where a unit's codes fill whole vectors as they lie, nothing has to be inserted or turned: a row's 256 values are
//! unpacked and multiplied in vectors of its own, and only the sums of its blocks are turned, sixteen rows together.
//! Integer factors are applied before, by the same instruction that adds neighbours. From there on everything is as in
//! [`mod@super::single`].

use ninfer_formats::TensorView;

use super::driver::finish;
use super::single::{check, fetch_later, later};
use super::{Codes, HalfLine, Memory, Places, ROWS, Rows, Vector};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

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

/// What is fetched early meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Early {
    later: [*const u8; 3],
    unit: usize,
}

impl Early {
    /// Fetches the part that stands for block `B`.
    #[inline(always)]
    pub(crate) fn block<S: Codes, const B: usize>(self) {
        fetch_later::<S, B>(self.later, self.unit);
    }
}

/// Vectors that multiply rows of a format along.
pub(crate) trait Lengthwise<S: Codes>: Vector {
    /// The integer sums of a unit's eight blocks, times the integer factors, of the rows of a part. Lines are fetched
    /// between pieces of the work.
    ///
    /// # Safety
    /// The places must be those of a unit's first byte, and the whole units readable.
    unsafe fn sums(self, rows: Places, part: usize, x: &Along, early: Early) -> [Self::I; 8];
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
    const {
        // The scale is read as the upper half of a word.
        assert!(S::BLOCKS == 8 && S::BYTES[1] == 0 && S::BYTES[2] == 0 && S::POWER == 1.0);
        assert!(S::HALVES.len() == 1 && S::HALVES[0].1 >= 2 && !S::MINIMUM);
    }
    let column = x.column(t);
    memory.along.clear();
    let units = column.codes.as_chunks::<256>().0.iter().zip(column.scales.as_chunks::<8>().0);
    let units = units.zip(column.half_sums.as_chunks::<16>().0);
    memory.along.extend(units.map(|((&codes, &d), &halves)| {
        let mut start = [0; 64];
        for (start, codes) in start.iter_mut().zip(codes.as_chunks::<4>().0) {
            *start = -S::OFFSET * codes.iter().map(|&x| i32::from(x)).sum::<i32>();
        }
        Along { codes, start, halves, d }
    }));
    let (x, room) = (&memory.along, &mut memory.rows);
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = Rows::of::<S>(view, first, room);
        check::<S>(&rows, x.len());
        let later = later(&rows, view.rows() - first);
        let mut acc = [[v.zeros()]; 2];
        for (u, x) in x.iter().enumerate() {
            let begin = rows.bytes[0].as_ptr().wrapping_add(u * rows.step[0]);
            let places = Places::new(begin, rows.stride[0]);
            let mut halves = HalfLine::default();
            // SAFETY: the two bytes before the scale and the scale are in the unit, which is there as `check` says.
            unsafe { v.halves_at(places.behind(S::HALVES[0].1 - 2), true, &mut halves) };
            let early = Early { later, unit: u };
            for (part, acc) in acc.iter_mut().enumerate().take(ROWS / V::LANES) {
                let scale = v.scales(&halves.0, part);
                // SAFETY: as above.
                let sums = unsafe { v.sums(places, part, x, early) };
                for (sum, &d) in sums.into_iter().zip(&x.d) {
                    acc[0] = v.fma(v.to_f32(sum), v.mul(scale, v.floats(d)), acc[0]);
                }
            }
        }
        finish::<V, S, 1>(v, view, first, t..t + 1, out, &acc, &[[v.zeros()]; 2]);
    }
}
