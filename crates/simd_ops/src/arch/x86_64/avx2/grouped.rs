//! Grouped formats: planes of codes, one binary16 scale per group.

use std::arch::x86_64::*;

use super::prims::*;
use crate::arch::decoders::grouped_rows;
use crate::isa::avx2_entry;

grouped_rows!(avx2_entry);

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
