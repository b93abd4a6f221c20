"""The commands of a plan as data: numbered slots of memory, and steps that read and write them.

A list names no memory of a device, so that it can run again with other operands, be recorded for
replays, or be printed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.command_lists.planned_memory import planned_buffer
from lbrx.metal.buffer import Buffer
from lbrx.metal.commands import Dispatch, Encoded, NumberSlot, Size
from lbrx.metal.hazards import Hazards

Reason = Callable[[], str]
"""Says why a variant was chosen."""
ReportCheck = Callable[[NDArray[Any]], Exception | None]
"""Looks at the 32-bit words of a kernel's report; returns what is wrong."""


class SlotKind(Enum):
    """What memory is for."""

    LEAF = "leaf"  # what the plan begins with
    CONSTANT = "constant"  # values that are known before it runs
    SCRATCH = "scratch"
    RESULT = "result"


@dataclass(frozen=True)
class KeptValues:
    """A constant that is made once for a device."""

    key: Hashable
    make: Callable[[], NDArray[Any]]

    @cached_property
    def values(self) -> NDArray[Any]:
        """The constant itself."""
        return self.make()


@dataclass(frozen=True)
class ReportMemory:
    """Zeros that the host sees, in which a kernel reports."""


Contents = NDArray[Any] | KeptValues | NumberSlot | ReportMemory
"""What memory holds before the first step that uses it."""


@dataclass(frozen=True)
class Slot:
    """A piece of memory."""

    kind: SlotKind
    nbytes: int
    first: int
    last: int
    """The numbers of the steps that use it first and last."""
    label: str = ""
    """What the pool counts it as."""
    contents: Contents | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A range of bytes of a slot."""

    slot: int
    offset: int
    size: int
    whole: bool
    """Whether it is all of the slot."""

    def of(self, memory: Sequence[Buffer | None]) -> Buffer:
        """The range in the memory that the slot has now."""
        buffer = memory[self.slot]
        assert buffer is not None, f"slot {self.slot} has no memory"
        return buffer if self.whole else buffer.slice(self.offset, self.size)


Place = tuple[int, int, Part | None, bool]
"""The index of an argument, its slot, the part of it unless it is whole, and whether the kernel may
write it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of ours."""

    command: Dispatch
    """Without its arguments."""
    places: tuple[Place, ...]
    values: tuple[tuple[int, bytes | None], ...]
    """Arguments that are the same in every run, with their indices."""
    numbers: tuple[tuple[int, NumberSlot], ...]
    """Arguments that are numbers of a run."""
    reason: Reason | None
    check: ReportCheck | None
    report: Part | None
    """What `check` looks at."""

    @property
    def indices(self) -> list[int]:
        """Indices of arguments."""
        places, values, numbers = self.places, self.values, self.numbers
        return [*(p[0] for p in places), *(v[0] for v in values), *(n[0] for n in numbers)]

    @property
    def slots(self) -> list[int]:
        """Slots that it uses."""
        return [place[1] for place in self.places]

    @property
    def reads(self) -> list[int]:
        """Slots that it reads and does not write."""
        written = self.writes
        return [slot for slot in dict.fromkeys(self.slots) if slot not in written]

    @property
    def writes(self) -> list[int]:
        """Slots that it may write."""
        return [*dict.fromkeys(slot for _, slot, _, writes in self.places if writes)]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A command that encodes itself: a product by the vendor's library, or a copy."""

    command: Encoded
    """Without its buffers."""
    parts: tuple[Part, ...]
    reason: Reason | None

    @property
    def slots(self) -> list[int]:
        """Slots that it uses."""
        return [part.slot for part in self.parts]

    @property
    def reads(self) -> list[int]:
        """Slots that it reads."""
        written = self.writes
        return [slot for slot in self.slots if slot not in written]

    @property
    def writes(self) -> list[int]:
        """Slots that it writes."""
        at = self.command.written_at
        return [p.slot for i, p in enumerate(self.parts) if at is None or i in at]


@dataclass(frozen=True, slots=True)
class HostOperand:
    """An array that the host reads."""

    part: Part
    layout: Layout
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class HostStep:
    """Work of the host between kernels. A list that has one cannot be replayed as a whole."""

    name: str
    operands: tuple[HostOperand | None, ...]
    results: tuple[HostOperand, ...]
    compute: Callable[[Sequence[NDArray[Any] | None]], Sequence[NDArray[Any]]]
    waits: bool = True
    """Whether kernels may write what it reads, so that it waits for them."""

    @property
    def slots(self) -> list[int]:
        """Slots that it uses."""
        return [*self.reads, *self.writes]

    @property
    def reads(self) -> list[int]:
        """Slots that it reads."""
        return [each.part.slot for each in self.operands if each is not None]

    @property
    def writes(self) -> list[int]:
        """Slots that it writes."""
        return [each.part.slot for each in self.results]


