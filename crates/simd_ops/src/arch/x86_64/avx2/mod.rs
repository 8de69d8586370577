//! Kernels of the token `avx2`: AVX2, FMA and F16C.

mod activations;
mod along;
mod column;
mod decode;
pub(crate) mod encode;
pub(in crate::arch::x86_64) mod entries;
mod fp8_row;
pub(in crate::arch::x86_64) mod gemm;
pub(in crate::arch::x86_64) mod gemm_a16;
pub(in crate::arch::x86_64) mod gguf_absmax;
mod gguf_iq;
mod gguf_k;
mod gguf_legacy;
mod grouped;
mod lanes;
mod nvfp4;
pub(crate) mod prims;
mod search;
pub(in crate::arch::x86_64) mod turned;

use ninfer_formats::FormatId;

use crate::arch::x86_64::a8_sources;
use crate::kernels::{A8Fn, Common, KernelSet, PreparedFn, Products};
use crate::lanes::lane_formats;
use along::one_q6_k;
use entries::{few, one, prepared};
use gemm::many;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let one = match format {
        FormatId::GgufQ6K => Some(one_q6_k as A8Fn),
        _ => lane_formats!(format, one, A8Fn),
    };
    let few = lane_formats!(format, few, A8Fn);
    let prepared = lane_formats!(format, prepared, PreparedFn);
    let many = match format {
        // Sixteen columns at a time are faster for any number.
        FormatId::GgufQ2K => None,
        _ => a8_sources!(format, many),
    };
    KernelSet {
        decode: Some(decode::entry(format.scheme())),
        a16: Products { one: column::entry(format), ..gemm_a16::entries(format) },
        a8: Products { one, few, many },
        prepared,
    }
}

/// The entries that do not depend on a format.
pub(crate) const COMMON: Common = Common {
    narrow: Some(activations::narrow),
    quantize: Some(activations::quantize),
    errors: Some(activations::errors),
};
