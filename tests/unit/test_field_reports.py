"""Public bug reports as tests of the installed package; the oracle and the Rust crates have theirs.

Numbers of reports stand in the docstrings; values were computed with independent tools.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ninfer_rs as nr
from ninfer_rs.cli import main
from support import SCALES, raw_file, same, string


def block(name: str, d: int = 0x3C00, low: int = 0) -> npt.NDArray[np.uint8]:
    """One block of zero bytes with d and dmin as given (binary16 words)."""
    size = nr.FORMATS[name].block_bytes
    assert size is not None
    raw = np.zeros(size, np.uint8)
    for at, word in zip(SCALES.get(name, (0,)), (d, low), strict=False):
        raw[at : at + 2] = (word & 255, word >> 8)
    if name == "gguf_iq1_m":
        raw[49::2] = [(d >> 4 * i & 15) << 4 for i in range(4)]
    return raw


def tensor(name: str, raw: Any) -> nr.Tensor:
    """A one-row tensor of whole blocks."""
    f = nr.FORMATS[name]
    assert f.block_values is not None and f.block_bytes is not None
    blocks = np.asarray(raw, np.uint8).reshape(1, -1)
    return nr.Tensor.from_words(name, (1, blocks.size // f.block_bytes * f.block_values), blocks=blocks)


def decode(name: str, raw: Any) -> list[float]:
    """The values on every instruction set, which must agree."""
    t = tensor(name, raw)
    values = t.dequantize()
    for isa in nr.simd.info()["available"]:
        with nr.simd.use(isa):
            assert same(t.dequantize(), values), (name, isa)
    return list(values[0].tolist())


CONSTANTS = {
    "gguf_q8_0": 0.0,
    "gguf_q4_0": -8.0,
    "gguf_q5_0": -16.0,
    "gguf_q2_0": -1.0,
    "gguf_q2_k": 0.0,
    "gguf_q3_k": 128.0,
    "gguf_q4_k": 0.0,
    "gguf_q5_k": 0.0,
    "gguf_q6_k": -0.0,
    "gguf_iq4_nl": -127.0,
    "gguf_iq4_xs": 4064.0,
    "gguf_iq2_xxs": 1.0,
    "gguf_iq2_xs": 1.0,
    "gguf_iq2_s": 1.0,
    "gguf_iq3_xxs": 1.0,
    "gguf_iq3_s": 1.0,
    "gguf_iq1_s": -0.875,
    "gguf_iq1_m": -0.875,
}


@pytest.mark.parametrize(("name", "value"), CONSTANTS.items())
def test_scale_one_and_nothing_else(name: str, value: float) -> None:
    """FR-03, FR-06, with the sign of zero."""
    got = np.array(decode(name, block(name)), np.float32)
    assert same(got, np.full_like(got, value))


def test_known_blocks() -> None:
    """FR-04, FR-08, FR-09, FR-11."""
    raw = block("gguf_q2_k", low=0x3C00)
    raw[:16] = [i | (15 - i) << 4 for i in range(16)]
    raw[16:80] = 0xE4
    groups = [-15, -14, -11, -9, -3, 0, 9, 13, -7, -6, 5, 7, 21, 24, 41, 45]
    assert decode("gguf_q2_k", raw) == np.repeat(groups, 16).tolist()
    raw = block("gguf_q4_0", 0xB800)
    raw[2:] = 0xF0
    assert decode("gguf_q4_0", raw) == [4.0] * 16 + [-3.5] * 16
    raw = block("gguf_q5_0")
    raw[2:6], raw[6:] = (0, 0, 0, 0x80), 0x88
    assert decode("gguf_q5_0", raw) == [-8.0] * 31 + [8.0]
    raw = block("gguf_iq1_s")
    raw[34:] = np.array([0x8000 | i << 12 for i in range(8)], "<u2").view(np.uint8)
    assert decode("gguf_iq1_s", raw) == np.repeat([-1.125 * (2 * i + 1) for i in range(8)], 32).tolist()
    raw = block("gguf_iq1_m")
    raw[48:] = np.array([0x029C, 0x0BB8, 0xC29C, 0x3BB8], "<u2").view(np.uint8)
    subs = [-0.875 * (2 * s + 1) for s in (4, 3, 2, 1, 0, 7, 6, 5) * 2]
    assert decode("gguf_iq1_m", raw) == np.repeat(subs, 16).tolist()


@pytest.mark.parametrize("name", ["gguf_q4_k", "gguf_q5_k"])
def test_every_scale_byte_matters(name: str) -> None:
    """FR-05."""
    raw = block(name, low=0x3800)
    raw[4:] = np.random.default_rng(5).integers(1, 255, raw.size - 4, dtype=np.uint8)
    before = decode(name, raw)
    for at in range(4, 16):
        changed = raw.copy()
        changed[at] ^= 1
        assert decode(name, changed) != before, at


def test_subnormal_scale_and_least_code() -> None:
    """FR-13, FR-14."""
    raw = block("gguf_q8_0", 0x0001)
    raw[2:] = 1
    assert decode("gguf_q8_0", raw) == [2.0**-24] * 32
    raw = block("gguf_q8_0", 0x3800)
    raw[2:] = 0x80
    assert decode("gguf_q8_0", raw) == [-64.0] * 32
    for isa in nr.simd.info()["available"]:
        with nr.simd.use(isa):
            for activation in ("a16", "a8"):
                x = np.full((2, 32), -127, np.float32)
                assert (tensor("gguf_q8_0", raw).matmul(x, activation) == 64.0 * 32 * 127).all()


def test_negative_scales_in_every_path() -> None:
    """FR-12."""
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), (1, 8))
    t = nr.Tensor.from_words("q4_g64_fp16", (1, 128), codes=codes, scales=np.full((1, 2), 0xB800, np.uint16))
    x = np.eye(128, dtype=np.float32) * 127
    for isa in nr.simd.info()["available"]:
        with nr.simd.use(isa):
            assert (t.dequantize() == -0.5 * codes).all()
            for columns in (1, 3, 128):
                for activation in ("a16", "a8"):
                    got = t.matmul(x[:columns], activation)[:, 0]
                    assert (got == -63.5 * codes[0, :columns]).all(), (isa, columns, activation)


def test_minimum_term_alone() -> None:
    """FR-30: d = 0, dmin != 0, negative activations."""
    rng = np.random.default_rng(30)
    for name, at, end in (("gguf_q2_k", 0, 80), ("gguf_q4_k", 4, 144), ("gguf_q5_k", 4, 176)):
        raw = block(name, 0, 0x3800)
        raw[at:end] = rng.integers(0, 256, end - at, dtype=np.uint8)
        t = tensor(name, raw)
        x = -rng.integers(1, 127, 256).astype(np.float32)
        x[::32] = -127
        expected = float(t.dequantize()[0].astype(np.float64) @ x)
        assert expected > 0
        for activation in ("a16", "a8"):
            assert t.matmul(x, activation).tolist() == [expected]


@pytest.mark.parametrize("kind", [4, 5, 31, 32, 33, 36, 37, 38, 43, 9999, 0xFFFFFFFF])
def test_retired_and_future_types(kind: int, tmp_path: Path) -> None:
    """FR-16: listed, refused by name, and of no consequence for the other tensors."""
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_file([], [(b"odd", [32], kind, 0), (b"ok", [32], 8, 64)], bytes(98)))
    with nr.gguf.open(path) as g:
        assert (g["odd"].ggml_type, g["odd"].nbytes, g["odd"].shape) == (kind, None, (32,))
        assert (g["ok"].tensor().dequantize() == 0).all()
        with pytest.raises(nr.UnsupportedError, match='tensor "odd": ggml type'):
            g["odd"].tensor()
    for arguments in (
        ["dequantize", str(path), "odd", "-o", str(tmp_path / "x.npy")],
        ["convert", str(path), str(tmp_path / "m.ninfer")],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code in (1, 2)
    assert list(tmp_path.iterdir()) == [path]


def key(name: bytes, kind: int, value: bytes) -> bytes:
    """One metadata record."""
    return string(name) + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (raw_file([key(b"k", 9, struct.pack("<IQ", 13, 1))]), ['metadata key "k"', "13"]),
        (raw_file([key(b"k", 9, struct.pack("<IQ", 8, 2**60))]), ['metadata key "k"', str(2**60)]),
        (raw_file([key(b"k", 9, struct.pack("<IQ", 0, 2**60))]), ['metadata key "k"', str(2**60)]),
        (raw_file([key(b"k", 8, struct.pack("<Q", 2**63))]), ['metadata key "k"', str(2**63)]),
        (raw_file([key(b"general.alignment", 4, struct.pack("<I", 24))]), ["24", "power of two"]),
        (raw_file([key(b"general.alignment", 5, struct.pack("<I", 32))]), ["expected a u32"]),
        (raw_file([key(b"k", 7, b"\2")]), ['metadata key "k"', "2"]),
        (raw_file([key(b"k", 0, b"\1"), key(b"k", 0, b"\1")]), ["duplicate", '"k"']),
        (raw_file([], [(b"w", [256], 12, 8)], bytes(256)), ['tensor "w"', "not a multiple of the alignment"]),
        (raw_file([], [(b"w", [896, 2], 12, 0)], bytes(2048)), ["row length 896 is not a multiple of 256"]),
        (raw_file([], [(b"w", [1] * 5, 0, 0)], bytes(64)), ['tensor "w"', "5", "at most 4"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), [str(2**63), "byte 16"]),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), ["big-endian GGUF"]),
    ],
)
def test_hostile_headers(content: bytes, texts: list[str], tmp_path: Path) -> None:
    """FR-57 to FR-61, FR-64, FR-66, FR-75: what was read and what was expected."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(nr.FileFormatError) as caught:
        nr.gguf.open(path)
    for text in texts:
        assert text in str(caught.value)


