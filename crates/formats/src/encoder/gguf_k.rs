//! `gguf_search` for `gguf_q4_k` and `gguf_q5_k`: runs of 32 values as `d*sc * q - dmin*m` (encoder notes in
//! `docs/encoders.md`; block bytes: format specification, ggml block types).

use super::gguf_runs::{Runs, SUPER, array, floor, overflow};
use super::lanes::{LANES, Lanes, Portable};
use super::{Params, RowFault};
use crate::codec::gguf::fields;
use crate::scheme::BlockKind;

const RUN: usize = 32;
/// Runs of a block, so lanes of a block; two blocks are searched together.
const PER_BLOCK: usize = SUPER / RUN;
const BLOCKS: usize = LANES / PER_BLOCK;
/// Largest six-bit scale and minimum.
const TOP: f32 = 63.0;

/// Codes that the range of a run's values is taken for at first: the top one and those below it. Requantised values
/// often leave one or two codes unused.
const WHOLE: [f32; 3] = [0.0, 1.0, 2.0];
/// Narrower first ranges: the codes' range over that of the values, and the part of what is left that lies below.
const RANGES: [(f32, f32); 13] = [
    (0.98, 0.5),
    (0.955, 0.5),
    (0.93, 0.5),
    (0.905, 0.5),
    (0.88, 0.5),
    (0.85, 0.5),
    (0.81, 0.5),
    (0.97, 0.0),
    (0.97, 1.0),
    (0.93, 0.0),
    (0.93, 1.0),
    (0.88, 0.0),
    (0.88, 1.0),
];
/// Parts of 256 by which a block's first scale may differ from the largest of its runs over the top number.
const NEAR: [f32; 7] = [0.0, -1.0, 1.0, -2.0, 2.0, -3.0, 3.0];
/// How often codes and line of the best range are fitted to each other.
const FITS: usize = 2;
/// How often the block's scales are refitted.
const ROUNDS: usize = 2;

/// The codes' line of each run: `scale * q + low`, the mean code, the sum of the codes' squares, and the error.
#[derive(Clone, Copy)]
struct Lines<L> {
    scale: L,
    low: L,
    mean: L,
    q2: L,
    error: L,
}

/// `b` where the second of `below` exceeds the first, else `a`.
#[inline(always)]
fn pick<L: Lanes>(below: (L, L), a: L, b: L) -> L {
    L::select_below(below.0, below.1, b, a)
}

#[inline(always)]
fn code<L: Lanes>(u: L, top: L) -> L {
    u.max(L::splat(0.0)).min(top).round()
}

/// What stays the same in all fits of the runs: total importance, the top code, the least error that counts.
#[derive(Clone, Copy)]
struct Given<L> {
    total: L,
    top: L,
    floor: L,
}

/// The least-squares line of the codes of `(w - low) * inv`, through zero where it would be above zero at code 0.
#[inline(always)]
fn fit<L: Lanes>(runs: &Runs<RUN>, given: &Given<L>, low: L, inv: L) -> Lines<L> {
    let &Given { total, top, floor } = given;
    let zero = L::splat(0.0);
    let (mut q1, mut q2, mut r0, mut r1, mut r2) = (zero, zero, zero, zero, zero);
    for (w, imp) in runs.w.iter().zip(&runs.imp) {
        let (w, imp) = (L::load(w), L::load(imp));
        let u = w.sub(low).mul(inv);
        let q = code(u, top);
        let r = u.sub(q);
        let (iq, ir) = (imp.mul(q), imp.mul(r));
        q1 = q1.add(iq);
        q2 = q2.add(iq.mul(q));
        r0 = r0.add(ir);
        r1 = r1.add(ir.mul(q));
        r2 = r2.add(ir.mul(r));
    }
    let one = L::splat(1.0);
    let step = one.div(inv);
    // Residuals r = slope * q + shift.
    let det = q2.mul(total).sub(q1.mul(q1));
    let flat = L::select_below(q2.mul(total).mul(L::splat(1e-6)), det, zero, one);
    let safe = L::select_below(zero, flat, one, det);
    let slope = L::select_below(zero, flat, zero, r1.mul(total).sub(r0.mul(q1)).div(safe));
    let shift = L::select_below(zero, flat, r0.div(total), q2.mul(r0).sub(q1.mul(r1)).div(safe));
    let error = r2.sub(slope.mul(r1)).sub(shift.mul(r0));
    let new_low = low.add(shift.mul(step));
    // Through zero: residuals r + low/step = slope * q.
    let g = low.mul(inv);
    let r1_zero = r1.add(g.mul(q1));
    let some = L::select_below(zero, q2, q2, one);
    let slope_zero = r1_zero.div(some);
    let error_zero = r2.add(g.add(g).mul(r0)).add(g.mul(g).mul(total)).sub(slope_zero.mul(r1_zero));
    let above = (zero, new_low);
    Lines {
        scale: one.add(pick(above, slope, slope_zero)).mul(step),
        low: pick(above, new_low, zero),
        mean: q1.div(total),
        q2,
        error: floor.max(pick(above, error, error_zero).mul(step).mul(step)),
    }
}

