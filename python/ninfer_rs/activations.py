"""Activations as products quantise them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import BFLOAT16, AnyArray, contiguous
from .errors import ShapeError, UnsupportedError

__all__ = ["Q8_1", "q8_1"]


class Q8_1(NamedTuple):
    """ggml's q8_1 numbers: blocks of 32 values.

    ``d`` float16 [..., B], the scale; ``s`` float16 [..., B], the scale (before its rounding to 16 bits)
    times the sum of the codes; ``q`` int8 [..., B, 32].
    """

    d: npt.NDArray[np.float16]
    s: npt.NDArray[np.float16]
    q: npt.NDArray[np.int8]


def q8_1(x: npt.ArrayLike) -> Q8_1:
    """Quantises activations [..., K] of float32 or bfloat16 to ``B = ceil(K / 32)`` blocks per row.

    A last block that is not full is extended by zeros. Codes round half away from zero (product
    specification). Raises :class:`UnsupportedError` for other dtypes and for values that are not finite,
    naming row and index; :class:`ShapeError` for rank 0 or K = 0.
    """
    array: AnyArray = np.asarray(x)
    if array.dtype.name not in ("float32", BFLOAT16):
        raise UnsupportedError(
            f"activations must be float32 or bfloat16, got {array.dtype}; convert them explicitly"
        )
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ShapeError(f"activations must have shape [..., K] with K > 0, got {array.shape}")
    k = array.shape[-1]
    flat = contiguous(array).reshape(-1)
    if array.dtype.name == BFLOAT16:
        d, s, q = _native.q8_1_bf16(flat.view(np.uint16), k)
    else:
        d, s, q = _native.q8_1_f32(flat, k)
    lead = array.shape[:-1]
    blocks = -(-k // 32)
    return Q8_1(
        d.view(np.float16).reshape(*lead, blocks),
        s.view(np.float16).reshape(*lead, blocks),
        q.reshape(*lead, blocks, 32),
    )
