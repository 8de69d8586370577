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

/// Makes `row` of grouped formats; the token's module has `group`.
macro_rules! grouped_rows {
    ($entry:ident) => {
        use ninfer_formats::{GroupCode, GroupedScheme};
        use $crate::column16::{OFFSET_BY_ONE, last_group, shape};

        $entry! {
            /// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
            #[inline]
            pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
                match (s.bits, s.code) {
                    (2, GroupCode::OffsetByOne) => groups::<OFFSET_BY_ONE, 64>(s, base, high, scales, out),
                    (2, GroupCode::TwosComplement) => groups::<2, 128>(s, base, high, scales, out),
                    (4, _) => groups::<4, 64>(s, base, high, scales, out),
                    (5, _) => groups::<5, 64>(s, base, high, scales, out),
                    (6, _) => groups::<6, 64>(s, base, high, scales, out),
                    _ => groups::<8, 32>(s, base, high, scales, out),
                }
            }

            /// [`row`] for one kind, with G values a group.
            #[inline]
            fn groups<const KIND: u8, const G: usize>(
                s: &GroupedScheme,
                base: &[u8],
                high: &[u8],
                scales: &[u8],
                out: &mut [f32],
            ) {
                let [_, b, h] = const { shape(KIND) };
                let words = scales.as_chunks::<2>().0;
                let (whole, tail) = out.as_chunks_mut::<G>();
                let count = whole.len();
                for (g, (out, word)) in whole.iter_mut().zip(words).enumerate() {
                    let d = lane_0(halves(u16::from_le_bytes(*word)));
                    group::<KIND>(&base[g * b..(g + 1) * b], &high[g * h..(g + 1) * h], d, 0, out);
                }
                if !tail.is_empty() {
                    last_group(s, &base[count * b..], &high[count * h..], &scales[2 * count..], tail);
                }
            }
        }
    };
}
pub(crate) use grouped_rows;

/// Makes `row` of FP8 formats; the token's module has `run`.
macro_rules! fp8_rows {
    ($entry:ident) => {
        use $crate::arch::decoders::{fp8_factor, fp8_portable};

        $entry! {
            /// Decodes codes times the row's multiplier.
            #[inline]
            pub(crate) fn row(codes: &[u8], scale: f32, out: &mut [f32]) {
                let Some(factor) = fp8_factor(scale) else { return fp8_portable(codes, scale, out) };
                let (words, tail) = codes.as_chunks::<64>();
                let (runs, out_tail) = out.as_chunks_mut::<64>();
                for (bytes, out) in words.iter().zip(runs) {
                    if !run(bytes, factor, 0, out) {
                        fp8_portable(bytes, scale, out);
                    }
                }
                fp8_portable(tail, scale, out_tail);
            }
        }
    };
}
pub(crate) use fp8_rows;

/// What the binary16 words of E4M3FN codes are multiplied with: 256 times the row's multiplier, which is exact unless
/// it overflows.
pub(crate) fn fp8_factor(scale: f32) -> Option<f32> {
    let wide = scale * 256.0;
    (!wide.is_infinite() || scale.is_infinite()).then_some(wide)
}

/// Decodes any E4M3FN codes.
pub(crate) fn fp8_portable(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (o, &c) in out.iter_mut().zip(codes) {
        *o = ninfer_formats::float::e4m3::to_f32(c) * scale;
    }
}

/// `N` bytes at a constant offset of a block.
#[inline(always)]
pub(crate) fn at<const N: usize>(bytes: &[u8], offset: usize) -> &[u8; N] {
    bytes[offset..offset + N].first_chunk().expect("the slice has N bytes")
}

/// Little-endian 16-bit word at an offset of a block.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*at(bytes, offset))
}

/// Little-endian 32-bit word at an offset of a block.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*at(bytes, offset))
}
