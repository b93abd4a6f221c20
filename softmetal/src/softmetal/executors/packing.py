"""Command lists as bytes: the layout of runtime/commands.h."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

from softmetal.errors import ExecutionError
from softmetal.types import (
    MAX_BUFFERS,
    MAX_THREADGROUP_ARGUMENTS,
    Command,
    Copy,
    Dispatch,
    Execute,
    Fill,
    Gemm,
    IndirectCommands,
    Order,
    Packed,
    Resources,
    Signal,
    Timestamp,
    Use,
    Wait,
)

SLOT_BYTES = 448
_EMPTY_SLOT = bytes(SLOT_BYTES)

_DISPATCH, _COPY, _FILL, _SIGNAL, _WAIT, _TIMESTAMP, _GEMM, _EXECUTE = range(1, 9)
_RESOURCES, _ORDER, _USE = 9, 10, 11
_ORDERS = ("serial", "concurrent", "barrier", "update", "wait", "concurrency", "from", "to")

_THREE = struct.Struct("<II3Q")
_TWO = struct.Struct("<II2Q")
_ONE = struct.Struct("<IIQ")
_MULTIPLY = struct.Struct("<II9Q3qQ2d6I")
_REGION = struct.Struct("<QQiI")
_EXECUTE_HEAD = struct.Struct("<IIQQ4I")


@cache
def _dispatch_struct(head: str, buffers: int, threadgroup: int) -> struct.Struct:
    """The layout of a dispatch with these numbers of buffers and threadgroup lengths."""
    if buffers > MAX_BUFFERS or threadgroup > MAX_THREADGROUP_ARGUMENTS:
        raise ExecutionError(
            f"a dispatch with {buffers} buffers and {threadgroup} threadgroup arguments: "
            f"at most {MAX_BUFFERS} and {MAX_THREADGROUP_ARGUMENTS} exist"
        )
    padding = "4x" if threadgroup % 2 else ""
    return struct.Struct(f"<{head}Q6IQII{buffers}Q{threadgroup}I{padding}")


def _dispatch(command: Dispatch) -> bytes:
    kernel, grid, group, buffers, threadgroup, indirect = command
    n, t = len(buffers), len(threadgroup)
    layout = _dispatch_struct("II", n, t)
    return layout.pack(
        _DISPATCH, layout.size, kernel, *grid, *group, indirect, n, t, *buffers, *threadgroup
    )


def _packed(command: Packed) -> bytes:
    return command.data


def _pack_slot(block: Any, index: int, slot: Dispatch | None) -> None:
    offset = index * SLOT_BYTES
    if slot is None:
        block[offset : offset + SLOT_BYTES] = _EMPTY_SLOT
        return
    kernel, grid, group, buffers, threadgroup, indirect = slot
    n, t = len(buffers), len(threadgroup)
    layout = _dispatch_struct("", n, t)
    layout.pack_into(block, offset, kernel, *grid, *group, indirect, n, t, *buffers, *threadgroup)


def _use(command: Use) -> bytes:
    return _THREE.pack(_USE, _THREE.size, *command)


def _copy(command: Copy) -> bytes:
    return _THREE.pack(_COPY, _THREE.size, *command)


def _fill(command: Fill) -> bytes:
    return _THREE.pack(_FILL, _THREE.size, *command)


def _signal(command: Signal) -> bytes:
    return _TWO.pack(_SIGNAL, _TWO.size, *command)


def _wait(command: Wait) -> bytes:
    return _TWO.pack(_WAIT, _TWO.size, *command)


def _timestamp(command: Timestamp) -> bytes:
    return _ONE.pack(_TIMESTAMP, _ONE.size, command.address)


def _resources(command: Resources) -> bytes:
    regions = b"".join(
        _REGION.pack(r.address, r.length, r.slot, r.tracked) for r in command.regions
    )
    return _ONE.pack(_RESOURCES, _ONE.size + len(regions), len(command.regions)) + regions


def _order(command: Order) -> bytes:
    return _TWO.pack(_ORDER, _TWO.size, _ORDERS.index(command.kind), command.value)


def _gemm(g: Gemm) -> bytes:
    return _MULTIPLY.pack(
        _GEMM,
        _MULTIPLY.size,
        *(g.a, g.b, g.c, g.m, g.n, g.k, g.lda, g.ldb, g.ldc),
        *(g.stride_a, g.stride_b, g.stride_c, g.batch, g.alpha, g.beta),
        *(g.transpose_a, g.transpose_b, g.type_a, g.type_b, g.type_c, 0),
    )


_PACKERS: dict[type, Callable[[Any], bytes]] = {
    Dispatch: _dispatch,
    Packed: _packed,
    Use: _use,
    Copy: _copy,
    Fill: _fill,
    Signal: _signal,
    Wait: _wait,
    Timestamp: _timestamp,
    Gemm: _gemm,
    Resources: _resources,
    Order: _order,
}


class _Lease:
    """What a submitted list holds of a block of slots for as long as it may read them."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: ctypes.Array[ctypes.c_char]) -> None:
        self.block = block


