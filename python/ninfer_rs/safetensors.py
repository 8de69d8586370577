"""Safetensors models: single files, shards with an index, folders; read by memory map.

A model is listed twice. As *logical* tensors, where the codes of a quantised matrix and its scales are one
entry (:class:`SafetensorsFile` itself), and as what is *stored*, word by word
(:attr:`SafetensorsFile.stored`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import U8, AnyArray, contiguous, no_array, shaped
from ._files import Mapped, not_found, path_text, printable
from .errors import ShapeError, UnsupportedError, naming
from .registry import BY_INDEX, Format
from .tensor import Tensor

__all__ = ["SafetensorsFile", "SafetensorsTensor", "StoredTensor", "open"]

Path = str | bytes | os.PathLike[str]
"""How a file is named."""

# Types that numpy has, as little-endian dtypes.
_PLAIN: Final = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
}
# Types that only ml_dtypes has: the words, and its name for them.
_EXTRA: Final = {
    "BF16": ("<u2", "bfloat16"),
    "F8_E4M3": ("<u1", "float8_e4m3fn"),
    "F8_E5M2": ("<u1", "float8_e5m2"),
    "F8_E4M3FNUZ": ("<u1", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": ("<u1", "float8_e5m2fnuz"),
    "F8_E8M0": ("<u1", "float8_e8m0fnu"),
}


def _extra_dtype(name: str) -> np.dtype[Any] | None:
    """ml_dtypes' dtype of this name, None without it or before it had one."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    found = getattr(ml_dtypes, name, None)
    return None if found is None else np.dtype(found)


class _Open:
    """What tensors share: the native source and the maps."""

    __slots__ = ("closed", "maps", "native", "path")

    def __init__(self, native: _native.Safetensors, path: str) -> None:
        self.native = native
        self.maps = [Mapped(path_text(file), size) for file, size in native.files()]
        self.path = path
        self.closed = False


