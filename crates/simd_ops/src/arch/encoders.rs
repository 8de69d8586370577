//! What the encoders of all tokens have in common, written once: which method runs, and the loops over groups.
//!
//! The functions are made by macros, as they must be compiled for their token; what differs, a token's module has under
//! the names used here.

/// Groups whose scales are computed together.
pub(crate) const BATCH: usize = 16;

/// Makes `row` and `nvfp4`, the entries, and the loops of `grouped_absmax` and of the FP8 formats behind them. The token's
/// module has lanes `Wide`, `gguf_absmax_row`, `widen`, `magnitudes`, `scales`, `codes`, `pack`, `fp8_floats`,
/// `fp8_words` and `put_e4m3` for `Four` vectors of `FP8` values.
macro_rules! encoders {
    ($entry:ident) => {
        use ninfer_formats::encoder::nvfp4::Nvfp4Encoder;
        use ninfer_formats::encoder::{EncoderId, RowEncoder, RowFault, RowSlices, Source};
        use ninfer_formats::encoder::{gguf_k, gguf_search, gguf_signed, ternary_fit};
        use ninfer_formats::{BlockKind, GroupedScheme, RowScale, Scheme};
        use $crate::arch::encoders::BATCH;
        use $crate::kernels::Scratch;
        use $crate::search::{Tail, UNIT};

        $entry! {
            /// See [`$crate::kernels::EncodeFn`].
            pub(crate) fn row(
                encoder: &RowEncoder<'_>,
                source: Source<'_>,
                mut out: RowSlices<'_>,
                scratch: &mut Scratch,
            ) -> Result<(), RowFault> {
                if let (Scheme::RowScaled(kind), Source::Bf16(words)) = (encoder.format().scheme(), source)
                    && fp8_words(kind, words, &mut out, encoder.k())
                {
                    return Ok(());
                }
                let x = match source {
                    Source::F32(x) => x,
                    _ => {
                        scratch.floats.resize(source.len(), 0.0);
                        match source {
                            Source::F16(words) => widen(words, &mut scratch.floats),
                            _ => source.convert(&mut scratch.floats)?,
                        }
                        &scratch.floats
                    }
                };
                let [first, second, third] = &mut out.planes;
                let done = match (encoder.method(), encoder.format().scheme()) {
                    (EncoderId::GroupedAbsmax, Scheme::Grouped(s)) => match s.bits {
                        4 => absmax::<4>(&s, x, first, second, third),
                        5 => absmax::<5>(&s, x, first, second, third),
                        6 => absmax::<6>(&s, x, first, second, third),
                        8 => absmax::<8>(&s, x, first, second, third),
                        _ => false,
                    },
                    (EncoderId::GroupedSearch, Scheme::Grouped(s)) => {
                        search::row(&s, &encoder.params(), x, first, second, third)
                    }
                    (EncoderId::GgufAbsmax, Scheme::Gguf(kind)) => gguf_absmax_row(kind, x, first),
                    // The portable code, on the token's lanes.
                    (EncoderId::TernaryFit, Scheme::Grouped(s)) => {
                        return ternary_fit::encode_row_on::<Wide>(&s, &encoder.params(), x, first, second, third);
                    }
                    (EncoderId::GgufSearch, Scheme::Gguf(kind @ (BlockKind::Q4K | BlockKind::Q5K))) => {
                        return gguf_k::encode_row_on::<Wide>(kind, &encoder.params(), x, first);
                    }
                    (
                        EncoderId::GgufSearch,
                        Scheme::Gguf(kind @ (BlockKind::Q6K | BlockKind::Iq4Xs | BlockKind::Iq4Nl)),
                    ) => return gguf_signed::encode_row_on::<Wide>(kind, &encoder.params(), x, first),
                    (EncoderId::GgufSearch, Scheme::Gguf(kind)) => {
                        return gguf_search::encode_row_on::<Wide>(kind, &encoder.params(), x, first);
                    }
                    (EncoderId::Fp8RowMaxabs, Scheme::RowScaled(kind)) => fp8_floats(kind, x, &mut out, encoder.k()),
                    _ => false,
                };
                // What is left are faults, which the reference names.
                if done { Ok(()) } else { encoder.encode_row(x, out) }
            }

            /// See [`$crate::kernels::Nvfp4Fn`].
            pub(crate) fn nvfp4(
                encoder: &Nvfp4Encoder,
                source: Source<'_>,
                codes: &mut [u8],
                scales: &mut [u8],
                scratch: &mut Scratch,
            ) -> Result<(), RowFault> {
                let x = match source {
                    Source::F32(x) => x,
                    _ => {
                        scratch.floats.resize(source.len(), 0.0);
                        match source {
                            Source::F16(words) => widen(words, &mut scratch.floats),
                            _ => source.convert(&mut scratch.floats)?,
                        }
                        &scratch.floats
                    }
                };
                encoder.encode_row_on::<Wide>(x, codes, scales)
            }

            /// One row of `grouped_absmax`; false if it must be refused.
            fn absmax<const BITS: u8>(
                s: &GroupedScheme,
                x: &[f32],
                base: &mut [u8],
                high: &mut [u8],
                scale_words: &mut [u8],
            ) -> bool {
                let per_unit = if BITS == 8 { 2 } else { 1 };
                let (base_unit, high_unit) = (per_unit * s.base_bytes, per_unit * s.high_bytes);
                let tail = Tail::new(x);
                let units = base.len() / base_unit;
                let scale_words = scale_words.as_chunks_mut::<2>().0;
                for first in (0..units).step_by(BATCH / per_unit) {
                    let end = units.min(first + BATCH / per_unit);
                    let mut amax = [0u32; BATCH];
                    for u in first..end {
                        let m = magnitudes::<BITS>(tail.unit(x, u));
                        amax[(u - first) * per_unit..][..per_unit].copy_from_slice(&m[..per_unit]);
                    }
                    let Some((words, inv)) = scales(&amax, f32::from(s.code_max)) else { return false };
                    for (to, word) in scale_words[first * per_unit..end * per_unit].iter_mut().zip(words) {
                        *to = word.to_le_bytes();
                    }
                    for u in first..end {
                        let g = (u - first) * per_unit;
                        let q = codes::<BITS>(s, tail.unit(x, u), [inv[g], inv[g + per_unit - 1]]);
                        let base = &mut base[u * base_unit..(u + 1) * base_unit];
                        pack::<BITS>(q, base, &mut high[u * high_unit..(u + 1) * high_unit]);
                    }
                }
                true
            }

            /// Scale and codes of a row whose largest bfloat16 magnitude word is given; `unit(i)` are the bfloat16 values
            /// from `FP8 * i` on, zeros past the row's end.
            #[inline]
            fn fp8_codes(
                kind: RowScale,
                largest: u16,
                out: &mut RowSlices<'_>,
                k: usize,
                unit: impl Fn(usize) -> Four,
            ) -> bool {
                if largest >= 0x7f80 {
                    return false;
                }
                let [first, second, _] = &mut out.planes;
                let (codes, scale) = match kind {
                    RowScale::Bf16 => (&mut **first, &mut **second),
                    RowScale::Fp16 => first.split_at_mut(k),
                };
                let largest = ninfer_formats::float::bf16::to_f32(largest);
                let word = match ninfer_formats::encoder::fp8_row_maxabs::scale(kind, largest) {
                    Err(_) => return false,
                    Ok(None) => {
                        codes.fill(0);
                        0
                    }
                    Ok(Some((word, inv))) => {
                        let (chunks, tail) = codes.as_chunks_mut::<FP8>();
                        for (i, chunk) in chunks.iter_mut().enumerate() {
                            put_e4m3(unit(i), inv, chunk);
                        }
                        if !tail.is_empty() {
                            let mut rest = [0u8; FP8];
                            put_e4m3(unit(chunks.len()), inv, &mut rest);
                            tail.copy_from_slice(&rest[..tail.len()]);
                        }
                        word
                    }
                };
                scale.copy_from_slice(&word.to_le_bytes());
                true
            }
        }
    };
}
pub(crate) use encoders;

