"""`.ninfer` artifacts from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr
from ninfer_rs import artifact
from support import NAMES, random_words, same, shape_for

TEXT = {"text": {"config": {"layers": 2, "name": "grüße", "big": 2**64 - 1, "deep": [1, [2.5, None]]}}}


def all_formats() -> dict[str, nr.Tensor]:
    return {
        n: random_words(n, shape_for(n, 256 if n == "nvfp4" else 3, 130), divisors=2 if n == "nvfp4" else 1)
        for n in NAMES
    }


def write(path: Path, tensors: dict[str, nr.Tensor], **options: Any) -> artifact.Written:
    with nr.artifact.Writer(path, components=TEXT, **options) as w:
        for name, t in tensors.items():
            w.add_tensor(name, t)
        w.add_resource("notes", b"hello")
        return w.finish()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    tensors: dict[str, Any] = {n: random_words(n, shape_for(n, 3)) for n in NAMES if n.startswith("gguf_")}
    tensors |= {"f32": np.ones((2, 3), np.float32), "f16": np.full((2, 3), 0.1, np.float16)}
    nr.gguf.write(path, {"general.architecture": "test"}, tensors)
    return path


@pytest.mark.parametrize("limit", [None, 12288])
def test_round_trip(tmp_path: Path, limit: int | None) -> None:
    tensors = all_formats()
    written = write(tmp_path / "m.ninfer", tensors, file_limit=limit, artifact_id=b"0123456789abcdef")
    assert written.artifact_id == b"0123456789abcdef" and written.files[0] == str(tmp_path / "m.ninfer")
    assert (len(written.files) > 3) == (limit is not None)
    assert written.bytes == sum(Path(p).stat().st_size for p in written.files)
    with nr.artifact.open(tmp_path / "m.ninfer") as a:
        assert list(a) == list(tensors) and len(a) == 30 and "notes" not in a and "bf16" in a
        assert a.artifact_id == written.artifact_id and a.files == written.files
        for name, t in tensors.items():
            assert a[name].format is t.format and a[name].shape == t.shape and a[name].divisors == t.divisors
            assert same(a[name].payload, t.payload) and a[name].name == name
            assert a.bindings[name] == {"object": name}
        assert a.resource("notes") == b"hello" and a.objects["notes"].encoding == "raw_bytes_v1"
        assert a.components == TEXT and a.uses == [] and a.metadata == {} and a.provenance == {}
        assert a.verify_structure().ok and a.verify_values().ok
        kept = a["gguf_q4_k"]
    assert same(kept.payload, tensors["gguf_q4_k"].payload)
    with pytest.raises(nr.UnsupportedError, match="is closed"):
        a["bf16"]


def test_payloads_in_one_file_are_not_copied(tmp_path: Path) -> None:
    write(tmp_path / "m.ninfer", all_formats())
    a = nr.artifact.open(tmp_path / "m.ninfer")
    assert np.shares_memory(a["fp32"].payload, a.payload("fp32"))
    assert not a["fp32"].payload.flags.writeable


def test_everything_the_directory_holds(tmp_path: Path) -> None:
    bindings = {
        "whole": {"object": "w"},
        "parts": {"parts": [{"object": "w", "range": [0, 64]}, {"object": "w", "range": [64, 128]}]},
    }
    uses = [
        {
            "parameter": "whole",
            "input": "x",
            "activation_policy": "AllowA8",
            "auxiliaries": {"scale": {"object": "s"}},
        }
    ]
    components = {
        "text": {"config": {}, "resources": {"tokenizer": "r"}, "proposal": {"domain": "indexed", "rows": 3}}
    }
    with nr.artifact.Writer(
        tmp_path / "m.ninfer",
        components=components,
        bindings=bindings,
        uses=uses,
        metadata={"name": "m"},
        provenance={"tool": "test", "pi": 3.25},
    ) as w:
        w.add_tensor("w", random_words("q4_g64_fp16", (2, 64)))
        w.add_tensor("s", random_words("fp32", (1, 1)))
        w.add_resource("r", np.arange(3, dtype=np.uint8))
    with nr.artifact.open(tmp_path / "m.ninfer") as a:
        assert a.bindings == bindings and a.uses == uses and a.components == components
        assert a.metadata == {"name": "m"} and a.provenance == {"tool": "test", "pi": 3.25}


def bad_writer(path: Path, **options: Any) -> None:
    options = {"components": TEXT} | options
    with nr.artifact.Writer(path, **options) as w:
        w.add_tensor("w", random_words("q4_g64_fp16", (2, 64)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"components": {}}, "text"),
        ({"components": {"text": {}}}, r"missing \['config'\]"),
        ({"components": {"text": {"config": {}, "x": 1}}}, r"unknown \['x'\]"),
        ({"components": {"text": {"config": {"x": float("nan")}}}}, "config is not JSON"),
        ({"components": {"text": {"config": {"x": object()}}}}, "config is not JSON"),
        ({"components": {"text": {"config": {}, "proposal": {"domain": "half"}}}}, "a proposal is"),
        ({"bindings": {"w": {"object": "absent"}}}, "absent"),
        ({"bindings": {"w": {"parts": [{"object": "w", "range": [0, 129]}]}}}, "129|128"),
        ({"bindings": {"w": {"parts": [{"object": "w"}]}}}, r"missing \['range'\]"),
        ({"uses": [{"parameter": "w", "input": "x", "activation_policy": "A4"}]}, "is none of A16Only"),
        ({"metadata": {"name": ""}}, "name"),
        ({"artifact_id": b"short"}, "16 bytes, got 5"),
        ({"file_limit": 100}, "leaves no room"),
    ],
)
def test_bad_plans_leave_nothing(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(nr.NinferError, match=text):
        bad_writer(tmp_path / "m.ninfer", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_inside_the_writer_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="mine"),
        nr.artifact.Writer(tmp_path / "m.ninfer", components=TEXT) as w,
    ):
        w.add_tensor("w", random_words("bf16", (2, 64)))
        raise RuntimeError("mine")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        bad_writer(path)
    assert path.read_bytes() == b"precious" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_what_a_progress_callback_raises_stops_and_leaves_nothing(
    error: BaseException, tmp_path: Path, model: Path
) -> None:
    calls: list[tuple[int, int]] = []

    def step(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 2:
            raise error

    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(type(error)), nr.gguf.open(model) as g:
        nr.artifact.convert(g, out / "m.ninfer", progress=step)
    assert list(out.iterdir()) == [] and len(calls) == 2 and calls[0][0] == 0
    calls.clear()
    with pytest.raises(type(error)):
        write(out / "m.ninfer", all_formats(), progress=step)
    assert list(out.iterdir()) == []


def test_conversion(tmp_path: Path, model: Path) -> None:
    steps: list[tuple[int, int]] = []
    with nr.gguf.open(model) as g:
        plan = nr.artifact.plan(g)
        assert len(plan.tensors) == 20 and plan.skipped == [] and plan.resources[0][0] == "gguf.metadata"
        assert {t.name: t.format for t in plan.tensors}["f16"] == "fp32"
        written = nr.artifact.convert(g, tmp_path / "m.ninfer", progress=lambda d, t: steps.append((d, t)))
        assert steps[-1] == (plan.payload_bytes, plan.payload_bytes)
        a = nr.artifact.open(written.files[0])
        for name, t in g.items():
            if name == "f16":
                assert same(a[name].dequantize(), t.array().astype(np.float32))
            else:
                assert same(a[name].payload, t.blocks.reshape(-1))
        report = a.compare(g)
        assert report.ok and report.equal == 20 and report.skipped == []
        assert a.components["text"]["config"]["general.architecture"] == "test"


def test_differences_are_located(tmp_path: Path, model: Path) -> None:
    with nr.gguf.open(model) as g:
        nr.artifact.convert(g, tmp_path / "m.ninfer")
        t = g["gguf_q4_k"]
        at = t.offset + 144 + 7
    data = bytearray(model.read_bytes())
    data[at] ^= 1
    (tmp_path / "flipped.gguf").write_bytes(data)
    with nr.artifact.open(tmp_path / "m.ninfer") as a, nr.gguf.open(tmp_path / "flipped.gguf") as g:
        report = a.compare(g)
    assert not report.ok and [name for name, _ in report.differences] == ["gguf_q4_k"]
    assert "row 1, block 0" in report.differences[0][1]


def test_refusals_list_every_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    nr.gguf.write(
        path, {}, {"ok": np.ones(2, np.float32), "one": ("Q4_1", (1, 32), bytes(20)), "two": np.zeros(1)}
    )
    with nr.gguf.open(path) as g:
        for call in (lambda: nr.artifact.plan(g), lambda: nr.artifact.convert(g, tmp_path / "out.ninfer")):
            with pytest.raises(nr.UnsupportedError, match=r"(?s)one.*Q4_1.*two.*F64"):
                call()
        assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
        plan = nr.artifact.plan(g, skip_unsupported=True)
        assert [s.name for s in plan.skipped] == ["one", "two"] and len(plan.tensors) == 1
        nr.artifact.convert(g, tmp_path / "out.ninfer", skip_unsupported=True)
        with nr.artifact.open(tmp_path / "out.ninfer") as a:
            assert a.compare(g).skipped == ["one", "two"] and a.compare(g).ok


def test_violations_are_reported_per_tensor(tmp_path: Path) -> None:
    good, bad = random_words("q8_g32_fp16", (4, 64)), np.array(random_words("q8_g32_fp16", (4, 64)).payload)
    bad[130] = 0x80
    nan = np.array([[1.0, np.nan], [np.inf, 1.0]], np.float32).view(np.uint32)
    write(
        tmp_path / "m.ninfer",
        {
            "good": good,
            "bad": nr.Tensor.from_payload("q8_g32_fp16", (4, 64), bad),
            "nan": nr.Tensor.from_words("fp32", (2, 2), words=nan),
        },
    )
    with nr.artifact.open(tmp_path / "m.ninfer") as a:
        report = a.verify_values()
        found = {t.id: t for t in report.tensors}
        assert not report.ok and report.problems == [] and report.bytes > 0
        assert found["good"].violations == [] and found["good"].non_finite is None
        assert found["bad"].violations == a["bad"].violations() and len(found["bad"].violations) == 1
        assert found["nan"].violations == [] and found["nan"].non_finite is not None
        assert found["nan"].non_finite == artifact.NonFinite(2, "column", 0, 1)


def test_refusals_of_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    with pytest.raises(FileNotFoundError):
        nr.artifact.open(path)
    for content, text in (
        (b"", "cut short|begins with"),
        (b"GGUF" + bytes(100), "not a .ninfer file"),
        (b"NINFER\0\1" + bytes(100), "version 1"),
        (b"NINFER\0\2" + bytes(100), "version 2; expected version 3"),
        (
            b"NINFER\0\3" + (8).to_bytes(8, "little") + bytes(16) + b'{"a": 1}' + bytes(9000),
            "components|member",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(nr.FileFormatError, match=text) as caught:
            nr.artifact.open(path)
        assert caught.value.path == str(path)
    path.unlink()
    write(path, {"w": random_words("bf16", (2, 64))})
    with nr.artifact.open(path) as a:
        with pytest.raises(nr.TensorNotFoundError, match='no object "v"'):
            a["v"]
        with pytest.raises(nr.UnsupportedError, match='object "notes" is a resource'):
            a["notes"]
        with pytest.raises(nr.UnsupportedError, match='object "w" is a tensor'):
            a.resource("w")


def test_missing_parts_are_found_when_needed(tmp_path: Path) -> None:
    written = write(tmp_path / "m.ninfer", all_formats(), file_limit=12288)
    Path(written.files[2]).unlink()
    a = nr.artifact.open(written.files[0])
    assert same(a["bf16"].payload, all_formats()["bf16"].payload)
    report = a.verify_structure()
    assert not report.ok and Path(written.files[2]).name in report.problems[0]
    with pytest.raises(OSError, match="part 2 is needed and cannot be opened"):
        for name in a:
            a[name]


def test_unknown_formats_are_listed_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    write(path, {"w": random_words("gguf_q8_0", (2, 32)), "v": random_words("bf16", (1, 2))})
    data = path.read_bytes().replace(b'"gguf_q8_0"', b'"gguf_q9_9"')
    path.write_bytes(data)
    with nr.artifact.open(path) as a:
        assert a.objects["w"].format == "gguf_q9_9" and len(a) == 2
        assert not a.verify_structure().ok
        with pytest.raises(nr.FileFormatError, match="gguf_q9_9"):
            a["w"]
        assert a["v"].shape == (1, 2)
