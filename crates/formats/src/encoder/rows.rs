//! Encoding row by row: the methods that take rows of binary32 values, behind one type.

use super::{
    EncoderId, RowPlanes, RowSlices, fp8_row_maxabs, gguf_absmax, gguf_k, gguf_search, gguf_signed,
    grouped_absmax, grouped_search, nvfp4, ternary_fit,
};
use crate::error::{FormatError, Place};
use crate::layout::encoded_size;
use crate::memory::zeroed;
use crate::registry::FormatId;
use crate::scheme::{BlockKind, RowScale, Scheme};
use crate::shape::buffer_len;

/// Parameters of a method. The default is: no importance, positive scales only.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Params<'a> {
    /// One finite, non-negative weight per input channel (K elements); `None` means all ones.
    pub importance: Option<&'a [f32]>,
    /// Whether negative scales compete (`grouped_search`).
    pub negative_scales: bool,
}

/// A method, its target format, row length and parameters, checked once; encodes any number of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowEncoder<'a> {
    format: FormatId,
    method: EncoderId,
    k: usize,
    params: Params<'a>,
}

impl<'a> RowEncoder<'a> {
    /// Checks method, format and parameters for rows of `k` elements.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for a format the method does not produce, a parameter it does not take, or
    /// `cast_direct`, which has its own function; [`FormatError::Shape`] for a row length the format cannot have;
    /// [`FormatError::BufferSize`] for an importance vector of another length; [`FormatError::Importance`] for an
    /// importance that is negative or not finite.
    pub fn new(
        format: FormatId,
        method: EncoderId,
        k: usize,
        params: Params<'a>,
    ) -> Result<Self, FormatError> {
        method.check(format)?;
        let unsupported = |what: &str| FormatError::Unsupported { format: format.name(), what: what.into() };
        if method == EncoderId::CastDirect {
            return Err(unsupported("cast_direct converts words, not rows of binary32 values"));
        }
        if format == FormatId::Nvfp4 {
            return Err(unsupported("its scale plane interleaves rows; use the nvfp4 encoder"));
        }
        encoded_size(format, &[1, k as u64], 1)?;
        Self::check_params(format, method, k, &params)?;
        Ok(Self { format, method, k, params })
    }

    /// Checks that the method takes these parameters for rows of `k` elements.
    pub(super) fn check_params(
        format: FormatId,
        method: EncoderId,
        k: usize,
        params: &Params<'_>,
    ) -> Result<(), FormatError> {
        let unsupported = |what: String| FormatError::Unsupported { format: format.name(), what };
        if params.negative_scales && !method.spec().negative_scales {
            return Err(unsupported(format!("{} takes no negative_scales", method.name())));
        }
        let Some(importance) = params.importance else { return Ok(()) };
        if !method.spec().importance {
            return Err(unsupported(format!("{} takes no importance", method.name())));
        }
        if importance.len() != k {
            return Err(FormatError::BufferSize {
                what: "the importance vector",
                unit: "elements",
                expected: k as u64,
                actual: importance.len() as u64,
            });
        }
        if let Some(column) = importance.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            return Err(FormatError::Importance {
                column: column as u64,
                value: format!("{:e}", importance[column]),
            });
        }
        Ok(())
    }

    /// Target format.
    #[must_use]
    pub fn format(&self) -> FormatId {
        self.format
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> EncoderId {
        self.method
    }

    /// Elements of one row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Parameters.
    #[must_use]
    pub fn params(&self) -> Params<'a> {
        self.params
    }

    /// Encodes rows of binary32 values, row-major `[rows, K]`, into `out`, which holds exactly these rows. `row0` is
    /// the tensor's row that `x` starts at; it only serves messages. Results do not depend on how rows are chunked.
    ///
    /// # Errors
    /// [`FormatError::BufferSize`] if `x` or `out` do not fit, [`FormatError::Refused`] with the first row and group
    /// or column that breaks a rule of the method; `out` then holds unspecified words.
    pub fn encode_rows(&self, x: &[f32], row0: u64, out: &mut RowPlanes<'_>) -> Result<(), FormatError> {
        self.check_rows(x.len(), out)?;
        for (r, x) in x.chunks_exact(self.k).enumerate() {
            self.encode_row(x, out.row(r)).map_err(|fault| self.refused(row0 + r as u64, &fault))?;
        }
        Ok(())
    }

    /// Checks that a source of `len` elements and the output are the same number of rows of this encoder.
    ///
    /// # Errors
    /// [`FormatError::BufferSize`], or [`FormatError::Unsupported`] for planes of another format.
    pub fn check_rows(&self, len: usize, out: &RowPlanes<'_>) -> Result<(), FormatError> {
        out.check(self.format, self.k)?;
        check_source(out.rows(), self.k, len)
    }

    /// Encodes one row of K values.
    ///
    /// # Errors
    /// The first fault of the row; the row's bytes are then unspecified.
    ///
    /// # Panics
    /// If `x` or `out` have other lengths than rows of this encoder.
    pub fn encode_row(&self, x: &[f32], out: RowSlices<'_>) -> Result<(), RowFault> {
        assert_eq!(x.len(), self.k);
        let [first, second, third] = out.planes;
        match (self.method, self.format.scheme()) {
            (EncoderId::GroupedAbsmax, Scheme::Grouped(s)) => {
                grouped_absmax::encode_row(&s, x, first, second, third)
            }
            (EncoderId::GroupedSearch, Scheme::Grouped(s)) => {
                grouped_search::encode_row(&s, &self.params, x, first, second, third)
            }
            (EncoderId::TernaryFit, Scheme::Grouped(s)) => {
                ternary_fit::encode_row(&s, &self.params, x, first, second, third)
            }
            (EncoderId::Fp8RowMaxabs, Scheme::RowScaled(kind)) => {
                let (codes, scale) = match kind {
                    RowScale::Bf16 => (first, second),
                    RowScale::Fp16 => first.split_at_mut(self.k),
                };
                let word = fp8_row_maxabs::encode_row(kind, x, codes)?;
                scale.copy_from_slice(&word.to_le_bytes());
                Ok(())
            }
            (EncoderId::GgufAbsmax, Scheme::Gguf(kind)) => gguf_absmax::encode_row(kind, x, first),
            (EncoderId::GgufSearch, Scheme::Gguf(kind @ (BlockKind::Q4K | BlockKind::Q5K))) => {
                gguf_k::encode_row(kind, &self.params, x, first)
            }
            (
                EncoderId::GgufSearch,
                Scheme::Gguf(kind @ (BlockKind::Q6K | BlockKind::Iq4Xs | BlockKind::Iq4Nl)),
            ) => gguf_signed::encode_row(kind, &self.params, x, first),
            (EncoderId::GgufSearch, Scheme::Gguf(kind)) => {
                gguf_search::encode_row(kind, &self.params, x, first)
            }
            _ => unreachable!("RowEncoder::new admits no other pair"),
        }
    }

    /// The error of a fault in row `row` of the tensor.
    #[must_use]
    pub fn refused(&self, row: u64, fault: &RowFault) -> FormatError {
        FormatError::Refused {
            format: self.format.name(),
            method: self.method.name(),
            place: fault.place.at(row),
            rule: fault.rule.clone(),
        }
    }
}

