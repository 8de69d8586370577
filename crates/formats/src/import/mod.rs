//! `import_encoded`: already quantised sources to payloads. Words are copied or re-packed, never rounded (encoder
//! specification, import table); the one exception that page writes is an FP8 row scale given in binary32.
//!
//! What a source holds and its target does not admit (a code outside the interval, a negative zero scale) is refused
//! with row and group, never repaired.

pub mod fp8;
pub mod gguf;
pub mod nvfp4;
pub mod ternary;

pub use fp8::{Fp8Import, Fp8Scales, import_fp8};
pub use gguf::{BlockImport, import_blocks};
pub use nvfp4::{Nvfp4Global, Nvfp4Source, import_nvfp4};

use crate::encoder::{RowFault, RowPlace};
use crate::error::FormatError;
use crate::registry::FormatId;

/// Name of the method in provenance and messages.
pub const METHOD: &str = "import_encoded";

pub(crate) fn refused(format: FormatId, row: u64, fault: &RowFault) -> FormatError {
    FormatError::Refused {
        format: format.name(),
        method: METHOD,
        place: fault.place.at(row),
        rule: fault.rule.clone(),
    }
}

pub(crate) fn group_fault(group: usize, rule: impl Into<String>) -> RowFault {
    RowFault { place: RowPlace::Group(group), rule: rule.into() }
}

/// Rules of a grouped scale other than those of `q2_g64_fp16`; `zero_codes` says whether all codes are zero.
pub(crate) fn check_scale(group: usize, word: u16, zero_codes: bool) -> Result<(), RowFault> {
    if word & 0x7c00 == 0x7c00 {
        return Err(group_fault(group, format!("the scale word {word:#06x} is not finite")));
    }
    if word == 0x8000 {
        return Err(group_fault(
            group,
            "the scale is negative zero (0x8000), which the format does not admit",
        ));
    }
    if word == 0 && !zero_codes {
        return Err(group_fault(group, "a zero scale has codes that are not zero"));
    }
    Ok(())
}

pub(crate) fn need(
    what: &'static str,
    unit: &'static str,
    expected: Option<usize>,
    actual: usize,
) -> Result<(), FormatError> {
    if expected == Some(actual) {
        return Ok(());
    }
    let expected = expected.map_or(u64::MAX, |e| e as u64);
    Err(FormatError::BufferSize { what, unit, expected, actual: actual as u64 })
}
