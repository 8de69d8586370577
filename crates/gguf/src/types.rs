//! ggml's tensor type numbers: the registered ones follow the format registry, the others are only sized and listed.

use std::borrow::Cow;
use std::fmt;

use ninfer_formats::{BlockKind, FormatId};

/// A ggml tensor type number as it stands in a file; it may be one that this crate does not know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GgmlType(pub u32);

/// Elements and bytes of one block; plain numbers are blocks of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Elements of one block.
    pub values: u64,
    /// Bytes of one block.
    pub bytes: u64,
}

/// What is known of one type number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeSpec {
    /// ggml's permanent number.
    pub id: u32,
    /// Name in capitals, as GGUF listings print it.
    pub name: &'static str,
    /// Block size; `None` for retired numbers, whose blocks are no longer defined.
    pub block: Option<BlockSize>,
    /// The registered format that holds such tensors byte for byte.
    pub format: Option<FormatId>,
}

const fn sized(id: u32, name: &'static str, values: u64, bytes: u64) -> TypeSpec {
    TypeSpec { id, name, block: Some(BlockSize { values, bytes }), format: None }
}

const fn direct(id: u32, name: &'static str, bytes: u64, format: FormatId) -> TypeSpec {
    TypeSpec { id, name, block: Some(BlockSize { values: 1, bytes }), format: Some(format) }
}

const fn block(name: &'static str, kind: BlockKind, format: FormatId) -> TypeSpec {
    let size = BlockSize { values: kind.values() as u64, bytes: kind.bytes() as u64 };
    TypeSpec { id: kind.ggml_type(), name, block: Some(size), format: Some(format) }
}

const fn retired(id: u32, name: &'static str) -> TypeSpec {
    TypeSpec { id, name, block: None, format: None }
}

use BlockKind as B;
use FormatId as F;

/// All known type numbers in increasing order. Sizes of registered types come from the registry, the others from the
/// format specification's GGUF page; 142 and 143 are the ternary types of its import page. Numbers that ggml retired
/// keep their rows, so that a file which has them can say so.
pub static TYPES: [TypeSpec; 45] = [
    direct(0, "F32", 4, F::Fp32),
    sized(1, "F16", 1, 2),
    block("Q4_0", B::Q4_0, F::GgufQ4_0),
    sized(3, "Q4_1", 32, 20),
    retired(4, "Q4_2"),
    retired(5, "Q4_3"),
    block("Q5_0", B::Q5_0, F::GgufQ5_0),
    sized(7, "Q5_1", 32, 24),
    block("Q8_0", B::Q8_0, F::GgufQ8_0),
    sized(9, "Q8_1", 32, 36),
    block("Q2_K", B::Q2K, F::GgufQ2K),
    block("Q3_K", B::Q3K, F::GgufQ3K),
    block("Q4_K", B::Q4K, F::GgufQ4K),
    block("Q5_K", B::Q5K, F::GgufQ5K),
    block("Q6_K", B::Q6K, F::GgufQ6K),
    sized(15, "Q8_K", 256, 292),
    block("IQ2_XXS", B::Iq2Xxs, F::GgufIq2Xxs),
    block("IQ2_XS", B::Iq2Xs, F::GgufIq2Xs),
    block("IQ3_XXS", B::Iq3Xxs, F::GgufIq3Xxs),
    block("IQ1_S", B::Iq1S, F::GgufIq1S),
    block("IQ4_NL", B::Iq4Nl, F::GgufIq4Nl),
    block("IQ3_S", B::Iq3S, F::GgufIq3S),
    block("IQ2_S", B::Iq2S, F::GgufIq2S),
    block("IQ4_XS", B::Iq4Xs, F::GgufIq4Xs),
    sized(24, "I8", 1, 1),
    sized(25, "I16", 1, 2),
    sized(26, "I32", 1, 4),
    sized(27, "I64", 1, 8),
    sized(28, "F64", 1, 8),
    block("IQ1_M", B::Iq1M, F::GgufIq1M),
    direct(30, "BF16", 2, F::Bf16),
    retired(31, "Q4_0_4_4"),
    retired(32, "Q4_0_4_8"),
    retired(33, "Q4_0_8_8"),
    sized(34, "TQ1_0", 256, 54),
    sized(35, "TQ2_0", 256, 66),
    retired(36, "IQ4_NL_4_4"),
    retired(37, "IQ4_NL_4_8"),
    retired(38, "IQ4_NL_8_8"),
    sized(39, "MXFP4", 32, 17),
    sized(40, "NVFP4", 64, 36),
    sized(41, "Q1_0", 128, 18),
    block("Q2_0", B::Q2_0, F::GgufQ2_0),
    sized(142, "PQ2_0", 128, 34),
    sized(143, "PTQ1_0", 128, 28),
];

const _: () = {
    // Look-ups search by number.
    let mut i = 1;
    while i < TYPES.len() {
        assert!(TYPES[i - 1].id < TYPES[i].id, "TYPES is not in the order of the numbers");
        i += 1;
    }
};

