//! Plain little-endian numbers: floats to binary32, integers to `i64`.

use ninfer_formats::float::{bf16, e4m3};

/// The type of stored floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// bfloat16.
    Bf16,
    /// IEEE-754 binary16.
    F16,
    /// IEEE-754 binary32.
    F32,
    /// IEEE-754 binary64.
    F64,
    /// E4M3FN codes that stand for themselves.
    E4m3,
}

impl FloatType {
    /// Bytes of one word.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::E4m3 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// The type of stored integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are named after sign and width")]
pub enum IntegerType {
    /// One byte, 0 or 1.
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
}

impl IntegerType {
    /// Bytes of one word.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
            Self::U64 | Self::I64 => 8,
        }
    }
}

/// A word that cannot be read: its position and why.
pub(super) type BadWord = (usize, String);

/// Expands floats; `bytes` holds `out.len()` words. Binary64 rounds once, nearest-even; a NaN keeps its sign and top
/// payload bits (and becomes quiet where it is narrowed).
pub(super) fn floats(kind: FloatType, bytes: &[u8], out: &mut [f32]) -> Result<(), BadWord> {
    let word = |w: &[u8; 2]| u16::from_le_bytes(*w);
    let words2 = bytes.as_chunks::<2>().0.iter().map(word);
    match kind {
        FloatType::Bf16 => out.iter_mut().zip(words2).for_each(|(o, w)| *o = bf16::to_f32(w)),
        FloatType::F16 => out.iter_mut().zip(words2).for_each(|(o, w)| *o = f16_to_f32(w)),
        FloatType::E4m3 => out.iter_mut().zip(bytes).for_each(|(o, &w)| *o = e4m3::to_f32(w)),
        FloatType::F32 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_bits(u32::from_le_bytes(*w));
            }
        }
        FloatType::F64 => {
            let words = || bytes.as_chunks::<8>().0.iter().map(|w| f64::from_bits(u64::from_le_bytes(*w)));
            let mut infinite = false;
            for (o, x) in out.iter_mut().zip(words()) {
                *o = narrow(x);
                infinite |= o.is_infinite();
            }
            // Infinities are rare: where they come from is asked afterwards.
            if infinite {
                let overflow = |(x, o): (f64, &f32)| x.is_finite() && !o.is_finite();
                if let Some(i) = words().zip(&*out).position(overflow) {
                    let value = words().nth(i).unwrap_or_default();
                    return Err((i, format!("{value:e} does not fit binary32")));
                }
            }
        }
    }
    Ok(())
}

/// Expands binary16 as [`ninfer_formats::float::f16::to_f32`] does, without branches, so that loops over words are
/// vectorised. Subnormals are the exact difference of two normal numbers.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    const STEP: u32 = 113 << 23; // 2^-14, the smallest normal
    let sign = u32::from(h & 0x8000) << 16;
    let magnitude = u32::from(h & 0x7fff);
    let shifted = magnitude << 13;
    let subnormal = (f32::from_bits(shifted + STEP) - f32::from_bits(STEP)).to_bits();
    let rebias = if magnitude >= 0x7c00 { 224 << 23 } else { 112 << 23 };
    f32::from_bits(sign | if magnitude < 0x400 { subnormal } else { shifted + rebias })
}

/// Binary64 to binary32. What `as` does to the payload of a NaN depends on the machine.
fn narrow(x: f64) -> f32 {
    if !x.is_nan() {
        return x as f32;
    }
    let bits = x.to_bits();
    f32::from_bits(((bits >> 32) as u32 & 0x8000_0000) | 0x7fc0_0000 | ((bits >> 29) as u32 & 0x003f_ffff))
}

/// Reads integers; `bytes` holds `out.len()` words.
pub(super) fn integers(kind: IntegerType, bytes: &[u8], out: &mut [i64]) -> Result<(), BadWord> {
    macro_rules! all {
        ($t:ty) => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<{ size_of::<$t>() }>().0) {
                *o = <$t>::from_le_bytes(*w).into();
            }
        };
    }
    match kind {
        IntegerType::Bool => {
            for (i, (o, &b)) in out.iter_mut().zip(bytes).enumerate() {
                if b > 1 {
                    return Err((i, format!("the byte {b:#04x} is no boolean")));
                }
                *o = b.into();
            }
        }
        IntegerType::U8 => all!(u8),
        IntegerType::I8 => all!(i8),
        IntegerType::U16 => all!(u16),
        IntegerType::I16 => all!(i16),
        IntegerType::U32 => all!(u32),
        IntegerType::I32 => all!(i32),
        IntegerType::I64 => all!(i64),
        IntegerType::U64 => {
            for (i, (o, w)) in out.iter_mut().zip(bytes.as_chunks::<8>().0).enumerate() {
                let value = u64::from_le_bytes(*w);
                *o = i64::try_from(value).map_err(|_| (i, format!("{value} does not fit 63 bits")))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ninfer_formats::float::f16;

    #[test]
    fn every_binary16_word_expands_as_in_formats() {
        for w in 0..=u16::MAX {
            assert_eq!(f16_to_f32(w).to_bits(), f16::to_f32_bits(w), "{w:#06x}");
        }
    }

    #[test]
    fn binary64_rounds_once() {
        let tie = f64::from_bits(0x3ff0_0000_1000_0000); // halfway between 1 and the next binary32
        for (x, bits) in [
            (tie, 0x3f80_0000),
            (f64::from_bits(tie.to_bits() + 1), 0x3f80_0001),
            (f64::from_bits(0x36a0_0000_0000_0000), 1), // 2^-149
            (-0.0, 0x8000_0000),
            (f64::NEG_INFINITY, 0xff80_0000),
            (f64::from_bits(0x7ff0_0000_0000_0001), 0x7fc0_0000),
        ] {
            let mut out = [0.0];
            floats(FloatType::F64, &x.to_le_bytes(), &mut out).unwrap();
            assert_eq!(out[0].to_bits(), bits, "{x:e}");
        }
        let bytes = [1.0, f64::INFINITY, 3.5e38].map(f64::to_le_bytes).concat();
        assert_eq!(floats(FloatType::F64, &bytes, &mut [0.0; 3]).unwrap_err().0, 2);
    }
}
