//! `gguf_search`: `grouped_search` on ggml's blocks of 32 values with one binary16 scale (encoder notes in
//! `docs/encoders.md`). Formats `gguf_q8_0`, `gguf_q4_0`, `gguf_q5_0`.
//!
//! Each block is searched exactly as a group of 32 by [`grouped_search`](super::grouped_search) with negative scales
//! admitted and the code interval of the type: `[-128, 127]`, `[-8, 7]`, `[-16, 15]`. Block bytes: format
//! specification, ggml block types.

use super::grouped_absmax::{amax, scale_word};
use super::grouped_search::search_group;
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

/// Encodes one row into its blocks.
///
/// # Errors
/// The first block or column that breaks a rule: a value that is not finite, a scale that overflows binary16.
///
/// # Panics
/// If `blocks` does not fit a row of `x.len()` elements, or the importance has another length.
pub fn encode_row(
    s: &GroupedScheme,
    params: &Params<'_>,
    x: &[f32],
    blocks: &mut [u8],
) -> Result<(), RowFault> {
    let bytes = 2 + s.base_bytes + s.high_bytes;
    let values = x.as_chunks::<VALUES>().0;
    assert_eq!(blocks.len(), values.len() * bytes);
    for (g, (w, out)) in values.iter().zip(blocks.chunks_exact_mut(bytes)).enumerate() {
        let largest = amax(w, g * VALUES)?;
        let start = scale_word(s, largest, g)?;
        let mut codes = [0i8; VALUES];
        let mut word = 0;
        if start != 0 {
            let importance = params.importance.map(|i| &i[g * VALUES..(g + 1) * VALUES]);
            word = search_group(s, w, importance, true, start, largest, &mut codes);
        }
        write_block(s, word, &codes, out);
    }
    Ok(())
}
