"""Row programs: element programs with reductions along the last axis, as one kernel.

A value exists once per row (the result of a reduction, or computed from such results) or once per
element. Each reduction is a loop over the row that recomputes the element values it needs, with a
function object. Only a value that both the last reduction and the result need, such as the
exponentials of a softmax, is stored between the loops: by one thread in the memory of the result,
by a team in registers, which also hold the inputs that several loops need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.command_lists.records import INT, LONG, UINT, Record, record_type, struct_of
from lbrx.program.element_program import (
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
TEAM = 512  # threads at most
VECTOR = 16  # bytes that a thread of a team loads at once
HELD = 8  # bytes per element of inputs that a team holds in registers
WORDS = {4: "uint", 8: "uint2", 16: "uint4"}
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
    run: int = 1
    """The number of elements that a thread of a team loads at once."""
    streamed: bool = False
    """Whether one thread computes a row in private memory and writes it past the caches."""

    @cached_property
    def types(self) -> list[Dtype]:
        return value_types(self.inputs, self.steps, self.excess)

    @cached_property
    def is_element(self) -> list[bool]:
        """For every value, whether it exists once per element."""
        result = [x.access in (Access.ROW, Access.STRIDED) for x in self.inputs]
        for step in self.steps:
            varies = step.function not in REDUCTIONS and any(result[v] for v, _ in step.arguments)
            result.append(varies)
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
        if not reductions or len(results) != 1:
            return None
        ((value, _),) = reductions[-1].arguments
        computed = value >= len(self.inputs) and self.is_element[value]
        elements, _ = self.needed([results[0][0]])
        fits = self.together or self.types[value] is results[0][1] is dt.float32
        return value if computed and fits and value in elements else None

    @cached_property
    def held(self) -> set[int]:
        """The inputs that a team holds in registers: those that several loops need, while they
        fit."""
        reductions = [step for step in self.steps if step.function in REDUCTIONS]
        loops = [self.needed([value])[0] for step in reductions for value, _ in step.arguments]
        results = [
            value for (value, _), whole in zip(self.outputs, self.whole, strict=True) if whole
        ]
        loops.append(self.needed(results, self.kept)[0])
        held: set[int] = set()
        for i, x in enumerate(self.inputs):
            used = sum(i in loop for loop in loops)
            size = sum(self.inputs[other].dtype.itemsize for other in (i, *held))
            if x.access is Access.ROW and used > 1 and size <= HELD:
                held.add(i)
        return held

    def memory(self, dtype: Dtype) -> str:
        """The MSL type of what a thread of a team loads or stores at once."""
        return WORDS[self.run * dtype.itemsize] if self.run > 1 else _element(dtype)

    def step(self, value: int) -> ProgramStep:
        """The step that computes a value."""
        return self.steps[value - len(self.inputs)]


def longest_run(dtypes: Sequence[Dtype]) -> int:
    """The number of elements in a vector of the widest dtype; 1 if others then have no words."""
    widest = max((dtype.itemsize for dtype in dtypes), default=VECTOR)
    run = VECTOR // widest
    return run if all(run * dtype.itemsize in WORDS for dtype in dtypes) else 1


def _element(dtype: Dtype) -> str:
    """The MSL type of an element in memory; a vector cannot be one of bool."""
    return "uchar" if dtype is dt.bool_ else dtype.msl or ""


def source(program: RowProgram, name: str) -> str:
    """The kernel's text."""
    functors: list[str] = []
    body = [*_row_starts(program), *_rows(program, functors), *_stores(program, functors)]
    parameters = _parameters(program)
    names = ", ".join(parameter.split(" [[")[0].split()[-1] for parameter in parameters)
    plain = [parameter.split(" [[")[0] for parameter in parameters]
    return "\n".join(
        [
            *preamble("row_program.h", program.steps, program.excess),
            *(['#include "streamed.h"', ""] if program.streamed else []),
            *_space(program),
            *functors,
            "template <typename Team>",
            f"inline void compute(Team team, uint at, {', '.join(plain)}) {{",
            *(f"  {line}" for line in body),
            "}",
            "",
            *_entry(program, name, parameters, names),
        ]
    )


