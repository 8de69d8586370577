//! Words to values: the binary32 value that each element represents, exactly.
//!
//! The functions here are the portable reference. They take one row at a time ([`RowParts`]); [`TensorView`] has the
//! methods for whole views. Formulas: format specification, sections 3.1 (direct), 3.3 (nvfp4), 3.4 (FP8), 6.2
//! (grouped); GGUF specification for ggml blocks.

pub mod gguf;

use crate::error::FormatError;
use crate::float::{bf16, e2m1, e4m3, f16};
use crate::registry::FormatId;
use crate::scheme::{DirectKind, GroupedScheme, RowScale, Scheme};
use crate::view::{Nvfp4Scales, RowParts, TensorView};
use crate::words::unpack_codes;

/// Decodes one row to binary32. `out` must hold K elements.
///
/// `int32` rows are not floating-point; the caller excludes them ([`TensorView::decode_f32`] does).
///
/// # Panics
/// If `out` has another length than the row.
pub fn decode_row_f32(row: &RowParts<'_>, out: &mut [f32]) {
    match row {
        RowParts::Direct { kind, bytes } => direct(*kind, bytes, out),
        RowParts::Grouped { scheme, base, high, scales } => grouped(scheme, base, high, scales, out),
        RowParts::Nvfp4 { codes, scales, divisor } => {
            nvfp4(codes, scales, f32::from_bits(*divisor), out);
        }
        RowParts::RowScaled { scale_kind, codes, scale } => {
            let s = row_scale(*scale_kind, *scale);
            assert_eq!(codes.len(), out.len());
            for (o, &c) in out.iter_mut().zip(*codes) {
                *o = e4m3::to_f32(c) * s;
            }
        }
        RowParts::Blocks { kind, blocks } => gguf::decode_blocks(*kind, blocks, out),
    }
}

/// A row multiplier as binary32, exactly.
#[must_use]
#[inline]
pub fn row_scale(kind: RowScale, word: u16) -> f32 {
    match kind {
        RowScale::Bf16 => bf16::to_f32(word),
        RowScale::Fp16 => f16::to_f32(word),
    }
}

fn direct(kind: DirectKind, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * kind.word_bytes());
    match kind {
        DirectKind::Bf16 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::to_f32(u16::from_le_bytes(*w));
            }
        }
        DirectKind::Fp32 | DirectKind::Int32 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_bits(u32::from_le_bytes(*w));
            }
        }
    }
}

fn grouped(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
    let mut lanes = [0i8; 128];
    let lanes = &mut lanes[..s.group];
    for (g, out) in out.chunks_mut(s.group).enumerate() {
        let scale = f16::to_f32(u16::from_le_bytes([scales[2 * g], scales[2 * g + 1]]));
        unpack_codes(
            s,
            &base[g * s.base_bytes..(g + 1) * s.base_bytes],
            &high[g * s.high_bytes..(g + 1) * s.high_bytes],
            lanes,
        );
        for (o, &q) in out.iter_mut().zip(&*lanes) {
            *o = scale * f32::from(q);
        }
    }
}

/// One 16-element group: the products of code and scale are exact, the division rounds once.
fn nvfp4(codes: &[u8], scales: &Nvfp4Scales<'_>, divisor: f32, out: &mut [f32]) {
    assert_eq!(codes.len() * 2, out.len());
    let groups = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
    for (g, (codes, out)) in groups.enumerate() {
        let s = e4m3::to_f32(scales.word(g));
        // At most sixteen different quotients a group: divide once per code word, then look up.
        let values = e2m1::TO_F32.map(|v| v * s / divisor);
        for (pair, &c) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = [values[(c & 15) as usize], values[(c >> 4) as usize]];
        }
    }
}

/// A target of 16 bits a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE-754 binary16.
    Binary16,
    /// bfloat16.
    Bfloat16,
}

impl Half {
    /// Name of the encoding.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binary16 => "binary16",
            Self::Bfloat16 => "bfloat16",
        }
    }

    /// Rounds binary32 once, nearest-even.
    #[must_use]
    #[inline]
    pub const fn round(self, x: f32) -> u16 {
        match self {
            Self::Binary16 => f16::from_f32(x),
            Self::Bfloat16 => bf16::from_f32(x),
        }
    }

    /// Whether a word is an infinity.
    #[must_use]
    #[inline]
    pub const fn is_infinite(self, word: u16) -> bool {
        match self {
            Self::Binary16 => word & 0x7fff == 0x7c00,
            Self::Bfloat16 => word & 0x7fff == 0x7f80,
        }
    }
}