class _Slots:
    """The encoded slots of an indirect command buffer, and the lease of lists that use them."""

    __slots__ = ("block", "lease")

    def __init__(self, block: ctypes.Array[ctypes.c_char]) -> None:
        self.block = block
        self.lease: ref[_Lease] | None = None

    def leased(self) -> _Lease:
        lease = self.lease() if self.lease is not None else None
        if lease is None:
            lease = _Lease(self.block)
            self.lease = ref(lease)
        return lease


class Packer:
    """Packs command lists; keeps the encoded slots of indirect command buffers between them.

    Slots that a submitted list may be reading are not changed: a changed command buffer gets a
    new block.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._slots: WeakKeyDictionary[IndirectCommands, _Slots] = WeakKeyDictionary()

    def pack(self, commands: Sequence[Command]) -> tuple[bytes, tuple[object, ...]]:
        """The packed list, and objects that must live until it has run."""
        blocks: list[object] = []
        parts: list[bytes] = []
        try:
            for command in commands:
                if isinstance(command, Dispatch):
                    parts.append(_dispatch(command))
                elif isinstance(command, Execute):
                    lease = self._encoded(command.commands)
                    blocks.append(lease)
                    parts.append(_execute(command, lease.block))
                else:
                    parts.append(_PACKERS[type(command)](command))
        except struct.error as error:
            raise ExecutionError(f"{command!r}: {error}") from None
        return b"".join(parts), tuple(blocks)

    def _encoded(self, commands: IndirectCommands) -> _Lease:
        size = len(commands.slots) * SLOT_BYTES
        with self._lock:
            slots = self._slots.get(commands)
            if slots is None:
                slots = self._slots[commands] = _Slots(self._new_block(size))
                stale: Sequence[int] = range(len(commands.slots))
            else:
                stale = tuple(commands.dirty)
            if stale and slots.lease is not None and slots.lease() is not None:
                before, slots = slots, _Slots(self._new_block(size))
                ctypes.memmove(slots.block, before.block, size)
                self._slots[commands] = slots
            for index in stale:
                _pack_slot(slots.block, index, commands.slots[index])
            commands.dirty.difference_update(stale)
            return slots.leased()

    def _new_block(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """Zeroed memory that the runtime can read, freed with the array."""
        return ctypes.create_string_buffer(size)


def _execute(command: Execute, block: ctypes.Array[ctypes.c_char]) -> bytes:
    inherited = _dispatch(command.inherited)[8:]
    return (
        _EXECUTE_HEAD.pack(
            _EXECUTE,
            _EXECUTE_HEAD.size + len(inherited),
            ctypes.addressof(block),
            command.range_address,
            command.first,
            command.number,
            len(command.commands.slots),
            0,
        )
        + inherited
    )
