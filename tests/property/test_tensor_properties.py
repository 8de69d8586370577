"""Hypothesis: shapes, partial groups, arbitrary bytes and words, for every format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ninfer_rs as nr
from ninfer_rs import oracle
from support import NAMES, half_bits, random_bytes, same

COMMON = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@st.composite
def tensors(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> nr.Tensor:
    """Any format, any legal small shape, arbitrary bytes."""
    name = draw(st.sampled_from(names))
    f = nr.FORMATS[name]
    divisors = 1
    if f.category == "block_scaled":
        divisors = draw(st.integers(1, 3))
        shape = (128 * divisors * draw(st.integers(1, 2)), 64 * draw(st.integers(1, 2)))
    else:
        step = f.block_values or 1
        blocks = draw(st.integers(1, 3 if step > 1 else 300))
        shape = (draw(st.integers(1, 5)), step * blocks)
    return random_bytes(name, shape, draw(st.integers(0, 2**32)), divisors)


@COMMON
@given(tensors())
def test_words_give_the_tensor_back(t: nr.Tensor) -> None:
    words = t.words()
    if any(v.plane == "code" for v in t.violations(limit=10**7)) and t.format.category == "grouped":
        with pytest.raises(nr.InvalidTensorError):
            nr.Tensor.from_words(t.format, t.shape, **words)
        return
    back = nr.Tensor.from_words(t.format, t.shape, **words)
    assert all(same(v, back.words()[k]) for k, v in words.items())
    assert not [v for v in back.violations(limit=10**6) if v.plane == "padding"]
    assert same(back.dequantize(), t.dequantize())


@COMMON
@given(tensors(), st.data())
def test_slices_and_gathers_decode_to_rows(t: nr.Tensor, data: st.DataObject) -> None:
    step = 128 if t.format.name == "nvfp4" else 1
    n = t.shape[0] // step
    begin = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(begin + 1, n))
    view = t.rows(begin * step, end * step)
    values = t.dequantize()
    assert same(view.dequantize(), values[begin * step : end * step])
    copied = nr.Tensor.from_payload(t.format, view.shape, view.payload, view.divisors)
    assert same(copied.dequantize(), view.dequantize())
    tiles = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
    index = [r for tile in tiles for r in range(tile * step, (tile + 1) * step)]
    assert same(t.gather(index).dequantize(), values[index])


@COMMON
@given(tensors(), st.sampled_from(["float16", "bfloat16"]))
def test_rounding_to_16_bits_equals_the_oracle(t: nr.Tensor, dtype: str) -> None:
    if t.format.name == "int32":
        return
    out = np.empty(t.shape, np.uint16 if dtype == "bfloat16" else np.float16)
    try:
        expected = oracle.dequantize(t.format.name, t.shape, t.payload, t.divisors, dtype=dtype)
    except ValueError:
        with pytest.raises(nr.UnsupportedError, match="overflows"):
            t.dequantize(dtype, out=out)
        return
    assert np.array_equal(
        half_bits(t.dequantize(dtype, out=out).view(np.uint16), dtype), half_bits(expected, dtype)
    )


@COMMON
@given(tensors(), st.integers(1, 4), st.sampled_from(["a16", "a8"]), st.integers(0, 99))
def test_one_column_is_a_column_of_the_batch(t: nr.Tensor, columns: int, activation: str, seed: int) -> None:
    if t.format.name == "int32":
        return
    x = np.random.default_rng(seed).standard_normal((columns, t.shape[1]), np.float32)
    batch = t.matmul(x, activation, threads=2)
    for i in range(columns):
        assert same(t.matmul(x[i], activation, threads=1), batch[i])


@COMMON
@given(
    st.sampled_from(["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"]),
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 140)),
        elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=True),
    ),
    st.sampled_from(["grouped_absmax", "grouped_search"]),
    st.booleans(),
)
def test_encoders_always_give_valid_words(name: str, x: Any, method: str, negative: bool) -> None:
    negative = negative and method == "grouped_search"
    t = nr.quantize(x, name, method, negative_scales=negative)
    assert t.violations() == []
    assert same(t.payload, oracle.quantize(x, name, method, negative_scales=negative))
    worst = np.abs(t.dequantize() - x).max()
    f = t.format
    assert f.code_max is not None
    assert worst <= np.abs(x).max() / f.code_max * 0.51 + 2e-5 or method == "grouped_search"


@COMMON
@given(
    st.sampled_from(NAMES),
    st.binary(max_size=600),
    st.lists(st.integers(0, 300), max_size=3),
    st.integers(0, 4),
)
def test_no_bytes_and_no_shape_do_harm(name: str, data: bytes, shape: list[int], divisors: int) -> None:
    try:
        t = nr.Tensor.from_payload(name, shape, data, divisors)
    except nr.NinferError:
        return
    assert t.nbytes == len(data)
    t.violations()
    t.dequantize()
