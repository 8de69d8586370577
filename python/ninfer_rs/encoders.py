"""From values to words: named conversion methods."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import BFLOAT16, U8, AnyArray, contiguous, thread_count
from .errors import ShapeError, UnsupportedError, naming
from .registry import BY_INDEX, Format, get_format
from .tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENCODERS", "quantize"]

ENCODERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {name: tuple(BY_INDEX[i].name for i in formats) for name, formats, _ in _native.encoders()}
)
"""Method name -> names of the formats it produces."""

_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {BY_INDEX[i].name: name for name, formats, default in _native.encoders() if default for i in formats}
)


def quantize(
    x: npt.ArrayLike,
    format: str | Format,
    method: str | None = None,
    *,
    importance: npt.ArrayLike | None = None,
    negative_scales: bool = False,
    threads: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Encodes an array of values (row-major, K last) as a tensor of ``format`` by a named method.

    ``method`` None picks the format's default, the first of :data:`ENCODERS` that produces it; formats
    without one (those whose words come from elsewhere) refuse.

    ``cast_direct`` (bf16, fp32, int32; any shape) converts word by word. Its sources are float16, bfloat16,
    float32, float64 and integers. Equal source and target types keep every bit. To bf16 and fp32, floats
    only: rounding is nearest-even, overflow gives infinity, NaN keeps its sign and top payload bits and
    becomes quiet; float64 is rounded to binary32 first and from there to bf16, so bf16 of a float64 source
    rounds twice. To int32: every value must be integral and within int32, else :class:`UnsupportedError`
    names the first bad index.

    All other methods take a matrix [N, K] of float16, bfloat16, float32 or float64 (rounded once to binary32)
    and refuse values that are not finite and scales that do not fit, naming row and column or group:
    ``grouped_absmax`` (q4, q5, q6, q8), ``grouped_search`` (the same formats; least weighted squared error),
    ``fp8_row_maxabs`` (both fp8 formats), ``gguf_search`` (ggml blocks), ``ternary_fit`` (t2),
    ``nvfp4_maxabs`` and ``nvfp4_search`` (nvfp4, one divisor; N a multiple of 128, K of 64). ``importance``
    (the searching methods and ``ternary_fit``) is one finite, non-negative float32 weight per input channel,
    [K]; ``negative_scales`` (``grouped_search``) lets negative scales compete.

    Non-contiguous arrays are copied. ``name`` is the result's name and is put before messages. Releases the
    GIL; ``threads`` None uses all cores, and the words do not depend on it.

    Raises :class:`UnknownFormatError`, :class:`ShapeError`, :class:`UnsupportedError` (method, dtype, a value
    that the format cannot hold).
    """
    with naming(name):
        fmt = get_format(format)
        chosen = _method(fmt, method)
        array = np.asarray(x)
        n_threads = thread_count(threads)
        if chosen == "cast_direct":
            if importance is not None or negative_scales:
                raise UnsupportedError("cast_direct takes neither importance nor negative_scales")
            payload = _cast_direct(fmt, array)
        else:
            weights = None if importance is None else _importance(importance)
            payload = _encode_rows(fmt, chosen, array, (weights, bool(negative_scales), n_threads))
        return Tensor.from_payload(fmt, array.shape, payload, name=name)


def _method(fmt: Format, method: str | None) -> str:
    able = [name for name, formats in ENCODERS.items() if fmt.name in formats]
    if method is None:
        if not able:
            raise UnsupportedError(
                f"{fmt.name}: no method makes this format from values; import_encoded copies its words"
            )
        if fmt.name not in _DEFAULTS:
            # Words that usually come from a file: making them from values must be asked for by name.
            raise UnsupportedError(f"{fmt.name} has no default method; name one: {', '.join(able)}")
        return _DEFAULTS[fmt.name]
    if method not in ENCODERS:
        raise UnsupportedError(f"unknown method {method!r}; the methods are {', '.join(ENCODERS)}")
    if method not in able:
        raise UnsupportedError(
            f"{method} does not produce {fmt.name}; it produces {', '.join(ENCODERS[method])}"
        )
    return method


def _cast_direct(fmt: Format, x: AnyArray) -> U8:
    kind = x.dtype.name
    shape = x.shape
    if x.dtype.kind in "iu":
        if kind == "uint64":
            return _native.cast_u64(fmt.index, shape, contiguous(x).reshape(-1))
        return _native.cast_i64(fmt.index, shape, contiguous(x.astype(np.int64)).reshape(-1))
    if kind not in _FLOATS:
        raise UnsupportedError(f"cast_direct takes floats and integers, got an array of {x.dtype}")
    flat = contiguous(x).reshape(-1)
    if kind == BFLOAT16:
        return _native.cast_bf16(fmt.index, shape, flat.view(np.uint16))
    if kind == "float16":
        return _native.cast_f16(fmt.index, shape, flat.view(np.uint16))
    if kind == "float32":
        return _native.cast_f32(fmt.index, shape, flat)
    return _native.cast_f64(fmt.index, shape, flat)


def _encode_rows(fmt: Format, method: str, x: AnyArray, options: _Options) -> U8:
    kind = x.dtype.name
    if kind not in _FLOATS:
        raise UnsupportedError(f"{method} takes {', '.join(_FLOATS)}, got an array of {x.dtype}")
    if x.ndim != 2:
        raise ShapeError(f"{method} takes a matrix [N, K], got shape {x.shape}")
    fmt.encoded_size(x.shape)
    shape = (x.shape[0], x.shape[1])
    flat = contiguous(x).reshape(-1)
    if kind == BFLOAT16:
        return _native.encode_bf16(fmt.index, method, shape, flat.view(np.uint16), options)
    if kind == "float16":
        return _native.encode_f16(fmt.index, method, shape, flat.view(np.uint16), options)
    if kind == "float32":
        return _native.encode_f32(fmt.index, method, shape, flat, options)
    return _native.encode_f64(fmt.index, method, shape, flat, options)


def _importance(importance: npt.ArrayLike) -> npt.NDArray[np.float32]:
    array = np.asarray(importance)
    if array.dtype != np.float32 or array.ndim != 1:
        raise UnsupportedError(f"importance must be float32 [K], got {array.dtype} with shape {array.shape}")
    return contiguous(array)


_FLOATS: Final = ("float16", BFLOAT16, "float32", "float64")
_Options = tuple[npt.NDArray[np.float32] | None, bool, int | None]
