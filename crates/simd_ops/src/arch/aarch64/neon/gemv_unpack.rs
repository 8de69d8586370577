//! Unpacking of pairs of blocks of 32 values to bytes, format by format.

use std::arch::aarch64::*;

use ninfer_formats::codec::gguf::{self, six_bit_scales};
use ninfer_formats::float::e2m1;
use ninfer_formats::tables::{IQ1_TIMES_8, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_VALUES, PARITY_MASKS};

use super::gemv_layout::Place;
use super::prims::{any_bit, at, bits, fields, load8, load16, load16_signed, nibbles, u16_at, u32_at};
use crate::gemv::{Format, Ggml, Grouped, Nvfp4, Planes, half_e4m3_word};
use crate::isa::neon_entry;

/// What the sums of the four vectors of a pair of blocks belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::arch::aarch64) enum Form {
    /// Vectors 0 and 1 to the first block, 2 and 3 to the second.
    Blocks,
    /// A half-block each.
    Halves,
    /// The lower half of every vector to the first block, the upper one to the second.
    Quads,
    /// As `Blocks`, the lower half of a vector to the first half-block, which is a term of its own.
    Terms,
}

/// The order of the values of a pair of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::arch::aarch64) enum Order {
    /// As they are stored.
    Natural,
    /// The even values of a block, then the odd ones.
    Pairs,
    /// Every fourth value of both blocks, from the first on; then from the second on, and so forth.
    Quads,
}

/// A format as these kernels unpack it.
pub(in crate::arch::aarch64) trait Unpack: Format {
    /// See [`Form`].
    const FORM: Form;
    /// See [`Order`].
    const ORDER: Order = Order::Natural;
    /// What was added to the codes.
    const OFFSET: i32 = 0;
    /// Codes are taken times 2 to this power (0, 2 or 4), if [`Self::fraction`] says nothing else.
    const FRACTION: i32 = 0;
    /// Bytes of a unit in the plane of scales.
    const SCALE_BYTES: usize = 0;
    /// Whether both blocks of a pair have the same scale.
    const SHARED: bool = false;
    /// Whether codes are looked up one by one.
    const MANY_LOADS: bool = false;

