"""When the device may use the host's own memory: Apple's devices take whole pages only."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class Span:
    """Whole pages of the host's, and where in them the bytes that were asked for start."""

    address: int
    length: int
    offset: int


def page_span(address: int, nbytes: int, page: int = PAGE) -> Span:
    """The fewest whole pages that hold the bytes."""
    start = address // page * page
    end = -(-(address + nbytes) // page) * page
    return Span(start, end - start, address - start)


def mapping_of(array: npt.NDArray[np.generic]) -> mmap.mmap | None:
    """The mapping that an array lives in, of a file or of our own aligned memory."""
    base: object = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base


def mapping_span(mapping: mmap.mmap) -> Span:
    """All of a mapping: it starts on a page, and its last page is there to its end."""
    view = np.frombuffer(mapping, np.uint8)
    return page_span(view.ctypes.data, len(view))


def shareable_span(array: npt.NDArray[np.generic], page: int = PAGE) -> Span | None:
    """The pages of an array that can be used where they are; None where a copy is needed.

    A mapping owns the pages at its ends, so any part of one will do. Of other memory nobody knows
    who has the rest of a page, so the array must fill its pages.
    """
    if not array.flags.c_contiguous or array.nbytes == 0:
        return None
    span = page_span(array.ctypes.data, array.nbytes, page)
    exact = span.offset == 0 and span.length == array.nbytes
    return span if exact or mapping_of(array) is not None else None
