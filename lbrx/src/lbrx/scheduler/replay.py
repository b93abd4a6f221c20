"""Replay: commands recorded once, run again with other inputs.

Kernels between two foreign commands (MPS products) are one indirect command buffer, encoded once
and executed by one call, unless they are few. Inputs and results are bound again where they have
changed. Intermediate results are placed in one arena by their lifetimes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from lbrx.interrupt import UNINTERRUPTED
from lbrx.memory.arena import Lifetime, arrange
from lbrx.metal import Buffer, Context
from lbrx.metal.binding import Metal, autorelease_pool
from lbrx.metal.buffer import Block
from lbrx.metal.commands import Argument, Command, Dispatch, Encoded, NumberSlot, Recorded
from lbrx.metal.hazards import Hazards

CONSTANT_ALIGNMENT = 256  # bytes: a valid constant offset on every GPU
MAX_COMMANDS = 16384  # in one indirect command buffer, on Apple's GPUs
FEWEST_COMMANDS = 8  # that are worth one: executing it takes the host as long as encoding some
LISTS = 2  # copies of the same indirect command buffer


def stand_in(buffer: Buffer) -> Buffer:
    """The same memory with its own block object, which marks it as an input in commands."""
    block = buffer.block
    copy = Block(*(block.handle, block.address, block.length), private=block.private)
    copy.host, copy.writable = block.host, block.writable
    return Buffer(copy, buffer.offset, buffer.size, buffer._waiter, buffer)


@dataclass
class Recording:
    """A list of commands whose inputs and results are bound for each run."""

    gpu: Context
    recorded: Recorded
    inputs: list[Buffer]
    """Placeholders, in the order of the inputs."""
    outputs: list[Buffer]
    """The buffers into which the recorded commands write the results."""
    pieces: list[Single | Listed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # Empty grids are not valid in an indirect command buffer.
        found = self.recorded.commands
        self.commands = [c for c in found if isinstance(c, Encoded) or 0 not in c.grid]
        written = {id(b.block) for command in self.commands for b in command.written}
        # Recorded buffers that no command writes were filled by the host.
        self.made = self.recorded.taken & written
        self._open(self._arranged())
        found.clear()  # and with it the memory that is replaced
        for foreign, group in groupby(self.commands, _is_foreign):
            if foreign:
                self.pieces += map(Single, group)
            else:
                listed = [command for command in group if isinstance(command, Dispatch)]
                if len(listed) < FEWEST_COMMANDS:
                    self.pieces += map(Single, listed)
                    continue
                for first in range(0, len(listed), MAX_COMMANDS):
                    self.pieces.append(Listed(self.gpu, listed[first : first + MAX_COMMANDS]))

    def _arranged(self) -> Callable[[Buffer], Buffer]:
        """Where buffers lie: in one arena those that only the commands use."""
        lives: dict[int, tuple[Buffer, int, int]] = {}
        fixed = {id(buffer.block) for buffer in (*self.inputs, *self.outputs)}
        inner = self.made - fixed
        for step, command in enumerate(self.commands):
            for buffer in command.buffers:
                key = id(buffer.block)
                if key in inner:
                    first = lives[key][1] if key in lives else step
                    lives[key] = (buffer, first, step)
        plan = arrange([Lifetime(b.block.length, first, last) for b, first, last in lives.values()])
        arena = self.gpu.heap_buffer(plan.size, "replay")
        moved = dict(zip(lives, plan.offsets, strict=True))

        def placed(buffer: Buffer) -> Buffer:
            offset = moved.get(id(buffer.block))
            return buffer if offset is None else arena.slice(offset + buffer.offset, buffer.size)

        return placed

    def _open(self, placed: Callable[[Buffer], Buffer]) -> None:
        """Move buffers, and put places without memory where inputs and results are bound."""
        changing = [*self.inputs, *(b for b in self.outputs if id(b.block) in self.made)]
        blocks = {id(b.block): Block(None, 0, b.block.length) for b in changing}

        def opened(buffer: Buffer) -> Buffer:
            block = blocks.get(id(buffer.block))
            if block is None:
                return placed(buffer)
            return Buffer(block, buffer.offset, buffer.size, self.gpu.queue)

        self.commands = [_changed(command, opened, lambda slot: slot) for command in self.commands]
        self.inputs = [opened(buffer) for buffer in self.inputs]
        self.outputs = [opened(buffer) for buffer in self.outputs]

    def run(self, inputs: Sequence[Buffer], numbers: Sequence[float]) -> list[Buffer]:
        """Encode all commands with these inputs; returns the results' buffers."""
        with UNINTERRUPTED, self.lock:
            binding = _Binding(self, inputs, numbers)
            for piece in self.pieces:
                piece.run(binding)
            return [binding(buffer) for buffer in self.outputs]


