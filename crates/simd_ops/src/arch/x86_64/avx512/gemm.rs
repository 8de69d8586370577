//! What the 512-bit matrix-matrix kernels share: minima, and the turn of a tile.

use std::arch::x86_64::*;

use crate::isa::avx512_entry;
use crate::panel::{Accumulators, Codes, Group, Lanes, Minimum, Panel};

avx512_entry! {
    /// Sixteen lanes of binary32.
    #[inline]
    pub(in crate::arch::x86_64) fn load(lanes: &Lanes<f32>) -> __m512 {
        // SAFETY: reads the 64 bytes of `lanes`, which are aligned to 64.
        unsafe { _mm512_load_ps(lanes.0.as_ptr()) }
    }

    /// Writes sixteen lanes of binary32.
    #[inline]
    pub(in crate::arch::x86_64) fn store(lanes: &mut Lanes<f32>, v: __m512) {
        // SAFETY: writes the 64 bytes of `lanes`, which are aligned to 64.
        unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), v) }
    }

    /// Sixteen lanes of integers.
    #[inline]
    pub(in crate::arch::x86_64) fn load_i(lanes: &Lanes<i32>) -> __m512i {
        // SAFETY: reads the 64 bytes of `lanes`, which are aligned to 64.
        unsafe { _mm512_load_si512(lanes.0.as_ptr().cast()) }
    }

    /// Fetches the codes of a block into the first-level cache.
    #[inline]
    pub(in crate::arch::x86_64) fn fetch(codes: Option<&Codes>) {
        if let Some(codes) = codes {
            for quarter in &codes.0 {
                // SAFETY: a hint about memory that is there.
                _mm_prefetch::<_MM_HINT_T0>(quarter.as_ptr().cast());
            }
        }
    }

    /// The accumulators in registers.
    #[inline]
    pub(in crate::arch::x86_64) fn load_tile(acc: &Accumulators) -> [__m512; 16] {
        let mut out = [_mm512_setzero_ps(); 16];
        for (o, lanes) in out.iter_mut().zip(acc) {
            *o = load(lanes);
        }
        out
    }

    /// The accumulators from registers.
    #[inline]
    pub(in crate::arch::x86_64) fn store_tile(acc: &mut Accumulators, from: &[__m512; 16]) {
        for (lanes, &v) in acc.iter_mut().zip(from) {
            store(lanes, v);
        }
    }

    /// Adds the minima of a panel's blocks; see [`crate::panel::Steps`].
    #[inline]
    pub(in crate::arch::x86_64) fn minima(
        kind: Minimum, panel: &Panel, height: usize, x: Group<'_>, acc: &mut Accumulators,
    ) {
        let mut m = load_tile(acc);
        match kind {
            Minimum::None => return,
            Minimum::Whole => {
                for (b, sum) in x.sums.iter().enumerate() {
                    let sum = load(sum);
                    let rows = &panel.min[0][b][16 * height..16 * height + 16];
                    for (m, &min) in m.iter_mut().zip(rows) {
                        *m = _mm512_fmadd_ps(_mm512_set1_ps(min), sum, *m);
                    }
                }
            }
            Minimum::Split => {
                for (b, (sums, d)) in x.sums.as_chunks::<2>().0.iter().zip(x.d).enumerate() {
                    let (low, high, d) = (load(&sums[0]), load(&sums[1]), load(d));
                    let at = 16 * height..16 * height + 16;
                    let (m0, m1) = (&panel.min[0][b][at.clone()], &panel.min[1][b][at.clone()]);
                    let dmin = &panel.min[2][b][at];
                    for r in 0..16 {
                        // At most 15 * 2032 * 2: every step before the last is exact.
                        let msum = _mm512_mul_ps(_mm512_set1_ps(m0[r]), low);
                        let msum = _mm512_fmadd_ps(_mm512_set1_ps(m1[r]), high, msum);
                        m[r] = _mm512_fmadd_ps(msum, _mm512_mul_ps(_mm512_set1_ps(dmin[r]), d), m[r]);
                    }
                }
            }
        }
        store_tile(acc, &m);
    }

    /// Sixteen rows of sixteen columns to sixteen columns of sixteen rows.
    pub(in crate::arch::x86_64) fn transpose(acc: &mut Accumulators) {
        let v = load_tile(acc);
        // 4x4 blocks within 128-bit lanes first, then the lanes.
        let mut t = v;
        for i in 0..4 {
            let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
            let (ab0, ab1) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            t[4 * i] = _mm512_shuffle_ps::<0x44>(ab0, cd0);
            t[4 * i + 1] = _mm512_shuffle_ps::<0xee>(ab0, cd0);
            t[4 * i + 2] = _mm512_shuffle_ps::<0x44>(ab1, cd1);
            t[4 * i + 3] = _mm512_shuffle_ps::<0xee>(ab1, cd1);
        }
        let mut out = t;
        for j in 0..4 {
            // t[4 i + j] holds, in lane block l, rows 4 i .. 4 i + 4 of column 4 l + j.
            let (p, q) = (t[j], t[4 + j]);
            let (r, s) = (t[8 + j], t[12 + j]);
            let (p0, p1) = (_mm512_shuffle_f32x4::<0x44>(p, q), _mm512_shuffle_f32x4::<0xee>(p, q));
            let (r0, r1) = (_mm512_shuffle_f32x4::<0x44>(r, s), _mm512_shuffle_f32x4::<0xee>(r, s));
            out[j] = _mm512_shuffle_f32x4::<0x88>(p0, r0);
            out[4 + j] = _mm512_shuffle_f32x4::<0xdd>(p0, r0);
            out[8 + j] = _mm512_shuffle_f32x4::<0x88>(p1, r1);
            out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(p1, r1);
        }
        store_tile(acc, &out);
    }
}
