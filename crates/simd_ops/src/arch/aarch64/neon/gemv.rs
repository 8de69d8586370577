//! A8 products of one or a few columns, for this token and those with dot products.
//!
//! Four rows are taken at a time, one in each lane of the chain of `fma`s that [`crate::order`] asks for. A block's
//! byte products give four partial sums a row; two rounds of pairwise additions turn those of four rows into one
//! vector with a row in each lane, to which sub-scales and scales are applied as such vectors. Sums are exact integers
//! until they become a term, so the kernels may start them at `-offset * sum(x)` instead of subtracting an offset from
//! each code, and may take codes times a power of two.
//!
//! A unit of 256 values that is not whole is copied and filled with zeros on both sides. Its missing terms are left out
//! or add a zero to accumulators that are never -0, which changes no bit.

use std::arch::aarch64::*;
use std::ops::Range;

use ninfer_formats::{Nvfp4Scales, TensorView};

use super::gemv_unpack::{Form, Order, Unpack};
use super::prims::{from_halves, load_f32, load_i32, load16_signed};
use crate::gemv::{Factors, MOST, Planes, Scales, UNIT, unit_bytes};
use crate::isa::neon_entry;
use crate::q8_1::Q8_1;
use crate::tile::Tile;

/// Rows of a tile.
const ROWS: usize = 4;

/// How the products of pairs of bytes are summed. Activations are at most 127 in magnitude.
pub(in crate::arch::aarch64) trait Dot {
    /// Adds sixteen products to the lanes, whichever to which. Weights are any bytes.
    ///
    /// # Safety
    /// The machine must have the features of the implementor's token.
    unsafe fn dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
    /// Adds the products of the lower halves of both pairs of vectors to lanes 0 and 1, those of the upper halves to
    /// lanes 2 and 3. Weights are at most 60 in magnitude.
    ///
    /// # Safety
    /// As for `dot`.
    unsafe fn apart(sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t;
}

/// Products widened to 16 bits: two of them are at most 2 * 128 * 127, which 16 bits hold.
pub(in crate::arch::aarch64) struct Widening;

impl Dot for Widening {
    #[inline(always)]
    unsafe fn dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline.
        unsafe {
            let pairs = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            vpadalq_s16(sum, vmlal_high_s8(pairs, w, x))
        }
    }

    #[inline(always)]
    unsafe fn apart(sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: as above. Four products are at most 4 * 60 * 127.
        unsafe {
            let low = vmull_s8(vget_low_s8(w[0]), vget_low_s8(x[0]));
            let low = vmlal_s8(low, vget_low_s8(w[1]), vget_low_s8(x[1]));
            let high = vmlal_high_s8(vmull_high_s8(w[0], x[0]), w[1], x[1]);
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }
    }
}

/// The bytes of a unit of a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::arch::aarch64) struct Place<'a> {
    /// Blocks or codes, [`crate::gemv::Format::BYTES`].
    pub codes: &'a [u8],
    /// High bits of codes.
    pub high: &'a [u8],
    /// Scales, [`Unpack::SCALE_BYTES`].
    pub scales: &'a [u8],
}

/// A unit of activations.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Unit {
    /// Codes in the kernel's order.
    codes: [i8; UNIT],
    /// What the sums of blocks or half-blocks start at: `-offset * sum(x)` and zeros.
    start: [[i32; 4]; 16],
    /// Scales times the format's power of two.
    d_x: [f32; 8],
    /// One minimum per block: `sum(x) * d_x`; two: `sum(x)` of the halves.
    sums: [f32; 16],
    /// Blocks that exist.
    blocks: usize,
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// `[T][units]`.
    x: Vec<Unit>,
    /// `[T][tiles]` of accumulators; the second are those of minima.
    acc: Vec<[[f32; ROWS]; 2]>,
}

