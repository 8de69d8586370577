//! Validity rules of every format (format specification, sections 3 to 5; storage layout specification for padding).

use crate::error::{FormatError, Place, Violation};
use crate::float::e4m3;
use crate::layout::RowSplit;
use crate::scheme::{GroupCode, GroupedScheme, RowScale, Scheme};
use crate::view::{RowParts, TensorView};

/// The rule a code outside the interval breaks.
pub(crate) const fn code_rule(s: &GroupedScheme) -> &'static str {
    match (s.bits, s.code) {
        (2, GroupCode::OffsetByOne) => "codes must lie in [-1, 2]",
        (2, GroupCode::TwosComplement) => "codes must lie in [-1, 1]; the word 0b10 (-2) is illegal",
        (4, _) => "codes must lie in [-8, 7]",
        (5, _) => "codes must lie in [-16, 15]",
        (6, _) => "codes must lie in [-32, 31]",
        _ => "codes must lie in [-127, 127]; the byte 0x80 (-128) is illegal",
    }
}

const NEGATIVE_ZERO: &str = "a scale must not be negative zero";
const NOT_FINITE: &str = "a scale must be finite";
const ZERO_SCALE_GROUP: &str = "a zero scale allows only zero codes in its group";
const NEGATIVE_ROW: &str = "a row scale must not be negative";
const NAN_CODE: &str = "NaN codes (0x7f, 0xff) are illegal";
const ZERO_SCALE_ROW: &str = "a zero row scale allows only the codes 0x00 and 0x80";
const E4M3_SIGN: &str = "a block scale must have sign bit 0";
const E4M3_NAN: &str = "a block scale must not be NaN";
const DIVISOR: &str = "a divisor must be finite and positive";
const PAD_CODE: &str = "padding lanes must hold code 0";
const PAD_SCALE: &str = "scales of padding groups must be 0x0000";
const PAD_GAP: &str = "bytes between planes must be zero";

/// Collects violations up to a limit.
struct Sink {
    found: Vec<Violation>,
    limit: usize,
}

impl Sink {
    fn full(&self) -> bool {
        self.found.len() >= self.limit
    }
    fn push(&mut self, plane: &'static str, place: Place, word: u32, rule: &'static str) {
        if !self.full() {
            self.found.push(Violation { plane, place, word, rule });
        }
    }
}

