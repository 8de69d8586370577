"""Products Y = W . X in the contract's evaluation order (products page, result contract).

Fused multiply-adds are emulated: the binary64 product of two binary32 numbers is exact, its sum with the
accumulator is rounded to odd and then once to binary32, which equals a single rounding because binary64 has
more than two spare bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from . import floats, nvfp4
from .activations import as_float32, q8_1
from .codec import BLOCKS, dequantize
from .errors import ShapeError, UnsupportedError
from .layouts import check_payload, check_shape, words

if TYPE_CHECKING:
    from collections.abc import Sequence

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


def fma(a: F32, b: F32, c: F32) -> F32:
    """round_f32(a * b + c) with one rounding, elementwise with broadcasting; subnormals, infinities and
    signed zeros as IEEE 754 has them (NaN payloads are unspecified)."""
    with np.errstate(all="ignore"):
        product = np.asarray(a, dtype=np.float64) * np.asarray(b, dtype=np.float64)
        addend = np.asarray(c, dtype=np.float64)
        total = product + addend
        # two-sum: total + error is the exact sum (no overflow: both terms are below 2^257)
        part = total - product
        error = (product - (total - part)) + (addend - part)
        even = (total.view(np.uint64) & np.uint64(1)) == 0
        inexact = np.isfinite(total) & (error != 0)
        odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        rounded: F32 = np.where(inexact & even, odd, total).astype(np.float32)
    return rounded


@dataclass(frozen=True)
class _Integer:
    """A weight matrix as A8 sees it: [N, K'] with K' = K rounded up to whole activation blocks.

    ``code`` and ``sub`` (one per 16 values) are the integers of a block's isum; ``factor`` float32 is d_w,
    one for every ``run`` values; ``minimum`` and ``dmin`` are those of msum;
    ``divisor`` float32 [N] divides the result.
    """

    code: I32
    sub: I32
    factor: F32
    run: int
    minimum: I32 | None = None
    dmin: F32 | None = None
    divisor: F32 | None = None


def _integer_view(
    name: str, shape: tuple[int, int], payload: npt.NDArray[np.uint8], divisors: int
) -> _Integer:
    fmt = check_shape(name, shape, divisors)[0]
    n, k = shape
    given = words(name, shape, payload, divisors)
    wide = -(-k // 32) * 32
    if fmt.category == "grouped":
        assert fmt.group_size is not None
        code = np.zeros((n, wide), dtype=np.int32)
        code[:, :k] = given["codes"]
        per_group = fmt.group_size // 32
        factor = np.repeat(floats.f16_to_f32(given["scales"]), per_group, axis=1)[:, : wide // 32]
        return _Integer(code, np.ones((n, wide // 16), dtype=np.int32), factor, 32)
    if fmt.category == "block_scaled":
        doubled = (floats.e2m1_to_f32(nvfp4.unpack_codes(given["codes"])) * np.float32(2)).astype(np.int32)
        factor = floats.e4m3_to_f32(given["scales"]) * np.float32(0.5)
        divisor = nvfp4.row_divisors(given["divisors"], n)
        return _Integer(doubled, np.ones((n, k // 16), dtype=np.int32), factor, 16, divisor=divisor)
    assert fmt.block_bytes is not None and fmt.block_values is not None
    parts = BLOCKS[name](given["blocks"].reshape(-1, fmt.block_bytes))
    blocks32 = fmt.block_values // 32

    def spread(per_block: F32) -> F32:
        return np.repeat(per_block.reshape(n, -1), blocks32, axis=1)

    return _Integer(
        parts.code.reshape(n, k),
        parts.scale.reshape(n, k // 16),
        spread(parts.d / np.float32(parts.divisor)),
        32,
        None if parts.minimum is None else parts.minimum.reshape(n, k // 16),
        None if parts.dmin is None else spread(parts.dmin),
    )


def _product_a8(view: _Integer, columns: F32) -> F32:
    """Weights [N, K] and activations [T, K] -> [T, N]."""
    d, _, q = q8_1(columns)
    d_x = floats.f16_to_f32(d)
    x = q.reshape(q.shape[0], -1, 16).astype(np.int64)
    code = view.code.reshape(view.code.shape[0], -1, 16).astype(np.int64)
    sub = view.sub.astype(np.int64)
    acc = np.zeros((x.shape[0], code.shape[0]), dtype=np.float32)
    low = np.zeros_like(acc)
    per_run = view.run // 16
    with np.errstate(all="ignore"):
        for r in range(x.shape[1] // per_run):
            dx = d_x[:, r * view.run // 32][:, None]
            halves = range(r * per_run, (r + 1) * per_run)
            isum = sum((x[:, h] @ code[:, h].T) * sub[:, h] for h in halves)
            assert np.abs(isum).max() < 1 << 31
            acc = fma(np.asarray(isum).astype(np.float32), view.factor[:, r] * dx, acc)
            if view.minimum is not None and view.dmin is not None:
                minimum = view.minimum.astype(np.int64)
                msum = sum(x[:, h].sum(axis=1)[:, None] * minimum[:, h] for h in halves)
                low = fma(np.asarray(msum).astype(np.float32), view.dmin[:, r] * dx, low)
        if view.minimum is not None:
            acc = acc - low
        if view.divisor is not None:
            acc = acc / view.divisor
    return acc


def _product_a16(weights: F32, columns: F32) -> F32:
    """Decoded weights [N, K] and activations [T, K] -> [T, N], over 16 virtual lanes."""
    n, k = weights.shape
    acc = np.zeros((columns.shape[0], n, 16), dtype=np.float32)
    for at in range(0, k, 16):
        lanes = min(16, k - at)
        part = acc[:, :, :lanes]
        acc[:, :, :lanes] = fma(weights[None, :, at : at + lanes], columns[:, None, at : at + lanes], part)
    with np.errstate(all="ignore"):
        for half in (8, 4, 2, 1):
            acc = acc[:, :, :half] + acc[:, :, half : 2 * half]
    return acc[:, :, 0]


def _represented(columns: F32) -> F32:
    """Activations after q8_1: f32(d * q) of the stored d (exact), [T, K]."""
    d, _, q = q8_1(columns)
    with np.errstate(all="ignore"):
        value = floats.f16_to_f32(d)[..., None] * q.astype(np.float32)
    return value.reshape(columns.shape[0], -1)[:, : columns.shape[1]]


def _operands(
    name: str,
    shape: Sequence[int],
    payload: npt.ArrayLike | bytes,
    x: npt.ArrayLike,
    activation: str,
    divisors: int,
) -> tuple[tuple[int, int], npt.NDArray[np.uint8], F32, tuple[int, ...]]:
    _, dims, count = check_shape(name, shape, divisors)
    data = check_payload(name, dims, payload, count)
    if name == "int32":
        raise UnsupportedError("int32 is not a weight format: it has no products")
    if len(dims) != 2:
        raise ShapeError(f"{name} {list(dims)}: products need a matrix [N, K]")
    if activation not in ("a16", "a8"):
        raise UnsupportedError(f"activation must be 'a16' or 'a8', not {activation!r}")
    values = as_float32(x)
    if values.ndim == 0 or values.shape[-1] != dims[1]:
        raise ShapeError(
            f"{name} {list(dims)}: x has shape {list(values.shape)}, its last axis must be {dims[1]}"
        )
    lead = values.shape[:-1]
    return (dims[0], dims[1]), data, values.reshape(-1, dims[1]), lead


def matmul(
    name: str,
    shape: Sequence[int],
    payload: npt.ArrayLike | bytes,
    x: npt.ArrayLike,
    activation: str = "a16",
    divisors: int = 1,
) -> F32:
    """W [N, K] times x [..., K] (float32 or bfloat16) -> float32 [..., N], in the contract's order.

    "a16" uses x as given: 16 virtual lanes over k mod 16, one fma each, combined pairwise. "a8" quantises x
    to q8_1 first and accumulates one fma per activation block; fp8, bf16 and fp32 weights take the a16 order
    over the quantised activations. Raises ShapeError, UnsupportedError (int32, other dtypes) and, for a8,
    InvalidWordsError for a non-finite activation.
    """
    dims, data, columns, lead = _operands(name, shape, payload, x, activation, divisors)
    category = check_shape(name, dims, divisors)[0].category
    if columns.shape[0] == 0:
        return np.zeros((*lead, dims[0]), dtype=np.float32)
    if activation == "a8" and category in ("grouped", "block_scaled", "gguf"):
        result = _product_a8(_integer_view(name, dims, data, divisors), columns)
    else:
        weights = dequantize(name, dims, data, divisors)
        result = _product_a16(weights, _represented(columns) if activation == "a8" else columns)
    return result.reshape(*lead, dims[0])


class Reference(NamedTuple):
    """``value`` the ideal result in binary64 [..., N]; ``s`` the sum of magnitudes S [..., N]; ``bound`` the
    largest error a conforming product may have, [..., N]."""

    value: F64
    s: F64
    bound: F64


def reference_product(
    name: str,
    shape: Sequence[int],
    payload: npt.ArrayLike | bytes,
    x: npt.ArrayLike,
    activation: str = "a16",
    divisors: int = 1,
) -> Reference:
    """The ideal product in binary64 over the represented weights and (a8) the represented activations, with S
    and the contract's bound: (K/32 + 8) * 2^-24 * S for a8, (K/16 + 8) * 2^-24 * S for a16.

    For formats with a minimum S counts |d * q| + |min| in place of |W|. Same errors as ``matmul``.
    """
    dims, data, columns, lead = _operands(name, shape, payload, x, activation, divisors)
    fmt = check_shape(name, dims, divisors)[0]
    given = words(name, dims, data, divisors)
    with np.errstate(all="ignore"):
        if fmt.category == "block_scaled":
            weights = nvfp4.quotient(given["codes"], given["scales"], given["divisors"])
        else:
            weights = dequantize(name, dims, data, divisors).astype(np.float64)
        size = np.abs(weights)
        if fmt.category == "gguf":
            assert fmt.block_bytes is not None
            parts = BLOCKS[name](given["blocks"].reshape(-1, fmt.block_bytes))
            if parts.dmin is not None and parts.minimum is not None:
                scaled = np.repeat(parts.d.astype(np.float64)[:, None] * parts.scale, 16, axis=1) * parts.code
                low = np.repeat(parts.dmin.astype(np.float64)[:, None] * parts.minimum, 16, axis=1)
                size = (np.abs(scaled) + np.abs(low)).reshape(dims)
        if activation == "a8":
            columns = _represented(columns)
        wide = columns.astype(np.float64)
        value = wide @ weights.T
        s = np.abs(wide) @ size.T
    terms = dims[1] / (32 if activation == "a8" else 16) + 8
    shape_out = (*lead, dims[0])
    return Reference(
        value.reshape(shape_out), s.reshape(shape_out), (terms * 2.0**-24 * s).reshape(shape_out)
    )
