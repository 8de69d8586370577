//! Decoding of panels by the portable codecs.

use std::ops::Range;

use ninfer_formats::{RowParts, TensorView, codec};

/// Decodes elements `k` of every row of the view with `row`, which is given the parts of one row that hold exactly
/// these elements.
#[inline(always)]
pub(crate) fn panel(
    view: &TensorView<'_>,
    k: Range<usize>,
    out: &mut [f32],
    row: impl Fn(&RowParts<'_>, &mut [f32]),
) {
    let whole = k == (0..view.k());
    for (r, out) in out.chunks_exact_mut(k.len().max(1)).enumerate() {
        let parts = view.row(r);
        row(&if whole { parts } else { run(&parts, &k) }, out);
    }
}

/// Decodes one row, or a run of one.
pub(crate) fn row(parts: &RowParts<'_>, out: &mut [f32]) {
    codec::decode_row_f32(parts, out);
}

/// The parts of a row that hold its elements `k`; `k.start` is a multiple of 256, `k.end` too or the row's end.
/// Grouped planes run on to the row's end.
pub(crate) fn run<'a>(parts: &RowParts<'a>, k: &Range<usize>) -> RowParts<'a> {
    match *parts {
        RowParts::Direct { kind, bytes } => {
            let w = kind.word_bytes();
            RowParts::Direct { kind, bytes: &bytes[k.start * w..k.end * w] }
        }
        RowParts::Grouped { scheme, base, high, scales } => {
            let g = k.start / scheme.group;
            RowParts::Grouped {
                scheme,
                base: &base[g * scheme.base_bytes..],
                high: &high[g * scheme.high_bytes..],
                scales: &scales[2 * g..],
            }
        }
        RowParts::Nvfp4 { codes, scales, divisor } => RowParts::Nvfp4 {
            codes: &codes[k.start / 2..k.end / 2],
            scales: scales.skip_groups(k.start / 16),
            divisor,
        },
        RowParts::RowScaled { scale_kind, codes, scale } => {
            RowParts::RowScaled { scale_kind, codes: &codes[k.clone()], scale }
        }
        RowParts::Blocks { kind, blocks } => {
            let at = |k: usize| k / kind.values() * kind.bytes();
            RowParts::Blocks { kind, blocks: &blocks[at(k.start)..at(k.end)] }
        }
    }
}
