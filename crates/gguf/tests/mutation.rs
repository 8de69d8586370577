//! Every truncation and thousands of byte changes of small files: never a panic, always quickly.

mod common;

use common::{Raw, exercise, rich};
use ninfer_gguf::{GgufErrorKind as K, Header};

/// A fixed pseudo-random sequence (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = rich().build();
    exercise(&bytes).unwrap();
    // The last tensor of known span ends here; what follows is the padding and the tensor of unknown span.
    let h = Header::parse(&bytes).unwrap();
    let last = h.tensor("second").unwrap();
    let needed = (last.file_offset() + last.bytes().unwrap()) as usize;
    for n in 0..bytes.len() {
        let result = exercise(&bytes[..n]);
        match result {
            Ok(_) => assert!(n >= needed, "opened with {n} of {needed} bytes"),
            Err(e) => {
                assert!(n < needed, "{n}: {e}");
                if n >= 8 {
                    assert!(
                        matches!(e.kind(), K::Truncated { .. } | K::TooMany { .. } | K::TensorEnd { .. }),
                        "{n}: {e}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_single_bit_and_byte_change() {
    let good = rich().build();
    let mut bytes = good.clone();
    let (mut opened, mut refused) = (0, 0);
    for i in 0..bytes.len() {
        let flips = (0..8).map(|b| good[i] ^ (1 << b)).chain([0, 0xff, 0x7f, 0x80]);
        for byte in flips {
            bytes[i] = byte;
            match exercise(&bytes) {
                Ok(_) => opened += 1,
                Err(e) => {
                    assert!(!e.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        bytes[i] = good[i];
    }
    // Both happen often, or the file or the check is wrong.
    assert!(opened > 1000 && refused > 1000, "{opened} opened, {refused} refused");
}

#[test]
fn random_words_at_random_places() {
    let good = rich().build();
    let mut random = Random(1);
    let extremes = [0, 1, 2, 8, 9, 12, 13, 1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 62, 1 << 63, u64::MAX];
    for _ in 0..30_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            let width = [1, 2, 4, 8][random.below(4)];
            let value =
                if random.below(2) == 0 { extremes[random.below(extremes.len())] } else { random.next() };
            let at = random.below(bytes.len() - width);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        let _ = exercise(&bytes);
    }
}

#[test]
fn random_bytes_after_the_preamble() {
    let mut random = Random(2);
    for round in 0..20_000u64 {
        let mut bytes =
            Raw { tensor_count: Some(round % 3), entry_count: Some(round % 5), ..Raw::new() }.header();
        let len = random.below(200);
        bytes.extend((0..len).map(|_| {
            // Small numbers make lengths and types that lead further in.
            let r = random.next();
            if r & 7 == 0 { (r >> 8) as u8 } else { (r >> 8) as u8 & 0x0f & (r >> 16) as u8 }
        }));
        let _ = exercise(&bytes);
    }
}
