"""Memory of the executor, memory of the program, and pointers into either."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from softmetal.api.structs import integer
from softmetal.errors import ValidationError
from softmetal.executors import Executor
from softmetal.lifetime import ended
from softmetal.types import Command, Copy
from softmetal.validation import check_element, check_elements, check_slice, check_view

_hosting = threading.Lock()


class Memory:
    """An allocation of the executor, freed when nothing refers to it.

    `address` is the device's; where its memory is not the host's, `host` is another address.
    """

    __slots__ = (
        *("__weakref__", "_end", "_executor", "_host", "_live"),
        *("address", "length", "private"),
    )

    def __init__(
        self, executor: Executor, length: int, live: dict[int, int], private: bool = False
    ) -> None:
        """`live` maps the address of each allocation to its length, for accounting. The host does
        not look at private memory."""
        self._executor = executor
        self._live = live
        self.length = length
        self.private = private
        self.address = self._host = 0
        self.address = executor.allocate(length, private)
        live[self.address] = length

    def host(self) -> int:
        """The address at which the host reads and writes it."""
        if not self._host:
            with _hosting:
                self._host = self._host or self._executor.host_side(self.address, self.length)
        return self._host

    def write(self, data: bytes) -> None:
        ctypes.memmove(self.host(), data, len(data))

    # The garbage collector may call this at any moment on any thread: it takes no lock.
    # At exit kernels may still run, so the remaining memory is left to the process.
    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            self._end = ended(self, _free, self._executor, self.address, self.length, self._live)


def _free(executor: Executor, address: int, length: int, live: dict[int, int]) -> None:
    live.pop(address, None)
    executor.free(address, length)


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer: the only way to get the address of a read-only buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


class Borrowed:
    """Memory of the program, kept exported as long as it is used.

    As on a Mac it lives for ever if its deallocator refers to the buffer, once the collector has
    found the cycle: the deallocator must still work when the memory ends.
    """

    __slots__ = ("__weakref__", "_deallocator", "_end", "_executor", "_view", "address", "length")
    private = False

    def __init__(
        self,
        executor: Executor,
        source: Any,
        deallocator: Callable[[Pointer, int], object] | None,
    ) -> None:
        self.address = 0
        self._executor = executor
        self._deallocator = deallocator
        self._view = _PyBuffer()
        _get_buffer(source, ctypes.byref(self._view), 0)  # 0: contiguous bytes, writable or not
        self.length = int(self._view.len)
        self.address = self._view.buf or 0
        if not executor.unified:
            self.address = executor.allocate(self.length)
            executor.host_side(self.address, self.length, self.host())

    def host(self) -> int:
        return self._view.buf or 0

    def __del__(self) -> None:
        if not self.address or sys.is_finalizing():
            return
        facts = (self._executor, self.address, self._view, self._deallocator)
        self._end = ended(self, _give_back, *facts)


def _give_back(
    executor: Executor,
    address: int,
    view: _PyBuffer,
    deallocator: Callable[[Pointer, int], object] | None,
) -> None:
    length = int(view.len)
    if not executor.unified:
        executor.free(address, length)
    if deallocator is not None:
        deallocator(Pointer(view.buf or 0, length, None), length)
    _release_buffer(ctypes.byref(view))


class Foreign:
    """Memory of a GPU that other code of the process owns; the host cannot see it."""

    __slots__ = ("__weakref__", "_owner", "address", "length")
    private = True

    def __init__(self, address: int, length: int, owner: object) -> None:
        self.address, self.length, self._owner = address, length, owner

    def host(self) -> int:
        raise ValidationError("the host cannot see memory of the GPU that other code owns")


def copied_bytes(source: Any, length: int | None = None) -> bytes:
    """`length` bytes, or all, of a contiguous buffer, which PyObjC accepts as `const void *`."""
    data = source if type(source) is bytes else memoryview(source).tobytes()
    return data if length is None or len(data) == length else data[:length]


class Lender:
    """An owner of memory that wants to know the views of it."""

    def lend(self, view: ctypes.Array[ctypes.c_ubyte]) -> None:
        raise NotImplementedError


class Pointer:
    """PyObjC's `objc.varlist`: memory whose length the caller states."""

    __slots__ = ("_address", "_limit", "_owner")

    def __init__(self, address: int, limit: int, owner: object) -> None:
        self._address = address
        self._limit = limit
        self._owner = owner

    def as_buffer(self, count: int) -> memoryview:
        """A writable view of `count` bytes that keeps the memory alive."""
        count = integer(count)
        check_view(count, self._limit)
        if count == 0:  # an empty view cannot be cast
            return memoryview(bytearray())
        array = (ctypes.c_ubyte * count).from_address(self._address)
        array.owner = self._owner  # type: ignore[attr-defined]
        if isinstance(self._owner, Lender):
            self._owner.lend(array)
        return memoryview(array).cast("B")

    def part(self, offset: int, limit: int) -> Pointer:
        """A pointer to `limit` of these bytes, `offset` bytes further."""
        check_view(offset + limit, self._limit)
        return Pointer(self._address + offset, limit, self._owner)

    def as_tuple(self, count: int) -> tuple[bytes, ...]:
        view = self.as_buffer(count)
        return tuple(bytes(view[i : i + 1]) for i in range(len(view)))

    # Without a known length PyObjC has neither negative indices nor slices without an end, and an
    # element of `void *` is a byte string of length 1.
    def __getitem__(self, position: int | slice) -> bytes | tuple[bytes, ...]:
        if not isinstance(position, slice):
            first = check_element(integer(position))
            return bytes(self.as_buffer(first + 1)[first:])
        start, stop = check_slice(position)
        return self.as_tuple(stop)[start:]

    def __setitem__(self, position: int | slice, value: Any) -> None:
        """Write one byte string of length 1, or a sequence of as many as the slice has."""
        if isinstance(position, slice):
            start, stop = check_slice(position)
            given = tuple(value)
        else:
            start = check_element(integer(position))
            stop, given = start + 1, (value,)
        check_elements(given, stop - start)
        self.as_buffer(stop)[start:] = b"".join(given)

    def __int__(self) -> int:
        return self._address


