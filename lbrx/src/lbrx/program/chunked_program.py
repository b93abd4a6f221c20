"""Element programs for GPUs: threads read and write chunks of neighbouring elements as vectors.

Every array that is read along the last axis starts at a multiple of a chunk, and so do its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from lbrx.arrays.dtype import Dtype
from lbrx.program.element_program import (
    GRID_AXES,
    Access,
    Chunking,
    Program,
    array_inputs,
    computation,
    index_type,
    kernel_text,
    preamble,
    space_struct,
)

CHUNK_BYTES = 16  # of the widest elements: the widest access of a GPU's thread
GROUP = 256  # threads
BITS = {2: "ushort", 4: "uint", 8: "uint2", 16: "uint4"}
"""The type that a chunk is read and written as, by its bytes."""


@cache
def chunked_source(program: Program, name: str) -> str:
    """The kernel's text."""
    chunking = program.chunking
    assert chunking is not None
    lines = preamble("elementwise.h", program.steps, program.excess)
    lines += ['#include "chunks.h"', "", *space_struct(program), *_element(program)]
    body = _flat(program, chunking) if program.is_flat else _rows(program, chunking)
    return "\n".join([*lines, *kernel_text(name, _parameters(program, chunking), body)])


def _element(program: Program) -> list[str]:
    """A function that computes one element of each result."""
    read = [f"const {x.dtype.msl} x{i}" for i, x in enumerate(program.inputs)]
    written = [f"thread {dtype.msl}& y{i}" for i, (_, dtype) in enumerate(program.outputs)]
    loads = [f"x{i}" for i in range(len(program.inputs))]
    targets = [f"y{i}" for i in range(len(program.outputs))]
    body = computation(program, loads, targets)
    return [f"inline void element({', '.join([*read, *written])}) {{", *_within(body), "}", ""]


def _parameters(program: Program, chunking: Chunking) -> list[str]:
    kinds: list[str] = []
    for x in program.inputs:
        types = {
            Access.SCALAR: f"constant {x.dtype.msl}&",
            Access.SAME: f"device const {x.dtype.msl}*",
            Access.ROW: f"device const {_bits(x.dtype, chunking)}*",
        }
        kinds.append(f"{types[x.access]} in{len(kinds)}")
    for i, (_, dtype) in enumerate(program.outputs):
        kinds.append(f"device {_bits(dtype, chunking)}* out{i}")
    kinds.append("constant uint& count" if program.is_flat else "constant Space& space")
    listed = [f"{kind} [[buffer({place})]]" for place, kind in enumerate(kinds)]
    if program.is_flat:
        return [
            *listed,
            "uint group [[threadgroup_position_in_grid]]",
            "uint lane [[thread_position_in_threadgroup]]",
        ]
    return [*listed, "uint3 at [[thread_position_in_grid]]", "uint3 threads [[threads_per_grid]]"]


def _bits(dtype: Dtype, chunking: Chunking) -> str:
    return BITS[dtype.itemsize * chunking.length]


def _flat(program: Program, chunking: Chunking) -> list[str]:
    """Arrays that are read in order; the elements after the last chunk are computed one by one."""
    length, count = chunking.length, chunking.count
    place = f"first + u * {GROUP}" if count > 1 else "first"
    loads = {i: f"in{i}[i]" for i in array_inputs(program)}
    return [
        f"const uint size = count, whole = size / {length};",
        f"const uint first = group * {GROUP * count} + lane;",
        *_kept(program),
        *_loading(program, chunking, [f"const uint i = min({place}, whole - 1);"], loads),
        *_computing(program, chunking, [f"const uint i = {place};"], "i < whole", "i"),
        *_rest(program, chunking),
    ]


def _rest(program: Program, chunking: Chunking) -> list[str]:
    values = [
        f"reinterpret_cast<device const {x.dtype.msl}*>(in{i})[rest]"
        if x.access is Access.ROW
        else f"c{i}"
        for i, x in enumerate(program.inputs)
    ]
    results = [f"y{i}" for i in range(len(program.outputs))]
    lines = [f"{dtype.msl} y{i};" for i, (_, dtype) in enumerate(program.outputs)]
    lines.append(f"element({', '.join([*values, *results])});")
    for i, (_, dtype) in enumerate(program.outputs):
        lines.append(f"reinterpret_cast<device {dtype.msl}*>(out{i})[rest] = y{i};")
    start = f"const uint rest = whole * {chunking.length} + group * {GROUP} + lane;"
    return [start, "if (rest < size) {", *_within(lines), "}"]