#[inline(always)]
fn better<L: Lanes>(best: &mut Lines<L>, other: Lines<L>) {
    let less = (other.error, best.error);
    *best = Lines {
        scale: pick(less, best.scale, other.scale),
        low: pick(less, best.low, other.low),
        mean: pick(less, best.mean, other.mean),
        q2: pick(less, best.q2, other.q2),
        error: pick(less, best.error, other.error),
    };
}

/// A line for each run, without regard to the block's scales.
#[inline(always)]
fn lines<L: Lanes>(runs: &Runs<RUN>, total: L, top: L) -> Lines<L> {
    let zero = L::splat(0.0);
    let (mut low, mut high) = (zero, L::load(&runs.w[0]));
    for w in &runs.w {
        low = L::load(w).min(low);
        high = L::load(w).max(high);
    }
    let range = high.sub(low);
    // Runs of one value (not above zero) are their minimum alone.
    let plain = L::select_below(zero, range, range, L::splat(1.0));
    let mut best = Lines { scale: zero, low: zero, mean: zero, q2: zero, error: L::splat(f32::MAX) };
    let given = Given { total, top, floor: floor(total, plain) };
    for unused in WHOLE {
        let part = top.div(top.sub(L::splat(unused)));
        better(&mut best, fit(runs, &given, low, top.div(plain.mul(part))));
    }
    for (part, below) in RANGES {
        let inv = top.div(plain.mul(L::splat(part)));
        let low = low.add(plain.mul(L::splat((1.0 - part) * below)));
        better(&mut best, fit(runs, &given, low, inv));
    }
    for _ in 0..FITS {
        let usable = L::select_below(zero, best.scale, best.scale, L::splat(1.0));
        let next = fit(runs, &given, best.low, L::splat(1.0).div(usable));
        better(&mut best, next);
    }
    let wide = (zero, range);
    Lines { scale: pick(wide, zero, best.scale.max(zero)), low: pick(wide, low, best.low), ..best }
}

/// Scales and minima of two blocks, and what they give.
#[derive(Clone, Copy)]
struct State<L> {
    /// binary16 words of `d` and `dmin`.
    words: [[u16; 2]; BLOCKS],
    /// Six-bit scales and minima.
    sc: L,
    m: L,
    /// Error of each run.
    error: L,
}

/// `d` and `dmin` in lanes.
#[inline(always)]
fn spread<L: Lanes>(runs: &Runs<RUN>, words: &[[u16; 2]; BLOCKS], i: usize) -> L {
    let mut out = [0.0; LANES];
    for (l, o) in out.iter_mut().enumerate() {
        *o = runs.value(l, words[l / PER_BLOCK][i]);
    }
    L::load(&out)
}

/// Reciprocal, zero for zero.
#[inline(always)]
fn reciprocal<L: Lanes>(v: L) -> L {
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let some = L::select_below(zero, v, v, one);
    L::select_below(zero, v, one.div(some), zero)
}

