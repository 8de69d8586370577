//! E4M3FN rows with multipliers to `fp8_e4m3fn_row_bf16`: codes copied; scales copied (bfloat16) or rounded once to
//! bfloat16, nearest-even (binary32); one global scale is given to every row.

use super::{need, refused};
use crate::encoder::{RowFault, RowPlace, RowPlanes};
use crate::error::FormatError;
use crate::float::{bf16, e4m3};
use crate::layout::encoded_size;
use crate::memory::zeroed;
use crate::registry::FormatId;
use crate::shape::{ShapeText, buffer_len};

const FORMAT: FormatId = FormatId::Fp8E4m3fnRowBf16;

/// Source multipliers: one for each row, or a single one for all.
#[derive(Clone, Copy, Debug)]
pub enum Fp8Scales<'a> {
    /// bfloat16 words.
    Bf16(&'a [u16]),
    /// binary32 values.
    F32(&'a [f32]),
}

impl Fp8Scales<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bf16(w) => w.len(),
            Self::F32(v) => v.len(),
        }
    }
}

/// Import of E4M3FN rows; checked once, then used for any number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Import<'a> {
    n: usize,
    k: usize,
    scales: Fp8Scales<'a>,
    global: bool,
    first: usize,
}

impl<'a> Fp8Import<'a> {
    /// Checks the shapes of a weight `[n, k]` and of its scale tensor: `[n]` or `[n, 1]` for one multiplier a row,
    /// `[]`, `[1]` or `[1, 1]` for a global one.
    ///
    /// # Errors
    /// [`FormatError::Shape`] for another scale shape or an illegal weight shape, [`FormatError::BufferSize`] if
    /// `scales` does not hold what its shape says.
    pub fn new(n: usize, k: usize, scales: Fp8Scales<'a>, scale_shape: &[u64]) -> Result<Self, FormatError> {
        encoded_size(FORMAT, &[n as u64, k as u64], 1)?;
        let rows = n as u64;
        let global = match *scale_shape {
            [] | [1] | [1, 1] => true,
            [m] | [m, 1] if m == rows => false,
            _ => {
                return Err(crate::shape::shape_error(
                    FORMAT,
                    &[rows, k as u64],
                    format!(
                        "the scale tensor has shape {}; it must be [], [1], [1, 1], [{n}] or [{n}, 1]",
                        ShapeText::of(scale_shape)
                    ),
                ));
            }
        };
        need("the scales", "elements", Some(if global { 1 } else { n }), scales.len())?;
        Ok(Self { n, k, scales, global, first: 0 })
    }

    /// Says that the `n` rows are those from `first` on of a larger tensor; serves messages only.
    #[must_use]
    pub fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The multiplier word of a row.
    fn word(&self, row: usize) -> Result<u16, RowFault> {
        let i = if self.global { 0 } else { row };
        let (word, source) = match self.scales {
            Fp8Scales::Bf16(w) => (w[i], bf16::to_f32(w[i])),
            Fp8Scales::F32(v) => (bf16::from_f32(v[i]), v[i]),
        };
        let fault =
            |rule: &str| RowFault { place: RowPlace::Row, rule: format!("the scale {source:e} {rule}") };
        if !source.is_finite() {
            return Err(fault("is not finite"));
        }
        if source.is_sign_negative() {
            return Err(fault("is negative"));
        }
        if word == 0x7f80 {
            return Err(fault("rounds to bfloat16 infinity"));
        }
        Ok(word)
    }

    /// Imports consecutive rows of codes, `[rows, k]` bytes; `row0` is the tensor's row they start at and selects
    /// their scales.
    ///
    /// # Errors
    /// [`FormatError::RowRange`] or [`FormatError::BufferSize`] if codes or output do not fit,
    /// [`FormatError::Refused`] with the first row, and column where it is a code, that the format does not admit:
    /// NaN codes, negative or non-finite scales, a zero scale with non-zero codes.
    pub fn import_rows(&self, codes: &[u8], row0: usize, out: &mut RowPlanes<'_>) -> Result<(), FormatError> {
        out.check(FORMAT, self.k)?;
        let end = row0.checked_add(out.rows()).filter(|&end| end <= self.n);
        if end.is_none() {
            return Err(FormatError::RowRange {
                format: FORMAT.name(),
                begin: row0 as u64,
                end: row0 as u64 + out.rows() as u64,
                rows: self.n as u64,
            });
        }
        need("the codes", "bytes", out.rows().checked_mul(self.k), codes.len())?;
        for (r, codes) in codes.chunks_exact(self.k).enumerate() {
            let [to, scale, _] = out.row(r).planes;
            let row = row0 + r;
            let named = self.first as u64 + row as u64;
            let word = self.row(row, codes).map_err(|f| refused(FORMAT, named, &f))?;
            to.copy_from_slice(codes);
            scale.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn row(&self, row: usize, codes: &[u8]) -> Result<u16, RowFault> {
        let word = self.word(row)?;
        if let Some(column) = codes.iter().position(|&c| e4m3::is_nan(c)) {
            return Err(RowFault {
                place: RowPlace::Column(column),
                rule: format!("the code {:#04x} is NaN", codes[column]),
            });
        }
        if word == 0
            && let Some(column) = codes.iter().position(|&c| c & 0x7f != 0)
        {
            return Err(RowFault {
                place: RowPlace::Column(column),
                rule: format!("the row's scale is zero as bfloat16, but the code is {:#04x}", codes[column]),
            });
        }
        Ok(word)
    }
}

/// Imports a whole weight `[n, k]` into a fresh `fp8_e4m3fn_row_bf16` payload.
///
/// # Errors
/// As [`Fp8Import::new`] and [`Fp8Import::import_rows`].
pub fn import_fp8(
    n: usize,
    k: usize,
    codes: &[u8],
    scales: Fp8Scales<'_>,
    scale_shape: &[u64],
) -> Result<Vec<u8>, FormatError> {
    let import = Fp8Import::new(n, k, scales, scale_shape)?;
    let shape = [n as u64, k as u64];
    need("the codes", "bytes", n.checked_mul(k), codes.len())?;
    let mut payload = zeroed(buffer_len(FORMAT, &shape, encoded_size(FORMAT, &shape, 1)?)?)?;
    import.import_rows(codes, 0, &mut RowPlanes::of_payload(FORMAT, n, k, &mut payload)?)?;
    Ok(payload)
}
