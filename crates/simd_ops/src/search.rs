//! `grouped_search` with a cheap first look: the plan that the instruction sets share.
//!
//! The specification compares some sixty scales per group by an error in binary64 over a fixed order of sums. Most of
//! them are far from the best, so their errors are first estimated in binary32 with a rigorous bound, and only those
//! that could still win are computed as the specification says. The words are the same as without the estimate.
//!
//! # The estimate
//! For a scale `s` with `inv = f32(1/s)` let `u = f32(|w| * inv)` and `q` its code, exactly those of the method (the
//! codes of `w` and `-w` mirror each other when the two ends of the interval are swapped with the sign). With
//! `d = u - q`, weights `imp` and `N = sqrt(sum imp * d^2)`:
//!
//! * `u` differs from `|w|/s` by at most `2^-22.99 * |w|/s` (two roundings), so `N` differs from the true norm of
//!   `(|w|/s - q)` by at most `2^-22.99 * W / s`, where `W = sqrt(sum imp * w^2)` (triangle inequality);
//! * `d` is exact inside the interval and rounds once outside; products and the sum of at most 64 non-negative terms
//!   in binary32 cost a factor within `1 +- 75 * 2^-24`, its root less than `1 +- 2^-18`;
//! * with importance values that are zero or within `2^-60 ..= 2^60` nothing overflows, and where `N >= 2^-40` what
//!   underflows is far below the other margins.
//!
//! Hence `|sqrt(E) - s*N| <= s*N * 2^-17 + 2^-22 * W` for the error `E` of the specification, whose own rounding is
//! below `2^-47`, relatively; the code uses twice these margins. A scale whose lower bound exceeds the least upper
//! bound is not the best and not equal to the best: with the margins `R` and `M` that is `s*N > limit(least s*N)`,
//! `limit(n) = (n * (1+R) + 2M) * (1+2R)`. For other importance values, or if some `N` is smaller, every scale's error
//! is computed in binary64.

use ninfer_formats::GroupedScheme;
use ninfer_formats::encoder::grouped_search::{MULTIPLES, neighbour, value};

/// Lanes of the estimate: 64 or fewer positive scales, then up to 32 negative ones.
pub(crate) const LANES: usize = 80;

/// [`MULTIPLES`] and seven that are not used.
pub(crate) const PADDED: [f64; 32] = {
    let mut m = [1.0; 32];
    let mut i = 0;
    while i < MULTIPLES.len() {
        m[i] = MULTIPLES[i];
        i += 1;
    }
    m
};

/// Multiples in use.
const MULTIPLE_COUNT: usize = MULTIPLES.len();

/// Place in the specification's order of the candidates, 0 for the max-abs scale.
const FIRST_MULTIPLE: u8 = 1;
const FIRST_EXTREME: u8 = 26;
const FIRST_POWER: u8 = 51;
const FIRST_STEP: u8 = 55;
const FIRST_FIT: u8 = 59;

/// Lanes 0 to 24 hold the multiples of the max-abs scale (that of 1.00 is the max-abs scale itself), 25 to 31 the
/// least-squares scale and what follows from it. Then, if the full-range scales are positive, they come at 32 and the
/// powers and steps of the max-abs scale, all but the last step, at 57; otherwise the latter come at 32 and the
/// full-range scales, if they compete, at 48.
const POSITIVE: [u8; LANES] = order(57, 32);
const NEGATIVE: [u8; LANES] = order(32, 48);

const fn order(powers: usize, extremes: usize) -> [u8; LANES] {
    let mut o = [NONE; LANES];
    let mut i = 0;
    while i < MULTIPLE_COUNT {
        o[i] = FIRST_MULTIPLE + i as u8;
        o[extremes + i] = FIRST_EXTREME + i as u8;
        i += 1;
    }
    o[15] = 0;
    i = 0;
    while i < 7 {
        o[25 + i] = FIRST_FIT + i as u8;
        o[powers + i] = FIRST_POWER + i as u8;
        i += 1;
    }
    if powers + 7 < 57 {
        o[powers + 7] = FIRST_STEP + 3;
    }
    o
}

/// Scales to estimate. All lanes of one run of 16 have the same sign.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Scale words; lanes that hold no candidate repeat one of the same sign.
    pub words: [u16; LANES],
    /// Lanes in use, a multiple of 16.
    pub len: usize,
    /// First lane with negative scales; `len` if there are none.
    pub negative_at: usize,
    /// Place in the order of each lane's candidate.
    order: &'static [u8; LANES],
    /// Lanes that hold a candidate, bit by bit.
    candidates: u128,
}

const NONE: u8 = u8::MAX;

/// Smallest `N` that the estimate can vouch for: 2^-40.
pub(crate) const LEAST_NORM: f32 = f32::from_bits((127 - 40) << 23);

impl Lanes {
    #[inline(always)]
    fn put(&mut self, lane: usize, word: Option<u16>) {
        if let Some(word) = word {
            self.words[lane] = word;
            self.candidates |= 1 << lane;
        }
    }

