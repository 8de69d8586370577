"""Our own encoders, from the formulas of the encoders page: gguf_search, ternary_fit, nvfp4_maxabs and
nvfp4_search.

Binary32 sums run value by value, so that their order is the written one. Arrays are [blocks, runs, values]
with rows of the matrix after each other; ``imp`` has the same shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import floats
from .errors import InvalidWordsError

if TYPE_CHECKING:
    from collections.abc import Callable

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_F = np.float32
_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_HALVES = (_TABLE[1:] + _TABLE[:-1]) / _F(2)


def round_word(scale: F64) -> U16:
    """Candidates' rounding: binary64, binary32, binary16; the smallest subnormal instead of zero; 0 for zero,
    infinite and NaN results."""
    with np.errstate(all="ignore"):
        word = floats.f32_to_f16(floats.f64_to_f32(scale))
    sign = np.where(np.signbit(scale), np.uint16(0x8000), np.uint16(0))
    word = np.where(word & np.uint16(0x7FFF) == 0, sign | np.uint16(1), word)
    drop = (scale == 0) | ~np.isfinite(scale) | (word & np.uint16(0x7FFF) >= np.uint16(0x7C00))
    return np.where(drop, np.uint16(0), word).astype(np.uint16)


def _exponent(magnitude: F32) -> I32:
    """Exponents that bring magnitudes into [1, 2); those of subnormal numbers are -126."""
    field = (magnitude.view(np.uint32) >> np.uint32(23)).astype(np.int32) & 255
    exponent: I32 = np.maximum(field, 1) - np.int32(127)
    return exponent


def _scaled(values: F32, exponent: I32) -> F32:
    factor: F32 = np.ldexp(1.0, -exponent).astype(np.float32)
    scaled: F32 = values * factor[..., None]
    return scaled


def _sum(terms: F32) -> F32:
    """Binary32 sums over the last axis, one value after the other from 0."""
    total = np.zeros(terms.shape[:-1], np.float32)
    for i in range(terms.shape[-1]):
        total = total + terms[..., i]
    return total


def _clamp(u: F32, low: float, high: float) -> F32:
    # fmax and fmin ignore a NaN, which only an infinite reciprocal of a vanishing range brings up.
    inside: F32 = np.fmin(np.fmax(u, _F(low)), _F(high))
    return inside


def _inverse(scale: F32) -> F32:
    with np.errstate(all="ignore"):
        inverse: F32 = np.where(scale == 0, _F(0), _F(1) / scale).astype(np.float32)
    return inverse


def _floor(total: F32, width: F32) -> F32:
    """Errors below this are rounding alone."""
    part = width * _F(2.0**-14)
    floor: F32 = total * (part * part)
    return floor


def _at_least(floor: F32, error: F32) -> F32:
    at_least: F32 = np.where(floor > error, floor, error)
    return at_least


class _Blocks:
    """Blocks [B, runs, values] in a common range, with importance and weights of the runs."""

    def __init__(self, x: F32, imp: F32, block: int, run: int) -> None:
        values = x.reshape(-1, block)
        self.exponent = _exponent(np.abs(values).max(axis=1))
        self.w = _scaled(values, self.exponent).reshape(-1, block // run, run)
        imp = imp.reshape(self.w.shape)
        top = imp.max(axis=2)
        self.imp = np.where(top[..., None] == 0, _F(1), _scaled(imp, _exponent(top))).astype(np.float32)
        exponent = np.where(top == 0, -10000, _exponent(top))
        largest = exponent.max(axis=1, keepdims=True)
        relative = np.ldexp(1.0, np.maximum(exponent - largest, -1074))
        self.weight = np.where(top == 0, np.where(largest == -10000, 1.0, 0.0), relative)

    def word(self, scale: F64) -> U16:
        return round_word(scale * np.ldexp(1.0, self.exponent))

    def value(self, word: U16) -> F32:
        with np.errstate(all="ignore"):
            wide = floats.f16_to_f32(word).astype(np.float64) * np.ldexp(1.0, -self.exponent)
            return wide.astype(np.float32)

    def over_runs(self, term: F64) -> F64:
        """Binary64 sums of weight * term over the runs of each block, in order."""
        total = np.zeros(term.shape[0])
        with np.errstate(all="ignore"):
            for r in range(term.shape[1]):
                total = total + self.weight[:, r] * term[:, r]
        return total

    def first_word(self, name: str, scale: F64) -> U16:
        """Words of scales that must fit."""
        word = self.word(scale)
        bad = np.flatnonzero((scale != 0) & (word == 0))
        if bad.size:
            raise InvalidWordsError(f"{name}: the scale of block {bad[0]} overflows binary16")
        return word


# -- runs with a signed scale: q6_k, iq4_xs, iq4_nl ---------------------------------------------------------


def _six(u: F32) -> F32:
    code: F32 = np.rint(_clamp(u, -32, 31))
    return code


def _four(u: F32) -> F32:
    value: F32 = _TABLE[(u[..., None] > _HALVES).sum(axis=-1)]
    return value


_STARTS: dict[object, tuple[float, ...]] = {
    _six: (-32, -32.5, -31.5, -31, -33, -30.5, -33.5, -30, -29, -34, 31, 31.5, 30.5, 32, 30, 29),
    _four: (-127, -121, -115, -109, -104, -133, -140, -148, 113, 107, 101, 119, 126, 134, 95, 89),
}


def _extremes(b: _Blocks) -> F32:
    """The first value of largest magnitude of each run."""
    at = np.abs(b.w).argmax(axis=2)
    extreme: F32 = np.take_along_axis(b.w, at[..., None], axis=2)[..., 0]
    return extreme


def _own_scales(b: _Blocks, nearest: Callable[[F32], F32], starts: tuple[float, ...]) -> F32:
    """The scale of each run by itself."""
    extreme = _extremes(b)
    some = np.where(extreme == 0, _F(1), extreme)
    least = np.full(extreme.shape, np.finfo(np.float32).max, np.float32)
    best = np.zeros(extreme.shape, np.float32)
    floor = _floor(_sum(b.imp), extreme)
    for i in range(len(starts) + 2):
        inv = _F(starts[i]) / some if i < len(starts) else _F(1) / np.where(best == 0, _F(1), best)
        u = b.w * inv[..., None]
        q = nearest(u)
        r = u - q
        q2, r1, r2 = _sum(b.imp * q * q), _sum(b.imp * r * q), _sum(b.imp * r * r)
        step = _F(1) / inv
        slope = r1 / np.where(q2 == 0, _F(1), q2)
        error = _at_least(floor, (r2 - slope * r1) * step * step)
        scale = (_F(1) + slope) * step
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return np.where(extreme == 0, _F(0), best).astype(np.float32)


def _signed_error(b: _Blocks, scale: F32, nearest: Callable[[F32], F32]) -> F32:
    s = scale[..., None]
    t = b.w - s * nearest(b.w * _inverse(scale)[..., None])
    return _sum(b.imp * t * t)


def _choose_signed(
    b: _Blocks, own: F32, word: U16, limit: int, nearest: Callable[[F32], F32]
) -> tuple[F32, F32]:
    """Integers of the runs under each block's scale, and the runs' errors."""
    d = b.value(word)[:, None]
    middle = np.rint(_clamp(own * _inverse(d), -limit, limit - 1))
    best, least = middle, np.full(own.shape, np.inf, np.float32)
    for step in (0, -1, 1):
        sc = _clamp(middle + _F(step), -limit, limit - 1)
        error = _signed_error(b, d * sc, nearest)
        better = error < least
        best, least = np.where(better, sc, best), np.where(better, error, least)
    return best, least


def _signed(name: str, b: _Blocks, limit: int, nearest: Callable[[F32], F32]) -> tuple[U16, F32, F32]:
    """Scale words [B], integers [B, runs] and codes' values."""
    own = _own_scales(b, nearest, _STARTS[nearest])
    at = np.abs(own).argmax(axis=1)
    largest = np.take_along_axis(own, at[:, None], axis=1)[:, 0].astype(np.float64)
    word = b.first_word(name, largest / -limit)
    sc, error = _choose_signed(b, own, word, limit, nearest)
    going = np.ones(word.shape, np.bool_)
    for _ in range(2):
        scale = (b.value(word)[:, None] * sc)[..., None]
        q = nearest(b.w * _inverse(scale))
        t = b.w - scale * q
        q2, t1 = (_sum(b.imp * q * v).astype(np.float64) for v in (q, t))
        s = sc.astype(np.float64)
        below = b.over_runs(s * s * q2)
        change = b.over_runs(s * t1) / np.where(below > 0, below, 1.0)
        new = b.word(b.value(word).astype(np.float64) + change)
        new = np.where((below > 0) & (new != 0), new, word)
        going &= new != word
        new_sc, new_error = _choose_signed(b, own, new, limit, nearest)
        going &= b.over_runs(new_error.astype(np.float64)) < b.over_runs(error.astype(np.float64))
        word = np.where(going, new, word)
        sc = np.where(going[:, None], new_sc, sc)
        error = np.where(going[:, None], new_error, error)
    return word, sc, nearest(b.w * _inverse(b.value(word)[:, None] * sc)[..., None])