def _entry(program: RowProgram, name: str, parameters: list[str], given: str) -> list[str]:
    head = f"kernel void {name}(\n    " + ",\n    ".join(parameters) + ",\n    "
    if not program.together:
        position = "uint at [[thread_position_in_grid]]"
        return [f"{head}{position}) {{", f"  compute(OneThread(), at, {given});", "}", ""]
    # Apple's compiler saves the registers that so many threads do not have.
    head = f"[[max_total_threads_per_threadgroup({TEAM})]]\n{head}"
    threads = [
        "uint index [[thread_index_in_threadgroup]]",
        "uint count [[threads_per_threadgroup]]",
        "uint at [[threadgroup_position_in_grid]]",
    ]
    return [
        head + ",\n    ".join(threads) + ") {",
        "  threadgroup float shared[SIMD_WIDTH];",
        f"  compute(Together<{program.run}>{{index, count, shared}}, at, {given});",
        "}",
        "",
    ]


def _parameters(program: RowProgram) -> list[str]:
    lines = []
    for i, x in enumerate(program.inputs):
        kind = "constant" if x.access is Access.SCALAR else "device const"
        mark = "&" if x.access is Access.SCALAR else "*"
        runs = program.together and x.access is Access.ROW
        memory = program.memory(x.dtype) if runs else x.dtype.msl
        lines.append(f"{kind} {memory}{mark} in{i} [[buffer({i})]]")
    place = len(program.inputs)
    for i, (_, dtype) in enumerate(program.outputs):
        runs = program.together and program.whole[i]
        memory = program.memory(dtype) if runs else dtype.msl
        lines.append(f"device {memory}* out{i} [[buffer({place + i})]]")
    lines.append(f"constant Space& space [[buffer({place + len(program.outputs)})]]")
    return lines


def _space(program: RowProgram) -> list[str]:
    """The struct of sizes, offsets and strides that the kernel takes."""
    return [*struct_of(space_record(program.axes, len(_arrays(program)), program.wide)), ""]


@cache
def space_record(axes: int, arrays: int, wide: bool) -> type[Record]:
    """Sizes of the axes of rows and their length, and where arrays are read along them."""
    index, read = LONG if wide else INT, max(arrays, 1)
    return record_type(
        "Space",
        shape=UINT[axes],
        length=UINT,
        start=index[read],
        strides=index[read, axes + 1],
    )


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
        lines.append(_row(program, i))
        if program.inputs[i].access is Access.STRIDED:
            lines.append(f"const {index} step{i} = space.strides[{n}][{program.axes}];")
    for i in range(len(program.outputs)):
        if program.whole[i]:
            stored = _stored(program, i)
            row = f"out{i} + {index}(at) * {index}(space.length / {program.run})"
            if program.streamed:
                lines.append(f"{stored} own{i}[OWN_BYTES / sizeof({stored})];")
                lines.append(f"device {stored}* memory{i} = {row};")
                row = f"results_in(own{i})"
            lines.append(f"device {stored}* to{i} = {row};")
    if program.together and program.kept is not None:
        lines.append(f"{program.types[program.kept].msl} kept[KEPT];")
    return lines


def _row(program: RowProgram, i: int) -> str:
    """The definition of an input's current row: a pointer, or what reads it in runs."""
    x = program.inputs[i]
    if not (program.together and x.access is Access.ROW):
        return f"device const {x.dtype.msl}* row{i} = in{i} + start{i};"
    start = f"in{i} + start{i} / {program.run}"
    if i in program.held:
        return f"const {_row_type(program, i)} row{i} = " + (
            f"hold<{_element(x.dtype)}>(team, space.length, {start});"
        )
    return f"const {_row_type(program, i)} row{i} = {{{start}}};"


def _row_type(program: RowProgram, i: int) -> str:
    x = program.inputs[i]
    if not (program.together and x.access is Access.ROW):
        return f"device const {x.dtype.msl}*"
    kind = f"{_element(x.dtype)}, {program.memory(x.dtype)}"
    return f"Held<{kind}, KEPT / {program.run}>" if i in program.held else f"Read<{kind}>"


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
            computed_in = program.types[n]
            lines.append(assignment(n, computed_in, step.value(program.types, computed_in)))
    return lines


def _reduction(program: RowProgram, n: int, step: ProgramStep, functors: list[str]) -> str:
    ((value, _),) = step.arguments
    last = [i for i, s in enumerate(program.steps) if s.function in REDUCTIONS][-1]
    keeps = value == program.kept and n == len(program.inputs) + last
    functor = _functor(program, f"Elements{n}", [value], functors, result=value, keeps=keeps)
    joined = f"team.reduce({REDUCTIONS[step.function]}(), space.length, {functor})"
    if step.function == "mean":
        joined = f"({joined} / float(space.length))"
    return converted(joined, dt.float32, program.types[n])


