//! IEEE-754 binary16: sign at bit 15, five exponent bits (bias 15), ten fraction bits.

/// Expands a binary16 word to the binary32 word of the same value. Signed zeros, subnormals and infinities are
/// exact; a NaN keeps its sign and payload (in the top fraction bits) without becoming quiet.
#[must_use]
#[inline]
pub const fn to_f32_bits(h: u16) -> u32 {
    let sign = ((h & 0x8000) as u32) << 16;
    let exp = (h >> 10) as u32 & 0x1f;
    let frac = (h & 0x3ff) as u32;
    match (exp, frac) {
        (0, 0) => sign,
        (0, _) => {
            // Subnormal frac * 2^-24: normalise by the position of its leading one.
            let shift = frac.leading_zeros() - 21;
            sign | ((113 - shift) << 23) | (((frac << shift) & 0x3ff) << 13)
        }
        (31, _) => sign | 0x7f80_0000 | (frac << 13),
        _ => sign | ((exp + 112) << 23) | (frac << 13),
    }
}

/// Expands a binary16 word to binary32, exactly. See [`to_f32_bits`].
#[must_use]
#[inline]
pub const fn to_f32(h: u16) -> f32 {
    f32::from_bits(to_f32_bits(h))
}

/// Rounds binary32 to binary16, nearest-even. Overflow gives infinity; a NaN keeps its sign and top payload bits
/// and becomes quiet.
#[must_use]
#[inline]
pub const fn from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let mag = bits & 0x7fff_ffff;
    if mag > 0x7f80_0000 {
        return sign | 0x7e00 | ((mag >> 13) & 0x1ff) as u16;
    }
    if mag >= 0x4780_0000 {
        // 65536 and above, infinity included.
        return sign | 0x7c00;
    }
    if mag < 0x3880_0000 {
        // Below 2^-14: the result is subnormal (or rounds up to the smallest normal).
        if mag <= 0x3300_0000 {
            // At most 2^-25, half the smallest subnormal; the tie goes to even, zero.
            return sign;
        }
        let shift = 126 - (mag >> 23); // 14..=24 bits are dropped from the 24-bit significand
        let sig = (mag & 0x007f_ffff) | 0x0080_0000;
        let kept = sig >> shift;
        let rest = sig & ((1 << shift) - 1);
        let half = 1 << (shift - 1);
        let up = rest > half || (rest == half && kept & 1 == 1);
        return sign | (kept as u16 + up as u16);
    }
    // Normal: rebias, then round the 13 dropped bits; a carry runs into the exponent and, at the top, to infinity.
    let rounded = mag - (112 << 23) + 0xfff + ((mag >> 13) & 1);
    sign | (rounded >> 13) as u16
}

/// Rounds binary64 to binary16 once, nearest-even (no detour through binary32). NaN becomes `0x7e00` with the sign.
#[must_use]
pub const fn from_f64(x: f64) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 48) & 0x8000) as u16;
    let mag = bits & !(1 << 63);
    if mag > 0x7ff0_0000_0000_0000 {
        return sign | 0x7e00;
    }
    sign | super::round_magnitude(mag, 10, 15, 15) as u16
}