/// Of a block's largest number over [`TOP`], and scales near it, the one of whose multiples the numbers `own` of its
/// runs, not below zero, are nearest by a sum of squares weighted with `stiff`.
#[inline(always)]
fn near<L: Lanes>(runs: &Runs<RUN>, own: L, stiff: L) -> L {
    let (zero, most) = (L::splat(0.0), L::splat(TOP));
    let each = array(own);
    let mut first = [0.0f32; LANES];
    for (first, own) in first.chunks_mut(PER_BLOCK).zip(each.chunks(PER_BLOCK)) {
        first.fill(own.iter().fold(0.0f32, |m, &v| if v > m { v } else { m }));
    }
    let first = L::load(&first).div(most);
    let (mut found, mut least) = (array(first), [f64::INFINITY; BLOCKS]);
    for step in NEAR {
        let part = first.mul(L::splat(1.0 + step / 256.0));
        let n = own.mul(reciprocal(part)).max(zero).min(most).round();
        let t = part.mul(n).sub(own);
        let (cost, part) = (array(stiff.mul(t).mul(t)), array(part));
        for (b, least) in least.iter_mut().enumerate() {
            let lanes = b * PER_BLOCK..(b + 1) * PER_BLOCK;
            let cost = runs.weighted(lanes.start, PER_BLOCK, |l| f64::from(cost[l]));
            if cost < *least {
                *least = cost;
                found[lanes.clone()].copy_from_slice(&part[lanes]);
            }
        }
    }
    L::load(&found)
}

/// First scales of the scales and of the minima.
#[inline(always)]
fn starts<L: Lanes>(runs: &Runs<RUN>, lines: &Lines<L>, total: L) -> [[f32; LANES]; 2] {
    // The minimum follows the scale: only the codes' spread about their mean holds it.
    let d = near(runs, lines.scale, lines.q2.sub(lines.mean.mul(lines.mean.mul(total))));
    let sc = lines.scale.mul(reciprocal(d)).min(L::splat(TOP)).round();
    let own = d.mul(sc).sub(lines.scale).mul(lines.mean).sub(lines.low);
    [array(d), array(near(runs, own.max(L::splat(0.0)), total))]
}

// Functions, for closures are not compiled for the instruction set of the function around them.

/// The multiple nearest to `v`.
#[inline(always)]
fn number<L: Lanes>(v: L, inv: L) -> L {
    v.mul(inv).max(L::splat(0.0)).min(L::splat(TOP)).round()
}

/// The multiple `step` further.
#[inline(always)]
fn moved<L: Lanes>(n: L, step: f32) -> L {
    n.add(L::splat(step)).max(L::splat(0.0)).min(L::splat(TOP))
}

/// The best six-bit scales and minima near the lines.
#[inline(always)]
fn choose<L: Lanes>(runs: &Runs<RUN>, lines: &Lines<L>, top: L, words: [[u16; 2]; BLOCKS]) -> State<L> {
    let (d, dmin): (L, L) = (spread(runs, &words, 0), spread(runs, &words, 1));
    let (inv_d, inv_dmin) = (reciprocal(d), reciprocal(dmin));
    let (zero, most) = (L::splat(0.0), L::splat(TOP));
    let start = lines.scale.mul(inv_d).min(most).round();
    let mut best = State { words, sc: start, m: zero, error: L::splat(f32::INFINITY) };
    for step in [0.0, -1.0, 1.0, -2.0, 2.0] {
        let sc = start.add(L::splat(step)).max(zero).min(most);
        let scale = d.mul(sc);
        let inv = reciprocal(scale);
        // The line's offset, turned about the mean code.
        let offset = scale.sub(lines.scale).mul(lines.mean).sub(lines.low);
        let middle = number(offset, inv_dmin);
        // Lines of which the lowest code is not used have the same error with all codes one up.
        let up = number(offset.add(scale), inv_dmin);
        let tried = [moved(middle, 0.0), moved(middle, -1.0), moved(middle, 1.0), up];
        for &m in &tried[..if step == 0.0 { 4 } else { 3 }] {
            let offset = dmin.mul(m);
            let mut error = zero;
            for (w, imp) in runs.w.iter().zip(&runs.imp) {
                let (w, imp) = (L::load(w).add(offset), L::load(imp));
                let t = w.sub(scale.mul(code(w.mul(inv), top)));
                error = error.add(imp.mul(t).mul(t));
            }
            let less = (error, best.error);
            best = State {
                sc: pick(less, best.sc, sc),
                m: pick(less, best.m, m),
                error: pick(less, best.error, error),
                words,
            };
        }
    }
    best
}

