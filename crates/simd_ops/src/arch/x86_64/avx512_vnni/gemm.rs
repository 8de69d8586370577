//! A8 matrix-matrix products with 512-bit integer dot products.
//!
//! Four codes of a row are broadcast, by the instruction itself, against four values of sixteen columns. It multiplies
//! unsigned with signed bytes, so the activations carry an offset of 128, and the integer sums start at `-128` times the
//! sum of the codes. They stay far inside 32 bits: at most 32 * 255 * 128 either way.

use std::arch::x86_64::*;

use ninfer_formats::{RowParts, TensorView};

use crate::arch::x86_64::avx512::gemm::{fetch, load, minima, store, transpose};
use crate::arch::x86_64::fetch_bytes;
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::panel::{Accumulators, Group, Lanes, Minimum, Panel, Shape, Source, Steps, product};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

const PLAIN: u8 = Shape::Plain as u8;
const SCALED: u8 = Shape::Scaled as u8;
const SPLIT: u8 = Shape::Split as u8;
const HALVES: u8 = Shape::Halves as u8;

/// Rows whose sums are formed at the same time: enough chains to hide the latency of the dot product.
const ABREAST: usize = 16;

avx512_vnni_entry! {
    /// See [`crate::kernels::A8Fn`].
    pub(in crate::arch::x86_64) fn many<S: Source>(
        view: &TensorView<'_>,
        x: &Q8_1,
        columns: std::ops::Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        let steps = Steps {
            fetch: fetch_bytes,
            terms: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| match S::SHAPE {
                Shape::Plain => terms::<PLAIN>(p, h, x, acc),
                Shape::Scaled => terms::<SCALED>(p, h, x, acc),
                Shape::Split => terms::<SPLIT>(p, h, x, acc),
                Shape::Halves => terms::<HALVES>(p, h, x, acc),
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
            starts(p, count, r);
        };
        product::<S>(view, x, columns, out, &mut scratch.panels, 0, unpack, &steps);
    }

    /// Where the sums of row `r` start.
    #[inline]
    fn starts(panel: &mut Panel, count: usize, r: usize) {
        for b in 0..count {
            // SAFETY: reads the 32 bytes of the row's codes; the instruction needs no alignment.
            let codes = unsafe { _mm256_loadu_si256(panel.codes[b][r].as_ptr().cast()) };
            let four = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
            let two = _mm256_add_epi32(four, _mm256_shuffle_epi32::<0x4e>(four));
            let one = _mm256_add_epi32(two, _mm256_shuffle_epi32::<0xb1>(two));
            panel.start[0][b][r] = -128 * _mm256_extract_epi32::<0>(one);
            panel.start[1][b][r] = -128 * _mm256_extract_epi32::<4>(one);
        }
    }

    /// Adds the products of the four values `4 q .. 4 q + 4` of each of sixteen rows with those of sixteen columns.
    ///
    /// Written out because the order matters: left to itself the compiler runs the rows' chains one after the other,
    /// and the latency of the instruction shows.
    #[inline]
    fn dots(sums: &mut [__m512i; ABREAST], rows: &[[u8; 32]; ABREAST], q: usize, x: __m512i) {
        assert!(q < 8);
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, mut i, mut j, mut k, mut l, mut m, mut n, mut o, mut r] =
            *sums;
        // SAFETY: reads four bytes of each of the sixteen rows; `q < 8` keeps them inside. Only the named registers
        // are written, and the features are the function's own.
        unsafe {
            std::arch::asm!(
                "vpdpbusd {a}, {x}, dword ptr [{p}]{{1to16}}",
                "vpdpbusd {b}, {x}, dword ptr [{p} + 32]{{1to16}}",
                "vpdpbusd {c}, {x}, dword ptr [{p} + 64]{{1to16}}",
                "vpdpbusd {d}, {x}, dword ptr [{p} + 96]{{1to16}}",
                "vpdpbusd {e}, {x}, dword ptr [{p} + 128]{{1to16}}",
                "vpdpbusd {f}, {x}, dword ptr [{p} + 160]{{1to16}}",
                "vpdpbusd {g}, {x}, dword ptr [{p} + 192]{{1to16}}",
                "vpdpbusd {h}, {x}, dword ptr [{p} + 224]{{1to16}}",
                "vpdpbusd {i}, {x}, dword ptr [{p} + 256]{{1to16}}",
                "vpdpbusd {j}, {x}, dword ptr [{p} + 288]{{1to16}}",
                "vpdpbusd {k}, {x}, dword ptr [{p} + 320]{{1to16}}",
                "vpdpbusd {l}, {x}, dword ptr [{p} + 352]{{1to16}}",
                "vpdpbusd {m}, {x}, dword ptr [{p} + 384]{{1to16}}",
                "vpdpbusd {n}, {x}, dword ptr [{p} + 416]{{1to16}}",
                "vpdpbusd {o}, {x}, dword ptr [{p} + 448]{{1to16}}",
                "vpdpbusd {r}, {x}, dword ptr [{p} + 480]{{1to16}}",
                p = in(reg) rows.as_ptr().cast::<u8>().add(4 * q),
                x = in(zmm_reg) x,
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

    /// Adds the terms of one block to the accumulators of sixteen rows, which stay in memory: the sums take sixteen
    /// registers.
    #[inline]
    fn rows<const SHAPE: u8>(panel: &Panel, b: usize, first: usize, x: &Group<'_>, acc: &mut Accumulators) {
        let at = first..first + ABREAST;
        let codes: &[[u8; 32]; ABREAST] =
            panel.codes[b][at.clone()].first_chunk().expect("a panel's rows are a multiple of those abreast");
        let (d0, d1) = (&panel.d[0][b][at.clone()], &panel.d[1][b][at.clone()]);
        let (s0, s1) = (&panel.scale[0][b][at.clone()], &panel.scale[1][b][at.clone()]);
        let (low_start, high_start) = (&panel.start[0][b][at.clone()], &panel.start[1][b][at]);
        let d_x = load(&x.d[b]);
        let quarter = |q: usize| {
            // SAFETY: reads the 64 bytes of the quarter, which are aligned to 64.
            let codes = unsafe { _mm512_load_si512(x.codes[b].0[q].as_ptr().cast()) };
            _mm512_xor_si512(codes, _mm512_set1_epi8(-128))
        };
        if SHAPE == PLAIN || SHAPE == SCALED {
            let mut sums = [_mm512_setzero_si512(); ABREAST];
            for (sums, (&low, &high)) in sums.iter_mut().zip(low_start.iter().zip(high_start)) {
                *sums = _mm512_set1_epi32(low + high);
            }
            for q in 0..8 {
                dots(&mut sums, codes, q, quarter(q));
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let mut isum = _mm512_cvtepi32_ps(sums[i]);
                if SHAPE == SCALED {
                    isum = _mm512_mul_ps(isum, _mm512_set1_ps(s0[i]));
                }
                let d = _mm512_mul_ps(_mm512_set1_ps(d0[i]), d_x);
                store(acc, _mm512_fmadd_ps(isum, d, load(acc)));
            }
        } else {
            let mut low = [_mm512_setzero_si512(); ABREAST];
            for (low, &start) in low.iter_mut().zip(low_start) {
                *low = _mm512_set1_epi32(start);
            }
            for q in 0..4 {
                dots(&mut low, codes, q, quarter(q));
            }
            let mut kept = [Lanes::default(); ABREAST];
            for (i, kept) in kept.iter_mut().enumerate() {
                let mut low = _mm512_cvtepi32_ps(low[i]);
                if SHAPE == SPLIT {
                    low = _mm512_mul_ps(low, _mm512_set1_ps(s0[i]));
                } else {
                    let d = _mm512_mul_ps(_mm512_set1_ps(d0[i]), d_x);
                    low = _mm512_fmadd_ps(low, d, load(&acc[i]));
                }
                store(kept, low);
            }
            let mut high = [_mm512_setzero_si512(); ABREAST];
            for (high, &start) in high.iter_mut().zip(high_start) {
                *high = _mm512_set1_epi32(start);
            }
            for q in 4..8 {
                dots(&mut high, codes, q, quarter(q));
            }
            for (i, (acc, kept)) in acc.iter_mut().zip(&kept).enumerate() {
                let (high, kept) = (_mm512_cvtepi32_ps(high[i]), load(kept));
                if SHAPE == SPLIT {
                    let isum = _mm512_fmadd_ps(high, _mm512_set1_ps(s1[i]), kept);
                    let d = _mm512_mul_ps(_mm512_set1_ps(d0[i]), d_x);
                    store(acc, _mm512_fmadd_ps(isum, d, load(acc)));
                } else {
                    let d = _mm512_mul_ps(_mm512_set1_ps(d1[i]), d_x);
                    store(acc, _mm512_fmadd_ps(high, d, kept));
                }
            }
        }
    }

    #[inline(never)]
    fn terms<const SHAPE: u8>(panel: &Panel, height: usize, x: Group<'_>, acc: &mut Accumulators) {
        for b in 0..x.codes.len() {
            if height == 0 {
                fetch(x.next.get(b));
            }
            rows::<SHAPE>(panel, b, 16 * height, &x, acc);
        }
    }
}
