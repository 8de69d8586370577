//! Groups of codes of five and six bits for A16 products of one column: fields of any width are moved to bytes at once.

use std::arch::x86_64::*;

use crate::arch::x86_64::avx512::gguf_legacy::table;
use crate::arch::x86_64::avx512::grouped::SIGNED_5;
use crate::arch::x86_64::avx512::prims::*;
use crate::isa::avx512_vbmi_entry;

/// Where the eight bits begin that each byte takes of its 64: for a field at `width * (i % count)` of every part of `part` bits,
/// `raised` bits below it.
const fn fields(part: usize, width: usize, raised: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (first, number) = (i % 8 * 8 / part * part, i % (part / 8));
        out[i] = ((64 + first + width * number - raised) % 64) as u8;
        i += 1;
    }
    out
}

/// The nibbles of the lower byte of every 16 bits, and the same two bits higher.
const NIBBLES: [u8; 64] = fields(16, 4, 0);
const RAISED_NIBBLES: [u8; 64] = fields(16, 4, 2);
/// The four fields of the lowest byte of every 32 bits, at the top.
const RAISED_PAIRS: [u8; 64] = fields(32, 2, 6);

avx512_vbmi_entry! {
    /// The values of a group, given its bytes in both planes: of kind 5 or 6.
    #[inline]
    pub(super) fn group<const KIND: u8>(base: &[u8], high: &[u8], d: f32, r: usize, out: &mut impl Runs) {
        const { assert!(KIND == 5 || KIND == 6) };
        let d = _mm512_set1_ps(d);
        let q = _mm512_cvtepu8_epi16(load32(at(base, 0)));
        let mut codes = [0; 64];
        if KIND == 5 {
            let q = _mm512_and_si512(_mm512_multishift_epi64_epi8(load64(&NIBBLES), q), _mm512_set1_epi8(15));
            let negative = u64::from_le_bytes(*at(high, 0));
            store64(&mut codes, _mm512_mask_sub_epi8(q, negative, q, _mm512_set1_epi8(16)));
            let (codes, [low, high]) = (kept(&codes), SIGNED_5.each_ref().map(|values| table(d, values)));
            for i in 0..4 {
                out.put(r, i, _mm512_permutex2var_ps(low, widen(at(codes, 16 * i)), high));
            }
        } else {
            // Six bits at the top of each byte.
            let low = _mm512_and_si512(
                _mm512_multishift_epi64_epi8(load64(&RAISED_NIBBLES), q),
                _mm512_set1_epi8(0x3c),
            );
            let top = _mm512_multishift_epi64_epi8(load64(&RAISED_PAIRS), widen(at(high, 0)));
            store64(&mut codes, select(_mm512_set1_epi8(0xc0u8.cast_signed()), top, low));
            // Four times a code times a quarter of the scale.
            let (codes, quarter) = (kept(&codes), _mm512_mul_ps(d, _mm512_set1_ps(0.25)));
            for i in 0..4 {
                out.put(r, i, scaled(load16(at(codes, 16 * i)), quarter));
            }
        }
    }
}
