"""An independent reference of every operation, in plain numpy.

It is written from the format specification alone, keeps its own tables, and shares nothing with the native
code: parity tests compare the two with ``==``. It favours plainness over speed. Payloads are one-dimensional
uint8 arrays of exactly ``encoded_size`` bytes; shapes are row-major ``[N, K]`` with K the quantised axis.
Errors are ``OracleError`` (a ``ValueError``).
"""

from __future__ import annotations

from . import floats, imatrix
from .activations import Q8_1, q8_1
from .codec import decode_blocks, dequantize
from .encoders import METHODS, quantize
from .errors import InvalidWordsError, OracleError, ShapeError, UnknownFormatError, UnsupportedError
from .imports import import_encoded
from .layouts import LAYOUTS, OracleLayout, encoded_size, gather, gather_divisors, rows, words
from .products import Reference, fma, matmul, reference_product
from .registry import FORMATS, OracleFormat, get_format
from .validate import from_words, violations

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "METHODS",
    "Q8_1",
    "InvalidWordsError",
    "OracleError",
    "OracleFormat",
    "OracleLayout",
    "Reference",
    "ShapeError",
    "UnknownFormatError",
    "UnsupportedError",
    "decode_blocks",
    "dequantize",
    "encoded_size",
    "floats",
    "fma",
    "from_words",
    "gather",
    "gather_divisors",
    "get_format",
    "imatrix",
    "import_encoded",
    "matmul",
    "q8_1",
    "quantize",
    "reference_product",
    "rows",
    "violations",
    "words",
]
