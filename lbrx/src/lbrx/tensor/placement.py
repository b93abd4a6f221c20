"""Devices: what computes. Two methods each, so that another device is one more object."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

import numpy as np

from lbrx import dtype as dt
from lbrx import env
from lbrx.device_info import DeviceInfo
from lbrx.dtype import Dtype
from lbrx.errors import DeviceError
from lbrx.memory.zero_copy import shareable_span
from lbrx.ops import Attributes, Op, Role
from lbrx.shape import Shape
from lbrx.storage import Array, HostCache, written_in_place
from lbrx.storage.cpu import allocate, copied

log = logging.getLogger("lbrx")


class Device(Protocol):
    """Runs operations. The operation `copy` of an array elsewhere brings it to this device."""

    @property
    def name(self) -> str: ...

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        """Check the operands, compute, and return the results in memory of their own."""

    def share(self, array: Array) -> Array | None:
        """An array of the host over the same memory here; None where that needs a copy."""

    def new_cache(self, shape: Shape, dtype: Dtype) -> Array:
        """Memory that `overwrite` writes in place, its contents undefined."""

    def write(self, cache: Array, values: Array) -> None:
        """Copy values, of this device or the host, into (part of) what `new_cache` made."""

    def keep(self, array: Array) -> Array:
        """An array, of another device or the host, in long-lived memory here: shared, or copied."""


class CpuDevice:
    """The definition of every operation: its numpy reference, at once."""

    name = "cpu"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        results = op([None if x is None else x.numpy() for x in inputs], attributes)
        for x, role in zip(inputs, op.roles(len(inputs)), strict=True):
            if role is Role.CACHE and x is not None and written_in_place(x):
                np.copyto(x.writable(), results[0])
                return (x,)
        return tuple(copied(result, dt.parse(result.dtype)) for result in results)

    def share(self, array: Array) -> Array | None:
        # What a GPU could not share is copied here too, so that devices differ in speed alone.
        data = array.storage.host()
        aligned = data.ctypes.data % array.dtype.itemsize == 0
        return array if aligned and shareable_span(data) is not None else None

    def new_cache(self, shape: Shape, dtype: Dtype) -> Array:
        memory = allocate(shape, dtype)
        return replace(memory, storage=HostCache(memory.storage.host()))

    def write(self, cache: Array, values: Array) -> None:
        np.copyto(cache.writable(), values.numpy())

    def keep(self, array: Array) -> Array:
        return array if array.storage.device == self.name else copied(array.numpy(), array.dtype)


NAMES = ("cpu", "metal")
_DEVICES: dict[str, Device] = {"cpu": CpuDevice()}
_default: str | None = None


def get(name: str) -> Device:
    """The device of that name; Metal's is imported when it is first asked for."""
    if name not in NAMES:
        raise DeviceError(f"there is no device {name!r}: use one of {', '.join(NAMES)}")
    if name not in _DEVICES:
        from lbrx.scheduler import MetalDevice  # imports the Metal backend

        _DEVICES[name] = MetalDevice()
    return _DEVICES[name]


def default_device() -> str:
    """Where tensors are made unless told otherwise."""
    return _default or env.device() or _best()


def set_default_device(name: str | None) -> None:
    """Choose it for this process; None returns to LBRX_DEVICE or the best there is."""
    global _default
    _default = None if name is None else get(name).name


@cache
def _best() -> str:
    """Metal where a device of it works, else the cpu."""
    try:
        from lbrx.metal import context

        context()
    except (DeviceError, ModuleNotFoundError) as problem:
        log.warning("tensors are made on the cpu: %s", problem)
        return "cpu"
    return "metal"


def devices() -> list[DeviceInfo]:
    """What there is to compute on, best first: Metal's devices, or the cpu where none works."""
    try:
        from lbrx.metal import devices as metal_devices

        return metal_devices() or [_cpu_info()]
    except (DeviceError, ModuleNotFoundError):
        return [_cpu_info()]


def _cpu_info() -> DeviceInfo:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceInfo(
        name="cpu",
        chip=None,
        soft=False,
        simd_hardware=False,
        family=0,
        cores=os.cpu_count(),
        bandwidth=None,
        fp32_peak=None,
        max_threads=1,
        threadgroup_memory=0,
        max_buffer=memory,
        working_set=memory,
        memory_limit=memory,
        unified_memory=True,
        simdgroup_matrix=False,
        bfloat=True,
        native_bfloat=False,
    )


def kept_dtype(dtype: Dtype, device: str) -> Dtype:
    """What an array's type becomes on a device unless told otherwise: Metal has no float64."""
    return dt.float32 if dtype is dt.float64 and device == "metal" else dtype
