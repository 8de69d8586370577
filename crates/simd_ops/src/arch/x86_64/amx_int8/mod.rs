//! Kernels of the token `amx_int8`: tile registers with 8-bit dot products, beside `avx512_vnni`.

mod gemm;
mod tiles;

use ninfer_formats::FormatId;

use crate::kernels::{A8Fn, KernelSet, Products};
use crate::lanes::{Codes, lane_formats, many};
use gemm::wide;
pub(crate) use tiles::available;

/// The entries of a format. Formats with sums of 16 values would need two tiles a block, which measured no faster than
/// `avx512_vnni`: they are left to it.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    fn of<S: Codes>() -> Option<A8Fn> {
        if many::split::<S>() { None } else { Some(wide::<S>) }
    }
    let many = lane_formats!(format, of, fn() -> Option<A8Fn>).and_then(|of| of());
    KernelSet { a8: Products { many, ..Products::NONE }, ..KernelSet::NONE }
}