/// Decodes one row to 16-bit words with one rounding of the represented value; `scratch` and `out` hold K elements.
///
/// For `nvfp4` the represented value is the real quotient: it is rounded from binary64, whose division cannot hide a
/// tie (the exact product has 8 significant bits, a divisor 24). For all other formats it is the binary32 value.
/// Returns the first column whose finite value overflowed to infinity.
///
/// # Panics
/// If `scratch` or `out` has another length than the row.
pub fn decode_row_half(
    row: &RowParts<'_>,
    half: Half,
    scratch: &mut [f32],
    out: &mut [u16],
) -> Result<(), (usize, f32)> {
    assert_eq!(scratch.len(), out.len());
    decode_row_f32(row, scratch);
    match row {
        RowParts::Nvfp4 { codes, scales, divisor } => {
            let d = f64::from(f32::from_bits(*divisor));
            let groups = codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
            for (g, (codes, out)) in groups.enumerate() {
                let s = f64::from(e4m3::to_f32(scales.word(g)));
                let words = e2m1::TO_F32.map(|v| {
                    let x = f64::from(v) * s / d;
                    match half {
                        Half::Binary16 => f16::from_f64(x),
                        Half::Bfloat16 => bf16::from_f64(x),
                    }
                });
                for (pair, &c) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *pair = [words[(c & 15) as usize], words[(c >> 4) as usize]];
                }
            }
        }
        _ => {
            for (o, &x) in out.iter_mut().zip(&*scratch) {
                *o = half.round(x);
            }
        }
    }
    check_half(half, scratch, out)
}

/// Finds the first element whose finite binary32 value became an infinite word.
///
/// # Errors
/// Its index and value.
#[inline]
pub fn check_half(half: Half, values: &[f32], words: &[u16]) -> Result<(), (usize, f32)> {
    // Infinities are rare: look for any before asking where it came from.
    if !words.iter().fold(false, |any, &w| any | half.is_infinite(w)) {
        return Ok(());
    }
    match values.iter().zip(words).position(|(x, &w)| half.is_infinite(w) && x.is_finite()) {
        Some(i) => Err((i, values[i])),
        None => Ok(()),
    }
}

fn out_size(expected: usize, actual: usize) -> Result<(), FormatError> {
    if expected == actual {
        return Ok(());
    }
    Err(FormatError::BufferSize {
        what: "the output",
        unit: "elements",
        expected: expected as u64,
        actual: actual as u64,
    })
}

pub(crate) fn not_float(format: FormatId) -> FormatError {
    FormatError::Unsupported {
        format: format.name(),
        what: "integers do not decode to floating point; decode to int32".into(),
    }
}

impl TensorView<'_> {
    /// Checks that `out_len` elements fit this view and that it decodes to floating point.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for `int32`, [`FormatError::BufferSize`] for another length.
    pub fn check_float_output(&self, out_len: usize) -> Result<(), FormatError> {
        if self.format().scheme() == Scheme::Direct(DirectKind::Int32) {
            return Err(not_float(self.format()));
        }
        out_size(self.elements(), out_len)
    }

    /// Decodes all rows to binary32, row-major; `out` holds `rows * K` elements. Portable, on the calling thread.
    ///
    /// # Errors
    /// As [`TensorView::check_float_output`].
    pub fn decode_f32(&self, out: &mut [f32]) -> Result<(), FormatError> {
        self.check_float_output(out.len())?;
        for (r, out) in out.chunks_exact_mut(self.k()).enumerate() {
            decode_row_f32(&self.row(r), out);
        }
        Ok(())
    }

    /// Decodes all rows to binary16 or bfloat16 words with one rounding, nearest-even. NaNs become quiet.
    ///
    /// # Errors
    /// As [`TensorView::check_float_output`], and [`FormatError::HalfOverflow`] for a finite value beyond the target's
    /// range; the output then holds unspecified words.
    pub fn decode_half(&self, half: Half, out: &mut [u16]) -> Result<(), FormatError> {
        self.check_float_output(out.len())?;
        let mut scratch = vec![0.0f32; self.k()];
        for (r, out) in out.chunks_exact_mut(self.k()).enumerate() {
            decode_row_half(&self.row(r), half, &mut scratch, out)
                .map_err(|(column, value)| self.half_overflow(half, r, column, value))?;
        }
        Ok(())
    }

    /// The error of a value that does not fit a 16-bit target. `row` counts from the view's first row.
    #[must_use]
    pub fn half_overflow(&self, half: Half, row: usize, column: usize, value: f32) -> FormatError {
        FormatError::HalfOverflow {
            format: self.format().name(),
            row: row as u64,
            column: column as u64,
            value: format!("{value:e}"),
            target: half.name(),
        }
    }

    /// Copies the integers of an `int32` view.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another format, [`FormatError::BufferSize`] for another length.
    pub fn decode_i32(&self, out: &mut [i32]) -> Result<(), FormatError> {
        if self.format().scheme() != Scheme::Direct(DirectKind::Int32) {
            return Err(FormatError::Unsupported {
                format: self.format().name(),
                what: "only int32 tensors decode to int32".into(),
            });
        }
        out_size(self.elements(), out.len())?;
        for (r, out) in out.chunks_exact_mut(self.k()).enumerate() {
            if let RowParts::Direct { bytes, .. } = self.row(r) {
                for (o, w) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = i32::from_le_bytes(*w);
                }
            }
        }
        Ok(())
    }
}
