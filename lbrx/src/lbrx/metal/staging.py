"""Bytes between the host and private memory, through a ring of buffers that the host sees.

Only copies use these buffers, so a device reads and writes them in the host's memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from lbrx.metal.buffer import Block, Buffer, NumpyArray
from lbrx.metal.command_queue import CommandQueue

CHUNK = 4 << 20  # bytes
CHUNKS = 4
_ALIGNMENT = 256
_IN_FLIGHT = 2  # copies to the host at once, fewer than chunks


class Staging:
    """The ring. Chunks are allocated when they are first needed."""

    def __init__(self, queue: CommandQueue, new_chunk: Callable[[int], Block]) -> None:
        self._queue = queue
        self._new_chunk = new_chunk
        self._chunks: deque[Buffer] = deque()  # the one in use is the last
        self._used = CHUNK  # bytes of it
        self._lock = threading.RLock()

    def upload(self, values: NumpyArray, target: Buffer) -> None:
        """Copy an array to a buffer, in the order of the queue's work."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with self._lock:
            for start, size in _parts(data.nbytes):
                piece = self._piece(size)
                np.copyto(piece.unsynchronised(), data[start : start + size])
                self._queue.copy(piece, target.slice(start, size))

    def download(self, source: Buffer) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer, after the queue's work so far. Raises what went wrong with the
        work that wrote it.

        The copy joins the command buffer of that work as long as it is open, so that there is one
        wait, and one error of both. Otherwise the work must have ended well before it is copied.
        """
        if source.size == 0 or not self._queue.is_writing(source.block):
            source.wait()
        result = np.empty(source.size, np.uint8)
        waiting: deque[tuple[int, Buffer, int]] = deque()
        with self._lock:
            for start, size in _parts(source.size):
                piece = self._piece(size)
                part = source if size == source.size else source.slice(start, size)
                ticket = self._queue.copy(part, piece)
                if start + size < source.size:
                    self._queue.commit()
                waiting.append((start, piece, ticket))
                if len(waiting) == _IN_FLIGHT:
                    self._take(*waiting.popleft(), result)
            for each in waiting:
                self._take(*each, result)
        return result

    def _take(self, start: int, piece: Buffer, ticket: int, result: NumpyArray) -> None:
        self._queue.wait(ticket)
        np.copyto(result[start : start + piece.size], piece.unsynchronised())

    def _piece(self, size: int) -> Buffer:
        """Memory that no pending copy uses."""
        if self._used + size > CHUNK:
            if len(self._chunks) < CHUNKS:
                block = self._new_chunk(CHUNK)
                self._chunks.append(Buffer(block, 0, CHUNK, self._queue))
            else:
                self._chunks.rotate(-1)
            self._queue.drain(self._chunks[-1].block.ticket)
            self._used = 0
        self._chunks[-1].block.source = None  # a copy that failed concerns its own part only
        piece = self._chunks[-1].slice(self._used, size)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return piece


def _parts(nbytes: int) -> Iterator[tuple[int, int]]:
    """Offsets and sizes."""
    for start in range(0, nbytes, CHUNK):
        yield start, min(CHUNK, nbytes - start)
