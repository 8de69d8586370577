//! Blocks with one scale: `q8_0`, `q4_0`, `q5_0`, `q2_0`, `iq4_nl`.
//!
//! Codes of up to five bits are looked up in a table of the sixteen or thirty-two products `d * code`, which one
//! permute instruction does for sixteen lanes; it ignores the bits above the index.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::fields;
use ninfer_formats::tables::IQ4_VALUES;

use super::prims::*;
use crate::column16::rows;

/// The values of a code of four bits as binary32.
pub(crate) const fn as_f32(values: [i8; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = values[i] as f32;
        i += 1;
    }
    out
}

/// Codes `i + first`.
pub(crate) const fn codes_from(first: i8) -> [f32; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = i as i8 + first;
        i += 1;
    }
    as_f32(out)
}

/// Two bits: four values again and again, so that bits 2 and 3 of the index do not matter.
pub(crate) const fn four(values: [i8; 4]) -> [f32; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = values[i % 4];
        i += 1;
    }
    as_f32(out)
}

/// The table of `iq4_nl` and `iq4_xs`.
pub(crate) static IQ4: [f32; 16] = as_f32(IQ4_VALUES);
static Q4: [f32; 16] = codes_from(-8);
static Q5: [[f32; 16]; 2] = [codes_from(-16), codes_from(0)];
static Q2: [f32; 16] = four([-1, 0, 1, 2]);
/// Shifts that bring two-bit field `l` of a word to the bottom of lane `l`.
pub(crate) static FIELDS_OF_2: [i32; 16] = ramp(0, 2);
/// Rotations that bring bit `l` of a word to bit 4 of lane `l`, and bit `16 + l`.
static BIT_TO_4: [[i32; 16]; 2] = [ramp(-4, 1), ramp(12, 1)];

/// `d * table`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn table(d: __m512, values: &[f32; 16]) -> __m512 {
    _mm512_mul_ps(d, load_f32(values))
}

/// Sixteen bytes of two nibbles: low nibbles, then high nibbles, through a table, to the runs from `first` on of row `r`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn nibbles(bytes: &[u8; 16], table: __m512, r: usize, first: usize, out: &mut impl Runs) {
    let q = widen(bytes);
    out.put(r, first, _mm512_permutexvar_ps(q, table));
    out.put(r, first + 1, _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(q), table));
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q8_0<const R: usize>(blocks: [&[u8; 34]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        let d = half_at(block, fields::q8_0::D);
        out.put(r, 0, scaled(load16(at(block, fields::q8_0::Q)), d));
        out.put(r, 1, scaled(load16(at(block, fields::q8_0::Q + 16)), d));
    });
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q4_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        nibbles(at(block, fields::q4_0::Q), table(half_at(block, fields::q4_0::D), &Q4), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn iq4_nl<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        nibbles(at(block, fields::iq4_nl::Q), table(half_at(block, fields::iq4_nl::D), &IQ4), r, 0, out);
    });
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q5_0<const R: usize>(blocks: [&[u8; 22]; R], out: &mut impl Runs) {
    let (low, high) = (load_f32(&Q5[0]), load_f32(&Q5[1]));
    let mut scales = [[0.0; 4]; R];
    rows!(R, r, {
        let (scales, block) = (&mut scales[r], blocks[r]);
        // SAFETY: reads eight bytes and writes 16.
        unsafe {
            let words = _mm_loadl_epi64(at::<8>(block, fields::q5_0::D).as_ptr().cast());
            _mm_storeu_ps(scales.as_mut_ptr(), _mm_cvtph_ps(words));
        }
    });
    let scales = kept(&scales);
    rows!(R, r, {
        let block = blocks[r];
        let d = _mm512_set1_ps(scales[r][0]);
        let fifth = _mm512_set1_epi32(u32_at(block, fields::q5_0::QH).cast_signed());
        let q = widen(at(block, fields::q5_0::Q));
        let nibble = _mm512_set1_epi32(15);
        for (half, q) in [q, _mm512_srli_epi32::<4>(q)].into_iter().enumerate() {
            let index = select(nibble, q, _mm512_rorv_epi32(fifth, load_i32(&BIT_TO_4[half])));
            out.put(r, half, _mm512_mul_ps(_mm512_permutex2var_ps(low, index, high), d));
        }
    });
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn q2_0<const R: usize>(blocks: [&[u8; 18]; R], out: &mut impl Runs) {
    rows!(R, r, {
        let block = blocks[r];
        let table = table(half_at(block, fields::q2_0::D), &Q2);
        let shifts = load_i32(&FIELDS_OF_2);
        for i in 0..4 {
            let word = _mm512_set1_epi32(u32_at(block, fields::q2_0::Q + 4 * i).cast_signed());
            out.put(r, i, _mm512_permutexvar_ps(_mm512_rorv_epi32(word, shifts), table));
        }
    });
}
