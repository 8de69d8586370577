//! A16 products: decode a row once, then take it against every column.

use std::ops::Range;

use ninfer_formats::{RowParts, TensorView};

use crate::kernels::{Columns, Scratch};
use crate::order::{Fused, dot_a16};
use crate::tile::Tile;

/// See [`crate::kernels::A16Fn`]; `decode` decodes one row.
#[inline(always)]
pub(crate) fn rows<F: Fused>(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
    decode: impl Fn(&RowParts<'_>, &mut [f32]),
) {
    scratch.floats.resize(view.k(), 0.0);
    for r in 0..view.rows() {
        decode(&view.row(r), &mut scratch.floats);
        for t in columns.clone() {
            out.column(t)[r] = dot_a16::<F>(&scratch.floats, x.column(t));
        }
    }
}
