"""The operation's kernel: a runner, which describes the work, and a family with one variant."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lbrx.extension.kernels import (
    UINT,
    Builder,
    Call,
    KernelFamily,
    buffer_of,
    computes,
    contiguous,
    packed,
    size_class,
)
from lbrx.extension.tensors import Array, Dtype

GROUP = 64  # threads


@dataclass(frozen=True)
class Neighbours:
    """The problem: rows of results."""

    dtype: Dtype
    rows: int
    length: int

    @property
    def shape_class(self) -> str:
        """Problems of the same class are alike."""
        return f"{self.dtype} {size_class(self.rows, self.length)}"


family: KernelFamily[Neighbours] = KernelFamily("toy_neighbours")


@computes("toy_neighbours")
def run(call: Call) -> tuple[Array, ...]:
    """Add the operation to a plan."""
    (x,) = (contiguous(call.builder, each) for each in call.inputs if each is not None)
    result = call.builder.result(call.outputs[0])
    *outer, length = result.layout.shape
    if result.layout.size:
        family.run(call.builder, Neighbours(result.dtype, math.prod(outer), length), x, result)
    return (result,)


@family.variant("threads")
def threads(b: Builder, problem: Neighbours, x: Array, result: Array) -> None:
    """A thread adds two elements."""
    pipeline = b.pipeline("toy_neighbours", f"toy_neighbours_{problem.dtype}")
    arguments = [buffer_of(x), buffer_of(result), packed(UINT, problem.length)]
    group = (min(problem.length, GROUP), 1, 1)
    b.launch(pipeline, arguments, (problem.length, problem.rows, 1), group)
