//! Entries of the decoders, one per format, and the loops over rows and blocks.

use std::ops::Range;

use ninfer_formats::codec::gguf::{
    Block, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Q2K, Q3K, Q4K, Q5K, Q6K,
};
use ninfer_formats::{BlockKind, DirectKind, RowParts, Scheme, TensorView};

use super::{fp8_row, gguf_legacy, grouped, nvfp4};
use crate::isa::neon_entry;
use crate::kernels::DecodeFn;
use crate::scalar::decode::{direct, run};

/// The decoder of a scheme.
pub(crate) fn entry(scheme: Scheme) -> DecodeFn {
    match scheme {
        Scheme::Direct(DirectKind::Bf16) => bf16,
        Scheme::Direct(DirectKind::Fp32 | DirectKind::Int32) => words32,
        Scheme::Grouped(_) => grouped_rows,
        Scheme::Nvfp4 => nvfp4_rows,
        Scheme::RowScaled(_) => fp8_rows,
        Scheme::Gguf(kind) => match kind {
            BlockKind::Q8_0 => q8_0,
            BlockKind::Q4_0 => q4_0,
            BlockKind::Q5_0 => q5_0,
            BlockKind::Q2_0 => q2_0,
            BlockKind::Q2K => q2_k,
            BlockKind::Q3K => q3_k,
            BlockKind::Q4K => q4_k,
            BlockKind::Q5K => q5_k,
            BlockKind::Q6K => q6_k,
            BlockKind::Iq2Xxs => iq2_xxs,
            BlockKind::Iq2Xs => iq2_xs,
            BlockKind::Iq3Xxs => iq3_xxs,
            BlockKind::Iq1S => iq1_s,
            BlockKind::Iq4Nl => iq4_nl,
            BlockKind::Iq3S => iq3_s,
            BlockKind::Iq2S => iq2_s,
            BlockKind::Iq4Xs => iq4_xs,
            BlockKind::Iq1M => iq1_m,
        },
    }
}

/// An entry over a function that decodes whole rows of one kind of parts.
macro_rules! rows {
    ($name:ident, $parts:pat => $decode:expr) => {
        neon_entry! {
            fn $name(view: &TensorView<'_>, k: Range<usize>, out: &mut [f32]) {
                let whole = k == (0..view.k());
                let mut rest = out;
                for r in 0..view.rows() {
                    let (head, tail) = std::mem::take(&mut rest).split_at_mut(k.len());
                    rest = tail;
                    let parts = view.row(r);
                    if let $parts = if whole { parts } else { run(&parts, &k) } {
                        $decode(head);
                    }
                }
            }
        }
    };
}

/// An entry over a function that decodes one block.
macro_rules! blocks {
    ($($name:ident: $function:path, $bytes:literal -> $values:literal;)+) => {
        $(rows!($name, RowParts::Blocks { blocks, .. } => |out: &mut [f32]| {
            let blocks = blocks.as_chunks::<$bytes>().0.iter();
            for (block, out) in blocks.zip(out.as_chunks_mut::<$values>().0) {
                $function(block, out);
            }
        });)+
    };
}

rows!(bf16, RowParts::Direct { bytes, .. } => |out: &mut [f32]| direct(DirectKind::Bf16, bytes, out));
rows!(words32, RowParts::Direct { bytes, .. } => |out: &mut [f32]| direct(DirectKind::Fp32, bytes, out));
rows!(grouped_rows, RowParts::Grouped { scheme, base, high, scales } => |out: &mut [f32]| {
    grouped::row(&scheme, base, high, scales, out);
});
rows!(nvfp4_rows, RowParts::Nvfp4 { codes, scales, divisor } => |out: &mut [f32]| {
    nvfp4::row(codes, &scales, f32::from_bits(divisor), out);
});
rows!(fp8_rows, RowParts::RowScaled { scale_kind, codes, scale } => |out: &mut [f32]| {
    fp8_row::row(codes, ninfer_formats::codec::row_scale(scale_kind, scale), out);
});

blocks! {
    q8_0: gguf_legacy::q8_0, 34 -> 32;
    q4_0: gguf_legacy::q4_0, 18 -> 32;
    q5_0: gguf_legacy::q5_0, 22 -> 32;
    q2_0: gguf_legacy::q2_0, 18 -> 64;
    iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    iq4_xs: gguf_legacy::iq4_xs, 136 -> 256;
}

// The portable source, compiled for this token: the compiler finds what there is to gain.
blocks! {
    q2_k: Q2K::decode, 84 -> 256;
    q3_k: Q3K::decode, 110 -> 256;
    q4_k: Q4K::decode, 144 -> 256;
    q5_k: Q5K::decode, 176 -> 256;
    q6_k: Q6K::decode, 210 -> 256;
    iq2_xxs: Iq2Xxs::decode, 66 -> 256;
    iq2_xs: Iq2Xs::decode, 74 -> 256;
    iq2_s: Iq2S::decode, 82 -> 256;
    iq3_xxs: Iq3Xxs::decode, 98 -> 256;
    iq3_s: Iq3S::decode, 110 -> 256;
    iq1_s: Iq1S::decode, 50 -> 256;
    iq1_m: Iq1M::decode, 56 -> 256;
}
