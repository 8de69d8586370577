//! A payload with its format and shape, validated once: the common input of codecs and kernels.

use crate::error::FormatError;
use crate::layout::{BlockScale, RowSplit, encoded_size};
use crate::registry::FormatId;
use crate::scheme::{BlockKind, DirectKind, GroupedScheme, RowScale, Scheme};
use crate::shape::{ShapeText, align_up, elements, overflow, shape_error};

/// A tensor seen as rows of K elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows.
    pub rows: usize,
    /// Elements of one row.
    pub k: usize,
}

impl MatrixShape {
    /// The matrix form of a tensor: `[N, K]` as it is; a direct tensor of another rank has `shape[0]` rows of the
    /// product of the other dimensions, and a scalar is one row of one element.
    ///
    /// # Errors
    /// [`FormatError::Shape`] for a rank that the format does not allow, [`FormatError::SizeOverflow`] if the
    /// numbers exceed this machine's address space.
    pub fn of(format: FormatId, shape: &[u64]) -> Result<Self, FormatError> {
        let (rows, k) = match (format.scheme(), shape) {
            (_, &[n, k]) => (n, k),
            (Scheme::Direct(_), []) => (1, 1),
            (Scheme::Direct(_), [n, rest @ ..]) => {
                (*n, elements(rest).ok_or_else(|| overflow(format, shape, "u64"))?)
            }
            _ => return Err(shape_error(format, shape, "rank must be 2 [N, K]")),
        };
        match (usize::try_from(rows), usize::try_from(k)) {
            (Ok(rows), Ok(k)) => Ok(Self { rows, k }),
            _ => Err(overflow(format, shape, "the address space of this machine")),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Geometry {
    Direct { kind: DirectKind, row_bytes: usize },
    Grouped { scheme: GroupedScheme, plan: RowSplit },
    Nvfp4 { plan: BlockScale, rows_per_divisor: usize },
    RowScale { scale_at: usize },
    RowInterleaved { row_bytes: usize },
    Blocks { kind: BlockKind, row_bytes: usize },
}

/// The bytes of one row, plane by plane. All multi-byte words are little-endian.
#[derive(Clone, Copy, Debug)]
pub enum RowParts<'a> {
    /// Direct words.
    Direct {
        /// The word type.
        kind: DirectKind,
        /// `K * word_bytes` bytes.
        bytes: &'a [u8],
    },
    /// Grouped codes and scales, padding groups included.
    Grouped {
        /// The format's parameters.
        scheme: GroupedScheme,
        /// `groups * base_bytes` bytes.
        base: &'a [u8],
        /// `groups * high_bytes` bytes.
        high: &'a [u8],
        /// `groups` binary16 words, 2 bytes each.
        scales: &'a [u8],
    },
    /// `nvfp4` codes and scales.
    Nvfp4 {
        /// `K / 2` bytes, low nibble first.
        codes: &'a [u8],
        /// The row's scale words within the swizzled plane.
        scales: Nvfp4Scales<'a>,
        /// The divisor word of the row's source matrix (binary32 bits).
        divisor: u32,
    },
    /// FP8 codes and the row's multiplier.
    RowScaled {
        /// The multiplier's type.
        scale_kind: RowScale,
        /// `K` E4M3FN words.
        codes: &'a [u8],
        /// The multiplier word.
        scale: u16,
    },
    /// ggml blocks.
    Blocks {
        /// The block type.
        kind: BlockKind,
        /// `K / values * bytes` bytes.
        blocks: &'a [u8],
    },
}

/// The `K / 16` scale words of one `nvfp4` row: quads of four consecutive groups, 512 bytes apart in the plane.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Scales<'a> {
    /// From the row's first quad to the end of the plane.
    plane: &'a [u8],
    groups: usize,
}

impl<'a> Nvfp4Scales<'a> {
    /// Bytes between one quad of the row and the next.
    pub const QUAD_STRIDE: usize = 512;

    /// Number of groups of the row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups
    }

    /// Whether the row has no groups (never, for a view).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups == 0
    }

    /// The words from group `g` on (the first `g` left out); `g` must be a multiple of 4, a whole number of quads.
    ///
    /// # Panics
    /// If `g` is not a multiple of 4 below [`Self::len`].
    #[must_use]
    #[inline]
    pub fn skip_groups(&self, g: usize) -> Self {
        assert!(g < self.groups && g.is_multiple_of(4), "group {g} of {}", self.groups);
        Self { plane: &self.plane[g / 4 * Self::QUAD_STRIDE..], groups: self.groups - g }
    }

    /// E4M3FN word of group `g`.
    ///
    /// # Panics
    /// If `g` is not below [`Self::len`].
    #[must_use]
    #[inline]
    pub fn word(&self, g: usize) -> u8 {
        assert!(g < self.groups, "group {g} of {}", self.groups);
        self.plane[g / 4 * Self::QUAD_STRIDE + g % 4]
    }

    /// The scale plane from the row's first word on: group `g` is byte `g / 4 * 512 + g % 4`.
    #[must_use]
    pub fn plane(&self) -> &'a [u8] {
        self.plane
    }
}

