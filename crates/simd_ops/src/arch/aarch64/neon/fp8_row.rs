//! E4M3FN rows: the word is a binary16 word of the same value times 2^-8, NaN aside.

use std::arch::aarch64::*;

use ninfer_formats::float::e4m3;

use super::prims::*;
use crate::isa::neon_entry;

neon_entry! {
    /// Decodes codes times the row's multiplier.
    #[inline]
    pub(crate) fn row(codes: &[u8], scale: f32, out: &mut [f32]) {
        let wide = scale * 256.0;
        // 256 * scale is exact unless it overflows; such a multiplier takes the portable way.
        if wide.is_infinite() && scale.is_finite() {
            return portable(codes, scale, out);
        }
        let (words, tail) = codes.as_chunks::<16>();
        let (runs, out_tail) = out.as_chunks_mut::<16>();
        let magnitude = vdupq_n_u8(0x7f);
        let keep = vdupq_n_u16(0xbf80);
        for (bytes, out) in words.iter().zip(runs) {
            let c = load16(bytes);
            if vmaxvq_u8(vceqq_u8(vandq_u8(c, magnitude), magnitude)) != 0 {
                portable(bytes, scale, out);
                continue;
            }
            let c = vreinterpretq_s8_u8(c);
            // Sign to bit 15, exponent and fraction to bits 13..7; bit 14 gets a copy of the sign and is cleared.
            let words = [vshll_n_s8::<7>(vget_low_s8(c)), vshll_high_n_s8::<7>(c)];
            for (word, out) in words.into_iter().zip(out.as_chunks_mut::<8>().0) {
                let word = vandq_u16(vreinterpretq_u16_s16(word), keep);
                let values = [from_halves(vget_low_u16(word)), from_halves(vget_high_u16(word))];
                for (v, out) in values.into_iter().zip(out.as_chunks_mut::<4>().0) {
                    store(out, vmulq_n_f32(v, wide));
                }
            }
        }
        portable(tail, scale, out_tail);
    }
}

fn portable(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (o, &c) in out.iter_mut().zip(codes) {
        *o = e4m3::to_f32(c) * scale;
    }
}
