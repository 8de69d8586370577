//! A8 matrix-matrix products with 256-bit dot products, which take unsigned bytes (codes with their offset) and signed ones
//! and add four products to 32 bits: nothing saturates.

use std::arch::x86_64::*;

use crate::arch::x86_64::avx2::gemm::with_panels;
use crate::isa::avx_vnni_entry;
use crate::panel::Codes;

/// What is added to codes: they are unsigned.
const fn offset(_range: u8, least: u8) -> u8 {
    least
}

/// Rows whose sums are formed at the same time.
const ABREAST: usize = 2;

/// Sums of some rows and the two halves of a group of columns.
type Sums = [[__m256i; 2]; ABREAST];

with_panels! { avx_vnni_entry }

avx_vnni_entry! {
    #[inline]
    fn by_range<S: Source, const SHAPE: u8>(p: &Panel, h: usize, x: Group<'_>, acc: &mut Accumulators) {
        // All ranges alike.
        terms::<SHAPE, 8>(p, h, x, acc);
    }

    /// Exact sums over the quarters `FIRST..FIRST + COUNT` of a block (an eighth of its values each), added to `start`.
    #[inline]
    fn sums<const TOGETHER: usize, const FIRST: usize, const COUNT: usize>(
        start: &Lanes<i32>, rows: &[[u8; 32]; ABREAST], x: &Codes,
    ) -> Sums {
        let mut out = [[half_i(start, 0), half_i(start, 1)]; ABREAST];
        for q in FIRST..FIRST + COUNT {
            // SAFETY: reads the 64 bytes of the quarter, which are aligned to 64.
            let x = unsafe {
                let at = x.0[q].as_ptr().cast::<__m256i>();
                [_mm256_load_si256(at), _mm256_load_si256(at.add(1))]
            };
            for (out, row) in out.iter_mut().zip(rows) {
                let four = _mm256_set1_epi32(i32::from_ne_bytes(row.as_chunks().0[q]));
                for (out, &x) in out.iter_mut().zip(&x) {
                    *out = _mm256_dpbusd_avx_epi32(*out, four, x);
                }
            }
        }
        out
    }
}
