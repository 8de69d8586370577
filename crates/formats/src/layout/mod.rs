//! Registered storage layouts: how many bytes a payload has and where its planes begin.
//!
//! Source: storage layout specification. All sizes are computed in checked `u64` arithmetic and compared with the
//! address space only where a payload is at hand.

use crate::error::FormatError;
use crate::registry::{FormatId, near_names};
use crate::scheme::{DirectKind, GroupedScheme, Scheme};
use crate::shape::{MAX_RANK, ShapeText, align_up, elements, overflow, shape_error};

/// A registered layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LayoutId {
    /// `contiguous_le_v1`: direct words in C order.
    ContiguousLeV1,
    /// `row_split_k128_v1`: code planes and scale plane of the grouped formats, K padded to 128.
    RowSplitK128V1,
    /// `block_scale_k16_m128x4_v1`: `nvfp4` with swizzled scales.
    BlockScaleK16M128x4V1,
    /// `row_scale_v1`: FP8 codes, then BF16 row scales.
    RowScaleV1,
    /// `row_interleaved_v1`: FP8 row records that end in a binary16 scale.
    RowInterleavedV1,
    /// `gguf_blocks_v1`: rows of ggml blocks.
    GgufBlocksV1,
    /// `raw_bytes_v1`: a resource, not a tensor.
    RawBytesV1,
}

/// One row of the layout table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutSpec {
    /// The layout.
    pub id: LayoutId,
    /// Canonical name.
    pub name: &'static str,
    /// Alignment of an object's offset in a container, in bytes.
    pub alignment: u64,
    /// The shape rule in words.
    pub shape_rule: &'static str,
}

/// The seven registered layouts.
pub static LAYOUTS: [LayoutSpec; 7] = [
    LayoutSpec {
        id: LayoutId::ContiguousLeV1,
        name: "contiguous_le_v1",
        alignment: 256,
        shape_rule: "rank 0 to 16, every dimension positive",
    },
    LayoutSpec {
        id: LayoutId::RowSplitK128V1,
        name: "row_split_k128_v1",
        alignment: 256,
        shape_rule: "rank 2 [N, K], N and K positive",
    },
    LayoutSpec {
        id: LayoutId::BlockScaleK16M128x4V1,
        name: "block_scale_k16_m128x4_v1",
        alignment: 256,
        shape_rule: "rank 2 [N, K], N a positive multiple of 128, K a positive multiple of 64",
    },
    LayoutSpec {
        id: LayoutId::RowScaleV1,
        name: "row_scale_v1",
        alignment: 256,
        shape_rule: "rank 2 [N, K], N and K positive",
    },
    LayoutSpec {
        id: LayoutId::RowInterleavedV1,
        name: "row_interleaved_v1",
        alignment: 256,
        shape_rule: "rank 2 [N, K], N and K positive",
    },
    LayoutSpec {
        id: LayoutId::GgufBlocksV1,
        name: "gguf_blocks_v1",
        alignment: 256,
        shape_rule: "rank 2 [N, K], N and K positive, K a multiple of the block's values",
    },
    LayoutSpec {
        id: LayoutId::RawBytesV1,
        name: "raw_bytes_v1",
        alignment: 1,
        shape_rule: "non-empty bytes",
    },
];

const _: () = {
    // `spec` indexes the table by the enum's value.
    let mut i = 0;
    while i < LAYOUT_ORDER.len() {
        assert!(LAYOUT_ORDER[i] as usize == i);
        i += 1;
    }
};
const LAYOUT_ORDER: [LayoutId; 7] = [
    LayoutId::ContiguousLeV1,
    LayoutId::RowSplitK128V1,
    LayoutId::BlockScaleK16M128x4V1,
    LayoutId::RowScaleV1,
    LayoutId::RowInterleavedV1,
    LayoutId::GgufBlocksV1,
    LayoutId::RawBytesV1,
];

