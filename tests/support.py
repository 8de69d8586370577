"""Random tensors of every format, comparisons by bits and GGUF files by hand, for all Python tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ninfer_rs as nr

NAMES = tuple(nr.FORMATS)
FLOATS = tuple(n for n in NAMES if n != "int32")
GGUF = tuple(n for n in NAMES if n.startswith("gguf_"))
GROUPED = tuple(n for n, f in nr.FORMATS.items() if f.category == "grouped")
FP8 = tuple(n for n, f in nr.FORMATS.items() if f.category == "row_scaled")

#: Where the binary16 words of a block's scales are, in bytes; iq1_m spreads one over four words.
SCALES: dict[str, tuple[int, ...]] = {
    "gguf_q2_k": (80, 82),
    "gguf_q3_k": (108,),
    "gguf_q4_k": (0, 2),
    "gguf_q5_k": (0, 2),
    "gguf_q6_k": (208,),
    "gguf_iq1_m": (),
}


def rng_of(*seed: Any) -> np.random.Generator:
    """A generator that depends on its arguments alone."""
    return np.random.default_rng(list(repr(seed).encode()))


def shape_for(name: str, n: int = 3, k: int = 1) -> tuple[int, int]:
    """A legal shape of at least n rows of at least k elements."""
    f = nr.FORMATS[name]
    if f.category == "block_scaled":
        return -(-n // 128) * 128, -(-k // 64) * 64
    step = f.block_values or 1
    return n, -(-k // step) * step


def random_bytes(name: str, shape: tuple[int, int], seed: Any = 0, divisors: int = 1) -> nr.Tensor:
    """A payload of random bytes: any word, legal or not."""
    size = nr.FORMATS[name].encoded_size(shape, divisors)
    payload = rng_of(name, shape, seed).integers(0, 256, size, np.uint8)
    return nr.Tensor.from_payload(name, shape, payload, divisors)


def random_half(rng: np.random.Generator, shape: Any, exponent: int = 11) -> npt.NDArray[np.uint16]:
    """binary16 words of either sign around 2^(exponent - 15), some subnormal."""
    words = rng.integers(1, (exponent + 1) << 10, shape, np.uint16) | (
        rng.integers(0, 2, shape, np.uint16) << 15
    )
    return words.astype(np.uint16)


def random_words(name: str, shape: tuple[int, int], seed: Any = 0, divisors: int = 1) -> nr.Tensor:
    """Legal words: any code, finite scales of either sign where the format has them."""
    f = nr.FORMATS[name]
    rng = rng_of(name, shape, seed, "words")
    n, k = shape
    if f.category == "direct":
        dtype = {"bf16": np.uint16, "fp32": np.uint32, "int32": np.int32}[name]
        if name == "int32":
            return nr.Tensor.from_words(name, shape, words=rng.integers(-(2**31), 2**31, shape, np.int32))
        values = rng.standard_normal(shape, np.float32).view(np.uint32)
        return nr.Tensor.from_words(
            name, shape, words=(values >> (16 if name == "bf16" else 0)).astype(dtype)
        )
    if f.category == "grouped":
        assert f.code_min is not None and f.code_max is not None and f.group_size is not None
        codes = rng.integers(f.code_min, f.code_max, shape, np.int8, endpoint=True)
        scales = random_half(rng, (n, -(-k // f.group_size)))
        return nr.Tensor.from_words(name, shape, codes=codes, scales=scales)
    if f.category == "block_scaled":
        return nr.Tensor.from_words(
            name,
            shape,
            codes=rng.integers(0, 256, (n, k // 2), np.uint8),
            scales=rng.integers(0, 0x7F, (n, k // 16), np.uint8),
            divisors=rng.uniform(0.5, 900.0, divisors).astype(np.float32),
        )
    if f.category == "row_scaled":
        codes = rng.integers(0, 0x7F, shape, np.uint8) | (rng.integers(0, 2, shape, np.uint8) << 7)
        scales = rng.integers(1, 0x3F80 if name.endswith("bf16") else 0x3000, n, np.uint16)
        return nr.Tensor.from_words(name, shape, codes=codes, scales=scales)
    assert f.block_bytes is not None and f.block_values is not None
    blocks = rng.integers(0, 256, (n * k // f.block_values, f.block_bytes), np.uint8)
    for at in SCALES.get(name, (0,)):
        blocks[:, at : at + 2] = random_half(rng, len(blocks)).astype("<u2").view(np.uint8).reshape(-1, 2)
    if name == "gguf_iq1_m":
        blocks[:, 55] = (blocks[:, 55] & 0x0F) | (rng.integers(0, 4, len(blocks), np.uint8) << 4)
    return nr.Tensor.from_words(name, shape, blocks=blocks.reshape(n, -1))


def bits(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The words of an array, NaNs all alike (their payloads are unspecified)."""
    x = np.ascontiguousarray(x)
    words = x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize]).copy()
    if x.dtype.kind == "f":
        words[np.isnan(x)] = np.array(np.nan, x.dtype).view(words.dtype)
    return words


def half_bits(words: npt.NDArray[np.uint16], kind: str) -> npt.NDArray[np.uint16]:
    """16-bit float words with all NaNs alike."""
    exponent = 0x7C00 if kind == "float16" else 0x7F80
    return np.where((words & 0x7FFF) > exponent, np.uint16(0x7FFF), words)


def same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Equality of shape and bits."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(bits(a), bits(b)))


def string(text: bytes) -> bytes:
    """A string of a GGUF file."""
    return struct.pack("<Q", len(text)) + text


def raw_file(
    keys: Sequence[bytes] = (), tensors: Sequence[tuple[bytes, list[int], int, int]] = (), data: bytes = b""
) -> bytes:
    """A GGUF file by hand, legal or not: encoded keys, tensor records (name, dims, type, offset), data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    for name, dims, kind, offset in tensors:
        head += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return head + bytes(-len(head) % 32) + data


#: What safetensors call numpy's types, and those of ml_dtypes.
SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


def write_safetensors(
    path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, pad: int = 0
) -> Path:
    """Writes a safetensors file by hand; ``pad`` spaces after the header move the data."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in tensors.items():
        array = np.asarray(array)
        begin, data = len(data), data + array.tobytes()
        kind = SAFETENSORS[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (begin, len(data))}
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def fp8(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random E4M3FN codes, no NaN among them."""
    import ml_dtypes

    words = rng_of("fp8", seed).integers(0, 256, shape, np.uint8)
    return np.where(words & 0x7F == 0x7F, np.uint8(1), words).view(ml_dtypes.float8_e4m3fn)
