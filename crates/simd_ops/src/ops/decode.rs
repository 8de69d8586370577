//! Weights to values.

use std::ops::Range;
use std::sync::Mutex;

use ninfer_formats::codec::{self, Half};
use ninfer_formats::{FormatId, Scheme, TensorView};

use crate::error::OpError;
use crate::isa::Isa;
use crate::kernels::{self, DecodeFn, NarrowFn, Picked, with_scratch};
use crate::ops::{Dispatch, Ran};
use crate::{arch, pool, scalar};

/// Elements that make another thread worth waking.
const LEAST: usize = 1 << 16;

/// Elements of a row from which on it is not worth seeing rows of direct words as one.
const SHORT: usize = 64;

/// Elements decoded at a time on the way to 16-bit words: 8 KiB of binary32 stay in the first-level cache.
const RUN: usize = 2048;

/// Elements of an output that is written past the caches, which it would only sweep: 32 MiB of binary32.
const LARGE: usize = 1 << 23;

/// Decodes all rows of the view to binary32, row-major; `out` holds `rows * K` elements.
///
/// 2^23 elements (32 MiB) and more are written past the caches, but for formats that take longer to decode than to write:
/// the output is in memory afterwards, and what the caches held before stays.
///
/// # Errors
/// As [`TensorView::check_float_output`], and those of the dispatch.
pub fn decode_f32(view: &TensorView<'_>, out: &mut [f32], dispatch: &Dispatch) -> Result<Ran, OpError> {
    view.check_float_output(out.len())?;
    let isa = dispatch.resolve()?;
    let kernel = kernels::decode(isa, view.format());
    let parts = dispatch.parts(view.elements(), LEAST)?;
    if view.elements() >= LARGE && quick(view.format()) {
        let mut used = 0;
        pool::run(pieces(view, out, parts, &mut used), |piece| {
            with_scratch(|scratch| {
                scratch.floats.resize(RUN, 0.0);
                piece_streamed(&piece.view, kernel, &mut scratch.floats, piece.out);
            });
        })?;
        return Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None });
    }
    if parts == 1 && (view.k() >= SHORT || !matches!(view.format().scheme(), Scheme::Direct(_))) {
        // Straight to the kernel: single rows are decoded by the thousand.
        pool::run(std::iter::once(out), |out| kernel.call(view, 0..view.k(), out))?;
        return Ok(Ran { isa, kernel: kernel.isa, parts: 1, width: None });
    }
    let mut used = 0;
    pool::run(pieces(view, out, parts, &mut used), |piece| {
        kernel.call(&piece.view, 0..piece.view.k(), piece.out);
    })?;
    Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None })
}

/// Decodes all rows of the view to binary16 or bfloat16 words with one rounding, nearest-even; NaNs become quiet.
///
/// # Errors
/// As [`TensorView::check_float_output`], those of the dispatch, and
/// [`ninfer_formats::FormatError::HalfOverflow`] for the first element (in row-major order, whatever the threads)
/// whose finite value is beyond the target's range; `out` then holds unspecified words.
pub fn decode_half(
    view: &TensorView<'_>,
    half: Half,
    out: &mut [u16],
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    view.check_float_output(out.len())?;
    let isa = dispatch.resolve()?;
    let kernel = kernels::decode(isa, view.format());
    let narrow = kernels::narrow(isa);
    let first: Mutex<Option<(usize, f32)>> = Mutex::new(None);
    let mut used = 0;
    pool::run(pieces(view, out, dispatch.parts(view.elements(), LEAST)?, &mut used), |piece| {
        let found = with_scratch(|scratch| {
            scratch.floats.resize(RUN.max(view.k()), 0.0);
            piece_half(&piece.view, half, kernel, narrow, &mut scratch.floats, piece.out)
        });
        if let Err((index, value)) = found {
            let index = piece.first + index;
            let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if first.is_none_or(|(at, _)| index < at) {
                *first = Some((index, value));
            }
        }
    })?;
    match first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some((index, value)) => {
            Err(view.half_overflow(half, index / view.k(), index % view.k(), value).into())
        }
        None => Ok(Ran { isa, kernel: kernel.isa, parts: used, width: None }),
    }
}

/// Copies the integers of an `int32` view; `out` holds `rows * K` elements.
///
/// # Errors
/// As [`TensorView::decode_i32`], and those of the dispatch.
pub fn decode_i32(view: &TensorView<'_>, out: &mut [i32], dispatch: &Dispatch) -> Result<Ran, OpError> {
    if out.len() != view.elements() || view.format() != ninfer_formats::FormatId::Int32 {
        view.decode_i32(out)?;
    }
    let isa = dispatch.resolve()?;
    let mut used = 0;
    let failed = Mutex::new(None);
    pool::run(pieces(view, out, dispatch.parts(view.elements(), LEAST)?, &mut used), |piece| {
        if let Err(error) = piece.view.decode_i32(piece.out) {
            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
        }
    })?;
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error.into()),
        None => Ok(Ran { isa, kernel: Isa::Scalar, parts: used, width: None }),
    }
}

/// Consecutive elements of a view, and where they go.
struct Piece<'a, 'o, T> {
    view: TensorView<'a>,
    first: usize,
    out: &'o mut [T],
}

