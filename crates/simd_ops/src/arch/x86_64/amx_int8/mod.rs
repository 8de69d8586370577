//! Kernels of the token `amx_int8`: tile registers with 8-bit dot products, beside `avx512_vbmi`.

mod gemm;
mod halves;
mod tiles;

use ninfer_formats::FormatId;
use ninfer_formats::codec::gguf;

use crate::kernels::{A8Fn, KernelSet, Products};
use crate::lanes::{Codes, Ggml, Nvfp4, Tabled, lane_formats, many};
use gemm::wide;
pub(crate) use tiles::available;

/// The entries of a format. Those with sums of 16 values need tiles of bfloat16 numbers, without which they are left to
/// `avx512_vnni`.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    fn of<S: Codes>() -> Option<A8Fn> {
        if many::split::<S>() { None } else { Some(wide::<S>) }
    }
    let halves: Option<A8Fn> = match format {
        FormatId::Nvfp4 => Some(halves::wide::<Nvfp4>),
        FormatId::GgufQ6K => Some(halves::wide::<Ggml<gguf::Q6K>>),
        FormatId::GgufIq2Xs => Some(halves::wide::<Tabled<gguf::Iq2Xs>>),
        FormatId::GgufIq2S => Some(halves::wide::<Tabled<gguf::Iq2S>>),
        FormatId::GgufIq1M => Some(halves::wide::<Tabled<gguf::Iq1M>>),
        _ => None,
    };
    let tabled: Option<A8Fn> = match format {
        FormatId::GgufIq2Xxs => Some(wide::<Tabled<gguf::Iq2Xxs>>),
        FormatId::GgufIq3Xxs => Some(wide::<Tabled<gguf::Iq3Xxs>>),
        FormatId::GgufIq3S => Some(wide::<Tabled<gguf::Iq3S>>),
        FormatId::GgufIq1S => Some(wide::<Tabled<gguf::Iq1S>>),
        _ => None,
    };
    let many = halves
        .filter(|_| tiles::bfloat16())
        .or(tabled)
        .or_else(|| lane_formats!(format, of, fn() -> Option<A8Fn>).and_then(|of| of()));
    KernelSet { a8: Products { many, ..Products::NONE }, ..KernelSet::NONE }
}

/// Columns from which on a format's entry is faster than that of `avx512_vnni`. Numbers of bfloat16 take longer to unpack,
/// most of all where a code times its factor is two of them.
pub(crate) fn least(format: FormatId) -> usize {
    match format {
        FormatId::GgufIq1M => 80,
        FormatId::Nvfp4 | FormatId::GgufQ6K | FormatId::GgufIq2Xs | FormatId::GgufIq2S => 256,
        _ => 0,
    }
}
