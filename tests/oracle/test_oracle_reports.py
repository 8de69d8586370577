"""Cases drawn from public bug reports about quantised weights, with their known values.

Each test names the class of fault it guards against; the numbers were computed with independent tools.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from oracle_support import bits

ONE = [0x00, 0x3C]  # binary16 1.0, little-endian
HALVES = {  # byte offsets of d (and dmin) in each block
    "gguf_q8_0": [0],
    "gguf_q4_0": [0],
    "gguf_q5_0": [0],
    "gguf_q2_0": [0],
    "gguf_q2_k": [80, 82],
    "gguf_q3_k": [108],
    "gguf_q4_k": [0, 2],
    "gguf_q5_k": [0, 2],
    "gguf_q6_k": [208],
    "gguf_iq2_xxs": [0],
    "gguf_iq2_xs": [0],
    "gguf_iq3_xxs": [0],
    "gguf_iq1_s": [0],
    "gguf_iq4_nl": [0],
    "gguf_iq3_s": [0],
    "gguf_iq2_s": [0],
    "gguf_iq4_xs": [0],
}


def block(oracle: Any, name: str, half: int = 0x3C00, low: int = 0) -> Any:
    """One block of zero bytes with d = ``half`` and dmin = ``low`` (binary16 words)."""
    raw = np.zeros(oracle.FORMATS[name].block_bytes, np.uint8)
    for at, word in zip(HALVES.get(name, []), (half, low), strict=False):
        raw[at : at + 2] = [word & 255, word >> 8]
    if name == "gguf_iq1_m":
        raw[[49, 51, 53, 55]] = [(half >> (4 * i) & 15) << 4 for i in range(4)]
    return raw


def decode(oracle: Any, name: str, raw: Any) -> Any:
    return oracle.dequantize(
        name, (1, raw.size // oracle.FORMATS[name].block_bytes * values(oracle, name)), raw
    )[0]


def values(oracle: Any, name: str) -> int:
    return int(oracle.FORMATS[name].block_values)


# -- A. decoding the ggml blocks -------------------------------------------------------------------------


def test_scale_one_and_nothing_else(oracle: Any) -> None:
    """All-zero fixtures hide everything; d = 1 with zero codes does not (FR-03, FR-06)."""
    constants = {
        "gguf_q8_0": 0.0,
        "gguf_q4_0": -8.0,
        "gguf_q5_0": -16.0,
        "gguf_q2_0": -1.0,
        "gguf_q2_k": 0.0,
        "gguf_q3_k": 128.0,
        "gguf_q4_k": 0.0,
        "gguf_q5_k": 0.0,
        "gguf_q6_k": -0.0,
        "gguf_iq2_xxs": 1.0,
        "gguf_iq2_xs": 1.0,
        "gguf_iq3_xxs": 1.0,
        "gguf_iq1_s": -0.875,
        "gguf_iq4_nl": -127.0,
        "gguf_iq3_s": 1.0,
        "gguf_iq2_s": 1.0,
        "gguf_iq4_xs": 4064.0,
        "gguf_iq1_m": -0.875,
    }
    for name, value in constants.items():
        got = decode(oracle, name, block(oracle, name))
        assert (bits(got) == bits(np.float32(value))).all(), name


def test_q2_k_scale_pairs_with_its_lanes(oracle: Any) -> None:
    """FR-04."""
    raw = block(oracle, "gguf_q2_k", 0x3C00, 0x3C00)
    raw[:16] = [i | (15 - i) << 4 for i in range(16)]
    raw[16:80] = 0xE4
    expected = [-15, -14, -11, -9, -3, 0, 9, 13, -7, -6, 5, 7, 21, 24, 41, 45]
    assert decode(oracle, "gguf_q2_k", raw).tolist() == np.repeat(expected, 16).tolist()


@pytest.mark.parametrize("name", ["gguf_q4_k", "gguf_q5_k"])
def test_every_scale_byte_matters(oracle: Any, name: str) -> None:
    """FR-05: changing any bit of the 12 scale bytes changes some element."""
    rng = np.random.default_rng(5)
    raw = block(oracle, name, 0x3C00, 0x3800)
    raw[4:] = rng.integers(1, 255, raw.size - 4, dtype=np.uint8)
    before = decode(oracle, name, raw)
    for at in range(4, 16):
        for bit in range(8):
            changed = raw.copy()
            changed[at] ^= 1 << bit
            assert (decode(oracle, name, changed) != before).any(), (at, bit)


@pytest.mark.parametrize("name", list(HALVES))
def test_blocks_keep_to_themselves(oracle: Any, name: str) -> None:
    """FR-07: block b of a row has d = 2^b and its own codes; the second row differs."""
    rng = np.random.default_rng(7)
    rows = []
    for b in range(8):
        raw = block(oracle, name)
        free = np.ones(raw.size, bool)
        for at in HALVES[name]:
            free[at : at + 2] = False
        raw[free] = rng.integers(0, 256, int(free.sum()), dtype=np.uint8)
        at = HALVES[name][0]
        raw[at : at + 2] = [0, 0x3C + 4 * (b % 4)]
        rows.append(raw)
    k = 4 * values(oracle, name)
    whole = oracle.dequantize(name, (2, k), np.concatenate(rows))
    single = np.concatenate([decode(oracle, name, raw) for raw in rows])
    assert (bits(whole).reshape(-1) == bits(single)).all()
    assert (whole[0] != whole[1]).any()


def test_nibble_orders(oracle: Any) -> None:
    """FR-08: split halves in ggml's blocks, adjacent pairs in q4_g64."""
    raw = block(oracle, "gguf_q4_0", 0xB800)
    raw[2:] = 0xF0
    assert decode(oracle, "gguf_q4_0", raw).tolist() == [4.0] * 16 + [-3.5] * 16
    raw = block(oracle, "gguf_iq4_nl")
    raw[2:] = [i << 4 | (15 - i) for i in range(16)]
    book = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    assert decode(oracle, "gguf_iq4_nl", raw).tolist() == book[::-1] + book
    payload = np.zeros(oracle.encoded_size("q4_g64_fp16", (1, 64)), np.uint8)
    payload[:32] = 0x7F  # low nibble -1, high nibble 7
    payload[256:258] = ONE
    assert oracle.dequantize("q4_g64_fp16", (1, 64), payload)[0].tolist() == [-1.0, 7.0] * 32


