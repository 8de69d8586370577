"""The oracle's imports, validation and 16-bit decoding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from oracle_support import bits

GROUPED = ["q2_g64_fp16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "t2_g128_fp16"]


# -- imports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 192, 256])
def test_q2_0_into_planes(oracle: Any, k: int) -> None:
    rng = np.random.default_rng(k)
    blocks = rng.integers(0, 256, (5, k // 64 * 18), dtype=np.uint8)
    d = blocks.reshape(-1, 18)[:, :2]
    d[:, 1] &= 0xBB  # finite
    d[0] = [0x00, 0x80]  # -0 with any codes
    d[1] = [0x01, 0x00]
    payload = oracle.import_encoded("q2_g64_fp16", {"blocks": blocks, "ggml_type": 42})
    same = oracle.dequantize("gguf_q2_0", (5, k), blocks.reshape(-1))
    assert (bits(oracle.dequantize("q2_g64_fp16", (5, k), payload)) == bits(same)).all()
    row = -(-k // 128) * 32
    codes = blocks.reshape(5, -1, 18)[:, :, 2:].reshape(5, -1)  # the code bytes go straight in
    base = payload[: 5 * row].reshape(5, row)
    assert (base[:, : k // 4] == codes).all() and (base[:, k // 4 :] == 0x55).all()
    assert oracle.violations("q2_g64_fp16", (5, k), payload) == []
    blocks[3, 0:2] = [0x00, 0x7C]
    with pytest.raises(oracle.InvalidWordsError, match=r"finite .*row 3, index 0"):
        oracle.import_encoded("q2_g64_fp16", {"blocks": blocks, "ggml_type": 42})


def test_q8_0_into_planes(oracle: Any) -> None:
    rng = np.random.default_rng(80)
    blocks = rng.integers(0, 256, (3, 4 * 34), dtype=np.uint8)
    each = blocks.reshape(-1, 34)
    each[:, 1] = each[:, 1] & 0xBB | 0x04
    each[:, 2:][each[:, 2:] == 0x80] = 1
    each[5, :] = 0
    source = {"blocks": blocks, "ggml_type": 8}
    payload = oracle.import_encoded("q8_g32_fp16", source)
    same = oracle.dequantize("gguf_q8_0", (3, 128), blocks.reshape(-1))
    assert (bits(oracle.dequantize("q8_g32_fp16", (3, 128), payload)) == bits(same)).all()
    for change, rule in (
        ([0x00, 0x80], "negative zero"),
        ([0x00, 0x7C], "finite"),
        ([0x01, 0xFE], "finite"),
        ([0x00, 0x00], "zero scale"),
    ):
        each[6, :2] = change
        with pytest.raises(oracle.InvalidWordsError, match=rf"{rule} .*row 1, index 2"):
            oracle.import_encoded("q8_g32_fp16", source)
    each[6, :2] = [0, 0x3C]
    each[6, 2 + 7] = 0x80
    with pytest.raises(oracle.InvalidWordsError, match=r"0x80 .*row 1, index 71"):
        oracle.import_encoded("q8_g32_fp16", source)


def ptq1_0(codes: Any) -> Any:
    """Packs 128 codes -1..1 in base 3: a byte holds floor((digits * 256 + 242) / 243), first digit on top."""

    def pack(digits: list[int], count: int) -> int:
        value = 0
        for i in range(5):
            value = 3 * value + (digits[i] if i < count else 0)
        return (value * 256 + 242) // 243

    u = [int(c) + 1 for c in codes]
    out = []
    for at, width in ((0, 16), (80, 8)):
        out += [pack([u[at + t * width + b] for t in range(5)], 5) for b in range(width)]
    out += [pack([u[120 + 2 * t + b] for t in range(4)], 4) for b in range(2)]
    return out


def test_ternary_sources(oracle: Any) -> None:
    rng = np.random.default_rng(142)
    codes = rng.integers(-1, 2, (3, 256)).astype(np.int8)
    scales = np.array([[0x3C00, 0xB800], [0x0001, 0x8001], [0x7BFF, 0x2E66]], np.uint16)
    expected = oracle.from_words("t2_g128_fp16", (3, 256), codes=codes, scales=scales)
    pq2 = np.zeros((3, 2, 34), np.uint8)
    ptq1 = np.zeros((3, 2, 28), np.uint8)
    for n in range(3):
        for g in range(2):
            word = [scales[n, g] & 255, scales[n, g] >> 8]
            part = codes[n, 128 * g : 128 * g + 128]
            u = (part + 1).astype(np.uint8).reshape(32, 4)
            pq2[n, g, :2], pq2[n, g, 2:] = word, u[:, 0] | u[:, 1] << 2 | u[:, 2] << 4 | u[:, 3] << 6
            ptq1[n, g, :26], ptq1[n, g, 26:] = ptq1_0(part), word
    for blocks, kind in ((pq2, 142), (ptq1, 143)):
        source = {"blocks": blocks.reshape(3, -1), "ggml_type": kind}
        assert (oracle.import_encoded("t2_g128_fp16", source) == expected).all()
    pq2[2, 1, 2 + 5] |= 0b00_11_00_00
    with pytest.raises(oracle.InvalidWordsError, match="code word 3 at row 2, column 150"):
        oracle.import_encoded("t2_g128_fp16", {"blocks": pq2.reshape(3, -1), "ggml_type": 142})
    ptq1[1, 0, 26:] = [0x00, 0x80]
    with pytest.raises(oracle.InvalidWordsError, match=r"negative zero .*row 1, index 0"):
        oracle.import_encoded("t2_g128_fp16", {"blocks": ptq1.reshape(3, -1), "ggml_type": 143})


def test_fp8_rows(oracle: Any) -> None:
    name = "fp8_e4m3fn_row_bf16"
    codes = np.random.default_rng(8).integers(0, 0x7F, (4, 6), dtype=np.uint8)
    scale = np.array([0.5, 1.00390625, 3.0, 2.0**-130], np.float32)  # the second ties between bf16 words
    words = [0x3F00, 0x3F80, 0x4040, 0x0008]
    for shaped in (scale, scale[:, None], np.array(words, np.uint16), scale.astype(ml_dtypes.bfloat16)):
        got = oracle.words(
            name, (4, 6), oracle.import_encoded(name, {"weight": codes, "weight_scale": shaped})
        )
        assert got["scales"].tolist() == words and (got["codes"] == codes).all()
    for one in (np.float32(0.5), np.array([0.5], np.float32), np.array([[0.5]], np.float32)):
        got = oracle.words(name, (4, 6), oracle.import_encoded(name, {"weight": codes, "weight_scale": one}))
        assert got["scales"].tolist() == [0x3F00] * 4
    typed = codes.view(ml_dtypes.float8_e4m3fn)
    assert oracle.import_encoded(name, {"weight": typed, "weight_scale": scale}).size == 256 + 8
    for bad, rule in (
        (-1.0, "negative"),
        (-0.0, "negative"),
        (np.nan, "finite"),
        (3.4e38, "finite"),
        (0.0, "zero"),
    ):
        wrong = scale.copy()
        wrong[2] = bad
        with pytest.raises(oracle.InvalidWordsError, match=rf"{rule}.*row 2"):
            oracle.import_encoded(name, {"weight": codes, "weight_scale": wrong})
    nan_code = codes.copy()
    nan_code[1, 5] = 0xFF
    with pytest.raises(oracle.InvalidWordsError, match=r"NaN codes .*row 1, index 5"):
        oracle.import_encoded(name, {"weight": nan_code, "weight_scale": scale})
    for shape in ((3,), (4, 2), (1, 4)):
        with pytest.raises(oracle.ShapeError, match="weight_scale"):
            oracle.import_encoded(name, {"weight": codes, "weight_scale": np.ones(shape, np.float32)})
    with pytest.raises(oracle.UnsupportedError, match="float16"):
        oracle.import_encoded(name, {"weight": codes, "weight_scale": np.ones(4, np.float16)})
    with pytest.raises(oracle.UnsupportedError, match="must hold exactly"):
        oracle.import_encoded(name, {"weight": codes, "weight_scale": scale, "input_scale": scale})


def test_nvfp4_sources(oracle: Any) -> None:
    rng = np.random.default_rng(4)

    def source(divisor: float, kind: str) -> dict[str, Any]:
        codes = rng.integers(0, 256, (128, 32), dtype=np.uint8)
        scales = rng.integers(0, 0x7F, (128, 4), dtype=np.uint8)
        if kind == "packed":
            return {
                "weight_packed": codes,
                "weight_scale": scales,
                "weight_global_scale": np.array([divisor], np.float32),
            }
        return {"weight": codes, "weight_scale": scales, "weight_scale_2": np.float32(divisor)}

    stack = [source(448.0, "packed"), source(0.003, "modelopt"), source(7.5, "packed")]
    payload = oracle.import_encoded("nvfp4", stack)
    got = oracle.words("nvfp4", (384, 64), payload, 3)
    codes = [s.get("weight_packed", s.get("weight")) for s in stack]
    assert (got["codes"] == np.concatenate(codes)).all()
    assert (got["scales"] == np.concatenate([s["weight_scale"] for s in stack])).all()
    third = np.float32(1) / np.float32(0.003)
    assert (bits(got["divisors"]) == bits(np.array([448.0, third, 7.5], np.float32))).all()
    alone = oracle.import_encoded("nvfp4", stack[0])
    assert (alone == oracle.rows("nvfp4", (384, 64), payload, 0, 128, 3)).all()
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(oracle.InvalidWordsError, match="must be finite and positive"):
            oracle.import_encoded("nvfp4", source(bad, "packed"))
    with pytest.raises(oracle.InvalidWordsError, match="no finite reciprocal"):
        oracle.import_encoded("nvfp4", source(2.0**-140, "modelopt"))
    wrong = source(1.0, "packed")
    wrong["weight_scale"] = wrong["weight_scale"].reshape(64, 8)
    with pytest.raises(oracle.ShapeError, match=r"must be \[128, 4\]"):
        oracle.import_encoded("nvfp4", wrong)
    wrong["weight_scale"] = wrong["weight_scale"].reshape(-1)
    with pytest.raises(oracle.ShapeError, match="weight_scale"):
        oracle.import_encoded("nvfp4", wrong)
    wrong = source(1.0, "packed")
    wrong["weight_scale"][100, 3] = 0x80
    with pytest.raises(oracle.InvalidWordsError, match=r"sign bit 0 .*row 100, index 3"):
        oracle.import_encoded("nvfp4", wrong)
    short = {"weight_packed": np.zeros((130, 40), np.uint8), "weight_scale": np.zeros((130, 5), np.uint8)}
    with pytest.raises(oracle.ShapeError, match=r"N % 128 == 0 and K % 64 == 0"):
        oracle.import_encoded("nvfp4", short | {"weight_global_scale": np.float32(1)})


def test_import_refusals(oracle: Any) -> None:
    blocks = np.zeros((2, 18), np.uint8)
    got = oracle.import_encoded("gguf_q4_0", {"blocks": blocks, "ggml_type": 2})
    assert (got == blocks.reshape(-1)).all()
    with pytest.raises(oracle.UnsupportedError, match="ggml type 2, the source is type 20"):
        oracle.import_encoded("gguf_q4_0", {"blocks": blocks, "ggml_type": 20})
    with pytest.raises(oracle.ShapeError, match="18 bytes are not whole blocks of 34"):
        oracle.import_encoded("gguf_q8_0", {"blocks": blocks, "ggml_type": 8})
    for name in ("q2_g64_fp16", "q8_g32_fp16", "t2_g128_fp16"):
        with pytest.raises(oracle.UnsupportedError, match="not 2"):
            oracle.import_encoded(name, {"blocks": blocks, "ggml_type": 2})
    for name in ("bf16", "q4_g64_fp16", "fp8_e4m3fn_row_fp16"):
        with pytest.raises(oracle.UnsupportedError, match="nothing is imported"):
            oracle.import_encoded(name, {"blocks": blocks, "ggml_type": 2})


# -- encoders' refusals ----------------------------------------------------------------------------------


def test_quantize_refusals(oracle: Any) -> None:
    x = np.ones((2, 64), np.float32)
    for name in ("q2_g64_fp16", "t2_g128_fp16", "nvfp4", "gguf_q8_0"):
        with pytest.raises(oracle.UnsupportedError, match="only imported or made by name"):
            oracle.quantize(x, name)
        with pytest.raises(oracle.UnsupportedError, match="cannot produce"):
            oracle.quantize(x, name, "grouped_absmax")
    with pytest.raises(oracle.UnsupportedError, match="unknown method"):
        oracle.quantize(x, "q4_g64_fp16", "nearest")
    with pytest.raises(oracle.UnsupportedError, match="takes no negative_scales"):
        oracle.quantize(x, "q4_g64_fp16", "grouped_absmax", negative_scales=True)
    with pytest.raises(oracle.UnsupportedError, match="takes neither"):
        oracle.quantize(x, "q4_g64_fp16", "grouped_absmax", importance=np.ones(64, np.float32))
    for method, name in (
        ("gguf_search", "gguf_q4_k"),
        ("gguf_search", "gguf_q4_0"),
        ("nvfp4_search", "nvfp4"),
    ):
        with pytest.raises(oracle.ShapeError, match="multiple|128"):
            oracle.quantize(np.ones((2, 80), np.float32), name, method)
    for method, name in (
        ("gguf_search", "gguf_q6_k"),
        ("gguf_search", "gguf_iq4_nl"),
        ("ternary_fit", "t2_g128_fp16"),
    ):
        with pytest.raises(oracle.InvalidWordsError, match="overflows"):
            oracle.quantize(np.full((2, 256), 3e38, np.float32), name, method)
    with pytest.raises(oracle.ShapeError, match="matrix"):
        oracle.quantize(x[0], "q4_g64_fp16")
    with pytest.raises(oracle.UnsupportedError, match="int64"):
        oracle.quantize(np.ones((2, 2), np.int64), "q4_g64_fp16")
    with pytest.raises(oracle.UnsupportedError, match="int64 to bf16"):
        oracle.quantize(np.ones(2, np.int64), "bf16")


def test_sources_of_other_types(oracle: Any) -> None:
    rng = np.random.default_rng(9)
    half = rng.standard_normal((3, 70)).astype(np.float16)
    wide = half.astype(np.float32)
    brain = wide.astype(ml_dtypes.bfloat16)
    for name in ("q6_g64_fp16", "fp8_e4m3fn_row_bf16"):
        expected = oracle.quantize(wide, name)
        assert (oracle.quantize(half, name) == expected).all()
        assert (oracle.quantize(half.astype(np.float64), name) == expected).all()
        expected = oracle.quantize(brain.astype(np.float32), name)
        assert (oracle.quantize(brain, name) == expected).all()
        assert (oracle.quantize(brain.view(np.uint16), name) == expected).all()
    with pytest.raises(oracle.InvalidWordsError, match="1e\\+39"):
        oracle.quantize(np.full((1, 1), 1e39), "q6_g64_fp16")


def test_cast_direct_int32(oracle: Any) -> None:
    good = np.array([[-(2.0**31), 2.0**31 - 1, -0.0, 5.0]])
    got = oracle.dequantize("int32", (1, 4), oracle.quantize(good, "int32"))
    assert got.dtype == np.int32 and got.tolist() == [[-(1 << 31), (1 << 31) - 1, 0, 5]]
    for dtype in (np.int8, np.uint8, np.uint16, np.int64, np.uint64, np.float32, ml_dtypes.bfloat16):
        payload = oracle.quantize(np.array([1, 2, 100], dtype), "int32")
        assert oracle.words("int32", (3,), payload)["words"].tolist() == [1, 2, 100]
    for bad in (0.5, 2.0**31, -(2.0**31) - 1, np.nan, np.inf):
        with pytest.raises(oracle.InvalidWordsError, match=r"index \[0, 2\]"):
            oracle.quantize(np.array([[1, 2, bad]]), "int32")
    for dtype, value in (
        (np.int64, 1 << 31),
        (np.int64, -(1 << 31) - 1),
        (np.uint64, 1 << 63),
        (np.uint32, 1 << 31),
    ):
        with pytest.raises(oracle.InvalidWordsError, match=r"index \[1\]"):
            oracle.quantize(np.array([0, value], dtype), "int32")


# -- validation ------------------------------------------------------------------------------------------


def places(oracle: Any, name: str, shape: Any, payload: Any, divisors: int = 1) -> Any:
    return [tuple(v.values())[:3] for v in oracle.violations(name, shape, payload, divisors)]


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_rules(oracle: Any, name: str) -> None:
    fmt = oracle.FORMATS[name]
    per_row = 256 // fmt.group_size
    logical = -(-130 // fmt.group_size)
    clean = oracle.from_words(
        name, (3, 130), codes=np.ones((3, 130), np.int8), scales=np.full((3, logical), 0x3C00, np.uint16)
    )
    assert places(oracle, name, (3, 130), clean) == []
    scale_at = clean.size - 3 * per_row * 2
    for word, broken in ((0x8000, True), (0x0000, True), (0x7C00, True), (0xFE01, True), (0x8001, False)):
        payload = clean.copy()
        at = scale_at + 2 * (per_row + 1)  # row 1, group 1
        payload[at : at + 2] = [word & 255, word >> 8]
        broken = broken and (name != "q2_g64_fp16" or word & 0x7C00 == 0x7C00)
        assert places(oracle, name, (3, 130), payload) == ([("scale", 1, 1)] if broken else [])
    payload = clean.copy()
    payload[-1] = 0x3C  # the scale of the last physical group, past K
    expected = [("padding", 2, per_row - 1)] if logical < per_row else [("scale", 2, per_row - 1)]
    payload[-2:] = [0x00, 0x7C]
    assert places(oracle, name, (3, 130), payload) == expected
    payload = clean.copy()
    lane = 3 * 256 * (8 if fmt.code_bits == 8 else 4 if fmt.code_bits > 2 else 2) // 8 - 1
    payload[lane] ^= 1 if fmt.code_bits == 8 else 0x10  # the last lane (or its byte) of row 2
    found = places(oracle, name, (3, 130), payload)
    assert len(found) == 1 and found[0][:2] == ("padding", 2) and 252 <= found[0][2] <= 255
    gap = lane + 1
    if gap % 256:
        payload = clean.copy()
        payload[gap] = 1
        assert places(oracle, name, (3, 130), payload) == [("padding", None, gap)]


def test_gap_bytes(oracle: Any) -> None:
    payload = oracle.from_words(
        "q5_g64_fp16", (1, 64), codes=np.zeros((1, 64), np.int8), scales=np.zeros((1, 1), np.uint16)
    )
    payload[[64, 255, 256 + 16, 511]] = 1
    gaps = [("padding", None, at) for at in (64, 255, 272, 511)]
    assert places(oracle, "q5_g64_fp16", (1, 64), payload) == gaps
    payload = np.zeros(256 + 2, np.uint8)
    payload[[3, 255]] = 1
    assert places(oracle, "fp8_e4m3fn_row_bf16", (1, 3), payload) == [
        ("padding", None, 3),
        ("padding", None, 255),
    ]


def test_code_rules(oracle: Any) -> None:
    codes = np.zeros((2, 130), np.int8)
    codes[0, 129], codes[1, 0] = -2, -2
    scales = np.full((2, 2), 0x3C00, np.uint16)
    payload = oracle.from_words("t2_g128_fp16", (2, 130), check=False, codes=codes, scales=scales)
    assert places(oracle, "t2_g128_fp16", (2, 130), payload) == [("code", 0, 129), ("code", 1, 0)]
    for name, code in (("q4_g64_fp16", 8), ("q5_g64_fp16", -17), ("q6_g64_fp16", 32), ("t2_g128_fp16", 2)):
        codes[1, 7] = code
        groups = -(-130 // oracle.FORMATS[name].group_size)
        with pytest.raises(oracle.InvalidWordsError, match=f"code {code} at row 1, column 7 has no"):
            oracle.from_words(
                name, (2, 130), check=False, codes=codes, scales=np.full((2, groups), 0x3C00, np.uint16)
            )


def test_nvfp4_rules(oracle: Any) -> None:
    scales = np.full((256, 4), 0x38, np.uint8)
    scales[0, 0], scales[200, 3], scales[200, 1], scales[9, 2] = 0x80, 0x7F, 0xFF, 0x00
    divisors = np.array([np.inf, 1.0], np.float32)
    codes = np.zeros((256, 32), np.uint8)
    payload = oracle.from_words(
        "nvfp4", (256, 64), check=False, codes=codes, scales=scales, divisors=divisors
    )
    found = oracle.violations("nvfp4", (256, 64), payload, 2)
    assert [(v["plane"], v["row"], v["index"]) for v in found] == [
        ("scale", 0, 0),
        ("scale", 200, 1),
        ("scale", 200, 3),
        ("divisor", None, 0),
    ]
    assert [v["rule"].split()[-1] for v in found] == ["0", "0", "NaN", "positive"]
    for value in (0.0, -0.0, -1.0, np.nan, np.inf):
        divisors[:] = [1.0, value]
        payload = oracle.from_words(
            "nvfp4", (256, 64), check=False, codes=codes, scales=scales * 0, divisors=divisors
        )
        assert places(oracle, "nvfp4", (256, 64), payload, 2) == [("divisor", None, 1)]


def test_from_words_checks_its_arrays(oracle: Any) -> None:
    codes, scales = np.zeros((2, 64), np.int8), np.zeros((2, 1), np.uint16)
    with pytest.raises(oracle.InvalidWordsError, match="'scales' is missing"):
        oracle.from_words("q4_g64_fp16", (2, 64), codes=codes)
    with pytest.raises(oracle.InvalidWordsError, match="unknown array 'zeros'"):
        oracle.from_words("q4_g64_fp16", (2, 64), codes=codes, scales=scales, zeros=scales)
    with pytest.raises(oracle.InvalidWordsError, match="must be int8, not int64"):
        oracle.from_words("q4_g64_fp16", (2, 64), codes=codes.astype(np.int64), scales=scales)
    with pytest.raises(oracle.ShapeError, match=r"'scales' has shape \[2\], must be \[2, 1\]"):
        oracle.from_words("q4_g64_fp16", (2, 64), codes=codes, scales=scales[:, 0])


# -- decoding to 16-bit types ----------------------------------------------------------------------------


def test_sixteen_bit_types_round_once(oracle: Any) -> None:
    rng = np.random.default_rng(16)
    for name in ("gguf_q4_k", "gguf_q6_k", "gguf_iq3_s"):
        fmt = oracle.FORMATS[name]
        blocks = rng.integers(0, 256, (40, fmt.block_bytes), dtype=np.uint8)
        at = 208 if name == "gguf_q6_k" else 0
        blocks[:, at + 1] &= 0x1B
        blocks[:, at + 3 if name == "gguf_q4_k" else at + 1] &= 0x1B
        payload = blocks.reshape(-1)
        wide = oracle.dequantize(name, (40, 256), payload)
        half = oracle.dequantize(name, (40, 256), payload, dtype="float16")
        assert (half == wide.astype(np.float16).view(np.uint16)).all()
        brain = oracle.dequantize(name, (40, 256), payload, dtype="bfloat16")
        assert (brain == wide.astype(ml_dtypes.bfloat16).view(np.uint16)).all()


def test_nvfp4_rounds_the_quotient_once(oracle: Any) -> None:
    """A code, scale and divisor whose quotient, rounded to binary32 first, would tie in the 16-bit type."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (1024, 64), dtype=np.uint8)
    scales = rng.integers(0x20, 0x58, (1024, 8), dtype=np.uint8)
    divisors = (1 + rng.integers(0, 1 << 23, 8) * 2.0**-23).astype(np.float32)
    divisors[0] = np.float32(1) / (1 + np.float32(2.0**-11))  # 1 / d sits just beside a binary16 tie
    divisors[1] = np.float32(1) / (1 + np.float32(2.0**-8))  # and a bfloat16 tie
    payload = oracle.from_words("nvfp4", (1024, 128), codes=codes, scales=scales, divisors=divisors)
    exact = oracle.floats.e2m1_to_f32(np.stack([codes & 15, codes >> 4], axis=-1).reshape(1024, 128)).astype(
        float
    )
    exact = exact * np.repeat(oracle.floats.e4m3_to_f32(scales), 16, axis=1)
    exact = exact / np.repeat(divisors.astype(np.float64), 128)[:, None]
    half = oracle.dequantize("nvfp4", (1024, 128), payload, 8, dtype="float16")
    assert (half == exact.astype(np.float16).view(np.uint16)).all()
    single = oracle.dequantize("nvfp4", (1024, 128), payload, 8)
    assert (bits(single) == bits(exact.astype(np.float32))).all()
    assert (half != single.astype(np.float16).view(np.uint16)).any()
    brain = oracle.dequantize("nvfp4", (1024, 128), payload, 8, dtype="bfloat16")
    assert (brain != single.astype(ml_dtypes.bfloat16).view(np.uint16)).any()
    low = single.view(np.uint32) >> 16
    assert ((brain == low) | (brain == low + 1)).all()


