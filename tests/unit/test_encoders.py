"""quantize and import_encoded: choices, refusals and their texts (words are compared in tests/parity)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from support import random_words, same


def test_default_methods() -> None:
    x = np.random.default_rng(0).standard_normal((2, 64), np.float32)
    assert same(
        nr.quantize(x, "q4_g64_fp16").payload, nr.quantize(x, "q4_g64_fp16", "grouped_absmax").payload
    )
    assert same(nr.quantize(x, "fp32").dequantize(), x)
    with pytest.raises(nr.UnsupportedError, match="q2_g64_fp16: no method makes this format"):
        nr.quantize(x, "q2_g64_fp16")
    for name, method in (
        ("t2_g128_fp16", "ternary_fit"),
        ("gguf_q4_0", "gguf_search"),
        ("nvfp4", "nvfp4_maxabs, nvfp4_search"),
    ):
        with pytest.raises(nr.UnsupportedError, match=f"{name} has no default method; name one: {method}"):
            nr.quantize(x, name)
        tile = np.tile(x, (64, 1))
        assert nr.quantize(tile, name, method.split(", ")[-1]).format.name == name


def test_nvfp4() -> None:
    x = np.random.default_rng(7).standard_normal((256, 128), np.float32)
    importance = np.abs(np.random.default_rng(8).standard_normal(128, np.float32))
    errors = []
    for method, weights in (("nvfp4_maxabs", None), ("nvfp4_search", None), ("nvfp4_search", importance)):
        t = nr.quantize(x, "nvfp4", method, importance=weights)
        assert t.divisors == 1
        errors.append((importance * (t.dequantize() - x) ** 2).sum())
    assert errors[2] < errors[1] < errors[0]
    with pytest.raises(nr.UnsupportedError, match="takes no importance"):
        nr.quantize(x, "nvfp4", "nvfp4_maxabs", importance=importance)
    with pytest.raises(nr.ShapeError, match="128"):
        nr.quantize(x[:100], "nvfp4", "nvfp4_maxabs")
    x[200, 70] = np.inf
    with pytest.raises(nr.UnsupportedError, match="row 200, column 70"):
        nr.quantize(x, "nvfp4", "nvfp4_search")


@pytest.mark.parametrize(
    ("fmt", "method", "text"),
    [
        ("bf16", "round", "unknown method 'round'; the methods are cast_direct, grouped_absmax"),
        ("bf16", "grouped_absmax", "grouped_absmax does not produce bf16; it produces q4_g64_fp16"),
        ("q2_g64_fp16", "grouped_absmax", "does not produce q2_g64_fp16"),
        ("t2_g128_fp16", "grouped_search", "does not produce t2_g128_fp16"),
    ],
)
def test_methods_that_do_not_fit(fmt: str, method: str, text: str) -> None:
    with pytest.raises(nr.UnsupportedError, match=text):
        nr.quantize(np.zeros((2, 64), np.float32), fmt, method)


def test_parameters_belong_to_methods() -> None:
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(nr.UnsupportedError, match="neither importance nor negative_scales"):
        nr.quantize(x, "bf16", importance=np.ones(64, np.float32))
    with pytest.raises(nr.UnsupportedError, match="importance"):
        nr.quantize(x, "q4_g64_fp16", "grouped_absmax", importance=np.ones(64, np.float32))
    for importance, text in (
        (np.ones(64), r"float32 \[K\], got float64"),
        (np.ones((1, 64), np.float32), r"got float32 with shape \(1, 64\)"),
        (np.ones(63, np.float32), "63"),
        (np.full(64, -1, np.float32), "not negative, got -1"),
        (np.full(64, np.nan, np.float32), "finite"),
    ):
        with pytest.raises(nr.NinferError, match=text):
            nr.quantize(x, "q4_g64_fp16", "grouped_search", importance=importance)


@pytest.mark.parametrize(
    ("value", "fmt", "text"),
    [
        (np.nan, "q4_g64_fp16", r"row 1.*column 70"),
        (np.inf, "q8_g32_fp16", r"row 1.*column 70"),
        (np.nan, "fp8_e4m3fn_row_bf16", r"row 1.*column 70"),
        (1e9, "q4_g64_fp16", r"row 1.*group 1"),
    ],
)
def test_values_that_do_not_fit_are_named(value: float, fmt: str, text: str) -> None:
    x = np.zeros((3, 130), np.float32)
    x[1, 70] = value
    for threads in (1, 2):
        with pytest.raises(nr.UnsupportedError, match=text) as caught:
            nr.quantize(x, fmt, name="blk.1", threads=threads)
        assert str(caught.value).startswith('tensor "blk.1": ')


@pytest.mark.parametrize(
    "x", [np.zeros((2, 64), np.int32), np.zeros((2, 64), bool), np.zeros((2, 64), "c8"), [["a"]]]
)
def test_sources_that_are_not_float(x: Any) -> None:
    with pytest.raises(nr.UnsupportedError, match="grouped_absmax takes float16, bfloat16, float32, float64"):
        nr.quantize(x, "q4_g64_fp16")


@pytest.mark.parametrize("shape", [(64,), (2, 2, 64), (), (0, 64), (2, 0)])
def test_matrices_only(shape: tuple[int, ...]) -> None:
    with pytest.raises(nr.ShapeError):
        nr.quantize(np.zeros(shape, np.float32), "q4_g64_fp16")


def test_float64_takes_the_detour_over_binary32() -> None:
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 + 2.0**-20])
    assert nr.quantize(x, "bf16").words()["words"].tolist() == [0x3F80, 0x3F81]


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]
)
def test_integers_of_any_width(dtype: Any) -> None:
    x = np.array([[0, 1, 127]], dtype)
    assert nr.quantize(x, "int32").dequantize().tolist() == [[0, 1, 127]]
    with pytest.raises(nr.UnsupportedError, match="integers are not converted to floating point"):
        nr.quantize(x, "fp32")


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.array([[1, 2**31]]), r"element \[0, 1\] is 2147483648: int32 holds"),
        (np.array([[1, 2], [3, 2**63]], np.uint64), r"element \[1, 1\] is 9223372036854775808"),
        (np.array([1.0, 2.5]), r"element \[1\] is 2.5: int32 takes integral values only"),
        (np.array([np.inf], np.float16), r"element \[0\] is inf: int32 takes finite"),
        (np.array(np.nan, np.float32), r"element \[\] is NaN"),
        (np.array([True]), "cast_direct takes floats and integers, got an array of bool"),
    ],
)
def test_first_bad_index(x: Any, text: str) -> None:
    with pytest.raises(nr.UnsupportedError, match=text):
        nr.quantize(x, "int32")


def test_imports_say_what_they_take() -> None:
    q8 = random_words("gguf_q8_0", (2, 64))
    for name, source, text in (
        ("gguf_q4_0", q8, "cannot import gguf_q8_0 as gguf_q4_0 without changing words"),
        ("gguf_q8_0", b"raw", "is imported from a GGUF tensor or a Tensor, got bytes"),
        ("q2_g64_fp16", q8, "q2_g64_fp16"),
        ("q2_g64_fp16", random_words("bf16", (2, 64)), "cannot import bf16 as q2_g64_fp16"),
        ("q4_g64_fp16", q8, "q4_g64_fp16: nothing is imported as this format"),
        ("bf16", q8, "bf16: nothing is imported"),
        ("nvfp4", {"weight": 1}, "is imported from weight, weight_scale, weight_scale_2; got weight"),
        ("nvfp4", 3, "got int"),
        ("fp8_e4m3fn_row_bf16", {"weight": np.zeros((2, 2), np.uint8)}, "weight, weight_scale; got weight"),
        (
            "fp8_e4m3fn_row_bf16",
            {"weight": np.zeros((2, 2), np.int8), "weight_scale": np.ones(2, np.float32)},
            "weight must be uint8 or float8_e4m3fn, got int8",
        ),
        (
            "fp8_e4m3fn_row_bf16",
            {"weight": np.zeros((2, 2), np.uint8), "weight_scale": np.ones(2)},
            "weight_scale must be bfloat16, uint16 words or float32, got float64",
        ),
    ):
        with pytest.raises(nr.UnsupportedError, match=text):
            nr.import_encoded(name, source)
    with pytest.raises(nr.UnknownFormatError):
        nr.import_encoded("gguf_q9", q8)
    same_memory = nr.import_encoded("gguf_q8_0", q8, name="w")
    assert np.shares_memory(same_memory.payload, q8.payload) and same_memory.name == "w"
    assert same(nr.import_encoded("gguf_q8_0", q8, rows=[1, 1]).dequantize(), q8.dequantize()[[1, 1]])


def test_scale_shapes_of_fp8() -> None:
    codes = np.full((3, 4), 0x38, np.uint8)
    for shape in ((3,), (3, 1)):
        scale = np.arange(1, 4, dtype=np.float32).reshape(shape)
        t = nr.import_encoded("fp8_e4m3fn_row_bf16", {"weight": codes, "weight_scale": scale})
        assert t.dequantize()[:, 0].tolist() == [1, 2, 3]
    for shape in ((), (1,), (1, 1)):
        scale = np.full(shape, 2, np.float32)
        t = nr.import_encoded("fp8_e4m3fn_row_bf16", {"weight": codes, "weight_scale": scale})
        assert (t.dequantize() == 2).all()
    for shape in ((4,), (3, 4), (1, 3)):
        with pytest.raises(nr.ShapeError, match="scale tensor has shape"):
            scale = np.ones(shape, np.float32)
            nr.import_encoded("fp8_e4m3fn_row_bf16", {"weight": codes, "weight_scale": scale})
    codes[1, 2] = 0x7F
    with pytest.raises(nr.NinferError, match=r"row 1.*column 2"):
        nr.import_encoded("fp8_e4m3fn_row_bf16", {"weight": codes, "weight_scale": np.ones(3, np.float32)})


def test_ml_dtypes_codes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([[1.0, -2.0], [0.5, 448.0]], np.float32)
    source = {
        "weight": values.astype(ml_dtypes.float8_e4m3fn),
        "weight_scale": np.ones(2, ml_dtypes.bfloat16),
    }
    assert same(nr.import_encoded("fp8_e4m3fn_row_bf16", source).dequantize(), values)
    with pytest.raises(nr.UnsupportedError, match="got float8_e5m2"):
        nr.import_encoded("fp8_e4m3fn_row_bf16", source | {"weight": values.astype(ml_dtypes.float8_e5m2)})
