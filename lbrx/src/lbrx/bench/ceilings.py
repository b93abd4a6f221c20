"""What the machine allows, measured beside each case at the size of its working set.

Memory: a copy by the device's own copy engine and, where the device is the processor, by threads of
the host. Arithmetic: a matrix product by MPS and, where the device is the processor, by BLAS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import lbrx
from lbrx.bench.timing import Timing, Work
from lbrx.kernels import forced
from lbrx.metal import Context

SMALL = 4 << 20  # bytes below which starting threads costs more than they gain
SIDES = 512, 2048  # smallest and largest matrix of the product that measures arithmetic


@dataclass(frozen=True)
class Ceiling:
    """A work that reaches a limit of the machine."""

    kind: str  # "copy", "read" or "product"
    work: Work
    amount: float
    """Bytes that a call moves, or operations that it computes."""


@dataclass(frozen=True)
class Limits:
    """The limits of one case."""

    bandwidth: float  # bytes per second
    peak: float | None  # operations per second; None where arithmetic was not measured

    def seconds(self, nbytes: float, operations: float) -> float:
        """The least time that the limits allow."""
        memory = nbytes / self.bandwidth
        return max(memory, operations / self.peak) if self.peak else memory


class CeilingMaker:
    """Makes the ceilings of cases. `threads` are those that the device uses."""

    def __init__(self, gpu: Context, threads: int) -> None:
        self._gpu = gpu
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        self._pool.shutdown()

    def of(
        self, nbytes: float, operations: float, reads: bool, dtype: str, side: int = 0
    ) -> dict[str, Ceiling]:
        """Ceilings for a kernel that moves `nbytes` and computes `operations`. With `reads` it
        writes little, so that a plain read is a ceiling too. `side` is that of a square product;
        0 takes matrices of the same bytes."""
        half = max(4096, int(nbytes / 2) // 8 * 8)
        made = {"device copy": self._device_copy(half)}
        if not self._gpu.info.simd_hardware:
            made["host copy"] = self._host_copy(half)
            if reads:
                made["host read"] = self._host_read(2 * half)
        if operations:
            if not side:
                side = int(min(max((nbytes / 12) ** 0.5, SIDES[0]), SIDES[1])) // 32 * 32
            if self._gpu.info.simd_hardware:
                made["device product"] = self._device_product(side, dtype)
            else:  # a processor computes narrow types in float32
                made["device product"] = self._device_product(side, "float32")
                made["host product"] = self._host_product(side)
        return made

    def _device_copy(self, size: int) -> Ceiling:
        gpu = self._gpu
        source, target = gpu.buffer(size), gpu.buffer(size)

        def work() -> None:
            gpu.queue.copy(source, target)
            gpu.queue.wait()

        return Ceiling("copy", work, 2.0 * size)

    def _host_copy(self, size: int) -> Ceiling:
        source = np.ones(size // 8, np.int64)
        target = np.empty_like(source)
        work = self._spread(lambda part: np.copyto(target[part], source[part]), source)
        return Ceiling("copy", work, 2.0 * source.nbytes)

    def _host_read(self, size: int) -> Ceiling:
        source = np.ones(size // 8, np.int64)
        work = self._spread(lambda part: source[part].sum(), source)
        return Ceiling("read", work, float(source.nbytes))

    def _spread(self, function: Callable[[slice], Any], array: np.ndarray[Any, Any]) -> Work:
        """The function over parts of an array, each in a thread of its own if it is large."""
        count = 1 if array.nbytes < SMALL else self.threads
        step = -(-array.size // count)
        parts = [slice(i * step, (i + 1) * step) for i in range(count)]
        if count == 1:
            return lambda: function(parts[0])
        return lambda: list(self._pool.map(function, parts))

    def _host_product(self, side: int) -> Ceiling:
        x = np.ones((side, side), np.float32)
        out = np.empty_like(x)
        return Ceiling("product", lambda: np.matmul(x, x, out=out), 2.0 * side**3)

    def _device_product(self, side: int, dtype: str) -> Ceiling:
        x = lbrx.ones((side, side), dtype=dtype, device="metal")
        lbrx.eval(x)

        def work() -> None:
            with forced(matmul="mps"):
                lbrx.eval(x @ x)

        return Ceiling("product", work, 2.0 * side**3)


def limits(ceilings: dict[str, Ceiling], timings: dict[str, Timing]) -> Limits:
    """The highest rates that any of them reached in its best round."""

    def best(*kinds: str) -> list[float]:
        return [c.amount / timings[n].best for n, c in ceilings.items() if c.kind in kinds]

    return Limits(max(best("copy", "read")), max(best("product"), default=None))


def device_threads(gpu: Context) -> int:
    """Threads that peers on the processor get: those of a soft device, else all of the process."""
    if gpu.info.soft and gpu.info.cores and not gpu.info.simd_hardware:
        return gpu.info.cores
    # macOS has no affinity of processes.
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
