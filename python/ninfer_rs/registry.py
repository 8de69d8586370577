"""The closed registry of 30 formats and their layouts, read from the native table."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, SupportsIndex

from . import _native
from .errors import ShapeError, UnknownFormatError

__all__ = ["FORMATS", "LAYOUTS", "Format", "Layout", "get_format"]


@dataclass(frozen=True)
class Format:
    """One registered format; ``str()`` gives its name. Fields that do not apply are None.

    ``category`` is ``"direct"``, ``"grouped"``, ``"block_scaled"``, ``"row_scaled"`` or ``"gguf"``.
    ``bits_per_weight`` is the logical cost of full groups: codes and group scales, without row scales,
    divisors and padding. ``group_size`` and ``block_values`` count elements, ``block_bytes`` bytes;
    ``code_min`` and ``code_max`` bound the signed codes of grouped formats; ``ggml_type`` is ggml's type
    number.
    """

    name: str
    category: str
    layout: str
    bits_per_weight: float
    group_size: int | None
    code_bits: int | None
    code_min: int | None
    code_max: int | None
    block_values: int | None
    block_bytes: int | None
    ggml_type: int | None
    index: int = field(repr=False)
    """Position in :data:`FORMATS`; not stored in any file."""

    def __str__(self) -> str:
        return self.name

    def encoded_size(
        self, shape: Sequence[SupportsIndex] | SupportsIndex, divisors: SupportsIndex = 1
    ) -> int:
        """Bytes of the payload of a tensor of ``shape`` (elements); a payload has exactly this length.

        ``divisors`` is the number of nvfp4 divisors, 1 for every other format. Raises :class:`ShapeError` for
        a shape or divisor count that the layout does not allow or whose size does not fit in 64 bits.
        """
        return _native.encoded_size(self.index, dims(shape), count(divisors, "divisors"))


@dataclass(frozen=True)
class Layout:
    """One registered layout: how logical words become bytes.

    ``alignment`` is that of an object's offset in a container, in bytes; ``formats`` names the formats stored
    in it (none for resources).
    """

    name: str
    alignment: int
    shape_rule: str
    formats: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def dims(shape: Sequence[SupportsIndex] | SupportsIndex) -> tuple[int, ...]:
    """A shape as a tuple of ints in 0..2^64-1; a single integer is a rank-1 shape."""
    if isinstance(shape, (str, bytes)):
        raise ShapeError(f"a shape is a sequence of integers, got {type(shape).__name__}")
    if isinstance(shape, Iterable):  # first: arrays are integers too if they have one element
        return tuple(count(d, f"dimension {axis}") for axis, d in enumerate(shape))
    if isinstance(shape, SupportsIndex):
        return (count(shape, "dimension 0"),)
    raise ShapeError(f"a shape is a sequence of integers, got {type(shape).__name__}")


def count(value: SupportsIndex, what: str) -> int:
    """An int in 0..2^64-1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ShapeError(f"{what} must be an integer, got {type(value).__name__}") from None
    if not 0 <= number < 2**64:
        raise ShapeError(f"{what} must lie in 0..2^64-1, got {number}")
    return number


def _formats() -> dict[str, Format]:
    table = {}
    for index, row in enumerate(_native.formats()):
        table[row[0]] = Format(*row, index=index)
    return table


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(_formats())
"""Name -> :class:`Format`, 30 entries in the order of the format specification's tables. Read-only."""

LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        name: Layout(name, alignment, rule, tuple(f.name for f in FORMATS.values() if f.layout == name))
        for name, alignment, rule in _native.layouts()
    }
)
"""Name -> :class:`Layout`, 7 entries. Read-only."""

BY_INDEX: Final[tuple[Format, ...]] = tuple(FORMATS.values())
BY_GGML_TYPE: Final[Mapping[int, Format]] = MappingProxyType(
    {f.ggml_type: f for f in BY_INDEX if f.ggml_type is not None}
)


def get_format(name: str | Format) -> Format:
    """The format of that exact name (a :class:`Format` is returned as it is).

    Raises :class:`UnknownFormatError` with near names for any other name: names are looked up, never parsed.
    """
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise UnknownFormatError(f"a format is given by its name, got {type(name).__name__}")
    found = FORMATS.get(name)
    if found is not None:
        return found
    return BY_INDEX[_native.format_index(name)]