def test_fifth_bits(oracle: Any) -> None:
    """FR-09."""
    raw = block(oracle, "gguf_q5_0")
    raw[5] = 0x80
    raw[6:] = 0x88
    assert decode(oracle, "gguf_q5_0", raw).tolist() == [-8.0] * 31 + [8.0]
    raw = block(oracle, "gguf_q5_k")
    raw[4:8] = 1
    raw[12:16] = 1
    raw[16:48] = [1 << (i % 8) for i in range(32)]
    got = decode(oracle, "gguf_q5_k", raw).reshape(8, 32)
    for s in range(8):
        assert got[s].tolist() == [16.0 if i % 8 == s else 0.0 for i in range(32)]


def test_iquant_signs_and_sub_scales(oracle: Any) -> None:
    """FR-10."""
    for index, flipped in ((1, [0, 7]), (2, [1, 7]), (127, list(range(8))), (3, [0, 1])):
        raw = block(oracle, "gguf_iq2_xxs")
        raw[6] = index
        got = decode(oracle, "gguf_iq2_xxs", raw)
        assert np.flatnonzero(got < 0).tolist() == flipped and (np.abs(got) == 1).all()
    for sub, value in ((15, 31.0), (1, 3.0)):
        raw = block(oracle, "gguf_iq2_xxs")
        raw[9] = sub << 4
        assert decode(oracle, "gguf_iq2_xxs", raw).tolist() == [value] * 32 + [1.0] * 224
    for name, at, run in (("gguf_iq2_xs", 66, 16), ("gguf_iq2_s", 74, 16), ("gguf_iq3_s", 106, 32)):
        raw = block(oracle, name)
        raw[at] = 0xF0
        got = decode(oracle, name, raw)
        assert got.tolist() == [1.0] * run + [31.0] * run + [1.0] * (256 - 2 * run), name


