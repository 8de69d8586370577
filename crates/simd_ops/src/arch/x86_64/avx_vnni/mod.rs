//! Kernels of the token `avx_vnni`: AVX2 with 256-bit integer dot products.

mod entries;
mod gemm;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{A8Fn, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use entries::{few, one, one_q6_k, prepared};
use gemm::many;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = match format {
        FormatId::GgufQ6K => Some(one_q6_k as A8Fn),
        _ => lane_formats!(format, one, A8Fn),
    };
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    KernelSet { a8: Products { one, few, many: a8_sources!(format, many) }, prepared, ..KernelSet::NONE }
}
