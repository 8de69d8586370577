"""Metadata of GGUF files: values on demand, arrays without decoding them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import AnyArray, contiguous
from ._files import Mapped, decode_name, not_found, path_text, printable
from .errors import UnsupportedError

NUMBERS: Final = {
    "u8": "<u1",
    "i8": "<i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "f32": "<f4",
    "bool": "|b1",
    "u64": "<u8",
    "i64": "<i8",
    "f64": "<f8",
}
"""Value types of numbers and bools as little-endian numpy dtypes."""


class OpenFile:
    """What tensors and metadata share: the native index and the maps."""

    __slots__ = ("closed", "maps", "native", "path")

    def __init__(self, native: _native.Gguf) -> None:
        self.native = native
        shards = native.shards()
        self.maps = [Mapped(path_text(row[0]), row[1]) for row in shards]
        self.path = self.maps[0].path
        self.closed = False


class MetadataArray(Sequence[Any]):
    """An array of the metadata, decoded when looked at.

    Elements are ints, floats, bools or strings (bytes where a string is not UTF-8). :meth:`numpy` gives
    numbers without copying.
    """

    __slots__ = ("_file", "_key", "_length", "_offsets", "element_type")

    def __init__(self, file: OpenFile, key: bytes, element_type: str, length: int) -> None:
        self._file = file
        self._key = key
        self._length = length
        self._offsets: npt.NDArray[np.uint64] | None = None
        self.element_type = element_type
        """Type of the elements: ``"u32"``, ``"string"`` and so on."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self.element_type != "string":
            items = self.numpy()[index]
            return items.tolist()
        if isinstance(index, slice):
            return list(self._strings(range(self._length)[index]))
        at = range(self._length)[index]  # negative indices, and IndexError
        return next(self._strings(range(at, at + 1)))

    def __iter__(self) -> Iterator[Any]:
        if self.element_type != "string":
            return iter(self.numpy().tolist())
        return self._strings(range(self._length))

    def _strings(self, indices: range) -> Iterator[str | bytes]:
        """Each string is 8 bytes of length and its bytes, which end where the next string begins."""
        begin, length = self._file.native.array_raw(self._key)
        if self._offsets is None:
            offsets = self._file.native.array_offsets(self._key)
            self._offsets = np.append(offsets, np.uint64(length))
        raw = self._file.maps[0].bytes(begin, length).data
        starts = self._offsets
        step = 4096  # offsets become Python integers piece by piece
        for piece in range(0, len(indices), step):
            part = indices[piece : piece + step]
            if not part:
                return
            at = np.arange(part.start, part.stop, part.step)
            pairs = zip(starts[at].tolist(), starts[at + 1].tolist(), strict=True)
            yield from (_text(bytes(raw[a + 8 : b])) for a, b in pairs)

    def numpy(self) -> AnyArray:
        """The numbers or bools as a read-only array over the mapped file."""
        if self.element_type == "string":
            raise UnsupportedError(
                f'key "{printable(decode_name(self._key))}": an array of strings is not numeric'
            )
        begin, length = self._file.native.array_raw(self._key)
        array = self._file.maps[0].bytes(begin, length).view(NUMBERS[self.element_type])
        return array.view(array.dtype.newbyteorder("=")) if np.little_endian else contiguous(array)

    def tolist(self) -> list[Any]:
        """All elements."""
        return list(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MetadataArray) or (
            isinstance(other, Sequence) and not isinstance(other, (str, bytes))
        ):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<array of {self._length} {self.element_type}>"


class Metadata(Mapping[str, Any]):
    """Key -> value, in file order. Values are ints, floats, bools, strings or :class:`MetadataArray`.

    A string that is not UTF-8 is given as bytes; :meth:`text` shows it lossily. Nested arrays become lists.
    """

    __slots__ = ("_file", "_keys")

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._keys = {decode_name(row[0]): row for row in file.native.entries()}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def _row(self, key: str) -> tuple[bytes, str, str | None, int]:
        try:
            return self._keys[key]
        except (KeyError, TypeError):
            raise not_found(self._file.path, "metadata key", key, self._keys) from None

    def __getitem__(self, key: str) -> Any:
        name, kind, element, length = self._row(key)
        if kind == "array" and element is not None and element != "array":
            return MetadataArray(self._file, name, element, length)
        return _plain(self._file.native.value(name))

    def type(self, key: str) -> str:
        """Type of a value as the file says it: ``"u32"``, ``"string"``, ``"array of string"`` and so on."""
        _, kind, element, _ = self._row(key)
        return f"array of {element}" if element is not None else kind

    def text(self, key: str) -> str:
        """A string value as text, with U+FFFD for bytes that are not UTF-8."""
        value = self[key]
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise UnsupportedError(f'metadata key "{printable(key)}" is of type {self.type(key)}, not string')
        return value

    def __repr__(self) -> str:
        return f"<metadata of {self._file.path}: {len(self)} keys>"


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