def test_dtype_refusals(oracle: Any) -> None:
    payload = np.zeros(8, np.uint8)
    assert oracle.dequantize("int32", (2,), payload).dtype == np.int32
    for name, dtype in (("int32", "float32"), ("int32", "bfloat16"), ("fp32", "int32"), ("fp32", "float64")):
        with pytest.raises(oracle.UnsupportedError, match="cannot decode"):
            oracle.dequantize(name, (2,), payload, dtype=dtype)
    big = np.array([1.0, np.finfo(np.float32).max, np.inf], np.float32)
    payload = oracle.from_words("fp32", (3,), words=big.view(np.uint32))
    with pytest.raises(
        oracle.InvalidWordsError, match=r"1 finite values are too large for bfloat16, .* \[1\]"
    ):
        oracle.dequantize("fp32", (3,), payload, dtype="bfloat16")
    words = oracle.dequantize("fp32", (3,), payload, dtype="bfloat16", overflow="infinity")
    assert words.tolist() == [0x3F80, 0x7F80, 0x7F80]


# -- small floats against an independent library ---------------------------------------------------------


def test_small_floats_against_ml_dtypes(oracle: Any) -> None:
    f = oracle.floats
    words8 = np.arange(256, dtype=np.uint8)
    theirs = words8.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = ~np.isnan(theirs)
    assert (bits(f.e4m3_to_f32(words8))[finite] == bits(theirs)[finite]).all()
    words4 = np.arange(16, dtype=np.uint8)
    assert (
        bits(f.e2m1_to_f32(words4)) == bits(words4.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    ).all()
    rng = np.random.default_rng(44)
    x = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(200_000) * 2.0 ** rng.integers(-30, 18, 200_000)).astype(np.float32)
    # every word's value, the middle to the next word, and both neighbours of each
    edges = [f.e4m3_to_f32(words8[:0x7F]), f.f16_to_f32(np.arange(0x7C00, dtype=np.uint16))]
    middles = [((e[1:].astype(np.float64) + e[:-1]) / 2).astype(np.float32) for e in edges]
    base = np.concatenate([x[~np.isnan(x)], near, *edges, *middles])
    x = np.concatenate([base, -base, np.nextafter(base, np.float32(0)), np.nextafter(base, np.float32(1e30))])
    with np.errstate(all="ignore"):
        assert (f.f32_to_f16(x) == x.astype(np.float16).view(np.uint16)).all()
        assert (f.f32_to_bf16(x) == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
        assert (f.f32_to_e4m3(x, saturate=False) == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()
        small = x[np.abs(x) < 7]
        assert (f.f32_to_e2m1(small) == small.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)).all()
        double = x.astype(np.float64) * (1 + rng.standard_normal(x.size) * 1e-9)
        assert (f.f64_to_f16(double) == double.astype(np.float16).view(np.uint16)).all()
        assert (bits(f.f64_to_f32(double)) == bits(double.astype(np.float32))).all()
    with pytest.raises(oracle.InvalidWordsError):
        f.f32_to_e2m1(np.float32(np.nan))
    with pytest.raises(oracle.InvalidWordsError, match="16"):
        f.e2m1_to_f32(np.array([3, 16], np.uint8))
