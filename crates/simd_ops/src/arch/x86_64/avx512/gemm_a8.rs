//! A8 matrix-matrix products with 512-bit byte products.
//!
//! The instruction multiplies unsigned with signed bytes and adds two products in 16 bits, where it saturates: two
//! products must not exceed 32767. Activation codes are at most 127 in magnitude, so codes (offset included) of at most
//! `RANGE` give pairs of at most `254 * RANGE`, and `32767 / (254 * RANGE)` vectors of pairs may be added in 16 bits
//! before they are widened. Codes of eight bits take their magnitudes as the unsigned operand (128 at most: pairs of
//! at most 2 * 128 * 127 = 32512) and give their signs to the activations, which are never -128.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::{RowParts, TensorView};

use crate::arch::x86_64::avx512::gemm::{fetch, load, load_i, minima, store, transpose};
use crate::arch::x86_64::fetch_bytes;
use crate::isa::avx512_entry;
use crate::kernels::Scratch;
use crate::panel::{Accumulators, Codes, Group, Lanes, Minimum, Panel, Shape, Source, Steps, product};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

const PLAIN: u8 = Shape::Plain as u8;
const SCALED: u8 = Shape::Scaled as u8;
const SPLIT: u8 = Shape::Split as u8;
const HALVES: u8 = Shape::Halves as u8;

/// Vectors whose pair sums may be added in 16 bits for codes of this range; 0: signs apart.
const fn together(range: u8) -> usize {
    match range {
        0..=16 => 8,
        17..=32 => 4,
        33..=64 => 2,
        65..=128 => 1,
        _ => 0,
    }
}

/// Rows whose sums are formed at the same time.
const ABREAST: usize = 4;

/// Sums of some rows.
type Sums = [__m512i; ABREAST];

