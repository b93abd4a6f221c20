"""The context: one device with its queue, shaders and memory, created on first use."""

from __future__ import annotations

import atexit
import gc
import logging
import threading
from collections.abc import Hashable
from typing import Any

import numpy as np

from lbrx import env
from lbrx.device_info import DeviceInfo
from lbrx.errors import DeviceError
from lbrx.memory.heap import Heap, Heaps
from lbrx.memory.pool import Pool
from lbrx.memory.zero_copy import Span, mapping_of, shareable_span
from lbrx.metal import binding
from lbrx.metal.binding import Metal
from lbrx.metal.buffer import (
    Block,
    Buffer,
    HeapBuffer,
    NumpyArray,
    PooledBuffer,
    block_over,
    bytes_at,
)
from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.device import default_device, describe
from lbrx.metal.library import Shaders
from lbrx.metal.mapped_buffers import MappedBuffers, Pages
from lbrx.metal.residency import Residency
from lbrx.metal.staging import Staging
from lbrx.metal.synchronization import DeviceEvent
from lbrx.process import ThisProcess

log = logging.getLogger("lbrx")


class Context:
    """Everything that belongs to one device. Use `context()`, except where two are needed.

    `device` is the MTLDevice, `info` what it can do, `queue` its commands, `shaders` its kernels,
    `pool` and `heaps` its memory.

    >>> gpu = lbrx.metal.context()
    >>> x = gpu.upload(np.arange(4, dtype=np.float32))
    >>> out = gpu.buffer(x.size)
    >>> source = '''
    ... kernel void twice(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
    ...                   uint i [[thread_position_in_grid]]) { out[i] = 2 * x[i]; }
    ... '''
    >>> twice = gpu.shaders.pipeline("twice", "twice", source=source)
    >>> _ = gpu.queue.dispatch(twice, [x, out], grid=(4, 1, 1), group=(4, 1, 1))
    >>> out.array(np.float32).tolist()
    [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(self, device: Any = None, memory_limit: int | None = None) -> None:
        self.device = default_device() if device is None else device
        self.info: DeviceInfo = describe(self.device)
        self.residency = Residency(self.device, self.info.unified_memory and binding.wires_memory())
        self.queue = CommandQueue(self.device.newCommandQueue(), resident=self.residency.members)
        self.shaders = Shaders(self.device, env.cache_dir())
        self.pool: Pool[Block] = Pool(
            self._new_block, _forget, memory_limit or self.info.memory_limit, self._reclaim
        )
        self.heaps: Heaps[Any, Block] = Heaps(self._new_heap, _place, _used)
        if self.info.unified_memory:
            self._host_pool = self.pool
        else:
            self._host_pool = Pool(self._new_host_block, _forget, self.pool.limit, self._reclaim)
            self._staging = Staging(self.queue, self._new_chunk)
            self.queue.download = self._staging.download
        self._mapped = MappedBuffers(self._host_block, self.info.page, self.info.max_buffer)
        self.constants: dict[Hashable, Buffer] = {}  # that are made once, by what they are
        self.closed = False

    # ---- memory ----

    @property
    def _storage_mode(self) -> int:
        """Of memory for tensors."""
        unified = self.info.unified_memory
        return int(Metal.MTLStorageModeShared if unified else Metal.MTLStorageModePrivate)

    @property
    def _options(self) -> int:
        return self._storage_mode << int(Metal.MTLResourceStorageModeShift)

    def buffer(self, size: int, label: str = "buffers") -> Buffer:
        """A buffer from the pool, its contents undefined."""
        if self.closed:
            self._check_open()
        block, length = self.pool.take(size, label)
        return PooledBuffer(self.pool, block, length, size, self.queue, label)

    def host_buffer(self, size: int, label: str = "buffers") -> Buffer:
        """Memory that host and kernels see and no pending work uses, its contents undefined."""
        self._check_open()
        completed = self.queue.completed()
        block, length = self._host_pool.take(size, label, lambda b: b.ticket <= completed)
        block.ticket = 0
        return PooledBuffer(self._host_pool, block, length, size, self.queue, label)

    def heap_buffer(self, size: int, label: str) -> Buffer:
        """A long-lived buffer in a heap, its contents undefined: for caches, weights and what
        replays keep. The pool does not round its size up, and does not cache it when it is freed.
        """
        self._check_open()
        ask = self.device.heapBufferSizeAndAlignWithLength_options_
        length = int(ask(max(size, 1) + binding.spacing(), self._options).size)
        if length > self.info.max_buffer:
            raise self.pool.out_of_memory(size)
        block = self.heaps.take(length)
        if block is None:
            self._reclaim()
            self.pool.trim()
            block = self.heaps.take(length)
        if block is None:
            raise self.pool.out_of_memory(size)
        return HeapBuffer(self.pool, block, size, self.queue, label)

    def upload(self, array: NumpyArray, label: str = "buffers") -> Buffer:
        """A buffer with a copy of an array."""
        if self.info.unified_memory:
            buffer = self.host_buffer(array.nbytes, label)
        else:
            buffer = self.buffer(array.nbytes, label)
        self.write(buffer, array)
        return buffer

    def write(self, buffer: Buffer, array: NumpyArray) -> None:
        """Copy an array to a buffer of its size, after the work that uses the buffer."""
        if not array.nbytes:
            return
        if buffer.block.private:
            self._staging.upload(array, buffer)
        else:
            if buffer.block.ticket:
                self.queue.drain(buffer.block.ticket)
            np.copyto(buffer.unsynchronised().view(array.dtype).reshape(array.shape), array)

    def share(self, array: NumpyArray) -> Buffer | None:
        """A buffer over the array's own memory, or None if the device needs a copy.

        A mapping is shared as a whole, so that the tensors of a file are parts of one buffer or,
        if the file is long, of few.
        """
        self._check_open()
        if not self.info.unified_memory or not array.flags.c_contiguous or not array.nbytes:
            return None
        mapping = mapping_of(array)
        found = self._mapped.part(mapping, array) if mapping is not None else None
        if found is None:
            span = shareable_span(array, self.info.page)
            if span is None or span.length > self.info.max_buffer:
                return None
            block = self._host_block(span, array, bool(array.flags.writeable))
            if block is None:
                return None
            found = block, array.ctypes.data - block.address
        block, offset = found
        return Buffer(block, 0, block.length, self.queue).slice(offset, array.nbytes)

    def over(self, address: int, nbytes: int, owner: object) -> Buffer:
        """A buffer over memory of an NVIDIA GPU that other code made and `owner` keeps alive."""
        self._check_open()
        handle = binding.buffer_over(self.device, address, nbytes, owner)
        return Buffer(Block(handle, address, nbytes, owner, private=True), 0, nbytes, self.queue)

    def _host_block(self, span: Span, owner: object, writable: bool) -> Block | None:
        handle = self.device.newBufferWithBytesNoCopy_length_options_deallocator_(
            bytes_at(span.address, span.length),
            span.length,
            Metal.MTLResourceStorageModeShared,
            None,
        )
        if handle is None:
            return None
        block = Block(handle, span.address, span.length, owner, writable)
        if isinstance(owner, Pages):  # of a file: other arrays are used once
            block.membership = self.residency.join(handle, owner)
        return block

    def _new_block(self, length: int) -> Block | None:
        return self._allocated(length, self._options)

    def _new_host_block(self, length: int) -> Block | None:
        return self._allocated(length, Metal.MTLResourceStorageModeShared)

    def _new_chunk(self, length: int) -> Block:
        block = self._new_host_block(length)
        if block is None:
            raise self.pool.out_of_memory(length)
        return block

    def _allocated(self, length: int, options: int) -> Block | None:
        if length > self.info.max_buffer:
            return None
        handle = self.device.newBufferWithLength_options_(length, options)
        return block_over(handle, length) if handle is not None else None

    def _new_heap(self, length: int) -> Heap[Any] | None:
        if not self.pool.claim(length):
            return None
        descriptor = Metal.MTLHeapDescriptor.alloc().init()
        descriptor.setSize_(length)
        descriptor.setStorageMode_(self._storage_mode)
        # Heaps are untracked by default, and every encoder would need fences. MPS encodes its own
        # encoders, into which no fence can be put, so Metal must track the hazards.
        descriptor.setHazardTrackingMode_(Metal.MTLHazardTrackingModeTracked)
        heap = self.device.newHeapWithDescriptor_(descriptor)
        if heap is None:
            self.pool.disclaim(length)
            return None
        claim = binding.AtDeallocation(self.pool.disclaim, length)
        return Heap(heap, length, (claim, self.residency.join(heap)))

    def _reclaim(self) -> None:
        """Called before a request fails: frees dead cycles, and memory that pending work keeps."""
        gc.collect()
        self.queue.drain()
        self.heaps.trim()

    def trim(self) -> None:
        """Free cached blocks and empty heaps. Pending work keeps its memory until it has ended."""
        self.pool.trim()
        self._host_pool.trim()
        self.heaps.trim()

    # ---- order ----

    def event(self) -> DeviceEvent:
        """A new event, which host and device can signal and wait for."""
        self._check_open()
        return DeviceEvent(self.device, self.queue)

    def close(self) -> None:
        """Wait for pending work, write the pipelines to disk and free cached memory."""
        if self.closed:
            return
        self.closed = True
        try:
            self.queue.finish()
        finally:
            self.shaders.save()
            self.constants.clear()
            self.trim()

    def _check_open(self) -> None:
        if self.closed:
            raise DeviceError("this Metal context is closed: lbrx.metal.context() makes another")


def _forget(block: Block) -> None:
    """The pool's `free`: dropping the last reference frees a block after pending work has ended."""


