//! Loads, stores and small steps shared by the kernels of this token. Unsafe code is confined to the accesses.

use std::arch::aarch64::*;

pub(crate) use crate::arch::decoders::{at, u16_at, u32_at};

use crate::isa::neon_entry;

/// Bit of each lane within the byte that holds the bits of eight lanes.
static BIT_OF_LANE: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
/// Byte of each lane among the bytes of bits: of the first sixteen lanes, then of the next.
static BYTE_OF_LANE: [[u8; 16]; 2] =
    [[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]];

/// Where the bytes of four codes go: to the top bytes of four words, the rest zeros.
static TOP_BYTES: [[u8; 16]; 4] = [top_bytes(0), top_bytes(4), top_bytes(8), top_bytes(12)];

const fn top_bytes(first: u8) -> [u8; 16] {
    // Places past the vector give zeros.
    let mut out = [255; 16];
    let mut i = 0;
    while i < 4 {
        out[4 * i + 3] = first + i as u8;
        i += 1;
    }
    out
}

/// Where the values of a block go, sixteen at a time and in increasing order: those of one row into memory, or of
/// several rows, whose blocks are decoded side by side, into sums.
pub(crate) trait Runs {
    /// Takes the values `16 * i..` of the block of row `r`.
    fn put(&mut self, r: usize, i: usize, v: [float32x4_t; 4]);
}

impl<const N: usize> Runs for [f32; N] {
    #[inline(always)]
    fn put(&mut self, _r: usize, i: usize, v: [float32x4_t; 4]) {
        let out = self.as_chunks_mut::<16>().0[i].as_chunks_mut::<4>().0;
        for (out, v) in out.iter_mut().zip(v) {
            // SAFETY: Advanced SIMD is part of the AArch64 baseline.
            unsafe { store(out, v) }
        }
    }
}

