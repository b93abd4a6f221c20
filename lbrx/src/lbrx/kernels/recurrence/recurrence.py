"""Recurrent layers: short convolutions and linear recurrences of matrices, with their states."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Record, UInt
from lbrx.errors import ShapeError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, size_class
from lbrx.kernels.overwrite.overwrite import target
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Spec

# Constants of recurrence.h.
MOST_TAPS, MOST_STATES = 16, 256
GROUP = 64  # threads


class ShortConvolutionRecord(Record, header="recurrence"):
    tokens: UInt
    channels: UInt
    taps: UInt
    has_bias: UInt


class RecurrenceRecord(Record, header="recurrence"):
    tokens: UInt
    heads: UInt
    key_heads: UInt
    share: UInt  # heads that share one of keys
    width: UInt
    size: UInt
    delta: UInt


@dataclass(frozen=True)
class RecurrenceProblem:
    """The problem: threads for each text, and what each walks over."""

    kind: str
    batch: int
    tokens: int
    grid: Shape
    size: int

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.kind} {size_class(self.batch, self.tokens, *self.grid, self.size)}"


family: KernelFamily[RecurrenceProblem] = KernelFamily("recurrence")


@computes("short_convolution")
def short_convolution(call: Call) -> tuple[Array, ...]:
    """Compute `short_convolution`."""
    b, (cache, x, weight, positions, *rest) = call.builder, call.inputs
    batch, tokens, channels = call.outputs[1].shape
    assert weight is not None
    taps, bias = weight.layout.shape[-1], next(iter(rest), None)
    _limited("taps", taps, MOST_TAPS)
    record = ShortConvolutionRecord(
        tokens=tokens, channels=channels, taps=taps, has_bias=bias is not None
    )
    operands = [_floats(b, x), _floats(b, weight), _floats(b, weight if bias is None else bias)]
    problem = RecurrenceProblem("convolution", batch, tokens, (channels,), taps)
    return _run(call, problem, cache, operands, positions, record)


@computes("recurrence")
def recurrence(call: Call) -> tuple[Array, ...]:
    """Compute `recurrence`."""
    b, (cache, *operands, positions) = call.builder, call.inputs
    batch, tokens, heads, width = call.outputs[1].shape
    key_heads, size = call.inputs[2].layout.shape[2:]  # type: ignore[union-attr]
    _limited("features of a key", size, MOST_STATES)
    record = RecurrenceRecord(
        tokens=tokens,
        heads=heads,
        key_heads=key_heads,
        share=heads // key_heads,
        width=width,
        size=size,
        delta=bool(call.attributes["delta"]),
    )
    problem = RecurrenceProblem("states", batch, tokens, (width, heads), size)
    given = [_floats(b, each) for each in operands]
    return _run(call, problem, cache, given, positions, record)


def _limited(what: str, given: int, most: int) -> None:
    if given > most:
        raise ShapeError(f"{given} {what} are more than kernels of recurrent layers take, {most}")


def _floats(b: Builder, array: Array | None) -> Buffer:
    assert array is not None
    return buffer_of(layouts.contiguous(b, layouts.cast(b, b.placed(array), dt.float32)))


def _run(
    call: Call,
    problem: RecurrenceProblem,
    cache: Array | None,
    operands: list[Buffer],
    positions: Array | None,
    record: Record,
) -> tuple[Array, ...]:
    b = call.builder
    assert cache is not None
    assert positions is not None
    state, result = target(b, cache, call.outputs[0]), b.result(call.outputs[1])
    places = layouts.contiguous(b, layouts.cast(b, b.placed(positions), dt.int32))
    if result.layout.size:
        arguments = [buffer_of(state), *operands, buffer_of(places), buffer_of(result), record]
        family.run(b, problem, arguments)
    return state, result


@family.variant("channels", can=lambda info, problem: problem.kind == "convolution")
def channels(b: Builder, problem: RecurrenceProblem, arguments: list[Buffer | bytes]) -> None:
    """One thread per channel walks over the tokens."""
    (count,) = problem.grid
    grid = (count, problem.batch, 1)
    group = (min(grid[0], GROUP), 1, 1)
    pipeline = b.pipeline("recurrence", "short_convolution", safe_math=True)
    b.launch(pipeline, arguments, grid, group)


@family.variant("rows", can=lambda info, problem: problem.kind == "states")
def rows(b: Builder, problem: RecurrenceProblem, arguments: list[Buffer | bytes]) -> None:
    """One thread per row of a head's state walks over the tokens."""
    width, heads = problem.grid
    grid = (width, heads, problem.batch)
    group = (min(grid[0], GROUP), 1, 1)
    pipeline = b.pipeline("recurrence", "recurrence_rows", safe_math=True)
    b.launch(pipeline, arguments, grid, group)


family.samples += [
    Sample(
        "short_convolution",
        (
            Spec((1, 1024, 3), dt.float32),
            Spec((1, 64, 1024), dt.float32),
            Spec((1024, 4), dt.float32),
            Spec((1, 64), dt.int32),
        ),
    ),
    Sample(
        "recurrence",
        (
            Spec((1, 16, 64, 128), dt.float32),
            Spec((1, 64, 16, 64), dt.float32),
            *(Spec((1, 64, 1, 128), dt.float32),) * 2,
            *(Spec((1, 64, 16), dt.float32),) * 2,
            Spec((1, 64), dt.int32),
        ),
        {"delta": False},
    ),
]
