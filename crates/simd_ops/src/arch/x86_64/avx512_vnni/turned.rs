//! A8 products of one or a few columns: the vectors of [`crate::lanes`], and its entries.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::lanes::{pattern, places, word};
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::lanes::{
    self, Activation, Chains, Codes, HalfLine, Halves, Line, Places, Quads, ROWS, Turned, Vector, Wide,
    Words, safe,
};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// 512-bit vectors with integer dot products; with `TABLES` those that look bytes up in registers, too, for which the
/// features of `avx512_vbmi` are needed.
#[derive(Clone, Copy, Debug)]
pub(in crate::arch::x86_64) struct Bytes512<const TABLES: bool>(());

/// Those of `avx512_vnni`, for functions that are compiled for it.
pub(in crate::arch::x86_64) const VNNI: Bytes512<false> = Bytes512(());
/// Those of `avx512_vbmi`.
pub(in crate::arch::x86_64) const VBMI: Bytes512<true> = Bytes512(());

/// Entries of one and a few columns on the vectors `$v`, compiled for the features that `$entry` names.
macro_rules! products {
    ($entry:ident, $v:ident) => {
        $entry! {
            /// One column or a few; see [`crate::kernels::A8Fn`].
            pub(super) fn few<S: Codes>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
                let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
                lanes::product::<_, S>($v, view, x, columns, out, &mut scratch.lanes, step);
            }

            /// One column; see [`crate::kernels::A8Fn`].
            pub(super) fn one<S: Codes>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
                for t in columns {
                    lanes::single_beside::<_, S>($v, view, x, t, out, &mut scratch.lanes);
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
                    return lanes::single_prepared::<_, S>($v, view, turned, x, columns.start, out, &mut scratch.lanes);
                }
                let step = |w: &[_], h: &[_], x: &[_], n, ahead, acc: &mut _, min: &mut _| chunk::<S>(w, h, x, n, ahead, acc, min);
                lanes::prepared::<_, S>($v, view, turned, x, columns, out, &mut scratch.lanes, step);
            }

            /// The large part, once for both.
            #[inline(never)]
            fn chunk<S: Codes>(
                words: &[Line<Words>],
                halves: &[HalfLine],
                x: &[Activation],
                columns: usize,
                ahead: usize,
                acc: &mut Chains<__m512>,
                min: &mut Chains<__m512>,
            ) {
                lanes::chunk::<_, S>($v, words, halves, x, columns, ahead, acc, min);
            }
        }
    };
}
pub(in crate::arch::x86_64) use products;

products!(avx512_vnni_entry, VNNI);

/// Bytes of four rows to rows of bytes.
const BYTES_TURNED: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
/// In order, and with the upper half first.
const WORDS_TURNED: [[i32; 16]; 2] = [
    [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
    [2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13],
];
const EVEN: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
const ODD: [i32; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];

/// Loads of constants and words; only in code that is compiled for the features.
#[inline(always)]
pub(super) unsafe fn load<T>(of: &T) -> __m512i {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: reads the 64 bytes of `of`; the caller has the features.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(of).cast()) }
}

#[inline(always)]
pub(super) unsafe fn four_times(table: &[u8; 16]) -> __m512i {
    // SAFETY: reads the 16 bytes of the table; the caller has the features.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) }
}

/// Entry of a table for the lower seven bits of every byte; only in code that is compiled for `avx512_vbmi`.
#[inline(always)]
unsafe fn look_up_128(table: &[u8; 128], v: __m512i) -> __m512i {
    // SAFETY: reads the 128 bytes of the table; the caller has the features.
    unsafe {
        let [low, high] =
            [table.as_ptr(), table.as_ptr().add(64)].map(|part| _mm512_loadu_si512(part.cast()));
        _mm512_permutex2var_epi8(low, v, high)
    }
}

/// Whether sixteen rows have four bytes each at `at`, near enough for 32-bit distances.
#[inline(always)]
fn gatherable(plane: &[u8], stride: usize, at: usize) -> bool {
    stride < 1 << 26
        && plane.len() >= 4
        && at <= plane.len() - 4
        && (ROWS - 1) * stride <= plane.len() - 4 - at
}

