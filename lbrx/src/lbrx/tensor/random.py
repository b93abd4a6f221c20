"""Random tensors. The same seed gives the same numbers on every device and in every shape."""

from __future__ import annotations

import math
import os
import threading
from typing import Any

from lbrx import dtype as dt
from lbrx.dtype import DtypeLike
from lbrx.errors import TraceError
from lbrx.ops import TABLE
from lbrx.ops.random import WORDS
from lbrx.shape import Sizes, as_shape
from lbrx.tensor import placement as devices
from lbrx.tensor.core import Tensor
from lbrx.tensor.number import traced_function

_lock = threading.Lock()
_seed = int.from_bytes(os.urandom(8), "little")
_offset = 0


def seed(value: int) -> None:
    """Begin again: what follows depends on the value only."""
    global _seed, _offset
    with _lock:
        _seed, _offset = value & (1 << 64) - 1, 0


def _draw(name: str, shape: Sizes, device: str | None, **attributes: Any) -> Tensor:
    global _offset
    if (function := traced_function()) is not None:
        raise TraceError(
            f"{function} draws random numbers, which each call would repeat: draw them outside and "
            "give them to the compiled function"
        )
    sizes = as_shape(shape)
    with _lock:
        attributes |= {"shape": sizes, "seed": _seed, "offset": _offset}
        _offset += -(-math.prod(sizes) // WORDS)
    target = devices.get(device or devices.default_device())
    (array,) = target.run(TABLE[name], [], attributes)
    return Tensor(array)


def uniform(
    shape: Sizes,
    low: float = 0,
    high: float = 1,
    dtype: DtypeLike = dt.float32,
    device: str | None = None,
) -> Tensor:
    """Evenly from [low, high)."""
    return _draw("random_uniform", shape, device, dtype=dtype, low=low, high=high)


def normal(
    shape: Sizes,
    mean: float = 0,
    std: float = 1,
    dtype: DtypeLike = dt.float32,
    device: str | None = None,
) -> Tensor:
    """Normally distributed."""
    return _draw("random_normal", shape, device, dtype=dtype, mean=mean, std=std)


def bernoulli(shape: Sizes, p: float = 0.5, device: str | None = None) -> Tensor:
    """True with probability p."""
    if not 0 <= p <= 1:
        raise ValueError(f"p={p} is no probability: give a number from 0 to 1")
    return _draw("random_bernoulli", shape, device, p=p)
