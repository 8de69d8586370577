"""Importance matrices: normalised vectors from llama.cpp's two file forms (encoders page)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import InvalidWordsError, ShapeError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Importance(NamedTuple):
    """``values`` float32 [K] or [experts, K]; ``unreached`` the indices of experts without any data, whose
    importance is all ones."""

    values: F32
    unreached: tuple[int, ...]


def _quotient(sums: F64, counts: F64) -> F32:
    with np.errstate(all="ignore"):
        return (sums / np.maximum(counts, 1.0)).astype(np.float32)


def _check(sums: F64) -> None:
    bad = np.argwhere(~(np.isfinite(sums) & (sums >= 0)))
    if bad.size:
        raise InvalidWordsError(
            f"importance sum {sums[tuple(bad[0])]} at {bad[0].tolist()} is not finite and >= 0"
        )


def from_in_sum2(in_sum2: npt.ArrayLike, counts: npt.ArrayLike) -> Importance:
    """GGUF form: ``in_sum2`` float32 [K] with one count, or [experts, K] with one count per expert.

    Importance = in_sum2 / max(counts, 1), the binary64 quotient rounded once to binary32. In a tensor of
    several experts one with a zero count gets all ones and is listed. Raises ShapeError where the counts do
    not fit, InvalidWordsError for a negative or non-finite sum or count.
    """
    sums = np.asarray(in_sum2, dtype=np.float64)
    number = np.asarray(counts, dtype=np.float64).reshape(-1)
    if sums.ndim == 2 and sums.shape[0] == 1:
        sums = sums[0]
    experts = 1 if sums.ndim == 1 else sums.shape[0] if sums.ndim == 2 else -1
    if number.size != experts or sums.shape[-1:] == (0,):
        raise ShapeError(f"in_sum2 {list(sums.shape)} does not go with {number.size} counts")
    _check(sums)
    if not bool((np.isfinite(number) & (number >= 0)).all()):
        raise InvalidWordsError("a count is not finite and >= 0")
    if sums.ndim == 1:
        return Importance(_quotient(sums, number), ())
    values = _quotient(sums, number[:, None])
    unreached = tuple(int(e) for e in np.flatnonzero(number == 0))
    values[list(unreached)] = 1.0
    return Importance(values, unreached)


def parse_legacy(data: bytes) -> dict[str, F32]:
    """Legacy binary form: int32 entry count, then per entry int32 name length, name, int32 ncall, int32 nval,
    nval float32 sums, all little-endian. Importance = sum / max(ncall, 1), float32 [nval] by name.

    Bytes after the last entry are allowed (later writers append call counts and a data set name). Raises
    InvalidWordsError with the byte offset for a file that ends early, a negative count or length, or a
    repeated name.
    """
    at = 0

    def take(size: int, what: str) -> bytes:
        nonlocal at
        if size < 0 or size > len(data) - at:
            raise InvalidWordsError(
                f"imatrix: {what} of {size} bytes at offset {at}, {len(data) - at} remain"
            )
        at += size
        return data[at - size : at]

    def int32(what: str, least: int) -> int:
        value = int(struct.unpack("<i", take(4, what))[0])
        if value < least:
            raise InvalidWordsError(f"imatrix: {what} is {value} at offset {at - 4}")
        return value

    result: dict[str, F32] = {}
    for _ in range(int32("entry count", 0)):
        name = take(int32("name length", 1), "name").decode("utf-8", "surrogateescape")
        calls = int32(f"ncall of {name!r}", 0)
        count = int32(f"nval of {name!r}", 1)
        sums = np.frombuffer(take(4 * count, f"values of {name!r}"), dtype="<f4").astype(np.float64)
        if name in result:
            raise InvalidWordsError(f"imatrix: two entries are named {name!r}")
        _check(sums)
        result[name] = _quotient(sums, np.float64(calls) * np.ones(1))
    return result