impl Memory {
    /// Lays out the activations.
    fn prepare<S: Unpack>(&mut self, x: &Q8_1, columns: Range<usize>) {
        let blocks = x.blocks();
        self.x.clear();
        for t in columns {
            let column = x.column(t);
            for first in (0..blocks).step_by(UNIT / 32) {
                let count = (blocks - first).min(UNIT / 32);
                let mut unit = Unit {
                    codes: [0; UNIT],
                    start: [[0; 4]; 16],
                    d_x: [0.0; 8],
                    sums: [0.0; 16],
                    blocks: count,
                };
                let codes = &column.codes[32 * first..32 * (first + count)];
                for (i, &c) in codes.iter().enumerate() {
                    let place = match S::ORDER {
                        Order::Natural => i,
                        Order::Pairs => i / 32 * 32 + i % 2 * 16 + i % 32 / 2,
                        Order::Quads => i / 64 * 64 + i % 4 * 16 + i % 64 / 4,
                    };
                    unit.codes[place] = c;
                }
                for b in 0..count {
                    let d_x = column.scales[first + b];
                    let halves = [0, 1].map(|h| i32::from(column.half_sums[2 * (first + b) + h]));
                    let sum = halves[0] + halves[1];
                    unit.d_x[b] = d_x * S::POWER;
                    match S::FORM {
                        Form::Blocks => unit.start[b][0] = -S::OFFSET * sum,
                        Form::Halves => {
                            unit.start[2 * b][0] = -S::OFFSET * halves[0];
                            unit.start[2 * b + 1][0] = -S::OFFSET * halves[1];
                        }
                        // Two blocks in one vector of sums.
                        Form::Quads => unit.start[b / 2][b % 2 * 2] = -S::OFFSET * sum,
                        Form::Terms => {}
                    }
                    if S::FACTORS == Factors::Halves {
                        unit.sums[2 * b] = halves[0] as f32;
                        unit.sums[2 * b + 1] = halves[1] as f32;
                    } else {
                        unit.sums[b] = sum as f32 * d_x;
                    }
                }
                self.x.push(unit);
            }
        }
    }
}

/// The places of a unit of a row; `rooms` is for one that is not whole.
#[inline(always)]
fn place<'a, S: Unpack>(planes: &Planes<'a>, u: usize, rooms: &'a mut [[u8; MOST]; 3]) -> Place<'a> {
    let [codes, high, scales] = rooms;
    let scales = if S::TERMS == 16 {
        // Quads of scales of a row lie apart.
        for (q, quad) in scales[..16].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let at = (4 * u + q) * Nvfp4Scales::QUAD_STRIDE;
            *quad = planes.scales.get(at..at + 4).map_or([0; 4], |s| [s[0], s[1], s[2], s[3]]);
        }
        &scales[..16]
    } else {
        unit_bytes(planes.scales, u, S::SCALE_BYTES, scales)
    };
    Place {
        codes: unit_bytes(planes.codes, u, S::BYTES[0], codes),
        high: unit_bytes(planes.high, u, S::BYTES[1], high),
        scales,
    }
}

/// Runs a body for the four pairs of blocks of a unit, with constants.
macro_rules! each_pair {
    ($p:ident => $body:block) => {
        each_pair!(@ $p $body 0 1 2 3);
    };
    (@ $p:ident $body:block $($i:literal)+) => {
        $({
            const $p: usize = $i;
            $body
        })+
    };
}

/// Accumulators of four rows.
#[derive(Clone, Copy)]
struct Chain {
    acc: float32x4_t,
    m: float32x4_t,
}

/// Scales and integer factors of a unit of four rows, a row in each lane.
struct Scaling<'a, 'b> {
    rows: &'b [Place<'a>; ROWS],
    /// Scale of the unit and of its minima, if it has such.
    unit: [float32x4_t; 2],
    /// Factors and minima: the bytes of four blocks or half-blocks a vector.
    bytes: [[int8x16_t; 4]; 2],
}

