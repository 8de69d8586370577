//! `nvfp4_maxabs` and `nvfp4_search`: values to E2M1 codes in groups of 16 with E4M3FN scales under one divisor a matrix
//! (encoder notes in `docs/encoders.md`; format specification, section 3.3).
//!
//! The divisor depends on the whole matrix, so a caller that streams rows takes two passes: [`largest`] of all rows
//! (the largest of the chunks' results) gives the [`divisor`]; then an [`Nvfp4Encoder`] encodes rows or tiles of 128
//! rows, in any order and any number of pieces. [`encode`](super::encode()) does both for a matrix in memory.
//!
//! ```
//! use ninfer_formats::encoder::nvfp4::{Nvfp4Encoder, divisor, largest};
//! use ninfer_formats::encoder::{EncoderId, Params};
//!
//! let x: Vec<f32> = (0..128 * 64).map(|i| (i % 100) as f32 - 50.0).collect();
//! let divisor = divisor(largest(&x, 64, 0)?);
//! let encoder = Nvfp4Encoder::new(EncoderId::Nvfp4Search, 64, divisor, Params::default())?;
//! let (mut codes, mut scales) = (vec![0; 128 * 32], vec![0; 128 * 4]);
//! encoder.encode_tile(&x, 0, &mut codes, &mut scales)?;
//! # Ok::<(), ninfer_formats::FormatError>(())
//! ```

use super::lanes::{LANES, Lanes, Portable, normal_importance};
use super::{EncoderId, Params, RowEncoder, RowFault, RowPlace};
use crate::error::{FormatError, Place, Violation};
use crate::float::e4m3;
use crate::import::nvfp4::swizzle_tile;
use crate::layout::BlockScale;
use crate::memory::zeroed;
use crate::registry::FormatId;
use crate::shape::{buffer_len, overflow};

/// Values of one group.
pub const GROUP: usize = 16;
/// Rows of one tile, whose scale words lie together.
pub const TILE_ROWS: usize = 128;

/// Groups that are encoded together, one a lane.
type Batch = [[f32; LANES]; GROUP];

/// How far from the max-abs scale word the candidates of `nvfp4_search` reach: steps down and up.
pub const REACH: (u8, u8) = (6, 9);

/// Largest magnitude of rows of `k` values, 0 for none; `row0` is the tensor's row that `x` starts at, for messages.
///
/// # Errors
/// [`FormatError::Refused`] with the first row and column that is not finite.
pub fn largest(x: &[f32], k: usize, row0: u64) -> Result<f32, FormatError> {
    // Magnitudes of binary32 words are ordered as integers, what is not finite above all others.
    let word = x.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7fff_ffff));
    if word < 0x7f80_0000 {
        return Ok(f32::from_bits(word));
    }
    let at = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
    let k = k.max(1);
    Err(refused(EncoderId::Nvfp4Maxabs, row0 + (at / k) as u64, &RowFault::not_finite(at % k, x[at])))
}

/// The divisor of a matrix by its largest magnitude: `f32(2688 / largest)`, the largest finite number where that
/// overflows, 1 for zero. 2688 is 448 * 6, so the scale of the group that has the largest magnitude is 448.
#[must_use]
pub fn divisor(largest: f32) -> f32 {
    if largest == 0.0 { 1.0 } else { (2688.0 / largest).min(f32::MAX) }
}

/// The error of a fault in row `row` of the tensor.
#[must_use]
pub fn refused(method: EncoderId, row: u64, fault: &RowFault) -> FormatError {
    FormatError::Refused {
        format: FormatId::Nvfp4.name(),
        method: method.name(),
        place: fault.place.at(row),
        rule: fault.rule.clone(),
    }
}

/// One of the two methods with row length, divisor and importance, checked once; encodes any number of rows.
#[derive(Clone, Debug)]
pub struct Nvfp4Encoder {
    method: EncoderId,
    k: usize,
    divisor: f32,
    /// By batches, groups in lanes, each group brought into `[0, 2)` by a power of two; empty for none.
    importance: Vec<Batch>,
}