def _table_codes(values: F32) -> U8:
    return np.searchsorted(_TABLE, values).astype(np.uint8)


def _bytes16(word: U16) -> U8:
    return word.astype("<u2").view(np.uint8).reshape(-1, 2)


def _q6_k(b: _Blocks) -> U8:
    word, sc, q = _signed("gguf_q6_k", b, 128, _six)
    code = (q.reshape(-1, 2, 4, 32).astype(np.int32) + 32).astype(np.uint8)
    low, high = code & 15, code >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    n = word.size
    scales = sc.astype(np.int8).view(np.uint8)
    return np.concatenate([ql.reshape(n, 128), qh.reshape(n, 64), scales, _bytes16(word)], axis=1)


def _iq4_xs(b: _Blocks) -> U8:
    word, sc, q = _signed("gguf_iq4_xs", b, 32, _four)
    ls = (sc.astype(np.int32) + 32).astype(np.uint16)
    high = np.zeros(word.shape, np.uint16)
    for r in range(8):
        high |= (ls[:, r] >> 4) << np.uint16(2 * r)
    low = ((ls[:, 0::2] & 15) | (ls[:, 1::2] & 15) << 4).astype(np.uint8)
    code = _table_codes(q)
    nibbles = code[..., :16] | code[..., 16:] << 4
    return np.concatenate([_bytes16(word), _bytes16(high), low, nibbles.reshape(-1, 128)], axis=1)


