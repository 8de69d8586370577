"""The examples of README.md run, in order, beside the files that `make demo` starts from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ninfer_rs as nr

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)


def test_readme_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from ninfer_rs.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes((ROOT / "examples" / "sample.gguf").read_bytes())
    result = CliRunner().invoke(main, ["convert", "model.gguf", "model.ninfer"])
    assert result.exit_code == 0, result.output
    assert len(BLOCKS) >= 5
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert isinstance(names["q4"], nr.Tensor)


def test_readme_commands_exist() -> None:
    from ninfer_rs.cli import main

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    used = set(re.findall(r"^ninfer-rs (\w+)", text, re.M))
    assert used and used <= set(main.commands)


def test_every_documentation_link_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
