//! A8 products of one or a few columns: see [`crate::gemv`]. Values keep their natural order.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;
use ninfer_formats::codec::gguf::Block;
use ninfer_formats::float::e2m1;

use super::prims::{at, bits, interleaved_nibbles, load_f32, load16, load32, store, two_bits};
use crate::gemv::{
    Factors, Format, Ggml, Grouped, MOST, Memory, Nvfp4, Order, ROWS, Scales, Shape, Unit, in_order,
    unit_bytes,
};
use crate::isa::avx2_entry;
use crate::kernels::Scratch;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

const ORDER: Order = Order { source: in_order(), halves: [0; 16], split: true, offset: 0 };

/// A format as the kernel unpacks it.
pub(super) trait Unpack: Format {
    /// Signed codes of block `b` of a unit.
    ///
    /// # Safety
    /// The machine must have the token's features. The slices have the lengths of [`Format::BYTES`].
    unsafe fn codes(codes: &[u8], high: &[u8], b: usize) -> __m256i;
    /// Integer factors and minima of the half-blocks.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn factors(_codes: &[u8]) -> ([i8; 16], [i8; 16]) {
        ([1; 16], [0; 16])
    }
}

impl<B: Block> Unpack for Ggml<B>
where
    Self: Format,
{
    avx2_entry! {
        #[inline]
        unsafe fn codes(codes: &[u8], _high: &[u8], b: usize) -> __m256i {
            load_codes(&B::codes(&B::blocks(codes)[b / B::SUBS], b % B::SUBS))
        }
        #[inline]
        unsafe fn factors(codes: &[u8]) -> ([i8; 16], [i8; 16]) {
            let f = B::factors(&B::blocks(codes)[0]);
            (f.scale, f.min)
        }
    }
}

impl<const BITS: usize, const GROUP: usize, const OFFSET: bool> Unpack for Grouped<BITS, GROUP, OFFSET> {
    avx2_entry! {
        #[inline]
        unsafe fn codes(codes: &[u8], high: &[u8], b: usize) -> __m256i {
            // Two's complement of fewer bits: the sign bit flipped, then its weight taken off.
            let signed = |q, sign: i8| {
                let sign = _mm256_set1_epi8(sign);
                _mm256_sub_epi8(_mm256_xor_si256(q, sign), sign)
            };
            match BITS {
                2 => {
                    let q = two_bits(at(codes, 8 * b));
                    if OFFSET { _mm256_sub_epi8(q, _mm256_set1_epi8(1)) } else { signed(q, 2) }
                }
                4 => signed(interleaved_nibbles(at(codes, 16 * b)), 8),
                5 => {
                    let q = interleaved_nibbles(at(codes, 16 * b));
                    let h = bits(u32::from_le_bytes(*at(high, 4 * b)));
                    signed(_mm256_or_si256(q, _mm256_and_si256(h, _mm256_set1_epi8(16))), 16)
                }
                6 => {
                    let q = interleaved_nibbles(at(codes, 16 * b));
                    let h = _mm256_slli_epi16::<4>(two_bits(at(high, 8 * b)));
                    signed(_mm256_or_si256(q, h), 32)
                }
                _ => load32(at(codes, 32 * b)),
            }
        }
    }
}

impl Unpack for Nvfp4 {
    avx2_entry! {
        #[inline]
        unsafe fn codes(codes: &[u8], _high: &[u8], b: usize) -> __m256i {
            let table = e2m1::DOUBLED.map(|v| v as u8);
            let table = _mm256_broadcastsi128_si256(load16(&table));
            _mm256_shuffle_epi8(table, interleaved_nibbles(at(codes, 16 * b)))
        }
    }
}

