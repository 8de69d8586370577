"""Where logical words sit in a payload: the six tensor layouts and raw_bytes_v1 (storage layouts page).

A payload is a one-dimensional uint8 array of exactly the encoded size. The words of each category:

==============  =========================================================================================
category        words
==============  =========================================================================================
direct          ``words`` uint16 (bf16), uint32 (fp32) or int32, in the tensor's shape
grouped         ``codes`` int8 [N, K] (signed codes), ``scales`` uint16 [N, ceil(K / G)]
block_scaled    ``codes`` uint8 [N, K/2] (low nibble = even k), ``scales`` uint8 [N, K/16] in natural order,
                ``divisors`` float32 [D]
row_scaled      ``codes`` uint8 [N, K], ``scales`` uint16 [N]
gguf            ``blocks`` uint8 [N, K / block_values * block_bytes]
==============  =========================================================================================
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidWordsError, ShapeError, UnsupportedError
from .registry import FORMATS, OracleFormat, get_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
Words = dict[str, npt.NDArray[Any]]

U64_MAX = (1 << 64) - 1
MAX_RANK = 16


@dataclass(frozen=True)
class OracleLayout:
    """A layout: its name, the formats it stores, and the alignment of its objects in bytes."""

    name: str
    formats: tuple[str, ...]
    alignment: int


def _layouts() -> dict[str, OracleLayout]:
    order = (
        "contiguous_le_v1",
        "row_split_k128_v1",
        "block_scale_k16_m128x4_v1",
        "row_scale_v1",
        "row_interleaved_v1",
        "gguf_blocks_v1",
    )
    table = {n: OracleLayout(n, tuple(f.name for f in FORMATS.values() if f.layout == n), 256) for n in order}
    table["raw_bytes_v1"] = OracleLayout("raw_bytes_v1", (), 1)
    return table


LAYOUTS: Mapping[str, OracleLayout] = MappingProxyType(_layouts())
"""Read-only mapping name -> OracleLayout: six tensor layouts and raw_bytes_v1 (resources)."""


def align_up(x: int, a: int) -> int:
    return -(-x // a) * a


def _integer(value: object, what: str) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise ShapeError(f"{what} must be an integer, not {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"{what} must be an integer, not {value!r}") from None


def _fits(size: int, fmt: OracleFormat, shape: tuple[int, ...]) -> int:
    if size > U64_MAX:
        raise ShapeError(f"{fmt.name} {list(shape)}: {size} bytes do not fit in 64 bits")
    return size


def check_shape(
    name: str, shape: Sequence[int], divisors: int = 1
) -> tuple[OracleFormat, tuple[int, ...], int]:
    """The format, the shape as a tuple of ints and the divisor count, after every rule of the layout.

    Raises UnknownFormatError or ShapeError naming the rule that is broken.
    """
    fmt = get_format(name)
    dims = tuple(_integer(d, f"{name}: dimension {i}") for i, d in enumerate(shape))
    count = _integer(divisors, f"{name}: divisors")
    for i, d in enumerate(dims):
        if not 0 < d <= U64_MAX:
            raise ShapeError(f"{name} {list(dims)}: dimension {i} is {d}, must be in 1..2^64-1")
    if fmt.category == "direct":
        if len(dims) > MAX_RANK:
            raise ShapeError(f"{name}: rank {len(dims)} is above {MAX_RANK}")
    elif len(dims) != 2:
        raise ShapeError(f"{name} {list(dims)}: rank {len(dims)}, {fmt.layout} needs rank 2 [N, K]")
    if fmt.category == "gguf":
        assert fmt.block_values is not None
        if dims[1] % fmt.block_values:
            raise ShapeError(f"{name}: row length {dims[1]} is not a multiple of {fmt.block_values}")
    if fmt.category == "block_scaled":
        n, k = dims
        if n % 128 or k % 64:
            raise ShapeError(
                f"{name} {list(dims)}: needs N % 128 == 0 and K % 64 == 0 (remainders {n % 128} and {k % 64})"
            )
        if count < 1 or n % count or (count > 1 and (n // count) % 128):
            raise ShapeError(
                f"{name}: {count} divisors do not split {n} rows into equal parts of whole 128-row tiles"
            )
    elif count != 1:
        raise ShapeError(f"{name}: divisors is {count}, only nvfp4 may have other than 1")
    return fmt, dims, count


@dataclass(frozen=True)
class RowSplit:
    """Geometry of a row_split_k128_v1 payload. Offsets and sizes in bytes, *_row sizes per row."""

    groups: int  # physical groups per row
    logical_groups: int
    base_row: int
    high_row: int
    high_offset: int
    scale_offset: int
    size: int


def row_split(fmt: OracleFormat, n: int, k: int) -> RowSplit:
    assert fmt.group_size is not None and fmt.code_bits is not None
    groups = align_up(k, 128) // fmt.group_size
    low_bits = 4 if fmt.code_bits in (5, 6) else fmt.code_bits
    base_row = groups * (fmt.group_size * low_bits // 8)
    high_row = groups * (fmt.group_size * (fmt.code_bits - low_bits) // 8)
    high_offset = align_up(n * base_row, 256)
    scale_offset = high_offset + align_up(n * high_row, 256)
    size = scale_offset + n * groups * 2
    return RowSplit(groups, -(-k // fmt.group_size), base_row, high_row, high_offset, scale_offset, size)


def encoded_size(name: str, shape: Sequence[int], divisors: int = 1) -> int:
    """Payload size in bytes. Raises ShapeError for a shape the layout refuses or a size past 64 bits."""
    fmt, dims, count = check_shape(name, shape, divisors)
    if fmt.category == "direct":
        assert fmt.word_bytes is not None
        size = fmt.word_bytes
        for d in dims:
            size *= d
        return _fits(size, fmt, dims)
    n, k = dims
    if fmt.category == "grouped":
        return _fits(row_split(fmt, n, k).size, fmt, dims)
    if fmt.category == "block_scaled":
        return _fits(align_up(n * k // 2, 256) + n * k // 16 + 4 * count, fmt, dims)
    if fmt.layout == "row_scale_v1":
        return _fits(align_up(n * k, 256) + 2 * n, fmt, dims)
    if fmt.layout == "row_interleaved_v1":
        return _fits(n * (k + 2), fmt, dims)
    assert fmt.block_values is not None and fmt.block_bytes is not None
    return _fits(n * (k // fmt.block_values * fmt.block_bytes), fmt, dims)


def check_payload(name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, divisors: int = 1) -> U8:
    """The payload as a one-dimensional uint8 array of exactly the encoded size, or ShapeError."""
    size = encoded_size(name, shape, divisors)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        data = np.frombuffer(payload, dtype=np.uint8)
    else:
        data = np.asarray(payload)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ShapeError(f"{name}: payload must be uint8 of rank 1, not {data.dtype} of rank {data.ndim}")
    if data.size != size:
        raise ShapeError(f"{name} {list(shape)}: payload has {data.size} bytes, must have exactly {size}")
    return data


# -- bytes and words: no host-order views, so a big-endian host gives the same payload ----------


def le_split(words: npt.NDArray[Any], width: int) -> U8:
    """uint words [...] -> uint8 [..., width], lowest byte first."""
    wide = words.astype(np.uint64)
    parts = [(wide >> np.uint64(8 * i)) & np.uint64(0xFF) for i in range(width)]
    return np.stack(parts, axis=-1).astype(np.uint8)


def le_join(raw: U8, width: int) -> npt.NDArray[np.uint64]:
    """uint8 [..., m * width] -> uint64 [..., m], lowest byte first."""
    parts = raw.reshape((*raw.shape[:-1], -1, width)).astype(np.uint64)
    total = parts[..., 0]
    for i in range(1, width):
        total = total | (parts[..., i] << np.uint64(8 * i))
    return total


def u16_at(raw: U8) -> npt.NDArray[np.uint16]:
    """uint8 [..., 2 m] -> uint16 [..., m], little-endian."""
    return le_join(raw, 2).astype(np.uint16)


# -- row_split_k128_v1 -----------------------------------------------------------------------------------


def _pack_fields(fields: U8, bits: int) -> U8:
    """[..., m] words of ``bits`` bits -> bytes, lowest lane in the lowest bits of each byte."""
    per_byte = 8 // bits
    lanes = fields.reshape((*fields.shape[:-1], -1, per_byte))
    out = np.zeros(lanes.shape[:-1], dtype=np.uint8)
    for i in range(per_byte):
        out |= lanes[..., i] << np.uint8(bits * i)
    return out


def _unpack_fields(raw: U8, bits: int) -> U8:
    per_byte = 8 // bits
    mask = np.uint8((1 << bits) - 1)
    lanes = [(raw >> np.uint8(bits * i)) & mask for i in range(per_byte)]
    return np.stack(lanes, axis=-1).reshape((*raw.shape[:-1], -1))


def split_planes(fmt: OracleFormat, n: int, k: int, payload: U8) -> tuple[I8, npt.NDArray[np.uint16]]:
    """Physical codes int8 [N, K_pad] and physical scale words uint16 [N, groups], padding included."""
    geo = row_split(fmt, n, k)
    assert fmt.code_bits is not None
    base = payload[: n * geo.base_row].reshape(n, geo.base_row)
    high = payload[geo.high_offset : geo.high_offset + n * geo.high_row].reshape(n, geo.high_row)
    scales = u16_at(payload[geo.scale_offset :].reshape(n, 2 * geo.groups))
    if fmt.code_bits == 8:
        return base.view(np.int8), scales
    if fmt.code_bits == 2:
        u = _unpack_fields(base, 2).astype(np.int8)
        if fmt.name == "q2_g64_fp16":
            return u - np.int8(1), scales
        return np.where(u >= 2, u - np.int8(4), u).astype(np.int8), scales
    word = _unpack_fields(base, 4).astype(np.int16)
    extra = fmt.code_bits - 4
    if extra:
        word |= _unpack_fields(high, extra).astype(np.int16) << np.int16(4)
    top = 1 << (fmt.code_bits - 1)
    return np.where(word >= top, word - 2 * top, word).astype(np.int8), scales


def _join_planes(fmt: OracleFormat, n: int, k: int, codes: I8, scales: npt.NDArray[np.uint16]) -> U8:
    geo = row_split(fmt, n, k)
    assert fmt.group_size is not None and fmt.code_bits is not None
    full = np.zeros((n, geo.groups * fmt.group_size), dtype=np.int8)
    full[:, :k] = codes
    scale_words = np.zeros((n, geo.groups), dtype=np.uint16)
    scale_words[:, : geo.logical_groups] = scales
    payload = np.zeros(geo.size, dtype=np.uint8)
    high = np.zeros((n, 0), dtype=np.uint8)
    if fmt.code_bits == 8:
        base = full.view(np.uint8)
    elif fmt.code_bits == 2:
        offset = np.int8(1) if fmt.name == "q2_g64_fp16" else np.int8(0)
        base = _pack_fields((full + offset).view(np.uint8) & np.uint8(3), 2)
    else:
        u = full.view(np.uint8) & np.uint8((1 << fmt.code_bits) - 1)
        base = _pack_fields(u & np.uint8(15), 4)
        if fmt.code_bits > 4:
            high = _pack_fields(u >> np.uint8(4), fmt.code_bits - 4)
    payload[: n * geo.base_row] = base.reshape(-1)
    payload[geo.high_offset : geo.high_offset + n * geo.high_row] = high.reshape(-1)
    payload[geo.scale_offset :] = le_split(scale_words, 2).reshape(-1)
    return payload


# -- block_scale_k16_m128x4_v1 ---------------------------------------------------------------------------


def swizzle(n: int, k: int) -> npt.NDArray[np.int64]:
    """Offset in the scale plane of the scale word of row r, group g, as int64 [N, K/16]."""
    r = np.arange(n, dtype=np.int64)[:, None]
    g = np.arange(k // 16, dtype=np.int64)[None, :]
    return ((r // 128) * (k // 64) + g // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + g % 4


# -- words <-> payload -----------------------------------------------------------------------------------


def words(name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, divisors: int = 1) -> Words:
    """The logical words of a payload, bit for bit (see the module's table). Padding is not read.

    Raises UnknownFormatError, or ShapeError when shape, divisors or payload size do not fit.
    """
    data = check_payload(name, shape, payload, divisors)
    fmt, dims, _ = check_shape(name, shape, divisors)
    if fmt.category == "direct":
        assert fmt.word_bytes is not None
        raw = le_join(data, fmt.word_bytes).reshape(dims)
        if name == "bf16":
            return {"words": raw.astype(np.uint16)}
        unsigned = raw.astype(np.uint32)
        return {"words": unsigned.view(np.int32) if name == "int32" else unsigned}
    n, k = dims
    if fmt.category == "grouped":
        codes, scales = split_planes(fmt, n, k, data)
        logical = row_split(fmt, n, k).logical_groups
        return {"codes": codes[:, :k].copy(), "scales": scales[:, :logical].copy()}
    if fmt.category == "block_scaled":
        scale_at = align_up(n * k // 2, 256)
        plane = data[scale_at : scale_at + n * k // 16]
        words32 = le_join(data[scale_at + n * k // 16 :], 4).astype(np.uint32)
        return {
            "codes": data[: n * k // 2].reshape(n, k // 2).copy(),
            "scales": plane[swizzle(n, k)],
            "divisors": words32.view(np.float32),
        }
    if fmt.layout == "row_scale_v1":
        return {
            "codes": data[: n * k].reshape(n, k).copy(),
            "scales": u16_at(data[align_up(n * k, 256) :]),
        }
    if fmt.layout == "row_interleaved_v1":
        records = data.reshape(n, k + 2)
        return {"codes": records[:, :k].copy(), "scales": u16_at(records[:, k:]).reshape(n)}
    return {"blocks": data.reshape(n, -1).copy()}


def _take(
    given: dict[str, npt.ArrayLike], key: str, dtype: npt.DTypeLike, shape: tuple[int, ...], name: str
) -> npt.NDArray[Any]:
    value = np.asarray(given.pop(key, None))
    if value.dtype == object:
        raise InvalidWordsError(f"{name}: the array '{key}' is missing")
    if value.dtype != np.dtype(dtype):
        raise InvalidWordsError(f"{name}: '{key}' must be {np.dtype(dtype)}, not {value.dtype}")
    if value.shape != shape:
        raise ShapeError(f"{name}: '{key}' has shape {list(value.shape)}, must be {list(shape)}")
    return value


def pack_words(name: str, shape: Sequence[int], divisors: int, given: dict[str, npt.ArrayLike]) -> U8:
    """Canonical payload of words, checking dtypes, shapes and that each code can be stored at all."""
    fmt, dims, count = check_shape(name, shape, divisors)
    size = encoded_size(name, dims, count)
    left = dict(given)
    if fmt.category == "direct":
        dtype = np.dtype({"bf16": "uint16", "fp32": "uint32", "int32": "int32"}[name])
        direct = np.ascontiguousarray(_take(left, "words", dtype, dims, name))
        unsigned = direct.view(np.uint32) if name == "int32" else direct
        assert fmt.word_bytes is not None
        payload = le_split(unsigned, fmt.word_bytes).reshape(-1)
    elif fmt.category == "grouped":
        n, k = dims
        codes = _take(left, "codes", np.int8, dims, name)
        scales = _take(left, "scales", np.uint16, (n, row_split(fmt, n, k).logical_groups), name)
        assert fmt.code_bits is not None
        low, high = {8: (-128, 127), 2: (-2, 1)}.get(
            fmt.code_bits, (-(1 << fmt.code_bits >> 1), (1 << fmt.code_bits >> 1) - 1)
        )
        if name == "q2_g64_fp16":
            low, high = -1, 2
        bad = np.argwhere((codes < low) | (codes > high))
        if bad.size:
            r, c = bad[0]
            raise InvalidWordsError(
                f"{name}: code {codes[r, c]} at row {r}, column {c} has no {fmt.code_bits}-bit word"
            )
        payload = _join_planes(fmt, n, k, codes, scales)
    elif fmt.category == "block_scaled":
        n, k = dims
        payload = np.zeros(size, dtype=np.uint8)
        scale_at = align_up(n * k // 2, 256)
        payload[: n * k // 2] = _take(left, "codes", np.uint8, (n, k // 2), name).reshape(-1)
        payload[scale_at + swizzle(n, k)] = _take(left, "scales", np.uint8, (n, k // 16), name)
        words32 = np.ascontiguousarray(_take(left, "divisors", np.float32, (count,), name)).view(np.uint32)
        payload[scale_at + n * k // 16 :] = le_split(words32, 4).reshape(-1)
    elif fmt.category == "row_scaled":
        n, k = dims
        codes = _take(left, "codes", np.uint8, dims, name)
        scale_bytes = le_split(_take(left, "scales", np.uint16, (n,), name), 2)
        if fmt.layout == "row_scale_v1":
            payload = np.zeros(size, dtype=np.uint8)
            payload[: n * k] = codes.reshape(-1)
            payload[align_up(n * k, 256) :] = scale_bytes.reshape(-1)
        else:
            payload = np.concatenate([codes, scale_bytes], axis=1).reshape(-1)
    else:
        assert fmt.block_values is not None and fmt.block_bytes is not None
        row_bytes = dims[1] // fmt.block_values * fmt.block_bytes
        payload = _take(left, "blocks", np.uint8, (dims[0], row_bytes), name).reshape(-1).copy()
    if left:
        raise InvalidWordsError(f"{name}: unknown array '{sorted(left)[0]}'")
    assert payload.size == size
    return payload


# -- rows ------------------------------------------------------------------------------------------------


def gather_divisors(shape: Sequence[int], divisors: int, indices: Sequence[int]) -> list[int]:
    """Which source divisor each divisor of a gathered nvfp4 tensor copies, fewest divisors first.

    The result has D' entries, the smallest count for which D' equal runs of whole 128-row tiles each come
    from one source matrix. ``indices`` must be whole tiles: runs of 128 consecutive rows that start at a
    multiple of 128. Raises UnsupportedError otherwise.
    """
    _, (n, _k), count = check_shape("nvfp4", shape, divisors)
    rows_in = np.asarray(indices, dtype=np.int64)
    if rows_in.size % 128 or bool((rows_in.reshape(-1, 128) != rows_in[::128, None] + np.arange(128)).any()):
        raise UnsupportedError("nvfp4: rows can only be taken as whole 128-row tiles")
    if bool((rows_in[::128] % 128).any()):
        raise UnsupportedError("nvfp4: rows can only be taken as whole 128-row tiles")
    sources = rows_in[::128] // (n // count)
    tiles = sources.size
    for runs in range(1, tiles + 1):
        if tiles % runs == 0:
            split = sources.reshape(runs, -1)
            if bool((split == split[:, :1]).all()):
                return [int(s) for s in split[:, 0]]
    raise AssertionError("one run per tile always fits")


def _gather_spans(fmt: OracleFormat, n: int, k: int, data: U8, taken: list[int]) -> U8:
    """Copies each row's three spans, padding lanes and padding groups as they are."""
    old, new = row_split(fmt, n, k), row_split(fmt, len(taken), k)
    payload = np.zeros(new.size, dtype=np.uint8)
    spans = (
        (0, 0, old.base_row),
        (old.high_offset, new.high_offset, old.high_row),
        (old.scale_offset, new.scale_offset, 2 * old.groups),
    )
    for source, target, width in spans:
        plane = data[source : source + n * width].reshape(n, width)
        payload[target : target + len(taken) * width] = plane[taken].reshape(-1)
    return payload


def gather(
    name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, indices: Sequence[int], divisors: int = 1
) -> U8:
    """A fresh payload of the rows ``indices`` (any order, repeats allowed); words are copied,
    and so are a row's padding lanes and padding groups. Gaps between planes are zero.

    Rows run along axis 0, also for direct tensors, whose other axes are kept. The result's shape is ``shape``
    with axis 0 replaced by ``len(indices)``; for nvfp4 its divisor count is ``len(gather_divisors(...))``.
    Raises ShapeError for an empty list, a scalar tensor or an index outside 0..N-1, and UnsupportedError for
    nvfp4 rows that are not whole 128-row tiles.
    """
    fmt, dims, count = check_shape(name, shape, divisors)
    data = check_payload(name, dims, payload, count)
    if not dims:
        raise ShapeError(f"{name}: a scalar tensor has no rows")
    taken = [_integer(i, f"{name}: row index") for i in indices]
    if not taken:
        raise ShapeError(f"{name}: no rows asked for")
    for i in taken:
        if not 0 <= i < dims[0]:
            raise ShapeError(f"{name}: row {i} is outside 0..{dims[0] - 1}")
    if fmt.category == "grouped":
        return _gather_spans(fmt, dims[0], dims[1], data, taken)
    given = words(name, dims, data, count)
    out: dict[str, npt.ArrayLike] = {}
    new_count = 1
    for key, value in given.items():
        if key == "divisors":
            sources = gather_divisors(dims, count, taken)
            new_count = len(sources)
            out[key] = value[sources]
        else:
            out[key] = value[taken]
    return pack_words(name, (len(taken), *dims[1:]), new_count, out)


def rows(
    name: str, shape: Sequence[int], payload: npt.ArrayLike | bytes, begin: int, end: int, divisors: int = 1
) -> U8:
    """A fresh payload of rows begin..end-1; as ``gather`` over that range.

    Raises ShapeError unless 0 <= begin < end <= N.
    """
    _, dims, count = check_shape(name, shape, divisors)
    b, e = _integer(begin, f"{name}: begin"), _integer(end, f"{name}: end")
    if not dims:
        raise ShapeError(f"{name}: a scalar tensor has no rows")
    if not 0 <= b < e <= dims[0]:
        raise ShapeError(f"{name}: rows {b}..{e} are not inside 0..{dims[0]}")
    return gather(name, dims, payload, range(b, e), count)