def test_iq1_scales(oracle: Any) -> None:
    """FR-11: sub-scale and delta of iq1_s; the scale of iq1_m is spread over four words."""
    raw = block(oracle, "gguf_iq1_s")
    raw[34:50] = np.frombuffer(struct.pack("<8H", *(0x8000 | i << 12 for i in range(8))), np.uint8)
    expected = np.repeat([-1.125 * (2 * i + 1) for i in range(8)], 32)
    assert decode(oracle, "gguf_iq1_s", raw).tolist() == expected.tolist()
    raw = np.zeros(56, np.uint8)
    raw[48:56] = np.frombuffer(struct.pack("<4H", 0x029C, 0x0BB8, 0xC29C, 0x3BB8), np.uint8)
    subs = [4, 3, 2, 1, 0, 7, 6, 5] * 2
    expected = np.repeat([-0.875 * (2 * s + 1) for s in subs], 16)
    assert decode(oracle, "gguf_iq1_m", raw).tolist() == expected.tolist()


def test_negative_scales(oracle: Any) -> None:
    """FR-12: a stored scale is a signed multiplier in decode and in both products."""
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), 4)[None, :]
    payload = oracle.from_words("q4_g64_fp16", (1, 64), codes=codes, scales=np.array([[0xB800]], np.uint16))
    assert (oracle.dequantize("q4_g64_fp16", (1, 64), payload) == -0.5 * codes).all()
    x = np.zeros((64, 64), np.float32)
    np.fill_diagonal(x, 127.0)
    for activation in ("a16", "a8"):
        got = oracle.matmul("q4_g64_fp16", (1, 64), payload, x, activation)
        assert (got[:, 0] == -0.5 * codes[0] * 127.0).all()
    raw = block(oracle, "gguf_q6_k", 0xB800)
    raw[192:208] = np.arange(-8, 8, dtype=np.int8).view(np.uint8)
    assert decode(oracle, "gguf_q6_k", raw).tolist() == np.repeat(np.arange(-128.0, 113.0, 16.0), 16).tolist()


def test_q8_code_minus_128(oracle: Any) -> None:
    """FR-13: legal in ggml's q8_0, illegal in q8_g32_fp16."""
    raw = block(oracle, "gguf_q8_0", 0x3800)
    raw[2:] = 0x80
    assert decode(oracle, "gguf_q8_0", raw).tolist() == [-64.0] * 32
    assert oracle.matmul("gguf_q8_0", (1, 32), raw, np.full(32, -1, np.float32)).tolist() == [2048.0]
    assert oracle.matmul("gguf_q8_0", (1, 32), raw, np.full(32, -127, np.float32), "a8").tolist() == [
        2048.0 * 127
    ]
    codes = np.zeros((2, 32), np.int8)
    codes[1, 5] = -128
    scales = np.full((2, 1), 0x3800, np.uint16)
    with pytest.raises(oracle.InvalidWordsError, match=r"0x80 .*row 1, index 5"):
        oracle.from_words("q8_g32_fp16", (2, 32), codes=codes, scales=scales)
    payload = oracle.from_words("q8_g32_fp16", (2, 32), check=False, codes=codes, scales=scales)
    (found,) = oracle.violations("q8_g32_fp16", (2, 32), payload)
    assert (found["plane"], found["row"], found["index"]) == ("code", 1, 5)
    with pytest.raises(oracle.InvalidWordsError, match="row 0, index 0"):
        oracle.import_encoded("q8_g32_fp16", {"blocks": raw[None, :], "ggml_type": 8})


