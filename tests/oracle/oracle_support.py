"""Loads the oracle from the source tree on its own, without the package around it and its native module."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "python" / "ninfer_rs" / "oracle"
GOLDEN = ROOT / "tests" / "data" / "golden"


def load_oracle() -> ModuleType:
    name = "ninfer_oracle_alone"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, ORACLE / "__init__.py", submodule_search_locations=[str(ORACLE)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


class Golden:
    """The golden files, parsed, and the hex reader that goes with them."""

    def __getitem__(self, name: str) -> Any:
        return json.loads((GOLDEN / f"{name}.json").read_text(encoding="ascii"))

    @staticmethod
    def array(text: str, dtype: str, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
        flat = np.frombuffer(bytes.fromhex(text), dtype=np.dtype(dtype).newbyteorder("<"))
        native = flat.astype(np.dtype(dtype))
        return native if shape is None else native.reshape(shape)


def bits(values: Any) -> np.ndarray[Any, Any]:
    """Binary32 words of float32 values; refuses other dtypes, so that nothing is rounded before comparing."""
    array = np.asarray(values)
    assert array.dtype == np.float32
    return np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
