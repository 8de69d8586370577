//! Blocks with one scale: `q8_0`, `q4_0`, `q5_0`, `q2_0`, `iq4_nl`.

use std::arch::aarch64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::IQ4_VALUES;

use super::prims::*;
use crate::column16::rows;
use crate::isa::neon_entry;

neon_entry! {
    #[inline]
    pub(crate) fn q8_0<const R: usize>(blocks: [&[u8; 34]; R], out: &mut impl Runs) {
        rows!(R, r, {
            let block = blocks[r];
            let codes = two!(I => vreinterpretq_s8_u8(load16(at(block, fields::q8_0::Q + 16 * I))));
            scaled(codes, halves(u16_at(block, fields::q8_0::D)), r, 0, out);
        });
    }

    #[inline]
    pub(crate) fn q4_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
        rows!(R, r, {
            let block = blocks[r];
            let codes = minus(nibbles(at(block, fields::q4_0::Q)), 8);
            scaled(codes, halves(u16_at(block, fields::q4_0::D)), r, 0, out);
        });
    }

    #[inline]
    pub(crate) fn q5_0<const R: usize>(blocks: [&[u8; 22]; R], out: &mut impl Runs) {
        rows!(R, r, {
            let block = blocks[r];
            let fifth = bits(*at(block, fields::q5_0::QH));
            let fifth = two!(I => vandq_u8(fifth[I], vdupq_n_u8(16)));
            let codes = minus(or(nibbles(at(block, fields::q5_0::Q)), fifth), 16);
            scaled(codes, halves(u16_at(block, fields::q5_0::D)), r, 0, out);
        });
    }

    #[inline]
    pub(crate) fn q2_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
        rows!(R, r, {
            let block = blocks[r];
            let d = halves(u16_at(block, fields::q2_0::D));
            two!(B => scaled(minus(two_bits(at(block, fields::q2_0::Q + 8 * B)), 1), d, r, 2 * B, out));
        });
    }

    #[inline]
    pub(crate) fn iq4_nl<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
        rows!(R, r, {
            let block = blocks[r];
            let (table, q) = (load16_signed(&IQ4_VALUES), nibbles(at(block, fields::iq4_nl::Q)));
            let codes = two!(I => vqtbl1q_s8(table, q[I]));
            scaled(codes, halves(u16_at(block, fields::iq4_nl::D)), r, 0, out);
        });
    }
}
