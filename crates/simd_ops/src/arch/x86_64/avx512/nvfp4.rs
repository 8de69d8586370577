//! `nvfp4`: the magnitudes of a group are powers of two times one and times one and a half: two divisions give all.

use std::arch::x86_64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::grouped::interleaved_nibbles;
use super::prims::*;

/// What the quotient `1 * scale / divisor` or, in the lanes of [`HALF_MORE`], `1.5 * scale / divisor` is multiplied
/// by to give the value of each code.
static MULTIPLES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -0.5, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0];
/// Codes of 1.5, 3 and 6.
const HALF_MORE: __mmask16 = 0b1010_1000_1010_1000;

/// Decodes a row, or a run of whole quads of groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn row(codes: &[u8], scales: &Nvfp4Scales<'_>, divisor: f32, out: &mut [f32]) {
    let multiples = load_f32(&MULTIPLES);
    let plane = scales.plane();
    let quads = codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0);
    for (i, (codes, out)) in quads.enumerate() {
        let words = at::<4>(plane, i * Nvfp4Scales::QUAD_STRIDE);
        let [a, b, c, d] = words.map(e4m3::to_f32);
        let ones = _mm_set_ps(d, c, b, a);
        let both = _mm256_set_m128(_mm_mul_ps(ones, _mm_set1_ps(1.5)), ones);
        let quotients = _mm256_div_ps(both, _mm256_set1_ps(divisor));
        // Multiplying a quotient by a power of two is exact unless it leaves the normal numbers. 2^-100 to 2^100 is
        // wide enough; zero is fine as well.
        let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), quotients);
        let normal = _mm256_cmp_ps_mask::<_CMP_GE_OQ>(size, _mm256_set1_ps(f32::from_bits(27 << 23)))
            & _mm256_cmp_ps_mask::<_CMP_LE_OQ>(size, _mm256_set1_ps(f32::from_bits(227 << 23)))
            | _mm256_cmp_ps_mask::<_CMP_EQ_OQ>(both, _mm256_setzero_ps());
        if normal != 0xff {
            one_by_one(codes, words, divisor, out);
            continue;
        }
        let mut q = [0.0; 8];
        // SAFETY: writes the 32 bytes of `q`.
        unsafe { _mm256_storeu_ps(q.as_mut_ptr(), quotients) };
        for (g, bytes) in codes.as_chunks::<8>().0.iter().enumerate() {
            let chosen = _mm512_mask_blend_ps(HALF_MORE, _mm512_set1_ps(q[g]), _mm512_set1_ps(q[4 + g]));
            let table = _mm512_mul_ps(chosen, multiples);
            store(run16(out, g), _mm512_permutexvar_ps(interleaved_nibbles(bytes), table));
        }
    }
}

/// Every product and quotient as it is written.
fn one_by_one(codes: &[u8; 32], scales: &[u8; 4], divisor: f32, out: &mut [f32; 64]) {
    let groups = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0).zip(scales);
    for ((codes, out), &scale) in groups {
        let scale = e4m3::to_f32(scale);
        let values = e2m1::TO_F32.map(|v| v * scale / divisor);
        for (pair, &c) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = [values[usize::from(c & 15)], values[usize::from(c >> 4)]];
        }
    }
}