def test_subnormal_scales(oracle: Any) -> None:
    """FR-14."""
    raw = block(oracle, "gguf_q8_0", 0x0001)
    raw[2:] = 1
    assert decode(oracle, "gguf_q8_0", raw).tolist() == [2.0**-24] * 32
    exponent = np.arange(65536) >> 10 & 31
    fraction = np.arange(65536) & 1023
    sign = np.where(np.arange(65536) >> 15, -1.0, 1.0)
    exact = np.where(exponent == 0, fraction * 2.0**-24, (1024 + fraction) * 2.0 ** (exponent - 25.0)) * sign
    finite = exponent < 31
    words = np.arange(65536, dtype=np.uint16)
    got = oracle.floats.f16_to_f32(words)
    assert (got[finite].astype(np.float64) == exact[finite]).all()
    assert (np.signbit(got) == (sign < 0)).all()
    assert (np.isnan(got) == (~finite & (fraction != 0))).all()
    assert (oracle.floats.f32_to_f16(got)[finite] == words[finite]).all()
    above = np.nextafter(np.float32(2.0**-25), np.float32(1))
    narrow = {
        2.0**-15: 0x0200,
        2.0**-24: 0x0001,
        2.0**-25: 0x0000,
        float(above): 0x0001,
        3 * 2.0**-25: 0x0002,
        65519.996: 0x7BFF,
        65520.0: 0x7C00,
    }
    for value, word in narrow.items():
        assert int(oracle.floats.f32_to_f16(np.float32(value))) == word
        assert int(oracle.floats.f32_to_f16(np.float32(-value))) == word | 0x8000


# -- B. what products must get right whatever the kernel -------------------------------------------------


