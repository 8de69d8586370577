"""Products of the oracle against the contract, written out one value at a time in rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from oracle_support import Golden, bits

WEIGHTS = [
    "bf16",
    "fp32",
    "q2_g64_fp16",
    "q4_g64_fp16",
    "q5_g64_fp16",
    "q6_g64_fp16",
    "q8_g32_fp16",
    "t2_g128_fp16",
    "nvfp4",
    "fp8_e4m3fn_row_bf16",
    "fp8_e4m3fn_row_fp16",
    *(c["format"] for c in Golden()["gguf_decode"]["cases"]),
]


def round32(value: Fraction) -> float:
    """The binary32 value nearest to a rational, ties to even, subnormals and overflow included."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - 23, -149)
    count, rest = divmod(size, unit)
    if 2 * rest > unit or (2 * rest == unit and count % 2):
        count += 1
    rounded = count * unit
    result = math.inf if rounded >= Fraction(2) ** 128 else float(rounded)
    return math.copysign(result, value)


def fma(a: float, b: float, c: float) -> float:
    return round32(Fraction(a) * Fraction(b) + Fraction(c))


def mul(a: float, b: float) -> float:
    return round32(Fraction(a) * Fraction(b))


# -- fma -------------------------------------------------------------------------------------------------


def test_fma_rounds_once(oracle: Any) -> None:
    rng = np.random.default_rng(40)
    any_bits = rng.integers(0, 1 << 32, (3, 1500), dtype=np.uint64).astype(np.uint32).view(np.float32)
    any_bits = np.where(np.isfinite(any_bits), any_bits, np.float32(1))
    # products and addends on close scales: cancellation, halfway cases and sticky bits far below
    near = rng.integers(-(1 << 24), 1 << 24, (3, 1500)).astype(np.float32)
    near[0] *= np.float32(2.0) ** rng.integers(-20, 0, 1500)
    near[2] *= np.float32(2.0) ** rng.integers(-8, 40, 1500)
    low = near.copy()  # the same around the subnormal range
    low[0] *= np.float32(2.0**-90)
    low[1] *= np.float32(2.0**-70)
    low[2] *= np.float32(2.0**-149)
    a, b, c = np.concatenate([any_bits, near, low], axis=1)
    got = oracle.fma(a, b, c)
    want = [fma(float(x), float(y), float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert (got == np.array(want, np.float32)).all()


def test_fma_just_beside_a_tie(oracle: Any) -> None:
    """A binary64 sum rounds these onto a tie of binary32, which then falls to the wrong side."""
    e = 2.0**-23
    for sign in (1.0, -1.0):
        for odd in (1.0 + e, 1.0 + 3 * e, 2.0 - e):
            a, b, c = 1.0 + e, sign * (1.0 - e) * 2.0**-24, sign * odd
            got = float(oracle.fma(np.float32(a), np.float32(b), np.float32(c)))
            assert got == fma(a, b, c) == c
            assert float(np.float32(a * b + c)) != c


def test_fma_specials(oracle: Any) -> None:
    inf, nan, big = np.inf, np.nan, float(np.finfo(np.float32).max)
    cases = [
        (-1.0, 0.0, 0.0, 0.0),
        (-1.0, 0.0, -0.0, -0.0),
        (1.0, 1.0, -1.0, 0.0),
        (2.0**-100, 2.0**-100, 0.0, 0.0),
        (-(2.0**-100), 2.0**-100, 0.0, -0.0),
        (-(2.0**-100), 2.0**-100, 1.0, 1.0),
        (2.0**-75, 2.0**-75, 2.0**-149, 2.0**-148),
        (2.0**-76, 2.0**-75, 2.0**-149, 2.0**-149),
        (big, big, 0.0, inf),
        (big, 2.0, -big, big),
        (big, 2.0, -inf, -inf),
        (inf, 0.0, 1.0, nan),
        (inf, 1.0, -inf, nan),
        (inf, -2.0, 3.0, -inf),
    ]
    for a, b, c, want in cases:
        got = oracle.fma(np.float32(a), np.float32(b), np.float32(c))
        if math.isnan(want):
            assert np.isnan(got), (a, b, c)
        else:
            assert bits(got) == bits(np.float32(want)), (a, b, c)


# -- the contract, one value at a time -------------------------------------------------------------------


def lanes(w: Any, x: Any) -> float:
    acc = [0.0] * 16
    for k in range(len(w)):
        acc[k % 16] = fma(float(w[k]), float(x[k]), acc[k % 16])
    for half in (8, 4, 2, 1):
        acc = [round32(Fraction(acc[i]) + Fraction(acc[i + half])) for i in range(half)]
    return acc[0]


@pytest.mark.parametrize("k", [1, 15, 16, 17, 37, 64, 131])
def test_a16_order(oracle: Any, k: int) -> None:
    rng = np.random.default_rng(k)
    w = rng.standard_normal((3, k)).astype(np.float32)
    x = (rng.standard_normal((2, k)) * 10.0 ** rng.integers(-6, 6, k)).astype(np.float32)
    payload = oracle.from_words("fp32", (3, k), words=w.view(np.uint32))
    want = [[lanes(w[n], x[t]) for n in range(3)] for t in range(2)]
    assert (oracle.matmul("fp32", (3, k), payload, x) == np.array(want, np.float32)).all()


def finite_blocks(oracle: Any, name: str, n: int, k: int, seed: int) -> Any:
    """Random code bytes, block scales in +-[0.5, 2)."""
    fmt = oracle.FORMATS[name]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n * k // fmt.block_values, fmt.block_bytes), dtype=np.uint8)
    fields = {"gguf_q2_k": [80, 82], "gguf_q3_k": [108], "gguf_q4_k": [0, 2], "gguf_q5_k": [0, 2]}
    fields |= {"gguf_q6_k": [208], "gguf_iq1_m": []}
    for at in fields.get(name, [0]):
        raw[:, at + 1] = raw[:, at + 1] & 0x87 | 0x38
    if name == "gguf_iq1_m":
        raw[:, 55] = raw[:, 55] & 0x8F | 0x30
        raw[:, 53] = raw[:, 53] & 0x7F | 0x80
    return raw.reshape(-1)


def random_weights(oracle: Any, name: str, n: int, k: int, seed: int) -> Any:
    fmt = oracle.FORMATS[name]
    rng = np.random.default_rng(seed)
    if fmt.category == "gguf":
        return finite_blocks(oracle, name, n, k, seed)
    if fmt.category == "direct":
        w = rng.standard_normal((n, k)).astype(np.float32)
        words = oracle.floats.f32_to_bf16(w) if name == "bf16" else w.view(np.uint32)
        return oracle.from_words(name, (n, k), words=words)
    if fmt.category == "grouped":
        codes = rng.integers(fmt.code_min, fmt.code_max + 1, (n, k)).astype(np.int8)
        groups = -(-k // fmt.group_size)
        scales = oracle.floats.f32_to_f16(rng.standard_normal((n, groups)).astype(np.float32))
        return oracle.from_words(name, (n, k), codes=codes, scales=scales)
    if fmt.category == "block_scaled":
        packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
        scales = rng.integers(0, 0x7F, (n, k // 16), dtype=np.uint8)
        divisors = np.array([3.7, 0.3], np.float32)[: n // 128]
        return oracle.from_words(name, (n, k), codes=packed, scales=scales, divisors=divisors)
    codes = rng.integers(0, 0x7F, (n, k), dtype=np.uint8) | rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
    size = np.abs(rng.standard_normal(n)).astype(np.float32)
    scales = oracle.floats.f32_to_bf16(size) if name.endswith("bf16") else oracle.floats.f32_to_f16(size)
    return oracle.from_words(name, (n, k), codes=codes, scales=scales)


def test_a8_order_q8_0(oracle: Any) -> None:
    payload = finite_blocks(oracle, "gguf_q8_0", 2, 96, 1)
    x = np.random.default_rng(2).standard_normal((2, 96)).astype(np.float32)
    d, _, q = oracle.q8_1(x)
    dx = oracle.floats.f16_to_f32(d)
    got = oracle.matmul("gguf_q8_0", (2, 96), payload, x, "a8")
    blocks = payload.reshape(2, 3, 34)
    for t in range(2):
        for n in range(2):
            acc = 0.0
            for b in range(3):
                code = blocks[n, b, 2:].view(np.int8).astype(int)
                dw = float(oracle.floats.f16_to_f32(blocks[n, b, :2].copy().view("<u2"))[0])
                isum = int((code * q[t, b].astype(int)).sum())
                acc = fma(float(isum), mul(dw, float(dx[t, b])), acc)
            assert float(got[t, n]) == acc


def test_a8_order_q2_k(oracle: Any) -> None:
    """Two halves of 16 with their own sub-scales in one fma, and the second accumulator."""
    payload = finite_blocks(oracle, "gguf_q2_k", 2, 512, 3)
    x = np.random.default_rng(4).standard_normal(512).astype(np.float32)
    d, _, q = oracle.q8_1(x)
    dx = oracle.floats.f16_to_f32(d)
    got = oracle.matmul("gguf_q2_k", (2, 512), payload, x, "a8")
    blocks = payload.reshape(2, 2, 84)
    for n in range(2):
        acc = low = 0.0
        for b in range(16):
            raw = blocks[n, b // 8]
            half, shift = b % 8 // 4, b % 4
            code = (raw[16 + 32 * half : 48 + 32 * half].astype(int) >> 2 * shift) & 3
            sub = raw[2 * (b % 8) : 2 * (b % 8) + 2].astype(int)
            act = q[b].astype(int)
            parts = [(code[:16] * act[:16]).sum(), (code[16:] * act[16:]).sum()]
            isum = sum(int(s & 15) * int(p) for s, p in zip(sub, parts, strict=True))
            msum = int(sub[0] >> 4) * int(act[:16].sum()) + int(sub[1] >> 4) * int(act[16:].sum())
            scales = oracle.floats.f16_to_f32(raw[80:84].copy().view("<u2"))
            acc = fma(float(isum), mul(float(scales[0]), float(dx[b])), acc)
            low = fma(float(msum), mul(float(scales[1]), float(dx[b])), low)
        assert float(got[n]) == round32(Fraction(acc) - Fraction(low))


def test_a8_order_nvfp4(oracle: Any) -> None:
    """Two terms per activation block, the divisor at the very end."""
    payload = random_weights(oracle, "nvfp4", 256, 64, 5)
    x = np.random.default_rng(6).standard_normal(64).astype(np.float32)
    d, _, q = oracle.q8_1(x)
    dx = oracle.floats.f16_to_f32(d)
    got = oracle.matmul("nvfp4", (256, 64), payload, x, "a8", divisors=2)
    given = oracle.words("nvfp4", (256, 64), payload, 2)
    table = [0, 1, 2, 3, 4, 6, 8, 12]
    for n in (0, 1, 127, 128, 255):
        acc = 0.0
        for g in range(4):
            isum = 0
            for k in range(16 * g, 16 * g + 16):
                nibble = int(given["codes"][n, k // 2]) >> 4 * (k % 2) & 15
                isum += table[nibble & 7] * (-1 if nibble & 8 else 1) * int(q[k // 32, k % 32])
            s = float(oracle.floats.e4m3_to_f32(given["scales"][n, g]))
            acc = fma(float(isum), mul(s * 0.5, float(dx[g // 2])), acc)
        divisor = float(given["divisors"][n // 128])
        assert float(got[n]) == round32(Fraction(acc) / Fraction(divisor))


def test_a8_order_grouped_tail(oracle: Any) -> None:
    """K = 130 in groups of 64: five activation blocks, the last zero-extended, one scale for two of them."""
    payload = random_weights(oracle, "q5_g64_fp16", 2, 130, 7)
    x = np.random.default_rng(8).standard_normal(130).astype(np.float32)
    d, _, q = oracle.q8_1(x)
    assert q.shape == (5, 32) and (q[4, 2:] == 0).all()
    dx = oracle.floats.f16_to_f32(d)
    given = oracle.words("q5_g64_fp16", (2, 130), payload)
    got = oracle.matmul("q5_g64_fp16", (2, 130), payload, x, "a8")
    for n in range(2):
        acc = 0.0
        for b in range(5):
            code = given["codes"][n, 32 * b : 32 * b + 32].astype(int)
            isum = int((code * q[b, : code.size].astype(int)).sum())
            dw = float(oracle.floats.f16_to_f32(given["scales"][n, b // 2]))
            acc = fma(float(isum), mul(dw, float(dx[b])), acc)
        assert float(got[n]) == acc


@pytest.mark.parametrize("name", ["fp8_e4m3fn_row_fp16", "bf16", "fp32"])
def test_a8_without_integer_path(oracle: Any, name: str) -> None:
    payload = random_weights(oracle, name, 3, 70, 9)
    x = np.random.default_rng(10).standard_normal((2, 70)).astype(np.float32)
    d, _, q = oracle.q8_1(x)
    seen = (oracle.floats.f16_to_f32(d)[..., None] * q.astype(np.float32)).reshape(2, -1)[:, :70]
    w = oracle.dequantize(name, (3, 70), payload)
    want = [[lanes(w[n], seen[t]) for n in range(3)] for t in range(2)]
    assert (oracle.matmul(name, (3, 70), payload, x, "a8") == np.array(want, np.float32)).all()


# -- every format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["a16", "a8"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_bound_and_invariance(oracle: Any, name: str, activation: str) -> None:
    """Inside the bound; a column or row alone has the same bits; bf16 input equals its float32."""
    n, k = (256, 512) if name == "nvfp4" else (13, 512)
    divisors = 2 if name == "nvfp4" else 1
    payload = random_weights(oracle, name, n, k, 11)
    x = np.random.default_rng(12).standard_normal((3, k)).astype(np.float32)
    y = oracle.matmul(name, (n, k), payload, x, activation, divisors)
    assert y.shape == (3, n) and y.dtype == np.float32
    ref = oracle.reference_product(name, (n, k), payload, x, activation, divisors)
    error = np.abs(y.astype(np.float64) - ref.value)
    assert (error <= ref.bound).all() and error.max() > 0
    assert (np.abs(ref.value) <= ref.s * (1 + 1e-12)).all()
    single = np.stack([oracle.matmul(name, (n, k), payload, x[t], activation, divisors) for t in range(3)])
    assert (bits(single) == bits(y)).all()
    b, e = (128, 256) if name == "nvfp4" else (4, 9)
    part = oracle.rows(name, (n, k), payload, b, e, divisors)
    assert (bits(oracle.matmul(name, (e - b, k), part, x, activation)) == bits(y[:, b:e])).all()
    words = oracle.floats.f32_to_bf16(x)
    same = oracle.matmul(name, (n, k), payload, oracle.floats.bf16_to_f32(words), activation, divisors)
    assert (bits(oracle.matmul(name, (n, k), payload, words, activation, divisors)) == bits(same)).all()


@pytest.mark.parametrize("name", [n for n in WEIGHTS if n.startswith("gguf_")])
def test_a8_integers_agree_with_decoding(oracle: Any, name: str) -> None:
    """With exact activations (d = 1) the A8 result differs from the decoded weights' only by its rounding."""
    payload = finite_blocks(oracle, name, 2, 1024, 13)
    for k in range(0, 1024, 93):
        x = np.zeros(1024, np.float32)
        x[k] = 127.0
        w = oracle.dequantize(name, (2, 1024), payload)[:, k].astype(np.float64)
        got = oracle.matmul(name, (2, 1024), payload, x, "a8")
        ref = oracle.reference_product(name, (2, 1024), payload, x, "a8")
        assert (np.abs(got - 127.0 * w) <= 4 * 2.0**-24 * ref.s).all()


@pytest.mark.parametrize("name", ["gguf_q2_k", "gguf_q4_k", "gguf_q5_k"])
def test_magnitudes_count_the_minimum(oracle: Any, name: str) -> None:
    """Where d * q and the minimum cancel, S still counts both."""
    rng = np.random.default_rng(15)
    payload = finite_blocks(oracle, name, 3, 512, 16)
    x = rng.standard_normal(512).astype(np.float32)
    blocks = payload.reshape(-1, oracle.FORMATS[name].block_bytes).copy()
    fields = (80, 82) if name == "gguf_q2_k" else (0, 2)
    sizes = []
    for other in fields:  # with one of d and dmin zero the values are the other part alone
        only = blocks.copy()
        only[:, other : other + 2] = 0
        values = oracle.dequantize(name, (3, 512), only.reshape(-1)).astype(np.float64)
        sizes.append(np.abs(values) @ np.abs(x.astype(np.float64)))
    ref = oracle.reference_product(name, (3, 512), payload, x)
    assert np.allclose(ref.s, sizes[0] + sizes[1], rtol=1e-12)
    assert np.allclose(ref.bound, (512 / 16 + 8) * 2.0**-24 * ref.s, rtol=1e-12)
    a8 = oracle.reference_product(name, (3, 512), payload, x, "a8")
    assert np.allclose(a8.bound, (512 / 32 + 8) * 2.0**-24 * a8.s, rtol=1e-12)


def test_refusals(oracle: Any) -> None:
    payload = random_weights(oracle, "gguf_q8_0", 2, 64, 14)
    x = np.ones((3, 64), np.float32)
    x[2, 33] = np.nan
    with pytest.raises(oracle.InvalidWordsError, match="column 2, index 33"):
        oracle.matmul("gguf_q8_0", (2, 64), payload, x, "a8")
    assert np.isnan(oracle.matmul("gguf_q8_0", (2, 64), payload, x)[2]).all()
    with pytest.raises(oracle.ShapeError, match="last axis must be 64"):
        oracle.matmul("gguf_q8_0", (2, 64), payload, np.ones(63, np.float32))
    with pytest.raises(oracle.UnsupportedError, match="float64"):
        oracle.matmul("gguf_q8_0", (2, 64), payload, np.ones(64))
    with pytest.raises(oracle.UnsupportedError, match="a4"):
        oracle.matmul("gguf_q8_0", (2, 64), payload, x, "a4")
    with pytest.raises(oracle.UnsupportedError, match="int32"):
        oracle.matmul("int32", (2, 2), np.zeros(16, np.uint8), np.ones(2, np.float32))
    with pytest.raises(oracle.ShapeError, match="matrix"):
        oracle.matmul("fp32", (2,), np.zeros(8, np.uint8), np.ones(2, np.float32))


def test_q8_1_edges(oracle: Any) -> None:
    x = np.zeros(96, np.float32)
    x[0], x[1] = 2.0**-149, -(2.0**-140)  # d is subnormal and its reciprocal infinite: codes 0, stored d 0
    x[33] = -65520.0 * 127  # d rounds to binary16 infinity
    x[64:96] = 1e-6
    d, s, q = oracle.q8_1(x)
    assert d[0] == 0 and s[0] == 0 and (q[0] == 0).all()
    assert d[1] == 0x7C00 and s[1] == 0xFC00 and q[1, 1] == -127
    assert (q[2] == 127).all() and s[2] == oracle.floats.f32_to_f16(
        np.float32(d32(x[64])) * np.float32(127 * 32)
    )
    short = oracle.q8_1(x[64:69])
    assert short.q.shape == (1, 32) and short.q[0].tolist() == [127] * 5 + [0] * 27 and short.d[0] == d[2]
    for bad in (np.nan, np.inf, -np.inf):
        x[5] = bad
        with pytest.raises(oracle.InvalidWordsError, match="column 0, index 5"):
            oracle.q8_1(x)


def d32(value: float) -> float:
    return round32(Fraction(float(value)) / 127)