/// Four bytes of each of sixteen rows, which must be readable.
#[inline(always)]
unsafe fn gather(rows: Places) -> __m512i {
    // SAFETY: the caller's promise; it has the features, too.
    unsafe {
        if rows.stride < 1 << 26 {
            return _mm512_i32gather_epi32::<1>(distances(rows.stride), rows.row(0).cast());
        }
        let mut words = [0u32; ROWS];
        for (r, word) in words.iter_mut().enumerate() {
            *word = rows.row(r).cast::<u32>().read_unaligned();
        }
        load(&words)
    }
}

/// Distances of sixteen rows, `stride` below 2^26.
#[inline(always)]
unsafe fn distances(stride: usize) -> __m512i {
    // SAFETY: the caller has the features.
    unsafe {
        let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        _mm512_mullo_epi32(rows, _mm512_set1_epi32(stride as i32))
    }
}

/// Sixteen bytes of each of sixteen rows, which must be readable: rows i, 4 + i, 8 + i, 12 + i in the lanes of vector i.
#[inline(always)]
unsafe fn quads(rows: Places) -> [__m512i; 4] {
    macro_rules! lanes {
        ($i:literal) => {{
            // SAFETY: the caller's promise; it has the features, too.
            unsafe {
                let v = _mm512_castsi128_si512(_mm_loadu_si128(rows.row($i).cast()));
                let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(rows.row(4 + $i).cast()));
                let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(rows.row(8 + $i).cast()));
                _mm512_inserti32x4::<3>(v, _mm_loadu_si128(rows.row(12 + $i).cast()))
            }
        }};
    }
    [lanes!(0), lanes!(1), lanes!(2), lanes!(3)]
}

/// `a + b` of neighbouring lanes: those of `a` and of `b` in turns of two.
#[inline(always)]
unsafe fn add_pairs(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has the features.
    unsafe {
        let [even, odd] = even_odd(a, b);
        _mm512_add_epi32(even, odd)
    }
}

/// The even and the odd lanes of `a` and of `b` in turns of two.
#[inline(always)]
unsafe fn even_odd(a: __m512i, b: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller has the features.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        [
            _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, b)),
            _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, b)),
        ]
    }
}

/// As [`add_pairs`] for lanes of at most `most`: one step less if they fit half words.
#[inline(always)]
unsafe fn add_pairs_to(most: i32, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has the features.
    unsafe {
        if most <= 32767 {
            _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1))
        } else {
            add_pairs(a, b)
        }
    }
}

impl<const TABLES: bool> Quads for Bytes512<TABLES> {
    const LATE: bool = false;

    #[inline(always)]
    unsafe fn lay_at(self, rows: Places, out: &mut [Line<Words>; 4]) {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe {
            let rows = quads(rows);
            for i in 0..4 {
                _mm512_store_si512(out[i].0.as_mut_ptr().cast(), rows[i]);
            }
        }
    }

    safe! {
        fn dot(self, start: &[i32; 4], w: __m512i, x: &[i8; 16], _range: u32, _most: i32) -> __m512i {
            let start = _mm512_broadcast_i32x4(_mm_loadu_si128(start.as_ptr().cast()));
            _mm512_dpbusd_epi32(start, w, _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())))
        }
        fn dot_two(
            self, start: &[i32; 4], w: [__m512i; 2], x: &[[i8; 16]; 2], range: u32, most: i32
        ) -> __m512i {
            let acc = self.dot(start, w[0], &x[0], range, most);
            _mm512_dpbusd_epi32(acc, w[1], _mm512_broadcast_i32x4(_mm_loadu_si128(x[1].as_ptr().cast())))
        }
        fn plus(self, v: __m512i, number: i32) -> __m512i { _mm512_add_epi32(v, _mm512_set1_epi32(number)) }
        fn or_16(self, w: __m512i, words: __m512i, from: &[u8; 16], bits: &[u8; 16], set: bool) -> __m512i {
            let bytes = _mm512_shuffle_epi8(words, four_times(from));
            let mask = if set {
                _mm512_test_epi8_mask(bytes, four_times(bits))
            } else {
                _mm512_testn_epi8_mask(bytes, four_times(bits))
            };
            // The bit is not set yet.
            _mm512_mask_add_epi8(w, mask, w, self.bytes(16))
        }
        fn pick_16(self, words: __m512i, from: &[u8; 16]) -> __m512i {
            _mm512_shuffle_epi8(words, four_times(from))
        }
        fn join(self, sums: [__m512i; 4], most: i32) -> __m512i {
            let [a, b, c, d] = sums;
            add_pairs_to(2 * most, add_pairs_to(most, a, b), add_pairs_to(most, c, d))
        }
        fn join_pairs(self, sums: [__m512i; 4], most: i32) -> [__m512i; 2] {
            let [a, b, c, d] = sums;
            even_odd(add_pairs_to(most, a, b), add_pairs_to(most, c, d))
        }
    }
}

