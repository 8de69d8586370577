"""Arrays in and out: dtypes, contiguity, out=, bfloat16 with and without ml_dtypes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ninfer_rs as nr
from support import random_words, same, shape_for


@pytest.fixture
def weights() -> nr.Tensor:
    return random_words("q6_g64_fp16", (5, 130))


def test_dtypes(weights: nr.Tensor) -> None:
    full = weights.dequantize()
    assert full.dtype == np.float32 and full.shape == (5, 130)
    assert same(weights.dequantize(np.float32), full) and same(weights.dequantize("float32"), full)
    with np.errstate(over="raise"):
        assert same(weights.dequantize(np.float16), full.astype(np.float16))


def test_int32_stays_int32() -> None:
    t = random_words("int32", (3, 4))
    assert t.dequantize().dtype == np.int32 and same(t.dequantize(np.int32), t.words()["words"])
    for dtype in (np.float32, np.float16, np.int64):
        with pytest.raises(nr.UnsupportedError, match="integers do not decode to"):
            t.dequantize(dtype)
    with pytest.raises(nr.UnsupportedError, match="int32"):
        t.matmul(np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, "complex64", "not a dtype", object, 3])
def test_other_dtypes_are_refused(weights: nr.Tensor, dtype: Any) -> None:
    with pytest.raises(nr.UnsupportedError, match=r"cannot decode to|not a dtype"):
        weights.dequantize(dtype)


def test_out_is_filled_and_returned(weights: nr.Tensor) -> None:
    full = weights.dequantize()
    guarded = np.full(5 * 130 + 64, np.float32(7))
    out = guarded[32:-32].reshape(5, 130)
    assert weights.dequantize(out=out) is out
    assert same(out, full) and (guarded[:32] == 7).all() and (guarded[-32:] == 7).all()
    half = np.empty((5, 130), np.float16)
    assert weights.dequantize(out=half) is half and same(half, full.astype(np.float16))
    assert weights.dequantize(np.float32, out=out) is out


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (np.empty((5, 130), np.float64), nr.UnsupportedError, "cannot decode to float64"),
        (np.empty((5, 131), np.float32), nr.ShapeError, r"must have shape \(5, 130\), got \(5, 131\)"),
        (np.empty(650, np.float32), nr.ShapeError, "must have shape"),
        (np.empty((130, 5), np.float32).T, nr.UnsupportedError, "C-contiguous"),
        (np.empty((5, 260), np.float32)[:, ::2], nr.UnsupportedError, "C-contiguous"),
        (np.empty((5, 130), np.float32)[::-1], nr.UnsupportedError, "C-contiguous"),
        (np.empty((5, 130), ">f4"), nr.UnsupportedError, "out must be an array of float32"),
        (np.frombuffer(bytes(2600), np.float32).reshape(5, 130), nr.UnsupportedError, "read-only"),
        (np.empty(2601, np.uint8)[1:].view(np.float32).reshape(5, 130), nr.UnsupportedError, "aligned"),
        ([0.0], nr.UnsupportedError, "out must be a numpy array, got list"),
    ],
)
def test_bad_out(weights: nr.Tensor, out: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        weights.dequantize(out=out)


def test_out_must_have_the_dtype_asked_for(weights: nr.Tensor) -> None:
    with pytest.raises(nr.UnsupportedError, match="out must be an array of float16, got float32"):
        weights.dequantize(np.float16, out=np.empty((5, 130), np.float32))


def test_out_may_not_overlap_inputs() -> None:
    shared = np.zeros(1000, np.float32)
    t = nr.Tensor.from_payload("fp32", (10, 10), shared[:100])
    with pytest.raises(nr.UnsupportedError, match="overlaps an input"):
        t.dequantize(out=shared[50:150].reshape(10, 10))
    x = shared[200:300].reshape(10, 10)
    with pytest.raises(nr.UnsupportedError, match="overlaps an input"):
        t.matmul(x, out=shared[290:390].reshape(10, 10))
    assert t.matmul(x, out=shared[400:500].reshape(10, 10)).sum() == 0


def test_overflow_to_16_bits_is_an_error_with_a_place() -> None:
    words = np.array([[1.0, 70000.0, 1.0], [1e30, 1.0, 1.0]], np.float32).view(np.uint32)
    t = nr.Tensor.from_words("fp32", (2, 3), words=words, name="w")
    with pytest.raises(
        nr.UnsupportedError, match=r'tensor "w": fp32 row 0, column 1: 7e4 overflows binary16'
    ):
        t.dequantize(np.float16, threads=2)
    infinite = nr.Tensor.from_words("fp32", (1, 1), words=np.array([[0x7F800000]], np.uint32))
    assert np.isinf(infinite.dequantize(np.float16)).all()


def strided(x: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The same values under other strides."""
    wide = np.repeat(np.repeat(x, 2, 0), 3, 1)
    return {
        "Fortran order": np.asfortranarray(x),
        "sliced": wide[::2, ::3],
        "reversed twice": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "byte-swapped": x.astype(x.dtype.newbyteorder()),
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
        "read-only": np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
        "matrix subclass": x.view(np.memmap),
    }


