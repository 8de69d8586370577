//! The five categories of the registry and the parameters of each.
//!
//! Code matches on [`Scheme`] and reads parameters from its variants; it does not match on the thirty names.

/// One of the five categories of the format specification, section 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// One logical word per element.
    Direct,
    /// Signed codes with one binary16 scale per group of elements of a row.
    Grouped,
    /// E2M1 codes with E4M3FN block scales and binary32 divisors.
    BlockScaled,
    /// E4M3FN codes with one multiplier per row.
    RowScaled,
    /// ggml blocks, byte for byte.
    Gguf,
}

impl Category {
    /// The category's name as public interfaces print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Grouped => "grouped",
            Self::BlockScaled => "block_scaled",
            Self::RowScaled => "row_scaled",
            Self::Gguf => "gguf",
        }
    }
}

/// How the words of a format are structured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// One word per element.
    Direct(DirectKind),
    /// Signed codes, one binary16 multiplier per group.
    Grouped(GroupedScheme),
    /// `nvfp4`: E2M1 codes, E4M3FN scale per 16 elements, binary32 divisor per stacked source matrix.
    Nvfp4,
    /// E4M3FN codes, one 16-bit multiplier per row.
    RowScaled(RowScale),
    /// ggml blocks.
    Gguf(BlockKind),
}

impl Scheme {
    /// The category this scheme belongs to.
    #[must_use]
    pub const fn category(self) -> Category {
        match self {
            Self::Direct(_) => Category::Direct,
            Self::Grouped(_) => Category::Grouped,
            Self::Nvfp4 => Category::BlockScaled,
            Self::RowScaled(_) => Category::RowScaled,
            Self::Gguf(_) => Category::Gguf,
        }
    }
}

/// The word of a direct format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectKind {
    /// bfloat16, 2 bytes.
    Bf16,
    /// IEEE-754 binary32, 4 bytes.
    Fp32,
    /// Two's-complement 32-bit integer, 4 bytes.
    Int32,
}

impl DirectKind {
    /// Bytes of one word.
    #[must_use]
    pub const fn word_bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::Fp32 | Self::Int32 => 4,
        }
    }
}

/// How a signed code of a grouped format is stored as an unsigned word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupCode {
    /// Two's complement of the code width.
    TwosComplement,
    /// `q + 1` (only `q2_g64_fp16`).
    OffsetByOne,
}

/// Parameters of a grouped signed-integer format (format specification, sections 1, 4 and 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedScheme {
    /// Code width in bits: 2, 4, 5, 6 or 8.
    pub bits: u8,
    /// Elements per group; 32, 64 or 128.
    pub group: usize,
    /// Smallest legal code.
    pub code_min: i8,
    /// Largest legal code; the scale denominator of the reference encoder.
    pub code_max: i8,
    /// How a code is stored.
    pub code: GroupCode,
    /// Bytes of one group in the base plane.
    pub base_bytes: usize,
    /// Bytes of one group in the high plane (0 where the format has none).
    pub high_bytes: usize,
}

impl GroupedScheme {
    /// Whether the scale rules of `q2_g64_fp16` apply: both zeros are legal and a zero scale may have any code.
    #[must_use]
    pub const fn any_finite_scale(self) -> bool {
        matches!(self.code, GroupCode::OffsetByOne)
    }
}

/// The row multiplier of a row-scaled format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowScale {
    /// bfloat16 multiplier, layout `row_scale_v1`.
    Bf16,
    /// binary16 multiplier, layout `row_interleaved_v1`.
    Fp16,
}

/// The 18 ggml block types of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are ggml's own type names")]
pub enum BlockKind {
    Q8_0,
    Q4_0,
    Q5_0,
    Q2_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq2Xxs,
    Iq2Xs,
    Iq3Xxs,
    Iq1S,
    Iq4Nl,
    Iq3S,
    Iq2S,
    Iq4Xs,
    Iq1M,
}

impl BlockKind {
    /// Elements of one block (32, 64 or 256).
    #[must_use]
    pub const fn values(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 | Self::Iq4Nl => 32,
            Self::Q2_0 => 64,
            _ => 256,
        }
    }

    /// Bytes of one block (format specification, section 1).
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl | Self::Q2_0 => 18,
            Self::Q5_0 => 22,
            Self::Q2K => 84,
            Self::Q3K | Self::Iq3S => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq3Xxs => 98,
            Self::Iq1S => 50,
            Self::Iq2S => 82,
            Self::Iq4Xs => 136,
            Self::Iq1M => 56,
        }
    }

    /// ggml's permanent type number.
    #[must_use]
    pub const fn ggml_type(self) -> u32 {
        match self {
            Self::Q4_0 => 2,
            Self::Q5_0 => 6,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq2Xxs => 16,
            Self::Iq2Xs => 17,
            Self::Iq3Xxs => 18,
            Self::Iq1S => 19,
            Self::Iq4Nl => 20,
            Self::Iq3S => 21,
            Self::Iq2S => 22,
            Self::Iq4Xs => 23,
            Self::Iq1M => 29,
            Self::Q2_0 => 42,
        }
    }
}
