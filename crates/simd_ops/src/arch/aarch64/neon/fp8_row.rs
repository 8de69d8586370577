//! E4M3FN rows: the word is a binary16 word of the same value times 2^-8, NaN aside.

use std::arch::aarch64::*;

use super::prims::*;
use crate::arch::decoders::fp8_rows;
use crate::isa::neon_entry;

fp8_rows!(neon_entry);

neon_entry! {
    /// Decodes 64 codes, unless one of them is NaN.
    #[inline]
    pub(crate) fn run(bytes: &[u8; 64], factor: f32, r: usize, out: &mut impl Runs) -> bool {
        let magnitude = vdupq_n_u8(0x7f);
        let c = four!(I => load16(at(bytes, 16 * I)));
        let m = four!(I => vandq_u8(c[I], magnitude));
        // The largest magnitude of all is that of NaN.
        if vmaxvq_u8(vmaxq_u8(vmaxq_u8(m[0], m[1]), vmaxq_u8(m[2], m[3]))) == 0x7f {
            return false;
        }
        let keep = vdupq_n_u16(0xbf80);
        four!(I => {
            let c = vreinterpretq_s8_u8(c[I]);
            // Sign to bit 15, exponent and fraction to bits 13..7; bit 14 gets a copy of the sign and is cleared.
            let words = [vshll_n_s8::<7>(vget_low_s8(c)), vshll_high_n_s8::<7>(c)];
            let words = two!(H => vandq_u16(vreinterpretq_u16_s16(words[H]), keep));
            let values = [
                from_halves(vget_low_u16(words[0])),
                from_halves(vget_high_u16(words[0])),
                from_halves(vget_low_u16(words[1])),
                from_halves(vget_high_u16(words[1])),
            ];
            out.put(r, I, four!(Q => vmulq_n_f32(values[Q], factor)));
        });
        true
    }
}
