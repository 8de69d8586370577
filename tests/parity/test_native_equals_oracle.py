"""The native code and the oracle, which share nothing, give the same bits for every format and operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from ninfer_rs import oracle
from support import (
    FLOATS,
    FP8,
    GGUF,
    GROUPED,
    NAMES,
    bits,
    half_bits,
    random_bytes,
    random_half,
    random_words,
    rng_of,
    same,
    shape_for,
)

COLUMNS = (1, 2, 3, 7, 8, 16, 33)
ENCODED = [n for n in NAMES if any(n in formats for formats in oracle.METHODS.values())]


def payload_of(t: nr.Tensor) -> tuple[str, tuple[int, ...], Any, int]:
    return t.format.name, t.shape, t.payload, t.divisors


def test_registries_agree() -> None:
    assert list(nr.FORMATS) == list(oracle.FORMATS)
    fields = "category layout bits_per_weight group_size code_bits code_min code_max"
    fields += " block_values block_bytes ggml_type"
    for name, f in nr.FORMATS.items():
        theirs = oracle.FORMATS[name]
        for field in fields.split():
            assert getattr(f, field) == getattr(theirs, field), (name, field)
    for name, layout in nr.LAYOUTS.items():
        assert layout.alignment == oracle.LAYOUTS[name].alignment


@pytest.mark.parametrize("name", NAMES)
def test_encoded_size(name: str) -> None:
    f = nr.FORMATS[name]
    legal = 0
    for n in (1, 2, 3, 127, 128, 129, 256, 384):
        for k in (1, 16, 31, 32, 63, 64, 65, 96, 128, 130, 160, 256, 512, 576):
            for divisors in (0, 1, 2, 3):
                try:
                    theirs = oracle.encoded_size(name, (n, k), divisors)
                except ValueError:
                    with pytest.raises(nr.ShapeError):
                        f.encoded_size((n, k), divisors)
                else:
                    assert f.encoded_size((n, k), divisors) == theirs
                    legal += 1
    assert legal >= 9


@pytest.mark.parametrize("name", GGUF)
def test_decode_random_blocks(name: str) -> None:
    """10,000 blocks of random bytes: every code pattern, infinite and NaN scales among them."""
    f = nr.FORMATS[name]
    assert f.block_values
    t = random_bytes(name, (10_000, f.block_values), "decode")
    assert same(t.dequantize(), oracle.dequantize(*payload_of(t)))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in GGUF])
@pytest.mark.parametrize("k", [64, 192, 1, 63, 130])
def test_decode_random_bytes(name: str, k: int) -> None:
    t = random_bytes(name, shape_for(name, 40, k), k, 1)
    assert same(t.dequantize(), oracle.dequantize(*payload_of(t)))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_decode_to_16_bits_rounds_once(name: str, dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    t = random_words(name, shape_for(name, 5, 192), dtype)
    expected = oracle.dequantize(*payload_of(t), dtype=dtype)
    assert np.array_equal(half_bits(t.dequantize(dtype).view(np.uint16), dtype), half_bits(expected, dtype))


def test_nvfp4_with_several_divisors() -> None:
    pytest.importorskip("ml_dtypes")
    t = random_words("nvfp4", (384, 128), "divisors", divisors=3)
    assert t.divisors == 3
    assert same(t.dequantize(), oracle.dequantize(*payload_of(t)))
    half = oracle.dequantize(*payload_of(t), dtype="bfloat16")
    assert np.array_equal(t.dequantize("bfloat16").view(np.uint16), half)


@pytest.mark.parametrize("name", NAMES)
def test_words_and_payloads(name: str) -> None:
    t = random_words(name, shape_for(name, 5, 130), "words")
    ours, theirs = t.words(), oracle.words(*payload_of(t))
    assert list(ours) == list(theirs)
    assert all(same(ours[key], theirs[key]) for key in ours)
    assert np.array_equal(oracle.from_words(name, t.shape, **theirs), t.payload)
    assert np.array_equal(nr.Tensor.from_words(name, t.shape, **ours).payload, t.payload)


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_gather(name: str) -> None:
    step = 128 if name == "nvfp4" else 1
    t = random_words(name, shape_for(name, 5 * step, 192), "rows", divisors=5 if name == "nvfp4" else 1)
    whole = t.dequantize()
    for begin, end in ((0, 2), (1, 4), (4, 5), (0, 5)):
        begin, end = begin * step, end * step
        view = t.rows(begin, end)
        assert view.shape == (end - begin, t.shape[1])
        assert np.array_equal(view.payload, oracle.rows(*payload_of(t)[:3], begin, end, divisors=t.divisors))
        assert same(view.dequantize(), whole[begin:end])
        assert view.nbytes == view.payload.size
        inner = view.rows(0, step)
        assert same(inner.dequantize(), whole[begin : begin + step])
    tiles = [3, 1, 1, 4]
    index = [i for tile in tiles for i in range(tile * step, (tile + 1) * step)]
    picked = t.gather(index)
    assert np.array_equal(picked.payload, oracle.gather(*payload_of(t)[:3], index, divisors=t.divisors))
    assert same(picked.dequantize(), whole[index])
    assert same(t.rows(step, 5 * step).gather(range(step)).dequantize(), whole[step : 2 * step])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("legal", [True, False])
def test_violations(name: str, legal: bool) -> None:
    shape = shape_for(name, 3, 130)
    t = (random_words if legal else random_bytes)(name, shape, "violations")
    ours = t.violations(limit=10**6)
    theirs = oracle.violations(*payload_of(t))
    assert len(ours) == len(theirs)
    if legal or nr.FORMATS[name].category in ("direct", "gguf"):
        assert not ours
        t.validate()
        return
    assert ours
    with pytest.raises(nr.InvalidTensorError):
        t.validate()

    def key(v: Any) -> tuple[Any, ...]:
        index = next((x for x in (v.column, v.group, v.divisor, v.byte) if x is not None), None)
        return (v.plane, v.row, index)

    ours_keys = sorted((repr(key(v)) for v in ours), key=str)
    theirs_keys = sorted((repr((v["plane"], v["row"], v["index"])) for v in theirs), key=str)
    assert ours_keys == theirs_keys


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("activation", ["a16", "a8"])
def test_products(name: str, activation: str) -> None:
    f = nr.FORMATS[name]
    lengths = {k for k in (64, 96, 130, 192, 256, 512) if shape_for(name, 1, k)[1] == k} or {f.block_values}
    for k in sorted(lengths):
        t = random_words(name, shape_for(name, 5, k), activation)
        x = rng_of(name, activation, k).standard_normal((max(COLUMNS), k), np.float32)
        expected = oracle.matmul(*payload_of(t)[:3], x, activation, divisors=t.divisors)
        for columns in COLUMNS:
            y = t.matmul(x[:columns], activation, threads=1 + columns % 3)
            assert same(y, expected[:columns]), (k, columns)
        assert same(t.matmul(x[0], activation), expected[0])


@pytest.mark.parametrize("activation", ["a16", "a8"])
def test_products_with_bfloat16_activations(activation: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t = random_words("q5_g64_fp16", (7, 130), "bf16")
    x = rng_of("bf16").standard_normal((2, 3, 130), np.float32).astype(ml_dtypes.bfloat16)
    expected = oracle.matmul(*payload_of(t)[:3], x.view(np.uint16), activation)
    assert same(t.matmul(x, activation), expected)
    assert same(t.matmul(x.astype(np.float32), activation), expected)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("isa", nr.simd.info()["available"])
def test_every_instruction_set_has_the_same_bits(name: str, isa: str) -> None:
    t = random_words(name, shape_for(name, 9, 256), "isa")
    x = rng_of(name, "isa").standard_normal((5, t.shape[1]), np.float32)
    expected = oracle.dequantize(*payload_of(t))
    with nr.simd.use(isa):
        assert nr.simd.info()["isa"] == isa
        assert same(t.dequantize(), expected)
        for activation in ("a16", "a8"):
            theirs = oracle.matmul(*payload_of(t)[:3], x, activation, divisors=t.divisors)
            assert same(t.matmul(x, activation), theirs)


def test_q8_1() -> None:
    rng = rng_of("q8_1")
    x = rng.standard_normal((4, 5, 75), np.float32) * np.float32(2.0) ** rng.integers(-40, 40, (4, 5, 75))
    x = x.astype(np.float32)
    x[0, 0, :32] = 0
    x[0, 1, :32] = 1e-42  # subnormal: 1/d is infinite
    x[0, 2, :32] = np.arange(32, dtype=np.float32) - 15.5
    x[0, 2, 0] = 127.0
    ours, theirs = nr.q8_1(x), oracle.q8_1(x)
    assert ours.q.shape == (4, 5, 3, 32) and ours.d.shape == (4, 5, 3)
    assert np.array_equal(ours.d.view(np.uint16), theirs.d)
    assert np.array_equal(ours.s.view(np.uint16), theirs.s)
    assert np.array_equal(ours.q, theirs.q)


@pytest.mark.parametrize("name", ENCODED)
def test_encoders(name: str) -> None:
    rng = rng_of("encoders", name)
    # Ternary groups are encoded sixteen at a time: rows of more.
    n, k = {"nvfp4": (128, 320), "t2_g128_fp16": (5, 2200)}.get(name, (5, 1280) if name in GGUF else (5, 130))
    importance = np.abs(rng.standard_normal(k, np.float32)) ** 3
    importance[k // 4 : k // 2 : 3] = 0
    importance[64:96] = 0
    # Subnormal weights, alone in their group and beside others.
    tiny = importance.copy()
    tiny[:64] *= np.float32(1e-42)
    tiny[70::5] = 2.0**-149
    for method, formats in nr.ENCODERS.items():
        if name not in formats:
            continue
        x = rng.standard_normal((n, k), np.float32) * 3
        if name == "int32":
            x = np.round(x * 100)
        elif method in ("gguf_search", "gguf_absmax", "ternary_fit", "nvfp4_maxabs", "nvfp4_search"):
            # Outliers, runs of zeros, of one value, of one sign, magnitudes at which scales are subnormal.
            x[rng.random(x.shape) < 0.01] *= 30
            x[1, 32:64], x[1, 96:112], x[1, 112:128] = 0, -0.3, 0.3
            x[2] *= np.float32(1e-6)
            x[3, ::2] *= np.float32(1e-39)
            x[4] = np.abs(x[4])
        theirs = oracle.quantize(x, name, method)
        # float64 values that binary32 holds exactly; the first rounding of others is a test of its own.
        for source in (x, x.astype(np.float64), np.asfortranarray(x)):
            assert np.array_equal(nr.quantize(source, name, method).payload, theirs)
        if method in ("grouped_search", "gguf_search", "ternary_fit", "nvfp4_search"):
            for negative in (False, True) if method == "grouped_search" else (False,):
                for weights in (importance, tiny, np.zeros(k, np.float32)):
                    ours = nr.quantize(x, name, method, importance=weights, negative_scales=negative)
                    theirs = oracle.quantize(x, name, method, weights, negative)
                    assert np.array_equal(ours.payload, theirs)


def test_the_same_methods_exist_in_the_same_order() -> None:
    assert {m: tuple(f) for m, f in oracle.METHODS.items()} == dict(nr.ENCODERS)


@pytest.mark.parametrize(("name", "source"), [("q2_g64_fp16", "gguf_q2_0"), ("q8_g32_fp16", "gguf_q8_0")])
def test_imports_of_blocks(name: str, source: str) -> None:
    rng = rng_of("imports", name)
    f = nr.FORMATS[source]
    assert f.block_bytes and f.block_values
    blocks = rng.integers(0, 256, (5 * 3, f.block_bytes), np.uint8)
    blocks[:, :2] = random_half(rng, 15).astype("<u2").view(np.uint8).reshape(-1, 2)
    if name == "q8_g32_fp16":
        blocks[blocks == 0x80] = 0x81
    blocks = blocks.reshape(5, -1)
    encoded = nr.Tensor.from_words(source, (5, 3 * f.block_values), blocks=blocks)
    theirs = oracle.import_encoded(name, {"blocks": blocks, "ggml_type": np.array(f.ggml_type)})
    ours = nr.import_encoded(name, encoded)
    assert np.array_equal(ours.payload, theirs)
    assert same(ours.dequantize(), encoded.dequantize())
    picked = nr.import_encoded(name, encoded, rows=[4, 0, 0])
    assert same(picked.dequantize(), encoded.dequantize()[[4, 0, 0]])


@pytest.mark.parametrize("scale", ["bfloat16", "float32", "global"])
def test_import_of_fp8_rows(scale: str) -> None:
    rng = rng_of("fp8", scale)
    codes = rng.integers(0, 0x7F, (6, 40), np.uint8) | (rng.integers(0, 2, (6, 40), np.uint8) << 7)
    scales: Any = {
        "bfloat16": rng.integers(1, 0x4000, (6, 1), np.uint16),
        "float32": rng.uniform(1e-3, 1, 6).astype(np.float32),
        "global": np.float32(0.37),
    }[scale]
    source = {"weight": codes, "weight_scale": scales}
    ours = nr.import_encoded("fp8_e4m3fn_row_bf16", source)
    assert np.array_equal(ours.payload, oracle.import_encoded("fp8_e4m3fn_row_bf16", source))


@pytest.mark.parametrize("style", ["compressed", "modelopt"])
def test_import_of_nvfp4(style: str) -> None:
    rng = rng_of("nvfp4", style)
    packed, total = (
        ("weight_packed", "weight_global_scale") if style == "compressed" else ("weight", "weight_scale_2")
    )
    sources = [
        {
            packed: rng.integers(0, 256, (128, 64), np.uint8),
            "weight_scale": rng.integers(0, 0x7F, (128, 8), np.uint8),
            total: np.float32(rng.uniform(0.001, 3)),
        }
        for _ in range(2)
    ]
    ours = nr.import_encoded("nvfp4", sources)
    assert ours.shape == (256, 128) and ours.divisors == 2
    assert np.array_equal(ours.payload, oracle.import_encoded("nvfp4", sources))
    one = nr.import_encoded("nvfp4", sources[0])
    assert np.array_equal(one.payload, oracle.import_encoded("nvfp4", sources[0]))


def test_formats_listed_for_the_tests_are_all() -> None:
    assert len(NAMES) == 30 and len(GGUF) == 18 and len(GROUPED) == 6 and len(FP8) == 2
    assert bits(np.array([1.0], np.float32))[0] == 0x3F800000


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_cast_of_float64_rounds_to_binary32_first(name: str) -> None:
    rng = rng_of("cast", name)
    x = rng.standard_normal((7, 33)) * 10.0 ** rng.integers(-45, 38, (7, 33))
    x[0, :6] = [1 + 2.0**-8 + 2.0**-40, -0.0, np.inf, np.nan, 1e300, 1e-320]
    ours = nr.quantize(x, name, method="cast_direct")
    assert np.array_equal(np.asarray(ours.payload), oracle.quantize(x, name, "cast_direct"))
