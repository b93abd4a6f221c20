"""Random numbers: the reference's generator, four elements a thread."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels.arrays import kernel_name, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context
from lbrx.ops import Attributes
from lbrx.ops.random import WORDS
from lbrx.storage import Array, MetalStorage

GROUP = 256  # threads
PART = 1 << 30  # counters in one dispatch


@dataclass(frozen=True)
class Numbers:
    """A problem: so many numbers of a distribution with two parameters."""

    op: str
    dtype: Dtype
    size: int
    seed: int
    offset: int
    parameters: tuple[float, float]

    @property
    def shape_class(self) -> str:
        return f"{self.op} {self.dtype} {size_class(self.size)}"


family: KernelFamily[Numbers] = KernelFamily("random")
family.samples += [
    Sample(op, (), {"shape": (1 << 20,), "dtype": dt.float32, "seed": 0, "offset": 0})
    for op in ("random_uniform", "random_normal")
]


@computes("random_uniform", "random_normal", "random_bernoulli")
def run(call: Call) -> tuple[Array, ...]:
    (spec,), given = call.outputs, call.op.bind(call.attributes)
    size = math.prod(spec.shape)
    # Kernels write whole counters' worth: the last may go beyond the elements that are asked for.
    room = call.gpu.buffer(-(-size // WORDS) * WORDS * spec.dtype.itemsize, "tensors")
    problem = Numbers(
        call.op.name, spec.dtype, size, given["seed"], given["offset"], _parameters(given)
    )
    if size:
        family.run(call.gpu, problem, room)
    storage = MetalStorage(room, 0, size * spec.dtype.itemsize)
    return (Array(storage, sh.contiguous(spec.shape), spec.dtype),)


def _parameters(given: Attributes) -> tuple[float, float]:
    """Where the numbers begin and how wide they spread; of a chance, itself."""
    if "p" in given:
        return given["p"], 0
    if "std" in given:
        return given["mean"], given["std"]
    return given["low"], given["high"] - given["low"]


@family.variant("philox")
def philox(gpu: Context, problem: Numbers, room: Buffer) -> None:
    """A thread a counter."""
    name = kernel_name(problem.op, "", problem.dtype)
    pipeline = gpu.shaders.pipeline("random", name, safe_math=True)
    with np.errstate(over="ignore"):
        parameters = np.array(problem.parameters, np.float32).tobytes()
    counters = -(-problem.size // WORDS)
    for first in range(0, counters, PART):
        count, width = min(PART, counters - first), WORDS * problem.dtype.itemsize
        counter = problem.offset + first & (1 << 64) - 1
        arguments = (
            room.slice(first * width, count * width),
            struct.pack("2Q", problem.seed & (1 << 64) - 1, counter),
            parameters,
        )
        group = (min(count, GROUP), 1, 1)
        gpu.queue.dispatch(
            pipeline, arguments, (count, 1, 1), group, kernel=problem.op, variant="philox"
        )