impl TensorView<'_> {
    /// Checks every word of the view; the first broken rule is the error.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] with plane, place, word and rule.
    pub fn validate(&self) -> Result<(), FormatError> {
        match self.violations(1).first() {
            None => Ok(()),
            Some(&violation) => Err(FormatError::Invalid { format: self.format().name(), violation }),
        }
    }

    /// The first `limit` broken rules, row by row; rows count from the view's first row. Padding (lanes past K,
    /// padding groups, gap bytes) must be canonical; gap bytes and divisors are checked for a view of all rows.
    ///
    /// Direct and ggml formats have no illegal words.
    #[must_use]
    pub fn violations(&self, limit: usize) -> Vec<Violation> {
        let mut sink = Sink { found: Vec::new(), limit };
        let whole = self.rows() == self.parent_shape().rows;
        match self.format().scheme() {
            Scheme::Direct(_) | Scheme::Gguf(_) => {}
            Scheme::Grouped(s) => self.grouped_violations(&s, whole, &mut sink),
            Scheme::Nvfp4 => self.nvfp4_violations(whole, &mut sink),
            Scheme::RowScaled(kind) => self.row_scaled_violations(kind, whole, &mut sink),
        }
        sink.found
    }

    fn gap(&self, from: u64, to: u64, sink: &mut Sink) {
        let (from, to) = (from as usize, to as usize);
        for (i, &b) in self.payload()[from..to].iter().enumerate() {
            if b != 0 {
                sink.push("padding", Place::Byte { offset: (from + i) as u64 }, u32::from(b), PAD_GAP);
            }
        }
    }

    fn grouped_violations(&self, s: &GroupedScheme, whole: bool, sink: &mut Sink) {
        let k = self.k();
        let logical = k.div_ceil(s.group);
        let mut lanes = vec![0i8; k.next_multiple_of(128)];
        for r in 0..self.rows() {
            if sink.full() {
                return;
            }
            let row = r as u64;
            let RowParts::Grouped { base, high, scales, .. } = self.row(r) else { return };
            crate::words::unpack_codes(s, base, high, &mut lanes);
            for (g, (codes, word)) in lanes.chunks_exact(s.group).zip(scales.as_chunks::<2>().0).enumerate() {
                let word = u16::from_le_bytes(*word);
                let place = Place::Group { row, group: g as u64 };
                let valid_lanes = k.saturating_sub(g * s.group).min(s.group);
                if g >= logical {
                    if word != 0 {
                        sink.push("padding", place, u32::from(word), PAD_SCALE);
                    }
                } else if word & 0x7c00 == 0x7c00 {
                    sink.push("scale", place, u32::from(word), NOT_FINITE);
                } else if !s.any_finite_scale() && word == 0x8000 {
                    sink.push("scale", place, u32::from(word), NEGATIVE_ZERO);
                } else if !s.any_finite_scale() && word == 0 && codes[..valid_lanes].iter().any(|&q| q != 0) {
                    sink.push("scale", place, 0, ZERO_SCALE_GROUP);
                }
                for (l, &q) in codes.iter().enumerate() {
                    let at = Place::Column { row, column: (g * s.group + l) as u64 };
                    if l >= valid_lanes {
                        if q != 0 {
                            sink.push("padding", at, u32::from(q as u8), PAD_CODE);
                        }
                    } else if q < s.code_min || q > s.code_max {
                        sink.push("code", at, u32::from(q as u8), code_rule(s));
                    }
                }
            }
        }
        let shape = self.parent_shape();
        if whole && let Some(plan) = RowSplit::plan(s, shape.rows as u64, shape.k as u64) {
            let n = shape.rows as u64;
            self.gap(n * plan.base_row, plan.high_at, sink);
            self.gap(plan.high_at + n * plan.high_row, plan.scale_at, sink);
        }
    }

    fn nvfp4_violations(&self, whole: bool, sink: &mut Sink) {
        for r in 0..self.rows() {
            if sink.full() {
                return;
            }
            let RowParts::Nvfp4 { scales, .. } = self.row(r) else { return };
            for g in 0..scales.len() {
                let word = scales.word(g);
                let place = Place::Group { row: r as u64, group: g as u64 };
                if word & 0x80 != 0 {
                    sink.push("scale", place, u32::from(word), E4M3_SIGN);
                } else if e4m3::is_nan(word) {
                    sink.push("scale", place, u32::from(word), E4M3_NAN);
                }
            }
        }
        if whole {
            for i in 0..self.divisors() {
                let d = f32::from_bits(self.divisor_word(i));
                if !(d.is_finite() && d > 0.0) {
                    sink.push("divisor", Place::Divisor { index: i as u64 }, d.to_bits(), DIVISOR);
                }
            }
            let shape = self.parent_shape();
            let codes = (shape.rows * shape.k / 2) as u64;
            self.gap(codes, codes.next_multiple_of(256), sink);
        }
    }

    fn row_scaled_violations(&self, kind: RowScale, whole: bool, sink: &mut Sink) {
        for r in 0..self.rows() {
            if sink.full() {
                return;
            }
            let row = r as u64;
            let RowParts::RowScaled { codes, scale, .. } = self.row(r) else { return };
            let exponent = match kind {
                RowScale::Bf16 => 0x7f80,
                RowScale::Fp16 => 0x7c00,
            };
            if scale & exponent == exponent {
                sink.push("scale", Place::Row { row }, u32::from(scale), NOT_FINITE);
            } else if scale & 0x8000 != 0 {
                sink.push("scale", Place::Row { row }, u32::from(scale), NEGATIVE_ROW);
            } else if scale == 0 && codes.iter().any(|&c| c & 0x7f != 0) {
                sink.push("scale", Place::Row { row }, 0, ZERO_SCALE_ROW);
            }
            for (column, &c) in codes.iter().enumerate() {
                if e4m3::is_nan(c) {
                    let place = Place::Column { row, column: column as u64 };
                    sink.push("code", place, u32::from(c), NAN_CODE);
                }
            }
        }
        if whole && kind == RowScale::Bf16 {
            let shape = self.parent_shape();
            let codes = (shape.rows * shape.k) as u64;
            self.gap(codes, codes.next_multiple_of(256), sink);
        }
    }
}
