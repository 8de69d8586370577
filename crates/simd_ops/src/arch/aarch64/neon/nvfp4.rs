//! `nvfp4`: eight magnitudes per group of sixteen, divided once and looked up, signs put on afterwards.

use std::arch::aarch64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::prims::*;
use crate::isa::neon_entry;

static MAGNITUDES: [f32; 8] = {
    let mut t = [0.0; 8];
    let mut i = 0;
    while i < 8 {
        t[i] = e2m1::TO_F32[i];
        i += 1;
    }
    t
};

/// Byte of each byte's value among four values.
const SPREAD: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];

neon_entry! {
    /// Decodes a row, or a run of whole quads of groups.
    #[inline]
    pub(crate) fn row(codes: &[u8], scales: &Nvfp4Scales<'_>, divisor: f32, out: &mut [f32]) {
        let magnitudes = [0, 4].map(|i| load_f32(MAGNITUDES[i..].first_chunk().expect("two fours")));
        let divisor = vdupq_n_f32(divisor);
        let byte_in_value = vreinterpretq_u8_u32(vdupq_n_u32(0x0302_0100));
        let top_byte = vdupq_n_u32(0x8000_0000);
        let groups = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
        for (g, (bytes, out)) in groups.enumerate() {
            let scale = e4m3::to_f32(scales.word(g));
            let table = magnitudes.map(|m| vreinterpretq_u8_f32(vdivq_f32(vmulq_n_f32(m, scale), divisor)));
            let table = uint8x16x2_t(table[0], table[1]);
            let q = load8(bytes);
            // All nibbles as they lie, the low one of each byte first, at bit 4 of theirs.
            let q = vcombine_u8(vzip1_u8(vshl_n_u8::<4>(q), q), vzip2_u8(vshl_n_u8::<4>(q), q));
            // Four times the index of the magnitude; bit 7 is the sign.
            let index = vandq_u8(vshrq_n_u8::<2>(q), vdupq_n_u8(28));
            for (j, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let spread = vaddq_u8(load16(&SPREAD), vdupq_n_u8(4 * j as u8));
                let bytes = vaddq_u8(vqtbl1q_u8(index, spread), byte_in_value);
                let magnitude = vreinterpretq_u32_u8(vqtbl2q_u8(table, bytes));
                let sign = vandq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(q, spread)), top_byte);
                store(out, vreinterpretq_f32_u32(veorq_u32(magnitude, sign)));
            }
        }
    }
}
