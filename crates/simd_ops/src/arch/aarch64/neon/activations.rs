//! Rounding to 16 bits, and activations to `q8_1`.

use std::arch::aarch64::*;

use ninfer_formats::codec::Half;

use super::prims::{from_halves, load_f32, to_halves};
use crate::isa::neon_entry;
use crate::q8_1::{BLOCK, Q8ColumnMut, quantize_blocks};
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
        let stored = |d: f32, sum: f32| {
            let words = to_halves(vset_lane(d, sum));
            let expanded = vgetq_lane_f32::<0>(from_halves(words));
            ([vget_lane_u16::<0>(words), vget_lane_u16::<1>(words)], expanded)
        };
        // Closures of this function are compiled for its features; the bare functions would not be.
        let codes = |x: &[f32; BLOCK], id: f32, codes: &mut [i8; BLOCK]| block(x, id, codes);
        quantize_blocks(x, out, |x: &[f32; BLOCK]| magnitude(x), codes, stored)
    }

    /// The largest magnitude as a word.
    #[inline]
    fn magnitude(x: &[f32; BLOCK]) -> u32 {
        let mut largest = vdupq_n_u32(0);
        for x in x.as_chunks::<4>().0 {
            largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(load_f32(x))));
        }
        vmaxvq_u32(largest)
    }

    /// The codes of a block, and the sums of its halves.
    #[inline]
    fn block(x: &[f32; BLOCK], id: f32, codes: &mut [i8; BLOCK]) -> [i16; 2] {
        let mut sums = [0; 2];
        let runs = codes.as_chunks_mut::<16>().0.iter_mut().zip(x.as_chunks::<16>().0);
        for ((codes, x), sum) in runs.zip(&mut sums) {
            let x = x.as_chunks::<4>().0;
            // To nearest, halves away from zero; magnitudes are at most 127.
            let q = [0, 1, 2, 3].map(|i| vmovn_s32(vcvtaq_s32_f32(vmulq_n_f32(load_f32(&x[i]), id))));
            let (low, high) = (vcombine_s16(q[0], q[1]), vcombine_s16(q[2], q[3]));
            let q = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
            // SAFETY: writes the 16 bytes of `codes`; the instruction needs no alignment.
            unsafe { vst1q_s8(codes.as_mut_ptr(), q) };
            *sum = vaddlvq_s8(q);
        }
        sums
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
