//! `cast_direct`: values to direct words (encoder specification, `cast_direct`).

use crate::encoder::EncoderId;
use crate::error::FormatError;
use crate::float::{bf16, f16};
use crate::layout::encoded_size;
use crate::registry::FormatId;
use crate::scheme::{DirectKind, Scheme};
use crate::shape::ShapeText;

/// Values of one type, in C order.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// binary64.
    F64(&'a [f64]),
    /// binary32.
    F32(&'a [f32]),
    /// binary16 words.
    F16(&'a [u16]),
    /// bfloat16 words.
    Bf16(&'a [u16]),
    /// Signed integers of any width up to 64 bits.
    I64(&'a [i64]),
    /// Unsigned integers of any width up to 64 bits.
    U64(&'a [u64]),
}

impl Values<'_> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F64(x) => x.len(),
            Self::F32(x) => x.len(),
            Self::F16(x) | Self::Bf16(x) => x.len(),
            Self::I64(x) => x.len(),
            Self::U64(x) => x.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// binary64 to binary32, nearest-even; overflow gives infinity, a NaN keeps its sign and the top of its payload and
/// becomes quiet. (A cast leaves the bits of a NaN open.)
fn narrow(x: f64) -> f32 {
    if x.is_nan() {
        let bits = x.to_bits();
        let sign = ((bits >> 32) as u32) & 0x8000_0000;
        let payload = ((bits >> 29) as u32) & 0x003f_ffff;
        return f32::from_bits(sign | 0x7fc0_0000 | payload);
    }
    x as f32
}

/// Encodes values as a payload of `bf16`, `fp32` or `int32` with the given shape (elements).
///
/// * Same type: bit for bit, signalling NaNs too. bfloat16 and binary16 to `fp32` is exact (a NaN keeps its payload).
/// * To `bf16`: nearest-even from binary32; overflow gives infinity, a NaN keeps its sign and top payload bits and
///   becomes quiet. binary64 is rounded to binary32 first and then to bfloat16: two roundings.
/// * binary64 to `fp32`: one rounding, the same rules for overflow and NaN.
/// * To `int32`: every value must be integral and lie in `[-2^31, 2^31 - 1]`; -0.0 is 0.
/// * Integers go to `int32` only.
///
/// # Errors
/// [`FormatError::Source`] for the first value that `int32` cannot hold, in C order; [`FormatError::Unsupported`] for
/// a target that is not direct and for integers to floating point; shape and length errors.
pub fn cast_direct(format: FormatId, shape: &[u64], values: Values<'_>) -> Result<Vec<u8>, FormatError> {
    let Scheme::Direct(kind) = format.scheme() else {
        return Err(FormatError::Unsupported {
            format: format.name(),
            what: format!("{} produces only direct formats", EncoderId::CastDirect.name()),
        });
    };
    let bytes = encoded_size(format, shape, 1)?;
    let expected = bytes / kind.word_bytes() as u64;
    if expected != values.len() as u64 {
        return Err(FormatError::BufferSize {
            what: "the source",
            unit: "elements",
            expected,
            actual: values.len() as u64,
        });
    }
    let to_float = |values: Values<'_>| -> Result<Vec<u8>, FormatError> {
        Ok(match (kind, values) {
            (DirectKind::Bf16, Values::F64(x)) => words(x, |v| bf16::from_f32(narrow(v)).to_le_bytes()),
            (DirectKind::Bf16, Values::F32(x)) => words(x, |v| bf16::from_f32(v).to_le_bytes()),
            (DirectKind::Bf16, Values::F16(x)) => words(x, |v| bf16::from_f32(f16::to_f32(v)).to_le_bytes()),
            (DirectKind::Bf16, Values::Bf16(x)) => words(x, u16::to_le_bytes),
            (_, Values::F64(x)) => words(x, |v| narrow(v).to_bits().to_le_bytes()),
            (_, Values::F32(x)) => words(x, |v| v.to_bits().to_le_bytes()),
            (_, Values::F16(x)) => words(x, |v| f16::to_f32_bits(v).to_le_bytes()),
            (_, Values::Bf16(x)) => words(x, |v| (u32::from(v) << 16).to_le_bytes()),
            (_, Values::I64(_) | Values::U64(_)) => {
                return Err(FormatError::Unsupported {
                    format: format.name(),
                    what: "integers are not converted to floating point; convert them explicitly".into(),
                });
            }
        })
    };
    match kind {
        DirectKind::Bf16 | DirectKind::Fp32 => to_float(values),
        DirectKind::Int32 => {
            let refuse = |at: usize, value: String, rule: &'static str| FormatError::Source {
                format: format.name(),
                index: unravel(at as u64, shape),
                value,
                rule,
            };
            match values {
                Values::F64(x) => integers(x, float_to_i32, refuse),
                Values::F32(x) => integers(x, |v| float_to_i32(f64::from(v)), refuse),
                Values::F16(x) => integers(
                    x,
                    |w| float_to_i32(f64::from(f16::to_f32(w))),
                    |i, _, rule| refuse(i, f16::to_f32(x[i]).to_string(), rule),
                ),
                Values::Bf16(x) => integers(
                    x,
                    |w| float_to_i32(f64::from(bf16::to_f32(w))),
                    |i, _, rule| refuse(i, bf16::to_f32(x[i]).to_string(), rule),
                ),
                Values::I64(x) => integers(x, |v| i32::try_from(v).map_err(|_| RANGE), refuse),
                Values::U64(x) => integers(x, |v| i32::try_from(v).map_err(|_| RANGE), refuse),
            }
        }
    }
}

const RANGE: &str = "int32 holds -2147483648..=2147483647";
const INTEGRAL: &str = "int32 takes integral values only";
const FINITE: &str = "int32 takes finite values only";

fn float_to_i32(x: f64) -> Result<i32, &'static str> {
    if !x.is_finite() {
        return Err(FINITE);
    }
    if x.fract() != 0.0 {
        return Err(INTEGRAL);
    }
    if !(-2_147_483_648.0..=2_147_483_647.0).contains(&x) {
        return Err(RANGE);
    }
    // Integral and in range, so the cast is exact.
    Ok(x as i32)
}

fn words<T: Copy, const W: usize>(x: &[T], f: impl Fn(T) -> [u8; W]) -> Vec<u8> {
    let mut out = vec![0u8; x.len() * W];
    for (word, &v) in out.as_chunks_mut::<W>().0.iter_mut().zip(x) {
        *word = f(v);
    }
    out
}

fn integers<T: Copy + std::fmt::Display>(
    x: &[T],
    f: impl Fn(T) -> Result<i32, &'static str>,
    refuse: impl Fn(usize, String, &'static str) -> FormatError,
) -> Result<Vec<u8>, FormatError> {
    let mut out = vec![0u8; x.len() * 4];
    for (i, (word, &v)) in out.as_chunks_mut::<4>().0.iter_mut().zip(x).enumerate() {
        *word = f(v).map_err(|rule| refuse(i, v.to_string(), rule))?.to_le_bytes();
    }
    Ok(out)
}

/// The index, one number per dimension, of the element at C-order position `at`.
fn unravel(mut at: u64, shape: &[u64]) -> ShapeText {
    let mut index = vec![0; shape.len()];
    for (i, &d) in index.iter_mut().zip(shape).rev() {
        *i = at % d;
        at /= d;
    }
    ShapeText(index)
}
