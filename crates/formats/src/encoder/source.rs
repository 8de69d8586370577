//! Source values: rows of binary16, bfloat16, binary32 or binary64 as binary32, with one rounding.

use super::{RowFault, RowPlace};
use crate::float::{bf16, f16};

/// Row-major source values of one element type.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// IEEE-754 binary32.
    F32(&'a [f32]),
    /// binary16 words; they expand exactly.
    F16(&'a [u16]),
    /// bfloat16 words; they expand exactly.
    Bf16(&'a [u16]),
    /// IEEE-754 binary64; rounds once to binary32, nearest-even.
    F64(&'a [f64]),
}

impl<'a> Source<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) | Self::Bf16(x) => x.len(),
            Self::F64(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements `begin..end`.
    ///
    /// # Panics
    /// If the range is not inside the source.
    #[must_use]
    pub fn slice(&self, begin: usize, end: usize) -> Source<'a> {
        match *self {
            Self::F32(x) => Self::F32(&x[begin..end]),
            Self::F16(x) => Self::F16(&x[begin..end]),
            Self::Bf16(x) => Self::Bf16(&x[begin..end]),
            Self::F64(x) => Self::F64(&x[begin..end]),
        }
    }

    /// The elements as binary32: borrowed if they are, else converted into `scratch`, which grows to fit.
    ///
    /// # Errors
    /// The first finite binary64 value that overflows binary32, by its column in this slice.
    pub fn to_f32<'s>(&self, scratch: &'s mut Vec<f32>) -> Result<&'s [f32], RowFault>
    where
        'a: 's,
    {
        if let Self::F32(x) = *self {
            return Ok(x);
        }
        scratch.resize(self.len(), 0.0);
        self.convert(scratch)?;
        Ok(scratch)
    }

    /// Converts the elements to binary32.
    ///
    /// # Errors
    /// As [`Source::to_f32`].
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline(always)]
    pub fn convert(&self, out: &mut [f32]) -> Result<(), RowFault> {
        assert_eq!(self.len(), out.len());
        match self {
            Self::F32(x) => out.copy_from_slice(x),
            Self::F16(x) => {
                for (o, &w) in out.iter_mut().zip(*x) {
                    *o = f16::to_f32(w);
                }
            }
            Self::Bf16(x) => {
                for (o, &w) in out.iter_mut().zip(*x) {
                    *o = bf16::to_f32(w);
                }
            }
            Self::F64(x) => {
                for (o, &v) in out.iter_mut().zip(*x) {
                    *o = v as f32;
                }
                if let Some(c) = x.iter().zip(&*out).position(|(v, o)| v.is_finite() && !o.is_finite()) {
                    return Err(RowFault {
                        place: RowPlace::Column(c),
                        rule: format!("source values must fit binary32, {:e} does not", x[c]),
                    });
                }
            }
        }
        Ok(())
    }
}
