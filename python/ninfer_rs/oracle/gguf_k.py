"""ggml's K block types of 256 values: q2_k, q3_k, q4_k, q5_k, q6_k (GGUF page, block types)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .gguf_parts import I32, Parts, half_at, nibbles, per32

U8 = npt.NDArray[np.uint8]
_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)


def _two(raw: U8) -> I32:
    """64 bytes -> 256 two-bit values: per half of 32 bytes, shifts 0, 2, 4, 6 in turn over the 32 bytes."""
    halves = raw.reshape(-1, 2, 1, 32)
    fields: U8 = (halves >> _SHIFTS[:, None]) & np.uint8(3)
    return fields.reshape(-1, 256).astype(np.int32)


def q2_k(blocks: U8) -> Parts:
    s = blocks[:, 0:16]
    return Parts(
        half_at(blocks, 80),
        _two(blocks[:, 16:80]),
        (s & np.uint8(15)).astype(np.int32),
        dmin=half_at(blocks, 82),
        minimum=(s >> np.uint8(4)).astype(np.int32),
    )


def q3_k(blocks: U8) -> Parts:
    hm = blocks[:, 0:32]
    # bit 4p + j of hm[l] belongs to half p, shift index j, lane l
    bit = (hm[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    code = _two(blocks[:, 32:96]) - np.where(bit.reshape(-1, 256) == 1, 0, 4).astype(np.int32)
    s = blocks[:, 96:108]
    low = nibbles(s[:, 0:8])
    i = np.arange(16)
    high = (s[:, 8 + i % 4] >> (2 * (i // 4)).astype(np.uint8)) & np.uint8(3)
    scale = (low | high.astype(np.int32) << np.int32(4)) - np.int32(32)
    return Parts(half_at(blocks, 108), code, scale)


def _six_bit(s: U8) -> tuple[I32, I32]:
    """The 12 scale bytes of q4_k and q5_k -> eight scales and eight minimums."""
    wide = s.astype(np.int32)
    a, b, c = wide[:, 0:4], wide[:, 4:8], wide[:, 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=1)
    return scale, minimum


def q4_k(blocks: U8) -> Parts:
    scale, minimum = _six_bit(blocks[:, 4:16])
    code = nibbles(blocks[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 256)
    return Parts(half_at(blocks, 0), code, per32(scale), dmin=half_at(blocks, 2), minimum=per32(minimum))


def q5_k(blocks: U8) -> Parts:
    scale, minimum = _six_bit(blocks[:, 4:16])
    low = nibbles(blocks[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 256)
    qh = blocks[:, 16:48]
    fifth = (qh[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    code = low | fifth.reshape(-1, 256).astype(np.int32) << np.int32(4)
    return Parts(half_at(blocks, 0), code, per32(scale), dmin=half_at(blocks, 2), minimum=per32(minimum))


def q6_k(blocks: U8) -> Parts:
    ql = blocks[:, 0:128].reshape(-1, 2, 64)
    qh = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    # nibbles() of 64 bytes gives the four runs of 32 in the order low, low, high, high
    low = nibbles(ql)
    high = ((qh >> _SHIFTS[:, None]) & np.uint8(3)).reshape(-1, 2, 128).astype(np.int32)
    code = (low | high << np.int32(4)).reshape(-1, 256) - np.int32(32)
    scale = blocks[:, 192:208].astype(np.uint8).view(np.int8).astype(np.int32)
    return Parts(half_at(blocks, 208), code, scale)