def test_results_land_in_the_memory_of_out() -> None:
    """Array subclasses have views of their own (a matrix is never flat): the values must still arrive."""

    class Elsewhere(np.ndarray[Any, Any]):
        def reshape(self, *args: Any, **kwargs: Any) -> Any:
            return np.zeros(self.size, self.dtype)

    t = tensor("gguf_q4_0", block("gguf_q4_0"))
    x = np.ones((2, 32), np.float32)
    for kind in (np.matrix, Elsewhere):
        out = np.zeros((1, 32), np.float32).view(kind)
        assert t.dequantize(out=out) is out and (np.asarray(out) == -8).all()
        half = np.zeros((1, 32), np.float16).view(kind)
        assert t.dequantize(out=half) is half and (np.asarray(half) == -8).all()
        product = np.zeros((2, 1), np.float32).view(kind)
        assert t.matmul(x, out=product) is product and (np.asarray(product) == -256).all()
    numbers = nr.Tensor.from_words("int32", (1, 2), words=np.array([[1, 2]], np.int32))
    whole = np.zeros((1, 2), np.int32).view(np.matrix)
    assert numbers.dequantize(out=whole) is whole and np.asarray(whole).tolist() == [[1, 2]]


@pytest.mark.parametrize("rows", [3, None])
def test_gather_needs_a_sequence(rows: Any) -> None:
    t = tensor("gguf_q4_0", block("gguf_q4_0"))
    with pytest.raises(nr.ShapeError, match="one-dimensional sequence of integers, got"):
        t.gather(rows)


def test_memory_that_cannot_be_had_is_an_exception() -> None:
    """2^48 bytes lie beyond the address space: not the end of the process."""
    t = nr.Tensor.from_payload("bf16", (1, 1 << 24), bytes(1 << 25))
    with pytest.raises(MemoryError, match=str(1 << 48)):
        t.gather(np.zeros(1 << 23, np.int64))


@pytest.mark.parametrize("rows", ["5:2", "0:99", "3:"])
def test_impossible_rows_are_bad_usage(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 is for arguments, 1 for problems in files."""
    path = tmp_path / "m.gguf"
    nr.gguf.write(path, {}, {"w": np.zeros((3, 2), np.float32)})
    with pytest.raises(SystemExit) as stopped:
        main(["dequantize", str(path), "w", "-o", str(tmp_path / "x.npy"), "--rows", rows])
    assert stopped.value.code == 2 and "which has 3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]
