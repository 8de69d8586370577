"""ggml's block types with one scale and plain codes: q8_0, q4_0, q5_0, q2_0 (GGUF page, block types)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .gguf_parts import Parts, half_at, nibbles, ones
from .layouts import le_join

U8 = npt.NDArray[np.uint8]


def q8_0(blocks: U8) -> Parts:
    code = blocks[:, 2:34].astype(np.uint8).view(np.int8).astype(np.int32)
    return Parts(half_at(blocks, 0), code, ones(code))


def q4_0(blocks: U8) -> Parts:
    code = nibbles(blocks[:, 2:18]) - np.int32(8)
    return Parts(half_at(blocks, 0), code, ones(code))


def q5_0(blocks: U8) -> Parts:
    qh = le_join(blocks[:, 2:6], 4)
    fifth = ((qh >> np.arange(32, dtype=np.uint64)) & np.uint64(1)).astype(np.int32)
    code = (nibbles(blocks[:, 6:22]) | fifth << np.int32(4)) - np.int32(16)
    return Parts(half_at(blocks, 0), code, ones(code))


def q2_0(blocks: U8) -> Parts:
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)
    fields = (blocks[:, 2:18, None] >> shifts) & np.uint8(3)
    code = fields.reshape(-1, 64).astype(np.int32) - np.int32(1)
    return Parts(half_at(blocks, 0), code, ones(code))
