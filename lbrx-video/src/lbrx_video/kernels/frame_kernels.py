"""Planes to RGB on the Metal device: tables, selection of a variant, and launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Annotated

import numpy as np

from lbrx.extension.kernels import (
    FLOAT,
    LONG,
    UINT,
    Access,
    Buffer,
    Builder,
    Call,
    DeviceInfo,
    DeviceKind,
    Finish,
    Float,
    Int,
    KernelFamily,
    ProgramInput,
    Record,
    UInt,
    access,
    buffer_of,
    computes,
    constant,
    contiguous,
    finishes,
    is_host,
    packed,
    policy,
    size_class,
    whole_buffer,
)
from lbrx.extension.tensors import Array
from lbrx_video.conversion import ToFrames
from lbrx_video.kernels.device_tables import (
    COMPONENTS,
    AxisTables,
    Tables,
    VideoAxesRecord,
    by_component,
    on_device,
)
from lbrx_video.kernels.frame_source import (
    ALPHA,
    AXES,
    DOUBLED,
    SAME,
    WEIGHTED,
    ComponentCode,
    FrameProgram,
    source,
)
from lbrx_video.resampling import Axis, Doubling, doubling, taps

# Columns of a thread, at most VIDEO_RUN of video_frames.h, and even so that chroma pairs are whole.
RUNS = (256, 128, 64, 32, 16, 8, 4, 2)
WINDOW = 1024  # VIDEO_WINDOW
GROUP = 64  # threads
VECTOR = 4  # weights along rows are padded to a multiple of this
REMEMBERED = 64


@dataclass(frozen=True)
class FrameProblem:
    """The problem: a conversion, and the number of frames."""

    what: ToFrames
    frames: int

    @property
    def shape_class(self) -> str:
        return f"{self.what.samples.format.name} {self.what.filter} {size_class(*self.what.size)}"


family: KernelFamily[FrameProblem] = KernelFamily("video_frames")


# ---- tables ----


class VideoFramesRecord(Record, header="video_frames"):
    """Planes, and the frames that are made of them. Arrays have a value for each component, or for
    each channel of the results. The taps of columns are filled up to a multiple of four."""

    height: UInt  # of the results
    width: UInt
    run: UInt  # columns of a thread
    pitch: Annotated[Sequence[int], UINT[COMPONENTS]]  # elements in a row of the plane
    size: Annotated[Sequence[int], UINT[COMPONENTS]]  # elements in a plane
    samples: Annotated[Sequence[int], UINT[COMPONENTS]]  # of the component in a row
    luma: VideoAxesRecord  # and other components that have a sample for each pixel
    chroma: VideoAxesRecord
    pair_base: Int  # of doubled chroma: see `Doubling` of lbrx_video/resampling.py
    pair_odd: Int
    pair_weights: Annotated[Sequence[float], FLOAT[4]]
    matrix: Annotated[Sequence[float], FLOAT[9]]  # from codes to R'G'B', by rows
    offset: Annotated[Sequence[float], FLOAT[3]]
    alpha: Float  # of a code of alpha
    scale: Annotated[Sequence[float], FLOAT[COMPONENTS]]  # of a channel, applied last
    shift: Annotated[Sequence[float], FLOAT[COMPONENTS]]  # added to a channel then


@dataclass(frozen=True, eq=False)
class FrameTables(Tables):
    """The tables of a conversion to frames."""

    record: VideoFramesRecord
    run: int
    """Columns of a thread of the serial variant; 0 if that variant cannot take the conversion."""


@lru_cache(REMEMBERED)
def tables(what: ToFrames) -> FrameTables:
    """The tables of luma's and chroma's axes, and the record."""
    form, known = what.samples.format, what.samples
    made = AxisTables()
    luma = _axes(made, what.axes(0))
    chroma = _axes(made, what.axes(1)) if form.chroma else luma
    run = _longest_run(what)
    shapes = [form.plane_shape(c.plane, known.height, known.width) for c in form.components]
    samples = [
        form.component_shape(i, known.height, known.width)[1] for i in range(len(form.components))
    ]
    pairs = doubling(what.axes(1)[1]) if form.chroma else None
    pairs = pairs or Doubling(0, 0, (0, 0, 0, 0))
    matrix, offset, alpha = _color(what)
    record = VideoFramesRecord(
        height=what.size[0],
        width=what.size[1],
        run=run,
        pitch=by_component([columns for _, columns in shapes]),
        size=by_component([rows * columns for rows, columns in shapes]),
        samples=by_component(samples),
        luma=luma,
        chroma=chroma,
        pair_base=pairs.base,
        pair_odd=pairs.odd,
        pair_weights=pairs.weights,
        matrix=matrix,
        offset=offset,
        alpha=alpha,
        scale=by_component(what.scale),
        shift=by_component(what.offset),
    )
    return FrameTables(made.firsts, made.weights, record, run)


def _axes(made: AxisTables, axes: tuple[Axis, Axis]) -> VideoAxesRecord:
    down, right = map(taps, axes)
    return VideoAxesRecord(down=made.add(down), right=made.add(right, VECTOR))


def _color(what: ToFrames) -> tuple[Sequence[float], Sequence[float], float]:
    """Matrix, offsets and the scale of alpha. Codes are in elements without their unused low bits,
    so the matrix scales those away."""
    form = what.samples.format
    matrix, offset = what.samples.to_rgb()
    shifts = [2.0 ** -form.components[min(i, len(form.components) - 1)].shift for i in range(3)]
    alpha = what.samples.alpha_scale * 2.0 ** -form.components[-1].shift
    return (matrix * np.array(shifts)).reshape(-1).tolist(), offset.tolist(), alpha


def _longest_run(what: ToFrames) -> int:
    """The columns of a thread whose samples fit its memory."""
    right = [what.axes(i)[1] for i in ((0, 1) if what.samples.format.chroma else (0,))]
    for run in RUNS:
        if all(_window(axis, run, what.size[1]) <= WINDOW for axis in right):
            return run
    return 0


def _window(axis: Axis, run: int, width: int) -> int:
    found = taps(axis)
    begins = found.first[::run]
    ends = found.first[np.minimum(np.arange(0, width, run) + run, width) - 1]
    padded = found.count + (-found.count % VECTOR)
    return int((ends - begins).max()) + padded + 2


# ---- running ----


@computes("video_frames")
def run(call: Call) -> tuple[Array, ...]:
    """Frames alone."""
    return _run(call, None)


@finishes("video_frames")
def run_finished(call: Call, finish: Finish) -> tuple[Array, ...]:
    """Frames and the elementwise operations after them."""
    return _run(call, finish)


def _run(call: Call, finish: Finish | None) -> tuple[Array, ...]:
    what: ToFrames = call.attributes["what"]
    planes = [contiguous(call.builder, x) for x in call.inputs if x is not None]
    (output,) = call.outputs
    spec = output if finish is None else finish.computation.outputs[0][1]
    result = call.builder.result(spec)
    if result.layout.size:
        name = "video_frames" if finish is None else finish.computation.name
        problem = FrameProblem(what, output.shape[0])
        family.run(call.builder, problem, planes, result, finish, op=name)
    return (result,)


def _serial_can(info: DeviceInfo, problem: FrameProblem) -> bool:
    return tables(problem.what).run > 0


@family.variant("serial", can=_serial_can, made_for=DeviceKind.WIDE)
def serial(
    b: Builder,
    problem: FrameProblem,
    planes: Sequence[Array],
    result: Array,
    finish: Finish | None,
) -> None:
    """A thread makes a run of columns: rows are weighted first, then columns."""
    _launch(b, problem, planes, result, finish, tables(problem.what).run)


@family.variant("threads", made_for=DeviceKind.SIMD)
def threads(
    b: Builder,
    problem: FrameProblem,
    planes: Sequence[Array],
    result: Array,
    finish: Finish | None,
) -> None:
    """A thread makes a pixel."""
    _launch(b, problem, planes, result, finish, 0)


def _launch(
    b: Builder,
    problem: FrameProblem,
    planes: Sequence[Array],
    result: Array,
    finish: Finish | None,
    run: int,
) -> None:
    what = problem.what
    program = _program(what, run > 0)
    if finish is not None:
        program = _with_steps(program, finish)
    name = "video_frames" if finish is None else finish.computation.name
    function = _kernel_name(program, name)
    pipeline = b.pipeline(
        "video_frames", function, safe_math=True, source=source(program, function)
    )
    height, width = what.size
    arguments: list[Buffer | bytes] = [
        *map(buffer_of, planes),
        buffer_of(result),
        tables(what).record,
        *on_device(b, "frames", what, tables),
        *_operands(program, finish),
    ]
    grid = (-(-width // run) if run else width, height, problem.frames)
    group = (1 if run else min(width, GROUP), 1, 1)
    b.launch(pipeline, arguments, grid, group)


@cache
def _kernel_name(program: FrameProgram, name: str) -> str:
    return f"{name}_{blake2b(repr(program).encode(), digest_size=6).hexdigest()}"


@lru_cache(REMEMBERED)
def _program(what: ToFrames, serial: bool) -> FrameProgram:
    form = what.samples.format
    components = []
    for i, place in enumerate(form.components):
        if i < ALPHA or what.alpha:
            right = what.axes(i)[1]
            mode = WEIGHTED
            if taps(right).is_identity:
                mode = SAME
            elif i in form.chroma and doubling(right) is not None:
                mode = DOUBLED
            chroma = i in form.chroma
            mode = mode if serial else WEIGHTED
            components.append(ComponentCode(place.plane, place.step, place.offset, chroma, mode))
    return FrameProgram(
        sample=form.dtype,
        planes=form.planes,
        components=tuple(components),
        light=what.light,
        code=what.code,
        clip=what.clip,
        normalise=set(what.scale) != {1.0} or set(what.offset) != {0.0},
        channels=what.channels,
        packed=what.layout == "NHWC",
        dtype=what.dtype,
        serial=serial,
    )


def _with_steps(program: FrameProgram, finish: Finish) -> FrameProgram:
    what = finish.computation
    across = 2 if program.packed else 3  # the axis along a row of pixels
    inputs = tuple(
        ProgramInput(
            x.dtype,
            Access.SCALAR if is_host(x) else access(x.layout.strides[across]),
        )
        for x in what.inputs
    )
    ((value, spec),) = what.outputs
    return replace(
        program,
        inputs=inputs,
        place=finish.place,
        steps=what.steps,
        output=(value, spec.dtype),
        excess=policy().excess_precision,
    )


def _operands(program: FrameProgram, finish: Finish | None) -> list[Buffer | bytes]:
    """What the steps read, and where in memory each array's elements are."""
    if finish is None:
        return []
    values: list[Buffer | bytes] = []
    places: list[int] = []
    for i, x in enumerate(finish.computation.inputs):
        if i == finish.place:
            continue
        if is_host(x):
            values.append(constant(x))
        else:
            values.append(whole_buffer(x))
            places += [x.layout.offset, *x.layout.strides]
    assert len(places) == len(program.arrays) * (1 + AXES)
    return [*values, packed(LONG, *places)] if places else values
