"""The registry as Python shows it."""

from __future__ import annotations

import numpy as np
import pytest

import ninfer_rs as nr


def test_thirty_formats_in_five_categories() -> None:
    assert len(nr.FORMATS) == 30
    assert next(iter(nr.FORMATS)) == "bf16" and list(nr.FORMATS)[-1] == "gguf_iq1_m"
    counts: dict[str, int] = {}
    for f in nr.FORMATS.values():
        counts[f.category] = counts.get(f.category, 0) + 1
    assert counts == {"direct": 3, "grouped": 6, "block_scaled": 1, "row_scaled": 2, "gguf": 18}
    with pytest.raises(TypeError):
        nr.FORMATS["x"] = nr.FORMATS["bf16"]  # type: ignore[index]


def test_fields() -> None:
    f = nr.get_format("q4_g64_fp16")
    assert (str(f), f.name, f.category, f.layout) == (
        "q4_g64_fp16",
        "q4_g64_fp16",
        "grouped",
        "row_split_k128_v1",
    )
    assert (f.bits_per_weight, f.group_size, f.code_bits, f.code_min, f.code_max) == (4.25, 64, 4, -8, 7)
    assert (f.block_values, f.block_bytes, f.ggml_type) == (None, None, None)
    g = nr.get_format("gguf_q6_k")
    assert (g.block_values, g.block_bytes, g.ggml_type, g.bits_per_weight) == (256, 210, 14, 6.5625)
    assert nr.get_format(g) is g
    assert nr.get_format("bf16").bits_per_weight == 16 and nr.get_format("int32").bits_per_weight == 32


def test_encoded_sizes_of_the_layout_specification() -> None:
    assert nr.get_format("q4_g64_fp16").encoded_size((7168, 5120)) == 19496960
    assert nr.get_format("q5_g64_fp16").encoded_size((2, 130)) == 528
    assert nr.get_format("fp8_e4m3fn_row_fp16").encoded_size((3, 160)) == 3 * 162
    assert nr.get_format("nvfp4").encoded_size((256, 64), divisors=2) == 256 * 32 + 256 * 4 + 8
    assert nr.get_format("bf16").encoded_size(()) == 2
    assert nr.get_format("bf16").encoded_size(7) == 14
    for shape in (np.array([2, 3]), [np.int8(2), 3], (2, np.uint64(3))):
        assert nr.get_format("bf16").encoded_size(shape) == 12


@pytest.mark.parametrize(
    ("name", "shape", "divisors", "text"),
    [
        ("gguf_q4_k", (1, 896), 1, "row length 896 is not a multiple of 256"),
        ("nvfp4", (130, 64), 1, "N must be a multiple of 128 and K a multiple of 64, got N = 130, K = 64"),
        ("nvfp4", (128, 80), 1, "N must be a multiple of 128 and K a multiple of 64, got N = 128, K = 80"),
        ("nvfp4", (256, 64), 3, "the divisor count must divide N"),
        ("q8_g32_fp16", (3,), 1, "rank must be 2 [N, K], got rank 1"),
        ("q8_g32_fp16", (3, 0), 1, "dimension 1 is zero"),
        ("bf16", (2**40, 2**40), 1, "needs more bytes than u64 can hold"),
        ("bf16", (1,) * 17, 1, "rank 17 exceeds 16"),
        ("bf16", (4,), 2, "only nvfp4 has divisors"),
        ("bf16", (-1,), 1, "dimension 0 must lie in 0..2^64-1, got -1"),
        ("bf16", (2**64,), 1, "dimension 0 must lie in 0..2^64-1"),
        ("bf16", (1.5,), 1, "dimension 0 must be an integer, got float"),
        ("bf16", "12", 1, "a shape is a sequence of integers, got str"),
    ],
)
def test_shape_errors_say_the_rule(name: str, shape: object, divisors: int, text: str) -> None:
    with pytest.raises(nr.ShapeError) as caught:
        nr.get_format(name).encoded_size(shape, divisors)  # type: ignore[arg-type]
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["q4_g64", "Q4_G64_FP16", "gguf_q4k", "nvfp", "fp8_e4m3fn_row"])
def test_unknown_names_list_near_ones(name: str) -> None:
    with pytest.raises(nr.UnknownFormatError, match="did you mean") as caught:
        nr.get_format(name)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, nr.NinferError)


@pytest.mark.parametrize("name", ["", "bf16 ", "bf16\0", "x" * 100_000, "🦀"])
def test_any_other_text_is_refused(name: str) -> None:
    with pytest.raises(nr.UnknownFormatError) as caught:
        nr.get_format(name)
    assert len(str(caught.value)) < 500


def test_names_are_text() -> None:
    with pytest.raises(nr.UnknownFormatError, match="got int"):
        nr.get_format(3)  # type: ignore[arg-type]


def test_layouts() -> None:
    assert len(nr.LAYOUTS) == 7
    assert nr.LAYOUTS["gguf_blocks_v1"].formats == tuple(n for n in nr.FORMATS if n.startswith("gguf_"))
    assert nr.LAYOUTS["raw_bytes_v1"].alignment == 1 and nr.LAYOUTS["raw_bytes_v1"].formats == ()
    for f in nr.FORMATS.values():
        assert f.name in nr.LAYOUTS[f.layout].formats and nr.LAYOUTS[f.layout].alignment == 256
