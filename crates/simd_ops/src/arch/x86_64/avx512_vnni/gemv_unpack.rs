//! Unpacking of units of 256 values to unsigned bytes, format by format.

use std::arch::x86_64::*;

use ninfer_formats::codec::gguf::{self, Block, six_bit_scales};
use ninfer_formats::float::e2m1;
use ninfer_formats::tables::IQ4_VALUES;

use crate::arch::x86_64::avx512::prims::{at, load16, load32, u16_at};
use crate::gemv::{Format, Ggml, Grouped, Nvfp4, Order, in_order};
use crate::isa::avx512_vnni_entry;

/// How the sums of a unit are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Vectors 0 and 1 belong to the same four blocks, a 128-bit lane each, and so do 2 and 3.
    Fold,
    /// Each 128-bit lane is a half-block; lanes 0 and 1 of a vector are one block, and so are 2 and 3.
    Four,
    /// 32-bit lanes `2 b` and `2 b + 1` of all four vectors belong to block `b`.
    Bytes,
    /// As `Fold`, the lower 64 bits of a lane for the first half of the block.
    Interleaved,
}

/// A format as the kernel unpacks it.
pub(super) trait Unpack: Format {
    /// The order of the values.
    const ORDER: Order;
    /// See [`Form`].
    const FORM: Form;
    /// Whether codes are magnitudes, with signs apart.
    const SIGNS: bool = false;

    /// The codes of a unit, plus the offset.
    ///
    /// # Safety
    /// The machine must have the token's features. The slices have the lengths of [`Format::BYTES`].
    unsafe fn codes(codes: &[u8], high: &[u8]) -> [__m512i; 4];
    /// Bits of the negative values.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn signs(_codes: &[u8]) -> [u64; 4] {
        [0; 4]
    }
    /// Integer factors as bytes: of the blocks or half-blocks, in order.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn factors(codes: &[u8]) -> __m128i;
    /// Integer minima.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn minima(codes: &[u8]) -> __m128i;
}

/// The order of whole half-blocks of 16 values.
const fn by_halves(halves: [u8; 16], split: bool, offset: i32) -> Order {
    let mut source = [0; 256];
    let mut i = 0;
    while i < 256 {
        source[i] = halves[i / 16] * 16 + (i % 16) as u8;
        i += 1;
    }
    order(source, split, offset)
}

/// Derives the lanes of split sums: lane `l` of vector `j` comes to place `4 l + j`.
const fn order(source: [u8; 256], split: bool, offset: i32) -> Order {
    let mut halves = [0; 16];
    let mut i = 0;
    while i < 16 {
        halves[i] = source[64 * (i % 4) + 16 * (i / 4)] / 16;
        i += 1;
    }
    Order { source, halves, split, offset }
}

/// First halves of four blocks, their second halves; then the other four blocks.
const LEGACY: [u8; 16] = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];
/// First halves of the even blocks, their second halves; then the odd blocks.
const EVEN_ODD: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
/// Blocks `f` and `4 + f` in vector `f`.
const STRIDED: [u8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

const fn natural(split: bool, offset: i32) -> Order {
    order(in_order(), split, offset)
}

/// Four blocks a vector, the even values first, then the odd ones; `halves` in order.
const fn pairs(offset: i32, split: bool) -> Order {
    let mut source = [0; 256];
    let mut i = 0;
    while i < 256 {
        source[i] = (i / 128 * 128 + i % 64 * 2 + i / 64 % 2) as u8;
        i += 1;
    }
    let mut halves = [0; 16];
    let mut h = 0;
    while h < 16 {
        halves[h] = h as u8;
        h += 1;
    }
    Order { source, halves, split, offset }
}

/// Two-bit fields: vector `f` takes every fourth value from `f` on.
const fn fields(offset: i32) -> Order {
    let mut source = [0; 256];
    let mut i = 0;
    while i < 256 {
        source[i] = (i % 64 * 4 + i / 64) as u8;
        i += 1;
    }
    Order { source, halves: [0; 16], split: false, offset }
}

/// A table of sixteen bytes plus an offset.
const fn table(values: &[i8; 16], offset: i32) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    out
}

