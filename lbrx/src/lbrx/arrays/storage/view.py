"""A part of another storage."""

from __future__ import annotations

from lbrx.arrays.storage.array import Bytes, Storage
from lbrx.errors import ShapeError


class ViewStorage:
    """Bytes offset to offset + nbytes of a storage, which it keeps alive: a tensor in a file."""

    def __init__(self, base: Storage, offset: int, nbytes: int) -> None:
        if min(offset, nbytes) < 0 or offset + nbytes > base.nbytes:
            raise ShapeError(
                f"bytes {offset} to {offset + nbytes} are not within {base!r}: "
                f"stay below {base.nbytes}"
            )
        self.base = base
        self.offset = offset
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the view."""
        return self._nbytes

    @property
    def device(self) -> str:
        """The device of the viewed storage."""
        return self.base.device

    @property
    def address(self) -> int:
        """The address of the view's first byte."""
        return self.base.address + self.offset

    def host(self) -> Bytes:
        """The view's bytes."""
        return self.base.host()[self.offset : self.offset + self._nbytes]

    def __repr__(self) -> str:
        return f"<ViewStorage of {self._nbytes} bytes at {self.offset} of {self.base!r}>"
