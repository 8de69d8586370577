//! `nvfp4`: eight magnitudes per group of sixteen, divided once and looked up, signs put on afterwards.

use std::arch::x86_64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::prims::*;

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
    let (magnitudes, divisor) = (load_f32(&MAGNITUDES), _mm256_set1_ps(divisor));
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let sign = _mm256_set1_epi32(i32::MIN);
    let groups = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
    for (g, (bytes, out)) in groups.enumerate() {
        let scale = _mm256_set1_ps(e4m3::to_f32(scales.word(g)));
        let values = _mm256_div_ps(_mm256_mul_ps(magnitudes, scale), divisor);
        for (half, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = _mm256_set1_epi32(u32_at(bytes, 4 * half).cast_signed());
            // The permutation looks at three bits; the fourth is the sign.
            let q = _mm256_srlv_epi32(word, shifts);
            let negative = _mm256_and_si256(_mm256_slli_epi32::<28>(q), sign);
            let v = _mm256_permutevar8x32_ps(values, q);
            store(out, _mm256_xor_ps(v, _mm256_castsi256_ps(negative)));
        }
    }
}
