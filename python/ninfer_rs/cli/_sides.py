"""Tensors of any kind of file as matrices that are read a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..artifact import Artifact
from ..errors import UnsupportedError
from ..gguf import GgufFile, GgufTensor
from ..safetensors import SafetensorsFile, SafetensorsTensor
from ..sources import SourceFile, SourceTensor
from ..tensor import Tensor
from . import _common as c

#: Elements read at a time.
STEP = 1 << 22

Opened = GgufFile | Artifact | SafetensorsFile | SourceFile

Read = Callable[[int, int], Any]


def rows_at_a_time(k: int) -> int:
    """Rows of ``k`` elements that make a piece."""
    return max(1, STEP // max(1, k))


@dataclass(frozen=True)
class Side:
    """A tensor as a matrix: all dimensions but the last are rows."""

    format: str
    """The registered format, or what the file calls the type or kind."""
    shape: tuple[int, ...]
    integers: bool
    """Whether it holds integers (read as int64) rather than values (read as float32)."""
    tensor: Tensor | None
    """The tensor in the format, where there is one."""
    read: Read
    """Rows ``begin..end``."""

    @property
    def k(self) -> int:
        """Elements of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def n(self) -> int:
        """Rows."""
        return math.prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Elements."""
        return self.n * self.k

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows that are read at a time: whole tiles of ``nvfp4``, little memory."""
        if self.k == 0:
            return
        step = -(-rows_at_a_time(self.k) // 128) * 128
        for begin in range(0, self.n, step):
            yield begin, min(self.n, begin + step)


def side(source: Opened, name: str, threads: int | None = None) -> Side:
    """The tensor of this name.

    Raises what opening it raises, and :class:`UnsupportedError` with the reason where it has neither values
    nor integers.
    """
    if isinstance(source, Artifact):
        return _of_tensor(source[name], threads)
    if isinstance(source, GgufFile):
        return _of_gguf(source[name], threads)
    return _of_source(source[name], threads)


def _of_tensor(t: Tensor, threads: int | None) -> Side:
    integers = t.format.name == "int32"
    if t.ndim == 2:
        matrix = t
    else:  # a direct tensor of any rank as rows
        k = t.shape[-1] if t.shape else 1
        matrix = Tensor.from_payload(t.format, (t.size // k, k), t.payload, name=t.name)

    def read(begin: int, end: int) -> Any:
        part = matrix.rows(begin, end).dequantize(threads=threads)
        return part.astype(np.int64) if integers else part

    return Side(t.format.name, t.shape, integers, t, read)


def _of_array(values: Any, kind: str) -> Side:
    integers = values.dtype.kind in "iub"
    if not integers and values.dtype.kind != "f":
        raise UnsupportedError(f"{kind} is neither integers nor floating-point values")
    k = values.shape[-1] if values.shape else 1
    rows = values.reshape(-1, k) if k else values.reshape(0, 1)
    return Side(kind, values.shape, integers, None, lambda b, e: rows[b:e].astype("i8" if integers else "f4"))


def _of_gguf(entry: GgufTensor, threads: int | None) -> Side:
    if entry.format is None:
        return _of_array(entry.array(), entry.type_name)
    return _of_tensor(entry.tensor(), threads)


def _of_source(entry: SafetensorsTensor | SourceTensor, threads: int | None) -> Side:
    label = entry.dtype if isinstance(entry, SafetensorsTensor) else entry.type_name
    if entry.content == "unsupported":
        raise UnsupportedError(f'tensor "{c.show(entry.name)}" ({label}): {entry.reason}')
    tensor = None
    # Blocks, codes with scales: the values are the source's own; the words serve to tell what is identical.
    if isinstance(entry, SafetensorsTensor) and entry.format is not None and entry.size != 0:
        try:
            tensor = entry.tensor()
        except UnsupportedError:  # words that the format does not admit, shapes off its layout
            tensor = None
    if tensor is not None and entry.content in ("values", "integers"):
        return _of_tensor(tensor, threads)
    if entry.content == "integers":
        if isinstance(entry, SafetensorsTensor):
            return _of_array(entry.array(), label)
        return Side(label, entry.shape, True, None, lambda b, e: entry.integers((b, e)))
    kind = tensor.format.name if tensor is not None else label if entry.content == "values" else entry.content
    return Side(kind, entry.shape, False, tensor, lambda b, e: entry.values((b, e)))
