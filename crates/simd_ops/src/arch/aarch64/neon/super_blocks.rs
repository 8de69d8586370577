//! Blocks of 256 values: K types, grids and `iq4_xs`, unpacked as the products with few columns unpack them.

use std::arch::aarch64::*;

use ninfer_formats::codec::gguf;

use super::gemv_layout::Place;
use super::gemv_unpack::{Form, Order, Unpack};
use super::prims::*;
use crate::column16::rows;
use crate::gemv::{Factors, Ggml};
use crate::isa::neon_entry;

/// The bytes of a block.
#[inline(always)]
fn place<const BYTES: usize>(block: &[u8; BYTES]) -> Place<'_> {
    Place { codes: block, high: &[], scales: &[] }
}

neon_entry! {
    /// `d` times sixteen signed bytes.
    #[inline]
    fn sub_scales(d: float32x4_t, bytes: int8x16_t) -> [float32x4_t; 4] {
        let v = widen(bytes);
        four!(I => vmulq_f32(d, v[I]))
    }

    /// `v` times lane `i` of sixteen.
    #[inline]
    fn times(v: float32x4_t, lanes: &[float32x4_t; 4], i: usize) -> float32x4_t {
        match i % 4 {
            0 => vmulq_laneq_f32::<0>(v, lanes[i / 4]),
            1 => vmulq_laneq_f32::<1>(v, lanes[i / 4]),
            2 => vmulq_laneq_f32::<2>(v, lanes[i / 4]),
            _ => vmulq_laneq_f32::<3>(v, lanes[i / 4]),
        }
    }

    /// Lane `i` of sixteen, in all lanes.
    #[inline]
    fn lane(lanes: &[float32x4_t; 4], i: usize) -> float32x4_t {
        match i % 4 {
            0 => vdupq_laneq_f32::<0>(lanes[i / 4]),
            1 => vdupq_laneq_f32::<1>(lanes[i / 4]),
            2 => vdupq_laneq_f32::<2>(lanes[i / 4]),
            _ => vdupq_laneq_f32::<3>(lanes[i / 4]),
        }
    }
}

/// Decodes a block of each row.
#[inline(always)]
fn decode<S: Unpack, const BYTES: usize, const R: usize>(blocks: [&[u8; BYTES]; R], out: &mut impl Runs) {
    const {
        assert!(BYTES == S::BYTES[0], "one block is a unit");
        // Four vectors of a pair of blocks are four runs of sixteen values in order.
        assert!(matches!(S::FORM, Form::Blocks | Form::Halves) && matches!(S::ORDER, Order::Natural));
        assert!(!matches!(S::FACTORS, Factors::None));
    }
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the place has the bytes of a unit.
    unsafe {
        let (mut scales, mut minima) = ([[vdupq_n_f32(0.0); 4]; R], [[vdupq_n_f32(0.0); 4]; R]);
        rows!(R, r, {
            let place = place(blocks[r]);
            let ([d, dmin], [factors, min]) = (S::words_at(&place, 0), S::factors(place.codes));
            scales[r] = sub_scales(vmulq_n_f32(halves(d), S::POWER), factors);
            if S::MINIMUM {
                minima[r] = sub_scales(halves(dmin), min);
            }
        });
        four!(P => {
            rows!(R, r, {
                let codes = S::pair(&place(blocks[r]), P);
                four!(H => {
                    let run = 4 * P + H;
                    let factor = if matches!(S::FACTORS, Factors::Halves) { run } else { run / 2 };
                    let mut codes = codes[H];
                    if S::OFFSET != 0 {
                        codes = vsubq_s8(codes, vdupq_n_s8(S::OFFSET as i8));
                    }
                    let v = widen_fraction(codes, S::fraction(run / 2));
                    let v = four!(Q => times(v[Q], &scales[r], factor));
                    // The product of code and scale is exact.
                    let v = if S::MINIMUM {
                        let min = lane(&minima[r], factor);
                        four!(Q => vsubq_f32(v[Q], min))
                    } else {
                        v
                    };
                    out.put(r, run, v);
                });
            });
        });
    }
}

/// Decoders of the types, each given the bytes of a block.
macro_rules! super_blocks {
    ($($name:ident: $kind:ident, $bytes:literal;)+) => {
        $(#[inline(always)]
        pub(crate) fn $name<const R: usize>(blocks: [&[u8; $bytes]; R], out: &mut impl Runs) {
            decode::<Ggml<gguf::$kind>, $bytes, R>(blocks, out);
        })+
    };
}

super_blocks! {
    q2_k: Q2K, 84;
    q3_k: Q3K, 110;
    q4_k: Q4K, 144;
    q5_k: Q5K, 176;
    q6_k: Q6K, 210;
    iq2_xxs: Iq2Xxs, 66;
    iq2_xs: Iq2Xs, 74;
    iq2_s: Iq2S, 82;
    iq3_xxs: Iq3Xxs, 98;
    iq3_s: Iq3S, 110;
    iq1_s: Iq1S, 50;
    iq1_m: Iq1M, 56;
    iq4_xs: Iq4Xs, 136;
}
