"""Fixtures of the oracle's tests: the oracle loaded on its own, and the golden files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from oracle_support import Golden, load_oracle


@pytest.fixture(scope="session")
def oracle() -> Any:
    return load_oracle()


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden()
