//! Random tensors of every format, shared by the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part")]

use ninfer_formats::codec::gguf::{self, Block};
use ninfer_formats::float::{bf16, e2m1, e4m3, f16};
use ninfer_formats::{
    BlockKind, DirectKind, FormatId, RowParts, RowScale, Scheme, TensorView, encoded_size, pack_grouped,
    pack_nvfp4, pack_row_scaled,
};

/// A 64-bit generator with a fixed seed (the output function of SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.word() >> 33) as usize % n
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.word() >> 40) as u8).collect()
    }

    /// A binary16 word between 2^-8 and 1 with either sign.
    pub fn scale(&mut self) -> u16 {
        let w = self.word();
        (w as u16 & 0x8000) | (7 + (w >> 16) as u16 % 8) << 10 | (w >> 32) as u16 & 0x3ff
    }

    /// A value between -4 and 4 with 24 significant bits, small ones too.
    pub fn value(&mut self) -> f32 {
        let w = self.word();
        let m = (w >> 40) as f32 / (1u64 << 24) as f32 * 8.0 - 4.0;
        m * 2f32.powi(-((w & 7) as i32))
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// A tensor that owns its payload.
pub struct Owned {
    pub format: FormatId,
    pub shape: [u64; 2],
    pub divisors: u64,
    pub payload: Vec<u8>,
}

impl Owned {
    pub fn view(&self) -> TensorView<'_> {
        TensorView::new(self.format, &self.shape, self.divisors, &self.payload)
            .expect("a payload of its size")
    }
}

pub fn float_formats() -> impl Iterator<Item = FormatId> {
    FormatId::all().filter(|f| *f != FormatId::Int32)
}

/// The nearest legal shape at or above `n` rows of `k` elements.
pub fn legal(format: FormatId, n: usize, k: usize) -> (usize, usize) {
    match format.scheme() {
        Scheme::Nvfp4 => (n.next_multiple_of(128), k.next_multiple_of(64)),
        Scheme::Gguf(kind) => (n, k.next_multiple_of(kind.values())),
        _ => (n, k),
    }
}

/// Any bytes at all, illegal words included.
pub fn wild(format: FormatId, n: usize, k: usize, seed: u64) -> Owned {
    let (n, k) = legal(format, n, k);
    let shape = [n as u64, k as u64];
    let bytes = encoded_size(format, &shape, 1).expect("a legal shape") as usize;
    Owned { format, shape, divisors: 1, payload: Random(seed).bytes(bytes) }
}

/// Random codes with scales of moderate size.
pub fn sane(format: FormatId, n: usize, k: usize, seed: u64) -> Owned {
    let (n, k) = legal(format, n, k);
    let mut r = Random(seed);
    let mut divisors = 1;
    let payload = match format.scheme() {
        Scheme::Direct(kind) => (0..n * k)
            .flat_map(|_| {
                let v = r.value();
                match kind {
                    DirectKind::Bf16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                    DirectKind::Fp32 => v.to_le_bytes().to_vec(),
                    DirectKind::Int32 => (r.word() as u32).to_le_bytes().to_vec(),
                }
            })
            .collect(),
        Scheme::Grouped(s) => {
            let span = (i32::from(s.code_max) - i32::from(s.code_min) + 1) as usize;
            let codes: Vec<i8> =
                (0..n * k).map(|_| (r.below(span) as i32 + i32::from(s.code_min)) as i8).collect();
            let scales: Vec<u16> = (0..n * k.div_ceil(s.group)).map(|_| r.scale()).collect();
            pack_grouped(format, n, k, &codes, &scales).expect("legal codes")
        }
        Scheme::Nvfp4 => {
            let codes = r.bytes(n * k / 2);
            let scales: Vec<u8> = (0..n * k / 16).map(|_| r.below(0x7f) as u8).collect();
            divisors = if n % 256 == 0 { n as u64 / 128 } else { 1 };
            let words: Vec<u32> =
                (0..divisors).map(|_| (1.0f32 + r.value().abs() * 100.0).to_bits()).collect();
            pack_nvfp4(format, n, k, &codes, &scales, &words).expect("a legal shape")
        }
        Scheme::RowScaled(kind) => {
            let codes: Vec<u8> = (0..n * k).map(|_| r.below(0x7f) as u8 | (r.word() as u8 & 0x80)).collect();
            let scales: Vec<u16> = (0..n)
                .map(|_| match kind {
                    RowScale::Fp16 => r.scale() & 0x7fff,
                    RowScale::Bf16 => bf16::from_f32(f16::to_f32(r.scale() & 0x7fff)),
                })
                .collect();
            pack_row_scaled(format, n, k, &codes, &scales).expect("a legal shape")
        }
        Scheme::Gguf(kind) => {
            let mut bytes = r.bytes(n * k / kind.values() * kind.bytes());
            for block in bytes.chunks_exact_mut(kind.bytes()) {
                sane_scales(kind, block, &mut r);
            }
            bytes
        }
    };
    Owned { format, shape: [n as u64, k as u64], divisors, payload }
}

