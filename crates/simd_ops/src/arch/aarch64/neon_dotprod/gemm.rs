//! A8 matrix-matrix products: the driver of `neon` with dot products.

use std::arch::aarch64::*;

use super::dot::sdot_lane;
use crate::arch::aarch64::neon::gemm::{ABREAST, Multiply, Plain, Sums, a8_many, codes, columns};
use crate::isa::neon_dotprod_entry;
use crate::panel::Codes;

/// Four values of four columns at a time.
struct Dotprod;

impl Multiply for Dotprod {
    #[inline(always)]
    unsafe fn sums<const FIRST: usize, const COUNT: usize>(
        rows: &[[u8; 32]; ABREAST],
        x: &Codes,
        half: usize,
    ) -> Sums {
        // SAFETY: the caller's machine has the features.
        unsafe {
            let mut out = [[vdupq_n_s32(0); 2]; ABREAST];
            for run in FIRST / 4..(FIRST + COUNT) / 4 {
                macro_rules! quarters {
                    ($($lane:literal)+) => {
                        $(let four = [0, 1].map(|i| columns(x, 4 * run + $lane, 2 * half + i));
                        for (out, row) in out.iter_mut().zip(rows) {
                            let w = codes(row, run);
                            out[0] = sdot_lane::<$lane>(out[0], four[0], w);
                            out[1] = sdot_lane::<$lane>(out[1], four[1], w);
                        })+
                    };
                }
                quarters!(0 1 2 3);
            }
            out
        }
    }
}

a8_many!(neon_dotprod_entry, Dotprod, Plain);
