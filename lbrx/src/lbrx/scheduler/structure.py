"""The structure of a graph: everything that decides its commands, apart from the memory they use.

Kernels are planned, chosen and launched by operations, attributes, layouts, dtypes and policies, by
the alignment of memory, and by settings. Two graphs that agree in all of these differ in the
buffers that their commands name and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lbrx import env
from lbrx.kernels import registry
from lbrx.metal import Buffer
from lbrx.scheduler.graph import Node, Pending
from lbrx.storage import Array, MetalCache, MetalStorage, NumberStorage

Number = tuple[bytes, str]  # a value's bytes and dtype
ALIGNMENT = 256  # bytes: kernels look at places in memory modulo divisors of it


@dataclass(frozen=True)
class GraphStructure:
    """Graphs with equal keys are computed by the same commands on other leaves and numbers."""

    key: tuple[object, ...]
    leaves: list[MetalStorage]
    """The memory that the graph reads, each storage once, in order of first use."""
    numbers: list[Number]
    """The operands on the host, each value once."""


def structure_of(order: Sequence[Node], targets: Sequence[Node]) -> GraphStructure | None:
    """The structure of nodes, each after its inputs, of which the targets are wanted.

    None if commands depend on more than that: on placeholders of a traced function, or on numbers
    that a replay may change.
    """
    number = {node: i for i, node in enumerate(order)}
    leaves = _Leaves()
    key: list[object] = [len(order), *(number[node] for node in targets)]
    for node in order:
        policy = node.policy
        key += (node.signature, None if policy is registry.DEFAULT else policy)
        for array in node.inputs:
            if array is None:
                continue
            storage, layout = array.storage, array.layout
            if isinstance(storage, Pending) and storage.node is not None:
                place: object = number[storage.node], storage.index
            else:
                place = leaves.place(array)
            if place is None:
                return None
            key += (place, layout.strides, layout.offset)
    key += leaves.facts
    key += (env.kernel_setting(), env.fusion(), registry.generation())
    return GraphStructure(tuple(key), leaves.storages, [*leaves.numbers])


def number_of(array: Array) -> Number:
    """An operand on the host, which is always a scalar."""
    return array.numpy().tobytes(), array.dtype.name


class _Leaves:
    """The memory that a graph reads, and what decides kernels about it."""

    def __init__(self) -> None:
        self.storages: list[MetalStorage] = []
        self.facts: list[object] = []
        self.numbers: dict[Number, int] = {}
        self._known: dict[int, int] = {}  # by the storage's id

    def place(self, array: Array) -> object:
        """What stands for an array that is not a node's: its place among the leaves or the numbers.
        None for memory that commands may not read as it is."""
        storage = array.storage
        found: Any = storage.storage if isinstance(storage, Pending) else storage
        kind = type(found)
        if kind is not MetalStorage and kind is not MetalCache:
            if found.device != "cpu" or isinstance(found, NumberStorage):
                return None
            return self.numbers.setdefault(number_of(array), len(self.numbers))
        place = self._known.get(id(found))
        if place is None:
            place = self._known[id(found)] = len(self.storages)
            self.storages.append(found)
            buffer: Buffer = found.buffer
            block, offset = buffer.block, buffer.offset + found.offset
            self.facts += (
                *(kind, found.nbytes, offset % ALIGNMENT, block.address % ALIGNMENT),
                *(block.private, block.source is None),
            )
        # Whether a storage was pending decides which kernels are grouped.
        # Places of nodes are pairs that are not negative, those of numbers are no pairs.
        return -1 - place, found is storage
