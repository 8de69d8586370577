//! `gguf_search` for ggml's blocks of 32 integers with one binary16 scale (encoder notes in `docs/encoders.md`). Formats
//! `gguf_q8_0`, `gguf_q4_0`, `gguf_q5_0`.
//!
//! Codes are `[-128, 127]`, `[-8, 7]`, `[-16, 15]`, scales of either sign. Block bytes: format specification, ggml block
//! types.

use super::gguf_runs::{Runs, array, overflow};
use super::gguf_signed::{Codes, error, scales, values};
use super::lanes::{LANES, Lanes, Portable};
use super::{Params, RowFault};
use crate::scheme::{BlockKind, GroupCode, GroupedScheme};

/// Values of one block.
pub const VALUES: usize = 32;

const fn scheme(bits: u8, code_min: i8, code_max: i8) -> GroupedScheme {
    let base_bytes = if bits == 8 { 32 } else { 16 };
    let high_bytes = if bits == 5 { 4 } else { 0 };
    let code = GroupCode::TwosComplement;
    GroupedScheme { bits, group: VALUES, code_min, code_max, code, base_bytes, high_bytes }
}

/// The codes of a block type as a group of 32; `None` for types this method does not produce.
#[must_use]
pub const fn block_scheme(kind: BlockKind) -> Option<GroupedScheme> {
    match kind {
        BlockKind::Q8_0 => Some(scheme(8, -128, 127)),
        BlockKind::Q4_0 => Some(scheme(4, -8, 7)),
        BlockKind::Q5_0 => Some(scheme(5, -16, 15)),
        _ => None,
    }
}

/// Writes a block: scale word, then codes.
///
/// # Panics
/// If `out` is not one block of `s`.
#[inline(always)]
pub fn write_block(s: &GroupedScheme, word: u16, codes: &[i8; VALUES], out: &mut [u8]) {
    let (scale, rest) = out.split_at_mut(2);
    scale.copy_from_slice(&word.to_le_bytes());
    if s.bits == 8 {
        for (o, &q) in rest.iter_mut().zip(codes) {
            *o = q as u8;
        }
        return;
    }
    // Offset codes: value i and value i + 16 share a byte, the fifth bits stand before them in order.
    let offset = codes.map(|q| q.wrapping_sub(s.code_min) as u8);
    let (high, low) = rest.split_at_mut(s.high_bytes);
    if s.bits == 5 {
        // The product moves bit 0 of byte i to bit i of the highest byte.
        for (o, eight) in high.iter_mut().zip(offset.as_chunks::<8>().0) {
            let ones = u64::from_le_bytes(*eight) >> 4 & 0x0101_0101_0101_0101;
            *o = (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
        }
    }
    for (i, o) in low.iter_mut().enumerate() {
        *o = (offset[i] & 15) | offset[i + 16] << 4;
    }
}

/// First scales of a run: the extreme value as `low + k * step` for the first range of `k`, as `-low + k * step` for the
/// second.
const fn starts<const N: usize>(low: f32, step: f32, same: [i8; 2], other: [i8; 2]) -> [f32; N] {
    let mut out = [0.0; N];
    let (mut i, mut k) = (0, same[0]);
    while k < same[1] {
        out[i] = low + k as f32 * step;
        (i, k) = (i + 1, k + 1);
    }
    k = other[0];
    while k < other[1] {
        out[i] = -low + k as f32 * step;
        (i, k) = (i + 1, k + 1);
    }
    assert!(i == N);
    out
}

/// Integers from `LOW` to `-1 - LOW`.
struct Integers<const LOW: i8>;

impl<const LOW: i8> Codes for Integers<LOW> {
    const STARTS: &'static [f32] = match LOW {
        -128 => &starts::<24>(-128.0, 0.75, [-5, 10], [-7, 2]),
        -16 => &starts::<20>(-16.0, 0.4375, [-4, 8], [-6, 2]),
        _ => &starts::<20>(-8.0, 0.4375, [-4, 8], [-6, 2]),
    };

    #[inline(always)]
    fn nearest<L: Lanes>(u: L) -> L {
        let low = f32::from(LOW);
        u.max(L::splat(low)).min(L::splat(-1.0 - low)).round()
    }
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
    match (kind, block_scheme(kind)) {
        (BlockKind::Q8_0, Some(s)) => row::<L, -128>(&s, params, x, blocks),
        (BlockKind::Q4_0, Some(s)) => row::<L, -8>(&s, params, x, blocks),
        (BlockKind::Q5_0, Some(s)) => row::<L, -16>(&s, params, x, blocks),
        _ => panic!("{kind:?} is not a type of this module"),
    }
}

