"""Devices: what computes. One method each, so that another device is one more object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lbrx import env
from lbrx.dtype import parse
from lbrx.errors import DeviceError
from lbrx.kernels import MetalDevice
from lbrx.ops import Attributes, Op
from lbrx.storage import Array
from lbrx.storage.cpu import copied


class Device(Protocol):
    """Runs operations. The operation `copy` of an array elsewhere brings it to this device."""

    @property
    def name(self) -> str: ...

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        """Check the operands, compute, and return the results in memory of their own."""


class CpuDevice:
    """The definition of every operation: its numpy reference, at once."""

    name = "cpu"

    def run(
        self, op: Op, inputs: Sequence[Array | None], attributes: Attributes
    ) -> tuple[Array, ...]:
        results = op([None if x is None else x.numpy() for x in inputs], attributes)
        return tuple(copied(result, parse(result.dtype)) for result in results)


_DEVICES: dict[str, Device] = {"cpu": CpuDevice(), "metal": MetalDevice()}
_default: str | None = None


def get(name: str) -> Device:
    if name not in _DEVICES:
        raise DeviceError(f"there is no device {name!r}: use one of {', '.join(_DEVICES)}")
    return _DEVICES[name]


def default_device() -> str:
    """Where tensors are made unless told otherwise."""
    return _default or env.device() or "cpu"


def set_default_device(name: str | None) -> None:
    """Choose it for this process; None returns to LBRX_DEVICE or the best there is."""
    global _default
    _default = None if name is None else get(name).name
