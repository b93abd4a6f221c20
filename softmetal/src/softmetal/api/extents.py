"""Extents: parts of bound buffers outside which the checking mode `bounds` reports accesses.

A program that divides buffers itself, by a pool or into views, declares them. Without one kernels
may access the whole buffer, as Metal lets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from softmetal.validation import check_buffer, check_buffer_index, check_open, check_range

if TYPE_CHECKING:
    from softmetal.api.buffer import MTLBuffer
    from softmetal.api.encoder import MTLComputeCommandEncoder
    from softmetal.api.icb import MTLIndirectComputeCommand


class Extent(NamedTuple):
    """A bound buffer with the part of it that kernels may access through the binding."""

    buffer: MTLBuffer
    address: int
    length: int


def whole(bound: MTLBuffer | Extent | None) -> MTLBuffer | None:
    """The buffer of a binding."""
    return bound.buffer if isinstance(bound, Extent) else bound


def declare_extent(
    encoder: MTLComputeCommandEncoder | MTLIndirectComputeCommand, index: int, length: int
) -> None:
    """Declare that of the buffer bound at `index` kernels may access `length` bytes from the
    binding's offset on, until another call binds something there.

    Only the checking modes use it: `bounds` reports what is accessed outside these bytes, unless
    another argument has them. For programs that divide buffers themselves, such as a pool that
    rounds sizes up.
    """
    check_open(getattr(encoder, "_ended", False), "declare_extent")
    check_buffer_index(index, len(encoder._bound))
    buffer, address = whole(encoder._bound[index]), encoder._addresses[index]
    check_buffer(buffer, f"declare_extent at index {index}")
    assert buffer is not None
    check_range(0, length, buffer._address + buffer._length - address, "an extent of bytes")
    encoder._bound[index] = Extent(buffer, address, length)
