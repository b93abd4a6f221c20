"""RGB to planes on the Metal device: tables, selection of a variant, and launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Annotated

import numpy as np

from lbrx.extension.kernels import (
    FLOAT,
    UINT,
    Buffer,
    Builder,
    Call,
    DeviceKind,
    Float,
    KernelFamily,
    Record,
    UInt,
    buffer_of,
    computes,
    contiguous,
    size_class,
)
from lbrx.extension.tensors import Array, Dtype
from lbrx_video.conversion import ToPlanes
from lbrx_video.kernels.device_tables import (
    COMPONENTS,
    AxisTables,
    Tables,
    VideoAxesRecord,
    by_component,
    on_device,
)
from lbrx_video.kernels.plane_source import PlaneProgram, source
from lbrx_video.resampling import taps

RUN = 256  # columns of a thread of the serial variant
GROUP = 64  # threads
REMEMBERED = 64


@dataclass(frozen=True)
class PlaneProblem:
    """The problem: a conversion, and the frames that are given."""

    what: ToPlanes
    frames: int
    channels: int
    dtype: Dtype

    @property
    def shape_class(self) -> str:
        known = self.what.samples
        return f"{known.format.name} {self.dtype} {size_class(known.height, known.width)}"


family: KernelFamily[PlaneProblem] = KernelFamily("video_planes")


class VideoPlanesRecord(Record, header="video_planes"):
    """Frames, and the planes that are made of them. Arrays have a value for each component."""

    height: UInt  # of frames
    width: UInt
    run: UInt  # columns of a thread
    chroma_width: UInt  # samples in a row
    pitch: Annotated[Sequence[int], UINT[COMPONENTS]]  # elements in a row of the plane
    size: Annotated[Sequence[int], UINT[COMPONENTS]]  # elements in a plane
    chroma: VideoAxesRecord
    matrix: Annotated[Sequence[float], FLOAT[9]]  # from R'G'B' to codes, by rows
    offset: Annotated[Sequence[float], FLOAT[3]]
    top: Float  # the largest code


@dataclass(frozen=True, eq=False)
class PlaneTables(Tables):
    """The tables of a conversion to planes, and where they are."""

    chroma: VideoAxesRecord


@lru_cache(REMEMBERED)
def tables(what: ToPlanes) -> PlaneTables:
    """Of chroma; without subsampling nothing reads them."""
    made = AxisTables()
    down, right = (made.add(taps(axis)) for axis in what.axes())
    chroma = VideoAxesRecord(down=down, right=right)
    return PlaneTables(made.firsts, made.weights, chroma)


@lru_cache(REMEMBERED)
def _record(what: ToPlanes, run: int) -> VideoPlanesRecord:
    known, form = what.samples, what.samples.format
    shapes = [form.plane_shape(c.plane, known.height, known.width) for c in form.components]
    matrix, offset = known.to_codes()
    return VideoPlanesRecord(
        height=known.height,
        width=known.width,
        run=run,
        chroma_width=form.component_shape(1, known.height, known.width)[1],
        pitch=by_component([columns for _, columns in shapes]),
        size=by_component([rows * columns for rows, columns in shapes]),
        chroma=tables(what).chroma,
        matrix=matrix.reshape(-1).tolist(),
        offset=offset.tolist(),
        top=2**form.depth - 1,
    )


@computes("video_planes")
def run(call: Call) -> tuple[Array, ...]:
    what: ToPlanes = call.attributes["what"]
    (x,) = (contiguous(call.builder, x) for x in call.inputs if x is not None)
    results = tuple(call.builder.result(spec) for spec in call.outputs)
    if x.layout.size:
        shape = x.layout.shape
        channels = shape[1] if what.layout == "NCHW" else shape[3]
        family.run(call.builder, PlaneProblem(what, shape[0], channels, x.dtype), x, results)
    return results


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: PlaneProblem, x: Array, results: Sequence[Array]) -> None:
    """A thread makes a run of columns."""
    _launch(b, problem, x, results, RUN, "serial")


@family.variant("threads", made_for=DeviceKind.SIMD)
def threads(b: Builder, problem: PlaneProblem, x: Array, results: Sequence[Array]) -> None:
    """A thread makes the pixels of one chroma sample."""
    _launch(b, problem, x, results, 1 << problem.what.samples.format.horizontal, "threads")


def _launch(
    b: Builder, problem: PlaneProblem, x: Array, results: Sequence[Array], run: int, variant: str
) -> None:
    what, known = problem.what, problem.what.samples
    program = _program(problem, run)
    function = _kernel_name(program)
    pipeline = b.pipeline(
        "video_planes", function, safe_math=True, source=source(program, function)
    )
    arguments: list[Buffer | bytes] = [
        buffer_of(x),
        *map(buffer_of, results),
        _record(what, run),
        *on_device(b, "planes", what, tables),
    ]
    rows = -(-known.height >> program.vertical)
    grid = (-(-known.width // run), rows, problem.frames)
    group = (1 if variant == "serial" else min(grid[0], GROUP), 1, 1)
    b.launch(pipeline, arguments, grid, group)


@cache
def _kernel_name(program: PlaneProgram) -> str:
    return f"video_planes_{blake2b(repr(program).encode(), digest_size=6).hexdigest()}"


@lru_cache(REMEMBERED)
def _program(problem: PlaneProblem, run: int) -> PlaneProgram:
    what, form = problem.what, problem.what.samples.format
    subsampled = bool(form.horizontal or form.vertical)
    return PlaneProgram(
        dtype=problem.dtype,
        channels=problem.channels,
        packed=what.layout == "NHWC",
        sample=form.dtype,
        planes=form.planes,
        components=form.components,
        chroma=form.chroma if subsampled else (),
        horizontal=form.horizontal,
        vertical=form.vertical,
        light=what.light,
        code=what.code,
        run=run,
        window=_window(what, run) if subsampled else 0,
    )


def _window(what: ToPlanes, run: int) -> int:
    """The most pixels that the chroma samples of a run are made of."""
    right = taps(what.axes()[1])
    samples = max(run >> what.samples.format.horizontal, 1)
    ends = right.first[
        np.minimum(np.arange(0, len(right.first), samples) + samples, len(right.first)) - 1
    ]
    return int((ends - right.first[::samples]).max()) + right.count
