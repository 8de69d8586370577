//! Payloads from logical words and back, and payloads of slices and gathers. Codes are moved, never re-quantised.

use crate::error::{FormatError, Place, Violation};
use crate::layout::{BlockScale, RowSplit, encoded_size};
use crate::memory::{with_capacity, zeroed};
use crate::registry::FormatId;
use crate::scheme::{GroupCode, GroupedScheme, RowScale, Scheme};
use crate::shape::{align_up, buffer_len};
use crate::view::{RowParts, TensorView};

/// Logical words of a grouped tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedWords {
    /// Signed codes, `[N, K]` row-major.
    pub codes: Vec<i8>,
    /// binary16 scale words, `[N, ceil(K / G)]` row-major.
    pub scales: Vec<u16>,
}

/// Logical words of an `nvfp4` tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvfp4Words {
    /// E2M1 codes packed in pairs along K, low nibble first: `[N, K / 2]`.
    pub codes: Vec<u8>,
    /// E4M3FN scale words in natural order: `[N, K / 16]`.
    pub scales: Vec<u8>,
    /// Divisor words, binary32 bits.
    pub divisors: Vec<u32>,
}

/// Logical words of a row-scaled FP8 tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowScaledWords {
    /// E4M3FN codes, `[N, K]` row-major.
    pub codes: Vec<u8>,
    /// Row multiplier words, `[N]`.
    pub scales: Vec<u16>,
}

fn need(
    what: &'static str,
    unit: &'static str,
    expected: Option<usize>,
    actual: usize,
) -> Result<(), FormatError> {
    if expected == Some(actual) {
        return Ok(());
    }
    let expected = expected.map_or(u64::MAX, |e| e as u64);
    Err(FormatError::BufferSize { what, unit, expected, actual: actual as u64 })
}

fn wrong_category(format: FormatId, what: &str) -> FormatError {
    FormatError::Unsupported {
        format: format.name(),
        what: format!("{what} does not apply to a {} format", format.scheme().category().name()),
    }
}

fn usize_shape(format: FormatId, n: usize, k: usize, divisors: usize) -> Result<usize, FormatError> {
    let shape = [n as u64, k as u64];
    buffer_len(format, &shape, encoded_size(format, &shape, divisors as u64)?)
}

/// Encodes grouped codes and scales into a fresh `row_split_k128_v1` payload with canonical padding.
///
/// `codes` are `[N, K]` signed codes, `scales` `[N, ceil(K / G)]` binary16 words, both row-major. Scale words are
/// copied as they are; see [`TensorView::violations`] for their rules.
///
/// # Errors
/// Wrong category, shape or buffer lengths; [`FormatError::Invalid`] naming the first code outside the format's
/// interval.
pub fn pack_grouped(
    format: FormatId,
    n: usize,
    k: usize,
    codes: &[i8],
    scales: &[u16],
) -> Result<Vec<u8>, FormatError> {
    let Scheme::Grouped(s) = format.scheme() else {
        return Err(wrong_category(format, "pack_grouped"));
    };
    let bytes = usize_shape(format, n, k, 1)?;
    let groups = k.div_ceil(s.group);
    need("codes", "elements", n.checked_mul(k), codes.len())?;
    need("scales", "elements", n.checked_mul(groups), scales.len())?;
    if let Some(i) = codes.iter().position(|&q| q < s.code_min || q > s.code_max) {
        return Err(FormatError::Invalid {
            format: format.name(),
            violation: Violation {
                plane: "code",
                place: Place::Column { row: (i / k) as u64, column: (i % k) as u64 },
                word: u32::from(codes[i] as u8),
                rule: crate::validate::code_rule(&s),
            },
        });
    }
    let Some(plan) = RowSplit::plan(&s, n as u64, k as u64) else {
        return Err(crate::shape::overflow(format, &[n as u64, k as u64], "u64"));
    };
    let mut out = zeroed(bytes)?;
    let (head, scale_plane) = out.split_at_mut(plan.scale_at as usize);
    let (base_plane, high_plane) = head.split_at_mut(plan.high_at as usize);
    let (base_row, high_row, scale_row) =
        (plan.base_row as usize, plan.high_row as usize, plan.scale_row as usize);
    let mut lanes = vec![0i8; plan.groups as usize * s.group];
    for r in 0..n {
        lanes[..k].copy_from_slice(&codes[r * k..(r + 1) * k]);
        pack_codes(
            &s,
            &lanes,
            &mut base_plane[r * base_row..(r + 1) * base_row],
            &mut high_plane[r * high_row..(r + 1) * high_row],
        );
        let row = &mut scale_plane[r * scale_row..(r + 1) * scale_row];
        for (word, s) in row.as_chunks_mut::<2>().0.iter_mut().zip(&scales[r * groups..(r + 1) * groups]) {
            *word = s.to_le_bytes();
        }
    }
    Ok(out)
}

