//! A8 products of one or a few columns: the vectors of [`crate::lanes`], and its entries.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::lanes::{pattern, places};
use crate::isa::avx2_entry;
use crate::kernels::Scratch;
use crate::lanes::{
    self, Activation, Chains, Codes, HalfLine, Halves, Line, Places, Turned, Vector, Words, safe,
};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// 256-bit vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(pub(super) ());

avx2_entry! {
    /// One column or a few; see [`crate::kernels::A8Fn`].
    pub(super) fn few<S: Codes>(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
        lanes::product::<_, S>(Avx2(()), view, x, columns, out, &mut scratch.lanes, step);
    }

    /// One column; see [`crate::kernels::A8Fn`].
    pub(super) fn one<S: Codes>(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        for t in columns {
            lanes::single::<_, S>(Avx2(()), view, x, t, out, &mut scratch.lanes);
        }
    }

    /// See [`crate::kernels::PreparedFn`].
    pub(super) fn prepared<S: Codes>(
        view: &TensorView<'_>,
        turned: Turned<'_>,
        x: &Q8_1,
        columns: Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        if columns.len() == 1 {
            return lanes::single_prepared::<_, S>(Avx2(()), view, turned, x, columns.start, out, &mut scratch.lanes);
        }
        let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
        lanes::prepared::<_, S>(Avx2(()), view, turned, x, columns, out, &mut scratch.lanes, step);
    }

    /// The large part, once for both.
    #[inline(never)]
    fn chunk<S: Codes>(
        words: &[Line<Words>],
        halves: &[HalfLine],
        x: &[Activation],
        columns: usize,
        ahead: usize,
        acc: &mut Chains<__m256>,
        min: &mut Chains<__m256>,
    ) {
        lanes::chunk::<_, S>(Avx2(()), words, halves, x, columns, ahead, acc, min);
    }
}

/// Words of rows 0 to 3, or 4 to 7, twice each: one for each half of an entry of eight bytes.
const TWICE: [[i32; 8]; 2] = [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]];
/// The order of rows after the addition of neighbours.
const NEIGHBOURS: [i32; 8] = [0, 1, 4, 5, 2, 3, 6, 7];

/// Loads of constants and words; only in code that is compiled for the features.
#[inline(always)]
pub(super) unsafe fn load<T>(of: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: reads the 32 bytes of `of`; the caller has the features.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(of).cast()) }
}

#[inline(always)]
unsafe fn twice(table: &[u8; 16]) -> __m256i {
    // SAFETY: reads the 16 bytes of the table; the caller has the features.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) }
}

/// All ones in the bytes whose bit of `pattern` is set.
#[inline(always)]
unsafe fn set(bytes: __m256i, pattern: __m256i) -> __m256i {
    // SAFETY: the caller has the features.
    unsafe { _mm256_cmpeq_epi8(_mm256_and_si256(bytes, pattern), pattern) }
}

/// How many sums of two products of codes up to `range` a signed half word holds.
const fn sums_held(range: u32) -> usize {
    (32767 / (2 * 127 * range)) as usize
}

impl Vector for Avx2 {
    type I = __m256i;
    type F = __m256;
    /// The words themselves.
    type Signs = __m256i;
    const LANES: usize = 8;
    const SIGNED: bool = true;

