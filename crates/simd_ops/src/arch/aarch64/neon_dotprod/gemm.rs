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
                let w = four!(R => codes(&rows[R], run));
                four!(Q => {
                    let x = two!(C => columns(x, 4 * run + Q, 2 * half + C));
                    out = four!(R => two!(C => sdot_lane::<Q>(out[R][C], x[C], w[R])));
                });
            }
            out
        }
    }
}

a8_many!(neon_dotprod_entry, Dotprod, Plain);
