//! A8 matrix-matrix products on tiles, for [`crate::lanes::many`].
//!
//! A tile instruction forms the sums of one block for sixteen columns and sixteen rows: sixteen columns of 32
//! activations against eight vectors of four codes of sixteen rows: signed ones, or unsigned ones where the codes are so
//! anyway (`UNSIGNED`) and perhaps greater than 127. The sums of several blocks are
//! formed first and then taken into the accumulators together.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::amx_int8::tiles::Tiles;
use crate::arch::x86_64::avx512_vbmi::wide::unpack;
use crate::arch::x86_64::avx512_vnni::turned::VBMI;
use crate::arch::x86_64::avx512_vnni::wide::{load, minima, store};
use crate::isa::avx512_vbmi_entry;
use crate::kernels::Scratch;
use crate::lanes::many::{
    Ahead, BLOCKS, Block, COLUMNS_OF_BYTES, Chains, Group, Numbers, Steps, X, factors, many,
};
use crate::lanes::{Codes, Factors, Line, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Sums of sixteen columns and sixteen rows.
type Sums = [Line<[i32; 16]>; 16];

avx512_vbmi_entry! {
    /// See [`crate::kernels::A8Fn`]. Not for formats with sums of half blocks.
    pub(super) fn wide<S: Codes>(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        // Fewer columns than a group take less time.
        let width = columns.len().next_multiple_of(4).clamp(8, 16);
        // SAFETY: this is an entry of the token, which is available only if tiles are.
        let tiles = unsafe { Tiles::new(8, width as u8) };
        // Closures of this function are compiled for its features; the bare functions would not be.
        let steps = Steps {
            unpack: |w: &[_], h: &[_], to: &mut [_], codes: &mut [_]| unpack::<S, true>(w, h, to, codes),
            terms: |blocks: &[Block], codes: &[_], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains| {
                match (factors::<S>() == Factors::None, S::WHOLE_OFFSET == 0) {
                    (true, true) => terms::<false, true>(&tiles, blocks, codes, x, ahead, acc),
                    (true, false) => terms::<false, false>(&tiles, blocks, codes, x, ahead, acc),
                    (false, true) => terms::<true, true>(&tiles, blocks, codes, x, ahead, acc),
                    (false, false) => terms::<true, false>(&tiles, blocks, codes, x, ahead, acc),
                }
            },
            minima: |blocks: &[Block], x: Group<'_>, min: &mut Chains| match (S::SPLIT, width) {
                (true, 8) => minima::<true, 8>(blocks, x, min),
                (true, _) => minima::<true, 16>(blocks, x, min),
                (false, 8) => minima::<false, 8>(blocks, x, min),
                (false, _) => minima::<false, 16>(blocks, x, min),
            },
        };
        many::<_, S, COLUMNS_OF_BYTES>(VBMI, 8, view, x, columns, out, &mut scratch.lanes.many, &steps);
    }

    /// Sums of one block.
    #[inline]
    fn sums<const UNSIGNED: bool>(_: &Tiles, x: &X, codes: &[Line<Words>; 8], out: &mut MaybeUninit<Sums>) {
        macro_rules! tiles {
            ($dot:literal) => {
                asm!(
                    "tileloadd tmm0, [{x} + {s32}*1]",
                    "tileloadd tmm1, [{w} + {s64}*1]",
                    "tilezero tmm2",
                    concat!($dot, " tmm2, tmm0, tmm1"),
                    "tilestored [{out} + {s64}*1], tmm2",
                    x = in(reg) x.0.as_ptr(),
                    w = in(reg) codes.as_ptr(),
                    out = in(reg) out.as_mut_ptr(),
                    s32 = in(reg) 32usize,
                    s64 = in(reg) 64usize,
                    options(nostack, preserves_flags),
                )
            };
        }
        // SAFETY: reads the 512 bytes of `x`, 32 a column, and those of `codes`, and writes the 1024 bytes of `out`, or for
        // fewer rows fewer. The tiles are configured (`Tiles`) and used nowhere else.
        unsafe {
            if UNSIGNED { tiles!("tdpbsud") } else { tiles!("tdpbssd") }
        }
    }

    #[inline(never)]
    fn terms<const SCALED: bool, const UNSIGNED: bool>(
        tiles: &Tiles, blocks: &[Block], codes: &[Line<Words>], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        let codes = codes.as_chunks::<8>().0;
        let mut kept = [const { MaybeUninit::<Sums>::uninit() }; BLOCKS];
        let count = codes.len().min(BLOCKS).min(x.codes.len());
        for (b, kept) in kept.iter_mut().enumerate().take(count) {
            sums::<UNSIGNED>(tiles, &x.codes[b], &codes[b], kept);
        }
        // SAFETY: the loop above has written as many rows of a tile as tiles have for every block below `count`.
        unsafe {
            match tiles.rows() {
                8 => add::<SCALED, 8>(&kept[..count], blocks, x.d, ahead, acc),
                12 => add::<SCALED, 12>(&kept[..count], blocks, x.d, ahead, acc),
                16 => add::<SCALED, 16>(&kept[..count], blocks, x.d, ahead, acc),
                rows => unreachable!("tiles of {rows} rows"),
            }
        }
    }

    /// Adds the terms of the first `N` columns.
    ///
    /// # Safety
    /// Their sums in `kept` must have been written.
    #[inline]
    unsafe fn add<const SCALED: bool, const N: usize>(
        kept: &[MaybeUninit<Sums>], blocks: &[Block], d_x: &[Numbers], ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        const { assert!(N <= 16) };
        let mut a = [_mm512_setzero_ps(); N];
        for (a, from) in a.iter_mut().zip(acc.iter()) {
            *a = load(from);
        }
        for (b, ((kept, block), d_x)) in kept.iter().zip(blocks).zip(d_x).enumerate() {
            let (d, factors) = (load(&block.d[0]), load(&block.factors[0]));
            ahead.fetch(b);
            for (c, a) in a.iter_mut().enumerate() {
                // SAFETY: reads the 64 bytes of the column, which are aligned to 64, and written as the caller promises.
                let isum = unsafe { _mm512_load_si512(kept.as_ptr().cast::<Line<[i32; 16]>>().add(c).cast()) };
                let mut isum = _mm512_cvtepi32_ps(isum);
                if SCALED {
                    isum = _mm512_mul_ps(isum, factors);
                }
                *a = _mm512_fmadd_ps(isum, _mm512_mul_ps(d, _mm512_set1_ps(d_x.0[c])), *a);
            }
        }
        for (to, a) in acc.iter_mut().zip(a) {
            store(to, a);
        }
    }
}
