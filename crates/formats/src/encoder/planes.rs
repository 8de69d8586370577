//! Caller-owned output: the planes of a payload, or of a run of its rows, that encoders and imports write to.

use crate::error::FormatError;
use crate::layout::{RowSplit, encoded_size};
use crate::registry::FormatId;
use crate::scheme::{RowScale, Scheme};
use crate::shape::{ShapeText, align_up, overflow};

/// Mutable bytes of consecutive rows, plane by plane, each row a fixed number of bytes in each plane.
///
/// | formats | planes (bytes of one row) |
/// |---|---|
/// | grouped | base codes, high codes (0 where there are none), scales; padding groups included |
/// | `fp8_e4m3fn_row_bf16` | codes (K), scales (2) |
/// | `fp8_e4m3fn_row_fp16` | records (K + 2) |
/// | `gguf_*` | blocks |
/// | direct | words |
///
/// The bytes between planes belong to no row: whoever owns the payload keeps them zero.
#[derive(Debug)]
pub struct RowPlanes<'a> {
    format: FormatId,
    k: usize,
    rows: usize,
    row_bytes: [usize; 3],
    planes: [&'a mut [u8]; 3],
}

/// Mutable bytes of one row; entries past the format's planes are empty.
#[derive(Debug)]
pub struct RowSlices<'a> {
    /// The planes' bytes of the row.
    pub planes: [&'a mut [u8]; 3],
}

/// Bytes of one row of `k` elements in each plane; zero for planes the format does not have.
///
/// # Errors
/// What [`encoded_size`] refuses for one row; [`FormatError::Unsupported`] for `nvfp4`, whose scale plane has no rows.
pub(crate) fn row_bytes(format: FormatId, k: usize) -> Result<[usize; 3], FormatError> {
    let shape = [1, k as u64];
    let too_big = || overflow(format, &shape, "the address space of this machine");
    if format.scheme() == Scheme::Nvfp4 {
        return Err(FormatError::Unsupported {
            format: format.name(),
            what: "its scale plane interleaves rows; use the nvfp4 functions".into(),
        });
    }
    // One row fits a usize, so all its parts do.
    let size = usize::try_from(encoded_size(format, &shape, 1)?).map_err(|_| too_big())?;
    Ok(match format.scheme() {
        Scheme::Grouped(s) => {
            let p = RowSplit::plan(&s, 1, k as u64).ok_or_else(too_big)?;
            [p.base_row as usize, p.high_row as usize, p.scale_row as usize]
        }
        Scheme::RowScaled(RowScale::Bf16) => [k, 2, 0],
        Scheme::RowScaled(RowScale::Fp16) | Scheme::Gguf(_) | Scheme::Direct(_) | Scheme::Nvfp4 => {
            [size, 0, 0]
        }
    })
}

impl<'a> RowPlanes<'a> {
    /// `rows` rows of `k` elements in planes of the caller's; planes the format does not have must be empty.
    ///
    /// # Errors
    /// What [`encoded_size`] refuses, and [`FormatError::BufferSize`] for a plane of another length.
    pub fn new(
        format: FormatId,
        rows: usize,
        k: usize,
        planes: [&'a mut [u8]; 3],
    ) -> Result<Self, FormatError> {
        let row_bytes = row_bytes(format, k)?;
        for ((plane, row), what) in
            planes.iter().zip(row_bytes).zip(["the first plane", "the second plane", "the third plane"])
        {
            if rows.checked_mul(row) != Some(plane.len()) {
                return Err(FormatError::BufferSize {
                    what,
                    unit: "bytes",
                    expected: (rows as u64).saturating_mul(row as u64),
                    actual: plane.len() as u64,
                });
            }
        }
        Ok(Self { format, k, rows, row_bytes, planes })
    }

    /// The planes of a whole payload of `n` rows. Bytes between planes are left alone.
    ///
    /// # Errors
    /// What [`encoded_size`] refuses, [`FormatError::PayloadSize`] for another payload length.
    pub fn of_payload(
        format: FormatId,
        n: usize,
        k: usize,
        payload: &'a mut [u8],
    ) -> Result<Self, FormatError> {
        let shape = [n as u64, k as u64];
        let expected = encoded_size(format, &shape, 1)?;
        if expected != payload.len() as u64 {
            return Err(FormatError::PayloadSize {
                format: format.name(),
                shape: ShapeText::of(&shape),
                expected,
                actual: payload.len() as u64,
            });
        }
        let row = row_bytes(format, k)?;
        // The payload is in memory, so every offset below fits a usize.
        let (second_at, third_at) = match format.scheme() {
            Scheme::Grouped(s) => {
                let p =
                    RowSplit::plan(&s, shape[0], shape[1]).ok_or_else(|| overflow(format, &shape, "u64"))?;
                (p.high_at as usize, p.scale_at as usize)
            }
            Scheme::RowScaled(RowScale::Bf16) => {
                let at = align_up(shape[0] * shape[1], 256).ok_or_else(|| overflow(format, &shape, "u64"))?;
                (at as usize, payload.len())
            }
            _ => (payload.len(), payload.len()),
        };
        let (head, third) = payload.split_at_mut(third_at);
        let (first, second) = head.split_at_mut(second_at);
        let planes = [&mut first[..n * row[0]], &mut second[..n * row[1]], &mut third[..n * row[2]]];
        Self::new(format, n, k, planes)
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> FormatId {
        self.format
    }

    /// Elements of one row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of one row in each plane.
    #[must_use]
    pub fn row_bytes(&self) -> [usize; 3] {
        self.row_bytes
    }

    /// The bytes of row `r`.
    ///
    /// # Panics
    /// If `r` is not below [`Self::rows`].
    #[must_use]
    pub fn row(&mut self, r: usize) -> RowSlices<'_> {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        let [a, b, c] = self.row_bytes;
        let [first, second, third] = &mut self.planes;
        RowSlices {
            planes: [
                &mut first[r * a..(r + 1) * a],
                &mut second[r * b..(r + 1) * b],
                &mut third[r * c..(r + 1) * c],
            ],
        }
    }

    /// Splits into the first `rows` rows and the others, for threads that write different rows.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[must_use]
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        assert!(rows <= self.rows, "{rows} of {} rows", self.rows);
        let [a, b, c] = self.row_bytes;
        let [first, second, third] = self.planes;
        let (first, first_rest) = first.split_at_mut(rows * a);
        let (second, second_rest) = second.split_at_mut(rows * b);
        let (third, third_rest) = third.split_at_mut(rows * c);
        let (format, k, row_bytes) = (self.format, self.k, self.row_bytes);
        (
            Self { format, k, rows, row_bytes, planes: [first, second, third] },
            Self {
                format,
                k,
                rows: self.rows - rows,
                row_bytes,
                planes: [first_rest, second_rest, third_rest],
            },
        )
    }

    /// Checks that these are rows of `k` elements of `format`.
    pub(crate) fn check(&self, format: FormatId, k: usize) -> Result<(), FormatError> {
        if self.format != format {
            return Err(FormatError::Unsupported {
                format: format.name(),
                what: format!("the output planes are of format {}", self.format.name()),
            });
        }
        if self.k != k {
            return Err(FormatError::BufferSize {
                what: "a row of the output planes",
                unit: "elements",
                expected: k as u64,
                actual: self.k as u64,
            });
        }
        Ok(())
    }
}
