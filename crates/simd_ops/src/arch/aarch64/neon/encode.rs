//! Encoders: `grouped_absmax` and `fp8_row_maxabs`, 64 or 16 columns at a time, and the packing of codes.
//!
//! The arithmetic is the method's own, operation by operation; see `ninfer_formats::encoder`.

use std::arch::aarch64::*;

use ninfer_formats::encoder::nvfp4::Nvfp4Encoder;
use ninfer_formats::encoder::{EncoderId, RowEncoder, RowFault, RowSlices, Source};
use ninfer_formats::encoder::{gguf_absmax, gguf_k, gguf_search, gguf_signed, ternary_fit};
use ninfer_formats::{BlockKind, GroupedScheme, RowScale, Scheme};

use super::lanes::Wide;
use super::prims::{from_halves, load_f32, load16, store, to_halves};
use super::search;
use crate::isa::neon_entry;
use crate::kernels::Scratch;
use crate::search::{Tail, UNIT};

/// Groups whose scales are computed together.
const BATCH: usize = 16;

/// Bit of each lane of eight.
const BITS_OF_LANES: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

neon_entry! {
    /// See [`crate::kernels::EncodeFn`].
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
            // The portable code, compiled for this token.
            (EncoderId::GgufAbsmax, Scheme::Gguf(kind)) => {
                return gguf_absmax::encode_row(kind, x, first);
            }
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

    /// See [`crate::kernels::Nvfp4Fn`].
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

    /// binary16 to binary32, exactly.
    fn widen(words: &[u16], out: &mut [f32]) {
        let (words, tail) = words.as_chunks::<4>();
        let (out, out_tail) = out.as_chunks_mut::<4>();
        for (o, w) in out.iter_mut().zip(words) {
            // SAFETY: a load of the 4 words of `w`.
            store(o, from_halves(unsafe { vld1_u16(w.as_ptr()) }));
        }
        for (o, &w) in out_tail.iter_mut().zip(tail) {
            *o = ninfer_formats::float::f16::to_f32(w);
        }
    }

    /// Four vectors of 4 integers to 16 bytes in order, saturated.
    #[inline]
    fn narrow(c: [int32x4_t; 4]) -> int8x16_t {
        let low = vcombine_s16(vqmovn_s32(c[0]), vqmovn_s32(c[1]));
        let high = vcombine_s16(vqmovn_s32(c[2]), vqmovn_s32(c[3]));
        vcombine_s8(vqmovn_s16(low), vqmovn_s16(high))
    }

    /// Stores 64 codes, one a byte, as the base and high bytes of their groups.
    #[inline]
    pub(super) fn pack<const BITS: u8>(q: [int8x16_t; 4], base: &mut [u8], high: &mut [u8]) {
        let q = q.map(|q| vreinterpretq_u8_s8(q));
        let put = |to: &mut [u8], v: uint8x16_t| {
            let to: &mut [u8; 16] = to.try_into().expect("16 bytes");
            // SAFETY: a store of 16 bytes.
            unsafe { vst1q_u8(to.as_mut_ptr(), v) }
        };
        if BITS == 8 {
            for (to, q) in base.chunks_exact_mut(16).zip(q) {
                put(to, q);
            }
            return;
        }
        for (to, q) in base.chunks_exact_mut(16).zip(q.as_chunks::<2>().0) {
            // Low nibbles of the even codes, those of the odd ones above them.
            put(to, vsliq_n_u8::<4>(vuzp1q_u8(q[0], q[1]), vuzp2q_u8(q[0], q[1])));
        }
        if BITS == 5 {
            let bit = load16(&BITS_OF_LANES);
            let m = q.map(|q| vandq_u8(vtstq_u8(q, vdupq_n_u8(16)), bit));
            let pairs = vpaddq_u8(vpaddq_u8(m[0], m[1]), vpaddq_u8(m[2], m[3]));
            let high: &mut [u8; 8] = high.try_into().expect("8 high bytes");
            // SAFETY: a store of 8 bytes.
            unsafe { vst1_u8(high.as_mut_ptr(), vget_low_u8(vpaddq_u8(pairs, pairs))) }
        } else if BITS == 6 {
            let two = q.map(|q| vandq_u8(vshrq_n_u8::<4>(q), vdupq_n_u8(3)));
            let join = |a, b| [vuzp1q_u8(a, b), vuzp2q_u8(a, b)];
            let pairs = |a, b| {
                let [even, odd] = join(a, b);
                vorrq_u8(even, vshlq_n_u8::<2>(odd))
            };
            let [even, odd] = join(pairs(two[0], two[1]), pairs(two[2], two[3]));
            put(high, vsliq_n_u8::<4>(even, odd));
        }
    }

    /// Scale words and reciprocals of 16 groups by their largest magnitudes (binary32 words); zero for zero. `None`
    /// if a magnitude is not finite or its scale overflows.
    #[inline]
    pub(super) fn scales(amax: &[u32; BATCH], qmax: f32) -> Option<([u16; BATCH], [f32; BATCH])> {
        let (mut words, mut inverses) = ([0u16; BATCH], [0f32; BATCH]);
        let mut bad = vdup_n_u16(0);
        let runs = amax.as_chunks::<4>().0.iter().zip(words.as_chunks_mut::<4>().0);
        for ((a, words), inverses) in runs.zip(inverses.as_chunks_mut::<4>().0) {
            // SAFETY: a load of 4 words.
            let a = unsafe { vld1q_u32(a.as_ptr()) };
            let beyond = vcgtq_u32(a, vdupq_n_u32(0x7f7f_ffff));
            let zero = vceqzq_u32(a);
            let h = to_halves(vdivq_f32(vreinterpretq_f32_u32(a), vdupq_n_f32(qmax)));
            // What is not zero does not become zero.
            let rescued = vbic_u16(vceqz_u16(h), vmovn_u32(zero));
            let h = vorr_u16(h, vand_u16(rescued, vdup_n_u16(1)));
            bad = vorr_u16(bad, vorr_u16(vmovn_u32(beyond), vceq_u16(h, vdup_n_u16(0x7c00))));
            let inv = vdivq_f32(vdupq_n_f32(1.0), from_halves(h));
            store(inverses, vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(inv), zero)));
            // SAFETY: a store of 4 words.
            unsafe { vst1_u16(words.as_mut_ptr(), h) }
        }
        (vmaxv_u16(bad) == 0).then_some((words, inverses))
    }

    #[inline]
    fn magnitude(v: float32x4_t) -> uint32x4_t {
        vreinterpretq_u32_f32(vabsq_f32(v))
    }

    /// Largest magnitude words of the groups of a unit (both equal if the group is 64 wide). What is not finite has
    /// larger words than what is.
    #[inline]
    pub(super) fn magnitudes<const BITS: u8>(x: &[f32; UNIT]) -> [u32; 2] {
        let mut halves = [vdupq_n_u32(0); 2];
        for (half, x) in halves.iter_mut().zip(x.as_chunks::<32>().0) {
            for x in x.as_chunks::<4>().0 {
                *half = vmaxq_u32(*half, magnitude(load_f32(x)));
            }
        }
        if BITS == 8 {
            halves.map(|h| vmaxvq_u32(h))
        } else {
            [vmaxvq_u32(vmaxq_u32(halves[0], halves[1])); 2]
        }
    }

    /// Codes of a unit for the reciprocals of its two halves, one a byte.
    #[inline]
    fn codes<const BITS: u8>(s: &GroupedScheme, x: &[f32; UNIT], inv: [f32; 2]) -> [int8x16_t; 4] {
        let mut out = [vdupq_n_s8(0); 4];
        for (i, (out, x)) in out.iter_mut().zip(x.as_chunks::<16>().0).enumerate() {
            let x = x.as_chunks::<4>().0;
            // Nearest-even. Products stay below 2^31, and bytes saturate outside the intervals.
            let q = |j: usize| vcvtnq_s32_f32(vmulq_n_f32(load_f32(&x[j]), inv[i / 2]));
            let q = vmaxq_s8(narrow([q(0), q(1), q(2), q(3)]), vdupq_n_s8(s.code_min));
            *out = if BITS == 8 { q } else { vminq_s8(q, vdupq_n_s8(s.code_max)) };
        }
        out
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

    /// E4M3FN words of 4 values, saturated at 448.
    ///
    /// Adding `2^(e+20)`, `e` the exponent or -6 if that is larger, rounds the magnitude to a multiple of `2^(e-3)`,
    /// nearest-even; the sum's fraction bits count the multiples.
    #[inline]
    fn e4m3(y: float32x4_t) -> uint32x4_t {
        let bits = vreinterpretq_u32_f32(y);
        let magnitude = vminq_u32(magnitude(y), vdupq_n_u32(0x43e0_0000));
        let exponent = vandq_u32(magnitude, vdupq_n_u32(0x7f80_0000));
        let exponent = vmaxq_u32(exponent, vdupq_n_u32(121 << 23));
        let big = vaddq_u32(exponent, vdupq_n_u32(20 << 23));
        let sum = vaddq_f32(vreinterpretq_f32_u32(magnitude), vreinterpretq_f32_u32(big));
        let multiples = vsubq_u32(vreinterpretq_u32_f32(sum), big);
        let first = vsubq_u32(vshrq_n_u32::<20>(exponent), vdupq_n_u32(121 << 3));
        let sign = vandq_u32(vshrq_n_u32::<24>(bits), vdupq_n_u32(0x80));
        vorrq_u32(vaddq_u32(multiples, first), sign)
    }

    /// 16 words of 8 bits in 32-bit lanes to bytes, in order.
    #[inline]
    fn store16(c: [uint32x4_t; 4], out: &mut [u8; 16]) {
        let low = vcombine_u16(vmovn_u32(c[0]), vmovn_u32(c[1]));
        let high = vcombine_u16(vmovn_u32(c[2]), vmovn_u32(c[3]));
        // SAFETY: a store of 16 bytes.
        unsafe { vst1q_u8(out.as_mut_ptr(), vcombine_u8(vmovn_u16(low), vmovn_u16(high))) };
    }

    /// Rounds binary32 to bfloat16 and expands it again.
    #[inline]
    fn through_bf16(v: float32x4_t) -> float32x4_t {
        let bits = vreinterpretq_u32_f32(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
        vreinterpretq_f32_u32(vandq_u32(sum, vdupq_n_u32(0xffff_0000)))
    }

    /// One row of `fp8_row_maxabs` from binary32; false if it must be refused.
    fn fp8_floats(kind: RowScale, x: &[f32], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<16>();
        let mut rest = [0.0f32; 16];
        rest[..tail.len()].copy_from_slice(tail);
        let mut max = [vdupq_n_u32(0); 4];
        for chunk in chunks.iter().chain(std::iter::once(&rest)) {
            for (max, v) in max.iter_mut().zip(chunk.as_chunks::<4>().0) {
                *max = vmaxq_u32(*max, magnitude(load_f32(v)));
            }
        }
        let max = f32::from_bits(vmaxvq_u32(vmaxq_u32(vmaxq_u32(max[0], max[1]), vmaxq_u32(max[2], max[3]))));
        if !max.is_finite() {
            return false;
        }
        // Rounding keeps the order, so the largest bfloat16 is that of the largest value.
        fp8_codes(kind, ninfer_formats::float::bf16::from_f32(max), out, k, |i| {
            let v = chunks.get(i).unwrap_or(&rest).as_chunks::<4>().0;
            [0, 1, 2, 3].map(|j| through_bf16(load_f32(&v[j])))
        })
    }

    /// One row of `fp8_row_maxabs` from bfloat16 words; false if it must be refused.
    fn fp8_words(kind: RowScale, x: &[u16], out: &mut RowSlices<'_>, k: usize) -> bool {
        let (chunks, tail) = x.as_chunks::<16>();
        let mut rest = [0u16; 16];
        rest[..tail.len()].copy_from_slice(tail);
        let halves = |c: &[u16; 16]| {
            // SAFETY: two loads of 8 words each.
            unsafe { [vld1q_u16(c.as_ptr()), vld1q_u16(c.as_ptr().add(8))] }
        };
        let mut max = [vdupq_n_u16(0); 2];
        for chunk in chunks.iter().chain(std::iter::once(&rest)) {
            for (max, v) in max.iter_mut().zip(halves(chunk)) {
                *max = vmaxq_u16(*max, vandq_u16(v, vdupq_n_u16(0x7fff)));
            }
        }
        fp8_codes(kind, vmaxvq_u16(vmaxq_u16(max[0], max[1])), out, k, |i| {
            let [a, b] = halves(chunks.get(i).unwrap_or(&rest));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(a))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(a)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(b))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(b)),
            ]
        })
    }

    /// Scale and codes of a row whose largest bfloat16 magnitude word is given; `unit(i)` are the bfloat16 values
    /// `16 i ..`, zero past the row's end.
    #[inline]
    fn fp8_codes(
        kind: RowScale,
        largest: u16,
        out: &mut RowSlices<'_>,
        k: usize,
        unit: impl Fn(usize) -> [float32x4_t; 4],
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
                let encode = |i: usize| unit(i).map(|v| e4m3(vmulq_n_f32(v, inv)));
                let (chunks, tail) = codes.as_chunks_mut::<16>();
                for (i, chunk) in chunks.iter_mut().enumerate() {
                    store16(encode(i), chunk);
                }
                if !tail.is_empty() {
                    let mut rest = [0u8; 16];
                    store16(encode(chunks.len()), &mut rest);
                    tail.copy_from_slice(&rest[..tail.len()]);
                }
                word
            }
        };
        scale.copy_from_slice(&word.to_le_bytes());
        true
    }
}
