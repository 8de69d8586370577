//! Products.

use std::ops::Range;

use ninfer_formats::{DirectKind, FormatError, Scheme, TensorView};

use crate::error::{OpError, resize};
use crate::isa::Isa;
use crate::kernels::{self, Columns, Picked, PreparedFn, Scratch, with_scratch};
use crate::ops::prepare::Repacked;
use crate::ops::quantize::quantize_q8_1;
use crate::ops::{Dispatch, Ran};
use crate::order::RESULT_NAN;
use crate::pool;
use crate::q8_1::{Activations, Q8_1};
use crate::tile::{Output, Tile};

/// What the activations are taken as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As given: binary32, or bfloat16 expanded exactly.
    A16,
    /// Quantised to `q8_1` first.
    A8,
}

impl Precision {
    /// The precision's name in public interfaces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A16 => "a16",
            Self::A8 => "a8",
        }
    }
}

/// Memory that products keep from call to call.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    pub(super) q8_1: Q8_1,
    pub(super) floats: Vec<f32>,
    /// For products with chosen experts.
    pub(super) gathered: Q8_1,
    pub(super) products: Vec<f32>,
    pub(super) order: Vec<(usize, usize)>,
}

/// Rows that parts are whole multiples of: the height of the widest kernels' tiles.
pub(super) const GRAIN: usize = crate::lanes::ROWS;

/// Multiplications that make another thread worth waking.
pub(super) const LEAST: usize = 1 << 18;

/// `Y = W X`: every row of the view with every column of `x`.
///
/// `x` is `[T, K]` (the K values of a column contiguous), `out` `[T, N]` with N the view's rows. The bits of
/// `out[t, n]` depend on row `n` and column `t` alone; [`crate::order`] says how they come about.
///
/// # Errors
/// [`OpError::Length`] for lengths that do not match, [`OpError::NonFinite`] for an A8 activation that is NaN or
/// infinite, [`FormatError::Unsupported`] for `int32`, and those of the dispatch.
pub fn matmul(
    view: &TensorView<'_>,
    x: Activations<'_>,
    precision: Precision,
    out: &mut [f32],
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    matmul_in(view, x, precision, out, dispatch, &mut Workspace::default())
}

/// [`matmul`] with the caller's memory: once it has grown to the shapes in use, calls do not allocate it anew.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_in(
    view: &TensorView<'_>,
    x: Activations<'_>,
    precision: Precision,
    out: &mut [f32],
    dispatch: &Dispatch,
    workspace: &mut Workspace,
) -> Result<Ran, OpError> {
    let columns = x.columns(view.k())?;
    check(view, columns, out)?;
    match (precision, x) {
        (Precision::A16, Activations::F32(x)) => a16(view, x, columns, out, dispatch),
        (Precision::A16, Activations::Bf16(words)) => {
            resize(&mut workspace.floats, words.len(), 0.0, "expanded activations")?;
            x.expand(0..words.len(), &mut workspace.floats);
            a16(view, &workspace.floats, columns, out, dispatch)
        }
        (Precision::A8, _) => {
            let mut q8_1 = std::mem::take(&mut workspace.q8_1);
            let result = quantize_q8_1(x, view.k(), &mut q8_1, dispatch)
                .and_then(|_| matmul_q8_1(view, &q8_1, out, dispatch, workspace));
            workspace.q8_1 = q8_1;
            result
        }
    }
}

/// The A8 product with activations that are quantised already, for several weights with one input.
///
/// `x` holds T columns of the view's K values; `out` is `[T, N]`.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_q8_1(
    view: &TensorView<'_>,
    x: &Q8_1,
    out: &mut [f32],
    dispatch: &Dispatch,
    workspace: &mut Workspace,
) -> Result<Ran, OpError> {
    let k = view.k();
    if x.k() != k {
        return Err(OpError::Length {
            what: "a quantised column",
            unit: "values",
            expected: k,
            actual: x.k(),
        });
    }
    check(view, x.columns(), out)?;
    match view.format().scheme() {
        Scheme::Direct(_) | Scheme::RowScaled(_) => {
            resize(&mut workspace.floats, x.columns() * k, 0.0, "represented activations")?;
            for (t, column) in workspace.floats.chunks_exact_mut(k).enumerate() {
                x.represented(t, column);
            }
            a16(view, &workspace.floats, x.columns(), out, dispatch)
        }
        Scheme::Grouped(_) | Scheme::Nvfp4 | Scheme::Gguf(_) => {
            let isa = dispatch.resolve()?;
            let kernel = kernels::a8(isa, view.format(), x.columns());
            let parts = rows(view, x.columns(), out, dispatch, |view, tile, scratch| {
                kernel.call(view, x, 0..x.columns(), tile, scratch);
            })?;
            Ok(Ran { isa, kernel: kernel.isa, parts, width: Some(kernel.width()) })
        }
    }
}

