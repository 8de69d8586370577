//! Where the rows of a payload lie: its planes, and the bytes between them.

use ninfer_formats::layout::{BlockScale, RowSplit};
use ninfer_formats::{FormatId, RowScale, Scheme};

/// A run of rows of a fixed number of bytes within a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plane {
    /// Offset in the payload.
    pub(super) at: u64,
    /// Bytes of one row. The scale plane of `nvfp4` has rows only in whole tiles of 128.
    pub(super) row: u64,
}

/// The planes of a payload of `n` rows of `k` elements, in order, and the offset at which the divisors of `nvfp4`
/// begin (the end of the payload for other formats). `None` if the format cannot have such rows.
pub(super) fn planes(format: FormatId, n: u64, k: u64) -> Option<(Vec<Plane>, u64)> {
    let plane = |at, row| Plane { at, row };
    let (planes, end) = match format.scheme() {
        Scheme::Grouped(s) => {
            let p = RowSplit::plan(&s, n, k)?;
            let mut planes = vec![plane(0, p.base_row)];
            if p.high_row > 0 {
                planes.push(plane(p.high_at, p.high_row));
            }
            planes.push(plane(p.scale_at, p.scale_row));
            (planes, p.bytes)
        }
        Scheme::Nvfp4 => {
            let p = BlockScale::plan(n, k, 1)?;
            (vec![plane(0, k / 2), plane(p.scale_at, k / 16)], p.divisor_at)
        }
        Scheme::RowScaled(RowScale::Bf16) => {
            let at = n.checked_mul(k)?.checked_next_multiple_of(256)?;
            (vec![plane(0, k), plane(at, 2)], at.checked_add(n.checked_mul(2)?)?)
        }
        Scheme::RowScaled(RowScale::Fp16) => one(n, k.checked_add(2)?)?,
        Scheme::Gguf(kind) => one(n, (k / kind.values() as u64).checked_mul(kind.bytes() as u64)?)?,
        Scheme::Direct(kind) => one(n, k.checked_mul(kind.word_bytes() as u64)?)?,
    };
    Some((planes, end))
}

fn one(n: u64, row: u64) -> Option<(Vec<Plane>, u64)> {
    Some((vec![Plane { at: 0, row }], n.checked_mul(row)?))
}

/// The bytes between planes, which stay zero: (offset, length).
pub(super) fn gaps(planes: &[Plane], n: u64) -> Vec<(u64, u64)> {
    let ends = planes.iter().map(|p| p.at + n * p.row);
    ends.zip(planes.iter().skip(1)).map(|(end, next)| (end, next.at - end)).filter(|g| g.1 > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ninfer_formats::encoded_size;

    #[test]
    fn planes_gaps_and_divisors_are_the_payload() {
        for format in FormatId::all() {
            for (n, k) in [(1, 1), (3, 130), (128, 64), (256, 256), (7, 512), (5, 32)] {
                let Ok(bytes) = encoded_size(format, &[n, k], 1) else { continue };
                let (planes, end) = planes(format, n, k).unwrap();
                let gaps: u64 = gaps(&planes, n).iter().map(|g| g.1).sum();
                let rows: u64 = planes.iter().map(|p| n * p.row).sum();
                let divisors = if format == FormatId::Nvfp4 { 4 } else { 0 };
                assert_eq!(rows + gaps + divisors, bytes, "{format} {n} {k}");
                assert_eq!(end + divisors, bytes, "{format} {n} {k}");
            }
        }
    }
}
