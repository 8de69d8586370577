"""The examples of docs/python.md run, in order, beside the sample model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ninfer_rs as nr
from ninfer_rs.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.gguf").write_bytes((ROOT / "examples" / "sample.gguf").read_bytes())
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) >= 9
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), names)


def test_commands_and_errors_exist() -> None:
    assert set(re.findall(r"^\| `ninfer-rs (\w+)", PAGE, re.M)) == set(main.commands)
    for name in re.findall(r"^\| `(\w+Error)`", PAGE, re.M):
        assert issubclass(getattr(nr, name), nr.NinferError)
