"""Values of the six grouped signed-integer formats (format specification, sections 3.2, 5 and 6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import floats


def scales_per_weight(scales: npt.NDArray[np.uint16], group: int, k: int) -> npt.NDArray[np.float32]:
    """Binary16 scale words [N, ceil(K / group)] -> each weight's scale, float32 [N, K]."""
    return np.repeat(floats.f16_to_f32(scales), group, axis=1)[:, :k]


def decode(
    codes: npt.NDArray[np.int8], scales: npt.NDArray[np.uint16], group: int
) -> npt.NDArray[np.float32]:
    """binary32(s32 * binary32(q)) of codes [N, K] and scale words [N, ceil(K / group)] -> float32 [N, K]."""
    with np.errstate(all="ignore"):
        return scales_per_weight(scales, group, codes.shape[1]) * codes.astype(np.float32)