/// The least-squares `d` and `dmin` of the codes.
#[inline(always)]
fn refit<L: Lanes>(runs: &Runs<RUN>, state: &State<L>, total: L, top: L) -> [[u16; 2]; BLOCKS] {
    let (d, dmin): (L, L) = (spread(runs, &state.words, 0), spread(runs, &state.words, 1));
    let (scale, offset) = (d.mul(state.sc), dmin.mul(state.m));
    let inv = reciprocal(scale);
    let zero = L::splat(0.0);
    let (mut q1, mut q2, mut t0, mut t1) = (zero, zero, zero, zero);
    for (w, imp) in runs.w.iter().zip(&runs.imp) {
        let (w, imp) = (L::load(w).add(offset), L::load(imp));
        let q = code(w.mul(inv), top);
        let t = w.sub(scale.mul(q));
        let (iq, it) = (imp.mul(q), imp.mul(t));
        q1 = q1.add(iq);
        q2 = q2.add(iq.mul(q));
        t0 = t0.add(it);
        t1 = t1.add(it.mul(q));
    }
    let wide = |v: [f32; LANES]| v.map(f64::from);
    let (q1, q2, t0, t1) = (wide(array(q1)), wide(array(q2)), wide(array(t0)), wide(array(t1)));
    let (q0, sc, m) = (wide(array(total)), wide(array(state.sc)), wide(array(state.m)));
    let mut words = state.words;
    for (b, words) in words.iter_mut().enumerate() {
        let first = b * PER_BLOCK;
        let sum = |term: &dyn Fn(usize) -> f64| runs.weighted(first, PER_BLOCK, term);
        let (aa, ab, bb) =
            (sum(&|l| sc[l] * sc[l] * q2[l]), sum(&|l| sc[l] * m[l] * q1[l]), sum(&|l| m[l] * m[l] * q0[l]));
        let (ya, yb) = (sum(&|l| sc[l] * t1[l]), sum(&|l| m[l] * t0[l]));
        let det = aa * bb - ab * ab;
        let (da, db) = if det > aa * bb * 1e-9 {
            ((ya * bb - yb * ab) / det, (ya * ab - yb * aa) / det)
        } else if aa > 0.0 {
            (ya / aa, 0.0)
        } else {
            (0.0, 0.0)
        };
        let old = words.map(|w| f64::from(runs.value(first, w)));
        for (word, new) in words.iter_mut().zip([old[0] + da, old[1] + db]) {
            if new > 0.0
                && let Some(new) = runs.word(first, new)
            {
                *word = new;
            }
        }
    }
    words
}

/// Replaces the blocks of `best` that `other` improves; whether there was one.
#[inline(always)]
fn take_better<L: Lanes>(runs: &Runs<RUN>, best: &mut State<L>, other: &State<L>) -> bool {
    let (before, after) = (array(best.error), array(other.error));
    let mut keep = [0.0f32; LANES];
    for b in 0..BLOCKS {
        let sum = |e: &[f32; LANES]| runs.weighted(b * PER_BLOCK, PER_BLOCK, |l| f64::from(e[l]));
        if sum(&after) < sum(&before) {
            keep[b * PER_BLOCK..(b + 1) * PER_BLOCK].fill(1.0);
            best.words[b] = other.words[b];
        }
    }
    let taken = (L::splat(0.5), L::load(&keep));
    (best.sc, best.m) = (pick(taken, best.sc, other.sc), pick(taken, best.m, other.m));
    best.error = pick(taken, best.error, other.error);
    keep.iter().any(|&k| k > 0.0)
}

