"""Importance matrices in both forms."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import ninfer_rs as nr
from support import same

SUMS = {
    "blk.0.attn.weight": np.array([4.0, 8.0, 0.5, 0.0], np.float32),
    "output.weight": np.array([3.0, 9.0], np.float32),
}
COUNT = 4


def legacy(entries: list[tuple[bytes, int, np.ndarray]]) -> bytes:
    data = struct.pack("<i", len(entries))
    for name, calls, sums in entries:
        data += (
            struct.pack("<i", len(name))
            + name
            + struct.pack("<ii", calls, len(sums))
            + sums.astype("<f4").tobytes()
        )
    return data


@pytest.fixture
def forms(tmp_path: Path) -> dict[str, Path]:
    """The same importance in both forms, each under the other's usual suffix."""
    tensors: dict[str, np.ndarray] = {}
    for name, sums in SUMS.items():
        tensors[f"{name}.in_sum2"] = sums[None]
        tensors[f"{name}.counts"] = np.array([[COUNT]], np.float32)
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": ["wiki.txt"],
        "imatrix.chunk_count": 7,
        "imatrix.chunk_size": 512,
    }
    nr.gguf.write(tmp_path / "new.dat", metadata, tensors)
    (tmp_path / "old.gguf").write_bytes(legacy([(n.encode(), COUNT, s) for n, s in SUMS.items()]))
    return {"gguf": tmp_path / "new.dat", "legacy": tmp_path / "old.gguf"}


def test_both_forms_give_the_same_vectors(forms: dict[str, Path]) -> None:
    for form, path in forms.items():
        m = nr.imatrix.load(path)
        assert m.form == form and list(m) == list(SUMS) and len(m) == 2 and "output.weight" in m
        for name, sums in SUMS.items():
            assert same(m[name], sums / np.float32(COUNT)) and m.unreached(name) == []
            assert same(m.stored(name).sums, sums[None]) and m.stored(name).counts.tolist() == [COUNT]
    m = nr.imatrix.load(forms["gguf"])
    assert m.datasets == ["wiki.txt"] and (m.chunk_count, m.chunk_size) == (7, 512)


def test_it_fits_the_encoder(forms: dict[str, Path]) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    importance = nr.imatrix.load(forms["legacy"])["blk.0.attn.weight"]
    t = nr.quantize(x, "q4_g64_fp16", "grouped_search", importance=importance)
    assert t.violations() == []


def test_experts_without_data_weigh_alike(tmp_path: Path) -> None:
    sums = np.array([[10, 20], [0, 0], [5, 15]], np.float32)
    path = tmp_path / "moe.gguf"
    counts = np.array([[10], [0], [5]], np.float32)
    nr.gguf.write(path, {}, {"ffn.in_sum2": sums, "ffn.counts": counts})
    m = nr.imatrix.load(path)
    assert same(m["ffn"], np.array([[1, 2], [1, 1], [1, 3]], np.float32))
    assert m.unreached("ffn") == [1] and any("ffn" in w for w in m.warnings)


def test_legacy_vectors_of_experts(tmp_path: Path) -> None:
    path = tmp_path / "moe.dat"
    path.write_bytes(legacy([(b"ffn", 5, np.array([10, 20, 0, 0, 5, 15], np.float32))]))
    m = nr.imatrix.load(path)
    assert m["ffn"].shape == (6,)
    assert same(m.experts("ffn", 3, 2), np.array([[2, 4], [1, 1], [1, 3]], np.float32))
    with pytest.raises(nr.UnsupportedError):
        m.experts("ffn", 4, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<i", -1),
        struct.pack("<i", 2**31 - 1),
        legacy([(b"w", 1, np.ones(4, np.float32))])[:-1],
        legacy([(b"w", 1, np.ones(4, np.float32))]) + b"\0",
        legacy([(b"w", -1, np.ones(4, np.float32))]),
        legacy([(b"w", 1, np.array([np.nan], np.float32))]),
        legacy([(b"w", 1, np.array([-1], np.float32))]),
        legacy([(b"w", 1, np.ones(1, np.float32))] * 2),
        struct.pack("<ii", 1, -5) + bytes(20),
        b"GGUF",
    ],
)
def test_broken_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.dat"
    path.write_bytes(content)
    with pytest.raises(nr.FileFormatError) as caught:
        nr.imatrix.load(path)
    assert caught.value.path == str(path) and str(path) in str(caught.value)


def test_missing_names(forms: dict[str, Path]) -> None:
    with pytest.raises(
        nr.TensorNotFoundError, match=r"no importance of a tensor .*did you mean output\.weight"
    ):
        nr.imatrix.load(forms["gguf"])["output.weigth"]
    with pytest.raises(FileNotFoundError):
        nr.imatrix.load("absent.dat")
