//! Products with chosen experts of a bank.

use std::ops::Range;

use ninfer_formats::{Scheme, TensorView};

use crate::error::{OpError, resize};
use crate::kernels::{self, Columns, Scratch, with_scratch};
use crate::ops::matmul::{GRAIN, LEAST, Precision, Workspace, no_integers, one_nan};
use crate::ops::quantize::quantize_q8_1;
use crate::ops::{Dispatch, Ran};
use crate::pool;
use crate::q8_1::{Activations, Q8_1};
use crate::tile::{Output, Tile};

/// Products of columns with chosen experts: `out[i] = W[ids[i]] X[i / J]`, with the weights read where they lie.
///
/// `bank` holds `experts` matrices of N rows, one after the other: a matrix `[experts * N, K]` (a view of some of a
/// bank's experts will do). `x` is `[T, K]`. `ids` are the choices: J numbers for each column in turn, so that there
/// are `T * J` of them; with J = 1 every choice has a column of its own. `out` is `[T * J, N]`. Choices may repeat. A
/// column is quantised once, a row of weights unpacked once for all columns of its expert, and the bits of `out[i]`
/// are those of [`crate::matmul`] with the rows of that expert and that column.
///
/// What is returned tells of the expert with the most columns. Without choices nothing runs but the checks.
///
/// # Errors
/// [`OpError::Bank`] if the rows are no whole number of experts, [`OpError::Expert`] for a choice outside the bank,
/// [`OpError::Length`] for choices that are no multiple of the columns and for the output, [`OpError::Memory`], and
/// those of [`crate::matmul`]. Nothing is written then.
#[allow(clippy::too_many_arguments, reason = "the product's operands, and how it is to run")]
pub fn matmul_experts(
    bank: &TensorView<'_>,
    experts: usize,
    ids: &[usize],
    x: Activations<'_>,
    precision: Precision,
    out: &mut [f32],
    dispatch: &Dispatch,
    workspace: &mut Workspace,
) -> Result<Ran, OpError> {
    no_integers(bank)?;
    if experts == 0 || !bank.rows().is_multiple_of(experts) {
        return Err(OpError::Bank { rows: bank.rows(), experts });
    }
    let (n, k) = (bank.rows() / experts, bank.k());
    let columns = x.columns(k)?;
    if !ids.len().is_multiple_of(columns.max(1)) || (columns == 0 && !ids.is_empty()) {
        return Err(OpError::Length {
            what: "the choices (as many for every column)",
            unit: "experts",
            expected: ids.len().next_multiple_of(columns.max(1)) * usize::from(columns > 0),
            actual: ids.len(),
        });
    }
    if let Some((index, &expert)) = ids.iter().enumerate().find(|(_, expert)| **expert >= experts) {
        return Err(OpError::Expert { index, expert, experts });
    }
    match ids.len().checked_mul(n) {
        Some(expected) if expected == out.len() => {}
        Some(expected) => {
            return Err(OpError::Length {
                what: "the output",
                unit: "elements",
                expected,
                actual: out.len(),
            });
        }
        None => return Err(OpError::TooLarge { what: "the output", rows: n, columns: ids.len() }),
    }
    let mut order = std::mem::take(&mut workspace.order);
    let result = sort(ids, &mut order).and_then(|()| {
        let job = Job { bank, n, order: &order, each: ids.len().checked_div(columns).unwrap_or(1), dispatch };
        job.product(x, precision, out, workspace)
    });
    workspace.order = order;
    result
}

/// Pairs of expert and choice, by expert, choices in order.
fn sort(ids: &[usize], order: &mut Vec<(usize, usize)>) -> Result<(), OpError> {
    resize(order, ids.len(), (0, 0), "the choices of experts")?;
    for (i, (pair, &expert)) in order.iter_mut().zip(ids).enumerate() {
        *pair = (expert, i);
    }
    order.sort_unstable();
    Ok(())
}

/// A checked call.
struct Job<'a> {
    bank: &'a TensorView<'a>,
    n: usize,
    order: &'a [(usize, usize)],
    /// Choices of each column.
    each: usize,
    dispatch: &'a Dispatch,
}

