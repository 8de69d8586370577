//! The kernel table: what a kernel is given, what it must do, and how one is found.
//!
//! A token has one [`KernelSet`] per format: optional entries for the operations of this crate. `scalar` has all of
//! them; another token has those it improves. [`pick`] walks the token's chain once per call of an operation and
//! returns the entry together with the token it came from, so that a test can tell which code ran. To add a kernel,
//! write it in `arch/<cpu>/<isa>/` and name it in that directory's `kernels` or `common` function; the operations
//! do not change.
//!
//! Duties common to all entries (each type below adds its own):
//! * An entry is a safe function compiled for its token's features (the `*_entry!` macros of [`crate::isa`]); it may
//!   be called only on a machine that has them. The one place that calls entries is [`Picked`], whose values are
//!   made only by [`pick`] and [`product`] for available tokens.
//! * Slices have the stated lengths, checked by the caller and again by the methods of [`Picked`]; they may have any
//!   alignment. Nothing outside them may be read or written, not even by a masked-off or speculative wide load past
//!   the end of the payload.
//! * The bits written are those of the scalar entry for every payload, illegal words included; of a NaN only that it
//!   is one counts.
//! * An entry runs on one thread, does not block, and allocates only in `Scratch`, which keeps its memory.

use std::cell::RefCell;
use std::ops::Range;

use ninfer_formats::codec::Half;
use ninfer_formats::encoder::nvfp4::Nvfp4Encoder;
use ninfer_formats::encoder::{RowEncoder, RowFault, RowSlices, Source};
use ninfer_formats::{FormatId, Scheme, TensorView};

use crate::arch;
use crate::isa::Isa;
use crate::lanes::Turned;
use crate::q8_1::{Q8_1, Q8ColumnMut};
use crate::scalar::errors::ErrorLanes;
use crate::tile::Tile;

/// Decodes a panel of weights: elements `k` of every row of the view, to binary32.
///
/// `out` holds `view.rows() * k.len()` elements, row after row. `k.start` is a multiple of 256; `k.end` is one too,
/// or the row's end. The format is not `int32`, except that direct words are copied bit for bit.
pub(crate) type DecodeFn = unsafe fn(view: &TensorView<'_>, k: Range<usize>, out: &mut [f32]);

/// Rounds binary32 to 16-bit words, nearest-even; NaNs become quiet and keep their sign and top payload bits.
/// The slices have equal lengths. Returns whether any word is an infinity.
pub(crate) type NarrowFn = unsafe fn(half: Half, values: &[f32], words: &mut [u16]) -> bool;

/// Quantises one column of K values to its `ceil(K / 32)` blocks ([`crate::q8_1`] has the arithmetic).
/// The error is the index of the first value that is not finite; the output is unspecified then.
pub(crate) type QuantizeFn = unsafe fn(x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize>;

/// Adds the errors of a run of a row to its partial sums ([`crate::row_errors`] has the arithmetic): weights `y` for
/// values `x`, and the columns' weights. The run begins at a multiple of eight columns; the slices have equal lengths.
pub(crate) type ErrorsFn = unsafe fn(x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes);

/// Encodes one row of K source values by the encoder's method; `out` is one row of its format. The error is what
/// [`RowEncoder::encode_row`] gives for the row as binary32 values, or the first value that does not fit binary32.
pub(crate) type EncodeFn = unsafe fn(
    encoder: &RowEncoder<'_>,
    source: Source<'_>,
    out: RowSlices<'_>,
    scratch: &mut Scratch,
) -> Result<(), RowFault>;

/// Encodes one row of K source values to code bytes and natural scale words of `nvfp4`; errors as [`EncodeFn`].
pub(crate) type Nvfp4Fn = unsafe fn(
    encoder: &Nvfp4Encoder,
    source: Source<'_>,
    codes: &mut [u8],
    scales: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), RowFault>;

/// A16 product of the view's rows with the columns `columns` of `x`, in the order of [`crate::order`].
///
/// Writes every row of `out` in those columns and no other; `out`'s rows are the view's.
pub(crate) type A16Fn = unsafe fn(
    view: &TensorView<'_>,
    x: &Columns<'_>,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
);

/// A8 product of the view's rows with the columns `columns` of `x`, in the order of [`crate::order`]; as [`A16Fn`].
/// Formats without an integer path (`fp8`, `bf16`, `fp32`) have no such entry.
pub(crate) type A8Fn = unsafe fn(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
);

/// As [`A8Fn`] for at most [`FEW`] columns, with the view's rows turned before: `turned` holds the tiles of its rows.
pub(crate) type PreparedFn = unsafe fn(
    view: &TensorView<'_>,
    turned: Turned<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    scratch: &mut Scratch,
);

/// binary32 columns, `[T][K]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'a> {
    values: &'a [f32],
    k: usize,
}

impl<'a> Columns<'a> {
    /// `values` holds whole columns of `k` elements.
    pub(crate) fn new(values: &'a [f32], k: usize) -> Self {
        Self { values, k }
    }

    /// The elements of column `t` and all after it.
    #[allow(dead_code, reason = "for kernels that a target may lack")]
    #[inline]
    pub(crate) fn from(&self, t: usize) -> &'a [f32] {
        &self.values[t * self.k..]
    }

    /// Column `t`.
    #[inline]
    pub(crate) fn column(&self, t: usize) -> &'a [f32] {
        &self.values[t * self.k..(t + 1) * self.k]
    }
}

