"""Importance matrices: how much each input channel of a weight matters, measured on calibration text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _native
from ._files import decode_name, not_found, path_text

__all__ = ["ImportanceMatrix", "Stored", "load"]

F32 = npt.NDArray[np.float32]


class Stored(NamedTuple):
    """What a file holds of one tensor: ``sums`` of squared activations float32 [experts, K], ``counts``
    float64 [experts]."""

    sums: F32
    counts: npt.NDArray[np.float64]


class ImportanceMatrix(Mapping[str, F32]):
    """Tensor name -> importance: float32 [K], or [experts, K] of an expert bank; in file order.

    Importance is sum / max(count, 1). An expert that saw no data weighs all channels alike.
    """

    __slots__ = ("_entries", "_native", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        """Path of the file."""
        self._native = _native.ImatrixFile(path)
        self._entries = {decode_name(row[0]): row for row in self._native.entries()}

    def _row(self, name: str) -> tuple[bytes, int, int, list[int]]:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise not_found(self.path, "importance of a tensor", name, self._entries) from None

    def __getitem__(self, name: str) -> F32:
        key, experts, channels, _ = self._row(name)
        values = self._native.values(key, None)
        return values if experts == 1 else values.reshape(experts, channels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def experts(self, name: str, experts: int, channels: int) -> F32:
        """The importance of an expert bank, [experts, channels].

        The legacy form does not record experts: its vector is divided evenly, and a part without any data
        weighs all channels alike. Raises :class:`~ninfer_rs.UnsupportedError` if the sizes do not fit.
        """
        return self._native.values(self._row(name)[0], (experts, channels)).reshape(experts, channels)

    def stored(self, name: str) -> Stored:
        """Sums and counts as the file holds them."""
        key, experts, channels, _ = self._row(name)
        sums, counts = self._native.stored(key)
        return Stored(sums.reshape(experts, channels), counts)

    def unreached(self, name: str) -> list[int]:
        """Experts that saw no calibration data."""
        return list(self._row(name)[3])

    @property
    def form(self) -> str:
        """``"gguf"`` or ``"legacy"``, found from the content."""
        return self._native.form()

    @property
    def datasets(self) -> list[str]:
        """Names of the calibration data, as far as the file records them."""
        return [d.decode("utf-8", "replace") for d in self._native.datasets()]

    @property
    def chunk_count(self) -> int | None:
        """Chunks of calibration text, if recorded."""
        return self._native.chunks()[0]

    @property
    def chunk_size(self) -> int | None:
        """Tokens of a chunk, if recorded."""
        return self._native.chunks()[1]

    @property
    def warnings(self) -> list[str]:
        """Experts and tensors without calibration data, and tensors that belong to no importance vector."""
        return self._native.warnings()

    def __repr__(self) -> str:
        return f"<ImportanceMatrix {self.path!r}: {len(self)} tensors>"


def load(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Reads an importance matrix in llama.cpp's GGUF form or the older binary form, told apart by content.

    Raises ``OSError`` if the file cannot be read and :class:`~ninfer_rs.FileFormatError` (path, tensor or
    byte offset) if it breaks its format: cut short, negative lengths or counts, values that are negative or
    not finite.
    """
    return ImportanceMatrix(path_text(path))
