//! Blocks with one scale: `q8_0`, `q4_0`, `q5_0`, `q2_0`, `iq4_nl`; and `iq4_xs`, which is eight of the last.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::IQ4_VALUES;

use super::prims::*;
use crate::column16::rows;

static IQ4: [u8; 16] = {
    let mut t = [0; 16];
    let mut i = 0;
    while i < 16 {
        t[i] = IQ4_VALUES[i].cast_unsigned();
        i += 1;
    }
    t
};

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q8_0<const R: usize>(blocks: [&[u8; 34]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        scaled(load32(at(block, fields::q8_0::Q)), halves(u16_at(block, fields::q8_0::D)), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q4_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        let codes = _mm256_sub_epi8(nibbles(at(block, fields::q4_0::Q)), _mm256_set1_epi8(8));
        scaled(codes, halves(u16_at(block, fields::q4_0::D)), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q5_0<const R: usize>(blocks: [&[u8; 22]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        // A clear fifth bit subtracts 16.
        let clear = _mm256_andnot_si256(bits(u32_at(block, fields::q5_0::QH)), _mm256_set1_epi8(16));
        let codes = _mm256_sub_epi8(nibbles(at(block, fields::q5_0::Q)), clear);
        scaled(codes, halves(u16_at(block, fields::q5_0::D)), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q2_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        let d = halves(u16_at(block, fields::q2_0::D));
        for b in 0..2 {
            let codes = _mm256_sub_epi8(two_bits(at(block, fields::q2_0::Q + 8 * b)), _mm256_set1_epi8(1));
            scaled(codes, d, r, 2 * b, out);
        }
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq4(bytes: &[u8; 16], d: __m256, r: usize, first: usize, out: &mut impl Runs) {
    let table = _mm256_broadcastsi128_si256(load16(&IQ4));
    scaled(_mm256_shuffle_epi8(table, nibbles(bytes)), d, r, first, out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq4_nl<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        iq4(at(block, fields::iq4_nl::Q), halves(u16_at(block, fields::iq4_nl::D)), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq4_xs<const R: usize>(blocks: [&[u8; 136]; R], out: &mut impl Runs) {
    let scales = blocks.map(|block| halves(u16_at(block, fields::iq4_xs::D)));
    for b in 0..8 {
        rows!(R, r, {
            let (block, d) = (blocks[r], scales[r]);
            let low = u32_at(block, fields::iq4_xs::SL);
            let high = u32::from(u16_at(block, fields::iq4_xs::SH));
            let scale = (low >> (4 * b) & 15 | (high >> (2 * b) & 3) << 4).cast_signed() - 32;
            let scale = _mm256_cvtepi32_ps(_mm256_set1_epi32(scale));
            let d = _mm256_mul_ps(d, scale);
            iq4(at(block, fields::iq4_xs::Q + 16 * b), d, r, 2 * b, out);
        });
    }
}
