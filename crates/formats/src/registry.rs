//! The closed registry: one enum, one table, checked at compile time.

use crate::error::FormatError;
use crate::layout::LayoutId;
use crate::scheme::{BlockKind, DirectKind, GroupCode, GroupedScheme, RowScale, Scheme};

/// A registered format. The numeric value is the position in [`FORMATS`], the order of the format specification;
/// it is not stored in any file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the variants are the canonical names of the FORMATS table")]
pub enum FormatId {
    Bf16,
    Fp32,
    Int32,
    Q2G64Fp16,
    Q4G64Fp16,
    Q5G64Fp16,
    Q6G64Fp16,
    Q8G32Fp16,
    T2G128Fp16,
    Nvfp4,
    Fp8E4m3fnRowBf16,
    Fp8E4m3fnRowFp16,
    GgufQ8_0,
    GgufQ4_0,
    GgufQ5_0,
    GgufQ2_0,
    GgufQ2K,
    GgufQ3K,
    GgufQ4K,
    GgufQ5K,
    GgufQ6K,
    GgufIq2Xxs,
    GgufIq2Xs,
    GgufIq3Xxs,
    GgufIq1S,
    GgufIq4Nl,
    GgufIq3S,
    GgufIq2S,
    GgufIq4Xs,
    GgufIq1M,
}

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatSpec {
    /// The format.
    pub id: FormatId,
    /// Canonical name: an identifier, looked up whole and never parsed.
    pub name: &'static str,
    /// Category and its parameters.
    pub scheme: Scheme,
    /// The one layout registered for the format.
    pub layout: LayoutId,
    /// Logical bits per weight of the format specification's tables, in 1/10,000 bit (exact for every format).
    pub bits_e4: u32,
}

const fn direct(id: FormatId, name: &'static str, kind: DirectKind) -> FormatSpec {
    let bits_e4 = kind.word_bytes() as u32 * 80_000;
    FormatSpec { id, name, scheme: Scheme::Direct(kind), layout: LayoutId::ContiguousLeV1, bits_e4 }
}

const fn grouped(
    id: FormatId,
    name: &'static str,
    bits: u8,
    group: usize,
    code_min: i8,
    code_max: i8,
    code: GroupCode,
    bits_e4: u32,
) -> FormatSpec {
    // 2-bit codes are stored four a byte, 8-bit codes one a byte; 4, 5 and 6 bits split into a nibble plane and
    // a plane of the bits above it.
    let base_bits = if bits < 4 {
        2
    } else if bits == 8 {
        8
    } else {
        4
    };
    let base_bytes = group * base_bits / 8;
    let high_bytes = group * (bits as usize - base_bits) / 8;
    let scheme = GroupedScheme { bits, group, code_min, code_max, code, base_bytes, high_bytes };
    FormatSpec { id, name, scheme: Scheme::Grouped(scheme), layout: LayoutId::RowSplitK128V1, bits_e4 }
}

const fn gguf(id: FormatId, name: &'static str, kind: BlockKind) -> FormatSpec {
    let bits_e4 = (kind.bytes() * 80_000 / kind.values()) as u32;
    FormatSpec { id, name, scheme: Scheme::Gguf(kind), layout: LayoutId::GgufBlocksV1, bits_e4 }
}

use FormatId as F;
use GroupCode::{OffsetByOne, TwosComplement};

/// The 30 registered formats, in the order of the format specification's tables.
pub static FORMATS: [FormatSpec; 30] = TABLE;

const TABLE: [FormatSpec; 30] = [
    direct(F::Bf16, "bf16", DirectKind::Bf16),
    direct(F::Fp32, "fp32", DirectKind::Fp32),
    direct(F::Int32, "int32", DirectKind::Int32),
    grouped(F::Q2G64Fp16, "q2_g64_fp16", 2, 64, -1, 2, OffsetByOne, 22_500),
    grouped(F::Q4G64Fp16, "q4_g64_fp16", 4, 64, -8, 7, TwosComplement, 42_500),
    grouped(F::Q5G64Fp16, "q5_g64_fp16", 5, 64, -16, 15, TwosComplement, 52_500),
    grouped(F::Q6G64Fp16, "q6_g64_fp16", 6, 64, -32, 31, TwosComplement, 62_500),
    grouped(F::Q8G32Fp16, "q8_g32_fp16", 8, 32, -127, 127, TwosComplement, 85_000),
    grouped(F::T2G128Fp16, "t2_g128_fp16", 2, 128, -1, 1, TwosComplement, 21_250),
    FormatSpec {
        id: F::Nvfp4,
        name: "nvfp4",
        scheme: Scheme::Nvfp4,
        layout: LayoutId::BlockScaleK16M128x4V1,
        bits_e4: 45_000,
    },
    FormatSpec {
        id: F::Fp8E4m3fnRowBf16,
        name: "fp8_e4m3fn_row_bf16",
        scheme: Scheme::RowScaled(RowScale::Bf16),
        layout: LayoutId::RowScaleV1,
        bits_e4: 80_000,
    },
    FormatSpec {
        id: F::Fp8E4m3fnRowFp16,
        name: "fp8_e4m3fn_row_fp16",
        scheme: Scheme::RowScaled(RowScale::Fp16),
        layout: LayoutId::RowInterleavedV1,
        bits_e4: 80_000,
    },
    gguf(F::GgufQ8_0, "gguf_q8_0", BlockKind::Q8_0),
    gguf(F::GgufQ4_0, "gguf_q4_0", BlockKind::Q4_0),
    gguf(F::GgufQ5_0, "gguf_q5_0", BlockKind::Q5_0),
    gguf(F::GgufQ2_0, "gguf_q2_0", BlockKind::Q2_0),
    gguf(F::GgufQ2K, "gguf_q2_k", BlockKind::Q2K),
    gguf(F::GgufQ3K, "gguf_q3_k", BlockKind::Q3K),
    gguf(F::GgufQ4K, "gguf_q4_k", BlockKind::Q4K),
    gguf(F::GgufQ5K, "gguf_q5_k", BlockKind::Q5K),
    gguf(F::GgufQ6K, "gguf_q6_k", BlockKind::Q6K),
    gguf(F::GgufIq2Xxs, "gguf_iq2_xxs", BlockKind::Iq2Xxs),
    gguf(F::GgufIq2Xs, "gguf_iq2_xs", BlockKind::Iq2Xs),
    gguf(F::GgufIq3Xxs, "gguf_iq3_xxs", BlockKind::Iq3Xxs),
    gguf(F::GgufIq1S, "gguf_iq1_s", BlockKind::Iq1S),
    gguf(F::GgufIq4Nl, "gguf_iq4_nl", BlockKind::Iq4Nl),
    gguf(F::GgufIq3S, "gguf_iq3_s", BlockKind::Iq3S),
    gguf(F::GgufIq2S, "gguf_iq2_s", BlockKind::Iq2S),
    gguf(F::GgufIq4Xs, "gguf_iq4_xs", BlockKind::Iq4Xs),
    gguf(F::GgufIq1M, "gguf_iq1_m", BlockKind::Iq1M),
];