impl GgmlType {
    /// IEEE-754 binary32.
    pub const F32: Self = Self(0);
    /// IEEE-754 binary16.
    pub const F16: Self = Self(1);
    /// Signed 8-bit integers.
    pub const I8: Self = Self(24);
    /// bfloat16.
    pub const BF16: Self = Self(30);

    /// All known types, retired ones included, in increasing order of number.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + DoubleEndedIterator {
        TYPES.iter().map(|t| Self(t.id))
    }

    /// The type's row of [`TYPES`]; `None` for numbers this crate does not know.
    #[must_use]
    pub fn spec(self) -> Option<&'static TypeSpec> {
        TYPES.binary_search_by_key(&self.0, |t| t.id).ok().map(|i| &TYPES[i])
    }

    /// Name in capitals; `type 9999` for an unknown number.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        match self.spec() {
            Some(t) => Cow::Borrowed(t.name),
            None => Cow::Owned(format!("type {}", self.0)),
        }
    }

    /// Looks a type up by name, whatever the case of its letters.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|t| t.name.eq_ignore_ascii_case(name)).map(|t| Self(t.id))
    }

    /// Elements and bytes of one block; `None` where they are not known.
    #[must_use]
    pub fn block(self) -> Option<BlockSize> {
        self.spec().and_then(|t| t.block)
    }

    /// Whether ggml has given the number up.
    #[must_use]
    pub fn is_retired(self) -> bool {
        self.spec().is_some_and(|t| t.block.is_none())
    }

    /// The registered format that holds such tensors byte for byte: the `gguf_*` formats, `bf16` and `fp32`.
    #[must_use]
    pub fn format(self) -> Option<FormatId> {
        self.spec().and_then(|t| t.format)
    }

    /// The type whose tensors hold exactly the words of `format`; `None` for formats that GGUF has no type for.
    #[must_use]
    pub fn of_format(format: FormatId) -> Option<Self> {
        TYPES.iter().find(|t| t.format == Some(format)).map(|t| Self(t.id))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GgmlType({}, {})", self.0, self.name())
    }
}

impl From<u32> for GgmlType {
    fn from(id: u32) -> Self {
        Self(id)
    }
}

#[cfg(test)]
mod tests {
    use ninfer_formats::Scheme;

    use super::*;

    #[test]
    fn registered_types_follow_the_registry() {
        let mut seen = 0;
        for format in FormatId::all() {
            let Scheme::Gguf(kind) = format.scheme() else { continue };
            let t = GgmlType(kind.ggml_type());
            assert_eq!(t.format(), Some(format));
            assert_eq!(GgmlType::of_format(format), Some(t));
            assert_eq!(format!("gguf_{}", t.name().to_lowercase()), format.name());
            let size = t.block().unwrap();
            assert_eq!((size.values, size.bytes), (kind.values() as u64, kind.bytes() as u64));
            assert_eq!(FormatId::from_ggml_type(t.0), Some(format));
            seen += 1;
        }
        assert_eq!(seen, 18);
        assert_eq!(GgmlType::F32.format(), Some(FormatId::Fp32));
        assert_eq!(GgmlType::BF16.format(), Some(FormatId::Bf16));
        let with_format = TYPES.iter().filter(|t| t.format.is_some()).count();
        assert_eq!(with_format, 20);
        assert_eq!(GgmlType::of_format(FormatId::Nvfp4), None);
    }

    #[test]
    fn unregistered_types_have_the_specified_sizes() {
        let listed = [
            (1, "F16", 1, 2),
            (3, "Q4_1", 32, 20),
            (7, "Q5_1", 32, 24),
            (9, "Q8_1", 32, 36),
            (15, "Q8_K", 256, 292),
            (24, "I8", 1, 1),
            (25, "I16", 1, 2),
            (26, "I32", 1, 4),
            (27, "I64", 1, 8),
            (28, "F64", 1, 8),
            (34, "TQ1_0", 256, 54),
            (35, "TQ2_0", 256, 66),
            (39, "MXFP4", 32, 17),
            (40, "NVFP4", 64, 36),
            (41, "Q1_0", 128, 18),
            (142, "PQ2_0", 128, 34),
            (143, "PTQ1_0", 128, 28),
        ];
        for (id, name, values, bytes) in listed {
            let t = GgmlType(id);
            assert_eq!((t.name().as_ref(), t.block()), (name, Some(BlockSize { values, bytes })));
            assert_eq!(t.format(), None);
            assert_eq!(GgmlType::from_name(&name.to_lowercase()), Some(t));
        }
    }

    #[test]
    fn retired_and_unknown_numbers_have_no_size() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38] {
            assert!(GgmlType(id).is_retired(), "{id}");
            assert_eq!(GgmlType(id).block(), None);
        }
        for id in [43, 99, 141, 144, 9999, u32::MAX] {
            assert_eq!(GgmlType(id).spec(), None);
            assert!(!GgmlType(id).is_retired());
            assert_eq!(GgmlType(id).name(), format!("type {id}"));
        }
    }
}