avx2_entry! {
    /// See [`crate::kernels::A8Fn`].
    pub(super) fn columns<S: Unpack>(
        view: &TensorView<'_>,
        x: &Q8_1,
        columns: Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        let memory = &mut scratch.gemv;
        let mut order = ORDER;
        // Lanes are half-blocks in two groups: first halves, then second halves.
        for (i, half) in order.halves.iter_mut().enumerate() {
            *half = (i % 8 * 2 + i / 8) as u8;
        }
        let shape = memory.prepare::<S>(x, columns.clone(), &order);
        for first in (0..view.rows()).step_by(ROWS) {
            let rows = (view.rows() - first).min(ROWS);
            for r in 0..rows {
                row::<S>(view, first + r, r, memory, shape);
            }
            for (i, t) in columns.clone().enumerate() {
                let mut lanes = [0.0; ROWS];
                for (half, lanes) in lanes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    store(lanes, chains::<S>(memory, shape, i, half));
                }
                if S::TERMS == 16 {
                    for (r, y) in lanes[..rows].iter_mut().enumerate() {
                        *y /= f32::from_bits(S::divisor(&view.row(first + r)));
                    }
                }
                out.column(t)[first..first + rows].copy_from_slice(&lanes[..rows]);
            }
        }
    }

    #[inline]
    fn load_codes(codes: &[i8; 32]) -> __m256i {
        // SAFETY: reads the 32 bytes of `codes`.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    }

    /// Sums of four neighbours, in 32-bit lanes. Magnitudes are at most 128 and 127: a pair of products is at most
    /// 32,512, which 16 bits hold.
    #[inline]
    fn dot(w: __m256i, x: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }

    /// Sums of the first and of the second halves of eight blocks.
    #[inline]
    fn halves(w: &[__m256i; 8], x: &Unit) -> [__m256i; 2] {
        let mut v = [_mm256_setzero_si256(); 8];
        for (v, (&w, x)) in v.iter_mut().zip(w.iter().zip(x.codes.as_chunks().0)) {
            *v = dot(w, load_codes(x));
        }
        let four = |i: usize| {
            _mm256_hadd_epi32(_mm256_hadd_epi32(v[i], v[i + 1]), _mm256_hadd_epi32(v[i + 2], v[i + 3]))
        };
        let (a, b) = (four(0), four(4));
        [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
    }

    /// Every other byte, from `from` on, as binary32.
    #[inline]
    fn alternate(values: &[i8; 16], from: usize) -> __m256 {
        let mut out = [0.0; 8];
        for (i, out) in out.iter_mut().enumerate() {
            *out = f32::from(values[2 * i + from]);
        }
        load_f32(&out)
    }

    /// The first pass over row `r` of a tile.
    #[inline]
    fn row<S: Unpack>(view: &TensorView<'_>, at: usize, r: usize, memory: &mut Memory, shape: Shape) {
        let planes = S::planes(&view.row(at));
        let [bytes, high_bytes] = S::BYTES;
        let runs = shape.units * (S::TERMS / 8);
        let mut room = [[0; MOST]; 2];
        let [room_a, room_b] = &mut room;
        for u in 0..shape.units {
            let codes = unit_bytes(planes.codes, u, bytes, room_a);
            let high = unit_bytes(planes.high, u, high_bytes, room_b);
            let mut w = [_mm256_setzero_si256(); 8];
            for (b, w) in w.iter_mut().enumerate() {
                // SAFETY: this function is compiled for the token's features, so they are there; the slices have
                // the lengths of `S::BYTES`.
                *w = unsafe { S::codes(codes, high, b) };
            }
            // SAFETY: as above.
            let (factors, minima) = unsafe { S::factors(codes) };
            let factors = [alternate(&factors, 0), alternate(&factors, 1)];
            let minima = [alternate(&minima, 0), alternate(&minima, 1)];
            for t in 0..shape.columns {
                let x = &memory.x[t * shape.units + u];
                let sums = halves(&w, x);
                if S::TERMS == 16 {
                    let (low, high) = (_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1]));
                    let (a, b) = (_mm256_unpacklo_ps(low, high), _mm256_unpackhi_ps(low, high));
                    let run = t * runs + 2 * u;
                    store(&mut memory.sums[run][r], _mm256_permute2f128_ps::<0x20>(a, b));
                    store(&mut memory.sums[run + 1][r], _mm256_permute2f128_ps::<0x31>(a, b));
                    continue;
                }
                let sum = if S::FACTORS == Factors::Halves {
                    let low = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[0]), factors[0]);
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[1]), factors[1], low)
                } else {
                    let sum = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], sums[1]));
                    if S::FACTORS == Factors::Whole { _mm256_mul_ps(sum, factors[0]) } else { sum }
                };
                store(&mut memory.sums[t * runs + u][r], sum);
                if S::MINIMUM {
                    let [low, high] = [0, 1].map(|i| load_f32(&x.sums.as_chunks::<8>().0[i]));
                    let sum = _mm256_fmadd_ps(high, minima[1], _mm256_mul_ps(low, minima[0]));
                    store(&mut memory.minima[t * runs + u][r], sum);
                }
            }
        }
        memory.place_words::<S>(&planes, r);
    }

    /// Eight terms of eight rows, to eight vectors of eight rows.
    #[inline]
    fn turn(rows: &[[f32; 8]]) -> [__m256; 8] {
        let mut v = [_mm256_setzero_ps(); 8];
        for (v, row) in v.iter_mut().zip(rows) {
            *v = load_f32(row);
        }
        let four = |a, b, c, d| {
            let (ab0, ab1) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            [
                _mm256_shuffle_ps::<0x44>(ab0, cd0),
                _mm256_shuffle_ps::<0xee>(ab0, cd0),
                _mm256_shuffle_ps::<0x44>(ab1, cd1),
                _mm256_shuffle_ps::<0xee>(ab1, cd1),
            ]
        };
        let (p, q) = (four(v[0], v[1], v[2], v[3]), four(v[4], v[5], v[6], v[7]));
        for j in 0..4 {
            v[j] = _mm256_permute2f128_ps::<0x20>(p[j], q[j]);
            v[j + 4] = _mm256_permute2f128_ps::<0x31>(p[j], q[j]);
        }
        v
    }

    #[inline]
    fn scales<S: Unpack>(words: &[u16; ROWS], half: usize) -> __m256 {
        let words: &[u16; 8] = &words.as_chunks().0[half];
        // SAFETY: reads the 16 bytes of `words`.
        let v = _mm256_cvtph_ps(unsafe { _mm_loadu_si128(words.as_ptr().cast()) });
        if S::POWER == 1.0 { v } else { _mm256_mul_ps(v, _mm256_set1_ps(S::POWER)) }
    }

    /// The second pass, for column `t` of the call and one half of the tile's rows.
    #[inline]
    fn chains<S: Unpack>(memory: &Memory, shape: Shape, t: usize, half: usize) -> __m256 {
        let runs = shape.units * (S::TERMS / 8);
        let (mut acc, mut m) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        let d_x = &memory.d_x[t * shape.terms..(t + 1) * shape.terms];
        for (run, d_x) in d_x.chunks(8).enumerate() {
            let sums = turn(&memory.sums[t * runs + run][8 * half..8 * half + 8]);
            let minima =
                if S::MINIMUM { turn(&memory.minima[t * runs + run][8 * half..8 * half + 8]) } else { sums };
            for (i, &d_x) in d_x.iter().enumerate() {
                let at = if S::SCALES == Scales::Unit { run } else { 8 * run + i };
                let d_x = _mm256_set1_ps(d_x);
                let d = _mm256_mul_ps(scales::<S>(&memory.words[at], half), d_x);
                acc = _mm256_fmadd_ps(sums[i], d, acc);
                if S::MINIMUM {
                    let d = _mm256_mul_ps(scales::<S>(&memory.min_words[at], half), d_x);
                    m = _mm256_fmadd_ps(minima[i], d, m);
                }
            }
        }
        if S::MINIMUM { _mm256_sub_ps(acc, m) } else { acc }
    }
}
