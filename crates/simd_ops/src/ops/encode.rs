//! Values to words: the encoders of `ninfer-formats` over threads and instruction sets, the same words everywhere.

use std::sync::Mutex;

use ninfer_formats::encoder::nvfp4::{self, Nvfp4Encoder};
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, RowFault, RowPlanes, Source};
use ninfer_formats::{FormatError, FormatId, encoded_size};

use crate::error::OpError;
use crate::kernels::{self, with_scratch};
use crate::ops::{Dispatch, Ran};
use crate::pool;

/// Elements that make another thread worth waking: a search takes some ten nanoseconds for each.
const LEAST: usize = 1 << 14;

/// Encodes rows, row-major `[rows, K]`, into `out`, which holds exactly these rows. `row0` is the tensor's row that
/// the source starts at; it only serves messages. binary64 values round once to binary32 first.
///
/// # Errors
/// As [`RowEncoder::encode_rows`], for the first row that breaks a rule whatever the threads, and those of the
/// dispatch; `out` then holds unspecified words.
pub fn encode_rows(
    encoder: &RowEncoder<'_>,
    source: Source<'_>,
    row0: u64,
    out: RowPlanes<'_>,
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    encoder.check_rows(source.len(), &out)?;
    let isa = dispatch.resolve()?;
    let kernel = kernels::encode(isa);
    let (rows, k) = (out.rows(), encoder.k());
    let first: Mutex<Option<(usize, RowFault)>> = Mutex::new(None);
    let ranges = pool::split(rows, dispatch.parts(source.len(), LEAST)?, 1).filter(|r| !r.is_empty());
    let mut rest = Some(out);
    let mut used = 0;
    let items = ranges
        .filter_map(|range| {
            let (part, others) = rest.take()?.split_at(range.len());
            rest = Some(others);
            Some((range, part))
        })
        .inspect(|_| used += 1);
    pool::run(items, |(range, mut part)| {
        let fault = with_scratch(|scratch| {
            range.clone().find_map(|r| {
                let row = source.slice(r * k, (r + 1) * k);
                kernel.call(encoder, row, part.row(r - range.start), scratch).err().map(|fault| (r, fault))
            })
        });
        if let Some(fault) = fault {
            let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if first.as_ref().is_none_or(|(row, _)| fault.0 < *row) {
                *first = Some(fault);
            }
        }
    })?;
    match first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some((row, fault)) => Err(encoder.refused(row0.saturating_add(row as u64), &fault).into()),
        None => Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None }),
    }
}

/// Encodes a whole matrix, row-major `[n, k]`, into a fresh payload of the format's layout.
///
/// # Errors
/// As [`RowEncoder::new`] and [`encode_rows`].
pub fn encode(
    format: FormatId,
    method: EncoderId,
    n: usize,
    k: usize,
    source: Source<'_>,
    params: Params<'_>,
    dispatch: &Dispatch,
) -> Result<(Vec<u8>, Ran), OpError> {
    method.check(format)?;
    let expected = n.checked_mul(k);
    if expected != Some(source.len()) {
        return Err(FormatError::BufferSize {
            what: "the source",
            unit: "elements",
            expected: expected.map_or(u64::MAX, |e| e as u64),
            actual: source.len() as u64,
        }
        .into());
    }
    let size = encoded_size(format, &[n as u64, k as u64], 1)?;
    let size =
        usize::try_from(size).map_err(|_| OpError::TooLarge { what: "a payload", rows: n, columns: k })?;
    if format == FormatId::Nvfp4 {
        return whole_nvfp4(method, n, k, source, params, size, dispatch);
    }
    let encoder = RowEncoder::new(format, method, k, params)?;
    let mut payload = ninfer_formats::zeroed(size)?;
    let planes = RowPlanes::of_payload(format, n, k, &mut payload)?;
    let ran = encode_rows(&encoder, source, 0, planes, dispatch)?;
    Ok((payload, ran))
}

fn whole_nvfp4(
    method: EncoderId,
    n: usize,
    k: usize,
    source: Source<'_>,
    params: Params<'_>,
    size: usize,
    dispatch: &Dispatch,
) -> Result<(Vec<u8>, Ran), OpError> {
    // What is wrong with the parameters is said before the values are looked at.
    Nvfp4Encoder::new(method, k, 1.0, params)?;
    let divisor = nvfp4::divisor(nvfp4_largest(source, k, 0, dispatch)?);
    let encoder = Nvfp4Encoder::new(method, k, divisor, params)?;
    let mut payload = ninfer_formats::zeroed(size)?;
    let [codes, scales, word] = nvfp4::planes(n, k, &mut payload)?;
    word.copy_from_slice(&divisor.to_le_bytes());
    let ran = encode_nvfp4_tiles(&encoder, source, 0, codes, scales, dispatch)?;
    Ok((payload, ran))
}

