"""Graphs that are computed again and again: planned, chosen and bound once, then only encoded.

A graph that appears for the second time is watched as its kernels are encoded. What it takes from
the pool and which commands it runs become a list of actions on numbered slots, of which the first
hold the memory of the graph's leaves. Later graphs of the same structure run the actions with their
own leaves and numbers. Slots are emptied after their last use, so that memory returns to the pool
as early as without a list.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lbrx import shape as sh
from lbrx.kernels.arrays import storage_buffer
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.metal.commands import Command, Dispatch, Encoded, NumberSlot
from lbrx.metal.watching import unrepeatable
from lbrx.scheduler.graph import Node, settle
from lbrx.scheduler.structure import GraphStructure, number_of
from lbrx.storage import Array, Bytes, MetalStorage, NumberStorage, Storage

MOST_NODES = 1 << 14  # of all remembered graphs together
LARGEST_PART = 4  # one graph may have a quarter of them


# ---- running ----


class Frame:
    """A graph that is being computed. Entries of its lists are dropped as early as possible."""

    __slots__ = ("gpu", "leaves", "nodes", "numbers", "slots")

    def __init__(
        self, gpu: Context, nodes: list[Any], structure: GraphStructure, slots: int
    ) -> None:
        self.gpu = gpu
        self.nodes = nodes  # and None in place of nodes that are computed
        self.leaves: list[Any] = structure.leaves
        self.numbers = structure.numbers
        self.slots: list[Buffer | None] = [storage_buffer(leaf) for leaf in structure.leaves]
        self.slots += [None] * (slots - len(self.slots))


@dataclass(frozen=True, slots=True)
class Part:
    """A range of bytes of a slot's buffer."""

    slot: int
    offset: int
    size: int
    whole: bool
    """Whether it is all of the buffer."""

    def of(self, slots: Sequence[Buffer | None]) -> Buffer:
        """The range in the buffer that the slot holds now."""
        buffer = slots[self.slot]
        assert buffer is not None, f"slot {self.slot} is used after it was emptied"
        return buffer if self.whole else buffer.slice(self.offset, self.size)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Fills a slot with a buffer from the pool."""

    slot: int
    size: int
    label: str

    def run(self, frame: Frame) -> None:
        """Do it for one graph."""
        frame.slots[self.slot] = frame.gpu.buffer(self.size, self.label)

    @property
    def uses(self) -> Iterable[int]:
        """The slots that it uses."""
        return (self.slot,)


@dataclass(frozen=True, slots=True)
class Launch:
    """Encodes a kernel, of whose arguments some are parts of slots and some are numbers."""

    command: Dispatch
    places: tuple[tuple[int, int, Part | None, bool], ...]
    """Indices of arguments, their slots, the parts of these unless they are whole, and whether the
    kernel may write them."""
    values: tuple[tuple[int, bytes | None], ...]
    """Arguments that are the same for all graphs, with their indices."""
    numbers: tuple[tuple[int, int], ...]
    """Indices of arguments and of the numbers that they are."""

    def run(self, frame: Frame) -> None:
        """Do it for one graph."""
        slots = frame.slots
        accesses: list[Any] = [
            (index, slots[slot] if part is None else part.of(slots), writes)
            for index, slot, part, writes in self.places
        ]
        values: Sequence[tuple[int, bytes | None]] = self.values
        if self.numbers:
            numbers = frame.numbers
            values = [*values, *[(index, numbers[number][0]) for index, number in self.numbers]]
        frame.gpu.queue.encode_dispatch(self.command, accesses, values)

    @property
    def uses(self) -> Iterable[int]:
        """The slots that it uses."""
        return (slot for _, slot, _, _ in self.places)


@dataclass(frozen=True, slots=True)
class ForeignLaunch:
    """Encodes a command that encodes itself, such as an MPS product."""

    command: Encoded
    parts: tuple[Part, ...]

    def run(self, frame: Frame) -> None:
        """Do it for one graph."""
        buffers = [part.of(frame.slots) for part in self.parts]
        frame.gpu.queue.encode_foreign(self.command, buffers)

    @property
    def uses(self) -> Iterable[int]:
        """The slots that it uses."""
        return (part.slot for part in self.parts)


@dataclass(frozen=True, slots=True)
class Settlement:
    """Sets the memory of a node's results, by index: parts of slots, or the storages of leaves."""

    node: int
    results: tuple[tuple[int, Part | int], ...]
    whole: bool

    def run(self, frame: Frame) -> None:
        """Do it for one graph."""
        storages: dict[int, Storage] = {}
        for index, result in self.results:
            if isinstance(result, int):
                storages[index] = frame.leaves[result]
            else:
                buffer = frame.slots[result.slot]
                assert buffer is not None
                storages[index] = MetalStorage(buffer, result.offset, result.size)
        settle(frame.nodes[self.node], storages, self.whole)

    @property
    def uses(self) -> Iterable[int]:
        """The slots that it uses."""
        return (x if isinstance(x, int) else x.slot for _, x in self.results)


