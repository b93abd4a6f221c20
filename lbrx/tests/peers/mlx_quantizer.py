"""MLX's own quantizer, with numpy arrays on both sides."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def _numpy(array: Any) -> NDArray[Any]:
    """numpy cannot read MLX's bfloat16: its values pass through float32."""
    if array.dtype == mx.bfloat16:
        return np.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.array(array)


def mlx_parts(values: NDArray[Any], name: str) -> list[NDArray[Any]]:
    """Weight, scales, and biases where there are any, in a scheme such as `mlx:4:64`."""
    _, mode, *rest = name.split(":")
    settings = {"bits": int(mode), "group_size": int(rest[0])} if rest else {"mode": mode}
    array = mx.array(values.astype(np.float32)).astype(getattr(mx, values.dtype.name))
    return [_numpy(part) for part in mx.quantize(array, **settings)]