/// A borrowed tensor: format, matrix shape and payload, checked to fit each other exactly.
///
/// A view covers all rows or a run of consecutive rows of its payload; either way the payload is the whole tensor's,
/// and nothing is copied. Kernels may rely on every accessor staying inside the payload.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    format: FormatId,
    payload: &'a [u8],
    shape: MatrixShape,
    begin: usize,
    rows: usize,
    divisors: usize,
    geometry: Geometry,
}

impl<'a> TensorView<'a> {
    /// Checks that `payload` is exactly the encoded tensor of `format` and `shape` (elements per dimension) with
    /// `divisors` divisors (1 unless `nvfp4`). Values are not looked at: see [`TensorView::violations`].
    ///
    /// # Errors
    /// What [`encoded_size`] refuses, and [`FormatError::PayloadSize`].
    pub fn new(
        format: FormatId,
        shape: &[u64],
        divisors: u64,
        payload: &'a [u8],
    ) -> Result<Self, FormatError> {
        let expected = encoded_size(format, shape, divisors)?;
        if expected != payload.len() as u64 {
            return Err(FormatError::PayloadSize {
                format: format.name(),
                shape: ShapeText::of(shape),
                expected,
                actual: payload.len() as u64,
            });
        }
        // From here on every byte offset is below payload.len(), so the casts below cannot truncate.
        let matrix = MatrixShape::of(format, shape)?;
        let (n, k) = (matrix.rows as u64, matrix.k as u64);
        let planned = || overflow(format, shape, "u64");
        let geometry = match format.scheme() {
            Scheme::Direct(kind) => Geometry::Direct { kind, row_bytes: matrix.k * kind.word_bytes() },
            Scheme::Grouped(scheme) => {
                Geometry::Grouped { scheme, plan: RowSplit::plan(&scheme, n, k).ok_or_else(planned)? }
            }
            Scheme::Nvfp4 => Geometry::Nvfp4 {
                plan: BlockScale::plan(n, k, divisors).ok_or_else(planned)?,
                rows_per_divisor: matrix.rows / divisors as usize,
            },
            Scheme::RowScaled(RowScale::Bf16) => {
                Geometry::RowScale { scale_at: align_up(n * k, 256).ok_or_else(planned)? as usize }
            }
            Scheme::RowScaled(RowScale::Fp16) => Geometry::RowInterleaved { row_bytes: matrix.k + 2 },
            Scheme::Gguf(kind) => {
                Geometry::Blocks { kind, row_bytes: matrix.k / kind.values() * kind.bytes() }
            }
        };
        Ok(Self {
            format,
            payload,
            shape: matrix,
            begin: 0,
            rows: matrix.rows,
            divisors: divisors as usize,
            geometry,
        })
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> FormatId {
        self.format
    }

    /// Rows of this view.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of one row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// Elements of this view.
    #[must_use]
    pub fn elements(&self) -> usize {
        // No overflow: every format stores at least 1.5 bits an element and the payload is in memory; direct words
        // and codes are counted in `encoded_size`.
        self.rows * self.shape.k
    }

    /// First row of the view within its payload.
    #[must_use]
    pub fn first_row(&self) -> usize {
        self.begin
    }

    /// The whole payload that the view looks into.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Matrix shape of the whole payload.
    #[must_use]
    pub fn parent_shape(&self) -> MatrixShape {
        self.shape
    }

    /// Divisor words of the whole payload (1 unless `nvfp4`).
    #[must_use]
    pub fn divisors(&self) -> usize {
        self.divisors
    }

    /// A view of the rows `begin..end` of this view, without copying. Empty ranges are allowed.
    ///
    /// # Errors
    /// [`FormatError::RowRange`].
    pub fn row_range(&self, begin: usize, end: usize) -> Result<Self, FormatError> {
        if begin > end || end > self.rows {
            return Err(FormatError::RowRange {
                format: self.format.name(),
                begin: begin as u64,
                end: end as u64,
                rows: self.rows as u64,
            });
        }
        Ok(Self { begin: self.begin + begin, rows: end - begin, ..*self })
    }

    /// The bytes of row `r` of this view, plane by plane.
    ///
    /// # Panics
    /// If `r` is not below [`Self::rows`].
    #[must_use]
    #[inline]
    pub fn row(&self, r: usize) -> RowParts<'a> {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        let r = self.begin + r;
        let p = self.payload;
        match &self.geometry {
            Geometry::Direct { kind, row_bytes } => {
                RowParts::Direct { kind: *kind, bytes: &p[r * row_bytes..(r + 1) * row_bytes] }
            }
            Geometry::Grouped { scheme, plan } => {
                let (b, h, s) = (plan.base_row as usize, plan.high_row as usize, plan.scale_row as usize);
                let (high_at, scale_at) = (plan.high_at as usize, plan.scale_at as usize);
                RowParts::Grouped {
                    scheme: *scheme,
                    base: &p[r * b..(r + 1) * b],
                    high: &p[high_at + r * h..high_at + (r + 1) * h],
                    scales: &p[scale_at + r * s..scale_at + (r + 1) * s],
                }
            }
            Geometry::Nvfp4 { plan, rows_per_divisor } => {
                let half = self.shape.k / 2;
                let first =
                    plan.scale_at as usize + BlockScale::swizzle(r as u64, 0, self.shape.k as u64) as usize;
                RowParts::Nvfp4 {
                    codes: &p[r * half..(r + 1) * half],
                    scales: Nvfp4Scales {
                        plane: &p[first..plan.divisor_at as usize],
                        groups: self.shape.k / 16,
                    },
                    divisor: self.divisor_word(r / rows_per_divisor),
                }
            }
            Geometry::RowScale { scale_at } => {
                let k = self.shape.k;
                let s = scale_at + 2 * r;
                RowParts::RowScaled {
                    scale_kind: RowScale::Bf16,
                    codes: &p[r * k..(r + 1) * k],
                    scale: u16::from_le_bytes([p[s], p[s + 1]]),
                }
            }
            Geometry::RowInterleaved { row_bytes } => {
                let record = &p[r * row_bytes..(r + 1) * row_bytes];
                let k = self.shape.k;
                RowParts::RowScaled {
                    scale_kind: RowScale::Fp16,
                    codes: &record[..k],
                    scale: u16::from_le_bytes([record[k], record[k + 1]]),
                }
            }
            Geometry::Blocks { kind, row_bytes } => {
                RowParts::Blocks { kind: *kind, blocks: &p[r * row_bytes..(r + 1) * row_bytes] }
            }
        }
    }

