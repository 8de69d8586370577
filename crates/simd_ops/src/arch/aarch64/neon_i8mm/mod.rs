//! Kernels of the token `neon_i8mm`: Advanced SIMD with the 8-bit matrix products.

mod gemm;

use ninfer_formats::FormatId;

use crate::kernels::{KernelSet, Products};
use crate::panel::a8_sources;
use gemm::many;

/// The entries of a format; those of narrow products are those of `neon_dotprod`.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet { a8: Products { many: a8_sources!(format, many), ..Products::NONE }, ..KernelSet::NONE }
}
