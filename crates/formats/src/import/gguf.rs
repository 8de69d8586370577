//! Rows of ggml blocks: byte for byte to the `gguf_*` formats, re-arranged into planes for the grouped formats.

use super::{check_scale, group_fault, need, refused, ternary};
use crate::encoder::{RowFault, RowPlanes, RowSlices};
use crate::error::FormatError;
use crate::layout::encoded_size;
use crate::memory::zeroed;
use crate::registry::FormatId;
use crate::scheme::BlockKind;
use crate::shape::{buffer_len, overflow};

/// The pairs of target format and ggml type that are importable as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Copy(BlockKind),
    Q2,
    Q8,
    Pq2,
    Ptq1,
}

/// ggml type of `PQ2_0` blocks (ternary, two bits a value).
pub const GGML_PQ2_0: u32 = 142;
/// ggml type of `PTQ1_0` blocks (ternary, base 3).
pub const GGML_PTQ1_0: u32 = 143;

impl Kind {
    fn of(format: FormatId, ggml_type: u32) -> Option<Self> {
        match (format, ggml_type) {
            (FormatId::Q2G64Fp16, 42) => Some(Self::Q2),
            (FormatId::Q8G32Fp16, 8) => Some(Self::Q8),
            (FormatId::T2G128Fp16, GGML_PQ2_0) => Some(Self::Pq2),
            (FormatId::T2G128Fp16, GGML_PTQ1_0) => Some(Self::Ptq1),
            _ => match format.scheme() {
                crate::Scheme::Gguf(kind) if kind.ggml_type() == ggml_type => Some(Self::Copy(kind)),
                _ => None,
            },
        }
    }

    /// Values and bytes of one source block.
    const fn block(self) -> (usize, usize) {
        match self {
            Self::Copy(kind) => (kind.values(), kind.bytes()),
            Self::Q2 => (64, 18),
            Self::Q8 => (32, 34),
            Self::Pq2 => (128, ternary::PQ2_BYTES),
            Self::Ptq1 => (128, ternary::PTQ1_BYTES),
        }
    }
}

/// Import of rows of `k` elements from blocks of one ggml type; checked once, then used for any number of rows.
#[derive(Clone, Copy, Debug)]
pub struct BlockImport {
    format: FormatId,
    kind: Kind,
    k: usize,
    row_bytes: usize,
}

impl BlockImport {
    /// Checks that blocks of `ggml_type` are importable as `format` in rows of `k` elements.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another pair, [`FormatError::Shape`] if `k` is not a multiple of the block.
    pub fn new(format: FormatId, ggml_type: u32, k: usize) -> Result<Self, FormatError> {
        let kind = Kind::of(format, ggml_type).ok_or_else(|| FormatError::Unsupported {
            format: format.name(),
            what: format!("blocks of ggml type {ggml_type} are not importable as this format"),
        })?;
        let (values, bytes) = kind.block();
        let shape = [1, k as u64];
        encoded_size(format, &shape, 1)?;
        if !k.is_multiple_of(values) {
            return Err(crate::shape::shape_error(
                format,
                &shape,
                format!("row length {k} is not a multiple of {values}"),
            ));
        }
        let row_bytes = (k / values)
            .checked_mul(bytes)
            .ok_or_else(|| overflow(format, &shape, "the address space of this machine"))?;
        Ok(Self { format, kind, k, row_bytes })
    }

    /// Target format.
    #[must_use]
    pub fn format(&self) -> FormatId {
        self.format
    }

    /// Source bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Imports consecutive rows; `row0` is the tensor's row that `blocks` starts at and serves messages only.
    ///
    /// # Errors
    /// [`FormatError::BufferSize`] if source or output do not fit, [`FormatError::Refused`] with the first row and
    /// group whose words the target does not admit; the output then holds unspecified words.
    pub fn import_rows(&self, blocks: &[u8], row0: u64, out: &mut RowPlanes<'_>) -> Result<(), FormatError> {
        out.check(self.format, self.k)?;
        need("the source blocks", "bytes", out.rows().checked_mul(self.row_bytes), blocks.len())?;
        for (r, row) in blocks.chunks_exact(self.row_bytes).enumerate() {
            self.import_row(row, out.row(r)).map_err(|f| refused(self.format, row0 + r as u64, &f))?;
        }
        Ok(())
    }

