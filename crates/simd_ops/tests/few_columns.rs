//! Products with one to sixteen columns: every format, instruction set, width, slice and thread count, the bits of
//! `scalar`, and by the kernels made for it, from stored and from repacked weights.

mod common;

use common::{Owned, Random, float_formats, legal, sane, wild, words};
use ninfer_formats::{DirectKind, FormatId, RowScale, Scheme, TensorView, pack_grouped, pack_row_scaled};
use ninfer_simd_ops::isa::available;
use ninfer_simd_ops::{
    Activations, Dispatch, Isa, OpError, Precision, Prepared, Repacked, Width, Workspace, matmul,
};

/// Tokens with A8 kernels of their own for one column and for up to [`MOST`] columns of every format.
const WITH_A8: &[Isa] = &[Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::Neon, Isa::NeonDotprod];
/// Formats for which `avx512_vbmi` has such kernels.
const TABLED: &[FormatId] = &[
    FormatId::GgufIq1S,
    FormatId::GgufIq1M,
    FormatId::GgufIq2Xxs,
    FormatId::GgufIq2Xs,
    FormatId::GgufIq2S,
    FormatId::GgufIq3Xxs,
    FormatId::GgufIq3S,
];
/// Tokens with A16 kernels of their own for one column and for a few.
const WITH_A16: &[Isa] = &[Isa::Avx2, Isa::Avx512, Isa::Neon];
/// Formats for which `avx512_vbmi` has an A16 kernel of its own for one column.
const WITH_VBMI_A16: &[FormatId] =
    &[FormatId::GgufIq3Xxs, FormatId::GgufIq3S, FormatId::Q5G64Fp16, FormatId::Q6G64Fp16];
/// Those with A8 kernels that have kernels for repacked weights.
const REPACKED: &[Isa] = &[Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni];

/// Most columns of these kernels.
const MOST: usize = if cfg!(target_arch = "x86_64") { 16 } else { 8 };