static IQ4: [u8; 16] = table(&IQ4_VALUES, 128);
static E2M1: [u8; 16] = table(&e2m1::DOUBLED, 12);

avx512_vnni_entry! {
    #[inline]
    fn load64(bytes: &[u8], from: usize) -> __m512i {
        let bytes: &[u8; 64] = at(bytes, from);
        // SAFETY: reads the 64 bytes of `bytes`.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    /// Sixteen bytes at each of four offsets.
    #[inline]
    fn lanes(bytes: &[u8], from: usize, stride: usize) -> __m512i {
        let v = _mm512_castsi128_si512(load16(at(bytes, from)));
        let v = _mm512_inserti32x4::<1>(v, load16(at(bytes, from + stride)));
        let v = _mm512_inserti32x4::<2>(v, load16(at(bytes, from + 2 * stride)));
        _mm512_inserti32x4::<3>(v, load16(at(bytes, from + 3 * stride)))
    }

    /// 32 bytes at each of two offsets.
    #[inline]
    fn two(bytes: &[u8], from: usize, stride: usize) -> __m512i {
        let v = _mm512_castsi256_si512(load32(at(bytes, from)));
        _mm512_inserti64x4::<1>(v, load32(at(bytes, from + stride)))
    }

    #[inline]
    fn bytes(value: u8) -> __m512i {
        _mm512_set1_epi8(value as i8)
    }

    #[inline]
    fn low(v: __m512i) -> __m512i {
        _mm512_and_si512(v, bytes(15))
    }

    #[inline]
    fn high(v: __m512i) -> __m512i {
        low(_mm512_srli_epi16::<4>(v))
    }

    /// `a | (b & mask)`.
    #[inline]
    fn or_masked(a: __m512i, b: __m512i, mask: u8) -> __m512i {
        _mm512_ternarylogic_epi32::<0xf8>(a, b, bytes(mask))
    }

    #[inline]
    fn look_up(table: &[u8; 16], v: __m512i) -> __m512i {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load16(table)), v)
    }

    /// The four two-bit fields of every byte.
    #[inline]
    fn two_bits(v: __m512i) -> [__m512i; 4] {
        let three = bytes(3);
        [
            _mm512_and_si512(v, three),
            _mm512_and_si512(_mm512_srli_epi16::<2>(v), three),
            _mm512_and_si512(_mm512_srli_epi16::<4>(v), three),
            _mm512_and_si512(_mm512_srli_epi16::<6>(v), three),
        ]
    }

    /// Sixteen bytes at the start of `from`, of which those that exist are meant.
    #[inline]
    fn eight(values: [u8; 8]) -> __m128i {
        _mm_cvtsi64_si128(i64::from_le_bytes(values))
    }

    #[inline]
    fn sixteen(values: &[i8; 16]) -> __m128i {
        // SAFETY: reads the 16 bytes of `values`.
        unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
    }

    #[inline]
    fn zero() -> __m128i {
        _mm_setzero_si128()
    }

    /// `2 s + 1` of eight or sixteen small bytes.
    #[inline]
    fn odd(s: __m128i) -> __m128i {
        _mm_sub_epi8(_mm_add_epi8(s, s), _mm_set1_epi8(-1))
    }

    /// Nibbles of eight bytes, the low one of each byte first.
    #[inline]
    fn nibbles(bytes: [u8; 8]) -> __m128i {
        let v = _mm_cvtepu8_epi16(eight(bytes));
        _mm_and_si128(_mm_or_si128(v, _mm_slli_epi16::<4>(v)), _mm_set1_epi8(15))
    }

    /// Sets bit 7 of every byte of seven bits to their parity.
    #[inline]
    fn with_parity(s: __m256i) -> [u64; 4] {
        let p = _mm256_xor_si256(s, _mm256_srli_epi16::<4>(s));
        let p = _mm256_xor_si256(p, _mm256_srli_epi16::<2>(p));
        let p = _mm256_xor_si256(p, _mm256_srli_epi16::<1>(p));
        let p = _mm256_slli_epi16::<7>(_mm256_and_si256(p, _mm256_set1_epi8(1)));
        masks(_mm256_or_si256(s, p))
    }

    #[inline]
    fn masks(v: __m256i) -> [u64; 4] {
        let mut out = [0u64; 4];
        // SAFETY: writes the 32 bytes of `out`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), v) };
        out
    }

    /// Spreads four fields of seven bits to the bytes of each word.
    #[inline]
    fn seven_bits(a: __m256i) -> __m256i {
        let and = |v, mask| _mm256_and_si256(v, _mm256_set1_epi32(mask));
        let low = _mm256_or_si256(and(a, 0x7f), and(_mm256_slli_epi32::<1>(a), 0x7f00));
        let high = and(_mm256_slli_epi32::<2>(a), 0x7f_0000);
        let high = _mm256_or_si256(high, and(_mm256_slli_epi32::<3>(a), 0x7f00_0000));
        _mm256_or_si256(low, high)
    }

    /// Entries of eight bytes; indices below `N`.
    #[inline]
    fn grid8<const N: usize>(grid: &[[i8; 8]; N], index: __m512i) -> __m512i {
        // A mask that keeps any index inside costs nothing measurable and needs no trust in the caller.
        let index = _mm512_and_si512(index, _mm512_set1_epi64(const { N.next_power_of_two() / 2 * 2 - 1 } as i64));
        const { assert!(N.is_power_of_two()) };
        // SAFETY: every index is below N, a power of two, by the mask.
        unsafe { _mm512_i64gather_epi64::<8>(index, grid.as_ptr().cast()) }
    }

    /// Entries of four bytes.
    #[inline]
    fn grid4<const N: usize>(grid: &[[i8; 4]; N], index: __m512i) -> __m512i {
        const { assert!(N.is_power_of_two()) };
        let index = _mm512_and_si512(index, _mm512_set1_epi32(const { N - 1 } as i32));
        // SAFETY: every index is below N, a power of two, by the mask.
        unsafe { _mm512_i32gather_epi32::<4>(index, grid.as_ptr().cast()) }
    }

    /// Eight words, in the lowest 16 bits of eight 64-bit lanes: word `w[i]` of `words` in lane i.
    #[inline]
    fn spread(words: __m128i, w: [i16; 8]) -> __m512i {
        let mut index = [0i16; 32];
        for i in 0..8 {
            index[4 * i] = w[i];
        }
        // SAFETY: reads the 64 bytes of `index`.
        let index = unsafe { _mm512_loadu_si512(index.as_ptr().cast()) };
        _mm512_maskz_permutexvar_epi16(0x1111_1111, index, _mm512_castsi128_si512(words))
    }

    #[inline]
    fn steps(step: i64, lanes: i64) -> __m512i {
        let at = |i: i64| i % lanes * step;
        _mm512_setr_epi64(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
    }

    /// Grid of `iq1_s` and `iq1_m` times eight, plus or minus one, plus 9.
    #[inline]
    fn iq1(codes: &[u8; 8], high: __m512i, negative: __mmask8) -> __m512i {
        let index = _mm512_cvtepu8_epi64(eight(*codes));
        let high = _mm512_and_si512(high, _mm512_set1_epi64(7));
        let index = _mm512_or_si512(index, _mm512_slli_epi64::<8>(high));
        let delta = _mm512_mask_blend_epi64(negative, bytes(10), bytes(8));
        _mm512_add_epi8(grid8(&ninfer_formats::tables::IQ1_TIMES_8, index), delta)
    }
}

