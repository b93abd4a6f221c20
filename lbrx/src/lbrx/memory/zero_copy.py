"""When the device may use the host's own memory: Apple's devices take whole pages only."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
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
    """The mapping that an array lives in, if it does."""
    *_, root = _bases(array)
    return root if isinstance(root, mmap.mmap) else None


def _bases(array: npt.NDArray[np.generic]) -> Iterator[object]:
    """The array, what it is a view of, what that is a view of, and so on."""
    base: object = array
    while base is not None:
        yield base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)


def mapping_span(mapping: mmap.mmap) -> Span:
    """All of a mapping: it starts on a page, and its last page is there to its end."""
    view = np.frombuffer(mapping, np.uint8)
    return page_span(view.ctypes.data, len(view))


def _owned(array: npt.NDArray[np.generic]) -> tuple[int, int]:
    """From where to where memory is known to belong to what the array is a view of."""
    if (mapping := mapping_of(array)) is not None:
        span = mapping_span(mapping)
        return span.address, span.address + span.length
    *_, root = (base for base in _bases(array) if isinstance(base, np.ndarray))
    return root.ctypes.data, root.ctypes.data + root.nbytes


def shareable_span(array: npt.NDArray[np.generic], page: int = PAGE) -> Span | None:
    """The pages of an array that can be used where they are; None where a copy is needed.

    All of each page must belong to the array or to what it is a view of: a part of a mapping or of
    memory with a margin will do, an array somewhere in the heap will not.
    """
    if not array.flags.c_contiguous or array.nbytes == 0:
        return None
    span = page_span(array.ctypes.data, array.nbytes, page)
    start, end = _owned(array)
    return span if start <= span.address and span.address + span.length <= end else None
