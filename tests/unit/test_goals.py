"""benches/goals.py: what it sets a record's lines against."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("goals", ROOT / "benches" / "goals.py")
assert spec and spec.loader
goals = importlib.util.module_from_spec(spec)
sys.modules["goals"] = goals  # dataclasses look their module up
spec.loader.exec_module(goals)


def line(operation: str, kind: str, threads: int = 1, **figures: float) -> dict[str, Any]:
    both = figures | {f"{name} median": value for name, value in figures.items()}
    return {"operation": operation, "format": kind, "threads": threads} | both


LIMITS = {
    "1": {
        "store 64 MiB": 10.0,
        "read 8 MiB": 25.0,
        "fma 512-bit": 160.0,
        "int8 dot 512-bit": 600.0,
        "int8 maddubs 256-bit": 140.0,
    },
    "2": {"read 512 MiB": 20.0, "int8 dot 512-bit": 1200.0},
}
# A line and what is expected of it: figure and goal of each aim that it has.
CASES: list[tuple[dict[str, Any], list[tuple[float, float]]]] = [
    (line("decode to 64 MiB", "q4_K", ours=9.0), [(0.9, 0.9)]),
    (line("decode to 64 MiB", "iq3_s", ours=4.9), [(0.49, 0.5)]),
    (line("decode to cache", "q8_0", ours=20.0, ratio=1.9), [(1.9, 2.0)]),
    (line("matrix-vector", "q8_0", ours=20.0, ratio=1.2, prepared=22.0), [(1.2, 1.3), (1.1, 1.0)]),
    (line("matrix-vector, 1 GiB", "q5_0", 2, ours=14.0, prepared=16.999), [(0.7, 0.7), (0.84995, 0.85)]),
    (line("matrix-vector", "iq1_m", ratio=2.0), [(2.0, 2.0)]),
    (line("matrix-vector", "q2_0", ratio=14.0), [(14.0, 15.0)]),
    (line("matrix-vector", "q4_K", 2, ratio=1.0, prepared=30.0), []),
    (line("matrix-vector", "q6_g64_fp16", 2, ratio=0.9), [(0.9, 1.0)]),
    (line("matrix-vector, 1 GiB", "q4_K", 2, ours=14.0, prepared=16.0, ratio=1.5), [(0.7, 0.7), (0.8, 0.85)]),
    (line("matrix-vector, 1 GiB", "q2_K", 2, ours=14.0, prepared=16.0, ratio=1.5), [(0.8, 0.85)]),
    (line("matrix-vector, 1 GiB", "iq2_s", 2, ours=14.0, prepared=16.0, ratio=1.5), [(1.5, 2.0)]),
    (line("matrix-matrix, 16 columns", "q5_K", ours=300.0, ratio=3.0), [(0.5, 0.4)]),
    (line("matrix-matrix, 512 columns", "q5_K", 2, ours=600.0, ratio=3.0), [(0.5, 0.7)]),
    (
        line("matrix-matrix, 512 columns", "nvfp4", ours=300.0, ratio=3.0),
        [(0.5, 0.7), (3.0, 1.0)],
    ),
    (line("A16 matrix-vector", "fp8_e4m3fn_row_fp16", ratio=0.9), [(0.9, 1.0)]),
    (line("A16 matrix-vector", "bf16", ratio=0.9), []),
    (line("A16 matrix-matrix, 512 columns", "q8_0", ours=80.0), [(0.5, 0.7)]),
    # A limit of the line's own turns goes before the run's.
    (line("A16 matrix-matrix, 512 columns", "q8_0", ours=80.0, limit=100.0), [(0.8, 0.7)]),
    (line("matrix-vector", "q8_0", ratio=1.4, prepared=22.0, limit=50.0), [(1.4, 1.3), (0.55, 1.0)]),
    # A limit that was not measured.
    (line("A16 matrix-matrix, 512 columns", "q8_0", 2, ours=80.0), []),
]


@pytest.mark.parametrize(
    ("given", "expected"), CASES, ids=lambda c: c["operation"] if isinstance(c, dict) else ""
)
def test_goals_of_a_line(given: dict[str, Any], expected: list[tuple[float, float]]) -> None:
    found = list(goals.results({"isa": "amx_int8", "limits": LIMITS, "results": [given]}))
    assert [(round(r.figure, 9), r.goal) for r in found] == expected
    assert [r.met for r in found] == [figure >= goal for figure, goal in expected]


def test_avx2_is_measured_by_its_own_peak() -> None:
    lines = [
        line("matrix-matrix, 512 columns", "q8_0", ours=98.0),
        line("matrix-matrix, 16 columns", "q8_0", ours=98.0),
    ]
    [found] = goals.results({"isa": "avx2", "limits": LIMITS, "results": lines})
    assert found.operation == "matrix-matrix, 512 columns" and found.met and round(found.figure, 9) == 0.7


def test_missed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line("decode to cache", "q8_0", ratio=1.9), line("decode to cache", "q4_0", ratio=5.0)]
    lines[0] |= {"ratio median": 2.1}
    lines.append(line("decode to cache", "q5_K", ratio=1.999))
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"isa": "avx512_vnni", "limits": {}, "results": lines}))
    assert goals.main([str(path), "--missed"]) == 0
    out = capsys.readouterr().out
    assert "| decode to cache, 1 thread | times ggml | 1 of 3 | `q8_0` 1.90 (2), `q5_K` 1.999 (2) |" in out
    assert "| `q8_0` | 1.90 | 2.10 | 2 | missed, median not alike |" in out
    assert "`q4_0`" not in out
    assert goals.main([str(path)]) == 0
    assert "| `q4_0` | 5.00 | 5.00 | 2 | met |" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"isa": "avx2"}', '{"isa": "avx2", "results": [{}]}'])
def test_what_is_no_record(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    assert goals.main([str(path)]) == 1
    assert "not a record of benches/peers.py" in capsys.readouterr().err


def test_every_goal_has_lines_in_the_newest_record() -> None:
    path = sorted(goals.RECORDS.glob("*-peers.json"))[-1]
    record = json.loads(path.read_text())
    found = {(r.operation, r.what) for r in goals.results(record)}
    assert found == {(a.operation, a.what) for a in goals.aims(record["isa"])}