/// Implements [`Unpack`]; bodies are compiled for the token's features.
macro_rules! unpack {
    (@body [$($generics:tt)*] $name:ty, $form:ident, $order:expr, signs $signs:literal,
        |$c:ident, $h:ident| $codes:block, |$sc:ident| $sign:block, |$fc:ident| $factors:block, |$mc:ident| $minima:block
    ) => {
        impl$($generics)* Unpack for $name {
            const ORDER: Order = $order;
            const FORM: Form = Form::$form;
            const SIGNS: bool = $signs;

            avx512_vnni_entry! {
                #[inline]
                unsafe fn codes($c: &[u8], $h: &[u8]) -> [__m512i; 4] $codes
                #[inline]
                unsafe fn signs($sc: &[u8]) -> [u64; 4] $sign
                #[inline]
                unsafe fn factors($fc: &[u8]) -> __m128i $factors
                #[inline]
                unsafe fn minima($mc: &[u8]) -> __m128i $minima
            }
        }
    };
    ($name:ty, $form:ident, $order:expr, codes |$c:ident, $h:ident| $codes:block) => {
        unpack!(@body [] $name, $form, $order, signs false, |$c, $h| $codes, |_c| { [0; 4] }, |_c| { zero() }, |_c| { zero() });
    };
    ($name:ty, $form:ident, $order:expr, codes |$c:ident| $codes:block) => {
        unpack!(@body [] $name, $form, $order, signs false, |$c, _high| $codes, |_c| { [0; 4] }, |_c| { zero() }, |_c| { zero() });
    };
    ($name:ty, $form:ident, $order:expr, codes |$c:ident| $codes:block, factors |$fc:ident| $factors:block) => {
        unpack!(@body [] $name, $form, $order, signs false, |$c, _high| $codes, |_c| { [0; 4] }, |$fc| $factors, |_c| { zero() });
    };
    ($name:ty, $form:ident, $order:expr, codes |$c:ident| $codes:block, factors |$fc:ident| $factors:block,
        minima |$mc:ident| $minima:block) => {
        unpack!(@body [] $name, $form, $order, signs false, |$c, _high| $codes, |_c| { [0; 4] }, |$fc| $factors, |$mc| $minima);
    };
    ($name:ty, $form:ident, $order:expr, codes |$c:ident| $codes:block, signs |$sc:ident| $sign:block,
        factors |$fc:ident| $factors:block) => {
        unpack!(@body [] $name, $form, $order, signs true, |$c, _high| $codes, |$sc| $sign, |$fc| $factors, |_c| { zero() });
    };
}

