//! Activations: columns of binary32 or bfloat16 values, and their `q8_1` form.
//!
//! `q8_1` (product specification): 32 consecutive values of a column share a scale.
//!
//! ```text
//! amax = max |x|           d = f32(amax / 127)           id = d != 0 ? f32(1 / d) : 0
//! q    = f32(x * id), rounded to the nearest integer, halves away from zero
//! stored scale f16(d)      stored sum f16(f32(d * sum(q)))
//! ```
//!
//! The last block of a column is filled up with zeros. Products use the stored scale and the exact integer sums of
//! codes; the stored sum is for those who exchange blocks. Three ends of the range, fixed here:
//! * Non-finite values are refused.
//! * Where `1 / d` overflows (`d` up to `2^-128`), `id` is 0 and so are the codes; the stored scale is zero there
//!   anyway, as it is for every `d` up to `2^-25`.
//! * Where `amax / 127` rounds beyond binary16 (`amax` from about 8.3e6 on) the stored scale is infinite, and so a
//!   product shows an infinity or a NaN, never a finite wrong number. A16 products have no such limit.

use std::ops::Range;

use ninfer_formats::float::{bf16, f16};

use crate::error::{OpError, resize};

/// Values of one block.
pub const BLOCK: usize = 32;

/// Activations as a caller has them: `[T, K]`, the K values of a column contiguous.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// binary32 values.
    F32(&'a [f32]),
    /// bfloat16 words (native byte order); expanded exactly.
    Bf16(&'a [u16]),
}

impl Activations<'_> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of columns of `k` values.
    ///
    /// # Errors
    /// [`OpError::Length`] if the values are no whole number of columns, or `k` is 0.
    pub(crate) fn columns(&self, k: usize) -> Result<usize, OpError> {
        if k == 0 || !self.len().is_multiple_of(k) {
            let columns = self.len().checked_div(k).map_or(1, |c| c + 1);
            return Err(OpError::Length {
                what: "the activations (whole columns of K values)",
                unit: "values",
                expected: columns.saturating_mul(k),
                actual: self.len(),
            });
        }
        Ok(self.len() / k)
    }

    /// Expands the values of `range` into `out`.
    pub(crate) fn expand(&self, range: Range<usize>, out: &mut [f32]) {
        match self {
            Self::F32(x) => out.copy_from_slice(&x[range]),
            Self::Bf16(x) => {
                for (o, &w) in out.iter_mut().zip(&x[range]) {
                    *o = bf16::to_f32(w);
                }
            }
        }
    }
}

/// Quantised columns as a structure of arrays; allocations are kept when it is filled again.
///
/// For T columns of B = `ceil(K / 32)` blocks: codes `[T][32 B]`, scales and sums `[T][B]`, sums of codes
/// `[T][2 B]`.
#[derive(Clone, Debug, Default)]
pub struct Q8_1 {
    k: usize,
    columns: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    scale_words: Vec<u16>,
    sum_words: Vec<u16>,
    half_sums: Vec<i16>,
}

/// One quantised column, or a run of its blocks.
#[derive(Clone, Copy, Debug)]
pub struct Q8Column<'a> {
    /// Codes, `32 B`, in [-127, 127]; 0 past K.
    pub codes: &'a [i8],
    /// Stored scales expanded to binary32, `B`.
    pub scales: &'a [f32],
    /// Exact sums of 16 codes, `2 B`.
    pub half_sums: &'a [i16],
}

/// Where a run of blocks of one column is written; see [`Q8Column`] for the shapes.
#[derive(Debug)]
pub(crate) struct Q8ColumnMut<'a> {
    pub codes: &'a mut [i8],
    pub scales: &'a mut [f32],
    pub scale_words: &'a mut [u16],
    pub sum_words: &'a mut [u16],
    pub half_sums: &'a mut [i16],
}

