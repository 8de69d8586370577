//! Reading rows: values, integers, and words of registered formats.

use std::ops::Range;

use ninfer_formats::FormatId;
use ninfer_formats::encoder::RowPlanes;
use ninfer_formats::float::{bf16, e2m1, e4m3, f16};
use ninfer_formats::import::{Fp8Import, Fp8Scales, Nvfp4Global, Nvfp4Source};

use super::SafetensorsSource;
use super::companions::{At, Reading, TILE};
use crate::error::{ArtifactError, ArtifactErrorKind as K};
use crate::source::words::{floats, integers};
use crate::source::{Content, TensorSource, bad_word, check_planes, check_rows, copy_rows};

/// The bytes `begin..end` of `row` bytes each.
fn cut<'a>(bytes: &'a [u8], rows: &Range<u64>, row: usize) -> Option<&'a [u8]> {
    let at = |n: u64| usize::try_from(n).ok()?.checked_mul(row);
    bytes.get(at(rows.start)?..at(rows.end)?)
}

fn changed() -> ArtifactError {
    ArtifactError::new(K::SourceChanged)
}

impl SafetensorsSource {
    /// The tensor's reading, unless its content says that it cannot be read.
    fn reading(&self, tensor: usize, wanted: &'static str) -> Result<Reading, ArtifactError> {
        self.tensor(tensor)?;
        match self.readings.get(tensor) {
            Some(Reading::Nothing) | None => Err(self.wrong_content(tensor, wanted)),
            Some(reading) => Ok(*reading),
        }
    }

    pub(super) fn values(
        &self,
        tensor: usize,
        rows: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), ArtifactError> {
        const WANTED: &str = "floating-point values";
        let reading = self.reading(tensor, WANTED)?;
        let (_, k) = check_rows(self.tensor(tensor)?, &rows, Some(out.len()))?;
        if out.is_empty() {
            return Ok(());
        }
        self.values_of(tensor, reading, &rows, k, out).map_err(|e| self.in_tensor(tensor, e))
    }

