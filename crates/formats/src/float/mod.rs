//! Exact conversions between the scalar encodings of the registry, one file per encoding.
//!
//! Every conversion works on words with integer arithmetic, so neither a flush-to-zero mode nor a hardware
//! instruction with rules of its own can change a bit.

pub mod bf16;
pub mod e2m1;
pub mod e4m3;
pub mod f16;

/// `x * 2^exp2` rounded to a 16-bit binary format, nearest-even, from a positive finite binary64.
///
/// `mant_bits` trailing fraction bits, `bias` exponent bias; returns the magnitude word; values too large give the
/// word that follows the largest finite one (infinity in formats that have it).
const fn round_magnitude(bits: u64, mant_bits: u32, bias: i32, max_exp: i32) -> u32 {
    // bits: binary64 magnitude word, finite.
    let e64 = (bits >> 52) as i32;
    let frac = bits & ((1 << 52) - 1);
    if e64 == 0 {
        // Zero or a binary64 subnormal: far below half the smallest subnormal of every format here.
        return 0;
    }
    let sig = frac | (1 << 52);
    let e = e64 - 1023;
    if e > max_exp {
        return ((max_exp + bias + 1) as u32) << mant_bits;
    }
    // Bits to drop: a normal keeps mant_bits after the leading one, a subnormal fewer.
    let min_exp = 1 - bias;
    let extra = if e < min_exp { (min_exp - e) as u32 } else { 0 };
    let drop = 52 - mant_bits + extra;
    if drop > 54 {
        return 0;
    }
    let kept = sig >> drop;
    let rest = sig & ((1 << drop) - 1);
    let half = 1u64 << (drop - 1);
    let up = rest > half || (rest == half && kept & 1 == 1);
    let rounded = kept + up as u64;
    if extra > 0 {
        // Subnormal; a carry into the leading bit is the smallest normal by construction of the encoding.
        rounded as u32
    } else {
        // The leading one adds 1 to the exponent field; a carry out of the fraction adds one more.
        (((e + bias - 1) as u32) << mant_bits) + rounded as u32
    }
}
