//! A8 matrix-matrix products with 256-bit byte products.
//!
//! The instruction multiplies unsigned with signed bytes and adds two products in 16 bits, where it saturates: two
//! products must not exceed 32767. Activation codes are at most 127 in magnitude, so codes (offset included) of at most
//! `RANGE` give pairs of at most `254 * RANGE`, and `32767 / (254 * RANGE)` vectors of pairs may be added in 16 bits
//! before they are widened. Codes of eight bits take their magnitudes as the unsigned operand (128 at most: pairs of
//! at most 2 * 128 * 127 = 32512) and give their signs to the activations, which are never -128.

use std::arch::x86_64::*;

use crate::isa::avx2_entry;
use crate::panel::Codes;

/// The products with panels for one token, compiled by its `$entry`. Where it is called there are `ABREAST`, `Sums`,
/// `offset` (of a source's range and least offset: what is added to its codes), `by_range` (which calls `terms`) and `sums`.
macro_rules! with_panels {
    ($entry:ident) => {
        use std::ops::Range;

        use ninfer_formats::{RowParts, TensorView};

        use $crate::arch::x86_64::fetch_bytes;
        use $crate::kernels::Scratch;
        use $crate::order::Hardware;
        use $crate::panel::{Accumulators, Group, Lanes, Minimum, Panel, Shape, Source, Steps, minima, product, transpose};
        use $crate::q8_1::Q8_1;
        use $crate::tile::Tile;

        const PLAIN: u8 = Shape::Plain as u8;
        const SCALED: u8 = Shape::Scaled as u8;
        const SPLIT: u8 = Shape::Split as u8;
        const HALVES: u8 = Shape::Halves as u8;

        $entry! {
            /// See [`crate::kernels::A8Fn`].
            pub(in crate::arch::x86_64) fn many<S: Source>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
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
                        kind => minima::<Hardware>(kind, p, h, x, acc),
                    },
                    transpose: |acc: &mut Accumulators| transpose(acc),
                };
                // A closure of this function is compiled for its features; the bare function would not be.
                let unpack = |row: &RowParts<'_>, first, count, offset, p: &mut Panel, r| {
                    S::unpack(row, first, count, offset, p, r);
                };
                product::<S>(view, x, columns, out, &mut scratch.panels, offset(S::RANGE, S::OFFSET), unpack, &steps);
            }

            #[inline]
            fn half(lanes: &Lanes<f32>, half: usize) -> __m256 {
                // SAFETY: reads 32 of the 64 bytes of the lanes, which are aligned to 64; `half` is 0 or 1 (checked).
                unsafe { _mm256_load_ps(lanes.0[8 * half..8 * half + 8].as_ptr()) }
            }

            #[inline]
            fn half_i(lanes: &Lanes<i32>, half: usize) -> __m256i {
                // SAFETY: as `half`.
                unsafe { _mm256_load_si256(lanes.0[8 * half..8 * half + 8].as_ptr().cast()) }
            }

            #[inline(never)]
            fn terms<const SHAPE: u8, const TOGETHER: usize>(
                panel: &Panel, height: usize, x: Group<'_>, acc: &mut Accumulators,
            ) {
                for (i, lanes) in acc.as_chunks_mut::<ABREAST>().0.iter_mut().enumerate() {
                    let first = 16 * height + ABREAST * i;
                    let at = first..first + ABREAST;
                    let mut acc = [[_mm256_setzero_ps(); 2]; ABREAST];
                    for (acc, lanes) in acc.iter_mut().zip(&*lanes) {
                        *acc = [half(lanes, 0), half(lanes, 1)];
                    }
                    for b in 0..x.codes.len() {
                        let rows: &[[u8; 32]; ABREAST] =
                            panel.codes[b][at.clone()].first_chunk().expect("rows come in pairs");
                        let (d0, d1) = (&panel.d[0][b][at.clone()], &panel.d[1][b][at.clone()]);
                        let (s0, s1) = (&panel.scale[0][b][at.clone()], &panel.scale[1][b][at.clone()]);
                        let d_x = [half(&x.d[b], 0), half(&x.d[b], 1)];
                        if SHAPE == PLAIN || SHAPE == SCALED {
                            let sums = sums::<TOGETHER, 0, 8>(&x.start[b], rows, &x.codes[b]);
                            for r in 0..ABREAST {
                                for h in 0..2 {
                                    let mut isum = _mm256_cvtepi32_ps(sums[r][h]);
                                    if SHAPE == SCALED {
                                        isum = _mm256_mul_ps(isum, _mm256_set1_ps(s0[r]));
                                    }
                                    let d = _mm256_mul_ps(_mm256_set1_ps(d0[r]), d_x[h]);
                                    acc[r][h] = _mm256_fmadd_ps(isum, d, acc[r][h]);
                                }
                            }
                        } else {
                            let low = sums::<TOGETHER, 0, 4>(&x.start[2 * b], rows, &x.codes[b]);
                            let high = sums::<TOGETHER, 4, 4>(&x.start[2 * b + 1], rows, &x.codes[b]);
                            for r in 0..ABREAST {
                                for h in 0..2 {
                                    let (low, high) = (_mm256_cvtepi32_ps(low[r][h]), _mm256_cvtepi32_ps(high[r][h]));
                                    let d = _mm256_mul_ps(_mm256_set1_ps(d0[r]), d_x[h]);
                                    if SHAPE == SPLIT {
                                        let isum = _mm256_mul_ps(low, _mm256_set1_ps(s0[r]));
                                        let isum = _mm256_fmadd_ps(high, _mm256_set1_ps(s1[r]), isum);
                                        acc[r][h] = _mm256_fmadd_ps(isum, d, acc[r][h]);
                                    } else {
                                        acc[r][h] = _mm256_fmadd_ps(low, d, acc[r][h]);
                                        let d = _mm256_mul_ps(_mm256_set1_ps(d1[r]), d_x[h]);
                                        acc[r][h] = _mm256_fmadd_ps(high, d, acc[r][h]);
                                    }
                                }
                            }
                        }
                    }
                    for (acc, lanes) in acc.iter().zip(lanes) {
                        // SAFETY: writes the 64 bytes of the lanes, in two halves aligned to 32.
                        unsafe {
                            _mm256_store_ps(lanes.0.as_mut_ptr(), acc[0]);
                            _mm256_store_ps(lanes.0.as_mut_ptr().add(8), acc[1]);
                        }
                    }
                }
            }
        }
    };
}
pub(in crate::arch::x86_64) use with_panels;

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

