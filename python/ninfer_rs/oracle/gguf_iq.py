"""ggml's i-quant block types (GGUF page, block types). Grids come from iq_tables.json beside this file."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import floats
from .gguf_parts import I32, Parts, half_at, nibbles, ones, per32
from .layouts import le_join, u16_at

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


@lru_cache(maxsize=1)
def _tables() -> dict[str, I32]:
    with open(Path(__file__).with_name("iq_tables.json"), encoding="ascii") as f:
        data = json.load(f)
    tables = {"kvalues": np.array(data["kvalues_iq4_nl"], dtype=np.int32)}
    for name, grid in data["grids"].items():
        raw = np.frombuffer(bytes.fromhex("".join(grid["hex"])), dtype=np.int8)
        tables[name] = raw.reshape(grid["entries"], grid["values_per_entry"]).astype(np.int32)
    return tables


def _byte_signs(s: npt.NDArray[np.integer]) -> I32:
    """Sign bytes [B, m] -> -1 or 1, int32 [B, 8 m]: bit j set makes lane j negative."""
    bits = (s.astype(np.int32)[..., None] >> np.arange(8, dtype=np.int32)) & 1
    return (1 - 2 * bits).reshape(s.shape[0], -1).astype(np.int32)


def _parity_signs(s7: npt.NDArray[np.integer]) -> I32:
    """Seven sign bits [B, m] -> eight signs each; the eighth bit is the parity of the seven."""
    s = s7.astype(np.int32) & 127
    parity = s ^ s >> 4
    parity = parity ^ parity >> 2
    parity = (parity ^ parity >> 1) & 1
    return _byte_signs(s | parity << 7)


def _aux_signs(a: U32) -> I32:
    """Words [B, 8] -> signs [B, 256]: four seven-bit indices each, bits 7i..7i+6."""
    fields = (a[..., None] >> np.array([0, 7, 14, 21], dtype=np.uint32)) & np.uint32(127)
    return _parity_signs(fields.reshape(a.shape[0], 32))


def _odd(nibble: npt.NDArray[np.integer]) -> I32:
    """Sub-scale s -> 2 s + 1."""
    return (2 * nibble.astype(np.int32) + 1).astype(np.int32)


def _nibble_pairs(raw: U8) -> I32:
    """Bytes [B, m] -> [B, 2 m], each byte's low nibble then its high nibble."""
    pair = np.stack([raw & np.uint8(15), raw >> np.uint8(4)], axis=-1)
    return pair.reshape(raw.shape[0], -1).astype(np.int32)


def _grid(name: str, index: npt.NDArray[np.integer]) -> I32:
    """Grid entries [B, m] -> their values in lane order, int32 [B, m * values per entry]."""
    entries: I32 = _tables()[name][index]
    return entries.reshape(index.shape[0], -1)


def iq2_xxs(blocks: U8) -> Parts:
    groups = blocks[:, 2:66].reshape(-1, 8, 8)
    a = le_join(groups[:, :, 4:8], 4)[..., 0].astype(np.uint32)
    code = _grid("iq2_xxs", groups[:, :, 0:4].reshape(-1, 32)) * _aux_signs(a)
    return Parts(half_at(blocks, 0), code, per32(_odd(a >> np.uint32(28))), divisor=8)


def iq2_xs(blocks: U8) -> Parts:
    q = u16_at(blocks[:, 2:66])
    code = _grid("iq2_xs", q & np.uint16(511)) * _parity_signs(q >> np.uint16(9))
    return Parts(half_at(blocks, 0), code, _odd(_nibble_pairs(blocks[:, 66:74])), divisor=8)


def iq2_s(blocks: U8) -> Parts:
    q, signs, qh = blocks[:, 2:34], blocks[:, 34:66], blocks[:, 66:74]
    field = (qh[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & np.uint8(3)
    index = q.astype(np.int32) | field.reshape(-1, 32).astype(np.int32) << 8
    code = _grid("iq2_s", index) * _byte_signs(signs)
    return Parts(half_at(blocks, 0), code, _odd(_nibble_pairs(blocks[:, 74:82])), divisor=8)


def iq3_xxs(blocks: U8) -> Parts:
    a = le_join(blocks[:, 66:98], 4).astype(np.uint32)
    code = _grid("iq3_xxs", blocks[:, 2:66]) * _aux_signs(a)
    return Parts(half_at(blocks, 0), code, per32(_odd(a >> np.uint32(28))), divisor=4)


def iq3_s(blocks: U8) -> Parts:
    q, qh, signs, s = blocks[:, 2:66], blocks[:, 66:74], blocks[:, 74:106], blocks[:, 106:110]
    ninth = (qh[:, :, None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1)
    index = q.astype(np.int32) | ninth.reshape(-1, 64).astype(np.int32) << 8
    code = _grid("iq3_s", index) * _byte_signs(signs)
    return Parts(half_at(blocks, 0), code, per32(_odd(_nibble_pairs(s))))


def _iq1_code(index: I32, negative: npt.NDArray[np.bool_]) -> I32:
    """Grid entries [B, 32] and a delta sign each -> 8 g +- 1, so that code / 8 = g +- 0.125."""
    delta = np.where(negative, -1, 1).astype(np.int32)
    code: I32 = 8 * _grid("iq1_s_and_iq1_m", index) + np.repeat(delta, 8, axis=1)
    return code


def iq1_s(blocks: U8) -> Parts:
    q = blocks[:, 2:34].astype(np.int32).reshape(-1, 8, 4)
    qh = u16_at(blocks[:, 34:50]).astype(np.int32)
    high = (qh[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.int32)) & 7
    code = _iq1_code((q | high << 8).reshape(-1, 32), np.repeat(qh >> 15 == 1, 4, axis=1))
    return Parts(half_at(blocks, 0), code, per32(_odd((qh >> 12) & 7)), divisor=8)


def iq1_m(blocks: U8) -> Parts:
    s = u16_at(blocks[:, 48:56]).astype(np.int32)
    top = s >> 12
    word = top[:, 0] | top[:, 1] << 4 | top[:, 2] << 8 | top[:, 3] << 12
    scale = ((s[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.int32)) & 7).reshape(-1, 16)
    field = _nibble_pairs(blocks[:, 32:48])
    index = blocks[:, 0:32].astype(np.int32) | (field & 7) << 8
    code = _iq1_code(index, field >> 3 == 1)
    return Parts(floats.f16_to_f32(word.astype(np.uint16)), code, _odd(scale), divisor=8)


def iq4_nl(blocks: U8) -> Parts:
    code = _tables()["kvalues"][nibbles(blocks[:, 2:18])]
    return Parts(half_at(blocks, 0), code, ones(code))


def iq4_xs(blocks: U8) -> Parts:
    sh = u16_at(blocks[:, 2:4]).astype(np.int32)
    high = (sh >> np.arange(0, 16, 2, dtype=np.int32)) & 3
    scale = (_nibble_pairs(blocks[:, 4:8]) | high << 4) - 32
    code = _tables()["kvalues"][nibbles(blocks[:, 8:136].reshape(-1, 8, 16))].reshape(-1, 256)
    return Parts(half_at(blocks, 0), code, per32(scale))
