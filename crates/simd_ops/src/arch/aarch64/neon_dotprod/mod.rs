//! Kernels of the token `neon_dotprod`: Advanced SIMD with the 8-bit dot products.

pub(in crate::arch::aarch64) mod dot;
mod gemm;
mod gemv;

use ninfer_formats::FormatId;

use crate::gemv::a8_formats;
use crate::kernels::{KernelSet, Products};
use crate::panel::a8_sources;
use gemm::many;
use gemv::columns;

/// The entries of a format; decoders and the rest are those of `neon`.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let columns = a8_formats!(format, columns);
    let many = a8_sources!(format, many);
    KernelSet { a8: Products { one: columns, few: columns, many }, ..KernelSet::NONE }
}
