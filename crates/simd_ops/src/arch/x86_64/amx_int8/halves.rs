//! A8 matrix-matrix products on tiles of bfloat16 numbers, of the formats with sums of 16 values, for
//! [`crate::lanes::many`].
//!
//! Every 16 codes have a factor of their own. Folded into them, one sum over 32 values is left, and it comes out as a
//! binary32 number. All of it is exact, whatever the order of its parts:
//!
//! * Codes times an integer factor are integers of up to 13 bits. Cut off after eight significant bits, such a number is a
//!   bfloat16 one, and so is the rest, which has the same sign. No sum of products with activations, however far it has
//!   got, is greater than 2^24 ([`parts`] sees to it).
//! * An `nvfp4` code times its group's scale has six significant bits. A group's sum is of the same scale throughout, and
//!   a term of its own.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use ninfer_formats::TensorView;

use crate::arch::x86_64::amx_int8::tiles::Tiles;
use crate::arch::x86_64::avx512_vnni::turned::VBMI;
use crate::arch::x86_64::avx512_vnni::wide::{load, store};
use crate::isa::avx512_vbmi_entry;
use crate::kernels::Scratch;
use crate::lanes::many::{
    Ahead, BLOCKS, Block, COLUMNS_OF_PAIRS, Chains, Group, Numbers, Steps, X, many, unpack_chunk,
};
use crate::lanes::{Codes, Factors, HalfLine, Line, Vector, Wide, Words};
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Sums of sixteen columns and sixteen rows.
type Sums = [Line<[f32; 16]>; 16];

/// How a format's numbers are taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// Codes times factors fit a bfloat16 number.
    One,
    /// They are two of them.
    Two,
    /// They are numbers of every 16 values apart.
    Halves,
}

/// The parts of a format.
const fn parts<S: Codes>() -> Parts {
    let above = S::RANGE as i32 - S::OFFSET;
    let most = (if above > S::OFFSET { above } else { S::OFFSET }) as u64 * S::MOST as u64;
    match S::FACTORS {
        Factors::Halves => {
            assert!(S::MOST > 0 && 32 * 127 * most <= 1 << 24, "sums are exact");
            if most < 1 << 8 { Parts::One } else { Parts::Two }
        }
        _ => Parts::Halves,
    }
}

/// Lines of unpacked codes a block.
const fn lines<S: Codes>() -> usize {
    match parts::<S>() {
        Parts::Two => 32,
        Parts::One | Parts::Halves => 16,
    }
}