avx512_entry! {
    /// See [`crate::kernels::A8Fn`].
    pub(super) fn many<S: Source>(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let signs_apart = together(S::RANGE) == 0;
        let steps = Steps {
            fetch: fetch_bytes,
            terms: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| match S::SHAPE {
                Shape::Plain => by_range::<S, PLAIN>(p, h, x, acc),
                Shape::Scaled => by_range::<S, SCALED>(p, h, x, acc),
                Shape::Split => by_range::<S, SPLIT>(p, h, x, acc),
                Shape::Halves => by_range::<S, HALVES>(p, h, x, acc),
            },
            minima: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| match S::MINIMUM {
                Minimum::None => {}
                kind => minima(kind, p, h, x, acc),
            },
            transpose: |acc: &mut Accumulators| transpose(acc),
        };
        // A closure of this function is compiled for its features; the bare function would not be.
        let unpack = |row: &RowParts<'_>, first, count, offset, p: &mut Panel, r| {
            S::unpack(row, first, count, offset, p, r);
        };
        let offset = if signs_apart { 0 } else { S::OFFSET };
        product::<S>(view, x, columns, out, &mut scratch.panels, offset, unpack, &steps);
    }

    #[inline]
    fn by_range<S: Source, const SHAPE: u8>(p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators) {
        match together(S::RANGE) {
            8 => terms::<SHAPE, 8>(p, h, x, acc),
            4 => terms::<SHAPE, 4>(p, h, x, acc),
            2 => terms::<SHAPE, 2>(p, h, x, acc),
            1 => terms::<SHAPE, 1>(p, h, x, acc),
            _ => terms::<SHAPE, 0>(p, h, x, acc),
        }
    }

    /// The products of a quarter of a block of sixteen columns with four codes of a row, in pairs.
    #[inline]
    fn pairs<const TOGETHER: usize>(four: __m512i, x: __m512i) -> __m512i {
        if TOGETHER == 0 {
            let signed = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(four), _mm512_setzero_si512(), x);
            _mm512_maddubs_epi16(_mm512_abs_epi8(four), signed)
        } else {
            _mm512_maddubs_epi16(four, x)
        }
    }

    /// Exact sums over the quarters `FIRST..FIRST + COUNT` of a block (an eighth of its values each), added to `start`.
    #[inline]
    fn sums<const TOGETHER: usize, const FIRST: usize, const COUNT: usize>(
        start: &Lanes<i32>, rows: &[[u8; 32]; ABREAST], x: &Codes,
    ) -> Sums {
        let ones = _mm512_set1_epi16(1);
        let mut out = if TOGETHER == 0 { [_mm512_setzero_si512(); ABREAST] } else { [load_i(start); ABREAST] };
        let together = if TOGETHER == 0 { 1 } else if TOGETHER < COUNT { TOGETHER } else { COUNT };
        for first in (FIRST..FIRST + COUNT).step_by(together) {
            let mut words = [_mm512_setzero_si512(); ABREAST];
            for q in first..first + together {
                // SAFETY: reads the 64 bytes of the quarter, which are aligned to 64.
                let x = unsafe { _mm512_load_si512(x.0[q].as_ptr().cast()) };
                for (words, row) in words.iter_mut().zip(rows) {
                    let four = _mm512_set1_epi32(i32::from_ne_bytes(row.as_chunks().0[q]));
                    let pairs = pairs::<TOGETHER>(four, x);
                    *words = if q == first { pairs } else { _mm512_add_epi16(*words, pairs) };
                }
            }
            for (out, &words) in out.iter_mut().zip(&words) {
                *out = _mm512_add_epi32(*out, _mm512_madd_epi16(words, ones));
            }
        }
        out
    }

    #[inline(never)]
    fn terms<const SHAPE: u8, const TOGETHER: usize>(
        panel: &Panel, height: usize, x: Group<'_>, acc: &mut Accumulators,
    ) {
        for (i, lanes) in acc.as_chunks_mut::<ABREAST>().0.iter_mut().enumerate() {
            let first = 16 * height + ABREAST * i;
            let at = first..first + ABREAST;
            let mut acc = [_mm512_setzero_ps(); ABREAST];
            for (acc, lanes) in acc.iter_mut().zip(&*lanes) {
                *acc = load(lanes);
            }
            for b in 0..x.codes.len() {
                if first == 0 {
                    fetch(x.next.get(b));
                }
                let rows: &[[u8; 32]; ABREAST] =
                    panel.codes[b][at.clone()].first_chunk().expect("rows come in fours");
                let (d0, d1) = (&panel.d[0][b][at.clone()], &panel.d[1][b][at.clone()]);
                let (s0, s1) = (&panel.scale[0][b][at.clone()], &panel.scale[1][b][at.clone()]);
                let d_x = load(&x.d[b]);
                if SHAPE == PLAIN || SHAPE == SCALED {
                    let sums = sums::<TOGETHER, 0, 8>(&x.start[b], rows, &x.codes[b]);
                    for r in 0..ABREAST {
                        let mut isum = _mm512_cvtepi32_ps(sums[r]);
                        if SHAPE == SCALED {
                            isum = _mm512_mul_ps(isum, _mm512_set1_ps(s0[r]));
                        }
                        acc[r] = _mm512_fmadd_ps(isum, _mm512_mul_ps(_mm512_set1_ps(d0[r]), d_x), acc[r]);
                    }
                } else {
                    let low = sums::<TOGETHER, 0, 4>(&x.start[2 * b], rows, &x.codes[b]);
                    let high = sums::<TOGETHER, 4, 4>(&x.start[2 * b + 1], rows, &x.codes[b]);
                    for r in 0..ABREAST {
                        let (low, high) = (_mm512_cvtepi32_ps(low[r]), _mm512_cvtepi32_ps(high[r]));
                        let d = _mm512_mul_ps(_mm512_set1_ps(d0[r]), d_x);
                        if SHAPE == SPLIT {
                            let isum = _mm512_mul_ps(low, _mm512_set1_ps(s0[r]));
                            let isum = _mm512_fmadd_ps(high, _mm512_set1_ps(s1[r]), isum);
                            acc[r] = _mm512_fmadd_ps(isum, d, acc[r]);
                        } else {
                            acc[r] = _mm512_fmadd_ps(low, d, acc[r]);
                            acc[r] = _mm512_fmadd_ps(high, _mm512_mul_ps(_mm512_set1_ps(d1[r]), d_x), acc[r]);
                        }
                    }
                }
            }
            for (&acc, lanes) in acc.iter().zip(lanes) {
                store(lanes, acc);
            }
        }
    }
}
