"""Tensors: construction, memory, words, views, validity."""

from __future__ import annotations

import copy
import mmap
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from support import NAMES, random_words, same, shape_for

Q4 = "q4_g64_fp16"


def q4(n: int = 2, k: int = 64) -> nr.Tensor:
    return random_words(Q4, (n, k))


@pytest.mark.parametrize(
    "kind", ["bytes", "bytearray", "memoryview", "array", "words", "memmap", "mmap", "matrix"]
)
def test_any_buffer_without_copying(kind: str, tmp_path: Path) -> None:
    payload = q4(4, 128).payload
    path = tmp_path / "payload"
    path.write_bytes(payload.tobytes())
    writable = bytearray(payload.tobytes())
    opened = path.open("r+b")
    buffers: dict[str, Any] = {
        "bytes": payload.tobytes(),
        "bytearray": writable,
        "memoryview": memoryview(writable),
        "array": np.array(payload),
        "words": np.array(payload).view(np.uint16),
        "matrix": np.array(payload).reshape(4, -1),
        "memmap": np.memmap(path, np.uint8, "r"),
        "mmap": mmap.mmap(opened.fileno(), 0),
    }
    opened.close()
    buffer = buffers[kind]
    t = nr.Tensor.from_payload(Q4, (4, 128), buffer)
    assert np.array_equal(t.payload, payload) and not t.payload.flags.writeable
    assert t.payload.ctypes.data == np.frombuffer(buffer, np.uint8).ctypes.data
    assert t.payload.dtype == np.uint8 and t.payload.ndim == 1
    with pytest.raises(ValueError, match="read-only"):
        t.payload[0] = 1


def test_the_tensor_keeps_the_buffer_alive() -> None:
    t = nr.Tensor.from_payload("bf16", (1000,), bytes(range(200)) * 10)
    expected = t.words()["words"].copy()
    junk = [bytearray(2000) for _ in range(100)]
    assert same(t.words()["words"], expected) and len(junk) == 100


