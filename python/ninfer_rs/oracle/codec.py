"""Payloads to values: one function over all 30 formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import direct, floats, fp8_row, gguf_iq, gguf_k, gguf_legacy, gguf_parts, grouped, nvfp4
from .errors import InvalidWordsError, UnsupportedError
from .layouts import check_shape, words
from .registry import get_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .gguf_parts import Parts

U8 = npt.NDArray[np.uint8]

BLOCKS: Mapping[str, Callable[[U8], Parts]] = {
    "gguf_q8_0": gguf_legacy.q8_0,
    "gguf_q4_0": gguf_legacy.q4_0,
    "gguf_q5_0": gguf_legacy.q5_0,
    "gguf_q2_0": gguf_legacy.q2_0,
    "gguf_q2_k": gguf_k.q2_k,
    "gguf_q3_k": gguf_k.q3_k,
    "gguf_q4_k": gguf_k.q4_k,
    "gguf_q5_k": gguf_k.q5_k,
    "gguf_q6_k": gguf_k.q6_k,
    "gguf_iq2_xxs": gguf_iq.iq2_xxs,
    "gguf_iq2_xs": gguf_iq.iq2_xs,
    "gguf_iq3_xxs": gguf_iq.iq3_xxs,
    "gguf_iq1_s": gguf_iq.iq1_s,
    "gguf_iq4_nl": gguf_iq.iq4_nl,
    "gguf_iq3_s": gguf_iq.iq3_s,
    "gguf_iq2_s": gguf_iq.iq2_s,
    "gguf_iq4_xs": gguf_iq.iq4_xs,
    "gguf_iq1_m": gguf_iq.iq1_m,
}
_CHUNK = 1 << 14  # blocks taken apart at a time, to bound the intermediate arrays


def decode_blocks(name: str, blocks: U8) -> npt.NDArray[np.float32]:
    """ggml blocks uint8 [B, block_bytes] -> float32 [B, block_values]."""
    values = get_format(name).block_values
    assert values is not None
    out = np.empty((blocks.shape[0], values), dtype=np.float32)
    for at in range(0, blocks.shape[0], _CHUNK):
        out[at : at + _CHUNK] = gguf_parts.decode(BLOCKS[name](blocks[at : at + _CHUNK]))
    return out


def _float32(name: str, given: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    fmt = get_format(name)
    if fmt.category == "direct":
        return direct.decode(name, given["words"])
    if fmt.category == "grouped":
        assert fmt.group_size is not None
        return grouped.decode(given["codes"], given["scales"], fmt.group_size)
    if fmt.category == "block_scaled":
        return nvfp4.decode(given["codes"], given["scales"], given["divisors"])
    if fmt.category == "row_scaled":
        return fp8_row.decode(name, given["codes"], given["scales"])
    assert fmt.block_bytes is not None
    raw = given["blocks"]
    return decode_blocks(name, raw.reshape(-1, fmt.block_bytes)).reshape(raw.shape[0], -1)


def dequantize(
    name: str,
    shape: Sequence[int],
    payload: npt.ArrayLike | bytes,
    divisors: int = 1,
    dtype: str | None = None,
    overflow: str = "raise",
) -> npt.NDArray[Any]:
    """The represented values, in the tensor's shape.

    ``dtype`` is "float32" (the default of every format but int32), "float16" or "bfloat16" (both returned as
    uint16 words), or "int32" (int32 only, and its default). Values are the binary32 expression of the format,
    rounded once more for the 16-bit types; nvfp4 rounds its real quotient once to whichever type is asked
    for. Words stay bit-identical where the type asked for is the stored one.

    A finite value that would become infinite in a 16-bit type raises InvalidWordsError naming row and column,
    unless ``overflow="infinity"``. Raises ShapeError for a bad shape or payload size and UnsupportedError for
    a type the format does not decode to.
    """
    fmt, dims, count = check_shape(name, shape, divisors)
    given = words(name, dims, payload, count)
    wanted = ("int32" if name == "int32" else "float32") if dtype is None else dtype
    if overflow not in ("raise", "infinity"):
        raise UnsupportedError(f"overflow must be 'raise' or 'infinity', not {overflow!r}")
    if wanted not in ("float32", "float16", "bfloat16", "int32"):
        raise UnsupportedError(f"{name}: cannot decode to {wanted!r}")
    if (name == "int32") != (wanted == "int32"):
        raise UnsupportedError(f"{name}: cannot decode to {wanted!r}, only int32 decodes to int32")
    if wanted == "int32":
        return given["words"]
    if wanted == "float32":
        return _float32(name, given)
    if name == "bf16" and wanted == "bfloat16":
        return given["words"]
    half = wanted == "float16"
    if fmt.category == "block_scaled":
        wide = nvfp4.quotient(given["codes"], given["scales"], given["divisors"])
        narrow = floats.f64_to_f16(wide) if half else floats.f64_to_bf16(wide)
        finite = np.isfinite(wide)
    else:
        single = _float32(name, given)
        narrow = floats.f32_to_f16(single) if half else floats.f32_to_bf16(single)
        finite = np.isfinite(single)
    if overflow == "raise":
        bad = np.argwhere(finite & ((narrow & np.uint16(0x7FFF)) == np.uint16(0x7C00 if half else 0x7F80)))
        if bad.size:
            place = ", ".join(str(int(i)) for i in bad[0])
            raise InvalidWordsError(
                f"{name}: {len(bad)} finite values are too large for {wanted}, the first at [{place}]"
            )
    return narrow
