//! `gguf_search` for `gguf_q6_k`, `gguf_iq4_xs` and `gguf_iq4_nl`: runs of values as a signed scale times a code's value
//! (encoder notes in `docs/encoders.md`; block bytes: format specification, ggml block types).

use super::gguf_runs::{Runs, SUPER, array, floor, overflow};
use super::lanes::{LANES, Lanes, Portable};
use super::{Params, RowFault};
use crate::codec::gguf::fields;
use crate::scheme::BlockKind;
use crate::tables::IQ4_VALUES;

/// The codes of a type.
pub(super) trait Codes {
    /// What the extreme value of a run is taken for at first, as a code's value.
    const STARTS: &'static [f32];

    /// The code's value nearest to each lane.
    fn nearest<L: Lanes>(u: L) -> L;
}

/// -32 to 31.
struct Six;

impl Codes for Six {
    const STARTS: &'static [f32] = &[
        -32.0, -32.5, -31.5, -31.0, -33.0, -30.5, -33.5, -30.0, -29.0, -34.0, 31.0, 31.5, 30.5, 32.0, 30.0,
        29.0,
    ];

    #[inline(always)]
    fn nearest<L: Lanes>(u: L) -> L {
        u.max(L::splat(-32.0)).min(L::splat(31.0)).round()
    }
}

/// The table of `iq4_nl`.
struct Four;

impl Codes for Four {
    const STARTS: &'static [f32] = &[
        -127.0, -121.0, -115.0, -109.0, -104.0, -133.0, -140.0, -148.0, 113.0, 107.0, 101.0, 119.0, 126.0,
        134.0, 95.0, 89.0,
    ];

    #[inline(always)]
    fn nearest<L: Lanes>(u: L) -> L {
        u.nearest_iq4()
    }
}

/// How often codes and scale of the best start are fitted to each other.
const FITS: usize = 2;
/// How often a block's scale is refitted.
const ROUNDS: usize = 2;

/// Error, at least `floor`, and least-squares scale of the codes of `w * inv`.
#[inline(always)]
fn fit<L: Lanes, C: Codes, const RUN: usize>(runs: &Runs<RUN>, floor: L, inv: L) -> (L, L) {
    let zero = L::splat(0.0);
    let (mut q2, mut r1, mut r2) = (zero, zero, zero);
    for (w, imp) in runs.w.iter().zip(&runs.imp) {
        let (w, imp) = (L::load(w), L::load(imp));
        let u = w.mul(inv);
        let q = C::nearest(u);
        let r = u.sub(q);
        let ir = imp.mul(r);
        q2 = q2.add(imp.mul(q).mul(q));
        r1 = r1.add(ir.mul(q));
        r2 = r2.add(ir.mul(r));
    }
    let one = L::splat(1.0);
    let step = one.div(inv);
    let slope = r1.div(L::select_below(zero, q2, q2, one));
    (floor.max(r2.sub(slope.mul(r1)).mul(step).mul(step)), one.add(slope).mul(step))
}

/// A scale for each run, without regard to the block's.
#[inline(always)]
pub(super) fn scales<L: Lanes, C: Codes, const RUN: usize>(runs: &Runs<RUN>) -> L {
    let zero = L::splat(0.0);
    // The first value of largest magnitude.
    let mut extreme = zero;
    for w in &runs.w {
        let w = L::load(w);
        extreme = L::select_below(extreme.abs(), w.abs(), w, extreme);
    }
    let one = L::splat(1.0);
    let some = L::select_below(zero, extreme.abs(), extreme, one);
    let mut total = zero;
    for imp in &runs.imp {
        total = total.add(L::load(imp));
    }
    let floor = floor(total, extreme);
    let (mut least, mut best) = (L::splat(f32::MAX), zero);
    for &start in C::STARTS {
        let (error, scale) = fit::<L, C, RUN>(runs, floor, L::splat(start).div(some));
        best = L::select_below(error, least, scale, best);
        least = error.min(least);
    }
    for _ in 0..FITS {
        let usable = L::select_below(zero, best.abs(), best, one);
        let (error, scale) = fit::<L, C, RUN>(runs, floor, one.div(usable));
        best = L::select_below(error, least, scale, best);
        least = error.min(least);
    }
    L::select_below(zero, extreme.abs(), best, zero)
}

