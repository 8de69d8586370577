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

/// As the AVX-512 kernels': here a division of eight numbers a group is hidden by the rest, so there are no quotients.
pub(crate) fn quotients(_divisor: f32, _out: &mut [[f32; 2]; 256]) -> bool {
    false
}

/// [`run`]; see [`quotients`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn run_by_quotients<const R: usize>(
    codes: [&[u8]; R],
    scales: [(&[u8], f32); R],
    _quotients: &[[f32; 2]; 256],
    out: &mut impl Runs,
) {
    run(codes, scales, out);
}

/// Decodes whole quads of R rows, given their scale planes from there on and their divisors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn run<const R: usize>(codes: [&[u8]; R], scales: [(&[u8], f32); R], out: &mut impl Runs) {
    let magnitudes = load_f32(&MAGNITUDES);
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let sign = _mm256_set1_epi32(i32::MIN);
    for g in 0..codes[0].len() / 8 {
        rows!(R, r, {
            let (codes, (plane, divisor)) = (codes[r], scales[r]);
            let scale = e4m3::to_f32(plane[g / 4 * Nvfp4Scales::QUAD_STRIDE + g % 4]);
            let values = _mm256_mul_ps(magnitudes, _mm256_set1_ps(scale));
            let values = _mm256_div_ps(values, _mm256_set1_ps(divisor));
            let half = |half: usize| {
                let word = _mm256_set1_epi32(u32_at(codes, 8 * g + 4 * half).cast_signed());
                // The permutation looks at three bits; the fourth is the sign.
                let q = _mm256_srlv_epi32(word, shifts);
                let negative = _mm256_and_si256(_mm256_slli_epi32::<28>(q), sign);
                _mm256_xor_ps(_mm256_permutevar8x32_ps(values, q), _mm256_castsi256_ps(negative))
            };
            out.put(r, g, [half(0), half(1)]);
        });
    }
}
