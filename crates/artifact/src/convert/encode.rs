//! Working out the words of some rows of a planned tensor.

use std::ops::Range;
use std::sync::PoisonError;

use ninfer_formats::encoder::nvfp4::{self, Nvfp4Encoder};
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, RowPlanes, Source, Values, cast_direct};
use ninfer_formats::float::bf16;
use ninfer_formats::import::nvfp4::{check_scales, swizzle_tile};
use ninfer_formats::layout::BlockScale;
use ninfer_formats::{FormatError, FormatId, Place, ShapeText, TensorView, encoded_size};
use ninfer_simd_ops::{Dispatch, encode_nvfp4_tiles, encode_rows, nvfp4_largest, row_errors};

use super::planned::{MethodUsed, Piece, PlannedTensor, RecipePlan};
use super::statistics::RowStatistics;
use crate::error::{ArtifactError, ArtifactErrorKind as K};
use crate::source::{Content, TensorSource};

/// Rows of a tile of `nvfp4`.
pub(super) const TILE: u64 = 128;
/// Bytes that encoders keep beside the buffers counted here: what a search needs for a row, and stacks.
pub(super) const SCRATCH: u64 = 64 << 10;

/// Words of some rows of a planned tensor, and the sums of each row's errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EncodedRows {
    /// A payload of the format with just these rows (and for `nvfp4` one divisor).
    pub payload: Vec<u8>,
    /// One entry a row; empty for imported words, which have no error.
    pub statistics: Vec<RowStatistics>,
}

/// Memory for one unit of work, kept from unit to unit.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) values: Vec<f32>,
    integers: Vec<i64>,
    pub(super) out: EncodedRows,
    importance: Option<(usize, usize, usize, Vec<f32>)>,
}

/// What a unit of `rows` rows needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    values: u64,
    integers: u64,
    payload: u64,
    statistics: u64,
    fixed: u64,
}

impl Need {
    /// All of it.
    pub(super) fn total(&self) -> u64 {
        [self.values, self.integers, self.payload, self.statistics, self.fixed]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// For `rows` rows of a tensor; `None` if the format cannot have so many.
    pub(super) fn of(plan: &RecipePlan, t: &PlannedTensor, rows: u64) -> Option<Self> {
        let k = t.k();
        let elements = rows.checked_mul(k)?;
        let payload = encoded_size(t.format, &[rows, k], 1).ok()?;
        let mut need = Self { payload, fixed: SCRATCH, ..Self::default() };
        if t.is_encoded() {
            let integers = t.pieces.iter().any(|p| holds_integers(plan, p));
            if integers {
                need.integers = elements.checked_mul(8)?;
            } else {
                need.values = elements.checked_mul(4)?;
                need.statistics = rows.checked_mul(size_of::<RowStatistics>() as u64)?;
            }
            // Importance, a row of cast words, and the search's own copies of a row.
            need.fixed = SCRATCH.checked_add(k.checked_mul(32)?)?;
        }
        Some(need)
    }
}

fn holds_integers(plan: &RecipePlan, piece: &Piece) -> bool {
    let tensor = plan.source.tensors().get(piece.source);
    tensor.is_some_and(|t| matches!(t.content, Content::Integers(_)))
}

impl Buffers {
    /// Makes room for a unit and nothing more than it needs or `limit` allows; returns the bytes held.
    pub(super) fn fit(&mut self, need: &Need, limit: u64) -> Result<u64, ArtifactError> {
        if self.held(need) > limit {
            *self = Self::default();
        }
        room(&mut self.values, need.values / 4)?;
        room(&mut self.integers, need.integers / 8)?;
        room(&mut self.out.payload, need.payload)?;
        room(&mut self.out.statistics, need.statistics / size_of::<RowStatistics>() as u64)?;
        Ok(self.held(&Need::default()) + need.fixed)
    }