/// The token whose A8 kernels must run for up to [`MOST`] columns.
fn own(isa: Isa, format: FormatId) -> Option<Isa> {
    isa.chain().find(|isa| WITH_A8.contains(isa) || (*isa == Isa::Avx512Vbmi && TABLED.contains(&format)))
}

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
                let x = Random(31).values(MOST * k);
                let slice = whole.row_range(n / 3, n - n / 5).unwrap();
                for (view, parts) in [(whole, [1, 2, 5]), (slice, [1, 1, 3])] {
                    let rows = view.rows();
                    let mut expected = vec![0.0; MOST * rows];
                    let on = |isa, threads| Dispatch { isa: Some(isa), threads: Some(threads) };
                    let a = Activations::F32(&x);
                    matmul(&view, a, Precision::A8, &mut expected, &on(Isa::Scalar, 1)).unwrap();
                    for isa in available().into_iter().filter(|isa| *isa != Isa::Scalar) {
                        repacked(&view, &x, isa, parts, &expected);
                        for t in [1, 2, 3, 7, 8, MOST] {
                            for threads in parts {
                                let mut out = vec![7.5f32; t * rows + 2];
                                let end = 1 + t * rows;
                                let x = Activations::F32(&x[..t * k]);
                                let ran =
                                    matmul(&view, x, Precision::A8, &mut out[1..end], &on(isa, threads));
                                let ran = ran.unwrap();
                                let own = own(isa, format).filter(|_| integer_path(format));
                                if let Some(own) =
                                    own.filter(|_| t < 8 || WITH_A8.contains(&isa) || isa == Isa::Avx512Vbmi)
                                {
                                    assert_eq!(
                                        ran.kernel, own,
                                        "{isa} {format} T {t}: another token's kernel"
                                    );
                                    let width = match t {
                                        1 => Width::One,
                                        8 | 12.. if isa >= Isa::Avx512Vnni && isa <= Isa::AmxInt8 => {
                                            Width::Many
                                        }
                                        _ => Width::Few,
                                    };
                                    assert_eq!(ran.width, Some(width), "{isa} {format} T {t}");
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

/// The same from repacked weights, one column too many included.
fn repacked(view: &TensorView<'_>, x: &[f32], isa: Isa, threads: [usize; 3], expected: &[f32]) {
    let (format, rows, k) = (view.format(), view.rows(), view.k());
    let mut workspace = Workspace::default();
    for threads in threads {
        let dispatch = Dispatch { isa: Some(isa), threads: Some(threads) };
        let prepared = Prepared::new(view, &dispatch).unwrap();
        let has = integer_path(format) && isa.chain().any(|isa| REPACKED.contains(&isa));
        assert_eq!(prepared.bytes() != 0, has, "{isa} {format}");
        for t in [1, 3, MOST] {
            let (mut out, x) = (vec![0.0; t * rows], Activations::F32(&x[..t * k]));
            let ran = prepared.matmul(x, Precision::A8, &mut out, &dispatch, &mut workspace).unwrap();
            assert_eq!(ran.width == Some(Width::Prepared), has, "{isa} {format}");
            let own = match own(isa, format) {
                Some(Isa::Avx512Vbmi) if format == FormatId::GgufIq1S => Some(Isa::Avx512Vnni),
                own => own,
            };
            assert!(!has || Some(ran.kernel) == own, "{isa} {format}");
            assert!(words(&out) == words(&expected[..t * rows]), "{isa} {format} {rows}x{k} T {t}");
        }
    }
}

#[test]
fn repacked_weights_take_their_bytes_and_serve_every_other_product() {
    for format in float_formats() {
        let (n, k) = legal(format, 32, 512);
        let w = sane(format, n, k, 402);
        let (view, x) = (w.view(), Random(33).values(40 * k));
        let mut workspace = Workspace::default();
        for isa in available() {
            let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
            let prepared = Prepared::new(&view, &dispatch).unwrap();
            // All but the divisors and gaps of a payload.
            let (bytes, stored) = (prepared.bytes(), w.payload.len());
            assert!(bytes == 0 || bytes <= stored && stored - bytes < 512, "{format}: {bytes} of {stored}");
            for (t, precision) in
                [(1, Precision::A16), (17, Precision::A8), (40, Precision::A8), (0, Precision::A8)]
            {
                let x = || Activations::F32(&x[..t * k]);
                let (mut out, mut expected) = (vec![0.0; t * n], vec![0.0; t * n]);
                let ran = prepared.matmul(x(), precision, &mut out, &dispatch, &mut workspace).unwrap();
                assert_ne!(ran.width, Some(Width::Prepared));
                matmul(&view, x(), precision, &mut expected, &dispatch).unwrap();
                assert_eq!(words(&out), words(&expected), "{isa} {format}");
            }
            let mut short = vec![0.0; n - 1];
            let x = Activations::F32(&x[..k]);
            assert!(prepared.matmul(x, Precision::A8, &mut short, &dispatch, &mut workspace).is_err());
        }
    }
}

#[test]
fn repacked_weights_serve_the_tensor_that_they_were_made_from_only() {
    let w = sane(FormatId::GgufQ4_0, 48, 64, 404);
    let (copy, view) = (w.payload.clone(), w.view());
    let repacked = Repacked::new(&view.row_range(16, 32).unwrap(), &Dispatch::default()).unwrap();
    let of = |format, rows, k, payload| TensorView::new(format, &[rows, k], 1, payload).unwrap();
    let elsewhere = of(w.format, 48, 64, &copy);
    let wide = of(w.format, 24, 128, &w.payload);
    let other = of(FormatId::GgufIq4Nl, 48, 64, &w.payload);
    let call = |view: TensorView<'_>, precision| {
        let (x, mut out) = (vec![1.0; view.k()], vec![7.0; view.rows()]);
        let x = Activations::F32(&x);
        repacked
            .matmul(&view, x, precision, &mut out, &Dispatch::default(), &mut Workspace::default())
            .map(|_| out)
    };
    for precision in [Precision::A8, Precision::A16] {
        let (same, mut expected) = (view.row_range(16, 32).unwrap(), vec![0.0; 16]);
        let x = Activations::F32(&[1.0; 64]);
        matmul(&same, x, precision, &mut expected, &Dispatch::default()).unwrap();
        assert_eq!(call(same, precision), Ok(expected));
        for (what, view, rows) in [
            ("other rows", view, 0..16),
            ("more rows", view, 16..33),
            ("another place", elsewhere, 16..32),
            ("another K", wide, 8..24),
            ("another format", other, 16..32),
        ] {
            let view = view.row_range(rows.start, rows.end).unwrap();
            assert_eq!(call(view, precision), Err(OpError::OtherWeights), "{what}");
        }
    }
}

#[test]
fn few_columns_of_unquantised_activations_have_kernels_of_their_own() {
    for format in float_formats() {
        for (i, (n, k)) in [
            (1, 7),
            (9, 512),
            (21, 1290),
            (4, 16),
            (37, 1312),
            (16, 32),
            (33, 96),
            (6, 2304),
            (3, 465),
            (2, 271),
        ]
        .into_iter()
        .enumerate()
        {
            let (n, k) = legal(format, n, k);
            let make = if i % 2 == 0 { sane } else { wild };
            let w = make(format, n, k, 403);
            let (view, mut x) = (w.view(), Random(34).values(8 * k));
            if i > 2 {
                // Products that vanish leave zeros of their sign.
                x.iter_mut().skip(i % 3).step_by(3).for_each(|x| *x *= 2f32.powi(-135));
            }
            let on = |isa, threads| Dispatch { isa: Some(isa), threads: Some(threads) };
            let mut expected = vec![0.0; 8 * n];
            let scalar = on(Isa::Scalar, 1);
            matmul(&view, Activations::F32(&x), Precision::A16, &mut expected, &scalar).unwrap();
            // Few rows of a matrix, which some kernels take another way than many.
            let some = n / 3..(n / 3 + 16).min(n);
            let slice = view.row_range(some.start, some.end).unwrap();
            for isa in available() {
                for (t, view, rows) in
                    [1, 2, 5, 6, 7, 8].map(|t| (t, view, 0..n)).into_iter().chain([(1, slice, some.clone())])
                {
                    let (mut out, x) = (vec![0.0; t * rows.len()], Activations::F32(&x[..t * k]));
                    let ran = matmul(&view, x, Precision::A16, &mut out, &on(isa, 2)).unwrap();
                    let vbmi = t == 1 && WITH_VBMI_A16.contains(&format);
                    let own = |isa: &Isa| WITH_A16.contains(isa) || (vbmi && *isa == Isa::Avx512Vbmi);
                    if let Some(own) = isa.chain().find(own) {
                        let width = if t == 1 { Width::One } else { Width::Few };
                        assert_eq!((ran.kernel, ran.width), (own, Some(width)), "{isa} {format}");
                    }
                    let expected = if t == 1 { &expected[rows.clone()] } else { &expected[..t * n] };
                    assert!(words(&out) == words(expected), "{isa} {format} {n}x{k} T {t} {rows:?}");
                }
            }
        }
    }
}

/// Products of -2^-157 leave -0 in every accumulator. Where a row ends within a vector, those past its end must stay so.
#[test]
fn zeros_of_products_that_vanish_keep_their_sign() {
    const UNIT: [u16; 2] = [0x1c00, 0x3b80]; // 2^-8 as binary16 and as bfloat16
    for (format, k) in float_formats().flat_map(|format| [37, 165, 517].map(|k| (format, k))) {
        let n = 5;
        let payload = match format.scheme() {
            Scheme::Direct(DirectKind::Bf16) => UNIT[1].to_le_bytes().repeat(n * k),
            Scheme::Direct(_) => 2f32.powi(-8).to_le_bytes().repeat(n * k),
            Scheme::Grouped(s) => {
                pack_grouped(format, n, k, &vec![1; n * k], &vec![UNIT[0]; n * k.div_ceil(s.group)]).unwrap()
            }
            Scheme::RowScaled(kind) => {
                let unit = UNIT[usize::from(matches!(kind, RowScale::Bf16))];
                pack_row_scaled(format, n, k, &vec![0x38; n * k], &vec![unit; n]).unwrap()
            }
            Scheme::Nvfp4 | Scheme::Gguf(_) => continue,
        };
        let view = TensorView::new(format, &[n as u64, k as u64], 1, &payload).unwrap();
        let x = vec![-f32::from_bits(1); 70 * k];
        for isa in available() {
            for t in [1, 2, 7, 20, 70] {
                let (mut out, x) = (vec![1.0; t * n], Activations::F32(&x[..t * k]));
                let on = Dispatch { isa: Some(isa), threads: Some(1) };
                matmul(&view, x, Precision::A16, &mut out, &on).unwrap();
                assert!(
                    out.iter().all(|y| y.to_bits() == 0x8000_0000),
                    "{isa} {format} K {k} T {t}: {out:?}"
                );
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
                for columns in [1, 2, 3] {
                    let mut out = vec![0.0; columns * n];
                    let dispatch = Dispatch { isa: Some(isa), threads: Some(1) };
                    let x = Activations::F32(&x[..columns * k]);
                    matmul(&view, x, Precision::A8, &mut out, &dispatch).unwrap();
                    assert_eq!(words(&out), words(&expected[..columns * n]), "{isa} {format} at {offset}");
                }
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
                    // Both columns, and each by the kernel for one.
                    for columns in [0..2, 0..1, 1..2] {
                        let mut out = vec![0.0; columns.len() * n];
                        let x = Activations::F32(&x[columns.start * k..columns.end * k]);
                        matmul(&w.view(), x, Precision::A8, &mut out, &on(isa)).unwrap();
                        let expected = &expected[columns.start * n..columns.end * n];
                        assert_eq!(words(&out), words(expected), "{isa} {format} {byte:#x} {columns:?}");
                    }
                }
            }
        }
    }
}

/// Rows that are read along are kept for sixteen units of 256 values at a time.
#[test]
fn rows_longer_than_are_kept_at_a_time() {
    for format in [FormatId::GgufQ2K, FormatId::GgufQ6K] {
        for units in [15, 16, 17, 35] {
            let (n, k) = (35, 256 * units);
            let w = wild(format, n, k, 410);
            let x = Random(33).values(2 * k);
            let on = |isa| Dispatch { isa: Some(isa), threads: Some(1) };
            for columns in [1, 2] {
                let x = &x[..columns * k];
                let mut expected = vec![0.0; columns * n];
                let scalar = on(Isa::Scalar);
                matmul(&w.view(), Activations::F32(x), Precision::A8, &mut expected, &scalar).unwrap();
                for isa in available() {
                    let mut out = vec![0.0; columns * n];
                    matmul(&w.view(), Activations::F32(x), Precision::A8, &mut out, &on(isa)).unwrap();
                    assert_eq!(words(&out), words(&expected), "{isa} {format} {units} units, T {columns}");
                }
            }
        }
    }
}
