//! Decoding of panels by the portable codecs.

use std::ops::Range;

use ninfer_formats::float::bf16;
use ninfer_formats::{DirectKind, RowParts, TensorView, codec};

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
    let mut rest = out;
    for r in 0..view.rows() {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(k.len());
        rest = tail;
        let parts = view.row(r);
        row(&if whole { parts } else { run(&parts, &k) }, head);
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

/// Direct words to binary32, bit for bit; integers are copied as words.
#[inline(always)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "for kernels that a target may lack")
)]
pub(crate) fn direct(kind: DirectKind, bytes: &[u8], out: &mut [f32]) {
    match kind {
        DirectKind::Bf16 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::to_f32(u16::from_le_bytes(*w));
            }
        }
        DirectKind::Fp32 | DirectKind::Int32 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_bits(u32::from_le_bytes(*w));
            }
        }
    }
}
