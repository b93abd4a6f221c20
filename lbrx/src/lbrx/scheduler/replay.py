"""Replay: a command list that is run again and again with other inputs.

Kernels between two steps that encode themselves (MPS products) are one indirect command buffer, or
one packed list that is encoded in each run, unless they are few. Inputs and results are bound again
where they have changed. Intermediate results are placed in one arena by their lifetimes.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from lbrx.command_lists.command_list import (
    CommandList,
    Foreign,
    HostStep,
    Launch,
    Part,
    SlotKind,
    Step,
)
from lbrx.device_info import DeviceInfo
from lbrx.interrupt import UNINTERRUPTED
from lbrx.memory.arena import Lifetime, arrange
from lbrx.metal import Buffer, Context
from lbrx.metal.binding import Metal, autorelease_pool, spacing
from lbrx.metal.buffer import Block
from lbrx.metal.command_queue import MAX_SECONDS
from lbrx.metal.commands import Encoded, NumberSlot
from lbrx.metal.hazards import Access, Hazards
from lbrx.metal.packed_commands import CommandPacker
from lbrx.metal.replay_choice import OFFSET_LIMIT, replay_choice
from lbrx.scheduler import running

CONSTANT_ALIGNMENT = 256  # bytes: a valid constant offset on every GPU
MAX_COMMANDS = 16384  # in one indirect command buffer, on Apple's GPUs
FEWEST_COMMANDS = 8  # that are worth one: executing it takes the host as long as encoding some
LISTS = 2  # copies of the same indirect command buffer


class Recording:
    """A command list whose inputs and results are bound for each run.

    `captured` has the memory of the leaves that are the same in all runs, by slot; the other leaves
    are inputs.
    """

    def __init__(
        self,
        gpu: Context,
        commands: CommandList,
        inputs: Sequence[int],
        outputs: Sequence[Part],
        captured: Mapping[int, Buffer],
    ) -> None:
        self.gpu = gpu
        self.commands = commands
        self.inputs = inputs
        self.outputs = outputs
        self.lock = threading.Lock()
        results = {
            part.slot for part in outputs if commands.slots[part.slot].kind is SlotKind.RESULT
        }
        self.fixed: running.Memory = self._fixed(captured, results)
        # Slots that get memory in each run, beside the inputs.
        self.opened = tuple(
            number
            for number, slot in enumerate(commands.slots)
            if number in results or isinstance(slot.contents, NumberSlot)
        )
        self.pieces: list[Single | Listed] = []
        indirect = replay_choice(gpu.info).kind == "icb" and not _is_far(self.fixed)
        for encodes_itself, group in groupby(commands.steps, _encodes_itself):
            steps = list(group)
            if encodes_itself or len(steps) < FEWEST_COMMANDS:
                self.pieces += map(Single, steps)
                continue
            kernels = [step for step in steps if isinstance(step, Launch)]
            for part in _bounded(kernels, gpu.info):
                self.pieces.append(Listed(gpu, part, commands, self.fixed, indirect))

    def _fixed(self, captured: Mapping[int, Buffer], made: set[int]) -> running.Memory:
        """The memory of slots that is the same in all runs."""
        gpu, slots = self.gpu, self.commands.slots
        inner = [
            (number, slot)
            for number, slot in enumerate(slots)
            if slot.kind in (SlotKind.SCRATCH, SlotKind.RESULT)
            and slot.contents is None
            and slot.first >= 0
            and number not in made
        ]
        apart = spacing()
        plan = arrange([Lifetime(slot.nbytes + apart, slot.first, slot.last) for _, slot in inner])
        arena = gpu.heap_buffer(plan.size, "replay")
        memory = [captured.get(number) for number in range(len(slots))]
        for (number, slot), offset in zip(inner, plan.offsets, strict=True):
            memory[number] = arena.slice(offset, slot.nbytes)
        for number, slot in enumerate(slots):
            if slot.contents is not None and not isinstance(slot.contents, NumberSlot):
                memory[number] = running.filled(gpu, slot)
        return memory

    def run(self, inputs: Sequence[Buffer], numbers: Sequence[float]) -> list[Buffer]:
        """Encode all commands with these inputs; returns the results' buffers."""

        def number(slot: NumberSlot) -> bytes:
            return slot.holding(numbers[slot.number])

        with UNINTERRUPTED, self.lock:
            memory = self.fixed.copy()
            for slot, buffer in zip(self.inputs, inputs, strict=True):
                memory[slot] = buffer
            for slot in self.opened:
                memory[slot] = running.filled(self.gpu, self.commands.slots[slot], number)
            for piece in self.pieces:
                piece.run(self.gpu, memory, number)
            return [part.of(memory) for part in self.outputs]


