"""Element programs: generated Metal kernels of elementwise operations.

A program loads one element of each input, applies functions of `elementwise.h` in order, and stores
results. It does not depend on sizes: one kernel serves all shapes with the same number of axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, accumulator
from lbrx.command_lists.records import INT, LONG, UINT, Record, record_type, struct_of

GRID_AXES = 3  # further axes are unfolded from the third


class Access(Enum):
    """How an input is read along the last axis."""

    SCALAR = "scalar"  # one value for all elements, in constant memory
    ROW = "row"  # contiguous
    SAME = "same"  # one element for the whole row
    STRIDED = "strided"
    COLUMN = "column"  # strided, and contiguous along the axis before


@dataclass(frozen=True)
class ProgramInput:
    """An operand of a fused kernel."""

    dtype: Dtype
    access: Access


@dataclass(frozen=True)
class ProgramStep:
    """A function of numbered values: inputs first, then results of earlier steps."""

    function: str
    arguments: tuple[tuple[int, Dtype], ...]  # (value, dtype that it is converted to)
    gives: Dtype
    definition: str = ""
    """MSL of a function that is not in `elementwise.h`."""

    def value(self, types: Sequence[Dtype], own: Dtype) -> str:
        """The result in MSL, given the types of the arguments and of the result itself."""
        operands = [
            converted(f"v{value}", types[value], wanted) for value, wanted in self.arguments
        ]
        if self.function == "cast":  # The conversion of the argument is all that a cast does.
            return operands[0]
        result = f"op::{self.function}({', '.join(operands)})"
        return converted(result, accumulator(self.gives), own)


@dataclass(frozen=True)
class Chunking:
    """How many elements a thread of a GPU computes: chunks of neighbours, read as vectors. All
    chunks are read before the first is computed, so that memory is kept busy."""

    length: int
    """Elements in a chunk: a power of two, from 2 to 16."""
    count: int


@dataclass(frozen=True)
class Program:
    """A fused elementwise kernel as data, from which its MSL is written."""

    inputs: tuple[ProgramInput, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[tuple[int, Dtype], ...]
    axes: int = 1
    wide: bool = False
    """Whether offsets need 64 bits."""
    chunking: Chunking | None = None
    """For `chunked_program`."""
    excess: bool = False
    """Whether results between the steps may keep float32 and be contracted."""
    blocked: bool = False
    """Whether a thread computes a block of the last two axes."""
    streamed: bool = False
    """Whether a thread computes a run of the last axis, or a block, and writes past the caches."""

    @property
    def is_flat(self) -> bool:
        """Whether every array is read in order, so that the kernel takes no strides."""
        ordered = all(x.access in (Access.SCALAR, Access.ROW) for x in self.inputs)
        return self.axes == 1 and ordered and not self.streamed

    @property
    def reads_columns(self) -> bool:
        """Whether an input is contiguous along another axis than the results."""
        return any(x.access is Access.COLUMN for x in self.inputs)

    @property
    def types(self) -> list[Dtype]:
        """The types of all values: inputs as they are loaded, then results of steps."""
        return value_types(self.inputs, self.steps, self.excess)


def value_types(
    inputs: Sequence[ProgramInput], steps: Sequence[ProgramStep], excess: bool
) -> list[Dtype]:
    """The types of a program's values. A step computes halves in float and its result is rounded to
    its dtype, as a store would round it; with excess precision only casts round."""
    loaded = [accumulator(x.dtype) for x in inputs]
    kept = [excess and step.function != "cast" for step in steps]
    return loaded + [
        accumulator(step.gives) if keep else step.gives
        for step, keep in zip(steps, kept, strict=True)
    ]


def preamble(header: str, steps: Sequence[ProgramStep], excess: bool) -> list[str]:
    """The first lines of a kernel's text: the header decides whether operations are contracted, and
    operations from outside define their functions."""
    lines = [*(["#define EXCESS_PRECISION"] if excess else []), f'#include "{header}"', ""]
    definitions = dict.fromkeys(step.definition for step in steps if step.definition)
    if definitions:
        mode = "fast" if excess else "off"
        lines += [f"#pragma METAL fp contract({mode})", "namespace op {", *definitions, "}"]
        lines += ["#pragma METAL fp contract(on)", ""]
    return lines


def source(program: Program, name: str) -> str:
    """The kernel's text."""
    parameters = [*_parameters(program), _position(program)]
    serial = program.blocked or program.streamed
    in_parts = _blocked_body if program.blocked else _run_body
    one_element = _flat_body if program.is_flat else _strided_body
    body = (in_parts if serial else one_element)(program)
    header = "elementwise_blocks.h" if serial else "elementwise.h"
    first = [*preamble(header, program.steps, program.excess), *space_struct(program)]
    return "\n".join([*first, *kernel_text(name, parameters, body)])