def test_activation_ties_round_away_from_zero(oracle: Any) -> None:
    """FR-29: with amax = 127 one step is exactly 1."""
    x = np.zeros(32, np.float32)
    x[:8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    d, s, q = oracle.q8_1(x)
    assert q[0, :8].tolist() == [127, 1, 2, 3, -1, -2, -3, 127]
    assert d.tolist() == [0x3C00] and oracle.floats.f16_to_f32(s).tolist() == [254.0]


@pytest.mark.parametrize("name", ["gguf_q2_k", "gguf_q4_k", "gguf_q5_k"])
def test_minimum_term_alone(oracle: Any, name: str) -> None:
    """FR-30: d = 0, dmin != 0, negative activations: the result is -sum dmin * m * x."""
    rng = np.random.default_rng(30)
    raw = block(oracle, name, 0x0000, 0x3800)
    at, size = (0, 80) if name == "gguf_q2_k" else (4, raw.size - 4)
    raw[at : at + size] = rng.integers(0, 256, size, dtype=np.uint8)
    minimum = -decode(oracle, name, raw)
    assert len(set(minimum.tolist())) > 3 and minimum.min() >= 0
    x = -rng.integers(1, 127, 256).astype(np.float32)
    x[::32] = -127
    expected = -float(np.dot(minimum.astype(np.float64), x.astype(np.float64)))
    assert oracle.matmul(name, (1, 256), raw, x, "a8").tolist() == [expected]
    assert oracle.matmul(name, (1, 256), raw, x, "a16").tolist() == [expected]


def test_wide_range_stays_finite(oracle: Any) -> None:
    """FR-31: bf16 weights and activations of 2^17; narrowing reports overflow instead of writing infinity."""
    word = oracle.floats.f32_to_bf16(np.full((2, 12), 2.0**17, np.float32))
    payload = oracle.from_words("bf16", (2, 12), words=word)
    x = oracle.floats.f32_to_bf16(np.full(12, 2.0**17, np.float32))
    assert oracle.matmul("bf16", (2, 12), payload, x).tolist() == [2.0**34 * 12] * 2
    with pytest.raises(oracle.InvalidWordsError, match=r"24 finite values .* \[0, 0\]"):
        oracle.dequantize("bf16", (2, 12), payload, dtype="float16")
    wide = oracle.dequantize("bf16", (2, 12), payload, dtype="float16", overflow="infinity")
    assert (wide == 0x7C00).all()


def test_bf16_subnormals(oracle: Any) -> None:
    """FR-33."""
    source = np.array([0x00400000, 0x00018000, 0x00008001, 0x00008000], np.uint32).view(np.float32)
    assert oracle.floats.f32_to_bf16(source).tolist() == [0x0040, 0x0002, 0x0001, 0x0000]


# -- C. scalar words -------------------------------------------------------------------------------------


def test_bf16_specials_without_warnings(oracle: Any) -> None:
    """FR-35."""
    largest = np.finfo(np.float32).max
    x = np.array([[-0.0, -1.0, -largest, np.nan, np.inf, 0.0]], np.float32)
    x.view(np.uint32)[0, 3] = 0xFFA00001  # a signalling NaN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = oracle.words("bf16", (1, 6), oracle.quantize(x, "bf16"))["words"]
    assert got[0].tolist() == [0x8000, 0xBF80, 0xFF80, 0xFFE0, 0x7F80, 0x0000]
    words = np.arange(65536, dtype=np.uint16).reshape(1, -1)
    payload = oracle.quantize(words, "bf16", "cast_direct")
    assert (oracle.words("bf16", words.shape, payload)["words"] == words).all()
    assert (bits(oracle.dequantize("bf16", words.shape, payload)) == words.astype(np.uint32) << 16).all()
    assert (oracle.dequantize("bf16", words.shape, payload, dtype="bfloat16") == words).all()


def test_e4m3_encoding(oracle: Any) -> None:
    """FR-36: two named modes above 448, one rounding, subnormals."""
    to = oracle.floats.f32_to_e4m3
    over = np.array([464.00003, 465, 1e9, np.inf], np.float32)
    assert to(over).tolist() == [0x7E] * 4 and to(-over).tolist() == [0xFE] * 4
    assert to(over, saturate=False).tolist() == [0x7F] * 4
    for saturate in (True, False):
        inside = {
            464.0: 0x7E,
            -0.0: 0x80,
            2.0**-10: 0x00,
            1.5 * 2.0**-10: 0x01,
            3 * 2.0**-10: 0x02,
            1.0625: 0x38,
            1.0625 + 2.0**-20: 0x39,
            1.1875: 0x3A,
            248.0: 0x78,
        }
        got = to(np.array(list(inside), np.float32), saturate)
        assert got.tolist() == list(inside.values())
        assert to(np.array([np.nan, -np.nan], np.float32), saturate).tolist() == [0x7F, 0xFF]
    words = np.arange(256, dtype=np.uint8)
    values_of = oracle.floats.e4m3_to_f32(words)
    assert np.flatnonzero(np.isnan(values_of)).tolist() == [0x7F, 0xFF] and not np.isinf(values_of).any()
    assert (to(values_of) == words).all()


def test_fp8_row_profile(oracle: Any) -> None:
    """FR-37."""
    name = "fp8_e4m3fn_row_fp16"
    x = np.zeros((4, 5), np.float32)
    x[0] = [448 * 2.0**-25, -(2.0**-20), 0, 2.0**-25, -0.0]
    x[1] = -0.0
    x[2] = [1000.0, 3.0, -0.001, 77.7, 5e-5]
    x[3, 4] = 32768 * 448.0
    got = oracle.words(name, (4, 5), oracle.quantize(x, name))
    assert got["scales"][0] == 0x0001 and got["scales"][1] == 0 and got["scales"][3] == 0x7800
    assert (got["codes"][1] == 0).all()
    # the reciprocal of the stored scale, not of the exact one
    stored = oracle.floats.f16_to_f32(got["scales"])
    inverse = np.float32(1) / stored[2]
    rounded = oracle.floats.bf16_to_f32(oracle.floats.f32_to_bf16(x[2]))
    assert (got["codes"][2] == oracle.floats.f32_to_e4m3(rounded * inverse)).all()
    assert got["codes"][0].tolist() == oracle.floats.f32_to_e4m3(x[0] * np.float32(2.0**24)).tolist()
    for bad in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[2, 3] = bad
        with pytest.raises(oracle.InvalidWordsError, match="row 2, column 3"):
            oracle.quantize(y, name)
    for rows in (slice(0, 1), slice(1, 4)):
        part = oracle.words(name, x[rows].shape, oracle.quantize(x[rows], name))
        assert (part["codes"] == got["codes"][rows]).all() and (part["scales"] == got["scales"][rows]).all()
    x[3, 4] = 65536 * 448.0
    with pytest.raises(oracle.InvalidWordsError, match="row 3"):
        oracle.quantize(x, name)
    with pytest.raises(oracle.InvalidWordsError, match="bfloat16 infinity"):
        oracle.quantize(np.full((1, 1), np.finfo(np.float32).max), "fp8_e4m3fn_row_bf16")
    tiny = np.full((1, 2), 2.0**-125, np.float32)
    with pytest.raises(oracle.InvalidWordsError, match="row 0 has no finite reciprocal"):
        oracle.quantize(tiny, "fp8_e4m3fn_row_bf16")


@pytest.mark.parametrize("name", ["fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16"])
def test_fp8_row_rules(oracle: Any, name: str) -> None:
    """FR-37: codes 0x7F and 0xFF, negative, -0 and non-finite scales, zero scale with a non-zero code."""
    infinity = 0x7F80 if name.endswith("bf16") else 0x7C00
    codes = np.zeros((8, 3), np.uint8)
    codes[0] = [0x7F, 0x01, 0xFF]
    codes[6] = [0x80, 0x00, 0x80]
    codes[7, 1] = 0x01
    scales = np.array([1, 0x8000, 0x8001, infinity, infinity | 1, infinity | 0x8000, 0, 0], np.uint16)
    payload = oracle.from_words(name, (8, 3), check=False, codes=codes, scales=scales)
    found = [(v["plane"], v["row"], v["index"]) for v in oracle.violations(name, (8, 3), payload)]
    rows = [("scale", r, None) for r in (1, 2, 3, 4, 5, 7)]
    assert found == [("code", 0, 0), ("code", 0, 2), *rows]


# -- D. encoders and importance --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("q4_g64_fp16", 0x48DFF1FF, 0x48DFF200),
        ("q5_g64_fp16", 0x496FF0FF, 0x496FF100),
        ("q6_g64_fp16", 0x49F7F07F, 0x49F7F080),
        ("q8_g32_fp16", 0x4AFDF01F, 0x4AFDF020),
    ],
)
def test_scale_range_ends(oracle: Any, name: str, accepted: int, refused: int) -> None:
    """FR-39."""
    group = oracle.FORMATS[name].group_size
    x = np.zeros((2, 3 * group), np.float32)
    x[1, group + 3] = -np.array(accepted, np.uint32).view(np.float32)
    for method in ("grouped_absmax", "grouped_search"):
        got = oracle.words(name, x.shape, oracle.quantize(x, name, method))
        assert got["scales"][1].tolist()[::2] == [0, 0] and got["scales"][1, 1] & 0x7FFF <= 0x7BFF
    assert oracle.words(name, x.shape, oracle.quantize(x, name))["scales"][1, 1] == 0x7BFF
    x[1, group + 3] = np.array(refused, np.uint32).view(np.float32)
    for method in ("grouped_absmax", "grouped_search"):
        with pytest.raises(oracle.InvalidWordsError, match="row 1, group 1"):
            oracle.quantize(x, name, method)
    tiny = oracle.words(name, x.shape, oracle.quantize(np.full(x.shape, 1e-11, np.float32), name))
    assert (tiny["scales"] == 1).all() and (tiny["codes"] == 0).all()
    for bad in (np.nan, np.inf):
        x[1, group + 3] = bad
        with pytest.raises(oracle.InvalidWordsError, match=f"row 1, column {group + 3}"):
            oracle.quantize(x, name)


