"""Planes to RGB on the Metal device: tables, selection of a variant, and launch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, size_class, whole_buffer
from lbrx.kernels.finishing import Finish, finishes
from lbrx.kernels.program import Access, ProgramInput
from lbrx.kernels.registry import Call, KernelFamily, computes, policy
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.storage import Array
from lbrx.video.conversion import ToFrames
from lbrx.video.device_tables import DeviceTables, Tables
from lbrx.video.frame_source import (
    ALPHA,
    AXES,
    DOUBLED,
    SAME,
    WEIGHTED,
    ComponentCode,
    FrameProgram,
    source,
)
from lbrx.video.resampling import Axis, Taps, doubling, taps

# Columns of a thread, at most VIDEO_RUN of video_frames.h, and even so that chroma pairs are whole.
RUNS = (256, 128, 64, 32, 16, 8, 4, 2)
WINDOW = 1024  # VIDEO_WINDOW
GROUP = 64  # threads
VECTOR = 4  # weights along rows are padded to a multiple of this
EMULATED = 100.0  # times slower: the variant that is not meant for the device
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


@dataclass(frozen=True, eq=False)
class FrameTables(Tables):
    """The tables of a conversion to frames."""

    run: int
    """Columns of a thread of the serial variant; 0 if that variant cannot take the conversion."""


@lru_cache(REMEMBERED)
def tables(what: ToFrames) -> FrameTables:
    """Luma's axes and chroma's, down and right, one after the other."""
    form, known = what.samples.format, what.samples
    kinds = [what.axes(0), what.axes(1) if form.chroma else what.axes(0)]
    firsts: list[NDArray[np.int32]] = []
    weights: list[NDArray[np.float32]] = []
    records = b""
    for direction in (0, 1):
        for axes in kinds:
            found = taps(axes[direction])
            values = _padded(found) if direction else found.weights
            starts = (sum(map(len, firsts)), sum(w.size for w in weights))
            records += struct.pack("3I", values.shape[1], *starts)
            firsts.append(found.first.astype(np.int32))
            weights.append(values.astype(np.float32).reshape(-1))
    shapes = [form.plane_shape(c.plane, known.height, known.width) for c in form.components]
    widths = [
        form.component_shape(i, known.height, known.width)[1] for i in range(len(form.components))
    ]
    record = _four("I", [columns for _, columns in shapes])
    record += _four("I", [rows * columns for rows, columns in shapes]) + _four("I", widths)
    record += records + _doubling(what) + _numbers(what)
    run = _longest_run(what, [axes[1] for axes in kinds])
    return FrameTables(record, np.concatenate(firsts), np.concatenate(weights), run)


def _padded(found: Taps) -> NDArray[np.float64]:
    return np.pad(found.weights, ((0, 0), (0, -found.count % VECTOR)))


def _four(code: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"4{code}", *(*values, 0, 0, 0, 0)[:4])


def _doubling(what: ToFrames) -> bytes:
    found = doubling(what.axes(1)[1]) if what.samples.format.chroma else None
    if found is None:
        return struct.pack("2i4f", 0, 0, 0, 0, 0, 0)
    return struct.pack("2i4f", found.base, found.odd, *found.weights)


def _numbers(what: ToFrames) -> bytes:
    """Codes are in elements without their unused low bits, so the matrix scales those away."""
    form = what.samples.format
    matrix, offset = what.samples.to_rgb()
    shifts = [2.0 ** -form.components[min(i, len(form.components) - 1)].shift for i in range(3)]
    alpha = what.samples.alpha_scale * 2.0 ** -form.components[-1].shift
    return (
        struct.pack("9f3ff", *(matrix * np.array(shifts)).reshape(-1), *offset, alpha)
        + _four("f", what.scale)
        + _four("f", what.offset)
    )


def _longest_run(what: ToFrames, right: Sequence[Axis]) -> int:
    """The columns of a thread whose samples fit its memory."""
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


_uploaded: DeviceTables[ToFrames] = DeviceTables(tables)


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
    planes = [elementwise.contiguous(call.gpu, x) for x in call.inputs if x is not None]
    (output,) = call.outputs
    spec = output if finish is None else finish.computation.outputs[0][1]
    result = empty(call.gpu, spec)
    if result.layout.size:
        family.run(call.gpu, FrameProblem(what, output.shape[0]), planes, result, finish)
    return (result,)


def _serial_can(info: DeviceInfo, problem: FrameProblem) -> bool:
    return tables(problem.what).run > 0


@family.variant(
    "serial",
    can=_serial_can,
    cost=lambda info, problem: EMULATED if info.simd_hardware else 1.0,
)
def serial(
    gpu: Context,
    problem: FrameProblem,
    planes: Sequence[Array],
    result: Array,
    finish: Finish | None,
) -> None:
    """A thread makes a run of columns: rows are weighted first, then columns."""
    _launch(gpu, problem, planes, result, finish, tables(problem.what).run)


@family.variant("threads", cost=lambda info, problem: 1.0 if info.simd_hardware else EMULATED)
def threads(
    gpu: Context,
    problem: FrameProblem,
    planes: Sequence[Array],
    result: Array,
    finish: Finish | None,
) -> None:
    """A thread makes a pixel."""
    _launch(gpu, problem, planes, result, finish, 0)


def _launch(
    gpu: Context,
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
    pipeline = gpu.shaders.pipeline(
        "video_frames", function, safe_math=True, source=source(program, function)
    )
    height, width = what.size
    made = tables(what)
    arguments: list[Buffer | bytes] = [
        *map(buffer_of, planes),
        buffer_of(result),
        struct.pack("3I", height, width, run) + made.record,
        *_uploaded.get(gpu, what),
        *_operands(program, finish),
    ]
    grid = (-(-width // run) if run else width, height, problem.frames)
    group = (1 if run else min(width, GROUP), 1, 1)
    variant = "serial" if run else "threads"
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel=name, variant=variant)


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
            Access.SCALAR
            if elementwise.is_host(x)
            else elementwise.access(x.layout.strides[across]),
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
        if elementwise.is_host(x):
            values.append(elementwise.constant(x))
        else:
            values.append(whole_buffer(x))
            places += [x.layout.offset, *x.layout.strides]
    assert len(places) == len(program.arrays) * (1 + AXES)
    return [*values, struct.pack(f"{len(places)}q", *places)] if places else values
