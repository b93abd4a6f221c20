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
from lbrx.arrays.storage import MetalCache, MetalStorage, NumberStorage
from lbrx.command_lists.planned_memory import ALIGNMENT
from lbrx.graph.graph import Node, Pending, number_bytes
from lbrx.kernels import registry
from lbrx.metal.binding import checking_modes
from lbrx.metal.buffer import Block

Number = tuple[bytes, str]  # a value's bytes and dtype
_MEMORY = (MetalStorage, MetalCache)  # what commands may read as it is


@dataclass(slots=True)
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
    number = dict(zip(order, range(len(order)), strict=True))
    leaves: dict[int, int] = {}  # places by the storage's id
    storages: list[MetalStorage] = []
    numbers: dict[Number, int] = {}
    key: list[object] = [len(order), *map(number.__getitem__, targets)]
    for node in order:
        key.append(node.form)
        # Two entries for each operand. The first ones of nodes are not negative, those of leaves
        # are, and those of numbers are None.
        for array in node.inputs:
            if array is None:
                continue
            storage: Any = array.storage
            was_pending = isinstance(storage, Pending)
            if was_pending:
                if storage.node is not None:
                    key += (number[storage.node], storage.index)
                    continue
                storage = storage.storage
            if type(storage) in _MEMORY:
                place = leaves.get(id(storage))
                if place is None:
                    place = leaves[id(storage)] = len(storages)
                    storages.append(storage)
                    _add_memory(key, storage)
                # Whether a storage was pending decides which kernels are grouped.
                key += (-1 - place, was_pending)
            elif storage.device != "cpu" or isinstance(storage, NumberStorage):
                return None
            else:
                number_read = (number_bytes(array), array.dtype.name)
                key += (None, numbers.setdefault(number_read, len(numbers)))
    key += (env.kernel_setting(), env.fusion(), checking_modes(), registry.generation())
    return GraphStructure(tuple(key), storages, [*numbers])


def _add_memory(key: list[object], storage: MetalStorage) -> None:
    """Add what commands depend on of memory that is new to the graph."""
    buffer: Any = storage.buffer
    block: Block = buffer.block
    key += (
        type(storage),
        storage.nbytes,
        (buffer.offset + storage.offset) % ALIGNMENT,
        block.address % ALIGNMENT,
        block.private,
        block.source is None,
    )