def kernel_text(name: str, parameters: Sequence[str], body: Sequence[str]) -> list[str]:
    """The lines of a kernel."""
    listed = ",\n".join(f"    {parameter}" for parameter in parameters)
    return [f"kernel void {name}(", f"{listed}) {{", *(f"  {line}" for line in body), "}", ""]


def _parameters(program: Program) -> list[str]:
    lines = []
    for i, x in enumerate(program.inputs):
        kind = f"constant {x.dtype.msl}&" if x.access is Access.SCALAR else _pointer(x.dtype)
        lines.append(f"{kind} in{i} [[buffer({i})]]")
    place = len(program.inputs)
    for i, (_, dtype) in enumerate(program.outputs):
        lines.append(f"device {dtype.msl}* out{i} [[buffer({place + i})]]")
    place += len(program.outputs)
    if not program.is_flat:
        lines.append(f"constant Space& space [[buffer({place})]]")
    return lines


def _pointer(dtype: Dtype) -> str:
    return f"device const {dtype.msl}*"


def _position(program: Program) -> str:
    grid = "uint" if program.is_flat else "uint3"
    return f"{grid} at [[thread_position_in_grid]]"


def space_struct(program: Program) -> list[str]:
    """The struct of sizes and strides that the kernel takes."""
    if program.is_flat:
        return []
    arrays = len(array_inputs(program))
    return [*struct_of(space_record(program.axes, arrays, program.wide)), ""]


@cache
def space_record(axes: int, arrays: int, wide: bool) -> type[Record]:
    """Sizes of axes, and where arrays are read along them: starts and strides."""
    index, read = LONG if wide else INT, max(arrays, 1)
    return record_type("Space", shape=UINT[axes], start=index[read], strides=index[read, axes])


def index_type(program: Program) -> str:
    """The type of offsets."""
    return "long" if program.wide else "int"


def array_inputs(program: Program) -> list[int]:
    """The inputs that are arrays."""
    return [i for i, x in enumerate(program.inputs) if x.access is not Access.SCALAR]


def _flat_body(program: Program) -> list[str]:
    loads = [
        f"in{i}" + ("" if x.access is Access.SCALAR else "[i]")
        for i, x in enumerate(program.inputs)
    ]
    targets = [f"out{i}[i]" for i in range(len(program.outputs))]
    return ["const uint i = at;", *computation(program, loads, targets)]


def _strided_body(program: Program) -> list[str]:
    """Compute pointers to the rows first: the position in a row is then the only index, and the
    compiler can prove that a loop over x does not wrap, which vectorisation needs."""
    targets = [f"to{i}[at.x]" for i in range(len(program.outputs))]
    return _row_pointers(program, "at.y") + computation(program, _loads(program), targets)


