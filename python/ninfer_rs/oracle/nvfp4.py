"""Values of nvfp4: E2M1 codes, one E4M3FN scale per 16 columns, one binary32 divisor per source matrix
(format specification, section 3.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import floats

U8 = npt.NDArray[np.uint8]


def unpack_codes(packed: U8) -> U8:
    """Packed code bytes [N, K/2] -> E2M1 words 0..15 [N, K]; the low nibble is the even column."""
    pair = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return pair.reshape(packed.shape[0], -1)


def row_divisors(divisors: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.float32]:
    """The divisor of each of the n rows."""
    return np.repeat(divisors, n // divisors.size)


def quotient(packed: U8, scales: U8, divisors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """E2M1 * E4M3FN / divisor as float64 [N, K].

    The product is exact (6 significant bits). The binary64 quotient of 6 by 24 bits can sit on no tie of
    binary32, binary16 or bfloat16 unless the real quotient does, so one more rounding of it gives the real
    quotient rounded once.
    """
    codes = floats.e2m1_to_f32(unpack_codes(packed)).astype(np.float64)
    group = np.repeat(floats.e4m3_to_f32(scales).astype(np.float64), 16, axis=1)
    rows = row_divisors(divisors, packed.shape[0]).astype(np.float64)
    with np.errstate(all="ignore"):
        return codes * group / rows[:, None]


def decode(packed: U8, scales: U8, divisors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Packed codes [N, K/2], scales [N, K/16], divisors [D] -> float32 [N, K]."""
    return floats.f64_to_f32(quotient(packed, scales, divisors))
