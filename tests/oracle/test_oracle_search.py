"""grouped_search of the oracle against the page's recipe, one group and one value at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

RANGE = {
    "q4_g64_fp16": (-8, 7),
    "q5_g64_fp16": (-16, 15),
    "q6_g64_fp16": (-32, 31),
    "q8_g32_fp16": (-127, 127),
}


def sum8(terms: list[float]) -> float:
    lanes = [0.0] * 8
    for k, term in enumerate(terms):
        lanes[k % 8] += term
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))


def half(value: float) -> np.float16:
    with np.errstate(over="ignore"):
        return np.float16(np.float32(value))


class Group:
    """One group: w float32 values, imp binary64 weights."""

    def __init__(self, w: Any, imp: Any, qmin: int, qmax: int, negative: bool) -> None:
        self.w, self.imp, self.qmin, self.qmax, self.negative = w, imp, qmin, qmax, negative

    def codes(self, scale: np.float16) -> list[int]:
        inverse = np.float32(1) / np.float32(scale)
        return [int(min(max(np.rint(x * inverse), self.qmin), self.qmax)) for x in self.w]

    def error(self, scale: np.float16, codes: list[int]) -> float:
        terms = []
        for x, i, q in zip(self.w, self.imp, codes, strict=True):
            t = float(x) - float(scale) * q
            terms.append(float(i) * t * t)
        return sum8(terms)

    def round(self, value: float) -> np.float16 | None:
        if value == 0 or not math.isfinite(value):
            return None
        word = half(value)
        if word == 0:
            return np.float16(math.copysign(2.0**-24, value))
        return word if np.isfinite(word) else None

    def step(self, scale: np.float16, steps: int) -> np.float16 | None:
        word = int(np.array(scale).view(np.uint16))
        moved = (word & 0x7FFF) + steps
        if not 1 <= moved <= 0x7BFF:
            return None
        return np.array(word & 0x8000 | moved, np.uint16).view(np.float16)[()]

    def least_squares(self, codes: list[int]) -> float:
        below = sum8([float(i) * q * q for i, q in zip(self.imp, codes, strict=True)])
        if below == 0:
            return 0.0
        above = [float(i) * float(x) * q for i, x, q in zip(self.imp, self.w, codes, strict=True)]
        return sum8(above) / below

    def search(self) -> tuple[np.float16, list[int]]:
        extreme = float(max(self.w, key=abs))  # the first of the largest
        amax = abs(extreme)
        if amax == 0:
            return np.float16(0), [0] * len(self.w)
        start = half(float(np.float32(amax) / np.float32(self.qmax)))
        start = start if start != 0 else np.float16(2.0**-24)
        start_codes = self.codes(start)
        self.best = (self.error(start, start_codes), start, start_codes)
        ratios = [float(f"{percent // 100}.{percent % 100:02}") for percent in range(70, 120, 2)]
        for base in (amax / self.qmax, extreme / self.qmin):
            for r in ratios:
                self.compete(self.round(base * r))
        for factor in (0.25, 0.5, 2.0, 4.0):
            self.compete(self.round(float(start) * factor))
        self.neighbours(start, (-2, -1, 1, 2))
        f = self.round(self.least_squares(start_codes))
        self.compete(f)
        if f is not None:
            self.compete(self.round(float(f) * 0.5))
            self.compete(self.round(float(f) * 2))
            self.neighbours(f, (-2, -1, 1, 2))
        f = self.round(self.least_squares(self.best[2]))
        self.compete(f)
        if f is not None:
            self.neighbours(f, (-1, 1))
        return self.best[1], self.best[2]

    def neighbours(self, scale: np.float16, steps: tuple[int, ...]) -> None:
        for s in steps:
            self.compete(self.step(scale, s))

    def compete(self, scale: np.float16 | None) -> None:
        if scale is None or (scale < 0 and not self.negative):
            return
        codes = self.codes(scale)
        error = self.error(scale, codes)
        if error < self.best[0]:
            self.best = (error, scale, codes)


def sources(rng: np.random.Generator, n: int, k: int) -> Any:
    """Rows of several kinds: normal, heavy tails, few levels (ties), the smallest scales, outliers."""
    x = rng.standard_normal((n, k))
    x[1::6] = x[1::6] ** 5
    x[2::6] = rng.integers(-3, 4, x[2::6].shape) * 0.25
    x[3::6] *= 2.0 ** rng.integers(-26, -20, (x[3::6].shape[0], 1))
    x[4::6, ::11] *= 50
    x[5::6] = np.abs(x[5::6])
    return x.astype(np.float32)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", list(RANGE))
def test_search_follows_the_recipe(oracle: Any, name: str, negative: bool) -> None:
    group = oracle.FORMATS[name].group_size
    k = group + 11
    rng = np.random.default_rng(group + negative)
    x = sources(rng, 12, k)
    importance = rng.gamma(0.5, size=k).astype(np.float32)
    importance[rng.random(k) < 0.2] = 0
    for imp in (None, importance):
        got = oracle.words(name, x.shape, oracle.quantize(x, name, "grouped_search", imp, negative))
        weight = np.ones(k) if imp is None else imp.astype(np.float64)
        for n in range(x.shape[0]):
            for g in range(2):
                part = slice(g * group, min(k, (g + 1) * group))
                scale, codes = Group(x[n, part], weight[part], *RANGE[name], negative).search()
                assert int(got["scales"][n, g]) == int(np.array(scale).view(np.uint16)), (n, g)
                assert got["codes"][n, part].tolist() == codes, (n, g)


def test_partial_sums(oracle: Any) -> None:
    """Eight lanes, combined ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); other orders give other sums."""
    rng = np.random.default_rng(8)
    terms = rng.standard_normal((4000, 64)) * 2.0 ** rng.integers(-30, 30, (4000, 64))
    got = oracle.encoders._sum8(terms)
    assert got.tolist() == [sum8(row.tolist()) for row in terms]
    assert (got != terms.sum(axis=1)).any()
    lanes = terms.reshape(4000, 8, 8)
    columns = np.zeros((4000, 8))
    for i in range(8):
        columns += lanes[:, i]
    pairs = [columns[:, i] + columns[:, i + 4] for i in range(4)]
    assert (got != (pairs[0] + pairs[1]) + (pairs[2] + pairs[3])).any()


def test_error_and_least_squares_terms(oracle: Any) -> None:
    """imp * t * t, imp * w * q and imp * q * q from left to right, each product rounded."""
    rng = np.random.default_rng(9)
    w = rng.standard_normal((200, 64)).astype(np.float32)
    imp = rng.random((200, 64)).astype(np.float32).astype(np.float64)
    fmt = oracle.FORMATS["q6_g64_fp16"]
    start = oracle.encoders._absmax_scales(fmt.name, fmt, w, 1)
    job = oracle.encoders._Search(fmt, w, imp, start, False)
    groups = [Group(w[i], imp[i], -32, 31, False) for i in range(200)]
    scales = start.view(np.float16)
    codes = [g.codes(s) for g, s in zip(groups, scales, strict=True)]
    assert job.code.tolist() == codes
    assert job.error.tolist() == [g.error(s, c) for g, s, c in zip(groups, scales, codes, strict=True)]
    assert job.least_squares(job.code).tolist() == [
        g.least_squares(c) for g, c in zip(groups, codes, strict=True)
    ]


def test_quarter_and_half_scales_compete(oracle: Any) -> None:
    """An unimportant outlier sets the start; a power of two below it represents the rest exactly."""
    for factor in (0.25, 0.5):
        x = np.zeros((1, 64), np.float32)
        x[0, :14] = [s * q * factor for q in range(1, 8) for s in (1, -1)]
        x[0, 63] = 7.0
        importance = np.ones(64, np.float32)
        importance[63] = 0
        got = oracle.words(
            "q4_g64_fp16", (1, 64), oracle.quantize(x, "q4_g64_fp16", "grouped_search", importance)
        )
        assert oracle.floats.f16_to_f32(got["scales"]).tolist() == [[factor]]
        assert (got["codes"][0, :14] * factor == x[0, :14]).all() and got["codes"][0, 63] == 7


def test_negative_scales_reach_the_last_code(oracle: Any) -> None:
    """A positive extreme on a grid of -extreme / 8 is exact only with a negative scale."""
    x = np.zeros((1, 64), np.float32)
    x[0, :16] = np.arange(-7, 9)
    signed = oracle.words(
        "q4_g64_fp16", (1, 64), oracle.quantize(x, "q4_g64_fp16", "grouped_search", negative_scales=True)
    )
    assert signed["scales"].tolist() == [[0xBC00]] and (-signed["codes"] == x).all()
    plain = oracle.words("q4_g64_fp16", (1, 64), oracle.quantize(x, "q4_g64_fp16", "grouped_search"))
    assert plain["scales"][0, 0] < 0x8000
