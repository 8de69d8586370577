"""ggml's own decoders, called through ctypes from the shared library that llama-cpp-python compiles."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import numpy as np

#: format -> the C function that decodes its blocks
DECODERS = {
    "gguf_q8_0": "dequantize_row_q8_0",
    "gguf_q4_0": "dequantize_row_q4_0",
    "gguf_q5_0": "dequantize_row_q5_0",
    "gguf_q2_0": "dequantize_row_q2_0",
    "gguf_q2_k": "dequantize_row_q2_K",
    "gguf_q3_k": "dequantize_row_q3_K",
    "gguf_q4_k": "dequantize_row_q4_K",
    "gguf_q5_k": "dequantize_row_q5_K",
    "gguf_q6_k": "dequantize_row_q6_K",
    "gguf_iq2_xxs": "dequantize_row_iq2_xxs",
    "gguf_iq2_xs": "dequantize_row_iq2_xs",
    "gguf_iq3_xxs": "dequantize_row_iq3_xxs",
    "gguf_iq1_s": "dequantize_row_iq1_s",
    "gguf_iq4_nl": "dequantize_row_iq4_nl",
    "gguf_iq3_s": "dequantize_row_iq3_s",
    "gguf_iq2_s": "dequantize_row_iq2_s",
    "gguf_iq4_xs": "dequantize_row_iq4_xs",
    "gguf_iq1_m": "dequantize_row_iq1_m",
}

#: format -> the number of its ggml type, for the formats that gguf_search makes
ENCODED = {
    "gguf_q8_0": 8,
    "gguf_q4_0": 2,
    "gguf_q5_0": 6,
    "gguf_iq4_nl": 20,
    "gguf_q4_k": 12,
    "gguf_q5_k": 13,
    "gguf_q6_k": 14,
    "gguf_iq4_xs": 23,
}


class Ggml:
    """The base library of the installed llama-cpp-python."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("llama-cpp-python is not installed; run `make test-real`")
        folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
        candidates = [p for p in sorted(folder.iterdir()) if p.name.startswith("libggml-base.")]
        if not candidates:
            raise RuntimeError(f"no libggml-base in {folder}")
        self.lib = ctypes.CDLL(str(candidates[0]))

    def dequantize(self, format_name: str, blocks: np.ndarray, values: int) -> np.ndarray:
        """Decodes ``values`` elements from uint8 blocks to float32."""
        function = getattr(self.lib, DECODERS[format_name])
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
        blocks = np.ascontiguousarray(blocks, np.uint8)
        out = np.empty(values, np.float32)
        function(blocks.ctypes.data, out.ctypes.data, values)
        return out

    def quantize(
        self, format_name: str, x: np.ndarray, importance: np.ndarray | None, out: np.ndarray
    ) -> None:
        """ggml's own quantiser: float32 [N, K] to uint8 blocks, on the calling thread."""
        function = self.lib.ggml_quantize_chunk
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
        function.restype = ctypes.c_size_t
        assert x.dtype == np.float32 and x.flags.c_contiguous and out.flags.c_contiguous
        weights = None if importance is None else importance.ctypes.data
        kind, (n, k) = ENCODED[format_name], x.shape
        done = function(kind, x.ctypes.data, out.ctypes.data, 0, n, k, weights)
        if done != out.nbytes:
            raise RuntimeError(f"ggml wrote {done} bytes of {out.nbytes}")