/// Packs whole groups of one row: lanes are a multiple of the group size.
pub(crate) fn pack_codes(s: &GroupedScheme, lanes: &[i8], base: &mut [u8], high: &mut [u8]) {
    match s.bits {
        2 => {
            let offset = if s.code == GroupCode::OffsetByOne { 1 } else { 0 };
            for (b, q) in base.iter_mut().zip(lanes.as_chunks::<4>().0) {
                let u = q.map(|v| (v + offset) as u8 & 3);
                *b = u[0] | u[1] << 2 | u[2] << 4 | u[3] << 6;
            }
        }
        8 => {
            for (b, &q) in base.iter_mut().zip(lanes) {
                *b = q as u8;
            }
        }
        _ => {
            for (b, q) in base.iter_mut().zip(lanes.as_chunks::<2>().0) {
                *b = (q[0] as u8 & 15) | (q[1] as u8 & 15) << 4;
            }
            if s.bits == 5 {
                for (h, q) in high.iter_mut().zip(lanes.as_chunks::<8>().0) {
                    *h = q.iter().enumerate().fold(0, |h, (t, &v)| h | (v as u8 >> 4 & 1) << t);
                }
            } else if s.bits == 6 {
                for (h, q) in high.iter_mut().zip(lanes.as_chunks::<4>().0) {
                    *h = q.iter().enumerate().fold(0, |h, (t, &v)| h | (v as u8 >> 4 & 3) << (2 * t));
                }
            }
        }
    }
}

/// Signed codes of whole groups of one row, the inverse of packing. `base` and `high` are those groups' bytes in the
/// two planes; `lanes` holds the groups' elements.
///
/// Illegal words come out as what the bits say: `t2_g128_fp16` word `0b10` is -2, `q8_g32_fp16` byte `0x80` is -128.
#[inline(always)]
pub fn unpack_codes(s: &GroupedScheme, base: &[u8], high: &[u8], lanes: &mut [i8]) {
    match s.bits {
        2 => {
            let offset = s.code == GroupCode::OffsetByOne;
            for (q, &b) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(base) {
                for (t, v) in q.iter_mut().enumerate() {
                    let u = (b >> (2 * t) & 3) as i8;
                    *v = if offset { u - 1 } else { u - ((u & 2) << 1) };
                }
            }
        }
        8 => {
            for (q, &b) in lanes.iter_mut().zip(base) {
                *q = b as i8;
            }
        }
        4 => {
            for (q, &b) in lanes.as_chunks_mut::<2>().0.iter_mut().zip(base) {
                *q = [((b << 4) as i8) >> 4, (b as i8) >> 4];
            }
        }
        5 => {
            for ((q, b), &h) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(base.as_chunks::<4>().0).zip(high)
            {
                for (t, v) in q.iter_mut().enumerate() {
                    let u = (b[t / 2] >> (4 * (t % 2)) & 15) | (h >> t & 1) << 4;
                    *v = ((u << 3) as i8) >> 3;
                }
            }
        }
        _ => {
            for ((q, b), &h) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(base.as_chunks::<2>().0).zip(high)
            {
                for (t, v) in q.iter_mut().enumerate() {
                    let u = (b[t / 2] >> (4 * (t % 2)) & 15) | (h >> (2 * t) & 3) << 4;
                    *v = ((u << 2) as i8) >> 2;
                }
            }
        }
    }
}

