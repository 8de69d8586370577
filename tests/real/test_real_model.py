"""A real Gemma 3 270M GGUF: every tensor against ggml's C decoders, the artifact against the GGUF's bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ninfer_rs as nr
from ninfer_rs.cli import main

from .ggml import DECODERS, Ggml

#: Types and counts that the package's own description states.
EXPECTED = {"F32": 109, "Q8_0": 10, "Q5_0": 81, "Q4_K": 27, "Q6_K": 9}


def words(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32).reshape(-1)


def test_every_tensor_decodes_like_ggml(model: Path, ggml: Ggml) -> None:
    with nr.gguf.open(str(model)) as g:
        assert Counter(t.type_name for t in g.values()) == EXPECTED
        values = 0
        for name, info in g.items():
            tensor = info.tensor()
            ours = words(tensor.dequantize())
            if tensor.format.category == "gguf":
                theirs = words(ggml.dequantize(tensor.format.name, tensor.payload, ours.size))
            else:
                theirs = np.frombuffer(tensor.payload, "<u4")
            assert np.array_equal(ours, theirs), name
            values += ours.size
        assert values > 260_000_000


def test_artifact_holds_the_gguf_bytes(model: Path, artifact: Path) -> None:
    art = nr.artifact.open(str(artifact))
    with nr.gguf.open(str(model)) as g:
        for name, info in g.items():
            tensor = art[name]
            assert np.array_equal(tensor.payload, np.asarray(info.blocks).reshape(-1).view(np.uint8)), name
            assert tensor.format.name == info.tensor().format.name


def test_artifact_verifies(artifact: Path, model: Path) -> None:
    result = CliRunner().invoke(main, ["verify", str(artifact), "--against", str(model)])
    assert result.exit_code == 0, result.output


def test_inspect_totals_match(model: Path, artifact: Path) -> None:
    totals = []
    for path in (model, artifact):
        result = CliRunner().invoke(main, ["inspect", "--json", str(path)])
        assert result.exit_code == 0, result.output
        data = json.loads(result.stdout)
        totals.append({h["format"]: (h["tensors"], h["bytes"]) for h in data["histogram"]})
    assert totals[0] == totals[1]
    assert sum(n for n, _ in totals[0].values()) == sum(EXPECTED.values())


@pytest.mark.parametrize("format_name", DECODERS)
def test_random_blocks_decode_like_ggml(format_name: str, ggml: Ggml) -> None:
    """10,000 blocks of random bytes a type; values whose block scale is infinite or NaN are left to IEEE."""
    f = nr.get_format(format_name)
    assert f.block_bytes and f.block_values
    rng = np.random.default_rng(list(format_name.encode()))
    blocks = rng.integers(0, 256, (10_000, f.block_bytes), np.uint8)
    tensor = nr.Tensor.from_payload(f.name, (10_000, f.block_values), blocks.reshape(-1))
    ours = tensor.dequantize()
    theirs = ggml.dequantize(f.name, blocks, ours.size).reshape(ours.shape)
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert nan.mean() < 0.2
    assert np.array_equal(words(ours)[~nan.reshape(-1)], words(theirs)[~nan.reshape(-1)])
