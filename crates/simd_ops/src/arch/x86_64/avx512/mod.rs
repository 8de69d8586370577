//! Kernels of the token `avx512`: AVX-512 F, BW, DQ and VL.

mod activations;
pub(in crate::arch::x86_64) mod column;
mod decode;
pub(crate) mod encode;
mod fp8_row;
pub(in crate::arch::x86_64) mod gemm;
pub(in crate::arch::x86_64) mod gemm_a16;
mod gemm_a8;
mod gemm_rows16;
pub(in crate::arch::x86_64) mod gguf_iq;
mod gguf_k;
pub(in crate::arch::x86_64) mod gguf_legacy;
pub(in crate::arch::x86_64) mod grouped;
mod lanes;
mod nvfp4;
pub(crate) mod prims;
mod search;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{Common, KernelSet, Products};
use gemm_a8::many;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet {
        decode: Some(decode::entry(format.scheme())),
        a16: Products { one: column::entry(format), ..gemm_a16::entries(format) },
        a8: Products { many: a8_sources!(format, many), ..Products::NONE },
        prepared: None,
    }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common = Common {
    narrow: Some(activations::narrow),
    quantize: Some(activations::quantize),
    errors: Some(activations::errors),
};