impl Nvfp4Encoder {
    /// Checks method, row length (a multiple of 64), divisor and parameters.
    ///
    /// # Errors
    /// [`FormatError::Unsupported`] for another method or a parameter it does not take, [`FormatError::Shape`] for the
    /// row length, [`FormatError::Invalid`] for a divisor that is not finite and positive, and what
    /// [`RowEncoder::new`] says of an importance vector.
    pub fn new(method: EncoderId, k: usize, divisor: f32, params: Params<'_>) -> Result<Self, FormatError> {
        let format = FormatId::Nvfp4;
        method.check(format)?;
        crate::layout::encoded_size(format, &[TILE_ROWS as u64, k as u64], 1)?;
        RowEncoder::check_params(format, method, k, &params)?;
        if !(divisor.is_finite() && divisor > 0.0) {
            return Err(FormatError::Invalid {
                format: format.name(),
                violation: Violation {
                    plane: "divisor",
                    place: Place::Divisor { index: 0 },
                    word: divisor.to_bits(),
                    rule: "a divisor must be finite and positive",
                },
            });
        }
        let importance = match params.importance {
            None => Vec::new(),
            Some(importance) => {
                let mut batches = crate::memory::with_capacity(k.div_ceil(GROUP * LANES))?;
                for part in importance.chunks(GROUP * LANES) {
                    let mut batch: Batch = [[1.0; LANES]; GROUP];
                    for (l, group) in part.as_chunks::<GROUP>().0.iter().enumerate() {
                        let (values, _) = normal_importance(group);
                        for (row, v) in batch.iter_mut().zip(values) {
                            row[l] = v;
                        }
                    }
                    batches.push(batch);
                }
                batches
            }
        };
        Ok(Self { method, k, divisor, importance })
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> EncoderId {
        self.method
    }

    /// Elements of one row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The divisor.
    #[must_use]
    pub fn divisor(&self) -> f32 {
        self.divisor
    }

    /// Encodes one row: `codes` takes K/2 bytes, low nibble first, `scales` K/16 words in natural order.
    ///
    /// # Errors
    /// The first column that is not finite, or the first group whose scale exceeds 448: the divisor was not that of
    /// its matrix. The bytes are then unspecified.
    ///
    /// # Panics
    /// If a length does not fit the row length.
    pub fn encode_row(&self, x: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), RowFault> {
        self.encode_row_on::<Portable>(x, codes, scales)
    }

    /// [`Self::encode_row`] on the lanes `L`.
    ///
    /// # Errors
    /// As [`Self::encode_row`].
    ///
    /// # Panics
    /// If a length does not fit the row length.
    #[inline(always)]
    pub fn encode_row_on<L: Lanes>(
        &self,
        x: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), RowFault> {
        assert!(x.len() == self.k && codes.len() == self.k / 2 && scales.len() == self.k / GROUP);
        let parts = x.chunks(GROUP * LANES).zip(codes.chunks_mut(GROUP * LANES / 2));
        for (b, ((x, codes), scales)) in parts.zip(scales.chunks_mut(LANES)).enumerate() {
            let first = b * LANES;
            if !x.iter().fold(true, |finite, v| finite & v.is_finite()) {
                let c = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
                return Err(RowFault::not_finite(first * GROUP + c, x[c]));
            }
            let mut w: Batch = [[0.0; LANES]; GROUP];
            for (l, group) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                for (row, v) in w.iter_mut().zip(group) {
                    row[l] = *v;
                }
            }
            let importance = if self.importance.is_empty() { None } else { Some(&self.importance[b]) };
            let mut words = [0u8; LANES];
            let mut values: Batch = [[0.0; LANES]; GROUP];
            self.batch::<L>(&w, importance, &mut words, &mut values)
                .map_err(|(g, rule)| RowFault { place: RowPlace::Group(first + g), rule })?;
            scales.copy_from_slice(&words[..scales.len()]);
            for (l, codes) in codes.as_chunks_mut::<{ GROUP / 2 }>().0.iter_mut().enumerate() {
                for (i, c) in codes.iter_mut().enumerate() {
                    let word = |i: usize| {
                        // Codes of zero scales are zero, without a sign.
                        let sign = if words[l] == 0 { 0 } else { (w[i][l].to_bits() >> 28) as u8 & 8 };
                        sign | E2M1_OF_DOUBLED[(values[i][l] * 2.0) as usize & 15]
                    };
                    *c = word(2 * i) | word(2 * i + 1) << 4;
                }
            }
        }
        Ok(())
    }

