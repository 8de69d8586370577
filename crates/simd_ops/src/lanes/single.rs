//! Products of one column.
//!
//! The loop over blocks is written out with the chains in registers, and every run of bytes is taken where the first
//! block needs it, so that loads of one block overlap the arithmetic of another. Sixteen rows side by side are more
//! streams than a machine follows well where several lie in one page of memory. But a tile's rows lie behind each
//! other: while one tile is worked on, the bytes of a later one are fetched in the order of memory, to the
//! second-level cache. Longer rows are better left alone. (Measured both.)
//!
//! Where a format's codes can be unpacked byte by byte ([`Lay`]), runs of bytes are not turned: sixteen bytes of
//! four rows fill a vector, the activations are repeated for each, and the four partial sums of a row are added
//! afterwards. That costs six to nine steps for sixteen rows and 32 values instead of eight shuffles for every sixteen
//! bytes.

use ninfer_formats::TensorView;

use super::driver::{Column, add, add_weighed, finish, offset, scales_of, term, weighed};
use super::formats::{Codes, Unit};
use super::{Activation, HalfLine, Line, Memory, Places, ROWS, Rows, Turned, Vector, Words};
use crate::arch::fetch_early;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Most words of a unit.
pub(super) const MOST_WORDS: usize = 56;
/// Most half words of a unit.
pub(super) const MOST_HALVES: usize = 2;

/// How the sixteen bytes of a row's run lie in vectors when there is one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lay {
    /// Turned: a word of every row.
    Turned,
    /// As they are, four rows a vector: unpacked vectors `i` and `4 + i` hold the first and the last sixteen values of
    /// rows `i`, `4 + i`, `8 + i` and `12 + i`.
    Halves,
    /// As they are: unpacked vectors `2 i` and `2 i + 1` hold the even and the odd values of these rows.
    Pairs,
}

/// 32 activations for rows whose bytes are not turned.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Beside {
    /// Codes: the halves, or the even and the odd ones.
    pub codes: [[i8; 16]; 2],
    /// What the partial sums of the halves, or of the whole, start at.
    pub start: [[i32; 4]; 2],
    /// What is added to the sums of the halves, or of the whole, instead.
    pub late: [i32; 2],
    /// Scale.
    pub d: f32,
    /// Sum of the codes times the scale.
    pub sum: f32,
    /// Sums of the codes of the halves.
    pub halves: [f32; 2],
}

impl Column for Beside {
    #[inline(always)]
    fn rest(&self) -> (f32, f32, [f32; 2]) {
        (self.d, self.sum, self.halves)
    }
}

/// Vectors that can hold sixteen bytes of four rows, or of two rows in two parts.
pub(crate) trait Quads: Vector {
    /// Whether offsets of codes are taken off the rows' sums at last, and not by start values of [`Self::dot`].
    const LATE: bool;
    /// Sixteen bytes of every row: of rows `i`, `4 + i`, `8 + i`, `12 + i` in vector `i`, its parts one after the other.
    ///
    /// # Safety
    /// As of [`Vector::turn_at`].
    unsafe fn lay_at(self, rows: Places, out: &mut [Line<Words>; 4]);
    /// Sums of the products of four bytes each, which are at most `most` in magnitude, and of what they start at; codes
    /// are at most `range`. [`Self::join`] takes them; what they are like until then, it knows from `most`.
    fn dot(self, start: &[i32; 4], w: Self::I, x: &[i8; 16], range: u32, most: i32) -> Self::I;
    /// As [`Self::dot`], of four bytes each of both.
    fn dot_two(self, start: &[i32; 4], w: [Self::I; 2], x: &[[i8; 16]; 2], range: u32, most: i32) -> Self::I;
    /// A number added.
    fn plus(self, v: Self::I, number: i32) -> Self::I;
    /// `w`, or `w | 16` in the bytes `i` where the bits `bits[i]` of byte `from[i]` of each 16 bytes of `words` are set (or,
    /// if not `set`, are not).
    fn or_16(self, w: Self::I, words: Self::I, from: &[u8; 16], bits: &[u8; 16], set: bool) -> Self::I;
    /// Byte `from[i]` of each 16 bytes at byte `i`.
    fn pick_16(self, words: Self::I, from: &[u8; 16]) -> Self::I;
    /// Adds each row's four lanes, which are at most `most` in magnitude; the rows (of the part) in order.
    fn join(self, sums: [Self::I; 4], most: i32) -> Self::I;
    /// Adds each row's first two lanes, and its last two.
    fn join_pairs(self, sums: [Self::I; 4], most: i32) -> [Self::I; 2];
}