/// Memory that kernels keep from call to call, one per thread. Contents on entry are unspecified.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// For decoded weights or activations.
    pub floats: Vec<f32>,
    /// For unpacked runs of 32 values.
    pub runs: Vec<crate::scalar::Run>,
    /// For matrix-matrix products.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "for kernels that a target may lack")
    )]
    pub panels: crate::panel::Memory,
    /// For products of one or a few columns, rows in lanes.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "other targets have drivers of their own")
    )]
    pub lanes: crate::lanes::Memory,
    /// For A16 products of one column.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "other targets have no such kernels yet")
    )]
    pub column16: crate::column16::Memory,
    /// For A16 matrix-matrix products.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "for kernels that a target may lack")
    )]
    pub panel16: crate::panel16::Memory,
    /// For A16 matrix-matrix products with rows in vectors.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "other targets have no such kernels yet")
    )]
    pub rows16: crate::rows16::Memory,
    /// For products of one or a few columns on AArch64.
    #[cfg(target_arch = "aarch64")]
    pub neon: arch::aarch64::neon::gemv_layout::Memory,
}

/// Most columns that a [`Products::few`] entry takes.
pub(crate) const FEW: usize = if cfg!(target_arch = "x86_64") { 16 } else { 8 };

/// Most columns for which an A16 product takes such an entry: beyond, it is the wider one that is faster.
const A16_FEW: usize = 8;

/// Entries of one product, by the number of columns they are made for. Any of them serves for any number: the
/// driver calls `one` column by column and `few` for runs of up to [`FEW`] columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Products<F> {
    /// Exactly one column.
    pub one: Option<F>,
    /// One to [`FEW`] columns.
    pub few: Option<F>,
    /// Any number of columns.
    pub many: Option<F>,
}

impl<F> Products<F> {
    /// No entries.
    pub(crate) const NONE: Self = Self { one: None, few: None, many: None };
}

/// The entries of one token for one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSet {
    /// See [`DecodeFn`].
    pub decode: Option<DecodeFn>,
    /// See [`A16Fn`].
    pub a16: Products<A16Fn>,
    /// See [`A8Fn`].
    pub a8: Products<A8Fn>,
    /// See [`PreparedFn`].
    pub prepared: Option<PreparedFn>,
}

impl KernelSet {
    /// No entries.
    #[allow(dead_code, reason = "sets of tokens start from it; a target may have no such token")]
    pub(crate) const NONE: Self =
        Self { decode: None, a16: Products::NONE, a8: Products::NONE, prepared: None };
}

/// The entries of one token that do not depend on a format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// See [`NarrowFn`].
    pub narrow: Option<NarrowFn>,
    /// See [`QuantizeFn`].
    pub quantize: Option<QuantizeFn>,
    /// See [`ErrorsFn`].
    pub errors: Option<ErrorsFn>,
}

/// An entry and the token it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked<F> {
    /// The token whose code this is; the machine has it.
    pub isa: Isa,
    entry: F,
}

