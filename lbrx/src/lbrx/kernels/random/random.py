"""Random numbers by the CPU reference's generator, one counter per thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, MetalStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import ULONG, Record, ULong, packed
from lbrx.kernels.arrays import kernel_name, size_class
from lbrx.kernels.launching import GROUP
from lbrx.kernels.movement.movement import BITS
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Attributes
from lbrx.ops.random import INTEGERS, WORDS

PART = 1 << 30  # counters in one dispatch


class StreamRecord(Record, header="philox"):
    key: ULong
    counter: ULong  # of the first four elements


@dataclass(frozen=True)
class RandomProblem:
    """The problem: the number of values and their distribution."""

    op: str
    dtype: Dtype
    size: int
    seed: int
    offset: int
    parameters: bytes
    """Two floats, or two 64-bit integers for integers."""

    @property
    def per_counter(self) -> int:
        """Elements made from one value of the counter."""
        return INTEGERS if self.op == "random_integers" else WORDS

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.op} {self.dtype} {size_class(self.size)}"


family: KernelFamily[RandomProblem] = KernelFamily("random")
family.samples += [
    Sample(op, (), {"shape": (1 << 20,), "dtype": dt.float32, "seed": 0, "offset": 0})
    for op in ("random_uniform", "random_normal")
]


@computes("random_uniform", "random_normal", "random_bernoulli", "random_integers")
def run(call: Call) -> tuple[Array, ...]:
    """Compute random numbers from a seed and an offset."""
    (spec,), attributes = call.outputs, call.op.bind(call.attributes)
    size = math.prod(spec.shape)
    problem = RandomProblem(
        call.op.name,
        spec.dtype,
        size,
        attributes["seed"],
        attributes["offset"],
        _parameters(attributes),
    )
    # Kernels write all elements of a counter: the last one may exceed the requested number.
    counters = -(-size // problem.per_counter)
    room = call.builder.scratch(counters * problem.per_counter * spec.dtype.itemsize, "tensors")
    if size:
        family.run(call.builder, problem, room, op=problem.op)
    storage = MetalStorage(room, 0, size * spec.dtype.itemsize)
    return (Array(storage, sh.contiguous(spec.shape), spec.dtype),)


def _parameters(given: Attributes) -> bytes:
    """The offset and scale of the distribution; for a probability, the probability itself."""
    if "p" in given:
        pair = given["p"], 0
    elif "std" in given:
        pair = given["mean"], given["std"]
    else:
        pair = given["low"], given["high"] - given["low"]
        if given["dtype"].is_integer:
            return packed(ULONG, *(number & (1 << 64) - 1 for number in pair))
    with np.errstate(over="ignore"):
        return np.array(pair, np.float32).tobytes()


@family.variant("philox")
def philox(b: Builder, problem: RandomProblem, room: Buffer) -> None:
    """One thread per counter."""
    dtype = problem.dtype
    if dtype.is_integer:
        dtype = BITS[dtype.itemsize]
    name = kernel_name(problem.op, "", dtype)
    pipeline = b.pipeline("random", name, safe_math=True)
    counters = -(-problem.size // problem.per_counter)
    for first in range(0, counters, PART):
        count, width = min(PART, counters - first), problem.per_counter * dtype.itemsize
        counter = problem.offset + first & (1 << 64) - 1
        arguments = (
            room.slice(first * width, count * width),
            StreamRecord(key=problem.seed & (1 << 64) - 1, counter=counter),
            problem.parameters,
        )
        group = (min(count, GROUP), 1, 1)
        b.launch(pipeline, arguments, (count, 1, 1), group)
