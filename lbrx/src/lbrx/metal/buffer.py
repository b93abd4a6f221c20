"""Buffers: ranges of blocks of memory.

Host and device share a block, except on a device with its own memory, where most blocks are
private: then the host reads a copy.

A block remembers the ticket of the last work that uses it. The device runs work in order, so a
block may serve again at once; the host waits for the ticket before it touches the bytes. The
outcome of the last work that wrote it tells whether the bytes are right.
"""

from __future__ import annotations

import ctypes
from gc import is_finalized
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.arrays.storage.mapped import FileMapping
from lbrx.memory.pool import Pool
from lbrx.metal.binding import AtDeallocation, Metal
from lbrx.metal.outcome import Outcome

NumpyArray = npt.NDArray[Any]


class Waiter(Protocol):
    """The part of the command queue that a buffer uses."""

    def wait_for(self, ticket: int, outcome: Outcome | None) -> None:
        """Wait until the work with this ticket is complete; raise what went wrong with it."""

    def download(self, buffer: Buffer) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer that the host does not see, copied after the work that writes
        them; raises what went wrong with it."""


class Block:
    """An MTLBuffer with its address: on the host, or on the device if it is private."""

    __slots__ = (
        *("__weakref__", "address", "handle", "heap", "host", "mapping"),
        *("length", "matrices", "membership", "private", "source", "ticket", "writable"),
    )

    def __init__(
        self,
        handle: Any,
        address: int,
        length: int,
        host: object = None,
        writable: bool = True,
        heap: object = None,
        private: bool = False,
    ) -> None:
        self.handle = handle
        self.address = address
        self.length = length
        self.host = host  # the owner of host memory that the device shares
        self.writable = writable
        self.heap = heap  # the memory.heap.Heap that it is a part of
        self.private = private  # the host cannot see it
        self.membership: object = None  # in what stays resident
        self.mapping: FileMapping | None = None  # the file that the memory belongs to
        self.ticket = 0  # of the last work that uses it
        self.source: Outcome | None = None  # of the last work that wrote it
        self.matrices: dict[object, Any] = {}  # MPSMatrix objects over it, by what describes them


def block_over(handle: Any, length: int, heap: object = None) -> Block:
    """The block of a buffer that the device allocated."""
    if handle.storageMode() == Metal.MTLStorageModePrivate:
        return Block(handle, int(handle.gpuAddress()), length, heap=heap, private=True)
    view = np.frombuffer(handle.contents().as_buffer(length), np.uint8)
    return Block(handle, view.ctypes.data, length, heap=heap)


def bytes_at(address: int, length: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Host memory as an object that Metal's calls accept; it does not keep the memory alive."""
    return (ctypes.c_ubyte * length).from_address(address)


class _Exposed(ctypes.c_ubyte * (1 << 62)):  # type: ignore[misc]
    """Memory from the start of a buffer on, which it keeps alive: the base of a numpy array over as
    many bytes as the buffer has. An array type for each size would take long to make."""

    __slots__ = ("buffer",)


class Buffer:
    """A range of a block: the memory of tensors and the arguments of kernels.

    >>> buffer = lbrx.metal.context().upload(np.arange(8, dtype=np.uint8))
    >>> buffer.slice(2, 3).array().tolist()
    [2, 3, 4]
    """

    __slots__ = ("__weakref__", "_keep", "_waiter", "block", "offset", "size")

    def __init__(
        self, block: Block, offset: int, size: int, waiter: Waiter, keep: object = None
    ) -> None:
        self.block = block
        self.offset = offset
        self.size = size
        self._waiter = waiter
        self._keep = keep  # the buffer that this is a part of, kept alive

    def __repr__(self) -> str:
        kind = "host" if self.block.host is not None else "device"
        return f"<Buffer of {self.size} bytes at {self.offset} of {kind} memory>"

    @property
    def handle(self) -> Any:
        """The MTLBuffer."""
        return self.block.handle

    @property
    def address(self) -> int:
        """The address of the buffer's first byte on the host."""
        return self.block.address + self.offset

    def slice(self, offset: int, size: int) -> Buffer:
        """A part of the buffer over the same memory."""
        self._check_slice(offset, size)
        return Buffer(self.block, self.offset + offset, size, self._waiter, self)

    def _check_slice(self, offset: int, size: int) -> None:
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(
                f"bytes {offset} to {offset + size} are not within a buffer of {self.size} bytes"
            )

    def wait(self) -> None:
        """Block until the device has finished all work that uses this memory.

        Raises DeviceError if the work that wrote it failed.
        """
        self._waiter.wait_for(self.block.ticket, self.block.source)

    def array(self, dtype: npt.DTypeLike = np.uint8) -> NumpyArray:
        """The memory as a flat array, after a wait: itself, kept alive by the array, or a copy if
        it is private.

        Raises FormatError if it is a mapped file that has become shorter.
        """
        block = self.block
        if block.private:
            copy = self._waiter.download(self).view(dtype)
            copy.flags.writeable = False  # it would not reach the device
            return copy
        self._waiter.wait_for(block.ticket, block.source)
        if block.mapping is not None:
            block.mapping.check()
        values = self.unsynchronised()
        return values if dtype is np.uint8 else values.view(dtype)

    def unsynchronised(self) -> npt.NDArray[np.uint8]:
        """The bytes without a wait, for memory that the host sees and no pending work writes."""
        assert not self.block.private
        if self.size == 0:
            return np.empty(0, np.uint8)
        memory = _Exposed.from_address(self.block.address + self.offset)
        memory.buffer = self
        shown = memory if self.block.writable else memoryview(memory).toreadonly()
        return np.frombuffer(shown, np.uint8, self.size)


class HeapBuffer(Buffer):
    """A block of a heap. The pool counts it as in use while something refers to it."""

    __slots__ = ("_end",)

    def __init__(
        self, pool: Pool[Block], block: Block, size: int, waiter: Waiter, label: str
    ) -> None:
        super().__init__(block, 0, size, waiter)
        pool.occupy(block.length, label)
        self._end = AtDeallocation(pool.vacate, block.length, label)


class PooledBuffer(Buffer):
    """Returns to the pool when nothing refers to it."""

    __slots__ = ("_label", "_length", "_pool")

    def __init__(
        self, pool: Pool[Block], block: Block, length: int, size: int, waiter: Waiter, label: str
    ) -> None:
        self.block = block
        self.offset = 0
        self.size = size
        self._waiter = waiter
        self._keep = None
        self._pool = pool
        self._length = length  # of the block, as the pool counts it
        self._label = label

    # Runs at any moment on any thread: `give` takes no lock. If the collector calls it, something
    # else of the dead cycle may keep this buffer.
    def __del__(self) -> None:
        if is_finalized(self):
            given = (self.block, self._length, self._label)
            self._keep = AtDeallocation(_give_back, self._pool, *given)
            return
        self.block.source = None
        self._pool.give(self.block, self._length, self._label)


def _give_back(pool: Pool[Block], block: Block, length: int, label: str) -> None:
    block.source = None
    pool.give(block, length, label)