/// Place of a fault within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPlace {
    /// An element.
    Column(usize),
    /// A group.
    Group(usize),
    /// The whole row.
    Row,
}

impl RowPlace {
    /// The place within the tensor.
    #[must_use]
    pub fn at(self, row: u64) -> Place {
        match self {
            Self::Column(c) => Place::Column { row, column: c as u64 },
            Self::Group(g) => Place::Group { row, group: g as u64 },
            Self::Row => Place::Row { row },
        }
    }
}

/// Why a row cannot be encoded or imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// Where.
    pub place: RowPlace,
    /// The rule broken, with the value that breaks it.
    pub rule: String,
}

impl RowFault {
    pub(crate) fn not_finite(column: usize, value: f32) -> Self {
        Self { place: RowPlace::Column(column), rule: format!("source values must be finite, got {value}") }
    }
}

fn check_source(rows: usize, k: usize, actual: usize) -> Result<(), FormatError> {
    if rows.checked_mul(k) == Some(actual) {
        return Ok(());
    }
    Err(FormatError::BufferSize {
        what: "the source",
        unit: "elements",
        expected: (rows as u64).saturating_mul(k as u64),
        actual: actual as u64,
    })
}

/// Encodes a whole matrix, row-major `[n, k]` binary32 values, into a fresh payload of the format's layout.
/// Portable, on the calling thread.
///
/// # Errors
/// As [`RowEncoder::new`] and [`RowEncoder::encode_rows`].
pub fn encode(
    format: FormatId,
    method: EncoderId,
    n: usize,
    k: usize,
    x: &[f32],
    params: Params<'_>,
) -> Result<Vec<u8>, FormatError> {
    method.check(format)?;
    let shape = [n as u64, k as u64];
    if format == FormatId::Nvfp4 {
        encoded_size(format, &shape, 1)?;
        check_source(n, k, x.len())?;
        return nvfp4::encode(method, n, k, x, params);
    }
    let encoder = RowEncoder::new(format, method, k, params)?;
    let size = encoded_size(format, &shape, 1)?;
    check_source(n, k, x.len())?;
    let mut payload = zeroed(buffer_len(format, &shape, size)?)?;
    encoder.encode_rows(x, 0, &mut RowPlanes::of_payload(format, n, k, &mut payload)?)?;
    Ok(payload)
}