def _row_pointers(program: Program, y: str) -> list[str]:
    """Pointers to row `y` of inputs and results."""
    index, arrays, last = index_type(program), array_inputs(program), program.axes - 1
    lines = [f"{index} start{i} = space.start[{n}];" for n, i in enumerate(arrays)]
    lines += _row_starts(program, y)
    for i in arrays:
        lines.append(f"{_pointer(program.inputs[i].dtype)} row{i} = in{i} + start{i};")
    if program.axes > 1:
        row = _row_number(program, y)
        lines.append(f"const {index} row = {row} * {index}(space.shape[{last}]);")
    for i, (_, dtype) in enumerate(program.outputs):
        lines.append(f"device {dtype.msl}* to{i} = out{i}{' + row' if program.axes > 1 else ''};")
    return lines


def _loads(program: Program, x: str = "at.x") -> list[str]:
    """What reads element `x` of a row of each input."""
    index, last = index_type(program), program.axes - 1
    loads = [f"in{i}" for i in range(len(program.inputs))]
    for n, i in enumerate(array_inputs(program)):
        strided = f"{index}({x}) * space.strides[{n}][{last}]"
        places = {Access.ROW: x, Access.SAME: "0"}
        loads[i] = f"row{i}[{places.get(program.inputs[i].access, strided)}]"
    return loads


def _run_body(program: Program) -> list[str]:
    """Compute a run of a row."""
    last = program.axes - 1
    lines = [
        "const uint x0 = at.x * RUN;",
        f"const uint columns = min(RUN, space.shape[{last}] - x0);",
        *(f"{dtype.msl} own{i}[RUN];" for i, (_, dtype) in enumerate(program.outputs)),
        *_row_pointers(program, "at.y"),
        *_row_part(program, _loads(program, "c"), "own{}[c]"),
    ]
    return lines + [f"write_streamed(to{i}, own{i}, columns);" for i in range(len(program.outputs))]


def _blocked_body(program: Program) -> list[str]:
    """Transpose the block's part of columns, then compute the block row by row."""
    last, results = program.axes - 1, range(len(program.outputs))
    transposed = {
        i: f"long(space.strides[{n}][{last}])"
        for n, i in enumerate(array_inputs(program))
        if program.inputs[i].access is Access.COLUMN
    }
    loads = _loads(program, "c")
    lines = [
        "const uint x0 = at.x * BLOCK, y0 = at.y * BLOCK;",
        f"const uint columns = min(BLOCK, space.shape[{last}] - x0);",
        f"const uint rows = min(BLOCK, space.shape[{last - 1}] - y0);",
        f"const uint beyond = min(BLOCK, space.shape[{last}] - x0 - columns);",
    ]
    lines += [f"{program.inputs[i].dtype.msl} block{i}[BLOCK][BLOCK];" for i in transposed]
    lines += [f"{_pointer(program.inputs[i].dtype)} next{i};" for i in transposed]
    lines += ["{", *(f"  {line}" for line in _row_pointers(program, "y0"))]
    for i, stride in transposed.items():
        place = f"row{i} + long(x0) * {stride}"
        lines.append(f"  load_transposed(block{i}, {place}, {stride}, rows, columns);")
        lines.append(f"  next{i} = {place} + long(BLOCK) * {stride};")
        loads[i] = f"block{i}[r][c]"
    lines.append("}")
    if program.streamed:
        lines += [
            f"{dtype.msl} own{i}[BLOCK][BLOCK];" for i, (_, dtype) in enumerate(program.outputs)
        ]
    lines.append("for (uint r = 0; r < rows; r++) {")
    for i, stride in transposed.items():
        size = f"rows * sizeof(*next{i})"
        lines.append(f"  if (r < beyond) read_ahead(next{i} + r * {stride}, {size});")
    target = "own{}[r][c]" if program.streamed else "to{}[c]"
    computed = [*_row_pointers(program, "(y0 + r)"), *_row_part(program, loads, target)]
    lines += [f"  {line}" for line in computed]
    for i in array_inputs(program):
        if program.inputs[i].access is Access.ROW:
            lines.append(f"  read_ahead(row{i} + columns, beyond * sizeof(*row{i}));")
    lines.append("}")
    if program.streamed:
        # Not row by row: a load that follows the stores to its line waits for them.
        lines.append("for (uint r = 0; r < rows; r++) {")
        lines += [f"  {line}" for line in _row_pointers(program, "(y0 + r)")]
        lines += [f"  write_streamed(to{i} + x0, own{i}[r], columns);" for i in results] + ["}"]
    return lines