    /// Scale words and magnitudes of the codes' values of up to sixteen groups.
    #[inline(always)]
    fn batch<L: Lanes>(
        &self,
        w: &Batch,
        importance: Option<&Batch>,
        words: &mut [u8; LANES],
        values: &mut Batch,
    ) -> Result<(), (usize, String)> {
        let divisor = L::splat(self.divisor);
        let mut y: Batch = [[0.0; LANES]; GROUP];
        let (mut amax, mut top) = (L::splat(0.0), L::splat(0.0));
        for (y, w) in y.iter_mut().zip(w) {
            let w = L::load(w).abs();
            amax = w.max(amax);
            let v = w.mul(divisor);
            top = v.max(top);
            v.store(y);
        }
        let (mut magnitudes, mut raw) = ([0.0f32; LANES], [0.0f32; LANES]);
        amax.store(&mut magnitudes);
        top.div(L::splat(6.0)).store(&mut raw);
        let mut start = [0u8; LANES];
        for l in 0..LANES {
            // 464 is half way between 448 and what would come next; ties go to 448.
            if raw[l] > 464.0 {
                return Err((
                    l,
                    format!(
                        "the scale {:e} of largest magnitude {:e} under the divisor {:e} exceeds 448",
                        raw[l], magnitudes[l], self.divisor
                    ),
                ));
            }
            let word = e4m3::from_f32_saturating(raw[l]);
            start[l] = if magnitudes[l] > 0.0 { word.max(1) } else { 0 };
        }
        *words = start;
        if self.method == EncoderId::Nvfp4Search {
            let ones: Batch = [[1.0; LANES]; GROUP];
            search::<L>(&y, importance.unwrap_or(&ones), words);
        }
        let (_, inverse) = scale_lanes::<L>(words);
        for (y, v) in y.iter().zip(values) {
            nearest(L::load(y).mul(inverse)).store(v);
        }
        Ok(())
    }

    /// Encodes one tile of 128 rows, row-major: `codes` takes its `64 * K` code bytes, `scales` the `8 * K` bytes of
    /// the tile in the swizzled scale plane. `row0` is the tensor's row that the tile starts at, for messages.
    ///
    /// # Errors
    /// [`FormatError::BufferSize`], or [`FormatError::Refused`] with the first fault of [`Self::encode_row`].
    pub fn encode_tile(
        &self,
        x: &[f32],
        row0: u64,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), FormatError> {
        self.encode_tile_by(row0, x.len(), codes, scales, |r, codes, scales| {
            self.encode_row(&x[r * self.k..(r + 1) * self.k], codes, scales)
        })
    }

    /// [`Self::encode_tile`] with another encoder of rows: `row(r, codes, scales)` for r = 0 to 127, whose words must
    /// be those of [`Self::encode_row`]. `len` is the number of source values.
    ///
    /// # Errors
    /// As [`Self::encode_tile`].
    pub fn encode_tile_by(
        &self,
        row0: u64,
        len: usize,
        codes: &mut [u8],
        scales: &mut [u8],
        mut row: impl FnMut(usize, &mut [u8], &mut [u8]) -> Result<(), RowFault>,
    ) -> Result<(), FormatError> {
        let k = self.k;
        for (what, unit, expected, actual) in [
            ("the source of a tile", "elements", TILE_ROWS.checked_mul(k), len),
            ("the codes of a tile", "bytes", (TILE_ROWS / 2).checked_mul(k), codes.len()),
            ("a tile of the scale plane", "bytes", (TILE_ROWS / GROUP).checked_mul(k), scales.len()),
        ] {
            if expected != Some(actual) {
                return Err(FormatError::BufferSize {
                    what,
                    unit,
                    expected: expected.map_or(u64::MAX, |e| e as u64),
                    actual: actual as u64,
                });
            }
        }
        let mut natural = zeroed(scales.len())?;
        let rows = codes.chunks_exact_mut(k / 2).zip(natural.chunks_exact_mut(k / GROUP));
        for (r, (codes, scales)) in rows.enumerate() {
            row(r, codes, scales).map_err(|fault| self.refused(row0 + r as u64, &fault))?;
        }
        swizzle_tile(&natural, k, scales)
    }

    /// The error of a fault in row `row` of the tensor.
    #[must_use]
    pub fn refused(&self, row: u64, fault: &RowFault) -> FormatError {
        refused(self.method, row, fault)
    }
}

/// Values and reciprocals of scale words; 1 for zero, whose values are all zero.
#[inline(always)]
fn scale_lanes<L: Lanes>(words: &[u8; LANES]) -> (L, L) {
    let scale = L::load(&words.map(|w| if w == 0 { 1.0 } else { e4m3::to_f32(w) }));
    (scale, L::splat(1.0).div(scale))
}

/// The E2M1 magnitude nearest to each non-negative lane, ties to even, at most 6.
#[inline(always)]
fn nearest<L: Lanes>(u: L) -> L {
    // Adding a power of two rounds to multiples of 1/2 below 2, of 1 below 4, of 2 above; the even multiple is the
    // even word.
    let u = u.min(L::splat(6.0));
    let big = L::select_below(u, L::splat(4.0), L::splat(12_582_912.0), L::splat(25_165_824.0));
    let big = L::select_below(u, L::splat(2.0), L::splat(6_291_456.0), big);
    u.add(big).sub(big)
}