    /// Puts rounded multiples as the specification's `round` leaves them: zero becomes the smallest subnormal of the
    /// given sign, what overflowed is left out.
    #[inline(always)]
    fn put_multiples(&mut self, lane: usize, words: &[u16; 32], sign: u16) {
        let plain = words[..MULTIPLE_COUNT].iter().fold(true, |plain, &w| {
            let magnitude = w & 0x7fff;
            plain & (magnitude != 0) & (magnitude < 0x7c00)
        });
        if plain {
            self.words[lane..lane + MULTIPLE_COUNT].copy_from_slice(&words[..MULTIPLE_COUNT]);
            self.candidates |= ((1 << MULTIPLE_COUNT) - 1) << lane;
            return;
        }
        for (i, &word) in words[..MULTIPLE_COUNT].iter().enumerate() {
            match word & 0x7fff {
                0 => self.put(lane + i, Some(sign | 1)),
                0x7c00.. => {}
                _ => self.put(lane + i, Some(word)),
            }
        }
    }
}

/// What the plan needs of an instruction set, for one group of `G` values.
pub(crate) struct Group<R, N, E, C, F> {
    /// binary64 to binary32 to binary16, each nearest-even: `ratio * PADDED`.
    pub round: R,
    /// The lanes in use whose `|s| * N` is within [`limit_of`] the least one, bit by bit; `None` if some `N` is below
    /// [`LEAST_NORM`].
    pub near: N,
    /// The specification's error of a scale.
    pub error: E,
    /// The codes of a scale.
    pub codes: C,
    /// The specification's least-squares scale of codes.
    pub fit: F,
}

/// Facts of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Its max-abs scale word, not zero.
    pub start: u16,
    /// Its largest magnitude.
    pub amax: f32,
    /// Whether the first value of largest magnitude is negative.
    pub extreme_negative: bool,
    /// Whether negative scales compete.
    pub negative_scales: bool,
    /// `W`, in binary32 within `1 +- 2^-17`; NaN if the estimate must not be used.
    pub weight: f32,
}

/// Searches one group: returns the scale word and stores the codes.
#[inline(always)]
pub(crate) fn search<const G: usize, R, N, E, C, F>(
    s: &GroupedScheme,
    facts: &Facts,
    ops: &Group<R, N, E, C, F>,
    codes: &mut [i8; G],
) -> u16
where
    R: Fn(f64) -> [u16; 32],
    N: Fn(&Lanes) -> Option<u128>,
    E: Fn(u16) -> f64,
    C: Fn(u16, &mut [i8; G]),
    F: Fn(&[i8; G]) -> f64,
{
    let start = facts.start;
    (ops.codes)(start, codes);
    let fit = (ops.fit)(codes);
    let (lanes, extra) = plan(s, facts, fit, &ops.round);
    let near = if facts.weight.is_nan() { None } else { (ops.near)(&lanes) };
    let (mut best, mut error) = least(&lanes, near.unwrap_or(u128::MAX), extra, &ops.error);
    if best != start {
        (ops.codes)(best, codes);
    }
    let before = best;
    if let Some(last) = round((ops.fit)(codes)) {
        for word in [Some(last), neighbour(last, -1), neighbour(last, 1)].into_iter().flatten() {
            if word == before || (word & 0x8000 != 0 && !facts.negative_scales) {
                continue;
            }
            let known = *error.get_or_insert_with(|| (ops.error)(before));
            let e = (ops.error)(word);
            if e < known {
                (best, error) = (word, Some(e));
            }
        }
    }
    if best != before {
        (ops.codes)(best, codes);
    }
    best
}

/// `round(value(word) * 2^shift)`.
#[inline(always)]
fn shifted(word: u16, shift: i32) -> Option<u16> {
    let exponent = i32::from(word >> 10 & 31);
    let moved = exponent + shift;
    if exponent > 0 && (1..31).contains(&moved) {
        // Normal before and after: only the exponent changes.
        return Some((i32::from(word) + (shift << 10)) as u16);
    }
    round(value(word) * if shift < 0 { 1.0 / f64::from(1 << -shift) } else { f64::from(1 << shift) })
}

/// The specification's `round` of one candidate.
#[inline(always)]
fn round(c: f64) -> Option<u16> {
    ninfer_formats::encoder::grouped_search::round_candidate(c)
}

