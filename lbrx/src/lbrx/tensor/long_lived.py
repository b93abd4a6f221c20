"""Tensors in long-lived memory, which on Metal is cut from heaps: caches and weights."""

from __future__ import annotations

from lbrx.dtype import Dtype
from lbrx.shape import Shape
from lbrx.storage import Array
from lbrx.tensor import derived
from lbrx.tensor import placement as devices
from lbrx.tensor.core import Tensor


def new_cache(shape: Shape, dtype: Dtype, device: str) -> Tensor:
    """A tensor whose memory may be written, its contents undefined.

    It is the one kind of tensor that is not a value: `overwrite`, `overwrite_blocks` and `write`
    change it, and with it all its views, in place.
    """
    return Tensor(devices.get(device).new_cache(shape, dtype))


def write(cache: Tensor, values: Tensor) -> None:
    """Copy values of the same shape and type, on the cache's device or the host, into a view of
    what `new_cache` made. Operations on the cache that are still pending see the new values."""
    devices.get(cache.device).write(cache.array, values.array)


def keep(tensor: Tensor, device: str) -> Tensor:
    """A tensor of the host on a device for as long as a model is loaded. A mapped file is shared;
    anything else is copied once. Quantized values stay packed."""
    if tensor.device == device:
        return tensor

    def kept(array: Array) -> Array:
        return devices.get(device).keep(array)

    packed = derived.moved(tensor.array, kept)
    return Tensor(packed if packed is not None else kept(tensor.array), tensor.metadata)
