//! Tensor infos: names, dimensions, types and byte ranges, with the checks that need the whole list.

use std::borrow::Cow;
use std::sync::Arc;

use ninfer_formats::FormatId;

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind as K};
use crate::limits::MAX_DIMS;
use crate::text::GgufStr;
use crate::types::GgmlType;

/// One tensor of a file. Cheap to clone: the name is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub(crate) name: Arc<[u8]>,
    pub(crate) dims: [u64; 4],
    pub(crate) rank: u8,
    pub(crate) ggml_type: GgmlType,
    pub(crate) elements: u64,
    pub(crate) bytes: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) file_offset: u64,
    pub(crate) info_offset: u64,
}

impl TensorInfo {
    /// The name as stored.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    /// The name; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        GgufStr(&self.name).text()
    }

    /// The name for listings: control characters and bytes that are not UTF-8 escaped.
    #[must_use]
    pub fn escaped_name(&self) -> String {
        GgufStr(&self.name).escaped()
    }

    /// Dimensions as stored, fastest first: `[K, N]` for a matrix of N rows of K elements.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims[..usize::from(self.rank)]
    }

    /// Dimensions, slowest first, as numpy orders them: `[N, K]`. Unit dimensions are kept as stored; a tensor
    /// without dimensions is a scalar, `[]`.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        self.dims().iter().rev().copied().collect()
    }

    /// Number of elements; 0 if a dimension is zero.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// ggml's type number.
    #[must_use]
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// The registered format that holds the tensor byte for byte: a `gguf_*` format, `bf16` or `fp32`.
    #[must_use]
    pub fn format(&self) -> Option<FormatId> {
        self.ggml_type.format()
    }

    /// The tensor as a matrix of rows, `[rows, K]`: all dimensions but the fastest become rows. Rank 3
    /// (`[experts, N, K]`) is `experts * N` rows, rank 1 one row, a scalar one row of one element.
    #[must_use]
    pub fn matrix_shape(&self) -> [u64; 2] {
        let k = self.dims().first().copied().unwrap_or(1);
        // Cannot overflow: without a zero the product divides `elements`, and zeros make it zero.
        let rest = self.dims().get(1..).unwrap_or(&[]);
        let rows = if rest.contains(&0) { 0 } else { rest.iter().fold(1u64, |n, &d| n.saturating_mul(d)) };
        [rows, k]
    }

    /// Bytes of the data; `None` if the type has no known block size.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Offset of the data from the data start in bytes, as stored.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of the data from the start of the file in bytes.
    #[must_use]
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Where the tensor's record in the header begins, in bytes from the start of the file.
    #[must_use]
    pub fn info_offset(&self) -> u64 {
        self.info_offset
    }

    /// Begin and end of the data in the file, where it is known and not empty.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        // Checked against the file length when the header was parsed.
        self.bytes.filter(|&n| n > 0).map(|n| (self.file_offset, self.file_offset.saturating_add(n)))
    }

    /// Reads one record. The absolute offset is filled in once the data start is known.
    pub(crate) fn read(c: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let info_offset = c.at();
        let name = c.name("tensor name length")?;
        Self::read_rest(c, info_offset, name).map_err(|e| e.in_tensor(name))
    }

    fn read_rest(c: &mut Cursor<'_>, info_offset: u64, name: &[u8]) -> Result<Self, GgufError> {
        let at = c.at();
        let n_dims = c.u32("the number of dimensions")?;
        if n_dims > MAX_DIMS {
            let kind = K::OverLimit {
                what: "the number of dimensions",
                found: n_dims.into(),
                limit: MAX_DIMS.into(),
            };
            return Err(GgufError::new(kind).at(at));
        }
        let mut dims = [0; 4];
        let rank = n_dims as usize;
        for d in &mut dims[..rank] {
            *d = c.u64("a dimension")?;
        }
        let ggml_type = GgmlType(c.u32("the tensor type")?);
        let offset = c.u64("the data offset")?;
        let (elements, bytes) = measure(ggml_type, &dims[..rank]).map_err(|e| e.at(at))?;
        Ok(Self {
            name: name.into(),
            dims,
            rank: n_dims as u8,
            ggml_type,
            elements,
            bytes,
            offset,
            file_offset: 0,
            info_offset,
        })
    }
}

