"""Weights repacked in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy.typing as npt

from . import _native
from ._arrays import AnyArray

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["Prepared"]


class Prepared:
    """A tensor and the same words again with its rows interleaved by sixteen, as ``"a8"`` products of one to
    sixteen rows of activations want them. Made by :meth:`Tensor.prepare`.

    The words live in memory of their own, :attr:`nbytes` bytes, about as many as the tensor has, until this
    object is dropped; they are never written to a file. The tensor's buffer stays in use for all other
    products. Formats without 8-bit products (bf16, fp32, fp8), and processors without kernels for the form,
    keep no words: ``nbytes`` is 0 then, and products are the tensor's.
    """

    __slots__ = ("_repacked", "_tensor")

    def __init__(self, tensor: Tensor, repacked: _native.Repacked) -> None:
        self._tensor, self._repacked = tensor, repacked

    def __repr__(self) -> str:
        return f"Prepared({self._tensor!r})"

    @property
    def tensor(self) -> Tensor:
        """The tensor."""
        return self._tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the repacked words."""
        return self._repacked.nbytes

    def matmul(
        self,
        x: npt.ArrayLike,
        activation: str = "a16",
        out: AnyArray | None = None,
        threads: int | None = None,
    ) -> AnyArray:
        """:meth:`Tensor.matmul`, bit for bit."""
        return self._tensor._matmul(self._repacked, x, activation, out, threads)