/// Encodes one row into its blocks.
///
/// # Errors
/// The first block or column that breaks a rule: a value that is not finite, a scale that overflows binary16.
///
/// # Panics
/// If `blocks` does not fit a row of `x.len()` elements, or the importance has another length.
pub fn encode_row(
    kind: BlockKind,
    params: &Params<'_>,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), RowFault> {
    encode_row_on::<Portable>(kind, params, x, blocks)
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
    kind: BlockKind,
    params: &Params<'_>,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), RowFault> {
    let five = kind == BlockKind::Q5K;
    let top = L::splat(if five { 31.0 } else { 15.0 });
    assert_eq!(blocks.len() * SUPER, x.len() * kind.bytes());
    let parts = x.chunks(Runs::<RUN>::VALUES).zip(blocks.chunks_mut(BLOCKS * kind.bytes()));
    for (p, (x, out)) in parts.enumerate() {
        let at = p * Runs::<RUN>::VALUES;
        let importance = params.importance.map(|i| &i[at..at + x.len()]);
        let runs = Runs::<RUN>::new(x, importance, SUPER, at)?;
        let mut total = L::splat(0.0);
        for imp in &runs.imp {
            total = total.add(L::load(imp));
        }
        let lines = lines(&runs, total, top);
        let starts = starts(&runs, &lines, total);
        let mut words = [[0u16; 2]; BLOCKS];
        for (b, words) in words.iter_mut().enumerate() {
            let first = b * PER_BLOCK;
            let what = ["scale of the scales", "scale of the minima"];
            for ((word, starts), what) in words.iter_mut().zip(&starts).zip(what) {
                let real = f64::from(starts[first]);
                if real > 0.0 {
                    *word = runs.word(first, real).ok_or_else(|| {
                        overflow(p * BLOCKS + b, what, real * 2f64.powi(runs.exponent[first]))
                    })?;
                }
            }
        }
        let mut best = choose(&runs, &lines, top, words);
        for _ in 0..ROUNDS {
            let next = refit(&runs, &best, total, top);
            if next == best.words || !take_better(&runs, &mut best, &choose(&runs, &lines, top, next)) {
                break;
            }
        }
        // The codes of the best.
        let (d, dmin): (L, L) = (spread(&runs, &best.words, 0), spread(&runs, &best.words, 1));
        let (inv, offset) = (reciprocal(d.mul(best.sc)), dmin.mul(best.m));
        let mut codes = [[0.0f32; LANES]; RUN];
        for (w, to) in runs.w.iter().zip(&mut codes) {
            code(L::load(w).add(offset).mul(inv), top).store(to);
        }
        let (sc, m) = (array(best.sc), array(best.m));
        for (b, out) in out.chunks_exact_mut(kind.bytes()).enumerate() {
            let first = b * PER_BLOCK;
            let byte = |v: &[f32; LANES], l: usize| v[first + l] as u8;
            out[fields::q4_k::D..][..2].copy_from_slice(&best.words[b][0].to_le_bytes());
            out[fields::q4_k::DMIN..][..2].copy_from_slice(&best.words[b][1].to_le_bytes());
            let s = &mut out[fields::q4_k::S..][..12];
            for l in 0..4 {
                let (sc, m, sc_high, m_high) = (byte(&sc, l), byte(&m, l), byte(&sc, l + 4), byte(&m, l + 4));
                s[l] = sc | sc_high >> 4 << 6;
                s[l + 4] = m | m_high >> 4 << 6;
                s[l + 8] = (sc_high & 15) | m_high << 4;
            }
            let at = if five { fields::q5_k::Q } else { fields::q4_k::Q };
            for pair in 0..4 {
                let run = &mut out[at + RUN * pair..][..RUN];
                for (i, o) in run.iter_mut().enumerate() {
                    let (a, b) = (codes[i][first + 2 * pair] as u8, codes[i][first + 2 * pair + 1] as u8);
                    *o = (a & 15) | b << 4;
                }
            }
            if five {
                for (i, o) in out[fields::q5_k::QH..][..RUN].iter_mut().enumerate() {
                    *o = (0..PER_BLOCK).fold(0, |bits, l| bits | (codes[i][first + l] as u8 >> 4) << l);
                }
            }
        }
    }
    Ok(())
}