@pytest.mark.parametrize("activation", ["a16", "a8"])
@pytest.mark.parametrize("n", [1, 3])
def test_strided_activations_give_the_right_answer(weights: nr.Tensor, activation: str, n: int) -> None:
    x = np.random.default_rng(1).standard_normal((n, 130), np.float32)
    expected = weights.matmul(x, activation)
    for what, other in strided(x).items():
        assert same(weights.matmul(other, activation), expected), what
        assert same(nr.q8_1(other).q, nr.q8_1(x).q), what
    column = np.broadcast_to(x[:1], (4, 130))
    assert same(weights.matmul(column, activation), np.repeat(expected[:1], 4, 0))


def test_shapes_of_activations(weights: nr.Tensor) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 130), np.float32)
    y = weights.matmul(x)
    assert y.shape == (2, 3, 5) and weights.matmul(x[0, 0]).shape == (5,)
    assert same(y[1, 2], weights.matmul(x[1, 2]))
    assert weights.matmul(x[:0]).shape == (0, 3, 5)
    out = np.empty((2, 3, 5), np.float32)
    assert weights.matmul(x, out=out) is out and same(out, y)
    assert same(weights.rows(1, 3).matmul(x), np.ascontiguousarray(y[..., 1:3]))


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.zeros((1, 130)), nr.UnsupportedError, "float32 or bfloat16, got float64"),
        (np.zeros((1, 130), np.float16), nr.UnsupportedError, "got float16"),
        ([[1] * 130], nr.UnsupportedError, "got int64"),
        (np.zeros((130, 1), np.float32), nr.ShapeError, r"\[..., 130\], got \(130, 1\)"),
        (np.float32(1), nr.ShapeError, r"\[..., 130\], got \(\)"),
    ],
)
def test_bad_activations(weights: nr.Tensor, x: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        weights.matmul(x)


def test_bad_product_arguments(weights: nr.Tensor) -> None:
    x = np.zeros((1, 130), np.float32)
    with pytest.raises(nr.UnsupportedError, match="'a16' or 'a8', got 'a4'"):
        weights.matmul(x, "a4")
    with pytest.raises(nr.ShapeError, match="needs a matrix"):
        random_words("fp32", (3, 4)).rows(0, 1).from_words("fp32", 4, words=np.zeros(4, np.uint32)).matmul(x)
    x[0, 77] = np.nan
    assert np.isnan(weights.matmul(x)).all()
    with pytest.raises(nr.UnsupportedError, match="column 0, index 77 is NaN"):
        weights.matmul(x, "a8")
    with pytest.raises(nr.UnsupportedError, match="index 77"):
        nr.q8_1(x)
    for bad in (np.zeros((2, 0), np.float32), np.float32(1)):
        with pytest.raises(nr.ShapeError, match="K > 0"):
            nr.q8_1(bad)
    with pytest.raises(nr.UnsupportedError, match="got float64"):
        nr.q8_1(np.zeros(32))


@pytest.mark.parametrize("threads", [0, -1, 5000, 1.5, "2", True])
def test_bad_thread_counts(weights: nr.Tensor, threads: Any) -> None:
    for call in (
        lambda: weights.dequantize(threads=threads),
        lambda: weights.matmul(np.zeros(130, np.float32), threads=threads),
        lambda: nr.quantize(np.zeros((1, 64), np.float32), "q4_g64_fp16", threads=threads),
    ):
        with pytest.raises(nr.UnsupportedError, match="threads must"):
            call()


def test_results_do_not_depend_on_threads() -> None:
    for name in ("q4_g64_fp16", "gguf_iq3_s", "nvfp4", "fp8_e4m3fn_row_bf16"):
        t = random_words(name, shape_for(name, 300, 512))
        x = np.random.default_rng(2).standard_normal((3, t.shape[1]), np.float32)
        values, product = t.dequantize(threads=1), t.matmul(x, "a8", threads=1)
        for threads in (2, 3, 7, 16, 64):
            assert same(t.dequantize(threads=threads), values) and same(
                t.matmul(x, "a8", threads=threads), product
            )


def test_large_bf16_products_stay_finite() -> None:
    """2^17 is beyond binary16: nothing on the way may narrow to it."""
    t = nr.Tensor.from_words("bf16", (2, 64), words=np.full((2, 64), 0x4800, np.uint16))
    x = np.full((1, 64), 2.0**17, np.float32)
    assert (t.matmul(x) == 2.0**34 * 64).all()


class TestBfloat16:
    """bfloat16 with ml_dtypes, and without."""

    def test_with_ml_dtypes(self, weights: nr.Tensor) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        expected = weights.dequantize().astype(ml_dtypes.bfloat16)
        for dtype in ("bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
            got = weights.dequantize(dtype)
            assert got.dtype == ml_dtypes.bfloat16 and same(got.view(np.uint16), expected.view(np.uint16))
        out = np.empty((5, 130), ml_dtypes.bfloat16)
        assert weights.dequantize(out=out) is out and same(out.view(np.uint16), expected.view(np.uint16))

    def test_words_need_no_ml_dtypes(self, weights: nr.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(nr.UnsupportedError, match="need the package ml_dtypes, which is not installed"):
            weights.dequantize("bfloat16")
        words = np.empty((5, 130), np.uint16)
        assert weights.dequantize("bfloat16", out=words) is words
        wide = (words.astype(np.uint32) << 16).view(np.float32)
        assert np.abs(wide - weights.dequantize()).max() <= np.abs(weights.dequantize()).max() / 256
        t = random_words("bf16", (3, 4))
        assert t.words()["words"].dtype == np.uint16 and t.dequantize().dtype == np.float32

    def test_bf16_tensors_keep_every_word(self) -> None:
        words = np.arange(65536, dtype=np.uint16)
        t = nr.Tensor.from_words("bf16", (65536,), words=words)
        assert np.array_equal(t.dequantize("bfloat16", out=np.empty(65536, np.uint16)), words)

    def test_uint16_out_needs_the_dtype_said(self, weights: nr.Tensor) -> None:
        with pytest.raises(nr.UnsupportedError, match="cannot decode to uint16"):
            weights.dequantize(out=np.empty((5, 130), np.uint16))

    def test_encoding_edge_values(self) -> None:
        """Negative zero, -1, the largest magnitudes and NaN, with warnings as errors."""
        x = np.array(
            [-0.0, -1.0, -np.finfo(np.float32).max, np.finfo(np.float32).max, np.nan, -np.inf], np.float32
        )
        assert nr.quantize(x, "bf16").words()["words"].tolist() == [
            0x8000,
            0xBF80,
            0xFF80,
            0x7F80,
            0x7FC0,
            0xFF80,
        ]

    def test_rounding_of_subnormals(self) -> None:
        x = np.array([0x00400000, 0x00018000, 0x00008001, 0x00008000], np.uint32).view(np.float32)
        assert nr.quantize(x, "bf16").words()["words"].tolist() == [0x0040, 0x0002, 0x0001, 0x0000]
        t = nr.Tensor.from_words("fp32", (4,), words=x.view(np.uint32))
        words = np.empty(4, np.uint16)
        assert t.dequantize("bfloat16", out=words).tolist() == [0x0040, 0x0002, 0x0001, 0x0000]


@pytest.mark.parametrize("activation", ["a16", "a8"])
def test_chosen_experts_are_the_products_of_their_rows(activation: str) -> None:
    rng = np.random.default_rng(5)
    bank = random_words("q4_g64_fp16", (6 * 7, 130)).rows(7, 42)  # five experts of seven rows
    ids = np.array([[[4, 0], [2, 2], [1, 3]]])
    shared = rng.standard_normal((1, 3, 130), np.float32)
    own = rng.standard_normal((1, 3, 2, 130), np.float32)
    for x in (shared, own, shared.astype(nr_bfloat16())):
        y = bank.matmul_experts(x, ids, 5, activation, threads=2)
        assert y.shape == (1, 3, 2, 7) and y.dtype == np.float32
        for t in range(3):
            for j in range(2):
                row = x[0, t] if x.ndim == 3 else x[0, t, j]
                e = int(ids[0, t, j])
                assert same(y[0, t, j], bank.rows(7 * e, 7 * e + 7).matmul(row, activation)), (t, j)
        out = np.empty_like(y)
        assert bank.matmul_experts(x, ids, 5, activation, out=out) is out and same(out, y)
    assert bank.matmul_experts(shared[:, :0], ids[:, :0], 5).shape == (1, 0, 2, 7)
    assert bank.matmul_experts(shared, ids[..., :0], 5).shape == (1, 3, 0, 7)


def nr_bfloat16() -> Any:
    return pytest.importorskip("ml_dtypes").bfloat16


@pytest.mark.parametrize(
    ("ids", "experts", "text"),
    [
        ([[0, 5]], 5, r"expert 5 \(choice 1\) is outside the 5 experts"),
        ([[-1, 0]], 5, r"expert -1 \(choice 0\)"),
        ([[0.5, 1]], 5, "ids must be integers"),
        (3, 5, "ids must be integers"),
        ([[0]], 4, "35 rows are no whole number of 4 experts"),
        ([[0]], 0, "no whole number of 0 experts"),
        ([[0], [1]], 5, r"ids of shape \(2, 1\) need activations of shape \(2, 130\) or \(2, 1, 130\)"),
    ],
)
def test_bad_choices_of_experts(ids: Any, experts: int, text: str) -> None:
    bank = random_words("q4_g64_fp16", (35, 130))
    with pytest.raises(nr.ShapeError, match=text):
        bank.matmul_experts(np.zeros((1, 130), np.float32), ids, experts)
    with pytest.raises(nr.ShapeError, match="needs a matrix"):
        cube = nr.Tensor.from_words("fp32", (5, 7, 4), words=np.zeros((5, 7, 4), np.uint32))
        cube.matmul_experts(np.zeros((1, 4), np.float32), [[0]], 5)


@pytest.mark.parametrize("name", [n for n in nr.FORMATS if n != "int32"])
def test_prepared_weights_give_the_same_bits(name: str) -> None:
    t = random_words(name, (128, 512))
    for part in (t, t.rows(0, 128) if name == "nvfp4" else t.rows(3, 40)):
        prepared = part.prepare(threads=2)
        assert prepared.tensor is part and 0 <= prepared.nbytes <= 2 * part.nbytes
        for rows in (1, 7, 17):
            x = np.random.default_rng(rows).standard_normal((rows, 512), np.float32)
            for activation in ("a8", "a16"):
                assert same(prepared.matmul(x, activation, threads=1), part.matmul(x, activation))
        out = np.empty((1, part.shape[0]), np.float32)
        assert prepared.matmul(x[:1], "a8", out=out) is out and same(out, part.matmul(x[:1], "a8"))
    assert repr(prepared) == f"Prepared({part!r})"
    with pytest.raises(nr.ShapeError, match="512"):
        prepared.matmul(np.zeros(3, np.float32))
    x[2, 5] = np.inf
    if prepared.nbytes:
        with pytest.raises(nr.UnsupportedError, match="column 2, index 5"):
            prepared.matmul(x[:5], "a8")
