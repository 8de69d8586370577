"""The native module. Internal: its functions do argument conversion only and may change at any time.

``_View`` is what every operation on a tensor takes: format index, shape and divisor count of the whole
payload, the payload, and the rows ``begin..end`` of it that are meant.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

__all__ = [
    "ArtifactFile",
    "Gguf",
    "ImatrixFile",
    "__version__",
    "artifact_write",
    "cast_bf16",
    "cast_f16",
    "cast_f32",
    "cast_f64",
    "cast_i64",
    "cast_u64",
    "check",
    "convert_plan",
    "convert_run",
    "decode_f32",
    "decode_half",
    "decode_i32",
    "encode_bf16",
    "encode_f16",
    "encode_f32",
    "encode_f64",
    "encoded_size",
    "encoders",
    "format_index",
    "formats",
    "gather_payload",
    "ggml_types",
    "gguf_write",
    "grouped_words",
    "import_blocks",
    "import_fp8_bf16",
    "import_fp8_f32",
    "import_nvfp4",
    "layouts",
    "matmul_bf16",
    "matmul_experts_bf16",
    "matmul_experts_f32",
    "matmul_f32",
    "nvfp4_words",
    "pack_grouped",
    "pack_nvfp4",
    "pack_row_scaled",
    "q8_1_bf16",
    "q8_1_f32",
    "row_scaled_words",
    "simd_forced",
    "simd_info",
    "simd_use",
    "slice_divisors",
    "slice_payload",
    "spans",
    "validate",
    "violations",
]

__version__: str

_U8 = npt.NDArray[np.uint8]
_U16 = npt.NDArray[np.uint16]
_View = tuple[int, tuple[int, ...], int, _U8, int, int]

# registry
def formats() -> list[
    tuple[
        str,
        str,
        str,
        float,
        int | None,
        int | None,
        int | None,
        int | None,
        int | None,
        int | None,
        int | None,
    ]
]: ...
def layouts() -> list[tuple[str, int, str]]: ...
def encoders() -> list[tuple[str, list[int], bool]]: ...
def format_index(name: str) -> int: ...
def encoded_size(format: int, shape: Sequence[int], divisors: int) -> int: ...

# tensors
def check(format: int, shape: Sequence[int], divisors: int, payload: _U8) -> int: ...
def spans(view: _View) -> list[tuple[int, int]]: ...
def slice_divisors(view: _View) -> int: ...
def slice_payload(view: _View) -> tuple[_U8, int]: ...
def gather_payload(view: _View, rows: npt.NDArray[np.uint64]) -> tuple[_U8, int]: ...
def validate(view: _View) -> None: ...
def violations(
    view: _View, limit: int
) -> list[tuple[str, int | None, int | None, int | None, int | None, int | None, int, str]]: ...
def grouped_words(view: _View) -> tuple[npt.NDArray[np.int8], _U16]: ...
def nvfp4_words(view: _View) -> tuple[_U8, _U8, npt.NDArray[np.uint32]]: ...
def row_scaled_words(view: _View) -> tuple[_U8, _U16]: ...
def pack_grouped(format: int, n: int, k: int, codes: npt.NDArray[np.int8], scales: _U16) -> _U8: ...
def pack_nvfp4(
    format: int, n: int, k: int, codes: _U8, scales: _U8, divisors: npt.NDArray[np.uint32]
) -> _U8: ...
def pack_row_scaled(format: int, n: int, k: int, codes: _U8, scales: _U16) -> _U8: ...
def decode_f32(view: _View, out: npt.NDArray[np.float32], threads: int | None) -> str: ...
def decode_half(view: _View, bfloat16: bool, out: _U16, threads: int | None) -> str: ...
def decode_i32(view: _View, out: npt.NDArray[np.int32], threads: int | None) -> str: ...

# products and instruction sets
def matmul_f32(
    view: _View, x: npt.NDArray[np.float32], a8: bool, out: npt.NDArray[np.float32], threads: int | None
) -> str: ...
def matmul_bf16(view: _View, x: _U16, a8: bool, out: npt.NDArray[np.float32], threads: int | None) -> str: ...
def matmul_experts_f32(
    view: _View,
    choices: tuple[int, npt.NDArray[np.uint64]],
    x: npt.NDArray[np.float32],
    a8: bool,
    out: npt.NDArray[np.float32],
    threads: int | None,
) -> str: ...
def matmul_experts_bf16(
    view: _View,
    choices: tuple[int, npt.NDArray[np.uint64]],
    x: _U16,
    a8: bool,
    out: npt.NDArray[np.float32],
    threads: int | None,
) -> str: ...
def q8_1_f32(x: npt.NDArray[np.float32], k: int) -> tuple[_U16, _U16, npt.NDArray[np.int8]]: ...
def q8_1_bf16(x: _U16, k: int) -> tuple[_U16, _U16, npt.NDArray[np.int8]]: ...
def simd_info() -> tuple[str, list[str], int]: ...
def simd_forced() -> str | None: ...
def simd_use(name: str | None) -> None: ...

# encoders
def cast_f64(format: int, shape: Sequence[int], values: npt.NDArray[np.float64]) -> _U8: ...
def cast_f32(format: int, shape: Sequence[int], values: npt.NDArray[np.float32]) -> _U8: ...
def cast_f16(format: int, shape: Sequence[int], values: _U16) -> _U8: ...
def cast_bf16(format: int, shape: Sequence[int], values: _U16) -> _U8: ...
def cast_i64(format: int, shape: Sequence[int], values: npt.NDArray[np.int64]) -> _U8: ...
def cast_u64(format: int, shape: Sequence[int], values: npt.NDArray[np.uint64]) -> _U8: ...

_Options = tuple[npt.NDArray[np.float32] | None, bool, int | None]

def encode_f64(
    format: int, method: str, shape: tuple[int, int], values: npt.NDArray[np.float64], options: _Options
) -> _U8: ...
def encode_f32(
    format: int, method: str, shape: tuple[int, int], values: npt.NDArray[np.float32], options: _Options
) -> _U8: ...
def encode_f16(format: int, method: str, shape: tuple[int, int], values: _U16, options: _Options) -> _U8: ...
def encode_bf16(format: int, method: str, shape: tuple[int, int], values: _U16, options: _Options) -> _U8: ...

# imports
def import_blocks(
    format: int, ggml_type: int, n: int, k: int, blocks: _U8, rows: npt.NDArray[np.uint64] | None
) -> _U8: ...
def import_fp8_bf16(n: int, k: int, codes: _U8, scales: _U16, scale_shape: Sequence[int]) -> _U8: ...
def import_fp8_f32(
    n: int, k: int, codes: _U8, scales: npt.NDArray[np.float32], scale_shape: Sequence[int]
) -> _U8: ...
def import_nvfp4(
    sources: Sequence[tuple[_U8, Sequence[int], _U8, Sequence[int], float, bool]],
) -> tuple[_U8, int]: ...

# GGUF
def ggml_types() -> list[tuple[int, str, int | None, int | None, int | None]]: ...
def gguf_write(
    path: str,
    metadata: Sequence[tuple[bytes, str, Any]],
    tensors: Sequence[tuple[bytes, int, Sequence[int], _U8]],
) -> None: ...

@final
class Gguf:
    def __new__(cls, paths: Sequence[str], listed: bool) -> Self: ...
    def shards(self) -> list[tuple[PathLike[str] | str, int, int, int, int, int]]: ...
    def warnings(self) -> list[str]: ...
    def tensors(
        self,
    ) -> list[tuple[bytes, tuple[int, ...], int, str, int | None, int, int, int | None, tuple[int, int]]]: ...
    def entries(self) -> list[tuple[bytes, str, str | None, int]]: ...
    def value(self, key: bytes) -> Any: ...
    def array_raw(self, key: bytes) -> tuple[int, int]: ...
    def array_offsets(self, key: bytes) -> npt.NDArray[np.uint64]: ...

# importance matrices
@final
class ImatrixFile:
    def __new__(cls, path: str) -> Self: ...
    def entries(self) -> list[tuple[bytes, int, int, list[int]]]: ...
    def form(self) -> str: ...
    def datasets(self) -> list[bytes]: ...
    def chunks(self) -> tuple[int | None, int | None]: ...
    def warnings(self) -> list[str]: ...
    def values(self, name: bytes, split: tuple[int, int] | None) -> npt.NDArray[np.float32]: ...
    def stored(self, name: bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]: ...

# artifacts
_Path = PathLike[str] | str
_Violation = tuple[str, int | None, int | None, int | None, int | None, int | None, int, str]
_Binding = tuple[str | None, Sequence[tuple[str, int, int]]]
_Progress = Callable[[int, int], object] | None
_ConvertOptions = tuple[bool, int | None, bytes | None]

@final
class ArtifactFile:
    def __new__(cls, path: str) -> Self: ...
    def artifact_id(self) -> bytes: ...
    def files(self) -> list[tuple[_Path, int]]: ...
    def file_bytes(self, index: int) -> int: ...
    def json_text(self) -> bytes: ...
    def payload_bytes(self) -> int: ...
    def objects(
        self,
    ) -> list[tuple[str, str, int, int, str | None, str | None, list[int] | None, int, str | None]]: ...
    def spans(self, id: str) -> list[tuple[int, int, int]]: ...
    def verify_structure(self) -> tuple[list[str], list[str], int]: ...
    def verify_values(
        self, limit: int, threads: int | None, progress: _Progress
    ) -> tuple[
        list[tuple[str, str, list[_Violation], bool, tuple[int, str, int, int] | None]], list[str], int
    ]: ...
    def compare(
        self, gguf: Gguf, progress: _Progress
    ) -> tuple[int, int, list[str], list[tuple[str, str]]]: ...

def artifact_write(
    path: str,
    objects: Sequence[tuple[str, tuple[int, tuple[int, ...], int] | None, _U8]],
    plan: tuple[
        Sequence[tuple[str, str, str | None, Sequence[tuple[str, str]], tuple[str, int | None] | None]],
        Sequence[tuple[str, _Binding]],
        Sequence[tuple[str, str, str | None, Sequence[tuple[str, _Binding]]]],
        str | None,
        str | None,
        bytes | None,
        int | None,
    ],
    progress: _Progress,
) -> tuple[list[_Path], int, bytes]: ...
def convert_plan(
    gguf: Gguf, args: _ConvertOptions
) -> tuple[
    list[tuple[str, str, list[int], int, str, list[int], int, str]],
    list[tuple[str, str, str]],
    list[tuple[str, int]],
    int,
]: ...
def convert_run(
    gguf: Gguf, path: str, args: _ConvertOptions, progress: _Progress
) -> tuple[list[_Path], int, bytes]: ...
