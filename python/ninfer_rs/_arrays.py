"""Arrays in and out: dtype names, contiguity, bfloat16 without a hard dependency on ml_dtypes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import ShapeError, UnsupportedError

U8 = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]

BFLOAT16: Final = "bfloat16"
_NATIVE_FLOATS: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
}


def bfloat16_dtype() -> np.dtype[Any]:
    """ml_dtypes' bfloat16 dtype; :class:`UnsupportedError` when ml_dtypes is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            "bfloat16 arrays need the package ml_dtypes, which is not installed; install it, ask for "
            'float32, or pass dtype="bfloat16" with out= a uint16 array for the words'
        ) from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_name(dtype: Any) -> str:
    """The name of a dtype; the string ``"bfloat16"`` needs no ml_dtypes."""
    if isinstance(dtype, str) and dtype == BFLOAT16:
        return BFLOAT16
    try:
        name: str = np.dtype(dtype).name
    except TypeError as error:
        raise UnsupportedError(f"not a dtype: {dtype!r} ({error})") from None
    return name


def require(name: str, array: Any, dtype: npt.DTypeLike, shape: tuple[int, ...], hint: str = "") -> AnyArray:
    """``array`` as an aligned C-contiguous array of exactly ``dtype`` and ``shape``.

    Non-contiguous and byte-swapped arrays are copied, never read as if contiguous; another dtype is an error,
    since a conversion could change words silently.
    """
    array = np.asarray(array)
    wanted = np.dtype(dtype)
    if array.dtype.newbyteorder("=") != wanted:
        raise UnsupportedError(f"{name} must be an array of {wanted}, got {array.dtype}{hint}")
    if array.shape != shape:
        raise ShapeError(f"{name} must have shape {shape}, got {array.shape}")
    return contiguous(array)


def contiguous(array: AnyArray) -> AnyArray:
    """The array itself if it is C-contiguous, aligned and in native byte order, else a copy that is."""
    native = array.dtype.newbyteorder("=")
    return np.require(array, dtype=native, requirements=["C_CONTIGUOUS", "ALIGNED"])


def output(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], *inputs: AnyArray) -> AnyArray:
    """Checks a caller's output array: results land in it and nowhere else, and overwrite no input.

    Returns a plain view of its memory, since subclasses may reshape and view in ways of their own.
    """
    if not isinstance(out, np.ndarray):
        raise UnsupportedError(f"out must be a numpy array, got {type(out).__name__}")
    plain = np.asarray(out)
    if plain.dtype != dtype:
        raise UnsupportedError(f"out must be an array of {dtype}, got {plain.dtype}")
    if plain.shape != shape:
        raise ShapeError(f"out must have shape {shape}, got {plain.shape}")
    if not plain.flags.c_contiguous:
        raise UnsupportedError("out must be C-contiguous")
    if not plain.flags.aligned:
        raise UnsupportedError("out must be aligned")
    if not plain.flags.writeable:
        raise UnsupportedError("out is read-only")
    if any(np.may_share_memory(plain, array) for array in inputs):
        raise UnsupportedError("out overlaps an input")
    return plain


def shaped(array: AnyArray, shape: tuple[int, ...], what: str) -> AnyArray:
    """The array in this shape. :class:`ShapeError`, which begins with ``what``, if numpy has no arrays like
    it: files may hold shapes of more dimensions than numpy knows, and empty tensors with dimensions beyond
    any memory.
    """
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise no_array(shape, what, error) from None


def no_array(shape: tuple[int, ...], what: str, error: Exception) -> ShapeError:
    """The error of a shape of which numpy has no arrays."""
    said = str(shape) if len(shape) <= 8 else f"of {len(shape)} dimensions"
    return ShapeError(f"{what}: numpy has no arrays of the shape {said} ({error})")


def payload_array(buffer: Any) -> U8:
    """Any bytes-like object or array as a read-only 1-D uint8 array over the same memory.

    Raises :class:`UnsupportedError` for objects without a buffer and for buffers that are not C-contiguous (a
    copy would break the promise of sharing memory).
    """
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.hasobject:
            raise UnsupportedError("a payload cannot be an array of Python objects")
        if not buffer.flags.c_contiguous:
            raise UnsupportedError(
                "the payload array must be C-contiguous; pass numpy.ascontiguousarray(...) of it"
            )
        plain = np.asarray(buffer)  # a memmap or another subclass becomes a plain view of the same memory
        array = plain.reshape(-1).view(np.uint8) if plain.size else np.empty(0, np.uint8)
    else:
        try:
            view = memoryview(buffer)
        except TypeError:
            raise UnsupportedError(
                f"a payload must be bytes, a buffer or an array, got {type(buffer).__name__}"
            ) from None
        if not view.c_contiguous:
            raise UnsupportedError("the payload buffer must be C-contiguous")
        array = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    payload: U8 = array.view()
    payload.flags.writeable = False
    return payload


def float_kind(name: str) -> np.dtype[Any] | None:
    """The numpy dtype of a plain float result, None for bfloat16; :class:`UnsupportedError` for others."""
    if name == BFLOAT16:
        return None
    try:
        return _NATIVE_FLOATS[name]
    except KeyError:
        raise UnsupportedError(
            f"cannot decode to {name}: choose float32 (exact), float16 or bfloat16 (one rounding)"
        ) from None


def thread_count(threads: Any) -> int | None:
    """None or an int of at least 1."""
    if threads is None:
        return None
    if isinstance(threads, bool) or not hasattr(threads, "__index__"):
        raise UnsupportedError(f"threads must be None or an integer, got {type(threads).__name__}")
    number = threads.__index__()
    if not 1 <= number <= 4096:
        raise UnsupportedError(f"threads must be None or lie in 1..4096, got {number}")
    return int(number)
