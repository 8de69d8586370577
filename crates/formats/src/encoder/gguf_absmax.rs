//! `gguf_absmax`: ggml blocks of 32 values with one binary16 scale from the value of largest magnitude (encoder notes in
//! `docs/encoders.md`). Formats `gguf_q8_0`, `gguf_q4_0`, `gguf_q5_0`.
//!
//! The scale is that of ggml's own quantiser; codes are the nearest ones under the scale as it is stored.

use super::gguf_search::{VALUES, block_scheme, write_block};
use super::{RowFault, RowPlace};
use crate::float::f16;
use crate::scheme::{BlockKind, GroupedScheme};

/// The first value of largest magnitude, or `None` if a value is not finite.
#[inline(always)]
fn extreme(w: &[f32; VALUES]) -> Option<f32> {
    let largest = w.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7fff_ffff));
    if largest >= 0x7f80_0000 {
        return None;
    }
    let is = |word: u32| w.iter().fold(false, |found, v| found | (v.to_bits() == word));
    let negative = match (is(largest), is(largest | 1 << 31)) {
        (true, true) => {
            w.iter().find(|v| v.to_bits() << 1 == largest << 1).is_some_and(|v| v.is_sign_negative())
        }
        (_, negative) => negative,
    };
    let magnitude = f32::from_bits(largest);
    Some(if negative { -magnitude } else { magnitude })
}

/// Codes of `w * inv`, nearest-even, clamped.
#[inline(always)]
fn codes(s: &GroupedScheme, w: &[f32; VALUES], inv: f32) -> [i8; VALUES] {
    let (low, high) = (f32::from(s.code_min), f32::from(s.code_max));
    // Beyond 2^23 the spacing of binary32 is one: the low byte of the sum's word is the integer's.
    w.map(|v| {
        let u = v * inv;
        let u = if u > low { u } else { low };
        let u = if u < high { u } else { high };
        (u + 12_582_912.0).to_bits() as u8 as i8
    })
}

/// Encodes one row into its blocks.
///
/// # Errors
/// The first block or column that breaks a rule: a value that is not finite, a scale that overflows binary16.
///
/// # Panics
/// If `blocks` does not fit a row of `x.len()` elements, or for a type this method does not produce.
#[inline(always)]
pub fn encode_row(kind: BlockKind, x: &[f32], blocks: &mut [u8]) -> Result<(), RowFault> {
    // One instance a type: its loops have constants for bounds.
    match (kind, block_scheme(kind)) {
        (BlockKind::Q8_0, Some(s)) => row::<34>(&s, 127.0, x, blocks),
        (BlockKind::Q4_0, Some(s)) => row::<18>(&s, -8.0, x, blocks),
        (BlockKind::Q5_0, Some(s)) => row::<22>(&s, -16.0, x, blocks),
        _ => panic!("{kind:?} is not a type of this method"),
    }
}

#[inline(always)]
fn row<const BYTES: usize>(
    s: &GroupedScheme,
    end: f32,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), RowFault> {
    let (values, blocks) = (x.as_chunks::<VALUES>().0, blocks.as_chunks_mut::<BYTES>().0);
    assert_eq!(values.len(), blocks.len());
    for (g, (w, out)) in values.iter().zip(blocks).enumerate() {
        let Some(extreme) = extreme(w) else {
            let c = w.iter().position(|v| !v.is_finite()).unwrap_or(0);
            return Err(RowFault::not_finite(g * VALUES + c, w[c]));
        };
        // The scale of q8_0 is positive, its interval without the lowest code; the others' extreme has the lowest.
        let raw = if end > 0.0 { extreme.abs() } else { extreme } / end;
        let mut word = f16::from_f32(raw);
        if word & 0x7fff == 0x7c00 {
            let rule = format!("the scale {raw:e} overflows binary16 (largest 65504)");
            return Err(RowFault { place: RowPlace::Group(g), rule });
        }
        if extreme == 0.0 {
            word = 0;
        } else if word & 0x7fff == 0 {
            word |= 1;
        }
        let inv = if word == 0 { 0.0 } else { 1.0 / f16::to_f32(word) };
        write_block(s, word, &codes(s, w, inv), out);
    }
    Ok(())
}
