"""Files that our writer makes, read by gguf-py: names, types, shapes, values and bytes of every tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ninfer_rs as nr


@pytest.mark.parametrize("alignment", [32, 64])
def test_gguf_py_reads_what_we_write(tmp_path: Path, alignment: int) -> None:
    from gguf import GGUFReader

    path = tmp_path / "x.gguf"
    rng = np.random.default_rng(alignment)
    tensors: dict[str, object] = {
        # Payloads of 18, 34 and 66 bytes: padding must be added to offsets and to the running total alike.
        name: nr.Tensor.from_payload(kind, (1, k), rng.integers(0, 256, size, np.uint8))
        for name, kind, k, size in (
            ("a", "gguf_q4_0", 32, 18),
            ("b", "gguf_q8_0", 32, 34),
            ("c", "gguf_iq2_xxs", 256, 66),
        )
    }
    tensors["d"] = rng.standard_normal((2, 3, 5)).astype(np.float32)
    metadata = {
        "general.architecture": "test",
        "general.alignment": np.uint32(alignment),
        "x.text": "wörld" * alignment,
        "x.list": [1, 2, 3],
    }
    nr.gguf.write(path, metadata, tensors)
    theirs = GGUFReader(path)
    assert theirs.get_field("x.text").contents() == "wörld" * alignment
    assert theirs.get_field("x.list").contents() == [1, 2, 3]
    with nr.gguf.open(path) as ours:
        assert [t.name for t in theirs.tensors] == list(ours)
        for t in theirs.tensors:
            mine = ours[t.name]
            assert (int(t.tensor_type), int(t.data_offset)) == (mine.ggml_type, mine.offset)
            assert tuple(int(d) for d in reversed(t.shape)) == mine.shape
            assert t.data_offset % alignment == 0
            assert t.data.tobytes() == mine.blocks.tobytes()
