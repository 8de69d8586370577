//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::aarch64::*;

use ninfer_formats::float::f16;
use ninfer_formats::{GroupCode, GroupedScheme, unpack_codes};

use super::prims::*;
use crate::isa::neon_entry;

neon_entry! {
    /// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
    #[inline]
    pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
        match (s.bits, s.code) {
            (2, GroupCode::OffsetByOne) => {
                groups::<64, 16, 0>(s, base, high, scales, out, |b, _, i| minus(two_bits(at(b, 8 * i)), 1));
            }
            (2, GroupCode::TwosComplement) => {
                groups::<128, 32, 0>(s, base, high, scales, out, |b, _, i| signed(two_bits(at(b, 8 * i)), 2));
            }
            (4, _) => groups::<64, 32, 0>(s, base, high, scales, out, |b, _, i| {
                signed(interleaved_nibbles(at(b, 16 * i)), 8)
            }),
            (5, _) => groups::<64, 32, 8>(s, base, high, scales, out, |b, h, i| {
                let fifth = bits(*at(h, 4 * i)).map(|m| vandq_u8(m, vdupq_n_u8(16)));
                signed(or(interleaved_nibbles(at(b, 16 * i)), fifth), 16)
            }),
            (6, _) => groups::<64, 32, 16>(s, base, high, scales, out, |b, h, i| {
                let top = two_bits(at(h, 8 * i)).map(|t| vshlq_n_u8::<4>(t));
                signed(or(interleaved_nibbles(at(b, 16 * i)), top), 32)
            }),
            _ => groups::<32, 32, 0>(s, base, high, scales, out, |b, _, _| {
                [0, 16].map(|i| vreinterpretq_s8_u8(load16(at(b, i))))
            }),
        }
    }

    /// Runs over the groups of G elements, B bytes in the base plane and H in the high plane; `codes` gives run `i`
    /// of 32 codes of a group.
    #[inline]
    fn groups<const G: usize, const B: usize, const H: usize>(
        s: &GroupedScheme,
        base: &[u8],
        high: &[u8],
        scales: &[u8],
        out: &mut [f32],
        codes: impl Fn(&[u8; B], &[u8; H], usize) -> [int8x16_t; 2],
    ) {
        let base = base.as_chunks::<B>().0;
        let words = scales.as_chunks::<2>().0;
        let (whole, tail) = out.as_chunks_mut::<G>();
        let count = whole.len();
        for (g, ((out, base), word)) in whole.iter_mut().zip(base).zip(words).enumerate() {
            let d = halves(u16::from_le_bytes(*word));
            for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                scaled(codes(base, at(high, g * H), i), d, out);
            }
        }
        if !tail.is_empty() {
            let mut lanes = [0; G];
            unpack_codes(s, &base[count], &high[count * H..(count + 1) * H], &mut lanes);
            let d = f16::to_f32(u16::from_le_bytes(words[count]));
            for (o, &q) in tail.iter_mut().zip(&lanes) {
                *o = d * f32::from(q);
            }
        }
    }
}