def _iq4_nl(b: _Blocks) -> U8:
    own = _own_scales(b, _four, _STARTS[_four])[:, 0]
    word = b.first_word("gguf_iq4_nl", own.astype(np.float64))
    found = _signed_error(b, b.value(word)[:, None], _four)
    nothing = _signed_error(b, np.zeros_like(found), _four)
    word = np.where((nothing < found)[:, 0], np.uint16(0), word)
    code = _table_codes(_four(b.w * _inverse(b.value(word))[:, None, None]))[:, 0]
    return np.concatenate([_bytes16(word), code[:, :16] | code[:, 16:] << 4], axis=1)


# -- integers with one scale: q8_0, q4_0, q5_0 --------------------------------------------------------------


def integers(name: str, x: F32, imp: F32, low: int) -> tuple[U16, F32]:
    """Scale words and codes [blocks, 32] of values [N, K] with importance of the same shape."""
    step, same, other = (
        (0.75, range(-5, 10), range(-7, 2)) if low == -128 else (0.4375, range(-4, 8), range(-6, 2))
    )
    starts = (*(low + k * step for k in same), *(-low + k * step for k in other))

    def nearest(u: F32) -> F32:
        code: F32 = np.rint(_clamp(u, low, -1 - low))
        return code

    with np.errstate(all="ignore"):
        b = _Blocks(x, imp, 32, 32)
        fitted = _own_scales(b, nearest, starts)[:, 0].astype(np.float64)
        extreme = _extremes(b)[:, 0].astype(np.float64)
        word = b.first_word(name, np.abs(extreme) / (-1 - low))
        least = _signed_error(b, b.value(word)[:, None], nearest)[:, 0]
        for scale in (extreme / low, fitted):
            other_word = b.word(scale)
            error = _signed_error(b, b.value(other_word)[:, None], nearest)[:, 0]
            better = (other_word != 0) & (error < least)
            word, least = np.where(better, other_word, word), np.where(better, error, least)
        return word, nearest(b.w * _inverse(b.value(word))[:, None, None])[:, 0]


# -- runs with a scale and a minimum: q4_k, q5_k -----------------------------------------------------------

