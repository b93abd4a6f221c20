"""The builder: kernel families describe their commands to it, and see nothing else of a device.

A family takes slots of memory from it, as results, scratch and constants, and adds steps: kernels,
products of the vendor, copies, work of the host. Nothing runs meanwhile and no memory is taken: the
arrays and buffers of a plan are stand-ins, whose offsets and addresses have the alignment of the
memory that will take their place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, MetalCache, MetalStorage, NumberStorage, Storage
from lbrx.command_lists.command_list import (
    CommandList,
    Contents,
    Foreign,
    HostOperand,
    HostStep,
    KeptValues,
    Launch,
    Part,
    Reason,
    ReportCheck,
    ReportMemory,
    Slot,
    SlotKind,
    Step,
)
from lbrx.command_lists.planned_memory import ALIGNMENT, NO_MEMORY, PlannedBuffer, planned_buffer
from lbrx.device_info import DeviceInfo
from lbrx.metal import Context, Pipeline
from lbrx.metal.buffer import Block, Buffer
from lbrx.metal.command_queue import check_group, copy_bytes
from lbrx.metal.commands import Argument, Dispatch, Encoded, NumberSlot, Size, Work
from lbrx.metal.library import ConstantValue, PipelineRequest
from lbrx.ops import Spec

INLINE_BYTES = 4096  # the most that an argument may be without a buffer, by Metal's rule

_scopes = itertools.count(1)


@dataclass
class _SlotDraft:
    """A slot while its plan is made."""

    block: Block
    """Kept alive, as its id tells buffers of the slot."""
    base: int
    """The offset in the block at which the slot begins."""
    kind: SlotKind
    nbytes: int
    label: str = ""
    contents: Contents | None = None
    origin: int = 0
    """The id of the actual block of a leaf."""
    from_host: bool = False
    """Whether the host wrote what a leaf has, and sees it."""
    fixed: Buffer | None = None
    """The memory of a leaf that was given as it is."""


@dataclass(frozen=True)
class _LaunchDraft:
    """A kernel whose pipeline may not be compiled yet."""

    pipeline: PipelineRequest
    arguments: tuple[Argument, ...]
    grid: Size
    group: Size
    threadgroup_memory: tuple[int, ...]
    kernel: str
    variant: str
    reason: Reason | None
    work: Work | None
    check: ReportCheck | None
    report: Buffer | None


class _Draft:
    """The slots and steps so far."""

    def __init__(self, gpu: Context, replayed: bool) -> None:
        self.gpu = gpu
        self.replayed = replayed
        self.slots: list[_SlotDraft] = []
        self.numbers: dict[int, int] = {}  # of slots, by the id of their block
        self.steps: list[_LaunchDraft | Foreign | HostStep] = []
        self.work: Work | None = None  # that the next steps do together
        self.parts = 0  # of this work, so far
        self.caches: set[int] = set()  # the ids of the actual blocks of leaves that steps may write

    def add(self, slot: _SlotDraft) -> int:
        number = len(self.slots)
        self.slots.append(slot)
        self.numbers[id(slot.block)] = number
        return number

    def new(
        self, kind: SlotKind, nbytes: int, label: str, contents: Contents | None = None
    ) -> Buffer:
        """Memory of a new slot."""
        buffer = planned_buffer(nbytes)
        self.add(_SlotDraft(buffer.block, 0, kind, nbytes, label, contents))
        return buffer

    def part(self, buffer: Buffer) -> Part:
        """The range of a slot that a buffer is; actual memory becomes a leaf."""
        number = self.numbers.get(id(buffer.block))
        if number is None:
            block = buffer.block
            whole = Buffer(block, 0, block.length, buffer._waiter, buffer)
            number = self.add(
                _SlotDraft(block, 0, SlotKind.LEAF, block.length, origin=id(block), fixed=whole)
            )
        slot = self.slots[number]
        offset = buffer.offset - slot.base
        return Part(number, offset, buffer.size, offset == 0 and buffer.size == slot.nbytes)

    def next_work(self, reason: Reason | None) -> Work | None:
        """What the next step does, for a profiler."""
        if self.work is None:
            return None
        self.parts += 1
        choice = "" if reason is None else reason()
        return replace(self.work, part=self.parts - 1, choice=choice)

    def pipelines(self) -> list[PipelineRequest]:
        """Those of the steps so far."""
        return [step.pipeline for step in self.steps if isinstance(step, _LaunchDraft)]

    def steps_closed(self) -> tuple[Step, ...]:
        """The steps with their pipelines compiled."""
        compiled = iter(self.gpu.shaders.compile_all(self.pipelines()))
        return tuple(
            self._closed(step, next(compiled)) if isinstance(step, _LaunchDraft) else step
            for step in self.steps
        )

    def _closed(self, draft: _LaunchDraft, pipeline: Pipeline) -> Launch:
        check_group(pipeline, draft.group)
        command = Dispatch(
            *(pipeline, (), draft.grid, draft.group, draft.threadgroup_memory),
            *(draft.kernel, draft.variant, None, draft.work),
        )
        places, values, numbers = [], [], []
        for index, argument in enumerate(draft.arguments):
            if isinstance(argument, Buffer):
                part = self.part(argument)
                writes = pipeline.written is None or index in pipeline.written
                places.append((index, part.slot, None if part.whole else part, writes))
            elif isinstance(argument, NumberSlot):
                numbers.append((index, argument))
            else:
                values.append((index, argument))
        report = None if draft.report is None else self.part(draft.report)
        return Launch(
            command,
            *(tuple(places), tuple(values), tuple(numbers)),
            *(draft.reason, draft.check, report),
        )


# ---- what families see ----


class Builder:
    """Takes the steps of one plan. `named` gives what a variant builds with: its steps are counted
    under the kernel's name and the variant's.

    `replayed` says that the plan will run as one recorded list.
    """

    __slots__ = ("_draft", "_kernel", "_reason", "_variant", "info")

    info: DeviceInfo
    """What the device can do."""

    def __init__(self, gpu: Context, *, replayed: bool = False) -> None:
        self._draft = _Draft(gpu, replayed)
        self.info = gpu.info
        self._kernel = self._variant = ""
        self._reason: Reason | None = None

    def named(self, kernel: str, variant: str, reason: Reason | None = None) -> Builder:
        """The same plan, for the steps of a variant that was chosen for a reason."""
        builder = object.__new__(Builder)
        builder._draft, builder.info = self._draft, self.info
        builder._kernel, builder._variant, builder._reason = kernel, variant, reason
        return builder

    # ---- memory ----

    def result(self, spec: Spec, label: str = "tensors") -> Array:
        """A contiguous array with uninitialised elements."""
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        buffer = self._draft.new(SlotKind.SCRATCH, nbytes, label)
        return Array(MetalStorage(buffer, 0, nbytes), sh.contiguous(spec.shape), spec.dtype)

    def placed(self, array: Array) -> Array:
        """The array itself, or its value in memory of the device if it is a host scalar."""
        return array if array.storage.device == "metal" else self.imported(array)

    def imported(self, array: Array) -> Array:
        """A host array in memory of the device; a number stays one that runs may change."""
        storage, layout = array.storage, array.layout
        contents: Contents
        if isinstance(storage, NumberStorage):
            contents = NumberSlot.of(storage.argument, storage.number, array.dtype.numpy)
            nbytes = len(contents)
        else:
            values = array.numpy()
            contents = values.view(np.uint8) != 0 if array.dtype is dt.bool_ else values.copy()
            nbytes, layout = values.nbytes, sh.contiguous(layout.shape)
        buffer = self._draft.new(SlotKind.CONSTANT, nbytes, "tensors", contents)
        return Array(MetalStorage(buffer, 0, nbytes), layout, array.dtype)

    def scratch(self, nbytes: int, label: str = "scratch") -> Buffer:
        """Memory for what only the steps of one operation use."""
        return self._draft.new(SlotKind.SCRATCH, nbytes, label)

    def report(self, nbytes: int) -> Buffer:
        """Zeros in which a kernel reports to a check, which the host sees."""
        return self._draft.new(SlotKind.SCRATCH, nbytes, "buffers", ReportMemory())

    def constant(self, values: NDArray[Any], label: str = "constants") -> Buffer:
        """Memory with these values, which are known now."""
        return self._draft.new(SlotKind.CONSTANT, values.nbytes, label, values)

    def kept(self, key: Hashable, values: Callable[[], NDArray[Any]]) -> Buffer:
        """A constant that is made once for the device."""
        known, contents = self._draft.gpu.constants.get(key), KeptValues(key, values)
        nbytes = contents.values.nbytes if known is None else known.size
        return self._draft.new(SlotKind.CONSTANT, nbytes, "constants", contents)

    def leaf(self, storage: MetalStorage) -> MetalStorage:
        """A stand-in for memory that the plan begins with, the next leaf of its list."""
        buffer: Any = storage.buffer
        actual: Block = buffer.block
        base = (buffer.offset + storage.offset) % ALIGNMENT
        block = Block(None, actual.address % ALIGNMENT, base + storage.nbytes)
        from_host = actual.source is None and not actual.private
        slot = _SlotDraft(block, base, SlotKind.LEAF, storage.nbytes)
        slot.origin, slot.from_host = id(actual), from_host
        self._draft.add(slot)
        if isinstance(storage, MetalCache):
            self._draft.caches.add(slot.origin)
        stand_in = PlannedBuffer(block, base, storage.nbytes, NO_MEMORY)
        kind = MetalCache if isinstance(storage, MetalCache) else MetalStorage
        return kind(stand_in, 0, storage.nbytes)

    def is_settled(self, buffers: Sequence[Buffer]) -> bool:
        """Whether these have their contents before a recorded list begins: its kernels may read
        them before the kernels in front of theirs have ended. Of leaves only caches are written."""
        draft = self._draft
        slots = [draft.slots[draft.part(buffer).slot] for buffer in buffers]
        leaves = all(slot.kind is SlotKind.LEAF for slot in slots)
        return draft.replayed and leaves and not draft.caches & {slot.origin for slot in slots}

    # ---- steps ----

    def working(self, work: Work | None) -> None:
        """The steps that follow do this work together."""
        self._draft.work = None if work is None else replace(work, scope=next(_scopes))
        self._draft.parts = 0

    def pipeline(
        self,
        stem: str,
        function: str,
        constants: Mapping[int, ConstantValue] | None = None,
        *,
        safe_math: bool = False,
        source: str | None = None,
    ) -> PipelineRequest:
        """The kernel `function` of a shader stem, or of generated source."""
        values = tuple(sorted((constants or {}).items()))
        return PipelineRequest(stem, function, values, safe_math, source)

    def compiled(self, pipeline: PipelineRequest) -> Pipeline:
        """What is known of a kernel when it is compiled."""
        return self._draft.gpu.shaders.compiled_for(pipeline)

    def launch(
        self,
        pipeline: PipelineRequest,
        arguments: Sequence[Argument],
        grid: Size,
        group: Size,
        *,
        threadgroup_memory: Sequence[int] = (),
        part: str = "",
        check: ReportCheck | None = None,
        report: Buffer | None = None,
    ) -> None:
        """A kernel over `grid` threads in threadgroups of `group`.

        `part` names a step of a variant that has several. `check` looks at the `report` when the
        kernel has ended; an exception that it returns is raised by the next wait.
        """
        if 0 in grid:
            return
        draft = self._draft
        launch_draft = _LaunchDraft(
            *(pipeline, tuple(map(self._argument, arguments)), grid, group),
            *(tuple(threadgroup_memory), self._kernel, part or self._variant, self._reason),
            *(draft.next_work(self._reason), check, report),
        )
        draft.steps.append(launch_draft)

    def product(
        self, buffers: Sequence[Buffer], encode: Callable[[Any, Sequence[Buffer]], object]
    ) -> None:
        """A product by the vendor's library: `encode(commands, buffers)` adds it to an
        MTLCommandBuffer. It writes the last of the buffers."""
        self._foreign(self._kernel, self._variant, buffers, encode)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """A copy between buffers of one size."""
        self._foreign("copy", "", (source, target), copy_bytes)

    def host(
        self,
        name: str,
        operands: Sequence[Array | None],
        specs: Sequence[Spec],
        compute: Callable[[Sequence[NDArray[Any] | None]], Sequence[NDArray[Any]]],
    ) -> tuple[Array, ...]:
        """Results that the host computes of operands in memory, after a wait for them."""
        results = tuple(map(self.result, specs))
        read = tuple(None if x is None else self._host_operand(x) for x in operands)
        written = tuple(map(self._host_operand, results))
        self._draft.steps.append(HostStep(name, read, written, compute))
        return results

    def inspect(self, name: str, array: Array, look: Callable[[NDArray[Any]], None]) -> None:
        """Have the host look at values that it wrote, before the steps that follow. It looks at
        nothing that kernels compute, and at nothing in a replay."""
        operand, draft = self._host_operand(array), self._draft
        if draft.replayed or not draft.slots[operand.part.slot].from_host:
            return

        def compute(values: Sequence[NDArray[Any] | None]) -> Sequence[NDArray[Any]]:
            for each in values:
                assert each is not None
                look(each)
            return ()

        draft.steps.append(HostStep(name, (operand,), (), compute, waits=False))

    def _host_operand(self, array: Array) -> HostOperand:
        return HostOperand(self.part(array.storage), array.layout, array.dtype)

    def _foreign(
        self,
        name: str,
        variant: str,
        buffers: Sequence[Buffer],
        encode: Callable[[Any, Sequence[Buffer]], object],
    ) -> None:
        draft = self._draft
        written = frozenset({len(buffers) - 1})
        work = draft.next_work(self._reason)
        command = Encoded(name, (), encode, variant, work, written_at=written)
        draft.steps.append(Foreign(command, tuple(map(draft.part, buffers)), self._reason))

    def _argument(self, argument: Argument) -> Argument:
        if isinstance(argument, bytes) and len(argument) > INLINE_BYTES:
            return self.constant(np.frombuffer(argument, np.uint8))
        return argument

    # ---- the plan ----

    @property
    def step_count(self) -> int:
        """The steps so far."""
        return len(self._draft.steps)

    def part(self, storage: Storage) -> Part:
        """The range of a slot that a storage is."""
        assert isinstance(storage, MetalStorage)
        buffer: Any = storage.buffer
        return self._draft.part(buffer.slice(storage.offset, storage.nbytes))

    def pipelines(self) -> list[PipelineRequest]:
        """The kernels of the steps so far."""
        return self._draft.pipelines()

    @property
    def fixed(self) -> dict[int, Buffer]:
        """The memory of leaves that were given as it is, by slot."""
        slots = enumerate(self._draft.slots)
        return {number: slot.fixed for number, slot in slots if slot.fixed is not None}

    def closed(self, results: Mapping[int, int]) -> CommandList:
        """The list, once all steps are there. Compiles kernels.

        `results` are slots that stay, each with a step up to which the list itself keeps it; -1
        for those that no step uses.
        """
        steps = self._draft.steps_closed()
        uses: dict[int, tuple[int, int]] = {}
        kept = ((step, [slot]) for slot, step in results.items() if step >= 0)
        used = ((number, step.slots) for number, step in enumerate(steps))
        for number, slots in sorted((*used, *kept)):
            for slot in slots:
                uses[slot] = (uses.get(slot, (number, 0))[0], number)
        return CommandList(
            tuple(
                self._closed_slot(slot, number in results, *uses.get(number, (-1, -1)))
                for number, slot in enumerate(self._draft.slots)
            ),
            steps,
        )

    @staticmethod
    def _closed_slot(slot: _SlotDraft, stays: bool, first: int, last: int) -> Slot:
        kind = SlotKind.RESULT if stays and slot.kind is SlotKind.SCRATCH else slot.kind
        return Slot(kind, slot.nbytes, first, last, slot.label, slot.contents)
