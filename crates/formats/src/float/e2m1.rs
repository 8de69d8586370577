//! E2M1: sign at bit 3, two exponent bits, one fraction bit; the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

/// Twice the value of each word: small integers, handy where products stay in integers.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The value of each word; word 8 is negative zero.
pub const TO_F32: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Expands an E2M1 word (the low four bits) to binary32, exactly.
#[must_use]
#[inline]
pub const fn to_f32(w: u8) -> f32 {
    TO_F32[(w & 15) as usize]
}

/// Rounds binary32 to E2M1, nearest-even, saturating at ±6; the sign of zero is kept. NaN gives ±6.
#[must_use]
#[inline]
pub const fn from_f32_saturating(x: f32) -> u8 {
    let sign = ((x.to_bits() >> 28) & 8) as u8;
    let a = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    // The midpoints between neighbours; ties go to the even word.
    sign | if a <= 0.25 {
        0
    } else if a < 0.75 {
        1
    } else if a <= 1.25 {
        2
    } else if a < 1.75 {
        3
    } else if a <= 2.5 {
        4
    } else if a < 3.5 {
        5
    } else if a <= 5.0 {
        6
    } else {
        7
    }
}
