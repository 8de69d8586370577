//! Errors of the crate.

use ninfer_formats::FormatError;

/// What went wrong, with the names and numbers that locate it. No operation panics on any input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The tensor itself, or its format, refuses the operation.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A buffer has the wrong length.
    #[error("{what} must hold exactly {expected} {unit}, got {actual}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Unit of the two numbers.
        unit: &'static str,
        /// Length needed.
        expected: usize,
        /// Length given.
        actual: usize,
    },
    /// A length computed from shapes exceeds the address space.
    #[error("{what} of {rows} x {columns} elements does not fit in memory")]
    TooLarge {
        /// Which buffer.
        what: &'static str,
        /// First factor.
        rows: usize,
        /// Second factor.
        columns: usize,
    },
    /// The system has no memory for a buffer.
    #[error("no memory for {bytes} bytes of {what}")]
    Memory {
        /// Which buffer.
        what: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// The rows of a bank are no whole number of experts.
    #[error("{rows} rows are no whole number of {experts} experts")]
    Bank {
        /// Rows of the view.
        rows: usize,
        /// Experts that it is said to hold.
        experts: usize,
    },
    /// A chosen expert does not exist.
    #[error("expert {expert} (choice {index}) is outside the {experts} experts of the bank")]
    Expert {
        /// Position among the choices.
        index: usize,
        /// The number chosen.
        expert: usize,
        /// Experts of the bank.
        experts: usize,
    },
    /// Repacked weights were used with a tensor that they were not made from.
    #[error("the repacked weights are those of another tensor")]
    OtherWeights,
    /// No instruction-set token has this name.
    #[error("unknown instruction set {name:?} in {origin}; available here: {available}")]
    UnknownIsa {
        /// The name (at most 40 characters of it).
        name: String,
        /// Where it came from: `NINFER_SIMD` or the call.
        origin: &'static str,
        /// Names of the tokens that this machine can run.
        available: String,
    },
    /// The token exists, but this machine cannot run it.
    #[error(
        "instruction set {name} ({origin}) is not available on this machine; available here: {available}"
    )]
    UnavailableIsa {
        /// The token's name.
        name: &'static str,
        /// Where it came from: `NINFER_SIMD` or the call.
        origin: &'static str,
        /// Names of the tokens that this machine can run.
        available: String,
    },
    /// An activation is NaN or infinite and was to be quantised.
    #[error("activation at column {column}, index {index} is {value}; q8_1 takes finite values only")]
    NonFinite {
        /// Column (position among the T columns).
        column: usize,
        /// Index within the column's K values.
        index: usize,
        /// The value, printed.
        value: String,
    },
    /// A thread count of zero.
    #[error("threads must be at least 1")]
    ZeroThreads,
    /// The worker threads could not be started.
    #[error("cannot start worker threads: {reason}")]
    Workers {
        /// The system's reason.
        reason: String,
    },
}

/// Resizes a buffer, or says that there is no memory for it; then the buffer is as it was.
pub(crate) fn resize<T: Clone>(
    buffer: &mut Vec<T>,
    len: usize,
    value: T,
    what: &'static str,
) -> Result<(), OpError> {
    let more = len.saturating_sub(buffer.len());
    if buffer.try_reserve_exact(more).is_err() {
        return Err(OpError::Memory { what, bytes: len.saturating_mul(size_of::<T>()) });
    }
    buffer.resize(len, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_buffers_are_refused_and_leave_the_old_one() {
        let mut buffer = vec![1.5f32; 3];
        // More bytes than an allocation may have, on machines of 32 bits, too.
        let error = resize(&mut buffer, usize::MAX / 4, 0.0, "test values").unwrap_err();
        assert!(matches!(error, OpError::Memory { what: "test values", .. }), "{error}");
        assert_eq!(buffer, [1.5; 3]);
        assert_eq!(resize(&mut buffer, 4, 0.5, "test values"), Ok(()));
        assert_eq!(buffer, [1.5, 1.5, 1.5, 0.5]);
    }
}
