"""The Metal device: Apple's on a Mac, softmetal elsewhere."""

from __future__ import annotations

from typing import Any

from lbrx.device_info import DeviceInfo
from lbrx.metal.buffer import Buffer
from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.context import Context, context, existing_context
from lbrx.metal.device import devices
from lbrx.metal.library import Pipeline
from lbrx.metal.synchronization import DeviceEvent, Fence

__all__ = [
    "Buffer",
    "CommandQueue",
    "Context",
    "DeviceEvent",
    "DeviceInfo",
    "Fence",
    "Pipeline",
    "context",
    "devices",
    "stats",
]


def stats() -> dict[str, Any]:
    """What this process has done: dispatches in all and by `kernel:variant`, and the pool's
    figures. It does not create a device."""
    made = existing_context()
    if made is None:
        kernels: dict[str, int] = {}
        pool = dict.fromkeys(("in_use", "cached", "high_water", "hits", "misses"), 0)
    else:
        kernels = made.queue.counts()
        pool = vars(made.pool.statistics())
    return {
        "dispatches": sum(kernels.values()),
        "kernels": kernels,
        "bytes_in_use": pool["in_use"],
        "bytes_cached": pool["cached"],
        "bytes_high_water": pool["high_water"],
        "pool_hits": pool["hits"],
        "pool_misses": pool["misses"],
    }
