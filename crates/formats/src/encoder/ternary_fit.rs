//! `ternary_fit`: the codes -1, 0, 1 and the scale of least weighted squared error for each group of 128 (encoder
//! notes in `docs/encoders.md`). Format `t2_g128_fp16`.
//!
//! For a scale `s` the best codes are non-zero where `|w| > s/2`, so the best codes of all scales are the signs of the
//! m values of largest magnitude, for some m; their best scale is `sum imp*|w| / sum imp` over those m. The m with the
//! largest reduction `(sum imp*|w|)^2 / sum imp` is taken, its scale rounded to binary16 and compared with its
//! neighbours and with the least-squares scale of the codes that result.

use super::grouped_absmax::{amax, codes, encode_groups};
use super::grouped_search::{Group, neighbour, round_candidate};
use super::lanes::{LANES, Lanes, Portable};
use super::{Params, RowFault, RowPlace};
use crate::scheme::GroupedScheme;

/// Values of a group.
const GROUP: usize = 128;

/// Exchanges rows `a` and `b` of each lane whose magnitude, or at equal magnitude the importance, is larger in `b`.
#[inline(always)]
fn exchange<L: Lanes, const WEIGHTED: bool>(
    w: &mut [[f32; LANES]; GROUP],
    imp: &mut [[f32; LANES]; GROUP],
    a: usize,
    b: usize,
) {
    let (x, y) = (L::load(&w[a]), L::load(&w[b]));
    if !WEIGHTED {
        x.max(y).store(&mut w[a]);
        x.min(y).store(&mut w[b]);
        return;
    }
    let (i, j) = (L::load(&imp[a]), L::load(&imp[b]));
    // 1 where the pair is to be exchanged.
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let equal = L::select_below(i, j, one, zero);
    let swap = L::select_below(x, y, one, L::select_below(y, x, zero, equal));
    L::select_below(zero, swap, y, x).store(&mut w[a]);
    L::select_below(zero, swap, x, y).store(&mut w[b]);
    L::select_below(zero, swap, j, i).store(&mut imp[a]);
    L::select_below(zero, swap, i, j).store(&mut imp[b]);
}

/// Sorts the rows of each lane by decreasing magnitude, equal ones by decreasing importance: Batcher's merge exchange
/// sort (K. E. Batcher, Sorting networks and their applications, 1968).
#[inline(always)]
fn sort<L: Lanes, const WEIGHTED: bool>(w: &mut [[f32; LANES]; GROUP], imp: &mut [[f32; LANES]; GROUP]) {
    let mut p = 1;
    while p < GROUP {
        let mut k = p;
        while k > 0 {
            let mut j = k % p;
            while j + k < GROUP {
                for a in j..(j + k).min(GROUP - k) {
                    if a / (2 * p) == (a + k) / (2 * p) {
                        exchange::<L, WEIGHTED>(w, imp, a, a + k);
                    }
                }
                j += 2 * k;
            }
            k /= 2;
        }
        p *= 2;
    }
}

/// Real scales of the best codes of up to sixteen groups. Values are taken by decreasing magnitude, equal ones by
/// decreasing importance; sums are binary64 in this order; of equal reductions the one with fewer values is taken.
/// Columns without importance take no part; if none of a group has any, all have one.
#[inline(always)]
fn best_scales<L: Lanes>(x: &[f32], importance: Option<&[f32]>) -> [f64; LANES] {
    // Columns past the last one are zeros: they come last and add nothing that could be better.
    let (mut w, mut imp) = ([[0.0f32; LANES]; GROUP], [[1.0f32; LANES]; GROUP]);
    for (l, x) in x.chunks(GROUP).enumerate() {
        for (row, v) in w.iter_mut().zip(x) {
            row[l] = v.abs();
        }
    }
    if let Some(importance) = importance {
        for (l, importance) in importance.chunks(GROUP).enumerate() {
            if importance.iter().any(|&v| v != 0.0) {
                for (row, v) in imp.iter_mut().zip(importance) {
                    row[l] = *v;
                }
            }
        }
        sort::<L, true>(&mut w, &mut imp);
    } else {
        sort::<L, false>(&mut w, &mut imp);
    }
    let (mut num, mut den) = ([0.0f64; LANES], [0.0f64; LANES]);
    let (mut top, mut best) = ([0.0f64; LANES], [(0.0f64, 1.0f64); LANES]);
    for (w, imp) in w.iter().zip(&imp) {
        for l in 0..LANES {
            num[l] += f64::from(imp[l]) * f64::from(w[l]);
            den[l] += f64::from(imp[l]);
            let reduction = num[l] * num[l] / den[l];
            // Not a number where nothing had importance so far.
            if reduction > top[l] {
                top[l] = reduction;
                best[l] = (num[l], den[l]);
            }
        }
    }
    best.map(|(num, den)| num / den)
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
    encode_row_on::<Portable>(s, params, x, base, high, scales)
}

/// [`encode_row`] on the lanes `L`.
///
/// # Errors
/// As [`encode_row`].
///
/// # Panics
/// As [`encode_row`].
#[inline(always)]
pub fn encode_row_on<L: Lanes>(
    s: &GroupedScheme,
    params: &Params<'_>,
    x: &[f32],
    base: &mut [u8],
    high: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RowFault> {
    assert_eq!(s.group, GROUP);
    // Not inside the closure below: a closure is not compiled for the instruction set of the function around it.
    let whole = LANES * GROUP;
    for (b, part) in x.chunks(whole).enumerate() {
        let importance = params.importance.map(|i| &i[b * whole..b * whole + part.len()]);
        let reals = best_scales::<L>(part, importance);
        // The last groups go with what pads the row.
        let last = (b + 1) * whole >= x.len();
        let span = |plane: &[u8], bytes: usize| {
            let from = b * LANES * bytes;
            from..if last { plane.len() } else { from + LANES * bytes }
        };
        let (base_at, high_at, scales_at) =
            (span(base, s.base_bytes), span(high, s.high_bytes), span(scales, 2));
        let planes = (&mut base[base_at], &mut high[high_at], &mut scales[scales_at]);
        groups(s, importance, b * LANES, part, &reals, planes)?;
    }
    Ok(())
}

/// Codes and scales of up to sixteen groups, of which `first_group` is the first, by their best real scales.
fn groups(
    s: &GroupedScheme,
    importance: Option<&[f32]>,
    first_group: usize,
    x: &[f32],
    reals: &[f64; LANES],
    (base, high, scales): (&mut [u8], &mut [u8], &mut [u8]),
) -> Result<(), RowFault> {
    encode_groups(s, x, base, high, scales, |g, w, q| {
        let first = g * GROUP;
        if amax(w, (first_group + g) * GROUP)? == 0.0 {
            return Ok(0);
        }
        let importance = importance.map(|i| &i[first..first + w.len()]);
        let real = reals[g];
        // Zero only if all values with importance are zero: then any codes do.
        if real == 0.0 {
            return Ok(0);
        }
        let start = round_candidate(real).ok_or_else(|| RowFault {
            place: RowPlace::Group(first_group + g),
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
