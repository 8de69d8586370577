//! No kernel touches a byte outside its buffers: weights, activations and outputs lie directly before or behind a page
//! that nobody may touch, where one byte too far ends the process.
#![cfg(unix)]

mod common;

use std::ptr::NonNull;

use common::{Random, legal, sane, words};
use ninfer_formats::codec::Half;
use ninfer_formats::encoder::{EncoderId, Params, RowEncoder, RowPlanes, Source};
use ninfer_formats::{FormatId, TensorView, encoded_size};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{
    Activations, Dispatch, Precision, Q8_1, decode_f32, decode_half, decode_i32, encode_rows, matmul,
    quantize_q8_1,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Which side of the buffer is guarded at once; the other side is guarded at the next page's border.
#[derive(Clone, Copy, Debug)]
enum Side {
    Before,
    Behind,
}

/// Memory between two pages that may not be touched.
struct Guarded {
    base: NonNull<u8>,
    mapped: usize,
    start: usize,
    len: usize,
}

impl Guarded {
    fn new(len: usize, side: Side) -> Self {
        let page = rustix::param::page_size();
        let inner = len.max(1).next_multiple_of(page);
        let mapped = inner + 2 * page;
        // SAFETY: a new private mapping that nothing else knows.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::empty(), MapFlags::PRIVATE).unwrap()
        };
        let base = NonNull::new(base.cast::<u8>()).unwrap();
        // SAFETY: the inner pages of the mapping made above.
        unsafe {
            mprotect(base.as_ptr().add(page).cast(), inner, MprotectFlags::READ | MprotectFlags::WRITE)
                .unwrap();
        }
        let start = match side {
            Side::Before => page,
            Side::Behind => page + inner - len,
        };
        Self { base, mapped, start, len }
    }

    fn of(bytes: &[u8], side: Side) -> Self {
        let mut this = Self::new(bytes.len(), side);
        this.bytes_mut().copy_from_slice(bytes);
        this
    }

    fn floats(values: &[f32], side: Side) -> Self {
        let mut this = Self::new(4 * values.len(), side);
        this.f32_mut().copy_from_slice(values);
        this
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes of the mapping, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.start), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(self.start), self.len) }
    }

    fn f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: any bytes are floats; both page borders and lengths are multiples of four here.
        let (head, floats, tail) = unsafe { self.bytes_mut().align_to_mut::<f32>() };
        assert!(head.is_empty() && tail.is_empty());
        floats
    }

    fn u16_mut(&mut self) -> &mut [u16] {
        // SAFETY: any bytes are words; both page borders and lengths are multiples of two here.
        let (head, halves, tail) = unsafe { self.bytes_mut().align_to_mut::<u16>() };
        assert!(head.is_empty() && tail.is_empty());
        halves
    }

    fn i32_mut(&mut self) -> &mut [i32] {
        // SAFETY: any bytes are words; both page borders and lengths are multiples of four here.
        let (head, integers, tail) = unsafe { self.bytes_mut().align_to_mut::<i32>() };
        assert!(head.is_empty() && tail.is_empty());
        integers
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of this value; no borrow outlives it.
        unsafe { munmap(self.base.as_ptr().cast(), self.mapped).unwrap() };
    }
}

fn on(isa: ninfer_simd_ops::Isa) -> Dispatch {
    Dispatch { isa: Some(isa), threads: Some(1) }
}

const SIDES: [Side; 2] = [Side::Before, Side::Behind];

#[test]
fn decoding() {
    for isa in available() {
        for format in FormatId::all() {
            for (n, k) in [(1, 1), (3, 33), (2, 256), (5, 704)] {
                let w = sane(format, n, k, 1);
                for side in SIDES {
                    let payload = Guarded::of(&w.payload, side);
                    let view = TensorView::new(format, &w.shape, w.divisors, payload.bytes()).unwrap();
                    let elements = view.elements();
                    let mut out = Guarded::new(4 * elements, side);
                    if format == FormatId::Int32 {
                        decode_i32(&view, out.i32_mut(), &on(isa)).unwrap();
                        continue;
                    }
                    let mut expected = vec![0.0; elements];
                    view.decode_f32(&mut expected).unwrap();
                    decode_f32(&view, out.f32_mut(), &on(isa)).unwrap();
                    assert!(words(out.f32_mut()) == words(&expected), "{isa} {format} {n}x{k} {side:?}");
                    let mut out = Guarded::new(2 * elements, side);
                    decode_half(&view, Half::Bfloat16, out.u16_mut(), &on(isa)).unwrap();
                }
            }
        }
    }
}

