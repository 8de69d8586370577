//! Sums of errors in lanes.

/// Columns that are summed apart: column `k` of a row belongs to lane `k % 8`.
pub(crate) const LANES: usize = 8;

/// The partial sums of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ErrorLanes {
    pub(crate) largest: [f64; LANES],
    pub(crate) error: [f64; LANES],
    pub(crate) signal: [f64; LANES],
    pub(crate) weighted_error: [f64; LANES],
    pub(crate) weighted_signal: [f64; LANES],
    pub(crate) non_finite: u64,
}

impl ErrorLanes {
    #[inline(always)]
    fn add(&mut self, l: usize, x: f32, y: f32) -> (f64, f64) {
        let x = f64::from(x);
        let e = x - f64::from(y);
        self.error[l] += e * e;
        self.signal[l] += x * x;
        let magnitude = e.abs();
        self.largest[l] = if magnitude > self.largest[l] { magnitude } else { self.largest[l] };
        (x, e)
    }

    #[inline(always)]
    fn add_weighted(&mut self, l: usize, x: f32, y: f32, w: f32) {
        let (x, e) = self.add(l, x, y);
        let w = f64::from(w);
        self.weighted_error[l] += w * e * e;
        self.weighted_signal[l] += w * x * x;
    }
}

/// See [`crate::kernels::ErrorsFn`].
#[inline(always)]
pub(crate) fn errors(x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes) {
    // A copy that stays in registers.
    let mut lanes = *sums;
    // Magnitudes of binary32 words are ordered as integers.
    let finite = x.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7fff_ffff)) < 0x7f80_0000;
    let (xs, x_rest) = x.as_chunks::<LANES>();
    let (ys, y_rest) = y.as_chunks::<LANES>();
    match weights {
        _ if !finite => {
            for (i, (&x, &y)) in x.iter().zip(y).enumerate() {
                match weights {
                    _ if !x.is_finite() => lanes.non_finite += 1,
                    None => {
                        lanes.add(i % LANES, x, y);
                    }
                    Some(w) => lanes.add_weighted(i % LANES, x, y, w[i]),
                }
            }
        }
        None => {
            for (x, y) in xs.iter().zip(ys) {
                for l in 0..LANES {
                    lanes.add(l, x[l], y[l]);
                }
            }
            for (l, (&x, &y)) in x_rest.iter().zip(y_rest).enumerate() {
                lanes.add(l, x, y);
            }
        }
        Some(w) => {
            let (ws, w_rest) = w.as_chunks::<LANES>();
            for ((x, y), w) in xs.iter().zip(ys).zip(ws) {
                for l in 0..LANES {
                    lanes.add_weighted(l, x[l], y[l], w[l]);
                }
            }
            for (l, ((&x, &y), &w)) in x_rest.iter().zip(y_rest).zip(w_rest).enumerate() {
                lanes.add_weighted(l, x, y, w);
            }
        }
    }
    *sums = lanes;
}
