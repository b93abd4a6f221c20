"""Buffers over mapped files: one over a mapping, or several where it is long.

Indirect commands keep 32 bits of a buffer's offset on Apple's GPUs, and a buffer has a longest
length. Over a long mapping there are therefore views, each below 4 GiB, that overlap: what is not
longer than the overlap lies within one of them wherever it starts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from mmap import mmap

import numpy as np
import numpy.typing as npt

from lbrx.arrays.storage.mapped import FileMapping
from lbrx.memory.zero_copy import Span, mapping_span, page_span
from lbrx.metal.buffer import Block

LONGEST = (4 << 30) - (16 << 10)  # bytes of a view
OVERLAP = 1 << 30

Bytes = npt.NDArray[np.uint8]


class Pages:
    """The memory of a mapping, in complete pages of the device."""

    __slots__ = ("__weakref__", "first", "mapping", "span", "writable")

    def __init__(self, mapping: mmap, page: int) -> None:
        span = mapping_span(mapping)
        memory, before = np.frombuffer(mapping, np.uint8), 0
        if isinstance(mapping, FileMapping) and (span.address | span.length) % page:
            memory, before = mapping.placed(page)  # of a device with larger pages than the host
        self.mapping = (mapping, memory)  # kept alive
        self.span = page_span(memory.ctypes.data, len(memory))
        self.first = memory.ctypes.data + before  # the address of the mapping's first byte
        self.writable = bool(memory.flags.writeable)

    def complete(self, page: int) -> bool:
        """Whether a device with pages of this size can share it."""
        return not (self.span.address | self.span.length) % page


def view_over(whole: Span, part: Span, longest: int, overlap: int) -> Span | None:
    """The view of a mapping that contains a part of it; None if none does.

    >>> from lbrx.memory.zero_copy import Span
    >>> from lbrx.metal.mapped_buffers import view_over
    >>> view_over(Span(0, 100), Span(65, 10), longest=40, overlap=10)
    Span(address=60, length=40)
    """
    if whole.length <= longest:
        return whole
    step = longest - overlap
    start = whole.address + (part.address - whole.address) // step * step
    view = Span(start, min(longest, whole.address + whole.length - start))
    return view if part.address + part.length <= view.address + view.length else None


class MappedBuffers:
    """The blocks of a device over mappings, each made once and kept by those who use it."""

    def __init__(
        self, make: Callable[[Span, object, bool], Block | None], page: int, max_buffer: int
    ) -> None:
        self._make = make
        self._page = page
        self._max_buffer = max_buffer
        self._longest = min(LONGEST, max_buffer // page * page)
        self._overlap = min(OVERLAP, self._longest // 4 // page * page)
        self._lock = threading.Lock()
        # Python reuses an id only after the object is gone; pages keep their mapping alive.
        self._pages: weakref.WeakValueDictionary[int, Pages] = weakref.WeakValueDictionary()
        self._blocks: weakref.WeakValueDictionary[tuple[int, Span], Block]
        self._blocks = weakref.WeakValueDictionary()

    def part(self, mapping: mmap, array: npt.NDArray[np.generic]) -> tuple[Block, int] | None:
        """The block with the memory of an array in a mapping, and its offset there; None if no
        view contains it, or it is not in complete pages of the device."""
        with self._lock:
            pages = self._pages.get(id(mapping))
            if pages is None:
                pages = self._pages[id(mapping)] = Pages(mapping, self._page)
            if not pages.complete(self._page):
                return None
            address = pages.first + array.ctypes.data - mapping_span(mapping).address
            wanted = page_span(address, array.nbytes, self._page)
            view = view_over(pages.span, wanted, self._longest, self._overlap)
            if view is None:  # longer than the overlap: a buffer of its own
                if wanted.length > self._max_buffer:
                    return None
                view = wanted
            block = self._blocks.get((id(mapping), view)) or self._new(pages, view)
            if block is None:
                return None
            self._blocks[id(mapping), view] = block
            return block, address - view.address

    def _new(self, pages: Pages, view: Span) -> Block | None:
        block = self._make(view, pages, pages.writable)
        mapping = pages.mapping[0]
        if block is not None and isinstance(mapping, FileMapping):
            block.mapping = mapping
        return block