def _stores(program: RowProgram, functors: list[str]) -> list[str]:
    elements = [i for i, whole in enumerate(program.whole) if whole]
    lines = []
    if elements:
        wanted = [program.outputs[i][0] for i in elements]
        functor = _functor(program, "Results", wanted, functors, stores=elements)
        lines.append(f"team.each(space.length, {functor});")
        if program.streamed:
            lines += [f"write_streamed(memory{i}, own{i}, space.length);" for i in elements]
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
    members: list[tuple[str, str]] = []
    lines: list[str] = []
    for value in elements:
        if value == known:
            load = _kept(program)
        elif value < len(program.inputs):
            load = _load(program, value, members)
        else:
            load = program.step(value).value(program.types, program.types[value])
        lines.append(assignment(value, program.types[value], load))
    members += [(program.types[value].msl or "", f"v{value}") for value in rows]
    if program.together and (keeps or known is not None):
        assert program.kept is not None
        members.append((f"thread {program.types[program.kept].msl}*", "kept"))
    elif keeps:
        members.append(("device float*", _results_memory(program)))
    if keeps:
        lines.append(f"{_kept(program)} = v{result};")
    if result is not None:
        lines.append(f"return {converted(f'v{result}', program.types[result], dt.float32)};")
    memory = [(f"device {_stored(program, i)}*", f"to{i}") for i in stores]
    body = _storing(program, stores, lines) if stores else lines
    functors += [
        f"struct {name} {{",
        *(f"  {kind} {member};" for kind, member in (*members, *memory)),
        f"  {'float' if result is not None else 'void'} operator()(uint i, uint slot) const {{",
        *(f"    {line}" for line in body),
        "  }",
        "};",
        "",
    ]
    return f"{name}{{{', '.join(member for _, member in (*members, *memory))}}}"


def _load(program: RowProgram, value: int, members: list[tuple[str, str]]) -> str:
    """An element of an input; adds what it needs to the members of its function object."""
    x, loaded_as = program.inputs[value], program.types[value]
    members.append((_row_type(program, value), f"row{value}"))
    if program.together and x.access is Access.ROW:
        element = f"row{value}(i, slot)"
        return converted(f"bool({element})" if x.dtype is dt.bool_ else element, x.dtype, loaded_as)
    place = "i"
    if x.access is Access.STRIDED:
        members.append((program.index, f"step{value}"))
        place = f"{program.index}(i) * step{value}"
    return converted(f"row{value}[{place}]", x.dtype, loaded_as)


def _storing(program: RowProgram, stores: Sequence[int], lines: list[str]) -> list[str]:
    """The body of a function object that stores results: of an element, or of a team's run."""
    results = [(i, *program.outputs[i]) for i in stores]
    stored = [(i, converted(f"v{v}", program.types[v], dtype), dtype) for i, v, dtype in results]
    if not program.together:
        return [*lines, *(f"to{i}[i] = {value};" for i, value, _ in stored)]
    run = program.run
    return [
        *(f"{_element(dtype)} results{i}[{run}];" for i, _, dtype in stored),
        "const uint run = i, first = slot;",
        "#pragma unroll",
        f"for (uint j = 0; j < {run}; j++) {{",
        f"  const uint i = run * {run} + j, slot = first + j;",
        *(f"  {line}" for line in lines),
        *(f"  results{i}[j] = {value};" for i, value, _ in stored),
        "}",
        *(
            f"to{i}[run] = Run<{_element(dtype)}, {program.memory(dtype)}>::of(results{i});"
            for i, _, dtype in stored
        ),
    ]


def _stored(program: RowProgram, i: int) -> str:
    """The MSL type of an output's memory."""
    dtype = program.outputs[i][1]
    return program.memory(dtype) if program.together else dtype.msl or ""


def _kept(program: RowProgram) -> str:
    """The element that is stored between two loops."""
    return "kept[slot]" if program.together else f"{_results_memory(program)}[i]"


def _results_memory(program: RowProgram) -> str:
    """The pointer to the row of the only output that has a value per element."""
    return f"to{program.whole.index(True)}"
