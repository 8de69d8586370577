//! `gguf_search` for `gguf_iq4_nl`: blocks of 32 values, one binary16 scale, codes that index a table of 16 integers
//! (encoder notes in `docs/encoders.md`; table: format specification, ggml block types).

use super::grouped_search::{MULTIPLES, neighbour, round_candidate};
use super::{Params, RowFault, RowPlace};
use crate::float::f16;
use crate::tables::IQ4_VALUES;

/// Values of one block.
pub const VALUES: usize = 32;
/// Bytes of one block.
pub const BYTES: usize = 18;

/// Halves between neighbours of the table, and the steps across them.
const STEPS: [(f32, f32); 15] = {
    let mut steps = [(0.0, 0.0); 15];
    let mut i = 0;
    while i < 15 {
        let (a, b) = (IQ4_VALUES[i] as f32, IQ4_VALUES[i + 1] as f32);
        steps[i] = ((a + b) * 0.5, b - a);
        i += 1;
    }
    steps
};

/// The table values nearest to `w / scale`, as binary32; of two equally near the smaller.
#[inline(always)]
fn nearest(w: &[f32; VALUES], inv: f32) -> [f32; VALUES] {
    let mut out = [f32::from(IQ4_VALUES[0]); VALUES];
    let u = w.map(|w| w * inv);
    for (half, step) in STEPS {
        for i in 0..VALUES {
            out[i] += if u[i] > half { step } else { 0.0 };
        }
    }
    out
}

/// Eight partial sums over the block: number l takes the values l, l + 8, l + 16, l + 24 in this order.
#[inline(always)]
fn sum(term: impl Fn(usize) -> f64) -> f64 {
    let mut p = [0.0f64; 8];
    for c in 0..VALUES / 8 {
        for (l, p) in p.iter_mut().enumerate() {
            *p += term(8 * c + l);
        }
    }
    super::grouped_search::combine(&p)
}

#[inline(always)]
fn error(w: &[f32; VALUES], imp: &[f32; VALUES], word: u16) -> f64 {
    let scale = f16::to_f32(word);
    let v = nearest(w, 1.0 / scale);
    let scale = f64::from(scale);
    sum(|i| {
        let t = f64::from(w[i]) - scale * f64::from(v[i]);
        f64::from(imp[i]) * t * t
    })
}

/// Least-squares scale of a scale's own codes, 0 if there is none.
#[inline(always)]
fn fit(w: &[f32; VALUES], imp: &[f32; VALUES], word: u16) -> f64 {
    let v = nearest(w, 1.0 / f16::to_f32(word));
    let den = sum(|i| f64::from(imp[i]) * f64::from(v[i]) * f64::from(v[i]));
    if den == 0.0 { 0.0 } else { sum(|i| f64::from(imp[i]) * f64::from(w[i]) * f64::from(v[i])) / den }
}

/// Encodes one block; the error is the message's rule.
///
/// The extreme value is the first of largest magnitude. Candidates in order, strictly better replaces: `extreme/-127 *
/// r`, then `extreme/113 * r` for the 25 multiples r; then three times the least-squares scale of the best codes so far
/// and its binary16 neighbours at -2, -1, +1, +2.
#[inline(always)]
fn block(w: &[f32; VALUES], imp: &[f32; VALUES], out: &mut [u8; BYTES]) -> Result<(), String> {
    let extreme = w.iter().fold(0.0f32, |e, &v| if v.abs() > e.abs() { v } else { e });
    out[..2].fill(0);
    // With scale zero every code is zero's: the table's 8th value is its smallest magnitude, 1.
    out[2..].fill(0x88);
    if extreme == 0.0 {
        return Ok(());
    }
    let (low, high) = (f64::from(IQ4_VALUES[0]), f64::from(IQ4_VALUES[15]));
    let Some(start) = round_candidate(f64::from(extreme) / low) else {
        return Err(format!("the scale of largest magnitude {:e} / 127 overflows binary16", extreme.abs()));
    };
    let mut best = (start, error(w, imp, start));
    let compete = |word: Option<u16>, best: &mut (u16, f64)| {
        if let Some(word) = word
            && word != best.0
        {
            let e = error(w, imp, word);
            if e < best.1 {
                *best = (word, e);
            }
        }
    };
    for end in [low, high] {
        let ratio = f64::from(extreme) / end;
        for r in MULTIPLES {
            compete(round_candidate(ratio * r), &mut best);
        }
    }
    for _ in 0..3 {
        let Some(word) = round_candidate(fit(w, imp, best.0)) else { break };
        compete(Some(word), &mut best);
        for d in [-2, -1, 1, 2] {
            compete(neighbour(word, d), &mut best);
        }
    }
    let v = nearest(w, 1.0 / f16::to_f32(best.0));
    let code = |i: usize| {
        let v = v[i];
        IQ4_VALUES.iter().filter(|&&k| f32::from(k) < v).count() as u8
    };
    out[..2].copy_from_slice(&best.0.to_le_bytes());
    for (i, o) in out[2..].iter_mut().enumerate() {
        *o = code(i) | code(i + 16) << 4;
    }
    Ok(())
}

/// Encodes one row into its blocks.
///
/// # Errors
/// The first block or column that breaks a rule: a value that is not finite, a scale that overflows binary16.
///
/// # Panics
/// If `blocks` does not fit a row of `x.len()` elements, or the importance has another length.
#[inline(always)]
pub fn encode_row(params: &Params<'_>, x: &[f32], blocks: &mut [u8]) -> Result<(), RowFault> {
    let (values, blocks) = (x.as_chunks::<VALUES>().0, blocks.as_chunks_mut::<BYTES>().0);
    assert_eq!(blocks.len(), values.len());
    let importance = params.importance.map(|i| i.as_chunks::<VALUES>().0);
    for (g, (w, out)) in values.iter().zip(blocks).enumerate() {
        if let Some(c) = w.iter().position(|v| !v.is_finite()) {
            return Err(RowFault::not_finite(g * VALUES + c, w[c]));
        }
        let imp = importance.map_or(&[1.0; VALUES], |i| &i[g]);
        block(w, imp, out).map_err(|rule| RowFault { place: RowPlace::Group(g), rule })?;
    }
    Ok(())
}
