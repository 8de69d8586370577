//! The formats with an integer path, as panels see them.

/// The generic matrix-matrix entry `$many` for the source of a format with an integer path.
macro_rules! a8_sources {
    ($format:expr, $many:ident) => {{
        use ninfer_formats::codec::gguf;
        use ninfer_formats::{BlockKind as K, FormatId as F, Scheme};
        use $crate::kernels::A8Fn;
        use $crate::panel::{Blocks, Folded, Grouped};
        let entry: Option<A8Fn> = match $format.scheme() {
            Scheme::Direct(_) | Scheme::RowScaled(_) => None,
            Scheme::Nvfp4 => Some($many::<$crate::panel::Nvfp4>),
            Scheme::Grouped(_) => match $format {
                F::Q2G64Fp16 => Some($many::<Grouped<2, 64, true>>),
                F::T2G128Fp16 => Some($many::<Grouped<2, 128, false>>),
                F::Q4G64Fp16 => Some($many::<Grouped<4, 64, false>>),
                F::Q5G64Fp16 => Some($many::<Grouped<5, 64, false>>),
                F::Q6G64Fp16 => Some($many::<Grouped<6, 64, false>>),
                F::Q8G32Fp16 => Some($many::<Grouped<8, 32, false>>),
                _ => None,
            },
            Scheme::Gguf(kind) => match kind {
                K::Q8_0 => Some($many::<Blocks<gguf::Q8_0>>),
                K::Q4_0 => Some($many::<Blocks<gguf::Q4_0>>),
                K::Q5_0 => Some($many::<Blocks<gguf::Q5_0>>),
                K::Q2_0 => Some($many::<Blocks<gguf::Q2_0>>),
                K::Q2K => Some($many::<Folded<gguf::Q2K, false>>),
                K::Q3K => Some($many::<Folded<gguf::Q3K, true>>),
                K::Q4K => Some($many::<Blocks<gguf::Q4K>>),
                K::Q5K => Some($many::<Blocks<gguf::Q5K>>),
                K::Q6K => Some($many::<Blocks<gguf::Q6K>>),
                K::Iq2Xxs => Some($many::<Blocks<gguf::Iq2Xxs>>),
                K::Iq2Xs => Some($many::<Blocks<gguf::Iq2Xs>>),
                K::Iq3Xxs => Some($many::<Blocks<gguf::Iq3Xxs>>),
                K::Iq1S => Some($many::<Blocks<gguf::Iq1S>>),
                K::Iq4Nl => Some($many::<Blocks<gguf::Iq4Nl>>),
                K::Iq3S => Some($many::<Blocks<gguf::Iq3S>>),
                K::Iq2S => Some($many::<Blocks<gguf::Iq2S>>),
                K::Iq4Xs => Some($many::<Blocks<gguf::Iq4Xs>>),
                K::Iq1M => Some($many::<Blocks<gguf::Iq1M>>),
            },
        };
        entry
    }};
}
pub(crate) use a8_sources;
