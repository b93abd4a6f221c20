"""Commands that encoders add for the checking modes: memory regions and ordering."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from softmetal import checks
from softmetal.api import enums
from softmetal.api.buffer import MTLBuffer, MTLResource
from softmetal.api.extents import Extent
from softmetal.api.heap import BUFFER_ALIGNMENT, MTLHeap, align_up
from softmetal.types import Command, Dispatch, Execute, Order, Region, Resources

if TYPE_CHECKING:
    from softmetal.api.icb import MTLIndirectCommandBuffer
    from softmetal.api.pipeline import MTLComputePipelineState


def order(kind: str, value: int = 0) -> Sequence[Command]:
    """The command that describes the order of others; empty where nothing is checked."""
    return (Order(kind, value),) if checks.current() is not None else ()


MOST_REGIONS = 400  # executors keep 512, also of threadgroup memory and constants


class Inherited(NamedTuple):
    """What indirect commands may take from the encoder that executes them."""

    pipeline: MTLComputePipelineState | None
    bound: Sequence[MTLBuffer | Extent | None]
    inline: Sequence[tuple[int, int]]
    used: Sequence[MTLResource | MTLHeap]


def resources(
    pipeline: MTLComputePipelineState,
    bound: Sequence[MTLBuffer | Extent | None],
    inline: Sequence[tuple[int, int]],
    used: Iterable[MTLResource | MTLHeap],
) -> Resources:
    """Memory that a dispatch may access: its arguments, then resident resources."""
    regions = []
    for index in pipeline._needed:
        binding = bound[index] if index < len(bound) else None
        if binding is not None:
            regions.append(_region(index, binding))
        elif index < len(inline):  # setBytes
            regions.append(Region(index, *inline[index], "", True))
    return also_resident(Resources(tuple(regions)), used)


def also_resident(command: Resources, used: Iterable[object]) -> Resources:
    """The memory with that of resident resources."""
    regions = list(command.regions)
    for resource in used:
        if isinstance(resource, MTLBuffer):
            regions.append(_region(-1, resource))
        elif isinstance(resource, MTLHeap):
            regions += _heap_regions(resource, command.regions)
    return Resources(tuple(regions if len(regions) <= MOST_REGIONS else _fewer(regions)))


def _fewer(regions: list[Region]) -> list[Region]:
    """As many regions as executors keep: resident ones are joined over the smallest gaps between
    them, which then count as resident too."""
    arguments = [region for region in regions if region.slot >= 0]
    resident = sorted((r for r in regions if r.slot < 0), key=lambda region: region.address)
    ends = list(accumulate((r.address + r.length for r in resident), max))
    gaps = [region.address - end for region, end in zip(resident[1:], ends, strict=False)]
    widest = nlargest(MOST_REGIONS - len(arguments) - 1, range(len(gaps)), gaps.__getitem__)
    splits = [0, *(i + 1 for i in sorted(widest)), len(resident)]
    for first, past in pairwise(splits):
        start = resident[first].address
        arguments.append(Region(-1, start, ends[past - 1] - start, "", False))
    return arguments


def _region(index: int, bound: MTLBuffer | Extent) -> Region:
    if isinstance(bound, Extent):
        return _region(index, bound.buffer)._replace(address=bound.address, length=bound.length)
    tracked = bound.hazardTrackingMode() != enums.MTLHazardTrackingModeUntracked
    return Region(index, bound._address, bound._length, bound.label() or "", tracked)


def _heap_regions(heap: MTLHeap, bound: Iterable[Region]) -> Iterator[Region]:
    """A heap without the bytes that follow the ends of arguments up to where another buffer may
    start: a kernel that leaves its argument would not be found there."""
    start, label = heap._memory.address, heap.label() or ""
    last = start + heap._memory.length
    ends = {region.address + region.length for region in bound if region.slot >= 0}
    for end in sorted(ends):
        if start < end < last and end % BUFFER_ALIGNMENT:
            yield Region(-1, start, end - start, label, False)
            start = align_up(end, BUFFER_ALIGNMENT)
    if start < last:
        yield Region(-1, start, last - start, label, False)


def blitted(*buffers: MTLBuffer) -> list[Command]:
    """Memory that a copy or a fill accesses; empty where nothing is checked."""
    if checks.current() is None:
        return []
    return [Resources(tuple(_region(-1, buffer) for buffer in buffers))]


def expand(
    execute: Execute, commands: MTLIndirectCommandBuffer, inherited: Inherited | None
) -> Iterator[Command]:
    """An indirect command buffer as single commands: each then has its regions and order."""
    yield Order("concurrency", 1)
    given = inherited or Inherited(None, (), (), ())
    for index in range(execute.first, execute.first + execute.number):
        slot, item = execute.commands.slots[index], commands._items.get(index)
        if slot is None or item is None:
            continue
        if item._barrier:
            yield Order("barrier")
        pipeline = item._pipeline or given.pipeline
        if pipeline is not None and pipeline._checked:
            own = not commands._inherits_buffers
            bound, inline = (item._bound, ()) if own else (given.bound, given.inline)
            yield resources(pipeline, bound, inline, given.used)
        if execute.range_address:  # which tells at execution whether this one is executed
            yield execute._replace(first=index, number=1)
            continue
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
