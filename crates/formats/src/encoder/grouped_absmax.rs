//! `grouped_absmax`: one scale per group from its largest magnitude (format specification, section 7; encoder
//! specification). Formats `q4_g64_fp16`, `q5_g64_fp16`, `q6_g64_fp16`, `q8_g32_fp16`.
//!
//! ```text
//! raw = f32(amax / qmax)    scale = f16(raw), 0x0001 if that is zero, refused if it is infinite
//! inv = f32(1 / scale)      code = clamp(rint_even(f32(x * inv)), qmin, qmax)
//! ```
//!
//! An all-zero group has scale `0x0000` and codes 0. Only logical columns count.

use super::{RowFault, RowPlace};
use crate::float::f16;
use crate::scheme::GroupedScheme;
use crate::words::pack_codes;

/// Largest magnitude of a group.
///
/// # Errors
/// The first value that is not finite.
pub(crate) fn amax(x: &[f32], first_column: usize) -> Result<f32, RowFault> {
    let mut largest = 0.0f32;
    for (i, &v) in x.iter().enumerate() {
        if !v.is_finite() {
            return Err(RowFault::not_finite(first_column + i, v));
        }
        if v.abs() > largest {
            largest = v.abs();
        }
    }
    Ok(largest)
}

/// The scale word of a group with the given largest magnitude: `0x0000` only for zero.
///
/// # Errors
/// The group, if the scale overflows binary16.
pub fn scale_word(s: &GroupedScheme, amax: f32, group: usize) -> Result<u16, RowFault> {
    if amax == 0.0 {
        return Ok(0);
    }
    match f16::from_f32(amax / f32::from(s.code_max)) {
        0 => Ok(1),
        0x7c00 => Err(RowFault {
            place: RowPlace::Group(group),
            rule: format!(
                "the scale of largest magnitude {amax:e} / {} overflows binary16 (largest 65504)",
                s.code_max
            ),
        }),
        word => Ok(word),
    }
}

/// The codes of a group under a non-zero scale.
#[inline]
pub(crate) fn codes(s: &GroupedScheme, word: u16, x: &[f32], out: &mut [i8]) {
    let inv = 1.0 / f16::to_f32(word);
    for (q, &v) in out.iter_mut().zip(x) {
        *q = code(s, v, inv) as i8;
    }
}

/// One code, as an integral binary32 value. `v * inv` cannot overflow: `|v|` is at most 127 * 65,520 and `|inv|` at
/// most 2^24.
#[inline]
pub(crate) fn code(s: &GroupedScheme, v: f32, inv: f32) -> f32 {
    (v * inv).round_ties_even().clamp(f32::from(s.code_min), f32::from(s.code_max))
}

/// Runs `group` on the logical values of each group and stores the codes and scale word it gives; padding lanes get
/// code 0, padding groups scale `0x0000`.
pub(crate) fn encode_groups(
    s: &GroupedScheme,
    x: &[f32],
    base: &mut [u8],
    high: &mut [u8],
    scales: &mut [u8],
    mut group: impl FnMut(usize, &[f32], &mut [i8]) -> Result<u16, RowFault>,
) -> Result<(), RowFault> {
    let logical = x.len().div_ceil(s.group);
    for (g, word) in scales.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let mut lanes = [0i8; 128];
        let lanes = &mut lanes[..s.group];
        let mut scale = 0;
        if g < logical {
            let values = &x[g * s.group..x.len().min((g + 1) * s.group)];
            scale = group(g, values, &mut lanes[..values.len()])?;
        }
        *word = scale.to_le_bytes();
        pack_codes(
            s,
            lanes,
            &mut base[g * s.base_bytes..(g + 1) * s.base_bytes],
            &mut high[g * s.high_bytes..(g + 1) * s.high_bytes],
        );
    }
    Ok(())
}

/// Encodes one row into its bytes of the three planes.
///
/// # Errors
/// The first group or column that breaks a rule.
///
/// # Panics
/// If the planes do not fit a row of `x.len()` elements.
pub fn encode_row(
    s: &GroupedScheme,
    x: &[f32],
    base: &mut [u8],
    high: &mut [u8],
    scales: &mut [u8],
) -> Result<(), RowFault> {
    encode_groups(s, x, base, high, scales, |g, values, lanes| {
        let word = scale_word(s, amax(values, g * s.group)?, g)?;
        if word != 0 {
            codes(s, word, values, lanes);
        }
        Ok(word)
    })
}
