"""Exact numeric formats of quantised model weights: decode, verify, convert and multiply, on numpy arrays.

The same bits on every machine, instruction set and number of threads. ``nr.artifact``, ``nr.safetensors`` and
``nr.oracle`` are loaded when first used.
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
from .registry import FORMATS, LAYOUTS, Format, Layout, get_format
from .tensor import Tensor

if TYPE_CHECKING:
    from . import artifact, oracle, safetensors

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
    "ShapeError",
    "Tensor",
    "TensorNotFoundError",
    "UnknownFormatError",
    "UnsupportedError",
    "Violation",
    "__version__",
    "artifact",
    "get_format",
    "gguf",
    "imatrix",
    "import_encoded",
    "oracle",
    "q8_1",
    "quantize",
    "safetensors",
    "simd",
]

_LAZY = frozenset({"artifact", "oracle", "safetensors"})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | _LAZY)