impl LayoutId {
    /// The layout's row of [`LAYOUTS`].
    #[must_use]
    pub fn spec(self) -> &'static LayoutSpec {
        &LAYOUTS[self as usize]
    }

    /// Canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Looks a layout up by its exact name.
    ///
    /// # Errors
    /// [`FormatError::UnknownLayout`] with near names.
    pub fn from_name(name: &str) -> Result<Self, FormatError> {
        LAYOUTS.iter().find(|l| l.name == name).map(|l| l.id).ok_or_else(|| FormatError::UnknownLayout {
            name: name.chars().take(80).collect(),
            near: near_names(name, LAYOUTS.iter().map(|l| l.name)),
        })
    }

    /// Checks that the layout is the one registered for `format`.
    ///
    /// # Errors
    /// [`FormatError::LayoutMismatch`].
    pub fn check(self, format: FormatId) -> Result<(), FormatError> {
        if self == format.layout() {
            return Ok(());
        }
        Err(FormatError::LayoutMismatch {
            format: format.name(),
            layout: self.name(),
            expected: format.layout().name(),
        })
    }
}

/// Planes of a `row_split_k128_v1` payload. Offsets and sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSplit {
    /// Groups of one row, padding groups included: `align_up(K, 128) / G`.
    pub groups: u64,
    /// Bytes of one row in the base plane, which starts at 0.
    pub base_row: u64,
    /// Bytes of one row in the high plane (0 where the format has none).
    pub high_row: u64,
    /// Offset of the high plane.
    pub high_at: u64,
    /// Bytes of one row in the scale plane.
    pub scale_row: u64,
    /// Offset of the scale plane.
    pub scale_at: u64,
    /// Payload bytes.
    pub bytes: u64,
}

impl RowSplit {
    /// Plans a payload of `n` rows of `k` elements; `None` if a size does not fit in `u64`.
    #[must_use]
    pub fn plan(s: &GroupedScheme, n: u64, k: u64) -> Option<Self> {
        let groups = align_up(k, 128)? / s.group as u64;
        let base_row = groups.checked_mul(s.base_bytes as u64)?;
        let high_row = groups.checked_mul(s.high_bytes as u64)?;
        let scale_row = groups.checked_mul(2)?;
        let high_at = align_up(n.checked_mul(base_row)?, 256)?;
        let scale_at = high_at.checked_add(align_up(n.checked_mul(high_row)?, 256)?)?;
        let bytes = scale_at.checked_add(n.checked_mul(scale_row)?)?;
        Some(Self { groups, base_row, high_row, high_at, scale_row, scale_at, bytes })
    }
}

/// Planes of a `block_scale_k16_m128x4_v1` payload. Offsets and sizes in bytes; the code plane starts at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockScale {
    /// Offset of the swizzled scale plane.
    pub scale_at: u64,
    /// Bytes of the scale plane.
    pub scale_bytes: u64,
    /// Offset of the divisor words.
    pub divisor_at: u64,
    /// Payload bytes.
    pub bytes: u64,
}

impl BlockScale {
    /// Plans a payload of `n` rows (a multiple of 128) of `k` elements (a multiple of 64) with `d` divisors; `None`
    /// if a size does not fit in `u64`.
    #[must_use]
    pub fn plan(n: u64, k: u64, d: u64) -> Option<Self> {
        let nk = n.checked_mul(k)?;
        let scale_at = align_up(nk / 2, 256)?;
        let scale_bytes = nk / 16;
        let divisor_at = scale_at.checked_add(scale_bytes)?;
        let bytes = divisor_at.checked_add(d.checked_mul(4)?)?;
        Some(Self { scale_at, scale_bytes, divisor_at, bytes })
    }

    /// Position of the scale word of row `n`, group `g` within the scale plane, for rows of `k` elements.
    #[must_use]
    #[inline]
    pub const fn swizzle(n: u64, g: u64, k: u64) -> u64 {
        ((n / 128) * (k / 64) + g / 4) * 512 + (n % 32) * 16 + ((n % 128) / 32) * 4 + g % 4
    }
}

