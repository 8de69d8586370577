"""Values of the direct formats bf16, fp32 and int32 (format specification, direct scalar formats)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import floats

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def decode(name: str, words: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 of uint16 bf16 words or uint32 fp32 words, same shape, exact (NaN payloads kept)."""
    if name == "bf16":
        return floats.bf16_to_f32(words)
    assert name == "fp32"
    return floats.f32_from_bits(words)
