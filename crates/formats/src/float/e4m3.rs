//! E4M3FN: sign at bit 7, four exponent bits (bias 7), three fraction bits, no infinity, NaN only at `0x7f`/`0xff`.

/// The binary32 word of each E4M3FN word; the two NaN words give a quiet NaN with their sign.
pub static TO_F32_BITS: [u32; 256] = {
    let mut t = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        t[i] = decode(i as u8);
        i += 1;
    }
    t
};

const fn decode(w: u8) -> u32 {
    let sign = ((w & 0x80) as u32) << 24;
    let e = (w >> 3) as u32 & 15;
    let m = (w & 7) as u32;
    if e == 15 && m == 7 {
        return sign | 0x7fc0_0000;
    }
    if e == 0 {
        // m * 2^-9: an integer below 8 scaled by a power of two.
        return match m {
            0 => sign,
            1 => sign | (118 << 23),
            2 | 3 => sign | (119 << 23) | ((m & 1) << 22),
            _ => sign | (120 << 23) | ((m & 3) << 21),
        };
    }
    sign | ((e + 120) << 23) | (m << 20)
}

/// Expands an E4M3FN word to binary32, exactly.
#[must_use]
#[inline]
pub fn to_f32(w: u8) -> f32 {
    f32::from_bits(TO_F32_BITS[w as usize])
}

/// Whether the word is one of the two NaNs.
#[must_use]
#[inline]
pub const fn is_nan(w: u8) -> bool {
    w & 0x7f == 0x7f
}

const fn magnitude(mag: u32) -> u32 {
    // mag: finite binary32 magnitude word; 2^-10 (half the smallest subnormal) and below round to zero.
    if mag >= 0x43f0_0000 {
        // 480 and above: past the NaN word. The caller decides.
        return 0x80;
    }
    if mag < 0x3c80_0000 {
        // Below 2^-6: subnormal result in steps of 2^-9.
        if mag <= 0x3a80_0000 {
            return 0;
        }
        let shift = 141 - (mag >> 23); // 21..=24 bits are dropped
        let sig = (mag & 0x007f_ffff) | 0x0080_0000;
        let kept = sig >> shift;
        let rest = sig & ((1 << shift) - 1);
        let half = 1 << (shift - 1);
        return kept + (rest > half || (rest == half && kept & 1 == 1)) as u32;
    }
    (mag - (120 << 23) + 0x7_ffff + ((mag >> 20) & 1)) >> 20
}

/// Rounds binary32 to E4M3FN, nearest-even; what exceeds 448 after rounding, infinity included, saturates to ±448
/// (`0x7e`/`0xfe`). The sign of zero is kept; NaN gives `0x7f` with its sign.
#[must_use]
#[inline]
pub const fn from_f32_saturating(x: f32) -> u8 {
    let bits = x.to_bits();
    let sign = ((bits >> 24) & 0x80) as u8;
    let mag = bits & 0x7fff_ffff;
    if mag > 0x7f80_0000 {
        return sign | 0x7f;
    }
    let m = magnitude(mag);
    sign | if m > 0x7e { 0x7e } else { m as u8 }
}

/// Rounds binary32 to E4M3FN, nearest-even; what exceeds 448 after rounding (above 464), infinity included, becomes
/// NaN (`0x7f`/`0xff`). The sign of zero is kept.
#[must_use]
#[inline]
pub const fn from_f32(x: f32) -> u8 {
    let bits = x.to_bits();
    let sign = ((bits >> 24) & 0x80) as u8;
    let mag = bits & 0x7fff_ffff;
    if mag > 0x7f80_0000 {
        return sign | 0x7f;
    }
    let m = magnitude(mag);
    sign | if m > 0x7e { 0x7f } else { m as u8 }
}
