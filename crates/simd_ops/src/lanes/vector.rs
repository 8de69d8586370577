//! What the kernels need of an instruction set.

use super::{Halves, Words};
use crate::arch::opaque;

/// Defines methods whose bodies are unsafe only for the features that they need.
macro_rules! safe {
    ($($(#[$meta:meta])* fn $name:ident $([$($generics:tt)*])? ($self:ident $(, $arg:ident: $type:ty)*) $(-> $out:ty)? $body:block)+) => {
        $($(#[$meta])* #[inline(always)]
        fn $name $(<$($generics)*>)? ($self $(, $arg: $type)*) $(-> $out)? {
            #[allow(unused_unsafe, reason = "a few bodies are plain")]
            // SAFETY: whoever made the token has promised that the machine has its features. Memory is accessed by
            // references only.
            unsafe { $body }
        })+
    };
}
pub(crate) use safe;

/// Places in sixteen rows at equal distances: pointers to four of them, so that the others are a register or two away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// In rows 0, 4, 8 and 12.
    fours: [*const u8; 4],
    /// Distance of rows.
    pub stride: usize,
}

impl Places {
    /// The place in row 0, and the distance.
    #[inline(always)]
    pub(crate) fn new(first: *const u8, stride: usize) -> Self {
        let first = opaque(first);
        let fourth = opaque(first.wrapping_add(4 * stride));
        let eighth = opaque(first.wrapping_add(8 * stride));
        Self { fours: [first, fourth, eighth, opaque(fourth.wrapping_add(8 * stride))], stride }
    }

    /// Places `by` bytes further on.
    #[inline(always)]
    pub(crate) fn behind(self, by: usize) -> Self {
        Self { fours: self.fours.map(|row| row.wrapping_add(by)), ..self }
    }

    /// Places `by` bytes before.
    #[inline(always)]
    pub(crate) fn before(self, by: usize) -> Self {
        Self { fours: self.fours.map(|row| row.wrapping_sub(by)), ..self }
    }

    /// The place in row `r`.
    #[inline(always)]
    pub(crate) fn row(self, r: usize) -> *const u8 {
        self.fours[r / 4].wrapping_add(r % 4 * self.stride)
    }
}

/// An instruction set's vectors, as a token: making one promises that the machine has the features.
///
/// A vector of integers holds a word of each of [`Self::LANES`] rows; a tile has [`super::ROWS`] rows and so one or two
/// `part`s. All methods are inlined into an entry that is compiled for the features.
pub(crate) trait Vector: Copy {
    /// Integers.
    type I: Copy;
    /// binary32 numbers.
    type F: Copy;
    /// Signs of entries of eight values.
    type Signs: Copy;
    /// Entries of eight values of every row of a vector.
    type Entry: Copy;
    /// Rows of a vector.
    const LANES: usize;
    /// Whether sums of codes of more than 7 bits are formed from signed codes, which need no start value.
    const SIGNED: bool;
    /// Whether signs of entries of eight values are given to the activations, so that there is no offset.
    const SIGNS: bool;

    fn zero(self) -> Self::I;
    fn zeros(self) -> Self::F;
    fn load(self, words: &Words, part: usize) -> Self::I;
    /// Half words as binary16 numbers.
    fn scales(self, halves: &Halves, part: usize) -> Self::F;
    /// The lower half words of the lanes as binary16 numbers.
    fn low_scales(self, words: Self::I) -> Self::F;
    fn bytes(self, value: u8) -> Self::I;
    fn ints(self, value: i32) -> Self::I;
    fn floats(self, value: f32) -> Self::F;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a | (b & mask)`.
    fn or_and(self, a: Self::I, b: Self::I, mask: Self::I) -> Self::I;
    /// Shifts of 32-bit lanes: to the right by `N`, or to the left by `-N`.
    fn shift<const N: i32>(self, v: Self::I) -> Self::I;
    /// The same with the sign.
    fn shift_signed<const N: i32>(self, v: Self::I) -> Self::I;
    /// The bits of `a` where those of `mask` are set, else those of `b`.
    fn select(self, mask: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Entry of a table for the lower four bits of every byte, which is below 128.
    fn look_up(self, table: &[u8; 16], v: Self::I) -> Self::I;
    /// For byte `i` of every lane: `value` if bit `BITS[i]` of byte `FROM[i]` of the lane of `words` is set, else `other`.
    fn choose(self, words: Self::I, from: [u8; 4], bits: [u8; 4], value: Self::I, other: Self::I) -> Self::I;
    /// Byte `from[i]` of every lane at byte `i`; 0 where `from[i]` is 128.
    fn pick(self, words: Self::I, from: [u8; 4]) -> Self::I;
    /// Lanes of `a` where the bits of `mask` in the lane of `words` are not all zero, else of `b`.
    fn where_set(self, words: Self::I, mask: i32, a: Self::I, b: Self::I) -> Self::I;
    /// `a`, plus `number` where the bits of `mask` in the lane of `words` are all zero.
    fn add_where_clear(self, a: Self::I, words: Self::I, mask: i32, number: i32) -> Self::I;
    fn to_f32(self, v: Self::I) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lanes of `nan` where `words` is zero.
    fn nan_where_zero(self, words: Self::I, v: Self::F) -> Self::F;
    fn store(self, v: Self::F, out: &mut [f32; 16], part: usize);

    /// `acc` plus the products of the codes `w[FROM..TO]`, none greater than `RANGE`, with activations.
    fn dots<const FROM: usize, const TO: usize, const RANGE: u32>(
        self,
        w: &[Self::I; 8],
        x: &[[i8; 4]; 8],
        acc: Self::I,
    ) -> Self::I;
    /// Whether [`Self::half_words`] and [`Self::weigh`] are there.
    const HALF_WORDS: bool = false;
    /// Whether [`Self::half_words`] are not two but one, and the upper one means nothing.
    const LOWER: bool = false;
    /// As [`Self::dots`] of four words of codes up to 3, as two half words; the codes lie `raised` bits too high.
    fn half_words(self, _w: &[Self::I; 4], _x: &[[i8; 4]; 4], _raised: u32) -> Self::I {
        self.zero()
    }
    /// Sums of the products of two half words each.
    fn weigh(self, a: Self::I, _b: Self::I) -> Self::I {
        a
    }
    /// Sums of words.
    fn plus_words(self, a: Self::I, _b: Self::I) -> Self::I {
        a
    }
    /// `128 - w` for the bytes `i` of every lane where bit `bits[i]` of byte `from[i]` of the lane of `words` is set.
    fn negate4(self, w: Self::I, words: Self::I, from: [u8; 4], bits: [u8; 4]) -> Self::I;
    /// Entries of four bytes of a table; indices are taken modulo its length.
    fn entries4<const N: usize>(self, table: &[[u8; 4]; N], index: Self::I) -> Self::I;
    /// Entries of eight bytes.
    fn entries8<const N: usize>(self, table: &[[u8; 8]; N], index: Self::I) -> Self::Entry;
    /// The bits of four bytes of every lane as signs of four entries.
    fn signs(self, words: Self::I) -> Self::Signs;
    /// `128 - w` for the bytes with a sign, or `-w` if the vector has [`Self::SIGNS`]; `entry` below 4.
    fn negate8(self, w: Self::Entry, signs: Self::Signs, entry: usize) -> Self::Entry;
    /// As [`Self::dots`], for the entries `FROM..TO` of four, whose bytes are at most `range` in magnitude; if `signs`, they
    /// come from [`Self::negate8`].
    fn pair_dots<const FROM: usize, const TO: usize>(
        self,
        w: &[Self::Entry; 4],
        x: &[[i8; 4]; 8],
        acc: Self::I,
        signs: bool,
        range: u32,
    ) -> Self::I;
    /// Whether the look-ups in tables of 64 bytes and more, and [`Self::windows`], are there.
    const TABLES: bool = false;
    /// Entry of a table for the lower six bits of every byte.
    fn look_up_64(self, _table: &[u8; 64], v: Self::I) -> Self::I {
        v
    }
    /// Entry of a table for the lower seven bits of every byte.
    fn look_up_128(self, _table: &[u8; 128], v: Self::I) -> Self::I {
        v
    }
    /// Entry of a table for every byte.
    fn look_up_256(self, _table: &[[u8; 128]; 2], v: Self::I) -> Self::I {
        v
    }
    /// Byte `i` of every lane: eight bits of the lane from bit `from[i]` on, which may be negative; a bit outside the lane is any.
    fn windows(self, words: Self::I, _from: [i8; 4]) -> Self::I {
        words
    }
    /// Four bytes of every row at `at`, rows `stride` apart.
    fn words(self, plane: &[u8], stride: usize, at: usize, out: &mut super::Line<Words>) {
        super::spread(plane, stride, at, |r, bytes| out.0[r] = u32::from_le_bytes(bytes));
    }
    /// Two bytes of every row.
    fn halves(self, plane: &[u8], stride: usize, at: usize, out: &mut super::HalfLine) {
        super::spread(plane, stride, at, |r, bytes| out.0[r] = u16::from_le_bytes(bytes));
    }
    /// Four words of sixteen rows: 16 bytes of every row from `at` on, rows `stride` apart.
    #[inline(always)]
    fn turn(self, plane: &[u8], stride: usize, at: usize, out: &mut [super::Line<Words>; 4]) {
        let rows = &plane[at..];
        assert!((super::ROWS - 1) * stride + 16 <= rows.len(), "sixteen rows");
        // SAFETY: each read is inside, as asserted.
        unsafe { self.turn_at(Places::new(rows.as_ptr(), stride), out) }
    }
    /// The same from pointers.
    ///
    /// # Safety
    /// Sixteen bytes must be readable at each of the places.
    unsafe fn turn_at(self, rows: Places, out: &mut [super::Line<Words>; 4]);
    /// As [`Self::words`], from pointers.
    ///
    /// # Safety
    /// As of [`Self::turn_at`], four bytes each.
    #[inline(always)]
    unsafe fn words_at(self, rows: Places, out: &mut super::Line<Words>) {
        for (r, out) in out.0.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *out = u32::from_le_bytes(unsafe { rows.row(r).cast::<[u8; 4]>().read() });
        }
    }
    /// The lower or upper half words of these.
    ///
    /// # Safety
    /// As of [`Self::words_at`].
    #[inline(always)]
    unsafe fn halves_at(self, rows: Places, upper: bool, out: &mut super::HalfLine) {
        let mut words = super::Line::default();
        // SAFETY: the caller's promise.
        unsafe { self.words_at(rows, &mut words) };
        for (out, word) in out.0.iter_mut().zip(words.0) {
            *out = (if upper { word >> 16 } else { word }) as u16;
        }
    }
}

/// What products of many columns need besides.
pub(crate) trait Wide: Vector {
    /// Entries as words: the first four bytes of every row, and the other four.
    fn words_of(self, w: Self::Entry) -> [Self::I; 2];
    /// Adds `a` to entries of lanes where the bits of `mask` in `words` are not all zero, else `b`.
    fn add8(self, w: Self::Entry, words: Self::I, mask: i32, a: Self::I, b: Self::I) -> Self::Entry;
    /// Products of half words, modulo 2^16.
    fn mul_halves(self, a: Self::I, b: Self::I) -> Self::I;
    /// Sums of bytes, modulo 256.
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Differences of bytes, modulo 256.
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Writes the words of all rows.
    fn store_words(self, v: Self::I, out: &mut Words);
}