    /// The power of two that the codes of a block of a unit are taken with.
    #[inline(always)]
    fn fraction(_block: usize) -> i32 {
        Self::FRACTION
    }
    /// Codes of pair `p` of a unit.
    ///
    /// # Safety
    /// The place has the lengths of this format.
    unsafe fn pair(place: &Place<'_>, p: usize) -> [int8x16_t; 4];
    /// Scale word of term or unit `i` of a unit, and the word of the minima.
    #[inline(always)]
    fn words_at(place: &Place<'_>, i: usize) -> [u16; 2] {
        let planes = Planes { codes: place.codes, high: place.high, scales: place.scales };
        Self::words(&planes, i)
    }
    /// Integer factors and minima of the blocks or half-blocks.
    ///
    /// # Safety
    /// As for `pair`.
    unsafe fn factors(_codes: &[u8]) -> [int8x16_t; 2] {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        unsafe { [vdupq_n_s8(0); 2] }
    }
}

/// The signs of a seven-bit index: 1 or -1.
static SIGNS: [[i8; 8]; 128] = {
    let mut out = PARITY_MASKS;
    let mut i = 0;
    while i < 128 * 8 {
        // All ones are -1 as they are.
        out[i / 8][i % 8] |= 1;
        i += 1;
    }
    out
};

/// One more or one less for sixteen values of `iq1_m`, by bits 3 and 7 of the byte that they belong to, from bit 3 on.
static DELTAS: [[i8; 16]; 18] = {
    let mut out = [[1; 16]; 18];
    let mut i = 0;
    while i < 18 * 16 {
        if (i / 16) >> (i % 16 / 8 * 4) & 1 != 0 {
            out[i / 16][i % 16] = -1;
        }
        i += 1;
    }
    out
};

/// The last places of eight runs of eight bytes, then places that give zeros.
static PLACES_OF_8: [u8; 16] = [7, 15, 23, 31, 39, 47, 55, 63, 255, 255, 255, 255, 255, 255, 255, 255];
/// The same of four bytes.
static PLACES_OF_4: [u8; 16] = [3, 7, 11, 15, 19, 23, 27, 31, 255, 255, 255, 255, 255, 255, 255, 255];
/// The bytes of the first two of four words, four times each, and of the others.
static FOUR_TIMES: [[u8; 16]; 2] =
    [[0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3], [4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7]];

/// Bit of each of eight words, in both their bytes.
static BITS_OF_WORDS: [u8; 16] = [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128];

neon_entry! {
    #[inline]
    fn s8(v: uint8x16_t) -> int8x16_t {
        vreinterpretq_s8_u8(v)
    }

    #[inline]
    fn both(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [int8x16_t; 4] {
        [s8(a[0]), s8(a[1]), s8(b[0]), s8(b[1])]
    }

    #[inline]
    fn signed_fields(q: uint8x16_t) -> [int8x16_t; 4] {
        let [a, b, c, d] = fields(q);
        [s8(a), s8(b), s8(c), s8(d)]
    }

    /// 32 bytes.
    #[inline]
    fn load32(bytes: &[u8], from: usize) -> [uint8x16_t; 2] {
        [load16(at(bytes, from)), load16(at(bytes, from + 16))]
    }

    /// Pairs of bytes in turn.
    #[inline]
    fn zip16(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
        let (a, b) = (vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
        [vreinterpretq_u8_u16(vzip1q_u16(a, b)), vreinterpretq_u8_u16(vzip2q_u16(a, b))]
    }

    #[inline]
    fn splat(value: u8) -> uint8x16_t {
        vdupq_n_u8(value)
    }

    #[inline]
    fn low(v: uint8x16_t) -> uint8x16_t {
        vandq_u8(v, splat(15))
    }

    /// `a | b << N`, of `b` only what `mask` holds.
    #[inline]
    fn or_shifted<const N: i32>(a: uint8x16_t, b: uint8x16_t, mask: u8) -> uint8x16_t {
        let b = if N < 0 {
            match N {
                -1 => vshrq_n_u8::<1>(b),
                -2 => vshrq_n_u8::<2>(b),
                -3 => vshrq_n_u8::<3>(b),
                _ => vshrq_n_u8::<4>(b),
            }
        } else {
            match N {
                0 => b,
                1 => vshlq_n_u8::<1>(b),
                2 => vshlq_n_u8::<2>(b),
                3 => vshlq_n_u8::<3>(b),
                _ => vshlq_n_u8::<4>(b),
            }
        };
        vorrq_u8(a, vandq_u8(b, splat(mask)))
    }

    #[inline]
    fn iq4(q: uint8x16_t) -> [int8x16_t; 2] {
        let table = load16_signed(&IQ4_VALUES);
        [vqtbl1q_s8(table, low(q)), vqtbl1q_s8(table, vshrq_n_u8::<4>(q))]
    }

    /// Sixteen values with the signs of two indices.
    #[inline]
    fn signed(grid: int8x16_t, a: usize, b: usize) -> int8x16_t {
        vmulq_s8(grid, eights(&SIGNS[a & 127], &SIGNS[b & 127]))
    }

    /// Negates where the mask is all ones.
    #[inline]
    fn negate(v: int8x16_t, mask: int8x16_t) -> int8x16_t {
        vsubq_s8(veorq_s8(v, mask), mask)
    }

    /// Two entries of eight bytes.
    #[inline]
    fn eights(a: &[i8; 8], b: &[i8; 8]) -> int8x16_t {
        // SAFETY: each reads the eight bytes of its entry.
        unsafe { vcombine_s8(vld1_s8(a.as_ptr()), vld1_s8(b.as_ptr())) }
    }

    /// Four entries of four bytes.
    #[inline]
    fn fours(e: [&[i8; 4]; 4]) -> int8x16_t {
        // SAFETY: each reads the four bytes of its entry.
        let words = four!(I => unsafe { e[I].as_ptr().cast::<u32>().read_unaligned() });
        // SAFETY: reads the 16 bytes of `words`.
        vreinterpretq_s8_u32(unsafe { vld1q_u32(words.as_ptr()) })
    }

    /// `2 s + 1`.
    #[inline]
    fn odd(s: uint8x16_t) -> int8x16_t {
        s8(vorrq_u8(vshlq_n_u8::<1>(s), splat(1)))
    }

    /// Nibbles of eight bytes, the low one of each byte first.
    #[inline]
    fn nibbles_of_8(bytes: [u8; 8]) -> uint8x16_t {
        let q = load8(&bytes);
        let q = vcombine_u8(q, q);
        vzip1q_u8(low(q), vshrq_n_u8::<4>(q))
    }

    #[inline]
    fn k_factors(codes: &[u8]) -> [int8x16_t; 2] {
        let (scale, min) = six_bit_scales(at(codes, 4));
        let eight = |v: [u8; 8]| s8(vcombine_u8(load8(&v), vdup_n_u8(0)));
        [eight(scale), eight(min)]
    }

    /// Four entries of the grid of `iq3_s`.
    #[inline]
    fn entries_of_iq3_s(index: uint16x4_t) -> int8x16_t {
        let entry = |i: u16| &IQ3_S[usize::from(i) & 511];
        fours([
            entry(vget_lane_u16::<0>(index)),
            entry(vget_lane_u16::<1>(index)),
            entry(vget_lane_u16::<2>(index)),
            entry(vget_lane_u16::<3>(index)),
        ])
    }

    /// Two entries of the grid of `iq1_s` and `iq1_m` times eight.
    #[inline]
    fn iq1(a: usize, b: usize) -> int8x16_t {
        eights(&IQ1_TIMES_8[a & 2047], &IQ1_TIMES_8[b & 2047])
    }
}

/// Implements [`Unpack`]. Bodies are unsafe for the intrinsics in them.
macro_rules! unpack {
    ($name:ty, $form:ident $(, $constant:ident $value:expr)*; pair |$c:ident, $p:ident| $pair:block
        $(factors |$fc:ident| $factors:block)? $(fraction |$b:ident| $fraction:expr)?) => {
        impl Unpack for $name {
            const FORM: Form = Form::$form;
            $(const $constant: unpack!(@type $constant) = $value;)*

            #[inline(always)]
            unsafe fn pair($c: &Place<'_>, $p: usize) -> [int8x16_t; 4] {
                // SAFETY: Advanced SIMD is part of the AArch64 baseline.
                unsafe { $pair }
            }

            $(#[inline(always)]
            fn fraction($b: usize) -> i32 {
                $fraction
            })?

            $(#[inline(always)]
            unsafe fn factors($fc: &[u8]) -> [int8x16_t; 2] {
                // SAFETY: Advanced SIMD is part of the AArch64 baseline.
                unsafe { $factors }
            })?
        }
    };
    (@type ORDER) => { Order };
    (@type SHARED) => { bool };
    (@type MANY_LOADS) => { bool };
    (@type SCALE_BYTES) => { usize };
    (@type $other:ident) => { i32 };
}

unpack! { Ggml<gguf::Q8_0>, Blocks; pair |c, p| {
    both(load32(c.codes, 68 * p + 2), load32(c.codes, 68 * p + 36))
} }
unpack! { Grouped<8, 32, false>, Blocks, SCALE_BYTES 16; pair |c, p| {
    both(load32(c.codes, 64 * p), load32(c.codes, 64 * p + 32))
} }
unpack! { Ggml<gguf::Q4_0>, Blocks, OFFSET 8; pair |c, p| {
    both(nibbles(at(c.codes, 36 * p + 2)), nibbles(at(c.codes, 36 * p + 20)))
} }
unpack! { Ggml<gguf::Iq4Nl>, Blocks; pair |c, p| {
    let [a, b] = iq4(load16(at(c.codes, 36 * p + 2)));
    let [c, d] = iq4(load16(at(c.codes, 36 * p + 20)));
    [a, b, c, d]
} }
unpack! { Ggml<gguf::Iq4Xs>, Blocks;
    pair |c, p| {
        let [q, r] = load32(c.codes, 8 + 32 * p);
        let ([a, b], [c, d]) = (iq4(q), iq4(r));
        [a, b, c, d]
    }
    factors |c| {
        let sl: [u8; 4] = *at(c, 4);
        let low = nibbles_of_8([sl[0], sl[1], sl[2], sl[3], 0, 0, 0, 0]);
        // Two bits of each block, to the bytes.
        let h = vdupq_n_u16(u16_at(c, 2));
        let shifts = [0, -2, -4, -6, -8, -10, -12, -14];
        let h = vmovn_u16(vshlq_u16(h, vld1q_s16(shifts.as_ptr())));
        let h = vshl_n_u8::<4>(vand_u8(h, vdup_n_u8(3)));
        let scale = vorrq_u8(low, vcombine_u8(h, vdup_n_u8(0)));
        [vsubq_s8(s8(scale), vdupq_n_s8(32)), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Q5_0>, Blocks, OFFSET 16; pair |c, p| {
    let [a, b] = two!(B => {
        let fifth = bits(*at(c.codes, 44 * p + 22 * B + 2));
        let q = nibbles(at(c.codes, 44 * p + 22 * B + 6));
        [or_shifted::<0>(q[0], fifth[0], 16), or_shifted::<0>(q[1], fifth[1], 16)]
    });
    both(a, b)
} }
unpack! { Ggml<gguf::Q2_0>, Quads, ORDER Order::Quads, OFFSET 1, SHARED true; pair |c, p| {
    signed_fields(load16(at(c.codes, 18 * p + 2)))
} }
unpack! { Grouped<2, 64, true>, Quads, ORDER Order::Quads, OFFSET 1, SCALE_BYTES 8, SHARED true; pair |c, p| {
    signed_fields(load16(at(c.codes, 16 * p)))
} }
unpack! { Grouped<2, 128, false>, Quads, ORDER Order::Quads, OFFSET 2, SCALE_BYTES 4, SHARED true; pair |c, p| {
    // Two's complement plus 2: the upper bit flipped.
    signed_fields(veorq_u8(load16(at(c.codes, 16 * p)), splat(0xaa)))
} }
unpack! { Grouped<4, 64, false>, Blocks, ORDER Order::Pairs, FRACTION 4, SCALE_BYTES 8, SHARED true; pair |c, p| {
    // A nibble in the upper half of a byte is sixteen times its value.
    let [q, r] = load32(c.codes, 32 * p);
    let upper = splat(0xf0);
    both([vshlq_n_u8::<4>(q), vandq_u8(q, upper)], [vshlq_n_u8::<4>(r), vandq_u8(r, upper)])
} }
impl Unpack for Nvfp4 {
    const FORM: Form = Form::Terms;
    const ORDER: Order = Order::Pairs;
    const SCALE_BYTES: usize = 16;

    #[inline(always)]
    unsafe fn pair(c: &Place<'_>, p: usize) -> [int8x16_t; 4] {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        unsafe {
            let [q, r] = load32(c.codes, 32 * p);
            let table = load16_signed(&e2m1::DOUBLED);
            let v = [low(q), vshrq_n_u8::<4>(q), low(r), vshrq_n_u8::<4>(r)];
            four!(I => vqtbl1q_s8(table, v[I]))
        }
    }

    #[inline(always)]
    fn words_at(place: &Place<'_>, i: usize) -> [u16; 2] {
        // The driver has put the scales of a unit side by side.
        [half_e4m3_word(place.scales[i]), 0]
    }
}
unpack! { Grouped<5, 64, false>, Blocks, SCALE_BYTES 8, SHARED true; pair |c, p| {
    let [a, b] = two!(B => {
        let q = load16(at(c.codes, 16 * (2 * p + B)));
        let high = vshrq_n_u8::<4>(q);
        // The fifth bit is the sign: it fills the upper half of the byte.
        let fifth = bits(*at(c.high, 4 * (2 * p + B)));
        let lower = splat(15);
        [vbslq_u8(lower, vzip1q_u8(q, high), fifth[0]), vbslq_u8(lower, vzip2q_u8(q, high), fifth[1])]
    });
    both(a, b)
} }
unpack! { Grouped<6, 64, false>, Blocks, FRACTION 2, SCALE_BYTES 8, SHARED true; pair |c, p| {
    // Two high bits of each value at the top of a byte, the nibble below them: four times the value.
    let t = load16(at(c.high, 16 * p));
    let (f0, f1, f2) = (vshlq_n_u8::<6>(t), vshlq_n_u8::<4>(t), vshlq_n_u8::<2>(t));
    let (ab, cd) = (vzip1q_u8(f0, f1), vzip1q_u8(f2, t));
    let (ef, gh) = (vzip2q_u8(f0, f1), vzip2q_u8(f2, t));
    let tops = [zip16(ab, cd), zip16(ef, gh)];
    let q = load32(c.codes, 32 * p);
    let [a, b] = two!(B => {
        let (even, odd) = (vshlq_n_u8::<4>(q[B]), vandq_u8(q[B], splat(0xf0)));
        [
            vsriq_n_u8::<2>(tops[B][0], vzip1q_u8(even, odd)),
            vsriq_n_u8::<2>(tops[B][1], vzip2q_u8(even, odd)),
        ]
    });
    both(a, b)
} }
unpack! { Ggml<gguf::Q2K>, Halves;
    pair |c, p| {
        // Where they are in their bytes, but for the last, which would take the sign.
        let q = load32(c.codes, 16 + p / 2 * 32);
        if p.is_multiple_of(2) {
            let (first, second) = (splat(3), splat(12));
            both(two!(H => vandq_u8(q[H], first)), two!(H => vandq_u8(q[H], second)))
        } else {
            let third = splat(0x30);
            both(two!(H => vandq_u8(q[H], third)), two!(H => vshrq_n_u8::<6>(q[H])))
        }
    }
    factors |c| {
        let s = load16(at(c, 0));
        [s8(low(s)), s8(vshrq_n_u8::<4>(s))]
    }
    fraction |block| [0, 2, 4, 0][block % 4]
}
unpack! { Ggml<gguf::Q3K>, Halves, OFFSET 64, FRACTION 4;
    pair |c, p| {
        // Bit 2 p or 2 p + 1 of the high bits at bit 6, the field below it: sixteen times the code.
        let (q, hm) = (load32(c.codes, 32 + p / 2 * 32), load32(c.codes, 0));
        let [[a, c], [b, d]] = two!(H => {
            let (q, hm) = (q[H], hm[H]);
            let (a, b) = if p.is_multiple_of(2) {
                (vshlq_n_u8::<6>(q), vshlq_n_u8::<4>(q))
            } else {
                (vshlq_n_u8::<2>(q), q)
            };
            let (c, d) = match p {
                0 => (vshlq_n_u8::<6>(hm), vshlq_n_u8::<5>(hm)),
                1 => (vshlq_n_u8::<4>(hm), vshlq_n_u8::<3>(hm)),
                2 => (vshlq_n_u8::<2>(hm), vshlq_n_u8::<1>(hm)),
                _ => (hm, vshrq_n_u8::<1>(hm)),
            };
            let seventy = splat(0x70);
            [vandq_u8(vsriq_n_u8::<2>(c, a), seventy), vandq_u8(vsriq_n_u8::<2>(d, b), seventy)]
        });
        both([a, b], [c, d])
    }
    factors |c| {
        // Nibbles of eight bytes, and two bits of four bytes above each group of four.
        let q = load8(at(c, 96));
        let nibbles = vcombine_u8(vand_u8(q, vdup_n_u8(15)), vshr_n_u8::<4>(q));
        let shifts = [4, 2, 0, -2];
        let high = vshlq_u32(vdupq_n_u32(u32_at(c, 104)), vld1q_s32(shifts.as_ptr()));
        let s = vorrq_u8(nibbles, vandq_u8(vreinterpretq_u8_u32(high), splat(0x30)));
        [vsubq_s8(s8(s), vdupq_n_s8(32)), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Q4K>, Blocks;
    pair |c, p| {
        let [q, r] = load32(c.codes, 16 + 32 * p);
        both([low(q), low(r)], [vshrq_n_u8::<4>(q), vshrq_n_u8::<4>(r)])
    }
    factors |c| { k_factors(c) }
}
unpack! { Ggml<gguf::Q5K>, Blocks;
    pair |c, p| {
        let (q, qh) = (load32(c.codes, 48 + 32 * p), load32(c.codes, 16));
        let [[a, c], [b, d]] = two!(H => {
            let (a, b) = (low(q[H]), vshrq_n_u8::<4>(q[H]));
            // Bits 2 p and 2 p + 1, to bit 4.
            match p {
                0 => [or_shifted::<4>(a, qh[H], 16), or_shifted::<3>(b, qh[H], 16)],
                1 => [or_shifted::<2>(a, qh[H], 16), or_shifted::<1>(b, qh[H], 16)],
                2 => [or_shifted::<0>(a, qh[H], 16), or_shifted::<-1>(b, qh[H], 16)],
                _ => [or_shifted::<-2>(a, qh[H], 16), or_shifted::<-3>(b, qh[H], 16)],
            }
        });
        both([a, b], [c, d])
    }
    factors |c| { k_factors(c) }
}
unpack! { Ggml<gguf::Q6K>, Halves, OFFSET 32;
    pair |c, p| {
        let q = load32(c.codes, p / 2 * 64);
        let r = load32(c.codes, p / 2 * 64 + 32);
        let h = load32(c.codes, 128 + p / 2 * 32);
        if p.is_multiple_of(2) {
            both(
                two!(I => or_shifted::<4>(low(q[I]), h[I], 0x30)),
                two!(I => or_shifted::<2>(low(r[I]), h[I], 0x30)),
            )
        } else {
            both(
                two!(I => or_shifted::<0>(vshrq_n_u8::<4>(q[I]), h[I], 0x30)),
                two!(I => or_shifted::<-2>(vshrq_n_u8::<4>(r[I]), h[I], 0x30)),
            )
        }
    }
    factors |c| { [s8(load16(at(c, 192))), vdupq_n_s8(0)] }
}
unpack! { Ggml<gguf::Iq2Xxs>, Blocks, MANY_LOADS true;
    pair |c, p| {
        four!(H => {
            let (b, i) = (2 * p + H / 2, H % 2 * 2);
            let record: &[u8; 8] = at(c.codes, 2 + 8 * b);
            let a = u32_at(record, 4) >> (7 * i);
            let grid = eights(&IQ2_XXS[usize::from(record[i])], &IQ2_XXS[usize::from(record[i + 1])]);
            signed(grid, a as usize, (a >> 7) as usize)
        })
    }
    factors |c| {
        // The last of every eight bytes: twice its upper half plus one.
        let bytes: &[u8; 64] = at(c, 2);
        let last = vqtbl4q_u8(vld1q_u8_x4(bytes.as_ptr()), load16(&PLACES_OF_8));
        [s8(vorrq_u8(vshrq_n_u8::<3>(last), splat(1))), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Iq2Xs>, Halves, MANY_LOADS true;
    pair |c, p| {
        four!(H => {
            // Two words of nine bits of grid and seven of signs, of four that are read at once.
            let four = u64::from_le_bytes(*at(c.codes, 2 + 16 * p + H / 2 * 8)) >> (H % 2 * 32);
            let grid = eights(&IQ2_XS[four as usize & 511], &IQ2_XS[(four >> 16) as usize & 511]);
            signed(grid, (four >> 9) as usize, (four >> 25) as usize)
        })
    }
    factors |c| { [odd(nibbles_of_8(*at(c, 66))), vdupq_n_s8(0)] }
}
unpack! { Ggml<gguf::Iq2S>, Halves, MANY_LOADS true;
    pair |c, p| {
        let masks = two!(B => bits(*at(c.codes, 34 + 8 * p + 4 * B)));
        four!(H => {
            let q: &[u8; 2] = at(c.codes, 2 + 8 * p + 2 * H);
            let high = usize::from(c.codes[66 + 2 * p + H / 2]) >> (H % 2 * 4);
            let a = &IQ2_S[usize::from(q[0]) | (high & 3) << 8];
            let b = &IQ2_S[usize::from(q[1]) | (high >> 2 & 3) << 8];
            negate(eights(a, b), s8(masks[H / 2][H % 2]))
        })
    }
    factors |c| { [odd(nibbles_of_8(*at(c, 74))), vdupq_n_s8(0)] }
}
unpack! { Ggml<gguf::Iq3Xxs>, Blocks, MANY_LOADS true;
    pair |c, p| {
        four!(H => {
            let q: &[u8; 4] = at(c.codes, 2 + 16 * p + 4 * H);
            let a = u32_at(c.codes, 66 + 8 * p + H / 2 * 4) >> (H % 2 * 14);
            let grid = fours(four!(I => &IQ3_XXS[usize::from(q[I])]));
            signed(grid, a as usize, (a >> 7) as usize)
        })
    }
    factors |c| {
        // The last of every four bytes: twice its upper half plus one.
        let bytes: &[u8; 32] = at(c, 66);
        let last = vqtbl2q_u8(vld1q_u8_x2(bytes.as_ptr()), load16(&PLACES_OF_4));
        [s8(vorrq_u8(vshrq_n_u8::<3>(last), splat(1))), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Iq3S>, Blocks, MANY_LOADS true;
    pair |c, p| {
        let [a, b] = two!(B => {
            let b = 2 * p + B;
            // The high bit of each of the eight codes, to bit 8.
            let q = vmovl_u8(load8(at(c.codes, 2 + 8 * b)));
            let high = splat(c.codes[66 + b]);
            let high = vreinterpretq_u16_u8(any_bit(high, load16(&BITS_OF_WORDS)));
            let index = vorrq_u16(q, vandq_u16(high, vdupq_n_u16(256)));
            let [m, n] = bits(*at(c.codes, 74 + 4 * b));
            let (low, high) = (entries_of_iq3_s(vget_low_u16(index)), entries_of_iq3_s(vget_high_u16(index)));
            [negate(low, s8(m)), negate(high, s8(n))]
        });
        [a[0], a[1], b[0], b[1]]
    }
    factors |c| {
        let s: [u8; 4] = *at(c, 106);
        [odd(nibbles_of_8([s[0], s[1], s[2], s[3], 0, 0, 0, 0])), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Iq1S>, Blocks, MANY_LOADS true;
    pair |c, p| {
        four!(H => {
            let q: &[u8; 2] = at(c.codes, 2 + 8 * p + 2 * H);
            let high = usize::from(u16_at(c.codes, 34 + 4 * p + H / 2 * 2));
            let bits = high >> (H % 2 * 6);
            let grid = iq1(usize::from(q[0]) | (bits & 7) << 8, usize::from(q[1]) | (bits >> 3 & 7) << 8);
            vaddq_s8(grid, vdupq_n_s8(if high >> 15 != 0 { -1 } else { 1 }))
        })
    }
    factors |c| {
        let s = vandq_u16(vshrq_n_u16::<12>(vreinterpretq_u16_u8(load16(at(c, 34)))), vdupq_n_u16(7));
        [odd(vcombine_u8(vmovn_u16(s), vdup_n_u8(0))), vdupq_n_s8(0)]
    }
}
unpack! { Ggml<gguf::Iq1M>, Halves, MANY_LOADS true;
    pair |c, p| {
        four!(H => {
            let q: &[u8; 2] = at(c.codes, 8 * p + 2 * H);
            let high = usize::from(c.codes[32 + 4 * p + H]);
            let grid = iq1(usize::from(q[0]) | (high & 7) << 8, usize::from(q[1]) | (high >> 4 & 7) << 8);
            vaddq_s8(grid, load16_signed(&DELTAS[high >> 3 & 17]))
        })
    }
    factors |c| {
        // Four fields of three bits in each word.
        let words = vcombine_u8(load8(at(c, 48)), vdup_n_u8(0));
        let shifts = [0, -3, -6, -9, 0, -3, -6, -9];
        let shifts = vld1q_s16(shifts.as_ptr());
        let [a, b] = two!(I => {
            let four = vqtbl1q_u8(words, load16(&FOUR_TIMES[I]));
            vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(four), shifts))
        });
        [odd(vandq_u8(vuzp1q_u8(a, b), splat(7))), vdupq_n_s8(0)]
    }
}
