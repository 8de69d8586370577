"""GGUF files: reading by memory map, and writing.

Nothing of the tensor data is read until it is looked at, arrays of the metadata are decoded on demand, and
split models look like one file.
"""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple

import numpy as np

from . import _native
from ._arrays import BFLOAT16, U8, AnyArray, contiguous, payload_array, shaped
from ._files import decode_name, encode_name, not_found, path_text, printable
from ._gguf_metadata import NUMBERS, Metadata, MetadataArray, OpenFile
from .errors import ShapeError, UnsupportedError, naming
from .registry import BY_INDEX, Format
from .tensor import Tensor

__all__ = [
    "TYPES",
    "GgmlType",
    "GgufFile",
    "GgufTensor",
    "Metadata",
    "MetadataArray",
    "Typed",
    "open",
    "write",
]


Path = str | bytes | os.PathLike[str]
"""How a file is named."""


class GgmlType(NamedTuple):
    """One ggml type number. ``block_values`` (elements) and ``block_bytes`` are None for retired types.

    ``format`` is the registered format that holds such tensors word for word, or None.
    """

    id: int
    name: str
    block_values: int | None
    block_bytes: int | None
    format: Format | None


TYPES: Final[Mapping[int, GgmlType]] = MappingProxyType(
    {
        row[0]: GgmlType(*row[:4], BY_INDEX[row[4]] if row[4] is not None else None)
        for row in _native.ggml_types()
    }
)
"""ggml type number -> :class:`GgmlType`, for every type this package can name. Read-only."""

_BY_NAME: Final = {t.name: t for t in TYPES.values()}
# ggml types that are plain numbers, as little-endian numpy dtypes.
_PLAIN: Final = {
    "F32": "<f4",
    "F16": "<f2",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F64": "<f8",
}


