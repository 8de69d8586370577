"""Safetensors: the two lists, words without copies, values of codes and scales, errors, the command line."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import ninfer_rs as nr
from ninfer_rs.cli import main
from support import SAFETENSORS, fp8, rng_of, same
from support import write_safetensors as write

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@pytest.fixture
def nvfp4() -> dict[str, Any]:
    rng = rng_of("nvfp4")
    return {
        "weight_packed": rng.integers(0, 256, (128, 32), np.uint8),
        "weight_scale": (rng.integers(0, 0x7F, (128, 4), np.uint8)).view(F8),
        "weight_global_scale": np.array([0.3], np.float32),
    }


@pytest.mark.parametrize("pad", range(4))
def test_every_type_is_seen_without_copies(tmp_path: Path, pad: int) -> None:
    rng = rng_of("types")
    arrays = {}
    for name in SAFETENSORS:
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        raw = rng.integers(0, 2 if name == "bool" else 256, 3 * 5 * dtype.itemsize, np.uint8)
        arrays[name] = raw.view(dtype).reshape(3, 5)
    path = write(tmp_path / "m.safetensors", arrays, pad=pad)
    with nr.safetensors.open(path) as s:
        assert list(s.stored) == list(SAFETENSORS)
        for name, wanted in arrays.items():
            stored = s.stored[name]
            assert (stored.dtype, stored.shape, stored.nbytes) == (SAFETENSORS[name], (3, 5), wanted.nbytes)
            found = stored.array()
            assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes(), name
            assert np.shares_memory(found, stored.data) and not found.flags.writeable
            assert stored.path == str(path)
            assert path.read_bytes()[stored.offset :][: stored.nbytes] == wanted.tobytes()


def test_without_ml_dtypes_there_are_words(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", {"b": np.ones((2, 2), BF16), "f": fp8((2, 2))})
    script = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import ninfer_rs as nr\n"
        f"s = nr.safetensors.open({str(tmp_path / 'm.safetensors')!r})\n"
        "b, f = s.stored['b'], s.stored['f']\n"
        "print(b.dtype, b.array().dtype, f.dtype, f.array().dtype)\n"
        "print(hex(b.array()[0, 0]), s['b'].values()[0, 0])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["BF16", "uint16", "F8_E4M3", "uint8", "0x3f80", "1.0"]


def test_plain_tensors(tmp_path: Path) -> None:
    arrays = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bf16": np.arange(6).astype(BF16).reshape(1, 2, 3),
        "f16": np.array([0.1, -2], np.float16),
        "f64": np.array([[0.1, 1e-60]]),
        "i32": np.array([1, -2], np.int32),
        "i64": np.array([1, -2]),
        "scalar": np.float32(2.5),
        "empty": np.empty((0, 3), np.float32),
    }
    s = nr.safetensors.open(write(tmp_path / "m.safetensors", arrays, {"format": "pt"}))
    assert list(s) == list(arrays) and len(s) == 8 and "f32" in s and "x" not in s
    assert dict(s.metadata) == {"format": "pt"} and not s.warnings and not s.unused and s.quant_method is None
    for name in ("f32", "bf16", "f16", "f64", "scalar", "empty"):
        t = s[name]
        assert t.content == "values" and t.reason is None and t.companions == ()
        assert t.size == arrays[name].size and t.nbytes == arrays[name].nbytes
        assert same(t.values(), np.asarray(arrays[name]).astype(np.float32)), name
        assert t.array().tobytes() == arrays[name].tobytes()
    assert same(s["f32"].values((1, 2)), arrays["f32"][1:2])
    assert s["bf16"].values((1, 1)).shape == (0, 3)
    for name, fmt in (("f32", "fp32"), ("bf16", "bf16"), ("i32", "int32"), ("scalar", "fp32")):
        tensor = s[name].tensor()
        assert tensor.format.name == fmt == s[name].format.name and tensor.shape == arrays[name].shape
        assert tensor.name == name and np.shares_memory(tensor.payload, s.stored[name].data)
        assert tensor.payload.tobytes() == arrays[name].tobytes()
    for name in ("f16", "f64", "i64"):
        assert s[name].format is None
        with pytest.raises(nr.UnsupportedError, match=rf'"{name}".*array\(\)'):
            s[name].tensor()
    with pytest.raises(nr.UnsupportedError, match='"i32".*no floating-point values'):
        s["i32"].values()
    with pytest.raises(nr.ShapeError, match="no elements"):
        s["empty"].tensor()
    for rows in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(nr.ShapeError, match="rows"):
            s["f32"].values(rows)
    with pytest.raises(nr.TensorNotFoundError, match="did you mean f32"):
        s["f23"]


@pytest.mark.parametrize("scales", ["f32", "bf16", "f16", "one"])
def test_fp8_rows(tmp_path: Path, scales: str) -> None:
    codes = fp8((5, 7))
    wide = np.linspace(0.1, 3, 5, dtype=np.float32)
    scale = {
        "f32": wide[:, None],
        "bf16": wide.astype(BF16),
        "f16": wide.astype(np.float16)[:, None],
        "one": np.float32(0.3),
    }[scales]
    stored = {"x.weight_scale": scale, "x.weight": codes, "x.input_scale": np.float32(1)}
    s = nr.safetensors.open(write(tmp_path / "m.safetensors", stored))
    assert list(s) == ["x.weight"] and list(s.unused) == ["x.input_scale"]
    t = s["x.weight"]
    assert t.content == "fp8_rows" and t.companions == ("x.weight_scale",) and t.format is not None
    wanted = codes.astype(np.float32) * scale.astype(np.float32).reshape(-1, 1)
    assert same(t.values(), wanted)
    assert same(t.values((2, 4)), wanted[2:4])
    tensor = t.tensor()
    assert tensor.format.name == "fp8_e4m3fn_row_bf16" and tensor.name == "x.weight"
    rounded = np.broadcast_to(scale.astype(np.float32).astype(BF16).reshape(-1), (5,)).view(np.uint16)
    assert same(tensor.words()["scales"], rounded) and same(tensor.words()["codes"], codes.view(np.uint8))
    if scales != "f16":
        assert tensor.payload.tobytes() == nr.import_encoded(tensor.format, t.parts()).payload.tobytes()
    with pytest.raises(nr.UnsupportedError, match="no plain numbers"):
        t.array()


def test_fp8_tiles(tmp_path: Path) -> None:
    codes, scale = fp8((130, 200)), np.array([[0.5, 2], [3, 0.1]], np.float32)
    path = write(tmp_path / "m.safetensors", {"x.weight": codes, "x.weight_scale_inv": scale})
    t = nr.safetensors.open(path)["x.weight"]
    grid = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:130, :200]
    assert t.content == "fp8_blocks" and t.format is None
    assert same(t.values(), codes.astype(np.float32) * grid)
    with pytest.raises(nr.UnsupportedError, match=r"no registered format.*values\(\)"):
        t.tensor()
    assert nr.quantize(t.values(), "fp8_e4m3fn_row_bf16", "fp8_row_maxabs").violations() == []


@pytest.mark.parametrize("exporter", ["compressed-tensors", "modelopt"])
def test_nvfp4(tmp_path: Path, nvfp4: dict[str, Any], exporter: str) -> None:
    stored = dict(nvfp4)
    if exporter == "modelopt":
        stored = {
            "weight": stored["weight_packed"],
            "weight_scale": stored["weight_scale"],
            "weight_scale_2": stored["weight_global_scale"].reshape(()),
        }
    s = nr.safetensors.open(write(tmp_path / "m.safetensors", {f"a.{k}": v for k, v in stored.items()}))
    assert list(s) == ["a.weight"]
    t = s["a.weight"]
    assert t.content == "nvfp4" and t.shape == (128, 64) and len(t.companions) == 2
    expected = nr.import_encoded("nvfp4", stored)
    assert t.tensor().payload.tobytes() == expected.payload.tobytes()
    parts = t.parts()
    assert set(parts) == set(stored)
    stacked = nr.import_encoded("nvfp4", [parts, parts])
    assert stacked.shape == (256, 64) and stacked.divisors == 2
    if exporter == "compressed-tensors":
        assert same(t.values(), expected.dequantize())
    else:
        # The checkpoint multiplies; the format divides by the rounded reciprocal.
        np.testing.assert_allclose(t.values(), expected.dequantize(), rtol=3e-7)
        code = np.stack([stored["weight"] & 15, stored["weight"] >> 4], -1).reshape(128, 64)
        e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        value = np.where(code & 8, -e2m1[code & 7], e2m1[code & 7])
        product = value * np.repeat(stored["weight_scale"].astype(np.float32), 16, 1)
        assert same(t.values(), product * stored["weight_scale_2"])


def test_what_cannot_be_read_says_why(tmp_path: Path, nvfp4: dict[str, Any]) -> None:
    stored = {
        "lost.weight": fp8((2, 2)),
        "a.weight": np.ones((2, 2), BF16),
        "a.weight_scale": np.ones((2, 1), np.float32),
        "odd.weight_packed": nvfp4["weight_packed"],
        "odd.weight_scale": nvfp4["weight_scale"].reshape(-1),
        "odd.weight_global_scale": nvfp4["weight_global_scale"],
    }
    path = write(tmp_path / "m.safetensors", stored)
    s = nr.safetensors.open(path)
    assert {n: t.content for n, t in s.items()} == {
        "lost.weight": "unsupported",
        "a.weight": "values",
        "a.weight_scale": "unsupported",
        "odd.weight": "unsupported",
    }
    for name, text in (("lost.weight", "no scale"), ("a.weight_scale", "BF16"), ("odd.weight", "swizzled")):
        assert text in (s[name].reason or "")
        for use in (s[name].values, s[name].tensor, s[name].array, s[name].parts):
            with pytest.raises(nr.UnsupportedError, match=f'"{name}".*{text}'):
                use()
        assert s[name].codes.nbytes > 0 and s[name].offset > 0
    chosen = nr.safetensors.open(path, fp8_without_scale=True)["lost.weight"]
    assert same(chosen.values(), stored["lost.weight"].astype(np.float32))


def test_words_that_the_format_does_not_admit(tmp_path: Path) -> None:
    codes = fp8((3, 4)).view(np.uint8).copy()
    codes[1, 2] = 0x7F
    stored = {"x.weight": codes.view(F8), "x.weight_scale": np.ones(3, np.float32)}
    t = nr.safetensors.open(write(tmp_path / "m.safetensors", stored))["x.weight"]
    with pytest.raises(nr.UnsupportedError, match=r'tensor "x.weight".*row 1, column 2'):
        t.tensor()
    assert np.isnan(t.values()[1, 2])


def test_shards_and_configuration(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"x.weight": fp8((2, 2))})
    write(tmp_path / "two.safetensors", {"x.weight_scale": np.ones(2, np.float32), "y": np.ones(3, np.int8)})
    places = {"x.weight": "one.safetensors", "x.weight_scale": "two.safetensors", "y": "two.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    for path in (
        index,
        tmp_path,
        str(tmp_path),
        [tmp_path / "one.safetensors", tmp_path / "two.safetensors"],
    ):
        s = nr.safetensors.open(path)
        assert list(s) == ["x.weight", "y"] and s["x.weight"].content == "fp8_rows"
        assert [Path(f).name for f in s.files] == ["one.safetensors", "two.safetensors"]
        assert s.file_bytes == sum(Path(f).stat().st_size for f in s.files)
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    s = nr.safetensors.open(tmp_path)
    assert s.quant_method == "modelopt" and "config.json says NVFP4" in (s["x.weight"].reason or "")
    s = nr.safetensors.open(tmp_path, ignore_quantization_config=True)
    assert s["x.weight"].content == "fp8_rows" and "config.json says NVFP4" in s.warnings[0]
    index.write_text(json.dumps({"weight_map": {**places, "y": "../two.safetensors"}}))
    with pytest.raises(nr.FileFormatError, match=r'"y".*\.\./two\.safetensors'):
        nr.safetensors.open(tmp_path)


def test_errors_of_files(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    entry = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = f"{{{entry},{entry}}}".encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    with pytest.raises(nr.FileFormatError, match='duplicate member "a"') as caught:
        nr.safetensors.open(path)
    assert caught.value.path == str(path)
    path.write_bytes(b"\0" * 9)
    with pytest.raises(nr.FileFormatError, match="the header has 0 bytes") as caught:
        nr.safetensors.open(path)
    assert caught.value.offset == 0 and caught.value.expected == "1 to 100000000"
    with pytest.raises(FileNotFoundError):
        nr.safetensors.open(tmp_path / "none.safetensors")
    with pytest.raises(nr.FileFormatError, match="no files are given"):
        nr.safetensors.open([])


def test_closing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"x": np.arange(4, dtype=np.float32)})
    with nr.safetensors.open(path) as s:
        t = s["x"]
        array, tensor = t.array(), t.tensor()
    assert same(array, np.arange(4, dtype=np.float32)) and tensor.shape == (4,)
    for use in (
        lambda: s["x"],
        lambda: list(s),
        t.array,
        t.values,
        t.tensor,
        lambda: t.codes.data,
        s.__enter__,
    ):
        with pytest.raises(nr.UnsupportedError, match="is closed"):
            use()
    assert "closed" in repr(s) and "'x' values F32" in repr(t)
    s.close()


def test_inspect(tmp_path: Path) -> None:
    codes, scale = fp8((2, 4)), np.ones(2, np.float32)
    stored = {
        "x.weight": codes,
        "x.weight_scale": scale,
        "n": np.ones(4, np.float16),
        "lost.weight": fp8((2, 2)),
    }
    path = write(tmp_path / "model.safetensors", stored, {"format": "pt"})

    def run(*args: object) -> Any:
        return CliRunner().invoke(main, [str(a) for a in args])

    for file in (path, tmp_path):
        result = run("inspect", file)
        assert result.exit_code == 0, result.output
        for text in ("safetensors", "fp8_e4m3fn_row_bf16", "F8_E4M3 (unsupported)", "2 x 4", "format", "pt"):
            assert text in result.output, text
    data = json.loads(run("inspect", "--json", "--sha256", path).stdout)
    assert data["kind"] == "safetensors" and data["metadata"] == {"format": "pt"}
    rows = {r["name"]: r for r in data["tensors"]}
    assert list(rows) == ["x.weight", "n", "lost.weight"] and data["unsupported"] == ["lost.weight"]
    assert rows["x.weight"]["bytes"] == 16 and rows["n"]["format"] == "F16"
    assert rows["x.weight"]["sha256"] == hashlib.sha256(codes.tobytes() + scale.tobytes()).hexdigest()
    result = run("inspect", "--require-supported", path)
    assert result.exit_code == 1 and "no scale tensor" in result.stderr
    path.write_bytes(b"\xff" * 32)
    result = run("inspect", path)
    assert result.exit_code == 2 and "the header has" in result.stderr