/// Rows of one expert, and the columns that chose it, by their places in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    expert: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Job<'_> {
    fn product(
        &self,
        x: Activations<'_>,
        precision: Precision,
        out: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<Ran, OpError> {
        let Workspace { q8_1, floats, gathered, products, .. } = workspace;
        let (k, isa) = (self.bank.k(), self.dispatch.resolve()?);
        let sources = || self.order.iter().map(|(_, choice)| choice / self.each);
        let integers = !matches!(self.bank.format().scheme(), Scheme::Direct(_) | Scheme::RowScaled(_));
        if precision == Precision::A8 {
            quantize_q8_1(x, k, q8_1, self.dispatch)?;
        }
        resize(products, out.len(), 0.0, "products of experts")?;
        let ran = if precision == Precision::A8 && integers {
            gathered.select(q8_1, sources())?;
            let x: &Q8_1 = gathered;
            let kernel = |columns: usize| kernels::a8(isa, self.bank.format(), columns);
            self.run(products, |view, columns, tile, scratch| {
                kernel(columns.len()).call(view, x, columns, tile, scratch);
            })
            .map(|parts| {
                let picked = kernel(self.most());
                Ran { isa, kernel: picked.isa, parts, width: Some(picked.width()) }
            })
        } else {
            resize(floats, self.order.len().saturating_mul(k), 0.0, "gathered activations")?;
            for (to, t) in floats.chunks_exact_mut(k).zip(sources()) {
                match precision {
                    Precision::A16 => x.expand(t * k..(t + 1) * k, to),
                    Precision::A8 => q8_1.represented(t, to),
                }
            }
            let x = Columns::new(floats, k);
            let kernel = |columns: usize| kernels::a16(isa, self.bank.format(), columns);
            self.run(products, |view, columns, tile, scratch| {
                kernel(columns.len()).call(view, &x, columns, tile, scratch);
            })
            .map(|parts| {
                let picked = kernel(self.most());
                Ran { isa, kernel: picked.isa, parts, width: Some(picked.width()) }
            })
        }?;
        for (from, (_, choice)) in products.chunks_exact(self.n.max(1)).zip(self.order) {
            out[choice * self.n..(choice + 1) * self.n].copy_from_slice(from);
        }
        Ok(ran)
    }

    /// Columns of each chosen expert, in the order.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        self.order.chunk_by(|a, b| a.0 == b.0).map(move |group| {
            at += group.len();
            at - group.len()..at
        })
    }

    fn most(&self) -> usize {
        self.groups().map(|columns| columns.len()).max().unwrap_or(0)
    }

    /// The work of part `part` of `parts`: about equally many products each, rows cut at whole tiles.
    fn pieces(&self, part: usize, parts: usize) -> Vec<Piece> {
        let total = (self.order.len() * self.n) as u128;
        let bounds = [part, part + 1].map(|i| (total * i as u128 / parts as u128) as usize);
        let mut pieces = Vec::new();
        for columns in self.groups() {
            let before = columns.start * self.n;
            let cut = |bound: usize| {
                let row = bound.saturating_sub(before) / columns.len();
                if row < self.n { row / GRAIN * GRAIN } else { self.n }
            };
            let rows = cut(bounds[0])..cut(bounds[1]);
            if !rows.is_empty() {
                pieces.push(Piece { expert: self.order[columns.start].0, rows, columns });
            }
        }
        pieces
    }

    /// Runs all pieces; `out` is `[choices, N]` in the order. Returns the number of parts.
    fn run(
        &self,
        out: &mut [f32],
        kernel: impl Fn(&TensorView<'_>, Range<usize>, &mut Tile<'_>, &mut Scratch) + Sync,
    ) -> Result<usize, OpError> {
        let work = out.len().saturating_mul(self.bank.k());
        let parts =
            self.dispatch.parts(work, LEAST)?.min(self.n.div_ceil(GRAIN).max(1) * self.order.len().max(1));
        if out.is_empty() {
            return Ok(1);
        }
        let output = Output::new(out, self.n, self.order.len());
        let mut used = 0;
        let items =
            (0..parts).map(|part| self.pieces(part, parts)).filter(|p| !p.is_empty()).inspect(|_| used += 1);
        pool::run(items, |pieces: Vec<Piece>| {
            for piece in pieces {
                let first = piece.expert * self.n;
                let rows = self.bank.row_range(first + piece.rows.start, first + piece.rows.end);
                let Ok(view) = rows else { continue };
                // SAFETY: pieces have different columns, or disjoint rows: each expert is one group, and the cuts of
                // neighbouring parts are the same.
                let mut tile = unsafe { output.tile(piece.rows, piece.columns.clone()) };
                with_scratch(|scratch| kernel(&view, piece.columns.clone(), &mut tile, scratch));
                one_nan(&mut tile, piece.columns);
            }
        })?;
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ninfer_formats::FormatId;

    #[test]
    fn pieces_cover_every_product_once() {
        for (n, experts, ids) in
            [(1, 3, vec![2, 0, 2]), (40, 4, vec![3, 3, 3, 0, 1, 3]), (33, 2, vec![1; 9]), (5, 1, vec![0])]
        {
            let payload = vec![0u8; experts * n * 4];
            let shape = [(experts * n) as u64, 1];
            let bank = TensorView::new(FormatId::Fp32, &shape, 1, &payload).unwrap();
            let mut order = Vec::new();
            sort(&ids, &mut order).unwrap();
            let dispatch = Dispatch::default();
            let job = Job { bank: &bank, n, order: &order, each: 1, dispatch: &dispatch };
            for parts in [1, 2, 3, 7] {
                let mut seen = vec![0; ids.len() * n];
                for piece in (0..parts).flat_map(|part| job.pieces(part, parts)) {
                    for t in piece.columns {
                        assert_eq!(order[t].0, piece.expert);
                        for row in piece.rows.clone() {
                            seen[t * n + row] += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "{n} {ids:?} {parts}: {seen:?}");
            }
        }
    }
}