    safe! {
        fn zero(self) -> __m256i { _mm256_setzero_si256() }
        fn zeros(self) -> __m256 { _mm256_setzero_ps() }
        fn load(self, words: &Words, part: usize) -> __m256i { load(&words.as_chunks::<8>().0[part]) }
        fn scales(self, halves: &Halves, part: usize) -> __m256 {
            _mm256_cvtph_ps(_mm_loadu_si128(halves.as_chunks::<8>().0[part].as_ptr().cast()))
        }
        fn low_scales(self, words: __m256i) -> __m256 {
            let words = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
            let packed = _mm256_permute4x64_epi64::<0x08>(_mm256_packus_epi32(words, words));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        }
        fn bytes(self, value: u8) -> __m256i { _mm256_set1_epi8(value.cast_signed()) }
        fn ints(self, value: i32) -> __m256i { _mm256_set1_epi32(value) }
        fn floats(self, value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn and(self, a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn or(self, a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn xor(self, a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn or_and(self, a: __m256i, b: __m256i, mask: __m256i) -> __m256i {
            _mm256_or_si256(a, _mm256_and_si256(b, mask))
        }
        fn shift[const N: i32](self, v: __m256i) -> __m256i {
            if N >= 0 {
                _mm256_srlv_epi32(v, _mm256_set1_epi32(N))
            } else {
                _mm256_sllv_epi32(v, _mm256_set1_epi32(-N))
            }
        }
        fn shift_signed[const N: i32](self, v: __m256i) -> __m256i {
            _mm256_srav_epi32(v, _mm256_set1_epi32(N))
        }
        fn select(self, mask: __m256i, a: __m256i, b: __m256i) -> __m256i {
            _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b))
        }
        fn look_up(self, table: &[u8; 16], v: __m256i) -> __m256i { _mm256_shuffle_epi8(twice(table), v) }
        fn choose(self, words: __m256i, from: [u8; 4], bits: [u8; 4], value: __m256i, other: __m256i) -> __m256i {
            let set = set(self.pick(words, from), _mm256_set1_epi32(pattern(bits)));
            _mm256_blendv_epi8(other, value, set)
        }
        fn pick(self, words: __m256i, from: [u8; 4]) -> __m256i {
            _mm256_shuffle_epi8(words, twice(&places(from)))
        }
        fn where_set(self, words: __m256i, mask: i32, a: __m256i, b: __m256i) -> __m256i {
            let words = _mm256_and_si256(words, _mm256_set1_epi32(mask));
            _mm256_blendv_epi8(a, b, _mm256_cmpeq_epi32(words, _mm256_setzero_si256()))
        }
        fn add_where_clear(self, a: __m256i, words: __m256i, mask: i32, number: i32) -> __m256i {
            let words = _mm256_and_si256(words, _mm256_set1_epi32(mask));
            let clear = _mm256_cmpeq_epi32(words, _mm256_setzero_si256());
            _mm256_add_epi32(a, _mm256_and_si256(clear, _mm256_set1_epi32(number)))
        }
        fn to_f32(self, v: __m256i) -> __m256 { _mm256_cvtepi32_ps(v) }
        fn mul(self, a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn sub(self, a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn nan_where_zero(self, words: __m256i, v: __m256) -> __m256 {
            let zero = _mm256_cmpeq_epi32(words, _mm256_setzero_si256());
            _mm256_blendv_ps(v, _mm256_set1_ps(f32::NAN), _mm256_castsi256_ps(zero))
        }
        fn store(self, v: __m256, out: &mut [f32; 16], part: usize) {
            _mm256_storeu_ps(out.as_chunks_mut::<8>().0[part].as_mut_ptr(), v)
        }
        fn dots[const FROM: usize, const TO: usize, const RANGE: u32](
            self, w: &[__m256i; 8], x: &[[i8; 4]; 8], acc: __m256i
        ) -> __m256i {
            let ones = _mm256_set1_epi16(1);
            let (mut acc, mut pairs) = (acc, _mm256_setzero_si256());
            for j in FROM..TO {
                let x = _mm256_set1_epi32(std::ptr::from_ref(&x[j]).cast::<i32>().read_unaligned());
                if RANGE > 127 {
                    // Magnitudes up to 128 with activations of the codes' signs: at most 32,512 for two products.
                    let w = _mm256_xor_si256(w[j], self.bytes(128));
                    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones));
                } else {
                    let held = const { sums_held(RANGE) };
                    let first = (j - FROM).is_multiple_of(held);
                    let two = _mm256_maddubs_epi16(w[j], x);
                    pairs = if first { two } else { _mm256_add_epi16(pairs, two) };
                    if (j - FROM) % held == held - 1 || j + 1 == TO {
                        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            acc
        }
        fn negate4(self, w: __m256i, words: __m256i, from: [u8; 4], bits: [u8; 4]) -> __m256i {
            let set = set(self.pick(words, from), _mm256_set1_epi32(pattern(bits)));
            _mm256_blendv_epi8(w, _mm256_sub_epi8(self.bytes(128), w), set)
        }
        fn entries4[const N: usize](self, table: &[[u8; 4]; N], index: __m256i) -> __m256i {
            const { assert!(N.is_power_of_two()) };
            // Every index is below N.
            let index = _mm256_and_si256(index, _mm256_set1_epi32(const { N - 1 } as i32));
            _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index)
        }
        fn entries8[const N: usize](self, table: &[[u8; 8]; N], index: __m256i) -> [__m256i; 2] {
            const { assert!(N.is_power_of_two()) };
            // Every index is below N.
            let index = _mm256_and_si256(index, _mm256_set1_epi32(const { N - 1 } as i32));
            [
                _mm256_i32gather_epi64::<8>(table.as_ptr().cast(), _mm256_castsi256_si128(index)),
                _mm256_i32gather_epi64::<8>(table.as_ptr().cast(), _mm256_extracti128_si256::<1>(index)),
            ]
        }
        fn signs(self, words: __m256i) -> __m256i { words }
        fn negate8(self, w: [__m256i; 2], signs: __m256i, entry: usize) -> [__m256i; 2] {
            let pattern = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
            let mut w = w;
            for i in 0..2 {
                let signs = _mm256_permutevar8x32_epi32(signs, load(&TWICE[i]));
                let set = set(self.pick(signs, [entry as u8; 4]), pattern);
                w[i] = _mm256_blendv_epi8(w[i], _mm256_sub_epi8(self.bytes(128), w[i]), set);
            }
            w
        }
        fn add8(self, w: [__m256i; 2], words: __m256i, mask: i32, a: __m256i, b: __m256i) -> [__m256i; 2] {
            let words = _mm256_and_si256(words, _mm256_set1_epi32(mask));
            let clear = _mm256_cmpeq_epi32(words, _mm256_setzero_si256());
            let mut w = w;
            for i in 0..2 {
                let clear = _mm256_permutevar8x32_epi32(clear, load(&TWICE[i]));
                w[i] = _mm256_add_epi8(w[i], _mm256_blendv_epi8(a, b, clear));
            }
            w
        }
        fn pair_dots[const FROM: usize, const TO: usize](
            self, w: &[[__m256i; 2]; 4], x: &[[i8; 4]; 8], acc: __m256i
        ) -> __m256i {
            let (ones, mut sums) = (_mm256_set1_epi16(1), [_mm256_setzero_si256(); 2]);
            #[allow(clippy::needless_range_loop, reason = "several arrays, and the bounds are constants")]
            for e in FROM..TO {
                let x: &[[i8; 4]; 2] = &x.as_chunks::<2>().0[e];
                let x = _mm256_set1_epi64x(std::ptr::from_ref(x).cast::<i64>().read_unaligned());
                for i in 0..2 {
                    let two = _mm256_maddubs_epi16(w[e][i], x);
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(two, ones));
                }
            }
            let both = _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(sums[0], sums[1]), load(&NEIGHBOURS));
            _mm256_add_epi32(both, acc)
        }
    }

    #[inline(always)]
    unsafe fn turn_at(self, rows: Places, out: &mut [Line<Words>; 4]) {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe {
            for part in 0..2 {
                // Rows i and 4 + i of eight in the lanes of vector i; each read is the caller's promise.
                macro_rules! lanes {
                    ($i:literal) => {{
                        let row = |r: usize| _mm_loadu_si128(rows.row(8 * part + r).cast());
                        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row($i)), row(4 + $i))
                    }};
                }
                let (a, b, c, d) = (lanes!(0), lanes!(1), lanes!(2), lanes!(3));
                let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                let turned = [
                    _mm256_unpacklo_epi64(ab, cd),
                    _mm256_unpackhi_epi64(ab, cd),
                    _mm256_unpacklo_epi64(ab_high, cd_high),
                    _mm256_unpackhi_epi64(ab_high, cd_high),
                ];
                for i in 0..4 {
                    _mm256_store_si256(out[i].0.as_chunks_mut::<8>().0[part].as_mut_ptr().cast(), turned[i]);
                }
            }
        }
    }
}
