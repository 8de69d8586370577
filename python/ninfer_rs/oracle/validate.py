"""Rule checks over the words of a payload (format specification, sections 3 to 6; storage layouts, padding).

A violation is a dict with ``plane`` ("codes", "scales", "divisors" or "padding"), ``row`` (int, or None where
no row is concerned), ``index`` and ``rule``. ``index`` is the column for codes, the group (or 0 for a row
scale) for scales, the divisor's position for divisors; for padding it is the column of a padding lane, the
group of a padding scale, or the payload byte offset of a gap byte. Rules are the strings of ``RULES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidWordsError
from .layouts import align_up, check_payload, check_shape, pack_words, row_split, split_planes, words

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
Violation = dict[str, Any]

RULES = {
    "code outside the legal range": "a grouped code is not in the format's interval (q8 0x80, t2 0b10)",
    "code is NaN": "an E4M3FN weight code is 0x7F or 0xFF",
    "scale is not finite": "an infinite or NaN scale word",
    "scale is negative zero": "a negative-zero scale word",
    "scale is negative": "a negative nvfp4 or fp8 scale word",
    "zero scale with a nonzero code": "a positive-zero scale over a nonzero code (grouped but q2; fp8)",
    "divisor is not finite and positive": "an nvfp4 divisor that is zero, negative, infinite or NaN",
    "padding code is not zero": "a code at a column past K",
    "padding scale is not zero": "a scale word of a group wholly past K",
    "gap byte is not zero": "a byte between two planes",
}


def _report(out: list[Violation], plane: str, rule: str, bad: npt.NDArray[np.bool_]) -> None:
    assert rule in RULES
    for place in np.argwhere(bad):
        if bad.ndim == 2:
            out.append({"plane": plane, "row": int(place[0]), "index": int(place[1]), "rule": rule})
        elif plane == "divisors":
            out.append({"plane": plane, "row": None, "index": int(place[0]), "rule": rule})
        else:
            out.append({"plane": plane, "row": int(place[0]), "index": 0, "rule": rule})


def _gap(out: list[Violation], payload: U8, begin: int, end: int) -> None:
    for at in np.flatnonzero(payload[begin:end]):
        place = begin + int(at)
        out.append({"plane": "padding", "row": None, "index": place, "rule": "gap byte is not zero"})


def _half_not_finite(scales: U16) -> npt.NDArray[np.bool_]:
    bad: npt.NDArray[np.bool_] = (scales & np.uint16(0x7C00)) == np.uint16(0x7C00)
    return bad


def _grouped(out: list[Violation], name: str, n: int, k: int, payload: U8) -> None:
    fmt = check_shape(name, (n, k))[0]
    assert fmt.group_size is not None and fmt.code_min is not None and fmt.code_max is not None
    geo = row_split(fmt, n, k)
    codes, all_scales = split_planes(fmt, n, k, payload)
    scales = all_scales[:, : geo.logical_groups]
    legal = (codes >= fmt.code_min) & (codes <= fmt.code_max)
    _report(out, "codes", "code outside the legal range", ~legal[:, :k])
    _report(out, "scales", "scale is not finite", _half_not_finite(scales))
    if name != "q2_g64_fp16":
        _report(out, "scales", "scale is negative zero", scales == np.uint16(0x8000))
        zero = np.repeat(all_scales == 0, fmt.group_size, axis=1)
        clash = zero & (codes != 0)
        clash[:, k:] = False
        groups = clash.reshape(n, geo.groups, fmt.group_size).any(axis=2)
        _report(out, "scales", "zero scale with a nonzero code", groups[:, : geo.logical_groups])
    lanes = codes != 0
    lanes[:, :k] = False
    _report(out, "padding", "padding code is not zero", lanes)
    extra = all_scales != 0
    extra[:, : geo.logical_groups] = False
    _report(out, "padding", "padding scale is not zero", extra)
    _gap(out, payload, n * geo.base_row, geo.high_offset)
    _gap(out, payload, geo.high_offset + n * geo.high_row, geo.scale_offset)


def _nvfp4(out: list[Violation], given: dict[str, npt.NDArray[Any]]) -> None:
    scales = given["scales"]
    nan = (scales & np.uint8(0x7F)) == np.uint8(0x7F)
    _report(out, "scales", "scale is not finite", nan)
    _report(out, "scales", "scale is negative zero", scales == np.uint8(0x80))
    _report(out, "scales", "scale is negative", (scales > np.uint8(0x80)) & ~nan)
    word = given["divisors"].view(np.uint32)
    good = (word > np.uint32(0)) & (word < np.uint32(0x7F80_0000))
    _report(out, "divisors", "divisor is not finite and positive", ~good)


def _fp8(out: list[Violation], name: str, given: dict[str, npt.NDArray[Any]]) -> None:
    codes, scales = given["codes"], given["scales"]
    _report(out, "codes", "code is NaN", (codes & np.uint8(0x7F)) == np.uint8(0x7F))
    exponent = np.uint16(0x7F80 if name.endswith("_bf16") else 0x7C00)
    special = (scales & exponent) == exponent
    _report(out, "scales", "scale is not finite", special)
    _report(out, "scales", "scale is negative zero", scales == np.uint16(0x8000))
    _report(out, "scales", "scale is negative", (scales > np.uint16(0x8000)) & ~special)
    clash = (scales == 0) & ((codes & np.uint8(0x7F)) != 0).any(axis=1)
    _report(out, "scales", "zero scale with a nonzero code", clash)


def violations(
    name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, divisors: int = 1
) -> list[Violation]:
    """Every broken rule of a payload of the right size, sorted by plane (codes, scales, divisors, padding),
    then row, then index; empty for a valid payload. Direct and gguf formats admit every word.

    Raises UnknownFormatError or ShapeError when the payload cannot be laid out at all.
    """
    data = check_payload(name, shape, payload, divisors)
    fmt, dims, count = check_shape(name, shape, divisors)
    out: list[Violation] = []
    if fmt.category == "grouped":
        _grouped(out, name, dims[0], dims[1], data)
    elif fmt.category == "block_scaled":
        _nvfp4(out, words(name, dims, data, count))
        n, k = dims
        _gap(out, data, n * k // 2, align_up(n * k // 2, 256))
    elif fmt.category == "row_scaled":
        _fp8(out, name, words(name, dims, data))
        if fmt.layout == "row_scale_v1":
            n, k = dims
            _gap(out, data, n * k, align_up(n * k, 256))
    planes = ("codes", "scales", "divisors", "padding")
    rules = tuple(RULES)

    def place(v: Violation) -> tuple[int, int, int, int]:
        row = -1 if v["row"] is None else v["row"]
        return planes.index(v["plane"]), row, v["index"], rules.index(v["rule"])

    return sorted(out, key=place)


def from_words(name: str, shape: Sequence[int], check: bool = True, **given: npt.ArrayLike) -> U8:
    """The canonical payload of the arrays ``words`` returns; padding codes and padding scales are zero.

    For nvfp4 the divisor count is the length of ``divisors``. Raises InvalidWordsError for a missing or
    unknown array, a wrong dtype, or a code that has no word; with ``check`` also for the first word that is
    storable but outside the format's language (naming plane, row, index and rule). ShapeError for a wrong
    shape.
    """
    count = 1
    if name == "nvfp4" and "divisors" in given:
        count = int(np.size(given["divisors"]))
    payload = pack_words(name, shape, count, given)
    broken = violations(name, shape, payload, count) if check else []
    if broken:
        first = broken[0]
        raise InvalidWordsError(
            f"{name}: {first['rule']} ({first['plane']}, row {first['row']}, index {first['index']}; "
            f"{len(broken)} such places)"
        )
    return payload
