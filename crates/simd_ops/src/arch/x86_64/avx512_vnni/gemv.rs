//! A8 products of one or a few columns: see [`crate::gemv`].
//!
//! Weights are unpacked to unsigned bytes, an offset added, and multiplied four values a lane; what the offset adds is
//! taken off afterwards. The values lie in the order that unpacking gives, a run of 16 values in each 128-bit lane
//! where it can be, so that few additions across lanes remain.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use super::gemv_unpack::{Form, Unpack};
use crate::arch::x86_64::avx512::prims::{load_f32, load_i32};
use crate::gemv::{Factors, MOST, Memory, ROWS, Scales, Shape, Unit, unit_bytes};
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Bytes between what is read and what is fetched early.
const AHEAD: usize = 1536;

/// Place of each block's sum after `fold` or [`turn_four`] and the addition of neighbours.
const fn places(form: Form, source: &[u8; 256]) -> [i32; 16] {
    let mut out = [0; 16];
    let mut lane = 0;
    while lane < 4 {
        match form {
            Form::Fold => {
                out[source[16 * lane] as usize / 32] = 4 * lane as i32;
                out[source[128 + 16 * lane] as usize / 32] = 4 * lane as i32 + 1;
            }
            _ if lane % 2 == 0 => {
                let mut j = 0;
                while j < 4 {
                    out[source[64 * j + 16 * lane] as usize / 32] = (4 * lane + j) as i32;
                    j += 1;
                }
            }
            _ => {}
        }
        lane += 1;
    }
    out
}

struct Places<S>(std::marker::PhantomData<S>);

impl<S: Unpack> Places<S> {
    const BLOCKS: [i32; 16] = places(S::FORM, &S::ORDER.source);
}

