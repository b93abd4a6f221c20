"""Calibration: a device's speeds, measured once by `lbrx tune` and used by estimates of costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.arrays.storage.cpu import copied
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, packed
from lbrx.device_info import Calibration, DeviceInfo
from lbrx.kernels.registry import FAMILIES, RUNNERS, Call, forced, operation
from lbrx.metal import Context, Pipeline, calibration_file
from lbrx.metal.arrays import empty, imported
from lbrx.metal.binding import Metal
from lbrx.metal.commands import Command
from lbrx.metal.library import PipelineRequest, generated
from lbrx.ops import TABLE, Spec
from lbrx.scheduler.running import ReadyList, ready
from lbrx.scheduler.tune import observed

ROUNDS = 5
PASSES = 4
LEAST_STREAMED = 1 << 20  # bytes: smaller results stay in the caches of any processor
THREADS = 1 << 18  # that multiply and add
DISPATCHES = 200


class Measured(NamedTuple):
    """What is measured on one kind of device."""

    copied: int  # bytes of an array, larger than the last cache
    writers: tuple[str, ...]  # variants that write it
    turns: int  # of a loop
    chains: int  # independent sums in it, which hide latency; wide vectors hold 4 to 16 of them
    halves: str
    pairs: int
    side: int  # of the square matrices that are multiplied


PROCESSOR = Measured(256 << 20, ("single", "streamed"), 32, 128, "half", 1, 1024)
GPU = Measured(1 << 30, ("chunks",), 8192, 8, "half2", 2, 4096)  # which multiplies halves in pairs
HOPELESS = 1e3  # variants of a higher estimated cost than this times the least are not measured

ARITHMETIC = """#include <metal_stdlib>
using namespace metal;
template <typename T>
kernel void chains(device T* out [[buffer(0)]], constant uint& turns [[buffer(1)]],
                   uint at [[thread_position_in_grid]]) {
  const T x = T(0.999f), y = T(float(at % 7) * 0.001f);
  T sums[CHAINS];
  for (uint i = 0; i < CHAINS; i++) sums[i] = T(float(i));
  for (uint turn = 0; turn < turns; turn++)
    for (uint i = 0; i < CHAINS; i++) sums[i] = sums[i] * x + y;
  T sum = T(0);
  for (uint i = 0; i < CHAINS; i++) sum += sums[i];
  out[at] = sum;
}
template [[host_name("chains_float32")]] kernel void chains<float>(
    device float*, constant uint&, uint);
template [[host_name("chains_float16")]] kernel void chains<HALVES>(
    device HALVES*, constant uint&, uint);
"""


def calibrate(gpu: Context) -> Calibration:
    """Measure the device, store the result, and let this context's estimates use it."""
    calibration = measured(gpu)
    calibration_file.write(gpu.info.measured_as, calibration)
    gpu.info = replace(gpu.info, calibration=calibration)
    return calibration


def measured(gpu: Context) -> Calibration:
    """The device's speeds."""
    return Calibration(
        date=datetime.now().astimezone().isoformat(" ", "minutes"),
        bandwidth=_bandwidth(gpu),
        fp32=_arithmetic(gpu, dt.float32),
        fp16=_arithmetic(gpu, dt.float16),
        dispatch=_dispatch(gpu),
        encoding=_encoding(gpu),
        simd_width=_compiled(gpu).simd_width,
        streaming=_streaming(gpu),
        products=tuple(_products(gpu)),
    )


