//! Rounding to 16 bits, and activations to `q8_1`.

use std::arch::aarch64::*;

use ninfer_formats::codec::Half;

use super::prims::{from_halves, load_f32, to_halves};
use crate::isa::neon_entry;
use crate::q8_1::{BLOCK, Q8ColumnMut};
use crate::scalar;

neon_entry! {
    /// See [`crate::kernels::NarrowFn`].
    pub(crate) fn narrow(half: Half, values: &[f32], words: &mut [u16]) -> bool {
        let (runs, tail) = values.as_chunks::<8>();
        let (out, out_tail) = words.as_chunks_mut::<8>();
        let mut any = vdupq_n_u16(0);
        let magnitude = vdupq_n_u16(0x7fff);
        for (x, out) in runs.iter().zip(out) {
            let [low, high] = [0, 4].map(|i| load_f32(x[i..].first_chunk().expect("two fours")));
            let (w, infinity) = match half {
                Half::Binary16 => (vcombine_u16(to_halves(low), to_halves(high)), vdupq_n_u16(0x7c00)),
                Half::Bfloat16 => (vcombine_u16(bfloat16(low), bfloat16(high)), vdupq_n_u16(0x7f80)),
            };
            any = vorrq_u16(any, vceqq_u16(vandq_u16(w, magnitude), infinity));
            // SAFETY: writes the 16 bytes of `out`; the instruction needs no alignment.
            unsafe { vst1q_u16(out.as_mut_ptr(), w) };
        }
        let in_tail = scalar::narrow(half, tail, out_tail);
        in_tail || vmaxvq_u16(any) != 0
    }

    /// See [`crate::kernels::QuantizeFn`].
    pub(crate) fn quantize(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
        let (blocks, tail) = x.as_chunks::<BLOCK>();
        let mut last = [0.0; BLOCK];
        last[..tail.len()].copy_from_slice(tail);
        let source = blocks.iter().chain((!tail.is_empty()).then_some(&last));
        let codes = out.codes.as_chunks_mut::<BLOCK>().0.iter_mut();
        let sums = out.half_sums.as_chunks_mut::<2>().0.iter_mut();
        let words = out.scale_words.iter_mut().zip(out.sum_words);
        let blocks = source.zip(codes).zip(out.scales).zip(words).zip(sums);
        for (b, ((((x, codes), scale), (scale_word, sum_word)), half_sums)) in blocks.enumerate() {
            let mut v = [vdupq_n_f32(0.0); 8];
            // Magnitudes compare as their words do, and a NaN or an infinity is above all of them.
            let mut amax = vdupq_n_u32(0);
            for (v, x) in v.iter_mut().zip(x.as_chunks::<4>().0) {
                *v = load_f32(x);
                amax = vmaxq_u32(amax, vreinterpretq_u32_f32(vabsq_f32(*v)));
            }
            let amax = vmaxvq_u32(amax);
            if amax >= 0x7f80_0000 {
                let at = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
                return Err(b * BLOCK + at);
            }
            let d = f32::from_bits(amax) / 127.0;
            // 1/0 and an overflowing reciprocal: id is 0.
            let id = 1.0 / d;
            let id = if id < f32::INFINITY { id } else { 0.0 };
            let mut sum = 0;
            let runs = codes.as_chunks_mut::<16>().0.iter_mut().zip(v.as_chunks::<4>().0);
            for ((codes, v), half_sum) in runs.zip(half_sums) {
                // To nearest, halves away from zero; magnitudes are at most 127.
                let q = [0, 1, 2, 3].map(|i| vmovn_s32(vcvtaq_s32_f32(vmulq_n_f32(v[i], id))));
                let (low, high) = (vcombine_s16(q[0], q[1]), vcombine_s16(q[2], q[3]));
                let q = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
                // SAFETY: writes the 16 bytes of `codes`; the instruction needs no alignment.
                unsafe { vst1q_s8(codes.as_mut_ptr(), q) };
                *half_sum = vaddlvq_s8(q);
                sum += i32::from(*half_sum);
            }
            let stored = to_halves(vset_lane(d, d * sum as f32));
            *scale_word = vget_lane_u16::<0>(stored);
            *sum_word = vget_lane_u16::<1>(stored);
            *scale = vgetq_lane_f32::<0>(from_halves(stored));
        }
        Ok(())
    }

    #[inline]
    fn vset_lane(first: f32, second: f32) -> float32x4_t {
        vsetq_lane_f32::<1>(second, vdupq_n_f32(first))
    }

    /// Nearest-even by integer arithmetic; NaNs become quiet.
    #[inline]
    fn bfloat16(x: float32x4_t) -> uint16x4_t {
        let bits = vreinterpretq_u32_f32(x);
        let top = vshrq_n_u32::<16>(bits);
        let even = vaddq_u32(vandq_u32(top, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
        let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, even));
        let quiet = vorrq_u32(top, vdupq_n_u32(0x40));
        vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet))
    }
}