    /// Bytes held once there is room for `need`.
    fn held(&self, need: &Need) -> u64 {
        let one = |capacity: usize, size: usize, need: u64| ((capacity * size) as u64).max(need);
        one(self.values.capacity(), 4, need.values)
            + one(self.integers.capacity(), 8, need.integers)
            + one(self.out.payload.capacity(), 1, need.payload)
            + one(self.out.statistics.capacity(), size_of::<RowStatistics>(), need.statistics)
            + need.fixed
    }
}

/// Exactly as much room as is missing: growth by doubling would break the budget. What is in it may stay.
fn room<T>(buffer: &mut Vec<T>, len: u64) -> Result<(), ArtifactError> {
    let too_large = |bytes| ArtifactError::new(K::TooLarge { bytes });
    let len = usize::try_from(len).map_err(|_| too_large(len))?;
    if buffer.capacity() < len {
        *buffer = Vec::new();
        buffer.try_reserve_exact(len).map_err(|_| too_large(len as u64 * size_of::<T>() as u64))?;
    }
    Ok(())
}

/// Where rows of a planned tensor come from: the piece, its position, and the rows of the source.
pub(super) fn piece_of<'t>(
    t: &'t PlannedTensor,
    rows: &Range<u64>,
) -> Result<(usize, &'t Piece, Range<u64>), ArtifactError> {
    let mut begin = 0;
    for (i, piece) in t.pieces.iter().enumerate() {
        let end = begin + (piece.rows.end - piece.rows.start);
        if rows.start < end {
            if rows.end > end || rows.start >= rows.end {
                break;
            }
            let at = |r: u64| piece.rows.start + (r - begin);
            return Ok((i, piece, at(rows.start)..at(rows.end)));
        }
        begin = end;
    }
    let kind = K::SourceRows { begin: rows.start, end: rows.end, rows: t.rows() };
    Err(ArtifactError::new(kind).in_object(&t.name))
}

/// Cuts a tensor into units of at most `most` rows that lie in one piece, in one expert where importance has several,
/// and on whole tiles where the format has them.
pub(super) fn units<'p>(
    plan: &'p RecipePlan,
    t: &'p PlannedTensor,
    most: u64,
) -> impl Iterator<Item = Range<u64>> + use<'p> {
    let most = if t.format == FormatId::Nvfp4 { (most / TILE).max(1) * TILE } else { most.max(1) };
    let mut base = 0;
    t.pieces.iter().flat_map(move |piece| {
        let rows = piece.rows.clone();
        let per_expert = rows_per_expert(plan, piece);
        let first = base;
        base += rows.end - rows.start;
        let mut at = rows.start;
        std::iter::from_fn(move || {
            let begin = at;
            // Units begin at multiples of `most` of the piece, and experts at their own.
            let expert_end = (at / per_expert).saturating_add(1).saturating_mul(per_expert);
            at = at.saturating_add(most).min(rows.end).min(expert_end);
            (begin < at).then(|| first + (begin - rows.start)..first + (at - rows.start))
        })
    })
}

/// Rows of one expert, if importance tells them apart.
fn rows_per_expert(plan: &RecipePlan, piece: &Piece) -> u64 {
    let several = piece.importance.as_ref().map_or(1, |i| i.experts() as u64);
    match plan.source.tensors().get(piece.source) {
        Some(t) if several > 1 => (t.rows() / several).max(1),
        _ => u64::MAX,
    }
}

impl RecipePlan {
    /// Works out the words of rows of a planned tensor that lie in one of its pieces. Results do not depend on how
    /// rows are chunked, the instruction set, or threads.
    ///
    /// # Errors
    /// A tensor of the caller's own method; rows outside the tensor or across pieces; what reading, importing and
    /// encoding refuse, with tensor and row.
    pub fn encode(
        &self,
        tensor: usize,
        rows: Range<u64>,
        dispatch: &Dispatch,
    ) -> Result<EncodedRows, ArtifactError> {
        let t = self.tensor(tensor)?;
        let need = Need::of(self, t, rows.end.saturating_sub(rows.start));
        let mut buffers = Buffers::default();
        buffers.fit(&need.unwrap_or_default(), u64::MAX).map_err(|e| self.placed(t, &rows, e))?;
        self.encode_into(tensor, rows, dispatch, &mut buffers)?;
        Ok(buffers.out)
    }

    /// The source's values of rows that lie in one piece of a planned tensor, row-major.
    ///
    /// # Errors
    /// As [`RecipePlan::encode`].
    pub fn values(&self, tensor: usize, rows: Range<u64>, out: &mut [f32]) -> Result<(), ArtifactError> {
        let t = self.tensor(tensor)?;
        let (_, piece, source_rows) = piece_of(t, &rows)?;
        self.source.read_values(piece.source, source_rows, out).map_err(|e| self.placed(t, &rows, e))
    }

    /// Adds to an error of some rows of a planned tensor the tensor of the source and its rows.
    pub(super) fn placed(&self, t: &PlannedTensor, rows: &Range<u64>, e: ArtifactError) -> ArtifactError {
        match piece_of(t, rows) {
            Ok((_, piece, rows)) => self.in_piece(t, piece, rows, e),
            Err(_) => e.in_object(&t.name),
        }
    }

