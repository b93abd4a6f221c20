"""Metal's plain structures, with PyObjC's behaviour: mutable, iterable, equal to sequences."""

from __future__ import annotations

from operator import index
from typing import Any, ClassVar, SupportsFloat, SupportsIndex

Number = SupportsIndex | SupportsFloat  # numpy's scalars are either


def integer(value: Any) -> int:
    """An argument of an integer type as PyObjC converts it: any number, truncated towards zero."""
    try:
        return index(value)
    except TypeError:
        if isinstance(value, str | bytes | bytearray):
            raise
        return int(value)


class Struct(list[int]):
    """A fixed list of integers with named fields. A list is the fastest to unpack."""

    __slots__ = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: Number, **named: Number) -> None:
        if not named and len(values) == len(self.fields):
            super().__init__(map(integer, values))
            return
        if len(values) > len(self.fields) or not named.keys() <= set(self.fields[len(values) :]):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self.fields)}")
        given = dict(zip(self.fields, values, strict=False)) | named
        super().__init__(integer(given.get(name, 0)) for name in self.fields)

    def __init_subclass__(cls) -> None:
        for position, name in enumerate(cls.fields):
            setattr(cls, name, _field(position))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | tuple) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        pairs = zip(self.fields, self, strict=True)
        values = " ".join(f"{name}={value}" for name, value in pairs)
        return f"<Metal.{type(self).__name__} {values}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")


def _field(position: int) -> property:
    def get(self: Struct) -> int:
        return self[position]

    def put(self: Struct, value: Number) -> None:
        self[position] = integer(value)

    return property(get, put)


class MTLSize(Struct):
    __slots__ = ()
    fields = ("width", "height", "depth")

    # Programs make two for every dispatch: this is twice as fast as Struct's constructor.
    def __init__(self, width: Number = 0, height: Number = 0, depth: Number = 0) -> None:
        if type(width) is type(height) is type(depth) is int:
            self[:] = (width, height, depth)
        else:
            self[:] = (integer(width), integer(height), integer(depth))


class MTLOrigin(Struct):
    __slots__ = ()
    fields = ("x", "y", "z")


class MTLSizeAndAlign(Struct):
    __slots__ = ()
    fields = ("size", "align")


class MTLIndirectCommandBufferExecutionRange(Struct):
    __slots__ = ()
    fields = ("location", "length")


class MTLResourceID(Struct):
    __slots__ = ()
    fields = ("_impl",)


class NSRange(Struct):
    __slots__ = ()
    fields = ("location", "length")


MTLSizeMake = MTLSize
MTLOriginMake = MTLOrigin
MTLIndirectCommandBufferExecutionRangeMake = MTLIndirectCommandBufferExecutionRange
NSMakeRange = NSRange


class MTLRegion:
    """An origin and a size."""

    __slots__ = ("origin", "size")

    def __init__(self, origin: MTLOrigin | None = None, size: MTLSize | None = None) -> None:
        self.origin = origin or MTLOrigin(0, 0, 0)
        self.size = size or MTLSize(0, 0, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MTLRegion) and (self.origin, self.size) == (
            other.origin,
            other.size,
        )

    __hash__ = None  # type: ignore[assignment]


def MTLRegionMake1D(x: int, width: int) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, 0, 0), MTLSize(width, 1, 1))


def MTLRegionMake2D(x: int, y: int, width: int, height: int) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, 0), MTLSize(width, height, 1))


def MTLRegionMake3D(x: int, y: int, z: int, width: int, height: int, depth: int) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, z), MTLSize(width, height, depth))