/// What is added to codes: nothing if their signs are taken apart.
const fn offset(range: u8, least: u8) -> u8 {
    if together(range) == 0 { 0 } else { least }
}

/// Rows whose sums are formed at the same time.
const ABREAST: usize = 2;

/// Sums of some rows and the two halves of a group of columns.
type Sums = [[__m256i; 2]; ABREAST];

with_panels! { avx2_entry }

avx2_entry! {
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

    /// The products of quarter `q` of a block of eight columns with four codes of a row, in pairs.
    #[inline]
    fn pairs<const TOGETHER: usize>(four: __m256i, x: __m256i) -> __m256i {
        if TOGETHER == 0 {
            _mm256_maddubs_epi16(_mm256_abs_epi8(four), _mm256_sign_epi8(x, four))
        } else {
            _mm256_maddubs_epi16(four, x)
        }
    }

    /// Exact sums over the quarters `FIRST..FIRST + COUNT` of a block (an eighth of its values each), added to `start`.
    #[inline]
    fn sums<const TOGETHER: usize, const FIRST: usize, const COUNT: usize>(
        start: &Lanes<i32>, rows: &[[u8; 32]; ABREAST], x: &Codes,
    ) -> Sums {
        let ones = _mm256_set1_epi16(1);
        let mut out = [[half_i(start, 0), half_i(start, 1)]; ABREAST];
        if TOGETHER == 0 {
            out = [[_mm256_setzero_si256(); 2]; ABREAST];
        }
        let together = if TOGETHER == 0 { 1 } else if TOGETHER < COUNT { TOGETHER } else { COUNT };
        for first in (FIRST..FIRST + COUNT).step_by(together) {
            let mut words = [[_mm256_setzero_si256(); 2]; ABREAST];
            for q in first..first + together {
                // SAFETY: reads the 64 bytes of the quarter, which are aligned to 64.
                let x = unsafe {
                    let at = x.0[q].as_ptr().cast::<__m256i>();
                    [_mm256_load_si256(at), _mm256_load_si256(at.add(1))]
                };
                for (words, row) in words.iter_mut().zip(rows) {
                    let four = _mm256_set1_epi32(i32::from_ne_bytes(row.as_chunks().0[q]));
                    for (words, &x) in words.iter_mut().zip(&x) {
                        let pairs = pairs::<TOGETHER>(four, x);
                        *words = if q == first { pairs } else { _mm256_add_epi16(*words, pairs) };
                    }
                }
            }
            for (out, words) in out.iter_mut().zip(&words) {
                for (out, &words) in out.iter_mut().zip(words) {
                    *out = _mm256_add_epi32(*out, _mm256_madd_epi16(words, ones));
                }
            }
        }
        out
    }
}
