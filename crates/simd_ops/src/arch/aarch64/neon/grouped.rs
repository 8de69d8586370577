//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::aarch64::*;

use ninfer_formats::{GroupCode, GroupedScheme};

use super::prims::*;
use crate::column16::{OFFSET_BY_ONE, last_group, shape};
use crate::isa::neon_entry;

neon_entry! {
    /// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
    #[inline]
    pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
        match (s.bits, s.code) {
            (2, GroupCode::OffsetByOne) => groups::<OFFSET_BY_ONE, 64>(s, base, high, scales, out),
            (2, GroupCode::TwosComplement) => groups::<2, 128>(s, base, high, scales, out),
            (4, _) => groups::<4, 64>(s, base, high, scales, out),
            (5, _) => groups::<5, 64>(s, base, high, scales, out),
            (6, _) => groups::<6, 64>(s, base, high, scales, out),
            _ => groups::<8, 32>(s, base, high, scales, out),
        }
    }

    /// [`row`] for one kind, with G values a group.
    #[inline]
    fn groups<const KIND: u8, const G: usize>(
        s: &GroupedScheme,
        base: &[u8],
        high: &[u8],
        scales: &[u8],
        out: &mut [f32],
    ) {
        let [_, b, h] = const { shape(KIND) };
        let words = scales.as_chunks::<2>().0;
        let (whole, tail) = out.as_chunks_mut::<G>();
        let count = whole.len();
        for (g, (out, word)) in whole.iter_mut().zip(words).enumerate() {
            let d = vgetq_lane_f32::<0>(halves(u16::from_le_bytes(*word)));
            group::<KIND>(&base[g * b..(g + 1) * b], &high[g * h..(g + 1) * h], d, 0, out);
        }
        if !tail.is_empty() {
            last_group(s, &base[count * b..], &high[count * h..], &scales[2 * count..], tail);
        }
    }

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
