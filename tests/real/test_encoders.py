"""Reconstruction errors of our own encoders are at most those of ggml's quantisers, on the same data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ninfer_rs as nr

from .ggml import ENCODED, Ggml

#: Of the model: one matrix of each type that it has.
TENSORS = (
    "blk.2.ffn_down.weight",  # q4_k
    "blk.1.attn_output.weight",  # q4_k
    "blk.1.ffn_down.weight",  # q6_k
    "blk.3.attn_v.weight",  # q5_0
    "blk.1.attn_v.weight",  # q8_0
)


def _matrices(model: Path) -> Iterator[tuple[str, np.ndarray]]:
    for seed in (0, 1, 2, 20, 21):
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


def _requantised(model: Path, ggml: Ggml) -> Iterator[tuple[str, np.ndarray]]:
    """Values decoded from ggml's blocks, whose grids its quantisers find again; also with a little noise."""
    rng = np.random.default_rng(29)
    decoded = []
    with nr.gguf.open(str(model)) as g:
        for name in TENSORS:
            values = g[name].tensor().dequantize().reshape(-1)[: 24 * 1024]
            decoded.append((name, np.ascontiguousarray(values.reshape(24, 1024))))
    for what, x in (("normal", rng.standard_normal((24, 1024))), ("t4", rng.standard_t(4, (24, 1024)))):
        values = (x * 0.02).astype(np.float32)
        for source in ENCODED:
            blocks = np.zeros(nr.get_format(source).encoded_size(values.shape), np.uint8)
            ggml.quantize(source, values, None, blocks)
            decoded.append((f"{what} of {source}", ggml.dequantize(source, blocks, x.size).reshape(x.shape)))
    for what, values in decoded:
        yield what, values
        noise = rng.standard_normal(values.shape, np.float32) * np.float32(0.02) * np.abs(values).mean()
        yield f"{what} with noise", values + noise


def _importances(k: int) -> Iterator[np.ndarray | None]:
    rng = np.random.default_rng(k)
    yield None
    yield np.exp(rng.standard_normal(k)).astype(np.float32)
    yield (rng.standard_normal(k) ** 2).astype(np.float32)


def _errors(
    ggml: Ggml, name: str, x: np.ndarray, importance: np.ndarray | None, weight: np.ndarray | float
) -> list[float]:
    """Squared errors of gguf_search and of ggml's quantiser."""
    ours = nr.quantize(x, name, "gguf_search", importance=importance)
    theirs = np.zeros(nr.get_format(name).encoded_size(x.shape), np.uint8)
    ggml.quantize(name, x, importance, theirs)
    return [
        float((weight * (values.reshape(x.shape) - x.astype(np.float64)) ** 2).sum())
        for values in (ours.dequantize(), ggml.dequantize(name, theirs, x.size))
    ]


@pytest.mark.parametrize("name", ENCODED)
def test_errors_are_at_most_those_of_ggml(name: str, model: Path, ggml: Ggml) -> None:
    """Unweighted without importance, weighted with it; seeds are fixed."""
    for what, x in _matrices(model):
        for i, importance in enumerate(_importances(x.shape[1])):
            weight = 1.0 if importance is None else importance.astype(np.float64)
            errors = _errors(ggml, name, x, importance, weight)
            assert errors[0] <= errors[1], (what, i, errors[0] / errors[1])


@pytest.mark.parametrize("name", ENCODED)
def test_errors_on_requantised_values(name: str, model: Path, ggml: Ggml) -> None:
    """Where ggml finds a grid again, without any error even, so does gguf_search."""
    exact = 0
    for what, x in _requantised(model, ggml):
        for i, importance in enumerate(_importances(x.shape[1])):
            weight = 1.0 if importance is None else importance.astype(np.float64)
            errors = _errors(ggml, name, x, importance, weight)
            assert errors[0] <= errors[1], (what, i, errors)
            exact += errors[0] == 0.0
    assert exact, "no grid was found again"


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
