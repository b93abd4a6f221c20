"""The Metal device: Apple's on a Mac, softmetal elsewhere."""

from __future__ import annotations

from typing import Any

from lbrx.device_info import DeviceInfo
from lbrx.metal.buffer import Buffer
from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.context import Context, context, existing_context
from lbrx.metal.device import devices
from lbrx.metal.library import Pipeline
from lbrx.metal.synchronization import DeviceEvent

__all__ = [
    "Buffer",
    "CommandQueue",
    "Context",
    "DeviceEvent",
    "DeviceInfo",
    "Pipeline",
    "context",
    "devices",
    "stats",
]


def stats() -> dict[str, Any]:
    """Counts and bytes of this process; no device is created for it.

    `dispatches` in total and `kernels` by `kernel:variant`; `bytes_in_use` by buffers,
    `bytes_cached` in free blocks of the pool, `bytes_heaps_idle` in heaps beside what buffers
    occupy; `bytes_reserved`, the sum of these, and `fragmentation`, the part of it that is not in
    use; `bytes_high_water` and `bytes_reserved_high_water`, the most ever in use and reserved;
    `pool_hits` and `pool_misses`.

    >>> before = lbrx.metal.stats()["dispatches"]
    >>> lbrx.eval(lbrx.arange(3, device="metal") + 1)
    >>> lbrx.metal.stats()["dispatches"] - before
    1
    """
    made = existing_context()
    if made is None:
        kernels: dict[str, int] = {}
        names = ("in_use", "cached", "heaps_idle", "high_water", "reserved_high_water")
        pool = dict.fromkeys((*names, "hits", "misses"), 0)
    else:
        kernels = made.queue.counts()
        pool = vars(made.pool.statistics())
    reserved = pool["in_use"] + pool["cached"] + pool["heaps_idle"]
    return {
        "dispatches": sum(kernels.values()),
        "kernels": kernels,
        "bytes_in_use": pool["in_use"],
        "bytes_cached": pool["cached"],
        "bytes_heaps_idle": pool["heaps_idle"],
        "bytes_reserved": reserved,
        "fragmentation": 1 - pool["in_use"] / reserved if reserved else 0.0,
        "bytes_high_water": pool["high_water"],
        "bytes_reserved_high_water": pool["reserved_high_water"],
        "pool_hits": pool["hits"],
        "pool_misses": pool["misses"],
    }