/// The first entry that `choose` finds along the chain of `isa`.
///
/// # Panics
/// Never: `scalar` ends every chain and has every entry that is asked for.
fn pick<F>(isa: Isa, choose: impl Fn(Isa) -> Option<F>) -> Picked<F> {
    debug_assert!(isa.is_available());
    isa.chain()
        .filter(|isa| isa.is_available())
        .find_map(|isa| choose(isa).map(|entry| Picked { isa, entry }))
        .expect("the scalar set is complete")
}

/// The decoder of a format.
pub(crate) fn decode(isa: Isa, format: FormatId) -> Picked<DecodeFn> {
    pick(isa, |isa| arch::kernels(isa, format)?.decode)
}

/// The rounding to 16-bit words.
pub(crate) fn narrow(isa: Isa) -> Picked<NarrowFn> {
    pick(isa, |isa| arch::common(isa)?.narrow)
}

/// The activation quantiser.
pub(crate) fn quantize(isa: Isa) -> Picked<QuantizeFn> {
    pick(isa, |isa| arch::common(isa)?.quantize)
}

/// The comparison with source values.
pub(crate) fn errors(isa: Isa) -> Picked<ErrorsFn> {
    pick(isa, |isa| arch::common(isa)?.errors)
}

/// The row encoder.
pub(crate) fn encode(isa: Isa) -> Picked<EncodeFn> {
    pick(isa, arch::encode)
}

/// The row encoder of `nvfp4`.
pub(crate) fn encode_nvfp4(isa: Isa) -> Picked<Nvfp4Fn> {
    pick(isa, arch::encode_nvfp4)
}

/// How many columns the kernel of a product takes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Exactly one: matrix-vector.
    One,
    /// One to sixteen.
    Few,
    /// Any number: matrix-matrix.
    Many,
    /// One to sixteen, from weights that were repacked ([`crate::Prepared`]).
    Prepared,
}

/// A product entry with the width it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<F> {
    width: Width,
    entry: F,
    /// For the columns that are left over from [`LEFT`] at a time, if another entry is to take them.
    rest: Option<(Width, F)>,
}

/// The entry for `columns` columns: of the nearest token of the chain that has one made for that number, else of the
/// nearest that has one wide enough, but rather another token's narrower one, called repeatedly, than `scalar`.
fn product<F: Copy>(
    isa: Isa,
    columns: usize,
    by_few: bool,
    entries: impl Fn(Isa) -> Option<Products<F>>,
) -> Picked<Product<F>> {
    let one = |p: Products<F>| p.one.map(|entry| Product { width: Width::One, entry, rest: None });
    let few = |p: Products<F>| p.few.map(|entry| Product { width: Width::Few, entry, rest: None });
    let many = |p: Products<F>| p.many.map(|entry| Product { width: Width::Many, entry, rest: None });
    let made_for = |p: Products<F>| match columns {
        0 | 1 => one(p).or_else(|| few(p)),
        _ if by_few => few(p),
        _ => many(p),
    };
    let chain = || isa.chain().filter(|isa| *isa != Isa::Scalar && isa.is_available());
    let find = |choose: &dyn Fn(Products<F>) -> Option<Product<F>>| {
        chain().find_map(|isa| choose(entries(isa)?).map(|entry| Picked { isa, entry }))
    };
    if let Some(picked) = find(&made_for).or_else(|| find(&many)) {
        return picked;
    }
    pick(isa, |isa| {
        let p = entries(isa)?;
        many(p).or_else(|| few(p)).or_else(|| one(p))
    })
}

/// The A16 product of a format.
pub(crate) fn a16(isa: Isa, format: FormatId, columns: usize) -> Picked<Product<A16Fn>> {
    product(isa, columns, columns <= A16_FEW, |isa| Some(arch::kernels(isa, format)?.a16))
}

