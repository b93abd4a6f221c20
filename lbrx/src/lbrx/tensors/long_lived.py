"""Tensors in long-lived memory, which on Metal is cut from heaps: caches and weights."""

from __future__ import annotations

from dataclasses import replace

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, HostCache, MetalCache
from lbrx.errors import DtypeError, ShapeError
from lbrx.tensors import derived
from lbrx.tensors import placement as devices
from lbrx.tensors.core import Tensor


def new_cache(shape: Shape, dtype: Dtype, device: str) -> Tensor:
    """A tensor whose memory may be written, its contents undefined.

    It is the one kind of tensor that is not a value: `overwrite`, `overwrite_blocks` and `write`
    change it, and with it all its views, in place.
    """
    return Tensor(devices.get(device).new_cache(shape, dtype))


def write(cache: Tensor, values: Tensor) -> None:
    """Copy values of the same shape and type, on the cache's device or the host, into a view of
    what `new_cache` made. Operations on the cache that are still pending see the new values."""
    target = replace(cache.array, storage=cache.storage)
    if not isinstance(target.storage, HostCache | MetalCache):
        raise TypeError("the tensor is a value, which cannot be written: make it with new_cache")
    if values.shape != cache.shape:
        raise ShapeError(f"values of {values.shape} do not fit {cache.shape}: give that shape")
    if values.dtype is not cache.dtype:
        raise DtypeError(f"values of {values.dtype} do not fit a cache of {cache.dtype}: cast them")
    devices.get(cache.device).write(target, values.array)


def keep(tensor: Tensor, device: str) -> Tensor:
    """A tensor on a device for as long as a model is loaded. A mapped file is shared, and anything
    else copied once, to long-lived memory. Quantized values stay packed."""
    if tensor.device == device:
        return tensor

    def kept(array: Array) -> Array:
        return devices.get(device).keep(array)

    packed = derived.moved(tensor.array, kept)
    return Tensor(packed if packed is not None else kept(tensor.array), tensor.metadata)
