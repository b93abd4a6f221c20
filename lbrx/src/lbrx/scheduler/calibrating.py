"""Calibration: a device's speeds, measured once by `lbrx tune` and used by estimates of costs."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from lbrx import dtype as dt
from lbrx.device_info import Calibration
from lbrx.dtype import Dtype
from lbrx.kernels.arrays import empty, imported
from lbrx.kernels.registry import FAMILIES, RUNNERS, Call, forced
from lbrx.kernels.tune import observed
from lbrx.metal import Context, Pipeline, calibration_file
from lbrx.metal.binding import Metal
from lbrx.metal.commands import Command
from lbrx.ops import TABLE, Spec
from lbrx.storage.cpu import copied

ROUNDS = 5
# By processors and by GPUs: bytes of an array, larger than the last cache; rounds of a loop, and
# independent sums in it, which hide latency (a processor's vectors hold 4 to 16 of them); and
# sides of the square matrices that are multiplied.
COPIED = 256 << 20, 1 << 30
TURNS = 32, 8192
CHAINS = 128, 8
SIDES = 1024, 4096
PASSES = 4
WRITERS = "single", "streamed"  # variants for processors
LEAST_STREAMED = 1 << 20  # bytes: smaller results stay in the caches of any processor
THREADS = 1 << 18  # that multiply and add
DISPATCHES = 200
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
    found = Calibration(
        date=datetime.now().astimezone().isoformat(" ", "minutes"),
        bandwidth=_bandwidth(gpu),
        fp32=_arithmetic(gpu, dt.float32),
        fp16=_arithmetic(gpu, dt.float16),
        dispatch=_dispatch(gpu),
        encoding=_encoding(gpu),
        simd_width=_pipeline(gpu, "float32").simd_width,
        streaming=_streaming(gpu),
        products=tuple(_products(gpu)),
    )
    calibration_file.write(gpu.info.measured_as, found)
    gpu.info = replace(gpu.info, calibration=found)
    return found


class _Watch:
    """Notes the command buffers of all commands, for their times on the device."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def note(self, command: Command, commands: Any) -> None:
        """Called by the queue."""
        self.noted.append(commands)


def device_seconds(gpu: Context, work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The least time that the commands of `work` take on the device, one after the other."""
    work()  # compiles
    gpu.queue.wait()
    times = []
    for _ in range(rounds):
        watch = _Watch()
        observer, gpu.queue.observer = gpu.queue.observer, watch
        try:
            work()
            gpu.queue.wait()
        finally:
            gpu.queue.observer = observer
        times.append(sum(float(c.GPUEndTime() - c.GPUStartTime()) for c in watch.noted))
    return min(times)


def _largest(gpu: Context) -> int:
    """Bytes of the array whose copies are timed."""
    return min(COPIED[gpu.info.simd_hardware], gpu.info.memory_limit // 16)


def _bandwidth(gpu: Context) -> float:
    variants = WRITERS if not gpu.info.simd_hardware else ("chunks",)
    size = _largest(gpu)
    return 2 * PASSES * size / min(_passes(gpu, size, name) for name in variants)


def _streaming(gpu: Context) -> float | None:
    """The size from which on results are faster written past the caches, and read again."""
    found = None
    size = _largest(gpu) if not gpu.info.simd_hardware else 0
    while size >= LEAST_STREAMED:
        cached, past = (_passes(gpu, size, name) for name in WRITERS)
        if past > cached:
            break
        found, size = float(size), size // 2
    return found


def _passes(gpu: Context, size: int, variant: str) -> float:
    """Seconds of several passes over an array, each over the result of the one before."""
    spec, op = Spec((size // 4,), dt.float32), TABLE["negative"]
    first = empty(gpu, spec)

    def run() -> None:
        array = first
        for _ in range(PASSES):
            (array,) = RUNNERS["negative"](Call(gpu, op, (array,), {}, (spec,)))

    with forced(elementwise=variant):
        return device_seconds(gpu, run)


def _pipeline(gpu: Context, name: str) -> Pipeline:
    gpus = gpu.info.simd_hardware
    defined = {"CHAINS": CHAINS[gpus], "HALVES": "half2" if gpus else "half"}
    text = "".join(f"#define {name} {value}\n" for name, value in defined.items()) + ARITHMETIC
    return gpu.shaders.pipeline("calibration", f"chains_{name}", source=text)


def _arithmetic(gpu: Context, dtype: Dtype) -> float:
    """GPUs multiply halves in pairs."""
    pipeline = _pipeline(gpu, dtype.name)
    out = gpu.buffer(4 * THREADS)
    turns = TURNS[gpu.info.simd_hardware]
    arguments = (out, struct.pack("I", turns))
    group = (min(256, pipeline.max_threads), 1, 1)
    taken = device_seconds(
        gpu, lambda: gpu.queue.dispatch(pipeline, arguments, (THREADS, 1, 1), group)
    )
    gpus = gpu.info.simd_hardware
    pairs = 2 if gpus and dtype is dt.float16 else 1
    return 2.0 * pairs * THREADS * turns * CHAINS[gpus] / taken


def _dispatch(gpu: Context) -> float:
    """Kernels that do almost nothing, each on the result of the one before, in a command buffer."""
    pipeline, out = _pipeline(gpu, "float32"), gpu.buffer(128)
    size = Metal.MTLSizeMake(32, 1, 1)

    def run() -> float:
        commands = gpu.device.newCommandQueue().commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline.state)
        encoder.setBuffer_offset_atIndex_(out.block.handle, out.offset, 0)
        encoder.setBytes_length_atIndex_(struct.pack("I", 1), 4, 1)
        for _ in range(DISPATCHES):
            encoder.dispatchThreads_threadsPerThreadgroup_(size, size)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        return float(commands.GPUEndTime() - commands.GPUStartTime())

    return min(run() for _ in range(ROUNDS)) / DISPATCHES


def _encoding(gpu: Context) -> float:
    """Products by MPS that are almost nothing to compute, by the host's clock."""
    op, spec = TABLE["matmul"], Spec((32, 32), dt.float32)
    call = Call(gpu, op, (empty(gpu, spec), empty(gpu, spec)), op.bind({}), (spec,))

    def run() -> float:
        gpu.queue.wait()
        start = time.perf_counter()
        for _ in range(DISPATCHES):
            RUNNERS["matmul"](call)
        gpu.queue.wait()
        return time.perf_counter() - start

    with forced(matmul="mps"):
        return min(run() for _ in range(ROUNDS)) / DISPATCHES


def _products(gpu: Context) -> Iterator[tuple[str, float]]:
    """Square matrices by every variant that is made for the device."""
    family, op = FAMILIES["matmul"], TABLE["matmul"]
    side = SIDES[gpu.info.simd_hardware]
    rng = np.random.default_rng(0)
    attributes = op.bind({})
    for dtype in (dt.float32, dt.float16):
        values = rng.standard_normal((side, side), np.float32)
        matrix = imported(gpu, copied(values, dtype))
        spec = Spec((side, side), dtype)
        call = Call(gpu, op, (matrix, matrix), attributes, (spec,))
        with observed(family) as problems:
            RUNNERS["matmul"](call)
        able = [v for v in family.variants.values() if v.can(gpu.info, problems[0])]
        costs = {variant.name: variant.cost(gpu.info, problems[0]) for variant in able}
        for name, cost in costs.items():
            if cost > HOPELESS * min(costs.values()):
                continue
            with forced(matmul=name):
                taken = device_seconds(gpu, partial(RUNNERS["matmul"], call), 2)
            yield f"{name} {dtype.name}", 2.0 * side**3 / taken
