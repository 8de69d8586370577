"""Values of the two row-scaled E4M3FN formats (format specification, section 3.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import floats


def scale_values(name: str, scales: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Row scale words [N] -> float32 [N]: bfloat16 or binary16 as the format's name says."""
    return floats.bf16_to_f32(scales) if name.endswith("_bf16") else floats.f16_to_f32(scales)


def decode(
    name: str, codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint16]
) -> npt.NDArray[np.float32]:
    """binary32(c32 * s32) of codes [N, K] and row scale words [N] -> float32 [N, K]."""
    with np.errstate(all="ignore"):
        return floats.e4m3_to_f32(codes) * scale_values(name, scales)[:, None]
