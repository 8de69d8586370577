"""Conversion by recipe: Python objects and TOML, callables, executors, resuming, the command line."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import ninfer_rs as nr
from ninfer_rs.cli import main
from ninfer_rs.conversion import Context

ID = bytes(range(16))


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def values() -> dict[str, Any]:
    random = np.random.default_rng(7)
    tensors: dict[str, Any] = {
        f"blk.{i}.{n}.weight": random.normal(0, 0.1, (rows, 128)).astype(np.float32)
        for i in range(2)
        for n, rows in (("q", 8), ("k", 4), ("up", 9))
    }
    tensors["norm"] = np.linspace(0.5, 1.5, 128, dtype=np.float32)
    return tensors


@pytest.fixture
def model(values: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    nr.gguf.write(path, {"general.architecture": "test", "general.name": "Small"}, values)
    return path


RECIPE = """
[[rule]]
stack = "blk.{n}.{q,k}.weight"
name = "blk.{n}.qk"
format = "q6_g64_fp16"

[[rule]]
match = "blk.*.up.weight"
format = "q4_g64_fp16"
method = "grouped_search"
negative_scales = true
"""

RULES = [
    nr.Rule(stack="blk.{n}.{q,k}.weight", name="blk.{n}.qk", format="q6_g64_fp16"),
    nr.Rule(
        match="blk.*.up.weight",
        format=nr.get_format("q4_g64_fp16"),
        method="grouped_search",
        negative_scales=True,
    ),
]


def test_toml_objects_and_chunks_make_the_same_file(
    model: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    files = []
    for i, options in enumerate(
        (
            {"recipe": recipe},
            {"recipe": nr.Recipe(RULES)},
            {"recipe": RULES, "threads": 1, "memory": 300_000},
            {"recipe": RULES, "resume": True},
        )
    ):
        out = tmp_path / f"{i}.ninfer"
        done = nr.convert(model, out, artifact_id=ID, **options)  # type: ignore[arg-type]
        assert done.files == (str(out),) and done.artifact_id == ID and done.bytes == out.stat().st_size
        files.append(out.read_bytes())
    assert all(f == files[0] for f in files)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(f"{i}.ninfer" for i in range(4)),
        "model.gguf",
        "recipe.toml",
    ]
    with nr.artifact.open(tmp_path / "0.ninfer") as a:
        joined = np.concatenate([values["blk.1.q.weight"], values["blk.1.k.weight"]])
        expected = nr.quantize(joined, "q6_g64_fp16")
        assert np.array_equal(a["blk.1.qk"].payload, expected.payload)
        expected = nr.quantize(
            values["blk.0.up.weight"], "q4_g64_fp16", "grouped_search", negative_scales=True
        )
        assert np.array_equal(a["blk.0.up.weight"].payload, expected.payload)
        assert np.array_equal(a["norm"].dequantize(), values["norm"])
        part = {"object": "blk.1.qk", "range": [8 * 128, 12 * 128]}
        assert a.bindings["blk.1.k.weight"] == {"parts": [part]}
        assert a.metadata == {"name": "Small"}
        record = a.provenance["tensors"]["blk.0.up.weight"]
        assert record["method"] == "grouped_search" and record["negative_scales"] is True
        error = values["blk.0.up.weight"].astype(np.float64) - expected.dequantize()
        assert record["error"]["max_abs"] == np.abs(error).max()
        assert record["error"]["mse"] == pytest.approx((error**2).mean(), rel=1e-12)


def test_a_plan_says_what_and_why(model: Path) -> None:
    plan = nr.plan(model, RULES)
    text = str(plan)
    for part in ("blk.0.qk", "grouped_search", "q6_g64_fp16", "bits/weight", "rule 1", "default"):
        assert part in text
    assert [t["format"] for t in plan.tensors].count("q4_g64_fp16") == 2
    assert plan.payload_bytes > 0 and 4 < plan.bits_per_weight < 10
    with pytest.raises(nr.UnsupportedError, match=r"rule 1 \(.nothing.\) matches no tensor"):
        nr.plan(model, [nr.Rule(match="nothing", format="bf16")])
    with pytest.raises(nr.UnsupportedError, match="needs either match or stack"):
        nr.plan(model, [nr.Rule(format="bf16")])
    with pytest.raises(nr.UnsupportedError, match="rank 1"):
        nr.plan(model, [nr.Rule(match="norm", format="q4_g64_fp16")])
    with pytest.raises(nr.UnsupportedError, match="only Python can give"):
        nr.plan(model, [nr.Rule(match="norm", format="fp32", method="callable:x")])
    with pytest.raises(FileNotFoundError):
        nr.plan(model, "missing.toml")


def mean_magnitude(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
    """A method of one's own: ternary codes about the mean magnitude of 128 columns."""
    assert x.dtype == np.float32 and context.importance == [None]
    groups = x.reshape(len(x), -1, 128)
    scale = np.abs(groups).mean(axis=2).astype(np.float16)
    codes = np.sign(groups) * (np.abs(groups) > scale[..., None].astype(np.float32) / 2)
    return nr.Tensor.from_words(
        context.format,
        context.shape,
        codes=codes.reshape(x.shape).astype(np.int8),
        scales=scale.view(np.uint16),
    )


