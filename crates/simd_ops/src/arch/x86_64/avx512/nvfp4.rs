//! `nvfp4`: the magnitudes of a group are powers of two times one and times one and a half: two divisions give all.

use std::arch::x86_64::*;

use ninfer_formats::Nvfp4Scales;
use ninfer_formats::float::{e2m1, e4m3};

use super::grouped::{interleaved_nibbles, nibbles_of_pair};
use super::prims::*;
use crate::arch::fetch;
use crate::column16::rows;

/// What the quotient `1 * scale / divisor` or, in the lanes of [`HALF_MORE`], `1.5 * scale / divisor` is multiplied
/// by to give the value of each code.
static MULTIPLES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -0.5, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0];
/// The fourth bit of a code is its sign.
static NEGATIVE: [i32; 16] = {
    let mut t = [0; 16];
    let mut i = 8;
    while i < 16 {
        t[i] = i32::MIN;
        i += 1;
    }
    t
};
/// Codes of 1.5, 3 and 6.
const HALF_MORE: __mmask16 = 0b1010_1000_1010_1000;

/// Decodes a row, or a run of whole quads of groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn row(codes: &[u8], scales: &Nvfp4Scales<'_>, divisor: f32, out: &mut [f32]) {
    let plane = scales.plane();
    for (i, (codes, out)) in codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        quad(codes, *at(plane, i * Nvfp4Scales::QUAD_STRIDE), divisor, 0, 0, out);
    }
}

/// Decodes at most 256 values of R rows, given their scale planes from there on and their divisors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn run<const R: usize>(codes: [&[u8]; R], scales: [(&[u8], f32); R], out: &mut impl Runs) {
    let count = codes[0].len() / 32;
    let mut quotients = [[[0.0; 16]; 2]; R];
    let mut plain = count == 4;
    for (quotients, (plane, divisor)) in quotients.iter_mut().zip(scales) {
        // Quotients of scales by such a divisor, and a few powers of two times these, are normal numbers or zero.
        plain &= (2f32.powi(-60)..=2f32.powi(60)).contains(&divisor.abs());
        if !plain {
            break;
        }
        let quad = |i: usize| u32_at(plane, i * Nvfp4Scales::QUAD_STRIDE).cast_signed();
        let words = _mm_set_epi32(quad(3), quad(2), quad(1), quad(0));
        let magnitude = _mm_set1_epi8(0x7f);
        plain &= _mm_cmpeq_epi8_mask(_mm_and_si128(words, magnitude), magnitude) == 0;
        // As in `fp8_row`: binary16 words of the value times 2^-8.
        let keep = _mm256_set1_epi16(0xbf80u16.cast_signed());
        let halves = _mm256_and_si256(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(words)), keep);
        let ones = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0));
        let divisor = _mm512_set1_ps(divisor);
        store(&mut quotients[0], _mm512_div_ps(ones, divisor));
        store(&mut quotients[1], _mm512_div_ps(_mm512_mul_ps(ones, _mm512_set1_ps(1.5)), divisor));
    }
    if !plain {
        for i in 0..count {
            rows!(R, r, {
                let (codes, (plane, divisor)) = (codes[r], scales[r]);
                quad(at(codes, 32 * i), *at(plane, i * Nvfp4Scales::QUAD_STRIDE), divisor, r, 4 * i, out);
            });
        }
        return;
    }
    let multiples = load_f32(&MULTIPLES);
    let quotients = kept(&quotients);
    for g in 0..16 {
        rows!(R, r, {
            let (codes, [one, more]) = (codes[r], &quotients[r]);
            let chosen = _mm512_mask_blend_ps(HALF_MORE, _mm512_set1_ps(one[g]), _mm512_set1_ps(more[g]));
            let table = _mm512_mul_ps(chosen, multiples);
            out.put(r, g, _mm512_permutexvar_ps(interleaved_nibbles(at(codes, 8 * g)), table));
        });
    }
}

/// The values of the eight magnitudes for every scale word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn quotients(divisor: f32, out: &mut [[f32; 8]; 256]) {
    let divisor = _mm256_set1_ps(divisor);
    let magnitudes = _mm512_castps512_ps256(load_f32(&e2m1::TO_F32));
    for (word, out) in (0..=255).zip(out) {
        let values = _mm256_mul_ps(magnitudes, _mm256_set1_ps(e4m3::to_f32(word)));
        // SAFETY: writes the 32 bytes of `out`.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_div_ps(values, divisor)) };
    }
}

/// [`run`] with what [`quotients`] makes of the divisor that all rows have.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn run_by_quotients<const R: usize>(
    codes: [&[u8]; R],
    scales: [(&[u8], f32); R],
    quotients: &[[f32; 8]; 256],
    out: &mut impl Runs,
) {
    let quads = (codes[0].len() / 32).min(4);
    let mut words = [[[0; 4]; 4]; R];
    for (words, (plane, _)) in words.iter_mut().zip(scales) {
        for (word, plane) in words[..quads].iter_mut().zip(plane.chunks(Nvfp4Scales::QUAD_STRIDE)) {
            *word = *at(plane, 0);
            // The next rows' words.
            fetch(plane.as_ptr().wrapping_add(64));
        }
    }
    let words = kept(&words);
    // Kept from the compiler: it would permute signs and magnitudes apart.
    let negative = _mm512_castsi512_ps(load_i32(kept(&NEGATIVE)));
    for i in 0..quads {
        // No `map`: its closure would not be inlined.
        let mut quad = [_mm256_setzero_si256(); R];
        rows!(R, r, {
            let (quad, codes) = (&mut quad[r], codes[r]);
            *quad = load32(at(codes, 32 * i));
        });
        for g in 0..4 {
            rows!(R, r, {
                let values = &quotients[usize::from(words[r][i][g])];
                // SAFETY: reads the 32 bytes of `values`.
                let values = _mm512_broadcast_f32x8(unsafe { _mm256_loadu_ps(values.as_ptr()) });
                let table = _mm512_xor_ps(values, negative);
                out.put(r, 4 * i + g, _mm512_permutexvar_ps(nibbles_of_pair(quad[r], g), table));
            });
        }
    }
}

/// Decodes four groups with their scale words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn quad(
    codes: &[u8; 32],
    words: [u8; 4],
    divisor: f32,
    r: usize,
    first: usize,
    out: &mut impl Runs,
) {
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
        return one_by_one(codes, words, divisor, r, first, out);
    }
    let mut q = [0.0; 8];
    // SAFETY: writes the 32 bytes of `q`.
    unsafe { _mm256_storeu_ps(q.as_mut_ptr(), quotients) };
    for (g, bytes) in codes.as_chunks::<8>().0.iter().enumerate() {
        let chosen = _mm512_mask_blend_ps(HALF_MORE, _mm512_set1_ps(q[g]), _mm512_set1_ps(q[4 + g]));
        let table = _mm512_mul_ps(chosen, load_f32(&MULTIPLES));
        out.put(r, first + g, _mm512_permutexvar_ps(interleaved_nibbles(bytes), table));
    }
}

/// Every product and quotient as it is written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn one_by_one(codes: &[u8; 32], scales: [u8; 4], divisor: f32, r: usize, first: usize, out: &mut impl Runs) {
    for (g, (codes, scale)) in codes.as_chunks::<8>().0.iter().zip(scales).enumerate() {
        let scale = e4m3::to_f32(scale);
        let values = e2m1::TO_F32.map(|v| v * scale / divisor);
        out.put(r, first + g, _mm512_permutexvar_ps(interleaved_nibbles(codes), load_f32(&values)));
    }
}