/// Reciprocal, zero for zero.
#[inline(always)]
fn reciprocal<L: Lanes>(v: L) -> L {
    let (zero, one) = (L::splat(0.0), L::splat(1.0));
    let some = L::select_below(zero, v.abs(), v, one);
    L::select_below(zero, v.abs(), one.div(some), zero)
}

/// Error of each run under scales, with the codes nearest to each value. A scale of zero leaves the values themselves.
#[inline(always)]
pub(super) fn error<L: Lanes, C: Codes, const RUN: usize>(runs: &Runs<RUN>, scale: L) -> L {
    let inv = reciprocal(scale);
    let mut error = L::splat(0.0);
    for (w, imp) in runs.w.iter().zip(&runs.imp) {
        let (w, imp) = (L::load(w), L::load(imp));
        let t = w.sub(scale.mul(C::nearest(w.mul(inv))));
        error = error.add(imp.mul(t).mul(t));
    }
    error
}

/// Blocks with integer scales of the runs.
#[derive(Clone, Copy)]
struct State<L> {
    /// binary16 words of the blocks' scales.
    words: [u16; LANES],
    /// The runs' integer scales.
    sc: L,
    /// Error of each run.
    error: L,
}

#[inline(always)]
fn spread<L: Lanes, const RUN: usize>(runs: &Runs<RUN>, words: &[u16; LANES]) -> L {
    let mut out = [0.0; LANES];
    for (l, o) in out.iter_mut().enumerate() {
        *o = runs.value(l, words[l * RUN / SUPER]);
    }
    L::load(&out)
}

/// The best integer scales near `scale / d`, down to `-limit`, up to `limit - 1`.
#[inline(always)]
fn choose<L: Lanes, C: Codes, const RUN: usize>(
    runs: &Runs<RUN>,
    scale: L,
    limit: f32,
    words: [u16; LANES],
) -> State<L> {
    let d: L = spread(runs, &words);
    let (low, high) = (L::splat(-limit), L::splat(limit - 1.0));
    let middle = scale.mul(reciprocal(d)).max(low).min(high).round();
    let mut best = State { words, sc: middle, error: L::splat(f32::INFINITY) };
    for step in [0.0, -1.0, 1.0] {
        let sc = middle.add(L::splat(step)).max(low).min(high);
        let error = error::<L, C, RUN>(runs, d.mul(sc));
        best.sc = L::select_below(error, best.error, sc, best.sc);
        best.error = error.min(best.error);
    }
    best
}

/// The least-squares scale of each block's codes.
#[inline(always)]
fn refit<L: Lanes, C: Codes, const RUN: usize>(runs: &Runs<RUN>, state: &State<L>) -> [u16; LANES] {
    let scale = spread::<L, RUN>(runs, &state.words).mul(state.sc);
    let inv = reciprocal(scale);
    let (mut q2, mut t1) = (L::splat(0.0), L::splat(0.0));
    for (w, imp) in runs.w.iter().zip(&runs.imp) {
        let (w, imp) = (L::load(w), L::load(imp));
        let q = C::nearest(w.mul(inv));
        let t = w.sub(scale.mul(q));
        let iq = imp.mul(q);
        q2 = q2.add(iq.mul(q));
        t1 = t1.add(iq.mul(t));
    }
    let wide = |v: [f32; LANES]| v.map(f64::from);
    let (q2, t1, sc) = (wide(array(q2)), wide(array(t1)), wide(array(state.sc)));
    let mut words = state.words;
    let per_block = SUPER / RUN;
    for (b, word) in words[..LANES / per_block].iter_mut().enumerate() {
        let first = b * per_block;
        let below = runs.weighted(first, per_block, |l| sc[l] * sc[l] * q2[l]);
        if below > 0.0 {
            let step = runs.weighted(first, per_block, |l| sc[l] * t1[l]) / below;
            if let Some(new) = runs.word(first, f64::from(runs.value(first, *word)) + step) {
                *word = new;
            }
        }
    }
    words
}

