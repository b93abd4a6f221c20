"""Devices on which tensors live and operations run, and the choice of the default device."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

import numpy as np

from lbrx import env
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array, HostCache, written_in_place
from lbrx.arrays.storage.cpu import allocate, copied, enough_memory
from lbrx.device_info import DeviceInfo
from lbrx.errors import DeviceError
from lbrx.memory.zero_copy import shareable_span
from lbrx.ops import Attributes, Op, Role, Spec
from lbrx.process import memory_limit

log = logging.getLogger("lbrx")


class Device(Protocol):
    """A device that runs operations. `copy` of an array on another device brings it to this one."""

    @property
    def name(self) -> str:
        """The name for `device=`: "cpu" or "metal"."""

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        """Check the operands and return the results, in new memory. They may be computed later."""

    def share(self, array: Array) -> Array | None:
        """A host array on this device over the same memory; None if that is impossible."""

    def new_cache(self, shape: Shape, dtype: Dtype) -> Array:
        """Memory that `overwrite` writes in place, its contents undefined."""

    def write(self, cache: Array, values: Array) -> None:
        """Copy values, of this device or the host, into (part of) what `new_cache` made."""

    def keep(self, array: Array) -> Array:
        """An array, of another device or the host, in long-lived memory here: shared, or copied."""


class CpuDevice:
    """Runs the numpy references of the operations at once: they define every operation."""

    name = "cpu"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        specs = [None if x is None else Spec(x.layout.shape, x.dtype) for x in inputs]
        nbytes = sum(
            math.prod(spec.shape) * spec.dtype.itemsize for spec in op.infer(specs, attributes)
        )
        with enough_memory(nbytes):
            results = op([None if x is None else x.numpy() for x in inputs], attributes)
        for x, role in zip(inputs, op.roles(len(inputs)), strict=True):
            if role is Role.CACHE and x is not None and written_in_place(x):
                np.copyto(x.writable(), results[0])
                return (x, *(copied(result, dt.parse(result.dtype)) for result in results[1:]))
        return tuple(copied(result, dt.parse(result.dtype)) for result in results)

    def share(self, array: Array) -> Array | None:
        # Memory that a GPU could not share is copied here too, so that devices behave alike.
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
MADE: dict[str, Device] = {"cpu": CpuDevice()}
"""The devices that were used, by name."""
_default: str | None = None


def get(name: str) -> Device:
    """The device of that name, created at its first use; DeviceError for an unknown name."""
    if name not in NAMES:
        raise DeviceError(f"there is no device {name!r}: use one of {', '.join(NAMES)}")
    if name not in MADE:
        from lbrx.scheduler import MetalDevice  # imports the Metal backend

        MADE[name] = MetalDevice()
    return MADE[name]


def default_device() -> str:
    """The name of the device on which tensors are created unless `device` is given.

    It is the one of `set_default_device`, else of the environment variable LBRX_DEVICE, else
    "metal" if a Metal device works, else "cpu".
    """
    return _default or env.device() or _best()


def set_default_device(name: str | None) -> None:
    """Set the default device of this process, "cpu" or "metal"; None removes the setting.

    An unknown name raises DeviceError.
    """
    global _default
    _default = None if name is None else get(name).name


@cache
def _best() -> str:
    """ "metal" if a Metal device works, else "cpu"."""
    try:
        from lbrx.metal.device import default_device

        default_device()
    except (DeviceError, ModuleNotFoundError) as problem:
        log.warning("tensors are created on the cpu: %s", problem)
        return "cpu"
    return "metal"


def devices() -> list[DeviceInfo]:
    """Name, limits and speed of the available devices, best first.

    They are the Metal devices, or the cpu if there is none.
    """
    try:
        from lbrx.metal import devices as metal_devices

        return metal_devices() or [_cpu_info()]
    except (DeviceError, ModuleNotFoundError):
        return [_cpu_info()]


def _cpu_info() -> DeviceInfo:
    memory = memory_limit()
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
    """The dtype of an array's copy on a device: Metal has no float64, which becomes float32."""
    return dt.float32 if dtype is dt.float64 and device == "metal" else dtype