def test_encoder_ties_are_to_even(oracle: Any) -> None:
    """FR-29, encoder side: a group whose scale is exactly 1."""
    x = np.zeros((1, 64), np.float32)
    x[0, :7] = [7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]
    got = oracle.words("q4_g64_fp16", (1, 64), oracle.quantize(x, "q4_g64_fp16"))
    assert got["codes"][0, :7].tolist() == [7, 0, 2, 2, 0, -2, -2]


def search_matrix() -> tuple[Any, Any]:
    """A fixed 64x256 matrix and importance from integers alone, so that no library's generator matters."""
    state = np.arange(64 * 256 + 256, dtype=np.uint64)
    for multiplier in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        state = (state + np.uint64(1)) * np.uint64(multiplier)
        state ^= state >> np.uint64(29)
    value = (state >> np.uint64(40)).astype(np.int64) - (1 << 23)
    cube = (value[: 64 * 256] >> 3) ** 3 >> 36  # heavy tails, still exact in binary32
    x = cube.astype(np.float32).reshape(64, 256) * np.float32(2.0**-26)
    return x, np.abs(value[64 * 256 :]).astype(np.float32) * np.float32(2.0**-20)


def test_search_digests(oracle: Any) -> None:
    """FR-40: the same bytes on every machine."""
    x, importance = search_matrix()
    assert hashlib.sha256(x.astype("<f4").tobytes()).hexdigest() == DIGESTS["x"]
    for name in ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"):
        for label, options in (
            ("plain", {}),
            ("importance", {"importance": importance}),
            ("signed", {"importance": importance, "negative_scales": True}),
        ):
            payload = oracle.quantize(x, name, "grouped_search", **options)
            assert hashlib.sha256(payload.tobytes()).hexdigest() == DIGESTS[f"{name} {label}"], (name, label)


