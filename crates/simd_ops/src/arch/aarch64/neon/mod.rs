//! Kernels of the token `neon`: Advanced SIMD.

mod activations;
mod column;
mod decode;
pub(crate) mod encode;
mod fp8_row;
pub(in crate::arch::aarch64) mod gemm;
mod gemm_a16;
pub(in crate::arch::aarch64) mod gemv;
pub(crate) mod gemv_layout;
mod gemv_scaling;
pub(in crate::arch::aarch64) mod gemv_sums;
pub(in crate::arch::aarch64) mod gemv_unpack;
mod gguf_legacy;
mod grouped;
mod lanes;
mod nvfp4;
pub(in crate::arch::aarch64) mod prims;
mod search;
mod super_blocks;

use ninfer_formats::FormatId;

use crate::gemv::a8_formats;
use crate::kernels::{Common, KernelSet, Products};
use crate::panel::a8_sources;
use gemm::entries::many;
use gemv::entries::columns;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let columns = a8_formats!(format, columns);
    KernelSet {
        decode: Some(decode::entry(format.scheme())),
        a16: Products { one: column::entry(format), ..gemm_a16::entries(format) },
        a8: Products { one: columns, few: columns, many: a8_sources!(format, many) },
        prepared: None,
    }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common =
    Common { narrow: Some(activations::narrow), quantize: Some(activations::quantize), errors: None };
