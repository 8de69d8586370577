"""What every ggml block type reduces to: a block scale, integer sub-scales and integer codes.

Each of the 18 types is taken apart into ``Parts``; values and products are written once on top. The value
is ``(d * (scale / divisor)) * code``, less ``dmin * minimum`` for the types that have one. All products are
exact in binary32 and the factors multiply in the written order, so signs of zeros are those of the written
expression (GGUF page, block types); the one rounding is the final subtraction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import floats
from .layouts import u16_at

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Parts:
    """B blocks of V values. ``d`` and ``dmin`` float32 [B]; ``code`` int32 [B, V]; ``scale`` and ``minimum``
    int32 [B, V/16], one for every 16 values; ``divisor`` a power of two."""

    d: F32
    code: I32
    scale: I32
    divisor: int = 1
    dmin: F32 | None = None
    minimum: I32 | None = None


def half_at(blocks: U8, at: int) -> F32:
    """The binary16 field at byte ``at`` of every block [B, bytes] -> float32 [B]."""
    return floats.f16_to_f32(u16_at(blocks[:, at : at + 2])[:, 0])


def ones(code: I32) -> I32:
    return np.ones((code.shape[0], code.shape[1] // 16), dtype=np.int32)


def nibbles(raw: U8) -> I32:
    """Bytes [..., m] -> [..., 2 m]: low nibbles of all bytes, then high nibbles."""
    return np.concatenate([raw & np.uint8(15), raw >> np.uint8(4)], axis=-1).astype(np.int32)


def per32(sub: npt.NDArray[np.integer]) -> I32:
    """One sub-scale per 32 values [B, m] -> one per 16 values [B, 2 m]."""
    return np.repeat(sub.astype(np.int32), 2, axis=1)


def decode(parts: Parts) -> F32:
    """Values float32 [B, V]. Infinite or NaN scales give what IEEE arithmetic gives."""
    sub = parts.scale.astype(np.float32) / np.float32(parts.divisor)
    with np.errstate(all="ignore"):
        scaled = np.repeat(parts.d[:, None] * sub, 16, axis=1)
        value = scaled * parts.code.astype(np.float32)
        if parts.dmin is not None and parts.minimum is not None:
            value -= np.repeat(parts.dmin[:, None] * parts.minimum.astype(np.float32), 16, axis=1)
    return value
