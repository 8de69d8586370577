"""From encoded sources to registered formats: words are copied, never rounded (one exception: see FP8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import BFLOAT16, U8, AnyArray, contiguous, payload_array
from .errors import ShapeError, UnsupportedError, naming
from .gguf import GgufTensor
from .registry import Format, get_format
from .tensor import Tensor, row_indices

__all__ = ["import_encoded"]


def import_encoded(
    format: str | Format, source: Any, *, rows: npt.ArrayLike | None = None, name: str | None = None
) -> Tensor:
    """Imports an encoded ``source`` as a tensor of ``format``, word by word.

    ``gguf_*``
        A GGUF tensor (``nr.gguf.open(...)["name"]``) of that ggml type, or a :class:`Tensor` of that format.
        Blocks are used byte for byte; without ``rows`` the result shares the source's memory.
    ``q2_g64_fp16``, ``q8_g32_fp16``, ``t2_g128_fp16``
        A GGUF tensor of type Q2_0, Q8_0, or PQ2_0 and PTQ1_0; or a :class:`Tensor` of the gguf format of that
        type.
    ``fp8_e4m3fn_row_bf16``
        A mapping ``{"weight": [N, K], "weight_scale": ...}``: codes as uint8 or ml_dtypes.float8_e4m3fn;
        scales as bfloat16 or uint16 words (copied) or float32 (rounded once to bfloat16, nearest-even), of
        shape [N] or [N, 1], or [], [1], [1, 1] for one scale of all rows.
    ``nvfp4``
        A mapping or a sequence of mappings (stacked by rows, one divisor each): ``{"weight_packed": uint8 [N,
        K/2], "weight_scale": [N, K/16], "weight_global_scale": float32}`` (a divisor), or ``{"weight": uint8
        [N, K/2], "weight_scale": ..., "weight_scale_2": float32}`` (a multiplier v; the divisor is f32(1/v)).

    ``rows`` gathers rows of a GGUF or :class:`Tensor` source (any order, repeats allowed). Rank 3 and higher
    become rows. ``name`` is the result's name, by default the source's.

    Raises :class:`UnknownFormatError`, :class:`UnsupportedError` or :class:`InvalidTensorError` (no import of
    this source as this format, words that the format cannot hold), :class:`ShapeError`.
    """
    fmt = get_format(format)
    if name is None and isinstance(source, (Tensor, GgufTensor)):
        name = source.name
    with naming(name):
        if fmt.category == "gguf":
            tensor = _same_blocks(fmt, source)
            if rows is not None:
                tensor = tensor.gather(rows)
            return Tensor.from_payload(fmt, tensor.shape, tensor.payload, name=name)
        if fmt.name in _FROM_BLOCKS:
            return _from_blocks(fmt, source, rows, name)
        if rows is not None:
            raise UnsupportedError(
                f"{fmt.name}: rows are for GGUF and Tensor sources; gather the result instead"
            )
        if fmt.name == "fp8_e4m3fn_row_bf16":
            return _fp8(fmt, source, name)
        if fmt.name == "nvfp4":
            return _nvfp4(fmt, source, name)
        raise UnsupportedError(f"{fmt.name}: nothing is imported as this format")


_FROM_BLOCKS: Final = ("q2_g64_fp16", "q8_g32_fp16", "t2_g128_fp16")


def _same_blocks(fmt: Format, source: Any) -> Tensor:
    if isinstance(source, Tensor):
        if source.format is not fmt:
            raise UnsupportedError(f"cannot import {source.format.name} as {fmt.name} without changing words")
        return source
    if not isinstance(source, GgufTensor):
        raise _wrong_source(fmt, "a GGUF tensor or a Tensor", source)
    if source.ggml_type != fmt.ggml_type:
        raise UnsupportedError(
            f"ggml type {source.ggml_type} ({source.type_name}) is not that of {fmt.name}, {fmt.ggml_type}"
        )
    return source.tensor()


def _from_blocks(fmt: Format, source: Any, rows: npt.ArrayLike | None, name: str | None) -> Tensor:
    if isinstance(source, Tensor):
        if source.format.ggml_type is None:
            raise UnsupportedError(f"cannot import {source.format.name} as {fmt.name}")
        kind, (n, k), data = source.format.ggml_type, source.shape, source.payload
    elif isinstance(source, GgufTensor):
        if not source.shape:
            raise ShapeError("a scalar has no rows")
        kind, k = source.ggml_type, source.shape[-1]
        n = source.blocks.shape[0]
        data = source.blocks.reshape(-1)
    else:
        raise _wrong_source(fmt, "a GGUF tensor or a Tensor", source)
    index = None if rows is None else row_indices(rows, n, fmt.name)
    payload = _native.import_blocks(fmt.index, kind, n, k, data, index)
    return Tensor.from_payload(fmt, (n if index is None else len(index), k), payload, name=name)


def _fp8(fmt: Format, source: Any, name: str | None) -> Tensor:
    parts = _parts(fmt, source, {"weight", "weight_scale"})
    codes = _bytes("weight", parts["weight"], "float8_e4m3fn")
    if codes.ndim != 2:
        raise ShapeError(f"weight must have shape [N, K], got {codes.shape}")
    n, k = codes.shape
    scales = np.asarray(parts["weight_scale"])
    flat = contiguous(scales).reshape(-1)
    code_bytes = codes.reshape(-1)
    if scales.dtype.name in (BFLOAT16, "uint16"):
        payload = _native.import_fp8_bf16(n, k, code_bytes, flat.view(np.uint16), scales.shape)
    elif scales.dtype.name == "float32":
        payload = _native.import_fp8_f32(n, k, code_bytes, flat, scales.shape)
    else:
        raise UnsupportedError(f"weight_scale must be bfloat16, uint16 words or float32, got {scales.dtype}")
    return Tensor.from_payload(fmt, (n, k), payload, name=name)


_Source = tuple[U8, tuple[int, ...], U8, tuple[int, ...], float, bool]


def _nvfp4(fmt: Format, source: Any, name: str | None) -> Tensor:
    stacked = list(source) if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    sources = [_nvfp4_source(fmt, one) for one in stacked]
    payload, n = _native.import_nvfp4(sources)
    k = sources[0][1][1] * 2
    return Tensor.from_payload(fmt, (n, k), payload, len(sources), name=name)


def _nvfp4_source(fmt: Format, source: Any) -> _Source:
    divisor = isinstance(source, Mapping) and "weight_packed" in source
    packed, total = ("weight_packed", "weight_global_scale") if divisor else ("weight", "weight_scale_2")
    parts = _parts(fmt, source, {packed, "weight_scale", total})
    codes = _bytes(packed, parts[packed], "uint8")
    scales = _bytes("weight_scale", parts["weight_scale"], "float8_e4m3fn")
    value = np.asarray(parts[total])
    if value.dtype != np.float32 or value.size != 1:
        raise UnsupportedError(f"{total} must be one float32, got {value.dtype} with shape {value.shape}")
    number = float(value.reshape(()))
    return codes.reshape(-1), codes.shape, scales.reshape(-1), scales.shape, number, divisor


def _parts(fmt: Format, source: Any, wanted: set[str]) -> Mapping[str, Any]:
    if not isinstance(source, Mapping):
        raise _wrong_source(fmt, f"a mapping with {', '.join(sorted(wanted))}", source)
    if set(source) != wanted:
        got = ", ".join(sorted(map(str, source))) or "nothing"
        raise UnsupportedError(f"{fmt.name} is imported from {', '.join(sorted(wanted))}; got {got}")
    return source


def _bytes(what: str, value: Any, dtype: str) -> U8:
    """uint8 words, or values of the one-byte dtype ``dtype`` as their words."""
    array: AnyArray = np.asarray(value)
    if array.dtype.name not in ("uint8", dtype):
        raise UnsupportedError(
            f"{what} must be uint8{'' if dtype == 'uint8' else f' or {dtype}'}, got {array.dtype}"
        )
    return payload_array(contiguous(array)).reshape(array.shape)


def _wrong_source(fmt: Format, wanted: str, source: Any) -> UnsupportedError:
    return UnsupportedError(f"{fmt.name} is imported from {wanted}, got {type(source).__name__}")