def wrong_format(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
    return nr.quantize(x, "q4_g64_fp16")


def not_a_tensor(x: np.ndarray[Any, Any], context: Context) -> Any:
    return x


def failing(x: np.ndarray[Any, Any], context: Context) -> Any:
    raise ZeroDivisionError(context.name)


def test_callables_and_executors(model: Path, values: dict[str, Any], tmp_path: Path) -> None:
    rules = [nr.Rule(match="blk.*.up.weight", format="t2_g128_fp16", method=mean_magnitude), RULES[0]]
    files = []
    seen: list[tuple[int, int]] = []
    nr.convert(
        model, tmp_path / "0", rules, artifact_id=ID, progress=lambda done, total: seen.append((done, total))
    )
    files.append((tmp_path / "0").read_bytes())
    assert seen[-1][0] > 0 and all(a[0] <= b[0] for a, b in pairwise(seen))
    with ThreadPoolExecutor(3) as pool:
        nr.convert(model, tmp_path / "1", rules, artifact_id=ID, executor=pool, memory=300_000)
    files.append((tmp_path / "1").read_bytes())
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        nr.convert(model, tmp_path / "2", rules, artifact_id=ID, executor=pool, progress=lambda *_: None)
    files.append((tmp_path / "2").read_bytes())
    assert files[0] == files[1] == files[2]
    with nr.artifact.open(tmp_path / "0") as a:
        record = a.provenance["tensors"]["blk.0.up.weight"]
        assert re.fullmatch(r"callable:mean_magnitude@[0-9a-f]{12}", record["method"])
        assert record["error"]["mse"] > 0
        a["blk.0.up.weight"].validate()
    for method, error, text in (
        (wrong_format, nr.UnsupportedError, "gave q4_g64_fp16"),
        (not_a_tensor, nr.UnsupportedError, "gave ndarray"),
        (failing, ZeroDivisionError, "blk.0.up.weight"),
    ):
        rules = [nr.Rule(match="blk.*.up.weight", format="t2_g128_fp16", method=method)]
        with pytest.raises(error, match=text):
            nr.convert(model, tmp_path / "x", rules)
        with ThreadPoolExecutor(2) as pool, pytest.raises(error, match=text):
            nr.convert(model, tmp_path / "x", rules, executor=pool)
    last = [nr.Rule(match="norm", format="fp32", method=failing)]
    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError, match="norm"):
        nr.convert(model, tmp_path / "x", last, executor=pool)
    assert not (tmp_path / "x").exists()


