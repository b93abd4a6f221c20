"""A run of kernels as packed words, which one call of C or a loop of Python encodes.

Each command begins with its kind and has its operands after it. Objects are numbered, from 1 on,
and bytes are at places of their own, so the same words serve the library and PyObjC.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from lbrx.metal.binding import Metal
from lbrx.metal.encoder_library import encoder_library

ALIGNMENT = 16  # bytes: of the values of setBytes


class Kind(IntEnum):
    """The first word of a command; encoder.c has the same numbers."""

    PIPELINE = 0  # object
    BUFFER = 1  # object or 0, offset, index
    BYTES = 2  # place, length, index
    THREADGROUP_MEMORY = 3  # length, index
    BARRIER = 4  # scope
    DISPATCH = 5  # grid, threadgroup


OPERANDS = {
    Kind.PIPELINE: 1,
    Kind.BUFFER: 3,
    Kind.BYTES: 3,
    Kind.THREADGROUP_MEMORY: 2,
    Kind.BARRIER: 1,
    Kind.DISPATCH: 6,
}


class CommandPacker:
    """Writes a list; `packed` ends it."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._bytes = bytearray()
        self._objects: list[Any] = [None]
        self._numbers: dict[int, int] = {}  # of objects, by their id

    def _add(self, kind: Kind, *operands: int) -> int:
        self._words += (kind, *operands)
        return len(self._words) - len(operands)

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._objects)
            self._objects.append(thing)
        return self._numbers[id(thing)]

    def pipeline(self, state: Any) -> None:
        """Set the kernel of the dispatches that follow."""
        self._add(Kind.PIPELINE, self._number(state))

    def buffer(self, handle: Any, offset: int, index: int) -> None:
        """Bind a buffer, or none."""
        self._add(Kind.BUFFER, 0 if handle is None else self._number(handle), offset, index)

    def open_buffer(self, index: int) -> int:
        """Bind a buffer that `PackedCommands.bind` names; returns the place of its words."""
        self._objects.append(None)
        return self._add(Kind.BUFFER, len(self._objects) - 1, 0, index)

    def value(self, value: bytes, index: int) -> int:
        """Bind bytes; returns their place."""
        place = len(self._bytes)
        self._add(Kind.BYTES, place, len(value), index)
        self._bytes += value.ljust(-(-len(value) // ALIGNMENT) * ALIGNMENT, b"\0")
        return place

    def threadgroup_memory(self, length: int, index: int) -> None:
        """Reserve memory of the threadgroup."""
        self._add(Kind.THREADGROUP_MEMORY, length, index)

    def barrier(self) -> None:
        """Wait for the buffers that earlier kernels write."""
        self._add(Kind.BARRIER, int(Metal.MTLBarrierScopeBuffers))

    def dispatch(self, grid: tuple[int, int, int], group: tuple[int, int, int]) -> None:
        """Run the kernel."""
        self._add(Kind.DISPATCH, *grid, *group)

    def packed(self) -> PackedCommands:
        """The list."""
        return PackedCommands(self._words, self._bytes, self._objects)


class PackedCommands:
    """A list with places for buffers and numbers that change."""

    def __init__(self, words: list[int], data: bytearray, objects: list[Any]) -> None:
        self.words = np.array(words, np.uint64)
        self.data = np.frombuffer(bytes(data) or bytes(ALIGNMENT), np.uint8).copy()
        self.objects = objects
        self._library = encoder_library()
        self._addresses = np.zeros(len(objects), np.uint64)
        for number, thing in enumerate(objects):
            self._locate(number, thing)

    def _locate(self, number: int, thing: Any) -> None:
        if self._library is not None and thing is not None:
            self._addresses[number] = self._library.address(thing)

    def bind(self, place: int, handle: Any, offset: int) -> None:
        """Name the buffer of an `open_buffer`."""
        number = int(self.words[place])
        if self.objects[number] is not handle:
            self.objects[number] = handle
            self._locate(number, handle)
        self.words[place + 1] = offset

    def write(self, place: int, value: bytes) -> None:
        """Replace a value."""
        self.data[place : place + len(value)] = np.frombuffer(value, np.uint8)

    def encode(self, encoder: Any) -> None:
        """Send the messages to an encoder: by the library, or by PyObjC without it."""
        if self._library is not None:
            self._library.encode(encoder, self.words, self._addresses, self.data)
        else:
            self._send(encoder)

    def _send(self, encoder: Any) -> None:
        words, objects, data = self.words.tolist(), self.objects, self.data.tobytes()
        place = 0
        while place < len(words):
            kind = Kind(words[place])
            end = place + 1 + OPERANDS[kind]
            operands = words[place + 1 : end]
            place = end
            match kind:
                case Kind.PIPELINE:
                    encoder.setComputePipelineState_(objects[operands[0]])
                case Kind.BUFFER:
                    handle, offset, index = operands
                    encoder.setBuffer_offset_atIndex_(objects[handle], offset, index)
                case Kind.BYTES:
                    start, length, index = operands
                    value = data[start : start + length]
                    encoder.setBytes_length_atIndex_(value, length, index)
                case Kind.THREADGROUP_MEMORY:
                    encoder.setThreadgroupMemoryLength_atIndex_(*operands)
                case Kind.BARRIER:
                    encoder.memoryBarrierWithScope_(operands[0])
                case Kind.DISPATCH:
                    grid, group = operands[:3], operands[3:]
                    encoder.dispatchThreads_threadsPerThreadgroup_(
                        Metal.MTLSizeMake(*grid), Metal.MTLSizeMake(*group)
                    )