def modelled_seconds(kernel: Launch, info: DeviceInfo) -> float:
    """The time of a kernel on an Apple GPU by the device's rates; 0 if it is not known."""
    work = kernel.command.work
    if work is None or work.part or info.cuda is not None or not info.simd_hardware:
        return 0.0
    moved = work.nbytes / info.memory_rate if info.memory_rate else 0.0
    return max(moved, work.operations / info.arithmetic_rate if info.arithmetic_rate else 0.0)


def _bounded(kernels: Sequence[Launch], info: DeviceInfo) -> list[list[Launch]]:
    """Runs of kernels that indirect command buffers hold, and that do not keep a GPU for long."""
    runs: list[list[Launch]] = [[]]
    seconds = 0.0
    for kernel in kernels:
        seconds += modelled_seconds(kernel, info)
        if runs[-1] and (len(runs[-1]) == MAX_COMMANDS or seconds > MAX_SECONDS):
            runs.append([])
            seconds = modelled_seconds(kernel, info)
        runs[-1].append(kernel)
    return runs


def _is_far(memory: Iterable[Buffer | None]) -> bool:
    """Whether indirect commands could not say where a buffer ends."""
    return any(
        buffer is not None and buffer.offset + buffer.size > OFFSET_LIMIT for buffer in memory
    )


def _encodes_itself(step: Step) -> bool:
    """Whether a step cannot be part of an indirect command buffer: MPS encodes it, or its report
    must be checked afterwards."""
    return not isinstance(step, Launch) or step.check is not None


class Single:
    """A step that is encoded again in each run: a foreign one, or one of few between those."""

    def __init__(self, step: Step) -> None:
        assert not isinstance(step, HostStep)
        self.step: Launch | Foreign = step

    def run(self, gpu: Context, memory: running.Memory, numbers: running.Numbers) -> None:
        """Encode the step with the memory of this run."""
        with gpu.queue.encoding():
            running.encode(gpu, self.step, memory, numbers)


class Listed:
    """Kernels as an indirect command buffer, or as a packed list.

    An indirect command buffer must not change while the device executes it: two copies take turns,
    so that a run can be encoded while the previous one executes.
    """

    def __init__(
        self,
        gpu: Context,
        kernels: Sequence[Launch],
        commands: CommandList,
        fixed: running.Memory,
        indirect: bool,
    ) -> None:
        self.kernels = kernels
        self.fixed = fixed
        # Memory of a run's own, in place of which hazards are looked for.
        self.places = [
            Buffer(Block(None, 0, slot.nbytes), 0, slot.nbytes, gpu.queue)
            if known is None
            else known
            for slot, known in zip(commands.slots, fixed, strict=True)
        ]
        self.seconds = sum(modelled_seconds(kernel, gpu.info) for kernel in kernels)
        self.counts = Counter(kernel.command.label for kernel in kernels)
        slots = dict.fromkeys(place[1] for kernel in kernels for place in kernel.places)
        written = {slot for kernel in kernels for slot in kernel.writes}
        self.own = [slot for slot in slots if fixed[slot] is None]
        self.written_own = [slot for slot in self.own if slot in written]
        # Reads of captured memory must wait for these kernels, too.
        bound = {id(b.block): b for slot in slots if (b := fixed[slot]) is not None}
        changed = {id(b.block) for slot in written if (b := fixed[slot]) is not None}
        self.bound = tuple(bound.values())
        count = len(self.own)
        self.written_at = frozenset(
            [i for i, slot in enumerate(self.own) if slot in written]
            + [count + i for i, block in enumerate(bound) if block in changed]
        )
        self.changed = changed
        self.indirect = indirect
        self.lists: list[_Indirect | _Packed] = [self._new(gpu)]

    def _new(self, gpu: Context) -> _Indirect | _Packed:
        return _Indirect(gpu, self) if self.indirect else _Packed(self)

    def run(self, gpu: Context, memory: running.Memory, numbers: running.Numbers) -> None:
        """Bind the memory of this run and execute the list."""
        queue = gpu.queue
        # The profiler and the checker need single commands.
        far = self.indirect and _is_far(memory[slot] for slot in self.own)
        if queue.observed or far:
            for kernel in self.kernels:
                Single(kernel).run(gpu, memory, numbers)
            return
        chosen = self._at_rest(gpu)
        chosen.bind(memory, numbers)
        buffers = [buffer for slot in self.own if (buffer := memory[slot]) is not None]
        written = {id(b.block) for slot in self.written_own if (b := memory[slot]) is not None}
        chosen.resources = _Resources(buffers, written)
        replay = Encoded(
            "replay",
            (*buffers, *self.bound, *chosen.constants),
            chosen.execute,
            kernels=self.counts,
            written_at=self.written_at,
            seconds=self.seconds,
        )
        chosen.ticket = queue.run(replay)

    def accesses(self, kernel: Launch) -> list[Access]:
        """What a kernel binds, with places of a run's own memory."""
        return [
            (place, self.places[slot] if part is None else part.of(self.places), writes)
            for place, slot, part, writes in kernel.places
        ]

    def _at_rest(self, gpu: Context) -> _Indirect | _Packed:
        """A copy that the device is not executing."""
        if not self.indirect:
            return self.lists[0]
        completed = gpu.queue.completed()
        resting = [each for each in self.lists if each.ticket <= completed]
        if not resting and len(self.lists) < LISTS:
            self.lists.append(self._new(gpu))
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

    def announce(self, encoder: Any, others: _Resources) -> None:
        """Tell an encoder of these and others, in few calls."""
        read, write = Metal.MTLResourceUsageRead, Metal.MTLResourceUsageWrite
        reading, writing = self.read + others.read, self.written + others.written
        if reading:
            encoder.useResources_count_usage_(reading, len(reading), read)
        if writing:
            encoder.useResources_count_usage_(writing, len(writing), read | write)


