//! Sizes beyond 4 GiB and beyond the address space: exact where they are only computed, refused where they are held.
//! The same on 32-bit and 64-bit targets, except where a test names one.

use ninfer_formats::{FormatError, FormatId, MatrixShape, TensorView, encoded_size};

const MACHINE: &str = "the address space of this machine";

/// Multiples of the smallest sizes by a power of two that takes them beyond 32 bits.
#[test]
fn sizes_beyond_32_bits_do_not_wrap() {
    for format in FormatId::all() {
        let small = encoded_size(format, &[256, 1024], 1).unwrap();
        let large = encoded_size(format, &[256 << 20, 1024], 1).unwrap();
        assert!(large > u64::from(u32::MAX), "{}: {large}", format.name());
        if small.is_multiple_of(256) {
            // Planes are padded to 256 bytes; where nothing is padded, sizes are proportional to the rows.
            assert!(large <= small << 20, "{}: {small} {large}", format.name());
        }
        let wide = encoded_size(format, &[1024, 256 << 20], 1).unwrap();
        assert!(wide > u64::from(u32::MAX), "{}: {wide}", format.name());
    }
    assert_eq!(encoded_size(FormatId::Fp32, &[1 << 20, 1 << 20], 1), Ok(1 << 42));
    assert_eq!(encoded_size(FormatId::GgufQ8_0, &[1 << 20, 1 << 20], 1), Ok(34 << 35));
}

#[test]
fn sizes_beyond_64_bits_are_refused() {
    for format in FormatId::all() {
        for shape in [[1 << 62, 1 << 62], [u64::MAX - 127, u64::MAX - 255], [1 << 32, 1 << 36]] {
            let error = encoded_size(format, &shape, 1).unwrap_err();
            assert!(matches!(error, FormatError::SizeOverflow { limit: "u64", .. }), "{error}");
        }
    }
}

/// A payload that a wrapped 32-bit size would fit: 2^32 + 4 bytes are not 4.
#[test]
fn a_payload_of_the_wrapped_size_is_refused() {
    let shape = [(1 << 30) + 1, 1];
    let error = TensorView::new(FormatId::Fp32, &shape, 1, &[0; 4]).unwrap_err();
    match error {
        FormatError::PayloadSize { expected, actual: 4, .. } => assert_eq!(expected, (1 << 32) + 4),
        other => panic!("{other}"),
    }
}

#[test]
fn dimensions_that_a_length_cannot_hold_are_refused() {
    let shape = [1, 1 << 40];
    let found = MatrixShape::of(FormatId::Fp32, &shape);
    if usize::BITS < 64 {
        assert!(matches!(&found, Err(FormatError::SizeOverflow { limit: MACHINE, .. })), "{found:?}");
    } else {
        assert_eq!(found.map(|m| m.k as u64), Ok(1 << 40));
    }
}

/// 700 copies of a row of 4 MiB: 2.7 GiB, more than an allocation of a 32-bit machine, less than its addresses.
#[cfg(target_pointer_width = "32")]
#[test]
fn gathers_beyond_an_allocation_are_refused() {
    for format in [FormatId::Fp32, FormatId::Q8G32Fp16, FormatId::GgufQ8_0, FormatId::Fp8E4m3fnRowBf16] {
        let per_row = encoded_size(format, &[4096, 1024], 1).unwrap() / 4096;
        let k = (4 << 20) / per_row * 1024;
        let payload = vec![0; encoded_size(format, &[1, k], 1).unwrap() as usize];
        let view = TensorView::new(format, &[1, k], 1, &payload).unwrap();
        let error = view.gather_payload(&[0; 700]).unwrap_err();
        assert!(matches!(error, FormatError::SizeOverflow { limit: MACHINE, .. }), "{error}");
    }
}
