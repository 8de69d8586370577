//! AVX-512 with integer dot products.

mod gemm;
mod turned;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{A8Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use gemm::many;
use turned::{few, one, prepared};

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = lane_formats!(format, one, A8Fn);
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = a8_sources!(format, many, many);
    KernelSet { a8: Products { one, few, many }, prepared, ..KernelSet::NONE }
}
