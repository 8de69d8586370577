//! How far encoded values are from the source's: sums in a fixed order, so that the numbers do not depend on how rows
//! were cut into chunks or shared among threads.
//!
//! The sums of a row are those of [`ninfer_simd_ops::row_errors`], with importance as the columns' weights; rows are then
//! added in order.

use std::collections::BTreeMap;

/// Sums of one row.
pub use ninfer_simd_ops::RowErrors as RowStatistics;

use crate::container::Json;

/// Sums of a tensor: rows added in order, whatever order they come in.
#[derive(Clone, Debug, Default)]
pub(super) struct Fold {
    next: u64,
    waiting: BTreeMap<u64, Vec<RowStatistics>>,
    total: RowStatistics,
}

impl Fold {
    /// Takes the rows from `row` on.
    pub(super) fn add(&mut self, row: u64, rows: Vec<RowStatistics>) {
        self.waiting.insert(row, rows);
        while let Some(rows) = self.waiting.remove(&self.next) {
            self.next += rows.len().max(1) as u64;
            for r in rows {
                let t = &mut self.total;
                t.max_abs = t.max_abs.max(r.max_abs);
                t.error += r.error;
                t.signal += r.signal;
                t.weighted_error += r.weighted_error;
                t.weighted_signal += r.weighted_signal;
                t.non_finite = t.non_finite.saturating_add(r.non_finite);
            }
        }
    }

    /// The statistics of a tensor of `elements` elements.
    pub(super) fn finish(&self, elements: u64, weighted: bool) -> TensorStatistics {
        TensorStatistics { sums: self.total, elements, weighted }
    }
}

/// Error statistics of one encoded tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorStatistics {
    /// The sums.
    pub sums: RowStatistics,
    /// Elements.
    pub elements: u64,
    /// Whether importance weighed the columns.
    pub weighted: bool,
}

impl TensorStatistics {
    /// Mean squared error over finite elements.
    #[must_use]
    pub fn mse(&self) -> f64 {
        let n = self.elements.saturating_sub(self.sums.non_finite);
        if n == 0 { 0.0 } else { self.sums.error / n as f64 }
    }

    /// Square root of the ratio of the sums of squared errors and squared values; 0 without error.
    #[must_use]
    pub fn relative_rms(&self) -> f64 {
        ratio(self.sums.error, self.sums.signal).sqrt()
    }

    /// As [`TensorStatistics::relative_rms`], each column weighed by its importance.
    #[must_use]
    pub fn weighted_relative_rms(&self) -> Option<f64> {
        self.weighted.then(|| ratio(self.sums.weighted_error, self.sums.weighted_signal).sqrt())
    }

    /// Signal-to-noise ratio in decibels, rounded to 0.001; infinite without error.
    #[must_use]
    pub fn snr_db(&self) -> f64 {
        if self.sums.error == 0.0 {
            return f64::INFINITY;
        }
        (10_000.0 * (self.sums.signal / self.sums.error).log10()).round() / 1000.0
    }

    /// For the provenance. Every number is exactly rounded and the same everywhere.
    pub(super) fn to_json(self) -> Json {
        let mut members = vec![
            ("max_abs", Json::Float(self.sums.max_abs)),
            ("mse", Json::Float(self.mse())),
            ("relative_rms", Json::Float(self.relative_rms())),
        ];
        if let Some(weighted) = self.weighted_relative_rms() {
            members.push(("weighted_relative_rms", Json::Float(weighted)));
        }
        if self.sums.non_finite > 0 {
            members.push(("non_finite", self.sums.non_finite.into()));
        }
        Json::object(members)
    }
}

fn ratio(error: f64, signal: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / signal }
}

#[cfg(test)]
mod tests {
    use ninfer_formats::{FormatId, TensorView};
    use ninfer_simd_ops::{Dispatch, row_errors};

    use super::*;

    fn rows_of(k: usize, x: &[f32], y: &[f32], weights: Option<&[f32]>) -> Vec<RowStatistics> {
        let payload: Vec<u8> = y.iter().flat_map(|y| y.to_le_bytes()).collect();
        let view = TensorView::new(FormatId::Fp32, &[(y.len() / k) as u64, k as u64], 1, &payload).unwrap();
        let mut out = vec![RowStatistics::default(); view.rows()];
        row_errors(&view, x, weights, &mut out, &Dispatch::default()).unwrap();
        out
    }

    fn row_of(x: &[f32], y: &[f32]) -> RowStatistics {
        rows_of(x.len(), x, y, None)[0]
    }

    #[test]
    fn chunks_and_their_order_do_not_matter() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 1e6 - 8.0
        };
        let k = 37;
        let x: Vec<f32> = (0..k * 50).map(|_| next()).collect();
        let y: Vec<f32> = x.iter().map(|v| v + next() / 100.0).collect();
        let w: Vec<f32> = (0..k).map(|i| i as f32).collect();
        let rows = rows_of(k, &x, &y, Some(&w));
        let mut whole = Fold::default();
        whole.add(0, rows.clone());
        let whole = whole.finish(x.len() as u64, true);
        for step in [1, 3, 7, 49] {
            let mut fold = Fold::default();
            let mut parts: Vec<(u64, Vec<RowStatistics>)> =
                rows.chunks(step).enumerate().map(|(i, r)| ((i * step) as u64, r.to_vec())).collect();
            parts.reverse();
            let n = parts.len();
            parts.swap(0, n / 2);
            for (row, part) in parts {
                fold.add(row, part);
            }
            assert_eq!(fold.finish(x.len() as u64, true), whole);
        }
        // Against sums in plain order, to a relative 1e-12.
        let plain: f64 = x.iter().zip(&y).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        assert!((whole.sums.error - plain).abs() < 1e-12 * plain);
        assert!((whole.mse() - plain / x.len() as f64).abs() < 1e-12);
    }

    #[test]
    fn values_that_are_not_finite_are_counted_apart() {
        let x = [1.0, f32::NAN, f32::INFINITY, 3.0];
        let y = [1.5, f32::NAN, f32::INFINITY, 3.0];
        let mut fold = Fold::default();
        fold.add(0, vec![row_of(&x, &y)]);
        let s = fold.finish(4, false);
        assert_eq!((s.sums.non_finite, s.sums.max_abs, s.mse()), (2, 0.5, 0.125));
        assert_eq!(s.sums.signal, 10.0);
        assert_eq!(s.weighted_relative_rms(), None);
        let mut exact = Fold::default();
        exact.add(0, vec![row_of(&x[..1], &x[..1])]);
        let exact = exact.finish(1, false);
        assert_eq!((exact.snr_db(), exact.relative_rms()), (f64::INFINITY, 0.0));
        // An overflow to infinity is an infinite error.
        let over = row_of(&[3e38], &[f32::INFINITY]);
        assert_eq!(over.max_abs, f64::INFINITY);
    }

    #[test]
    fn the_longest_record_fits_the_space_kept_for_it() {
        let long = -2.225_073_858_507_201_4e-308;
        let sums = RowStatistics {
            max_abs: long,
            error: 1.234_567_890_123_456_7e-300,
            signal: 1.1e-8,
            weighted_error: 1.3e-7,
            weighted_signal: 7.7e-9,
            non_finite: u64::MAX - 3,
        };
        let text = TensorStatistics { sums, elements: u64::MAX, weighted: true }.to_json().to_string();
        assert!(text.len() + 10 < 320, "{}", text.len());
    }
}
