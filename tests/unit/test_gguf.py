"""GGUF files from Python: writing, reading by map, metadata, splits, refusals."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from ninfer_rs.gguf import Typed
from support import GGUF, random_bytes, random_words, raw_file, same, shape_for, string

METADATA: dict[str, Any] = {
    "general.architecture": "test",
    "a.u8": np.uint8(200),
    "a.i8": np.int8(-3),
    "a.u16": np.uint16(60000),
    "a.i16": np.int16(-300),
    "a.u32": np.uint32(4_000_000_000),
    "a.i32": np.int32(-70000),
    "a.u64": np.uint64(2**63),
    "a.i64": np.int64(-(2**40)),
    "a.f32": np.float32(0.1),
    "a.f64": np.float64(0.1),
    "a.bool": True,
    "a.text": "grüße 🦀",
    "a.bytes": b"\xff\xfe",
    "b.ints": [1, 2, 3],
    "b.negative": [-1, 2],
    "b.floats": [0.5, 1.5],
    "b.wide": [0.1],
    "b.bools": [True, False],
    "b.texts": ["a", "", "ccc"],
    "b.array": np.arange(5, dtype=np.int16),
    "b.empty": Typed("array of string", []),
    "b.nested": [[1, 2], [3]],
    "c.typed": Typed("u16", 7),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    tensors = {name: random_bytes(name, shape_for(name, 3)) for name in GGUF}
    more = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f16": np.arange(6, dtype=np.float16).reshape(1, 2, 3),
        "i8": np.array([-1, 2], np.int8),
        "f64": np.array([0.1]),
        "bf16": random_words("bf16", (2, 5)),
        "i32": random_words("int32", (2, 2)),
        "experts": ("Q8_0", (2, 3, 32), bytes(range(204))),
    }
    nr.gguf.write(path, METADATA, {**tensors, **more})
    return path


def test_round_trip(model: Path) -> None:
    with nr.gguf.open(model) as g:
        assert (g.version, g.alignment, g.path, g.files) == (3, 32, str(model), (str(model),))
        assert g.file_bytes == model.stat().st_size and g.warnings == [] and len(g) == 25
        for name in GGUF:
            t = g[name]
            original = random_bytes(name, shape_for(name, 3))
            assert (
                t.type_name == name.removeprefix("gguf_").upper()
                and t.ggml_type == nr.FORMATS[name].ggml_type
            )
            assert t.shape == original.shape and t.nbytes == original.nbytes and t.format is nr.FORMATS[name]
            assert same(t.blocks.reshape(-1), original.payload) and t.blocks.shape[0] == 3
            assert t.tensor().format is nr.FORMATS[name] and same(t.tensor().payload, original.payload)
            assert t.tensor().name == name and t.path == str(model) and t.offset % 32 == 0
        assert same(g["f32"].array(), np.arange(6, dtype=np.float32).reshape(2, 3))
        assert g["f32"].tensor().shape == (2, 3) and g["f32"].tensor().format.name == "fp32"
        assert g["f16"].shape == (1, 2, 3) and same(
            g["f16"].array(), np.arange(6, dtype=np.float16).reshape(1, 2, 3)
        )
        assert g["i8"].array().tolist() == [-1, 2] and g["f64"].array().tolist() == [0.1]
        assert g["bf16"].tensor().format.name == "bf16"
        assert same(g["i32"].tensor().dequantize(), random_words("int32", (2, 2)).dequantize())
        assert g["experts"].shape == (2, 3, 32) and g["experts"].tensor().shape == (6, 32)


def test_metadata_keeps_types_and_values(model: Path) -> None:
    with nr.gguf.open(model) as g:
        m = g.metadata
        assert list(m) == list(METADATA) and len(m) == len(METADATA) and "a.u8" in m and "x" not in m
        types = {key: m.type(key) for key in m}
        assert [
            types[f"a.{k}"]
            for k in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool")
        ] == [
            "u8",
            "i8",
            "u16",
            "i16",
            "u32",
            "i32",
            "u64",
            "i64",
            "f32",
            "f64",
            "bool",
        ]
        assert types["b.ints"] == "array of u32" and types["b.negative"] == "array of i32"
        assert types["b.floats"] == "array of f32" and types["b.wide"] == "array of f64"
        assert types["b.bools"] == "array of bool" and types["b.texts"] == "array of string"
        assert types["b.array"] == "array of i16" and types["b.empty"] == "array of string"
        assert (
            types["b.nested"] == "array of array"
            and types["c.typed"] == "u16"
            and types["a.text"] == "string"
        )
        for key in ("a.u8", "a.i8", "a.u64", "a.i64", "a.f64", "a.bool", "a.text", "a.bytes"):
            assert m[key] == METADATA[key], key
        assert m["a.f32"] == float(np.float32(0.1)) and isinstance(m["a.f32"], float)
        assert (
            m["b.ints"] == [1, 2, 3]
            and m["b.bools"].tolist() == [True, False]
            and m["b.nested"] == [[1, 2], [3]]
        )
        assert m["b.texts"] == ["a", "", "ccc"] and list(m["b.texts"]) == ["a", "", "ccc"]
        assert m["b.texts"][-1] == "ccc" and m["b.texts"][0:2] == ["a", ""] and m["b.texts"][::-1][0] == "ccc"
        assert m["b.array"].numpy().dtype == np.int16 and m["b.array"][1:3] == [1, 2]
        assert len(m["b.empty"]) == 0 and list(m["b.empty"]) == [] and m["b.empty"].tolist() == []
        with pytest.raises(IndexError):
            m["b.texts"][3]
        with pytest.raises(nr.UnsupportedError, match="not numeric"):
            m["b.texts"].numpy()
        assert m.text("a.bytes") == "\ufffd\ufffd" and m.text("a.text") == "grüße 🦀"
        with pytest.raises(nr.UnsupportedError, match="is of type u8, not string"):
            m.text("a.u8")
        with pytest.raises(
            nr.TensorNotFoundError, match=r'no metadata key "general\.architectur"; did you mean'
        ):
            m["general.architectur"]


def test_untouched_copies_are_byte_identical(model: Path, tmp_path: Path) -> None:
    with nr.gguf.open(model) as g:
        nr.gguf.write(tmp_path / "copy.gguf", g.metadata, g)
        nr.gguf.write(tmp_path / "again.gguf", dict(g.metadata) | {"c.typed": Typed("u16", 7)}, dict(g))
    assert (tmp_path / "copy.gguf").read_bytes() == model.read_bytes()
    with nr.gguf.open(tmp_path / "again.gguf") as again, nr.gguf.open(model) as g:
        assert all(same(again[n].blocks, g[n].blocks) for n in g)


def test_views_outlive_the_file(model: Path) -> None:
    with nr.gguf.open(model) as g:
        tensor, blocks, words = g["gguf_q4_k"].tensor(), g["gguf_q4_k"].blocks, g.metadata["b.array"].numpy()
        before = blocks.copy()
        entry = g["gguf_q8_0"]
    assert (
        same(blocks, before)
        and same(tensor.payload, before.reshape(-1))
        and words.tolist() == [0, 1, 2, 3, 4]
    )
    assert not blocks.flags.writeable
    for use in (
        lambda: g["gguf_q8_0"],
        lambda: list(g),
        lambda: g.items(),
        lambda: entry.blocks,
        lambda: entry.tensor(),
    ):
        with pytest.raises(nr.UnsupportedError, match="is closed"):
            use()


def test_missing_names(model: Path) -> None:
    with nr.gguf.open(model) as g:
        with pytest.raises(
            nr.TensorNotFoundError, match=r'no tensor "gguf_q4k"; did you mean gguf_q4_k'
        ) as caught:
            g["gguf_q4k"]
        assert isinstance(caught.value, KeyError) and str(model) in str(caught.value)
        assert "gguf_q4k" not in g and 3 not in g


def test_types_outside_the_registry(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    kinds = [4, 5, 31, 36, 41, 9999, 0xFFFFFFFF, 3, 1]
    path.write_bytes(
        raw_file([], [(b"t%d" % i, [128], kind, 128 * i) for i, kind in enumerate(kinds)], bytes(2048))
    )
    with nr.gguf.open(path) as g:
        assert [t.ggml_type for t in g.values()] == kinds
        unknown = g["t5"]
        assert (unknown.type_name, unknown.nbytes, unknown.format, unknown.shape) == (
            "type 9999",
            None,
            None,
            (128,),
        )
        with pytest.raises(
            nr.UnsupportedError, match=r'tensor "t5": ggml type 9999 \(type 9999\) has no known block size'
        ):
            unknown.blocks  # noqa: B018
        with pytest.raises(
            nr.UnsupportedError, match='tensor "t5": ggml type 9999 .* has no registered format'
        ):
            unknown.tensor()
        q4_1 = g["t7"]
        assert q4_1.nbytes == 80 and q4_1.blocks.shape == (1, 80)
        with pytest.raises(nr.UnsupportedError, match=r"Q4_1\) has no registered format"):
            q4_1.tensor()
        with pytest.raises(nr.UnsupportedError, match="Q4_1 is not a plain number type"):
            q4_1.array()
        with pytest.raises(
            nr.UnsupportedError, match=r"F16\) has no registered format; its values are array\(\)"
        ):
            g["t8"].tensor()
        assert g["t8"].array().shape == (128,)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "names.gguf"
    names = [b"ok", b"\xff\xfe", b"a\nb\x1b[31m", "größe".encode()]
    path.write_bytes(
        raw_file(
            [string(b"k\xff") + struct.pack("<IB", 0, 7)],
            [(n, [1], 24, 32 * i) for i, n in enumerate(names)],
            bytes(128),
        )
    )
    with nr.gguf.open(path) as g:
        assert [n.encode("utf-8", "surrogateescape") for n in g] == names
        assert g.metadata[list(g.metadata)[0]] == 7  # noqa: RUF015
        assert "\x1b" not in repr(g[names[2].decode()])
        nr.gguf.write(tmp_path / "copy.gguf", g.metadata, g)
        assert (tmp_path / "copy.gguf").read_bytes()[:4] == b"GGUF"
    with nr.gguf.open(tmp_path / "copy.gguf") as copy:
        assert [n.encode("utf-8", "surrogateescape") for n in copy] == names


def test_empty_tensors_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(raw_file([], [(b"e", [0, 3], 0, 0)]))
    with nr.gguf.open(path) as g:
        assert g["e"].shape == (3, 0) and g["e"].nbytes == 0 and g["e"].blocks.shape[0] == 3
        assert g["e"].array().shape == (3, 0)
        with pytest.raises(nr.ShapeError, match=r'tensor "e" has shape \(3, 0\) and no elements'):
            g["e"].tensor()


@pytest.mark.parametrize(
    ("content", "text", "offset"),
    [
        (b"", "GGUF", None),
        (b"NINFER\0\3", "not a GGUF file", 0),
        (b"GGUF" + struct.pack("<I", 1), "version 2 or 3", 4),
        (b"GGUF" + struct.pack(">I", 3), "big-endian GGUF", 4),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "9223372036854775808", None),
        (raw_file([string(b"k") + struct.pack("<IB", 13, 0)]), 'metadata key "k"', None),
        (raw_file([], [(b"t", [32], 8, 0)], bytes(33)), 'tensor "t": its data ends at byte', None),
        (raw_file([], [(b"t", [32], 8, 0), (b"t", [32], 8, 64)], bytes(128)), "duplicate tensor name", None),
    ],
)
def test_broken_files_say_where_and_what(
    content: bytes, text: str, offset: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(nr.FileFormatError, match=text) as caught:
        nr.gguf.open(path)
    assert caught.value.path == str(path) and str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    if offset is not None:
        assert caught.value.offset == offset and f"byte {offset}" in str(caught.value)
        assert caught.value.expected


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        nr.gguf.open(tmp_path / "absent.gguf")
    assert caught.value.filename == str(tmp_path / "absent.gguf")
    with pytest.raises(OSError, match=r"."):
        nr.gguf.open(tmp_path)
    with pytest.raises(nr.FileFormatError, match="no file was given"):
        nr.gguf.open([])


def split_model(folder: Path) -> list[Path]:
    paths = [folder / f"m-0000{i + 1}-of-00003.gguf" for i in range(3)]
    for i, path in enumerate(paths):
        metadata = {"split.no": np.uint16(i), "split.count": np.uint16(3), "split.tensors.count": np.int32(3)}
        if i == 0:
            metadata["general.architecture"] = "test"  # type: ignore[assignment]
        nr.gguf.write(path, metadata, {f"t{i}": random_words("gguf_q8_0", (2, 32), i)})
    return paths


def test_split_models_look_like_one(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    for given in (*paths, paths[::-1], os.fsencode(paths[1])):
        with nr.gguf.open(given) as g:
            assert list(g) == ["t0", "t1", "t2"] and g.files == tuple(map(str, paths))
            assert g.metadata["general.architecture"] == "test" and g.path == str(paths[0])
            for i in range(3):
                assert same(g[f"t{i}"].tensor().payload, random_words("gguf_q8_0", (2, 32), i).payload)
                assert g[f"t{i}"].path == str(paths[i])
    paths[1].unlink()
    with pytest.raises((nr.FileFormatError, FileNotFoundError), match="shard 2 of 3 is missing"):
        nr.gguf.open(paths[0])


@pytest.mark.parametrize(
    ("metadata", "tensors", "error", "text"),
    [
        ({"": 1}, {}, nr.UnsupportedError, "the metadata key is empty"),
        ({"general.alignment": 24}, {}, nr.UnsupportedError, "general.alignment is 24"),
        ({"k": 2**64}, {}, nr.UnsupportedError, 'metadata key "k": no 64-bit integer type holds'),
        ({"k": Typed("u8", 256)}, {}, nr.UnsupportedError, "256 does not fit in a value of type u8"),
        ({"k": Typed("u9", 1)}, {}, nr.UnsupportedError, "unknown value type 'u9'"),
        ({"k": [1, "a"]}, {}, nr.UnsupportedError, "elements of an array have one type"),
        ({"k": []}, {}, nr.UnsupportedError, "no element type"),
        ({"k": None}, {}, nr.UnsupportedError, "no metadata type holds a NoneType"),
        ({"k": np.zeros((2, 2))}, {}, nr.UnsupportedError, "2 dimensions"),
        ({}, {"t": np.zeros(3, "c8")}, nr.UnsupportedError, 'tensor "t": cannot store an array of complex64'),
        (
            {},
            {"t": random_words("q4_g64_fp16", (1, 64))},
            nr.UnsupportedError,
            "no type for the format q4_g64_fp16",
        ),
        (
            {},
            {"t": ("Q4_K", (1, 896), bytes(504))},
            nr.UnsupportedError,
            "row length 896 is not a multiple of 256",
        ),
        ({}, {"t": ("Q8_0", (1, 32), bytes(33))}, nr.UnsupportedError, "exactly 34"),
        ({}, {"t": ("Q9", (1, 32), bytes(33))}, nr.UnsupportedError, "unknown ggml type 'Q9'"),
        ({}, {"t": np.zeros((1, 1, 1, 1, 1), np.float32)}, nr.UnsupportedError, "5"),
        ({}, {"": np.zeros(1, np.float32)}, nr.UnsupportedError, "tensor name is empty"),
    ],
)
def test_nothing_is_written_when_the_plan_is_bad(
    metadata: dict[str, Any], tensors: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        nr.gguf.write(tmp_path / "out.gguf", metadata, tensors)
    assert list(tmp_path.iterdir()) == []


def test_duplicates_and_existing_files_are_refused(tmp_path: Path) -> None:
    one = np.zeros(1, np.float32)
    with pytest.raises(nr.UnsupportedError, match="duplicate tensor name"):
        nr.gguf.write(tmp_path / "out.gguf", {}, [("t", one), ("t", one)])
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "there.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="not overwritten"):
        nr.gguf.write(path, {}, {"t": one})
    assert path.read_bytes() == b"precious" and list(tmp_path.iterdir()) == [path]


def test_alignment_moves_data_and_nothing_else(tmp_path: Path) -> None:
    tensors = {f"t{n}": ("I8", (n,), bytes([n]) * n) for n in (18, 34, 66)}
    for alignment in (32, 64, 4096):
        path = tmp_path / f"{alignment}.gguf"
        nr.gguf.write(path, {"general.alignment": alignment}, tensors)
        with nr.gguf.open(path) as g:
            assert g.alignment == alignment
            assert all(t.offset % alignment == 0 for t in g.values())
            assert all((g[f"t{n}"].array() == n).all() for n in (18, 34, 66))


@pytest.mark.skipif(sys.platform == "win32", reason="sparse files need a flag there")
def test_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """A sparse file of 5 GiB: the last tensor is read right."""
    path = tmp_path / "large.gguf"
    far = 5 * 2**30
    head = raw_file([], [(b"first", [far], 24, 0), (b"last", [32, 2], 8, far)])
    row = random_words("gguf_q8_0", (2, 32))
    with path.open("wb") as f:
        f.write(head)
        f.seek(len(head) + far)
        f.write(row.payload.tobytes())
    with nr.gguf.open(path) as g:
        assert g["first"].shape == (far,) and same(g["last"].tensor().payload, row.payload)
        assert same(g["last"].tensor().gather([1]).dequantize(), row.dequantize()[1:])


def test_large_arrays_stay_lazy(tmp_path: Path) -> None:
    """Two arrays of 250,000 strings: opening does not decode them."""
    import tracemalloc

    texts = [f"token {i}" for i in range(250_000)]
    path = tmp_path / "tokens.gguf"
    nr.gguf.write(path, {"a": texts, "b": texts}, {})
    tracemalloc.start()
    with nr.gguf.open(path) as g:
        grown = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert grown < 1_000_000
        assert len(g.metadata["a"]) == 250_000 and g.metadata["b"][249_999] == texts[-1]
        assert list(g.metadata["a"]) == texts and g.metadata["a"][10_000:10_002] == texts[10_000:10_002]
