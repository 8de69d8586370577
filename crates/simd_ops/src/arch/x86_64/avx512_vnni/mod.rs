//! AVX-512 with integer dot products.

mod gemm;
mod turned;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{A8Fn, A16Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use gemm::many;
use turned::{column, few, one, prepared};

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = lane_formats!(format, one, A8Fn);
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = a8_sources!(format, many, many);
    let column = lane_formats!(format, column, A16Fn);
    KernelSet {
        a8: Products { one, few, many },
        a16: Products { one: column, ..Products::NONE },
        prepared,
        ..KernelSet::NONE
    }
}
