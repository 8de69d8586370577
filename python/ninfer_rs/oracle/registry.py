"""The 30 numeric formats, as the oracle's own table (format specification, registry tables).

Nothing here is shared with the native registry: a parity test compares the two.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class OracleFormat:
    """One format.

    ``bits_per_weight`` is the logical cost of full groups or blocks in bits: 16 or 32 for direct formats,
    code plus scale for grouped, nvfp4 and gguf formats, and the 8 code bits alone for row-scaled formats,
    whose scale is shared by a row of any length. Fields that do not apply are None. ``block_values`` is in
    elements, ``block_bytes`` in bytes, ``word_bytes`` is the size of one direct word in bytes.
    """

    name: str
    category: str
    layout: str
    bits_per_weight: float
    word_bytes: int | None = None
    code_bits: int | None = None
    group_size: int | None = None
    code_min: int | None = None
    code_max: int | None = None
    block_values: int | None = None
    block_bytes: int | None = None
    ggml_type: int | None = None

    def __str__(self) -> str:
        return self.name


def _direct(name: str, word_bytes: int) -> OracleFormat:
    return OracleFormat(name, "direct", "contiguous_le_v1", 8.0 * word_bytes, word_bytes=word_bytes)


def _grouped(name: str, bits: int, group: int, code_min: int, code_max: int) -> OracleFormat:
    return OracleFormat(
        name,
        "grouped",
        "row_split_k128_v1",
        bits + 16 / group,
        code_bits=bits,
        group_size=group,
        code_min=code_min,
        code_max=code_max,
    )


def _gguf(name: str, ggml_type: int, values: int, size: int) -> OracleFormat:
    return OracleFormat(
        name,
        "gguf",
        "gguf_blocks_v1",
        8 * size / values,
        block_values=values,
        block_bytes=size,
        ggml_type=ggml_type,
    )


_TABLE: tuple[OracleFormat, ...] = (
    _direct("bf16", 2),
    _direct("fp32", 4),
    _direct("int32", 4),
    _grouped("q2_g64_fp16", 2, 64, -1, 2),
    _grouped("q4_g64_fp16", 4, 64, -8, 7),
    _grouped("q5_g64_fp16", 5, 64, -16, 15),
    _grouped("q6_g64_fp16", 6, 64, -32, 31),
    _grouped("q8_g32_fp16", 8, 32, -127, 127),
    _grouped("t2_g128_fp16", 2, 128, -1, 1),
    OracleFormat("nvfp4", "block_scaled", "block_scale_k16_m128x4_v1", 4.5, code_bits=4, group_size=16),
    OracleFormat("fp8_e4m3fn_row_bf16", "row_scaled", "row_scale_v1", 8.0, code_bits=8),
    OracleFormat("fp8_e4m3fn_row_fp16", "row_scaled", "row_interleaved_v1", 8.0, code_bits=8),
    _gguf("gguf_q8_0", 8, 32, 34),
    _gguf("gguf_q4_0", 2, 32, 18),
    _gguf("gguf_q5_0", 6, 32, 22),
    _gguf("gguf_q2_0", 42, 64, 18),
    _gguf("gguf_q2_k", 10, 256, 84),
    _gguf("gguf_q3_k", 11, 256, 110),
    _gguf("gguf_q4_k", 12, 256, 144),
    _gguf("gguf_q5_k", 13, 256, 176),
    _gguf("gguf_q6_k", 14, 256, 210),
    _gguf("gguf_iq2_xxs", 16, 256, 66),
    _gguf("gguf_iq2_xs", 17, 256, 74),
    _gguf("gguf_iq3_xxs", 18, 256, 98),
    _gguf("gguf_iq1_s", 19, 256, 50),
    _gguf("gguf_iq4_nl", 20, 32, 18),
    _gguf("gguf_iq3_s", 21, 256, 110),
    _gguf("gguf_iq2_s", 22, 256, 82),
    _gguf("gguf_iq4_xs", 23, 256, 136),
    _gguf("gguf_iq1_m", 29, 256, 56),
)

FORMATS: Mapping[str, OracleFormat] = MappingProxyType({f.name: f for f in _TABLE})
"""Read-only mapping name -> OracleFormat, 30 entries in the order of the specification's tables."""


def get_format(name: str) -> OracleFormat:
    """The format of that exact name. Raises UnknownFormatError with the nearest names otherwise."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        near = difflib.get_close_matches(str(name), FORMATS, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UnknownFormatError(f"unknown format {name!r}{hint}") from None