avx512_vnni_entry! {
    /// See [`crate::kernels::A8Fn`].
    pub(super) fn columns<S: Unpack>(
        view: &TensorView<'_>,
        x: &Q8_1,
        columns: Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        let memory = &mut scratch.gemv;
        let shape = memory.prepare::<S>(x, columns.clone(), &S::ORDER);
        for first in (0..view.rows()).step_by(ROWS) {
            let rows = (view.rows() - first).min(ROWS);
            for r in 0..rows {
                row::<S>(view, first + r, r, memory, shape);
            }
            for (i, t) in columns.clone().enumerate() {
                let y = chains::<S>(memory, shape, i);
                let y = if S::TERMS == 16 {
                    let mut divisors = [1.0; 16];
                    for (r, d) in divisors[..rows].iter_mut().enumerate() {
                        *d = f32::from_bits(S::divisor(&view.row(first + r)));
                    }
                    _mm512_div_ps(y, load_f32(&divisors))
                } else {
                    y
                };
                let mut lanes = [0.0; 16];
                crate::arch::x86_64::avx512::prims::store(&mut lanes, y);
                out.column(t)[first..first + rows].copy_from_slice(&lanes[..rows]);
            }
        }
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
            for line in (0..bytes).step_by(64) {
                // A hint, whatever lies there.
                _mm_prefetch::<_MM_HINT_T0>(planes.codes.as_ptr().wrapping_add(u * bytes + line + AHEAD).cast());
            }
            let codes = unit_bytes(planes.codes, u, bytes, room_a);
            let high = unit_bytes(planes.high, u, high_bytes, room_b);
            // SAFETY: this function is compiled for the token's features, so they are there; the slices have the
            // lengths of `S::BYTES`.
            let (values, signs) = unsafe { (S::codes(codes, high), S::signs(codes)) };
            // SAFETY: as above.
            let (factors, minima) = unsafe { (S::factors(codes), S::minima(codes)) };
            match (S::FORM, S::FACTORS) {
                (Form::Interleaved, _) => {
                    for t in 0..shape.columns {
                        let x = &memory.x[t * shape.units + u];
                        let sums = _mm512_cvtepi32_ps(interleaved(&values, x));
                        let run = t * runs + 2 * u;
                        put(&mut memory.sums[run][r], _mm512_castps512_ps256(sums));
                        put(&mut memory.sums[run + 1][r], _mm512_extractf32x8_ps::<1>(sums));
                    }
                }
                (_, Factors::Halves) => {
                    let order = _mm_loadu(&S::ORDER.halves);
                    let factors = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_shuffle_epi8(factors, order)));
                    let minima = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_shuffle_epi8(minima, order)));
                    for t in 0..shape.columns {
                        let x = &memory.x[t * shape.units + u];
                        let sums = turn_four(&dots_four::<S>(&values, &signs, x));
                        let sums = _mm512_add_epi32(sums, load_i32(&x.start));
                        let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), factors);
                        put(&mut memory.sums[t * runs + u][r], neighbours::<S>(sums));
                        if S::MINIMUM {
                            let sums = _mm512_mul_ps(minima, load_f32(&x.sums));
                            put(&mut memory.minima[t * runs + u][r], neighbours::<S>(sums));
                        }
                    }
                }
                _ => {
                    let wide = |v: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
                    let (factors, minima) = (wide(factors), wide(minima));
                    for t in 0..shape.columns {
                        let x = &memory.x[t * shape.units + u];
                        let sums = _mm256_add_epi32(whole::<S>(&values, &signs, x), start(x));
                        let mut sums = _mm256_cvtepi32_ps(sums);
                        if S::FACTORS == Factors::Whole {
                            sums = _mm256_mul_ps(sums, factors);
                        }
                        put(&mut memory.sums[t * runs + u][r], sums);
                        if S::MINIMUM {
                            let sums = _mm512_castps512_ps256(load_f32(&x.sums));
                            put(&mut memory.minima[t * runs + u][r], _mm256_mul_ps(minima, sums));
                        }
                    }
                }
            }
        }
        memory.place_words::<S>(&planes, r);
    }

    #[inline]
    fn _mm_loadu(bytes: &[u8; 16]) -> __m128i {
        crate::arch::x86_64::avx512::prims::load16(bytes)
    }

    #[inline]
    fn put(to: &mut [f32; 8], v: __m256) {
        // SAFETY: writes the 32 bytes of `to`.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline]
    fn start(x: &Unit) -> __m256i {
        _mm512_castsi512_si256(load_i32(&x.start))
    }

    /// The `i`-th 64 activations of a unit.
    #[inline]
    fn quarter(x: &Unit, i: usize) -> __m512i {
        let codes: &[i8; 64] = &x.codes.as_chunks().0[i];
        // SAFETY: reads the 64 bytes of `codes`.
        unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
    }

    /// Activations with the signs of the weights, where those are kept apart.
    #[inline]
    fn signed<S: Unpack>(x: &Unit, signs: &[u64; 4], i: usize) -> __m512i {
        let x = quarter(x, i);
        if S::SIGNS { _mm512_mask_sub_epi8(x, signs[i], _mm512_setzero_si512(), x) } else { x }
    }

    #[inline]
    fn dots_four<S: Unpack>(w: &[__m512i; 4], signs: &[u64; 4], x: &Unit) -> [__m512i; 4] {
        let zero = _mm512_setzero_si512();
        let mut out = [zero; 4];
        for i in 0..4 {
            out[i] = _mm512_dpbusd_epi32(zero, w[i], signed::<S>(x, signs, i));
        }
        out
    }

    /// Sums of the 128-bit lanes of four vectors: lane `l` of the result holds those of lanes `l`.
    #[inline]
    fn turn_four(c: &[__m512i; 4]) -> __m512i {
        let [a, b, c, d] = *c;
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }

    /// Sums of the two halves of each block, blocks in order.
    #[inline]
    fn neighbours<S: Unpack>(v: __m512) -> __m256 {
        let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0xb1>(v, v));
        _mm512_castps512_ps256(_mm512_permutexvar_ps(load_i32(&Places::<S>::BLOCKS), v))
    }

    /// Sums of eight blocks.
    #[inline]
    fn whole<S: Unpack>(w: &[__m512i; 4], signs: &[u64; 4], x: &Unit) -> __m256i {
        let zero = _mm512_setzero_si512();
        match S::FORM {
            Form::Fold => {
                let a = _mm512_dpbusd_epi32(zero, w[0], quarter(x, 0));
                let a = _mm512_dpbusd_epi32(a, w[1], quarter(x, 1));
                let b = _mm512_dpbusd_epi32(zero, w[2], quarter(x, 2));
                let b = _mm512_dpbusd_epi32(b, w[3], quarter(x, 3));
                let v = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
                let v = _mm512_add_epi32(v, _mm512_shuffle_epi32::<0x4e>(v));
                _mm512_castsi512_si256(_mm512_permutexvar_epi32(load_i32(&Places::<S>::BLOCKS), v))
            }
            Form::Bytes => {
                let mut v = zero;
                for (i, &w) in w.iter().enumerate() {
                    v = _mm512_dpbusd_epi32(v, w, quarter(x, i));
                }
                _mm512_cvtepi64_epi32(_mm512_add_epi32(v, _mm512_srli_epi64::<32>(v)))
            }
            Form::Four | Form::Interleaved => {
                let v = turn_four(&dots_four::<S>(w, signs, x));
                let v = _mm512_add_epi32(v, _mm512_shuffle_i32x4::<0xb1>(v, v));
                _mm512_castsi512_si256(_mm512_permutexvar_epi32(load_i32(&Places::<S>::BLOCKS), v))
            }
        }
    }

    /// Sums of sixteen half-blocks of interleaved values, in order.
    #[inline]
    fn interleaved(w: &[__m512i; 4], x: &Unit) -> __m512i {
        let zero = _mm512_setzero_si512();
        let a = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, w[0], quarter(x, 0)), w[1], quarter(x, 1));
        let b = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, w[2], quarter(x, 2)), w[3], quarter(x, 3));
        // Neighbouring pairs of lanes are half-blocks.
        let a = _mm512_cvtepi64_epi32(_mm512_add_epi32(a, _mm512_srli_epi64::<32>(a)));
        let b = _mm512_cvtepi64_epi32(_mm512_add_epi32(b, _mm512_srli_epi64::<32>(b)));
        _mm512_add_epi32(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b), load_i32(&x.start))
    }

    /// Eight terms of sixteen rows, to eight vectors of sixteen rows.
    #[inline]
    fn turn(tile: &[[f32; 8]; ROWS]) -> [__m512; 8] {
        let mut v = [_mm512_setzero_ps(); 8];
        for (i, v) in v.iter_mut().enumerate() {
            let r = 8 * (i / 4) + i % 4;
            // SAFETY: each reads the 32 bytes of a row.
            let (low, high) = unsafe { (_mm256_loadu_ps(tile[r].as_ptr()), _mm256_loadu_ps(tile[r + 4].as_ptr())) };
            *v = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
        }
        let four = |a, b, c, d| {
            let (ab0, ab1) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            [
                _mm512_shuffle_ps::<0x44>(ab0, cd0),
                _mm512_shuffle_ps::<0xee>(ab0, cd0),
                _mm512_shuffle_ps::<0x44>(ab1, cd1),
                _mm512_shuffle_ps::<0xee>(ab1, cd1),
            ]
        };
        let (p, q) = (four(v[0], v[1], v[2], v[3]), four(v[4], v[5], v[6], v[7]));
        for j in 0..4 {
            v[j] = _mm512_shuffle_f32x4::<0x88>(p[j], q[j]);
            v[j + 4] = _mm512_shuffle_f32x4::<0xdd>(p[j], q[j]);
        }
        v
    }

    /// Scale words of sixteen rows.
    #[inline]
    fn scales<S: Unpack>(words: &[u16; ROWS]) -> __m512 {
        // SAFETY: reads the 32 bytes of `words`.
        let v = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) });
        if S::POWER == 1.0 { v } else { _mm512_mul_ps(v, _mm512_set1_ps(S::POWER)) }
    }

    /// The second pass, for column `t` of the call.
    #[inline]
    fn chains<S: Unpack>(memory: &Memory, shape: Shape, t: usize) -> __m512 {
        let runs = shape.units * (S::TERMS / 8);
        let (mut acc, mut m) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        let d_x = &memory.d_x[t * shape.terms..(t + 1) * shape.terms];
        for (run, d_x) in d_x.chunks(8).enumerate() {
            let sums = turn(&memory.sums[t * runs + run]);
            let minima = if S::MINIMUM { turn(&memory.minima[t * runs + run]) } else { sums };
            let dmin = if S::MINIMUM { scales::<S>(&memory.min_words[run]) } else { m };
            if S::SCALES == Scales::Unit {
                let d = scales::<S>(&memory.words[run]);
                for i in 0..d_x.len() {
                    let d_x = _mm512_set1_ps(d_x[i]);
                    acc = _mm512_fmadd_ps(sums[i], _mm512_mul_ps(d, d_x), acc);
                    if S::MINIMUM {
                        m = _mm512_fmadd_ps(minima[i], _mm512_mul_ps(dmin, d_x), m);
                    }
                }
            } else {
                let words = &memory.words[8 * run..8 * run + d_x.len()];
                for i in 0..d_x.len() {
                    let d = scales::<S>(&words[i]);
                    acc = _mm512_fmadd_ps(sums[i], _mm512_mul_ps(d, _mm512_set1_ps(d_x[i])), acc);
                }
            }
        }
        if S::MINIMUM { _mm512_sub_ps(acc, m) } else { acc }
    }
}
