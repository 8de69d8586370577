"""Reconstruction errors of our own encoders are at most those of ggml's quantisers, on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ninfer_rs as nr

from .ggml import ENCODED, Ggml


def _matrices(model: Path) -> Iterator[tuple[str, np.ndarray]]:
    for seed in range(3):
        rng = np.random.default_rng([11, seed])
        yield f"normal {seed}", rng.standard_normal((32, 1024), np.float32) * np.float32(0.02)
        yield f"t4 {seed}", (rng.standard_t(4, (32, 1024)) * 0.02).astype(np.float32)
        yield f"t2.5 {seed}", (rng.standard_t(2.5, (32, 1024)) * 0.02).astype(np.float32)
        yield f"uniform {seed}", rng.uniform(-0.05, 0.05, (32, 1024)).astype(np.float32)
    with nr.gguf.open(str(model)) as g:
        # The model's least quantised matrices; rows of 640 values are joined to whole blocks of 256.
        for name in ("token_embd.weight", "blk.3.attn_v.weight", "blk.9.ffn_down.weight"):
            values = g[name].tensor().dequantize()
            # Values on another encoder's grid favour that encoder: noise of about half a step.
            noise = np.random.default_rng(3).standard_normal(values[:64].shape, np.float32)
            values = values[:64] + noise * np.float32(0.15) * np.abs(values[:64]).mean()
            yield name, np.ascontiguousarray(values.reshape(-1)[: 64 * 256 * 2].reshape(-1, 512))


def _importances(k: int) -> Iterator[np.ndarray | None]:
    rng = np.random.default_rng(k)
    yield None
    yield np.exp(rng.standard_normal(k)).astype(np.float32)
    yield (rng.standard_normal(k) ** 2).astype(np.float32)


@pytest.mark.parametrize("name", ENCODED)
def test_errors_are_at_most_those_of_ggml(name: str, model: Path, ggml: Ggml) -> None:
    """Unweighted without importance, weighted with it; seeds are fixed."""
    f = nr.get_format(name)
    for what, x in _matrices(model):
        wide = x.astype(np.float64)
        for i, importance in enumerate(_importances(x.shape[1])):
            ours = nr.quantize(x, name, "gguf_search", importance=importance)
            theirs = np.zeros(f.encoded_size(x.shape), np.uint8)
            ggml.quantize(name, x, importance, theirs)
            weight = 1.0 if importance is None else importance.astype(np.float64)
            errors = [
                float((weight * (values.reshape(x.shape) - wide) ** 2).sum())
                for values in (ours.dequantize(), ggml.dequantize(name, theirs, x.size))
            ]
            assert errors[0] <= errors[1], (what, i, errors[0] / errors[1])


@pytest.mark.parametrize("name", ["gguf_q8_0", "gguf_q4_0", "gguf_q5_0"])
def test_plain_blocks_are_not_worse_than_those_of_ggml(name: str, model: Path, ggml: Ggml) -> None:
    """gguf_absmax has ggml's scales and the nearest codes under them."""
    f = nr.get_format(name)
    assert f.block_bytes is not None
    for what, x in _matrices(model):
        ours = nr.quantize(x, name, "gguf_absmax")
        theirs = np.zeros(f.encoded_size(x.shape), np.uint8)
        ggml.quantize(name, x, None, theirs)
        scales = [v.reshape(-1, f.block_bytes)[:, :2] for v in (np.asarray(ours.payload), theirs)]
        assert np.array_equal(*scales), what
        errors = [
            float(((values.reshape(x.shape) - x.astype(np.float64)) ** 2).sum())
            for values in (ours.dequantize(), ggml.dequantize(name, theirs, x.size))
        ]
        assert errors[0] <= errors[1] * (1 + 1e-6), (what, errors[0] / errors[1])