neon_entry! {
    /// One vector from the partial sums of four rows.
    #[inline]
    fn tree(v: [int32x4_t; ROWS]) -> int32x4_t {
        vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
    }

    /// Two vectors from the partial sums of four rows, whose lanes 0 and 1 belong to the first.
    #[inline]
    fn two_trees(v: [int32x4_t; ROWS]) -> [int32x4_t; 2] {
        let (a, b) = (vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
        [vuzp1q_s32(a, b), vuzp2q_s32(a, b)]
    }

    /// Binary16 words of four rows to binary32.
    #[inline]
    fn gather(words: [u16; ROWS]) -> float32x4_t {
        // Lane by lane: as an array they would be put together in a general register, byte by byte.
        let v = vset_lane_u16::<1>(words[1], vdup_n_u16(words[0]));
        from_halves(vset_lane_u16::<3>(words[3], vset_lane_u16::<2>(words[2], v)))
    }

    /// The bytes of four rows, the rows of a place side by side.
    #[inline]
    fn turn(r: [int8x16_t; ROWS]) -> [int8x16_t; 4] {
        let (a, b) = (vzip1q_s8(r[0], r[2]), vzip1q_s8(r[1], r[3]));
        let (c, d) = (vzip2q_s8(r[0], r[2]), vzip2q_s8(r[1], r[3]));
        [vzip1q_s8(a, b), vzip2q_s8(a, b), vzip1q_s8(c, d), vzip2q_s8(c, d)]
    }

    /// Bytes `4 * i..4 * i + 4` of the sixteen of four vectors, to 32 bits.
    #[inline]
    fn four_of(bytes: &[int8x16_t; 4], i: usize) -> int32x4_t {
        let v = bytes[i / 4];
        match i % 4 {
            0 => vmovl_s16(vget_low_s16(vmovl_s8(vget_low_s8(v)))),
            1 => vmovl_high_s16(vmovl_s8(vget_low_s8(v))),
            2 => vmovl_s16(vget_low_s16(vmovl_high_s8(v))),
            _ => vmovl_high_s16(vmovl_high_s8(v)),
        }
    }

    /// Exact sums times the power of two that the codes were taken with.
    #[inline]
    fn to_f32<S: Unpack>(v: int32x4_t) -> float32x4_t {
        match S::FRACTION {
            2 => vcvtq_n_f32_s32::<2>(v),
            4 => vcvtq_n_f32_s32::<4>(v),
            _ => vcvtq_f32_s32(v),
        }
    }

    /// `v` times a lane of eight or sixteen values.
    #[inline]
    fn times(v: float32x4_t, lanes: &[f32], i: usize) -> float32x4_t {
        let of: &[f32; 4] = lanes[i / 4 * 4..].first_chunk().expect("whole vectors");
        match i % 4 {
            0 => vmulq_laneq_f32::<0>(v, load_f32(of)),
            1 => vmulq_laneq_f32::<1>(v, load_f32(of)),
            2 => vmulq_laneq_f32::<2>(v, load_f32(of)),
            _ => vmulq_laneq_f32::<3>(v, load_f32(of)),
        }
    }

    /// `sum + v * lane`, fused.
    #[inline]
    fn plus_times(sum: float32x4_t, v: float32x4_t, lanes: &[f32], i: usize) -> float32x4_t {
        let of: &[f32; 4] = lanes[i / 4 * 4..].first_chunk().expect("whole vectors");
        match i % 4 {
            0 => vfmaq_laneq_f32::<0>(sum, v, load_f32(of)),
            1 => vfmaq_laneq_f32::<1>(sum, v, load_f32(of)),
            2 => vfmaq_laneq_f32::<2>(sum, v, load_f32(of)),
            _ => vfmaq_laneq_f32::<3>(sum, v, load_f32(of)),
        }
    }
}

impl<'a, 'b> Scaling<'a, 'b> {
    #[inline(always)]
    fn new<S: Unpack>(rows: &'b [Place<'a>; ROWS]) -> Self {
        // SAFETY: Advanced SIMD is part of the AArch64 baseline; places have the lengths that `place` gives them.
        unsafe {
            let mut unit = [vdupq_n_f32(0.0); 2];
            if S::SCALES == Scales::Unit {
                let words = four!(R => S::words_at(&rows[R], 0));
                unit[0] = gather(four!(R => words[R][0]));
                if S::MINIMUM {
                    unit[1] = gather(four!(R => words[R][1]));
                }
            }
            let mut bytes = [[vdupq_n_s8(0); 4]; 2];
            if S::FACTORS != Factors::None {
                let f = four!(R => S::factors(rows[R].codes));
                bytes[0] = turn(four!(R => f[R][0]));
                if S::MINIMUM {
                    bytes[1] = turn(four!(R => f[R][1]));
                }
            }
            Self { rows, unit, bytes }
        }
    }

    /// Scales of term `i` of the unit.
    #[inline(always)]
    unsafe fn d<S: Unpack>(&self, i: usize) -> float32x4_t {
        if S::SCALES == Scales::Unit {
            return self.unit[0];
        }
        // SAFETY: as in `new`.
        unsafe { gather(four!(R => S::words_at(&self.rows[R], i)[0])) }
    }
}

