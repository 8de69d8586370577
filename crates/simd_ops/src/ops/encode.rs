//! Values to words: the encoders of `ninfer-formats` over threads and instruction sets, the same words everywhere.

use std::sync::Mutex;

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
    let encoder = RowEncoder::new(format, method, k, params)?;
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
    let mut payload = ninfer_formats::zeroed(size)?;
    let planes = RowPlanes::of_payload(format, n, k, &mut payload)?;
    let ran = encode_rows(&encoder, source, 0, planes, dispatch)?;
    Ok((payload, ran))
}
