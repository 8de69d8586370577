//! Constants that the vectors of [`crate::lanes`] share.

/// A word of four bytes.
#[inline(always)]
pub(in crate::arch::x86_64) fn word(bytes: [u8; 4]) -> i32 {
    i32::from_le_bytes(bytes)
}

/// Bytes `from` of every 32-bit lane of a 128-bit lane.
pub(in crate::arch::x86_64) const fn places(from: [u8; 4]) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = from[i % 4] + (i / 4 * 4) as u8;
        i += 1;
    }
    out
}

/// Bits as bytes.
#[inline(always)]
pub(in crate::arch::x86_64) fn pattern(bits: [u8; 4]) -> i32 {
    word([1 << bits[0], 1 << bits[1], 1 << bits[2], 1 << bits[3]])
}

/// Seven sign bits with their parity as the eighth.
pub(in crate::arch::x86_64) static PARITY: [u8; 128] = {
    let mut t = [0; 128];
    let mut i = 0;
    while i < 128 {
        t[i] = i as u8 | ((i as u8).count_ones() as u8 & 1) << 7;
        i += 1;
    }
    t
};