fn sane_scales(kind: BlockKind, block: &mut [u8], r: &mut Random) {
    let at: &[usize] = match kind {
        BlockKind::Q2K => &[80, 82],
        BlockKind::Q3K => &[108],
        BlockKind::Q4K | BlockKind::Q5K => &[0, 2],
        BlockKind::Q6K => &[208],
        BlockKind::Iq1M => {
            let d = r.scale();
            for i in 0..4 {
                block[49 + 2 * i] = (block[49 + 2 * i] & 15) | ((d >> (4 * i)) as u8 & 15) << 4;
            }
            return;
        }
        _ => &[0],
    };
    for &at in at {
        block[at..at + 2].copy_from_slice(&r.scale().to_le_bytes());
    }
}

/// Represented weights of one row in binary64, and their magnitudes as the product bound counts them.
pub fn exact_row(parts: &RowParts<'_>, values: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let plain: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
    match parts {
        RowParts::Nvfp4 { codes, scales, divisor } => {
            let d = f64::from(f32::from_bits(*divisor));
            let w: Vec<f64> = (0..codes.len() * 2)
                .map(|i| {
                    let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                    f64::from(e2m1::to_f32(code)) * f64::from(e4m3::to_f32(scales.word(i / 16))) / d
                })
                .collect();
            let s = w.iter().map(|w| w.abs()).collect();
            (w, s)
        }
        RowParts::Blocks { kind: BlockKind::Q2K, blocks } => (plain, with_minima::<gguf::Q2K>(blocks)),
        RowParts::Blocks { kind: BlockKind::Q4K, blocks } => (plain, with_minima::<gguf::Q4K>(blocks)),
        RowParts::Blocks { kind: BlockKind::Q5K, blocks } => (plain, with_minima::<gguf::Q5K>(blocks)),
        _ => {
            let s = plain.iter().map(|w| w.abs()).collect();
            (plain, s)
        }
    }
}

fn with_minima<B: Block>(blocks: &[u8]) -> Vec<f64> {
    let mut out = Vec::new();
    for block in B::blocks(blocks) {
        let f = B::factors(block);
        for i in 0..B::SUBS * 32 {
            let code = f64::from(B::codes(block, i / 32)[i % 32]);
            let (scale, min) = (f64::from(f.scale[i / 16]), f64::from(f.min[i / 16]));
            out.push((f64::from(f.d) * scale * code).abs() + (f64::from(f.dmin) * min).abs());
        }
    }
    out
}

/// Words of binary32 results with every NaN as one word.
pub fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

/// 16-bit words with every NaN as one word.
pub fn half_words(half: ninfer_formats::codec::Half, words: &[u16]) -> Vec<u16> {
    let infinity = if half == ninfer_formats::codec::Half::Binary16 { 0x7c00 } else { 0x7f80 };
    words.iter().map(|&w| if w & 0x7fff > infinity { 0x7fff } else { w }).collect()
}
