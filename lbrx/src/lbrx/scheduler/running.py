"""Running a command list: memory is taken as late and dropped as early as its steps allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.storage import Array, CpuStorage, MetalStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import (
    CommandList,
    Foreign,
    HostOperand,
    HostStep,
    KeptValues,
    Launch,
    Part,
    ReportMemory,
    Slot,
)
from lbrx.interrupt import UNINTERRUPTED
from lbrx.metal.buffer import Buffer
from lbrx.metal.commands import NumberSlot
from lbrx.metal.context import Context

MOST_KEPT = 256  # constants of a device

Memory = list[Buffer | None]
"""What each slot of a list has now."""
Numbers = Callable[[NumberSlot], bytes]
"""The numbers of one run."""


def own_value(slot: NumberSlot) -> bytes:
    """The value that a number had when the list was made."""
    return slot


def run(
    gpu: Context,
    commands: CommandList,
    memory: Memory,
    numbers: Numbers = own_value,
    after: Callable[[int], None] | None = None,
    *,
    submit: bool = False,
) -> None:
    """Run a list whose leaves have memory. `after` is called with the number of each step when it
    is encoded. `submit` gives the commands to the device with the last one, for a caller that
    waits."""
    taken, dropped, last = commands.taken, commands.dropped, len(commands.steps) - 1
    slots = commands.slots
    with gpu.queue.encoding():
        for number, step in enumerate(commands.steps):
            for slot in taken[number]:
                if memory[slot] is None:
                    memory[slot] = filled(gpu, slots[slot], numbers)
            if isinstance(step, HostStep):
                _compute(gpu, step, memory)
            else:
                encode(gpu, step, memory, numbers)
            if submit and number == last:
                gpu.queue.submit()
            if after is not None:
                after(number)
            for slot in dropped[number]:
                memory[slot] = None


def filled(gpu: Context, slot: Slot, numbers: Numbers = own_value) -> Buffer:
    """Memory for a slot, with its contents if it has some."""
    contents = slot.contents
    if contents is None:
        return gpu.buffer(slot.nbytes, slot.label)
    if isinstance(contents, ReportMemory):
        report = gpu.host_buffer(slot.nbytes, slot.label)
        report.unsynchronised()[:] = 0
        return report
    if isinstance(contents, KeptValues):
        return _kept(gpu, contents)
    if isinstance(contents, NumberSlot):
        return gpu.upload(np.frombuffer(numbers(contents), np.uint8), slot.label)
    return gpu.upload(contents, slot.label)


def _kept(gpu: Context, contents: KeptValues) -> Buffer:
    known = gpu.constants
    if contents.key not in known:
        if len(known) >= MOST_KEPT:
            known.pop(next(iter(known)))
        values = contents.values
        known[contents.key] = gpu.heap_buffer(values.nbytes, "constants")
        gpu.write(known[contents.key], values)
    return known[contents.key]


def encode(gpu: Context, step: Launch | Foreign, memory: Memory, numbers: Numbers) -> None:
    """Encode a step, within `CommandQueue.encoding`."""
    if isinstance(step, Foreign):
        parts = [memory[p.slot] if p.whole else p.of(memory) for p in step.parts]
        gpu.queue.encode_foreign(step.command, parts)  # type: ignore[arg-type]
        return
    # Loops, since every command passes here and comprehensions are calls before Python 3.12.
    accesses: list[Any] = []
    for index, slot, part, writes in step.places:
        accesses.append((index, memory[slot] if part is None else part.of(memory), writes))
    values: Sequence[tuple[int, bytes | None]] = step.values
    if step.numbers:
        values = opened = [*values]
        for index, number in step.numbers:
            opened.append((index, numbers(number)))
    command = step.command
    if step.check is not None and step.report is not None:
        words = step.report.of(memory).unsynchronised().view(np.uint32)
        command = replace(command, check=partial(step.check, words))
    gpu.queue.encode_dispatch(command, accesses, values)


def _compute(gpu: Context, step: HostStep, memory: Memory) -> None:
    values = step.compute([_values(each, memory, step.waits) for each in step.operands])
    for place, value in zip(step.results, values, strict=True):
        gpu.write(place.part.of(memory), np.ascontiguousarray(value, place.dtype.numpy))


def _values(operand: HostOperand | None, memory: Memory, waits: bool) -> NDArray[Any] | None:
    if operand is None:
        return None
    buffer = operand.part.of(memory)
    data = buffer.array() if waits else buffer.unsynchronised()
    return Array(CpuStorage(data), operand.layout, operand.dtype).numpy()


@dataclass(frozen=True)
class ReadyList:
    """A list whose leaves have memory: it can run any number of times."""

    gpu: Context
    commands: CommandList
    fixed: Mapping[int, Buffer]
    """The memory of leaves, by slot."""
    results: tuple[tuple[Array, Part], ...]

    def run(self) -> tuple[Array, ...]:
        """Run the list; returns its results in memory."""
        gpu, commands = self.gpu, self.commands
        memory: Memory = [self.fixed.get(slot) for slot in range(len(commands.slots))]
        last = len(commands.steps) - 1
        results: list[Array] = []

        def keep(number: int) -> None:
            if number == last:
                for array, part in self.results:
                    buffer = memory[part.slot] or filled(gpu, commands.slots[part.slot])
                    storage = MetalStorage(buffer, part.offset, part.size)
                    results.append(replace(array, storage=storage))

        with UNINTERRUPTED:
            run(gpu, commands, memory, after=keep)
            if last < 0:
                keep(last)
        return tuple(results)


def ready(gpu: Context, describe: Callable[[Builder], tuple[Array, ...]]) -> ReadyList:
    """The list of the steps that a function describes, whose operands are in memory."""
    b = Builder(gpu)
    results = tuple((array, b.part(array.storage)) for array in describe(b))
    last = b.step_count - 1
    commands = b.closed({part.slot: last for _, part in results})
    return ReadyList(gpu, commands, b.fixed, results)
