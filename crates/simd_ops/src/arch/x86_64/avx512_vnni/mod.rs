//! AVX-512 with integer dot products.

mod along;
pub(super) mod turned;
pub(super) mod wide;

use along::one_q6_k;
use ninfer_formats::FormatId;

use crate::kernels::{A8Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use turned::{few, one, prepared};
use wide::wide;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = match format {
        FormatId::GgufQ6K => Some(one_q6_k as A8Fn),
        _ => lane_formats!(format, one, A8Fn),
    };
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = lane_formats!(format, wide, A8Fn);
    KernelSet { a8: Products { one, few, many }, prepared, ..KernelSet::NONE }
}
