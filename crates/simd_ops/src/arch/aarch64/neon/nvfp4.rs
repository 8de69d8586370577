//! `nvfp4`: eight magnitudes per group of sixteen, divided once and looked up, signs put on afterwards.

use std::arch::aarch64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::prims::*;
use crate::column16::rows;
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
        let plane = scales.plane();
        for (i, (codes, out)) in codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
            run([codes], [(&plane[i * Nvfp4Scales::QUAD_STRIDE..], divisor)], out);
        }
    }

    /// Decodes whole quads of R rows, given their scale planes from there on and their divisors.
    #[inline]
    pub(crate) fn run<const R: usize>(codes: [&[u8]; R], scales: [(&[u8], f32); R], out: &mut impl Runs) {
        let magnitudes = two!(I => load_f32(at_four(&MAGNITUDES, 4 * I)));
        let byte_in_value = vreinterpretq_u8_u32(vdupq_n_u32(0x0302_0100));
        let top_byte = vdupq_n_u32(0x8000_0000);
        for g in 0..codes[0].len() / 8 {
            rows!(R, r, {
                let (codes, (plane, divisor)) = (codes[r], scales[r]);
                let scale = e4m3::to_f32(plane[g / 4 * Nvfp4Scales::QUAD_STRIDE + g % 4]);
                let divisor = vdupq_n_f32(divisor);
                let [a, b] = two!(I => vreinterpretq_u8_f32(vdivq_f32(vmulq_n_f32(magnitudes[I], scale), divisor)));
                let table = uint8x16x2_t(a, b);
                let q = load8(at(codes, 8 * g));
                // All nibbles as they lie, the low one of each byte first, at bit 4 of theirs.
                let q = vcombine_u8(vzip1_u8(vshl_n_u8::<4>(q), q), vzip2_u8(vshl_n_u8::<4>(q), q));
                // Four times the index of the magnitude; bit 7 is the sign.
                let index = vandq_u8(vshrq_n_u8::<2>(q), vdupq_n_u8(28));
                let values = four!(J => {
                    let spread = vaddq_u8(load16(&SPREAD), vdupq_n_u8(4 * J as u8));
                    let bytes = vaddq_u8(vqtbl1q_u8(index, spread), byte_in_value);
                    let magnitude = vreinterpretq_u32_u8(vqtbl2q_u8(table, bytes));
                    let sign = vandq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(q, spread)), top_byte);
                    vreinterpretq_f32_u32(veorq_u32(magnitude, sign))
                });
                out.put(r, g, values);
            });
        }
    }

    #[inline]
    fn at_four(values: &[f32; 8], from: usize) -> &[f32; 4] {
        values[from..].first_chunk().expect("two fours")
    }
}