@dataclass(frozen=True, slots=True)
class Release:
    """Drops buffers and nodes that no later action uses."""

    slots: tuple[int, ...]
    nodes: tuple[int, ...]

    def run(self, frame: Frame) -> None:
        """Do it for one graph."""
        for slot in self.slots:
            frame.slots[slot] = None
            if slot < len(frame.leaves):
                frame.leaves[slot] = None
        for node in self.nodes:
            frame.nodes[node] = None

    @property
    def uses(self) -> Iterable[int]:
        """The slots that it uses."""
        return ()


Action = Allocation | Launch | ForeignLaunch | Settlement | Release


@dataclass(frozen=True)
class PreparedGraph:
    """The actions that compute graphs of one structure."""

    actions: tuple[Action, ...]
    """Up to the last command."""
    endings: tuple[Action, ...]
    """The rest, which the device need not wait for."""
    slots: int

    def run(
        self, gpu: Context, nodes: list[Node], structure: GraphStructure, submit: bool = False
    ) -> None:
        """Compute a graph. Lists of nodes and leaves are emptied, so that memory is freed early."""
        frame = Frame(gpu, nodes, structure, self.slots)
        with gpu.queue.encoding():
            for action in self.actions:
                action.run(frame)
            if submit:
                gpu.queue.submit()
            for action in self.endings:
                action.run(frame)


# ---- preparing ----


class GraphNumber(NumberStorage):
    """A number of a graph that is being prepared. Only commands may use its value, where another
    graph's number takes its place."""

    def host(self) -> Bytes:
        """Its bytes, which the host decides something by, or copies to the device."""
        unrepeatable()
        return super().host()


class Preparation:
    """Watches the first evaluation that is prepared for others. Holds no memory."""

    def __init__(self, nodes: Sequence[Node], structure: GraphStructure) -> None:
        self._actions: list[Action] = []
        self._nodes = {id(node): i for i, node in enumerate(nodes)}
        leaves = structure.leaves
        self._leaves = {id(leaf): i for i, leaf in enumerate(leaves)}
        self._slots = len(leaves)
        self._numbers = {
            number: GraphNumber(np.frombuffer(number[0], np.uint8), i)
            for i, number in enumerate(structure.numbers)
        }
        if self._numbers:
            for node in nodes:
                node.inputs = tuple(map(self._opened, node.inputs))
        # The ranges of a block that slots hold now, each as a part of the block.
        self._ranges: dict[int, list[Part]] = {}
        for i, leaf in enumerate(leaves):
            buffer = storage_buffer(leaf)
            held = self._ranges.setdefault(id(buffer.block), [])
            held.append(Part(i, buffer.offset, buffer.size, True))
        self._refused = False

    def _opened(self, array: Array | None) -> Array | None:
        """An operand, with a number whose place in commands is known if it is one."""
        if array is None or array.storage.device != "cpu":
            return array
        return Array(self._numbers[number_of(array)], sh.contiguous(()), array.dtype)

    def allocated(self, buffer: Buffer, label: str) -> None:
        """A buffer was taken from the pool: from here on its block is this slot's."""
        self._ranges[id(buffer.block)] = [Part(self._slots, buffer.offset, buffer.size, True)]
        self._actions.append(Allocation(self._slots, buffer.size, label))
        self._slots += 1

    def ran(self, command: Command) -> None:
        """A command is encoded."""
        if isinstance(command, Encoded):
            parts = tuple(map(self._part, command.buffers))
            self._actions.append(ForeignLaunch(replace(command, buffers=()), parts))
            return
        if command.check is not None:
            self.refuse()
        if 0 in command.grid:
            return
        places = []
        for i, buffer, writes in command.accesses:
            part = self._part(buffer)
            places.append((i, part.slot, None if part.whole else part, writes))
        values = [(i, x) for i, x in command.values if not isinstance(x, NumberSlot)]
        numbers = [(i, x.number) for i, x in command.values if isinstance(x, NumberSlot)]
        static = command.with_arguments(())
        self._actions.append(Launch(static, tuple(places), tuple(values), tuple(numbers)))

    def refuse(self) -> None:
        """What is watched cannot be repeated."""
        self._refused = True

    def settled(self, node: Node, results: Mapping[int, Storage], whole: bool) -> None:
        """Results of a node are in these storages."""
        found: list[tuple[int, Part | int]] = []
        for index, storage in results.items():
            part = self._part(storage_buffer(storage))
            if type(storage) is MetalStorage:
                found.append((index, part))
            elif self._leaves.get(id(storage)) == part.slot:  # a cache, which stays itself
                found.append((index, part.slot))
            else:
                self.refuse()
        self._actions.append(Settlement(self._nodes[id(node)], tuple(found), whole))

    def done(self, nodes: Iterable[Node]) -> None:
        """A kernel with these nodes is complete."""
        self._actions.append(Release((), tuple(self._nodes[id(node)] for node in nodes)))

    def finished(self) -> PreparedGraph | None:
        """What was watched; None if it cannot be repeated."""
        if self._refused:
            return None
        actions = _with_releases(self._actions)
        commands = [i for i, x in enumerate(actions) if isinstance(x, Launch | ForeignLaunch)]
        end = commands[-1] + 1 if commands else 0
        return PreparedGraph(tuple(actions[:end]), tuple(actions[end:]), self._slots)

    def _part(self, buffer: Buffer) -> Part:
        """The range of a slot that a buffer is. It must be within exactly one: two leaves that
        overlap need not do so the next time, and other memory is not known to stay the same."""
        end = buffer.offset + buffer.size
        found = [
            Part(held.slot, buffer.offset - held.offset, buffer.size, buffer.size == held.size)
            for held in self._ranges.get(id(buffer.block), ())
            if held.offset <= buffer.offset and end <= held.offset + held.size
        ]
        if len(found) == 1:
            return found[0]
        self.refuse()
        return Part(0, 0, 0, False)