class _Bindings(ABC):
    """Where the memory and the numbers of a run belong, and what was last bound there."""

    def __init__(self) -> None:
        self.numbers: list[tuple[int, NumberSlot]] = []  # (place of the bytes, number)
        # (command or place in a list, index, slot, part)
        self.open: list[tuple[Any, int, int, Part | None]] = []
        self.bound: dict[int, tuple[Any, int]] = {}  # handle and offset bound in the last run
        self.resources = _Resources((), set())  # of the next execution alone
        self.constants: tuple[Buffer, ...] = ()  # memory of its own
        self.ticket = 0

    def bind(self, memory: running.Memory, numbers: running.Numbers) -> None:
        """Bind what has changed since the last run."""
        for i, (command, place, slot, part) in enumerate(self.open):
            whole = memory[slot]
            assert whole is not None
            buffer = whole if part is None else part.of(memory)
            where = (buffer.block.handle, buffer.offset)
            if where != self.bound.get(i):
                self._bind(command, buffer, place)
                self.bound[i] = where
        for offset, number in self.numbers:
            self._write(offset, numbers(number))

    @abstractmethod
    def _bind(self, command: Any, buffer: Buffer, place: int) -> None: ...

    @abstractmethod
    def _write(self, offset: int, value: bytes) -> None: ...

    @abstractmethod
    def execute(self, commands: Any, buffers: Sequence[Buffer]) -> None:
        """Encode the kernels into an MTLCommandBuffer."""


