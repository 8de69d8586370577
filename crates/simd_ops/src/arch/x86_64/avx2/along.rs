//! A8 products of one column with rows that are read along: ggml's K types.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;
use ninfer_formats::codec::gguf::{self, fields};

use super::turned::{Avx2, load};
use crate::arch::opaque;
use crate::isa::avx2_entry;
use crate::kernels::Scratch;
use crate::lanes::{self, Along, Ggml, Lengthwise, Line, ROWS, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

avx2_entry! {
    /// One column; see [`crate::kernels::A8Fn`].
    pub(super) fn one_q6_k(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        for t in columns {
            lanes::along::<_, Ggml<gguf::Q6K>>(Avx2::<false>(()), view, x, t, out, &mut scratch.lanes);
        }
    }
}

/// A shuffle of bytes that is one: written as a constant, some become two or three others.
#[inline(always)]
unsafe fn shuffled(v: __m256i, places: &'static [u8; 32]) -> __m256i {
    // SAFETY: reads the 32 bytes of `places`; the caller has the features.
    unsafe { _mm256_shuffle_epi8(v, _mm256_loadu_si256(opaque(places.as_ptr()).cast())) }
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

/// Half words `2 p` and `2 p + 1` of each lane, each twice, and that again.
static TURNS: [[u8; 32]; 4] = {
    let mut out = [[0; 32]; 4];
    let mut i = 0;
    while i < 128 {
        out[i / 32][i % 32] = (i / 32 * 4 + i % 8 / 4 * 2 + i % 2) as u8;
        i += 1;
    }
    out
};

/// The sums of neighbouring words' half words of `a` and `b`, two of `a` and two of `b` in turns.
#[inline(always)]
unsafe fn add_words(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has the features.
    unsafe { _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)) }
}

/// Both lanes of each added: those of `a`, then those of `b`.
#[inline(always)]
unsafe fn add_both([a, b]: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller has the features.
    unsafe { _mm256_add_epi32(_mm256_blend_epi32::<0xf0>(a, b), _mm256_permute2x128_si256::<0x21>(a, b)) }
}

/// Bytes of activations of block `b`.
#[inline(always)]
unsafe fn x_of(x: &Along, b: usize) -> __m256i {
    // SAFETY: 32 of the 256 codes, aligned; the caller has the features.
    unsafe { _mm256_load_si256(x.codes.as_ptr().add(32 * b).cast()) }
}

/// The sums of the halves of activations times signed factors of these, and `shift` bits to the left.
#[inline(always)]
unsafe fn offsets<const SHIFT: i32>(factors: __m128i, x: &Along) -> __m256i {
    // SAFETY: reads the sums of `x`; the caller has the features.
    unsafe {
        let halves = _mm256_loadu_si256(x.halves.as_ptr().cast());
        _mm256_slli_epi32::<SHIFT>(_mm256_madd_epi16(_mm256_cvtepi8_epi16(factors), halves))
    }
}

/// Rows of eight sums in the order of memory, turned.
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

/// Implements [`Lengthwise`] by the function of a row's unit.
macro_rules! lengthwise {
    ($kind:ident, |$unit:ident, $x:ident| $row:block) => {
        impl Lengthwise<Ggml<gguf::$kind>> for Avx2<false> {
            #[inline(always)]
            unsafe fn row(self, $unit: *const u8, $x: &Along) -> __m256i {
                // SAFETY: all reads are inside the unit, by the caller's promise, or of `x`; whoever made the token has
                // promised the features.
                unsafe { $row }
            }

            #[inline(always)]
            fn keep(self, sums: __m256i, r: usize, out: &mut [Line<Words>; ROWS]) {
                // SAFETY: writes half of a line; the features as above.
                unsafe {
                    _mm256_store_si256(out[r / 2].0.as_chunks_mut::<8>().0[r % 2].as_mut_ptr().cast(), sums)
                }
            }

            #[inline(always)]
            fn sums(self, kept: &[Line<Words>; ROWS], part: usize) -> [__m256i; 8] {
                // SAFETY: the features as above.
                unsafe {
                    macro_rules! rows {
                        ($r:literal) => {
                            load(&kept[4 * part + $r / 2].0.as_chunks::<8>().0[$r % 2])
                        };
                    }
                    turn([rows!(0), rows!(1), rows!(2), rows!(3), rows!(4), rows!(5), rows!(6), rows!(7)])
                }
            }
        }
    };
}

lengthwise! { Q6K, |unit, x| {
    let (nibble, two) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30));
    let bytes = |at: usize| _mm256_loadu_si256(unit.add(at).cast());
    let scales = _mm_loadu_si128(unit.add(fields::q6_k::SC).cast());
    let factors = _mm256_srai_epi16::<8>(shuffled(_mm256_broadcastsi128_si256(scales), &FACTORS));
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
            sums[i] = _mm256_maddubs_epi16(codes, x_of(x, 4 * n + i));
        }
        // At most 63 * 127 in magnitude for each code: four of them fit half words.
        let mut pairs = [h; 2];
        for p in 0..2 {
            let factors = shuffled(factors, &TURNS[2 * n + p]);
            pairs[p] = _mm256_madd_epi16(add_words(sums[2 * p], sums[2 * p + 1]), factors);
        }
        halves[n] =
            _mm256_add_epi32(_mm256_unpacklo_epi64(pairs[0], pairs[1]), _mm256_unpackhi_epi64(pairs[0], pairs[1]));
    }
    // The codes were 32 too large.
    _mm256_sub_epi32(add_both(halves), offsets::<5>(scales, x))
} }
