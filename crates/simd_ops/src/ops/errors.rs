//! How far weights are from the values they were made of.

use ninfer_formats::{FormatError, TensorView};

use crate::error::OpError;
use crate::kernels::{self, Scratch, with_scratch};
use crate::ops::{Dispatch, Ran};
use crate::pool;
use crate::scalar::errors::{ErrorLanes, LANES};

/// Elements that make another thread worth waking.
const LEAST: usize = 1 << 16;

/// Elements decoded at a time, a multiple of 256: they stay in the first-level cache.
const RUN: usize = 2048;

/// Sums of the errors of one row ([`row_errors`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowErrors {
    /// Largest `|x - y|`.
    pub max_abs: f64,
    /// Sum of squared errors.
    pub error: f64,
    /// Sum of squared values.
    pub signal: f64,
    /// Sum of weighted squared errors.
    pub weighted_error: f64,
    /// Sum of weighted squared values.
    pub weighted_signal: f64,
    /// Elements whose source is infinite or NaN.
    pub non_finite: u64,
}

fn combine(p: &[f64; LANES]) -> f64 {
    ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
}

impl From<&ErrorLanes> for RowErrors {
    fn from(lanes: &ErrorLanes) -> Self {
        Self {
            max_abs: lanes.largest.into_iter().fold(0.0, f64::max),
            error: combine(&lanes.error),
            signal: combine(&lanes.signal),
            weighted_error: combine(&lanes.weighted_error),
            weighted_signal: combine(&lanes.weighted_signal),
            non_finite: lanes.non_finite,
        }
    }
}

/// Compares the weights `y` of every row of the view with the values `x` they were made of, row-major `[rows, K]`, and
/// writes one entry a row. Without `weights`, one for each of the K columns, the weighted sums are zero.
///
/// All in binary64, each operation rounded: `e = x - y`; sums of `e*e`, `x*x`, `(w*e)*e` and `(w*x)*x` run over eight
/// partial sums a row, partial sum `l` taking columns `l`, `l + 8`, ..., combined as
/// `((0+4)+(2+6)) + ((1+5)+(3+7))`. Elements whose value is not finite are counted and left out. So the sums are the
/// same bits on every instruction set, however rows are split.
///
/// # Errors
/// A format without floating-point values; buffers of other lengths; those of the dispatch.
pub fn row_errors(
    view: &TensorView<'_>,
    values: &[f32],
    weights: Option<&[f32]>,
    out: &mut [RowErrors],
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    view.check_float_output(values.len())?;
    let size = |what, unit, expected: usize, actual: usize| {
        let (expected, actual) = (expected as u64, actual as u64);
        if expected == actual {
            return Ok(());
        }
        Err(OpError::from(FormatError::BufferSize { what, unit, expected, actual }))
    };
    size("the errors", "rows", view.rows(), out.len())?;
    if let Some(weights) = weights {
        size("the column weights", "elements", view.k(), weights.len())?;
    }
    let isa = dispatch.resolve()?;
    let kernel = kernels::errors(isa);
    let decode = kernels::decode(isa, view.format());
    let parts = dispatch.parts(view.elements(), LEAST)?;
    let k = view.k();
    if k == 0 {
        out.fill(RowErrors::default());
        return Ok(Ran { isa, kernel: kernel.isa, parts: 0, width: None });
    }
    let mut rest = (values, out);
    let mut used = 0;
    let items = pool::split(view.rows(), parts, 1)
        .filter(|r| !r.is_empty())
        .filter_map(|rows| {
            let (x, xs) = rest.0.split_at_checked(rows.len() * k)?;
            let (o, os) = std::mem::take(&mut rest.1).split_at_mut_checked(rows.len())?;
            rest = (xs, os);
            Some((view.row_range(rows.start, rows.end).ok()?, x, o))
        })
        .inspect(|_| used += 1);
    pool::run(items, |(view, x, out)| {
        with_scratch(|Scratch { floats, .. }| {
            // Several short rows at a time, long rows in runs.
            let (rows, columns) = ((RUN / k).max(1), k.min(RUN));
            floats.resize(floats.len().max(rows * columns), 0.0);
            for (i, (x, out)) in x.chunks(rows * k).zip(out.chunks_mut(rows)).enumerate() {
                let Ok(view) = view.row_range(i * rows, i * rows + out.len()) else { return };
                if columns == k {
                    let y = &mut floats[..x.len()];
                    decode.call(&view, 0..k, y);
                    for ((x, y), out) in x.chunks_exact(k).zip(y.chunks_exact(k)).zip(out) {
                        let mut lanes = ErrorLanes::default();
                        kernel.call(x, y, weights, &mut lanes);
                        *out = (&lanes).into();
                    }
                    continue;
                }
                let mut lanes = ErrorLanes::default();
                for begin in (0..k).step_by(columns) {
                    let run = begin..(begin + columns).min(k);
                    let y = &mut floats[..run.len()];
                    decode.call(&view, run.clone(), y);
                    kernel.call(&x[run.clone()], y, weights.map(|w| &w[run]), &mut lanes);
                }
                out[0] = (&lanes).into();
            }
        });
    })?;
    Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None })
}
