//! A8 products of one column with rows that are read along.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;
use ninfer_formats::codec::gguf::{self, fields};

use super::turned::{Bytes512, VNNI, four_times, load};
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::lanes::{self, Along, Ggml, Lengthwise, Line, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

avx512_vnni_entry! {
    /// One column; see [`crate::kernels::A8Fn`].
    pub(super) fn one_q6_k(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        for t in columns {
            lanes::along::<_, Ggml<gguf::Q6K>>(VNNI, view, x, t, out, &mut scratch.lanes);
        }
    }
}

/// Shifts of half words: one for the first 32 bytes, another for the last.
const fn shifts(first: u16, last: u16) -> [u16; 32] {
    let mut out = [first; 32];
    let mut i = 16;
    while i < 32 {
        out[i] = last;
        i += 1;
    }
    out
}

/// The factors of halves `q`, `4 + q`, `8 + q` and `12 + q` twice each, in the upper bytes of the half words of lane `q`.
static FACTORS: [u8; 64] = {
    let mut out = [0x80; 64];
    let mut i = 0;
    while i < 32 {
        out[2 * i + 1] = (i / 8 + i % 8 / 2 * 4) as u8;
        i += 1;
    }
    out
};
static LEFT: [u16; 32] = shifts(4, 2);
static RIGHT: [u16; 32] = shifts(0, 2);

/// A row's unit: in lane `q`, word `k` the sum of half `4 k + q`.
///
/// # Safety
/// The row's unit must be readable; the caller has the features.
#[inline(always)]
unsafe fn row_of_q6_k(row: *const u8, x: &Along) -> __m512i {
    // SAFETY: the caller's promise; all reads are inside the unit or of `x`.
    unsafe {
        let (nibble, six) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x3f));
        let ones = _mm512_set1_epi16(1);
        let x_at = |i: usize| _mm512_load_si512(x.codes.as_ptr().add(64 * i).cast());
        let mut sums = [_mm512_setzero_si512(); 4];
        for n in 0..2 {
            let q = _mm512_loadu_si512(row.add(64 * n).cast());
            let h = _mm256_loadu_si256(row.add(fields::q6_k::QH + 32 * n).cast());
            let h = _mm512_broadcast_i64x4(h);
            // Bits of other bytes that the shifts bring in are masked off.
            let low = _mm512_ternarylogic_epi32::<0xca>(nibble, q, _mm512_sllv_epi16(h, load(&LEFT)));
            let q = _mm512_srli_epi16::<4>(q);
            let high = _mm512_ternarylogic_epi32::<0xca>(nibble, q, _mm512_srlv_epi16(h, load(&RIGHT)));
            for (i, codes) in [(2 * n, low), (2 * n + 1, high)] {
                let start = _mm512_load_si512(x.start.as_ptr().add(16 * i).cast());
                sums[i] = _mm512_dpbusd_epi32(start, _mm512_and_si512(codes, six), x_at(i));
            }
        }
        // At most 32 * 127 in magnitude for each code: four and eight of them fit half words.
        let a = _mm512_madd_epi16(_mm512_packs_epi32(sums[0], sums[1]), ones);
        let b = _mm512_madd_epi16(_mm512_packs_epi32(sums[2], sums[3]), ones);
        let factors = row.add(fields::q6_k::SC).cast::<[u8; 16]>().read();
        let factors = _mm512_srai_epi16::<8>(_mm512_shuffle_epi8(four_times(&factors), load(&FACTORS)));
        _mm512_madd_epi16(_mm512_packs_epi32(a, b), factors)
    }
}

/// The sums of the blocks of rows `a` and `b`, from those of their halves: those of even blocks and of odd ones.
#[inline(always)]
unsafe fn add_halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has the features.
    unsafe { _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)) }
}

/// Four by four words turned in every lane.
#[inline(always)]
unsafe fn turn_lanes([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller has the features.
    unsafe {
        let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

impl Lengthwise<Ggml<gguf::Q6K>> for Bytes512<false> {
    #[inline(always)]
    unsafe fn row(self, unit: *const u8, x: &Along) -> __m512i {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe { row_of_q6_k(unit, x) }
    }

    #[inline(always)]
    fn keep(self, sums: __m512i, r: usize, out: &mut [Line<Words>; 16]) {
        // SAFETY: writes a line; whoever made the token has promised the features.
        unsafe { _mm512_store_si512(out[r].0.as_mut_ptr().cast(), sums) }
    }

    #[inline(always)]
    fn sums(self, kept: &[Line<Words>; 16], _part: usize) -> [__m512i; 8] {
        // SAFETY: reads lines; whoever made the token has promised the features.
        unsafe {
            // Rows i and 4 + i, so that the last step leaves them in order.
            macro_rules! pair {
                ($row:literal) => {
                    add_halves(load(&kept[$row].0), load(&kept[$row + 4].0))
                };
            }
            let first = turn_lanes([pair!(0), pair!(1), pair!(2), pair!(3)]);
            let last = turn_lanes([pair!(8), pair!(9), pair!(10), pair!(11)]);
            let mut out = [first[0]; 8];
            for k in 0..4 {
                out[2 * k] = _mm512_shuffle_i32x4::<0x88>(first[k], last[k]);
                out[2 * k + 1] = _mm512_shuffle_i32x4::<0xdd>(first[k], last[k]);
            }
            out
        }
    }
}
