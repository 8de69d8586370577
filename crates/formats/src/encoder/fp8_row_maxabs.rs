//! `fp8_row_maxabs`: bfloat16 values to E4M3FN codes with one multiplier per row from the row's largest magnitude
//! (format specification, section 3.4; encoder specification).
//!
//! ```text
//! x = bf16(source)          raw = f32(f64(max|x|) / 448)
//! scale = bf16(raw) or f16(raw), 0x0001 if a positive raw gives zero, refused if it is infinite
//! inv = f32(1 / scale)      code = e4m3fn(clamp(f32(x * inv), -448, 448))
//! ```
//!
//! An all-zero row has scale +0 and codes `0x00`, whatever the signs of its zeros.

use super::{RowFault, RowPlace};
use crate::codec::row_scale;
use crate::float::{bf16, e4m3, f16};
use crate::scheme::RowScale;

/// The multiplier word and reciprocal of a row whose largest bfloat16 magnitude is `largest`; `None` for zero.
///
/// # Errors
/// The row, if no finite scale or reciprocal exists.
pub fn scale(kind: RowScale, largest: f32) -> Result<Option<(u16, f32)>, RowFault> {
    if largest == 0.0 {
        return Ok(None);
    }
    let raw = (f64::from(largest) / 448.0) as f32;
    let (word, infinite, name) = match kind {
        RowScale::Bf16 => (bf16::from_f32(raw), 0x7f80, "bfloat16"),
        RowScale::Fp16 => (f16::from_f32(raw), 0x7c00, "binary16"),
    };
    let word = word.max(1);
    if word == infinite {
        return Err(RowFault {
            place: RowPlace::Row,
            rule: format!("the scale of largest magnitude {largest:e} / 448 overflows {name}"),
        });
    }
    let inv = 1.0 / row_scale(kind, word);
    if inv.is_infinite() {
        return Err(RowFault {
            place: RowPlace::Row,
            rule: format!(
                "the scale of largest magnitude {largest:e} / 448 is so small that its reciprocal overflows binary32"
            ),
        });
    }
    Ok(Some((word, inv)))
}

/// The bfloat16 word of a source value.
///
/// # Errors
/// A value that is not finite, or that rounds to infinity.
#[inline]
fn word(column: usize, v: f32) -> Result<u16, RowFault> {
    if !v.is_finite() {
        return Err(RowFault::not_finite(column, v));
    }
    let w = bf16::from_f32(v);
    if w & 0x7fff == 0x7f80 {
        return Err(RowFault {
            place: RowPlace::Column(column),
            rule: format!("source values must stay finite as bfloat16, {v:e} rounds to infinity"),
        });
    }
    Ok(w)
}

/// Encodes one row of binary32 values: stores the codes and returns the multiplier word.
///
/// # Errors
/// The first column, or the row, that breaks a rule.
///
/// # Panics
/// If `codes` has another length than `x`.
pub fn encode_row(kind: RowScale, x: &[f32], codes: &mut [u8]) -> Result<u16, RowFault> {
    assert_eq!(x.len(), codes.len());
    let mut largest = 0u16;
    for (i, &v) in x.iter().enumerate() {
        largest = largest.max(word(i, v)? & 0x7fff);
    }
    let Some((scale, inv)) = scale(kind, bf16::to_f32(largest))? else {
        codes.fill(0);
        return Ok(0);
    };
    for (c, &v) in codes.iter_mut().zip(x) {
        let y = bf16::to_f32(bf16::from_f32(v)) * inv;
        *c = e4m3::from_f32_saturating(y.clamp(-448.0, 448.0));
    }
    Ok(scale)
}