/// Lays out the activations of column `t`.
fn fill<S: Codes>(to: &mut Vec<Beside>, x: &Q8_1, t: usize) {
    let column = x.column(t);
    to.clear();
    let runs = column.codes.as_chunks::<32>().0.iter().zip(column.half_sums.as_chunks::<2>().0);
    to.extend(runs.zip(column.scales).map(|((codes, sums), &d)| {
        let mut out = Beside { d, ..Beside::default() };
        out.codes = if S::LAY == Lay::Pairs {
            [std::array::from_fn(|i| codes[2 * i]), std::array::from_fn(|i| codes[2 * i + 1])]
        } else {
            [std::array::from_fn(|i| codes[i]), std::array::from_fn(|i| codes[16 + i])]
        };
        if S::OFFSET != 0 {
            let fours = out.codes.map(|half| {
                let mut sums = [0i32; 4];
                for (sum, codes) in sums.iter_mut().zip(half.as_chunks::<4>().0) {
                    *sum = -S::OFFSET * codes.iter().map(|&x| i32::from(x)).sum::<i32>();
                }
                sums
            });
            let own = S::SPLIT && S::LAY == Lay::Halves;
            out.start =
                if own { fours } else { [std::array::from_fn(|i| fours[0][i] + fours[1][i]), [0; 4]] };
        }
        let [low, high] = sums.map(i32::from);
        out.late =
            if S::SPLIT { [-S::OFFSET * low, -S::OFFSET * high] } else { [-S::OFFSET * (low + high), 0] };
        out.sum = (low + high) as f32 * d;
        out.halves = [low as f32, high as f32];
        out
    }));
}

/// Greatest magnitude of a code of block `B`, without its offset if that is taken off at once.
#[inline(always)]
fn most<V: Quads, S: Codes, const B: usize>() -> i32 {
    if V::LATE {
        return S::RANGE as i32;
    }
    let range = S::RANGE as i32 - S::OFFSET;
    (if range > S::OFFSET { range } else { S::OFFSET }) << S::raised::<V, B>()
}

/// The integer sums of a block of rows that are not turned, as [`Codes::sums`].
#[inline(always)]
fn sums<V: Quads, S: Codes, const B: usize>(v: V, w: &[V::I; 8], x: &Beside) -> [V::I; 2] {
    let most = most::<V, S, B>() * 127;
    // Macros, as closures called more than once may stay calls.
    macro_rules! half {
        ($h:literal: $($i:literal)+) => {
            v.join([$(v.dot(&x.start[$h], w[4 * $h + $i], &x.codes[$h], S::RANGE, 4 * most)),+], 4 * most)
        };
    }
    macro_rules! rows {
        ($($i:literal)+) => {
            [$({
                let both = if S::LAY == Lay::Pairs { [w[2 * $i], w[2 * $i + 1]] } else { [w[$i], w[4 + $i]] };
                v.dot_two(&x.start[0], both, &x.codes, S::RANGE, 8 * most)
            }),+]
        };
    }
    let mut sums = match (S::SPLIT, S::LAY) {
        (true, Lay::Pairs) => v.join_pairs(rows!(0 1 2 3), 8 * most),
        (true, _) => [half!(0: 0 1 2 3), half!(1: 0 1 2 3)],
        (false, _) => [v.join(rows!(0 1 2 3), 8 * most), v.zero()],
    };
    if V::LATE && S::OFFSET != 0 && !(V::SIGNED && S::RANGE > 127) {
        sums[0] = v.plus(sums[0], x.late[0]);
        if S::SPLIT {
            sums[1] = v.plus(sums[1], x.late[1]);
        }
    }
    sums
}

/// How the bytes of a tile's rows come into vectors, and how they are multiplied.
pub(crate) trait Way<V: Vector, S: Codes> {
    /// Activations of a block.
    type X: Column;
    /// Fills the words of piece `i` of a unit.
    ///
    /// # Safety
    /// As of [`Vector::turn_at`].
    unsafe fn place(v: V, i: usize, rows: Places, out: &mut [Line<Words>; 4]);
    /// The integer sums of block `B` of a unit.
    fn sums<const B: usize>(v: V, unit: Unit<'_>, x: &Self::X) -> [V::I; 2];
}

/// Rows are turned; for every format.
pub(crate) struct Turning;

impl<V: Vector, S: Codes> Way<V, S> for Turning {
    type X = Activation;

