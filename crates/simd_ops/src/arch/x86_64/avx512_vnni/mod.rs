//! AVX-512 with integer dot products.

mod gemm;
mod gemv;
mod gemv_unpack;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::gemv::a8_formats;
use crate::kernels::{KernelSet, Products};
use gemm::many;
use gemv::columns;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let columns = a8_formats!(format, columns);
    let many = a8_sources!(format, many, many);
    KernelSet { a8: Products { one: columns, few: columns, many }, ..KernelSet::NONE }
}