    fn in_piece(
        &self,
        t: &PlannedTensor,
        piece: &Piece,
        rows: Range<u64>,
        e: ArtifactError,
    ) -> ArtifactError {
        let e = e.in_object(&t.name);
        match self.source.tensors().get(piece.source) {
            Some(tensor) => e.in_tensor(&tensor.name).in_rows(rows),
            None => e,
        }
    }

    /// The error of a whole payload, with its place in the part that it lies in (the first, for what lies in none).
    pub(super) fn of_payload(&self, t: &PlannedTensor, mut e: FormatError) -> ArtifactError {
        let mut number = 0;
        if let FormatError::Invalid { violation, .. } = &mut e {
            match &mut violation.place {
                Place::Column { row, .. } | Place::Group { row, .. } | Place::Row { row } => {
                    if let Ok((at, _, rows)) = piece_of(t, &(*row..row.saturating_add(1))) {
                        (number, *row) = (at, rows.start);
                    }
                }
                Place::Divisor { index } => number = usize::try_from(*index).unwrap_or(0),
                Place::Byte { .. } => {}
            }
        }
        let e = ArtifactError::new(K::Format(e));
        match t.pieces.get(number) {
            Some(piece) => self.in_piece(t, piece, piece.rows.clone(), e),
            None => e.in_object(&t.name),
        }
    }

    /// Ranges of rows of a planned tensor that may be encoded on their own, of at most `most` rows (whole tiles for
    /// `nvfp4`).
    ///
    /// # Errors
    /// No such tensor.
    pub fn units(&self, tensor: usize, most: u64) -> Result<Vec<Range<u64>>, ArtifactError> {
        Ok(units(self, self.tensor(tensor)?, most).collect())
    }

    /// The divisor of a piece by its largest magnitude, read once in runs of `rows` rows through `values`.
    fn divisor(
        &self,
        tensor: usize,
        number: usize,
        rows: u64,
        dispatch: &Dispatch,
        values: &mut Vec<f32>,
    ) -> Result<f32, ArtifactError> {
        let t = self.tensor(tensor)?;
        let Some(piece) = t.pieces.get(number) else { return Ok(1.0) };
        let cell = {
            let mut cells = self.divisors.lock().unwrap_or_else(PoisonError::into_inner);
            cells.entry((tensor, number)).or_default().clone()
        };
        let mut known = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(divisor) = *known {
            return Ok(divisor);
        }
        // The plan has checked that the tensor's rows fit this machine.
        let k = usize::try_from(t.k()).unwrap_or(usize::MAX);
        let mut largest = 0.0f32;
        let mut at = piece.rows.start;
        while at < piece.rows.end {
            let end = at.saturating_add(rows.max(1)).min(piece.rows.end);
            let fail = |e: ArtifactError| self.in_piece(t, piece, at..end, e);
            values.resize((end - at) as usize * k, 0.0);
            self.source.read_values(piece.source, at..end, values).map_err(fail)?;
            let found = nvfp4_largest(Source::F32(values), k, at, dispatch).map_err(|e| fail(e.into()))?;
            largest = largest.max(found);
            at = end;
        }
        let divisor = nvfp4::divisor(largest);
        *known = Some(divisor);
        Ok(divisor)
    }

    /// The divisor words of a planned tensor of `nvfp4`, one for each piece.
    pub(super) fn divisor_words(&self, tensor: usize, dispatch: &Dispatch) -> Result<Vec<u8>, ArtifactError> {
        let t = self.tensor(tensor)?;
        let mut words = Vec::new();
        for (number, piece) in t.pieces.iter().enumerate() {
            let word = if t.is_encoded() {
                self.divisor(tensor, number, TILE, dispatch, &mut Vec::new())?.to_bits()
            } else {
                let fail = |e| self.in_piece(t, piece, piece.rows.clone(), e);
                let global = self.source.nvfp4(piece.source).map_err(fail)?.global;
                global.divisor(number).map_err(|e| fail(ArtifactError::new(K::Format(e))))?
            };
            words.extend_from_slice(&word.to_le_bytes());
        }
        Ok(words)
    }

    pub(super) fn encode_into(
        &self,
        tensor: usize,
        rows: Range<u64>,
        dispatch: &Dispatch,
        buffers: &mut Buffers,
    ) -> Result<(), ArtifactError> {
        let t = self.tensor(tensor)?;
        self.words_into(tensor, t, &rows, dispatch, buffers).map_err(|e| self.placed(t, &rows, e))
    }

