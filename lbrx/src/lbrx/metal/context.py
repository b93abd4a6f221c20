"""The context: one device with its queue, shaders and memory, created on first use."""

from __future__ import annotations

import atexit
import gc
import logging
import threading
import weakref
from typing import Any

import numpy as np

from lbrx import env
from lbrx.device_info import DeviceInfo
from lbrx.errors import DeviceError
from lbrx.memory.heap import Heap, Heaps
from lbrx.memory.pool import Pool
from lbrx.memory.zero_copy import Span, mapping_of, mapping_span, shareable_span
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
from lbrx.metal.commands import recorder
from lbrx.metal.device import default_device, describe
from lbrx.metal.library import Shaders
from lbrx.metal.staging import Staging
from lbrx.metal.synchronization import DeviceEvent
from lbrx.metal.watching import unrepeatable, watcher
from lbrx.process import ThisProcess
from lbrx.storage.mapped import FileMapping

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
        self.queue = CommandQueue(self.device.newCommandQueue())
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
        self._mappings: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()
        self._importing = threading.Lock()
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
        made = PooledBuffer(self.pool, block, length, size, self.queue, label)
        told, recorded = watcher(), recorder()
        if told is not None:
            told.allocated(made, label)
        if recorded is not None:
            recorded.taken.add(id(block))
        return made

    def host_buffer(self, size: int, label: str = "buffers") -> Buffer:
        """Memory that host and kernels see and no pending work uses, its contents undefined. A
        replay does not move it."""
        self._check_open()
        unrepeatable()
        completed = self.queue.completed()
        block, length = self._host_pool.take(size, label, lambda b: b.ticket <= completed)
        block.ticket = 0
        return PooledBuffer(self._host_pool, block, length, size, self.queue, label)

    def heap_buffer(self, size: int, label: str) -> Buffer:
        """A long-lived buffer in a heap, its contents undefined: for caches, weights and what
        replays keep. The pool does not round its size up, and does not cache it when it is freed.
        """
        self._check_open()
        unrepeatable()
        ask = self.device.heapBufferSizeAndAlignWithLength_options_
        length = int(ask(max(size, 1), self._options).size)
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
            if (recorded := recorder()) is not None:  # memory of the commands that it records
                recorded.taken.add(id(buffer.block))
        else:
            buffer = self.buffer(array.nbytes, label)
        self.write(buffer, array)
        return buffer

    def write(self, buffer: Buffer, array: NumpyArray) -> None:
        """Copy an array to a buffer of its size, after the work that uses the buffer."""
        unrepeatable()
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

        A mapping is shared as a whole, so that the tensors of a file are parts of one buffer.
        """
        self._check_open()
        unrepeatable()
        span = shareable_span(array, self.info.page) if self.info.unified_memory else None
        if span is None:
            return None
        mapping = mapping_of(array)
        block = self._mapped(mapping, array) if mapping is not None else None
        if block is None and span.length <= self.info.max_buffer:
            block = self._host_block(span, array)
        if block is None:
            return None
        whole = Buffer(block, 0, block.length, self.queue)
        return whole.slice(array.ctypes.data - block.address, array.nbytes)

    def over(self, address: int, nbytes: int, owner: object) -> Buffer:
        """A buffer over memory of an NVIDIA GPU that other code made and `owner` keeps alive."""
        self._check_open()
        unrepeatable()
        handle = binding.buffer_over(self.device, address, nbytes, owner)
        return Buffer(Block(handle, address, nbytes, owner, private=True), 0, nbytes, self.queue)

    def _mapped(self, mapping: Any, array: NumpyArray) -> Block | None:
        """The block over a whole mapping, created once; None if it exceeds the longest buffer or
        is not in complete pages of the device."""
        with self._importing:
            block = self._mappings.get(id(mapping))
            # Python reuses an id only after the object is gone; a block keeps its mapping alive.
            if block is None:
                span = mapping_span(mapping)
                complete = not (span.address | span.length) % self.info.page
                if span.length > self.info.max_buffer or not complete:
                    return None
                block = self._host_block(span, array)
                if block is not None:
                    self._mappings[id(mapping)] = block
            return block

    def _host_block(self, span: Span, owner: NumpyArray) -> Block | None:
        handle = self.device.newBufferWithBytesNoCopy_length_options_deallocator_(
            bytes_at(span.address, span.length),
            span.length,
            Metal.MTLResourceStorageModeShared,
            None,
        )
        if handle is None:
            return None
        block = Block(handle, span.address, span.length, owner, bool(owner.flags.writeable))
        mapping = mapping_of(owner)
        block.mapping = mapping if isinstance(mapping, FileMapping) else None
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
        return Heap(heap, length, self.pool.disclaim)

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
