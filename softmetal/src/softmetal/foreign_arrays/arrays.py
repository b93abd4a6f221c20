"""Arrays as kernels take and give them: numpy's, DLPack's, buffers' and plain numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from softmetal.api.buffer import MTLBuffer
from softmetal.errors import SoftmetalError
from softmetal.foreign_arrays import dlpack, element_types
from softmetal.foreign_arrays.element_types import ElementType


@dataclass(frozen=True, slots=True)
class Strided:
    """Elements in memory of the host; strides are in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: ElementType

    @property
    def is_contiguous(self) -> bool:
        return self.strides == contiguous(self.shape) or prod(self.shape) < 2

    def as_it_is(self) -> tuple[bytes, int]:
        """The memory from the lowest to the highest element, and the offset of the first one."""
        if not prod(self.shape):
            return b"", 0
        steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(min(step, 0) for step in steps) * self.kind.size
        high = (sum(max(step, 0) for step in steps) + 1) * self.kind.size
        return ctypes.string_at(self.address + low, high - low), -low

    def row_contiguous(self) -> bytes:
        """The bytes of the elements in the order of their indices."""
        if self.is_contiguous:
            return ctypes.string_at(self.address, prod(self.shape) * self.kind.size)
        return b"".join(self._rows(0, self.address))

    def _rows(self, axis: int, address: int) -> Iterator[bytes]:
        size, rest = self.kind.size, self.shape[axis:]
        if prod(rest) < 2 or self.strides[axis:] == contiguous(rest):
            yield ctypes.string_at(address, prod(rest) * size)
            return
        for index in range(self.shape[axis]):
            yield from self._rows(axis + 1, address + index * self.strides[axis] * size)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array without gaps, whose last axis is the innermost."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@contextmanager
def reading(value: Any) -> Iterator[Strided]:
    """The elements of an array or number, as long as the block runs. Raises SoftmetalError."""
    if isinstance(value, (bool, int, float)):
        name = {bool: "bool", int: "int32", float: "float32"}[type(value)]
        kind = element_types.BY_NAME[name]
        data = ctypes.create_string_buffer(kind.pack(value))
        yield Strided(ctypes.addressof(data), (), (), kind)
    elif hasattr(value, "__array_interface__") and hasattr(value, "ctypes"):
        yield _numpy(value)  # numpy's scalars have no `ctypes`: their memory is a temporary array's
    elif hasattr(value, "__dlpack__"):
        taken = dlpack.Taken(value)
        try:
            strides = contiguous(taken.shape) if taken.strides is None else taken.strides
            yield Strided(taken.address, taken.shape, strides, taken.kind)
        finally:
            taken.release()
    else:
        with _buffer(value) as view:
            data = (ctypes.c_char * max(view.nbytes, 1)).from_buffer_copy(view.tobytes() or b"\0")
            shape = tuple(view.shape or ())
            yield Strided(ctypes.addressof(data), shape, contiguous(shape), _format(view))


def _numpy(array: Any) -> Strided:
    if array.dtype.byteorder == ">":
        raise SoftmetalError("big-endian elements are not supported: convert them with astype")
    interface = array.__array_interface__
    kind = element_types.named(array.dtype)
    shape = tuple(interface["shape"])
    steps = interface.get("strides")
    strides = contiguous(shape) if steps is None else tuple(step // kind.size for step in steps)
    return Strided(interface["data"][0], shape, strides, kind)


def _buffer(value: Any) -> memoryview:
    try:
        return memoryview(value)
    except TypeError:
        raise SoftmetalError(
            f"{type(value).__name__} is not an array: give one with DLPack or the buffer protocol, "
            "or a number"
        ) from None


def _format(view: memoryview) -> ElementType:
    code = {"l": "q", "L": "Q"}.get(view.format.lstrip("@=<"), view.format.lstrip("@=<"))
    for kind in element_types.BY_NAME.values():
        if kind.format == code:
            return kind
    raise SoftmetalError(f"a buffer of format {view.format!r} is not supported")


class Array:
    """A result in a buffer of the device. numpy.asarray, torch.from_dlpack and others take it
    without a copy."""

    def __init__(self, buffer: MTLBuffer, shape: Sequence[int], kind: ElementType) -> None:
        self._buffer = buffer
        self._kind = kind
        self.shape = tuple(shape)
        self._view = buffer.contents().as_buffer(max(self.nbytes, 1))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))

    @property
    def dtype(self) -> str:
        return self._kind.name

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self._kind.size

    def tolist(self) -> Any:
        """The elements as nested lists, a number for an array without axes."""
        values: list[Any] = self._kind.unpack(self._view[: self.nbytes])
        if not self.shape:
            return values[0]
        for side in reversed(self.shape[1:]):
            count = len(values) // side if side else prod(self.shape[:-1])
            values = [values[i * side : (i + 1) * side] for i in range(count)]
        return values

    @property
    def __array_interface__(self) -> dict[str, Any]:
        kind = self._kind
        if kind.code == element_types.BFLOAT:
            raise AttributeError("numpy has no bfloat16: use DLPack or tolist()")
        letter = {"bool": "b", "uint": "u", "int": "i", "float": "f"}[
            kind.name.rstrip("0123456789")
        ]
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"{'|' if kind.size == 1 else '<'}{letter}{kind.size}",
            "data": (self._address, False),
        }

    def __dlpack__(self, **_: Any) -> object:
        return dlpack.capsule(self._address, self.shape, self._kind, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.HOST, 0

    def __repr__(self) -> str:
        return f"<softmetal array {self.dtype}{list(self.shape)}>"
