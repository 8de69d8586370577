"""The command line: output, JSON, exit codes, nothing left behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import ninfer_rs as nr
from ninfer_rs.cli import main
from support import random_words, same, shape_for

TYPES = ("gguf_q4_k", "gguf_q8_0", "gguf_iq2_xs")


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    tensors: dict[str, Any] = {f"w.{n}": random_words(n, shape_for(n, 3)) for n in TYPES}
    tensors |= {"norm": np.arange(5, dtype=np.float32), "f16": np.full((2, 3), 0.1, np.float16)}
    tensors["ids"] = np.arange(4, dtype=np.int32)
    nr.gguf.write(
        path,
        {"general.architecture": "test", "tokens": ["a"] * 100, "few": [1, 2], "nan": float("nan")},
        tensors,
    )
    return path


@pytest.fixture
def artifact(model: Path, tmp_path: Path) -> Path:
    out = tmp_path / "model.ninfer"
    assert run("convert", model, out).exit_code == 0
    return out


def test_help() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("inspect", "verify", "convert", "dequantize", "compare", "bench"):
        assert command in result.output
        assert run(command, "--help").exit_code == 0
    assert nr.__version__ in run("--version").output


def test_formats() -> None:
    shown = run("formats").output.splitlines()
    assert shown[0].split()[:2] == ["format", "category"] and len(shown) == 31
    row = next(line for line in shown if line.startswith("gguf_q4_k "))
    assert row.split()[:5] == ["gguf_q4_k", "gguf", "gguf_blocks_v1", "4.5", "12"]
    rows = json.loads(run("formats", "--json").stdout)
    assert [r["format"] for r in rows] == list(nr.FORMATS)
    methods = {r["format"]: r["methods"] for r in rows}
    assert methods["q4_g64_fp16"] == ["grouped_absmax", "grouped_search"] and methods["gguf_iq2_xs"] == []
    types = {r["number"]: r for r in json.loads(run("formats", "--ggml", "--json").stdout)}
    assert types[42] == {
        "number": 42,
        "type": "Q2_0",
        "block_values": 64,
        "block_bytes": 18,
        "format": "gguf_q2_0",
    }
    assert types[31]["block_bytes"] is None and types[1]["format"] is None
    assert " Q2_0 " in run("formats", "--ggml").output


@pytest.mark.parametrize("kind", ["gguf", "ninfer"])
def test_inspect(kind: str, model: Path, artifact: Path) -> None:
    file = model if kind == "gguf" else artifact
    result = run("inspect", file)
    assert result.exit_code == 0
    for text in ("gguf_q4_k", "4.5000", "w.gguf_iq2_xs", "3 x 256", str(file)):
        assert text in result.output, text
    assert ("general.architecture" in result.output) == (kind == "gguf")
    data = json.loads(run("inspect", "--json", file).stdout)
    assert data["kind"] == kind
    rows = {r["format"]: r for r in data["histogram"]}
    assert rows["gguf_q4_k"] == {
        "format": "gguf_q4_k",
        "tensors": 1,
        "elements": 768,
        "bytes": 432,
        "bits_per_weight": 4.5,
    }
    assert sum(r["tensors"] for r in data["histogram"]) == 6 == len(data["tensors"])
    if kind == "gguf":
        assert data["metadata"]["tokens"] == {"type": "array of string", "length": 100}
        assert data["metadata"]["few"] == [1, 2] and data["metadata"]["nan"] == "NaN"
        assert rows["F16"]["bytes"] == 12
    assert "Tensors" not in run("inspect", "--no-tensors", "--no-metadata", file).output


def test_hashes_do_not_depend_on_the_file(model: Path, artifact: Path) -> None:
    digests = []
    for file in (model, artifact):
        data = json.loads(run("inspect", "--json", "--sha256", file).stdout)
        digests.append({t["name"]: t["sha256"] for t in data["tensors"]})
    expected = hashlib.sha256(
        random_words("gguf_q4_k", shape_for("gguf_q4_k", 3)).payload.tobytes()
    ).hexdigest()
    assert digests[0]["w.gguf_q4_k"] == expected
    assert {k: v for k, v in digests[0].items() if k != "f16"} == {
        k: v for k, v in digests[1].items() if k != "f16"
    }
    assert expected in run("inspect", "--sha256", model).output


def test_require_supported(model: Path, tmp_path: Path) -> None:
    assert run("inspect", "--require-supported", model).exit_code == 0
    path = tmp_path / "odd.gguf"
    nr.gguf.write(path, {}, {"good": np.ones(1, np.float32), "bad one": ("Q4_1", (1, 32), bytes(20))})
    assert run("inspect", path).exit_code == 0
    result = run("inspect", "--require-supported", path)
    assert result.exit_code == 1 and 'unsupported: tensor "bad one" of type Q4_1' in result.output


def test_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    name = "evil\x1b[31m\nname"
    nr.gguf.write(path, {"k\x07": "v\x1b"}, {name: np.ones(1, np.float32)})
    for args in (
        ("inspect", path),
        ("inspect", "--json", path),
        ("dequantize", path, "x\x1b", "-o", tmp_path / "o.npy"),
    ):
        assert "\x1b" not in run(*args).output and "\x07" not in run(*args).output
    assert r"evil\x1b[31m\nname" in run("inspect", path).output


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_unreadable_files_exit_with_2(command: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    for content, text in (
        (b"", "expected GGUF, safetensors, npy, npz or .ninfer"),
        (b"PK\3\4", "the archive cannot be read"),
        (b"\x93NUMPY", "the version ends at byte 8"),
        (b"GGUF", "the file ends here: the version needs 4 bytes"),
        (b"NINFER\0\1" + bytes(24), "version 1"),
    ):
        bad.write_bytes(content)
        result = run(command, bad)
        assert result.exit_code == 2 and text in result.output and result.output.startswith("error: ")
    assert run(command, tmp_path / "absent").exit_code == 2
    assert run(command, tmp_path).exit_code == 2
    assert run(command).exit_code == 2 and run(command, "--no-such-option", bad).exit_code == 2
    assert run("no-such-command").exit_code == 2


def test_verify(model: Path, artifact: Path, tmp_path: Path) -> None:
    for args in ((model,), (artifact,), (artifact, "--against", model), (artifact, "--no-values")):
        result = run("verify", *args)
        assert result.exit_code == 0 and "fine" in result.output, result.output
    assert "6 tensors equal to" in run("verify", artifact, "--against", model).output
    data = json.loads(run("verify", "--json", artifact, "--against", model).stdout)
    assert (
        data["ok"] and data["problems"] == [] and data["compared"]["equal"] == 6 and data["checked_bytes"] > 0
    )
    assert run("verify", model, "--against", model).exit_code == 2
    flipped = bytearray(model.read_bytes())
    with nr.gguf.open(model) as g:
        flipped[g["w.gguf_q4_k"].offset + 144 + 5] ^= 0x10
    other = tmp_path / "flipped.gguf"
    other.write_bytes(flipped)
    result = run("verify", artifact, "--against", other)
    assert result.exit_code == 1
    assert re.search(r'"w\.gguf_q4_k": row 1, block 0', result.output), result.output


def test_verify_finds_bad_words(tmp_path: Path) -> None:
    payload = np.array(random_words("q4_g64_fp16", (2, 64)).payload)
    payload[256:258] = (0, 0x80)
    out = tmp_path / "m.ninfer"
    with nr.artifact.Writer(out, components={"text": {"config": {}}}) as w:
        w.add_tensor("w", nr.Tensor.from_payload("q4_g64_fp16", (2, 64), payload))
    result = run("verify", out)
    assert result.exit_code == 1
    assert 'problem: tensor "w" (q4_g64_fp16): scale plane, row 0, group 0: word 0x8000' in result.output
    assert run("verify", "--no-values", out).exit_code == 0


def test_verify_counts_values_that_are_not_finite(tmp_path: Path) -> None:
    blocks = np.zeros((4, 34), np.uint8)
    blocks[2, :2] = (0x01, 0x7C)  # NaN scale
    model, out = tmp_path / "m.gguf", tmp_path / "m.ninfer"
    nr.gguf.write(model, {}, {"w": ("Q8_0", (2, 64), blocks)})
    assert run("convert", model, out).exit_code == 0
    for file, text in (
        (model, "32 values not finite, the first in row 1, column 0"),
        (out, "1 block not finite, the first in row 1, block 0"),
    ):
        result = run("verify", file)
        assert result.exit_code == 0 and text in result.output
        assert run("verify", "--require-finite", file).exit_code == 1


def test_convert(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "sub"
    out.mkdir()
    result = run("convert", "--json", model, out / "m.ninfer")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (
        data["tensors"] == 6 and data["skipped"] == [] and data["bytes"] == (out / "m.ninfer").stat().st_size
    )
    again = run("convert", model, out / "m.ninfer")
    assert again.exit_code == 2 and "not overwritten" in again.output
    plan = run("convert", "--dry-run", model, out / "n.ninfer")
    assert plan.exit_code == 0 and "nothing was written" in plan.output and "gguf_iq2_xs" in plan.output
    assert json.loads(run("convert", "--dry-run", "--json", model, out / "n.ninfer").stdout)["plan"][0][
        "from"
    ]
    assert run("convert", "--file-limit", 12288, model, out / "parts.ninfer").exit_code == 0
    assert (out / "parts.ninfer").exists()
    assert run("convert", out / "m.ninfer", out / "x.ninfer").exit_code == 2
    assert run("convert", model, out / "absent" / "x.ninfer").exit_code == 2
    assert {p.name.split(".")[0] for p in out.iterdir()} == {"m", "parts"}


def test_convert_refuses_before_writing(tmp_path: Path) -> None:
    model, out = tmp_path / "m.gguf", tmp_path / "m.ninfer"
    nr.gguf.write(
        model, {}, {"ok": np.ones(2, np.float32), "odd": ("Q4_1", (1, 32), bytes(20)), "wide": np.zeros(3)}
    )
    result = run("convert", model, out)
    assert result.exit_code == 1 and "odd" in result.output and "wide" in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    result = run("convert", "--skip-unsupported", model, out)
    assert result.exit_code == 0 and 'left out: tensor "odd" of type Q4_1' in result.output
    with nr.artifact.open(out) as a:
        assert list(a) == ["ok"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX here")
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """A conversion is interrupted while it runs: half a billion binary16 values (sparse), to be widened."""
    model, out = tmp_path / "m.gguf", tmp_path / "out"
    out.mkdir()
    count = 1 << 29
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    head += struct.pack("<IQIQ", 1, count, 1, 0)
    head += bytes(-len(head) % 32)
    with model.open("wb") as f:
        f.write(head)
        f.truncate(len(head) + 2 * count)
    import pty

    parent, child_end = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "ninfer_rs", "convert", str(model), str(out / "m.ninfer")],
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        # A dumb terminal gets no bar.
        env={**os.environ, "TERM": "xterm"},
        # Whoever runs the tests in the background ignores the signal, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(child_end)
    shown = b""
    while b"/2.1 GB" not in shown:  # the progress bar knows the total: the conversion is running
        shown += os.read(parent, 65536)
    child.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the end of the terminal
        while piece := os.read(parent, 65536):
            shown += piece
    os.close(parent)
    assert child.wait(60) == 130 and b"interrupted; nothing was written" in shown
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("kind", ["gguf", "ninfer"])
def test_dequantize(kind: str, model: Path, artifact: Path, tmp_path: Path) -> None:
    file = model if kind == "gguf" else artifact
    for n in TYPES:
        out = tmp_path / f"{n}.npy"
        result = run("dequantize", file, f"w.{n}", "-o", out)
        assert result.exit_code == 0, result.output
        assert same(np.load(out), random_words(n, shape_for(n, 3)).dequantize())
        assert run("dequantize", file, f"w.{n}", "-o", out).exit_code == 2
        assert (
            run(
                "dequantize", file, f"w.{n}", "-o", out, "--force", "--rows", "1:2", "--dtype", "float16"
            ).exit_code
            == 0
        )
        assert same(np.load(out), random_words(n, shape_for(n, 3)).rows(1, 2).dequantize(np.float16))
    run("dequantize", file, "f16", "-o", tmp_path / "f16.npy")
    assert same(np.load(tmp_path / "f16.npy"), np.full((2, 3), 0.1, np.float16).astype(np.float32))
    run("dequantize", file, "ids", "-o", tmp_path / "ids.npy")
    assert same(np.load(tmp_path / "ids.npy"), np.arange(4, dtype=np.int32))
    run("dequantize", file, "norm", "-o", tmp_path / "norm.npy", "--rows", ":3")
    assert np.load(tmp_path / "norm.npy").tolist() == [0, 1, 2]


def test_dequantize_without_hard_links(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file gets its name all the same, and still replaces nothing that appeared meanwhile."""
    import os

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    out = tmp_path / "x.npy"
    assert run("dequantize", model, "norm", "-o", out).exit_code == 0
    with nr.gguf.open(model) as g:
        assert same(np.load(out), g["norm"].tensor().dequantize())
    taken = tmp_path / "y.npy"

    def taken_meanwhile(*_: object) -> None:
        taken.write_bytes(b"mine")
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", taken_meanwhile)
    result = run("dequantize", model, "norm", "-o", taken)
    assert result.exit_code == 2 and taken.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.glob("*.npy")) == ["x.npy", "y.npy"]
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes are POSIX here")
def test_special_files_are_not_replaced(model: Path, tmp_path: Path) -> None:
    """As root, a file renamed over /dev/null would be there for every program of the machine."""
    import os
    import stat

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for out in pipe, link, tmp_path:
        result = run("dequantize", model, "norm", "-o", out, "--force")
        assert result.exit_code == 2 and f"{out}: not a regular file" in result.output
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode) and link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "model.gguf", "pipe"]


