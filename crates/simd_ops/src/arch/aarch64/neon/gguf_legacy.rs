//! Blocks with one scale: `q8_0`, `q4_0`, `q5_0`, `q2_0`, `iq4_nl`; and `iq4_xs`, which is eight of the last.

use std::arch::aarch64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::IQ4_VALUES;

use super::prims::*;
use crate::isa::neon_entry;

neon_entry! {
    #[inline]
    pub(crate) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
        let codes = [0, 16].map(|i| vreinterpretq_s8_u8(load16(at(block, fields::q8_0::Q + i))));
        scaled(codes, halves(u16_at(block, fields::q8_0::D)), out);
    }

    #[inline]
    pub(crate) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
        let codes = minus(nibbles(at(block, fields::q4_0::Q)), 8);
        scaled(codes, halves(u16_at(block, fields::q4_0::D)), out);
    }

    #[inline]
    pub(crate) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
        let fifth = bits(*at(block, fields::q5_0::QH)).map(|m| vandq_u8(m, vdupq_n_u8(16)));
        let codes = minus(or(nibbles(at(block, fields::q5_0::Q)), fifth), 16);
        scaled(codes, halves(u16_at(block, fields::q5_0::D)), out);
    }

    #[inline]
    pub(crate) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
        let d = halves(u16_at(block, fields::q2_0::D));
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            scaled(minus(two_bits(at(block, fields::q2_0::Q + 8 * b)), 1), d, out);
        }
    }

    #[inline]
    fn iq4(bytes: &[u8; 16], d: float32x4_t, out: &mut [f32; 32]) {
        let table = load16_signed(&IQ4_VALUES);
        let [low, high] = nibbles(bytes);
        scaled([vqtbl1q_s8(table, low), vqtbl1q_s8(table, high)], d, out);
    }

    #[inline]
    pub(crate) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
        iq4(at(block, fields::iq4_nl::Q), halves(u16_at(block, fields::iq4_nl::D)), out);
    }

    #[inline]
    pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
        let d = halves(u16_at(block, fields::iq4_xs::D));
        let low = u32_at(block, fields::iq4_xs::SL);
        let high = u32::from(u16_at(block, fields::iq4_xs::SH));
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = (low >> (4 * b) & 15 | (high >> (2 * b) & 3) << 4).cast_signed() - 32;
            iq4(at(block, fields::iq4_xs::Q + 16 * b), vmulq_n_f32(d, scale as f32), out);
        }
    }
}