impl Q8_1 {
    /// No columns yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Values of one column.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of columns T.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Blocks of one column, `ceil(K / 32)`.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK)
    }

    /// Column `t`.
    ///
    /// # Panics
    /// If `t` is not below [`Self::columns`].
    #[must_use]
    #[inline]
    pub fn column(&self, t: usize) -> Q8Column<'_> {
        let b = self.blocks();
        Q8Column {
            codes: &self.codes[t * b * BLOCK..(t + 1) * b * BLOCK],
            scales: &self.scales[t * b..(t + 1) * b],
            half_sums: &self.half_sums[2 * t * b..2 * (t + 1) * b],
        }
    }

    /// Codes of all columns, `[T][32 B]`.
    #[must_use]
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Stored binary16 scales of all columns, `[T][B]`.
    #[must_use]
    pub fn scale_words(&self) -> &[u16] {
        &self.scale_words
    }

    /// Stored binary16 sums of all columns, `[T][B]`.
    #[must_use]
    pub fn sum_words(&self) -> &[u16] {
        &self.sum_words
    }

    /// Takes the shape of `columns` columns of `k` values; contents are unspecified afterwards.
    pub(crate) fn reshape(&mut self, k: usize, columns: usize) -> Result<(), OpError> {
        let blocks = k.div_ceil(BLOCK);
        let total = blocks.checked_mul(columns).filter(|b| b.checked_mul(4 * BLOCK).is_some());
        let Some(total) = total else {
            return Err(OpError::TooLarge { what: "the quantised activations", rows: columns, columns: k });
        };
        // No columns while the buffers differ in length: a refused one must not leave a shape that is not there.
        self.columns = 0;
        let what = "the quantised activations";
        resize(&mut self.codes, total * BLOCK, 0, what)?;
        resize(&mut self.scales, total, 0.0, what)?;
        resize(&mut self.scale_words, total, 0, what)?;
        resize(&mut self.sum_words, total, 0, what)?;
        resize(&mut self.half_sums, 2 * total, 0, what)?;
        (self.k, self.columns) = (k, columns);
        Ok(())
    }

    /// Takes the columns `order` of another, as a product needs them: without the stored words.
    pub(crate) fn select(
        &mut self,
        from: &Self,
        order: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), OpError> {
        self.reshape(from.k, order.len())?;
        let b = self.blocks();
        for (to, t) in order.enumerate() {
            let column = from.column(t);
            self.codes[to * b * BLOCK..(to + 1) * b * BLOCK].copy_from_slice(column.codes);
            self.scales[to * b..(to + 1) * b].copy_from_slice(column.scales);
            self.half_sums[2 * to * b..2 * (to + 1) * b].copy_from_slice(column.half_sums);
        }
        Ok(())
    }

    /// Column `t` for writing.
    #[cfg(test)]
    fn column_mut(&mut self, t: usize) -> Q8ColumnMut<'_> {
        let b = self.blocks();
        Q8ColumnMut {
            codes: &mut self.codes[t * b * BLOCK..(t + 1) * b * BLOCK],
            scales: &mut self.scales[t * b..(t + 1) * b],
            scale_words: &mut self.scale_words[t * b..(t + 1) * b],
            sum_words: &mut self.sum_words[t * b..(t + 1) * b],
            half_sums: &mut self.half_sums[2 * t * b..2 * (t + 1) * b],
        }
    }

    /// Runs of consecutive columns for writing, one item per range; the ranges cover the columns in order.
    pub(crate) fn parts_mut<R: Iterator<Item = Range<usize>>>(
        &mut self,
        ranges: R,
    ) -> impl Iterator<Item = (Range<usize>, impl Iterator<Item = Q8ColumnMut<'_>> + Send)> + use<'_, R> {
        let b = self.blocks().max(1);
        let mut rest = (
            &mut self.codes[..],
            &mut self.scales[..],
            &mut self.scale_words[..],
            &mut self.sum_words[..],
            &mut self.half_sums[..],
        );
        ranges.map(move |range| {
            let blocks = range.len() * b;
            let codes = take(&mut rest.0, blocks * BLOCK).chunks_exact_mut(b * BLOCK);
            let scales = take(&mut rest.1, blocks).chunks_exact_mut(b);
            let words = take(&mut rest.2, blocks).chunks_exact_mut(b);
            let sums = take(&mut rest.3, blocks).chunks_exact_mut(b);
            let halves = take(&mut rest.4, 2 * blocks).chunks_exact_mut(2 * b);
            let columns = codes.zip(scales).zip(words).zip(sums.zip(halves));
            let columns = columns.map(|(((codes, scales), scale_words), (sum_words, half_sums))| {
                Q8ColumnMut { codes, scales, scale_words, sum_words, half_sums }
            });
            (range, columns)
        })
    }

    /// Represented values `f32(d * q)` of column `t` (exact), into `out` of K elements.
    pub(crate) fn represented(&self, t: usize, out: &mut [f32]) {
        let column = self.column(t);
        for ((out, codes), &d) in
            out.chunks_mut(BLOCK).zip(column.codes.as_chunks::<BLOCK>().0).zip(column.scales)
        {
            for (o, &q) in out.iter_mut().zip(codes) {
                *o = d * f32::from(q);
            }
        }
    }
}

