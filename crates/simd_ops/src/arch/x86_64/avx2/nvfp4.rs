//! `nvfp4`: eight magnitudes per group of sixteen, divided once and looked up, signs put on afterwards.

use std::arch::x86_64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::prims::*;
use crate::column16::rows;

static MAGNITUDES: [f32; 8] = {
    let mut t = [0.0; 8];
    let mut i = 0;
    while i < 8 {
        t[i] = e2m1::TO_F32[i];
        i += 1;
    }
    t
};

/// Decodes a row, or a run of whole quads of groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn row(codes: &[u8], scales: &Nvfp4Scales<'_>, divisor: f32, out: &mut [f32]) {
    let plane = scales.plane();
    for (i, (codes, out)) in codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        run([codes], [(&plane[i * Nvfp4Scales::QUAD_STRIDE..], divisor)], out);
    }
}

/// The values of the eight magnitudes for every scale word.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quotients(divisor: f32, out: &mut [[f32; 8]; 256]) {
    for (word, out) in (0..=255).zip(out) {
        *out = MAGNITUDES.map(|v| v * e4m3::to_f32(word) / divisor);
    }
}

/// [`run`] with what [`quotients`] makes of the divisor that all rows have.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn run_by_quotients<const R: usize>(
    codes: [&[u8]; R],
    scales: [(&[u8], f32); R],
    quotients: &[[f32; 8]; 256],
    out: &mut impl Runs,
) {
    for g in 0..codes[0].len() / 8 {
        rows!(R, r, {
            let (codes, (plane, _)) = (codes[r], scales[r]);
            let word = plane[g / 4 * Nvfp4Scales::QUAD_STRIDE + g % 4];
            out.put(r, g, looked_up(at(codes, 8 * g), load_f32(&quotients[usize::from(word)])));
        });
    }
}

/// Sixteen codes, given the values of the magnitudes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn looked_up(codes: &[u8; 8], values: __m256) -> [__m256; 2] {
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let sign = _mm256_set1_epi32(i32::MIN);
    let half = |half: usize| {
        // The permutation looks at three bits; the fourth is the sign.
        let q = _mm256_srlv_epi32(_mm256_set1_epi32(u32_at(codes, 4 * half).cast_signed()), shifts);
        let negative = _mm256_and_si256(_mm256_slli_epi32::<28>(q), sign);
        _mm256_xor_ps(_mm256_permutevar8x32_ps(values, q), _mm256_castsi256_ps(negative))
    };
    [half(0), half(1)]
}

/// Decodes whole quads of R rows, given their scale planes from there on and their divisors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn run<const R: usize>(codes: [&[u8]; R], scales: [(&[u8], f32); R], out: &mut impl Runs) {
    let magnitudes = load_f32(&MAGNITUDES);
    for g in 0..codes[0].len() / 8 {
        rows!(R, r, {
            let (codes, (plane, divisor)) = (codes[r], scales[r]);
            let scale = e4m3::to_f32(plane[g / 4 * Nvfp4Scales::QUAD_STRIDE + g % 4]);
            let values = _mm256_mul_ps(magnitudes, _mm256_set1_ps(scale));
            let values = _mm256_div_ps(values, _mm256_set1_ps(divisor));
            out.put(r, g, looked_up(at(codes, 8 * g), values));
        });
    }
}