/// Whether an A8 product of that many columns is formed [`FEW`] at a time, or by an entry for any number.
///
/// Unpacking to the panels of [`crate::panel`] costs the grids and tables of the i types as much as some sixty columns, the
/// K types as much as some thirty. With rows in lanes ([`crate::lanes::many`]) it costs less; but columns come by sixteen or
/// eight there, with tiles by sixteen, twelve or eight.
fn a8_by_few(isa: Isa, format: FormatId, columns: usize) -> bool {
    use ninfer_formats::BlockKind as K;
    let most = match format.scheme() {
        _ if cfg!(not(target_arch = "x86_64")) => FEW,
        _ if isa == Isa::AmxInt8
            && a8_entries(isa, format, columns).is_some_and(|set| set.many.is_some()) =>
        {
            7
        }
        _ if isa >= Isa::Avx512Vnni => return columns < 12 && columns != 8,
        // Panels take the minima of halves in a pass of their own, which costs as much as the products.
        Scheme::Gguf(K::Q2K) if isa <= Isa::AvxVnni => columns,
        Scheme::Gguf(K::Q2K | K::Q3K | K::Q4K | K::Q5K | K::Q6K) => 2 * FEW,
        Scheme::Gguf(K::Q8_0 | K::Q4_0 | K::Q5_0 | K::Q2_0) => FEW,
        Scheme::Gguf(_) if isa == Isa::AvxVnni => 3 * FEW,
        Scheme::Nvfp4 if isa == Isa::AvxVnni => 4 * FEW,
        Scheme::Gguf(_) => 4 * FEW,
        _ => FEW,
    };
    columns <= most
}

/// The A8 entries of a token, without one that takes longer for so few columns than that of the token before.
fn a8_entries(isa: Isa, format: FormatId, columns: usize) -> Option<Products<A8Fn>> {
    let set = arch::kernels(isa, format)?.a8;
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::AmxInt8 && columns < arch::x86_64::amx_int8::least(format) {
        return Some(Products { many: None, ..set });
    }
    let _ = columns;
    Some(set)
}

/// The A8 product of a format that has an integer path.
pub(crate) fn a8(isa: Isa, format: FormatId, columns: usize) -> Picked<Product<A8Fn>> {
    let of = |columns| {
        let few = a8_by_few(isa, format, columns);
        product(isa, columns, few, |isa| a8_entries(isa, format, columns))
    };
    let mut picked = of(columns);
    // Sixteen columns at a time: twelve or more of them are as good as sixteen, fewer cost less by themselves, and for
    // many groups it does not matter.
    let left = columns % LEFT;
    if cfg!(target_arch = "x86_64")
        && isa >= Isa::Avx512Vnni
        && picked.entry.width == Width::Many
        && (LEFT..8 * LEFT).contains(&columns)
        && (1..12).contains(&left)
    {
        let rest = of(left).entry;
        picked.entry.rest = Some((rest.width, rest.entry));
    }
    picked
}

/// The A8 product with turned rows, if any token of the chain has one.
pub(crate) fn prepared(isa: Isa, format: FormatId) -> Option<Picked<PreparedFn>> {
    isa.chain()
        .filter(|isa| isa.is_available())
        .find_map(|isa| arch::kernels(isa, format)?.prepared.map(|entry| Picked { isa, entry }))
}

/// Columns that the widest A8 entries take at a time.
const LEFT: usize = 16;

/// Calls `each` for the runs of columns that an entry of this width takes.
fn by_width(width: Width, columns: Range<usize>, mut each: impl FnMut(Range<usize>)) {
    let step = match width {
        Width::One => 1,
        Width::Few | Width::Prepared => FEW,
        Width::Many => columns.len().max(1),
    };
    for t in columns.clone().step_by(step) {
        each(t..(t + step).min(columns.end));
    }
}

impl<F> Picked<Product<F>> {
    /// The width of the entry.
    pub(crate) fn width(&self) -> Width {
        self.entry.width
    }
}

impl Picked<DecodeFn> {
    /// Calls the entry; see [`DecodeFn`].
    #[inline]
    pub(crate) fn call(&self, view: &TensorView<'_>, k: Range<usize>, out: &mut [f32]) {
        assert!(k.start <= k.end && k.end <= view.k(), "columns outside the rows");
        assert!(k.start.is_multiple_of(256) && (k.end.is_multiple_of(256) || k.end == view.k()));
        assert_eq!(out.len(), view.rows() * k.len());
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(view, k, out) }
    }
}

impl Picked<EncodeFn> {
    /// Calls the entry; see [`EncodeFn`].
    #[inline]
    pub(crate) fn call(
        &self,
        encoder: &RowEncoder<'_>,
        source: Source<'_>,
        out: RowSlices<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), RowFault> {
        assert_eq!(source.len(), encoder.k());
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(encoder, source, out, scratch) }
    }
}

