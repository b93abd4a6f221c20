"""RGB to planes on the Metal device: tables, selection of a variant, and launch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b

import numpy as np

from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, size_class
from lbrx.kernels.registry import Call, KernelFamily, computes
from lbrx.metal import Buffer, Context
from lbrx.storage import Array
from lbrx.video.conversion import ToPlanes
from lbrx.video.device_tables import DeviceTables, Tables
from lbrx.video.plane_source import PlaneProgram, source
from lbrx.video.resampling import taps

RUN = 256  # columns of a thread of the serial variant
GROUP = 64  # threads
EMULATED = 100.0  # times slower: the variant that is not meant for the device
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


@lru_cache(REMEMBERED)
def tables(what: ToPlanes) -> Tables:
    """Of chroma; without subsampling nothing reads them."""
    down, right = (taps(axis) for axis in what.axes())
    known, form = what.samples, what.samples.format
    shapes = [form.plane_shape(c.plane, known.height, known.width) for c in form.components]
    pitches = [columns for _, columns in shapes]
    sizes = [rows * columns for rows, columns in shapes]
    matrix, offset = known.to_codes()
    record = struct.pack(
        "I8I6I9f3ff",
        form.component_shape(1, known.height, known.width)[1],
        *(*pitches, 0, 0)[:4],
        *(*sizes, 0, 0)[:4],
        *(down.count, 0, 0),
        *(right.count, len(down.first), down.weights.size),
        *matrix.reshape(-1),
        *offset,
        2**form.depth - 1,
    )
    firsts = np.concatenate([down.first, right.first]).astype(np.int32)
    weights = np.concatenate([down.weights.reshape(-1), right.weights.reshape(-1)])
    return Tables(record, firsts, weights.astype(np.float32))


_uploaded: DeviceTables[ToPlanes] = DeviceTables(tables)


@computes("video_planes")
def run(call: Call) -> tuple[Array, ...]:
    what: ToPlanes = call.attributes["what"]
    (x,) = (elementwise.contiguous(call.gpu, x) for x in call.inputs if x is not None)
    results = tuple(empty(call.gpu, spec) for spec in call.outputs)
    if x.layout.size:
        shape = x.layout.shape
        channels = shape[1] if what.layout == "NCHW" else shape[3]
        family.run(call.gpu, PlaneProblem(what, shape[0], channels, x.dtype), x, results)
    return results


@family.variant("serial", cost=lambda info, _: EMULATED if info.simd_hardware else 1.0)
def serial(gpu: Context, problem: PlaneProblem, x: Array, results: Sequence[Array]) -> None:
    """A thread makes a run of columns."""
    _launch(gpu, problem, x, results, RUN, "serial")


@family.variant("threads", cost=lambda info, _: 1.0 if info.simd_hardware else EMULATED)
def threads(gpu: Context, problem: PlaneProblem, x: Array, results: Sequence[Array]) -> None:
    """A thread makes the pixels of one chroma sample."""
    _launch(gpu, problem, x, results, 1 << problem.what.samples.format.horizontal, "threads")


def _launch(
    gpu: Context, problem: PlaneProblem, x: Array, results: Sequence[Array], run: int, variant: str
) -> None:
    what, known = problem.what, problem.what.samples
    program = _program(problem, run)
    function = _kernel_name(program)
    pipeline = gpu.shaders.pipeline(
        "video_planes", function, safe_math=True, source=source(program, function)
    )
    record = struct.pack("3I", known.height, known.width, run) + tables(what).record
    arguments: list[Buffer | bytes] = [
        buffer_of(x),
        *map(buffer_of, results),
        record,
        *_uploaded.get(gpu, what),
    ]
    rows = -(-known.height >> program.vertical)
    grid = (-(-known.width // run), rows, problem.frames)
    group = (1 if variant == "serial" else min(grid[0], GROUP), 1, 1)
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel="video_planes", variant=variant)


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
