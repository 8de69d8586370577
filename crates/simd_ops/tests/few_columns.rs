//! Products with one to eight columns: every format, instruction set, width, slice and thread count, the bits of
//! `scalar`, and by the kernels made for it.

mod common;

use common::{Owned, Random, float_formats, legal, sane, wild, words};
use ninfer_formats::{FormatId, Scheme, TensorView};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{Activations, Dispatch, Isa, Precision, Width, matmul};

/// Tokens with A8 kernels of their own for one to eight columns.
const WITH_A8: &[Isa] = &[Isa::Avx2, Isa::Avx512Vnni, Isa::Neon, Isa::NeonDotprod];

fn integer_path(format: FormatId) -> bool {
    !matches!(format.scheme(), Scheme::Direct(_) | Scheme::RowScaled(_))
}

#[test]
fn widths_threads_and_slices() {
    for format in float_formats() {
        // Row counts about the height of a tile, rows that end within a unit of 256 values or a block.
        let shapes = [(1, 32), (16, 256), (15, 288), (19, 1000), (37, 1312), (33, 96), (7, 2560), (300, 65)];
        for (i, (n, k)) in shapes.into_iter().enumerate() {
            let (n, k) = legal(format, n, k);
            for make in [sane as fn(FormatId, usize, usize, u64) -> Owned, wild] {
                let w = make(format, n, k, 300 + i as u64);
                let whole = w.view();
                let x = Random(31).values(8 * k);
                let slice = whole.row_range(n / 3, n - n / 5).unwrap();
                for (view, parts) in [(whole, [1, 2, 5]), (slice, [1, 1, 3])] {
                    let rows = view.rows();
                    let mut expected = vec![0.0; 8 * rows];
                    let on = |isa, threads| Dispatch { isa: Some(isa), threads: Some(threads) };
                    let a = Activations::F32(&x);
                    matmul(&view, a, Precision::A8, &mut expected, &on(Isa::Scalar, 1)).unwrap();
                    for isa in available().into_iter().filter(|isa| *isa != Isa::Scalar) {
                        for t in [1, 2, 3, 7, 8] {
                            for threads in parts {
                                let mut out = vec![7.5f32; t * rows + 2];
                                let end = 1 + t * rows;
                                let x = Activations::F32(&x[..t * k]);
                                let ran =
                                    matmul(&view, x, Precision::A8, &mut out[1..end], &on(isa, threads));
                                let ran = ran.unwrap();
                                if integer_path(format) && WITH_A8.contains(&isa) {
                                    assert_eq!(ran.kernel, isa, "{format} T {t}: another token's kernel");
                                    assert_ne!(
                                        ran.width,
                                        Some(Width::Many),
                                        "{isa} {format} T {t}: the kernel for many columns ran"
                                    );
                                }
                                assert!(out[0] == 7.5 && out[end] == 7.5);
                                assert!(
                                    words(&out[1..end]) == words(&expected[..t * rows]),
                                    "{isa} {format} {n}x{k} T {t} threads {threads}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn payloads_at_any_address_and_at_the_end_of_their_memory() {
    for format in float_formats().filter(|f| integer_path(*f)) {
        let (n, k) = legal(format, 18, 544);
        let w = sane(format, n, k, 400);
        let x = Random(32).values(3 * k);
        let one = Dispatch { isa: Some(Isa::Scalar), threads: Some(1) };
        let mut expected = vec![0.0; 3 * n];
        matmul(&w.view(), Activations::F32(&x), Precision::A8, &mut expected, &one).unwrap();
        for offset in [1, 2, 7, 33] {
            let mut bytes = vec![0xffu8; offset];
            bytes.extend_from_slice(&w.payload);
            let bytes = bytes.into_boxed_slice();
            let view = TensorView::new(format, &w.shape, w.divisors, &bytes[offset..]).unwrap();
            for isa in available() {
                let mut out = vec![0.0; 3 * n];
                let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
                matmul(&view, Activations::F32(&x), Precision::A8, &mut out, &dispatch).unwrap();
                assert_eq!(words(&out), words(&expected), "{isa} {format} at {offset}");
            }
        }
    }
}

#[test]
fn largest_sums() {
    // Every byte the same, activations all at the ends of their range: the sums that come nearest to 2^24.
    for format in float_formats().filter(|f| integer_path(*f)) {
        let (n, k) = legal(format, 1, 512);
        for byte in [0x00, 0x7f, 0x80, 0xff, 0x55, 0xaa, 0x1f] {
            let mut w = sane(format, n, k, 401);
            w.payload.fill(byte);
            for sign in [1.0f32, -1.0] {
                let x: Vec<f32> =
                    (0..2 * k).map(|i| if i < k || i % 3 == 0 { sign } else { -sign }).collect();
                let on = |isa| Dispatch { isa: Some(isa), threads: Some(1) };
                let mut expected = vec![0.0; 2 * n];
                matmul(&w.view(), Activations::F32(&x), Precision::A8, &mut expected, &on(Isa::Scalar))
                    .unwrap();
                for isa in available() {
                    let mut out = vec![0.0; 2 * n];
                    matmul(&w.view(), Activations::F32(&x), Precision::A8, &mut out, &on(isa)).unwrap();
                    assert_eq!(words(&out), words(&expected), "{isa} {format} {byte:#x}");
                }
            }
        }
    }
}
