//! Kernels of the token `avx2`: AVX2, FMA and F16C.

mod activations;
mod decode;
pub(crate) mod encode;
mod fp8_row;
mod gguf_legacy;
mod grouped;
mod nvfp4;
pub(crate) mod prims;
mod search;

use ninfer_formats::FormatId;

use crate::kernels::{Common, KernelSet};

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    KernelSet { decode: Some(decode::entry(format.scheme())), ..KernelSet::NONE }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common =
    Common { narrow: Some(activations::narrow), quantize: Some(activations::quantize) };
