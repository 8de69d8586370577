"""The built-in encoders: cast_direct, grouped_absmax, grouped_search and fp8_row_maxabs (encoders page;
format specification, section 7), and our own searching methods."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import floats, searched
from .errors import InvalidWordsError, ShapeError, UnsupportedError
from .registry import OracleFormat, get_format
from .validate import from_words

if TYPE_CHECKING:
    from collections.abc import Callable

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

METHODS: dict[str, tuple[str, ...]] = {
    "cast_direct": ("bf16", "fp32", "int32"),
    "grouped_absmax": ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"),
    "grouped_search": ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"),
    "fp8_row_maxabs": ("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"),
    "gguf_search": (
        "gguf_q8_0",
        "gguf_q4_0",
        "gguf_q5_0",
        "gguf_iq4_nl",
        "gguf_q4_k",
        "gguf_q5_k",
        "gguf_q6_k",
        "gguf_iq4_xs",
    ),
    "ternary_fit": ("t2_g128_fp16",),
    "nvfp4_maxabs": ("nvfp4",),
    "nvfp4_search": ("nvfp4",),
    "gguf_absmax": ("gguf_q8_0", "gguf_q4_0", "gguf_q5_0"),
}
"""Method name -> the formats it may produce."""


# -- sources ---------------------------------------------------------------------------------------------


def _is_bf16(x: npt.NDArray[Any]) -> bool:
    return x.dtype.name == "bfloat16" or x.dtype == np.uint16


def _source_f32(name: str, x: npt.NDArray[Any]) -> F32:
    """Source values as float32: bfloat16, binary16 and float32 exactly, float64 to nearest even."""
    if _is_bf16(x):
        return floats.bf16_to_f32(x.view(np.uint16))
    if x.dtype == np.float16:
        return floats.f16_to_f32(x.view(np.uint16))
    if x.dtype == np.float32:
        return x.astype(np.float32)
    if x.dtype == np.float64:
        return floats.f64_to_f32(x)
    raise UnsupportedError(f"{name}: cannot encode {x.dtype} values")


def _matrix_f32(name: str, x: npt.NDArray[Any]) -> F32:
    if x.ndim != 2 or 0 in x.shape:
        raise ShapeError(f"{name}: the source must be a matrix [N, K] with N, K > 0, not {list(x.shape)}")
    values = _source_f32(name, x)
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        r, c = (int(i) for i in bad[0])
        raise InvalidWordsError(f"{name}: source value {x[r, c]} at row {r}, column {c} is not finite")
    return values


_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


# -- cast_direct -----------------------------------------------------------------------------------------


def cast_direct(name: str, x: npt.NDArray[Any]) -> U8:
    """Source array of any rank -> payload of bf16, fp32 or int32.

    bf16: from float32 or binary16, nearest even; NaN keeps its sign and becomes quiet; overflow gives
    infinity. fp32: from bfloat16 or binary16, exact. float64 is rounded to binary32 before anything else.
    int32: from integers, or floats that are integral, inside [-2^31, 2^31 - 1]. Same-type words stay as they
    are. uint16 arrays are bfloat16 words, except for int32, to which they are integers. Raises
    InvalidWordsError naming the first bad index, UnsupportedError for any other pair of types.
    """
    if name == "int32":
        return from_words(name, x.shape, words=_to_int32(x))
    if name == "bf16":
        if _is_bf16(x):
            return from_words(name, x.shape, words=x.view(np.uint16))
        if x.dtype in _FLOATS:
            return from_words(name, x.shape, words=floats.f32_to_bf16(_source_f32(name, x)))
    elif _is_bf16(x) or x.dtype in _FLOATS:
        return from_words(name, x.shape, words=floats.f32_bits(_source_f32(name, x)))
    raise UnsupportedError(f"cast_direct: no conversion from {x.dtype} to {name} is defined")


def _to_int32(x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    low, high = -(1 << 31), (1 << 31) - 1
    bad: npt.NDArray[np.bool_]
    if x.dtype.kind == "u":
        bad = x.astype(np.uint64) > np.uint64(high)
    elif x.dtype.kind == "i":
        bad = (x.astype(np.int64) > high) | (x.astype(np.int64) < low)
    elif x.dtype.name == "bfloat16" or x.dtype in (np.float16, np.float32, np.float64):
        wide = x.astype(np.float64)
        with np.errstate(invalid="ignore"):
            bad = ~((wide >= low) & (wide <= high) & (np.trunc(wide) == wide))
    else:
        raise UnsupportedError(f"cast_direct: no conversion from {x.dtype} to int32 is defined")
    places = np.argwhere(bad)
    if len(places):
        at = tuple(int(i) for i in places[0])
        raise InvalidWordsError(f"int32: value {x[at]} at index {list(at)} is not an integer of 32 bits")
    return x.astype(np.int32)


# -- grouped ---------------------------------------------------------------------------------------------


def _to_half(candidate: F64) -> U16:
    """binary64 -> binary32 -> binary16, two roundings as the specification orders."""
    return floats.f32_to_f16(floats.f64_to_f32(candidate))


def _codes(fmt: OracleFormat, w: F32, scale16: U16) -> F32:
    """clamp(rint(f32(w * f32(1 / s)))) for groups w [B, G] and scale words [B]; 0 where the scale is 0."""
    assert fmt.code_min is not None and fmt.code_max is not None
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / floats.f16_to_f32(scale16)
        inverse = np.where(floats.f16_to_f32(scale16) == 0, np.float32(0), inverse)
        code: F32 = np.clip(np.rint(w * inverse[:, None]), fmt.code_min, fmt.code_max)
    return code.astype(np.float32)


def _absmax_scales(name: str, fmt: OracleFormat, w: F32, groups: int) -> U16:
    """Scale words of groups w [B, G], B = rows * groups."""
    assert fmt.code_max is not None
    amax = np.abs(w).max(axis=1)
    raw = amax / np.float32(fmt.code_max)
    scale = floats.f32_to_f16(raw)
    bad = np.flatnonzero(scale == np.uint16(0x7C00))
    if bad.size:
        r, g = divmod(int(bad[0]), groups)
        raise InvalidWordsError(f"{name}: the scale {raw[bad[0]]} of row {r}, group {g} overflows binary16")
    scale = np.where(scale == 0, np.uint16(1), scale)
    return np.where(amax == 0, np.uint16(0), scale).astype(np.uint16)


def _sum8(terms: F64) -> F64:
    """Sums [B, G]: eight partial sums, lane l over columns l mod 8 in increasing order, combined as
    ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))."""
    lanes = np.zeros((terms.shape[0], 8))
    for at in range(0, terms.shape[1], 8):
        lanes += terms[:, at : at + 8]
    a, b, c, d = (lanes[:, i] + lanes[:, i + 4] for i in range(4))
    total: F64 = (a + c) + (b + d)
    return total


class _Search:
    """grouped_search over groups w [B, G] in binary64; padding columns have w = imp = 0 and add nothing."""

    def __init__(self, fmt: OracleFormat, w: F32, imp: F64, start: U16, negative: bool) -> None:
        self.fmt, self.w, self.imp, self.negative = fmt, w, imp, negative
        self.w64 = w.astype(np.float64)
        self.live = np.abs(w).max(axis=1) > 0
        self.scale = start.copy()
        self.code = _codes(fmt, w, start)
        self.error = self._error(start, self.code)

    def _error(self, scale: U16, code: F32) -> F64:
        s = floats.f16_to_f32(scale).astype(np.float64)[:, None]
        with np.errstate(all="ignore"):
            t = self.w64 - s * code.astype(np.float64)
            return _sum8(self.imp * t * t)

    def round(self, candidate: F64) -> U16:
        """Scale words of binary64 candidates; 0 marks a dropped one. A non-zero candidate that rounds to zero
        takes the smallest subnormal of its sign."""
        word = _to_half(candidate)
        magnitude = word & np.uint16(0x7FFF)
        sign = np.where(np.signbit(candidate), np.uint16(0x8000), np.uint16(0))
        word = np.where(magnitude == 0, sign | np.uint16(1), word).astype(np.uint16)
        drop = (candidate == 0) | ~np.isfinite(candidate) | (magnitude >= np.uint16(0x7C00))
        return np.where(drop, np.uint16(0), word).astype(np.uint16)

    def step(self, word: U16, steps: int) -> U16:
        """The binary16 neighbour ``steps`` magnitudes away, same sign; 0 where that is zero or not finite."""
        magnitude = (word & np.uint16(0x7FFF)).astype(np.int32)
        moved = magnitude + steps
        keep = (magnitude > 0) & (moved >= 1) & (moved <= 0x7BFF)
        sign = word & np.uint16(0x8000)
        stepped: U16 = moved.astype(np.uint16) | sign
        return np.where(keep, stepped, np.uint16(0)).astype(np.uint16)

    def compete(self, word: U16) -> None:
        """A candidate replaces the best where its error is strictly smaller."""
        allowed = self.live & (word != 0)
        if not self.negative:
            allowed &= (word & np.uint16(0x8000)) == 0
        code = _codes(self.fmt, self.w, word)
        error = self._error(word, code)
        better = allowed & (error < self.error)
        self.scale = np.where(better, word, self.scale).astype(np.uint16)
        self.code = np.where(better[:, None], code, self.code)
        self.error = np.where(better, error, self.error)

    def least_squares(self, code: F32) -> F64:
        """sum(imp * w * q) / sum(imp * q * q) of each group, 0 where the denominator is 0."""
        q = code.astype(np.float64)
        with np.errstate(all="ignore"):
            below = _sum8(self.imp * q * q)
            f: F64 = np.where(below == 0, 0.0, _sum8(self.imp * self.w64 * q) / below)
        return f

    def run(self) -> None:
        assert self.fmt.code_min is not None and self.fmt.code_max is not None
        start, start_code = self.scale.copy(), self.code.copy()
        largest = np.abs(self.w).argmax(axis=1)
        extreme = self.w64[np.arange(self.w.shape[0]), largest]
        ratios = [float(f"{percent / 100:.2f}") for percent in range(70, 120, 2)]
        for base in (np.abs(extreme) / self.fmt.code_max, extreme / self.fmt.code_min):
            for r in ratios:
                self.compete(self.round(base * r))
        start64 = floats.f16_to_f32(start).astype(np.float64)
        for factor in (0.25, 0.5, 2.0, 4.0):
            self.compete(self.round(start64 * factor))
        for steps in (-2, -1, 1, 2):
            self.compete(self.step(start, steps))
        f = self.round(self.least_squares(start_code))
        self.compete(f)
        f64 = floats.f16_to_f32(f).astype(np.float64)
        for factor in (0.5, 2.0):
            self.compete(self.round(f64 * factor))
        for steps in (-2, -1, 1, 2):
            self.compete(self.step(f, steps))
        f = self.round(self.least_squares(self.code))
        self.compete(f)
        for steps in (-1, 1):
            self.compete(self.step(f, steps))


def _importance(name: str, importance: npt.ArrayLike | None, k: int) -> F64:
    if importance is None:
        return np.ones(k)
    imp = np.asarray(importance)
    if imp.shape != (k,):
        raise ShapeError(f"{name}: importance has shape {list(imp.shape)}, must be [{k}]")
    values = _source_f32(name, imp).astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise InvalidWordsError(f"{name}: importance {imp[bad[0]]} at column {bad[0]} is not finite and >= 0")
    return values


def grouped(
    name: str,
    x: npt.NDArray[Any],
    search: bool,
    importance: npt.ArrayLike | None = None,
    negative: bool = False,
) -> U8:
    """grouped_absmax or grouped_search of a matrix [N, K] -> payload."""
    fmt = get_format(name)
    values = _matrix_f32(name, x)
    n, k = values.shape
    size = fmt.group_size
    assert size is not None
    groups = -(-k // size)
    padded = np.zeros((n, groups * size), dtype=np.float32)
    padded[:, :k] = values
    w = padded.reshape(-1, size)
    scale = _absmax_scales(name, fmt, w, groups)
    code = _codes(fmt, w, scale)
    if search:
        weight = np.zeros(groups * size)
        weight[:k] = _importance(name, importance, k)
        imp = np.broadcast_to(weight.reshape(groups, size), (n, groups, size)).reshape(-1, size)
        job = _Search(fmt, w, imp, scale, negative)
        job.run()
        scale, code = job.scale, job.code
    codes = code.reshape(n, -1)[:, :k].astype(np.int8)
    return from_words(name, (n, k), codes=codes, scales=scale.reshape(n, groups))


# -- fp8_row_maxabs --------------------------------------------------------------------------------------


def fp8_row_maxabs(name: str, x: npt.NDArray[Any]) -> U8:
    """fp8_row_maxabs of a matrix [N, K] -> payload, with the scale type of the format's name."""
    bf16_scale = name.endswith("_bf16")
    source = _matrix_f32(name, x)
    values = floats.bf16_to_f32(floats.f32_to_bf16(source))
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        r, c = (int(i) for i in bad[0])
        raise InvalidWordsError(f"{name}: {source[r, c]} at row {r}, column {c} rounds to bfloat16 infinity")
    amax = np.abs(values).max(axis=1)
    raw = floats.f64_to_f32(amax.astype(np.float64) / 448.0)
    scale = floats.f32_to_bf16(raw) if bf16_scale else floats.f32_to_f16(raw)
    scale = np.where((scale == 0) & (amax > 0), np.uint16(1), scale).astype(np.uint16)
    scale32 = floats.bf16_to_f32(scale) if bf16_scale else floats.f16_to_f32(scale)
    rows = np.flatnonzero(~np.isfinite(scale32))
    if rows.size:
        raise InvalidWordsError(f"{name}: the scale {raw[rows[0]]} of row {rows[0]} overflows")
    with np.errstate(all="ignore"):
        inverse = np.where(amax > 0, np.float32(1) / scale32, np.float32(0))
    rows = np.flatnonzero(np.isinf(inverse))
    if rows.size:
        raise InvalidWordsError(
            f"{name}: the scale {scale32[rows[0]]} of row {rows[0]} has no finite reciprocal"
        )
    y = np.clip(values * inverse[:, None], np.float32(-448), np.float32(448))
    codes = floats.f32_to_e4m3(y)
    codes[amax == 0] = 0
    return from_words(name, source.shape, codes=codes, scales=scale)


