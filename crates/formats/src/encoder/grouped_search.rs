//! `grouped_search`: the scale of each group with the least weighted squared error among a fixed list of candidates
//! (format specification, section 7; encoder specification). Same formats as `grouped_absmax`.
//!
//! For a candidate scale `s` the codes are `clamp(rint_even(f32(w * f32(1/s))), qmin, qmax)` and the error is
//! `E = sum imp * (w - s*q)^2` in binary64 over eight partial sums (see [`combine`]). The `grouped_absmax` result
//! stands unless a candidate's error is strictly smaller; the earlier of equal candidates wins.

use super::grouped_absmax::{amax, code, codes, encode_groups, scale_word};
use super::{Params, RowFault};
use crate::float::f16;
use crate::scheme::GroupedScheme;

/// The 25 multiples of the max-abs and the full-range scale: 0.70, 0.72, ... 1.18, each the nearest binary64.
pub const MULTIPLES: [f64; 25] = [
    0.70, 0.72, 0.74, 0.76, 0.78, 0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94, 0.96, 0.98, 1.00, 1.02,
    1.04, 1.06, 1.08, 1.10, 1.12, 1.14, 1.16, 1.18,
];

/// Upper bound of the candidates that do not depend on the search itself ([`first_candidates`]).
pub const MAX_FIRST: usize = 2 * MULTIPLES.len() + 4 + 4 + 7;

/// Sums the eight partial sums: `((0+4)+(2+6)) + ((1+5)+(3+7))`.
///
/// Partial sum `l` takes the columns `k = l mod 8` of the group in increasing order.
#[must_use]
#[inline]
pub fn combine(p: &[f64; 8]) -> f64 {
    ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
}

/// Rounds a candidate: binary64 to binary32 to binary16; what rounds to zero becomes the smallest subnormal of its
/// sign. `None` for zero, NaN and what overflows.
#[must_use]
pub fn round_candidate(c: f64) -> Option<u16> {
    if c == 0.0 || c.is_nan() {
        return None;
    }
    let word = f16::from_f32(c as f32);
    match word & 0x7fff {
        0 => Some(u16::from(c < 0.0) << 15 | 1),
        0x7c00.. => None,
        _ => Some(word),
    }
}

/// The binary16 word `steps` magnitude steps away, same sign; `None` outside the finite non-zero range.
#[must_use]
pub fn neighbour(word: u16, steps: i32) -> Option<u16> {
    let magnitude = i32::from(word & 0x7fff) + steps;
    (1..0x7c00).contains(&magnitude).then_some(word & 0x8000 | magnitude as u16)
}

/// Value of a binary16 word in binary64, exactly.
#[must_use]
#[inline]
pub fn value(word: u16) -> f64 {
    f64::from(f16::to_f32(word))
}

/// Scales in the order in which they compete, without those the parameters exclude.
#[derive(Clone, Debug)]
pub struct Candidates {
    words: [u16; MAX_FIRST],
    len: usize,
    negative: bool,
}

impl Candidates {
    /// An empty list; `negative` admits negative scales.
    #[must_use]
    pub fn new(negative: bool) -> Self {
        Self { words: [0; MAX_FIRST], len: 0, negative }
    }

    /// The scale words, in order.
    #[must_use]
    pub fn words(&self) -> &[u16] {
        &self.words[..self.len]
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn push(&mut self, word: Option<u16>) {
        if let Some(word) = word
            && (self.negative || word & 0x8000 == 0)
        {
            self.words[self.len] = word;
            self.len += 1;
        }
    }

    /// A least-squares scale with the given neighbours; nothing at all if it has no finite non-zero word.
    fn push_fit(&mut self, fit: f64, halves: bool, steps: &[i32]) {
        let Some(word) = round_candidate(fit) else { return };
        self.push(Some(word));
        if halves {
            self.push(round_candidate(value(word) * 0.5));
            self.push(round_candidate(value(word) * 2.0));
        }
        for &d in steps {
            self.push(neighbour(word, d));
        }
    }
}

/// Candidates 1 to 5 of the specification, in order, for a group that is not all zero.
///
/// `amax` is the group's largest magnitude, `extreme` the first value that has it, `start` the max-abs scale word,
/// `fit` the least-squares scale of the max-abs codes.
pub fn first_candidates(
    s: &GroupedScheme,
    amax: f32,
    extreme: f32,
    start: u16,
    fit: f64,
    out: &mut Candidates,
) {
    out.clear();
    for (numerator, denominator) in [(amax, s.code_max), (extreme, s.code_min)] {
        let ratio = f64::from(numerator) / f64::from(denominator);
        for r in MULTIPLES {
            out.push(round_candidate(ratio * r));
        }
    }
    for factor in [0.25, 0.5, 2.0, 4.0] {
        out.push(round_candidate(value(start) * factor));
    }
    for d in [-2, -1, 1, 2] {
        out.push(neighbour(start, d));
    }
    out.push_fit(fit, true, &[-2, -1, 1, 2]);
}

/// Candidates 6: the least-squares scale of the best codes so far, with its two neighbours.
pub fn last_candidates(fit: f64, out: &mut Candidates) {
    out.clear();
    out.push_fit(fit, false, &[-1, 1]);
}

/// One group of the search: values and importance of its logical columns.
pub(super) struct Group<'a> {
    pub(super) s: &'a GroupedScheme,
    pub(super) w: &'a [f32],
    pub(super) importance: Option<&'a [f32]>,
}