/// Replaces the blocks of `best` that `other` improves; whether there was one.
#[inline(always)]
fn take_better<L: Lanes, const RUN: usize>(runs: &Runs<RUN>, best: &mut State<L>, other: &State<L>) -> bool {
    let (before, after) = (array(best.error), array(other.error));
    let mut keep = [0.0f32; LANES];
    let per_block = SUPER / RUN;
    for b in 0..LANES / per_block {
        let first = b * per_block;
        let sum = |e: &[f32; LANES]| runs.weighted(first, per_block, |l| f64::from(e[l]));
        if sum(&after) < sum(&before) {
            keep[first..first + per_block].fill(1.0);
            best.words[b] = other.words[b];
        }
    }
    let mask = L::load(&keep);
    best.sc = L::select_below(L::splat(0.5), mask, other.sc, best.sc);
    best.error = L::select_below(L::splat(0.5), mask, other.error, best.error);
    keep.iter().any(|&k| k > 0.0)
}

/// Codes' values of scales.
#[inline(always)]
pub(super) fn values<L: Lanes, C: Codes, const RUN: usize>(
    runs: &Runs<RUN>,
    scale: L,
) -> [[f32; LANES]; RUN] {
    let inv = reciprocal(scale);
    let mut out = [[0.0; LANES]; RUN];
    for (w, to) in runs.w.iter().zip(&mut out) {
        C::nearest(L::load(w).mul(inv)).store(to);
    }
    out
}

/// Scale words of the blocks, integer scales and codes' values of the runs.
type Found<const RUN: usize> = ([u16; LANES], [f32; LANES], [[f32; LANES]; RUN]);

/// The runs of one or two blocks of 256: scale words, integer scales and codes' values.
#[inline(always)]
fn search<L: Lanes, C: Codes, const RUN: usize>(
    runs: &Runs<RUN>,
    limit: f32,
    block: usize,
) -> Result<Found<RUN>, RowFault> {
    let scale = scales::<L, C, RUN>(runs);
    let each = array(scale);
    let mut words = [0u16; LANES];
    let per_block = SUPER / RUN;
    for (b, word) in words[..LANES / per_block].iter_mut().enumerate() {
        let first = b * per_block;
        let runs_of = &each[first..first + per_block];
        let largest = runs_of.iter().fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
        let real = f64::from(largest) / f64::from(-limit);
        if real != 0.0 {
            *word = runs.word(first, real).ok_or_else(|| {
                overflow(block + b, "scale of the scales", real * 2f64.powi(runs.exponent[first]))
            })?;
        }
    }
    let mut best = choose::<L, C, RUN>(runs, scale, limit, words);
    for _ in 0..ROUNDS {
        let next = refit::<L, C, RUN>(runs, &best);
        if next == best.words || !take_better(runs, &mut best, &choose::<L, C, RUN>(runs, scale, limit, next))
        {
            break;
        }
    }
    let values = values::<L, C, RUN>(runs, spread::<L, RUN>(runs, &best.words).mul(best.sc));
    Ok((best.words, array(best.sc), values))
}

/// Encodes one row into its blocks.
///
/// # Errors
/// The first block or column that breaks a rule: a value that is not finite, a scale that overflows binary16.
///
/// # Panics
/// If `blocks` does not fit a row of `x.len()` elements, the importance has another length, or the type is not one of
/// this module.
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
    assert_eq!(blocks.len() * kind.values(), x.len() * kind.bytes());
    let part = |at: usize, len: usize| params.importance.map(|i| &i[at..at + len]);
    match kind {
        BlockKind::Q6K => {
            for (b, (x, out)) in x.chunks(SUPER).zip(blocks.chunks_mut(kind.bytes())).enumerate() {
                let runs = Runs::<16>::new(x, part(b * SUPER, x.len()), SUPER, b * SUPER)?;
                let (words, sc, q) = search::<L, Six, 16>(&runs, 128.0, b)?;
                write_q6_k(words[0], &sc, &q, out);
            }
        }
        BlockKind::Iq4Xs => {
            let step = Runs::<32>::VALUES;
            for (p, (x, out)) in x.chunks(step).zip(blocks.chunks_mut(2 * kind.bytes())).enumerate() {
                let runs = Runs::<32>::new(x, part(p * step, x.len()), SUPER, p * step)?;
                let (words, sc, q) = search::<L, Four, 32>(&runs, 32.0, 2 * p)?;
                for (b, out) in out.chunks_exact_mut(kind.bytes()).enumerate() {
                    write_iq4_xs(words[b], &sc[8 * b..], &q, 8 * b, out);
                }
            }
        }
        BlockKind::Iq4Nl => {
            let step = Runs::<32>::VALUES;
            for (p, (x, out)) in x.chunks(step).zip(blocks.chunks_mut(LANES * kind.bytes())).enumerate() {
                let runs = Runs::<32>::new(x, part(p * step, x.len()), 32, p * step)?;
                alone::<L>(&runs, p * LANES, out)?;
            }
        }
        _ => panic!("{kind:?} is not a type of this module"),
    }
    Ok(())
}

