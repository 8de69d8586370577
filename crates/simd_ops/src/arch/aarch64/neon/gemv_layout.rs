//! What the products of one or a few columns read: units of rows and of activations.

use std::ops::Range;

use ninfer_formats::Nvfp4Scales;

use super::gemv::ROWS;
use super::gemv_unpack::{Form, Order, Unpack};
use crate::gemv::{Factors, MOST, Planes, UNIT, unit_bytes};
use crate::q8_1::Q8_1;

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
pub(super) struct Unit {
    /// Codes in the kernel's order.
    pub codes: [i8; UNIT],
    /// What the sums of blocks or half-blocks start at: `-offset * sum(x)` and zeros.
    pub start: [[i32; 4]; 16],
    /// Scales times the format's power of two.
    pub d_x: [f32; 8],
    /// One minimum per block: `sum(x) * d_x`; two: `sum(x)` of the halves.
    pub sums: [f32; 16],
    /// Blocks that exist.
    pub blocks: usize,
}

/// What a thread keeps for these products.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// `[T][units]`.
    pub(super) x: Vec<Unit>,
    /// `[T][tiles]` of accumulators; the second are those of minima.
    pub(super) acc: Vec<[[f32; ROWS]; 2]>,
}

impl Memory {
    /// Lays out the activations.
    pub(super) fn prepare<S: Unpack>(&mut self, x: &Q8_1, columns: Range<usize>) {
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
pub(super) fn place<'a, S: Unpack>(
    planes: &Planes<'a>,
    u: usize,
    rooms: &'a mut [[u8; MOST]; 3],
) -> Place<'a> {
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