def _with_releases(actions: Sequence[Action]) -> list[Action]:
    """The actions with releases where they have an effect: before memory is taken."""
    last = {slot: i for i, action in enumerate(actions) for slot in action.uses}
    result: list[Action] = []
    slots: list[int] = []
    nodes: list[int] = []
    for i, action in enumerate(actions):
        if isinstance(action, Release):
            nodes += action.nodes
            continue
        if isinstance(action, Allocation) and (slots or nodes):
            result.append(Release(tuple(slots), tuple(nodes)))
            slots, nodes = [], []
        result.append(action)
        slots += (slot for slot in set(action.uses) if last[slot] == i)
    return result


# ---- remembering ----


@dataclass(slots=True)
class KnownGraph:
    """What is known of the graphs of one structure."""

    nodes: int
    used: int
    """When it appeared last, by the count of all appearances."""
    prepared: PreparedGraph | None = None
    repeated: bool = False
    """Whether it has appeared before."""
    repeatable: bool = True
    """False once an evaluation was seen that cannot be repeated."""

    @property
    def wants_preparation(self) -> bool:
        """Whether the next evaluation should be watched: a graph that appears once is not."""
        return self.repeated and self.repeatable

    def finish(self, watched: Preparation) -> None:
        """Keep what was watched."""
        self.prepared = watched.finished()
        self.repeatable = self.prepared is not None


class KnownGraphs:
    """The graphs of one device by structure, with a bound on their nodes."""

    def __init__(self, most_nodes: int = MOST_NODES) -> None:
        self._most_nodes = most_nodes
        self._known: dict[object, KnownGraph] = {}
        self._nodes = self._appearances = 0
        self._gpu: weakref.ref[Context] | None = None
        self._info: DeviceInfo | None = None  # its capabilities, which a calibration replaces

    def __len__(self) -> int:
        return len(self._known)

    @property
    def prepared(self) -> int:
        """The number of graphs that are only encoded when they appear again."""
        return sum(known.prepared is not None for known in self._known.values())

    def clear(self) -> None:
        """Forget all graphs."""
        self._known, self._nodes = {}, 0

    def takes(self, nodes: int) -> bool:
        """Whether a graph of this size is remembered."""
        return nodes <= self._most_nodes // LARGEST_PART

    def appeared(self, gpu: Context, structure: GraphStructure, nodes: int) -> KnownGraph:
        """What is known of a graph that is about to be computed."""
        if self._gpu is None or self._gpu() is not gpu or self._info is not gpu.info:
            self.clear()
            self._gpu, self._info = weakref.ref(gpu), gpu.info
        self._appearances += 1
        known = self._known.get(structure.key)
        if known is not None:
            known.repeated, known.used = True, self._appearances
            return known
        self._nodes += nodes
        if self._nodes > self._most_nodes:
            self._drop_oldest(nodes)
        known = self._known[structure.key] = KnownGraph(nodes, self._appearances)
        return known

    def _drop_oldest(self, needed: int) -> None:
        """Make room: keep half of what may be kept, used last."""
        kept: dict[object, KnownGraph] = {}
        self._nodes = needed
        newest = sorted(self._known.items(), key=lambda item: -item[1].used)
        for key, known in newest:
            if self._nodes + known.nodes > self._most_nodes // 2:
                break
            kept[key] = known
            self._nodes += known.nodes
        self._known = kept


KNOWN = KnownGraphs()
"""Used with `graph.LOCK` held."""
