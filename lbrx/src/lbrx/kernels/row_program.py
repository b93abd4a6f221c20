"""Row programs: element programs with reductions along the last axis, as one kernel.

A value exists once per row (the result of a reduction, or computed from such results) or once per
element. Each reduction is a loop over the row that recomputes the element values it needs, with a
function object. Only a float32 value that both the last reduction and the result need, such as the
exponentials of a softmax, is stored between the loops, in the memory of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels.program import (
    Access,
    ProgramInput,
    ProgramStep,
    assignment,
    converted,
    preamble,
    value_types,
)

REDUCTIONS = {
    "sum": "RowSum",
    "mean": "RowSum",
    "prod": "RowProduct",
    "max": "RowMaximum",
    "min": "RowMinimum",
}
UNORDERED = {"max", "min"}
"""Reductions whose result does not depend on the order in which elements are joined."""


@dataclass(frozen=True)
class RowProgram:
    """Like Program; steps whose function is in REDUCTIONS reduce a row to one value."""

    inputs: tuple[ProgramInput, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[tuple[int, Dtype], ...]
    whole: tuple[bool, ...]
    """For every output: True if it has a value per element, False if it has one per row."""
    axes: int
    """The number of axes over which rows are counted."""
    wide: bool = False
    together: bool = False
    """Whether a threadgroup processes a row; otherwise one thread does."""
    excess: bool = False
    """Whether results between the steps may keep float32 and be contracted."""

    @cached_property
    def types(self) -> list[Dtype]:
        return value_types(self.inputs, self.steps, self.excess)

    @cached_property
    def is_element(self) -> list[bool]:
        """For every value, whether it exists once per element."""
        result = [x.access in (Access.ROW, Access.STRIDED) for x in self.inputs]
        for step in self.steps:
            own = step.function not in REDUCTIONS and any(result[v] for v, _ in step.arguments)
            result.append(own)
        return result

    @property
    def index(self) -> str:
        """The MSL type of offsets."""
        return "long" if self.wide else "int"

    def needed(
        self, values: Sequence[int], known: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The values that given values depend on: those per element, and those per row.

        Dependencies of `known`, which is loaded from memory, are not followed.
        """
        elements: set[int] = set()
        rows: set[int] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            if not self.is_element[value]:
                rows.add(value)
            elif value not in elements:
                elements.add(value)
                if value >= len(self.inputs) and value != known:
                    stack += [v for v, _ in self.step(value).arguments]
        return sorted(elements), sorted(rows)

    @cached_property
    def kept(self) -> int | None:
        """The element value that is stored in the result's memory between two loops, if any."""
        reductions = [step for step in self.steps if step.function in REDUCTIONS]
        results = [output for output, whole in zip(self.outputs, self.whole, strict=True) if whole]
        if not reductions or len(results) != 1 or results[0][1] is not dt.float32:
            return None
        ((value, _),) = reductions[-1].arguments
        computed = value >= len(self.inputs) and self.is_element[value]
        elements, _ = self.needed([results[0][0]])
        fits = self.types[value] is dt.float32
        return value if computed and fits and value in elements else None

    def step(self, value: int) -> ProgramStep:
        """The step that computes a value."""
        return self.steps[value - len(self.inputs)]


@cache
def source(program: RowProgram, name: str) -> str:
    """The kernel's text."""
    functors: list[str] = []
    body = [*_row_starts(program), *_rows(program, functors), *_stores(program, functors)]
    parameters = _parameters(program)
    given = ", ".join(parameter.split(" [[")[0].split()[-1] for parameter in parameters)
    plain = [parameter.split(" [[")[0] for parameter in parameters]
    return "\n".join(
        [
            *preamble("row_program.h", program.steps, program.excess),
            *_space(program),
            *functors,
            "template <typename Team>",
            f"inline void compute(Team team, uint at, {', '.join(plain)}) {{",
            *(f"  {line}" for line in body),
            "}",
            "",
            *_entry(program, name, parameters, given),
        ]
    )


def _entry(program: RowProgram, name: str, parameters: list[str], given: str) -> list[str]:
    head = f"kernel void {name}(\n    " + ",\n    ".join(parameters) + ",\n    "
    if not program.together:
        position = "uint at [[thread_position_in_grid]]"
        return [f"{head}{position}) {{", f"  compute(OneThread(), at, {given});", "}", ""]
    threads = [
        "uint index [[thread_index_in_threadgroup]]",
        "uint count [[threads_per_threadgroup]]",
        "uint at [[threadgroup_position_in_grid]]",
    ]
    return [
        head + ",\n    ".join(threads) + ") {",
        "  threadgroup float shared[SIMD_WIDTH];",
        f"  compute(Together{{index, count, shared}}, at, {given});",
        "}",
        "",
    ]


def _parameters(program: RowProgram) -> list[str]:
    lines = []
    for i, x in enumerate(program.inputs):
        kind = "constant" if x.access is Access.SCALAR else "device const"
        mark = "&" if x.access is Access.SCALAR else "*"
        lines.append(f"{kind} {x.dtype.msl}{mark} in{i} [[buffer({i})]]")
    place = len(program.inputs)
    for i, (_, dtype) in enumerate(program.outputs):
        lines.append(f"device {dtype.msl}* out{i} [[buffer({place + i})]]")
    lines.append(f"constant Space& space [[buffer({place + len(program.outputs)})]]")
    return lines


def _space(program: RowProgram) -> list[str]:
    """The struct of sizes, offsets and strides that the kernel takes."""
    arrays = max(len(_arrays(program)), 1)
    return [
        "struct Space {",
        f"  uint shape[{program.axes}];",
        "  uint length;",
        f"  {program.index} start[{arrays}];",
        f"  {program.index} strides[{arrays}][{program.axes + 1}];",
        "};",
        "",
    ]


