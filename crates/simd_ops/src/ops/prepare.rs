//! Weights repacked in memory, for products that are formed again and again.

use std::ops::Range;

use ninfer_formats::{FormatId, TensorView};

use crate::error::{OpError, resize};
use crate::kernels::{self, FEW, Width};
use crate::lanes::{self, Form, HalfLine, Line, ROWS, Turned, Words};
use crate::ops::matmul::{Precision, Workspace, check, matmul_in, turned};
use crate::ops::quantize::quantize_q8_1;
use crate::ops::{Dispatch, Ran};
use crate::pool;
use crate::q8_1::Activations;

/// The words of a tensor's rows, interleaved by sixteen: what [`Prepared`] keeps beside the tensor, for callers that
/// cannot keep the two together. See there.
#[derive(Clone, Debug)]
pub struct Repacked {
    /// Format, rows, row length, first row and address of the payload: what the words were made from.
    of: (FormatId, usize, usize, usize, usize),
    form: Option<Form>,
    words: Vec<Line<Words>>,
    halves: Vec<HalfLine>,
}

/// What tells one view from another.
fn identity(view: &TensorView<'_>) -> (FormatId, usize, usize, usize, usize) {
    (view.format(), view.rows(), view.k(), view.first_row(), view.payload().as_ptr().addr())
}

impl Repacked {
    /// Repacks the rows of a view, for the instruction set of the dispatch and with its threads.
    ///
    /// # Errors
    /// [`OpError::Memory`], [`OpError::TooLarge`], and those of the dispatch.
    pub fn new(view: &TensorView<'_>, dispatch: &Dispatch) -> Result<Self, OpError> {
        let isa = dispatch.resolve()?;
        let form = lanes::form(view.format()).filter(|_| kernels::prepared(isa, view.format()).is_some());
        let mut this = Self { of: identity(view), form, words: Vec::new(), halves: Vec::new() };
        let Some(form) = form else { return Ok(this) };
        let tiles = view.rows().div_ceil(ROWS);
        let units = this.units();
        let size = |each: usize| {
            let too_large =
                OpError::TooLarge { what: "the repacked weights", rows: view.rows(), columns: view.k() };
            tiles.checked_mul(units).and_then(|n| n.checked_mul(each)).ok_or(too_large)
        };
        resize(&mut this.words, size(form.words)?, Line::default(), "repacked weights")?;
        resize(&mut this.halves, size(form.halves)?, HalfLine::default(), "repacked weights")?;
        let parts = dispatch.parts(view.elements(), 1 << 20)?;
        let (mut words, mut halves) = (&mut this.words[..], &mut this.halves[..]);
        let items =
            pool::split(view.rows(), parts, ROWS).filter(|rows| !rows.is_empty()).filter_map(|rows| {
                let tiles = rows.len().div_ceil(ROWS);
                let words = words.split_off_mut(..tiles * units * form.words)?;
                let halves = halves.split_off_mut(..tiles * units * form.halves)?;
                Some((view.row_range(rows.start, rows.end).ok()?, words, halves))
            });
        pool::run(items, |(view, words, halves)| (form.turn)(&view, words, halves))?;
        Ok(this)
    }