    #[inline(always)]
    unsafe fn place(v: V, _i: usize, rows: Places, out: &mut [Line<Words>; 4]) {
        // SAFETY: the caller's promise.
        unsafe { v.turn_at(rows, out) };
    }

    #[inline(always)]
    fn sums<const B: usize>(v: V, unit: Unit<'_>, x: &Activation) -> [V::I; 2] {
        if weighed::<V, S>() {
            return S::weighed::<V, B>(v, &S::unpack::<V, B>(v, unit), &S::weights::<V, B>(v, unit), x);
        }
        S::sums::<V, B>(v, &S::unpack::<V, B>(v, unit), x)
    }
}

/// Rows lie beside each other; for formats with another [`Lay`] than turned.
pub(crate) struct Laying;

impl<V: Quads, S: Codes> Way<V, S> for Laying {
    type X = Beside;

    #[inline(always)]
    unsafe fn place(v: V, i: usize, rows: Places, out: &mut [Line<Words>; 4]) {
        // SAFETY: the caller's promise.
        unsafe { if Some(i) == S::HEAD { v.turn_at(rows, out) } else { v.lay_at(rows, out) } }
    }

    #[inline(always)]
    fn sums<const B: usize>(v: V, unit: Unit<'_>, x: &Beside) -> [V::I; 2] {
        sums::<V, S, B>(v, &S::unpack_beside::<V, B>(v, unit), x)
    }
}

/// Calls `$each` with every number of a block in a unit as a constant.
macro_rules! blocks {
    ($each:ident) => {
        $each!(0 1 2 3 4 5 6 7)
    };
}

/// As [`single_beside`] with turned rows.
#[inline(always)]
fn single<V: Vector, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    x: &Q8_1,
    t: usize,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    memory.fill::<S>(x, t..t + 1, offset::<V, S>());
    tiles::<V, S, Turning>(v, view, &memory.x, t, out, &mut memory.rows);
}

/// The A8 product of the view's rows and column `t`; see [`crate::kernels::A8Fn`]. Rows are turned or not, as the format
/// says.
#[inline(always)]
pub(crate) fn single_beside<V: Quads, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    x: &Q8_1,
    t: usize,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    if S::LAY == Lay::Turned {
        single::<V, S>(v, view, x, t, out, memory);
    } else {
        fill::<S>(&mut memory.beside, x, t);
        tiles::<V, S, Laying>(v, view, &memory.beside, t, out, &mut memory.rows);
    }
}

/// Bytes between what is read and what is fetched early, about.
pub(super) const AHEAD: usize = 1 << 16;
/// Rows of so many bytes are left to the machine, which follows one stream in a page of memory: hints slow it then.
pub(super) const LONG: usize = 4096;

/// Where the planes of the tile lie that is to be fetched while the one of `rows` is worked on, `left` rows before the
/// end; of the same tile if there is none. Null if nothing is to be fetched.
#[inline(always)]
pub(super) fn later(rows: &Rows<'_>, left: usize) -> [*const u8; 3] {
    let stride = rows.stride.iter().max().copied().unwrap_or(0);
    let mut out = [std::ptr::null(); 3];
    if stride < LONG {
        let tile = ROWS * stride;
        let tiles = AHEAD / tile.max(1) + 1;
        let tiles = if left >= (tiles + 1) * ROWS { tiles } else { 0 };
        for (p, out) in out.iter_mut().enumerate() {
            *out = rows.bytes[p].as_ptr().wrapping_add(tiles * ROWS * rows.stride[p]);
        }
    }
    out
}

/// Fetches the part of a later tile that stands for block `B` of unit `unit`.
#[inline(always)]
pub(super) fn fetch_later<S: Codes, const B: usize>(later: [*const u8; 3], unit: usize) {
    if later[0].is_null() {
        return;
    }
    for (p, later) in later.into_iter().enumerate() {
        if S::BYTES[p] == 0 || S::STEP[p] != S::BYTES[p] {
            continue;
        }
        // Less than a line a block: once for the unit.
        let bytes = ROWS * S::BYTES[p];
        let parts = if bytes / S::BLOCKS >= 64 { S::BLOCKS } else { 1 };
        if B < parts {
            let (from, to) = (bytes * B / parts, bytes * (B + 1) / parts);
            for i in 0..(to - from).div_ceil(64) {
                fetch_early(later.wrapping_add(unit * bytes + from + 64 * i));
            }
        }
    }
}

/// The unit `u` of a tile's rows: where it begins in the planes.
#[derive(Clone, Copy)]
pub(super) struct At<'a, 'b> {
    rows: &'a Rows<'b>,
    u: usize,
    begin: [Places; 3],
}