unpack! { Ggml<gguf::Q8_0>, Four, natural(false, 128), codes |c| {
    let sign = bytes(0x80);
    [0, 68, 136, 204].map(|i| _mm512_xor_si512(two(c, i + 2, 34), sign))
} }
unpack! { Grouped<8, 32, false>, Four, natural(false, 128), codes |c| {
    let sign = bytes(0x80);
    [0, 64, 128, 192].map(|i| _mm512_xor_si512(load64(c, i), sign))
} }
unpack! { Ggml<gguf::Q4_0>, Fold, by_halves(LEGACY, false, 8), codes |c| {
    let (p, q) = (lanes(c, 2, 18), lanes(c, 74, 18));
    [low(p), high(p), low(q), high(q)]
} }
unpack! { Ggml<gguf::Iq4Nl>, Fold, by_halves(LEGACY, false, 128), codes |c| {
    let (p, q) = (lanes(c, 2, 18), lanes(c, 74, 18));
    [low(p), high(p), low(q), high(q)].map(|v| look_up(&IQ4, v))
} }
unpack! { Ggml<gguf::Iq4Xs>, Fold, by_halves(LEGACY, false, 128),
    codes |c| {
        let (p, q) = (load64(c, 8), load64(c, 72));
        [low(p), high(p), low(q), high(q)].map(|v| look_up(&IQ4, v))
    },
    factors |c| {
        let sl: [u8; 4] = *at(c, 4);
        let low = nibbles([sl[0], sl[1], sl[2], sl[3], 0, 0, 0, 0]);
        // Two bits of each block, to the bytes.
        let h = _mm256_set1_epi32(i32::from(u16_at(c, 2)));
        let h = _mm256_srlv_epi32(h, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let h = _mm256_slli_epi32::<4>(_mm256_and_si256(h, _mm256_set1_epi32(3)));
        _mm_sub_epi8(_mm_or_si128(low, _mm256_cvtepi32_epi8(h)), _mm_set1_epi8(32))
    }
}
unpack! { Ggml<gguf::Q5_0>, Fold, by_halves(LEGACY, false, 16), codes |c| {
    let sixteen = bytes(16);
    let masks = |from: usize| {
        let bits = |h: usize| {
            (0..4).fold(0u64, |m, b| m | u64::from(u16_at(c, from + 22 * b + 2 * h)) << (16 * b))
        };
        [bits(0), bits(1)]
    };
    let (p, q) = (lanes(c, 6, 22), lanes(c, 94, 22));
    let (mp, mq) = (masks(2), masks(90));
    let add = |v, m| _mm512_mask_add_epi8(v, m, v, sixteen);
    [add(low(p), mp[0]), add(high(p), mp[1]), add(low(q), mq[0]), add(high(q), mq[1])]
} }
unpack! { Ggml<gguf::Q2_0>, Bytes, fields(1), codes |c| { two_bits(lanes(c, 2, 18)) } }
unpack! { Grouped<2, 64, true>, Bytes, fields(1), codes |c| { two_bits(load64(c, 0)) } }
unpack! { Grouped<2, 128, false>, Bytes, fields(2), codes |c| {
    // Two's complement plus 2: the upper bit flipped.
    two_bits(_mm512_xor_si512(load64(c, 0), bytes(0xaa)))
} }
unpack! { Grouped<4, 64, false>, Fold, pairs(8, false), codes |c| {
    let flip = bytes(0x88);
    let (p, q) = (_mm512_xor_si512(load64(c, 0), flip), _mm512_xor_si512(load64(c, 64), flip));
    [low(p), high(p), low(q), high(q)]
} }
unpack! { Nvfp4, Interleaved, pairs(12, true), codes |c| {
    let (p, q) = (load64(c, 0), load64(c, 64));
    [low(p), high(p), low(q), high(q)].map(|v| look_up(&E2M1, v))
} }
unpack! { Grouped<5, 64, false>, Four, natural(false, 16), codes |c, h| {
    [0, 1, 2, 3].map(|i| {
        let q = _mm512_cvtepu8_epi16(load32(at(c, 32 * i)));
        let q = _mm512_and_si512(_mm512_or_si512(q, _mm512_slli_epi16::<4>(q)), bytes(15));
        // Two's complement plus 16: the fifth bit flipped.
        let bits = u64::from_le_bytes(*at(h, 8 * i));
        _mm512_mask_add_epi8(q, !bits, q, bytes(16))
    })
} }
unpack! { Grouped<6, 64, false>, Four, natural(false, 32), codes |c, h| {
    [0, 1, 2, 3].map(|i| {
        let q = _mm512_cvtepu8_epi16(load32(at(c, 32 * i)));
        let q = _mm512_and_si512(_mm512_or_si512(q, _mm512_slli_epi16::<4>(q)), bytes(15));
        let t = _mm512_cvtepu8_epi32(_mm_xor_si128(load16(at(h, 16 * i)), _mm_set1_epi8(0xaau8.cast_signed())));
        // The four fields of a byte to bits 4 and 5 of the bytes of a word.
        let t = _mm512_or_si512(_mm512_slli_epi32::<4>(t), _mm512_slli_epi32::<10>(t));
        let t = _mm512_or_si512(t, _mm512_slli_epi32::<12>(t));
        or_masked(q, t, 0x30)
    })
} }
unpack! { Ggml<gguf::Q2K>, Four, by_halves(STRIDED, true, 0),
    codes |c| { two_bits(load64(c, 16)) },
    factors |c| { _mm_and_si128(load16(at(c, 0)), _mm_set1_epi8(15)) },
    minima |c| { _mm_and_si128(_mm_srli_epi16::<4>(load16(at(c, 0))), _mm_set1_epi8(15)) }
}
unpack! { Ggml<gguf::Q3K>, Four, by_halves(STRIDED, true, 4),
    codes |c| {
        let hm = load32(at(c, 0));
        // Bit f of every byte for vector f.
        let hm = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(hm), _mm256_srli_epi16::<4>(hm));
        let q = two_bits(load64(c, 32));
        [
            or_masked(q[0], _mm512_slli_epi16::<2>(hm), 4),
            or_masked(q[1], _mm512_slli_epi16::<1>(hm), 4),
            or_masked(q[2], hm, 4),
            or_masked(q[3], _mm512_srli_epi16::<1>(hm), 4),
        ]
    },
    factors |c| {
        let s = gguf::q3_k_scales(at(c, 96));
        _mm_sub_epi8(load16(&s), _mm_set1_epi8(32))
    }
}
unpack! { Ggml<gguf::Q4K>, Fold, by_halves(EVEN_ODD, false, 0),
    codes |c| {
        let (p, q) = (lanes(c, 16, 32), lanes(c, 32, 32));
        [low(p), low(q), high(p), high(q)]
    },
    factors |c| { eight(six_bit_scales(at(c, 4)).0) },
    minima |c| { eight(six_bit_scales(at(c, 4)).1) }
}
unpack! { Ggml<gguf::Q5K>, Fold, by_halves(EVEN_ODD, false, 0),
    codes |c| {
        let (p, q) = (lanes(c, 48, 32), lanes(c, 64, 32));
        // Bit 2 i of lane i for the even blocks, 2 i + 1 for the odd ones.
        let shifts = _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6);
        let bits = |from| _mm512_srlv_epi64(_mm512_broadcast_i32x4(load16(at(c, from))), shifts);
        let (hp, hq) = (bits(16), bits(32));
        [
            or_masked(low(p), _mm512_slli_epi16::<4>(hp), 16),
            or_masked(low(q), _mm512_slli_epi16::<4>(hq), 16),
            or_masked(high(p), _mm512_slli_epi16::<3>(hp), 16),
            or_masked(high(q), _mm512_slli_epi16::<3>(hq), 16),
        ]
    },
    factors |c| { eight(six_bit_scales(at(c, 4)).0) },
    minima |c| { eight(six_bit_scales(at(c, 4)).1) }
}
unpack! { Ggml<gguf::Q6K>, Four, by_halves(STRIDED, true, 32),
    codes |c| {
        let (p, q) = (two(c, 0, 64), two(c, 32, 64));
        let h = load64(c, 128);
        [
            or_masked(low(p), _mm512_slli_epi16::<4>(h), 0x30),
            or_masked(low(q), _mm512_slli_epi16::<2>(h), 0x30),
            or_masked(high(p), h, 0x30),
            or_masked(high(q), _mm512_srli_epi16::<2>(h), 0x30),
        ]
    },
    factors |c| { load16(at(c, 192)) }
}
unpack! { Ggml<gguf::Iq2Xxs>, Four, natural(false, 0),
    codes |c| {
        let q = masks(_mm512_cvtepi64_epi32(load64(c, 2)));
        q.map(|q| grid8(&ninfer_formats::tables::IQ2_XXS, _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(q as i64))))
    },
    signs |c| { with_parity(seven_bits(_mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(load64(c, 2))))) },
    factors |c| { odd(_mm512_cvtepi64_epi8(_mm512_srli_epi64::<60>(load64(c, 2)))) }
}
unpack! { Ggml<gguf::Iq2Xs>, Four, natural(true, 0),
    codes |c| {
        [0, 16, 32, 48].map(|i| {
            let q = _mm512_cvtepu16_epi64(load16(at(c, 2 + i)));
            grid8(&ninfer_formats::tables::IQ2_XS, q)
        })
    },
    signs |c| { with_parity(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(load64(c, 2)))) },
    factors |c| { odd(nibbles(*at(c, 66))) }
}
unpack! { Ggml<gguf::Iq2S>, Four, natural(true, 0),
    codes |c| {
        [0, 1, 2, 3].map(|i| {
            let low = _mm512_cvtepu8_epi64(eight(*at(c, 2 + 8 * i)));
            let high = _mm512_srlv_epi64(_mm512_set1_epi64(i64::from(u16_at(c, 66 + 2 * i))), steps(2, 8));
            let high = _mm512_and_si512(high, _mm512_set1_epi64(3));
            grid8(&ninfer_formats::tables::IQ2_S, _mm512_or_si512(low, _mm512_slli_epi64::<8>(high)))
        })
    },
    signs |c| { masks(load32(at(c, 34))) },
    factors |c| { odd(nibbles(*at(c, 74))) }
}
unpack! { Ggml<gguf::Iq3Xxs>, Four, natural(false, 0),
    codes |c| {
        [0, 16, 32, 48].map(|i| {
            grid4(&ninfer_formats::tables::IQ3_XXS, _mm512_cvtepu8_epi32(load16(at(c, 2 + i))))
        })
    },
    signs |c| { with_parity(seven_bits(load32(at(c, 66)))) },
    factors |c| { odd(_mm256_cvtepi32_epi8(_mm256_srli_epi32::<28>(load32(at(c, 66))))) }
}
unpack! { Ggml<gguf::Iq3S>, Four, natural(false, 0),
    codes |c| {
        [0, 1, 2, 3].map(|i| {
            let low = _mm512_cvtepu8_epi32(load16(at(c, 2 + 16 * i)));
            let index = _mm512_mask_or_epi32(low, u16_at(c, 66 + 2 * i), low, _mm512_set1_epi32(256));
            grid4(&ninfer_formats::tables::IQ3_S, index)
        })
    },
    signs |c| { masks(load32(at(c, 74))) },
    factors |c| {
        let s: [u8; 4] = *at(c, 106);
        odd(nibbles([s[0], s[1], s[2], s[3], 0, 0, 0, 0]))
    }
}
unpack! { Ggml<gguf::Iq1S>, Four, natural(false, 9),
    codes |c| {
        let words = load16(at(c, 34));
        [0, 1, 2, 3].map(|i| {
            let (a, b) = (2 * i as i16, 2 * i as i16 + 1);
            let h = spread(words, [a, a, a, a, b, b, b, b]);
            let negative = _mm512_test_epi64_mask(h, _mm512_set1_epi64(0x8000));
            iq1(at(c, 2 + 8 * i), _mm512_srlv_epi64(h, steps(3, 4)), negative)
        })
    },
    factors |c| {
        let s = _mm_and_si128(_mm_srli_epi16::<12>(load16(at(c, 34))), _mm_set1_epi16(7));
        odd(_mm_packus_epi16(s, s))
    }
}
unpack! { Ggml<gguf::Iq1M>, Four, natural(true, 9),
    codes |c| {
        let words = load16(at(c, 32));
        [0, 1, 2, 3].map(|i| {
            let (a, b) = (2 * i as i16, 2 * i as i16 + 1);
            let h = _mm512_srlv_epi64(spread(words, [a, a, a, a, b, b, b, b]), steps(4, 4));
            let negative = _mm512_test_epi64_mask(h, _mm512_set1_epi64(8));
            iq1(at(c, 8 * i), h, negative)
        })
    },
    factors |c| { sixteen(&gguf::Iq1M::factors(at::<56>(c, 0)).scale) }
}
