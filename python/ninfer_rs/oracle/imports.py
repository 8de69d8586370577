"""import_encoded: copies already quantised words into a registered format, never rounding a weight (encoders
and imports page). HF block FP8 is not importable as words and has no place here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import floats
from .errors import InvalidWordsError, ShapeError, UnsupportedError
from .layouts import u16_at
from .registry import get_format
from .validate import from_words

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
Source = Mapping[str, npt.ArrayLike]

Q2_0, Q8_0, PQ2_0, PTQ1_0 = 42, 8, 142, 143


def _bytes(name: str, source: Source, key: str) -> U8:
    value = np.asarray(source[key])
    if value.dtype.name == "float8_e4m3fn":
        value = value.view(np.uint8)
    if value.dtype != np.uint8 or value.ndim != 2 or 0 in value.shape:
        raise ShapeError(f"{name}: '{key}' must be a uint8 matrix, not {value.dtype} {list(value.shape)}")
    return value


def _blocks(name: str, source: Source, size: int) -> tuple[int, U8]:
    """Row count and the blocks [N * blocks per row, size] of source['blocks'] [N, row bytes]."""
    raw = _bytes(name, source, "blocks")
    if raw.shape[1] % size:
        raise ShapeError(f"{name}: rows of {raw.shape[1]} bytes are not whole blocks of {size} bytes")
    return raw.shape[0], raw.reshape(-1, size)


def _ggml_type(source: Source) -> int:
    return int(np.asarray(source["ggml_type"]))


# -- GGUF sources ----------------------------------------------------------------------------------------


def _gguf(name: str, source: Source) -> U8:
    fmt = get_format(name)
    assert fmt.block_bytes is not None and fmt.block_values is not None
    if _ggml_type(source) != fmt.ggml_type:
        raise UnsupportedError(
            f"{name}: holds ggml type {fmt.ggml_type}, the source is type {_ggml_type(source)}"
        )
    n, blocks = _blocks(name, source, fmt.block_bytes)
    k = blocks.shape[0] // n * fmt.block_values
    return from_words(name, (n, k), blocks=blocks.reshape(n, -1))


def _grouped(name: str, n: int, codes: npt.NDArray[np.integer], scales: U16) -> U8:
    """from_words refuses what the format does not admit, naming row and group or column."""
    matrix = codes.astype(np.int8).reshape(n, -1)
    return from_words(name, matrix.shape, codes=matrix, scales=scales.reshape(n, -1))


def _fields(raw: U8) -> npt.NDArray[np.int32]:
    """Bytes [B, m] -> two-bit fields [B, 4 m], lowest first."""
    fields: U8 = (raw[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & np.uint8(3)
    return fields.reshape(raw.shape[0], -1).astype(np.int32)


def _q2(name: str, source: Source) -> U8:
    if _ggml_type(source) != Q2_0:
        raise UnsupportedError(f"{name}: imports ggml type {Q2_0} (Q2_0), not {_ggml_type(source)}")
    n, blocks = _blocks(name, source, 18)
    return _grouped(name, n, _fields(blocks[:, 2:]) - 1, u16_at(blocks[:, :2]))


def _q8(name: str, source: Source) -> U8:
    if _ggml_type(source) != Q8_0:
        raise UnsupportedError(f"{name}: imports ggml type {Q8_0} (Q8_0), not {_ggml_type(source)}")
    n, blocks = _blocks(name, source, 34)
    codes = blocks[:, 2:].astype(np.uint8).view(np.int8)
    return _grouped(name, n, codes, u16_at(blocks[:, :2]))


def _trits(blocks: U8) -> npt.NDArray[np.int32]:
    """PTQ1_0 blocks [B, 28] -> codes -1..1, int32 [B, 128]."""

    def trit(raw: U8, t: int) -> npt.NDArray[np.int32]:
        code: npt.NDArray[np.int32] = ((raw.astype(np.int32) * 3**t % 256) * 3 >> 8) - 1
        return code

    qs, qh = blocks[:, :24], blocks[:, 24:26]
    runs = [trit(chunk, t) for chunk in (qs[:, :16], qs[:, 16:]) for t in range(5)]
    return np.concatenate(runs + [trit(qh, t) for t in range(4)], axis=1)


def _t2(name: str, source: Source) -> U8:
    kind = _ggml_type(source)
    if kind == PQ2_0:
        n, blocks = _blocks(name, source, 34)
        codes = _fields(blocks[:, 2:]) - 1
        bad = np.argwhere((codes == 2).reshape(n, -1))
        if bad.size:
            r, c = (int(i) for i in bad[0])
            raise InvalidWordsError(
                f"{name}: PQ2_0 code word 3 at row {r}, column {c} is not a ternary value"
            )
        return _grouped(name, n, codes, u16_at(blocks[:, :2]))
    if kind == PTQ1_0:
        n, blocks = _blocks(name, source, 28)
        return _grouped(name, n, _trits(blocks), u16_at(blocks[:, 26:28]))
    raise UnsupportedError(f"{name}: imports types {PQ2_0} (PQ2_0) and {PTQ1_0} (PTQ1_0), not {kind}")


# -- safetensors sources ---------------------------------------------------------------------------------


def _fp8_rows(name: str, source: Source) -> U8:
    codes = _bytes(name, source, "weight")
    n = codes.shape[0]
    scale = np.asarray(source["weight_scale"])
    if scale.shape not in ((), (1,), (1, 1), (n,), (n, 1)):
        raise ShapeError(
            f"{name}: weight_scale has shape {list(scale.shape)}, must be [{n}], [{n}, 1] or one scale"
        )
    if scale.dtype == np.float32:
        words = floats.f32_to_bf16(scale.reshape(-1))
    elif scale.dtype == np.uint16 or scale.dtype.name == "bfloat16":
        words = scale.reshape(-1).view(np.uint16)
    else:
        raise UnsupportedError(f"{name}: weight_scale must be float32 or bfloat16, not {scale.dtype}")
    return from_words(name, codes.shape, codes=codes, scales=np.broadcast_to(words, (n,)).astype(np.uint16))


def _one_float(name: str, source: Source, key: str) -> np.float32:
    value = np.asarray(source[key])
    if value.dtype != np.float32 or value.size != 1:
        raise ShapeError(f"{name}: '{key}' must be one float32, not {value.dtype} {list(value.shape)}")
    scalar: np.float32 = np.float32(value.reshape(-1)[0])
    if not (np.isfinite(scalar) and scalar > 0):
        raise InvalidWordsError(f"{name}: '{key}' is {scalar}, must be finite and positive")
    return scalar


def _nvfp4(name: str, sources: Sequence[Source]) -> U8:
    codes: list[U8] = []
    scales: list[U8] = []
    divisors: list[np.float32] = []
    for i, source in enumerate(sources):
        packed = "weight_packed" in source
        code = _bytes(name, source, "weight_packed" if packed else "weight")
        scale = _bytes(name, source, "weight_scale")
        n, k = code.shape[0], 2 * code.shape[1]
        if n % 128 or k % 64:
            raise ShapeError(f"{name}: source {i} is [{n}, {k}], needs N % 128 == 0 and K % 64 == 0")
        if scale.shape != (n, k // 16):
            raise ShapeError(
                f"{name}: source {i}: weight_scale is {list(scale.shape)}, must be [{n}, {k // 16}]"
            )
        if code.shape != (codes or [code])[0].shape:
            raise ShapeError(f"{name}: source {i} is [{n}, {k}], unlike source 0")
        if packed:
            divisor = _one_float(name, source, "weight_global_scale")
        else:
            with np.errstate(all="ignore"):
                divisor = np.float32(1) / _one_float(name, source, "weight_scale_2")
            if not np.isfinite(divisor):
                raise InvalidWordsError(f"{name}: source {i}: weight_scale_2 has no finite reciprocal")
        codes.append(code)
        scales.append(scale)
        divisors.append(divisor)
    rows = sum(c.shape[0] for c in codes)
    return from_words(
        name,
        (rows, 2 * codes[0].shape[1]),
        codes=np.concatenate(codes),
        scales=np.concatenate(scales),
        divisors=np.array(divisors, dtype=np.float32),
    )


# -- dispatch --------------------------------------------------------------------------------------------

_ONE: dict[str, tuple[Callable[[str, Source], U8], tuple[str, ...]]] = {
    "q2_g64_fp16": (_q2, ("blocks", "ggml_type")),
    "q8_g32_fp16": (_q8, ("blocks", "ggml_type")),
    "t2_g128_fp16": (_t2, ("blocks", "ggml_type")),
    "fp8_e4m3fn_row_bf16": (_fp8_rows, ("weight", "weight_scale")),
}
_NVFP4_KEYS = (
    ("weight_packed", "weight_scale", "weight_global_scale"),
    ("weight", "weight_scale", "weight_scale_2"),
)


def _keys(name: str, source: Any, allowed: Sequence[tuple[str, ...]]) -> None:
    if not isinstance(source, Mapping) or not any(set(source) == set(keys) for keys in allowed):
        given = sorted(source) if isinstance(source, Mapping) else type(source).__name__
        choices = " or ".join(", ".join(keys) for keys in allowed)
        raise UnsupportedError(f"{name}: the source must hold exactly {choices}; it holds {given}")


def import_encoded(name: str, source: Source | Sequence[Source]) -> U8:
    """Copies the words of an encoded source -> payload of the named format.

    ==================== =====================================================================================
    target               source
    ==================== =====================================================================================
    gguf_*               ``blocks`` uint8 [N, row bytes], ``ggml_type`` the format's own
    q2_g64_fp16          the same of type 42 (Q2_0)
    q8_g32_fp16          the same of type 8 (Q8_0)
    t2_g128_fp16         the same of type 142 (PQ2_0) or 143 (PTQ1_0)
    fp8_e4m3fn_row_bf16  ``weight`` uint8 [N, K], ``weight_scale`` bfloat16 (uint16 words) or float32, shaped
                         [N], [N, 1] or one scale for all rows; float32 rounds once to bfloat16
    nvfp4                one source or a list stacked by rows, each ``weight_packed`` uint8 [N, K/2],
                         ``weight_scale`` uint8 [N, K/16], ``weight_global_scale`` float32 (a divisor); or
                         ``weight``, ``weight_scale``, ``weight_scale_2`` float32 (a multiplier v: the divisor
                         is f32(1 / v))
    ==================== =====================================================================================

    Raises UnsupportedError for another target, source members or type; ShapeError for shapes that do not fit;
    InvalidWordsError naming plane, row and group or column of the first word the target does not admit.
    """
    fmt = get_format(name)
    if fmt.category == "gguf":
        _keys(name, source, [("blocks", "ggml_type")])
        assert isinstance(source, Mapping)
        return _gguf(name, source)
    if name == "nvfp4":
        many = [source] if isinstance(source, Mapping) else list(source)
        if not many:
            raise UnsupportedError("nvfp4: no source given")
        for one in many:
            _keys(name, one, _NVFP4_KEYS)
        return _nvfp4(name, many)
    if name not in _ONE:
        raise UnsupportedError(f"{name}: nothing is imported into this format")
    function, keys = _ONE[name]
    _keys(name, source, [keys])
    assert isinstance(source, Mapping)
    return function(name, source)