class _Binding:
    """The buffers and numbers that are bound in one run."""

    def __init__(
        self, recording: Recording, inputs: Sequence[Buffer], numbers: Sequence[float]
    ) -> None:
        self.gpu = recording.gpu
        self.numbers = numbers
        self._given = {
            id(place.block): (place.offset, given)
            for place, given in zip(recording.inputs, inputs, strict=True)
        }
        for place in recording.outputs:
            if _is_open(place) and id(place.block) not in self._given:
                made = self.gpu.buffer(place.block.length, "tensors")
                self._given[id(place.block)] = (0, made)
        self.used = tuple(given for _, given in self._given.values())
        self.places = tuple(self._given)  # of `used`, in the same order in every run

    def __call__(self, buffer: Buffer) -> Buffer:
        found = self._given.get(id(buffer.block))
        if found is None:
            return buffer
        start, new = found
        if buffer.offset == start and buffer.size == new.size:
            return new
        return new.slice(buffer.offset - start, buffer.size)

    def value(self, slot: NumberSlot) -> bytes:
        return slot.holding(self.numbers[slot.number])


def _is_open(buffer: Buffer) -> bool:
    """Whether a buffer is a placeholder without memory."""
    return buffer.block.handle is None


def _is_foreign(command: Command) -> bool:
    """Whether a command cannot be part of an indirect command buffer: MPS encodes it, or its report
    must be checked afterwards."""
    return isinstance(command, Encoded) or command.check is not None


def _changed(
    command: Command, buffer: Callable[[Buffer], Buffer], slot: Callable[[NumberSlot], bytes]
) -> Command:
    """The command with other buffers and numbers."""
    if isinstance(command, Encoded):
        return replace(command, buffers=tuple(map(buffer, command.buffers)))
    arguments: list[Argument] = []
    for argument in command.arguments:
        if isinstance(argument, Buffer):
            arguments.append(buffer(argument))
        else:
            arguments.append(slot(argument) if isinstance(argument, NumberSlot) else argument)
    return replace(command, arguments=tuple(arguments))