    fn words_into(
        &self,
        tensor: usize,
        t: &PlannedTensor,
        rows: &Range<u64>,
        dispatch: &Dispatch,
        buffers: &mut Buffers,
    ) -> Result<(), ArtifactError> {
        let (number, piece, source_rows) = piece_of(t, rows)?;
        let format = |e: FormatError| ArtifactError::new(K::Format(e));
        let too_large = || ArtifactError::new(K::TooLarge { bytes: rows.end - rows.start });
        let n = usize::try_from(rows.end - rows.start).map_err(|_| too_large())?;
        let k = usize::try_from(t.k()).map_err(|_| too_large())?;
        let elements = n.checked_mul(k).ok_or_else(too_large)?;
        let size = encoded_size(t.format, &[n as u64, k as u64], 1).map_err(format)?;
        let size = usize::try_from(size).map_err(|_| too_large())?;
        buffers.out.payload.clear();
        buffers.out.payload.resize(size, 0);
        buffers.out.statistics.clear();
        let payload = &mut buffers.out.payload[..];
        match &t.method {
            MethodUsed::Callable(_) => {
                let e = FormatError::Unsupported {
                    format: t.format.name(),
                    what: format!("its words come from {}", t.method.name()),
                };
                return Err(format(e));
            }
            MethodUsed::Import if t.format == FormatId::Nvfp4 => {
                return import_nvfp4(&*self.source, piece.source, &source_rows, payload);
            }
            MethodUsed::Import => {
                let mut planes = RowPlanes::of_payload(t.format, n, k, payload).map_err(format)?;
                return self.source.import_rows(piece.source, t.format, source_rows, &mut planes);
            }
            MethodUsed::Encode(_) => {}
        }
        if holds_integers(self, piece) {
            buffers.integers.clear();
            buffers.integers.resize(elements, 0);
            self.source.read_integers(piece.source, source_rows.clone(), &mut buffers.integers)?;
            let rows = buffers.integers.chunks_exact(k).map(Values::I64);
            return cast_rows(t.format, source_rows.start, k, rows, payload).map_err(format);
        }
        let divisor = match t.format {
            FormatId::Nvfp4 => self.divisor(tensor, number, n as u64, dispatch, &mut buffers.values)?,
            _ => 1.0,
        };
        // All of them are read; what an earlier unit left needs no zeros.
        buffers.values.resize(elements, 0.0);
        self.source.read_values(piece.source, source_rows.clone(), &mut buffers.values)?;
        let weights = importance(self, piece, source_rows.start, tensor, &mut buffers.importance);
        match (&t.method, t.format) {
            (MethodUsed::Encode(EncoderId::CastDirect), FormatId::Bf16) => {
                for (word, &x) in payload.as_chunks_mut::<2>().0.iter_mut().zip(&buffers.values) {
                    *word = bf16::from_f32(x).to_le_bytes();
                }
            }
            (MethodUsed::Encode(EncoderId::CastDirect), FormatId::Fp32) => {
                for (word, &x) in payload.as_chunks_mut::<4>().0.iter_mut().zip(&buffers.values) {
                    *word = x.to_bits().to_le_bytes();
                }
            }
            (MethodUsed::Encode(EncoderId::CastDirect), _) => {
                let rows = buffers.values.chunks_exact(k).map(Values::F32);
                cast_rows(t.format, source_rows.start, k, rows, payload).map_err(format)?;
            }
            (MethodUsed::Encode(encoder), FormatId::Nvfp4) => {
                let params = Params { importance: weights, negative_scales: t.negative_scales };
                let encoder = Nvfp4Encoder::new(*encoder, k, divisor, params).map_err(format)?;
                let [codes, scales, word] = nvfp4::planes(n, k, payload).map_err(format)?;
                word.copy_from_slice(&divisor.to_le_bytes());
                let source = Source::F32(&buffers.values);
                encode_nvfp4_tiles(&encoder, source, source_rows.start, codes, scales, dispatch)?;
            }
            (MethodUsed::Encode(encoder), _) => {
                let params = Params { importance: weights, negative_scales: t.negative_scales };
                let encoder = RowEncoder::new(t.format, *encoder, k, params).map_err(format)?;
                let planes = RowPlanes::of_payload(t.format, n, k, payload).map_err(format)?;
                encode_rows(&encoder, Source::F32(&buffers.values), source_rows.start, planes, dispatch)?;
            }
            _ => {}
        }
        if t.format != FormatId::Int32 {
            let view =
                TensorView::new(t.format, &[n as u64, k as u64], 1, &buffers.out.payload).map_err(format)?;
            compare(&view, &buffers.values, weights, dispatch, &mut buffers.out.statistics)?;
        }
        Ok(())
    }
}

