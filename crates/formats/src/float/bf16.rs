//! bfloat16: the upper half of a binary32 word.

/// Expands a bfloat16 word to binary32, exactly: sixteen zero bits are appended. Signalling NaNs stay signalling.
#[must_use]
#[inline]
pub const fn to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// Rounds binary32 to bfloat16, nearest-even. Overflow gives infinity; a NaN keeps its sign and top payload bits and
/// becomes quiet (encoder specification, `cast_direct`).
#[must_use]
#[inline]
pub const fn from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x0040;
    }
    // No overflow of the addition: the largest non-NaN word is 0xff800000.
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounds binary64 to bfloat16 once, nearest-even (no detour through binary32). NaN becomes `0x7fc0` with the sign.
#[must_use]
pub const fn from_f64(x: f64) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 48) & 0x8000) as u16;
    let mag = bits & !(1 << 63);
    if mag > 0x7ff0_0000_0000_0000 {
        return sign | 0x7fc0;
    }
    sign | super::round_magnitude(mag, 7, 127, 127) as u16
}
