"""The oracle against the golden files, every case with ``==`` on bits, and against worked layout examples."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oracle_support import GOLDEN, ORACLE, Golden, bits

GGUF = [c["format"] for c in Golden()["gguf_decode"]["cases"]]
ENCODERS = range(len(Golden()["encoders"]["cases"]))
ROW_SPLIT = range(len(Golden()["row_split"]["cases"]))


# -- the package itself ----------------------------------------------------------------------------------


def test_golden_files_are_the_recorded_ones() -> None:
    lines = (GOLDEN / "SHA256SUMS").read_text(encoding="ascii").split("\n")
    recorded = dict(reversed(line.split("  ")) for line in lines if line)
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in GOLDEN.glob("*.json")}
    assert found == recorded
    assert len(found) == 6


def test_oracle_imports_nothing_of_the_package() -> None:
    allowed = sys.stdlib_module_names | {"numpy"}
    for path in ORACLE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (
                    node.level == 0 and (node.module or "").split(".")[0] in allowed
                ), path
            elif isinstance(node, ast.Import):
                assert all(a.name.split(".")[0] in allowed for a in node.names), path


def test_oracle_loads_without_the_package() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import oracle_support; "
        "o = oracle_support.load_oracle(); "
        "print(len(o.FORMATS), sum(m.split('.')[0] == 'ninfer_rs' for m in sys.modules))"
    )
    here = str(ORACLE.parents[2] / "tests" / "oracle")
    run = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["30", "0"]


def test_registry(oracle: Any) -> None:
    names = list(oracle.FORMATS)
    assert len(names) == 30 and names[0] == "bf16" and names[-1] == "gguf_iq1_m"
    rates = [
        (16.0, 32.0, 32.0),
        (2.25, 4.25, 5.25, 6.25, 8.5, 2.125),
        (4.5, 8.0, 8.0),
        (8.5, 4.5, 5.5, 2.25, 2.625, 3.4375, 4.5, 5.5, 6.5625),
        (2.0625, 2.3125, 3.0625, 1.5625, 4.5, 3.4375, 2.5625, 4.25, 1.75),
    ]
    assert [f.bits_per_weight for f in oracle.FORMATS.values()] == [r for row in rates for r in row]
    for case in Golden()["gguf_decode"]["cases"]:
        fmt = oracle.FORMATS[case["format"]]
        assert (fmt.ggml_type, fmt.block_values, fmt.block_bytes) == (
            case["ggml_type"],
            case["block_values"],
            case["block_bytes"],
        )
    with pytest.raises(oracle.UnknownFormatError, match="q4_g64_fp16"):
        oracle.get_format("q4_g64_fp32")


# -- golden values ---------------------------------------------------------------------------------------


def test_small_float_words(oracle: Any, golden: Golden) -> None:
    data = golden["words"]
    e4m3 = oracle.floats.e4m3_to_f32(np.arange(256, dtype=np.uint8))
    assert (bits(e4m3) == golden.array(data["e4m3_f32"], "u4")).all()
    e2m1 = oracle.floats.e2m1_to_f32(np.arange(16, dtype=np.uint8))
    assert (bits(e2m1) == golden.array(data["e2m1_f32"], "u4")).all()
    words = oracle.floats.f32_to_bf16(golden.array(data["f32"], "f4"))
    assert (words == golden.array(data["bf16_u16"], "u2")).all()


@pytest.mark.parametrize("index", range(len(GGUF)), ids=GGUF)
def test_gguf_decode(oracle: Any, golden: Golden, index: int) -> None:
    case = golden["gguf_decode"]["cases"][index]
    payload = golden.array(case["bytes"], "u1")
    n, values = case["blocks"], case["block_values"]
    expected = golden.array(case["f32"], "u4")
    for shape in ((n, values), (1, n * values), (2, n // 2 * values)):
        got = oracle.dequantize(case["format"], shape, payload)
        assert got.shape == shape and got.dtype == np.float32
        assert (bits(got).reshape(-1) == expected).all()
        assert (
            oracle.from_words(case["format"], shape, **oracle.words(case["format"], shape, payload))
            == payload
        ).all()


@pytest.mark.parametrize("index", ROW_SPLIT)
def test_row_split(oracle: Any, golden: Golden, index: int) -> None:
    case = golden["row_split"]["cases"][index]
    name, shape = case["format"], tuple(case["shape"])
    payload = golden.array(case["payload"], "u1")
    codes = golden.array(case["codes_i8"], "i1", shape)
    scales = golden.array(case["scales_u16"], "u2", (shape[0], -1))
    assert oracle.encoded_size(name, shape) == payload.size
    assert (oracle.from_words(name, shape, codes=codes, scales=scales) == payload).all()
    got = oracle.words(name, shape, payload)
    assert (got["codes"] == codes).all() and (got["scales"] == scales).all()
    assert (bits(oracle.dequantize(name, shape, payload)) == golden.array(case["f32"], "u4", shape)).all()
    assert oracle.violations(name, shape, payload) == []


@pytest.mark.parametrize("index", range(2))
def test_nvfp4(oracle: Any, golden: Golden, index: int) -> None:
    case = golden["nvfp4"]["cases"][index]
    n, k = case["shape"]
    payload = golden.array(case["payload"], "u1")
    divisors = golden.array(case["divisors_f32"], "f4")
    parts = {
        "codes": golden.array(case["codes_packed"], "u1", (n, k // 2)),
        "scales": golden.array(case["scales_e4m3"], "u1", (n, k // 16)),
        "divisors": divisors,
    }
    assert (oracle.from_words("nvfp4", (n, k), **parts) == payload).all()
    got = oracle.words("nvfp4", (n, k), payload, divisors.size)
    assert all((got[key] == value).all() for key, value in parts.items())
    values = oracle.dequantize("nvfp4", (n, k), payload, divisors.size)
    assert (bits(values) == golden.array(case["f32"], "u4", (n, k))).all()
    assert oracle.violations("nvfp4", (n, k), payload, divisors.size) == []


@pytest.mark.parametrize("index", ENCODERS)
def test_encoders(oracle: Any, golden: Golden, index: int) -> None:
    case = golden["encoders"]["cases"][index]
    name, shape = case["format"], tuple(case["shape"])
    x = golden.array(case["x_f32"], "f4", shape)
    options: dict[str, Any] = {}
    if case["method"] == "grouped_search":
        options["negative_scales"] = case["negative_scales"]
        if case["importance_f32"] is not None:
            options["importance"] = golden.array(case["importance_f32"], "f4")
    payload = oracle.quantize(x, name, case["method"], **options)
    got = oracle.words(name, shape, payload)
    expected = golden.array(case.get("codes_i8", case.get("codes_u8")), "u1", shape)
    assert (got["codes"].view(np.uint8) == expected).all()
    assert (got["scales"].reshape(-1) == golden.array(case["scales_u16"], "u2")).all()
    if "payload" in case:
        assert (payload == golden.array(case["payload"], "u1")).all()
        assert (bits(oracle.dequantize(name, shape, payload)) == golden.array(case["f32"], "u4", shape)).all()
    assert oracle.violations(name, shape, payload) == []


def test_q8_1(oracle: Any, golden: Golden) -> None:
    data = golden["q8_1"]
    x = golden.array(data["x_f32"], "f4")
    for shaped in (x, x.reshape(5, -1)):
        d, s, q = oracle.q8_1(shaped)
        assert d.shape == s.shape == q.shape[:-1] == (*shaped.shape[:-1], shaped.shape[-1] // 32)
        assert (d.reshape(-1) == golden.array(data["d_f16"], "u2")).all()
        assert (s.reshape(-1) == golden.array(data["s_f16"], "u2")).all()
        assert (q.reshape(-1) == golden.array(data["q_i8"], "i1")).all()


# -- layouts: worked examples and known offsets ----------------------------------------------------------


def test_encoded_sizes(oracle: Any) -> None:
    size = oracle.encoded_size
    assert size("q5_g64_fp16", (2, 130)) == 528
    assert size("q4_g64_fp16", (7168, 5120)) == 19496960
    assert size("bf16", ()) == 2 and size("int32", (3, 1, 5)) == 60 and size("fp32", (1,) * 16) == 4
    assert size("fp8_e4m3fn_row_fp16", (3, 160)) == 3 * 162
    assert size("fp8_e4m3fn_row_bf16", (3, 160)) == 512 + 6
    assert size("nvfp4", (256, 128)) == 256 * 64 + 256 * 8 + 4
    assert size("nvfp4", (256, 128), 2) == 256 * 64 + 256 * 8 + 8
    assert size("gguf_iq1_s", (3, 512)) == 3 * 2 * 50
    assert size("bf16", (1 << 31, 1 << 31)) == 1 << 63


@pytest.mark.parametrize(
    ("name", "shape", "divisors", "text"),
    [
        ("fp32", (1 << 31, 1 << 31), 1, "64 bits"),
        ("bf16", (0, 3), 1, "dimension 0"),
        ("bf16", (1,) * 17, 1, "rank 17"),
        ("q4_g64_fp16", (3,), 1, "rank 1"),
        ("q4_g64_fp16", (3, -1), 1, "dimension 1"),
        ("q4_g64_fp16", (3, 64), 2, "divisors"),
        ("gguf_q4_k", (1, 896), 1, "896 is not a multiple of 256"),
        ("nvfp4", (130, 64), 1, "N % 128 == 0 and K % 64 == 0"),
        ("nvfp4", (128, 80), 1, "N % 128 == 0 and K % 64 == 0"),
        ("nvfp4", (256, 64), 3, "3 divisors"),
        ("nvfp4", (384, 64), 2, "2 divisors"),
        ("nvfp4", (128, 64), 0, "0 divisors"),
        ("q8_g32_fp16", (True, 32), 1, "True"),
    ],
)
def test_bad_shapes(oracle: Any, name: str, shape: tuple[int, ...], divisors: int, text: str) -> None:
    with pytest.raises(oracle.ShapeError, match=text):
        oracle.encoded_size(name, shape, divisors)


def test_payload_size_must_be_exact(oracle: Any) -> None:
    for size in (0, 527, 529):
        with pytest.raises(oracle.ShapeError, match=rf"{size} bytes, must have exactly 528"):
            oracle.words("q5_g64_fp16", (2, 130), np.zeros(size, np.uint8))


def test_q5_planes_sit_where_the_page_says(oracle: Any) -> None:
    codes = np.zeros((2, 130), np.int8)
    scales = np.full((2, 3), 0x3C00, np.uint16)
    blank = oracle.from_words("q5_g64_fp16", (2, 130), codes=codes, scales=scales)
    codes[1, 129] = -16  # row 1, group 2, lane 1: only the fifth bit is set
    payload = oracle.from_words("q5_g64_fp16", (2, 130), codes=codes, scales=scales)
    assert np.flatnonzero(payload != blank).tolist() == [256 + 6 * 8]
    assert payload[256 + 6 * 8] == 0b10
    codes[1, 129] = 3
    payload = oracle.from_words("q5_g64_fp16", (2, 130), codes=codes, scales=scales)
    assert np.flatnonzero(payload != blank).tolist() == [6 * 32] and payload[6 * 32] == 0x30
    assert payload[512:].tolist() == [0, 0x3C, 0, 0x3C, 0, 0x3C, 0, 0] * 2


def test_q6_and_two_bit_orders(oracle: Any) -> None:
    codes = np.zeros((1, 128), np.int8)
    codes[0, :4] = [-32, 16, 0, -1]  # high pairs 10, 01, 00, 11
    payload = oracle.from_words(
        "q6_g64_fp16", (1, 128), codes=codes, scales=np.array([[0x3C00, 0]], np.uint16), check=False
    )
    assert payload[256] == 0b11_00_01_10
    codes[0, :4] = [-1, 0, 1, 1]
    t2 = oracle.from_words("t2_g128_fp16", (1, 128), codes=codes, scales=np.array([[0x3C00]], np.uint16))
    assert t2[0] == 0b01_01_00_11
    codes[0, :4] = [-1, 0, 1, 2]
    q2 = oracle.from_words("q2_g64_fp16", (1, 128), codes=codes, scales=np.array([[0x3C00] * 2], np.uint16))
    assert q2[0] == 0b11_10_01_00 and (q2[1:32] == 0x55).all()


def test_nvfp4_swizzle_offsets(oracle: Any) -> None:
    """FR-49: one non-zero scale byte at a time."""
    plane = 256 * 128 // 2
    for (n, g), at in {(33, 5): 533, (129, 7): 1555, (255, 0): 1532}.items():
        scales = np.zeros((256, 8), np.uint8)
        scales[n, g] = 0x38
        payload = oracle.from_words(
            "nvfp4",
            (256, 128),
            codes=np.zeros((256, 64), np.uint8),
            scales=scales,
            divisors=np.ones(1, np.float32),
        )
        assert np.flatnonzero(payload[plane:-4]).tolist() == [at]
        assert (oracle.words("nvfp4", (256, 128), payload)["scales"] == scales).all()
    rng = np.random.default_rng(49)
    scales = rng.integers(0, 0x7F, (256, 8), dtype=np.uint8)
    once = oracle.from_words(
        "nvfp4",
        (256, 128),
        codes=np.zeros((256, 64), np.uint8),
        scales=scales,
        divisors=np.ones(1, np.float32),
    )[plane:-4].reshape(256, 8)
    assert (once != scales).any() and sorted(once.reshape(-1)) == sorted(scales.reshape(-1))


# -- rows ------------------------------------------------------------------------------------------------


def random_payload(oracle: Any, name: str, shape: tuple[int, ...], seed: int, divisors: int = 1) -> Any:
    size = oracle.encoded_size(name, shape, divisors)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("name", ["gguf_q8_0", "gguf_q2_k"])
def test_gguf_rows(oracle: Any, name: str) -> None:
    shape = (5, 512)
    payload = random_payload(oracle, name, shape, 5)
    row = payload.size // 5
    assert (oracle.rows(name, shape, payload, 1, 4) == payload[row : 4 * row]).all()
    got = oracle.gather(name, shape, payload, [3, 1, 3]).reshape(3, row)
    assert (got == payload.reshape(5, row)[[3, 1, 3]]).all()


@pytest.mark.parametrize(
    "name", ["q2_g64_fp16", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "t2_g128_fp16"]
)
def test_grouped_rows_keep_words_and_padding(oracle: Any, name: str) -> None:
    shape = (7, 130)
    payload = random_payload(oracle, name, shape, 6)
    before = oracle.words(name, shape, payload)
    got = oracle.gather(name, shape, payload, [6, 0, 0, 2])
    after = oracle.words(name, (4, 130), got)
    assert all((after[key] == before[key][[6, 0, 0, 2]]).all() for key in before)
    padding = [v for v in oracle.violations(name, (4, 130), got) if v["plane"] == "padding"]
    assert {v["row"] for v in padding} == {0, 1, 2, 3}  # copied as they are; gaps (row None) are zero
    assert (oracle.rows(name, shape, payload, 0, 1) == oracle.gather(name, shape, payload, [0])).all()
    for begin, end in ((0, 0), (3, 2), (0, 8), (-1, 2)):
        with pytest.raises(oracle.ShapeError):
            oracle.rows(name, shape, payload, begin, end)
    with pytest.raises(oracle.ShapeError, match=r"row 7 is outside 0\.\.6"):
        oracle.gather(name, shape, payload, [7])


@pytest.mark.parametrize("name", ["fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16", "bf16", "fp32", "int32"])
def test_other_rows(oracle: Any, name: str) -> None:
    payload = random_payload(oracle, name, (9, 33), 7)
    before = oracle.words(name, (9, 33), payload)
    after = oracle.words(name, (3, 33), oracle.gather(name, (9, 33), payload, [8, 8, 1]))
    assert all((after[key] == before[key][[8, 8, 1]]).all() for key in before)


def test_nvfp4_rows_are_whole_tiles(oracle: Any) -> None:
    shape, divisors = (512, 64), 2
    payload = random_payload(oracle, "nvfp4", shape, 8, divisors)
    before = oracle.words("nvfp4", shape, payload, divisors)
    tile = [list(range(128 * t, 128 * t + 128)) for t in range(4)]
    cases = {(1,): [0], (0, 1): [0], (1, 2): [0, 1], (3, 0, 1): [1, 0, 0], (0, 1, 2, 3): [0, 1], (2, 3): [1]}
    for tiles, sources in cases.items():
        wanted = [r for t in tiles for r in tile[t]]
        assert oracle.gather_divisors(shape, divisors, wanted) == sources
        got = oracle.gather("nvfp4", shape, payload, wanted, divisors)
        after = oracle.words("nvfp4", (len(wanted), 64), got, len(sources))
        assert (after["codes"] == before["codes"][wanted]).all()
        assert (after["scales"] == before["scales"][wanted]).all()
        assert (bits(after["divisors"]) == bits(before["divisors"][sources])).all()
    for wanted in ([0], list(range(64, 192)), tile[0] + tile[0][:64], tile[0][::-1]):
        with pytest.raises(oracle.UnsupportedError, match="128-row tiles"):
            oracle.gather("nvfp4", shape, payload, wanted, divisors)