_RANGES = (
    *((part, 0.5) for part in (0.98, 0.955, 0.93, 0.905, 0.88, 0.85, 0.81)),
    *((part, below) for part in (0.97, 0.93, 0.88) for below in (0.0, 1.0)),
)
#: What the lines' largest scales are tried at, in parts of 256 more than themselves.
_NEAR = (0, -1, 1, -2, 2, -3, 3)


class _Lines:
    """q4_k and q5_k: a line for each run, then the block's two scales with integers for the runs."""

    def __init__(self, name: str, b: _Blocks, top: int) -> None:
        self.name, self.b, self.top = name, b, top
        self.a = _sum(b.imp)
        shape = b.w.shape[:2]
        self.scale, self.low, self.mean, self.q2 = (np.zeros(shape, np.float32) for _ in range(4))
        self.least = np.full(shape, np.finfo(np.float32).max, np.float32)
        low = np.minimum(b.w.min(axis=2), _F(0))
        span = b.w.max(axis=2) - low
        plain = np.where(span > 0, span, _F(1)).astype(np.float32)
        self.floor = _floor(self.a, plain)
        whole = tuple((top / (top - i), 0.0) for i in range(3))
        for part, below in (*whole, *_RANGES):
            inv = _F(top) / (plain * _F(part))
            self._fit(low + plain * ((_F(1) - _F(part)) * _F(below)), inv)
        for _ in range(2):
            self._fit(self.low, _F(1) / np.where(self.scale > 0, self.scale, _F(1)))
        self.scale = np.where(span > 0, np.maximum(self.scale, _F(0)), _F(0)).astype(np.float32)
        self.low = np.where(span > 0, self.low, low).astype(np.float32)

    def _code(self, u: F32) -> F32:
        code: F32 = np.rint(_clamp(u, 0, self.top))
        return code

    def _fit(self, low: F32, inv: F32) -> None:
        imp, a = self.b.imp, self.a
        u = (self.b.w - low[..., None]) * inv[..., None]
        q = self._code(u)
        r = u - q
        q1, q2 = _sum(imp * q), _sum(imp * q * q)
        r0, r1, r2 = _sum(imp * r), _sum(imp * r * q), _sum(imp * r * r)
        step, g = _F(1) / inv, low * inv
        det = q2 * a - q1 * q1
        line = det > q2 * a * _F(1e-6)
        safe = np.where(line, det, _F(1))
        slope = np.where(line, (r1 * a - r0 * q1) / safe, _F(0))
        shift = np.where(line, (q2 * r0 - q1 * r1) / safe, r0 / a)
        error = r2 - slope * r1 - shift * r0
        new = low + shift * step
        zero_r1 = r1 + g * q1
        zero_slope = zero_r1 / np.where(q2 > 0, q2, _F(1))
        zero_error = r2 + (g + g) * r0 + g * g * a - zero_slope * zero_r1
        through = new > 0
        slope = np.where(through, zero_slope, slope)
        bounded = _at_least(self.floor, np.where(through, zero_error, error) * step * step)
        better = bounded < self.least
        self.scale = np.where(better, (_F(1) + slope) * step, self.scale)
        self.q2 = np.where(better, q2, self.q2)
        self.low = np.where(better, np.where(through, _F(0), new), self.low)
        self.mean = np.where(better, q1 / a, self.mean)
        self.least = np.where(better, bounded, self.least)

    def _residuals(self, d: F32, dmin: F32, sc: F32, m: F32) -> tuple[F32, F32]:
        """Codes and what they leave."""
        scale = (d[:, None] * sc)[..., None]
        v = self.b.w + (dmin[:, None] * m)[..., None]
        q = self._code(v * _inverse(scale))
        return q, v - scale * q

    def _choose(self, words: U16) -> tuple[F32, F32, F32]:
        d, dmin = (self.b.value(words[:, i]) for i in range(2))
        middle = np.rint(np.fmin(self.scale * _inverse(d)[:, None], _F(63)))
        best_sc, best_m = middle, np.zeros_like(middle)
        least = np.full(middle.shape, np.inf, np.float32)
        for step in (0, -1, 1, -2, 2):
            sc = _clamp(middle + _F(step), 0, 63)
            offset = (d[:, None] * sc - self.scale) * self.mean - self.low
            middle_m = np.rint(_clamp(offset * _inverse(dmin)[:, None], 0, 63))
            tried = [_clamp(middle_m + _F(step_m), 0, 63) for step_m in (0, -1, 1)]
            if step == 0:
                # All codes one up: lines of which the lowest code is not used have the same error.
                tried.append(np.rint(_clamp((offset + d[:, None] * sc) * _inverse(dmin)[:, None], 0, 63)))
            for m in tried:
                _, t = self._residuals(d, dmin, sc, m)
                error = _sum(self.b.imp * t * t)
                better = error < least
                best_sc, best_m = np.where(better, sc, best_sc), np.where(better, m, best_m)
                least = np.where(better, error, least)
        return best_sc, best_m, least

    def _refit(self, words: U16, sc32: F32, m32: F32) -> U16:
        b = self.b
        q, t = self._residuals(b.value(words[:, 0]), b.value(words[:, 1]), sc32, m32)
        terms = (b.imp * q, b.imp * q * q, b.imp * t, b.imp * t * q)
        q1, q2, t0, t1 = (_sum(v).astype(np.float64) for v in terms)
        a, sc, m = (v.astype(np.float64) for v in (self.a, sc32, m32))
        aa, ab, bb = (b.over_runs(v) for v in (sc * sc * q2, sc * m * q1, m * m * a))
        ya, yb = b.over_runs(sc * t1), b.over_runs(m * t0)
        det = aa * bb - ab * ab
        both = det > aa * bb * 1e-9
        safe, some = np.where(both, det, 1.0), np.where(aa > 0, aa, 1.0)
        alone = np.where(aa > 0, ya / some, 0.0)
        change = (
            np.where(both, (ya * bb - yb * ab) / safe, alone),
            np.where(both, (ya * ab - yb * aa) / safe, 0.0),
        )
        out: U16 = words.copy()
        for i in range(2):
            new = b.value(words[:, i]).astype(np.float64) + change[i]
            word = b.word(new)
            out[:, i] = np.where((new > 0) & (word != 0), word, words[:, i])
        return out

    def _near(self, own: F32, stiff: F32) -> F32:
        """The scale of which the targets are multiples up to 63 with the least weighted squared error."""
        d: F32 = own.max(axis=1) / _F(63)
        found, least = d, np.full(d.shape, np.inf)
        for step in _NEAR:
            part = (d * _F(1 + step / 256))[:, None]
            n = np.rint(_clamp(own * _inverse(part), 0, 63))
            t = part * n - own
            cost = self.b.over_runs((stiff * t * t).astype(np.float64))
            better = cost < least
            found, least = np.where(better, part[:, 0], found), np.where(better, cost, least)
        return found

    def _starts(self) -> U16:
        """First words of the two scales."""
        d = self._near(self.scale, self.q2 - self.mean * (self.mean * self.a))
        part = d[:, None]
        sc = np.rint(np.fmin(self.scale * _inverse(part), _F(63)))
        # The minima turned about the mean code.
        own = (part * sc - self.scale) * self.mean - self.low
        dmin = self._near(np.fmax(own, _F(0)), self.a)
        words = [self.b.first_word(self.name, v.astype(np.float64)) for v in (d, dmin)]
        return np.stack(words, axis=1)

    def blocks(self) -> U8:
        b = self.b
        words = self._starts()
        sc, m, error = self._choose(words)
        going = np.ones(words.shape[0], np.bool_)
        for _ in range(2):
            new = self._refit(words, sc, m)
            going &= (new != words).any(axis=1)
            new_sc, new_m, new_error = self._choose(new)
            going &= b.over_runs(new_error.astype(np.float64)) < b.over_runs(error.astype(np.float64))
            words = np.where(going[:, None], new, words)
            sc, m = np.where(going[:, None], new_sc, sc), np.where(going[:, None], new_m, m)
            error = np.where(going[:, None], new_error, error)
        q, _ = self._residuals(b.value(words[:, 0]), b.value(words[:, 1]), sc, m)
        s, n, c = sc.astype(np.uint8), m.astype(np.uint8), q.astype(np.uint8)
        six = np.concatenate(
            [
                s[:, :4] | (s[:, 4:] >> 4) << 6,
                n[:, :4] | (n[:, 4:] >> 4) << 6,
                (s[:, 4:] & 15) | (n[:, 4:] & 15) << 4,
            ],
            axis=1,
        )
        nibbles = ((c[:, 0::2] & 15) | (c[:, 1::2] & 15) << 4).reshape(-1, 128)
        parts = [_bytes16(words[:, 0].copy()), _bytes16(words[:, 1].copy()), six]
        if self.top == 31:
            fifth = np.zeros((c.shape[0], 32), np.uint8)
            for r in range(8):
                fifth |= (c[:, r] >> 4) << np.uint8(r)
            parts.append(fifth)
        return np.concatenate([*parts, nibbles], axis=1)


