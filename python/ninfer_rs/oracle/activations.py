"""Activations of products: bfloat16 and float32 input, and ggml's q8_1 numbers (products page, q8_1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import floats
from .errors import InvalidWordsError, UnsupportedError

F32 = npt.NDArray[np.float32]


class Q8_1(NamedTuple):
    """q8_1 blocks of 32 values: ``d`` and ``s`` binary16 words uint16 [..., B], ``q`` int8 [..., B, 32]."""

    d: npt.NDArray[np.uint16]
    s: npt.NDArray[np.uint16]
    q: npt.NDArray[np.int8]


def as_float32(x: npt.ArrayLike) -> F32:
    """Activations as float32, exactly. float32 passes; bfloat16 (an array of that dtype, or uint16 words) is
    expanded. Raises UnsupportedError for any other dtype: nothing is rounded on the way in."""
    array: npt.NDArray[Any] = np.asarray(x)
    if array.dtype == np.float32:
        return array.astype(np.float32)
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    if array.dtype == np.uint16:
        return floats.bf16_to_f32(array)
    raise UnsupportedError(f"activations must be float32 or bfloat16, not {array.dtype}")


def round_half_away(v: F32) -> F32:
    """Nearest integer, halves away from zero; the subtraction is exact in binary32."""
    whole = np.trunc(v)
    step = np.copysign((np.abs(v - whole) >= np.float32(0.5)).astype(np.float32), v)
    rounded: F32 = whole + step
    return rounded


def q8_1(x: npt.ArrayLike) -> Q8_1:
    """Quantises the last axis of ``x`` [..., K] (float32 or bfloat16) by 32s, the last block zero-extended.

    d = f32(amax / 127), codes round_half_away(f32(x * f32(1 / d))), stored d and f16(f32(d * sum of codes))
    from the unrounded d. Where 1 / d overflows (amax below 127 * 2^-128) every code is 0, as d itself then is
    after rounding to binary16. Raises InvalidWordsError naming the first non-finite value by column (position
    in the leading axes) and index.
    """
    values = as_float32(x)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise UnsupportedError("activations need at least one value along the last axis")
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        *lead, index = (int(i) for i in bad[0])
        column = int(np.ravel_multi_index(tuple(lead), values.shape[:-1])) if lead else 0
        raise InvalidWordsError(f"activation is not finite at column {column}, index {index}")
    k = values.shape[-1]
    padded = np.zeros((*values.shape[:-1], -(-k // 32) * 32), dtype=np.float32)
    padded[..., :k] = values
    block = padded.reshape(*values.shape[:-1], -1, 32)
    with np.errstate(all="ignore"):
        d = np.abs(block).max(axis=-1) / np.float32(127)
        inverse = np.float32(1) / d
        inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
        q = round_half_away(block * inverse[..., None])
        total = q.sum(axis=-1, dtype=np.float64).astype(np.float32)
        s = d * total
    return Q8_1(floats.f32_to_f16(d), floats.f32_to_f16(s), q.astype(np.int8))