def _row_part(program: Program, loads: list[str], target: str) -> list[str]:
    """Compute elements x0 to x0 + columns of a row, where loads read the c-th of them."""
    index, last = index_type(program), program.axes - 1
    lines = []
    for n, i in enumerate(array_inputs(program)):
        if program.inputs[i].access is not Access.COLUMN:
            lines.append(f"row{i} += {index}(x0) * space.strides[{n}][{last}];")
    results = range(len(program.outputs))
    lines += [f"to{i} += x0;" for i in results]
    # Results are new memory: they are none of the inputs.
    lines.append("#pragma clang loop vectorize(assume_safety)")
    lines.append("for (uint c = 0; c < columns; c++) {")
    computed = computation(program, loads, [target.format(i) for i in results])
    return [*lines, *(f"  {line}" for line in computed), "}"]


def _row_starts(program: Program, y: str) -> list[str]:
    """Offsets of each input's row; the grid's z stands for all axes before the last two."""
    index, axes, arrays = index_type(program), program.axes, array_inputs(program)
    direct = {axes - 2: y} if axes > 1 else {}
    if axes == GRID_AXES:
        direct[0] = "at.z"
    lines = [
        f"start{i} += {index}({place}) * space.strides[{n}][{axis}];"
        for axis, place in direct.items()
        for n, i in enumerate(arrays)
    ]
    if axes > GRID_AXES:
        lines += ["uint rest = at.z;", f"for (int axis = {axes - 3}; axis >= 0; axis--) {{"]
        lines += [f"  const {index} place = rest % space.shape[axis];"]
        lines += [f"  start{i} += place * space.strides[{n}][axis];" for n, i in enumerate(arrays)]
        lines += ["  rest /= space.shape[axis];", "}"]
    return lines


def _row_number(program: Program, y: str) -> str:
    """Results are contiguous."""
    index = index_type(program)
    if program.axes == 2:
        return f"{index}({y})"
    return f"({index}(at.z) * {index}(space.shape[{program.axes - 2}]) + {index}({y}))"


def computation(program: Program, loads: list[str], targets: list[str]) -> list[str]:
    """Statements that compute one element of each output, given what is loaded."""
    types = program.types
    lines = [
        assignment(i, types[i], converted(load, program.inputs[i].dtype, types[i]))
        for i, load in enumerate(loads)
    ]
    for n, step in enumerate(program.steps, len(program.inputs)):
        lines.append(assignment(n, types[n], step.value(types, types[n])))
    for i, (value, dtype) in enumerate(program.outputs):
        lines.append(f"{targets[i]} = {converted(f'v{value}', types[value], dtype)};")
    return lines


def assignment(value: int, dtype: Dtype, expression: str) -> str:
    """The MSL statement that names an intermediate value."""
    return f"const {dtype.msl} v{value} = {expression};"


def converted(value: str, has: Dtype, wanted: Dtype) -> str:
    """A conversion in MSL. Halves go through float, as those that are loaded do: an integer is
    rounded to float and then to a half, whether the device can convert it directly or not."""
    if has is wanted:
        return value
    from_half = has is not accumulator(has)
    to_half = wanted is not accumulator(wanted) and has is not dt.float32
    if (from_half and wanted is not dt.float32) or to_half:
        return converted(f"to<float>({value})", dt.float32, wanted)
    if wanted is dt.bool_:
        return f"({value} != {has.msl}(0))"
    return f"to<{wanted.msl}>({value})"
