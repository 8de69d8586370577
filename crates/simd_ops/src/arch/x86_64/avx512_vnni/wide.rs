//! A8 products of many columns with rows in lanes: the inner loops of [`crate::lanes::many`].
//!
//! Four codes of sixteen rows are multiplied with four activations of sixteen columns, one after the other, which the
//! instruction itself broadcasts from memory. It takes unsigned bytes first: the codes with their offset.

use std::arch::x86_64::*;
use std::ops::Range;

use ninfer_formats::TensorView;

use super::turned::VNNI;
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::lanes::many::{
    Ahead, Block, Chains, FOURS, Group, Numbers, Steps, X, factors, many, unpack_chunk,
};
use crate::lanes::{Codes, Factors, HalfLine, Line, Vector, Wide, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

pub(in crate::arch::x86_64) const NONE: u8 = Factors::None as u8;
pub(in crate::arch::x86_64) const WHOLE: u8 = Factors::Whole as u8;
pub(in crate::arch::x86_64) const HALVES: u8 = Factors::Halves as u8;
pub(in crate::arch::x86_64) const TERMS: u8 = Factors::Terms as u8;

/// The entry on the vectors `$v`, compiled for the features that `$entry` names, and what unpacks for it.
macro_rules! wide_products {
    ($entry:ident, $v:ident) => {
        $entry! {
            /// See [`crate::kernels::A8Fn`].
            pub(in crate::arch::x86_64) fn wide<S: Codes>(
                view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
            ) {
                let few = columns.len() <= 8;
                // Closures of this function are compiled for its features; the bare functions would not be.
                let steps = Steps {
                    unpack: |w: &[_], h: &[_], to: &mut [_], codes: &mut [_]| unpack::<S, false>(w, h, to, codes),
                    terms: |blocks: &[Block], codes: &[_], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains| {
                        match (factors::<S>(), few) {
                            (Factors::None, false) => terms::<NONE, 16>(blocks, codes, x, ahead, acc),
                            (Factors::Whole, false) => terms::<WHOLE, 16>(blocks, codes, x, ahead, acc),
                            (Factors::Halves, false) => terms::<HALVES, 16>(blocks, codes, x, ahead, acc),
                            (Factors::Terms, false) => terms::<TERMS, 16>(blocks, codes, x, ahead, acc),
                            (Factors::None, true) => terms::<NONE, 8>(blocks, codes, x, ahead, acc),
                            (Factors::Whole, true) => terms::<WHOLE, 8>(blocks, codes, x, ahead, acc),
                            (Factors::Halves, true) => terms::<HALVES, 8>(blocks, codes, x, ahead, acc),
                            (Factors::Terms, true) => terms::<TERMS, 8>(blocks, codes, x, ahead, acc),
                        }
                    },
                    minima: |blocks: &[Block], x: Group<'_>, min: &mut Chains| match (S::SPLIT, few) {
                        (true, false) => minima::<true, 16>(blocks, x, min),
                        (false, false) => minima::<false, 16>(blocks, x, min),
                        (true, true) => minima::<true, 8>(blocks, x, min),
                        (false, true) => minima::<false, 8>(blocks, x, min),
                    },
                };
                many::<_, S, FOURS>($v, 8, view, x, columns, out, &mut scratch.lanes.many, &steps);
            }

            /// See [`Steps::unpack`]. If `SIGNED`, the offset is taken off.
            #[inline(never)]
            pub(in crate::arch::x86_64) fn unpack<S: Codes, const SIGNED: bool>(
                words: &[Line<Words>], halves: &[HalfLine], to: &mut [Block], codes: &mut [Line<Words>],
            ) {
                unpack_chunk::<_, S>($v, words, halves, to, codes, |codes, _, to| {
                    for (to, mut w) in to.iter_mut().zip(codes) {
                        if SIGNED && S::WHOLE_OFFSET != 0 {
                            w = $v.sub_bytes(w, $v.bytes(S::WHOLE_OFFSET as u8));
                        }
                        $v.store_words(w, &mut to.0);
                    }
                });
            }
        }
    };
}
pub(in crate::arch::x86_64) use wide_products;

wide_products!(avx512_vnni_entry, VNNI);