def _rows(program: Program, chunking: Chunking) -> list[str]:
    """Arrays with strides. A thread computes chunks of several rows, far apart."""
    index, axes = index_type(program), program.axes
    place = "at.y + u * threads.y" if chunking.count > 1 else "at.y"
    loads = {}
    for n, i in enumerate(array_inputs(program)):
        column = " + at.x" if program.inputs[i].access is Access.ROW else ""
        loads[i] = f"in{i}[start{i} + {index}(y) * space.strides[{n}][{axes - 2}]{column}]"
    planes = f"{index}(at.z) * {index}(rows)" if axes > 2 else f"{index}(0)"
    target = f"({planes} + {index}(y)) * {index}(columns) + at.x"
    return [
        f"const uint rows = space.shape[{axes - 2}], columns = space.shape[{axes - 1}];",
        "if (at.x >= columns) return;",
        *_plane_starts(program),
        *_kept(program),
        *_loading(program, chunking, [f"const uint y = min({place}, rows - 1);"], loads),
        *_computing(program, chunking, [f"const uint y = {place};"], "y < rows", target),
    ]


def _plane_starts(program: Program) -> list[str]:
    """Offsets of each input's plane: the grid's z stands for all axes before the last two."""
    index, axes, arrays = index_type(program), program.axes, array_inputs(program)
    lines = [f"{index} start{i} = space.start[{n}];" for n, i in enumerate(arrays)]
    if axes == GRID_AXES:
        return lines + [
            f"start{i} += {index}(at.z) * space.strides[{n}][0];" for n, i in enumerate(arrays)
        ]
    if axes > GRID_AXES:
        lines += ["uint left = at.z;", f"for (int axis = {axes - 3}; axis >= 0; axis--) {{"]
        lines += [f"  const {index} place = left % space.shape[axis];"]
        lines += [f"  start{i} += place * space.strides[{n}][axis];" for n, i in enumerate(arrays)]
        lines += ["  left /= space.shape[axis];", "}"]
    return lines


def _kept(program: Program) -> list[str]:
    """Numbers are copied first: a store could change memory that is read again later."""
    return [
        f"const {x.dtype.msl} c{i} = in{i};"
        for i, x in enumerate(program.inputs)
        if x.access is Access.SCALAR
    ]


def _loading(
    program: Program, chunking: Chunking, place: Iterable[str], loads: dict[int, str]
) -> list[str]:
    """All loads of a thread."""
    lines, body = [], [*place]
    for i, load in loads.items():
        dtype = program.inputs[i].dtype.msl
        if program.inputs[i].access is Access.ROW:
            lines.append(f"Chunk<{dtype}, {chunking.length}> c{i}[{chunking.count}];")
            body.append(f"c{i}[u].bits = {load};")
        else:
            lines.append(f"{dtype} c{i}[{chunking.count}];")
            body.append(f"c{i}[u] = {load};")
    return [*lines, *_for("u", chunking.count, body)]


def _computing(
    program: Program, chunking: Chunking, place: Iterable[str], inside: str, target: str
) -> list[str]:
    values = []
    for i, x in enumerate(program.inputs):
        forms = {Access.ROW: f"c{i}[u].get(k)", Access.SAME: f"c{i}[u]", Access.SCALAR: f"c{i}"}
        values.append(forms[x.access])
    outputs = [dtype.msl for _, dtype in program.outputs]
    results = [f"y{i}" for i in range(len(outputs))]
    single = [f"{dtype} y{i};" for i, dtype in enumerate(outputs)]
    single.append(f"element({', '.join([*values, *results])});")
    single += [f"r{i}.put(k, y{i});" for i in range(len(outputs))]
    body = [*place, *(f"Chunk<{d}, {chunking.length}> r{i};" for i, d in enumerate(outputs))]
    body += _for("k", chunking.length, single)
    stores = [f"out{i}[{target}] = r{i}.bits;" for i in range(len(outputs))]
    return _for("u", chunking.count, [*body, f"if ({inside}) {{", *_within(stores), "}"])


def _for(variable: str, count: int, body: Iterable[str]) -> list[str]:
    head = f"for (uint {variable} = 0; {variable} < {count}; {variable}++) {{"
    return ["#pragma unroll", head, *_within(body), "}"]


def _within(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