Step = Launch | Foreign | HostStep


class Wait(Enum):
    """How a step waits for those before it."""

    BARRIER = "barrier"
    ENCODER = "encoder"
    HOST = "host"

    @property
    def meaning(self) -> str:
        """What a reader of the list should know."""
        return {
            Wait.BARRIER: "waits for the kernels before it in its encoder",
            Wait.ENCODER: "begins another encoder, and so waits for all steps before it",
            Wait.HOST: "the host waits for all steps before it; lbrx.compile refuses such a list",
        }[self]


@dataclass(frozen=True)
class CommandList:
    """The steps that compute some arrays, in order; `print` shows them as a table."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]

    @cached_property
    def taken(self) -> tuple[tuple[int, ...], ...]:
        """The slots that get memory before each step."""
        return self._grouped(lambda slot: slot.first)

    @cached_property
    def dropped(self) -> tuple[tuple[int, ...], ...]:
        """The slots that lose their memory after each step, leaves too."""
        return self._grouped(lambda slot: slot.last, leaves=True)

    def _grouped(
        self, step: Callable[[Slot], int], *, leaves: bool = False
    ) -> tuple[tuple[int, ...], ...]:
        groups: list[list[int]] = [[] for _ in self.steps]
        for number, slot in enumerate(self.slots):
            if slot.first >= 0 and (leaves or slot.kind is not SlotKind.LEAF):
                groups[step(slot)].append(number)
        return tuple(map(tuple, groups))

    @cached_property
    def peak(self) -> int:
        """The most bytes that scratch, results and constants have at a time."""
        most = now = 0
        for taken, dropped in zip(self.taken, self.dropped, strict=True):
            now += sum(self.slots[slot].nbytes for slot in taken)
            most = max(most, now)
            gone = (self.slots[slot] for slot in dropped)
            now -= sum(slot.nbytes for slot in gone if slot.kind is not SlotKind.LEAF)
        return most

    def waits(self) -> list[Wait | None]:
        """How each step waits for those before it, as far as the slots tell."""
        stand_ins = [planned_buffer(slot.nbytes) for slot in self.slots]
        hazards = Hazards()
        barriers: list[Wait | None] = []
        is_open = False  # whether there is an encoder that a kernel can join
        for step in self.steps:
            if isinstance(step, HostStep):
                barriers.append(Wait.HOST if step.waits else None)
                is_open = is_open and not step.waits
                continue
            if isinstance(step, Foreign) or not is_open:
                hazards.clear()
                barriers.append(Wait.ENCODER if barriers else None)
            if isinstance(step, Launch):
                accesses = [
                    (index, stand_ins[slot] if part is None else part.of(stand_ins), writes)
                    for index, slot, part, writes in step.places
                ]
                waits = hazards.admit(accesses)
                if is_open:
                    barriers.append(Wait.BARRIER if waits else None)
            is_open = isinstance(step, Launch)
        return barriers

    def __str__(self) -> str:
        if not self.steps:
            return "nothing is pending: the values are in memory"
        waits = self.waits()
        head = (
            f"{_plural(len(self.steps), 'step')}, {_plural(len(self.slots), 'slot')}, "
            f"at most {self.peak:,} bytes beside the leaves"
        )
        slots = [("slot", "kind", "bytes", "steps"), *self._slot_rows()]
        steps = [
            ("step", "waits", "kernel:variant", "reads", "writes", "threads / group", "reason"),
            *(_step_row(i, *each) for i, each in enumerate(zip(self.steps, waits, strict=True))),
        ]
        notes = [f"{wait.value}: {wait.meaning}" for wait in Wait if wait in waits]
        parts = [[head], _table(slots), _table(steps), notes]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _slot_rows(self) -> Iterator[tuple[str, ...]]:
        for number, slot in enumerate(self.slots):
            used = f"{slot.first}" if slot.first == slot.last else f"{slot.first} to {slot.last}"
            kind = "report" if isinstance(slot.contents, ReportMemory) else slot.kind.value
            yield f"s{number}", kind, f"{slot.nbytes:,}", "none" if slot.first < 0 else used


def _step_row(number: int, step: Step, waits: Wait | None) -> tuple[str, ...]:
    reads, writes = (" ".join(f"s{slot}" for slot in some) for some in (step.reads, step.writes))
    wait = "" if waits is None else waits.value
    if isinstance(step, HostStep):
        reason = "no kernel" if step.writes else "values that the host wrote"
        return (str(number), wait, f"{step.name} on the host", reads, writes, "", reason)
    sizes = ""
    if isinstance(step, Launch):
        sizes = f"{_size(step.command.grid)} / {_size(step.command.group)}"
    reason = "" if step.reason is None else step.reason()
    return (str(number), wait, step.command.label, reads, writes, sizes, reason)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _size(size: Size) -> str:
    return "x".join(map(str, size))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