    /// Bytes of the words.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&self.words[..]) + size_of_val(&self.halves[..])
    }

    fn units(&self) -> usize {
        self.form.map_or(0, |form| self.of.2.div_ceil(32).div_ceil(form.blocks))
    }

    /// The tiles of `rows` rows from row `first` on, a multiple of the height of a tile.
    pub(crate) fn tiles(&self, first: usize, rows: usize) -> Turned<'_> {
        let (words, halves) = self.form.map_or((0, 0), |form| (form.words, form.halves));
        let tiles = first / ROWS..(first + rows).div_ceil(ROWS);
        let of = |each: usize| -> Range<usize> {
            let each = each * self.units();
            tiles.start * each..tiles.end * each
        };
        Turned { words: &self.words[of(words)], halves: &self.halves[of(halves)] }
    }

    /// [`Prepared::matmul`] with the view that was repacked, whose memory must not have changed.
    ///
    /// # Errors
    /// As [`crate::matmul`]; [`OpError::OtherWeights`] for a view of another format, shape or place.
    pub fn matmul(
        &self,
        view: &TensorView<'_>,
        x: Activations<'_>,
        precision: Precision,
        out: &mut [f32],
        dispatch: &Dispatch,
        workspace: &mut Workspace,
    ) -> Result<Ran, OpError> {
        if identity(view) != self.of {
            return Err(OpError::OtherWeights);
        }
        let isa = dispatch.resolve()?;
        let columns = x.columns(view.k())?;
        let kernel = self.form.and_then(|_| kernels::prepared(isa, view.format()));
        match kernel {
            Some(kernel) if precision == Precision::A8 && (1..=FEW).contains(&columns) => {
                check(view, columns, out)?;
                let mut q8_1 = std::mem::take(&mut workspace.q8_1);
                let parts = quantize_q8_1(x, view.k(), &mut q8_1, dispatch)
                    .and_then(|_| turned(view, self, &kernel, &q8_1, out, dispatch));
                workspace.q8_1 = q8_1;
                Ok(Ran { isa, kernel: kernel.isa, parts: parts?, width: Some(Width::Prepared) })
            }
            _ => matmul_in(view, x, precision, out, dispatch, workspace),
        }
    }
}

/// A tensor and the same words repacked: rows interleaved by sixteen, as A8 products of one to sixteen columns want
/// them. Never needed, and never other bits: [`Prepared::matmul`] gives those of [`crate::matmul`].
///
/// The repacked form takes as many bytes as the stored rows ([`Prepared::bytes`]; rows rounded up to a multiple of
/// sixteen, padding groups left out), lives until this is dropped, and is never written anywhere. The stored rows
/// stay in use for all other products. Formats without an integer path (`bf16`, `fp32`, `fp8`) have no such form:
/// preparing them does nothing, and `bytes` is 0; so it is on instruction sets that have no kernels for it.
///
/// ```
/// use ninfer_formats::{FormatId, TensorView};
/// use ninfer_simd_ops::{Activations, Dispatch, Precision, Prepared, Workspace};
///
/// let payload = vec![0x11; 2 * 18]; // two rows of one q4_0 block
/// let view = TensorView::new(FormatId::GgufQ4_0, &[2, 32], 1, &payload)?;
/// let prepared = Prepared::new(&view, &Dispatch::default())?;
/// let (x, mut y, mut workspace) = ([1.0f32; 32], [0.0; 2], Workspace::default());
/// for _ in 0..3 {
///     let x = Activations::F32(&x);
///     prepared.matmul(x, Precision::A8, &mut y, &Dispatch::default(), &mut workspace)?;
/// }
/// # Ok::<(), ninfer_simd_ops::OpError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Prepared<'a> {
    view: TensorView<'a>,
    repacked: Repacked,
}

impl<'a> Prepared<'a> {
    /// Repacks the rows of a view, for the instruction set of the dispatch and with its threads.
    ///
    /// # Errors
    /// As [`Repacked::new`].
    pub fn new(view: &TensorView<'a>, dispatch: &Dispatch) -> Result<Self, OpError> {
        Ok(Self { view: *view, repacked: Repacked::new(view, dispatch)? })
    }

    /// The tensor.
    #[must_use]
    pub fn view(&self) -> &TensorView<'a> {
        &self.view
    }

    /// Bytes of the repacked form.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.repacked.bytes()
    }

    /// [`crate::matmul_in`]: from the repacked form where that is made for the product, else from the stored rows.
    ///
    /// # Errors
    /// As [`crate::matmul`].
    pub fn matmul(
        &self,
        x: Activations<'_>,
        precision: Precision,
        out: &mut [f32],
        dispatch: &Dispatch,
        workspace: &mut Workspace,
    ) -> Result<Ran, OpError> {
        self.repacked.matmul(&self.view, x, precision, out, dispatch, workspace)
    }
}