/// The errors of every row of the view.
pub(super) fn compare(
    view: &TensorView<'_>,
    values: &[f32],
    weights: Option<&[f32]>,
    dispatch: &Dispatch,
    out: &mut Vec<RowStatistics>,
) -> Result<(), ArtifactError> {
    out.clear();
    out.resize(view.rows(), RowStatistics::default());
    row_errors(view, values, weights, out, dispatch)?;
    Ok(())
}

/// The importance of the expert that row `row` of the piece's source belongs to, kept for the next rows.
pub(super) fn importance<'b>(
    plan: &RecipePlan,
    piece: &Piece,
    row: u64,
    tensor: usize,
    kept: &'b mut Option<(usize, usize, usize, Vec<f32>)>,
) -> Option<&'b [f32]> {
    let importance = piece.importance.as_ref()?;
    let expert = usize::try_from(row / rows_per_expert(plan, piece)).unwrap_or(0);
    let key = (tensor, piece.source, expert);
    if kept.as_ref().is_none_or(|(t, s, e, _)| (*t, *s, *e) != key) {
        *kept = Some((key.0, key.1, key.2, importance.expert_values(expert)));
    }
    kept.as_ref().map(|(.., values)| &values[..])
}

/// `cast_direct` row by row; errors count rows from `row0`.
fn cast_rows<'v>(
    format: FormatId,
    row0: u64,
    k: usize,
    rows: impl Iterator<Item = Values<'v>>,
    payload: &mut [u8],
) -> Result<(), FormatError> {
    let row_bytes = encoded_size(format, &[1, k as u64], 1)? as usize;
    for (r, (row, out)) in rows.zip(payload.chunks_exact_mut(row_bytes)).enumerate() {
        let words = cast_direct(format, &[1, k as u64], row).map_err(|e| match e {
            FormatError::Source { format, index, value, rule } => {
                let column = index.0.last().copied().unwrap_or(0);
                let index = ShapeText(vec![row0 + r as u64, column]);
                FormatError::Source { format, index, value, rule }
            }
            other => other,
        })?;
        out.copy_from_slice(&words);
    }
    Ok(())
}

/// Imports whole tiles of an `nvfp4` tensor, with its divisor at the end.
fn import_nvfp4(
    source: &dyn TensorSource,
    tensor: usize,
    rows: &Range<u64>,
    payload: &mut [u8],
) -> Result<(), ArtifactError> {
    let format = |e: FormatError| ArtifactError::new(K::Format(e));
    let all = source.tensor(tensor)?;
    let (n, k) = (rows.end - rows.start, all.k());
    let words = source.nvfp4(tensor)?;
    let changed = || ArtifactError::new(K::SourceChanged);
    let (Some(plan), Ok(k_usize)) = (BlockScale::plan(n, k, 1), usize::try_from(k)) else {
        return Err(ArtifactError::new(K::TooLarge { bytes: n.saturating_mul(k) }));
    };
    let slice = |row: u64| -> Option<Range<usize>> {
        let (begin, end) = (rows.start.checked_mul(row)?, rows.end.checked_mul(row)?);
        Some(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
    };
    let codes = slice(k / 2).and_then(|r| words.codes.get(r)).ok_or_else(changed)?;
    let scales = slice(k / 16).and_then(|r| words.scales.get(r)).ok_or_else(changed)?;
    check_scales(scales, k_usize / 16, rows.start).map_err(format)?;
    // The payload is in memory, so its offsets fit.
    let (scale_at, divisor_at) = (plan.scale_at as usize, plan.divisor_at as usize);
    payload[..codes.len()].copy_from_slice(codes);
    let tile = 8 * k_usize;
    for (scales, out) in scales.chunks_exact(tile).zip(payload[scale_at..divisor_at].chunks_exact_mut(tile)) {
        swizzle_tile(scales, k_usize, out).map_err(format)?;
    }
    let divisor = words.global.divisor(0).map_err(format)?;
    payload[divisor_at..].copy_from_slice(&divisor.to_le_bytes());
    Ok(())
}
