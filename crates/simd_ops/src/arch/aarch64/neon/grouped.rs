//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::aarch64::*;

use super::prims::*;
use crate::arch::decoders::grouped_rows;
use crate::isa::neon_entry;

grouped_rows!(neon_entry);

neon_entry! {
    /// The values of a group, given its bytes in both planes.
    #[inline]
    pub(crate) fn group<const KIND: u8>(base: &[u8], high: &[u8], d: f32, r: usize, out: &mut impl Runs) {
        let d = vdupq_n_f32(d);
        four!(I => {
            if I < const { shape(KIND)[0] / 32 } {
                scaled(codes::<KIND>(base, high, I), d, r, 2 * I, out);
            }
        });
    }

    /// Run `i` of 32 codes of a group.
    #[inline]
    fn codes<const KIND: u8>(base: &[u8], high: &[u8], i: usize) -> [int8x16_t; 2] {
        match KIND {
            OFFSET_BY_ONE => minus(two_bits(at(base, 8 * i)), 1),
            2 => signed(two_bits(at(base, 8 * i)), 2),
            4 => signed(interleaved_nibbles(at(base, 16 * i)), 8),
            5 => {
                let fifth = bits(*at(high, 4 * i));
                let fifth = two!(I => vandq_u8(fifth[I], vdupq_n_u8(16)));
                signed(or(interleaved_nibbles(at(base, 16 * i)), fifth), 16)
            }
            6 => {
                let top = two_bits(at(high, 8 * i));
                let top = two!(I => vshlq_n_u8::<4>(top[I]));
                signed(or(interleaved_nibbles(at(base, 16 * i)), top), 32)
            }
            _ => two!(I => vreinterpretq_s8_u8(load16(at(base, 16 * I)))),
        }
    }
}
