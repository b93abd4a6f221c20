"""When a device may use host memory without a copy: Metal accepts complete pages only."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class Span:
    """Complete pages of the host."""

    address: int
    length: int


def page_span(address: int, nbytes: int, page: int = PAGE) -> Span:
    """The smallest run of complete pages that contains the bytes."""
    start = address // page * page
    end = -(-(address + nbytes) // page) * page
    return Span(start, end - start)


def mapping_of(array: npt.NDArray[np.generic]) -> mmap.mmap | None:
    """The mapped file that contains an array, if any."""
    *_, root = _bases(array)
    return root if isinstance(root, mmap.mmap) else None


def _bases(array: npt.NDArray[np.generic]) -> Iterator[object]:
    """The array and the chain of objects that it is a view of."""
    base: object = array
    while base is not None:
        yield base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)


def mapping_span(mapping: mmap.mmap) -> Span:
    """The pages of a mapping. It starts on a page, and its last page is mapped completely."""
    view = np.frombuffer(mapping, np.uint8)
    return page_span(view.ctypes.data, len(view))


def _owned(array: npt.NDArray[np.generic]) -> tuple[int, int]:
    """Start and end address of the memory that belongs to the array or to its base."""
    if (mapping := mapping_of(array)) is not None:
        span = mapping_span(mapping)
        return span.address, span.address + span.length
    *_, root = (base for base in _bases(array) if isinstance(base, np.ndarray))
    return root.ctypes.data, root.ctypes.data + root.nbytes


def shareable_span(array: npt.NDArray[np.generic], page: int = PAGE) -> Span | None:
    """The pages of an array if a device can share them; None if it needs a copy.

    Every page must belong completely to the array or its base. A part of a mapping or of an
    allocation with a margin qualifies; an ordinary array, which starts within a page, does not.

    >>> from lbrx.memory.zero_copy import shareable_span
    >>> shareable_span(lbrx.empty_aligned((1000, 1000))) is not None
    True
    >>> shareable_span(np.ones(10)[1:]) is None
    True
    """
    if not array.flags.c_contiguous or array.nbytes == 0:
        return None
    span = page_span(array.ctypes.data, array.nbytes, page)
    start, end = _owned(array)
    return span if start <= span.address and span.address + span.length <= end else None
