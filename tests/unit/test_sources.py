"""Sources of any kind: nr.sources, and the commands on safetensors and numpy files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

import ninfer_rs as nr
from ninfer_rs.cli import main
from support import fp8, random_words
from support import write_safetensors as write

#: What has no format of its own.
RULES = [
    nr.Rule(match="t.weight", format="bf16", method="cast_direct"),
    nr.Rule(match="f64", format="fp32"),
    nr.Rule(match="i64", format="int32"),
]
BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def results(*args: object) -> tuple[int, dict[str, dict[str, Any]]]:
    done = run("compare", "--json", *args)
    return done.exit_code, {t["name"]: t for t in json.loads(done.stdout)["tensors"]}


@pytest.fixture
def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    w = rng.normal(0, 1, (6, 130)).astype(np.float32)
    return {
        "f32": w,
        "bf16": w.astype(BF16),
        "f16": w[:, :64].astype(np.float16),
        "f64": w.astype(np.float64) / 3,
        "cube": rng.normal(0, 1, (3, 4, 64)).astype(np.float32),
        "half cube": rng.normal(0, 1, (3, 4, 64)).astype(np.float16),
        "i32": np.arange(12, dtype=np.int32).reshape(3, 4),
        "i64": np.arange(-3, 9, dtype=np.int64),
        "bool": np.array([True, False]),
        "q.weight": fp8((4, 128)),
        "q.weight_scale": np.linspace(0.01, 0.02, 4, dtype=np.float32).astype(BF16),
        "t.weight": fp8((130, 200), 1),
        "t.weight_scale_inv": np.linspace(0.5, 1, 4, dtype=np.float32).reshape(2, 2),
    }


@pytest.fixture
def model(tensors: dict[str, Any], tmp_path: Path) -> Path:
    return write(tmp_path / "m.safetensors", tensors)


def test_every_kind_opens(model: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", tensors["cube"])
    plain = {n: a for n, a in tensors.items() if a.dtype not in (BF16, F8)}
    np.savez(tmp_path / "many.npz", **plain)
    np.savez_compressed(tmp_path / "packed.npz", **plain)
    nr.gguf.write(tmp_path / "m.gguf", {}, {"w": random_words("gguf_q4_k", (3, 256)), "v": tensors["f32"]})
    with nr.sources.open(tmp_path / "one.npy") as s:
        assert s.kind == "npy" and list(s) == ["one"] and len(s) == 1 and "one" in s and s.warnings == []
        t = s["one"]
        assert t.shape == (3, 4, 64) and t.size == 768 and t.nbytes == 3072 and t.content == "values"
        assert t.type_name == "<f4" and t.reason is None
        assert np.array_equal(t.values(), tensors["cube"])
        assert np.array_equal(t.values((5, 9)), tensors["cube"].reshape(12, 64)[5:9])
        for rows in ((0, 13), (-1, 2), (4, 3)):
            with pytest.raises(nr.ShapeError, match="of 12"):
                t.values(rows)
        with pytest.raises(nr.UnsupportedError, match="has no integers; its content is values"):
            t.integers()
        with pytest.raises(nr.TensorNotFoundError, match='no tensor "on"; did you mean one'):
            s["on"]
    for use in (lambda: t.values(), lambda: s["one"], s.__enter__):
        with pytest.raises(nr.UnsupportedError, match="is closed"):
            use()
    assert "closed" in repr(s) and "<f4" in repr(t)
    for name in ("many", "packed"):
        with nr.sources.open(tmp_path / f"{name}.npz") as s:
            assert s.kind == "npz" and list(s) == list(plain)
            assert s.file_bytes == (tmp_path / f"{name}.npz").stat().st_size and len(s.files) == 1
            for key, array in plain.items():
                if array.dtype.kind == "f":
                    assert np.array_equal(s[key].values(), array.astype(np.float32)), key
                else:
                    assert s[key].content == "integers" and np.array_equal(s[key].integers(), array)
    with nr.sources.open(model) as s, nr.safetensors.open(model) as other:
        assert s.kind == "safetensors" and list(s) == list(other)
        for name in ("q.weight", "t.weight", "bf16"):
            assert np.array_equal(s[name].values(), other[name].values())
        assert s["q.weight"].format is nr.get_format("fp8_e4m3fn_row_bf16") and s["t.weight"].format is None
    with nr.sources.open(tmp_path / "m.gguf") as s, nr.gguf.open(tmp_path / "m.gguf") as g:
        assert s.kind == "gguf" and s["w"].content == "blocks"
        assert np.array_equal(s["w"].values(), g["w"].tensor().dequantize())
    (tmp_path / "bad").write_bytes(b"what is this")
    with pytest.raises(nr.FileFormatError, match="bad"):
        nr.sources.open(tmp_path / "bad")
    with pytest.raises(FileNotFoundError):
        nr.sources.open(tmp_path / "absent")


def test_inspect_numpy(tensors: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", a=tensors["f32"], b=tensors["i64"])
    result = run("inspect", tmp_path / "m.npz")
    assert result.exit_code == 0, result.output
    for text in ("npz", "fp32", "<i8", "6 x 130"):
        assert text in result.output, result.output
    data = json.loads(run("inspect", "--json", tmp_path / "m.npz").stdout)
    assert data["kind"] == "npz" and [t["name"] for t in data["tensors"]] == ["a", "b"]
    result = run("inspect", "--sha256", tmp_path / "m.npz")
    assert result.exit_code == 2 and "--sha256 is for" in result.output


def test_dequantize(model: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "o.npy"

    def values(*args: object) -> Any:
        result = run("dequantize", model, *args, "-o", out, "--force")
        assert result.exit_code == 0, result.output
        return np.load(out)

    with nr.safetensors.open(model) as s:
        for name in ("f32", "bf16", "f16", "cube", "half cube", "q.weight", "t.weight"):
            expected = s[name].values()
            found = values(name)
            assert found.dtype == np.float32 and np.array_equal(found, expected), name
            assert np.array_equal(values(name, "--rows", "1:3"), expected[1:3]), name
            half = values(name, "--dtype", "float16")
            assert half.dtype == np.float16 and np.array_equal(half, expected.astype(np.float16))
        for name in ("f64", "i32", "i64", "bool"):
            found = values(name)
            assert found.dtype == tensors[name].dtype and np.array_equal(found, tensors[name]), name
    out.unlink()
    lost = write(tmp_path / "lost.safetensors", {"x.weight": fp8((2, 4)), "big": np.full(2, 1e6, np.float32)})
    for args, code, text in (
        ((lost, "x.weight"), 1, "no scale tensor"),
        ((lost, "big", "--dtype", "float16"), 1, "big"),
        ((model, "f64", "--dtype", "float16"), 1, "not rounded"),
        ((model, "no"), 2, 'no tensor "no"'),
    ):
        result = run("dequantize", *args, "-o", out)
        assert result.exit_code == code and text in result.output, result.output
        assert not out.exists()
    np.save(tmp_path / "x.npy", tensors["f32"])
    result = run("dequantize", tmp_path / "x.npy", "x", "-o", out)
    assert result.exit_code == 1 and "numpy.load" in result.output and not out.exists()


def test_verify(model: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    for file in (model, tmp_path):
        result = run("verify", file)
        assert result.exit_code == 0 and "11 tensors: fine" in result.output, result.output
    bad = dict(tensors) | {"lost.weight": fp8((2, 4), 5)}
    bad["cube"] = bad["cube"].copy()
    bad["cube"][1, 2, 3] = np.inf
    bad["half cube"] = bad["half cube"].copy()
    bad["half cube"][2, 3, 0:2] = np.nan
    path = write(tmp_path / "bad.safetensors", bad)
    result = run("verify", path)
    assert result.exit_code == 1
    for text in (
        'note: tensor "cube": 1 value not finite, the first in row 6, column 3',
        'note: tensor "half cube": 2 values not finite, the first in row 11, column 0',
        'problem: tensor "lost.weight" (F8_E4M3): ',
        "1 problems",
    ):
        assert text in result.output, result.output
    result = run("verify", "--require-finite", "--json", path)
    assert len(json.loads(result.stdout)["problems"]) == 3
    assert run("verify", "--no-values", path).exit_code == 0
    np.save(tmp_path / "x.npy", np.array([1, np.nan], np.float32))
    result = run("verify", tmp_path / "x.npy")
    assert result.exit_code == 0 and "1 value not finite, the first in row 0, column 1" in result.output
    out = tmp_path / "m.ninfer"
    assert run("convert", model, out).exit_code == 1  # tiles want a method
    nr.convert(model, out, RULES)
    result = run("verify", out, "--against", model)
    assert result.exit_code == 2 and "ninfer-rs compare" in result.output
    assert run("verify", model, "--against", out).exit_code == 2


def test_compare(model: Path, tensors: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "m.ninfer"
    nr.convert(model, out, [*RULES, nr.Rule(match="f32", format="q8_g32_fp16")])
    code, found = results(model, out)
    assert code == 1 and list(found) == [n for n in tensors if not n.endswith(("_scale", "_inv"))]
    for name in ("bf16", "cube", "i32", "q.weight"):
        assert found[name]["result"] == "identical", found[name]
    for name in ("f16", "f64", "half cube", "i64", "bool"):
        assert found[name]["result"] == "equal values", found[name]
    for name, error in (("t.weight", 0.01), ("f32", 0.01)):
        assert found[name]["result"] == "different" and 0 < found[name]["relative_error"] < error
    assert found["t.weight"]["first"] == "fp8_blocks" and found["f64"]["first"] == "F64"
    # Of one kind with another: numpy's files and safetensors.
    np.savez(
        tmp_path / "m.npz", **{n: tensors[n] for n in ("f32", "f16", "i64", "bool")}, i32=np.ones((3, 4))
    )
    code, found = results(tmp_path / "m.npz", model)
    same = {n: found[n]["result"] for n in ("f32", "f16", "i64", "bool")}
    assert set(same.values()) == {"equal values"}, same
    assert found["i32"]["result"].startswith("not comparable: one holds integers")
    assert code == 1 and found["cube"]["result"].startswith("only in")
    changed = dict(tensors)
    changed["i64"] = tensors["i64"] + 1
    changed["f16"] = tensors["f16"][:, :63]
    other = write(tmp_path / "other.safetensors", changed)
    code, found = results(model, other)
    assert code == 1 and found["i64"]["result"] == "integers differ"
    assert found["f16"]["result"] == "shapes differ: (6, 64), (6, 63)"
    assert results(model, model)[0] == 0
    lost = write(tmp_path / "lost.safetensors", {"q.weight": tensors["q.weight"]})
    code, found = results(lost, model)
    assert found["q.weight"]["result"].startswith("not comparable: tensor") and code == 1
