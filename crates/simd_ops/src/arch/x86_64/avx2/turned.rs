//! A8 products of one or a few columns: the vectors of [`crate::lanes`].

use std::arch::x86_64::*;

use crate::arch::x86_64::lanes::{pattern, places};
use crate::lanes::{HalfLine, Halves, Line, Places, Quads, Vector, Words, safe};

/// 256-bit vectors, with integer dot products if `VNNI`.
#[derive(Clone, Copy, Debug)]
pub(in crate::arch::x86_64) struct Avx2<const VNNI: bool>(pub(in crate::arch::x86_64) ());

/// For entry `e`: byte `e` of the low nibbles of each row four times, and of the high ones.
const SIGNS_OF: [[u8; 16]; 4] = {
    let mut out = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        out[i / 16][i % 16] = (i % 16 / 4 * 4 + i / 16) as u8;
        i += 1;
    }
    out
};
/// A bit of each four.
const BIT_OF_FOUR: [u8; 16] = [1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8];
/// 1 for no bit, -1 for one.
const SIGN: [u8; 16] = [1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255];

/// Entries of eight values of eight rows: of rows 0, 1, 4 and 5, and of the others.
#[derive(Clone, Copy, Debug)]
pub(in crate::arch::x86_64) struct Entry {
    /// Bytes, or their magnitudes.
    bytes: [__m256i; 2],
    /// 1 or -1, if they have signs.
    signs: [__m256i; 2],
}

/// Loads of constants and words; only in code that is compiled for the features.
#[inline(always)]
pub(super) unsafe fn load<T>(of: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: reads the 32 bytes of `of`; the caller has the features.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(of).cast()) }
}

/// The same four activations in every word.
#[inline(always)]
unsafe fn four(x: &[i8; 4]) -> __m256i {
    // SAFETY: reads four bytes; the caller has the features.
    unsafe { _mm256_set1_epi32(std::ptr::from_ref(x).cast::<i32>().read_unaligned()) }
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

/// Sums of two products of signed codes each.
#[inline(always)]
unsafe fn signed_pairs(w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller has the features. Magnitudes up to 128 with activations of the codes' signs: at most 32,512 for
    // two products.
    unsafe { _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) }
}

/// The activations of sixteen values, for two rows.
#[inline(always)]
unsafe fn both_rows(x: &[i8; 16]) -> __m256i {
    // SAFETY: reads the 16 bytes of `x`; the caller has the features.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(x.as_ptr().cast())) }
}

/// The same four words in both lanes.
#[inline(always)]
unsafe fn both(words: &[i32; 4]) -> __m256i {
    // SAFETY: reads the 16 bytes of `words`; the caller has the features.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(words.as_ptr().cast())) }
}

/// Whether sums of at most `most` of two half words each are left in half words until they are joined.
const fn in_halves(most: i32) -> bool {
    most <= 2 * 32767
}

/// `a + b` of neighbouring lanes in each half: those of `a` and of `b` in turns of two. They are at most `most`.
#[inline(always)]
unsafe fn add_pairs(most: i32, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has the features.
    unsafe {
        if most <= 32767 {
            _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1))
        } else {
            _mm256_hadd_epi32(a, b)
        }
    }
}

/// The first two and the last two of four sums of rows' lanes, as [`Quads::join`] wants them.
#[inline(always)]
unsafe fn first_sums<const VNNI: bool>(sums: [__m256i; 4], most: i32) -> [__m256i; 2] {
    // SAFETY: the caller has the features.
    unsafe {
        let mut sums = sums;
        if !VNNI && in_halves(most) {
            let ones = _mm256_set1_epi16(1);
            for sum in &mut sums {
                *sum = _mm256_madd_epi16(*sum, ones);
            }
        }
        let [a, b, c, d] = sums;
        [add_pairs(most, a, b), add_pairs(most, c, d)]
    }
}

impl<const VNNI: bool> Quads for Avx2<VNNI> {
    const LATE: bool = !VNNI;

