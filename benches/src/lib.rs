//! Inputs of the benchmarks: random words with sane scales, never one repeated row (branch predictors would learn it).

use ninfer_formats::{FormatError, FormatId, RowScale, Scheme, TensorView, encoded_size};

/// A payload of `n` rows of `k` elements, its format and shape.
#[derive(Debug)]
pub struct Matrix {
    /// The format.
    pub format: FormatId,
    /// Rows and elements of a row.
    pub shape: [u64; 2],
    payload: Vec<u8>,
}

impl Matrix {
    /// Random bytes everywhere but in the scales, which lie around 2^-6.
    ///
    /// # Errors
    /// A shape that the format does not allow.
    pub fn random(format: FormatId, n: u64, k: u64) -> Result<Self, FormatError> {
        let bytes = encoded_size(format, &[n, k], 1)? as usize;
        let mut x = 0x9e37_79b9_7f4a_7c15u64 | u64::from(format as u8) << 8;
        let mut payload: Vec<u8> = (0..bytes)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 32) as u8
            })
            .collect();
        match format.scheme() {
            Scheme::Gguf(kind) => {
                for block in payload.chunks_exact_mut(kind.bytes()) {
                    for &at in scale_fields(format.name()) {
                        // binary16 with exponent field 8 or 9: both signs, magnitudes from 2^-7 to 2^-5.
                        block[at + 1] = block[at + 1] & 0x83 | (8 + (block[at] & 1)) << 2;
                    }
                    if format == FormatId::GgufIq1M {
                        block[55] = 0x20 | block[55] & 15;
                    }
                }
            }
            Scheme::Grouped(s) => {
                let groups = (k as usize).next_multiple_of(128) / s.group * n as usize;
                for word in payload[bytes - 2 * groups..].as_chunks_mut::<2>().0 {
                    word[1] = word[1] & 0x83 | 8 << 2;
                }
            }
            Scheme::Nvfp4 => {
                let scales = (n * k / 2) as usize..bytes - 4;
                payload[scales].iter_mut().for_each(|b| *b = *b & 0x0f | 0x30);
                payload[bytes - 4..].copy_from_slice(&1.0f32.to_le_bytes());
            }
            Scheme::RowScaled(kind) => {
                payload.iter_mut().for_each(|b| *b &= 0xbf);
                let k = k as usize;
                for r in 0..n as usize {
                    let (at, word) = match kind {
                        RowScale::Bf16 => (bytes - 2 * n as usize + 2 * r, 0x3c00u16),
                        RowScale::Fp16 => (r * (k + 2) + k, 0x2000),
                    };
                    payload[at..at + 2].copy_from_slice(&word.to_le_bytes());
                }
            }
            Scheme::Direct(_) => {
                let word = if format == FormatId::Bf16 { 2 } else { 4 };
                for w in payload.chunks_exact_mut(word) {
                    w[word - 1] = w[word - 1] & 0x80 | 0x3c;
                }
            }
        }
        Ok(Self { format, shape: [n, k], payload })
    }

    /// The matrix as a view.
    ///
    /// # Errors
    /// Never for a matrix made by [`Matrix::random`].
    pub fn view(&self) -> Result<TensorView<'_>, FormatError> {
        TensorView::new(self.format, &self.shape, 1, &self.payload)
    }

    /// Payload bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.payload.len() as u64
    }
}

/// Byte offsets of the binary16 scales of a block.
fn scale_fields(name: &str) -> &'static [usize] {
    match name {
        "gguf_q2_k" => &[80, 82],
        "gguf_q3_k" => &[108],
        "gguf_q4_k" | "gguf_q5_k" => &[0, 2],
        "gguf_q6_k" => &[208],
        "gguf_iq1_m" => &[],
        _ => &[0],
    }
}