DIGESTS = {
    "x": "2cd36042a98fe45dc926834b013b33cd24a02d3a36e86b0198f36fbb1b0b0fd9",
    "q4_g64_fp16 plain": "4279fec5b2c7234d606d06dac317b3c8e1ffed58e46b917b0c667704cd641d86",
    "q4_g64_fp16 importance": "d079cd303edf152e786c3d148c36c6ad33a3fa6c6df68b0c8353140be11bc594",
    "q4_g64_fp16 signed": "e0db531ac5adc8a239574745a7fc1797b3bfa76b8cb5f18cabfe96a556ad9eae",
    "q5_g64_fp16 plain": "75268a2160650d4323c466d4555f8cfde69996cbab55afc743062a805c5e2681",
    "q5_g64_fp16 importance": "d12ac74f5acd27ca21bbae0dabc348a723cab5910331fa3ac27554a82d43fa08",
    "q5_g64_fp16 signed": "b40c7492ca1a7705c8db8b72aef9f450ac77b0be2a7590305207b7bf22789131",
    "q6_g64_fp16 plain": "7942317e0946f78498548814e8b3bf77aa2274803897c5e4ec9804be875734fe",
    "q6_g64_fp16 importance": "a6974194039e52013fd0972f62c008be27dd128a385d73369c6ce84779d8c33b",
    "q6_g64_fp16 signed": "2e578cf7a8bdc5c5f9bbba1a1955c7787f763e158e0dc3a89d3bb25c5d45de09",
    "q8_g32_fp16 plain": "a759c6bc11470b4ee6c2c192effde101b27bbb54069751e82eb1e477951c5c2c",
    "q8_g32_fp16 importance": "181a67bf99f5157eece76a8fc2d738d80a5953d1d80dace86732755ce3224c3b",
    "q8_g32_fp16 signed": "181a67bf99f5157eece76a8fc2d738d80a5953d1d80dace86732755ce3224c3b",
}


