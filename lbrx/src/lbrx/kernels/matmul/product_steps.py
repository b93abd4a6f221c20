"""Elementwise steps inside the kernel of a matrix product: bias, activation, residual, scale, cast.

The kernel calls a generated function for each result, after the product is rounded to its dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.command_lists.records import LONG, packed, unpacked
from lbrx.kernels import layouts
from lbrx.kernels.arrays import whole_buffer
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.finishing import Finish
from lbrx.kernels.registry import policy
from lbrx.metal import Buffer
from lbrx.program.element_program import (
    Access,
    Program,
    ProgramInput,
    array_inputs,
    computation,
    preamble,
)


@dataclass(frozen=True)
class ProductSteps:
    """Steps on the elements of a product, and the operands that they read besides."""

    program: Program
    place: int
    """The input of the program that is the product."""
    operands: tuple[Buffer | bytes, ...]
    name: str

    def from_column(self, first: int) -> ProductSteps:
        """The same steps for a product that begins in another column of the result."""
        *others, places = self.operands
        assert isinstance(places, bytes)
        moved = [
            value
            for start, row, column in zip(*[iter(unpacked(LONG, places))] * 3, strict=True)
            for value in (start + first * column, row, column)
        ]
        return replace(self, operands=(*others, packed(LONG, *moved)))

    @property
    def stores(self) -> Dtype:
        """The dtype of the results."""
        return self.program.outputs[0][1]

    def text(self, first: int) -> str:
        """What is to precede a kernel whose own buffers end before number `first`."""
        return _text(self.program, self.place, first)


def can_follow(finish: Finish) -> bool:
    """Whether the kernel of a product can apply steps: the rows of their operands are evenly
    spaced."""
    others = [x for i, x in enumerate(finish.computation.inputs) if i != finish.place]
    return all(elementwise.is_host(x) or _matrix_strides(x.layout) is not None for x in others)


def steps_of(finish: Finish) -> ProductSteps:
    """The steps for the kernel of a product, which `can_follow` it."""
    what = finish.computation
    inputs: list[ProgramInput] = []
    operands: list[Buffer | bytes] = []
    places: list[int] = []
    for i, x in enumerate(what.inputs):
        host = elementwise.is_host(x)
        inputs.append(ProgramInput(x.dtype, Access.SCALAR if host else Access.STRIDED))
        if i == finish.place:
            continue
        if host:
            operands.append(elementwise.constant(x))
            continue
        strides = _matrix_strides(x.layout)
        assert strides is not None, "can_follow refuses such operands"
        operands.append(whole_buffer(x))
        places += [x.layout.offset, *strides]
    ((value, spec),) = what.outputs
    excess = policy().excess_precision
    program = Program(tuple(inputs), what.steps, ((value, spec.dtype),), excess=excess)
    operands.append(packed(LONG, *places or (0, 0, 0)))
    return ProductSteps(program, finish.place, tuple(operands), what.name)


def _matrix_strides(layout: Layout) -> tuple[int, int] | None:
    """Elements from row to row and from column to column, all axes but the last being rows."""
    rows = Layout(layout.shape[:-1], layout.strides[:-1])
    axes, (strides,) = layouts.collapsed(rows.shape, [rows])
    return (strides[0], layout.strides[-1]) if len(axes) == 1 else None


@cache
def _text(program: Program, place: int, first: int) -> str:
    """A struct `Steps` with the operands, whose call computes one result, and macros for a kernel:
    its parameters, their types, and how they make the struct."""
    others = [i for i in range(len(program.inputs)) if i != place]
    arrays = [i for i in array_inputs(program) if i != place]
    kinds = {i: f"device const {program.inputs[i].dtype.msl}*" for i in arrays}
    kinds |= {i: f"constant {program.inputs[i].dtype.msl}&" for i in others if i not in arrays}
    named = [*(f"{kinds[i]} in{i}" for i in others), "constant StepPlaces& places"]
    loads = [f"*in{i}" for i in range(len(program.inputs))]
    for n, i in enumerate(arrays):
        at = f"places->of[{n}]"
        loads[i] = f"in{i}[{at}.start + long(row) * {at}.row + long(column) * {at}.column]"
    loads[place] = "product"
    product, stored = program.inputs[place].dtype.msl, program.outputs[0][1].msl
    types = ", ".join([*(kinds[i] for i in others), "constant StepPlaces&"])
    buffers = "".join(f", {each} [[buffer({first + n})]]" for n, each in enumerate(named))
    arguments = ", ".join(f"in{i}" if i in arrays else f"&in{i}" for i in others)
    return "\n".join(
        [
            *preamble("elementwise.h", program.steps, program.excess),
            "struct StepPlace {",
            "  long start, row, column;",
            "};",
            "struct StepPlaces {",
            f"  StepPlace of[{max(len(arrays), 1)}];",
            "};",
            "struct Steps {",
            f"  using Product = {product};",
            f"  using Stored = {stored};",
            *(f"  {each.replace('&', '*')};" for each in named),
            f"  {stored} operator()({product} product, uint row, uint column) const {{",
            f"    {stored} result;",
            *(f"    {line}" for line in computation(program, loads, ["result"])),
            "    return result;",
            "  }",
            "};",
            f"#define STEP_PARAMETERS {buffers}",
            f"#define STEP_TYPES , {types}",
            f"#define STEP_OPERANDS {{{arguments}{', ' if arguments else ''}&places}}",
            "",
        ]
    )