/// The code of twice a magnitude.
const E2M1_OF_DOUBLED: [u8; 16] = [0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0];

/// The scale words of least error among the starting ones and their neighbours; strictly less replaces.
#[inline(always)]
fn search<L: Lanes>(y: &Batch, importance: &Batch, words: &mut [u8; LANES]) {
    let start = *words;
    let mut best = [0.0f32; LANES];
    let mut error = [0.0f32; LANES];
    for step in 0..=REACH.0 + REACH.1 {
        // The start, then what lies below it downwards, then what lies above it upwards.
        let candidate = start.map(|w| {
            let moved = if step <= REACH.0 { w.saturating_sub(step).max(1) } else { w + (step - REACH.0) };
            if w == 0 { 0 } else { moved.min(0x7e) }
        });
        let (scale, inverse) = scale_lanes::<L>(&candidate);
        let mut sum = L::splat(0.0);
        for (y, importance) in y.iter().zip(importance) {
            let y = L::load(y);
            let t = y.sub(scale.mul(nearest(y.mul(inverse))));
            sum = sum.add(L::load(importance).mul(t).mul(t));
        }
        sum.store(&mut error);
        for l in 0..LANES {
            if step == 0 || error[l] < best[l] {
                best[l] = error[l];
                words[l] = candidate[l];
            }
        }
    }
}

/// Encodes a whole matrix, row-major `[n, k]`, into a fresh payload with one divisor.
pub(super) fn encode(
    method: EncoderId,
    n: usize,
    k: usize,
    x: &[f32],
    params: Params<'_>,
) -> Result<Vec<u8>, FormatError> {
    // What is wrong with the parameters is said before the values are looked at.
    let encoder = Nvfp4Encoder::new(method, k, 1.0, params)?;
    let encoder = Nvfp4Encoder { divisor: divisor(largest(x, k, 0)?), ..encoder };
    encode_by(n, k, encoder.divisor(), |row0, codes, scales| {
        let from = row0 * k;
        encoder.encode_tile(&x[from..from + TILE_ROWS * k], row0 as u64, codes, scales)
    })
}

/// Fills a fresh payload tile by tile: `tile(row0, codes, scales)`.
///
/// # Errors
/// What [`encoded_size`](crate::encoded_size) refuses, and the first error of `tile`.
pub fn encode_by(
    n: usize,
    k: usize,
    divisor: f32,
    mut tile: impl FnMut(usize, &mut [u8], &mut [u8]) -> Result<(), FormatError>,
) -> Result<Vec<u8>, FormatError> {
    let shape = [n as u64, k as u64];
    let size = crate::layout::encoded_size(FormatId::Nvfp4, &shape, 1)?;
    let mut payload = zeroed(buffer_len(FormatId::Nvfp4, &shape, size)?)?;
    let [codes, scales, word] = planes(n, k, &mut payload)?;
    let tiles = codes.chunks_exact_mut(TILE_ROWS / 2 * k).zip(scales.chunks_exact_mut(TILE_ROWS / GROUP * k));
    for (t, (codes, scales)) in tiles.enumerate() {
        tile(t * TILE_ROWS, codes, scales)?;
    }
    word.copy_from_slice(&divisor.to_le_bytes());
    Ok(payload)
}

/// Code bytes, scale bytes and divisor word of a payload with one divisor.
///
/// # Errors
/// What [`encoded_size`](crate::encoded_size) refuses, [`FormatError::BufferSize`] for another payload length.
pub fn planes(n: usize, k: usize, payload: &mut [u8]) -> Result<[&mut [u8]; 3], FormatError> {
    let shape = [n as u64, k as u64];
    let size = crate::layout::encoded_size(FormatId::Nvfp4, &shape, 1)?;
    if size != payload.len() as u64 {
        return Err(FormatError::BufferSize {
            what: "an nvfp4 payload",
            unit: "bytes",
            expected: size,
            actual: payload.len() as u64,
        });
    }
    let plan =
        BlockScale::plan(shape[0], shape[1], 1).ok_or_else(|| overflow(FormatId::Nvfp4, &shape, "u64"))?;
    // The payload is in memory, so its offsets fit a usize.
    let (head, word) = payload.split_at_mut(plan.divisor_at as usize);
    let (codes, scales) = head.split_at_mut(plan.scale_at as usize);
    Ok([&mut codes[..n * k / 2], scales, word])
}