/// What the sums of a block or half-block start at.
#[inline(always)]
unsafe fn start<S: Unpack>(x: &Unit, i: usize) -> int32x4_t {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe { if S::OFFSET == 0 { vdupq_n_s32(0) } else { load_i32(&x.start[i]) } }
}

/// Partial sums of a pair of blocks of a row, by blocks or half-blocks ([`Form::Halves`]).
///
/// # Safety
/// The machine must have the features of `D`.
#[inline(always)]
unsafe fn partial<S: Unpack, D: Dot>(w: &[int8x16_t; 4], x: &Unit, p: usize) -> [int32x4_t; 4] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        let codes: &[[i8; 16]; 4] = x.codes.as_chunks::<16>().0[4 * p..].first_chunk().expect("four runs");
        let codes = four!(I => load16_signed(&codes[I]));
        let zero = vdupq_n_s32(0);
        match S::FORM {
            Form::Blocks => {
                let [a, b] = two!(B => {
                    let first = D::dot(start::<S>(x, 2 * p + B), w[2 * B], codes[2 * B]);
                    D::dot(first, w[2 * B + 1], codes[2 * B + 1])
                });
                [a, b, zero, zero]
            }
            Form::Terms => {
                let [a, b] = two!(B => {
                    let start = start::<S>(x, 2 * p + B);
                    D::apart(start, [w[2 * B], w[2 * B + 1]], [codes[2 * B], codes[2 * B + 1]])
                });
                [a, b, zero, zero]
            }
            Form::Halves => four!(H => D::dot(start::<S>(x, 4 * p + H), w[H], codes[H])),
            Form::Quads => {
                let first = D::apart(start::<S>(x, p), [w[0], w[1]], [codes[0], codes[1]]);
                [D::apart(first, [w[2], w[3]], [codes[2], codes[3]]), zero, zero, zero]
            }
        }
    }
}

/// Exact sums of a pair of blocks of four rows: by blocks, or by half-blocks ([`Form::Halves`], [`Form::Terms`]).
#[inline(always)]
unsafe fn sums<S: Unpack>(v: &[[int32x4_t; 4]; ROWS]) -> [int32x4_t; 4] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        let zero = vdupq_n_s32(0);
        match S::FORM {
            Form::Blocks => {
                let [a, b] = two!(B => tree(four!(R => v[R][B])));
                [a, b, zero, zero]
            }
            Form::Terms => {
                let [[a, b], [c, d]] = two!(B => two_trees(four!(R => v[R][B])));
                [a, b, c, d]
            }
            Form::Halves => four!(H => tree(four!(R => v[R][H]))),
            Form::Quads => {
                let [a, b] = two_trees(four!(R => v[R][0]));
                [a, b, zero, zero]
            }
        }
    }
}

/// Adds the terms of a pair of blocks. `d` and `min` are the scales of its terms and the scaled minima of its blocks or
/// the minima of its half-blocks.
#[inline(always)]
unsafe fn add<S: Unpack>(
    chain: &mut Chain,
    sums: [int32x4_t; 4],
    scaling: &Scaling<'_, '_>,
    d: &[float32x4_t; 4],
    min: &[float32x4_t; 4],
    x: &Unit,
    p: usize,
) {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        if S::FORM == Form::Terms {
            four!(I => {
                if 2 * p + I / 2 < x.blocks {
                    let d = times(d[I], &x.d_x, 2 * p + I / 2);
                    chain.acc = vfmaq_f32(chain.acc, to_f32::<S>(sums[I]), d);
                }
            });
            return;
        }
        two!(B => {
            let block = 2 * p + B;
            // A plane of scales may go on past the row's values, with an infinity.
            if S::SCALE_BYTES == 0 || block < x.blocks {
                let isum = match S::FACTORS {
                    Factors::None => sums[B],
                    Factors::Whole => vmulq_s32(sums[B], four_of(&scaling.bytes[0], block)),
                    Factors::Halves => {
                        let low = vmulq_s32(sums[2 * B], four_of(&scaling.bytes[0], 2 * block));
                        vmlaq_s32(low, sums[2 * B + 1], four_of(&scaling.bytes[0], 2 * block + 1))
                    }
                };
                chain.acc = vfmaq_f32(chain.acc, to_f32::<S>(isum), times(d[B], &x.d_x, block));
                match (S::MINIMUM, S::FACTORS) {
                    (false, _) => {}
                    // `(min * dmin) * (sum * d_x)`: both factors are exact, so this rounds as the written order does.
                    (true, Factors::Whole) => chain.m = plus_times(chain.m, min[B], &x.sums, block),
                    (true, _) => {
                        let sum = times(min[2 * B], &x.sums, 2 * block);
                        let sum = plus_times(sum, min[2 * B + 1], &x.sums, 2 * block + 1);
                        chain.m = vfmaq_f32(chain.m, sum, times(scaling.unit[1], &x.d_x, block));
                    }
                }
            }
        });
    }
}