def _place(heap: Heap[Any], length: int) -> Block | None:
    handle = heap.handle.newBufferWithLength_options_(length, heap.handle.resourceOptions())
    return block_over(handle, length, heap) if handle is not None else None


def _used(heap: Heap[Any]) -> int:
    return int(heap.handle.usedSize())


class _Process:
    """The context of this process."""

    lock = threading.Lock()
    current: Context | None = None
    owner = 0  # the process that made it


def context() -> Context:
    """The context of the default device, created by the first call."""
    made = _Process.current
    if made is not None and not made.closed and _Process.owner == ThisProcess.id:
        return made
    if made is not None and _Process.owner != ThisProcess.id:
        raise DeviceError(
            "the Metal device of the parent process does not survive a fork: start the process "
            "with multiprocessing's 'spawn' method, or use the device 'cpu' in it"
        )
    with _Process.lock:
        if _Process.current is None or _Process.current.closed:
            _Process.current = Context()
            _Process.owner = ThisProcess.id
            atexit.register(_at_exit, _Process.current)
        return _Process.current


def existing_context() -> Context | None:
    """The context if one is open; never creates one."""
    made = _Process.current
    return made if made is not None and not made.closed else None


def _at_exit(made: Context) -> None:
    if _Process.owner != ThisProcess.id:
        return
    try:
        made.close()
    except DeviceError as problem:
        log.error("work failed that was not waited for: %s", problem)
