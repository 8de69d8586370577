//! Encoders: `grouped_absmax` and `fp8_row_maxabs`, 64 or 16 columns at a time, and the packing of codes.
//!
//! The arithmetic is the method's own, operation by operation; see `ninfer_formats::encoder`.

use std::arch::aarch64::*;

use super::lanes::Wide;
use super::prims::{from_halves, load_f32, load16, store, to_halves};
use super::search;
use crate::arch::encoders::encoders;
use crate::isa::neon_entry;

/// Bit of each lane of eight.
const BITS_OF_LANES: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// Values that [`put_e4m3`] takes, and how many there are.
type Four = [float32x4_t; 4];
const FP8: usize = 16;

encoders!(neon_entry);

neon_entry! {
    /// The portable code, compiled for this token.
    fn gguf_absmax_row(kind: BlockKind, x: &[f32], out: &mut [u8]) -> bool {
        ninfer_formats::encoder::gguf_absmax::encode_row(kind, x, out).is_ok()
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

    /// E4M3FN words of values times `inv`, in order.
    #[inline]
    fn put_e4m3(values: Four, inv: f32, out: &mut [u8; FP8]) {
        let c = values.map(|v| e4m3(vmulq_n_f32(v, inv)));
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
}
