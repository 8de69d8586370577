//! The output of a product: `[T][N]`, written by several threads in disjoint runs of rows.

use std::marker::PhantomData;
use std::ops::Range;

/// The whole output. Handing out its tiles is what several threads share.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    base: *mut f32,
    rows: usize,
    columns: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access to the elements is through tiles, which are disjoint by the contract of `Output::tile`.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Takes `out` as `columns` columns of `rows` elements each.
    ///
    /// # Panics
    /// If the lengths do not match; the caller has checked them.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(out.len()), rows.checked_mul(columns), "output of another length");
        Self { base: out.as_mut_ptr(), rows, columns, _borrow: PhantomData }
    }

    /// The elements of `rows` in the columns `columns`.
    ///
    /// # Panics
    /// If the rows or the columns are not the output's.
    ///
    /// # Safety
    /// No two tiles that exist at the same time may share an element.
    pub(crate) unsafe fn tile(&self, rows: Range<usize>, columns: Range<usize>) -> Tile<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows outside the output");
        assert!(columns.start <= columns.end && columns.end <= self.columns, "columns outside the output");
        Tile { base: self.base, stride: self.rows, rows, columns, _borrow: PhantomData }
    }
}

/// A run of rows of the output, in a run of columns.
#[derive(Debug)]
pub(crate) struct Tile<'a> {
    base: *mut f32,
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is the only access to its elements, like the mutable slices it stands for.
unsafe impl Send for Tile<'_> {}

impl Tile<'_> {
    /// The tile's elements of column `t`: element `i` belongs to the tile's row `i`.
    ///
    /// # Panics
    /// If `t` is not one of the columns.
    #[inline]
    pub(crate) fn column(&mut self, t: usize) -> &mut [f32] {
        assert!(self.columns.contains(&t), "column {t} of {:?}", self.columns);
        // SAFETY: column t lies at t * stride, its length is stride, and the tile's rows lie within it (checked by
        // `Output::tile`); the whole is one live allocation borrowed for the tile's lifetime. The tile is the only
        // access to these elements, and the borrow of `self` keeps its own slices apart.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.add(t * self.stride + self.rows.start), self.rows.len())
        }
    }
}
