//! Blocks with one scale: `q8_0`, `q4_0`, `q5_0`, `q2_0`, `iq4_nl`; and `iq4_xs`, which is eight of the last.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::IQ4_VALUES;

use super::prims::*;

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
pub(crate) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    scaled(load32(at(block, fields::q8_0::Q)), halves(u16_at(block, fields::q8_0::D)), out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let codes = _mm256_sub_epi8(nibbles(at(block, fields::q4_0::Q)), _mm256_set1_epi8(8));
    scaled(codes, halves(u16_at(block, fields::q4_0::D)), out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    // A clear fifth bit subtracts 16.
    let clear = _mm256_andnot_si256(bits(u32_at(block, fields::q5_0::QH)), _mm256_set1_epi8(16));
    let codes = _mm256_sub_epi8(nibbles(at(block, fields::q5_0::Q)), clear);
    scaled(codes, halves(u16_at(block, fields::q5_0::D)), out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = halves(u16_at(block, fields::q2_0::D));
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let codes = _mm256_sub_epi8(two_bits(at(block, fields::q2_0::Q + 8 * b)), _mm256_set1_epi8(1));
        scaled(codes, d, out);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq4(bytes: &[u8; 16], d: __m256, out: &mut [f32; 32]) {
    let table = _mm256_broadcastsi128_si256(load16(&IQ4));
    scaled(_mm256_shuffle_epi8(table, nibbles(bytes)), d, out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    iq4(at(block, fields::iq4_nl::Q), halves(u16_at(block, fields::iq4_nl::D)), out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = halves(u16_at(block, fields::iq4_xs::D));
    let low = u32_at(block, fields::iq4_xs::SL);
    let high = u32::from(u16_at(block, fields::iq4_xs::SH));
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = (low >> (4 * b) & 15 | (high >> (2 * b) & 3) << 4).cast_signed() - 32;
        let scale = _mm256_cvtepi32_ps(_mm256_set1_epi32(scale));
        iq4(at(block, fields::iq4_xs::Q + 16 * b), _mm256_mul_ps(d, scale), out);
    }
}
