"""A CpuExecutor with numpy arrays in its memory, for the executor tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from executor_kernels import compile_kernel
from numpy.typing import DTypeLike, NDArray

from softmetal.executors.cpu import CpuExecutor
from softmetal.types import Command, Completion, Dispatch


class Device:
    def __init__(self, threads: int, folder: Path) -> None:
        before = os.environ.get("SOFTMETAL_THREADS")
        os.environ["SOFTMETAL_THREADS"] = str(threads)
        self.executor = CpuExecutor()
        if before is None:
            del os.environ["SOFTMETAL_THREADS"]
        else:
            os.environ["SOFTMETAL_THREADS"] = before
        self.queue = self.executor.new_queue()
        self.folder = folder
        self.threads = threads

    def kernel(self, source: str) -> int:
        return self.executor.load(compile_kernel(source, self.folder))

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray:
        """An array in memory of the executor's; the address is `array.ctypes.data`."""
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        block = (ctypes.c_char * size).from_address(self.executor.allocate(size))
        return np.frombuffer(block, dtype, count=int(np.prod(shape))).reshape(shape)

    def array(self, values: object, dtype: DTypeLike) -> NDArray:
        source = np.asarray(values, dtype)
        result = self.zeros(source.shape, dtype)
        result[...] = source
        return result

    def outcome(self, commands: Sequence[Command]) -> Completion:
        ticket = self.executor.submit(self.queue, commands)
        completion = self.executor.wait(ticket, None)
        self.executor.forget(ticket)
        assert completion is not None
        return completion

    def run(self, *commands: Command) -> Completion:
        completion = self.outcome(commands)
        assert completion.error is None
        return completion

    def dispatch(
        self,
        source: str,
        grid: tuple[int, int, int],
        group: tuple[int, int, int],
        *arrays: NDArray,
        threadgroup: tuple[int, ...] = (),
    ) -> Completion:
        return self.run(Dispatch(self.kernel(source), grid, group, addresses(*arrays), threadgroup))


def addresses(*arrays: NDArray) -> tuple[int, ...]:
    return tuple(array.ctypes.data for array in arrays)