#[test]
fn products() {
    for isa in available() {
        for format in common::float_formats() {
            // Whole tiles of sixteen rows at the end of the memory, too: those are read in place.
            for (n, k) in [(1, 1), (5, 33), (17, 256), (3, 480), (16, 288), (32, 256)] {
                let w = sane(format, n, k, 2);
                let (n, k) = legal(format, n, k);
                for side in SIDES {
                    let payload = Guarded::of(&w.payload, side);
                    let view = TensorView::new(format, &w.shape, w.divisors, payload.bytes()).unwrap();
                    for columns in [1, 3, 8, 17] {
                        let mut x = Guarded::floats(&Random(3).values(k * columns), side);
                        let mut out = Guarded::new(4 * n * columns, side);
                        for precision in [Precision::A8, Precision::A16] {
                            let x = Activations::F32(x.f32_mut());
                            matmul(&view, x, precision, out.f32_mut(), &on(isa)).unwrap();
                        }
                        let half: Vec<u8> = Random(4)
                            .values(k * columns)
                            .iter()
                            .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes())
                            .collect();
                        let mut half = Guarded::of(&half, side);
                        let x = Activations::Bf16(half.u16_mut());
                        matmul(&view, x, Precision::A16, out.f32_mut(), &on(isa)).unwrap();
                    }
                    // So many that weights are turned.
                    let mut x = Guarded::floats(&Random(3).values(k * 65), side);
                    let mut out = Guarded::new(4 * n * 65, side);
                    let x = Activations::F32(x.f32_mut());
                    matmul(&view, x, Precision::A16, out.f32_mut(), &on(isa)).unwrap();
                }
            }
        }
    }
}

#[test]
fn activations() {
    for isa in available() {
        for k in [1, 31, 32, 33, 95, 256, 500] {
            for side in SIDES {
                let mut x = Guarded::floats(&Random(5).values(2 * k), side);
                quantize_q8_1(Activations::F32(x.f32_mut()), k, &mut Q8_1::default(), &on(isa)).unwrap();
            }
        }
    }
}

#[test]
fn encoding() {
    let methods = [
        (EncoderId::GroupedAbsmax, FormatId::Q4G64Fp16),
        (EncoderId::GroupedAbsmax, FormatId::Q5G64Fp16),
        (EncoderId::GroupedAbsmax, FormatId::Q8G32Fp16),
        (EncoderId::GroupedSearch, FormatId::Q6G64Fp16),
        (EncoderId::Fp8RowMaxabs, FormatId::Fp8E4m3fnRowBf16),
        (EncoderId::Fp8RowMaxabs, FormatId::Fp8E4m3fnRowFp16),
        (EncoderId::GgufSearch, FormatId::GgufQ4_0),
        (EncoderId::TernaryFit, FormatId::T2G128Fp16),
    ];
    for isa in available() {
        for (method, format) in methods {
            for (n, k) in [(1, 1), (3, 65), (2, 160)] {
                let (n, k) = legal(format, n, k);
                let params = Params::default();
                let encoder = RowEncoder::new(format, method, k, params).unwrap();
                let bytes = encoded_size(format, &[n as u64, k as u64], 1).unwrap() as usize;
                for side in SIDES {
                    let mut x = Guarded::floats(&Random(6).values(n * k), side);
                    let mut out = Guarded::new(bytes, side);
                    let planes = RowPlanes::of_payload(format, n, k, out.bytes_mut()).unwrap();
                    encode_rows(&encoder, Source::F32(x.f32_mut()), 0, planes, &on(isa)).unwrap();
                    let planes = ninfer_formats::encoder::encode(format, method, n, k, x.f32_mut(), params);
                    assert!(out.bytes() == planes.unwrap(), "{isa} {format} {n}x{k} {side:?}");
                }
            }
        }
    }
}
