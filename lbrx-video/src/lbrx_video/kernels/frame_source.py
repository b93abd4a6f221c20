"""The text of kernels that turn planes into RGB, with the elementwise steps that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from lbrx.extension.kernels import (
    Access,
    ProgramInput,
    ProgramStep,
    assignment,
    converted,
    preamble,
    value_types,
)
from lbrx.extension.tensors import Dtype
from lbrx.extension.tensors import dtypes as dt

FLOAT = dt.float32
AXES = 4  # of frames
SAME, DOUBLED, WEIGHTED = "VIDEO_SAME", "VIDEO_DOUBLED", "VIDEO_WEIGHTED"
ALPHA = 3  # the component, and the channel


@dataclass(frozen=True)
class ComponentCode:
    """How a kernel reads a component: its plane, and elements in its rows."""

    plane: int
    step: int
    offset: int
    chroma: bool
    mode: str


@dataclass(frozen=True)
class FrameProgram:
    """What decides the text of a kernel. Sizes, matrices and tables are arguments."""

    sample: Dtype
    planes: int
    components: tuple[ComponentCode, ...]
    light: str | None
    code: str | None
    clip: bool
    normalise: bool
    channels: int
    packed: bool
    """Whether the channels of a pixel are neighbours, as in NHWC."""
    dtype: Dtype
    """Of frames, before the steps that follow."""
    serial: bool
    inputs: tuple[ProgramInput, ...] = ()
    """Of the steps that follow; `place` is the frame's own value."""
    place: int = 0
    steps: tuple[ProgramStep, ...] = ()
    output: tuple[int, Dtype] | None = None
    excess: bool = False

    @property
    def written(self) -> Dtype:
        return self.dtype if self.output is None else self.output[1]

    @property
    def arrays(self) -> list[int]:
        """The inputs of the steps that are arrays in memory."""
        return [
            i
            for i, x in enumerate(self.inputs)
            if i != self.place and x.access is not Access.SCALAR
        ]


@cache
def source(program: FrameProgram, name: str) -> str:
    """The kernel's text."""
    return "\n".join(
        [
            *preamble("video_frames.h", program.steps, program.excess),
            f"kernel void {name}(",
            ",\n".join(f"    {line}" for line in _parameters(program)) + ") {",
            *(f"  {line}" for line in _body(program)),
            "}",
            "",
        ]
    )


def _parameters(program: FrameProgram) -> list[str]:
    """Planes, results, the record and its tables, then what the following steps read."""
    kinds = [f"device const {program.sample.msl}* plane{i}" for i in range(program.planes)]
    kinds += [
        f"device {program.written.msl}* out",
        "constant VideoFramesRecord& f",
        "device const int* firsts",
        "device const float* weights",
    ]
    for i, x in enumerate(program.inputs):
        if i != program.place:
            scalar = x.access is Access.SCALAR
            kinds.append(f"{'constant' if scalar else 'device const'} {x.dtype.msl}* in{i}")
    if program.arrays:
        kinds.append("constant long* places")
    lines = [f"{kind} [[buffer({i})]]" for i, kind in enumerate(kinds)]
    return [*lines, "uint3 at [[thread_position_in_grid]]"]


def _body(program: FrameProgram) -> list[str]:
    lines = ["const uint y = at.y, image = at.z;"]
    if program.serial:
        lines.append("const uint column = at.x * f.run, count = min(f.run, f.width - column);")
    else:
        lines.append("const uint column = at.x, count = 1;")
    length = "VIDEO_RUN" if program.serial else "1"
    values = max(len(program.components), program.channels)
    lines += [f"float c{i}[{length}];" for i in range(values)]
    for i, component in enumerate(program.components):
        lines.append(_component(program, i, component))
    if program.channels > ALPHA and len(program.components) <= ALPHA:
        lines.append(f"for (uint j = 0; j < count; j++) c{ALPHA}[j] = 1.0f;")
    lines += _color(program)
    for channel in range(program.channels):
        lines += _stored(program, channel)
    return lines


def _component(program: FrameProgram, i: int, component: ComponentCode) -> str:
    kinds = f"{program.sample.msl}, {component.step}, {component.offset}"
    axes = "f.chroma" if component.chroma else "f.luma"
    place = f"plane{component.plane}, {i}, {axes}, firsts, weights, image, y"
    if program.serial:
        return f"video_run<{kinds}, {component.mode}>(c{i}, f, {place}, column, count);"
    return f"c{i}[0] = video_pixel<{kinds}>(f, {place}, column);"