class StoredTensor:
    """One tensor as the file stores it: words of one type, whatever they belong to."""

    __slots__ = ("_file", "_row")

    def __init__(self, file: _Open, row: tuple[str, str, tuple[int, ...], int, int, int]) -> None:
        self._file = file
        self._row = row

    @property
    def name(self) -> str:
        """The name."""
        return self._row[0]

    @property
    def dtype(self) -> str:
        """The type as the file names it, e.g. ``"BF16"`` or ``"F8_E4M3"``."""
        return self._row[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension, slowest first."""
        return self._row[2]

    @property
    def path(self) -> str:
        """The file that holds the data."""
        return self._file.maps[self._row[3]].path

    @property
    def offset(self) -> int:
        """Where the data begin in that file, in bytes."""
        return self._row[4]

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self._row[5]

    @property
    def data(self) -> U8:
        """The stored bytes, flat and read-only, without copying."""
        if self._file.closed:
            raise UnsupportedError(f"{self._file.path} is closed")
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        return self._file.maps[self._row[3]].bytes(self.offset, self.nbytes)

    def words(self) -> AnyArray:
        """The elements as numpy's own dtypes, read-only and without copying: BF16 as uint16 words, FP8 types
        as uint8 words. :class:`UnsupportedError` for types of less than a byte and unknown ones: take
        :attr:`data`.
        """
        code = _PLAIN.get(self.dtype) or _EXTRA.get(self.dtype, ("", ""))[0]
        if not code:
            raise UnsupportedError(
                f'tensor "{printable(self.name)}": {printable(self.dtype)} has no numpy dtype; '
                "its bytes are data"
            )
        array = shaped(self.data.view(code), self.shape, f'tensor "{printable(self.name)}"')
        return array.view(array.dtype.newbyteorder("=")) if np.little_endian else contiguous(array)

    def array(self) -> AnyArray:
        """The elements, read-only and without copying: as :meth:`words`, but BF16 and FP8 types as those of
        ml_dtypes if it is installed.
        """
        words = self.words()
        dtype = _extra_dtype(_EXTRA[self.dtype][1]) if self.dtype in _EXTRA else None
        return words if dtype is None else words.view(dtype)

    def __repr__(self) -> str:
        return f"<StoredTensor {printable(self.name)!r} {printable(self.dtype)} {self.shape}>"


class SafetensorsTensor:
    """One logical tensor: plain words, or codes with the scales that belong to them.

    Shapes in elements, slowest dimension first; a packed matrix has the shape of what it stands for.
    """

    __slots__ = ("_file", "_index", "_row", "_stored")

    def __init__(
        self,
        file: _Open,
        index: int,
        row: tuple[str, str, tuple[int, ...], str, str | None, list[str], int, int, int | None],
        stored: Mapping[str, StoredTensor],
    ) -> None:
        self._file = file
        self._index = index
        self._row = row
        self._stored = stored

    @property
    def name(self) -> str:
        """The name."""
        return self._row[0]

    @property
    def dtype(self) -> str:
        """The type of its words or codes as the file names it."""
        return self._row[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension: (N, K) for N rows of K elements."""
        return self._row[2]

    @property
    def content(self) -> str:
        """``"values"``, ``"integers"``, ``"fp8_rows"``, ``"fp8_blocks"`` (128 x 128 tiles), ``"nvfp4"`` or
        ``"unsupported"``."""
        return self._row[3]

    @property
    def reason(self) -> str | None:
        """Why an unsupported tensor cannot be read; None for others."""
        return None if self._row[4] is None else printable(self._row[4])

    @property
    def companions(self) -> tuple[str, ...]:
        """Names of the stored tensors that its values need as well."""
        return tuple(self._row[5])

    @property
    def nbytes(self) -> int:
        """Stored bytes, companions included."""
        return self._row[6]

    @property
    def path(self) -> str:
        """The file that holds its words or codes."""
        return self._file.maps[self._row[7]].path

    @property
    def offset(self) -> int:
        """Where its words or codes begin in that file, in bytes."""
        return self.codes.offset

    @property
    def format(self) -> Format | None:
        """The registered format of :meth:`tensor`; None if no format holds the words as they are."""
        return BY_INDEX[self._row[8]] if self._row[8] is not None else None

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for d in self.shape:
            size *= d
        return size

    @property
    def codes(self) -> StoredTensor:
        """The stored tensor of its words or codes."""
        found = self._stored.get(self.name)
        for suffix in ("_packed", "_blocks"):
            found = found or self._stored.get(self.name + suffix)
        found = found or self._stored.get(self.name.removesuffix(".weight") + ".qweight")
        if found is None:
            raise UnsupportedError(f'tensor "{printable(self.name)}" has no stored codes')
        return found

    def _check(self, what: str, *contents: str) -> None:
        if self._file.closed:
            raise UnsupportedError(f"{self._file.path} is closed")
        if self.content not in contents:
            why = f": {self.reason}" if self.reason else f"; its content is {self.content}"
            named = f'tensor "{printable(self.name)}" ({printable(self.dtype)})'
            raise UnsupportedError(f"{named} has no {what}{why}")

    def array(self) -> AnyArray:
        """Plain numbers as a read-only numpy array, without copying (:meth:`StoredTensor.array`).

        Raises :class:`UnsupportedError` for quantised tensors, whose codes alone mislead: take
        :meth:`values`, :meth:`tensor` or :meth:`parts`.
        """
        self._check("plain numbers", "values", "integers")
        return self.codes.array()

    def values(self, rows: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """The exact values as float32, of all rows or of the rows ``begin..end``; all dimensions but the last
        are rows. float64 rounds once. The result of all rows has the tensor's shape, that of a range
        [rows, K].

        Raises :class:`UnsupportedError` for integers and unsupported tensors, :class:`ShapeError` for rows
        that are not there.
        """
        self._check("floating-point values", "values", "fp8_rows", "fp8_blocks", "nvfp4")
        k = self.shape[-1] if self.shape else 1
        n = 1
        for d in self.shape[:-1]:
            n *= d
        begin, end = (0, n) if rows is None else rows
        if not 0 <= begin <= end <= n:
            raise ShapeError(f'tensor "{printable(self.name)}": rows {begin}..{end} of {n}')
        shape = self.shape if rows is None else (end - begin, k)
        try:
            out = np.empty(shape, np.float32)
        except ValueError as error:
            raise no_array(shape, f'tensor "{printable(self.name)}"', error) from None
        self._file.native.values(self._index, begin, end, out.reshape(-1))
        return out

    def tensor(self) -> Tensor:
        """The tensor in its registered format: bf16, fp32 and int32 over the mapped file, codes and scales
        imported word by word as ``fp8_e4m3fn_row_bf16`` or ``nvfp4``.

        Raises :class:`UnsupportedError` where no format holds the words (take :meth:`values` and quantise
        them), or where a format does not admit them, :class:`ShapeError` for empty tensors and shapes off the
        layout.
        """
        self._check("tensor", "values", "integers", "fp8_rows", "fp8_blocks", "nvfp4")
        fmt = self.format
        if fmt is None:
            hint = "array()" if self.content in ("values", "integers") else "values()"
            raise UnsupportedError(
                f'tensor "{printable(self.name)}": {self.dtype} ({self.content}) has no registered format; '
                f"its values are {hint}"
            )
        if self.size == 0:
            raise ShapeError(f'tensor "{printable(self.name)}" has shape {self.shape} and no elements')
        if self.content in ("values", "integers"):
            return Tensor.from_payload(fmt, self.shape, self.codes.data, name=self.name)
        with naming(self.name):
            payload, divisors = self._file.native.payload(self._index, fmt.index)
        return Tensor.from_payload(fmt, self.shape, payload, divisors, name=self.name)

    def parts(self) -> dict[str, AnyArray]:
        """Codes and scales under the names that :func:`ninfer_rs.import_encoded` takes, without copying; a
        list of these stacks matrices by rows, each with its own divisor. FP8 rows and NVFP4 only.
        """
        self._check("parts", "fp8_rows", "nvfp4")
        scales = [self._stored[n] for n in self.companions]
        if self.content == "fp8_rows":
            return {"weight": self.codes.words(), "weight_scale": scales[0].words()}
        packed = self.codes.name != self.name
        parts = {"weight_packed" if packed else "weight": self.codes.words()}
        for s in scales:
            suffix = s.name.removeprefix(self.name)
            parts[f"weight{suffix}"] = s.words()
        return parts

    def __repr__(self) -> str:
        kind = f"{self.content} {printable(self.dtype)}"
        return f"<SafetensorsTensor {printable(self.name)!r} {kind} {self.shape}>"


class SafetensorsFile(Mapping[str, SafetensorsTensor]):
    """An opened model: tensor name -> :class:`SafetensorsTensor`, in file order, over all its files.

    A context manager; leaving it refuses further use of the file. Arrays and tensors taken from it stay
    valid: they keep the map alive.
    """

    __slots__ = ("_file", "_tensors", "stored")

    def __init__(self, native: _native.Safetensors, path: str) -> None:
        self._file = _Open(native, path)
        stored = {row[0]: StoredTensor(self._file, row) for row in native.stored()}
        self.stored: Mapping[str, StoredTensor] = MappingProxyType(stored)
        """Name -> :class:`StoredTensor`: everything the files hold, scales as well. Read-only."""
        self._tensors = {
            row[0]: SafetensorsTensor(self._file, i, row, self.stored)
            for i, row in enumerate(native.tensors())
        }

    @property
    def path(self) -> str:
        """The path it was opened by."""
        return self._file.path

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files."""
        return tuple(m.path for m in self._file.maps)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(m.size for m in self._file.maps)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that the files keep about themselves; of equal keys the first file's."""
        merged: dict[str, str] = {}
        for entries in self._file.native.metadata():
            for key, value in entries:
                merged.setdefault(key, value)
        return merged

    @property
    def quant_method(self) -> str | None:
        """The quantisation method that ``config.json`` names."""
        return self._file.native.quant_method()

    @property
    def unused(self) -> Mapping[str, str]:
        """Stored tensors that no value depends on, such as scales of activations: name -> why."""
        return dict(self._file.native.unused())

    @property
    def warnings(self) -> list[str]:
        """What is odd and does not make the model unreadable."""
        return self._file.native.warnings()

    def _open(self) -> dict[str, SafetensorsTensor]:
        if self._file.closed:
            raise UnsupportedError(f"{self._file.path} is closed")
        return self._tensors

    def __getitem__(self, name: str) -> SafetensorsTensor:
        tensors = self._open()
        try:
            return tensors[name]
        except (KeyError, TypeError):
            raise not_found(self._file.path, "tensor", name, tensors) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._open()

    def __iter__(self) -> Iterator[str]:
        return iter(self._open())

    def __len__(self) -> int:
        return len(self._open())

    def close(self) -> None:
        """Refuses further use; maps go with the last array that looks into them."""
        if not self._file.closed:
            self._file.closed = True
            for m in self._file.maps:
                m.close()

    def __enter__(self) -> SafetensorsFile:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._file.closed else f"{len(self._tensors)} tensors"
        return f"<SafetensorsFile {printable(self._file.path)!r} {state}>"


def open(
    path: Path | Sequence[Path], *, fp8_without_scale: bool = False, ignore_quantization_config: bool = False
) -> SafetensorsFile:
    """Opens a safetensors file, an index (``*.safetensors.index.json``) with its shards, a folder with
    either, or a list of files that are one model. Headers are read and checked, tensor data are not.

    ``fp8_without_scale`` takes FP8 tensors without a scale as values, each code for itself; such tensors are
    otherwise unsupported, because a checkpoint that lost its scales looks the same.
    ``ignore_quantization_config`` turns a disagreement between tensors and ``config.json`` into a warning.

    Raises :class:`FileFormatError` with place and rule for whatever the format or an index does not allow;
    ``OSError`` if a file cannot be read. What a single tensor lacks is its :attr:`SafetensorsTensor.reason`.
    """
    single = isinstance(path, (str, bytes, os.PathLike))
    paths = [path_text(path)] if single else [path_text(p) for p in path]  # type: ignore[arg-type, union-attr]
    native = _native.Safetensors(paths, not single, fp8_without_scale, ignore_quantization_config)
    return SafetensorsFile(native, paths[0])
