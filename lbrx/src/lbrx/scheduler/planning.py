"""The kernels of a graph on a device: fused, then grouped where the device gains by it."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.metal import DeviceInfo
from lbrx.scheduler.fusion import KernelPlan, plan
from lbrx.scheduler.graph import Node
from lbrx.scheduler.prologue import with_products
from lbrx.scheduler.row_writes import grouped


def planned(order: Sequence[Node], targets: Sequence[Node], info: DeviceInfo) -> list[KernelPlan]:
    """The kernels that compute the targets, in an order in which they can run."""
    kernels = grouped(plan(order, targets), targets, info)
    return with_products(kernels, targets, info)
