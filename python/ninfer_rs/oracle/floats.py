"""Exact conversions between small floating-point words, by integer arithmetic on bit patterns.

No host floating-point instruction takes part, so flush-to-zero modes and platform rounding cannot change a
result. Words of one encoding are plain unsigned integers: bfloat16 and binary16 in uint16, E4M3FN in uint8,
E2M1 in the low nibble of a uint8. Encodings: format specification, direct formats and nvfp4.
All narrowing rounds to nearest, ties to even, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .errors import InvalidWordsError

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Encoding:
    exp_bits: int
    man_bits: int
    max_finite: int  # magnitude word of the largest finite value
    infinity: int | None  # magnitude word of infinity, None when the encoding has none
    nan: int | None  # magnitude word of the canonical quiet NaN, None when the encoding has none

    @property
    def bias(self) -> int:
        return (1 << (self.exp_bits - 1)) - 1

    @property
    def emin(self) -> int:
        return 1 - self.bias

    @property
    def sign_shift(self) -> int:
        return self.exp_bits + self.man_bits


_B64 = _Encoding(11, 52, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000)
_B32 = _Encoding(8, 23, 0x7F7F_FFFF, 0x7F80_0000, 0x7FC0_0000)
_BF16 = _Encoding(8, 7, 0x7F7F, 0x7F80, 0x7FC0)
_B16 = _Encoding(5, 10, 0x7BFF, 0x7C00, 0x7E00)
_E4M3 = _Encoding(4, 3, 0x7E, None, 0x7F)
_E2M1 = _Encoding(2, 1, 0x7, None, None)


def _u(value: int) -> np.uint64:
    word: np.uint64 = np.uint64(value)
    return word


def _widen(words: U64, src: _Encoding, dst: _Encoding) -> U64:
    """Exact expansion into an encoding of larger exponent range, so that every nonzero result is normal.
    NaN payloads move to the top of the wider fraction (signalling stays signalling)."""
    sign = words >> _u(src.sign_shift)
    magnitude = words & _u((1 << src.sign_shift) - 1)
    exponent = (magnitude >> _u(src.man_bits)).astype(np.int64)
    fraction = magnitude & _u((1 << src.man_bits) - 1)
    subnormal = (exponent == 0) & (fraction != 0)
    # a subnormal is shifted left until its leading bit sits on the implicit bit
    normal_exponent = exponent - src.bias
    normal_fraction = fraction.copy()
    for bit in range(src.man_bits):
        hit = subnormal & ((fraction >> _u(bit)) == 1)
        steps = src.man_bits - bit
        shifted = (fraction << _u(steps)) & _u((1 << src.man_bits) - 1)
        normal_fraction = np.where(hit, shifted, normal_fraction)
        normal_exponent = np.where(hit, src.emin - steps, normal_exponent)
    up = _u(dst.man_bits - src.man_bits)
    result = ((normal_exponent + dst.bias).astype(np.uint64) << _u(dst.man_bits)) | (normal_fraction << up)
    result = np.where(magnitude == 0, _u(0), result)
    special = magnitude > _u(src.max_finite)
    if src.infinity is not None:
        assert dst.infinity is not None
        result = np.where(special, _u(dst.infinity) | (fraction << up), result)
    elif src.nan is not None:
        assert dst.nan is not None
        result = np.where(special, _u(dst.nan), result)
    signed: U64 = result | (sign << _u(dst.sign_shift))
    return signed


def _narrow(words: U64, src: _Encoding, dst: _Encoding, overflow: int) -> U64:
    """Nearest-even narrowing. ``overflow`` is the magnitude word of rounded values past the largest finite
    one (infinity included). NaN keeps its sign and top payload bits and becomes quiet. Needs
    src.emin <= dst.emin, so that an unnormalised source subnormal can only become a subnormal or zero."""
    sign = words >> _u(src.sign_shift)
    magnitude = words & _u((1 << src.sign_shift) - 1)
    exponent = (magnitude >> _u(src.man_bits)).astype(np.int64)
    fraction = magnitude & _u((1 << src.man_bits) - 1)
    significand = np.where(exponent == 0, fraction, fraction | _u(1 << src.man_bits))
    unbiased = np.where(exponent == 0, src.emin, exponent - src.bias)
    # quantum = exponent of the unit in the last place of the result
    quantum = np.maximum(unbiased, dst.emin) - dst.man_bits
    shift = np.minimum(quantum - unbiased + src.man_bits, 62).astype(np.uint64)
    kept = significand >> shift
    rest = significand & ((_u(1) << shift) - _u(1))
    half = _u(1) << np.maximum(shift, _u(1)) - _u(1)
    round_up = (shift > 0) & ((rest > half) | ((rest == half) & ((kept & _u(1)) == 1)))
    kept = kept + round_up.astype(np.uint64)
    # adding the significand, implicit bit and all, carries into the exponent field by itself
    result = ((quantum + dst.man_bits - dst.emin).astype(np.uint64) << _u(dst.man_bits)) + kept
    result = np.where(result > _u(dst.max_finite), _u(overflow), result)
    assert src.infinity is not None
    nan = magnitude > _u(src.infinity)
    if dst.infinity is not None:
        assert dst.nan is not None
        quiet = _u(dst.nan) | (fraction >> _u(src.man_bits - dst.man_bits))
        result = np.where(nan, quiet, result)
    elif dst.nan is not None:
        result = np.where(nan, _u(dst.nan), result)
    signed: U64 = result | (sign << _u(dst.sign_shift))
    return signed


def f32_bits(x: npt.ArrayLike) -> U32:
    """The binary32 words of float32 values (a view; no conversion, signalling NaN kept)."""
    return np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).reshape(np.shape(x))


def f32_from_bits(words: npt.ArrayLike) -> F32:
    """float32 values of uint32 words, bit for bit."""
    return np.ascontiguousarray(words, dtype=np.uint32).view(np.float32).reshape(np.shape(words))


def _f64_bits(x: npt.ArrayLike) -> U64:
    return np.ascontiguousarray(x, dtype=np.float64).view(np.uint64).reshape(np.shape(x))


def bf16_to_f32(words: npt.ArrayLike) -> F32:
    """uint16 bfloat16 words -> float32, exact; NaN payloads and the quiet bit survive."""
    return f32_from_bits(np.asarray(words, dtype=np.uint16).astype(np.uint32) << np.uint32(16))


def f32_to_bf16(x: npt.ArrayLike) -> U16:
    """float32 -> bfloat16 words. Overflow gives infinity; NaN keeps sign and top payload bits, quiet."""
    return _narrow(f32_bits(x).astype(np.uint64), _B32, _BF16, 0x7F80).astype(np.uint16)


def f64_to_bf16(x: npt.ArrayLike) -> U16:
    """float64 -> bfloat16 words with one rounding."""
    return _narrow(_f64_bits(x), _B64, _BF16, 0x7F80).astype(np.uint16)


def f64_to_f32(x: npt.ArrayLike) -> F32:
    """float64 -> float32 with one rounding."""
    return f32_from_bits(_narrow(_f64_bits(x), _B64, _B32, 0x7F80_0000).astype(np.uint32))


@lru_cache(maxsize=1)
def _f16_table() -> F32:
    return f32_from_bits(_widen(np.arange(1 << 16, dtype=np.uint64), _B16, _B32).astype(np.uint32))


def f16_to_f32(words: npt.ArrayLike) -> F32:
    """uint16 binary16 words -> float32, exact."""
    return _f16_table()[np.asarray(words, dtype=np.uint16)]


def f32_to_f16(x: npt.ArrayLike) -> U16:
    """float32 -> binary16 words. Values that round past 65504 give infinity; NaN becomes quiet."""
    return _narrow(f32_bits(x).astype(np.uint64), _B32, _B16, 0x7C00).astype(np.uint16)


def f64_to_f16(x: npt.ArrayLike) -> U16:
    """float64 -> binary16 words with one rounding."""
    return _narrow(_f64_bits(x), _B64, _B16, 0x7C00).astype(np.uint16)


@lru_cache(maxsize=1)
def _e4m3_table() -> F32:
    return f32_from_bits(_widen(np.arange(256, dtype=np.uint64), _E4M3, _B32).astype(np.uint32))


def e4m3_to_f32(words: npt.ArrayLike) -> F32:
    """uint8 E4M3FN words -> float32, exact; 0x7F and 0xFF are quiet NaN of their sign."""
    return _e4m3_table()[np.asarray(words, dtype=np.uint8)]


def f32_to_e4m3(x: npt.ArrayLike, saturate: bool = True) -> U8:
    """float32 -> E4M3FN words.

    Saturating: everything that rounds past 448, infinity included, gives 0x7E of its sign. Non-saturating: it
    gives the NaN word 0x7F of its sign (464 still ties to 448). NaN gives the NaN word of its sign in both.
    """
    overflow = 0x7E if saturate else 0x7F
    return _narrow(f32_bits(x).astype(np.uint64), _B32, _E4M3, overflow).astype(np.uint8)


@lru_cache(maxsize=1)
def _e2m1_table() -> F32:
    return f32_from_bits(_widen(np.arange(16, dtype=np.uint64), _E2M1, _B32).astype(np.uint32))


def e2m1_to_f32(words: npt.ArrayLike) -> F32:
    """E2M1 words 0..15 (uint8) -> float32, exact; 8 is negative zero. Raises on words above 15."""
    nibbles = np.asarray(words, dtype=np.uint8)
    if bool((nibbles > 15).any()):
        raise InvalidWordsError(f"E2M1 word {int(nibbles.max())} is outside 0..15")
    return _e2m1_table()[nibbles]


def f32_to_e2m1(x: npt.ArrayLike) -> U8:
    """float32 -> E2M1 words, saturating at 6 (the encoding has neither infinity nor NaN). Raises on NaN."""
    bits = f32_bits(x)
    if bool(((bits & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000)).any()):
        raise InvalidWordsError("NaN has no E2M1 word")
    return _narrow(bits.astype(np.uint64), _B32, _E2M1, 0x7).astype(np.uint8)