    /// Divisor word `index` of an `nvfp4` payload, as binary32 bits; the word of 1.0 for other formats.
    ///
    /// # Panics
    /// If `index` is not below [`Self::divisors`].
    #[must_use]
    pub fn divisor_word(&self, index: usize) -> u32 {
        assert!(index < self.divisors, "divisor {index} of {}", self.divisors);
        match &self.geometry {
            Geometry::Nvfp4 { plan, .. } => {
                let at = plan.divisor_at as usize + 4 * index;
                let p = self.payload;
                u32::from_le_bytes([p[at], p[at + 1], p[at + 2], p[at + 3]])
            }
            _ => 1.0f32.to_bits(),
        }
    }

    /// Rows that share one divisor; all rows of the payload for other formats than `nvfp4`.
    #[must_use]
    pub fn rows_per_divisor(&self) -> usize {
        match &self.geometry {
            Geometry::Nvfp4 { rows_per_divisor, .. } => *rows_per_divisor,
            _ => self.shape.rows,
        }
    }

    /// The byte ranges of the payload that hold exactly these rows, one per plane: one range for direct, row-record
    /// and ggml layouts, two or three for the others. The scale plane of `nvfp4` is given for whole 128-row tiles
    /// only.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for an `nvfp4` view that does not consist of whole 128-row tiles.
    #[expect(clippy::single_range_in_vec_init, reason = "a list of byte ranges that often has one entry")]
    pub fn spans(&self) -> Result<Vec<std::ops::Range<usize>>, FormatError> {
        let (a, b) = (self.begin, self.begin + self.rows);
        Ok(match &self.geometry {
            Geometry::Direct { row_bytes, .. }
            | Geometry::RowInterleaved { row_bytes }
            | Geometry::Blocks { row_bytes, .. } => vec![a * row_bytes..b * row_bytes],
            Geometry::Grouped { plan, .. } => {
                let mut spans = vec![a * plan.base_row as usize..b * plan.base_row as usize];
                if plan.high_row > 0 {
                    let (at, row) = (plan.high_at as usize, plan.high_row as usize);
                    spans.push(at + a * row..at + b * row);
                }
                let (at, row) = (plan.scale_at as usize, plan.scale_row as usize);
                spans.push(at + a * row..at + b * row);
                spans
            }
            Geometry::RowScale { scale_at } => {
                vec![a * self.shape.k..b * self.shape.k, scale_at + 2 * a..scale_at + 2 * b]
            }
            Geometry::Nvfp4 { plan, .. } => {
                if !a.is_multiple_of(128) || !b.is_multiple_of(128) {
                    return Err(FormatError::Unsupported {
                        format: self.format.name(),
                        what: format!("rows {a}..{b} are not whole tiles of 128 rows"),
                    });
                }
                let (half, groups) = (self.shape.k / 2, self.shape.k / 16);
                let at = plan.scale_at as usize;
                vec![a * half..b * half, at + a * groups..at + b * groups]
            }
        })
    }
}