/// Encodes `nvfp4` words into a fresh `block_scale_k16_m128x4_v1` payload.
///
/// `codes` are `[N, K / 2]` packed pairs, `scales` `[N, K / 16]` in natural order (they are swizzled here, once),
/// `divisors` binary32 words. All words are copied as they are.
///
/// # Errors
/// Wrong category, shape, divisor count or buffer lengths.
pub fn pack_nvfp4(
    format: FormatId,
    n: usize,
    k: usize,
    codes: &[u8],
    scales: &[u8],
    divisors: &[u32],
) -> Result<Vec<u8>, FormatError> {
    if format.scheme() != Scheme::Nvfp4 {
        return Err(wrong_category(format, "pack_nvfp4"));
    }
    let bytes = usize_shape(format, n, k, divisors.len())?;
    need("codes", "bytes", n.checked_mul(k / 2), codes.len())?;
    need("scales", "bytes", n.checked_mul(k / 16), scales.len())?;
    let Some(plan) = BlockScale::plan(n as u64, k as u64, divisors.len() as u64) else {
        return Err(crate::shape::overflow(format, &[n as u64, k as u64], "u64"));
    };
    let mut out = zeroed(bytes)?;
    out[..codes.len()].copy_from_slice(codes);
    let plane = &mut out[plan.scale_at as usize..];
    let groups = k / 16;
    for (i, &w) in scales.iter().enumerate() {
        plane[BlockScale::swizzle((i / groups) as u64, (i % groups) as u64, k as u64) as usize] = w;
    }
    for (d, word) in divisors.iter().zip(out[plan.divisor_at as usize..].as_chunks_mut::<4>().0) {
        *word = d.to_le_bytes();
    }
    Ok(out)
}

/// Encodes FP8 codes and row multipliers into a fresh payload of the format's layout.
///
/// `codes` are `[N, K]` E4M3FN words, `scales` `[N]` multiplier words (bfloat16 or binary16, as the format says).
///
/// # Errors
/// Wrong category, shape or buffer lengths.
pub fn pack_row_scaled(
    format: FormatId,
    n: usize,
    k: usize,
    codes: &[u8],
    scales: &[u16],
) -> Result<Vec<u8>, FormatError> {
    let Scheme::RowScaled(kind) = format.scheme() else {
        return Err(wrong_category(format, "pack_row_scaled"));
    };
    let bytes = usize_shape(format, n, k, 1)?;
    need("codes", "bytes", n.checked_mul(k), codes.len())?;
    need("scales", "elements", Some(n), scales.len())?;
    let mut out = zeroed(bytes)?;
    match kind {
        RowScale::Bf16 => {
            out[..codes.len()].copy_from_slice(codes);
            let at = bytes - 2 * n;
            for (w, s) in out[at..].as_chunks_mut::<2>().0.iter_mut().zip(scales) {
                *w = s.to_le_bytes();
            }
        }
        RowScale::Fp16 => {
            for ((record, codes), s) in out.chunks_exact_mut(k + 2).zip(codes.chunks_exact(k)).zip(scales) {
                record[..k].copy_from_slice(codes);
                record[k..].copy_from_slice(&s.to_le_bytes());
            }
        }
    }
    Ok(out)
}