/// Makes `row`, which encodes one by `grouped_search`. The token's module has `magnitudes` and `scales` as for
/// [`encoders`], `pack_codes`, and the steps of [`crate::search::Group`].
macro_rules! grouped_search {
    ($entry:ident) => {
        use ninfer_formats::GroupedScheme;
        use ninfer_formats::encoder::Params;
        use $crate::search::{Facts, Group, LANES, LEAST_NORM, Lanes, Tail, UNIT, is_tame, limit, search};

        $entry! {
            /// One row; false if it must be refused.
            pub(super) fn row(
                s: &GroupedScheme,
                params: &Params<'_>,
                x: &[f32],
                base: &mut [u8],
                high: &mut [u8],
                scale_words: &mut [u8],
            ) -> bool {
                match s.bits {
                    4 => units::<4, 64>(s, params, x, base, high, scale_words),
                    5 => units::<5, 64>(s, params, x, base, high, scale_words),
                    6 => units::<6, 64>(s, params, x, base, high, scale_words),
                    8 => units::<8, 32>(s, params, x, base, high, scale_words),
                    _ => false,
                }
            }

            fn units<const BITS: u8, const G: usize>(
                s: &GroupedScheme,
                params: &Params<'_>,
                x: &[f32],
                base: &mut [u8],
                high: &mut [u8],
                scale_words: &mut [u8],
            ) -> bool {
                let per_unit = UNIT / G;
                let (base_unit, high_unit) = (per_unit * s.base_bytes, per_unit * s.high_bytes);
                let tail = Tail::new(x);
                let importance_tail = params.importance.map(Tail::new);
                let units = base.len() / base_unit;
                let (scale_words, _) = scale_words.as_chunks_mut::<2>();
                for u in 0..units {
                    let values = tail.unit(x, u);
                    let mut amax = [0u32; 16];
                    amax[..2].copy_from_slice(&magnitudes::<BITS>(values));
                    let Some((words, _)) = scales(&amax, f32::from(s.code_max)) else { return false };
                    let mut codes = [0i8; UNIT];
                    let groups = values.as_chunks::<G>().0.iter().zip(codes.as_chunks_mut::<G>().0);
                    for (i, (w, codes)) in groups.enumerate() {
                        let mut word = words[i];
                        if word != 0 {
                            let amax = f32::from_bits(amax[i]);
                            word = match (params.importance, &importance_tail) {
                                (Some(importance), Some(tail)) => {
                                    let imp = &tail.unit(importance, u).as_chunks::<G>().0[i];
                                    group::<G, true>(s, params, w, imp, word, amax, codes)
                                }
                                _ => {
                                    // Padding columns weigh nothing.
                                    let begin = u * UNIT + i * G;
                                    let mut imp = [1.0f32; G];
                                    imp[x.len().saturating_sub(begin).min(G)..].fill(0.0);
                                    let whole = begin + G <= x.len();
                                    if whole {
                                        group::<G, false>(s, params, w, &imp, word, amax, codes)
                                    } else {
                                        group::<G, true>(s, params, w, &imp, word, amax, codes)
                                    }
                                }
                            };
                        }
                        scale_words[u * per_unit + i] = word.to_le_bytes();
                    }
                    let base = &mut base[u * base_unit..(u + 1) * base_unit];
                    pack_codes::<BITS>(&codes, base, &mut high[u * high_unit..(u + 1) * high_unit]);
                }
                true
            }

            /// One group; `WEIGHTED` says that some importance is not one.
            fn group<const G: usize, const WEIGHTED: bool>(
                s: &GroupedScheme,
                params: &Params<'_>,
                w: &[f32; G],
                imp: &[f32; G],
                start: u16,
                amax: f32,
                codes_out: &mut [i8; G],
            ) -> u16 {
                let mut magnitude = [0.0f32; G];
                let mut limits = [0.0f32; G];
                for i in 0..G {
                    magnitude[i] = w[i].abs();
                    limits[i] = limit(s, w[i], false);
                }
                let facts = Facts {
                    start,
                    amax,
                    extreme_negative: extreme_negative(w, amax),
                    negative_scales: params.negative_scales,
                    weight: if !WEIGHTED || is_tame(imp) { weight::<G>(w, imp) } else { f32::NAN },
                };
                let ops = Group {
                    round: |ratio| round(ratio),
                    near: |lanes: &Lanes| {
                        let mut norms = [0.0f32; LANES];
                        let (positive, negative) = norms.split_at_mut(lanes.negative_at);
                        let words = &lanes.words[..lanes.len];
                        let mut least = norms_of_all::<G, WEIGHTED>(
                            &magnitude,
                            &limits,
                            imp,
                            &words[..lanes.negative_at],
                            positive,
                        );
                        if lanes.negative_at < lanes.len {
                            let mut mirrored = [0.0f32; G];
                            for i in 0..G {
                                mirrored[i] = limit(s, w[i], true);
                            }
                            let words = &words[lanes.negative_at..];
                            least =
                                least.min(norms_of_all::<G, WEIGHTED>(&magnitude, &mirrored, imp, words, negative));
                        }
                        (least >= LEAST_NORM).then(|| near(&norms[..lanes.len], facts.weight))
                    },
                    error: |word| error::<G, WEIGHTED>(s, w, imp, word),
                    codes: |word, codes: &mut [i8; G]| codes_of::<G>(s, w, word, codes),
                    fit: |codes: &[i8; G]| fit::<G, WEIGHTED>(w, imp, codes),
                };
                search(s, &facts, &ops, codes_out)
            }
        }
    };
}
pub(crate) use grouped_search;