/// Splits a view into at most `parts` pieces, counted in `used`. Rows are kept whole, but direct words, which have
/// neither rows nor groups in their layout, are cut anywhere and seen as one row.
fn pieces<'a, 'o, T>(
    view: &TensorView<'a>,
    out: &'o mut [T],
    parts: usize,
    used: &mut usize,
) -> impl Iterator<Item = Piece<'a, 'o, T>> {
    let view = *view;
    let flat = match view.format().scheme() {
        Scheme::Direct(kind) => Some(kind.word_bytes()),
        _ => None,
    };
    let (units, grain) = if flat.is_some() { (view.elements(), 4096) } else { (view.rows(), 1) };
    let elements = if flat.is_some() { 1 } else { view.k() };
    // An empty view has no pieces; every other one is split into non-empty ranges.
    let ranges = pool::split(units, parts, grain).filter(|range| !range.is_empty());
    let mut rest = out;
    ranges
        .filter_map(move |range| {
            let piece = match flat {
                Some(word) => {
                    let begin = (view.first_row() * view.k() + range.start) * word;
                    let bytes = &view.payload()[begin..begin + range.len() * word];
                    TensorView::new(view.format(), &[1, range.len() as u64], 1, bytes)
                }
                None => view.row_range(range.start, range.end),
            };
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(range.len() * elements);
            rest = tail;
            // Both constructors were given ranges within the view.
            piece.ok().map(|view| Piece { view, first: range.start * elements, out: head })
        })
        .inspect(|_| *used += 1)
}

/// Makes the words of `nvfp4` those of the real quotients, which `values` are rounded from.
///
/// Both roundings together differ from one only where the binary32 value is a tie of the second: its neighbours of the
/// 16-bit type lie equally far, and which side the quotient was on is gone. The quads of groups that hold such a value
/// are rounded anew from the words. The test takes every tie, and of small binary16 results some more.
fn round_quotients(
    panel: &TensorView<'_>,
    half: Half,
    run: &Range<usize>,
    values: &[f32],
    words: &mut [u16],
) {
    let tie = |x: f32| {
        let bits = x.to_bits();
        match half {
            Half::Bfloat16 => bits & 0xffff == 0x8000,
            // From 2^-14 on 13 bits are dropped, below it more; up to 2^-26 everything rounds to zero.
            Half::Binary16 => {
                let magnitude = bits & 0x7fff_ffff;
                let small = (0x3280_0000..0x3880_0000).contains(&magnitude) && bits & 0x1fff == 0;
                bits & 0x1fff == 0x1000 || small
            }
        }
    };
    let quads = values.as_chunks::<64>().0.iter().zip(words.as_chunks_mut::<64>().0);
    for (i, (values, words)) in quads.enumerate() {
        if values.iter().fold(false, |any, &x| any | tie(x)) {
            let (row, column) = (64 * i / run.len(), run.start + 64 * i % run.len());
            let parts = scalar::decode::run(&panel.row(row), &(column..column + 64));
            // Overflow is looked for by the caller, in order.
            let _ = codec::decode_row_half(&parts, half, &mut [0.0; 64], words);
        }
    }
}

/// Whether a format decodes as fast as memory takes the output; for others the ordinary stores cost nothing, and the copy
/// would (measured: grid types and nvfp4 lost a fifth).
fn quick(format: FormatId) -> bool {
    use FormatId as F;
    !matches!(
        format,
        F::Nvfp4
            | F::GgufIq2Xxs
            | F::GgufIq2Xs
            | F::GgufIq2S
            | F::GgufIq3Xxs
            | F::GgufIq3S
            | F::GgufIq1S
            | F::GgufIq1M
    )
}

/// Decodes one piece in runs that stay in the first-level cache, and writes them past the caches.
fn piece_streamed(view: &TensorView<'_>, kernel: Picked<DecodeFn>, floats: &mut [f32], out: &mut [f32]) {
    let k = view.k();
    let rows = (RUN / k).max(1);
    for r in (0..view.rows()).step_by(rows) {
        let Ok(panel) = view.row_range(r, (r + rows).min(view.rows())) else { continue };
        for begin in (0..k).step_by(RUN) {
            let run = begin..(begin + RUN).min(k);
            let floats = &mut floats[..panel.rows() * run.len()];
            kernel.call(&panel, run, floats);
            arch::stream(floats, &mut out[r * k + begin..][..floats.len()]);
        }
    }
    arch::streamed();
}

/// Decodes one piece to 16-bit words; the error is the first element that overflowed, and its value.
fn piece_half(
    view: &TensorView<'_>,
    half: Half,
    kernel: Picked<DecodeFn>,
    narrow: Picked<NarrowFn>,
    floats: &mut [f32],
    out: &mut [u16],
) -> Result<(), (usize, f32)> {
    let k = view.k();
    let quotients = view.format().scheme() == Scheme::Nvfp4;
    let rows = (RUN / k).max(1);
    for r in (0..view.rows()).step_by(rows) {
        let end = (r + rows).min(view.rows());
        let Ok(panel) = view.row_range(r, end) else { continue };
        for begin in (0..k).step_by(RUN) {
            let run = begin..(begin + RUN).min(k);
            let floats = &mut floats[..panel.rows() * run.len()];
            let words = &mut out[r * k + begin..][..floats.len()];
            kernel.call(&panel, run.clone(), floats);
            let infinite = narrow.call(half, floats, words);
            if quotients {
                round_quotients(&panel, half, &run, floats, words);
            }
            if infinite {
                codec::check_half(half, floats, words).map_err(|(i, v)| (r * k + begin + i, v))?;
            }
        }
    }
    Ok(())
}
