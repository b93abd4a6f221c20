"""Commands that encoders add for the checking modes: memory regions and ordering."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from softmetal import checks
from softmetal.api import enums
from softmetal.api.buffer import MTLBuffer, MTLResource
from softmetal.api.heap import MTLHeap
from softmetal.types import Command, Dispatch, Execute, Order, Region, Resources

if TYPE_CHECKING:
    from softmetal.api.icb import MTLIndirectCommandBuffer
    from softmetal.api.pipeline import MTLComputePipelineState


def order(kind: str, value: int = 0) -> Sequence[Command]:
    """The command that describes the order of others; empty where nothing is checked."""
    return (Order(kind, value),) if checks.current() is not None else ()


def resources(
    pipeline: MTLComputePipelineState,
    bound: Sequence[MTLBuffer | None],
    inline: Sequence[tuple[int, int]],
    used: Iterable[MTLResource | MTLHeap],
) -> Resources:
    """Memory that a dispatch may access: its arguments, then resident resources."""
    regions = []
    for index in pipeline._needed:
        buffer = bound[index] if index < len(bound) else None
        if buffer is not None:
            regions.append(_region(index, buffer))
        elif index < len(inline):  # setBytes
            regions.append(Region(index, *inline[index], "", True))
    regions += [region for resource in used for region in _resident(resource)]
    return Resources(tuple(regions))


def _region(index: int, buffer: MTLBuffer) -> Region:
    tracked = buffer.hazardTrackingMode() != enums.MTLHazardTrackingModeUntracked
    return Region(index, buffer._address, buffer._length, buffer.label() or "", tracked)


def _resident(resource: MTLResource | MTLHeap) -> Iterator[Region]:
    if isinstance(resource, MTLBuffer):
        yield _region(-1, resource)
    elif isinstance(resource, MTLHeap):
        memory = resource._memory
        yield Region(-1, memory.address, memory.length, resource.label() or "", False)


def blitted(*buffers: MTLBuffer) -> list[Command]:
    """Memory that a copy or a fill accesses; empty where nothing is checked."""
    if checks.current() is None:
        return []
    return [Resources(tuple(_region(-1, buffer) for buffer in buffers))]


def expand(execute: Execute, commands: MTLIndirectCommandBuffer) -> Iterator[Command]:
    """An indirect command buffer as plain dispatches: each then has its regions and order."""
    yield Order("concurrency", 1)
    for index in range(execute.first, execute.first + execute.number):
        slot, item = execute.commands.slots[index], commands._items.get(index)
        if slot is None or item is None:
            continue
        if item._barrier:
            yield Order("barrier")
        pipeline = item._pipeline
        if pipeline is not None and pipeline._checked:
            yield resources(pipeline, item._bound, (), ())
        kernel = slot.kernel or execute.inherited.kernel
        yield slot._replace(kernel=kernel, buffers=slot.buffers or execute.inherited.buffers)
    yield Order("concurrency", 0)


def shuffled(commands: Iterable[Command], seed: int) -> list[Command]:
    """Shuffle dispatches that are not ordered, by the seed."""
    chance, result = random.Random(seed), list[Command]()
    free: list[list[Command]] = []  # dispatches that may be reordered, each with its regions
    unit: list[Command] = []
    concurrent = False
    for command in commands:
        unit.append(command)
        if isinstance(command, Resources):  # of the command that follows
            continue
        if concurrent and isinstance(command, Dispatch):
            free.append(unit)
        else:
            chance.shuffle(free)
            result += [*chain.from_iterable(free), *unit]
            free = []
        unit = []
        if isinstance(command, Order) and command.kind in ("serial", "concurrent", "concurrency"):
            concurrent = command.kind == "concurrent" or command.value == 1
    chance.shuffle(free)
    return [*result, *chain.from_iterable(free), *unit]
