//! Byte offsets of the fields of each block, one module per type. Source: format specification, ggml block types.
//!
//! Multi-byte fields are little-endian and may lie at odd addresses of a row.

/// Fields of `q8_0`.
pub mod q8_0 {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 32 signed codes.
    pub const Q: usize = 2;
}

/// Fields of `q4_0`.
pub mod q4_0 {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 16 bytes of two nibbles.
    pub const Q: usize = 2;
}

/// Fields of `q5_0`.
pub mod q5_0 {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 32-bit word of the fifth bits, bit `i` for value `i`.
    pub const QH: usize = 2;
    /// 16 bytes of two nibbles.
    pub const Q: usize = 6;
}

/// Fields of `q2_0`.
pub mod q2_0 {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 16 bytes of four two-bit fields.
    pub const Q: usize = 2;
}

/// Fields of `q2_k`.
pub mod q2_k {
    /// 16 bytes, low nibble scale, high nibble minimum, one per 16 values.
    pub const S: usize = 0;
    /// 64 bytes of four two-bit fields.
    pub const Q: usize = 16;
    /// binary16 scale of the scales.
    pub const D: usize = 80;
    /// binary16 scale of the minima.
    pub const DMIN: usize = 82;
}

/// Fields of `q3_k`.
pub mod q3_k {
    /// 32 bytes of third bits.
    pub const HM: usize = 0;
    /// 64 bytes of four two-bit fields.
    pub const Q: usize = 32;
    /// Sixteen six-bit scales in 12 bytes.
    pub const S: usize = 96;
    /// binary16 scale.
    pub const D: usize = 108;
}

/// Fields of `q4_k`.
pub mod q4_k {
    /// binary16 scale of the scales.
    pub const D: usize = 0;
    /// binary16 scale of the minima.
    pub const DMIN: usize = 2;
    /// Eight six-bit scales and minima in 12 bytes.
    pub const S: usize = 4;
    /// 128 bytes of two nibbles.
    pub const Q: usize = 16;
}

/// Fields of `q5_k`.
pub mod q5_k {
    /// binary16 scale of the scales.
    pub const D: usize = 0;
    /// binary16 scale of the minima.
    pub const DMIN: usize = 2;
    /// Eight six-bit scales and minima in 12 bytes.
    pub const S: usize = 4;
    /// 32 bytes of fifth bits, bit `i` for run `i` of 32 values.
    pub const QH: usize = 16;
    /// 128 bytes of two nibbles.
    pub const Q: usize = 48;
}

/// Fields of `q6_k`.
pub mod q6_k {
    /// 128 bytes of two nibbles.
    pub const QL: usize = 0;
    /// 64 bytes of four two-bit fields above the nibbles.
    pub const QH: usize = 128;
    /// Sixteen signed scales, one per 16 values.
    pub const SC: usize = 192;
    /// binary16 scale.
    pub const D: usize = 208;
}

/// Fields of `iq2_xxs`.
pub mod iq2_xxs {
    /// binary16 scale.
    pub const D: usize = 0;
    /// Eight records of 8 bytes, one per 32 values: four grid codes, then a 32-bit word.
    pub const Q: usize = 2;
    /// Offset of the word in a record: four seven-bit sign indices, then a four-bit scale.
    pub const A_IN_RECORD: usize = 4;
}

/// Fields of `iq2_xs`.
pub mod iq2_xs {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 32 words: nine bits of grid code, seven of sign index.
    pub const Q: usize = 2;
    /// Eight bytes of two nibbles, a scale per 16 values.
    pub const S: usize = 66;
}

/// Fields of `iq2_s`.
pub mod iq2_s {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 32 bytes: low eight bits of the grid codes.
    pub const Q: usize = 2;
    /// 32 sign bytes.
    pub const SG: usize = 34;
    /// Eight bytes: two high bits for each of the four codes of 32 values.
    pub const QH: usize = 66;
    /// Eight bytes of two nibbles, a scale per 16 values.
    pub const S: usize = 74;
}

/// Fields of `iq3_xxs`.
pub mod iq3_xxs {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 64 grid codes.
    pub const Q: usize = 2;
    /// Eight words, one per 32 values: four seven-bit sign indices, then a four-bit scale.
    pub const A: usize = 66;
}

/// Fields of `iq3_s`.
pub mod iq3_s {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 64 bytes: low eight bits of the grid codes.
    pub const Q: usize = 2;
    /// Eight bytes: a high bit for each of the eight codes of 32 values.
    pub const QH: usize = 66;
    /// 32 sign bytes.
    pub const SG: usize = 74;
    /// Four bytes of two nibbles, a scale per 32 values.
    pub const S: usize = 106;
}

/// Fields of `iq1_s`.
pub mod iq1_s {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 32 bytes: low eight bits of the grid codes.
    pub const Q: usize = 2;
    /// Eight words, one per 32 values: four three-bit high parts, a three-bit scale, the sign of delta.
    pub const QH: usize = 34;
}

/// Fields of `iq1_m`.
pub mod iq1_m {
    /// 32 bytes: low eight bits of the grid codes.
    pub const Q: usize = 0;
    /// 16 bytes of two nibbles, one per 8 values: three high bits of the code, the sign of delta.
    pub const QH: usize = 32;
    /// Four words: four three-bit scales each, and a nibble of the binary16 block scale.
    pub const S: usize = 48;
}

/// Fields of `iq4_nl`.
pub mod iq4_nl {
    /// binary16 scale.
    pub const D: usize = 0;
    /// 16 bytes of two nibbles.
    pub const Q: usize = 2;
}

/// Fields of `iq4_xs`.
pub mod iq4_xs {
    /// binary16 scale.
    pub const D: usize = 0;
    /// Word of the high two bits of the eight scales.
    pub const SH: usize = 2;
    /// Four bytes: low nibbles of the eight scales.
    pub const SL: usize = 4;
    /// 128 bytes of two nibbles, 16 per 32 values.
    pub const Q: usize = 8;
}