def test_dequantize_refusals(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    for args, code, text in (
        (("absent", "-o", out), 2, 'no tensor "absent"'),
        (("norm",), 2, "--output"),
        (("norm", "-o", out, "--rows", "4"), 2, "BEGIN:END"),
        (("norm", "-o", out, "--rows", "a:b"), 2, "BEGIN:END"),
        (("norm", "-o", out, "--rows", "3:9"), 2, "are not rows of this tensor, which has 5"),
        (("ids", "-o", out, "--dtype", "float16"), 1, "integers do not decode to float16"),
        (("norm", "-o", tmp_path / "absent" / "x.npy"), 2, "no such folder for x.npy"),
    ):
        result = run("dequantize", model, *args)
        assert result.exit_code == code and text in result.output, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf"]
    overflow = tmp_path / "big.gguf"
    nr.gguf.write(overflow, {}, {"w": np.array([[1e30]], np.float32)})
    result = run("dequantize", overflow, "w", "-o", out, "--dtype", "float16")
    assert result.exit_code == 1 and "overflows binary16" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.gguf", "model.gguf"]


def test_compare(model: Path, artifact: Path, tmp_path: Path) -> None:
    for a, b in ((model, artifact), (artifact, model), (model, model)):
        result = run("compare", a, b)
        assert result.exit_code == 0 and "identical" in result.output, result.output
    other = tmp_path / "other.gguf"
    w = random_words("gguf_q8_0", (3, 32))
    changed = w.words()["blocks"].copy()
    changed[0, 5] ^= 0x40
    nr.gguf.write(
        other,
        {},
        {"w.gguf_q8_0": ("Q8_0", (3, 32), changed), "norm": np.zeros(6, np.float32), "new": np.ones(1)},
    )
    result = run("compare", "--json", model, other)
    assert result.exit_code == 1
    lines = {t["name"]: t for t in json.loads(result.stdout)["tensors"]}
    assert lines["w.gguf_q8_0"]["result"] == "different"
    x, y = (
        w.dequantize().astype(float),
        nr.Tensor.from_words("gguf_q8_0", (3, 32), blocks=changed).dequantize().astype(float),
    )
    assert lines["w.gguf_q8_0"]["relative_error"] == pytest.approx(
        np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
    )
    assert lines["w.gguf_q8_0"]["largest_difference"] == np.abs(x - y).max()
    assert lines["norm"]["result"] == "shapes differ: (5,), (6,)"
    assert lines["new"]["result"] == f"only in {other}" and lines["f16"]["result"] == f"only in {model}"


def test_bench() -> None:
    result = run(
        "bench",
        "--format",
        "gguf_q4_k",
        "--format",
        "q5_g64_fp16",
        "--rows",
        128,
        "--k",
        256,
        "--seconds",
        0.001,
        "--simd",
        "scalar",
        "--json",
    )
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["isa"] == "scalar" and [f["format"] for f in data["formats"]] == ["gguf_q4_k", "q5_g64_fp16"]
    assert all(f["decode_gb_per_s"] > 0 and f["a8_gflop_per_s"] > 0 for f in data["formats"])
    assert run("bench", "--simd", "sse9").exit_code == 1
    assert nr.simd.info()["isa"] != "scalar" or nr.simd.info()["available"] == ["scalar"]


def test_bench_covers_every_format() -> None:
    from ninfer_rs.cli.bench import random_tensor

    for name, f in nr.FORMATS.items():
        if name != "int32":
            t = random_tensor(f, 128, 256)
            assert t.violations() == [] and np.isfinite(t.dequantize()).all() and t.dequantize().std() > 0


def test_no_progress_bar_when_piped(model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ninfer_rs", "convert", str(model), str(tmp_path / "p.ninfer")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and "\x1b" not in done.stdout and done.stdout.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
def test_a_terminal_gets_tables_and_a_bar(model: Path, tmp_path: Path) -> None:
    import pty

    def on_terminal(*args: str) -> str:
        parent, child = pty.openpty()
        env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        process = subprocess.Popen(
            [sys.executable, "-m", "ninfer_rs", *args], stdin=child, stdout=child, stderr=child, env=env
        )
        os.close(child)
        text = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece
        os.close(parent)
        assert process.wait() == 0
        return text.decode()

    shown = on_terminal("inspect", str(model))
    assert "┃" in shown and "gguf_q4_k" in shown
    assert "converting" in on_terminal("convert", str(model), str(tmp_path / "t.ninfer"))