    #[inline(always)]
    unsafe fn lay_at(self, rows: Places, out: &mut [Line<Words>; 4]) {
        macro_rules! lanes {
            ($part:literal: $($i:literal)+) => {
                $({
                    // SAFETY: the caller's promise; it has the features, too. Writes half of a line.
                    unsafe {
                        let row = |r: usize| _mm_loadu_si128(rows.row(8 * $part + r).cast());
                        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row($i)), row(4 + $i));
                        _mm256_store_si256(out[$i].0.as_chunks_mut::<8>().0[$part].as_mut_ptr().cast(), both);
                    }
                })+
            };
        }
        lanes!(0: 0 1 2 3);
        lanes!(1: 0 1 2 3);
    }

    safe! {
        fn dot(self, start: &[i32; 4], w: __m256i, x: &[i8; 16], range: u32, most: i32) -> __m256i {
            let x = both_rows(x);
            if VNNI {
                return _mm256_dpbusd_avx_epi32(both(start), w, x);
            }
            let two = if range > 127 { signed_pairs(w, x) } else { _mm256_maddubs_epi16(w, x) };
            if in_halves(most) { two } else { _mm256_madd_epi16(two, _mm256_set1_epi16(1)) }
        }
        fn dot_two(
            self, start: &[i32; 4], w: [__m256i; 2], x: &[[i8; 16]; 2], range: u32, most: i32
        ) -> __m256i {
            let ones = _mm256_set1_epi16(1);
            let (first, last) = (both_rows(&x[0]), both_rows(&x[1]));
            if VNNI {
                return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(both(start), w[0], first), w[1], last);
            }
            let [a, b] = if range > 127 {
                [signed_pairs(w[0], first), signed_pairs(w[1], last)]
            } else {
                [_mm256_maddubs_epi16(w[0], first), _mm256_maddubs_epi16(w[1], last)]
            };
            if in_halves(most) {
                _mm256_add_epi16(a, b)
            } else {
                _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones))
            }
        }
        fn plus(self, v: __m256i, number: i32) -> __m256i { _mm256_add_epi32(v, _mm256_set1_epi32(number)) }
        fn or_16(self, w: __m256i, words: __m256i, from: &[u8; 16], bits: &[u8; 16], set: bool) -> __m256i {
            let there = self::set(_mm256_shuffle_epi8(words, twice(from)), twice(bits));
            let sixteen = self.bytes(16);
            let more = if set { _mm256_and_si256(there, sixteen) } else { _mm256_andnot_si256(there, sixteen) };
            _mm256_or_si256(w, more)
        }
        fn pick_16(self, words: __m256i, from: &[u8; 16]) -> __m256i { _mm256_shuffle_epi8(words, twice(from)) }
        fn join(self, sums: [__m256i; 4], most: i32) -> __m256i {
            let [first, last] = first_sums::<VNNI>(sums, most);
            add_pairs(most.saturating_mul(2), first, last)
        }
        fn join_pairs(self, sums: [__m256i; 4], most: i32) -> [__m256i; 2] {
            let [first, last] = first_sums::<VNNI>(sums, most);
            let (first, last) = (_mm256_castsi256_ps(first), _mm256_castsi256_ps(last));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(first, last)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(first, last)),
            ]
        }
    }
}

/// A word of each of eight rows.
///
/// # Safety
/// Four bytes must be readable at the places of the part; the caller has the features.
#[inline(always)]
unsafe fn words_of(rows: Places, part: usize) -> __m256i {
    // Loads to vectors, as a load of what scalar stores have written would wait for them.
    macro_rules! word {
        ($r:expr) => {
            _mm_loadu_si32(rows.row(8 * part + $r))
        };
    }
    macro_rules! four {
        ($r:literal) => {{
            let low = _mm_unpacklo_epi32(word!($r), word!($r + 1));
            _mm_unpacklo_epi64(low, _mm_unpacklo_epi32(word!($r + 2), word!($r + 3)))
        }};
    }
    // SAFETY: the caller's promise; it has the features, too.
    unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(four!(0)), four!(4)) }
}

impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type I = __m256i;
    type F = __m256;
    /// Low and high nibbles in turns of rows 0, 1, 4 and 5, and of the others.
    type Signs = [__m256i; 2];
    type Entry = Entry;
    const LANES: usize = 8;
    const SIGNED: bool = !VNNI;
    const SIGNS: bool = true;
    const HALF_WORDS: bool = true;
    const LOWER: bool = VNNI;

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
            if VNNI {
                for j in FROM..TO {
                    acc = _mm256_dpbusd_avx_epi32(acc, w[j], four(&x[j]));
                }
                return acc;
            }
            for j in FROM..TO {
                let x = four(&x[j]);
                if RANGE > 127 {
                    pairs = signed_pairs(w[j], x);
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
        fn half_words(self, w: &[__m256i; 4], x: &[[i8; 4]; 4], raised: u32) -> __m256i {
            let mut sums = _mm256_setzero_si256();
            for (&w, x) in w.iter().zip(x) {
                sums = if VNNI {
                    _mm256_dpbusd_avx_epi32(sums, w, four(x))
                } else {
                    _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, four(x)))
                };
            }
            // What comes from above the word does not reach the lower half.
            if raised == 0 { sums } else { _mm256_srlv_epi32(sums, _mm256_set1_epi32(raised.cast_signed())) }
        }
        fn weigh(self, a: __m256i, b: __m256i) -> __m256i { _mm256_madd_epi16(a, b) }
        fn plus_words(self, a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
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
        fn entries8[const N: usize](self, table: &[[u8; 8]; N], index: __m256i) -> Entry {
            const { assert!(N.is_power_of_two()) };
            // Every index is below N.
            let index = _mm256_and_si256(index, _mm256_set1_epi32(const { N - 1 } as i32));
            let zero = _mm256_setzero_si256();
            let bytes = [
                _mm256_i64gather_epi64::<8>(table.as_ptr().cast(), _mm256_unpacklo_epi32(index, zero)),
                _mm256_i64gather_epi64::<8>(table.as_ptr().cast(), _mm256_unpackhi_epi32(index, zero)),
            ];
            Entry { bytes, signs: [zero; 2] }
        }
        fn signs(self, words: __m256i) -> [__m256i; 2] {
            let low = _mm256_and_si256(words, self.bytes(15));
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(words), self.bytes(15));
            [_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high)]
        }
        fn negate8(self, w: Entry, signs: [__m256i; 2], entry: usize) -> Entry {
            let mut w = w;
            for (out, signs) in w.signs.iter_mut().zip(signs) {
                let nibbles = _mm256_shuffle_epi8(signs, twice(&SIGNS_OF[entry]));
                let bits = _mm256_and_si256(nibbles, twice(&BIT_OF_FOUR));
                *out = _mm256_shuffle_epi8(twice(&SIGN), bits);
            }
            w
        }
        fn pair_dots[const FROM: usize, const TO: usize](
            self, w: &[Entry; 4], x: &[[i8; 4]; 8], acc: __m256i, signs: bool, range: u32
        ) -> __m256i {
            let (ones, zero) = (_mm256_set1_epi16(1), _mm256_setzero_si256());
            let (held, mut sums) = (sums_held(range), [zero; 2]);
            #[allow(clippy::needless_range_loop, reason = "several arrays, and the bounds are constants")]
            for i in 0..2 {
                let mut pairs = zero;
                for e in FROM..TO {
                    let x: &[[i8; 4]; 2] = &x.as_chunks::<2>().0[e];
                    let x = _mm256_set1_epi64x(std::ptr::from_ref(x).cast::<i64>().read_unaligned());
                    let x = if signs { _mm256_sign_epi8(x, w[e].signs[i]) } else { x };
                    if VNNI {
                        sums[i] = _mm256_dpbusd_avx_epi32(sums[i], w[e].bytes[i], x);
                        continue;
                    }
                    let two = _mm256_maddubs_epi16(w[e].bytes[i], x);
                    let n = (e - FROM) % held;
                    pairs = if n == 0 { two } else { _mm256_add_epi16(pairs, two) };
                    if n == held - 1 || e + 1 == TO {
                        sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            // The rows in order.
            _mm256_add_epi32(_mm256_hadd_epi32(sums[0], sums[1]), acc)
        }
    }

    #[inline(always)]
    unsafe fn words_at(self, rows: Places, out: &mut Line<Words>) {
        // SAFETY: the caller's promise; it has the features, too. Writes both halves of the line.
        unsafe {
            _mm256_store_si256(out.0.as_mut_ptr().cast(), words_of(rows, 0));
            _mm256_store_si256(out.0.as_mut_ptr().add(8).cast(), words_of(rows, 1));
        }
    }

    #[inline(always)]
    unsafe fn halves_at(self, rows: Places, upper: bool, out: &mut HalfLine) {
        // SAFETY: the caller's promise; it has the features, too. Writes the whole line.
        unsafe {
            let mut words = [words_of(rows, 0), words_of(rows, 1)];
            for words in &mut words {
                *words = if upper {
                    _mm256_srli_epi32::<16>(*words)
                } else {
                    _mm256_and_si256(*words, _mm256_set1_epi32(0xffff))
                };
            }
            let packed = _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi32(words[0], words[1]));
            _mm256_store_si256(out.0.as_mut_ptr().cast(), packed);
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
