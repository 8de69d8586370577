"""Any model that conversions read, as named tensors: GGUF, safetensors, npy and npz behind one face.

:mod:`ninfer_rs.gguf` and :mod:`ninfer_rs.safetensors` show more of their files, without copying; this module
shows what all have in common, and is the only one for numpy's files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import no_array
from ._files import not_found, path_text, printable
from .errors import ShapeError, UnsupportedError
from .registry import BY_INDEX, Format

__all__ = ["SourceFile", "SourceTensor", "open"]

_Row = tuple[str, str, tuple[int, ...], str, "str | None", list[str], int, int, "int | None"]
_Number = TypeVar("_Number", np.float32, np.int64)


class SourceTensor:
    """One logical tensor of a source. Shapes in elements, slowest dimension first."""

    __slots__ = ("_file", "_index", "_row")

    def __init__(self, file: SourceFile, index: int, row: _Row) -> None:
        self._file = file
        self._index = index
        self._row = row

    @property
    def name(self) -> str:
        """The name; that of the file for the array of a ``.npy`` file."""
        return self._row[0]

    @property
    def type_name(self) -> str:
        """The type as the file names it."""
        return self._row[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return self._row[2]

    @property
    def content(self) -> str:
        """``"values"``, ``"integers"``, ``"blocks"`` (ggml), ``"fp8_rows"``, ``"fp8_blocks"``, ``"nvfp4"`` or
        ``"unsupported"``."""
        return self._row[3]

    @property
    def reason(self) -> str | None:
        """Why an unsupported tensor cannot be read; None for others."""
        return None if self._row[4] is None else printable(self._row[4])

    @property
    def nbytes(self) -> int:
        """Stored bytes, scales included; 0 where they are not known."""
        return self._row[6]

    @property
    def format(self) -> Format | None:
        """The format that a conversion without a recipe keeps the words in; None if there is none."""
        return BY_INDEX[self._row[8]] if self._row[8] is not None else None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def values(self, rows: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """The exact values as float32, of all rows or of the rows ``begin..end``; all dimensions but the last
        are rows. float64 rounds once. The result of all rows has the tensor's shape, that of a range [rows,
        K].

        Raises :class:`UnsupportedError` for integers and unsupported tensors, :class:`ShapeError` for rows
        that are not there.
        """
        if self.content in ("integers", "unsupported"):
            raise self._without("floating-point values")
        return self._read(self._file._native.values, rows, np.float32)

    def integers(self, rows: tuple[int, int] | None = None) -> npt.NDArray[np.int64]:
        """The integers of a tensor of integers or booleans; rows and errors as in :meth:`values`."""
        if self.content != "integers":
            raise self._without("integers")
        return self._read(self._file._native.integers, rows, np.int64)

    def _without(self, what: str) -> UnsupportedError:
        why = f": {self.reason}" if self.reason else f"; its content is {self.content}"
        named = f'tensor "{printable(self.name)}" ({printable(self.type_name)})'
        return UnsupportedError(f"{named} has no {what}{why}")

    def _read(self, read: Any, rows: tuple[int, int] | None, dtype: type[_Number]) -> npt.NDArray[_Number]:
        self._file._check()
        k = self.shape[-1] if self.shape else 1
        n = math.prod(self.shape[:-1])
        begin, end = (0, n) if rows is None else rows
        if not 0 <= begin <= end <= n:
            raise ShapeError(f'tensor "{printable(self.name)}": rows {begin}..{end} of {n}')
        shape = self.shape if rows is None else (end - begin, k)
        try:
            out = np.empty(shape, dtype)
        except ValueError as error:
            raise no_array(shape, f'tensor "{printable(self.name)}"', error) from None
        read(self._index, begin, end, out.reshape(-1))
        return out

    def __repr__(self) -> str:
        return (
            f"<SourceTensor {printable(self.name)!r} {self.content} {printable(self.type_name)} {self.shape}>"
        )


class SourceFile(Mapping[str, SourceTensor]):
    """An opened source: tensor name -> :class:`SourceTensor`, in file order. A context manager."""

    __slots__ = ("_closed", "_native", "_tensors", "path")

    def __init__(self, native: _native.Source, path: str) -> None:
        self._native = native
        self._closed = False
        self.path = path
        """The path it was opened by."""
        self._tensors = {row[0]: SourceTensor(self, i, row) for i, row in enumerate(native.tensors())}

    @property
    def kind(self) -> str:
        """``"gguf"``, ``"safetensors"``, ``"npy"`` or ``"npz"``."""
        return self._native.kind()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files."""
        return tuple(path_text(path) for path, _ in self._native.files())

    @property
    def file_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(size for _, size in self._native.files())

    @property
    def warnings(self) -> list[str]:
        """What is odd and does not make the model unreadable."""
        return self._native.warnings()

    def _check(self) -> None:
        if self._closed:
            raise UnsupportedError(f"{self.path} is closed")

    def __getitem__(self, name: str) -> SourceTensor:
        self._check()
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            raise not_found(self.path, "tensor", name, self._tensors) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Refuses further use. The map goes with the object."""
        self._closed = True

    def __enter__(self) -> SourceFile:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} tensors"
        return f"<SourceFile {printable(self.path)!r} {self.kind} {state}>"


def open(path: str | bytes | os.PathLike[str]) -> SourceFile:
    """Opens a model by its content: a GGUF file (any shard of a split model), a safetensors file, index or
    folder, a ``.npy`` array or a ``.npz`` archive. Headers are read and checked, tensor data are not.

    Raises :class:`FileFormatError` with place and rule, ``OSError`` if a file cannot be read.
    """
    text = path_text(path)
    return SourceFile(_native.Source(text), text)