# -- our own methods (their arithmetic is in searched.py) --------------------------------------------------


def _spread(name: str, importance: npt.ArrayLike | None, values: F32) -> F64:
    n, k = values.shape
    return np.broadcast_to(_importance(name, importance, k), (n, k))


_LOWEST = {"gguf_q8_0": -128, "gguf_q4_0": -8, "gguf_q5_0": -16}


def _integer_blocks(name: str, scale: U16, code: F32) -> U8:
    """Blocks of 32 integers with one scale."""
    words = scale.astype("<u2").view(np.uint8).reshape(-1, 2)
    if name == "gguf_q8_0":
        return np.concatenate([words, code.astype(np.int8).view(np.uint8)], axis=1).reshape(-1)
    unsigned = (code - _LOWEST[name]).astype(np.uint8)
    nibbles = (unsigned[:, :16] & 15) | (unsigned[:, 16:] & 15) << 4
    if name == "gguf_q4_0":
        return np.concatenate([words, nibbles], axis=1).reshape(-1)
    fifth = np.packbits(unsigned >> 4, axis=1, bitorder="little")
    return np.concatenate([words, fifth, nibbles], axis=1).reshape(-1)


def _as_group(name: str) -> OracleFormat:
    low = _LOWEST[name]
    return dataclasses.replace(get_format(name), group_size=32, code_min=low, code_max=-1 - low)


