//! Kernels of the token `avx512_vbmi`: grids looked up in registers, beside `avx512_vnni`.

mod column;
mod grouped;
mod turned;
pub(super) mod wide;

use ninfer_formats::FormatId;
use ninfer_formats::codec::gguf;

use crate::kernels::{A8Fn, A16Fn, KernelSet, PreparedFn, Products};
use crate::lanes::{Codes, Tabled};
use turned::{few, one, prepared};
use wide::wide;

/// The entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    fn of<S: Codes>() -> KernelSet {
        let many = Some(wide::<S> as A8Fn);
        let a8 = Products { one: Some(one::<S> as A8Fn), few: Some(few::<S>), many };
        KernelSet { a8, prepared: Some(prepared::<S> as PreparedFn), ..KernelSet::NONE }
    }
    let a16 = Products {
        one: match format {
            FormatId::GgufIq3Xxs => Some(column::iq3_xxs as A16Fn),
            FormatId::GgufIq3S => Some(column::iq3_s as A16Fn),
            FormatId::Q5G64Fp16 => Some(column::groups::<5, 64, 32, 8>),
            FormatId::Q6G64Fp16 => Some(column::groups::<6, 64, 32, 16>),
            _ => None,
        },
        ..Products::NONE
    };
    let set = match format {
        FormatId::GgufIq2Xxs => of::<Tabled<gguf::Iq2Xxs>>(),
        // Repacked and with one column it is no faster.
        FormatId::GgufIq1S => KernelSet { prepared: None, ..of::<Tabled<gguf::Iq1S>>() },
        FormatId::GgufIq1M => of::<Tabled<gguf::Iq1M>>(),
        FormatId::GgufIq2Xs => of::<Tabled<gguf::Iq2Xs>>(),
        FormatId::GgufIq2S => of::<Tabled<gguf::Iq2S>>(),
        FormatId::GgufIq3S => of::<Tabled<gguf::Iq3S>>(),
        FormatId::GgufIq3Xxs => of::<Tabled<gguf::Iq3Xxs>>(),
        _ => KernelSet::NONE,
    };
    KernelSet { a16, ..set }
}