def coarse(factor: float) -> Any:
    def method(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
        if context.name.startswith("blk.1"):
            raise RuntimeError("stopped")
        return nr.quantize(x * np.float32(factor), context.format)

    return method


def test_resume_tells_callables_apart(model: Path, tmp_path: Path) -> None:
    """By what they close over and their code, not by their names."""

    def rules(method: Any) -> list[nr.Rule]:
        return [nr.Rule(match="blk.*.up.weight", format="q4_g64_fp16", method=method)]

    def convert(method: Any) -> None:
        nr.convert(model, tmp_path / "x", rules(method), resume=True)

    with pytest.raises(RuntimeError, match="stopped"):
        convert(coarse(1.0))
    with pytest.raises(nr.UnsupportedError, match="recipe"):
        convert(coarse(0.5))
    with pytest.raises(nr.UnsupportedError, match="recipe"):
        convert(functools.partial(coarse(1.0)))
    with pytest.raises(RuntimeError, match="stopped"):
        convert(coarse(1.0))
    assert not (tmp_path / "x").exists()


def test_of_tasks_that_fail_together_the_first_is_reported(model: Path, tmp_path: Path) -> None:
    class AtOnce(Executor):
        """Tasks have all ended before anyone waits for them."""

        _max_workers = 6

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            future: Future[Any] = Future()
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future

    def fails(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
        raise ZeroDivisionError(context.name)

    # In which order finished tasks are looked at is chance: several times.
    for _ in range(8):
        with pytest.raises(ZeroDivisionError, match=r"blk\.0\.q\.weight"):
            nr.convert(
                model, tmp_path / "x", [nr.Rule(match="*", format="fp32", method=fails)], executor=AtOnce()
            )


def test_an_executor_that_cancels(model: Path, tmp_path: Path) -> None:
    release = Event()

    def slow(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
        release.wait(60)
        return nr.quantize(x, context.format)

    class Pool(ThreadPoolExecutor):
        """Shut down when its second task has come and waits for the first."""

        submitted = 0

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            future = super().submit(*args, **kwargs)
            self.submitted += 1
            if self.submitted == 2:
                self.shutdown(wait=False, cancel_futures=True)
                release.set()
            return future

    rules = [
        nr.Rule(match="blk.*.up.weight", format="q4_g64_fp16", method=slow),
        nr.Rule(match="*", drop=True),
    ]
    with pytest.raises(nr.UnsupportedError, match="blk.1.up.weight.*cancelled its work"):
        nr.convert(model, tmp_path / "x", rules, executor=Pool(1))
    assert not (tmp_path / "x").exists()


def test_reports_are_begun_first_and_written_whole(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.ninfer"
    for report, error in (
        (tmp_path / "none" / "r.json", FileNotFoundError),
        (out, nr.UnsupportedError),
        (model, FileExistsError),
    ):
        with pytest.raises(error):
            nr.convert(model, out, RULES, report=report)
        assert not out.exists()
    with pytest.raises(ZeroDivisionError):
        rule = nr.Rule(match="blk.*.up.weight", format="t2_g128_fp16", method=failing)
        nr.convert(model, out, [rule], report=tmp_path / "r.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf"]
    done = nr.convert(model, out, RULES, report=tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == done.report


def test_a_report_that_does_not_fit(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, report = tmp_path / "x.ninfer", tmp_path / "r.json"
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="the artifact is complete") as caught:
        nr.convert(model, out, RULES, report=report)
    assert caught.value.filename == str(report) and out.exists() and not report.exists()


def test_arguments_of_the_wrong_kind(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    for name in ("memory", "file_limit"):
        for value in (-1, 0, 1 << 70, "abc", 1.5):
            with pytest.raises(nr.UnsupportedError, match=name):
                nr.convert(model, out, RULES, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(nr.UnsupportedError, match="rules of type Rule, got str"):
        nr.plan(model, ["a"])  # type: ignore[list-item]
    with pytest.raises(nr.UnsupportedError, match="rows are two integers"):
        nr.plan(model, [nr.Rule(match="norm", format="fp32", rows=(0, 1.5))])  # type: ignore[arg-type]
    rule = nr.Rule(match="blk.0.q.weight", format="fp32", rows=(np.int64(0), np.int64(3)))  # type: ignore[arg-type]
    made = nr.plan(model, [rule])
    assert any(t["name"] == "blk.0.q.weight.rows.0-3" for t in made.tensors)
    for options in ({"skip_unsupported": True}, {"fp8_without_scale": True}):
        with pytest.raises(nr.UnsupportedError, match="options already"):
            nr.convert(made, out, **options)
    assert not out.exists()


def test_faults_of_a_recipe_name_its_file_and_all_rules(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[[rule]]\nmatch = "a"\nfoo = 1\n[[rule]]\nmatch = "b"\nformat = "nope"\nbar = 2\n')
    with pytest.raises(nr.UnsupportedError) as caught:
        nr.plan(model, recipe)
    message = str(caught.value)
    assert str(recipe) in message and all(
        word in message for word in ("foo", "nope", "bar", "rule 1", "rule 2")
    )


def test_errors_name_the_tensor_and_its_rows(values: dict[str, Any], tmp_path: Path) -> None:
    values["blk.1.k.weight"][2, 5] = np.nan
    nr.gguf.write(tmp_path / "m.gguf", {}, values)
    rules = [nr.Rule(stack="blk.1.{q,k}.weight", name="qk", format="q4_g64_fp16")]
    with pytest.raises(nr.UnsupportedError, match=r'tensor "blk\.1\.k\.weight".*row 2, column 5.*NaN'):
        nr.convert(tmp_path / "m.gguf", tmp_path / "x", rules)


def test_an_executor_sees_a_source_that_was_replaced(
    model: Path, values: dict[str, Any], tmp_path: Path
) -> None:
    rules = [nr.Rule(match="norm", format="bf16")]
    with ThreadPoolExecutor(2) as pool:
        nr.convert(model, tmp_path / "0", rules, executor=pool)
        model.unlink()
        nr.gguf.write(model, {}, {**values, "norm": -values["norm"]})
        nr.convert(model, tmp_path / "1", rules, executor=pool)
    with nr.artifact.open(tmp_path / "0") as a, nr.artifact.open(tmp_path / "1") as b:
        assert np.array_equal(a["norm"].dequantize(), -b["norm"].dequantize())


def test_importance_is_given_to_callables_and_recorded(model: Path, tmp_path: Path) -> None:
    weights = np.arange(128, dtype=np.float32)
    nr.gguf.write(
        tmp_path / "imatrix.gguf",
        {"general.type": "imatrix", "imatrix.datasets": ["calibration.txt"]},
        {
            "up.in_sum2": (weights * 4).reshape(1, -1),
            "up.counts": np.array([[4.0]], np.float32),
        },
    )
    got: list[Any] = []

    def method(x: np.ndarray[Any, Any], context: Context) -> nr.Tensor:
        got.append(context.importance)
        return nr.quantize(x, context.format, "grouped_search", importance=context.importance[0])

    recipe = nr.Recipe(
        [nr.Rule(match="blk.{n}.up.weight", format="q4_g64_fp16", method=method, importance="required")],
        importance_names=[("blk.{n}.up.weight", "up")],
    )
    done = nr.convert(model, tmp_path / "own", recipe, imatrix=tmp_path / "imatrix.gguf")
    assert len(got) == 2 and np.array_equal(got[0][0], weights)
    assert done.report["importance"]["datasets"] == ["calibration.txt"]
    built_in = nr.Recipe(
        [
            nr.Rule(
                match="blk.{n}.up.weight",
                format="q4_g64_fp16",
                method="grouped_search",
                importance="required",
            )
        ],
        importance_names=recipe.importance_names,
    )
    other = nr.convert(model, tmp_path / "builtin", built_in, imatrix=tmp_path / "imatrix.gguf")
    digests = [{t["name"]: t["sha256"] for t in r["tensors"]} for r in (done.report, other.report)]
    assert digests[0] == digests[1]
    record = next(t for t in other.report["tensors"] if t["name"] == "blk.0.up.weight")
    assert record["from"][0]["importance"] == {
        "channels": 128,
        "experts": 1,
        "experts_without_data": 0,
        "zero_sums": 1,
    }
    assert 0 < record["error"]["weighted_relative_rms"] < 0.2
    # FR-46: with which data and how, and nothing but the run differs between two runs.
    importance = other.report["importance"]
    assert importance["sha256"] == hashlib.sha256((tmp_path / "imatrix.gguf").read_bytes()).hexdigest()
    assert importance["entries"] == 1 and record["method"] == "grouped_search"
    again = nr.convert(
        model, tmp_path / "again", built_in, imatrix=tmp_path / "imatrix.gguf", threads=1, memory=300_000
    )
    differ = {k for k in other.report if other.report[k] != again.report[k]}
    assert differ <= {"run", "files"} and set(again.report) == set(other.report)


def test_stopping_leaves_nothing_or_what_resume_needs(model: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        nr.convert(model, tmp_path / "x", RULES, progress=stop)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    with pytest.raises(KeyboardInterrupt):
        nr.convert(model, tmp_path / "x", RULES, progress=stop, resume=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.journal", ".x.resume", *before]
    with pytest.raises(nr.UnsupportedError, match="another plan"):
        nr.convert(model, tmp_path / "x", RULES[:1], resume=True)
    nr.convert(model, tmp_path / "x", RULES, resume=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [*before, "x"]
    with pytest.raises(FileExistsError):
        nr.convert(model, tmp_path / "x", RULES)
    with pytest.raises(nr.UnsupportedError, match="more than the budget of 1000"):
        nr.convert(model, tmp_path / "y", RULES, memory=1000)


def test_command_line(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    out, report = tmp_path / "out.ninfer", tmp_path / "report.json"
    result = run("convert", model, out, "--recipe", recipe, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "grouped_search" in result.output and "nothing was written" in result.output
    assert "bits per weight" in result.output and not out.exists()
    document = json.loads(run("convert", model, out, "--recipe", recipe, "--dry-run", "--json").output)
    assert {t["name"] for t in document["tensors"]} >= {"blk.0.qk", "norm"}
    result = run(
        "convert", model, out, "--recipe", recipe, "--report", report, "--memory", "1MiB", "--threads", 1
    )
    assert result.exit_code == 0, result.output
    assert "bits per weight" in result.output
    written = json.loads(report.read_text())
    record = next(t for t in written["tensors"] if t["name"] == "blk.0.up.weight")
    assert len(record["sha256"]) == 64 and record["error"]["snr_db"] > 15
    assert written["run"]["buffer_bytes"] <= 1 << 20
    assert run("verify", out, "--values").exit_code == 0
    assert run("convert", model, tmp_path / "new", "--recipe", recipe, "--report", report).exit_code == 2
    assert not (tmp_path / "new").exists()
    recipe.write_text(
        "[[rule]]\nmatch = 'norm'\nformat = 'q4_g64_fp16'\n[[rule]]\nmatch = 'zz'\nformat = 'bf16'"
    )
    result = run("convert", model, tmp_path / "new", "--recipe", recipe)
    assert result.exit_code == 1
    assert "rank 1" in result.output and 'rule 2 ("zz") matches no tensor' in result.output
    recipe.write_text("[[rule]\n")
    assert run("convert", model, tmp_path / "new", "--recipe", recipe).exit_code == 1
    assert run("convert", model, tmp_path / "new", "--memory", "lots").exit_code == 2
    assert not (tmp_path / "new").exists()


def test_requantising_warns(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    q = nr.quantize(x, "gguf_q8_0", "gguf_search")
    nr.gguf.write(tmp_path / "m.gguf", {}, {"w": q})
    (tmp_path / "r.toml").write_text("[[rule]]\nmatch = 'w'\nformat = 'q4_g64_fp16'")
    result = run("convert", tmp_path / "m.gguf", tmp_path / "o", "--recipe", tmp_path / "r.toml")
    assert result.exit_code == 0 and "the source is quantised already (Q8_0)" in result.output
    with nr.artifact.open(tmp_path / "o") as a:
        assert a.provenance["tensors"]["w"]["warnings"] == ["the source is quantised already (Q8_0)"]


def test_safetensors_from_the_command_line(values: dict[str, Any], tmp_path: Path) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, value in values.items():
        span = [len(data), len(data) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": span}
        data += value.tobytes()
    text = json.dumps(header).encode()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text('{"model_type": "small"}')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    for i, source in enumerate((folder, folder / "model.safetensors")):
        assert run("convert", source, tmp_path / f"kept{i}").exit_code == 0
        assert run("convert", source, tmp_path / f"made{i}", "--recipe", recipe).exit_code == 0
    with nr.artifact.open(tmp_path / "kept0") as a:
        assert all(np.array_equal(a[n].dequantize(), v) for n, v in values.items())
        assert a.components["text"]["config"] == {"model_type": "small"}
    with nr.artifact.open(tmp_path / "made0") as a:
        expected = nr.quantize(
            values["blk.0.up.weight"], "q4_g64_fp16", "grouped_search", negative_scales=True
        )
        assert np.array_equal(a["blk.0.up.weight"].payload, expected.payload)