class GgufTensor:
    """One tensor of a GGUF file. Offsets and sizes in bytes, shapes in elements, slowest dimension first."""

    __slots__ = ("_file", "_row")

    def __init__(
        self,
        file: OpenFile,
        row: tuple[bytes, tuple[int, ...], int, str, int | None, int, int, int | None, tuple[int, int]],
    ) -> None:
        self._file = file
        self._row = row

    @property
    def name(self) -> str:
        """The name; bytes that are not UTF-8 are surrogates."""
        return decode_name(self._row[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions as stored, slowest first, unit dimensions kept: (N, K) for N rows of K elements."""
        return self._row[1]

    @property
    def ggml_type(self) -> int:
        """ggml's type number."""
        return self._row[2]

    @property
    def type_name(self) -> str:
        """ggml's type name, e.g. ``"Q4_K"``; ``"type 9999"`` for an unknown number."""
        return self._row[3]

    @property
    def format(self) -> Format | None:
        """The registered format of :meth:`tensor`; None for types outside the registry."""
        return BY_INDEX[self._row[4]] if self._row[4] is not None else None

    @property
    def path(self) -> str:
        """The file that holds the data."""
        return self._file.maps[self._row[5]].path

    @property
    def offset(self) -> int:
        """Where the data begins in that file."""
        return self._row[6]

    @property
    def nbytes(self) -> int | None:
        """Bytes of the data; None if the type has no known block size."""
        return self._row[7]

    @property
    def size(self) -> int:
        """Number of elements."""
        rows, k = self._row[8]
        return rows * k

    def _data(self) -> U8:
        if self._file.closed:
            raise UnsupportedError(f"{self._file.path} is closed")
        length = self._row[7]
        if length is None:
            raise UnsupportedError(
                f'tensor "{printable(self.name)}": ggml type {self.ggml_type} ({self.type_name}) has no '
                "known block size, so its bytes cannot be located"
            )
        if length == 0:
            return np.empty(0, np.uint8)
        return self._file.maps[self._row[5]].bytes(self._row[6], length)

    @property
    def blocks(self) -> U8:
        """The stored bytes, read-only, uint8 [rows, bytes per row], without copying; all but the last
        dimension are rows. :class:`UnsupportedError` if the type has no known block size.
        """
        data = self._data()
        rows, _ = self._row[8]
        shape = (rows, data.size // rows) if rows else (0, 0)
        return shaped(data, shape, f'tensor "{printable(self.name)}"')

    def array(self) -> AnyArray:
        """A tensor of plain numbers as a read-only numpy array of its shape, without copying.

        BF16 comes as ml_dtypes.bfloat16 if ml_dtypes is installed, else as its uint16 words. Raises
        :class:`UnsupportedError` for block types.
        """
        if self.type_name == "BF16":
            words = self._numbers("<u2")
            try:
                import ml_dtypes
            except ImportError:
                return words
            return words.view(ml_dtypes.bfloat16)
        if self.type_name not in _PLAIN:
            raise UnsupportedError(
                f'tensor "{printable(self.name)}": {self.type_name} is not a plain number type; '
                "use tensor() or blocks"
            )
        return self._numbers(_PLAIN[self.type_name])

    def _numbers(self, dtype: str) -> AnyArray:
        array = shaped(self._data().view(dtype), self.shape, f'tensor "{printable(self.name)}"')
        return array.view(array.dtype.newbyteorder("=")) if np.little_endian else contiguous(array)

    def tensor(self) -> Tensor:
        """The tensor in its registered format, over the mapped file: gguf_*, bf16, fp32 or int32.

        Block types become a matrix [rows, K]; plain types keep their shape. Raises :class:`UnsupportedError`
        for types outside the registry (F16 among them: take :meth:`array`), :class:`ShapeError` for empty
        tensors.
        """
        name = printable(self.name)
        fmt = self.format
        if fmt is None:
            hint = "; its values are array()" if self.type_name in _PLAIN else ""
            raise UnsupportedError(
                f'tensor "{name}": ggml type {self.ggml_type} ({self.type_name}) has no registered format'
                f"{hint}"
            )
        shape = self._row[8] if fmt.category == "gguf" else self.shape
        if self._row[7] == 0:
            raise ShapeError(f'tensor "{name}" has shape {self.shape} and no elements')
        return Tensor.from_payload(fmt, shape, self._data(), name=name)

    def __repr__(self) -> str:
        return f"<GgufTensor {printable(self.name)!r} {self.type_name} {self.shape}>"


class GgufFile(Mapping[str, GgufTensor]):
    """An opened model: tensor name -> :class:`GgufTensor`, in file order, over all files of a split set.

    A context manager; leaving it refuses further use of the file. Arrays and tensors taken from it stay
    valid: they keep the map alive.
    """

    __slots__ = ("_file", "_tensors", "metadata")

    def __init__(self, native: _native.Gguf) -> None:
        self._file = OpenFile(native)
        self._tensors = {decode_name(row[0]): GgufTensor(self._file, row) for row in native.tensors()}
        self.metadata = Metadata(self._file)
        """Key -> value (:class:`Metadata`); of a split set, the first file's."""

    @property
    def path(self) -> str:
        """Path of the file, or of the first file of a split set."""
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
    def version(self) -> int:
        """GGUF version of the first file: 2 or 3."""
        return self._file.native.shards()[0][2]

    @property
    def alignment(self) -> int:
        """Alignment of tensor data in the first file, in bytes."""
        return self._file.native.shards()[0][3]

    @property
    def warnings(self) -> list[str]:
        """What this reader accepts and llama.cpp's own reader would refuse."""
        return self._file.native.warnings()

    def _open(self) -> dict[str, GgufTensor]:
        if self._file.closed:
            raise UnsupportedError(f"{self._file.path} is closed")
        return self._tensors

    def __getitem__(self, name: str) -> GgufTensor:
        tensors = self._open()
        try:
            return tensors[name]
        except (KeyError, TypeError):
            raise not_found(self._file.path, "tensor", name, tensors) from None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._open())

    def __len__(self) -> int:
        return len(self._tensors)

    def items(self) -> ItemsView[str, GgufTensor]:
        """Names and tensors in file order."""
        return self._open().items()

    def values(self) -> ValuesView[GgufTensor]:
        """Tensors in file order."""
        return self._open().values()

    def close(self) -> None:
        """Ends the use of the file; arrays taken from it stay valid."""
        self._file.closed = True
        for m in self._file.maps:
            m.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GgufFile {self.path!r}: {len(self)} tensors>"


def open(path: Path | Sequence[Path]) -> GgufFile:
    """Opens a GGUF model: one file, any file of a split set (the others are found by name), or a list of all
    files.

    Raises ``OSError`` if a file cannot be read and :class:`~ninfer_rs.FileFormatError` (path, byte offset,
    what was expected) if one breaks the format.
    """
    if isinstance(path, (str, bytes, os.PathLike)):
        return GgufFile(_native.Gguf([path_text(path)], False))
    return GgufFile(_native.Gguf([path_text(p) for p in path], True))


class Typed(NamedTuple):
    """A metadata value of an explicit type.

    ``type`` is ``"u8"``, ``"i8"``, ``"u16"``, ``"i16"``, ``"u32"``, ``"i32"``, ``"f32"``, ``"bool"``,
    ``"string"``, ``"u64"``, ``"i64"``, ``"f64"``, or ``"array of X"`` with a sequence as value.
    """

    type: str
    value: Any


def write(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
) -> None:
    """Writes a GGUF file (version 3). The file appears complete or not at all, and nothing is overwritten.

    ``metadata`` values: bool, int, float, str or bytes, numpy scalars (which fix the type), sequences of one
    of these, numpy arrays, :class:`Typed`. A plain int is stored as the first of u32, i32, u64, i64 that
    holds it, a plain float as f32 if that holds it exactly and else as f64. The metadata of an opened file is
    copied byte for byte. ``general.alignment`` (u32) sets the alignment of the data.

    ``tensors`` in file order: name -> a :class:`Tensor` of a format that GGUF can hold (gguf_*, bf16, fp32,
    int32), a :class:`GgufTensor`, a numpy array of a plain type (float16, float32, float64, bfloat16, int8 to
    int64), or a tuple (ggml type name or number, shape, bytes).

    Everything is planned before the first byte is written. Raises :class:`~ninfer_rs.UnsupportedError` or
    :class:`~ninfer_rs.ShapeError` for what cannot be stored, ``FileExistsError`` if the file exists.
    """
    entries = [_entry(key, metadata) for key in metadata]
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    records = []
    for name, value in pairs:
        with naming(printable(name)):
            kind, shape, data = _tensor_data(value)
        records.append((encode_name(name), kind, list(reversed(shape)), data))
    _native.gguf_write(path_text(path), entries, records)


def _tensor_data(value: Any) -> tuple[int, tuple[int, ...], U8]:
    """ggml type, shape and bytes of something to be written."""
    if isinstance(value, GgufTensor):
        return value.ggml_type, value.shape, value._data()
    if isinstance(value, Tensor):
        for t in TYPES.values():
            if t.format is value.format:
                return t.id, value.shape, value.payload
        raise UnsupportedError(f"GGUF has no type for the format {value.format.name}")
    if isinstance(value, tuple) and len(value) == 3:
        kind, shape, data = value
        if isinstance(kind, str):
            if kind.upper() not in _BY_NAME:
                raise UnsupportedError(f"unknown ggml type {kind!r}")
            kind = _BY_NAME[kind.upper()].id
        return int(kind), tuple(int(d) for d in shape), payload_array(data)
    array = np.asarray(value)
    if array.dtype.name == BFLOAT16:
        words = contiguous(array).view(np.uint16)
        return _BY_NAME["BF16"].id, array.shape, _little_endian(words, "<u2")
    for name, dtype in _PLAIN.items():
        if array.dtype.newbyteorder("=") == np.dtype(dtype).newbyteorder("="):
            return _BY_NAME[name].id, array.shape, _little_endian(array, dtype)
    raise UnsupportedError(f"cannot store an array of {array.dtype}; GGUF has no such type")


def _little_endian(array: AnyArray, dtype: str) -> U8:
    return payload_array(np.ascontiguousarray(array, np.dtype(dtype)).reshape(-1).view(np.uint8))


def _entry(key: str, metadata: Mapping[str, Any]) -> tuple[bytes, str, Any]:
    name = encode_name(key)
    if isinstance(metadata, Metadata):
        return name, "copy", metadata._file.native
    value = metadata[key]
    if isinstance(value, MetadataArray) and value._key == name:
        return name, "copy", value._file.native
    try:
        kind, stored = _value(value)
    except UnsupportedError as error:
        raise UnsupportedError(f'metadata key "{printable(key)}": {error}') from None
    return name, kind, stored


_SCALARS: Final = {np.dtype(v).newbyteorder("="): k for k, v in NUMBERS.items()}


def _value(value: Any) -> tuple[str, Any]:
    """Type name and stored value; arrays as ("array", (element type, items))."""
    if isinstance(value, Typed):
        return _typed(value.type, value.value)
    if isinstance(value, (bool, np.bool_)):
        return "bool", bool(value)
    if isinstance(value, np.generic):
        kind = _SCALARS.get(value.dtype.newbyteorder("="))
        if kind is None:
            raise UnsupportedError(f"no metadata type holds a {value.dtype}")
        return kind, value.item()
    if isinstance(value, int):
        return _int_type(value, value), value
    if isinstance(value, float):
        return _float_type([value]), value
    if isinstance(value, str):
        return "string", encode_name(value)
    if isinstance(value, bytes):
        return "string", value
    if isinstance(value, MetadataArray):
        return _typed(f"array of {value.element_type}", value.tolist())
    if isinstance(value, np.ndarray):
        kind = _SCALARS.get(value.dtype.newbyteorder("="))
        if kind is None or value.ndim != 1:
            raise UnsupportedError(
                f"no metadata type holds an array of {value.dtype} with {value.ndim} dimensions"
            )
        return "array", (kind, value.tolist())
    if isinstance(value, Sequence):
        return "array", _array(list(value))
    raise UnsupportedError(f"no metadata type holds a {type(value).__name__}")


def _array(items: list[Any]) -> tuple[str, list[Any]]:
    if not items:
        raise UnsupportedError('an empty sequence has no element type; use Typed("array of u32", [])')
    if all(isinstance(i, int) and not isinstance(i, bool) for i in items):
        return _int_type(min(items), max(items)), items
    if all(isinstance(i, float) and not isinstance(i, np.generic) for i in items):
        return _float_type(items), items
    pairs = [_value(i) for i in items]
    kinds = sorted({kind for kind, _ in pairs})
    if len(kinds) != 1:
        raise UnsupportedError(f"the elements of an array have one type, got {', '.join(kinds)}")
    return kinds[0], [stored for _, stored in pairs]


def _int_type(smallest: int, largest: int) -> str:
    for kind, low, high in (
        ("u32", 0, 2**32 - 1),
        ("i32", -(2**31), 2**31 - 1),
        ("u64", 0, 2**64 - 1),
        ("i64", -(2**63), 2**63 - 1),
    ):
        if low <= smallest and largest <= high:
            return kind
    raise UnsupportedError(f"no 64-bit integer type holds {smallest}..{largest}")


def _float_type(values: list[float]) -> str:
    wide = np.array(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32).astype(np.float64)
    return "f32" if bool(((narrow == wide) | np.isnan(wide)).all()) else "f64"


def _typed(kind: str, value: Any) -> tuple[str, Any]:
    if kind.startswith("array of "):
        element = kind.removeprefix("array of ")
        return "array", (element, [_typed(element, v)[1] for v in value])
    if kind == "string":
        return kind, encode_name(value) if isinstance(value, str) else bytes(value)
    if kind == "bool":
        if not isinstance(value, (bool, np.bool_)):
            raise UnsupportedError(f"a bool is True or False, got {value!r}")
        return kind, bool(value)
    if kind in ("f32", "f64"):
        return kind, float(value)
    if kind in NUMBERS:
        return kind, value.__index__()
    raise UnsupportedError(
        f"unknown value type {kind!r}; the types are {', '.join([*NUMBERS, 'string'])}, array of X"
    )
