"""Exact numeric formats of quantised model weights: decode, verify, convert and multiply, on numpy arrays.

The same bits on every machine, instruction set and number of threads. ``nr.artifact``, ``nr.conversion``,
``nr.safetensors``, ``nr.sources`` and ``nr.oracle`` are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import gguf, imatrix, simd
from ._native import __version__
from .activations import Q8_1, q8_1
from .encoders import ENCODERS, quantize
from .errors import (
    FileFormatError,
    InternalError,
    InvalidTensorError,
    NinferError,
    ShapeError,
    TensorNotFoundError,
    UnknownFormatError,
    UnsupportedError,
    Violation,
)
from .imports import import_encoded
from .prepared import Prepared
from .registry import FORMATS, LAYOUTS, Format, Layout, get_format
from .tensor import Tensor

if TYPE_CHECKING:
    from . import artifact, conversion, oracle, safetensors, sources
    from .conversion import Recipe, Rule, convert, plan

__all__ = [
    "ENCODERS",
    "FORMATS",
    "LAYOUTS",
    "Q8_1",
    "FileFormatError",
    "Format",
    "InternalError",
    "InvalidTensorError",
    "Layout",
    "NinferError",
    "Prepared",
    "Recipe",
    "Rule",
    "ShapeError",
    "Tensor",
    "TensorNotFoundError",
    "UnknownFormatError",
    "UnsupportedError",
    "Violation",
    "__version__",
    "artifact",
    "conversion",
    "convert",
    "get_format",
    "gguf",
    "imatrix",
    "import_encoded",
    "oracle",
    "plan",
    "q8_1",
    "quantize",
    "safetensors",
    "simd",
    "sources",
]

_LAZY = frozenset({"artifact", "conversion", "oracle", "safetensors", "sources"})
_CONVERSION = frozenset({"Recipe", "Rule", "convert", "plan"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    if name in _CONVERSION:
        return getattr(importlib.import_module(".conversion", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | _LAZY | _CONVERSION)