INLINE_ALIGNMENT = 64  # more than any MSL type needs


class Arena:
    """Memory for the values of setBytes: filled from the front, cleared as a whole.

    A device with its own memory gets them by a copy at the beginning of the list that uses them, if
    it does not have them from an earlier list: `memory` is then a staging buffer, which no kernel
    uses.
    """

    __slots__ = ("_address", "_device", "_length", "_memory", "_next", "_sent", "_view")

    def __init__(self, memory: Memory, device: Memory | None = None) -> None:
        self._memory = memory
        self._device = device
        self._address = (device or memory).address  # that kernels have
        self._length = memory.length
        self._view = Pointer(memory.host(), memory.length, memory).as_buffer(memory.length)
        self._next = 0
        self._sent = b""  # what the device has

    def put(self, data: bytes) -> int:
        """The address that kernels have for a copy of `data`, or 0 if it does not fit."""
        start = self._next
        end = start + len(data)
        if end > self._length:
            return 0
        self._view[start:end] = data
        self._next = -(-end // INLINE_ALIGNMENT) * INLINE_ALIGNMENT
        return self._address + start

    def upload(self) -> list[Command]:
        """What brings the values to a device with its own memory."""
        if self._device is None:
            return []
        values = bytes(self._view[: self._next])
        if self._sent.startswith(values):
            return []
        self._sent = values
        return [Copy(self._memory.address, self._device.address, len(values))]

    def failed(self) -> None:
        """The list that uses it had an error, and may not have copied the values."""
        self._sent = b""

    def clear(self) -> None:
        self._next = 0