@pytest.mark.parametrize("name", ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"])
def test_awkward_groups(oracle: Any, name: str) -> None:
    """FR-42: valid words, never worse than absmax, for every shape of group."""
    k = 128
    one_hot = np.zeros(k)
    one_hot[77] = -3.25
    outlier = np.full(k, 1e-3)
    outlier[5] = 1e3
    x = np.array(
        [
            np.full(k, 0.37),
            one_hot,
            np.tile([2.5, -2.5], k // 2),
            np.full(k, -1.5),
            np.full(k, 2.0**-140),
            outlier,
            np.zeros(k),
            np.full(k, -0.0),
            np.linspace(-1, 1, k),
        ],
        np.float32,
    )
    importance = np.linspace(0, 2, k).astype(np.float32)
    importance[::3] = 0
    wide = x.astype(np.float64)
    base = oracle.dequantize(name, x.shape, oracle.quantize(x, name)).astype(np.float64)
    for weight in (None, importance, np.zeros(k, np.float32)):
        imp = np.ones(k) if weight is None else weight.astype(np.float64)
        for signed in (False, True):
            payload = oracle.quantize(x, name, "grouped_search", weight, signed)
            assert oracle.violations(name, x.shape, payload) == []
            got = oracle.dequantize(name, x.shape, payload).astype(np.float64)
            error, limit = (imp * (wide - got) ** 2).sum(axis=1), (imp * (wide - base) ** 2).sum(axis=1)
            assert (error <= limit * (1 + 1e-12)).all()
            scales = oracle.words(name, x.shape, payload)["scales"]
            assert signed or (scales < 0x8000).all()
            assert (scales[6:8] == 0).all() and (scales != 0x8000).all()


def test_tail_group_sees_logical_lanes_only(oracle: Any) -> None:
    """FR-43."""
    x = np.zeros((2, 130), np.float32)
    x[:, 128:] = [1, -1]
    for method in ("grouped_absmax", "grouped_search"):
        payload = oracle.quantize(x, "q5_g64_fp16", method)
        assert payload.size == 528
        got = oracle.words("q5_g64_fp16", (2, 130), payload)
        assert got["scales"][:, :2].tolist() == [[0, 0], [0, 0]]
        assert payload[512:528].reshape(2, 4, 2)[:, 3].tolist() == [[0, 0], [0, 0]]
        assert (got["codes"][:, :128] == 0).all()
        value = oracle.dequantize("q5_g64_fp16", (2, 130), payload)
        assert np.abs(value[:, 128:] - x[:, 128:]).max() <= 2.0**-10
    absmax = oracle.words("q5_g64_fp16", (2, 130), oracle.quantize(x, "q5_g64_fp16"))
    assert absmax["codes"][:, 128:].tolist() == [[15, -15]] * 2
    assert (absmax["scales"][:, 2] == oracle.floats.f32_to_f16(np.float32(1) / np.float32(15))).all()


def legacy(entries: list[tuple[bytes, int, Any]]) -> bytes:
    out = struct.pack("<i", len(entries))
    for name, calls, sums in entries:
        out += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(sums))
        out += np.asarray(sums, "<f4").tobytes()
    return out


def test_importance_in_two_forms(oracle: Any) -> None:
    """FR-44: sum / count, the same vector from both; broken legacy files are refused."""
    rng = np.random.default_rng(44)
    sums = (rng.random(96) * 1000).astype(np.float32)
    data = legacy([(b"blk.0.attn_q.weight", 7, sums), (b"x", 1, sums[:5])])
    got = oracle.imatrix.parse_legacy(data)
    assert list(got) == ["blk.0.attn_q.weight", "x"]
    again = oracle.imatrix.from_in_sum2(sums[None, :], np.array([7.0], np.float32))
    assert again.values.shape == (96,) and again.unreached == ()
    assert (bits(got["blk.0.attn_q.weight"]) == bits(again.values)).all()
    assert (bits(again.values) == bits(sums / np.float32(7))).all()
    assert (bits(oracle.imatrix.from_in_sum2(sums, np.zeros(1)).values) == bits(sums)).all()
    for end in range(len(data)):
        with pytest.raises(oracle.InvalidWordsError, match="imatrix"):
            oracle.imatrix.parse_legacy(data[:end])
    for broken in (
        struct.pack("<i", -1),
        struct.pack("<i", 1 << 30),
        struct.pack("<ii", 1, -5),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", -1, 1) + bytes(4),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, -1),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, (1 << 31) - 1) + bytes(64),
        legacy([(b"a", 1, [1.0]), (b"a", 1, [1.0])]),
    ):
        with pytest.raises(oracle.InvalidWordsError, match="imatrix"):
            oracle.imatrix.parse_legacy(broken)
    with pytest.raises(oracle.InvalidWordsError, match=r"\[1\]"):
        oracle.imatrix.from_in_sum2(np.array([1.0, np.nan]), np.ones(1))


def test_unreached_experts(oracle: Any) -> None:
    """FR-45: an expert without tokens weighs all channels alike and is reported."""
    sums = np.array([[10, 20, 30], [0, 0, 0], [5, 0, 1]], np.float32)
    got = oracle.imatrix.from_in_sum2(sums, np.array([10, 0, 5], np.float32))
    assert got.unreached == (1,)
    assert (bits(got.values) == bits(np.array([[1, 2, 3], [1, 1, 1], [1, 0, 0.2]], np.float32))).all()
    with pytest.raises(oracle.ShapeError):
        oracle.imatrix.from_in_sum2(sums, np.ones(2))
    with pytest.raises(oracle.ShapeError, match=r"importance has shape \[3\], must be \[64\]"):
        oracle.quantize(np.ones((1, 64), np.float32), "q4_g64_fp16", "grouped_search", got.values[0])
    bad = np.ones(64, np.float32)
    bad[9] = -1
    with pytest.raises(oracle.InvalidWordsError, match="column 9"):
        oracle.quantize(np.ones((1, 64), np.float32), "q4_g64_fp16", "grouped_search", bad)