/// Elements and bytes (where the type is sized) of a tensor with these dimensions, fastest first.
///
/// Counts are limited to `i64`, as in ggml. A zero dimension makes the tensor empty, whatever the others are.
///
/// # Errors
/// `ElementCount`, `RowLength` or `SizeOverflow`.
pub(crate) fn measure(ggml_type: GgmlType, dims: &[u64]) -> Result<(u64, Option<u64>), GgufError> {
    let most = i64::MAX.unsigned_abs();
    let elements = if dims.contains(&0) {
        dims.iter().all(|&d| d <= most).then_some(0)
    } else {
        dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n <= most)
    };
    let Some(elements) = elements else {
        return Err(GgufError::new(K::ElementCount { dims: dims.to_vec() }));
    };
    let Some(spec) = ggml_type.spec() else { return Ok((elements, None)) };
    let Some(block) = spec.block else { return Ok((elements, None)) };
    if elements == 0 {
        return Ok((0, Some(0)));
    }
    let row = dims.first().copied().unwrap_or(1);
    if row % block.values != 0 {
        let kind = K::RowLength { row, block: block.values, type_name: spec.name };
        return Err(GgufError::new(kind));
    }
    match (elements / block.values).checked_mul(block.bytes) {
        Some(bytes) => Ok((elements, Some(bytes))),
        None => Err(GgufError::new(K::SizeOverflow { what: "the byte size of the tensor" })),
    }
}

/// Refuses tensors whose data share bytes. Tensors of unknown span and empty ones are left out.
pub(crate) fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut ranges: Vec<(u64, u64, usize)> =
        tensors.iter().enumerate().filter_map(|(i, t)| t.range().map(|(b, e)| (b, e, i))).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let &[(other_begin, other_end, first), (begin, end, second)] = pair else { continue };
        if begin < other_end {
            let (t, other) = (&tensors[second], &tensors[first]);
            let kind = K::Overlap { begin, end, other: other.escaped_name(), other_begin, other_end };
            return Err(GgufError::new(kind).at(t.info_offset).in_tensor(&t.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_without_wrapping() {
        let q8 = GgmlType(8);
        assert_eq!(measure(q8, &[64, 3]).unwrap(), (192, Some(204)));
        assert_eq!(measure(GgmlType::F32, &[]).unwrap(), (1, Some(4)));
        assert_eq!(measure(q8, &[0]).unwrap(), (0, Some(0)));
        assert_eq!(measure(q8, &[33, 0]).unwrap(), (0, Some(0)));
        assert_eq!(measure(q8, &[0, i64::MAX as u64, i64::MAX as u64]).unwrap(), (0, Some(0)));
        assert_eq!(measure(GgmlType(9999), &[7, 7]).unwrap(), (49, None));
        assert_eq!(measure(GgmlType(4), &[7, 7]).unwrap(), (49, None));
        // 2^33 elements of 18-byte blocks of 32.
        assert_eq!(measure(GgmlType(2), &[1 << 20, 1 << 13]).unwrap(), (1 << 33, Some(18 << 28)));
        let e = measure(GgmlType::I8, &[1 << 32, 1 << 31]).unwrap_err();
        assert!(matches!(e.kind(), K::ElementCount { .. }), "{e}");
        let e = measure(GgmlType::F32, &[u64::MAX, 0]).unwrap_err();
        assert!(matches!(e.kind(), K::ElementCount { .. }), "{e}");
        let e = measure(GgmlType(28), &[1 << 62]).unwrap_err();
        assert!(matches!(e.kind(), K::SizeOverflow { .. }), "{e}");
        let e = measure(GgmlType(12), &[896, 2]).unwrap_err();
        assert_eq!(e.to_string(), "row length 896 is not a multiple of 256, the block of Q4_K");
        // A scalar of a block type has no whole block.
        assert!(matches!(measure(q8, &[]).unwrap_err().kind(), K::RowLength { row: 1, .. }));
    }
}
