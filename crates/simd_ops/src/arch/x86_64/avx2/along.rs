//! A8 products of one column with rows that are read along.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;
use ninfer_formats::codec::gguf::{self, fields};

use super::turned::{Avx2, load};
use crate::isa::avx2_entry;
use crate::kernels::Scratch;
use crate::lanes::{self, Along, Early, Ggml, Lengthwise, Places};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

avx2_entry! {
    /// One column; see [`crate::kernels::A8Fn`].
    pub(super) fn one_q6_k(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        for t in columns {
            lanes::along::<_, Ggml<gguf::Q6K>>(Avx2(()), view, x, t, out, &mut scratch.lanes);
        }
    }
}

/// The factors of even halves in the upper bytes of the half words of the first lane, of odd ones in the other.
static FACTORS: [u8; 32] = {
    let mut out = [0x80; 32];
    let mut i = 0;
    while i < 16 {
        out[2 * i + 1] = (i % 8 * 2 + i / 8) as u8;
        i += 1;
    }
    out
};

/// Half words `2 p` and `2 p + 1` of each lane, four times each.
static FOUR_TIMES: [[u8; 32]; 4] = {
    let mut out = [[0; 32]; 4];
    let mut i = 0;
    while i < 128 {
        out[i / 32][i % 32] = (i / 32 * 4 + i % 16 / 8 * 2 + i % 2) as u8;
        i += 1;
    }
    out
};

/// The sums of a row's eight blocks in order.
///
/// # Safety
/// The row's unit must be readable; the caller has the features.
#[inline(always)]
unsafe fn row_of_q6_k(row: *const u8, x: &Along) -> __m256i {
    // SAFETY: the caller's promise; all reads are inside the unit or of `x`.
    unsafe {
        let (nibble, two) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30));
        let bytes = |at: usize| _mm256_loadu_si256(row.add(at).cast());
        let scales = _mm_loadu_si128(row.add(fields::q6_k::SC).cast());
        let factors = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(scales), load(&FACTORS));
        let factors = _mm256_srai_epi16::<8>(factors);
        let mut halves = [_mm256_setzero_si256(); 2];
        for n in 0..2 {
            let h = bytes(fields::q6_k::QH + 32 * n);
            let q = [bytes(64 * n), bytes(64 * n + 32)];
            // Bits of other bytes that the shifts bring in are masked off.
            let high = [_mm256_slli_epi16::<4>(h), _mm256_slli_epi16::<2>(h), h, _mm256_srli_epi16::<2>(h)];
            let low = [q[0], q[1], _mm256_srli_epi16::<4>(q[0]), _mm256_srli_epi16::<4>(q[1])];
            let mut sums = [h; 4];
            for i in 0..4 {
                let codes = _mm256_or_si256(_mm256_and_si256(low[i], nibble), _mm256_and_si256(high[i], two));
                let x = _mm256_load_si256(x.codes.as_ptr().add(32 * (4 * n + i)).cast());
                sums[i] = _mm256_maddubs_epi16(codes, x);
            }
            // At most 63 * 127 in magnitude for each code: four of them fit half words.
            let mut pairs = [h; 2];
            for p in 0..2 {
                let factors = _mm256_shuffle_epi8(factors, load(&FOUR_TIMES[2 * n + p]));
                pairs[p] = _mm256_madd_epi16(_mm256_hadd_epi16(sums[2 * p], sums[2 * p + 1]), factors);
            }
            halves[n] = _mm256_hadd_epi32(pairs[0], pairs[1]);
        }
        let sums = _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(halves[0], halves[1]),
            _mm256_permute2x128_si256::<0x31>(halves[0], halves[1]),
        );
        // The codes were 32 too large.
        let halves = _mm256_loadu_si256(x.halves.as_ptr().cast());
        let offset = _mm256_madd_epi16(_mm256_cvtepi8_epi16(scales), halves);
        _mm256_sub_epi32(sums, _mm256_slli_epi32::<5>(offset))
    }
}

/// Eight by eight words turned.
#[inline(always)]
unsafe fn turn(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller has the features.
    unsafe {
        let mut halves = [[r[0]; 4]; 2];
        for (half, r) in halves.iter_mut().zip(r.as_chunks::<4>().0) {
            let (a, a_high) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
            let (b, b_high) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
            *half = [
                _mm256_unpacklo_epi64(a, b),
                _mm256_unpackhi_epi64(a, b),
                _mm256_unpacklo_epi64(a_high, b_high),
                _mm256_unpackhi_epi64(a_high, b_high),
            ];
        }
        let mut out = r;
        for i in 0..4 {
            out[i] = _mm256_permute2x128_si256::<0x20>(halves[0][i], halves[1][i]);
            out[4 + i] = _mm256_permute2x128_si256::<0x31>(halves[0][i], halves[1][i]);
        }
        out
    }
}

impl Lengthwise<Ggml<gguf::Q6K>> for Avx2 {
    #[inline(always)]
    unsafe fn sums(self, rows: Places, part: usize, x: &Along, early: Early) -> [__m256i; 8] {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe {
            macro_rules! rows {
                ($($r:literal)+) => {
                    [$({
                        if part == $r / 4 {
                            early.block::<Ggml<gguf::Q6K>, $r>();
                        }
                        row_of_q6_k(rows.row(8 * part + $r), x)
                    }),+]
                };
            }
            turn(rows!(0 1 2 3 4 5 6 7))
        }
    }
}