def _whole_blocks(name: str, x: npt.NDArray[Any]) -> F32:
    values = _matrix_f32(name, x)
    block = get_format(name).block_values
    if block is None or values.shape[1] % block:
        raise ShapeError(f"{name}: K = {values.shape[1]} is not a multiple of {block}")
    return values


def gguf_absmax(name: str, x: npt.NDArray[Any]) -> U8:
    """gguf_absmax of a matrix [N, K] -> blocks."""
    w = _whole_blocks(name, x).reshape(-1, 32)
    extreme = w[np.arange(w.shape[0]), np.abs(w).argmax(axis=1)]
    end = np.float32(127 if name == "gguf_q8_0" else _LOWEST[name])
    raw = (np.abs(extreme) if name == "gguf_q8_0" else extreme) / end
    scale = floats.f32_to_f16(raw)
    bad = np.flatnonzero(scale & np.uint16(0x7FFF) == np.uint16(0x7C00))
    if bad.size:
        raise InvalidWordsError(f"{name}: the scale {raw[bad[0]]} of block {bad[0]} overflows binary16")
    scale = np.where(scale & np.uint16(0x7FFF) == 0, scale | np.uint16(1), scale)
    scale = np.where(extreme == 0, np.uint16(0), scale).astype(np.uint16)
    return _integer_blocks(name, scale, _codes(_as_group(name), w, scale))