/// What `add` wants of a pair of blocks.
#[inline(always)]
unsafe fn scales_of<S: Unpack>(scaling: &Scaling<'_, '_>, p: usize) -> [[float32x4_t; 4]; 2] {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline.
    unsafe {
        let (unit, bytes) = (&scaling.unit, &scaling.bytes[1]);
        let d = match (S::SCALES, S::FORM) {
            (Scales::Unit, _) => [unit[0]; 4],
            (_, Form::Terms) => four!(I => scaling.d::<S>(4 * p + I)),
            _ if S::SHARED => [scaling.d::<S>(2 * p); 4],
            _ => {
                let [a, b] = two!(I => scaling.d::<S>(2 * p + I));
                [a, b, a, b]
            }
        };
        let min = match (S::MINIMUM, S::FACTORS) {
            (false, _) => [unit[1]; 4],
            (true, Factors::Whole) => {
                let [a, b] = two!(B => vmulq_f32(vcvtq_f32_s32(four_of(bytes, 2 * p + B)), unit[1]));
                [a, b, a, b]
            }
            (true, _) => four!(H => vcvtq_f32_s32(four_of(bytes, 4 * p + H))),
        };
        [d, min]
    }
}

/// Has the vectors computed before what comes next: the compiler would else mix rows until it runs out of registers.
macro_rules! in_order {
    ($v:ident) => {
        let [mut a, mut b, mut c, mut d] = $v;
        // No instruction at all; the callers' blocks are unsafe.
        std::arch::asm!("// {0:v} {1:v} {2:v} {3:v}", inout(vreg) a, inout(vreg) b, inout(vreg) c, inout(vreg) d,
            options(nostack, preserves_flags));
        $v = [a, b, c, d];
    };
}

/// The product of four rows and one column.
#[inline(always)]
unsafe fn one<S: Unpack, D: Dot>(
    planes: &[Planes<'_>; ROWS],
    x: &[Unit],
    rooms: &mut [[[u8; MOST]; 3]; ROWS],
) -> float32x4_t {
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        let mut chain = Chain { acc: vdupq_n_f32(0.0), m: vdupq_n_f32(0.0) };
        for (u, x) in x.iter().enumerate() {
            let [a, b, c, d] = &mut *rooms;
            let rows = [
                place::<S>(&planes[0], u, a),
                place::<S>(&planes[1], u, b),
                place::<S>(&planes[2], u, c),
                place::<S>(&planes[3], u, d),
            ];
            let scaling = Scaling::new::<S>(&rows);
            each_pair!(P => {
                let [d, min] = scales_of::<S>(&scaling, P);
                let v = four!(R => {
                    let mut v = partial::<S, D>(&S::pair(&rows[R], P), x, P);
                    if S::MANY_LOADS {
                        in_order!(v);
                    }
                    v
                });
                add::<S>(&mut chain, sums::<S>(&v), &scaling, &d, &min, x, P);
            });
        }
        if S::MINIMUM { vsubq_f32(chain.acc, chain.m) } else { chain.acc }
    }
}