/// The bytes of planes that all units of all rows need, checked once for a tile; see [`At::place`].
#[inline(always)]
pub(super) fn check<S: Codes>(rows: &Rows<'_>, units: usize) {
    const {
        // What is read of a unit lies in the unit.
        let mut i = 0;
        while i < S::PIECES.len() {
            assert!(S::PIECES[i].1 + 16 <= S::BYTES[S::PIECES[i].0]);
            i += 1;
        }
        i = 0;
        while i < S::SINGLES.len() {
            assert!(S::SINGLES[i].1 + 4 <= S::BYTES[S::SINGLES[i].0]);
            i += 1;
        }
        i = 0;
        while i < S::HALVES.len() {
            assert!(S::HALVES[i].1 + 2 <= S::BYTES[S::HALVES[i].0]);
            i += 1;
        }
        assert!(S::PIECES.len() <= 13 && S::WORDS <= MOST_WORDS && S::HALVES.len() <= MOST_HALVES);
    }
    for p in 0..3 {
        let end = (ROWS - 1) * rows.stride[p] + (units - 1) * rows.step[p] + S::BYTES[p];
        assert!(S::BYTES[p] == 0 || end <= rows.bytes[p].len(), "the units of sixteen rows");
    }
}

impl<'a, 'b> At<'a, 'b> {
    #[inline(always)]
    pub(super) fn of<S: Codes>(rows: &'a Rows<'b>, u: usize) -> Self {
        // A plane that is not there costs nothing: its places are not asked for.
        let begin = |p: usize| {
            let first = rows.bytes[p].as_ptr();
            Places::new(first.wrapping_add(u * rows.step[p]), rows.stride[p])
        };
        Self { rows, u, begin: [begin(0), begin(1), begin(2)] }
    }

    #[inline(always)]
    pub(super) fn places(&self, (plane, at): (usize, usize)) -> Places {
        self.begin[plane].behind(at)
    }

    /// Fills the words that are no pieces, and half words.
    ///
    /// # Safety
    /// As of [`Self::place`].
    #[inline(always)]
    pub(super) unsafe fn singles<V: Vector, S: Codes>(
        &self,
        v: V,
        words: &mut [Line<Words>; MOST_WORDS],
        halves: &mut [HalfLine; MOST_HALVES],
    ) {
        for (&place, out) in S::SINGLES.iter().zip(&mut words[4 * S::PIECES.len()..]) {
            // SAFETY: inside the unit, as `check` says.
            unsafe { v.words_at(self.places(place), out) };
        }
        for (&(p, at), out) in S::HALVES.iter().zip(halves) {
            let (rows, stride) = (self.places((p, at)), self.rows.stride[p]);
            // A half word is read as part of a word.
            let rest = self.rows.bytes[p].len() - (ROWS - 1) * stride;
            if at + 4 <= S::BYTES[p] || self.u * self.rows.step[p] + at + 4 <= rest {
                // SAFETY: inside the unit, or by the comparison inside the plane.
                unsafe { v.halves_at(rows, false, out) };
            } else if at >= 2 || self.u * self.rows.step[p] + at >= 2 {
                // SAFETY: as above; two bytes before are in the same unit or another of the row.
                unsafe { v.halves_at(rows.before(2), true, out) };
            } else {
                v.halves(self.rows.bytes[p], stride, self.u * self.rows.step[p] + at, out);
            }
        }
    }

