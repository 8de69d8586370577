//! Kernels of the token `amx_int8`: tile registers with 8-bit dot products, beside `avx512_vnni`.

mod gemm;
mod tiles;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{KernelSet, Products};
use gemm::many;
pub(crate) use tiles::available;

/// The entries of a format. Formats with sums of 16 values would need two tiles a block, which is no faster than
/// `avx512_vnni`: they are left to it.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet { a8: Products { many: a8_sources!(format, many, none), ..Products::NONE }, ..KernelSet::NONE }
}
