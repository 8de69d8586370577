//! A16 products with one column, for any instruction set: rows as they lie.
//!
//! The sixteen accumulators that [`crate::order`] gives an element lie side by side, so a decoder that makes sixteen
//! neighbouring values at a time makes what they take: nothing is turned, and decoded weights need not be stored. A row's
//! accumulators wait for themselves at every step, so a few rows are decoded side by side.

#![cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, unused_imports, unused_macros, reason = "other targets have no such kernels yet")
)]

use ninfer_formats::float::f16;
use ninfer_formats::{GroupedScheme, RowParts, TensorView, codec, unpack_codes};

use crate::kernels::Columns;
use crate::tile::Tile;

/// Values of a row at a time.
pub(crate) const UNIT: usize = 256;

/// Sixteen numbers that share a line of the caches with nothing else.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [f32; 16]);

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// A column whose vectors would lie across lines.
    pub x: Vec<Line>,
    /// The values of the magnitudes of `nvfp4` for every scale word.
    pub quotients: Vec<[f32; 8]>,
}

/// Rows from which on a column is worth its copying.
const COPY_FROM: usize = 16;

/// The column, copied to whole lines if it does not begin at one: every load of a vector would take two of them.
#[inline]
fn in_lines<'a>(x: &'a [f32], rows: usize, memory: &'a mut Vec<Line>) -> &'a [f32] {
    if rows < COPY_FROM || x.as_ptr().cast::<Line>().is_aligned() {
        return x;
    }
    memory.resize(x.len().div_ceil(16), Line([0.0; 16]));
    for (to, from) in memory.iter_mut().zip(x.chunks(16)) {
        to.0[..from.len()].copy_from_slice(from);
    }
    // SAFETY: lines are sixteen numbers each without padding, and there are enough for the column.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), x.len()) }
}

/// The bytes of up to three planes of a row, and a number that belongs to it: divisor or multiplier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes<'a> {
    pub base: &'a [u8],
    pub high: &'a [u8],
    pub scales: &'a [u8],
    pub scale: f32,
}

fn planes<'a>(parts: &RowParts<'a>) -> Planes<'a> {
    let none = Planes { base: &[], high: &[], scales: &[], scale: 1.0 };
    match *parts {
        RowParts::Direct { bytes, .. } => Planes { base: bytes, ..none },
        RowParts::Blocks { blocks, .. } => Planes { base: blocks, ..none },
        RowParts::Grouped { base, high, scales, .. } => Planes { base, high, scales, ..none },
        RowParts::Nvfp4 { codes, scales, divisor } => {
            Planes { base: codes, scales: scales.plane(), scale: f32::from_bits(divisor), ..none }
        }
        RowParts::RowScaled { scale_kind, codes, scale } => {
            Planes { base: codes, scale: codec::row_scale(scale_kind, scale), ..none }
        }
    }
}