fn a16(
    view: &TensorView<'_>,
    x: &[f32],
    columns: usize,
    out: &mut [f32],
    dispatch: &Dispatch,
) -> Result<Ran, OpError> {
    let isa: Isa = dispatch.resolve()?;
    let kernel = kernels::a16(isa, view.format(), columns);
    let x = Columns::new(x, view.k());
    let parts = rows(view, columns, out, dispatch, |view, tile, scratch| {
        kernel.call(view, &x, 0..columns, tile, scratch);
    })?;
    Ok(Ran { isa, kernel: kernel.isa, parts, width: Some(kernel.width()) })
}

pub(super) fn no_integers(view: &TensorView<'_>) -> Result<(), OpError> {
    if view.format().scheme() == Scheme::Direct(DirectKind::Int32) {
        return Err(FormatError::Unsupported {
            format: view.format().name(),
            what: "integers are not weights; there is no product with them".into(),
        }
        .into());
    }
    Ok(())
}

pub(super) fn check(view: &TensorView<'_>, columns: usize, out: &[f32]) -> Result<(), OpError> {
    no_integers(view)?;
    match view.rows().checked_mul(columns) {
        Some(expected) if expected == out.len() => Ok(()),
        Some(expected) => {
            Err(OpError::Length { what: "the output", unit: "elements", expected, actual: out.len() })
        }
        None => Err(OpError::TooLarge { what: "the output", rows: view.rows(), columns }),
    }
}

/// The A8 product of turned rows.
pub(super) fn turned(
    view: &TensorView<'_>,
    repacked: &Repacked,
    kernel: &Picked<PreparedFn>,
    x: &Q8_1,
    out: &mut [f32],
    dispatch: &Dispatch,
) -> Result<usize, OpError> {
    rows(view, x.columns(), out, dispatch, |part, tile, scratch| {
        let first = part.first_row() - view.first_row();
        kernel.call(part, repacked.tiles(first, part.rows()), x, tile, scratch);
    })
}

/// Splits the rows over threads, and makes NaN results one word. Returns the number of parts.
fn rows(
    view: &TensorView<'_>,
    columns: usize,
    out: &mut [f32],
    dispatch: &Dispatch,
    kernel: impl Fn(&TensorView<'_>, &mut Tile<'_>, &mut Scratch) + Sync,
) -> Result<usize, OpError> {
    let parts = dispatch.parts(view.elements().saturating_mul(columns), LEAST)?;
    if out.is_empty() {
        return Ok(1);
    }
    let output = Output::new(out, view.rows(), columns);
    let mut used = 0;
    let items = pool::split(view.rows(), parts, GRAIN)
        .filter_map(|range| Some((view.row_range(range.start, range.end).ok()?, range)))
        .map(|(view, range)| {
            // SAFETY: the ranges of `split` are disjoint, and no other tiles of this output exist.
            (view, unsafe { output.tile(range, 0..columns) })
        })
        .inspect(|_| used += 1);
    pool::run(items, |(view, mut tile)| {
        with_scratch(|scratch| kernel(&view, &mut tile, scratch));
        one_nan(&mut tile, 0..columns);
    })?;
    Ok(used)
}

/// Makes every NaN of the columns the one word that stands for them.
pub(super) fn one_nan(tile: &mut Tile<'_>, columns: Range<usize>) {
    for t in columns {
        // Without branches first, sixteen at a time: there hardly ever is one.
        for run in tile.column(t).chunks_mut(16) {
            if run.iter().fold(false, |any, y| any | y.is_nan()) {
                for y in run.iter_mut().filter(|y| y.is_nan()) {
                    *y = RESULT_NAN;
                }
            }
        }
    }
}
