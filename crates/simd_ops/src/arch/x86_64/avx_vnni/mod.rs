//! Kernels of the token `avx_vnni`: AVX2 with 256-bit integer dot products.

mod entries;
mod gemm;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{A8Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use entries::{few, one, prepared};
use gemm::many;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = lane_formats!(format, one, A8Fn);
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = match format {
        // As on `avx2`.
        FormatId::GgufQ2K => None,
        _ => a8_sources!(format, many),
    };
    KernelSet { a8: Products { one, few, many }, prepared, ..KernelSet::NONE }
}