fn take<'a, T>(rest: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(rest).split_at_mut(count);
    *rest = tail;
    head
}

/// Quantises the values of one column; `x` holds K values, `out` the column's `ceil(K / 32)` blocks.
///
/// # Errors
/// The index of the first value that is not finite.
#[inline(always)]
pub(crate) fn quantize_column(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
    let largest = |x: &[f32; BLOCK]| x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
    let stored = |d, sum| {
        let words = [d, sum].map(f16::from_f32);
        (words, f16::to_f32(words[0]))
    };
    quantize_blocks(x, out, largest, quantize_block, stored)
}

/// [`quantize_column`], block by block in steps: `largest` is the largest magnitude as a word, `codes` writes a
/// block's codes, given 1/d or 0, and returns the sums of its halves, `stored` rounds two numbers to binary16 and expands
/// the first one again.
///
/// # Errors
/// As [`quantize_column`].
#[inline(always)]
pub(crate) fn quantize_blocks(
    x: &[f32],
    out: Q8ColumnMut<'_>,
    largest: impl Fn(&[f32; BLOCK]) -> u32,
    codes: impl Fn(&[f32; BLOCK], f32, &mut [i8; BLOCK]) -> [i16; 2],
    stored: impl Fn(f32, f32) -> ([u16; 2], f32),
) -> Result<(), usize> {
    let (blocks, tail) = x.as_chunks::<BLOCK>();
    let mut last = [0.0; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    let source = blocks.iter().chain((!tail.is_empty()).then_some(&last));
    let places = out.codes.as_chunks_mut::<BLOCK>().0.iter_mut();
    let sums = out.half_sums.as_chunks_mut::<2>().0.iter_mut();
    let words = out.scale_words.iter_mut().zip(out.sum_words);
    let blocks = source.zip(places).zip(out.scales).zip(words).zip(sums);
    for (b, ((((x, place), scale), (scale_word, sum_word)), half_sums)) in blocks.enumerate() {
        // Magnitudes compare as their words do, and a NaN or an infinity is above all of them.
        let largest = largest(x);
        if largest >= 0x7f80_0000 {
            return Err(b * BLOCK + x.iter().position(|v| !v.is_finite()).unwrap_or(0));
        }
        let d = f32::from_bits(largest) / 127.0;
        // 1/0 and an overflowing reciprocal: id is 0.
        let id = 1.0 / d;
        let id = if id < f32::INFINITY { id } else { 0.0 };
        *half_sums = codes(x, id, place);
        let sum = i32::from(half_sums[0]) + i32::from(half_sums[1]);
        ([*scale_word, *sum_word], *scale) = stored(d, d * sum as f32);
    }
    Ok(())
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], id: f32, codes: &mut [i8; BLOCK]) -> [i16; 2] {
    for (q, &x) in codes.iter_mut().zip(x) {
        let v = x * id;
        // |v| is below 127.5: truncation is exact, and so is the rest.
        let whole = v as i32;
        let rest = v - whole as f32;
        let step = i32::from(rest >= 0.5) - i32::from(rest <= -0.5);
        *q = (whole + step) as i8;
    }
    let (low, high) = codes.split_at(16);
    [low, high].map(|half| half.iter().map(|&q| i16::from(q)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(x: &[f32]) -> Q8_1 {
        let mut q = Q8_1::new();
        q.reshape(x.len(), 1).unwrap();
        assert_eq!(quantize_column(x, q.column_mut(0)), Ok(()));
        q
    }

    #[test]
    fn halves_go_away_from_zero() {
        // amax 127 makes d and 1/d exactly 1.
        let mut x = [0.0f32; 32];
        let cases = [(0.5, 1), (-0.5, -1), (1.5, 2), (-1.5, -2), (2.5, 3), (-2.5, -3), (126.5, 127)];
        x[31] = 127.0;
        for (x, &(v, _)) in x.iter_mut().zip(&cases) {
            *x = v;
        }
        let below = f32::from_bits(0.5f32.to_bits() - 1);
        (x[10], x[11]) = (below, -below);
        let q = quantize(&x);
        for (i, &(_, code)) in cases.iter().enumerate() {
            assert_eq!(q.codes()[i], code);
        }
        assert_eq!(q.codes()[10..12], [0, 0]);
        assert_eq!((q.scale_words()[0], q.column(0).scales[0]), (0x3c00, 1.0));
    }

    #[test]
    fn ends_of_the_range() {
        // The smallest amax with a finite reciprocal of d keeps its codes; one step below they are zero.
        let last_zero = 2f32.powi(-128);
        let first = 127.0 * f32::from_bits(last_zero.to_bits() + 1);
        assert_eq!(quantize(&[first, -first]).codes()[..2], [127, -127]);
        let q = quantize(&[127.0 * last_zero, 1e-45]);
        assert_eq!((q.codes()[..2].to_vec(), q.scale_words()[0], q.sum_words()[0]), (vec![0, 0], 0, 0));
        // Codes stay within [-127, 127] for every exponent and all around it.
        for e in 0..255u32 {
            for m in [0, 1, 0x3f_ffff, 0x40_0000, 0x55_5555, 0x7f_ffff] {
                let v = f32::from_bits(e << 23 | m);
                let q = quantize(&[v, -v, v * 0.5]);
                let d = v / 127.0;
                let expected = if 1.0 / d < f32::INFINITY { 127 } else { 0 };
                assert_eq!(q.codes()[..2], [expected, -expected], "{v:e}");
            }
        }
        // A scale beyond binary16 is stored as infinity.
        assert_eq!(quantize(&[9e6]).scale_words()[0], 0x7c00);
        assert_eq!(quantize(&[-0.0; 5]).codes(), [0; 32]);
    }

    #[test]
    fn the_first_bad_value_is_named_and_sums_are_exact() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut x = vec![1.0f32; 70];
            (x[67], x[69]) = (bad, f32::NAN);
            let mut q = Q8_1::new();
            q.reshape(70, 1).unwrap();
            assert_eq!(quantize_column(&x, q.column_mut(0)), Err(67));
        }
        let x: Vec<f32> = (0..70).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let q = quantize(&x);
        let column = q.column(0);
        for (codes, &sum) in column.codes.as_chunks::<16>().0.iter().zip(column.half_sums) {
            assert_eq!(codes.iter().map(|&c| i32::from(c)).sum::<i32>(), i32::from(sum));
        }
        assert_eq!(column.codes[70..], [0; 26]);
        let mut out = vec![0.0; 70];
        q.represented(0, &mut out);
        assert!(x.iter().zip(&out).all(|(a, b)| (a - b).abs() <= 0.25), "{out:?}");
    }
}