neon_entry! {
    /// Four binary32 values.
    #[inline]
    pub(crate) fn load_f32(values: &[f32; 4]) -> float32x4_t {
        // SAFETY: reads the 16 bytes of `values`; the instruction needs no alignment.
        unsafe { vld1q_f32(values.as_ptr()) }
    }

    /// Writes four binary32 values.
    #[inline]
    pub(crate) fn store(out: &mut [f32; 4], v: float32x4_t) {
        // SAFETY: writes the 16 bytes of `out`; the instruction needs no alignment.
        unsafe { vst1q_f32(out.as_mut_ptr(), v) }
    }

    /// 16 bytes.
    #[inline]
    pub(crate) fn load16(bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: reads the 16 bytes of `bytes`; the instruction needs no alignment.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    /// 16 signed bytes.
    #[inline]
    pub(crate) fn load16_signed(bytes: &[i8; 16]) -> int8x16_t {
        // SAFETY: reads the 16 bytes of `bytes`; the instruction needs no alignment.
        unsafe { vld1q_s8(bytes.as_ptr()) }
    }

    /// 8 bytes.
    #[inline]
    pub(crate) fn load8(bytes: &[u8; 8]) -> uint8x8_t {
        // SAFETY: reads the 8 bytes of `bytes`; the instruction needs no alignment.
        unsafe { vld1_u8(bytes.as_ptr()) }
    }

    /// Four 32-bit integers.
    #[inline]
    pub(crate) fn load_i32(values: &[i32; 4]) -> int32x4_t {
        // SAFETY: reads the 16 bytes of `values`; the instruction needs no alignment.
        unsafe { vld1q_s32(values.as_ptr()) }
    }

    /// Four binary16 words to binary32, exactly.
    #[inline]
    pub(crate) fn from_halves(words: uint16x4_t) -> float32x4_t {
        vcvt_f32_f16(vreinterpret_f16_u16(words))
    }

    /// Rounds four binary32 values to binary16 words, nearest-even.
    #[inline]
    pub(crate) fn to_halves(v: float32x4_t) -> uint16x4_t {
        vreinterpret_u16_f16(vcvt_f16_f32(v))
    }

    /// The first lane.
    #[inline]
    pub(crate) fn lane_0(v: float32x4_t) -> f32 {
        vgetq_lane_f32::<0>(v)
    }

    /// A binary16 word to four lanes of binary32, exactly.
    #[inline]
    pub(crate) fn halves(word: u16) -> float32x4_t {
        from_halves(vdup_n_u16(word))
    }

    /// Sixteen signed bytes, taken with 2 to the power `fraction` (0, 2 or 4), as four vectors of binary32, in order. A byte
    /// at the top of a word is a number with 24 more fraction bits, which the conversion takes off.
    #[inline]
    pub(crate) fn widen_fraction(codes: int8x16_t, fraction: i32) -> [float32x4_t; 4] {
        four!(I => {
            let v = vreinterpretq_s32_s8(vqtbl1q_s8(codes, load16(&TOP_BYTES[I])));
            match fraction {
                2 => vcvtq_n_f32_s32::<26>(v),
                4 => vcvtq_n_f32_s32::<28>(v),
                _ => vcvtq_n_f32_s32::<24>(v),
            }
        })
    }

    /// Sixteen signed bytes as four vectors of binary32, in order.
    #[inline]
    pub(crate) fn widen(codes: int8x16_t) -> [float32x4_t; 4] {
        widen_fraction(codes, 0)
    }

    /// 32 signed codes times one scale, to the runs from `first` on of row `r`.
    #[inline]
    pub(crate) fn scaled(codes: [int8x16_t; 2], d: float32x4_t, r: usize, first: usize, out: &mut impl Runs) {
        two!(I => {
            let v = widen(codes[I]);
            out.put(r, first + I, four!(Q => vmulq_f32(d, v[Q])));
        });
    }

    /// Low nibbles of sixteen bytes, then their high nibbles.
    #[inline]
    pub(crate) fn nibbles(bytes: &[u8; 16]) -> [uint8x16_t; 2] {
        let q = load16(bytes);
        [vandq_u8(q, vdupq_n_u8(15)), vshrq_n_u8::<4>(q)]
    }

    /// Nibbles of sixteen bytes in turn, the low one of each byte first.
    #[inline]
    pub(crate) fn interleaved_nibbles(bytes: &[u8; 16]) -> [uint8x16_t; 2] {
        let [low, high] = nibbles(bytes);
        [vzip1q_u8(low, high), vzip2q_u8(low, high)]
    }

    /// The four two-bit fields of every byte, the lowest first.
    #[inline]
    pub(crate) fn fields(q: uint8x16_t) -> [uint8x16_t; 4] {
        let three = vdupq_n_u8(3);
        [
            vandq_u8(q, three),
            vandq_u8(vshrq_n_u8::<2>(q), three),
            vandq_u8(vshrq_n_u8::<4>(q), three),
            vshrq_n_u8::<6>(q),
        ]
    }

    /// Two-bit fields of eight bytes in turn, the lowest of each byte first.
    #[inline]
    pub(crate) fn two_bits(bytes: &[u8; 8]) -> [uint8x16_t; 2] {
        let q = load8(bytes);
        let [a, b, c, d] = fields(vcombine_u8(q, q));
        let (ab, cd) = (vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip1q_u8(c, d)));
        [vreinterpretq_u8_u16(vzip1q_u16(ab, cd)), vreinterpretq_u8_u16(vzip2q_u16(ab, cd))]
    }

    /// Bytes of all ones where the two have a bit in common. The intrinsic is taken apart by the compiler, which then
    /// selects between a value and its negative in four instructions instead of two.
    #[inline]
    pub(crate) fn any_bit(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        let out;
        // SAFETY: reads and writes the named registers.
        unsafe {
            std::arch::asm!("cmtst {0:v}.16b, {1:v}.16b, {2:v}.16b", out(vreg) out, in(vreg) a, in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    /// Bytes of all ones where the bit of the lane is set.
    #[inline]
    pub(crate) fn bits(bytes: [u8; 4]) -> [uint8x16_t; 2] {
        let word = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(bytes)));
        let bit = load16(&BIT_OF_LANE);
        two!(I => any_bit(vqtbl1q_u8(word, load16(&BYTE_OF_LANE[I])), bit))
    }

    /// Codes less an offset.
    #[inline]
    pub(crate) fn minus(codes: [uint8x16_t; 2], offset: i8) -> [int8x16_t; 2] {
        let offset = vdupq_n_s8(offset);
        [
            vsubq_s8(vreinterpretq_s8_u8(codes[0]), offset),
            vsubq_s8(vreinterpretq_s8_u8(codes[1]), offset),
        ]
    }

    /// Two's complement of a narrower width, whose sign bit is `sign`, to bytes.
    #[inline]
    pub(crate) fn signed(codes: [uint8x16_t; 2], sign: u8) -> [int8x16_t; 2] {
        let s = vdupq_n_u8(sign);
        minus([veorq_u8(codes[0], s), veorq_u8(codes[1], s)], sign.cast_signed())
    }

    /// `a | b`, run by run.
    #[inline]
    pub(crate) fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
        [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])]
    }
}
