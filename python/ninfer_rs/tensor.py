"""Tensors: one format and one payload."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import (
    BFLOAT16,
    U8,
    AnyArray,
    bfloat16_dtype,
    contiguous,
    dtype_name,
    float_kind,
    no_array,
    output,
    payload_array,
    require,
    shaped,
    thread_count,
)
from .errors import ShapeError, UnknownFormatError, UnsupportedError, Violation, naming
from .prepared import Prepared
from .registry import LAYOUTS, Format, count, dims, get_format

__all__ = ["Tensor"]

_DIRECT_WORDS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "fp32": np.dtype(np.uint32),
    "int32": np.dtype(np.int32),
}

# What the native functions take for a tensor: format index, shape, divisors and payload of the whole payload,
# then the rows begin..end of it that the tensor has.
_View = tuple[int, tuple[int, ...], int, U8, int, int]


class Tensor:
    """An encoded tensor: a format, a shape in elements (row-major, K last) and a payload in bytes.

    Immutable, and cheap: it refers to the payload's memory and never copies it. Whoever holds the buffer must
    not change it while an operation reads it; operations release the GIL, so another thread could.

    Use :meth:`from_payload` or :meth:`from_words`, or take one from a file.
    """

    __slots__ = (
        "_begin",
        "_end",
        "_format",
        "_name",
        "_parent",
        "_parent_divisors",
        "_parent_shape",
        "_shape",
    )

    _format: Format
    _shape: tuple[int, ...]
    _parent: U8  # the whole payload, of which the tensor is the rows _begin.._end
    _parent_shape: tuple[int, ...]
    _parent_divisors: int
    _begin: int
    _end: int
    _name: str | None

    def __init__(self) -> None:
        raise TypeError("use Tensor.from_payload or Tensor.from_words")

    @classmethod
    def _make(
        cls,
        fmt: Format,
        shape: tuple[int, ...],
        parent: U8,
        parent_shape: tuple[int, ...],
        divisors: int,
        rows: tuple[int, int],
        name: str | None,
    ) -> Tensor:
        self = object.__new__(cls)
        self._format = fmt
        self._shape = shape
        self._parent = parent
        self._parent_shape = parent_shape
        self._parent_divisors = divisors
        self._begin, self._end = rows
        self._name = name
        return self

    @classmethod
    def from_payload(
        cls,
        format: str | Format,
        shape: Sequence[SupportsIndex] | SupportsIndex,
        buffer: Any,
        divisors: SupportsIndex = 1,
        layout: str | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """A tensor over ``buffer`` without copying: bytes, a memory map, any C-contiguous buffer or array.

        The buffer must have exactly :meth:`Format.encoded_size` bytes. ``divisors`` is the number of nvfp4
        divisors. ``layout`` None means the format's own; another one is an error. ``name`` is put before
        error messages. Values are not looked at: see :meth:`validate`.

        Raises :class:`UnknownFormatError`, :class:`ShapeError` (shape, divisors, payload length) or
        :class:`UnsupportedError` (layout, buffer).
        """
        with naming(name):
            fmt = get_format(format)
            if layout is not None and layout != fmt.layout:
                if layout not in LAYOUTS:
                    raise UnknownFormatError(
                        f"unknown layout {layout!r}; the layouts are {', '.join(LAYOUTS)}"
                    )
                raise UnsupportedError(
                    f"layout {layout} is not registered for format {fmt.name}; its layout is {fmt.layout}"
                )
            shape_ = dims(shape)
            payload = payload_array(buffer)
            divisors_ = count(divisors, "divisors")
            rows = _native.check(fmt.index, shape_, divisors_, payload)
            return cls._make(fmt, shape_, payload, shape_, divisors_, (0, rows), name)

    @classmethod
    def from_words(
        cls,
        format: str | Format,
        shape: Sequence[SupportsIndex] | SupportsIndex,
        *,
        words: npt.ArrayLike | None = None,
        codes: npt.ArrayLike | None = None,
        scales: npt.ArrayLike | None = None,
        divisors: npt.ArrayLike | None = None,
        blocks: npt.ArrayLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor with a fresh payload made of logical words, which are copied bit for bit.

        ======================  =========================================================================
        direct                  ``words``: uint16 (bf16), uint32 (fp32) or int32, of the tensor's shape
        grouped                 ``codes``: int8 [N, K]; ``scales``: uint16 [N, ceil(K / group_size)]
        nvfp4                   ``codes``: uint8 [N, K/2], low nibble first; ``scales``: uint8 [N, K/16];
                                ``divisors``: float32 [D]
        fp8 rows                ``codes``: uint8 [N, K]; ``scales``: uint16 [N]
        gguf                    ``blocks``: uint8 [N, row bytes]
        ======================  =========================================================================

        Scale words are not judged here (:meth:`validate` does), but a code that its field cannot hold is an
        error.

        Raises :class:`UnsupportedError` for missing, superfluous or wrongly typed arrays, :class:`ShapeError`
        for wrong shapes, :class:`InvalidTensorError` for a grouped code outside its interval.
        """
        with naming(name):
            fmt = get_format(format)
            shape_ = dims(shape)
            given = {"words": words, "codes": codes, "scales": scales, "divisors": divisors, "blocks": blocks}
            payload, n_divisors = _pack(fmt, shape_, {k: v for k, v in given.items() if v is not None})
            return cls.from_payload(fmt, shape_, payload, n_divisors, name=name)

    @property
    def format(self) -> Format:
        """The format; ``str()`` gives its name."""
        return self._format

    @property
    def layout(self) -> str:
        """Name of the layout."""
        return self._format.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension, row-major; the last is K."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        product = 1
        for d in self._shape:
            product *= d
        return product

    @property
    def name(self) -> str | None:
        """The name given at construction or by the file; used in messages only."""
        return self._name

    @property
    def divisors(self) -> int:
        """Number of nvfp4 divisor words; 1 for every other format."""
        if self._whole or self._parent_divisors == 1:
            return self._parent_divisors
        return _native.slice_divisors(self._view)

    @property
    def nbytes(self) -> int:
        """Bytes of :attr:`payload`."""
        return self._format.encoded_size(self._shape, self.divisors)

    @property
    def payload(self) -> U8:
        """The encoded tensor as a read-only uint8 array.

        The same memory as the buffer it was made from. Of a row view it is a part of that memory where the
        layout keeps the rows in one run of bytes (direct, fp8 row records, gguf), else a fresh array at every
        access.
        """
        if self._whole:
            return self._parent
        payload, _ = _native.slice_payload(self._view)
        payload.flags.writeable = False
        return payload

    @property
    def _whole(self) -> bool:
        return self._shape == self._parent_shape

    @property
    def _view(self) -> _View:
        return (
            self._format.index,
            self._parent_shape,
            self._parent_divisors,
            self._parent,
            self._begin,
            self._end,
        )

    def __repr__(self) -> str:
        name = f", name={self._name!r}" if self._name is not None else ""
        divisors = f", divisors={self.divisors}" if self.divisors != 1 else ""
        return f"Tensor({self._format.name}, {self._shape}, {self.nbytes} bytes{divisors}{name})"

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a tensor of rank 0 has no length")
        return self._shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (self._format.name, self._shape, self.payload, self.divisors, self._name))

    def words(self) -> dict[str, AnyArray]:
        """The logical words as the arrays that :meth:`from_words` takes, bit for bit; padding is left out.

        Words of direct and gguf tensors share the payload's memory where the host allows it (read-only,
        copied if unaligned or if the host is big-endian); all others are fresh arrays.
        """
        with naming(self._name):
            category = self._format.category
            if category == "direct":
                dtype = _DIRECT_WORDS[self._format.name].newbyteorder("<")
                words = shaped(contiguous(self.payload.view(dtype)), self._shape, self._format.name)
                words.flags.writeable = False
                return {"words": words}
            if category == "gguf":
                return {"blocks": self.payload.reshape(self._shape[0], -1)}
            n, k = self._shape
            if category == "grouped":
                codes, scales = _native.grouped_words(self._view)
                return {"codes": codes.reshape(n, k), "scales": scales.reshape(n, -1)}
            if category == "block_scaled":
                packed, scale_words, divisors = _native.nvfp4_words(self._view)
                return {
                    "codes": packed.reshape(n, k // 2),
                    "scales": scale_words.reshape(n, k // 16),
                    "divisors": divisors.view(np.float32),
                }
            fp8, multipliers = _native.row_scaled_words(self._view)
            return {"codes": fp8.reshape(n, k), "scales": multipliers}

    def dequantize(
        self, dtype: Any = None, out: AnyArray | None = None, threads: int | None = None
    ) -> AnyArray:
        """The represented values, exactly.

        ``dtype`` float32 (default) gives the format's binary32 values. float16 and bfloat16 (a numpy dtype of
        ml_dtypes, or the string ``"bfloat16"``) round the represented value once, nearest-even; a finite
        value that would become infinite is an :class:`UnsupportedError` naming row and column. int32 tensors
        decode to int32 and nothing else.

        ``out`` is filled and returned: an array of that dtype and of the tensor's shape, C-contiguous and
        writable (for bfloat16 also uint16, which receives the words); its dtype is the default of ``dtype``.
        After an error it holds unspecified values. Releases the GIL; ``threads`` None uses all cores, and the
        result does not depend on it.
        """
        with naming(self._name):
            n_threads = thread_count(threads)
            integer = self._format.name == "int32"
            if dtype is not None:
                name = dtype_name(dtype)
            elif out is not None and isinstance(out, np.ndarray):
                # A dtype takes microseconds to tell its name.
                name = "float32" if out.dtype == np.float32 else out.dtype.name
            else:
                name = "int32" if integer else "float32"
            if integer:
                if name != "int32":
                    raise UnsupportedError(f"int32: integers do not decode to {name}; use dtype=numpy.int32")
                result = self._output(out, np.dtype(np.int32))
                _native.decode_i32(self._view, result.reshape(-1), n_threads)
                return result if out is None else out
            kind = float_kind(name)
            if name == "float32":
                result = self._output(out, np.dtype(np.float32))
                _native.decode_f32(self._view, result.reshape(-1), n_threads)
                return result if out is None else out
            if kind is None:
                words_out = isinstance(out, np.ndarray) and out.dtype == np.uint16
                kind = np.dtype(np.uint16) if words_out else bfloat16_dtype()
            result = self._output(out, kind)
            if name == BFLOAT16 and self._format.name == "bf16":
                # The words themselves: decoding would make signalling NaNs quiet.
                np.copyto(result.view(np.uint16), self.words()["words"])
                return result if out is None else out
            _native.decode_half(self._view, name == BFLOAT16, result.reshape(-1).view(np.uint16), n_threads)
            return result if out is None else out

    def _output(self, out: AnyArray | None, dtype: np.dtype[Any]) -> AnyArray:
        if out is None:
            try:
                return np.empty(self._shape, dtype)
            except ValueError as error:
                raise no_array(self._shape, self._format.name, error) from None
        return output(out, dtype, self._shape, self._parent)

    def rows(self, begin: SupportsIndex, end: SupportsIndex) -> Tensor:
        """The rows ``begin..end`` (of the first dimension, ``end`` not included) as a view of the same
        memory.

        nvfp4 rows come in whole tiles: multiples of 128, else :class:`UnsupportedError`. Raises
        :class:`ShapeError` for a range that is empty, reversed or outside the tensor; negative indices do not
        count from the end.
        """
        with naming(self._name):
            if not self._shape:
                raise ShapeError(f"{self._format.name}: a tensor of rank 0 has no rows")
            first, last = _row(begin), _row(end)
            if not 0 <= first < last <= self._shape[0]:
                rule = "empty or reversed" if first >= last else "outside the tensor"
                raise ShapeError(
                    f"{self._format.name}: rows {first}..{last} are {rule} (it has {self._shape[0]} rows)"
                )
            shape = (last - first, *self._shape[1:])
            rows = (self._begin + first, self._begin + last)
            view = Tensor._make(
                self._format, shape, self._parent, self._parent_shape, self._parent_divisors, rows, self._name
            )
            spans = _native.spans(view._view)
            if len(spans) == 1:
                part = self._parent[spans[0][0] : spans[0][1]]
                return Tensor._make(self._format, shape, part, shape, 1, (0, last - first), self._name)
            return view

    def gather(self, rows: npt.ArrayLike | Iterable[SupportsIndex]) -> Tensor:
        """A fresh tensor of the given rows in the given order; repeats are allowed, words are copied.

        nvfp4 rows must come as whole tiles: runs of 128 consecutive rows that start at a multiple of 128.
        Raises :class:`ShapeError` for an index outside the tensor, :class:`UnsupportedError` for no rows.
        """
        with naming(self._name):
            if not self._shape:
                raise ShapeError(f"{self._format.name}: a tensor of rank 0 has no rows")
            index = row_indices(rows, self._shape[0], self._format.name)
            payload, divisors = _native.gather_payload(self._view, index)
            shape = (len(index), *self._shape[1:])
            return Tensor.from_payload(self._format, shape, payload, divisors, name=self._name)

    def validate(self) -> None:
        """Checks every word; the first broken rule raises :class:`InvalidTensorError` naming plane, place and
        rule.

        Padding and gap bytes of the layout must be canonical too. Direct and gguf formats have no illegal
        words.
        """
        with naming(self._name):
            _native.validate(self._view)

    def violations(self, limit: int = 100) -> list[Violation]:
        """The first ``limit`` broken rules, as records; rows count from this tensor's first row."""
        with naming(self._name):
            return [Violation(*v) for v in _native.violations(self._view, count(limit, "limit"))]

    def matmul(
        self,
        x: npt.ArrayLike,
        activation: str = "a16",
        out: AnyArray | None = None,
        threads: int | None = None,
    ) -> AnyArray:
        """``x @ W.T``: activations [..., K] of float32 or bfloat16 to float32 [..., N].

        ``activation="a16"`` uses the activations as given, ``"a8"`` quantises each row of ``x`` to q8_1 first
        (non-finite values are refused). The bits of a result do not depend on the instruction set, the number
        of threads or the other rows of ``x``. Non-contiguous ``x`` is copied. ``out`` is a C-contiguous
        float32 array of the result's shape that overlaps no input.

        Raises :class:`ShapeError` for a last dimension other than K or a tensor that is not a matrix,
        :class:`UnsupportedError` for other dtypes of ``x``, other activations, and int32 tensors.
        """
        return self._matmul(_native, x, activation, out, threads)

    def _matmul(
        self,
        by: Any,
        x: npt.ArrayLike,
        activation: str,
        out: AnyArray | None,
        threads: int | None,
    ) -> AnyArray:
        """A product by the functions of the native module, or by those of repacked weights."""
        with naming(self._name):
            n_threads, a8 = thread_count(threads), _is_a8(activation)
            n, k = self._matrix("matmul")
            columns, lead, bf16 = _columns(x, k)
            result, flat = self._product(out, (*lead, n), columns)
            if bf16:
                by.matmul_bf16(self._view, columns.view(np.uint16), a8, flat, n_threads)
            else:
                by.matmul_f32(self._view, columns, a8, flat, n_threads)
            return result if out is None else out

    def prepare(self, threads: int | None = None) -> Prepared:
        """The tensor with its words repacked in memory, for many products of one to sixteen rows of
        activations.

        Never needed, and never other bits. See :class:`Prepared` for its size and lifetime. Raises
        :class:`ShapeError` for a tensor that is not a matrix, :class:`MemoryError` if there is no memory.
        """
        with naming(self._name):
            self._matrix("prepare")
            return Prepared(self, _native.Repacked(self._view, thread_count(threads)))

    def matmul_experts(
        self,
        x: npt.ArrayLike,
        ids: npt.ArrayLike,
        experts: SupportsIndex,
        activation: str = "a16",
        out: AnyArray | None = None,
        threads: int | None = None,
    ) -> AnyArray:
        """Products with chosen experts of a bank, whose weights are read where they lie.

        The tensor is a bank: ``experts`` matrices [N, K] one after the other, so a matrix [experts * N, K].
        ``ids`` are integers [..., J], the numbers of the experts that each row of ``x`` goes to; ``x`` is
        [..., K] (one row for its J experts) or [..., J, K] (a row for each). The result is float32
        [..., J, N]: ``result[..., j, :]`` has the bits of ``bank.rows(e * N, (e + 1) * N).matmul(row)`` with
        ``e = ids[..., j]``. Repeats are allowed.

        ``activation``, ``out`` and ``threads`` as for :meth:`matmul`, and its errors; :class:`ShapeError`
        also for rows that are no whole number of experts, an expert outside the bank, and shapes that do not
        match.
        """
        with naming(self._name):
            n_threads, a8, number = thread_count(threads), _is_a8(activation), count(experts, "experts")
            rows, k = self._matrix("matmul_experts")
            if number == 0 or rows % number:
                raise ShapeError(f"{rows} rows are no whole number of {number} experts")
            choices = np.asarray(ids)
            if choices.ndim == 0 or choices.dtype.kind not in "iu":
                raise ShapeError(f"ids must be integers [..., J], got {choices.dtype} {choices.shape}")
            bad = np.flatnonzero((choices < 0) | (choices >= number))
            if bad.size:
                at, expert = int(bad[0]), int(choices.reshape(-1)[bad[0]])
                raise ShapeError(f"expert {expert} (choice {at}) is outside the {number} experts of the bank")
            columns, lead, bf16 = _columns(x, k)
            if lead not in (choices.shape, choices.shape[:-1]):
                raise ShapeError(
                    f"ids of shape {choices.shape} need activations of shape {(*choices.shape[:-1], k)} or "
                    f"{(*choices.shape, k)}, got {(*lead, k)}"
                )
            result, flat = self._product(out, (*choices.shape, rows // number), columns)
            if choices.size:
                flat_ids = (number, contiguous(choices.reshape(-1).astype(np.uint64)))
                if bf16:
                    words = columns.view(np.uint16)
                    _native.matmul_experts_bf16(self._view, flat_ids, words, a8, flat, n_threads)
                else:
                    _native.matmul_experts_f32(self._view, flat_ids, columns, a8, flat, n_threads)
            return result if out is None else out

    def _matrix(self, what: str) -> tuple[int, int]:
        if len(self._shape) != 2:
            raise ShapeError(f"{what} needs a matrix [N, K], this tensor has shape {self._shape}")
        return self._shape[0], self._shape[1]

    def _product(
        self, out: AnyArray | None, shape: tuple[int, ...], columns: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        """A product's result, and the same flat."""
        if out is None:
            result: AnyArray = np.empty(shape, np.float32)
        else:
            result = output(out, np.dtype(np.float32), shape, self._parent, columns)
        return result, result.reshape(-1)


def _is_a8(activation: str) -> bool:
    if activation not in ("a16", "a8"):
        raise UnsupportedError(f"activation must be 'a16' or 'a8', got {activation!r}")
    return activation == "a8"


def _columns(x: npt.ArrayLike, k: int) -> tuple[AnyArray, tuple[int, ...], bool]:
    """Activations flat and contiguous, their leading dimensions, and whether they are bfloat16."""
    array = np.asarray(x)
    if array.dtype.name not in ("float32", BFLOAT16):
        raise UnsupportedError(
            f"activations must be float32 or bfloat16, got {array.dtype}; convert them explicitly"
        )
    if array.ndim == 0 or array.shape[-1] != k:
        raise ShapeError(f"activations must have shape [..., {k}], got {array.shape}")
    return contiguous(array).reshape(-1), array.shape[:-1], array.dtype.name == BFLOAT16


def _unpickle(fmt: str, shape: tuple[int, ...], payload: U8, divisors: int, name: str | None) -> Tensor:
    return Tensor.from_payload(fmt, shape, payload, divisors, name=name)


def _row(index: SupportsIndex) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise ShapeError(f"a row is an integer, got {type(index).__name__}") from None


def row_indices(rows: npt.ArrayLike | Iterable[SupportsIndex], n: int, fmt: str) -> npt.NDArray[np.uint64]:
    if not isinstance(rows, (np.ndarray, list, tuple)):
        if not isinstance(rows, Iterable):
            raise ShapeError(
                f"rows must be a one-dimensional sequence of integers, got {type(rows).__name__}"
            )
        rows = list(rows)  # type: ignore[assignment]
    array = np.asarray(rows)
    if array.size == 0:
        raise UnsupportedError(f"{fmt}: a tensor without rows has no payload; gather at least one row")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ShapeError(
            f"rows must be a one-dimensional sequence of integers, got {array.dtype} {array.shape}"
        )
    bad = np.flatnonzero((array < 0) | (array >= n))
    if bad.size:
        at = int(bad[0])
        raise ShapeError(f"{fmt}: row {int(array[at])} (index {at}) is outside the {n} rows of this tensor")
    return contiguous(array.astype(np.uint64))


_NEEDS = {
    "direct": ("words",),
    "grouped": ("codes", "scales"),
    "block_scaled": ("codes", "scales", "divisors"),
    "row_scaled": ("codes", "scales"),
    "gguf": ("blocks",),
}


def _pack(fmt: Format, shape: tuple[int, ...], given: dict[str, Any]) -> tuple[U8, int]:
    """Payload and divisor count of logical words."""
    needs = _NEEDS[fmt.category]
    if set(given) != set(needs):
        got = ", ".join(sorted(given)) or "none"
        raise UnsupportedError(f"{fmt.name}: the words are {' and '.join(needs)}; got {got}")
    if fmt.category == "direct":
        fmt.encoded_size(shape)
        dtype = _DIRECT_WORDS[fmt.name]
        words = require(
            "words", given["words"], dtype, shape, "; use .view() for the bits of floating-point values"
        )
        return np.array(words, dtype.newbyteorder("<")).reshape(-1).view(np.uint8), 1
    if fmt.category == "gguf":
        size = fmt.encoded_size(shape)
        blocks = require("blocks", given["blocks"], np.uint8, (shape[0], size // shape[0]))
        return blocks.reshape(-1).copy(), 1
    divisors = np.ones(1, np.float32)
    if fmt.category == "block_scaled":
        divisors = np.asarray(given["divisors"])
        divisors = require("divisors", divisors.reshape(-1), np.float32, (divisors.size,))
    fmt.encoded_size(shape, divisors.size)
    n, k = shape
    if fmt.category == "grouped" and fmt.group_size is not None:
        codes = require("codes", given["codes"], np.int8, (n, k))
        scales = require("scales", given["scales"], np.uint16, (n, -(-k // fmt.group_size)))
        return _native.pack_grouped(fmt.index, n, k, codes.reshape(-1), scales.reshape(-1)), 1
    if fmt.category == "block_scaled":
        codes = require("codes", given["codes"], np.uint8, (n, k // 2))
        scales = require("scales", given["scales"], np.uint8, (n, k // 16))
        words = divisors.view(np.uint32)
        payload = _native.pack_nvfp4(fmt.index, n, k, codes.reshape(-1), scales.reshape(-1), words)
        return payload, divisors.size
    codes = require("codes", given["codes"], np.uint8, (n, k))
    scales = require("scales", given["scales"], np.uint16, (n,))
    return _native.pack_row_scaled(fmt.index, n, k, codes.reshape(-1), scales), 1