@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        (b"", nr.ShapeError, "must be exactly 264 bytes, got 0"),
        (bytes(263), nr.ShapeError, "must be exactly 264 bytes, got 263"),
        (bytes(265), nr.ShapeError, "must be exactly 264 bytes, got 265"),
        (np.zeros(528, np.uint8)[::2], nr.UnsupportedError, "C-contiguous"),
        (np.zeros((264, 2), np.uint8)[:, 0], nr.UnsupportedError, "C-contiguous"),
        (np.zeros((132, 2), np.uint8).T, nr.UnsupportedError, "C-contiguous"),
        (memoryview(bytes(528))[::2], nr.UnsupportedError, "C-contiguous"),
        (np.array([object()]), nr.UnsupportedError, "Python objects"),
        ("text", nr.UnsupportedError, "got str"),
        (None, nr.UnsupportedError, "got NoneType"),
        ([1, 2], nr.UnsupportedError, "got list"),
    ],
)
def test_bad_buffers(buffer: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        nr.Tensor.from_payload(Q4, (2, 64), buffer, name="blk.0")
    assert str(caught.value).startswith('tensor "blk.0": ')


def test_layout_is_checked() -> None:
    payload = q4().payload
    assert (
        nr.Tensor.from_payload(Q4, (2, 64), payload, layout="row_split_k128_v1").layout == "row_split_k128_v1"
    )
    with pytest.raises(
        nr.UnsupportedError, match="not registered for format q4_g64_fp16; its layout is row_split"
    ):
        nr.Tensor.from_payload(Q4, (2, 64), payload, layout="contiguous_le_v1")
    with pytest.raises(nr.UnknownFormatError, match="unknown layout 'rows'"):
        nr.Tensor.from_payload(Q4, (2, 64), payload, layout="rows")


def test_properties() -> None:
    t = nr.Tensor.from_payload(Q4, (np.int64(2), 64), q4().payload, name="w")
    assert (t.format.name, t.layout, t.shape, t.divisors, t.nbytes) == (
        Q4,
        "row_split_k128_v1",
        (2, 64),
        1,
        264,
    )
    assert (t.ndim, t.size, len(t), t.name) == (2, 128, 2, "w")
    assert repr(t) == "Tensor(q4_g64_fp16, (2, 64), 264 bytes, name='w')"
    with pytest.raises(AttributeError):
        t.shape = (1, 1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="from_payload"):
        nr.Tensor()
    scalar = nr.Tensor.from_words("fp32", (), words=np.array(0x3F800000, np.uint32))
    assert scalar.shape == () and scalar.dequantize() == 1.0
    with pytest.raises(TypeError):
        len(scalar)


@pytest.mark.parametrize("name", NAMES)
def test_pickle_and_copy(name: str) -> None:
    t = random_words(name, shape_for(name, 4, 64))
    for other in (
        pickle.loads(pickle.dumps(t)),
        copy.deepcopy(t),
        pickle.loads(pickle.dumps(t.rows(0, len(t)))),
    ):
        assert other.format is t.format and other.shape == t.shape and same(other.payload, t.payload)


def test_known_nibbles() -> None:
    """Adjacent pairs, low nibble first (storage layout specification): lane 2j is the low half of byte j."""
    codes = np.zeros((1, 64), np.int8)
    codes[0, :4] = [1, -1, 7, -8]
    t = nr.Tensor.from_words(Q4, (1, 64), codes=codes, scales=np.array([[0x3C00]], np.uint16))
    assert t.payload[:2].tolist() == [0xF1, 0x87]
    assert t.dequantize()[0, :4].tolist() == [1, -1, 7, -8]


def test_negative_scale_is_a_signed_multiplier() -> None:
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), 4)[None]
    t = nr.Tensor.from_words(Q4, (1, 64), codes=codes, scales=np.array([[0xB800]], np.uint16))
    assert t.dequantize().tolist() == (codes * np.float32(-0.5)).tolist()
    x = np.zeros((1, 64), np.float32)
    x[0, 0] = 1
    assert t.matmul(x)[0, 0] == 4.0 and t.matmul(x, "a8")[0, 0] == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({}, nr.UnsupportedError, "the words are codes and scales; got none"),
        ({"codes": np.zeros((2, 64), np.int8)}, nr.UnsupportedError, "got codes"),
        ({"blocks": np.zeros((2, 64), np.uint8)}, nr.UnsupportedError, "got blocks"),
        (
            {"codes": np.zeros((2, 64), np.int16), "scales": np.zeros((2, 1), np.uint16)},
            nr.UnsupportedError,
            "codes must be an array of int8, got int16",
        ),
        (
            {"codes": np.zeros((2, 64), np.int8), "scales": np.zeros((2, 1), np.float16)},
            nr.UnsupportedError,
            "scales must be an array of uint16, got float16",
        ),
        (
            {"codes": np.zeros((64, 2), np.int8), "scales": np.zeros((2, 1), np.uint16)},
            nr.ShapeError,
            r"codes must have shape \(2, 64\), got \(64, 2\)",
        ),
        (
            {"codes": np.zeros((2, 64), np.int8), "scales": np.zeros((2, 2), np.uint16)},
            nr.ShapeError,
            r"scales must have shape \(2, 1\)",
        ),
        (
            {"codes": np.full((2, 64), 8, np.int8), "scales": np.zeros((2, 1), np.uint16)},
            nr.InvalidTensorError,
            r"code plane, row 0, column 0: word 0x8: codes must lie in \[-8, 7\]",
        ),
    ],
)
def test_bad_words(words: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        nr.Tensor.from_words(Q4, (2, 64), **words)


def test_words_are_copied_in_and_strided_ones_read_right() -> None:
    codes = np.asfortranarray(np.arange(128, dtype=np.int8).reshape(2, 64) % 8)
    scales = np.array([[1, 2], [3, 4]], np.uint16)[:, ::2]
    t = nr.Tensor.from_words(Q4, (2, 64), codes=codes, scales=scales)
    assert np.array_equal(t.words()["codes"], codes) and t.words()["scales"].tolist() == [[1], [3]]
    swapped = scales.astype(">u2")
    assert same(nr.Tensor.from_words(Q4, (2, 64), codes=codes, scales=swapped).payload, t.payload)
    before = t.payload.copy()
    codes[:] = 0
    assert same(t.payload, before)
    blocks = np.zeros((1, 34), np.uint8)
    g = nr.Tensor.from_words("gguf_q8_0", (1, 32), blocks=blocks)
    blocks[:] = 1
    assert not g.payload.any()


def test_every_bit_pattern_of_direct_words_survives() -> None:
    halves = np.arange(65536, dtype=np.uint16)
    t = nr.Tensor.from_words("bf16", (65536,), words=halves)
    assert np.array_equal(t.words()["words"], halves)
    singles = (halves.astype(np.uint32) << 16) | 0x0001
    assert np.array_equal(
        nr.Tensor.from_words("fp32", (256, 256), words=singles.reshape(256, 256))
        .dequantize()
        .view(np.uint32)
        .reshape(-1),
        singles,
    )


def test_views_share_memory_where_the_layout_allows() -> None:
    for name in ("bf16", "fp8_e4m3fn_row_fp16", "gguf_q4_k"):
        t = random_words(name, shape_for(name, 6, 64))
        assert np.shares_memory(t.rows(2, 5).payload, t.payload), name
    t = random_words("q5_g64_fp16", (6, 130))
    view = t.rows(2, 5)
    assert not np.shares_memory(view.payload, t.payload) and view.payload.size == view.nbytes
    assert np.shares_memory(view._view[3], t.payload)


def test_rows_of_direct_tensors_of_any_rank() -> None:
    words = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    t = nr.Tensor.from_words("int32", (4, 3, 2), words=words)
    assert np.array_equal(t.rows(1, 3).dequantize(), words[1:3])
    assert np.array_equal(t.gather([3, 0]).dequantize(), words[[3, 0]])
    vector = nr.Tensor.from_words("int32", (4,), words=words[:, 0, 0])
    assert np.array_equal(vector.rows(1, 3).dequantize(), words[1:3, 0, 0])


@pytest.mark.parametrize(
    ("begin", "end", "text"),
    [
        (0, 3, "rows 0..3 are outside the tensor"),
        (1, 1, "empty or reversed"),
        (2, 1, "empty or reversed"),
        (-1, 1, "outside"),
        (0, 2**70, "outside"),
        (0.5, 1, "a row is an integer, got float"),
    ],
)
def test_bad_row_ranges(begin: Any, end: Any, text: str) -> None:
    with pytest.raises(nr.ShapeError, match=text):
        q4(2).rows(begin, end)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([2], "row 2"),
        ([0, -1], r"row -1 \(index 1\)"),
        ([], "at least one row"),
        ([[0]], "one-dimensional"),
        ([0.5], "integers"),
        (np.array([2**63], np.uint64), "row 9223372036854775808"),
        ("ab", "integers"),
    ],
)
def test_bad_gathers(rows: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        q4(2).gather(rows)
    assert isinstance(caught.value, nr.NinferError)


def test_gather_takes_any_sequence_of_integers() -> None:
    t = q4(3)
    expected = t.dequantize()[[2, 0]]
    for rows in (
        [2, 0],
        (2, 0),
        np.array([2, 0], np.int8),
        np.array([9, 2, 9, 0])[1::2],
        iter([2, 0]),
        range(2, -1, -2),
    ):
        assert same(t.gather(rows).dequantize(), expected)


def test_nvfp4_rows_are_tiles() -> None:
    t = random_words("nvfp4", (512, 64), divisors=2)
    assert t.rows(0, 128).divisors == 1 and t.rows(128, 384).divisors == 2 and t.rows(0, 512).divisors == 2
    for begin, end in ((0, 1), (1, 129), (64, 192)):
        with pytest.raises(nr.UnsupportedError, match="whole tiles"):
            t.rows(begin, end)
    with pytest.raises(nr.UnsupportedError, match="whole tiles"):
        t.gather([0])
    assert same(t.rows(128, 384).dequantize(), t.dequantize()[128:384])


def test_violations_name_place_and_rule() -> None:
    payload = np.array(q4(2, 64).payload)
    payload[256 + 0 : 256 + 2] = (0x00, 0x7C)  # scale of row 0: infinity
    payload[64 + 32] = 1  # row 1, first padding byte: columns 64 and 65 of the padded row
    t = nr.Tensor.from_payload(Q4, (2, 64), payload, name="w")
    found = t.violations()
    assert [(v.plane, v.row, v.group, v.column, v.word) for v in found] == [
        ("scale", 0, 0, None, 0x7C00),
        ("padding", 1, None, 64, 1),
    ]
    assert str(found[0]) == "scale plane, row 0, group 0: word 0x7c00: a scale must be finite"
    assert len(t.violations(limit=1)) == 1 and t.violations(limit=0) == []
    with pytest.raises(
        nr.InvalidTensorError, match='tensor "w": invalid q4_g64_fp16 tensor: scale plane'
    ) as caught:
        t.validate()
    assert caught.value.violation == found[0]
    assert t.rows(1, 2).violations()[0].row == 0
    with pytest.raises(nr.ShapeError, match="limit"):
        t.violations(limit=-1)


def test_native_and_ggml_q8_disagree_about_minus_128() -> None:
    """Two formats, two rules (one byte pattern): the ggml block decodes it, the native format refuses it."""
    blocks = np.frombuffer(bytes([0x00, 0x38]) + b"\x80" * 32, np.uint8)[None]
    g = nr.Tensor.from_words("gguf_q8_0", (1, 32), blocks=blocks)
    assert (g.dequantize() == -64.0).all() and g.violations() == []
    assert g.matmul(np.full((1, 32), -1, np.float32), "a8")[0, 0] == pytest.approx(64.0 * 32, rel=1e-3)
    with pytest.raises(nr.InvalidTensorError):
        nr.Tensor.from_words(
            "q8_g32_fp16",
            (1, 32),
            codes=np.full((1, 32), -128, np.int8),
            scales=np.array([[0x3800]], np.uint16),
        )
    with pytest.raises(nr.NinferError, match="-128"):
        nr.import_encoded("q8_g32_fp16", g)
