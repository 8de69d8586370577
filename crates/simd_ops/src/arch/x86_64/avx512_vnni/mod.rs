//! AVX-512 with integer dot products.

pub(super) mod turned;
pub(super) mod wide;

use ninfer_formats::FormatId;

use crate::kernels::{A8Fn, A16Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use turned::{column, few, one, prepared};
use wide::wide;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = lane_formats!(format, one, A8Fn);
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = lane_formats!(format, wide, A8Fn);
    let column = lane_formats!(format, column, A16Fn);
    KernelSet {
        a8: Products { one, few, many },
        a16: Products { one: column, ..Products::NONE },
        prepared,
        ..KernelSet::NONE
    }
}