impl<const TABLES: bool> Vector for Bytes512<TABLES> {
    type I = __m512i;
    type F = __m512;
    /// Of entry `e`: bit masks of eight rows at `2 e`, of the other eight at `2 e + 1`.
    type Signs = [u64; 8];
    /// Of eight rows, and of the other eight.
    type Entry = [__m512i; 2];
    const LANES: usize = 16;
    const SIGNED: bool = false;
    const SIGNS: bool = false;
    const TABLES: bool = TABLES;

    safe! {
        fn zero(self) -> __m512i { _mm512_setzero_si512() }
        fn zeros(self) -> __m512 { _mm512_setzero_ps() }
        fn load(self, words: &Words, _part: usize) -> __m512i { load(words) }
        fn scales(self, halves: &Halves, _part: usize) -> __m512 {
            _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()))
        }
        fn low_scales(self, words: __m512i) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
        fn bytes(self, value: u8) -> __m512i { _mm512_set1_epi8(value.cast_signed()) }
        fn ints(self, value: i32) -> __m512i { _mm512_set1_epi32(value) }
        fn floats(self, value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn and(self, a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn xor(self, a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn or_and(self, a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
            _mm512_ternarylogic_epi32::<0xf8>(a, b, mask)
        }
        fn shift[const N: i32](self, v: __m512i) -> __m512i {
            if N >= 0 {
                _mm512_srlv_epi32(v, _mm512_set1_epi32(N))
            } else {
                _mm512_sllv_epi32(v, _mm512_set1_epi32(-N))
            }
        }
        fn shift_signed[const N: i32](self, v: __m512i) -> __m512i {
            _mm512_srav_epi32(v, _mm512_set1_epi32(N))
        }
        fn select(self, mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_ternarylogic_epi32::<0xca>(mask, a, b)
        }
        fn look_up(self, table: &[u8; 16], v: __m512i) -> __m512i { _mm512_shuffle_epi8(four_times(table), v) }
        fn choose(self, words: __m512i, from: [u8; 4], bits: [u8; 4], value: __m512i, other: __m512i) -> __m512i {
            let bits = _mm512_test_epi8_mask(self.pick(words, from), _mm512_set1_epi32(pattern(bits)));
            _mm512_mask_blend_epi8(bits, other, value)
        }
        fn pick(self, words: __m512i, from: [u8; 4]) -> __m512i {
            _mm512_shuffle_epi8(words, four_times(&places(from)))
        }
        fn where_set(self, words: __m512i, mask: i32, a: __m512i, b: __m512i) -> __m512i {
            _mm512_mask_blend_epi32(_mm512_test_epi32_mask(words, _mm512_set1_epi32(mask)), b, a)
        }
        fn add_where_clear(self, a: __m512i, words: __m512i, mask: i32, number: i32) -> __m512i {
            let clear = _mm512_testn_epi32_mask(words, _mm512_set1_epi32(mask));
            _mm512_mask_add_epi32(a, clear, a, _mm512_set1_epi32(number))
        }
        fn to_f32(self, v: __m512i) -> __m512 { _mm512_cvtepi32_ps(v) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn nan_where_zero(self, words: __m512i, v: __m512) -> __m512 {
            let zero = _mm512_testn_epi32_mask(words, words);
            _mm512_mask_blend_ps(zero, v, _mm512_set1_ps(f32::NAN))
        }
        fn store(self, v: __m512, out: &mut [f32; 16], _part: usize) { _mm512_storeu_ps(out.as_mut_ptr(), v) }
        fn dots[const FROM: usize, const TO: usize, const RANGE: u32](
            self, w: &[__m512i; 8], x: &[[i8; 4]; 8], acc: __m512i
        ) -> __m512i {
            let mut acc = acc;
            for j in FROM..TO {
                acc = _mm512_dpbusd_epi32(acc, w[j], _mm512_set1_epi32(std::ptr::from_ref(&x[j]).cast::<i32>().read_unaligned()));
            }
            acc
        }
        fn negate4(self, w: __m512i, words: __m512i, from: [u8; 4], bits: [u8; 4]) -> __m512i {
            let bits = _mm512_test_epi8_mask(self.pick(words, from), _mm512_set1_epi32(pattern(bits)));
            _mm512_mask_sub_epi8(w, bits, self.bytes(128), w)
        }
        fn entries4[const N: usize](self, table: &[[u8; 4]; N], index: __m512i) -> __m512i {
            const { assert!(N.is_power_of_two()) };
            // Every index is below N.
            let index = _mm512_and_si512(index, _mm512_set1_epi32(const { N - 1 } as i32));
            _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast())
        }
        fn entries8[const N: usize](self, table: &[[u8; 8]; N], index: __m512i) -> [__m512i; 2] {
            const { assert!(N.is_power_of_two()) };
            // Every index is below N.
            let index = _mm512_and_si512(index, _mm512_set1_epi32(const { N - 1 } as i32));
            [
                _mm512_i32gather_epi64::<8>(_mm512_castsi512_si256(index), table.as_ptr().cast()),
                _mm512_i32gather_epi64::<8>(_mm512_extracti64x4_epi64::<1>(index), table.as_ptr().cast()),
            ]
        }
        fn signs(self, words: __m512i) -> [u64; 8] {
            let bytes = _mm512_shuffle_epi8(words, four_times(&BYTES_TURNED));
            // Two stores, as a mask cannot be forwarded from the upper half of a single one.
            let low = _mm512_permutexvar_epi32(load(&WORDS_TURNED[0]), bytes);
            let high = _mm512_permutexvar_epi32(load(&WORDS_TURNED[1]), bytes);
            let mut out = [0u64; 8];
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_castsi512_si256(low));
            _mm256_storeu_si256(out.as_mut_ptr().add(4).cast(), _mm512_castsi512_si256(high));
            out
        }
        fn negate8(self, w: [__m512i; 2], signs: [u64; 8], entry: usize) -> [__m512i; 2] {
            let offset = self.bytes(128);
            [
                _mm512_mask_sub_epi8(w[0], signs[2 * entry], offset, w[0]),
                _mm512_mask_sub_epi8(w[1], signs[2 * entry + 1], offset, w[1]),
            ]
        }
        fn pair_dots[const FROM: usize, const TO: usize](
            self, w: &[[__m512i; 2]; 4], x: &[[i8; 4]; 8], acc: __m512i, _signs: bool, _range: u32
        ) -> __m512i {
            let (mut low, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            #[allow(clippy::needless_range_loop, reason = "several arrays, and the bounds are constants")]
            for e in FROM..TO {
                let x: &[[i8; 4]; 2] = &x.as_chunks::<2>().0[e];
                let x = _mm512_set1_epi64(std::ptr::from_ref(x).cast::<i64>().read_unaligned());
                low = _mm512_dpbusd_epi32(low, w[e][0], x);
                high = _mm512_dpbusd_epi32(high, w[e][1], x);
            }
            let even = _mm512_permutex2var_epi32(low, load(&EVEN), high);
            let odd = _mm512_permutex2var_epi32(low, load(&ODD), high);
            _mm512_add_epi32(_mm512_add_epi32(even, odd), acc)
        }
        fn look_up_64(self, table: &[u8; 64], v: __m512i) -> __m512i { _mm512_permutexvar_epi8(v, load(table)) }
        fn look_up_128(self, table: &[u8; 128], v: __m512i) -> __m512i { look_up_128(table, v) }
        fn look_up_256(self, table: &[[u8; 128]; 2], v: __m512i) -> __m512i {
            let [low, high] = [look_up_128(&table[0], v), look_up_128(&table[1], v)];
            _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high)
        }
        fn windows(self, words: __m512i, from: [i8; 4]) -> __m512i {
            // Both lanes of a quarter of 64 bits, whose bits go round.
            let low = i64::from(word(from.map(|from| from as u8 & 63))) & 0xffff_ffff;
            let high = i64::from(word(from.map(|from| (from + 32) as u8 & 63)));
            _mm512_multishift_epi64_epi8(_mm512_set1_epi64(high << 32 | low), words)
        }
        fn words(self, plane: &[u8], stride: usize, at: usize, out: &mut Line<Words>) {
            if gatherable(plane, stride, at) {
                // Every read is inside, as asserted.
                let words = _mm512_i32gather_epi32::<1>(distances(stride), plane.as_ptr().add(at).cast());
                _mm512_store_si512(out.0.as_mut_ptr().cast(), words);
            } else {
                lanes::spread(plane, stride, at, |r, bytes| out.0[r] = u32::from_le_bytes(bytes));
            }
        }
        fn halves(self, plane: &[u8], stride: usize, at: usize, out: &mut HalfLine) {
            let words = if gatherable(plane, stride, at) {
                // Every read is inside, as asserted; so it is below, where the row's words do not end later.
                _mm512_i32gather_epi32::<1>(distances(stride), plane.as_ptr().add(at).cast())
            } else if at >= 2 && gatherable(plane, stride, at - 2) {
                let words = _mm512_i32gather_epi32::<1>(distances(stride), plane.as_ptr().add(at - 2).cast());
                _mm512_srli_epi32::<16>(words)
            } else {
                return lanes::spread(plane, stride, at, |r, bytes| out.0[r] = u16::from_le_bytes(bytes));
            };
            _mm256_store_si256(out.0.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(words));
        }
    }

    #[inline(always)]
    unsafe fn turn_at(self, rows: Places, out: &mut [Line<Words>; 4]) {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe {
            let [a, b, c, d] = quads(rows);
            let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let turned = [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ];
            for i in 0..4 {
                _mm512_store_si512(out[i].0.as_mut_ptr().cast(), turned[i]);
            }
        }
    }

    #[inline(always)]
    unsafe fn words_at(self, rows: Places, out: &mut Line<Words>) {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe { _mm512_store_si512(out.0.as_mut_ptr().cast(), gather(rows)) }
    }

    #[inline(always)]
    unsafe fn halves_at(self, rows: Places, upper: bool, out: &mut HalfLine) {
        // SAFETY: the caller's promise; it has the features, too.
        unsafe {
            let words = gather(rows);
            let words = if upper { _mm512_srli_epi32::<16>(words) } else { words };
            _mm256_store_si256(out.0.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(words));
        }
    }
}

impl<const TABLES: bool> Wide for Bytes512<TABLES> {
    safe! {
        fn words_of(self, w: [__m512i; 2]) -> [__m512i; 2] {
            let [even, odd] = [load(&EVEN), load(&ODD)];
            [_mm512_permutex2var_epi32(w[0], even, w[1]), _mm512_permutex2var_epi32(w[0], odd, w[1])]
        }
        fn add8(self, w: [__m512i; 2], words: __m512i, mask: i32, a: __m512i, b: __m512i) -> [__m512i; 2] {
            let set = _mm512_test_epi32_mask(words, _mm512_set1_epi32(mask));
            [
                _mm512_add_epi8(w[0], _mm512_mask_blend_epi64(set as u8, b, a)),
                _mm512_add_epi8(w[1], _mm512_mask_blend_epi64((set >> 8) as u8, b, a)),
            ]
        }
        fn mul_halves(self, a: __m512i, b: __m512i) -> __m512i { _mm512_mullo_epi16(a, b) }
        fn add_bytes(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi8(a, b) }
        fn sub_bytes(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi8(a, b) }
        fn store_words(self, v: __m512i, out: &mut Words) {
            _mm512_storeu_si512(out.as_mut_ptr().cast(), v);
        }
    }
}
