"""The Tensor class, functions that create tensors, and devices."""

from lbrx.tensor import random
from lbrx.tensor.core import Metadata, Tensor
from lbrx.tensor.creation import (
    arange,
    asarray,
    concat,
    eye,
    from_dlpack,
    from_numpy,
    full,
    ones,
    stack,
    tensor,
    where,
    zeros,
)
from lbrx.tensor.placement import Device, default_device, devices, set_default_device

__all__ = [
    "Device",
    "Metadata",
    "Tensor",
    "arange",
    "asarray",
    "concat",
    "default_device",
    "devices",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "ones",
    "random",
    "set_default_device",
    "stack",
    "tensor",
    "where",
    "zeros",
]
