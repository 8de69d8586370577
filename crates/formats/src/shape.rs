//! Shapes and their checked products.

use crate::error::FormatError;
use crate::registry::FormatId;

/// Largest rank of a tensor.
pub const MAX_RANK: usize = 16;

/// A shape as it is printed in messages: at most [`MAX_RANK`] dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeText(pub Vec<u64>);

impl ShapeText {
    /// Takes the dimensions of `shape`.
    #[must_use]
    pub fn of(shape: &[u64]) -> Self {
        Self(shape.iter().copied().take(MAX_RANK + 1).collect())
    }
}

impl std::fmt::Display for ShapeText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().take(MAX_RANK).enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str(if self.0.len() > MAX_RANK { ", ...]" } else { "]" })
    }
}

pub(crate) fn shape_error(format: FormatId, shape: &[u64], rule: impl Into<String>) -> FormatError {
    FormatError::Shape { format: format.name(), shape: ShapeText::of(shape), rule: rule.into() }
}

pub(crate) fn overflow(format: FormatId, shape: &[u64], limit: &'static str) -> FormatError {
    FormatError::SizeOverflow { format: format.name(), shape: ShapeText::of(shape), limit }
}

/// `ceil(x / a) * a`, or `None` on overflow.
#[must_use]
pub(crate) const fn align_up(x: u64, a: u64) -> Option<u64> {
    match x.checked_add(a - 1) {
        Some(y) => Some(y / a * a),
        None => None,
    }
}

/// Product of the dimensions, or `None` on overflow; 1 for rank 0.
#[must_use]
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    // A zero anywhere makes the product zero even when the other factors overflow.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |a, &d| a.checked_mul(d))
}

/// `size` bytes as a length that a buffer can have on this machine: at most `isize::MAX`, which 32-bit machines meet
/// at 2 GiB and where allocating more panics.
///
/// # Errors
/// [`FormatError::SizeOverflow`].
pub(crate) fn buffer_len(format: FormatId, shape: &[u64], size: u64) -> Result<usize, FormatError> {
    match isize::try_from(size) {
        Ok(len) => Ok(len.unsigned_abs()),
        Err(_) => Err(overflow(format, shape, "the address space of this machine")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_end_where_allocations_do() {
        let most = isize::MAX.unsigned_abs();
        let of = |size| buffer_len(FormatId::Fp32, &[size, 1], size);
        assert_eq!(of(0), Ok(0));
        assert_eq!(of(most as u64), Ok(most));
        for size in [most as u64 + 1, u64::MAX] {
            let error = of(size).unwrap_err();
            assert!(matches!(error, FormatError::SizeOverflow { .. }), "{error}");
            assert!(error.to_string().contains("address space"), "{error}");
        }
    }
}