    fn values_of(
        &self,
        tensor: usize,
        reading: Reading,
        rows: &Range<u64>,
        k: usize,
        out: &mut [f32],
    ) -> Result<(), ArtifactError> {
        match reading {
            Reading::Plain(at) => {
                let Content::Values(kind) = self.tensor(tensor)?.content else {
                    return Err(self.wrong_content(tensor, "floating-point values"));
                };
                let bytes = cut(self.data(at)?, rows, k * kind.bytes()).ok_or_else(changed)?;
                floats(kind, bytes, out).map_err(|bad| bad_word(bad, rows.start, k))
            }
            Reading::Fp8Rows { codes, scale, global } => {
                let codes = cut(self.data(codes)?, rows, k).ok_or_else(changed)?;
                let which = if global { 0..1 } else { rows.clone() };
                let scales = self.scales(scale, &which)?;
                for (r, (codes, out)) in codes.chunks_exact(k).zip(out.chunks_exact_mut(k)).enumerate() {
                    let s = scales[if global { 0 } else { r }];
                    for (o, &c) in out.iter_mut().zip(codes) {
                        *o = e4m3::to_f32(c) * s;
                    }
                }
                Ok(())
            }
            Reading::Fp8Blocks { codes, scale } => {
                let codes = cut(self.data(codes)?, rows, k).ok_or_else(changed)?;
                let side = TILE as usize;
                let grid = k.div_ceil(side);
                // Scales of the tile rows that these rows lie in.
                let first = rows.start / TILE;
                let tiles = first * grid as u64..rows.end.div_ceil(TILE) * grid as u64;
                let scales = self.scales(scale, &tiles)?;
                for (r, (codes, out)) in codes.chunks_exact(k).zip(out.chunks_exact_mut(k)).enumerate() {
                    let tile = ((rows.start + r as u64) / TILE - first) as usize;
                    let scales = &scales[tile * grid..(tile + 1) * grid];
                    for ((out, codes), &s) in out.chunks_mut(side).zip(codes.chunks(side)).zip(scales) {
                        for (o, &c) in out.iter_mut().zip(codes) {
                            *o = e4m3::to_f32(c) * s;
                        }
                    }
                }
                Ok(())
            }
            Reading::Nvfp4 { codes, scale, global, multiplier } => {
                let codes = cut(self.data(codes)?, rows, k / 2).ok_or_else(changed)?;
                let scales = cut(self.data(scale)?, rows, k / 16).ok_or_else(changed)?;
                let global = self.scales(global, &(0..1))?[0];
                if !(global.is_finite() && global > 0.0) {
                    let rule = format!("the global scale {global:e} is not finite and positive");
                    return Err(ArtifactError::new(K::SourceWord { row: 0, column: 0, rule }));
                }
                let groups = codes.as_chunks::<8>().0.iter().zip(scales).zip(out.as_chunks_mut::<16>().0);
                for ((codes, &scale), out) in groups {
                    // Products of code and scale are exact; the global scale rounds once.
                    let s = e4m3::to_f32(scale);
                    let values =
                        e2m1::TO_F32.map(|v| if multiplier { v * s * global } else { v * s / global });
                    for (pair, &c) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *pair = [values[usize::from(c & 15)], values[usize::from(c >> 4)]];
                    }
                }
                Ok(())
            }
            Reading::Nothing => Err(self.wrong_content(tensor, "floating-point values")),
        }
    }

    /// Elements of a stored tensor of scales as binary32, exactly.
    fn scales(&self, at: At, which: &Range<u64>) -> Result<Vec<f32>, ArtifactError> {
        let data = self.data(at)?;
        let word = if self.stored(at).dtype == "F32" { 4 } else { 2 };
        let bytes = cut(data, which, word).ok_or_else(changed)?;
        Ok(match &*self.stored(at).dtype {
            "F32" => bytes.as_chunks::<4>().0.iter().map(|w| f32::from_le_bytes(*w)).collect(),
            "F16" => bytes.as_chunks::<2>().0.iter().map(|w| f16::to_f32(u16::from_le_bytes(*w))).collect(),
            _ => bytes.as_chunks::<2>().0.iter().map(|w| bf16::to_f32(u16::from_le_bytes(*w))).collect(),
        })
    }

    pub(super) fn integers(
        &self,
        tensor: usize,
        rows: Range<u64>,
        out: &mut [i64],
    ) -> Result<(), ArtifactError> {
        const WANTED: &str = "integers";
        let reading = self.reading(tensor, WANTED)?;
        let t = self.tensor(tensor)?;
        let (Reading::Plain(at), Content::Integers(kind)) = (reading, &t.content) else {
            return Err(self.wrong_content(tensor, WANTED));
        };
        let (_, k) = check_rows(t, &rows, Some(out.len()))?;
        if out.is_empty() {
            return Ok(());
        }
        let mut read = || {
            let bytes = cut(self.data(at)?, &rows, k * kind.bytes()).ok_or_else(changed)?;
            integers(*kind, bytes, out).map_err(|bad| bad_word(bad, rows.start, k))
        };
        read().map_err(|e| self.in_tensor(tensor, e))
    }

    pub(super) fn import(
        &self,
        tensor: usize,
        format: FormatId,
        rows: Range<u64>,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError> {
        let reading = self.reading(tensor, "anything readable")?;
        if !self.importable(tensor).contains(&format) || format == FormatId::Nvfp4 {
            return Err(self.not_importable(tensor, format));
        }
        let (n, k) = check_rows(self.tensor(tensor)?, &rows, None)?;
        check_planes(out, format, n, k).map_err(|e| self.in_tensor(tensor, e))?;
        if n == 0 {
            return Ok(());
        }
        self.import_of(tensor, reading, &rows, k, out).map_err(|e| self.in_tensor(tensor, e))
    }

    fn import_of(
        &self,
        tensor: usize,
        reading: Reading,
        rows: &Range<u64>,
        k: usize,
        out: &mut RowPlanes<'_>,
    ) -> Result<(), ArtifactError> {
        match reading {
            Reading::Plain(at) => {
                copy_rows(cut(self.data(at)?, rows, out.row_bytes()[0]).ok_or_else(changed)?, out);
                Ok(())
            }
            Reading::Fp8Rows { codes, scale, global } => {
                let codes = cut(self.data(codes)?, rows, k).ok_or_else(changed)?;
                let which = if global { 0..1 } else { rows.clone() };
                let n = out.rows();
                let shape: &[u64] = if global { &[] } else { &[n as u64] };
                let format = |e| ArtifactError::new(K::Format(e));
                let import = |scales: Fp8Scales<'_>, out: &mut RowPlanes<'_>| {
                    // No overflow: the row is inside a mapped tensor.
                    let import = Fp8Import::new(n, k, scales, shape)?.starting_at(rows.start as usize);
                    import.import_rows(codes, 0, out)
                };
                if self.stored(scale).dtype == "BF16" {
                    // Words, so that they are copied and not rounded.
                    let bytes = cut(self.data(scale)?, &which, 2).ok_or_else(changed)?;
                    let words: Vec<u16> =
                        bytes.as_chunks::<2>().0.iter().map(|w| u16::from_le_bytes(*w)).collect();
                    return import(Fp8Scales::Bf16(&words), out).map_err(format);
                }
                import(Fp8Scales::F32(&self.scales(scale, &which)?), out).map_err(format)
            }
            _ => Err(self.wrong_content(tensor, "rows of words")),
        }
    }

    pub(super) fn nvfp4_parts(&self, tensor: usize) -> Result<Nvfp4Source<'_>, ArtifactError> {
        const WANTED: &str = "nvfp4 codes and scales";
        let Reading::Nvfp4 { codes, scale, global, multiplier } = self.reading(tensor, WANTED)? else {
            return Err(self.wrong_content(tensor, WANTED));
        };
        let parts = || {
            let value = self.scales(global, &(0..1))?[0];
            Ok(Nvfp4Source {
                codes: self.data(codes)?,
                codes_shape: &self.stored(codes).shape,
                scales: self.data(scale)?,
                scales_shape: &self.stored(scale).shape,
                global: if multiplier { Nvfp4Global::Multiplier(value) } else { Nvfp4Global::Divisor(value) },
            })
        };
        parts().map_err(|e| self.in_tensor(tensor, e))
    }
}