/// Lays the candidates 1 to 5 out in lanes; the second value is one that found no lane.
#[inline(always)]
fn plan(
    s: &GroupedScheme,
    facts: &Facts,
    fit: f64,
    round_multiples: &impl Fn(f64) -> [u16; 32],
) -> (Lanes, Option<(u16, u8)>) {
    let start = facts.start;
    // With a symmetric interval the full-range scales repeat the max-abs ones, or mirror them with equal errors.
    let symmetric = s.code_min == -s.code_max;
    let extreme = !symmetric && facts.extreme_negative;
    let mut lanes = Lanes {
        words: [start; LANES],
        len: if extreme { 64 } else { 48 },
        negative_at: if extreme { 64 } else { 48 },
        order: if extreme { &POSITIVE } else { &NEGATIVE },
        candidates: 0,
    };
    let amax = f64::from(facts.amax);
    lanes.put_multiples(0, &round_multiples(amax / f64::from(s.code_max)), 0);
    lanes.put(15, Some(start));
    // The fit is positive: max-abs codes have the signs of their values.
    if let Some(fit) = round(fit) {
        lanes.put(25, Some(fit));
        lanes.put(26, shifted(fit, -1));
        lanes.put(27, shifted(fit, 1));
        for (i, d) in [-2, -1, 1, 2].into_iter().enumerate() {
            lanes.put(28 + i, neighbour(fit, d));
        }
    }
    let powers = if extreme { 57 } else { 32 };
    for (i, shift) in [-2, -1, 1, 2].into_iter().enumerate() {
        lanes.put(powers + i, shifted(start, shift));
    }
    for (i, d) in [-2, -1, 1].into_iter().enumerate() {
        lanes.put(powers + 4 + i, neighbour(start, d));
    }
    let last = neighbour(start, 2);
    if extreme {
        lanes.put_multiples(32, &round_multiples(amax / -f64::from(s.code_min)), 0);
        return (lanes, last.map(|word| (word, FIRST_STEP + 3)));
    }
    lanes.put(powers + 7, last);
    if !symmetric && facts.negative_scales {
        let words = round_multiples(amax / f64::from(s.code_min));
        // The smallest multiple overflows last; without it there are none.
        if words[0] & 0x7fff < 0x7c00 {
            lanes.len = 80;
            lanes.words[48..].fill(words[0].max(0x8001));
            lanes.put_multiples(48, &words, 0x8000);
        }
    }
    (lanes, None)
}

/// Largest `s * N` that is not certainly beaten when `least` is the least and `weight` is `W`.
#[inline(always)]
pub(crate) fn limit_of(least: f32, weight: f32) -> f32 {
    const RELATIVE: f32 = 1.0 / 65536.0;
    // W itself is rounded and may have lost terms that underflow.
    let margin = weight * (1.0 / 2_097_152.0) + 1e-24;
    (least * (1.0 + RELATIVE) + 2.0 * margin) * (1.0 + 2.0 * RELATIVE)
}

/// The first of least error among the marked lanes and `extra`; the error is `None` if there was no choice.
#[inline(always)]
fn least(
    lanes: &Lanes,
    marked: u128,
    extra: Option<(u16, u8)>,
    error: &impl Fn(u16) -> f64,
) -> (u16, Option<f64>) {
    // Distinct words, each with its first place in the order.
    let mut words = [0u16; LANES + 1];
    let mut places = [0u8; LANES + 1];
    let mut count = 0;
    let mut keep = |word: u16, place: u8| match words[..count].iter().position(|&w| w == word) {
        Some(i) => places[i] = places[i].min(place),
        None => {
            (words[count], places[count]) = (word, place);
            count += 1;
        }
    };
    if let Some((word, place)) = extra {
        keep(word, place);
    }
    let mut left = marked & lanes.candidates;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        left &= left - 1;
        keep(lanes.words[lane], lanes.order[lane]);
    }
    if count == 1 {
        return (words[0], None);
    }
    let mut best = (0, f64::INFINITY, NONE);
    for (&word, &place) in words[..count].iter().zip(&places) {
        let e = error(word);
        if e < best.1 || (e == best.1 && place < best.2) {
            best = (word, e, place);
        }
    }
    (best.0, Some(best.1))
}

/// Whether the estimate may be used with these importance values.
#[inline(always)]
pub(crate) fn is_tame(importance: &[f32]) -> bool {
    const LOW: f32 = f32::from_bits((127 - 60) << 23);
    const HIGH: f32 = f32::from_bits((127 + 60) << 23);
    importance.iter().fold(true, |tame, &v| tame & ((v == 0.0) | ((LOW..=HIGH).contains(&v))))
}

/// The clamping limit of `|w|` under scales of the given sign.
#[inline(always)]
pub(crate) fn limit(s: &GroupedScheme, w: f32, negative_scale: bool) -> f32 {
    if w.is_sign_negative() == negative_scale { f32::from(s.code_max) } else { -f32::from(s.code_min) }
}

/// Columns that the vector encoders handle together: two groups of 32, one of 64.
pub(crate) const UNIT: usize = 64;

/// The last columns of a row, zero-extended to whole units.
pub(crate) struct Tail {
    whole: usize,
    part: [f32; UNIT],
    zero: [f32; UNIT],
}

impl Tail {
    #[inline(always)]
    pub(crate) fn new(x: &[f32]) -> Self {
        let (whole, rest) = x.as_chunks::<UNIT>();
        let mut part = [0.0; UNIT];
        part[..rest.len()].copy_from_slice(rest);
        Self { whole: whole.len(), part, zero: [0.0; UNIT] }
    }

    /// Unit `u` of the row `x` that this tail was made of.
    #[inline(always)]
    pub(crate) fn unit<'a>(&'a self, x: &'a [f32], u: usize) -> &'a [f32; UNIT] {
        match x.as_chunks::<UNIT>().0.get(u) {
            Some(unit) => unit,
            None if u == self.whole => &self.part,
            None => &self.zero,
        }
    }
}
