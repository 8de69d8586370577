//! The portable kernels: complete, and the reference that all others must equal bit for bit.
//!
//! The bodies are generic over how they fuse ([`Fused`]) and marked `#[inline(always)]`, so that another token may
//! compile the same source for its features where that is fast enough.

pub(crate) mod a16;
pub(crate) mod a8;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod errors;

pub(crate) use a8::Run;

use ninfer_formats::codec::Half;
use ninfer_formats::{BlockKind, DirectKind, FormatId, Scheme, codec::gguf};

use crate::kernels::{A8Fn, A16Fn, Common, KernelSet, Products};
use crate::order::{Baseline, Fused};
use crate::q8_1;

/// The scalar entries of a format.
pub(crate) fn kernels(format: FormatId) -> KernelSet {
    let only = |entry: A8Fn| Products { one: None, few: None, many: Some(entry) };
    let a8 = match format.scheme() {
        Scheme::Direct(_) | Scheme::RowScaled(_) => Products::NONE,
        Scheme::Grouped(_) => only(a8::grouped::<Baseline>),
        Scheme::Nvfp4 => only(a8::nvfp4::<Baseline>),
        Scheme::Gguf(kind) => only(a8_blocks::<Baseline>(kind)),
    };
    let a16: Products<A16Fn> = match format.scheme() {
        Scheme::Direct(DirectKind::Int32) => Products::NONE,
        _ => Products {
            one: None,
            few: None,
            many: Some(|v, x, c, out, s| a16::rows::<Baseline>(v, x, c, out, s, decode::row)),
        },
    };
    KernelSet {
        decode: Some(|view, k, out| decode::panel(view, k, out, decode::row)),
        a16,
        a8,
        prepared: None,
    }
}

/// The scalar entries that do not depend on a format.
pub(crate) const COMMON: Common =
    Common { narrow: Some(narrow), quantize: Some(q8_1::quantize_column), errors: Some(errors::errors) };

/// See [`crate::kernels::NarrowFn`].
#[inline(always)]
pub(crate) fn narrow(half: Half, values: &[f32], words: &mut [u16]) -> bool {
    let mut infinite = false;
    for (word, &value) in words.iter_mut().zip(values) {
        *word = half.round(value);
        infinite |= half.is_infinite(*word);
    }
    infinite
}

fn a8_blocks<F: Fused>(kind: BlockKind) -> A8Fn {
    macro_rules! of_kind {
        ($($name:ident)+) => {
            match kind { $(BlockKind::$name => a8::blocks::<gguf::$name, F>),+ }
        };
    }
    of_kind!(Q8_0 Q4_0 Q5_0 Q2_0 Q2K Q3K Q4K Q5K Q6K Iq2Xxs Iq2Xs Iq3Xxs Iq1S Iq4Nl Iq3S Iq2S Iq4Xs Iq1M)
}