class _Indirect(_Bindings):
    """An indirect command buffer."""

    def __init__(self, gpu: Context, listed: Listed) -> None:
        super().__init__()
        self.kernels = listed.kernels  # keeps their pipelines alive until the device is done
        self.memory = gpu.host_buffer(_constants_size(listed.kernels), "replay")
        self.constants = (self.memory,)
        self.list = _new_list(gpu, listed.kernels)
        self.captured = _Resources((*listed.bound, self.memory), listed.changed)
        with autorelease_pool():
            self._fill(listed)

    def _fill(self, listed: Listed) -> None:
        """Encode what never changes."""
        hazards, offset = Hazards(), 0
        for index, kernel in enumerate(listed.kernels):
            command = self.list.indirectComputeCommandAtIndex_(index)
            command.setComputePipelineState_(kernel.command.pipeline.state)
            accesses = listed.accesses(kernel)
            for (place, buffer, _), (_, slot, part, _) in zip(accesses, kernel.places, strict=True):
                if listed.fixed[slot] is None:
                    self.open.append((command, place, slot, part))
                else:
                    self._bind(command, buffer, place)
            for place, value in (*kernel.values, *kernel.numbers):
                if value is None:
                    continue
                self._write(offset, value)
                self._bind(command, self.memory.slice(offset, len(value)), place)
                if isinstance(value, NumberSlot):
                    self.numbers.append((offset, value))
                offset += _aligned(len(value))
            for place, length in enumerate(kernel.command.threadgroup_memory):
                command.setThreadgroupMemoryLength_atIndex_(length, place)
            command.concurrentDispatchThreads_threadsPerThreadgroup_(*kernel.command.sizes)
            if hazards.admit(accesses):
                command.setBarrier()

    def _bind(self, command: Any, buffer: Buffer, place: int) -> None:
        command.setKernelBuffer_offset_atIndex_(buffer.block.handle, _offset(buffer), place)

    def _write(self, offset: int, value: bytes) -> None:
        memory = self.memory.unsynchronised()
        memory[offset : offset + len(value)] = np.frombuffer(value, np.uint8)

    def execute(self, commands: Any, buffers: Sequence[Buffer]) -> None:
        encoder = commands.computeCommandEncoder()
        try:
            self.captured.announce(encoder, self.resources)
            encoder.executeCommandsInBuffer_withRange_(self.list, (0, len(self.kernels)))
        finally:  # the command buffer takes no other encoder while one is open
            encoder.endEncoding()


class _Packed(_Bindings):
    """A packed list, which is encoded in each run."""

    def __init__(self, listed: Listed) -> None:
        super().__init__()
        packer, hazards = CommandPacker(), Hazards()
        for kernel in listed.kernels:
            accesses = listed.accesses(kernel)
            if hazards.admit(accesses):
                packer.barrier()
            packer.pipeline(kernel.command.pipeline.state)
            for (place, buffer, _), (_, slot, part, _) in zip(accesses, kernel.places, strict=True):
                if listed.fixed[slot] is None:
                    self.open.append((packer.open_buffer(place), place, slot, part))
                else:
                    packer.buffer(buffer.block.handle, _offset(buffer), place)
            for place, value in (*kernel.values, *kernel.numbers):
                if value is None:
                    packer.buffer(None, 0, place)
                    continue
                offset = packer.value(value, place)
                if isinstance(value, NumberSlot):
                    self.numbers.append((offset, value))
            for place, length in enumerate(kernel.command.threadgroup_memory):
                packer.threadgroup_memory(length, place)
            packer.dispatch(kernel.command.grid, kernel.command.group)
        self.packed = packer.packed()

    def _bind(self, command: Any, buffer: Buffer, place: int) -> None:
        self.packed.bind(command, buffer.block.handle, _offset(buffer))

    def _write(self, offset: int, value: bytes) -> None:
        self.packed.write(offset, value)

    def execute(self, commands: Any, buffers: Sequence[Buffer]) -> None:
        encoder = commands.computeCommandEncoderWithDispatchType_(Metal.MTLDispatchTypeConcurrent)
        try:
            self.packed.encode(encoder)
        finally:
            encoder.endEncoding()


def _offset(buffer: Buffer) -> int:
    # Metal refuses an offset at the very end, where an empty slice may start.
    return buffer.offset if buffer.size else 0


def _new_list(gpu: Context, kernels: Sequence[Launch]) -> Any:
    descriptor = Metal.MTLIndirectCommandBufferDescriptor.alloc().init()
    descriptor.setCommandTypes_(Metal.MTLIndirectCommandTypeConcurrentDispatchThreads)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    most = max(1 + index for kernel in kernels for index in kernel.indices)
    descriptor.setMaxKernelBufferBindCount_(most)
    scratch = max(len(kernel.command.threadgroup_memory) for kernel in kernels)
    descriptor.setMaxKernelThreadgroupMemoryBindCount_(scratch)
    return gpu.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        descriptor, len(kernels), Metal.MTLResourceStorageModeShared
    )


def _aligned(size: int) -> int:
    return -(-size // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT


def _constants_size(kernels: Sequence[Launch]) -> int:
    values = (value for kernel in kernels for _, value in (*kernel.values, *kernel.numbers))
    return sum(_aligned(len(value)) for value in values if value is not None)