def gguf_blocks(name: str, x: F32, imp: F32) -> U8:
    """Blocks of q4_k, q5_k, q6_k, iq4_xs or iq4_nl of values [N, K]; ``imp`` has their shape."""
    block, run = {"gguf_q6_k": (256, 16), "gguf_iq4_nl": (32, 32)}.get(name, (256, 32))
    with np.errstate(all="ignore"):
        b = _Blocks(x, imp, block, run)
        if name in ("gguf_q4_k", "gguf_q5_k"):
            return _Lines(name, b, 15 if name == "gguf_q4_k" else 31).blocks().reshape(-1)
        made = {"gguf_q6_k": _q6_k, "gguf_iq4_xs": _iq4_xs, "gguf_iq4_nl": _iq4_nl}[name]
        return made(b).reshape(-1)


# -- nvfp4 -------------------------------------------------------------------------------------------------


def nvfp4(name: str, x: F32, imp: F32 | None) -> tuple[U8, U8, F32]:
    """Packed codes [N, K/2], scale words [N, K/16] and the divisor of a finite matrix; with ``imp`` (the
    shape of ``x``) by nvfp4_search, else by nvfp4_maxabs."""
    n, k = x.shape
    top = np.abs(x).max()
    with np.errstate(all="ignore"):
        divisor = _F(1) if top == 0 else np.minimum(_F(2688) / top, np.finfo(np.float32).max)
        w = x.reshape(-1, 16)
        y = np.abs(w) * divisor
        start = floats.f32_to_e4m3(y.max(axis=1) / _F(6))
        start = np.where(y.max(axis=1) > 0, np.maximum(start, 1), start)
        start = np.where(np.abs(w).max(axis=1) > 0, np.maximum(start, 1), 0).astype(np.uint8)

        def magnitude(word: U8) -> tuple[F32, F32]:
            scale = np.where(word == 0, _F(1), floats.e4m3_to_f32(word)).astype(np.float32)[:, None]
            return scale, floats.e2m1_to_f32(floats.f32_to_e2m1(y * (_F(1) / scale)))

        word = start
        if imp is not None:
            group = imp.reshape(-1, 16)
            largest = group.max(axis=1)
            group = np.where(largest[:, None] == 0, _F(1), _scaled(group, _exponent(largest))).astype(
                np.float32
            )
            least = np.full(word.shape, np.inf, np.float32)
            for step in (0, *range(-1, -7, -1), *range(1, 10)):
                moved = np.clip(start.astype(np.int32) + step, 1, 0x7E)
                candidate = np.where(start == 0, 0, moved).astype(np.uint8)
                scale, q = magnitude(candidate)
                t = y - scale * q
                error = _sum(group * t * t)
                better = (error < least) | (step == 0)
                word, least = np.where(better, candidate, word), np.where(better, error, least)
        _, q = magnitude(word)
        code = floats.f32_to_e2m1(q) | np.where(np.signbit(w), np.uint8(8), np.uint8(0))
        code = np.where(word[:, None] == 0, np.uint8(0), code).astype(np.uint8)
    packed = code[:, 0::2] | code[:, 1::2] << 4
    return packed.reshape(n, k // 2), word.reshape(n, k // 16), np.asarray(divisor, np.float32).reshape(1)


# -- ternary -----------------------------------------------------------------------------------------------


def ternary_scale(w: F32, imp: F64) -> float:
    """The real scale of the best ternary codes of one group; ``imp`` all zero counts as ones."""
    magnitude = np.abs(w).astype(np.float64)
    weight = imp if imp.any() else np.ones(imp.shape)
    # By decreasing magnitude, equal ones by decreasing importance.
    order = np.lexsort((-weight, -magnitude))
    num = den = 0.0
    best = (0.0, 0.0)
    for i in order:
        num += float(weight[i] * magnitude[i])
        den += float(weight[i])
        if den > 0 and num * num / den > best[0]:
            best = (num * num / den, num / den)
    return best[1]