class Single:
    """A command that is encoded again in each run: a foreign one, or one of few between those."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.open: list[tuple[int, Buffer]] = []  # arguments that are bound in each run
        self.numbers: list[tuple[int, NumberSlot]] = []
        if isinstance(command, Dispatch):
            command.label, command.sizes  # noqa: B018 - computed once for all runs
            for i, argument in enumerate(command.arguments):
                if isinstance(argument, Buffer) and _is_open(argument):
                    self.open.append((i, argument))
                elif isinstance(argument, NumberSlot):
                    self.numbers.append((i, argument))

    def run(self, binding: _Binding) -> None:
        """Encode the command with the inputs of this call."""
        command = self.command
        if isinstance(command, Encoded):
            command = _changed(command, binding, binding.value)
        else:
            arguments = [*command.arguments]
            for i, buffer in self.open:
                arguments[i] = binding(buffer)
            for i, slot in self.numbers:
                arguments[i] = binding.value(slot)
            command = command.with_arguments(tuple(arguments))
        binding.gpu.queue.run(command)


class Listed:
    """Kernels as an indirect command buffer, which must not change while the device executes it.

    Two copies take turns, so that a run can be encoded while the previous one executes.
    """

    def __init__(self, gpu: Context, commands: list[Dispatch]) -> None:
        self.commands = commands
        self.counts = Counter(command.label for command in commands)
        # Reads of captured memory must wait for these kernels, too.
        bound = [b for command in commands for b in command.buffers if not _is_open(b)]
        self.bound = tuple({id(buffer.block): buffer for buffer in bound}.values())
        self.lists = [_List(gpu, commands)]
        self.written = {id(b.block) for command in commands for b in command.written}
        self.written_at: frozenset[int] | None = None  # indices of what a run writes
        self.captured = _Resources(self.bound, self.written)

    def run(self, binding: _Binding) -> None:
        """Bind the inputs of this call and execute the list."""
        queue = binding.gpu.queue
        if queue.observed:  # the profiler and the checker need single commands
            for command in self.commands:
                queue.run(_changed(command, binding, binding.value))
            return
        chosen = self._at_rest(binding.gpu)
        chosen.bind(binding)
        used = (*binding.used, *self.bound, chosen.constants)
        if self.written_at is None:
            blocks = (*binding.places, *(id(buffer.block) for buffer in self.bound))
            self.written_at = frozenset(i for i, b in enumerate(blocks) if b in self.written)
        replay = Encoded(
            "replay", used, chosen.execute, kernels=self.counts, written_at=self.written_at
        )
        places = dict(zip(binding.places, binding.used, strict=True))
        changing = _Resources(
            places.values(), {id(places[p].block) for p in self.written & places.keys()}
        )
        chosen.resources = (self.captured, changing)
        chosen.ticket = queue.run(replay)

    def _at_rest(self, gpu: Context) -> _List:
        """A copy that the device is not executing."""
        completed = gpu.queue.completed()
        resting = [each for each in self.lists if each.ticket <= completed]
        if not resting and len(self.lists) < LISTS:
            self.lists.append(_List(gpu, self.commands))
            resting = self.lists[-1:]
        if not resting:
            resting = [min(self.lists, key=lambda each: each.ticket)]
            gpu.queue.drain(resting[0].ticket)
        return resting[0]


class _Resources:
    """Handles of the buffers that kernels of a list read, and of those that they write."""

    def __init__(self, buffers: Iterable[Buffer], written: set[int]) -> None:
        blocks = {id(buffer.block): buffer.block.handle for buffer in buffers}
        self.read = [handle for key, handle in blocks.items() if key not in written]
        self.written = [handle for key, handle in blocks.items() if key in written]

    def announce(self, encoder: Any) -> None:
        read, write = Metal.MTLResourceUsageRead, Metal.MTLResourceUsageWrite
        if self.read:
            encoder.useResources_count_usage_(self.read, len(self.read), read)
        if self.written:
            encoder.useResources_count_usage_(self.written, len(self.written), read | write)


class _List:
    """An indirect command buffer, and what was last bound to its placeholders."""

    def __init__(self, gpu: Context, commands: list[Dispatch]) -> None:
        self.commands = commands  # keeps their memory alive until the device is done
        self.constants = gpu.host_buffer(_constants_size(commands), "replay")
        self.list = _new_list(gpu, commands)
        self.slots: list[tuple[int, NumberSlot]] = []  # (offset in the constants, slot)
        self.open: list[tuple[Any, int, Buffer]] = []  # (command, argument index, recorded buffer)
        self.bound: list[tuple[Any, int] | None] = []  # handle and offset bound in the last run
        self.ticket = 0
        self.resources: tuple[_Resources, ...] = ()  # of the next execution
        self.own = _Resources([self.constants], set())
        with autorelease_pool():
            self._fill()

    def _fill(self) -> None:
        """Encode what never changes."""
        memory = self.constants.unsynchronised()
        hazards, offset = Hazards(), 0
        for index, command in enumerate(self.commands):
            slot = self.list.indirectComputeCommandAtIndex_(index)
            slot.setComputePipelineState_(command.pipeline.state)
            for place, argument in enumerate(command.arguments):
                if isinstance(argument, Buffer):
                    if _is_open(argument):
                        self.open.append((slot, place, argument))
                    else:
                        _bind(slot, argument, place)
                elif argument is not None:
                    memory[offset : offset + len(argument)] = np.frombuffer(argument, np.uint8)
                    _bind(slot, self.constants.slice(offset, len(argument)), place)
                    if isinstance(argument, NumberSlot):
                        self.slots.append((offset, argument))
                    offset += _aligned(len(argument))
            for place, length in enumerate(command.threadgroup_memory):
                slot.setThreadgroupMemoryLength_atIndex_(length, place)
            slot.concurrentDispatchThreads_threadsPerThreadgroup_(*command.sizes)
            if hazards.admit(command.accesses):
                slot.setBarrier()
        self.bound = [None] * len(self.open)

    def bind(self, binding: _Binding) -> None:
        """Bind what has changed since the last run."""
        for i, (slot, place, recorded) in enumerate(self.open):
            buffer = binding(recorded)
            where = (buffer.block.handle, buffer.offset)
            if where != self.bound[i]:
                _bind(slot, buffer, place)
                self.bound[i] = where
        memory = self.constants.unsynchronised()
        for offset, number in self.slots:
            value = binding.value(number)
            memory[offset : offset + len(value)] = np.frombuffer(value, np.uint8)

    def execute(self, commands: Any, buffers: Sequence[Buffer]) -> None:
        encoder = commands.computeCommandEncoder()
        for each in (*self.resources, self.own):
            each.announce(encoder)
        encoder.executeCommandsInBuffer_withRange_(self.list, (0, len(self.commands)))
        encoder.endEncoding()


def _bind(slot: Any, buffer: Buffer, place: int) -> None:
    # Metal refuses an offset at the very end, where an empty slice may start.
    offset = buffer.offset if buffer.size else 0
    slot.setKernelBuffer_offset_atIndex_(buffer.block.handle, offset, place)


def _new_list(gpu: Context, commands: Sequence[Dispatch]) -> Any:
    descriptor = Metal.MTLIndirectCommandBufferDescriptor.alloc().init()
    descriptor.setCommandTypes_(Metal.MTLIndirectCommandTypeConcurrentDispatchThreads)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    most = max(len(command.arguments) for command in commands)
    descriptor.setMaxKernelBufferBindCount_(most)
    return gpu.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        descriptor, len(commands), Metal.MTLResourceStorageModeShared
    )


def _aligned(size: int) -> int:
    return -(-size // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT


def _constants_size(commands: Sequence[Dispatch]) -> int:
    return sum(_aligned(len(x)) for c in commands for x in c.arguments if isinstance(x, bytes))