def _arrays(program: RowProgram) -> list[int]:
    return [i for i, x in enumerate(program.inputs) if x.access is not Access.SCALAR]


def _row_starts(program: RowProgram) -> list[str]:
    """Pointers to the current row of every array."""
    index, arrays = program.index, _arrays(program)
    lines = [f"{index} start{i} = space.start[{n}];" for n, i in enumerate(arrays)]
    if program.axes == 1:
        lines += [f"start{i} += {index}(at) * space.strides[{n}][0];" for n, i in enumerate(arrays)]
    else:
        lines += ["uint rest = at;", f"for (int axis = {program.axes - 1}; axis >= 0; axis--) {{"]
        lines += [f"  const {index} place = rest % space.shape[axis];"]
        lines += [f"  start{i} += place * space.strides[{n}][axis];" for n, i in enumerate(arrays)]
        lines += ["  rest /= space.shape[axis];", "}"]
    for n, i in enumerate(arrays):
        x = program.inputs[i]
        lines.append(f"device const {x.dtype.msl}* row{i} = in{i} + start{i};")
        if x.access is Access.STRIDED:
            lines.append(f"const {index} step{i} = space.strides[{n}][{program.axes}];")
    for i, (_, dtype) in enumerate(program.outputs):
        if program.whole[i]:
            lines.append(
                f"device {dtype.msl}* to{i} = out{i} + {index}(at) * {index}(space.length);"
            )
    return lines


def _rows(program: RowProgram, functors: list[str]) -> list[str]:
    """The values that exist once per row, in order of their dependencies."""
    lines = []
    for i, x in enumerate(program.inputs):
        if not program.is_element[i]:
            load = f"in{i}" if x.access is Access.SCALAR else f"row{i}[0]"
            lines.append(
                assignment(i, program.types[i], converted(load, x.dtype, program.types[i]))
            )
    for n, step in enumerate(program.steps, len(program.inputs)):
        if step.function in REDUCTIONS:
            lines.append(assignment(n, program.types[n], _reduction(program, n, step, functors)))
        elif not program.is_element[n]:
            own = program.types[n]
            lines.append(assignment(n, own, step.value(program.types, own)))
    return lines


def _reduction(program: RowProgram, n: int, step: ProgramStep, functors: list[str]) -> str:
    ((value, _),) = step.arguments
    last = [i for i, s in enumerate(program.steps) if s.function in REDUCTIONS][-1]
    keeps = value == program.kept and n == len(program.inputs) + last
    made = _functor(program, f"Elements{n}", [value], functors, result=value, keeps=keeps)
    joined = f"team.reduce({REDUCTIONS[step.function]}(), space.length, {made})"
    if step.function == "mean":
        joined = f"({joined} / float(space.length))"
    return converted(joined, dt.float32, program.types[n])


def _stores(program: RowProgram, functors: list[str]) -> list[str]:
    elements = [i for i, whole in enumerate(program.whole) if whole]
    lines = []
    if elements:
        wanted = [program.outputs[i][0] for i in elements]
        made = _functor(program, "Results", wanted, functors, stores=elements)
        lines.append(f"team.each(space.length, {made});")
    for i, (value, dtype) in enumerate(program.outputs):
        if i not in elements:
            result = converted(f"v{value}", program.types[value], dtype)
            lines.append(f"if (team.leads()) out{i}[at] = {result};")
    return lines


def _functor(
    program: RowProgram,
    name: str,
    values: Sequence[int],
    functors: list[str],
    result: int | None = None,
    stores: Sequence[int] = (),
    keeps: bool = False,
) -> str:
    """Define a function object over a row's elements; returns the expression that makes one."""
    known = program.kept if stores else None
    elements, rows = program.needed(values, known)
    memory = _results_memory(program) if keeps or known is not None else ""
    members: list[tuple[str, str]] = []
    lines: list[str] = []
    for value in elements:
        if value == known:
            load = f"{memory}[i]"
        elif value < len(program.inputs):
            x = program.inputs[value]
            members.append((f"device const {x.dtype.msl}*", f"row{value}"))
            place = "i"
            if x.access is Access.STRIDED:
                members.append((program.index, f"step{value}"))
                place = f"{program.index}(i) * step{value}"
            load = converted(f"row{value}[{place}]", x.dtype, program.types[value])
        else:
            load = program.step(value).value(program.types, program.types[value])
        lines.append(assignment(value, program.types[value], load))
    members += [(program.types[value].msl or "", f"v{value}") for value in rows]
    for i in stores:
        value, dtype = program.outputs[i]
        members.append((f"device {dtype.msl}*", f"to{i}"))
        lines.append(f"to{i}[i] = {converted(f'v{value}', program.types[value], dtype)};")
    if keeps:
        members.append(("device float*", memory))
        lines.append(f"{memory}[i] = v{result};")
    if result is not None:
        lines.append(f"return {converted(f'v{result}', program.types[result], dt.float32)};")
    functors += [
        f"struct {name} {{",
        *(f"  {kind} {member};" for kind, member in members),
        f"  {'float' if result is not None else 'void'} operator()(uint i, uint) const {{",
        *(f"    {line}" for line in lines),
        "  }",
        "};",
        "",
    ]
    return f"{name}{{{', '.join(member for _, member in members)}}}"


def _results_memory(program: RowProgram) -> str:
    """The pointer to the row of the only output that has a value per element."""
    return f"to{program.whole.index(True)}"