impl Picked<Nvfp4Fn> {
    /// Calls the entry; see [`Nvfp4Fn`].
    #[inline]
    pub(crate) fn call(
        &self,
        encoder: &Nvfp4Encoder,
        source: Source<'_>,
        codes: &mut [u8],
        scales: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), RowFault> {
        assert_eq!(source.len(), encoder.k());
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(encoder, source, codes, scales, scratch) }
    }
}

impl Picked<NarrowFn> {
    /// Calls the entry; see [`NarrowFn`].
    #[inline]
    pub(crate) fn call(&self, half: Half, values: &[f32], words: &mut [u16]) -> bool {
        assert_eq!(values.len(), words.len());
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(half, values, words) }
    }
}

impl Picked<QuantizeFn> {
    /// Calls the entry; see [`QuantizeFn`].
    #[inline]
    pub(crate) fn call(&self, x: &[f32], out: Q8ColumnMut<'_>) -> Result<(), usize> {
        let blocks = x.len().div_ceil(crate::q8_1::BLOCK);
        assert_eq!(out.codes.len(), blocks * crate::q8_1::BLOCK);
        assert!(out.scales.len() == blocks && out.half_sums.len() == 2 * blocks);
        assert!(out.scale_words.len() == blocks && out.sum_words.len() == blocks);
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(x, out) }
    }
}

impl Picked<ErrorsFn> {
    /// Calls the entry; see [`ErrorsFn`].
    #[inline]
    pub(crate) fn call(&self, x: &[f32], y: &[f32], weights: Option<&[f32]>, sums: &mut ErrorLanes) {
        assert!(x.len() == y.len() && weights.is_none_or(|w| w.len() == x.len()));
        // SAFETY: a `Picked` is made by `pick` and `product` for an available token only, so the machine has the entry's features.
        unsafe { (self.entry)(x, y, weights, sums) }
    }
}

impl Picked<Product<A16Fn>> {
    /// Calls the entry for the columns `columns`; see [`A16Fn`].
    #[inline]
    pub(crate) fn call(
        &self,
        view: &TensorView<'_>,
        x: &Columns<'_>,
        columns: Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(x.k, view.k());
        assert!(columns.end.checked_mul(x.k).is_some_and(|end| end <= x.values.len()), "columns of `x`");
        by_width(self.entry.width, columns, |run| {
            // SAFETY: a `Picked` is made for an available token only, so the machine has the entry's features.
            unsafe { (self.entry.entry)(view, x, run, out, scratch) }
        });
    }
}

impl Picked<Product<A8Fn>> {
    /// Calls the entry for the columns `columns` of `x`; see [`A8Fn`].
    #[inline]
    pub(crate) fn call(
        &self,
        view: &TensorView<'_>,
        x: &Q8_1,
        columns: Range<usize>,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(x.k(), view.k());
        assert!(columns.end <= x.columns(), "columns of `x`");
        let Product { width, entry, rest } = self.entry;
        let whole = if rest.is_some() { columns.end - columns.len() % LEFT } else { columns.end };
        by_width(width, columns.start..whole, |run| {
            // SAFETY: a `Picked` is made for an available token only, so the machine has the entry's features.
            unsafe { entry(view, x, run, out, scratch) }
        });
        if let Some((width, entry)) = rest {
            by_width(width, whole..columns.end, |run| {
                // SAFETY: as above; it was picked for the same token.
                unsafe { entry(view, x, run, out, scratch) }
            });
        }
    }
}

impl Picked<PreparedFn> {
    /// Calls the entry for all columns of `x`; see [`PreparedFn`].
    #[inline]
    pub(crate) fn call(
        &self,
        view: &TensorView<'_>,
        turned: Turned<'_>,
        x: &Q8_1,
        out: &mut Tile<'_>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(x.k(), view.k());
        by_width(Width::Few, 0..x.columns(), |run| {
            // SAFETY: a `Picked` is made for an available token only, so the machine has the entry's features.
            unsafe { (self.entry)(view, turned, x, run, out, scratch) }
        });
    }
}

/// Runs `work` with this thread's scratch memory.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<Scratch> = RefCell::default();
    }
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        // A kernel does not call back into the crate; should that change, the inner call gets memory of its own.
        Err(_) => work(&mut Scratch::default()),
    })
}
