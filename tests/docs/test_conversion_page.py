"""The examples of docs/conversion.md run on a small model of such names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ninfer_rs as nr
from ninfer_rs.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "conversion.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    names = ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_up.weight")
    tensors = {name: random.normal(size=(4, 128)).astype(np.float32) for name in names}
    nr.gguf.write("model.gguf", {}, {**tensors, "blk.0.attn_norm.weight": np.ones(128, np.float32)})
    return tmp_path


def test_python_examples(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "conversion.md", "exec"), names)
    with nr.artifact.open("model.ninfer") as a:
        assert a["blk.0.ffn_up.weight"].format.name == "q4_g64_fp16"
        assert a["blk.0.attn_norm.weight"].format.name == "fp32"


def test_recipes_and_commands(folder: Path) -> None:
    recipes = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert len(recipes) == 3
    (folder / "recipe.toml").write_text(recipes[0], encoding="utf-8")
    commands = re.findall(r"^ninfer-rs (.*)$", PAGE, re.M)
    assert len(commands) == 4
    for command in commands:
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == int(command.startswith("compare")), result.output
    # The others are legal recipes whose names this model does not have.
    (folder / "recipe.toml").write_text(recipes[1], encoding="utf-8")
    with pytest.raises(nr.UnsupportedError, match="matches no tensor"):
        nr.plan("model.gguf", "recipe.toml")
    (folder / "recipe.toml").write_text(recipes[2], encoding="utf-8")
    assert len(nr.plan("model.gguf", "recipe.toml").tensors) == 4


def test_every_member_of_a_rule_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    fields = set(nr.Rule.__dataclass_fields__)
    assert fields - {"stack", "bind"} <= listed and "`bind`" in PAGE and "`stack`" in PAGE
