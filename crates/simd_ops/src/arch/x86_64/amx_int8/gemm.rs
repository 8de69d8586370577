//! A8 matrix-matrix products on tiles.
//!
//! A tile instruction forms the sums of one block for sixteen rows and sixteen columns: sixteen rows of 32 codes
//! against eight vectors of four codes of sixteen columns, signed times signed. While tiles work, 512-bit
//! arithmetic has only one of its two ports, so the sums of several blocks are formed first and then taken into the
//! accumulators together.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use ninfer_formats::{RowParts, TensorView};

use crate::arch::x86_64::amx_int8::tiles::Tiles;
use crate::arch::x86_64::avx512::gemm::{fetch, load, load_tile, minima, store_tile, transpose};
use crate::arch::x86_64::fetch_bytes;
use crate::isa::avx512_vnni_entry;
use crate::kernels::Scratch;
use crate::panel::{Accumulators, Codes, Group, Lanes, Minimum, Panel, ROWS, Shape, Source, Steps, product};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

const PLAIN: u8 = Shape::Plain as u8;
const SCALED: u8 = Shape::Scaled as u8;

/// Sums of sixteen rows and sixteen columns.
type Sums = [Lanes<i32>; 16];
/// Tiles of sums kept at a time.
const KEPT: usize = 8;

avx512_vnni_entry! {
    /// See [`crate::kernels::A8Fn`]. Not for formats with sums of half blocks.
    pub(super) fn many<S: Source>(
        view: &TensorView<'_>,
        x: &Q8_1,
        columns: std::ops::Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        const { assert!(matches!(S::SHAPE, Shape::Plain | Shape::Scaled)) };
        // SAFETY: this is an entry of the token, which is available only if tiles are.
        let tiles = unsafe { Tiles::new(8) };
        let steps = Steps {
            fetch: fetch_bytes,
            terms: |p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators| {
                if S::SHAPE == Shape::Plain {
                    terms::<PLAIN>(&tiles, p, h, x, acc);
                } else {
                    terms::<SCALED>(&tiles, p, h, x, acc);
                }
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
        product::<S>(view, x, columns, out, &mut scratch.panels, 0, unpack, &steps);
    }

    /// Sums of one block.
    #[inline]
    fn sums(_: &Tiles, rows: &[[u8; 32]; 16], x: &Codes, out: &mut MaybeUninit<Sums>) {
        // SAFETY: reads 16 rows of 32 bytes, 32 bytes apart, and the 512 bytes of `x`; writes the 1024
        // bytes of `out`. The tiles are configured (`Tiles`) and used nowhere else.
        unsafe {
            asm!(
                "tileloadd tmm0, [{rows} + {s32}*1]",
                "tileloadd tmm1, [{x} + {s64}*1]",
                "tilezero tmm2",
                "tdpbssd tmm2, tmm0, tmm1",
                "tilestored [{out} + {s64}*1], tmm2",
                rows = in(reg) rows.as_ptr(),
                x = in(reg) x.0.as_ptr(),
                out = in(reg) out.as_mut_ptr(),
                s32 = in(reg) 32usize,
                s64 = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Sums of two blocks.
    #[inline]
    fn sums_of_two(_: &Tiles, rows: [&[[u8; 32]; 16]; 2], x: [&Codes; 2], out: &mut [MaybeUninit<Sums>; 2]) {
        // SAFETY: as `sums`, twice.
        unsafe {
            asm!(
                "tileloadd tmm0, [{rows0} + {s32}*1]",
                "tileloadd tmm1, [{x0} + {s64}*1]",
                "tileloadd tmm3, [{rows1} + {s32}*1]",
                "tileloadd tmm4, [{x1} + {s64}*1]",
                "tilezero tmm2",
                "tilezero tmm5",
                "tdpbssd tmm2, tmm0, tmm1",
                "tdpbssd tmm5, tmm3, tmm4",
                "tilestored [{out} + {s64}*1], tmm2",
                "tilestored [{out} + {s64}*1 + 1024], tmm5",
                rows0 = in(reg) rows[0].as_ptr(),
                rows1 = in(reg) rows[1].as_ptr(),
                x0 = in(reg) x[0].0.as_ptr(),
                x1 = in(reg) x[1].0.as_ptr(),
                out = in(reg) out.as_mut_ptr(),
                s32 = in(reg) 32usize,
                s64 = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    fn sixteen<T>(of: &[T; ROWS], height: usize) -> &[T; 16] {
        of[16 * height..].first_chunk().expect("a panel has two heights of sixteen rows")
    }

    #[inline(never)]
    fn terms<const SHAPE: u8>(tiles: &Tiles, panel: &Panel, height: usize, x: Group<'_>, acc: &mut Accumulators) {
        let mut kept = [const { MaybeUninit::<Sums>::uninit() }; KEPT];
        let mut a = load_tile(acc);
        for first in (0..x.codes.len()).step_by(KEPT) {
            let blocks = first..(first + KEPT).min(x.codes.len());
            if height == 0 {
                blocks.clone().for_each(|b| fetch(x.next.get(b)));
            }
            for (b, kept) in blocks.clone().step_by(2).zip(kept.as_chunks_mut::<2>().0) {
                let rows = sixteen(&panel.codes[b], height);
                if b + 1 == blocks.end {
                    sums(tiles, rows, &x.codes[b], &mut kept[0]);
                } else {
                    let rows = [rows, sixteen(&panel.codes[b + 1], height)];
                    sums_of_two(tiles, rows, [&x.codes[b], &x.codes[b + 1]], kept);
                }
            }
            for (b, kept) in blocks.zip(&kept) {
                // SAFETY: the loop above has written a tile for every block.
                let sums = unsafe { kept.assume_init_ref() };
                let (d, scale) = (sixteen(&panel.d[0][b], height), sixteen(&panel.scale[0][b], height));
                let d_x = load(&x.d[b]);
                for r in 0..16 {
                    // SAFETY: reads the 64 bytes of the row, which are aligned to 64.
                    let isum = unsafe { _mm512_load_si512(sums[r].0.as_ptr().cast()) };
                    let mut isum = _mm512_cvtepi32_ps(isum);
                    if SHAPE == SCALED {
                        isum = _mm512_mul_ps(isum, _mm512_set1_ps(scale[r]));
                    }
                    a[r] = _mm512_fmadd_ps(isum, _mm512_mul_ps(_mm512_set1_ps(d[r]), d_x), a[r]);
                }
            }
        }
        store_tile(acc, &a);
    }
}
