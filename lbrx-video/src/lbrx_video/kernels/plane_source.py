"""The text of kernels that turn RGB into planes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from lbrx.extension.tensors import Dtype
from lbrx_video.pixel_formats import Component

ALPHA = 3


@dataclass(frozen=True)
class PlaneProgram:
    """What decides the text of a kernel. Sizes, matrices and tables are arguments."""

    dtype: Dtype
    """Of frames."""
    channels: int
    packed: bool
    sample: Dtype
    planes: int
    components: tuple[Component, ...]
    chroma: tuple[int, ...]
    """The components that have fewer samples than pixels."""
    horizontal: int
    vertical: int
    light: str | None
    code: str | None
    run: int
    """Columns of a thread."""
    window: int
    """Pixels that the chroma samples of these columns are made of, at most."""


@cache
def source(program: PlaneProgram, name: str) -> str:
    """The kernel's text."""
    kinds = [f"device const {program.dtype.msl}* x"]
    kinds += [f"device {program.sample.msl}* plane{i}" for i in range(program.planes)]
    kinds += [
        "constant VideoPlanesRecord& f",
        "device const int* firsts",
        "device const float* weights",
    ]
    parameters = [f"{kind} [[buffer({i})]]" for i, kind in enumerate(kinds)]
    parameters.append("uint3 at [[thread_position_in_grid]]")
    return "\n".join(
        [
            '#include "video_planes.h"',
            "",
            f"kernel void {name}(",
            ",\n".join(f"    {line}" for line in parameters) + ") {",
            *(f"  {line}" for line in _body(program)),
            "}",
            "",
        ]
    )


def _body(program: PlaneProgram) -> list[str]:
    length = max(program.run, program.window)
    lines = [
        "const uint image = at.z, column = at.x * f.run, count = min(f.run, f.width - column);",
        f"float r[{length}], g[{length}], b[{length}];",
        f"const uint last = min((at.y + 1) << {program.vertical}, f.height);",
        f"for (uint y = at.y << {program.vertical}; y < last; y++) {{",
        *(f"  {line}" for line in _loaded(program, "y", "column", "count")),
    ]
    for i in range(len(program.components)):
        if i not in program.chroma:
            lines += [f"  {line}" for line in _whole(program, i)]
    lines.append("}")
    return lines + (_subsampled(program) if program.chroma else [])


def _loaded(program: PlaneProgram, y: str, column: str, count: str) -> list[str]:
    """R'G'B' of some pixels of a row, in r, g and b."""
    lines = []
    step = program.channels if program.packed else 1
    for channel, name in enumerate("rgb"):
        row = _row(program, channel, y)
        lines.append(
            f"video_channel<{program.dtype.msl}, {step}>({name}, x + {row}, {column}, {count});"
        )
    functions = [
        f"video_{kind}::{name}"
        for kind, name in (("light", program.light), ("code", program.code))
        if name is not None
    ]
    if functions:
        lines.append(f"for (uint j = 0; j < {count}; j++) {{")
        for name in "rgb":
            value = f"{name}[j]"
            for function in functions:
                value = f"{function}({value})"
            lines.append(f"  {name}[j] = {value};")
        lines.append("}")
    return lines


def _row(program: PlaneProgram, channel: int, y: str) -> str:
    if program.packed:
        return f"(ulong(image) * f.height + {y}) * f.width * {program.channels} + {channel}"
    return f"((ulong(image) * {program.channels} + {channel}) * f.height + {y}) * f.width"


def _kinds(program: PlaneProgram, i: int) -> str:
    place = program.components[i]
    return f"{program.sample.msl}, {place.step}, {place.offset}, {place.shift}"


def _target(program: PlaneProgram, i: int, y: str) -> str:
    plane = program.components[i].plane
    return f"plane{plane} + ulong(image) * f.size[{i}] + {y} * f.pitch[{i}]"


def _matrix(i: int) -> str:
    return f"float3(f.matrix[{3 * i}], f.matrix[{3 * i + 1}], f.matrix[{3 * i + 2}])"


def _whole(program: PlaneProgram, i: int) -> list[str]:
    """A component with a sample for each pixel. Alpha comes last, so r may be used again."""
    store = f"video_store<{_kinds(program, i)}>({_target(program, i, 'y')}, r, g, b, "
    if i < ALPHA:
        return [f"{store}{_matrix(i)}, f.offset[{i}], f.top, column, count);"]
    if program.channels <= ALPHA:
        return [f"{store}float3(0), f.top, f.top, column, count);"]
    step = program.channels if program.packed else 1
    row = _row(program, ALPHA, "y")
    return [
        f"video_channel<{program.dtype.msl}, {step}>(r, x + {row}, column, count);",
        f"{store}float3(f.top, 0, 0), 0.0f, f.top, column, count);",
    ]


def _subsampled(program: PlaneProgram) -> list[str]:
    """Chroma: rows are weighted into a line for each difference, then columns."""
    h = program.horizontal
    lines = [
        "const VideoAxisRecord down = f.chroma.down, right = f.chroma.right;",
        f"const uint first = column >> {h}, end = min((column + f.run) >> {h}, f.chroma_width);",
        "const uint begin = uint(firsts[right.first + first]);",
        "const uint length = uint(firsts[right.first + end - 1]) + right.taps - begin;",
        f"float cb[{program.window}], cr[{program.window}];",
        "for (uint j = 0; j < length; j++) cb[j] = cr[j] = 0.0f;",
        "const uint top_row = uint(firsts[down.first + at.y]);",
        "for (uint k = 0; k < down.taps; k++) {",
        "  const float weight = weights[down.weights + at.y * down.taps + k];",
        *(f"  {line}" for line in _loaded(program, "(top_row + k)", "begin", "length")),
        f"  video_difference(cb, r, g, b, {_matrix(1)}, weight, length);",
        f"  video_difference(cr, r, g, b, {_matrix(2)}, weight, length);",
        "}",
    ]
    for i, line in ((1, "cb"), (2, "cr")):
        target = _target(program, i, "at.y")
        lines.append(
            f"video_chroma<{_kinds(program, i)}>({target}, {line}, begin, f, firsts, weights, "
            f"f.offset[{i}], first, end - first);"
        )
    return lines