impl Group<'_> {
    fn importance(&self, i: usize) -> f64 {
        self.importance.map_or(1.0, |imp| f64::from(imp[i]))
    }

    /// Error of a scale with its own codes, or `None` as soon as it cannot be below `best`: partial sums only grow,
    /// and rounding keeps their order.
    pub(super) fn error_below(&self, word: u16, best: f64) -> Option<f64> {
        let scale = f16::to_f32(word);
        let inv = 1.0 / scale;
        let scale = f64::from(scale);
        let mut sums = [0.0f64; 8];
        for (c, chunk) in self.w.chunks(16).enumerate() {
            for (i, &w) in chunk.iter().enumerate() {
                let t = f64::from(w) - scale * f64::from(code(self.s, w, inv));
                sums[i % 8] += self.importance(16 * c + i) * t * t;
            }
            if combine(&sums) >= best {
                return None;
            }
        }
        Some(combine(&sums))
    }

    /// Error of a scale with its own codes.
    pub(super) fn error(&self, word: u16) -> f64 {
        self.error_below(word, f64::INFINITY).unwrap_or(f64::INFINITY)
    }

    /// Least-squares scale of the codes: `sum(imp*w*q) / sum(imp*q*q)`, 0 if the denominator is 0.
    pub(super) fn fit(&self, q: &[i8]) -> f64 {
        let (mut num, mut den) = ([0.0f64; 8], [0.0f64; 8]);
        for (i, (&w, &q)) in self.w.iter().zip(q).enumerate() {
            let (imp, q) = (self.importance(i), f64::from(q));
            num[i % 8] += imp * f64::from(w) * q;
            den[i % 8] += imp * q * q;
        }
        let den = combine(&den);
        if den == 0.0 { 0.0 } else { combine(&num) / den }
    }

    fn search(&self, start: u16, largest: f32, negative: bool, q: &mut [i8]) -> u16 {
        codes(self.s, start, self.w, q);
        let extreme = self.w.iter().copied().find(|w| w.abs() == largest).unwrap_or(largest);
        let mut list = Candidates::new(negative);
        first_candidates(self.s, largest, extreme, start, self.fit(q), &mut list);
        let mut best = (start, self.error(start));
        self.compete(&list, &mut best);
        codes(self.s, best.0, self.w, q);
        last_candidates(self.fit(q), &mut list);
        let before = best.0;
        self.compete(&list, &mut best);
        if best.0 != before {
            codes(self.s, best.0, self.w, q);
        }
        best.0
    }

    fn compete(&self, list: &Candidates, best: &mut (u16, f64)) {
        for &word in list.words() {
            if let Some(e) = self.error_below(word, best.1)
                && e < best.1
            {
                *best = (word, e);
            }
        }
    }
}

/// Searches one group that is not all zero: `w` are its logical values, `importance` the values of its columns,
/// `start` its max-abs scale word, `largest` its largest magnitude. Returns the scale word and stores the codes.
///
/// # Panics
/// If `q` or `importance` have another length than `w`.
#[must_use]
pub fn search_group(
    s: &GroupedScheme,
    w: &[f32],
    importance: Option<&[f32]>,
    negative_scales: bool,
    start: u16,
    largest: f32,
    q: &mut [i8],
) -> u16 {
    assert!(q.len() == w.len() && importance.is_none_or(|i| i.len() == w.len()));
    Group { s, w, importance }.search(start, largest, negative_scales, q)
}

/// Encodes one row into its bytes of the three planes.
///
/// # Errors
/// The first group or column that breaks a rule of `grouped_absmax`.
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
    encode_groups(s, x, base, high, scales, |g, values, lanes| {
        let first = g * s.group;
        let largest = amax(values, first)?;
        let start = scale_word(s, largest, g)?;
        if start == 0 {
            return Ok(0);
        }
        let importance = params.importance.map(|i| &i[first..first + values.len()]);
        Ok(search_group(s, values, importance, params.negative_scales, start, largest, lanes))
    })
}