impl TensorView<'_> {
    /// Codes and scales of a grouped tensor, bit for bit (padding left out).
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another category.
    pub fn grouped_words(&self) -> Result<GroupedWords, FormatError> {
        let Scheme::Grouped(s) = self.format().scheme() else {
            return Err(wrong_category(self.format(), "grouped words"));
        };
        let (n, k) = (self.rows(), self.k());
        let groups = k.div_ceil(s.group);
        let mut words = GroupedWords { codes: with_capacity(n * k)?, scales: with_capacity(n * groups)? };
        let mut lanes = vec![0i8; k.next_multiple_of(128)];
        for r in 0..n {
            if let RowParts::Grouped { scheme, base, high, scales } = self.row(r) {
                unpack_codes(&scheme, base, high, &mut lanes);
                words.codes.extend_from_slice(&lanes[..k]);
                let row = &scales.as_chunks::<2>().0[..groups];
                words.scales.extend(row.iter().map(|&w| u16::from_le_bytes(w)));
            }
        }
        Ok(words)
    }

    /// Codes, natural scales and divisors of an `nvfp4` tensor, bit for bit. A view of some rows gives the divisors
    /// that its slice payload would have (see [`TensorView::gather_payload`]).
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another category, or for rows that are not whole tiles.
    pub fn nvfp4_words(&self) -> Result<Nvfp4Words, FormatError> {
        if self.format().scheme() != Scheme::Nvfp4 {
            return Err(wrong_category(self.format(), "nvfp4 words"));
        }
        let (n, k) = (self.rows(), self.k());
        let rows: Vec<usize> = (0..n).collect();
        let divisors = self.gather_divisors(&rows)?;
        let mut words =
            Nvfp4Words { codes: with_capacity(n * k / 2)?, scales: with_capacity(n * k / 16)?, divisors };
        for r in 0..n {
            if let RowParts::Nvfp4 { codes, scales, .. } = self.row(r) {
                words.codes.extend_from_slice(codes);
                words.scales.extend((0..scales.len()).map(|g| scales.word(g)));
            }
        }
        Ok(words)
    }

    /// Codes and multipliers of an FP8 tensor, bit for bit.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another category.
    pub fn row_scaled_words(&self) -> Result<RowScaledWords, FormatError> {
        if !matches!(self.format().scheme(), Scheme::RowScaled(_)) {
            return Err(wrong_category(self.format(), "row-scaled words"));
        }
        let mut words =
            RowScaledWords { codes: with_capacity(self.elements())?, scales: with_capacity(self.rows())? };
        for r in 0..self.rows() {
            if let RowParts::RowScaled { codes, scale, .. } = self.row(r) {
                words.codes.extend_from_slice(codes);
                words.scales.push(scale);
            }
        }
        Ok(words)
    }

    /// A fresh payload that holds this view's rows alone, and its divisor count. Spans are copied, codes are neither
    /// decoded nor re-packed; gaps are zero.
    ///
    /// # Errors
    /// As [`TensorView::gather_payload`].
    pub fn slice_payload(&self) -> Result<(Vec<u8>, usize), FormatError> {
        let rows: Vec<usize> = (0..self.rows()).collect();
        self.gather_payload(&rows)
    }

    /// A fresh payload of the given rows of this view, in the given order, repeats allowed, and its divisor count.
    ///
    /// `nvfp4` rows must come as whole tiles: runs of 128 consecutive rows that start at a multiple of 128 of the
    /// payload. Their payload has the fewest equal sections whose rows each come from one source matrix: one divisor
    /// if all rows share one, as many as before for the whole tensor, at most one per tile.
    ///
    /// # Errors
    /// [`FormatError::RowRange`] for a row outside the view, [`FormatError::Unsupported`] for no rows at all or
    /// partial `nvfp4` tiles.
    pub fn gather_payload(&self, rows: &[usize]) -> Result<(Vec<u8>, usize), FormatError> {
        let format = self.format();
        if let Some(&bad) = rows.iter().find(|&&r| r >= self.rows()) {
            return Err(FormatError::RowRange {
                format: format.name(),
                begin: bad as u64,
                end: bad as u64 + 1,
                rows: self.rows() as u64,
            });
        }
        if rows.is_empty() {
            return Err(FormatError::Unsupported {
                format: format.name(),
                what: "a tensor without rows has no payload; gather at least one row".into(),
            });
        }
        let (n, k) = (rows.len(), self.k());
        let divisors = self.gather_divisors(rows)?;
        let bytes = match format.scheme() {
            Scheme::Direct(_) => usize_shape(format, n, k, 1)?,
            _ => usize_shape(format, n, k, divisors.len())?,
        };
        let mut out = zeroed(bytes)?;
        match format.scheme() {
            Scheme::Grouped(s) => {
                let Some(plan) = RowSplit::plan(&s, n as u64, k as u64) else {
                    return Err(crate::shape::overflow(format, &[n as u64, k as u64], "u64"));
                };
                for (i, &r) in rows.iter().enumerate() {
                    if let RowParts::Grouped { base, high, scales, .. } = self.row(r) {
                        put(&mut out, i * base.len(), base);
                        put(&mut out, plan.high_at as usize + i * high.len(), high);
                        put(&mut out, plan.scale_at as usize + i * scales.len(), scales);
                    }
                }
            }
            Scheme::Nvfp4 => {
                let Some(plan) = BlockScale::plan(n as u64, k as u64, divisors.len() as u64) else {
                    return Err(crate::shape::overflow(format, &[n as u64, k as u64], "u64"));
                };
                for (tile, chunk) in rows.chunks_exact(128).enumerate() {
                    let spans = self.row_range(chunk[0], chunk[0] + 128)?.spans()?;
                    put(&mut out, tile * 64 * k, &self.payload()[spans[0].clone()]);
                    put(&mut out, plan.scale_at as usize + tile * 8 * k, &self.payload()[spans[1].clone()]);
                }
                for (i, d) in divisors.iter().enumerate() {
                    put(&mut out, plan.divisor_at as usize + 4 * i, &d.to_le_bytes());
                }
            }
            Scheme::RowScaled(RowScale::Bf16) => {
                let scale_at = align_up((n * k) as u64, 256).map_or(0, |a| a as usize);
                for (i, &r) in rows.iter().enumerate() {
                    if let RowParts::RowScaled { codes, scale, .. } = self.row(r) {
                        put(&mut out, i * k, codes);
                        put(&mut out, scale_at + 2 * i, &scale.to_le_bytes());
                    }
                }
            }
            Scheme::RowScaled(RowScale::Fp16) => {
                for (i, &r) in rows.iter().enumerate() {
                    if let RowParts::RowScaled { codes, scale, .. } = self.row(r) {
                        put(&mut out, i * (k + 2), codes);
                        put(&mut out, i * (k + 2) + k, &scale.to_le_bytes());
                    }
                }
            }
            Scheme::Direct(_) | Scheme::Gguf(_) => {
                for (i, &r) in rows.iter().enumerate() {
                    if let RowParts::Direct { bytes, .. } | RowParts::Blocks { blocks: bytes, .. } =
                        self.row(r)
                    {
                        put(&mut out, i * bytes.len(), bytes);
                    }
                }
            }
        }
        Ok((out, divisors.len()))
    }

    /// Divisors that the payload of these rows alone has (see [`TensorView::gather_payload`]); 1 unless `nvfp4`.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for `nvfp4` rows that are not whole tiles.
    pub fn slice_divisors(&self) -> Result<usize, FormatError> {
        if self.format().scheme() != Scheme::Nvfp4 {
            return Ok(1);
        }
        let rows: Vec<usize> = (0..self.rows()).collect();
        Ok(self.gather_divisors(&rows)?.len())
    }

    /// Divisor words of a gathered `nvfp4` payload; one meaningless word for other formats.
    fn gather_divisors(&self, rows: &[usize]) -> Result<Vec<u32>, FormatError> {
        if self.format().scheme() != Scheme::Nvfp4 {
            return Ok(vec![0]);
        }
        let whole = rows.len().is_multiple_of(128)
            && rows.chunks_exact(128).all(|c| {
                (self.first_row() + c[0]).is_multiple_of(128) && c.iter().zip(c[0]..).all(|(&a, b)| a == b)
            });
        if !whole {
            return Err(FormatError::Unsupported {
                format: self.format().name(),
                what: "rows must come as whole tiles of 128 consecutive rows".into(),
            });
        }
        let sources: Vec<usize> =
            rows.chunks_exact(128).map(|c| (self.first_row() + c[0]) / self.rows_per_divisor()).collect();
        let tiles = sources.len();
        let sections = (1..=tiles)
            .find(|&d| {
                tiles.is_multiple_of(d)
                    && sources.chunks_exact(tiles / d).all(|section| section.iter().all(|&s| s == section[0]))
            })
            .unwrap_or(1);
        Ok(sources.chunks_exact(tiles / sections.max(1)).map(|c| self.divisor_word(c[0])).collect())
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