def _color(program: FrameProgram) -> list[str]:
    """Codes to R'G'B', then the transfer functions, and alpha to 0..1."""
    lines = [f"const float m{i} = f.matrix[{i}];" for i in range(9)]
    lines += [f"const float o{i} = f.offset[{i}];" for i in range(3)]
    lines.append("for (uint j = 0; j < count; j++) {")
    if len(program.components) >= ALPHA:
        lines.append("  const float a = c0[j], b = c1[j], c = c2[j];")
        sums = [
            f"fma(m{3 * i}, a, fma(m{3 * i + 1}, b, fma(m{3 * i + 2}, c, o{i})))" for i in range(3)
        ]
    else:
        lines.append("  const float a = c0[j];")
        sums = [f"fma(m{3 * i}, a, o{i})" for i in range(3)]
    for i, value in enumerate(sums):
        if program.light is not None:
            value = f"video_light::{program.light}({value})"
        if program.code is not None:
            value = f"video_code::{program.code}({value})"
        lines.append(f"  c{i}[j] = {value};")
    if program.channels > ALPHA and len(program.components) > ALPHA:
        lines.append(f"  c{ALPHA}[j] *= f.alpha;")
    return [*lines, "}"]


def _stored(program: FrameProgram, channel: int) -> list[str]:
    """One channel: clipped, normalised, rounded to the frames' type, and finished."""
    value = f"c{channel}[j]"
    if program.clip:
        value = f"clamp({value}, 0.0f, 1.0f)"
    if program.normalise:
        value = f"fma({value}, f.scale[{channel}], f.shift[{channel}])"
    if program.packed:
        row = f"((ulong(image) * f.height + y) * f.width + column) * {program.channels} + {channel}"
        place = f"j * {program.channels}"
    else:
        row = f"((ulong(image) * {program.channels} + {channel}) * f.height + y) * f.width + column"
        place = "j"
    return [
        "{",
        f"  device {program.written.msl}* target = out + {row};",
        *(f"  {line}" for line in _rows(program, channel)),
        "  for (uint j = 0; j < count; j++) {",
        *(f"    {line}" for line in _finished(program, value)),
        f"    target[{place}] = {_result(program)};",
        "  }",
        "}",
    ]


def _rows(program: FrameProgram, channel: int) -> list[str]:
    """Pointers to what the following steps read for this row and channel. `places` has, for each
    array, where it starts and its strides."""
    order = (
        ("image", "y", "column", str(channel))
        if program.packed
        else (
            *("image", str(channel)),
            *("y", "column"),
        )
    )
    lines = []
    for n, i in enumerate(program.arrays):
        at = n * (1 + AXES)
        terms = [f"places[{at}]"]
        terms += [f"long({v}) * places[{at + 1 + axis}]" for axis, v in enumerate(order)]
        dtype = program.inputs[i].dtype.msl
        lines.append(f"device const {dtype}* row{i} = in{i} + ({' + '.join(terms)});")
        if program.inputs[i].access is Access.STRIDED:
            across = at + 1 + order.index("column")
            lines.append(f"const long step{i} = places[{across}];")
    return lines


def _finished(program: FrameProgram, value: str) -> list[str]:
    own = program.dtype
    if not program.steps:
        return [f"const {own.msl} result = {converted(value, FLOAT, own)};"]
    types = value_types(program.inputs, program.steps, program.excess)
    lines = []
    for i, x in enumerate(program.inputs):
        if i == program.place:
            load = converted(value, FLOAT, own)
            load = f"{own.msl}({load})"
        else:
            reads = {
                Access.SCALAR: f"in{i}[0]",
                Access.ROW: f"row{i}[j]",
                Access.SAME: f"row{i}[0]",
                Access.STRIDED: f"row{i}[long(j) * step{i}]",
            }
            load = reads[x.access]
        lines.append(assignment(i, types[i], converted(load, x.dtype, types[i])))
    for n, step in enumerate(program.steps, len(program.inputs)):
        lines.append(assignment(n, types[n], step.value(types, types[n])))
    return lines


def _result(program: FrameProgram) -> str:
    if program.output is None:
        return "result"
    types: Sequence[Dtype] = value_types(program.inputs, program.steps, program.excess)
    value, dtype = program.output
    return converted(f"v{value}", types[value], dtype)