avx512_vbmi_entry! {
    /// See [`crate::kernels::A8Fn`].
    pub(super) fn wide<S: Codes>(
        view: &TensorView<'_>, x: &Q8_1, columns: Range<usize>, out: &mut Tile<'_>, scratch: &mut Scratch,
    ) {
        let parts = const { parts::<S>() };
        // SAFETY: this is an entry of the token, which is available only if tiles are, for formats of `bfloat16` only.
        let tiles = unsafe { Tiles::new(if parts == Parts::Halves { 8 } else { 16 }, 16) };
        // Closures of this function are compiled for its features; the bare functions would not be.
        let steps = Steps {
            unpack: |w: &[_], h: &[_], to: &mut [_], codes: &mut [_]| unpack::<S>(w, h, to, codes),
            terms: |blocks: &[Block], codes: &[_], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains| match parts {
                Parts::One => terms::<16>(&tiles, blocks, codes, x, ahead, acc),
                Parts::Two => terms::<32>(&tiles, blocks, codes, x, ahead, acc),
                Parts::Halves => terms_of_halves(&tiles, codes, x, ahead, acc),
            },
            minima: |_: &[_], _: Group<'_>, _: &mut Chains| {},
        };
        const { assert!(!S::MINIMUM) };
        many::<_, S, COLUMNS_OF_PAIRS>(VBMI, const { lines::<S>() }, view, x, columns, out, &mut scratch.lanes.many, &steps);
    }

    /// See [`Steps::unpack`]. Of four codes the first and the third lie before the others.
    #[inline(never)]
    fn unpack<S: Codes>(
        words: &[Line<Words>], halves: &[HalfLine], to: &mut [Block], codes: &mut [Line<Words>],
    ) {
        let v = VBMI;
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        // Numbers of the even and the odd places, whose lower halves are left out or zero, to pairs.
        let pair = |even: __m512, odd: __m512| {
            _mm512_or_si512(
                _mm512_srli_epi32::<16>(_mm512_castps_si512(even)),
                _mm512_and_si512(_mm512_castps_si512(odd), upper),
            )
        };
        unpack_chunk::<_, S>(v, words, halves, to, codes, |codes, by, to| {
            for (q, w) in codes.into_iter().enumerate() {
                let w = v.sub_bytes(w, v.bytes(S::WHOLE_OFFSET as u8));
                let by = by[q / 4];
                for (i, w) in [_mm512_slli_epi16::<8>(w), w].into_iter().enumerate() {
                    let w = _mm512_srai_epi16::<8>(w);
                    let even = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(w)));
                    let odd = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(w));
                    let (even, odd) = (_mm512_mul_ps(even, by), _mm512_mul_ps(odd, by));
                    v.store_words(pair(even, odd), &mut to[2 * q + i].0);
                    if const { lines::<S>() } == 32 {
                        let rest = |x: __m512| {
                            _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper)))
                        };
                        v.store_words(pair(rest(even), rest(odd)), &mut to[16 + 2 * q + i].0);
                    }
                }
            }
        });
    }

    /// Sums of one block: of `LINES` of unpacked codes, 16 or 32.
    #[inline]
    fn sums<const LINES: usize>(_: &Tiles, x: &[X; 2], codes: &[Line<Words>; LINES], out: &mut MaybeUninit<Sums>) {
        const { assert!(LINES == 16 || LINES == 32) };
        macro_rules! tiles {
            ($($step:literal)+) => {
                asm!(
                    "tileloadd tmm0, [{x} + {s64}*1]",
                    "tileloadd tmm1, [{w} + {s64}*1]",
                    "tilezero tmm2",
                    "tdpbf16ps tmm2, tmm0, tmm1",
                    $($step,)+
                    x = in(reg) x.as_ptr(),
                    w = in(reg) codes.as_ptr(),
                    out = in(reg) out.as_mut_ptr(),
                    s64 = in(reg) 64usize,
                    options(nostack, preserves_flags),
                )
            };
        }
        // SAFETY: reads the 1024 bytes of `x`, 64 a column, and those of `codes`, 1024 for each 16 lines, and writes the 1024
        // bytes of `out`. The tiles are configured so (`Tiles`) and used nowhere else.
        unsafe {
            if LINES == 16 {
                tiles!("tilestored [{out} + {s64}*1], tmm2");
            } else {
                tiles!(
                    "tileloadd tmm4, [{w} + {s64}*1 + 1024]"
                    "tdpbf16ps tmm2, tmm0, tmm4"
                    "tilestored [{out} + {s64}*1], tmm2"
                );
            }
        }
    }

    /// Sums of the halves of one block.
    #[inline]
    fn sums_of_halves(_: &Tiles, x: &[X; 2], codes: &[Line<Words>; 16], out: &mut [MaybeUninit<Sums>; 2]) {
        // SAFETY: as `sums`, of half of the columns' bytes and lines at a time.
        unsafe {
            asm!(
                "tileloadd tmm0, [{x} + {s64}*1]",
                "tileloadd tmm1, [{w} + {s64}*1]",
                "tileloadd tmm3, [{x} + {s64}*1 + 32]",
                "tileloadd tmm4, [{w} + {s64}*1 + 512]",
                "tilezero tmm2",
                "tilezero tmm5",
                "tdpbf16ps tmm2, tmm0, tmm1",
                "tdpbf16ps tmm5, tmm3, tmm4",
                "tilestored [{out} + {s64}*1], tmm2",
                "tilestored [{out} + {s64}*1 + 1024], tmm5",
                x = in(reg) x.as_ptr(),
                w = in(reg) codes.as_ptr(),
                out = in(reg) out.as_mut_ptr(),
                s64 = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(never)]
    fn terms<const LINES: usize>(
        tiles: &Tiles, blocks: &[Block], codes: &[Line<Words>], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        let mut kept = [const { MaybeUninit::<Sums>::uninit() }; BLOCKS];
        let of = codes.as_chunks::<LINES>().0.iter().zip(x.codes.as_chunks::<2>().0);
        let mut count = 0;
        for (kept, (codes, x)) in kept.iter_mut().zip(of) {
            sums(tiles, x, codes, kept);
            count += 1;
        }
        // SAFETY: the loop above has written these.
        unsafe { add(&kept[..count], blocks, x.d, ahead, acc) };
    }

    /// Adds the terms.
    ///
    /// # Safety
    /// The sums in `kept` must have been written.
    #[inline]
    unsafe fn add(
        kept: &[MaybeUninit<Sums>], blocks: &[Block], d_x: &[Numbers], ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        let mut a = [_mm512_setzero_ps(); 16];
        for (a, from) in a.iter_mut().zip(acc.iter()) {
            *a = load(from);
        }
        for (b, ((kept, block), d_x)) in kept.iter().zip(blocks).zip(d_x).enumerate() {
            // SAFETY: the caller's promise.
            let sums = unsafe { kept.assume_init_ref() };
            ahead.fetch(b);
            let d = load(&block.d[0]);
            for c in 0..16 {
                a[c] = _mm512_fmadd_ps(load(&sums[c]), _mm512_mul_ps(d, _mm512_set1_ps(d_x.0[c])), a[c]);
            }
        }
        for (to, a) in acc.iter_mut().zip(a) {
            store(to, a);
        }
    }

    #[inline(never)]
    fn terms_of_halves(
        tiles: &Tiles, codes: &[Line<Words>], x: Group<'_>, ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        let mut kept = [const { [const { MaybeUninit::<Sums>::uninit() }; 2] }; BLOCKS];
        let of = codes.as_chunks::<16>().0.iter().zip(x.codes.as_chunks::<2>().0);
        let mut count = 0;
        for (kept, (codes, x)) in kept.iter_mut().zip(of) {
            sums_of_halves(tiles, x, codes, kept);
            count += 1;
        }
        // SAFETY: the loop above has written these.
        unsafe { add_halves(&kept[..count], x.d, ahead, acc) };
    }

    /// As [`add`], of the sums of both halves, which need no scale.
    ///
    /// # Safety
    /// The sums in `kept` must have been written.
    #[inline]
    unsafe fn add_halves(
        kept: &[[MaybeUninit<Sums>; 2]], d_x: &[Numbers], ahead: Ahead<'_>, acc: &mut Chains,
    ) {
        let mut a = [_mm512_setzero_ps(); 16];
        for (a, from) in a.iter_mut().zip(acc.iter()) {
            *a = load(from);
        }
        for (b, (kept, d_x)) in kept.iter().zip(d_x).enumerate() {
            // SAFETY: the caller's promise.
            let [low, high] = unsafe { [kept[0].assume_init_ref(), kept[1].assume_init_ref()] };
            ahead.fetch(b);
            for c in 0..16 {
                let d_x = _mm512_set1_ps(d_x.0[c]);
                a[c] = _mm512_fmadd_ps(load(&high[c]), d_x, _mm512_fmadd_ps(load(&low[c]), d_x, a[c]));
            }
        }
        for (to, a) in acc.iter_mut().zip(a) {
            store(to, a);
        }
    }
}
