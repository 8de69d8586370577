"""Rule checks over the words of a payload (format specification, sections 3 to 6; storage layouts, padding).

A violation is a dict with four keys:

* ``plane``: "code", "scale", "divisor" or "padding";
* ``row``: int, or None for a divisor or a byte between planes;
* ``index``: the column of a code or padding lane, the group of a group scale or padding scale, None for a row
  scale, the divisor's position, or the payload byte offset of a byte between planes;
* ``rule``: the rule as a sentence.

A scale word breaks at most one rule, the first that applies in the order of the rules below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidWordsError
from .layouts import align_up, check_payload, check_shape, pack_words, row_split, split_planes, words

if TYPE_CHECKING:
    from collections.abc import Sequence

U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Violation = dict[str, Any]

CODE_RULES = {
    "q2_g64_fp16": "codes must lie in [-1, 2]",
    "q4_g64_fp16": "codes must lie in [-8, 7]",
    "q5_g64_fp16": "codes must lie in [-16, 15]",
    "q6_g64_fp16": "codes must lie in [-32, 31]",
    "q8_g32_fp16": "codes must lie in [-127, 127]; the byte 0x80 (-128) is illegal",
    "t2_g128_fp16": "codes must lie in [-1, 1]; the word 0b10 (-2) is illegal",
}
NOT_FINITE = "a scale must be finite"
NEGATIVE_ZERO = "a scale must not be negative zero"
ZERO_SCALE_GROUP = "a zero scale allows only zero codes in its group"
NEGATIVE_ROW = "a row scale must not be negative"
ZERO_SCALE_ROW = "a zero row scale allows only the codes 0x00 and 0x80"
NAN_CODE = "NaN codes (0x7f, 0xff) are illegal"
BLOCK_SIGN = "a block scale must have sign bit 0"
BLOCK_NAN = "a block scale must not be NaN"
DIVISOR = "a divisor must be finite and positive"
PAD_CODE = "padding lanes must hold code 0"
PAD_SCALE = "scales of padding groups must be 0x0000"
PAD_GAP = "bytes between planes must be zero"

# sort key: rows first, then divisors, then gap bytes; in a row by group, a group's scale before its lanes
_Found = tuple[tuple[int, int, int, int, int], Violation]


class _Sink:
    def __init__(self) -> None:
        self.found: list[_Found] = []

    def add(
        self, order: tuple[int, int, int, int, int], plane: str, row: int | None, index: int | None, rule: str
    ) -> None:
        self.found.append((order, {"plane": plane, "row": row, "index": index, "rule": rule}))

    def lanes(self, plane: str, rule: str, bad: Mask, group: int) -> None:
        for r, c in np.argwhere(bad):
            self.add((0, int(r), int(c) // group, 1, int(c)), plane, int(r), int(c), rule)

    def groups(self, plane: str, rule: str, bad: Mask) -> None:
        for r, g in np.argwhere(bad):
            self.add((0, int(r), int(g), 0, 0), plane, int(r), int(g), rule)

    def row_scales(self, rule: str, bad: Mask) -> None:
        for r in np.flatnonzero(bad):
            self.add((0, int(r), -1, 0, 0), "scale", int(r), None, rule)

    def divisors(self, bad: Mask) -> None:
        for i in np.flatnonzero(bad):
            self.add((1, int(i), 0, 0, 0), "divisor", None, int(i), DIVISOR)

    def gap(self, payload: U8, begin: int, end: int) -> None:
        for at in np.flatnonzero(payload[begin:end]):
            place = begin + int(at)
            self.add((2, place, 0, 0, 0), "padding", None, place, PAD_GAP)

    def result(self) -> list[Violation]:
        return [v for _, v in sorted(self.found, key=lambda f: f[0])]


def _grouped(sink: _Sink, name: str, n: int, k: int, payload: U8) -> None:
    fmt = check_shape(name, (n, k))[0]
    group = fmt.group_size
    assert group is not None and fmt.code_min is not None and fmt.code_max is not None
    geo = row_split(fmt, n, k)
    codes, scales = split_planes(fmt, n, k, payload)
    column = np.arange(codes.shape[1])
    logical = np.arange(geo.groups) < geo.logical_groups
    infinite = (scales & np.uint16(0x7C00)) == np.uint16(0x7C00)
    sink.groups("scale", NOT_FINITE, infinite & logical)
    if name != "q2_g64_fp16":
        sink.groups("scale", NEGATIVE_ZERO, (scales == np.uint16(0x8000)) & logical)
        used = ((codes != 0) & (column < k)).reshape(n, geo.groups, group).any(axis=2)
        sink.groups("scale", ZERO_SCALE_GROUP, (scales == 0) & used & logical)
    sink.lanes(
        "code", CODE_RULES[name], ((codes < fmt.code_min) | (codes > fmt.code_max)) & (column < k), group
    )
    sink.lanes("padding", PAD_CODE, (codes != 0) & (column >= k), group)
    sink.groups("padding", PAD_SCALE, (scales != 0) & ~logical)
    sink.gap(payload, n * geo.base_row, geo.high_offset)
    sink.gap(payload, geo.high_offset + n * geo.high_row, geo.scale_offset)


def _nvfp4(sink: _Sink, given: dict[str, npt.NDArray[Any]]) -> None:
    scales = given["scales"]
    sign = scales >= np.uint8(0x80)
    sink.groups("scale", BLOCK_SIGN, sign)
    sink.groups("scale", BLOCK_NAN, scales == np.uint8(0x7F))
    word = given["divisors"].view(np.uint32)
    sink.divisors((word == 0) | (word >= np.uint32(0x7F80_0000)))


def _fp8(sink: _Sink, name: str, given: dict[str, npt.NDArray[Any]]) -> None:
    codes, scales = given["codes"], given["scales"]
    exponent = np.uint16(0x7F80 if name.endswith("_bf16") else 0x7C00)
    special = (scales & exponent) == exponent
    sink.row_scales(NOT_FINITE, special)
    sink.row_scales(NEGATIVE_ROW, (scales >= np.uint16(0x8000)) & ~special)
    sink.row_scales(ZERO_SCALE_ROW, (scales == 0) & ((codes & np.uint8(0x7F)) != 0).any(axis=1))
    sink.lanes("code", NAN_CODE, (codes & np.uint8(0x7F)) == np.uint8(0x7F), codes.shape[1])


def violations(
    name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, divisors: int = 1
) -> list[Violation]:
    """Every broken rule of a payload of the right size, empty for a valid one.

    Order: row by row, in a row by group, a scale before its codes (a row scale first of all); then divisors;
    then bytes between planes. Direct and gguf formats admit every word. Raises UnknownFormatError or
    ShapeError when the payload cannot be laid out at all.
    """
    data = check_payload(name, shape, payload, divisors)
    fmt, dims, count = check_shape(name, shape, divisors)
    sink = _Sink()
    if fmt.category == "grouped":
        _grouped(sink, name, dims[0], dims[1], data)
    elif fmt.category == "block_scaled":
        _nvfp4(sink, words(name, dims, data, count))
        codes = dims[0] * dims[1] // 2
        sink.gap(data, codes, align_up(codes, 256))
    elif fmt.category == "row_scaled":
        _fp8(sink, name, words(name, dims, data))
        if fmt.layout == "row_scale_v1":
            codes = dims[0] * dims[1]
            sink.gap(data, codes, align_up(codes, 256))
    return sink.result()


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
