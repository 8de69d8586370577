//! A8 products of one column or a few: the entries.

use super::turned::Avx2;
use crate::isa::avx2_entry;

/// The entries for one token, compiled by its `$entry`, with vectors `$token`. Where it is called there is `by_one`: how many
/// columns are better taken one by one.
macro_rules! with_lanes {
    ($entry:ident, $token:expr) => {
        use std::arch::x86_64::__m256;
        use std::ops::Range;

        use ninfer_formats::TensorView;

        use $crate::kernels::Scratch;
        use $crate::lanes::{self, Activation, Chains, Codes, HalfLine, Line, Turned, Words};
        use $crate::q8_1::Q8_1;
        use $crate::tile::Tile;

        $entry! {
            /// One column or a few; see [`crate::kernels::A8Fn`].
            pub(in crate::arch::x86_64) fn few<S: Codes>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
                if columns.len() <= by_one::<S>() {
                    return one::<S>(view, x, columns, out, scratch);
                }
                let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
                lanes::product::<_, S>($token, view, x, columns, out, &mut scratch.lanes, step);
            }

            /// One column; see [`crate::kernels::A8Fn`].
            pub(in crate::arch::x86_64) fn one<S: Codes>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
                for t in columns {
                    lanes::single_beside::<_, S>($token, view, x, t, out, &mut scratch.lanes);
                }
            }

            /// See [`crate::kernels::PreparedFn`].
            pub(in crate::arch::x86_64) fn prepared<S: Codes>(
                view: &TensorView<'_>,
                turned: Turned<'_>,
                x: &Q8_1,
                columns: Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                if columns.len() == 1 {
                    return lanes::single_prepared::<_, S>($token, view, turned, x, columns.start, out, &mut scratch.lanes);
                }
                let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
                lanes::prepared::<_, S>($token, view, turned, x, columns, out, &mut scratch.lanes, step);
            }

            /// The large part, once for both.
            #[inline(never)]
            fn chunk<S: Codes>(
                words: &[Line<Words>],
                halves: &[HalfLine],
                x: &[Activation],
                columns: usize,
                ahead: usize,
                acc: &mut Chains<__m256>,
                min: &mut Chains<__m256>,
            ) {
                lanes::chunk::<_, S>($token, words, halves, x, columns, ahead, acc, min);
            }
        }
    };
}
pub(in crate::arch::x86_64) use with_lanes;

/// Unpacking once saves less than the loop for one column does, but where halves or minima cost that one more; the magnitudes
/// of signed codes cost every column.
const fn by_one<S: Codes>() -> usize {
    match S::LAY {
        lanes::Lay::Turned => 1,
        _ if S::SPLIT || S::MINIMUM => 1,
        _ if S::RANGE > 127 => 4,
        _ => 2,
    }
}

with_lanes! { avx2_entry, Avx2::<false>(()) }