avx512_vnni_entry! {
    #[inline]
    pub(in crate::arch::x86_64) fn load(of: &Numbers) -> __m512 {
        // SAFETY: reads the 64 bytes of `of`, which are aligned to 64.
        unsafe { _mm512_load_ps(of.0.as_ptr()) }
    }

    #[inline]
    pub(in crate::arch::x86_64) fn store(to: &mut Numbers, v: __m512) {
        // SAFETY: writes the 64 bytes of `to`, which are aligned to 64.
        unsafe { _mm512_store_ps(to.0.as_mut_ptr(), v) }
    }

    /// Adds the products of the four values `4 q .. 4 q + 4` of sixteen rows with those of each of sixteen columns.
    ///
    /// Written out because the order matters: left to itself the compiler runs the columns' chains one after the other,
    /// and the latency of the instruction shows.
    #[inline]
    fn dots(sums: &mut [__m512i; 16], codes: &Line<Words>, x: &[[i8; 4]; 16]) {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, mut i, mut j, mut k, mut l, mut m, mut n, mut o, mut r] =
            *sums;
        // SAFETY: reads the 64 bytes of `codes`, which are aligned to 64, and those of `x`. Only the named registers
        // are written, and the features are the function's own.
        unsafe {
            std::arch::asm!(
                "vpdpbusd {a}, {w}, dword ptr [{p}]{{1to16}}",
                "vpdpbusd {b}, {w}, dword ptr [{p} + 4]{{1to16}}",
                "vpdpbusd {c}, {w}, dword ptr [{p} + 8]{{1to16}}",
                "vpdpbusd {d}, {w}, dword ptr [{p} + 12]{{1to16}}",
                "vpdpbusd {e}, {w}, dword ptr [{p} + 16]{{1to16}}",
                "vpdpbusd {f}, {w}, dword ptr [{p} + 20]{{1to16}}",
                "vpdpbusd {g}, {w}, dword ptr [{p} + 24]{{1to16}}",
                "vpdpbusd {h}, {w}, dword ptr [{p} + 28]{{1to16}}",
                "vpdpbusd {i}, {w}, dword ptr [{p} + 32]{{1to16}}",
                "vpdpbusd {j}, {w}, dword ptr [{p} + 36]{{1to16}}",
                "vpdpbusd {k}, {w}, dword ptr [{p} + 40]{{1to16}}",
                "vpdpbusd {l}, {w}, dword ptr [{p} + 44]{{1to16}}",
                "vpdpbusd {m}, {w}, dword ptr [{p} + 48]{{1to16}}",
                "vpdpbusd {n}, {w}, dword ptr [{p} + 52]{{1to16}}",
                "vpdpbusd {o}, {w}, dword ptr [{p} + 56]{{1to16}}",
                "vpdpbusd {r}, {w}, dword ptr [{p} + 60]{{1to16}}",
                p = in(reg) x.as_ptr(),
                w = in(zmm_reg) _mm512_load_si512(codes.0.as_ptr().cast()),
                a = inout(zmm_reg) a,
                b = inout(zmm_reg) b,
                c = inout(zmm_reg) c,
                d = inout(zmm_reg) d,
                e = inout(zmm_reg) e,
                f = inout(zmm_reg) f,
                g = inout(zmm_reg) g,
                h = inout(zmm_reg) h,
                i = inout(zmm_reg) i,
                j = inout(zmm_reg) j,
                k = inout(zmm_reg) k,
                l = inout(zmm_reg) l,
                m = inout(zmm_reg) m,
                n = inout(zmm_reg) n,
                o = inout(zmm_reg) o,
                r = inout(zmm_reg) r,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        *sums = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, r];
    }

    /// The same with the first eight columns.
    #[inline]
    fn dots_of_eight(sums: &mut [__m512i; 8], codes: &Line<Words>, x: &[[i8; 4]; 16]) {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *sums;
        // SAFETY: as `dots`, of `x` the first 32 bytes.
        unsafe {
            std::arch::asm!(
                "vpdpbusd {a}, {w}, dword ptr [{p}]{{1to16}}",
                "vpdpbusd {b}, {w}, dword ptr [{p} + 4]{{1to16}}",
                "vpdpbusd {c}, {w}, dword ptr [{p} + 8]{{1to16}}",
                "vpdpbusd {d}, {w}, dword ptr [{p} + 12]{{1to16}}",
                "vpdpbusd {e}, {w}, dword ptr [{p} + 16]{{1to16}}",
                "vpdpbusd {f}, {w}, dword ptr [{p} + 20]{{1to16}}",
                "vpdpbusd {g}, {w}, dword ptr [{p} + 24]{{1to16}}",
                "vpdpbusd {h}, {w}, dword ptr [{p} + 28]{{1to16}}",
                p = in(reg) x.as_ptr(),
                w = in(zmm_reg) _mm512_load_si512(codes.0.as_ptr().cast()),
                a = inout(zmm_reg) a,
                b = inout(zmm_reg) b,
                c = inout(zmm_reg) c,
                d = inout(zmm_reg) d,
                e = inout(zmm_reg) e,
                f = inout(zmm_reg) f,
                g = inout(zmm_reg) g,
                h = inout(zmm_reg) h,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        *sums = [a, b, c, d, e, f, g, h];
    }

    /// The integer sums of the fours `FROM..TO` of a block with the first `N` columns, 8 or 16.
    #[inline]
    fn sums<const FROM: usize, const TO: usize, const N: usize>(
        w: &[Line<Words>; 8], x: &X, start: &Line<[i32; 16]>,
    ) -> [__m512i; N] {
        let mut sums = [_mm512_setzero_si512(); N];
        for (sum, &start) in sums.iter_mut().zip(&start.0) {
            *sum = _mm512_set1_epi32(start);
        }
        for (w, x) in w[FROM..TO].iter().zip(&x.0[FROM..TO]) {
            if let Some(sums) = sums.first_chunk_mut::<16>() {
                dots(sums, w, x);
            } else if let Some(sums) = sums.first_chunk_mut::<8>() {
                dots_of_eight(sums, w, x);
            }
        }
        sums
    }

    #[inline(never)]
    pub(in crate::arch::x86_64) fn terms<const FACTORS: u8, const N: usize>(
        blocks: &[Block], codes: &[Line<Words>], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        const { assert!(N == 8 || N == 16) };
        let each = blocks.iter().zip(codes.as_chunks::<8>().0).zip(x.codes).zip(x.d);
        for (b, (((block, w), codes), d_x)) in each.enumerate() {
            ahead.fetch(b);
            let d = load(&block.d[0]);
            if FACTORS == NONE || FACTORS == WHOLE {
                let sums = sums::<0, 8, N>(w, codes, &x.start[b]);
                for c in 0..N {
                    let mut isum = _mm512_cvtepi32_ps(sums[c]);
                    if FACTORS == WHOLE {
                        isum = _mm512_mul_ps(isum, load(&block.factors[0]));
                    }
                    let d = _mm512_mul_ps(d, _mm512_set1_ps(d_x.0[c]));
                    let sum = _mm512_fmadd_ps(isum, d, load(&acc[c]));
                    store(&mut acc[c], sum);
                }
            } else {
                let low = sums::<0, 4, N>(w, codes, &x.start[2 * b]);
                let mut kept = [Line([0.0; 16]); N];
                for c in 0..N {
                    let low = _mm512_cvtepi32_ps(low[c]);
                    let low = if FACTORS == HALVES {
                        _mm512_mul_ps(low, load(&block.factors[0]))
                    } else {
                        let d = _mm512_mul_ps(d, _mm512_set1_ps(d_x.0[c]));
                        _mm512_fmadd_ps(low, d, load(&acc[c]))
                    };
                    store(&mut kept[c], low);
                }
                let high = sums::<4, 8, N>(w, codes, &x.start[2 * b + 1]);
                for c in 0..N {
                    let (high, kept) = (_mm512_cvtepi32_ps(high[c]), load(&kept[c]));
                    let d_x = _mm512_set1_ps(d_x.0[c]);
                    let sum = if FACTORS == HALVES {
                        let isum = _mm512_fmadd_ps(high, load(&block.factors[1]), kept);
                        _mm512_fmadd_ps(isum, _mm512_mul_ps(d, d_x), load(&acc[c]))
                    } else {
                        _mm512_fmadd_ps(high, _mm512_mul_ps(load(&block.d[1]), d_x), kept)
                    };
                    store(&mut acc[c], sum);
                }
            }
        }
    }

    /// Adds the minima of a chunk's blocks to the chains of the first `N` columns.
    #[inline(never)]
    pub(in crate::arch::x86_64) fn minima<const SPLIT: bool, const N: usize>(
        blocks: &[Block], x: Group<'_>, min: &mut Chains,
    ) {
        const { assert!(N <= 16) };
        let mut m = [_mm512_setzero_ps(); N];
        for (m, from) in m.iter_mut().zip(min.iter()) {
            *m = load(from);
        }
        for (b, (block, d_x)) in blocks.iter().zip(x.d).enumerate() {
            let min_d = load(&block.min_d);
            if SPLIT {
                let (low, high) = (&x.sums[2 * b].0, &x.sums[2 * b + 1].0);
                let (first, second) = (load(&block.minima[0]), load(&block.minima[1]));
                for (c, m) in m.iter_mut().enumerate() {
                    // At most 15 * 2032 * 2: every step before the last is exact.
                    let sum = _mm512_mul_ps(first, _mm512_set1_ps(low[c]));
                    let sum = _mm512_fmadd_ps(second, _mm512_set1_ps(high[c]), sum);
                    *m = _mm512_fmadd_ps(sum, _mm512_mul_ps(min_d, _mm512_set1_ps(d_x.0[c])), *m);
                }
            } else {
                for (m, &sum) in m.iter_mut().zip(&x.sums[b].0) {
                    *m = _mm512_fmadd_ps(min_d, _mm512_set1_ps(sum), *m);
                }
            }
        }
        for (to, m) in min.iter_mut().zip(m) {
            store(to, m);
        }
    }
}
