//! Encoders: the portable code of `ninfer-formats`, row by row.

use ninfer_formats::encoder::nvfp4::Nvfp4Encoder;
use ninfer_formats::encoder::{RowEncoder, RowFault, RowSlices, Source};

use crate::kernels::Scratch;

/// See [`crate::kernels::EncodeFn`].
pub(crate) fn row(
    encoder: &RowEncoder<'_>,
    source: Source<'_>,
    out: RowSlices<'_>,
    scratch: &mut Scratch,
) -> Result<(), RowFault> {
    encoder.encode_row(source.to_f32(&mut scratch.floats)?, out)
}

/// See [`crate::kernels::Nvfp4Fn`].
pub(crate) fn nvfp4(
    encoder: &Nvfp4Encoder,
    source: Source<'_>,
    codes: &mut [u8],
    scales: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), RowFault> {
    encoder.encode_row(source.to_f32(&mut scratch.floats)?, codes, scales)
}
