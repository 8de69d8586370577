//! AVX-512 with integer dot products.

mod gemm;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{KernelSet, Products};
use gemm::many;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet { a8: Products { many: a8_sources!(format, many, many), ..Products::NONE }, ..KernelSet::NONE }
}