#[inline(always)]
fn row<L: Lanes, const LOW: i8>(
    s: &GroupedScheme,
    params: &Params<'_>,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), RowFault> {
    let bytes = 2 + s.base_bytes + s.high_bytes;
    assert_eq!(blocks.len() * VALUES, x.len() * bytes);
    let step = Runs::<VALUES>::VALUES;
    for (p, (x, out)) in x.chunks(step).zip(blocks.chunks_mut(LANES * bytes)).enumerate() {
        let at = p * step;
        let importance = params.importance.map(|i| &i[at..at + x.len()]);
        let runs = Runs::<VALUES>::new(x, importance, VALUES, at)?;
        let (words, codes) = search::<L, LOW>(&runs, p * LANES)?;
        for ((word, codes), out) in words.iter().zip(&codes).zip(out.chunks_exact_mut(bytes)) {
            write_block(s, *word, codes, out);
        }
    }
    Ok(())
}

/// Scale words and codes of sixteen blocks, of which `block` is the first.
type Found = ([u16; LANES], [[i8; VALUES]; LANES]);

#[inline(always)]
fn search<L: Lanes, const LOW: i8>(runs: &Runs<VALUES>, block: usize) -> Result<Found, RowFault> {
    let zero = L::splat(0.0);
    let mut extreme = zero;
    for w in &runs.w {
        let w = L::load(w);
        extreme = L::select_below(extreme.abs(), w.abs(), w, extreme);
    }
    let (extreme, fitted) = (array(extreme), array(scales::<L, Integers<LOW>, VALUES>(runs)));
    let low = f64::from(LOW);
    // The scales of plain rounding compete too, and stand where the fitted one is not better.
    let mut words = [0u16; LANES];
    for (l, word) in words.iter_mut().enumerate() {
        let real = f64::from(extreme[l].abs()) / (-1.0 - low);
        if real != 0.0 {
            *word = runs
                .word(l, real)
                .ok_or_else(|| overflow(block + l, "scale", real * 2f64.powi(runs.exponent[l])))?;
        }
    }
    let value = |words: &[u16; LANES]| -> [f32; LANES] { std::array::from_fn(|l| runs.value(l, words[l])) };
    let mut stored = value(&words);
    let mut least = array(error::<L, Integers<LOW>, VALUES>(runs, L::load(&stored)));
    let others: [[u16; LANES]; 2] = [
        std::array::from_fn(|l| runs.word(l, f64::from(extreme[l]) / low).unwrap_or(0)),
        std::array::from_fn(|l| runs.word(l, f64::from(fitted[l])).unwrap_or(0)),
    ];
    for others in &others {
        let values = value(others);
        let errors = array(error::<L, Integers<LOW>, VALUES>(runs, L::load(&values)));
        for l in 0..LANES {
            if others[l] != 0 && errors[l] < least[l] {
                (words[l], stored[l], least[l]) = (others[l], values[l], errors[l]);
            }
        }
    }
    let q = values::<L, Integers<LOW>, VALUES>(runs, L::load(&stored));
    let mut codes = [[0i8; VALUES]; LANES];
    for (i, q) in q.iter().enumerate() {
        for (codes, &q) in codes.iter_mut().zip(q) {
            // Small integers: the low byte of the sum's word is theirs.
            codes[i] = (q + 12_582_912.0).to_bits() as u8 as i8;
        }
    }
    Ok((words, codes))
}