// Compile-time checks of the table: position, unique names and ggml types, code widths against intervals, logical
// bits against the parameters they follow from.
const _: () = {
    let mut i = 0;
    while i < TABLE.len() {
        let f = &TABLE[i];
        assert!(f.id as usize == i, "FORMATS is not in the order of FormatId");
        let mut j = 0;
        while j < i {
            assert!(!same(f.name, TABLE[j].name), "two formats share a name");
            if let (Scheme::Gguf(a), Scheme::Gguf(b)) = (f.scheme, TABLE[j].scheme) {
                assert!(a.ggml_type() != b.ggml_type(), "two formats share a ggml type");
            }
            j += 1;
        }
        if let Scheme::Grouped(g) = f.scheme {
            assert!(128 % g.group == 0, "a group must divide the 128-element row padding");
            assert!((g.base_bytes + g.high_bytes) * 8 == g.bits as usize * g.group);
            assert!(f.bits_e4 as usize == g.bits as usize * 10_000 + 160_000 / g.group);
            assert!((g.code_max as i32 - g.code_min as i32) < (1 << g.bits));
        }
        if let Scheme::Gguf(k) = f.scheme {
            assert!(f.bits_e4 as usize * k.values() == k.bytes() * 80_000, "bits per weight is not exact");
        }
        i += 1;
    }
};

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

impl FormatId {
    /// All formats in the order of the format specification.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + DoubleEndedIterator {
        FORMATS.iter().map(|f| f.id)
    }

    /// The format's row of the registry.
    #[must_use]
    pub fn spec(self) -> &'static FormatSpec {
        &FORMATS[self as usize]
    }

    /// Canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Category and parameters.
    #[must_use]
    pub fn scheme(self) -> Scheme {
        self.spec().scheme
    }

    /// The layout registered for the format.
    #[must_use]
    pub fn layout(self) -> LayoutId {
        self.spec().layout
    }

    /// Logical bits per weight as the format specification's tables state them: code bits plus the scales of full
    /// groups; without the row scale of row-scaled formats and the divisors of `nvfp4`.
    #[must_use]
    pub fn bits_per_weight(self) -> f64 {
        f64::from(self.spec().bits_e4) / 10_000.0
    }

    /// ggml's type number of a `gguf_*` format.
    #[must_use]
    pub fn ggml_type(self) -> Option<u32> {
        match self.scheme() {
            Scheme::Gguf(kind) => Some(kind.ggml_type()),
            _ => None,
        }
    }

    /// Looks a format up by its exact canonical name.
    ///
    /// # Errors
    /// [`FormatError::UnknownFormat`] with the nearest registered names.
    pub fn from_name(name: &str) -> Result<Self, FormatError> {
        FORMATS.iter().find(|f| f.name == name).map(|f| f.id).ok_or_else(|| FormatError::UnknownFormat {
            name: name.chars().take(80).collect(),
            near: near_names(name, FORMATS.iter().map(|f| f.name)),
        })
    }

    /// Looks a `gguf_*` format up by ggml's type number; `None` for types outside the registry.
    #[must_use]
    pub fn from_ggml_type(ggml_type: u32) -> Option<Self> {
        FORMATS.iter().find(|f| f.id.ggml_type() == Some(ggml_type)).map(|f| f.id)
    }
}

impl std::fmt::Display for FormatId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for FormatId {
    type Err = FormatError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::from_name(s)
    }
}

/// Up to three names nearest to `name`: those that contain it or lie within a third of its length in edit distance.
pub(crate) fn near_names(name: &str, known: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let wanted: String =
        name.chars().take(80).collect::<String>().to_lowercase().replace(['-', '.', ' '], "_");
    let mut scored: Vec<(usize, &'static str)> = known
        .filter_map(|k| {
            let d = edit_distance(&wanted, k);
            let contains = wanted.len() >= 2 && k.contains(&wanted);
            let limit = (k.len().max(wanted.len()) / 3).max(2);
            (contains || d <= limit).then_some((if contains { d.min(1) } else { d }, k))
        })
        .collect();
    scored.sort_by_key(|&(d, _)| d);
    scored.into_iter().take(3).map(|(_, k)| k).collect()
}

/// Levenshtein distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(ca != cb)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}