    /// Imports one row.
    ///
    /// # Errors
    /// The first group whose words the target does not admit.
    ///
    /// # Panics
    /// If `blocks` or `out` have other lengths than rows of this import.
    pub fn import_row(&self, blocks: &[u8], out: RowSlices<'_>) -> Result<(), RowFault> {
        assert_eq!(blocks.len(), self.row_bytes);
        let [base, _, scales] = out.planes;
        let scales = scales.as_chunks_mut::<2>().0;
        match self.kind {
            Kind::Copy(_) => {
                base.copy_from_slice(blocks);
                Ok(())
            }
            Kind::Q2 => q2(blocks, base, scales),
            Kind::Q8 => q8(blocks, base, scales),
            Kind::Pq2 => ternary::pq2(blocks, base, scales),
            Kind::Ptq1 => ternary::ptq1(blocks, base, scales),
        }
    }
}

/// `Q2_0` blocks (binary16 scale, 16 code bytes) to the planes of `q2_g64_fp16`: same quartets, same offset code.
fn q2(blocks: &[u8], base: &mut [u8], scales: &mut [[u8; 2]]) -> Result<(), RowFault> {
    let blocks = blocks.as_chunks::<18>().0;
    let base = base.as_chunks_mut::<16>().0;
    for (g, ((block, codes), scale)) in blocks.iter().zip(base.iter_mut()).zip(&mut *scales).enumerate() {
        *scale = [block[0], block[1]];
        let word = u16::from_le_bytes(*scale);
        if word & 0x7c00 == 0x7c00 {
            return Err(group_fault(g, format!("the scale word {word:#06x} is not finite")));
        }
        codes.copy_from_slice(&block[2..]);
    }
    // Padding lanes hold code 0, the offset word 1.
    base[blocks.len()..].fill([0x55; 16]);
    scales[blocks.len()..].fill([0; 2]);
    Ok(())
}

/// `Q8_0` blocks (binary16 scale, 32 codes) to the planes of `q8_g32_fp16`.
fn q8(blocks: &[u8], base: &mut [u8], scales: &mut [[u8; 2]]) -> Result<(), RowFault> {
    let blocks = blocks.as_chunks::<34>().0;
    let base = base.as_chunks_mut::<32>().0;
    for (g, ((block, codes), scale)) in blocks.iter().zip(base.iter_mut()).zip(&mut *scales).enumerate() {
        *scale = [block[0], block[1]];
        codes.copy_from_slice(&block[2..]);
        check_scale(g, u16::from_le_bytes(*scale), codes.iter().all(|&c| c == 0))?;
        if let Some(lane) = codes.iter().position(|&c| c == 0x80) {
            return Err(group_fault(
                g,
                format!("the code at column {} is -128; codes must lie in [-127, 127]", 32 * g + lane),
            ));
        }
    }
    base[blocks.len()..].fill([0; 32]);
    scales[blocks.len()..].fill([0; 2]);
    Ok(())
}

/// Imports a whole tensor of `n` rows of `k` elements into a fresh payload: `blocks` are all its blocks, `rows` an
/// optional gather (any order, repeats allowed; the payload then has one row for each).
///
/// # Errors
/// As [`BlockImport::new`] and [`BlockImport::import_rows`] (rows are named as in the source);
/// [`FormatError::RowRange`] for a gathered row outside the source, [`FormatError::Shape`] for no rows.
pub fn import_blocks(
    format: FormatId,
    ggml_type: u32,
    n: usize,
    k: usize,
    blocks: &[u8],
    rows: Option<&[usize]>,
) -> Result<Vec<u8>, FormatError> {
    let import = BlockImport::new(format, ggml_type, k)?;
    need("the source blocks", "bytes", n.checked_mul(import.row_bytes), blocks.len())?;
    if let Some(&bad) = rows.and_then(|rows| rows.iter().find(|&&r| r >= n)) {
        return Err(FormatError::RowRange {
            format: format.name(),
            begin: bad as u64,
            end: bad as u64 + 1,
            rows: n as u64,
        });
    }
    let count = rows.map_or(n, <[usize]>::len);
    let shape = [count as u64, k as u64];
    let mut payload = zeroed(buffer_len(format, &shape, encoded_size(format, &shape, 1)?)?)?;
    let mut planes = RowPlanes::of_payload(format, count, k, &mut payload)?;
    for i in 0..count {
        let r = rows.map_or(i, |rows| rows[i]);
        let source = &blocks[r * import.row_bytes..(r + 1) * import.row_bytes];
        import.import_row(source, planes.row(i)).map_err(|f| refused(format, r as u64, &f))?;
    }
    Ok(payload)
}
