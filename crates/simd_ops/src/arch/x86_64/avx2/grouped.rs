//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::x86_64::*;

use ninfer_formats::{GroupCode, GroupedScheme};

use super::prims::*;
use crate::column16::{OFFSET_BY_ONE, last_group, shape};

/// Decodes a row, or a run of whole groups of one with the row's end; `out` may end within a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn row(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
    match (s.bits, s.code) {
        (2, GroupCode::OffsetByOne) => groups::<OFFSET_BY_ONE, 64>(s, base, high, scales, out),
        (2, GroupCode::TwosComplement) => groups::<2, 128>(s, base, high, scales, out),
        (4, _) => groups::<4, 64>(s, base, high, scales, out),
        (5, _) => groups::<5, 64>(s, base, high, scales, out),
        (6, _) => groups::<6, 64>(s, base, high, scales, out),
        _ => groups::<8, 32>(s, base, high, scales, out),
    }
}

/// [`row`] for one kind, with G values a group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn groups<const KIND: u8, const G: usize>(
    s: &GroupedScheme,
    base: &[u8],
    high: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    let [_, b, h] = const { shape(KIND) };
    let words = scales.as_chunks::<2>().0;
    let (whole, tail) = out.as_chunks_mut::<G>();
    let count = whole.len();
    for (g, (out, word)) in whole.iter_mut().zip(words).enumerate() {
        let d = _mm256_cvtss_f32(halves(u16::from_le_bytes(*word)));
        group::<KIND>(&base[g * b..(g + 1) * b], &high[g * h..(g + 1) * h], d, 0, out);
    }
    if !tail.is_empty() {
        last_group(s, &base[count * b..], &high[count * h..], &scales[2 * count..], tail);
    }
}

/// The values of a group, given its bytes in both planes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn group<const KIND: u8>(base: &[u8], high: &[u8], d: f32, r: usize, out: &mut impl Runs) {
    let d = _mm256_set1_ps(d);
    for i in 0..const { shape(KIND)[0] / 32 } {
        let codes = match KIND {
            OFFSET_BY_ONE => _mm256_sub_epi8(two_bits(at(base, 8 * i)), _mm256_set1_epi8(1)),
            2 => signed(two_bits(at(base, 8 * i)), 2),
            4 => signed(interleaved_nibbles(at(base, 16 * i)), 8),
            5 => {
                let fifth = _mm256_and_si256(bits(u32_at(high, 4 * i)), _mm256_set1_epi8(16));
                signed(_mm256_or_si256(interleaved_nibbles(at(base, 16 * i)), fifth), 16)
            }
            6 => {
                let top = _mm256_slli_epi16::<4>(two_bits(at(high, 8 * i)));
                signed(_mm256_or_si256(interleaved_nibbles(at(base, 16 * i)), top), 32)
            }
            _ => load32(at(base, 0)),
        };
        scaled(codes, d, r, 2 * i, out);
    }
}

/// Two's complement of a narrower width, whose sign bit is `sign`, to bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed(u: __m256i, sign: i8) -> __m256i {
    let sign = _mm256_set1_epi8(sign);
    _mm256_sub_epi8(_mm256_xor_si256(u, sign), sign)
}