def gguf_search(name: str, x: npt.NDArray[Any], importance: npt.ArrayLike | None = None) -> U8:
    """gguf_search of a matrix [N, K] -> blocks."""
    values = _whole_blocks(name, x)
    imp = _spread(name, importance, values)
    if name in _LOWEST:
        return _integer_blocks(name, *searched.integers(name, values, imp.astype(np.float32), _LOWEST[name]))
    return searched.gguf_blocks(name, values, imp.astype(np.float32))


def ternary_fit(name: str, x: npt.NDArray[Any], importance: npt.ArrayLike | None = None) -> U8:
    """ternary_fit of a matrix [N, K] -> payload."""
    fmt = get_format(name)
    values = _matrix_f32(name, x)
    n, k = values.shape
    groups = -(-k // 128)
    w, imp = np.zeros((n, groups * 128), np.float32), np.zeros((n, groups * 128))
    w[:, :k], imp[:, :k] = values, _spread(name, importance, values)
    w, imp = w.reshape(-1, 128), imp.reshape(-1, 128)
    used = np.minimum(k - 128 * np.arange(w.shape[0]) % (128 * groups), 128)
    real = np.array([searched.ternary_scale(a[:m], b[:m]) for a, b, m in zip(w, imp, used, strict=True)])
    start = searched.round_word(real)
    bad = np.flatnonzero((real != 0) & (start == 0))
    if bad.size:
        raise InvalidWordsError(f"{name}: the scale of group {bad[0]} overflows binary16")
    job = _Search(fmt, w, imp, start, False)
    job.live = real != 0
    for steps in (-1, 1):
        job.compete(job.step(start, steps))
    job.compete(job.round(job.least_squares(job.code)))
    codes = np.where(job.live[:, None], job.code, 0).reshape(n, -1)[:, :k].astype(np.int8)
    return from_words(name, (n, k), codes=codes, scales=job.scale.reshape(n, groups))


def nvfp4(
    name: str, x: npt.NDArray[Any], search: bool = False, importance: npt.ArrayLike | None = None
) -> U8:
    """nvfp4_maxabs or nvfp4_search of a matrix [N, K] -> payload with one divisor."""
    values = _matrix_f32(name, x)
    if values.shape[0] % 128 or values.shape[1] % 64:
        raise ShapeError(f"{name}: shape {list(values.shape)} breaks N % 128 == 0 and K % 64 == 0")
    imp = _spread(name, importance, values).astype(np.float32) if search else None
    codes, scales, divisors = searched.nvfp4(name, values, imp)
    return from_words(name, values.shape, codes=codes, scales=scales, divisors=divisors)


# -- dispatch --------------------------------------------------------------------------------------------


def quantize(
    x: npt.ArrayLike,
    name: str,
    method: str | None = None,
    importance: npt.ArrayLike | None = None,
    negative_scales: bool = False,
) -> U8:
    """Encodes ``x`` in the named format -> payload.

    ``method`` None picks the format's default: cast_direct, grouped_absmax or fp8_row_maxabs. The quantising
    methods take a matrix [N, K] of float32, float64 (rounded once to binary32), float16 or bfloat16 (that
    dtype, or uint16 words); see ``cast_direct`` for the direct formats. ``importance`` [K] (rounded to
    binary32; None means ones) belongs to the searching methods and ternary_fit, ``negative_scales`` to
    grouped_search alone.

    Raises UnknownFormatError, UnsupportedError (no such method, or not for this format), ShapeError, and
    InvalidWordsError naming row and column or group of a non-finite source value or a scale that cannot be
    stored.
    """
    fmt = get_format(name)
    chosen = method
    if chosen is None:
        plain = ("cast_direct", "grouped_absmax", "fp8_row_maxabs")
        defaults = [m for m in plain if fmt.name in METHODS[m]]
        if not defaults:
            raise UnsupportedError(f"{name}: no default encoder, the format is only imported or made by name")
        chosen = defaults[0]
    if chosen not in METHODS:
        raise UnsupportedError(f"unknown method {chosen!r}; the methods are {', '.join(METHODS)}")
    if fmt.name not in METHODS[chosen]:
        raise UnsupportedError(f"{chosen} cannot produce {name}, only {', '.join(METHODS[chosen])}")
    if negative_scales and chosen != "grouped_search":
        raise UnsupportedError(f"{chosen} takes no negative_scales")
    unweighted = ("cast_direct", "grouped_absmax", "fp8_row_maxabs", "nvfp4_maxabs", "gguf_absmax")
    if importance is not None and chosen in unweighted:
        raise UnsupportedError(f"{chosen} takes neither importance nor negative_scales")
    source = np.asarray(x)
    weighted: dict[str, Callable[[str, npt.NDArray[Any], npt.ArrayLike | None], U8]] = {
        "gguf_search": gguf_search,
        "ternary_fit": ternary_fit,
    }
    if chosen in weighted:
        return weighted[chosen](name, source, importance)
    if name == "nvfp4":
        return nvfp4(name, source, chosen == "nvfp4_search", importance)
    alone: dict[str, Callable[[str, npt.NDArray[Any]], U8]] = {
        "cast_direct": cast_direct,
        "fp8_row_maxabs": fp8_row_maxabs,
        "gguf_absmax": gguf_absmax,
    }
    if chosen in alone:
        return alone[chosen](name, source)
    return grouped(name, source, chosen == "grouped_search", importance, negative_scales)
