"""The Tensor class, functions that create tensors, and devices."""

from lbrx.tensors import random
from lbrx.tensors.core import Metadata, Tensor
from lbrx.tensors.creation import (
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
from lbrx.tensors.placement import Device, default_device, devices, set_default_device

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