/// The products of four rows and several columns, which take their weights from registers; the results are left in
/// the memory's accumulators.
#[inline(always)]
unsafe fn several<S: Unpack, D: Dot>(
    planes: &[Planes<'_>; ROWS],
    memory: &mut Memory,
    units: usize,
    rooms: &mut [[[u8; MOST]; 3]; ROWS],
) {
    let Memory { x, acc } = memory;
    acc.fill([[0.0; ROWS]; 2]);
    // SAFETY: Advanced SIMD is part of the AArch64 baseline; the rest is the caller's.
    unsafe {
        for u in 0..units {
            let [a, b, c, d] = &mut *rooms;
            let rows = [
                place::<S>(&planes[0], u, a),
                place::<S>(&planes[1], u, b),
                place::<S>(&planes[2], u, c),
                place::<S>(&planes[3], u, d),
            ];
            let scaling = Scaling::new::<S>(&rows);
            each_pair!(P => {
                let [d, min] = scales_of::<S>(&scaling, P);
                let w = four!(R => {
                    let mut w = S::pair(&rows[R], P);
                    if S::MANY_LOADS {
                        in_order!(w);
                    }
                    w
                });
                for (acc, x) in acc.iter_mut().zip(x[u..].iter().step_by(units)) {
                    let mut chain = Chain { acc: load_f32(&acc[0]), m: load_f32(&acc[1]) };
                    let v = four!(R => partial::<S, D>(&w[R], x, P));
                    add::<S>(&mut chain, sums::<S>(&v), &scaling, &d, &min, x, P);
                    vst1q_f32(acc[0].as_mut_ptr(), chain.acc);
                    if S::MINIMUM {
                        vst1q_f32(acc[1].as_mut_ptr(), chain.m);
                    }
                }
            });
        }
        if S::MINIMUM {
            for [acc, m] in acc {
                let y = vsubq_f32(load_f32(acc), load_f32(m));
                vst1q_f32(acc.as_mut_ptr(), y);
            }
        }
    }
}

/// See [`crate::kernels::A8Fn`]. To be inlined into a function that is compiled for the features of `D`.
///
/// # Safety
/// The machine must have the features of `D`.
#[inline(always)]
pub(in crate::arch::aarch64) unsafe fn columns<S: Unpack, D: Dot>(
    view: &TensorView<'_>,
    x: &Q8_1,
    columns: Range<usize>,
    out: &mut Tile<'_>,
    memory: &mut Memory,
) {
    memory.prepare::<S>(x, columns.clone());
    memory.acc.resize(columns.len(), [[0.0; ROWS]; 2]);
    let units = x.blocks().div_ceil(UNIT / 32);
    let mut rooms = [[[0; MOST]; 3]; ROWS];
    for first in (0..view.rows()).step_by(ROWS) {
        let rows = (view.rows() - first).min(ROWS);
        // Rows past the last are the last once more; their sums go nowhere.
        let parts: [_; ROWS] = std::array::from_fn(|r| view.row(first + r.min(rows - 1)));
        let planes = four!(R => S::planes(&parts[R]));
        if columns.len() == 1 {
            // SAFETY: the caller's; the store writes 16 bytes.
            unsafe {
                let y = one::<S, D>(&planes, &memory.x, &mut rooms);
                vst1q_f32(memory.acc[0][0].as_mut_ptr(), y);
            }
        } else {
            // SAFETY: the caller's.
            unsafe { several::<S, D>(&planes, memory, units, &mut rooms) };
        }
        for (t, [y, _]) in columns.clone().zip(&mut memory.acc) {
            if S::TERMS == 16 {
                for (y, parts) in y.iter_mut().zip(&parts) {
                    *y /= f32::from_bits(S::divisor(parts));
                }
            }
            out.column(t)[first..first + rows].copy_from_slice(&y[..rows]);
        }
    }
}

/// The entry of a token: `$entry` compiles for its features, `$dot` sums with them.
macro_rules! a8_columns {
    ($entry:ident, $dot:ty) => {
        $entry! {
            /// See [`crate::kernels::A8Fn`].
            pub(in crate::arch::aarch64) fn columns<S: $crate::arch::aarch64::neon::gemv_unpack::Unpack>(
                view: &ninfer_formats::TensorView<'_>,
                x: &$crate::q8_1::Q8_1,
                columns: std::ops::Range<usize>,
                out: &mut $crate::tile::Tile<'_>,
                scratch: &mut $crate::kernels::Scratch,
            ) {
                // SAFETY: this function is compiled for the token's features, so the machine has them.
                unsafe {
                    $crate::arch::aarch64::neon::gemv::columns::<S, $dot>(view, x, columns, out, &mut scratch.neon);
                }
            }
        }
    };
}
pub(in crate::arch::aarch64) use a8_columns;

/// The kernels of `neon` itself.
pub(super) mod entries {
    use crate::isa::neon_entry;

    super::a8_columns!(neon_entry, super::Widening);
}