/// Encoded size of a tensor in bytes; a payload has exactly this length.
///
/// `shape` counts elements; `divisors` is the number of `nvfp4` divisors and 1 for every other format.
///
/// # Errors
/// [`FormatError::Shape`], [`FormatError::Divisors`] or [`FormatError::SizeOverflow`] when the format's layout
/// cannot hold such a tensor.
pub fn encoded_size(format: FormatId, shape: &[u64], divisors: u64) -> Result<u64, FormatError> {
    if shape.len() > MAX_RANK {
        return Err(shape_error(format, shape, format!("rank {} exceeds {MAX_RANK}", shape.len())));
    }
    if !matches!(format.scheme(), Scheme::Nvfp4) && divisors != 1 {
        return Err(FormatError::Divisors {
            format: format.name(),
            shape: ShapeText::of(shape),
            divisors,
            rule: "only nvfp4 has divisors; other formats take 1",
        });
    }
    if let Some(axis) = shape.iter().position(|&d| d == 0) {
        return Err(shape_error(format, shape, format!("dimension {axis} is zero")));
    }
    let too_big = || overflow(format, shape, "u64");
    if let Scheme::Direct(kind) = format.scheme() {
        return direct_bytes(kind, shape).ok_or_else(too_big);
    }
    let &[n, k] = shape else {
        return Err(shape_error(format, shape, format!("rank must be 2 [N, K], got rank {}", shape.len())));
    };
    match format.scheme() {
        Scheme::Direct(kind) => direct_bytes(kind, shape).ok_or_else(too_big),
        Scheme::Grouped(s) => RowSplit::plan(&s, n, k).map(|p| p.bytes).ok_or_else(too_big),
        Scheme::Nvfp4 => {
            if !n.is_multiple_of(128) || !k.is_multiple_of(64) {
                let rule =
                    format!("N must be a multiple of 128 and K a multiple of 64, got N = {n}, K = {k}");
                return Err(shape_error(format, shape, rule));
            }
            check_divisors(format, shape, n, divisors)?;
            BlockScale::plan(n, k, divisors).map(|p| p.bytes).ok_or_else(too_big)
        }
        Scheme::RowScaled(crate::RowScale::Bf16) => n
            .checked_mul(k)
            .and_then(|c| align_up(c, 256))
            .and_then(|c| c.checked_add(n.checked_mul(2)?))
            .ok_or_else(too_big),
        Scheme::RowScaled(crate::RowScale::Fp16) => {
            k.checked_add(2).and_then(|r| r.checked_mul(n)).ok_or_else(too_big)
        }
        Scheme::Gguf(kind) => {
            let values = kind.values() as u64;
            if !k.is_multiple_of(values) {
                return Err(shape_error(
                    format,
                    shape,
                    format!("row length {k} is not a multiple of {values}"),
                ));
            }
            (k / values).checked_mul(kind.bytes() as u64).and_then(|r| r.checked_mul(n)).ok_or_else(too_big)
        }
    }
}

fn direct_bytes(kind: DirectKind, shape: &[u64]) -> Option<u64> {
    elements(shape)?.checked_mul(kind.word_bytes() as u64)
}

fn check_divisors(format: FormatId, shape: &[u64], n: u64, divisors: u64) -> Result<(), FormatError> {
    let rule = if divisors == 0 {
        "at least one divisor is needed"
    } else if !n.is_multiple_of(divisors) {
        "the divisor count must divide N"
    } else if divisors > 1 && !(n / divisors).is_multiple_of(128) {
        "N / divisors must be a multiple of 128 rows"
    } else {
        return Ok(());
    };
    Err(FormatError::Divisors { format: format.name(), shape: ShapeText::of(shape), divisors, rule })
}

/// Encoded size of a `raw_bytes_v1` resource: its own length, which must not be zero.
///
/// # Errors
/// [`FormatError::BufferSize`] for an empty resource.
pub fn raw_bytes_size(len: u64) -> Result<u64, FormatError> {
    if len == 0 {
        return Err(FormatError::BufferSize {
            what: "a raw_bytes_v1 resource",
            unit: "bytes or more",
            expected: 1,
            actual: 0,
        });
    }
    Ok(len)
}
