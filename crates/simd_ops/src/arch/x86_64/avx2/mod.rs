//! Kernels of the token `avx2`: AVX2, FMA and F16C.

mod activations;
mod decode;
pub(crate) mod encode;
mod fp8_row;
mod gemm;
pub(in crate::arch::x86_64) mod gemm_a16;
mod gemv;
mod gguf_legacy;
mod grouped;
mod lanes;
mod nvfp4;
pub(crate) mod prims;
mod search;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::gemv::a8_formats;
use crate::kernels::{Common, KernelSet, Products};
use gemm::many;
use gemv::columns;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let columns = a8_formats!(format, columns);
    KernelSet {
        decode: Some(decode::entry(format.scheme())),
        a16: Products { many: gemm_a16::entry(format), ..Products::NONE },
        a8: Products { one: columns, few: columns, many: a8_sources!(format, many, many) },
    }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common =
    Common { narrow: Some(activations::narrow), quantize: Some(activations::quantize) };
