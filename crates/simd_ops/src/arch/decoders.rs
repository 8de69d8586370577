//! The decoders of a token: one entry per format, and the loops over rows and blocks, written once for all tokens.

/// Makes `entry`, the decoder of a scheme, and the entries behind it. `$entry` compiles a function for the token; rows of
/// grouped formats, `nvfp4` and FP8 are decoded by the token's modules of these names, blocks by the functions given,
/// with the bytes and values of a block; `$given` says whether they take a `block` or those of several `rows`.
macro_rules! decoders {
    (@rows $entry:ident, $name:ident, $parts:pat => $decode:expr) => {
        $entry! {
            fn $name(
                view: &ninfer_formats::TensorView<'_>,
                k: std::ops::Range<usize>,
                out: &mut [f32],
            ) {
                let whole = k == (0..view.k());
                let mut rest = out;
                for r in 0..view.rows() {
                    let (head, tail) = std::mem::take(&mut rest).split_at_mut(k.len());
                    rest = tail;
                    let parts = view.row(r);
                    if let $parts = if whole { parts } else { crate::scalar::decode::run(&parts, &k) } {
                        $decode(head);
                    }
                }
            }
        }
    };
    (@given rows $block:ident) => {
        [$block]
    };
    (@given block $block:ident) => {
        $block
    };
    ($entry:ident, $given:ident; $($name:ident: $function:path, $bytes:literal -> $values:literal;)+) => {
        use ninfer_formats::{BlockKind, DirectKind, RowParts, Scheme};
        use $crate::kernels::DecodeFn;
        use $crate::scalar::decode::direct;

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

        $crate::arch::decoders::decoders!(@rows $entry, bf16, RowParts::Direct { bytes, .. } => |out: &mut [f32]| {
            direct(DirectKind::Bf16, bytes, out);
        });
        $crate::arch::decoders::decoders!(@rows $entry, words32, RowParts::Direct { bytes, .. } => |out: &mut [f32]| {
            direct(DirectKind::Fp32, bytes, out);
        });
        $crate::arch::decoders::decoders!(@rows $entry, grouped_rows,
            RowParts::Grouped { scheme, base, high, scales } => |out: &mut [f32]| {
                super::grouped::row(&scheme, base, high, scales, out);
            });
        $crate::arch::decoders::decoders!(@rows $entry, nvfp4_rows,
            RowParts::Nvfp4 { codes, scales, divisor } => |out: &mut [f32]| {
                super::nvfp4::row(codes, &scales, f32::from_bits(divisor), out);
            });
        $crate::arch::decoders::decoders!(@rows $entry, fp8_rows,
            RowParts::RowScaled { scale_kind, codes, scale } => |out: &mut [f32]| {
                super::fp8_row::row(codes, ninfer_formats::codec::row_scale(scale_kind, scale), out);
            });
        $($crate::arch::decoders::decoders!(@rows $entry, $name, RowParts::Blocks { blocks, .. } => |out: &mut [f32]| {
            let blocks = blocks.as_chunks::<$bytes>().0.iter();
            for (block, out) in blocks.zip(out.as_chunks_mut::<$values>().0) {
                $function($crate::arch::decoders::decoders!(@given $given block), out);
            }
        });)+
    };
}
pub(crate) use decoders;