/// Largest magnitude of rows of `k` values, 0 for none: the first pass of the `nvfp4` methods
/// ([`ninfer_formats::encoder::nvfp4`]). `row0` is the tensor's row that the source starts at, for messages.
///
/// # Errors
/// The first row and column that is not finite or, from binary64, does not fit binary32; those of the dispatch.
pub fn nvfp4_largest(source: Source<'_>, k: usize, row0: u64, dispatch: &Dispatch) -> Result<f32, OpError> {
    dispatch.resolve()?;
    if k == 0 {
        return Ok(0.0);
    }
    let rows = source.len() / k;
    let found: Mutex<(f32, Option<(usize, FormatError)>)> = Mutex::new((0.0, None));
    let ranges = pool::split(rows, dispatch.parts(source.len(), LEAST)?, 1).filter(|r| !r.is_empty());
    pool::run(ranges, |range| {
        let mut largest = 0.0f32;
        let failed = with_scratch(|scratch| {
            range.clone().find_map(|r| {
                let at = row0.saturating_add(r as u64);
                let x = match source.slice(r * k, (r + 1) * k).to_f32(&mut scratch.floats) {
                    Ok(x) => x,
                    Err(fault) => {
                        return Some((r, nvfp4::refused(EncoderId::Nvfp4Maxabs, at, &fault)));
                    }
                };
                match nvfp4::largest(x, k, at) {
                    Ok(v) => largest = largest.max(v),
                    Err(error) => return Some((r, error)),
                }
                None
            })
        });
        let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        found.0 = found.0.max(largest);
        if let Some(failed) = failed
            && found.1.as_ref().is_none_or(|(row, _)| failed.0 < *row)
        {
            found.1 = Some(failed);
        }
    })?;
    match found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        (_, Some((_, error))) => Err(error.into()),
        (largest, None) => Ok(largest),
    }
}

/// Encodes whole tiles of 128 rows, row-major `[rows, K]`: `codes` takes `rows * K / 2` code bytes, `scales` the
/// `rows * K / 16` bytes of the swizzled scale plane that belong to these tiles. `row0` is the tensor's row that the
/// source starts at, for messages.
///
/// # Errors
/// As [`Nvfp4Encoder::encode_tile`], for the first row that breaks a rule whatever the threads, and those of the
/// dispatch; the output then holds unspecified words.
pub fn encode_nvfp4_tiles(
    encoder: &Nvfp4Encoder,
    source: Source<'_>,
    row0: u64,
    codes: &mut [u8],
    scales: &mut [u8],
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    let isa = dispatch.resolve()?;
    let kernel = kernels::encode_nvfp4(isa);
    let k = encoder.k();
    let tile = nvfp4::TILE_ROWS * k;
    let tiles = source.len() / tile;
    for (what, unit, whole, actual) in [
        ("the source of tiles of 128 rows", "elements", tile, source.len()),
        ("the codes of the tiles", "bytes", tile / 2, codes.len()),
        ("the scale words of the tiles", "bytes", tile / nvfp4::GROUP, scales.len()),
    ] {
        if whole * tiles != actual {
            let (expected, actual) = ((whole * tiles) as u64, actual as u64);
            return Err(FormatError::BufferSize { what, unit, expected, actual }.into());
        }
    }
    let first: Mutex<Option<(usize, FormatError)>> = Mutex::new(None);
    let ranges = pool::split(tiles, dispatch.parts(source.len(), LEAST)?, 1).filter(|r| !r.is_empty());
    let mut rest = (codes, scales);
    let mut used = 0;
    let items = ranges
        .map(|range| {
            let (codes, scales) = std::mem::take(&mut rest);
            let (codes, more_codes) = codes.split_at_mut(range.len() * tile / 2);
            let (scales, more_scales) = scales.split_at_mut(range.len() * tile / nvfp4::GROUP);
            rest = (more_codes, more_scales);
            (range, codes, scales)
        })
        .inspect(|_| used += 1);
    pool::run(items, |(range, codes, scales)| {
        let parts = codes.chunks_exact_mut(tile / 2).zip(scales.chunks_exact_mut(tile / nvfp4::GROUP));
        let failed = with_scratch(|scratch| {
            range.zip(parts).find_map(|(t, (codes, scales))| {
                let at = row0.saturating_add((t * nvfp4::TILE_ROWS) as u64);
                let row = |r: usize, codes: &mut [u8], scales: &mut [u8]| {
                    let from = t * tile + r * k;
                    kernel.call(encoder, source.slice(from, from + k), codes, scales, scratch)
                };
                encoder.encode_tile_by(at, tile, codes, scales, row).err().map(|error| (t, error))
            })
        });
        if let Some(failed) = failed {
            let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if first.as_ref().is_none_or(|(t, _)| failed.0 < *t) {
                *first = Some(failed);
            }
        }
    })?;
    match first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some((_, error)) => Err(error.into()),
        None => Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None }),
    }
}
