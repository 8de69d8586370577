//! Plain little-endian numbers: floats to binary32, integers to `i64`.

use ninfer_formats::codec::gguf::half;
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
        FloatType::F16 => out.iter_mut().zip(words2).for_each(|(o, w)| *o = half(w)),
        FloatType::E4m3 => out.iter_mut().zip(bytes).for_each(|(o, &w)| *o = e4m3::to_f32(w)),
        FloatType::F32 => {
            for (o, w) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_bits(u32::from_le_bytes(*w));
            }
        }
        FloatType::F64 => {
            for (i, (o, w)) in out.iter_mut().zip(bytes.as_chunks::<8>().0).enumerate() {
                let bits = u64::from_le_bytes(*w);
                let value = f64::from_bits(bits);
                *o = narrow(value);
                if value.is_finite() && !o.is_finite() {
                    return Err((i, format!("{value:e} does not fit binary32")));
                }
            }
        }
    }
    Ok(())
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
