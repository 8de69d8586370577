//! Buffers whose size depends on the input: memory that cannot be had is an error, not the end of the process.

use crate::error::FormatError;

/// An empty vector with room for `count` elements.
///
/// # Errors
/// [`FormatError::Memory`] if the allocator refuses.
pub(crate) fn with_capacity<T>(count: usize) -> Result<Vec<T>, FormatError> {
    let mut out = Vec::new();
    match out.try_reserve_exact(count) {
        Ok(()) => Ok(out),
        Err(_) => Err(FormatError::Memory { bytes: (count as u64).saturating_mul(size_of::<T>() as u64) }),
    }
}

/// `bytes` zero bytes, for a payload.
///
/// # Errors
/// [`FormatError::Memory`] if the allocator refuses.
pub fn zeroed(bytes: usize) -> Result<Vec<u8>, FormatError> {
    // A trial first: `vec!` gets untouched zero pages from the system, but cannot report a refusal.
    drop(with_capacity::<u8>(bytes)?);
    Ok(vec![0; bytes])
}