class _Watch:
    """Notes the command buffers of all commands, for their times on the device."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def note(self, command: Command, commands: Any) -> None:
        """Called by the queue."""
        self.noted.append(commands)


def device_seconds(work: ReadyList, rounds: int = ROUNDS) -> float:
    """The least time that the commands of a list take on the device, one after the other."""
    gpu = work.gpu
    work.run()
    gpu.queue.wait()
    times = []
    for _ in range(rounds):
        watch = _Watch()
        observer, gpu.queue.observer = gpu.queue.observer, watch
        try:
            work.run()
            gpu.queue.wait()
        finally:
            gpu.queue.observer = observer
        times.append(sum(float(c.GPUEndTime() - c.GPUStartTime()) for c in watch.noted))
    return min(times)


def _work(info: DeviceInfo) -> Measured:
    return info.by_kind(wide=PROCESSOR, simd=GPU)


def _largest(gpu: Context) -> int:
    """Bytes of the array whose copies are timed."""
    return min(_work(gpu.info).copied, gpu.info.memory_limit // 16)


def _bandwidth(gpu: Context) -> float:
    size = _largest(gpu)
    times = [_passes(gpu, size, name) for name in _work(gpu.info).writers]
    return 2 * PASSES * size / min(times)


def _streaming(gpu: Context) -> float | None:
    """The size from which on results are faster written past the caches, and read again."""
    least = None
    size = gpu.info.by_kind(wide=_largest(gpu), simd=0)
    while size >= LEAST_STREAMED:
        cached, past = (_passes(gpu, size, name) for name in PROCESSOR.writers)
        if past > cached:
            break
        least, size = float(size), size // 2
    return least


def _passes(gpu: Context, size: int, variant: str) -> float:
    """Seconds of several passes over an array, each over the result of the one before."""
    spec, op = Spec((size // 4,), dt.float32), TABLE["negative"]
    first = empty(gpu, spec)

    def describe(b: Builder) -> tuple[Array, ...]:
        array = first
        for _ in range(PASSES):
            (array,) = RUNNERS["negative"](Call(b, op, (array,), {}, (spec,)))
        return (array,)

    with forced(elementwise=variant):
        return device_seconds(ready(gpu, describe))


def _pipeline(b: Builder, name: str) -> PipelineRequest:
    work = _work(b.info)
    defined = {"CHAINS": work.chains, "HALVES": work.halves}
    text = "".join(f"#define {name} {value}\n" for name, value in defined.items()) + ARITHMETIC
    return b.pipeline("calibration", f"chains_{name}", source=generated(text))


def _compiled(gpu: Context) -> Pipeline:
    return gpu.shaders.compiled_for(_pipeline(Builder(gpu), "float32"))


def _arithmetic(gpu: Context, dtype: Dtype) -> float:
    work = _work(gpu.info)

    def describe(b: Builder) -> tuple[Array, ...]:
        pipeline = _pipeline(b, dtype.name)
        arguments = (b.scratch(4 * THREADS), packed(UINT, work.turns))
        group = (min(256, b.compiled(pipeline).max_threads), 1, 1)
        b.launch(pipeline, arguments, (THREADS, 1, 1), group)
        return ()

    taken = device_seconds(ready(gpu, describe))
    pairs = work.pairs if dtype is dt.float16 else 1
    return 2.0 * pairs * THREADS * work.turns * work.chains / taken


def _dispatch(gpu: Context) -> float:
    """Kernels that do almost nothing, each on the result of the one before, in a command buffer."""
    pipeline, out = _compiled(gpu), gpu.buffer(128)
    size = Metal.MTLSizeMake(32, 1, 1)

    def run() -> float:
        commands = gpu.device.newCommandQueue().commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline.state)
        encoder.setBuffer_offset_atIndex_(out.block.handle, out.offset, 0)
        encoder.setBytes_length_atIndex_(packed(UINT, 1), 4, 1)
        for _ in range(DISPATCHES):
            encoder.dispatchThreads_threadsPerThreadgroup_(size, size)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        return float(commands.GPUEndTime() - commands.GPUStartTime())

    return min(run() for _ in range(ROUNDS)) / DISPATCHES


def _encoding(gpu: Context) -> float:
    """Products by MPS that are almost nothing to compute, by the host's clock."""
    spec = Spec((32, 32), dt.float32)
    with forced(matmul="mps"):
        product = ready(gpu, operation("matmul", (empty(gpu, spec), empty(gpu, spec))))

    def run() -> float:
        gpu.queue.wait()
        start = time.perf_counter()
        for _ in range(DISPATCHES):
            product.run()
        gpu.queue.wait()
        return time.perf_counter() - start

    return min(run() for _ in range(ROUNDS)) / DISPATCHES


def _products(gpu: Context) -> Iterator[tuple[str, float]]:
    """Square matrices by every variant that is made for the device."""
    family = FAMILIES["matmul"]
    side = _work(gpu.info).side
    rng = np.random.default_rng(0)
    for dtype in (dt.float32, dt.float16):
        values = rng.standard_normal((side, side), np.float32)
        matrix = imported(gpu, copied(values, dtype))
        describe = operation("matmul", (matrix, matrix))
        with observed(family) as problems:
            describe(Builder(gpu))
        able = [v for v in family.variants.values() if v.can(gpu.info, problems[0])]
        costs = {variant.name: variant.cost(gpu.info, problems[0]) for variant in able}
        for name, cost in costs.items():
            if cost > HOPELESS * min(costs.values()):
                continue
            with forced(matmul=name):
                taken = device_seconds(ready(gpu, describe), 2)
            yield f"{name} {dtype.name}", 2.0 * side**3 / taken
