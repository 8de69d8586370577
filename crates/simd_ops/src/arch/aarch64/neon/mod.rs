//! Kernels of the token `neon`: Advanced SIMD.

mod activations;
mod decode;
mod fp8_row;
mod gguf_legacy;
mod grouped;
mod nvfp4;
pub(in crate::arch::aarch64) mod prims;

use ninfer_formats::FormatId;

use crate::kernels::{Common, KernelSet};

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet { decode: Some(decode::entry(format.scheme())), ..KernelSet::NONE }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common =
    Common { narrow: Some(activations::narrow), quantize: Some(activations::quantize) };
