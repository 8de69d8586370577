//! A16 products with one column: the decoders' values go into sums instead of memory.

use std::arch::aarch64::*;

use super::prims::*;
use super::{fp8_row, gguf_legacy, grouped, nvfp4, super_blocks};
use crate::column16::{columns, filled};
use crate::isa::neon_entry;

/// The accumulators of an element.
type Acc = [float32x4_t; 4];

/// Rows taken side by side.
const ROWS: usize = 2;

/// Takes the products with a run of activations.
struct Sum<'a> {
    x: &'a [f32],
    acc: [Acc; ROWS],
}

impl Runs for Sum<'_> {
    #[inline(always)]
    fn put(&mut self, r: usize, i: usize, v: [float32x4_t; 4]) {
        let x = self.x.as_chunks::<16>().0[i].as_chunks::<4>().0;
        let [mut a, mut b, mut c, mut d] = self.acc[r];
        // SAFETY: Advanced SIMD is part of the AArch64 baseline. The assembly has no instruction: it keeps the compiler from
        // following one sum through the whole block before it turns to the next, with most of the block in memory meanwhile.
        unsafe {
            a = vfmaq_f32(a, v[0], load_f32(&x[0]));
            b = vfmaq_f32(b, v[1], load_f32(&x[1]));
            c = vfmaq_f32(c, v[2], load_f32(&x[2]));
            d = vfmaq_f32(d, v[3], load_f32(&x[3]));
            std::arch::asm!("/* {0:v} {1:v} {2:v} {3:v} */", inout(vreg) a, inout(vreg) b, inout(vreg) c, inout(vreg) d,
                options(pure, nomem, nostack, preserves_flags));
        }
        self.acc[r] = [a, b, c, d];
    }
}

columns! {
    neon_entry;
    Q8_0 q8_0: gguf_legacy::q8_0, 34 -> 32;
    Q4_0 q4_0: gguf_legacy::q4_0, 18 -> 32;
    Q5_0 q5_0: gguf_legacy::q5_0, 22 -> 32;
    Q2_0 q2_0: gguf_legacy::q2_0, 18 -> 64;
    Iq4Nl iq4_nl: gguf_legacy::iq4_nl, 18 -> 32;
    Q2K q2_k: super_blocks::q2_k, 84 -> 256;
    Q3K q3_k: super_blocks::q3_k, 110 -> 256;
    Q4K q4_k: super_blocks::q4_k, 144 -> 256;
    Q5K q5_k: super_blocks::q5_k, 176 -> 256;
    Q6K q6_k: super_blocks::q6_k, 210 -> 256;
    Iq4Xs iq4_xs: super_blocks::iq4_xs, 136 -> 256;
    Iq2Xxs iq2_xxs: super_blocks::iq2_xxs, 66 -> 256;
    Iq2Xs iq2_xs: super_blocks::iq2_xs, 74 -> 256;
    Iq2S iq2_s: super_blocks::iq2_s, 82 -> 256;
    Iq3Xxs iq3_xxs: super_blocks::iq3_xxs, 98 -> 256;
    Iq3S iq3_s: super_blocks::iq3_s, 110 -> 256;
    Iq1S iq1_s: super_blocks::iq1_s, 50 -> 256;
    Iq1M iq1_m: super_blocks::iq1_m, 56 -> 256;
}

neon_entry! {
    #[inline]
    fn zero() -> Acc {
        [vdupq_n_f32(0.0); 4]
    }

    /// Sixteen bfloat16 or binary32 words.
    #[inline]
    fn words<const BYTES: usize>(bytes: &[u8]) -> [float32x4_t; 4] {
        four!(I => vreinterpretq_f32_u8(if BYTES == 2 {
            let words = vreinterpret_u16_u8(load8(at(bytes, 8 * I)));
            vreinterpretq_u8_u32(vshll_n_u16::<16>(words))
        } else {
            load16(at(bytes, 16 * I))
        }))
    }

    /// Up to eight binary16 scales of neighbouring groups, as many as there are.
    #[inline]
    fn scales(words: &[u8], out: &mut [f32; 8]) {
        let Some(words) = words.first_chunk() else {
            for (out, word) in out.iter_mut().zip(words.as_chunks::<2>().0) {
                *out = vgetq_lane_f32::<0>(halves(u16::from_le_bytes(*word)));
            }
            return;
        };
        let words = vreinterpretq_u16_u8(load16(words));
        let out = out.as_chunks_mut::<4>().0;
        store(&mut out[0], from_halves(vget_low_u16(words)));
        store(&mut out[1], from_halves(vget_high_u16(words)));
    }

    /// Adds the products with the values `x`, which may be no whole vectors.
    fn add_tail(weights: impl Iterator<Item = f32>, x: &[f32], acc: Acc) -> Acc {
        let mut acc = acc;
        filled(weights, x, |w, x| {
            for ((acc, w), x) in acc.iter_mut().zip(w.as_chunks::<4>().0).zip(x.as_chunks::<4>().0) {
                *acc = vfmaq_f32(*acc, load_f32(w), load_f32(x));
            }
        });
        acc
    }

    /// The sum of the accumulators, in the order of [`crate::order`].
    #[inline]
    fn combine(acc: Acc) -> f32 {
        let b = vaddq_f32(vaddq_f32(acc[0], acc[2]), vaddq_f32(acc[1], acc[3]));
        vpadds_f32(vadd_f32(vget_low_f32(b), vget_high_f32(b)))
    }
}
