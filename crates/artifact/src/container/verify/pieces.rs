//! Cutting tensors into pieces of bounded size that can be checked on their own, in any order.

use std::ops::Range;

use ninfer_formats::layout::{BlockScale, RowSplit};
use ninfer_formats::{FormatId, RowScale, Scheme, Violation};

use super::super::model::TensorSpec;

/// Payload bytes of one piece, about. A piece is at least one row (128 rows of `nvfp4`), however long.
const PIECE_BYTES: u64 = 2 << 20;

/// The rule that bytes between planes break; the same text as the format registry's own check.
pub(super) const GAP_RULE: &str = "bytes between planes must be zero";

/// A part of a tensor's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes of a payload without planes, whole words or blocks.
    Flat(Range<u64>),
    /// Rows of a payload with planes.
    Rows(Range<u64>),
    /// Bytes between planes.
    Gap(Range<u64>),
}

/// How a layout cuts rows out: byte ranges of the parent and where each goes in a payload of these rows alone.
pub(super) struct Slice {
    pub(super) bytes: u64,
    pub(super) copies: Vec<(Range<u64>, u64)>,
    /// First row's divisor, and whether the piece begins that divisor's rows.
    pub(super) divisor: u64,
    pub(super) begins_divisor: bool,
}

/// The pieces of a tensor, in the order in which their findings are reported. Empty for `int32`, which has no word
/// to object to. The sizes were checked by [`Object::tensor`](super::super::Object::tensor).
pub(super) fn pieces(spec: &TensorSpec<'_>, bytes: u64) -> Vec<Piece> {
    let (scheme, unit) = (spec.format.scheme(), unit_bytes(spec.format));
    match scheme {
        Scheme::Direct(ninfer_formats::DirectKind::Int32) => Vec::new(),
        Scheme::Direct(_) | Scheme::Gguf(_) => {
            let step = (PIECE_BYTES / unit).max(1) * unit;
            cut(0..bytes, step).map(Piece::Flat).collect()
        }
        _ => {
            let &[n, k] = spec.shape else { return Vec::new() };
            let row_bytes = (bytes / n).max(1);
            let rows = (PIECE_BYTES / row_bytes).max(1);
            let mut list: Vec<Piece> = match scheme {
                // Whole tiles, and never two divisors in one piece.
                Scheme::Nvfp4 => {
                    let rows = rows.next_multiple_of(128);
                    let section = n / spec.divisors;
                    let sections = (0..spec.divisors).map(|d| d * section..(d + 1) * section);
                    sections.flat_map(|s| cut(s, rows)).map(Piece::Rows).collect()
                }
                _ => cut(0..n, rows).map(Piece::Rows).collect(),
            };
            list.extend(gaps(spec, n, k).into_iter().filter(|g| !g.is_empty()).map(Piece::Gap));
            list
        }
    }
}

/// Bytes of one word or block of a payload without planes.
fn unit_bytes(format: FormatId) -> u64 {
    match format.scheme() {
        Scheme::Direct(kind) => kind.word_bytes() as u64,
        Scheme::Gguf(kind) => kind.bytes() as u64,
        _ => 1,
    }
}

fn cut(range: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let count = (range.end - range.start).div_ceil(step);
    (0..count).map(move |i| {
        let begin = range.start + i * step;
        begin..range.end.min(begin.saturating_add(step))
    })
}

/// Bytes between the planes; empty where there are none.
fn gaps(spec: &TensorSpec<'_>, n: u64, k: u64) -> [Range<u64>; 2] {
    match spec.format.scheme() {
        Scheme::Grouped(s) => RowSplit::plan(&s, n, k)
            .map_or([0..0, 0..0], |p| [n * p.base_row..p.high_at, p.high_at + n * p.high_row..p.scale_at]),
        Scheme::Nvfp4 => {
            BlockScale::plan(n, k, spec.divisors).map_or([0..0, 0..0], |p| [n * k / 2..p.scale_at, 0..0])
        }
        Scheme::RowScaled(RowScale::Bf16) => [n * k..(n * k).next_multiple_of(256), 0..0],
        _ => [0..0, 0..0],
    }
}

/// How to cut these rows of a tensor with planes out; `None` for the other layouts.
pub(super) fn slice(spec: &TensorSpec<'_>, rows: &Range<u64>) -> Option<Slice> {
    let &[n, k] = spec.shape else { return None };
    let (begin, m) = (rows.start, rows.end - rows.start);
    let whole = |bytes, copies| Slice { bytes, copies, divisor: 0, begins_divisor: begin == 0 };
    match spec.format.scheme() {
        Scheme::Grouped(s) => {
            let (from, to) = (RowSplit::plan(&s, n, k)?, RowSplit::plan(&s, m, k)?);
            let plane = |at: u64, row: u64| at + begin * row..at + rows.end * row;
            Some(whole(
                to.bytes,
                vec![
                    (plane(0, from.base_row), 0),
                    (plane(from.high_at, from.high_row), to.high_at),
                    (plane(from.scale_at, from.scale_row), to.scale_at),
                ],
            ))
        }
        Scheme::Nvfp4 => {
            let (from, to) = (BlockScale::plan(n, k, spec.divisors)?, BlockScale::plan(m, k, 1)?);
            let section = n / spec.divisors;
            let divisor = begin / section;
            let word = from.divisor_at + 4 * divisor;
            Some(Slice {
                bytes: to.bytes,
                copies: vec![
                    (begin * k / 2..rows.end * k / 2, 0),
                    // Tiles of 128 rows follow each other, so whole tiles are one run.
                    (from.scale_at + begin * k / 16..from.scale_at + rows.end * k / 16, to.scale_at),
                    (word..word + 4, to.divisor_at),
                ],
                divisor,
                begins_divisor: begin % section == 0,
            })
        }
        Scheme::RowScaled(RowScale::Bf16) => {
            let (from, to) = ((n * k).next_multiple_of(256), (m * k).next_multiple_of(256));
            let scales = from + 2 * begin..from + 2 * rows.end;
            Some(whole(to + 2 * m, vec![(begin * k..rows.end * k, 0), (scales, to)]))
        }
        Scheme::RowScaled(RowScale::Fp16) => {
            Some(whole(m * (k + 2), vec![(begin * (k + 2)..rows.end * (k + 2), 0)]))
        }
        Scheme::Direct(_) | Scheme::Gguf(_) => None,
    }
}

/// A finding in a payload of rows `rows` alone, as a finding in the whole tensor; `None` for one that another piece
/// reports as well.
pub(super) fn moved(mut found: Violation, slice: &Slice, rows: &Range<u64>) -> Option<Violation> {
    use ninfer_formats::Place;
    match &mut found.place {
        Place::Column { row, .. } | Place::Group { row, .. } | Place::Row { row } => *row += rows.start,
        Place::Divisor { index } => {
            if !slice.begins_divisor {
                return None;
            }
            *index = slice.divisor;
        }
        // Bytes between planes are zero in the copy; they are checked as pieces of their own.
        Place::Byte { .. } => return None,
    }
    Some(found)
}