/// Sixteen blocks of `iq4_nl`, each a run with a scale of its own.
#[inline(always)]
fn alone<L: Lanes>(runs: &Runs<32>, block: usize, out: &mut [u8]) -> Result<(), RowFault> {
    let each = array(scales::<L, Four, 32>(runs));
    let mut words = [0u16; LANES];
    let mut stored = [0.0f32; LANES];
    for (l, word) in words.iter_mut().enumerate() {
        if each[l] != 0.0 {
            let real = f64::from(each[l]);
            *word = runs
                .word(l, real)
                .ok_or_else(|| overflow(block + l, "scale", real * 2f64.powi(runs.exponent[l])))?;
        }
        stored[l] = runs.value(l, *word);
    }
    // Far below the smallest scale nothing at all is nearer than the smallest code.
    let found = array(error::<L, Four, 32>(runs, L::load(&stored)));
    let nothing = array(error::<L, Four, 32>(runs, L::splat(0.0)));
    for l in 0..LANES {
        if nothing[l] < found[l] {
            (words[l], stored[l]) = (0, 0.0);
        }
    }
    let q = values::<L, Four, 32>(runs, L::load(&stored));
    for (l, out) in out.chunks_exact_mut(18).enumerate() {
        out[..2].copy_from_slice(&words[l].to_le_bytes());
        for (i, o) in out[2..].iter_mut().enumerate() {
            *o = iq4_code(q[i][l]) | iq4_code(q[i + 16][l]) << 4;
        }
    }
    Ok(())
}

/// The code of each table value, at the value plus 128.
const IQ4_CODES: [u8; 256] = {
    let mut codes = [0; 256];
    let mut i = 0;
    while i < 16 {
        codes[(IQ4_VALUES[i] as i16 + 128) as usize] = i as u8;
        i += 1;
    }
    codes
};

#[inline(always)]
fn iq4_code(value: f32) -> u8 {
    IQ4_CODES[((value as i32 + 128) & 255) as usize]
}

#[inline(always)]
fn write_q6_k(word: u16, sc: &[f32; LANES], q: &[[f32; LANES]; 16], out: &mut [u8]) {
    let code = |i: usize| (q[i % 16][i / 16] as i32 + 32) as u8;
    out[fields::q6_k::D..][..2].copy_from_slice(&word.to_le_bytes());
    for (o, &sc) in out[fields::q6_k::SC..][..16].iter_mut().zip(sc) {
        *o = sc as i32 as u8;
    }
    for half in 0..2 {
        for i in 0..32 {
            let c: [u8; 4] = std::array::from_fn(|run| code(128 * half + 32 * run + i));
            out[fields::q6_k::QL + 64 * half + i] = (c[0] & 15) | c[2] << 4;
            out[fields::q6_k::QL + 64 * half + 32 + i] = (c[1] & 15) | c[3] << 4;
            out[fields::q6_k::QH + 32 * half + i] =
                c[0] >> 4 | (c[1] >> 4) << 2 | (c[2] >> 4) << 4 | (c[3] >> 4) << 6;
        }
    }
}

#[inline(always)]
fn write_iq4_xs(word: u16, sc: &[f32], q: &[[f32; LANES]; 32], first: usize, out: &mut [u8]) {
    out[fields::iq4_xs::D..][..2].copy_from_slice(&word.to_le_bytes());
    let ls: [u8; 8] = std::array::from_fn(|l| (sc[l] as i32 + 32) as u8);
    let high = ls.iter().enumerate().fold(0u16, |bits, (l, &s)| bits | u16::from(s >> 4) << (2 * l));
    out[fields::iq4_xs::SH..][..2].copy_from_slice(&high.to_le_bytes());
    for (l, o) in out[fields::iq4_xs::SL..][..4].iter_mut().enumerate() {
        *o = (ls[2 * l] & 15) | ls[2 * l + 1] << 4;
    }
    for l in 0..8 {
        for (i, o) in out[fields::iq4_xs::Q + 16 * l..][..16].iter_mut().enumerate() {
            *o = iq4_code(q[i][first + l]) | iq4_code(q[i + 16][first + l]) << 4;
        }
    }
}