    /// Fills the words of the pieces that block `B` is the first to need; before the first block also those that are
    /// no pieces, and half words.
    ///
    /// # Safety
    /// The unit must be one of those that [`check`] was called for.
    #[inline(always)]
    unsafe fn place<V: Vector, S: Codes, W: Way<V, S>, const B: usize>(
        &self,
        v: V,
        words: &mut [Line<Words>; MOST_WORDS],
        halves: &mut [HalfLine; MOST_HALVES],
    ) {
        if B == 0 {
            // SAFETY: the caller's promise.
            unsafe { self.singles::<V, S>(v, words, halves) };
        }
        let pieces = words.as_chunks_mut::<4>().0;
        macro_rules! piece {
            ($($i:literal)+) => {
                $(if $i < S::PIECES.len() && const { first_needs(S::FIRST, $i) } == B {
                    // SAFETY: inside the unit, as `check` says.
                    unsafe { W::place(v, $i, self.places(S::PIECES[$i]), &mut pieces[$i]) };
                })+
            };
        }
        piece!(0 1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

/// The block that is the first to need piece `i`.
const fn first_needs(first: &[usize], i: usize) -> usize {
    if i < first.len() { first[i] } else { 0 }
}

#[inline(always)]
fn tiles<V: Vector, S: Codes, W: Way<V, S>>(
    v: V,
    view: &TensorView<'_>,
    x: &[W::X],
    t: usize,
    out: &mut Tile<'_>,
    room: &mut [Vec<u8>; 3],
) {
    let units = x.len().div_ceil(S::BLOCKS);
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = Rows::of::<S>(view, first, room);
        check::<S>(&rows, units);
        let later = later(&rows, view.rows() - first);
        let mut words = [Line([0; ROWS]); MOST_WORDS];
        let mut halves = [HalfLine([0; ROWS]); MOST_HALVES];
        let (mut acc, mut min) = ([[v.zeros()]; 2], [[v.zeros()]; 2]);
        for (u, x) in x.chunks(S::BLOCKS).enumerate() {
            let mut scales = [[v.zeros(); 2]; 2];
            let at = At::of::<S>(&rows, u);
            macro_rules! step {
                ($($b:literal)+) => {
                    $(if $b < S::BLOCKS && let Some(x) = x.get($b) {
                        fetch_later::<S, $b>(later, u);
                        // SAFETY: a unit below `units`.
                        unsafe { at.place::<V, S, W, $b>(v, &mut words, &mut halves) };
                        let (words, halves) = (&words[..S::WORDS], &halves[..S::HALVES.len()]);
                        for part in 0..ROWS / V::LANES {
                            let unit = Unit { words, halves, part };
                            if $b == 0 {
                                scales[part] = scales_of::<V, S>(v, unit);
                            }
                            let sums = W::sums::<$b>(v, unit, x);
                            let term = term::<V, S, $b>(v, unit, scales[part]);
                            let (acc, min) = (&mut acc[part][0], &mut min[part][0]);
                            if weighed::<V, S>() {
                                add_weighed::<V, S>(v, &term, sums, x.rest().0, acc, min);
                            } else {
                                add::<V, S>(v, &term, sums, x.rest(), acc, min);
                            }
                        }
                    })+
                };
            }
            blocks!(step);
        }
        finish::<V, S, 1>(v, view, first, t..t + 1, out, &acc, &min);
    }
}

/// As [`single_beside`], from words that were turned before; see [`crate::kernels::PreparedFn`].
#[inline(always)]
pub(crate) fn single_prepared<V: Vector, S: Codes>(
    v: V,
    view: &TensorView<'_>,
    turned: Turned<'_>,
    x: &Q8_1,
    t: usize,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    memory.fill::<S>(x, t..t + 1, offset::<V, S>());
    let units = x.blocks().div_ceil(S::BLOCKS);
    for (tile, first) in (0..view.rows()).step_by(ROWS).enumerate() {
        let (mut acc, mut min) = ([[v.zeros()]; 2], [[v.zeros()]; 2]);
        for (u, x) in memory.x.chunks(S::BLOCKS).enumerate() {
            let unit = tile * units + u;
            let words = &turned.words[unit * S::WORDS..(unit + 1) * S::WORDS];
            let halves = &turned.halves[unit * S::HALVES.len()..(unit + 1) * S::HALVES.len()];
            for part in 0..ROWS / V::LANES {
                let unit = Unit { words, halves, part };
                let scales = scales_of::<V, S>(v, unit);
                macro_rules! step {
                    ($($b:literal)+) => {
                        $(if $b < S::BLOCKS && let Some(x) = x.get($b) {
                            if part == 0 {
                                let (from, to) = (S::WORDS * $b / S::BLOCKS, S::WORDS * ($b + 1) / S::BLOCKS);
                                for i in from..to {
                                    fetch_early(words.as_ptr().wrapping_add(AHEAD / 2 / 64 + i).cast());
                                }
                            }
                            let sums = <Turning as Way<V, S>>::sums::<$b>(v, unit, x);
                            let term = term::<V, S, $b>(v, unit, scales);
                            let (acc, min) = (&mut acc[part][0], &mut min[part][0]);
                            if weighed::<V, S>() {
                                add_weighed::<V, S>(v, &term, sums, x.rest().0, acc, min);
                            } else {
                                add::<V, S>(v, &term, sums, x.rest(), acc, min);
                            }
                        })+
                    };
                }
                blocks!(step);
            }
        }
        finish::<V, S, 1>(v, view, first, t..t + 1, out, &acc, &min);
    }
}