/// The product of the view's rows with the column `x`, to column `t`; see [`crate::kernels::A16Fn`].
///
/// `unit(rows, i, x, acc)` adds the products of the values from `i * step` on, as many as `x` has, of R rows to `zero` and its
/// like; `combine` sums accumulators.
#[inline(always)]
pub(crate) fn column<A: Copy, const R: usize>(
    view: &TensorView<'_>,
    (x, t): (&Columns<'_>, usize),
    memory: &mut Vec<Line>,
    out: &mut Tile<'_>,
    (zero, step): (A, usize),
    mut unit: impl FnMut(&[Planes<'_>; R], usize, &[f32], [A; R]) -> [A; R],
    combine: impl Fn(A) -> f32,
) {
    let x = in_lines(x.column(t), view.rows(), memory);
    for first in (0..view.rows()).step_by(R) {
        let count = (view.rows() - first).min(R);
        // Past the view's rows: its last one again.
        let rows: [Planes<'_>; R] = std::array::from_fn(|r| planes(&view.row(first + r.min(count - 1))));
        let mut acc = [zero; R];
        for (i, x) in x.chunks(step).enumerate() {
            acc = unit(&rows, i, x, acc);
        }
        for (out, acc) in out.column(t)[first..first + count].iter_mut().zip(acc) {
            *out = combine(acc);
        }
    }
}

/// The block for every row number below the constant `$count`, at most four: written out, so that what rows have of their own
/// stays in registers.
macro_rules! rows {
    ($count:ident, $r:ident, $body:block) => {
        $crate::column16::rows!(@ $count, $r, $body, 0 1 2 3)
    };
    (@ $count:ident, $r:ident, $body:block, $($number:literal)+) => {
        $(if $number < $count {
            // For the compiler's checks of what is not reached, no constant.
            let $r: usize = Ord::min($number, $count - 1);
            $body
        })+
    };
}
pub(crate) use rows;

/// Values of rows with one divisor from which on quotients of every scale word are worth their making.
pub(crate) const QUOTIENTS_FROM: usize = 1 << 14;

/// The kinds of grouped codes, which entries have as a constant: the bits of a code, but for this one.
pub(crate) const OFFSET_BY_ONE: u8 = 1;

/// Values of a group of a kind, and its bytes in the base plane and in the high plane.
pub(crate) const fn shape(kind: u8) -> [usize; 3] {
    match kind {
        OFFSET_BY_ONE => [64, 16, 0],
        2 => [128, 32, 0],
        4 => [64, 32, 0],
        5 => [64, 32, 8],
        6 => [64, 32, 16],
        _ => [32, 32, 0],
    }
}

/// The first values of a group that has no more, given the planes from there on.
pub(crate) fn last_group(s: &GroupedScheme, base: &[u8], high: &[u8], scales: &[u8], out: &mut [f32]) {
    let mut codes = [0; 128];
    let codes = &mut codes[..s.group];
    unpack_codes(s, &base[..s.base_bytes], &high[..s.high_bytes], codes);
    let d = f16::to_f32(u16::from_le_bytes([scales[0], scales[1]]));
    for (o, &q) in out.iter_mut().zip(&*codes) {
        *o = d * f32::from(q);
    }
}

/// Hands out the values of a row's end as vectors, filled up: `add(w, x)`. A weight of -0 times +0 leaves every accumulator
/// as it is.
pub(crate) fn filled(
    weights: impl Iterator<Item = f32>,
    x: &[f32],
    mut add: impl FnMut(&[f32; 16], &[f32; 16]),
) {
    let mut weights = weights;
    for x in x.chunks(16) {
        let (mut w, mut padded) = ([-0.0; 16], [0.0; 16]);
        padded[..x.len()].copy_from_slice(x);
        for (to, w) in w[..x.len()].iter_mut().zip(&mut weights) {
            *to = w;
        }
        add(&w, &padded);
    }
}

/// The entries of blocks that [`columns`] makes, each a function.
macro_rules! block_columns {
    ($entry:ident; $($name:ident: $function:path, $bytes:literal -> $values:literal;)+) => {
        $entry! {
            $(pub(super) fn $name(
                view: &TensorView<'_>,
                x: &Columns<'_>,
                columns: std::ops::Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                let unit = |rows: &[Planes<'_>; ROWS], u: usize, x: &[f32], acc: [Acc; ROWS]| {
                    let (x, mut acc) = (x.as_chunks::<$values>().0, acc);
                    let mut blocks: [&[[u8; $bytes]]; ROWS] = [&[]; ROWS];
                    rows!(ROWS, r, {
                        let (blocks, row) = (&mut blocks[r], &rows[r]);
                        *blocks = &row.base.as_chunks::<$bytes>().0[u..][..x.len()];
                    });
                    for (b, x) in x.iter().enumerate() {
                        let mut these = [&[0; $bytes]; ROWS];
                        rows!(ROWS, r, {
                            let (this, blocks) = (&mut these[r], blocks[r]);
                            *this = &blocks[b];
                        });
                        if b.is_multiple_of(const { if $bytes < 64 { 64 / $bytes } else { 1 } }) {
                            for block in these {
                                let there = block.as_ptr().wrapping_add(ROWS * rows[0].base.len());
                                for line in 0..const { usize::div_ceil($bytes, 64) } {
                                    fetch(there.wrapping_add(64 * line));
                                }
                            }
                        }
                        let mut sum = Sum { x, acc };
                        $function(these, &mut sum);
                        acc = sum.acc;
                    }
                    acc
                };
                for t in columns {
                    column(view, (x, t), &mut scratch.column16.x, out, (zero(), usize::MAX), unit, |acc| combine(acc));
                }
            })+
        }
    };
}
pub(crate) use block_columns;

/// The entry of grouped formats that [`columns`] makes, by `grouped::group`; in scope must be `scales` and `add_tail`, too.
macro_rules! group_columns {
    ($entry:ident) => {
        $entry! {
            pub(super) fn groups<const KIND: u8, const G: usize, const B: usize, const H: usize>(
                view: &TensorView<'_>,
                x: &Columns<'_>,
                columns: std::ops::Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                let Scheme::Grouped(scheme) = view.format().scheme() else { return };
                const { assert!(shape(KIND)[0] == G && shape(KIND)[1] == B && shape(KIND)[2] == H % B) };
                let unit = |rows: &[Planes<'_>; ROWS], u: usize, x: &[f32], acc: [Acc; ROWS]| {
                    let (first, (x, x_tail), mut acc) = (u * (UNIT / G), x.as_chunks::<G>(), acc);
                    let (mut bases, mut highs): ([&[[u8; B]]; ROWS], [&[[u8; H]]; ROWS]) = ([&[]; ROWS], [&[]; ROWS]);
                    // With few rows, checks cost less than what their slices take of registers.
                    if const { ROWS > 2 } {
                        rows!(ROWS, r, {
                            let (row, base, high) = (&rows[r], &mut bases[r], &mut highs[r]);
                            *base = &row.base.as_chunks().0[first..][..x.len()];
                            if H != B {
                                *high = &row.high.as_chunks().0[first..][..x.len()];
                            }
                        });
                    }
                    // Converted together: a broadcast from memory is cheap.
                    let mut d = [[0.0; 8]; ROWS];
                    rows!(ROWS, r, {
                        let (d, row) = (&mut d[r], &rows[r]);
                        scales(&row.scales[2 * first..], d);
                    });
                    for (g, x) in x.iter().enumerate() {
                        let mut sum = Sum { x, acc };
                        rows!(ROWS, r, {
                            let (row, at) = (&rows[r], first + g);
                            let d = d[r][if const { ROWS > 2 } { g % 8 } else { g }];
                            let base: &[u8] = match const { ROWS > 2 } {
                                true => &bases[r][g],
                                false => &row.base[at * B..(at + 1) * B],
                            };
                            let high: &[u8] = match const { (H == B, ROWS > 2) } {
                                (true, _) => &[],
                                (false, true) => &highs[r][g],
                                (false, false) => &row.high[at * H..(at + 1) * H],
                            };
                            if g.is_multiple_of(const { 64 / B }) {
                                let ahead = if const { ROWS > 2 } { &rows[0] } else { row };
                                fetch(base.as_ptr().wrapping_add(ROWS * ahead.base.len()));
                            }
                            grouped::group::<KIND>(base, high, d, r, &mut sum);
                        });
                        acc = sum.acc;
                    }
                    if !x_tail.is_empty() {
                        let at = first + x.len();
                        for (row, acc) in rows.iter().zip(&mut acc) {
                            let mut w = [0.0; G];
                            let (base, high) = (&row.base[at * B..], &row.high[at * (H % B)..]);
                            let w_tail = &mut w[..x_tail.len()];
                            last_group(&scheme, base, high, &row.scales[2 * at..], w_tail);
                            *acc = add_tail(w.into_iter(), x_tail, *acc);
                        }
                    }
                    acc
                };
                for t in columns {
                    column(view, (x, t), &mut scratch.column16.x, out, (zero(), UNIT), unit, |acc| combine(acc));
                }
            }
        }
    };
}
pub(crate) use group_columns;

/// Makes `entry` and the entries of a token whose modules decode to its `Runs`, given the function and the bytes and values
/// of a block of each. In scope must be `Acc`, the accumulators of an element, `ROWS`, `zero()`, `Sum` (`Runs` that adds
/// products with its `x` to its `acc` of a row), `add_tail`, `combine`, and `words`, which makes sixteen numbers of direct words.
macro_rules! columns {
    ($entry:ident; $($kind:ident $name:ident: $function:path, $bytes:literal -> $values:literal;)+) => {
        use ninfer_formats::{BlockKind, DirectKind, FormatId, GroupCode, Nvfp4Scales, Scheme, TensorView};
        use $crate::arch::fetch;
        use $crate::column16::{Memory, OFFSET_BY_ONE, Planes, QUOTIENTS_FROM, UNIT, column, last_group, rows, shape};
        use $crate::kernels::{A16Fn, Columns, Scratch};
        use $crate::tile::Tile;

        /// The entry of a format.
        pub(super) fn entry(format: FormatId) -> Option<A16Fn> {
            Some(match format.scheme() {
                Scheme::Direct(DirectKind::Bf16) => direct::<2>,
                Scheme::Direct(DirectKind::Fp32) => direct::<4>,
                Scheme::Direct(DirectKind::Int32) => return None,
                Scheme::Grouped(s) => match (s.bits, s.code) {
                    (2, GroupCode::OffsetByOne) => groups::<OFFSET_BY_ONE, 64, 16, 16>,
                    (2, GroupCode::TwosComplement) => groups::<2, 128, 32, 32>,
                    (4, _) => groups::<4, 64, 32, 32>,
                    (5, _) => groups::<5, 64, 32, 8>,
                    (6, _) => groups::<6, 64, 32, 16>,
                    _ => groups::<8, 32, 32, 32>,
                },
                Scheme::Nvfp4 => quads,
                Scheme::RowScaled(_) => rows_of_fp8,
                Scheme::Gguf(kind) => match kind {
                    $(BlockKind::$kind => $name,)+
                },
            })
        }

        $crate::column16::block_columns! { $entry; $($name: $function, $bytes -> $values;)+ }
        $crate::column16::group_columns! { $entry }

        $entry! {
            fn direct<const BYTES: usize>(
                view: &TensorView<'_>,
                x: &Columns<'_>,
                columns: std::ops::Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                let unit = |rows: &[Planes<'_>; ROWS], u: usize, x: &[f32], acc: [Acc; ROWS]| {
                    let mut bytes: [&[u8]; ROWS] = [&[]; ROWS];
                    for (bytes, row) in bytes.iter_mut().zip(rows) {
                        *bytes = &row.base[BYTES * u * UNIT..][..BYTES * x.len()];
                    }
                    let (runs, tail) = x.as_chunks::<16>();
                    let mut sum = Sum { x: runs.as_flattened(), acc };
                    for i in 0..runs.len() {
                        rows!(ROWS, r, {
                            let bytes = bytes[r];
                            if i.is_multiple_of(const { 4 / BYTES }) {
                                let there = bytes.as_ptr().wrapping_add(16 * BYTES * i);
                                fetch(there.wrapping_add(ROWS * rows[0].base.len()));
                            }
                            sum.put(r, i, words::<BYTES>(&bytes[16 * BYTES * i..][..16 * BYTES]));
                        });
                    }
                    let mut acc = sum.acc;
                    if !tail.is_empty() {
                        for (bytes, acc) in bytes.iter().zip(&mut acc) {
                            let rest = bytes[16 * BYTES * runs.len()..].chunks_exact(BYTES).map(|w| {
                                // The bytes of bfloat16 are the upper ones.
                                let mut word = [0; 4];
                                word[4 - BYTES..].copy_from_slice(w);
                                f32::from_le_bytes(word)
                            });
                            *acc = add_tail(rest, tail, *acc);
                        }
                    }
                    acc
                };
                for t in columns {
                    column(view, (x, t), &mut scratch.column16.x, out, (zero(), UNIT), unit, |acc| combine(acc));
                }
            }

            fn quads(
                view: &TensorView<'_>,
                x: &Columns<'_>,
                columns: std::ops::Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                // Divided once, where enough rows have a divisor in common.
                let alike = view.rows_per_divisor().min(view.rows());
                let worthwhile = alike.saturating_mul(view.k()) >= QUOTIENTS_FROM;
                let Memory { x: memory, quotients } = &mut scratch.column16;
                quotients.resize(256, [0.0; 8]);
                let Some(quotients) = quotients.first_chunk_mut::<256>() else { return };
                let mut divisor = None;
                #[cfg(not(target_arch = "x86_64"))]
                let _ = (worthwhile, quotients, divisor.get_or_insert(0));
                let mut unit = |rows: &[Planes<'_>; ROWS], u: usize, x: &[f32], acc: [Acc; ROWS]| {
                    let mut sum = Sum { x, acc };
                    let mut codes: [&[u8]; ROWS] = [&[]; ROWS];
                    let mut scales: [(&[u8], f32); ROWS] = [(&[], 1.0); ROWS];
                    rows!(ROWS, r, {
                        let (row, codes, scales) = (&rows[r], &mut codes[r], &mut scales[r]);
                        *codes = &row.base[u * (UNIT / 2)..][..x.len() / 2];
                        *scales = (&row.scales[u * (UNIT / 64) * Nvfp4Scales::QUAD_STRIDE..], row.scale);
                        for line in codes.chunks(64) {
                            fetch(line.as_ptr().wrapping_add(ROWS * row.base.len()));
                        }
                    });
                    #[cfg(target_arch = "x86_64")]
                    {
                        let common = rows[0].scale.to_bits();
                        if worthwhile && rows.iter().all(|row| row.scale.to_bits() == common) {
                            if divisor != Some(common) {
                                nvfp4::quotients(rows[0].scale, quotients);
                                divisor = Some(common);
                            }
                            nvfp4::run_by_quotients(codes, scales, quotients, &mut sum);
                            return sum.acc;
                        }
                    }
                    nvfp4::run(codes, scales, &mut sum);
                    sum.acc
                };
                for t in columns {
                    column(view, (x, t), memory, out, (zero(), UNIT), &mut unit, |acc| combine(acc));
                }
            }

            fn rows_of_fp8(
                view: &TensorView<'_>,
                x: &Columns<'_>,
                columns: std::ops::Range<usize>,
                out: &mut Tile<'_>,
                scratch: &mut Scratch,
            ) {
                let unit = |rows: &[Planes<'_>; ROWS], u: usize, x: &[f32], acc: [Acc; ROWS]| {
                    let mut acc = acc;
                    let mut factors = [None; ROWS];
                    for (factor, row) in factors.iter_mut().zip(rows) {
                        *factor = $crate::arch::decoders::fp8_factor(row.scale);
                    }
                    #[cfg(target_arch = "x86_64")]
                    {
                        if factors.iter().all(Option::is_some)
                            && x.len() == UNIT
                        {
                            let mut codes = [&[0; UNIT]; ROWS];
                            let mut whole = true;
                            rows!(ROWS, r, {
                                let (row, codes) = (&rows[r], &mut codes[r]);
                                match row.base[u * UNIT..].first_chunk() {
                                    Some(these) => *codes = these,
                                    None => whole = false,
                                }
                                for line in codes.chunks(64) {
                                    fetch(line.as_ptr().wrapping_add(ROWS * row.base.len()));
                                }
                            });
                            let mut sum = Sum { x, acc };
                            if whole && fp8_row::unit(codes, factors.map(|f| f.unwrap_or(0.0)), &mut sum) {
                                return sum.acc;
                            }
                        }
                    }
                    for (i, x) in x.chunks(64).enumerate() {
                        let mut sum = Sum { x, acc };
                        rows!(ROWS, r, {
                            let (row, factor) = (&rows[r], factors[r]);
                            let codes = &row.base[u * UNIT + 64 * i..][..x.len()];
                            fetch(codes.as_ptr().wrapping_add(ROWS * row.base.len()));
                            let done = match (codes.first_chunk(), factor) {
                                (Some(codes), Some(factor)) => fp8_row::run(codes, factor, r, &mut sum),
                                _ => false,
                            };
                            if !done {
                                let mut w = [0.0; 64];
                                $crate::arch::decoders::fp8_portable(codes, row.scale, &mut w[..x.len()]);
                                sum.acc[r] = add_tail(w.into_iter(), x, sum.acc[r]);
                            }
                        });
                        acc = sum.acc;
                    }
                    acc
                };
                for t in columns {
                    column(view, (x, t), &mut scratch.column16.x, out, (zero(), UNIT), unit, |acc| combine(acc));
                }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use columns;
