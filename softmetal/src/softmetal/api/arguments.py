"""MTLArgumentEncoder: writes the members of an argument buffer by their ids."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softmetal import compiler
from softmetal.api import enums
from softmetal.api.buffer import MTLBuffer
from softmetal.api.datatypes import data_size
from softmetal.api.memory import Pointer
from softmetal.api.objects import Descriptor, Explaining, Labelled, number, table
from softmetal.errors import CompileError, ExecutionError, ValidationError

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.library import MTLFunction

_POINTER = 8  # bytes
_KERNEL = "argument_buffer_layout_of_type"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of an id is."""

    offset: int
    size: int
    is_pointer: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """An argument buffer: its size, its alignment, and the place of each id."""

    size: int
    alignment: int
    places: dict[int, Place]


class MTLArgumentDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        dataType=number(enums.MTLDataTypeNone),
        index=number(),
        arrayLength=number(),
        access=number(enums.MTLBindingAccessReadOnly),
        textureType=number(),
        constantBlockAlignment=number(),
    )

    # MTL: +argumentDescriptor
    @classmethod
    def argumentDescriptor(cls) -> MTLArgumentDescriptor:
        return cls()


def described_layout(descriptors: Sequence[MTLArgumentDescriptor]) -> Layout:
    """The layout of members that are given by descriptors, in the order of their indices."""
    places: dict[int, Place] = {}
    end, alignment = 0, _POINTER
    for descriptor in sorted(descriptors, key=lambda d: int(d.index())):
        is_pointer = descriptor.dataType() == enums.MTLDataTypePointer
        size = _POINTER if is_pointer else data_size(descriptor.dataType())
        if size is None:
            raise ValidationError(
                f"MTLDataType {descriptor.dataType()} cannot be in an argument buffer here: give "
                "MTLDataTypePointer, or the type of a scalar, vector or matrix"
            )
        step = min(size, 16)
        alignment = max(alignment, step, descriptor.constantBlockAlignment())
        end = -(-end // step) * step
        for position in range(max(descriptor.arrayLength(), 1)):
            places[descriptor.index() + position] = Place(end, size, is_pointer)
            end += size
    return Layout(-(-end // alignment) * alignment, alignment, places)


def structure_layout(function: MTLFunction, buffer: int) -> Layout:
    """The layout of the structure in a buffer of a kernel, which a small kernel measures."""
    program = function._program
    kind, members = compiler.members_of_buffer(program, function._name, buffer)
    body = "out[0] = sizeof(T); out[1] = alignof(T);"
    for n, member in enumerate(members):
        at = f"((device T*)nullptr)->{member.name}"
        element = f"{at}[0]" if member.is_array else at
        body += f" out[{3 * n + 2}] = __builtin_offsetof(T, {member.name});"
        one = str(_POINTER) if member.is_pointer else f"sizeof({element})"
        number_of = f"sizeof({at}) / ({one})" if member.is_array else "1"
        body += f" out[{3 * n + 3}] = {one}; out[{3 * n + 4}] = {number_of};"
    source = (
        f"{program.source}\nkernel void {_KERNEL}(device ulong* out [[buffer(0)]]) "
        f"{{ using T = {kind}; {body} }}\n"
    )
    measured = _run(function, source, 3 * len(members) + 2)
    if not measured[0]:
        raise ExecutionError(
            "the layout of an argument buffer is not known: this device computes nothing"
        )
    places: dict[int, Place] = {}
    following = 0
    for n, member in enumerate(members):
        offset, size, count = measured[3 * n + 2 : 3 * n + 5]
        first = following if member.identifier < 0 else member.identifier
        for position in range(count):
            place = Place(offset + position * size, size, member.is_pointer)
            places[first + position] = place
        following = first + count
    return Layout(measured[0], measured[1], places)


def _run(function: MTLFunction, source: str, count: int) -> tuple[int, ...]:
    """The numbers that the kernel writes."""
    device = function.device()
    try:
        library = function._library._with_source(source, function._program.options)
    except CompileError as error:
        raise ValidationError(
            "the structure of an argument buffer must have a type that does not depend on a "
            f"template, and members that are values or pointers: {error}"
        ) from None
    kernel = library.newFunctionWithName_(_KERNEL)
    assert kernel is not None
    state, problem = device.newComputePipelineStateWithFunction_error_(kernel, None)
    if state is None:
        raise ExecutionError(f"the layout of an argument buffer is not known: {problem}")
    out = device.newBufferWithLength_options_(8 * count, enums.MTLResourceStorageModeShared)
    if out is None:
        raise ExecutionError("the layout of an argument buffer is not known: no memory is left")
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    encoder.setBuffer_offset_atIndex_(out, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    if (failure := commands.error()) is not None:
        raise ExecutionError(f"the layout of an argument buffer is not known: {failure}")
    return struct.unpack(f"<{count}Q", out.contents().as_buffer(8 * count))


class MTLArgumentEncoder(Labelled, Explaining):
    """Writes pointers and values into a buffer that a kernel reads as a structure.

    The layout is that of the structure in Metal, so encoders and programs that store gpuAddress
    themselves can be mixed.
    """

    __slots__ = ("_buffer", "_device", "_layout", "_start")

    def __init__(self, device: MTLDevice, layout: Layout) -> None:
        super().__init__()
        self._device = device
        self._layout = layout
        self._buffer: MTLBuffer | None = None
        self._start = 0

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -encodedLength
    def encodedLength(self) -> int:
        return self._layout.size

    # MTL: -alignment
    def alignment(self) -> int:
        return self._layout.alignment

    # MTL: -setArgumentBuffer:offset:
    def setArgumentBuffer_offset_(self, buffer: MTLBuffer | None, offset: int) -> None:
        if buffer is not None and not 0 <= offset <= buffer.length() - self._layout.size:
            raise ValidationError(
                f"an argument buffer of {self._layout.size} bytes at offset {offset} does not fit "
                f"into a buffer of {buffer.length()} bytes: give encodedLength() bytes"
            )
        self._buffer, self._start = buffer, offset

    # MTL: -setArgumentBuffer:startOffset:arrayElement:
    def setArgumentBuffer_startOffset_arrayElement_(
        self, buffer: MTLBuffer | None, start: int, element: int
    ) -> None:
        self.setArgumentBuffer_offset_(buffer, start + element * self._layout.size)

    # MTL: -setBuffer:offset:atIndex:
    def setBuffer_offset_atIndex_(self, buffer: MTLBuffer | None, offset: int, index: int) -> None:
        place = self._place(index, True)
        address = 0 if buffer is None else buffer.gpuAddress() + offset
        self._pointer(place).as_buffer(place.size)[:] = struct.pack("<Q", address)

    # MTL: -setBuffers:offsets:withRange:
    def setBuffers_offsets_withRange_(
        self,
        buffers: Sequence[MTLBuffer | None],
        offsets: Sequence[int],
        range_: Sequence[int],
    ) -> None:
        start, count = range_
        for position in range(count):
            self.setBuffer_offset_atIndex_(buffers[position], offsets[position], start + position)

    # MTL: -constantDataAtIndex:
    def constantDataAtIndex_(self, index: int) -> Pointer:
        """The memory of a member that is a value, to write into."""
        return self._pointer(self._place(index, False))

    def _place(self, index: int, is_pointer: bool) -> Place:
        place = self._layout.places.get(index)
        if place is None:
            known = ", ".join(map(str, sorted(self._layout.places)))
            raise ValidationError(f"the argument buffer has no id {index}: it has {known}")
        if place.is_pointer != is_pointer:
            what, call = (
                ("a value", "constantDataAtIndex_")
                if is_pointer
                else ("a buffer", "setBuffer_offset_atIndex_")
            )
            raise ValidationError(f"id {index} of the argument buffer is {what}: use {call}")
        return place

    def _pointer(self, place: Place) -> Pointer:
        if self._buffer is None:
            raise ValidationError("no argument buffer is set: call setArgumentBuffer_offset_ first")
        whole = self._buffer.contents()
        return whole.part(self._start + place.offset, place.size)
