//! NVFP4 checkpoints to `nvfp4` payloads: codes and scales copied, scale words placed by the swizzle (once), one
//! divisor for each source matrix stacked by rows.

use super::{group_fault, need, refused};
use crate::error::{FormatError, Place, Violation};
use crate::float::e4m3;
use crate::layout::{BlockScale, encoded_size};
use crate::registry::FormatId;
use crate::shape::{ShapeText, overflow, shape_error};
use crate::words::pack_nvfp4;

const FORMAT: FormatId = FormatId::Nvfp4;

/// The global scale of one source matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nvfp4Global {
    /// A divisor, stored as it is (compressed-tensors `weight_global_scale`).
    Divisor(f32),
    /// A multiplier `v`; the stored divisor is `f32(1/v)` (ModelOpt `weight_scale_2`).
    Multiplier(f32),
}

impl Nvfp4Global {
    /// The divisor word of source matrix `index`, which only serves messages.
    ///
    /// # Errors
    /// [`FormatError::Invalid`] if value or divisor is anything but finite and positive.
    pub fn divisor(self, index: usize) -> Result<u32, FormatError> {
        let (given, divisor) = match self {
            Self::Divisor(d) => (d, d),
            Self::Multiplier(v) => (v, 1.0 / v),
        };
        let positive = |v: f32| v.is_finite() && v > 0.0;
        if positive(given) && positive(divisor) {
            return Ok(divisor.to_bits());
        }
        Err(FormatError::Invalid {
            format: FORMAT.name(),
            violation: Violation {
                plane: "divisor",
                place: Place::Divisor { index: index as u64 },
                word: given.to_bits(),
                rule: "a global scale and its divisor must be finite and positive",
            },
        })
    }
}

/// One source matrix.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Source<'a> {
    /// Packed E2M1 pairs, low nibble first, row-major.
    pub codes: &'a [u8],
    /// Shape of the code tensor in bytes: `[N, K / 2]`.
    pub codes_shape: &'a [u64],
    /// E4M3FN scale words, row-major.
    pub scales: &'a [u8],
    /// Shape of the scale tensor: `[N, K / 16]`. A flat tensor is refused: it may be swizzled already.
    pub scales_shape: &'a [u64],
    /// The global scale.
    pub global: Nvfp4Global,
}

impl Nvfp4Source<'_> {
    /// Rows and K.
    fn shape(&self) -> Result<(usize, usize), FormatError> {
        let &[n, half] = self.codes_shape else {
            return Err(shape_error(
                FORMAT,
                self.codes_shape,
                "the code tensor must have rank 2, [N, K / 2] bytes",
            ));
        };
        let k = half.checked_mul(2).ok_or_else(|| overflow(FORMAT, self.codes_shape, "u64"))?;
        let shape = [n, k];
        encoded_size(FORMAT, &shape, 1)?;
        if self.scales_shape != [n, k / 16] {
            let hint =
                if self.scales_shape.len() == 1 { "; a flat tensor may be swizzled already" } else { "" };
            return Err(shape_error(
                FORMAT,
                &shape,
                format!(
                    "the scale tensor has shape {}; it must be [{n}, {}], one scale per 16 columns{hint}",
                    ShapeText::of(self.scales_shape),
                    k / 16
                ),
            ));
        }
        let big = || overflow(FORMAT, &shape, "the address space of this machine");
        let (n, k) = (usize::try_from(n).map_err(|_| big())?, usize::try_from(k).map_err(|_| big())?);
        need("the codes", "bytes", n.checked_mul(k / 2), self.codes.len())?;
        need("the scales", "bytes", n.checked_mul(k / 16), self.scales.len())?;
        Ok((n, k))
    }
}

/// Checks natural scale words `[rows, groups]`: sign bit 0, not NaN.
///
/// # Errors
/// [`FormatError::Refused`] with row (counted from `row0`) and group.
pub fn check_scales(scales: &[u8], groups: usize, row0: u64) -> Result<(), FormatError> {
    match scales.iter().position(|&w| w & 0x80 != 0 || e4m3::is_nan(w)) {
        None => Ok(()),
        Some(i) => {
            let what = if e4m3::is_nan(scales[i]) { "NaN" } else { "negative" };
            let fault = group_fault(i % groups, format!("the scale word {:#04x} is {what}", scales[i]));
            Err(refused(FORMAT, row0 + (i / groups) as u64, &fault))
        }
    }
}

/// Places the natural scale words `[128, k / 16]` of one 128-row tile into the tile's `8 * k` bytes of the plane.
///
/// # Errors
/// [`FormatError::BufferSize`].
pub fn swizzle_tile(scales: &[u8], k: usize, tile: &mut [u8]) -> Result<(), FormatError> {
    need("the scales of a tile", "bytes", k.checked_mul(8), scales.len())?;
    need("a tile of the scale plane", "bytes", k.checked_mul(8), tile.len())?;
    for (n, row) in scales.chunks_exact(k / 16).enumerate() {
        for (g, &w) in row.iter().enumerate() {
            tile[BlockScale::swizzle(n as u64, g as u64, k as u64) as usize] = w;
        }
    }
    Ok(())
}

/// Stacks sources by rows, in order, into a fresh payload of shape `[sum of N, K]` with one divisor for each; returns
/// payload and row count.
///
/// # Errors
/// [`FormatError::Unsupported`] for no sources or sources of different shapes, [`FormatError::Shape`] for shapes off
/// the 128 x 64 tiles or scale columns other than K / 16, [`FormatError::Invalid`] for a global scale,
/// [`FormatError::Refused`] for a negative or NaN block scale (rows as in the stacked tensor).
pub fn import_nvfp4(sources: &[Nvfp4Source<'_>]) -> Result<(Vec<u8>, usize), FormatError> {
    let unsupported = |what: String| FormatError::Unsupported { format: FORMAT.name(), what };
    let Some(first) = sources.first() else {
        return Err(unsupported("an import needs at least one source matrix".into()));
    };
    let (rows, k) = first.shape()?;
    let mut codes = Vec::new();
    let mut scales = Vec::new();
    let mut divisors = Vec::with_capacity(sources.len());
    for (i, source) in sources.iter().enumerate() {
        let shape = source.shape()?;
        if shape != (rows, k) {
            return Err(unsupported(format!(
                "stacked sources must have one shape: source {i} is [{}, {}], source 0 is [{rows}, {k}]",
                shape.0, shape.1
            )));
        }
        divisors.push(source.global.divisor(i)?);
        check_scales(source.scales, k / 16, (i * rows) as u64)?;
        codes.extend_from_slice(source.codes);
        scales.extend_from_slice(source.scales);
    }
    let n = rows * sources.len();
    Ok((pack_nvfp4(FORMAT, n, k, &codes, &scales, &divisors)?, n))
}
