//! `ternary_fit`: the codes -1, 0, 1 and the scale of least weighted squared error for each group of 128 (encoder
//! notes in `docs/encoders.md`). Format `t2_g128_fp16`.
//!
//! For a scale `s` the best codes are non-zero where `|w| > s/2`, so the best codes of all scales are the signs of the
//! m values of largest magnitude, for some m; their best scale is `sum imp*|w| / sum imp` over those m. The m with the
//! largest reduction `(sum imp*|w|)^2 / sum imp` is taken, its scale rounded to binary16 and compared with its
//! neighbours and with the least-squares scale of the codes that result.

use super::grouped_absmax::{amax, codes, encode_groups};
use super::grouped_search::{Group, neighbour, round_candidate};
use super::{Params, RowFault, RowPlace};
use crate::scheme::GroupedScheme;

/// Real scale of the best codes. Values are taken by decreasing magnitude, equal ones by increasing column; sums are
/// binary64 in this order; of equal reductions the one with fewer values is taken. Columns without importance take no
/// part; if none has any, all have one.
fn best_scale(w: &[f32], importance: Option<&[f32]>) -> f64 {
    let mut order = [0u8; 128];
    for (i, o) in order.iter_mut().enumerate() {
        *o = i as u8;
    }
    let order = &mut order[..w.len()];
    order.sort_by(|&a, &b| w[b as usize].abs().total_cmp(&w[a as usize].abs()));
    let plain = importance.is_none_or(|imp| imp.iter().all(|&v| v == 0.0));
    let (mut num, mut den, mut best) = (0.0f64, 0.0f64, (0.0f64, 0.0f64));
    for &i in &*order {
        let i = i as usize;
        let imp = match importance {
            Some(imp) if !plain => f64::from(imp[i]),
            _ => 1.0,
        };
        num += imp * f64::from(w[i].abs());
        den += imp;
        if den > 0.0 {
            let reduction = num * num / den;
            if reduction > best.0 {
                best = (reduction, num / den);
            }
        }
    }
    best.1
}

/// Encodes one row into its bytes of the three planes.
///
/// # Errors
/// The first column that is not finite, or the first group whose scale overflows binary16.
///
/// # Panics
/// If the planes do not fit a row of `x.len()` elements or the importance has another length.
pub fn encode_row(
    s: &GroupedScheme,
    params: &Params<'_>,
    x: &[f32],
    base: &mut [u8],
    high: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RowFault> {
    encode_groups(s, x, base, high, scales, |g, w, q| {
        let first = g * s.group;
        if amax(w, first)? == 0.0 {
            return Ok(0);
        }
        let importance = params.importance.map(|i| &i[first..first + w.len()]);
        let real = best_scale(w, importance);
        // Zero only if all values with importance are zero: then any codes do.
        if real == 0.0 {
            return Ok(0);
        }
        let start = round_candidate(real).ok_or_else(|| RowFault {
            place: RowPlace::Group(g),
            rule: format!("the scale {real:e} overflows binary16 (largest 65504)"),
        })?;
        let group = Group { s, w, importance };
        let mut best = (start, group.error(start));
        let compete = |word: Option<u16>, best: &mut (u16, f64)| {
            if let Some(word) = word
                && let Some(e) = group.error_below(word, best.1)
                && e < best.1
            {
                *best = (word, e);
            }
        };
        for d in [-1, 1] {
            compete(neighbour(start, d), &mut best);
        }
        codes(s, best.0, w, q);
        compete(round_candidate(group.fit(q)), &mut best);
        codes(s, best.0, w, q);
        Ok(best.0)
    })
}
