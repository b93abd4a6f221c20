"""Counters: the device's clock, sampled into a counter sample buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softmetal.api import enums
from softmetal.api.foundation import NSData
from softmetal.api.memory import Memory, Pointer
from softmetal.api.objects import Allocated, Descriptor, Labelled, Object, anything, number, table
from softmetal.types import Timestamp
from softmetal.validation import check_range

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice

SAMPLE_BYTES = 8  # MTLCounterResultTimestamp


class MTLCounter(Object):
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    # MTL: -name
    def name(self) -> str:
        return self._name


class MTLCounterSet(Object):
    __slots__ = ()

    # MTL: -name
    def name(self) -> str:
        return enums.MTLCommonCounterSetTimestamp

    # MTL: -counters
    def counters(self) -> list[MTLCounter]:
        return [MTLCounter(enums.MTLCommonCounterTimestamp)]


class MTLCounterSampleBufferDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        counterSet=anything(),
        label=anything(""),
        storageMode=number(enums.MTLStorageModeShared),
        sampleCount=number(),
    )


class MTLCounterSampleBuffer(Labelled):
    """Timestamps in nanoseconds."""

    __slots__ = ("_count", "_device", "_memory")

    def __init__(self, device: MTLDevice, descriptor: MTLCounterSampleBufferDescriptor) -> None:
        super().__init__()
        self._label = descriptor.label()
        self._device = device
        self._count: int = descriptor.sampleCount()
        self._memory = Memory(device._executor, self._count * SAMPLE_BYTES, device._live)

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -sampleCount
    def sampleCount(self) -> int:
        return self._count

    # MTL: -resolveCounterRange:
    def resolveCounterRange_(self, range_: Sequence[int]) -> NSData:
        start, count = range_
        check_range(start, count, self._count, "samples")
        view = Pointer(self._memory.host(), self._memory.length, self._memory).as_buffer(
            self._memory.length
        )
        return NSData(view[start * SAMPLE_BYTES : (start + count) * SAMPLE_BYTES])

    def _sample(self, index: int) -> Timestamp:
        check_range(index, 1, self._count, "samples")
        return Timestamp(self._memory.address + index * SAMPLE_BYTES)


class _SampleAttachment(Descriptor):
    """Where a pass stores the clock when it starts and ends."""

    __slots__ = ()
    properties = table(
        sampleBuffer=anything(),
        startOfEncoderSampleIndex=number(enums.MTLCounterDontSample),
        endOfEncoderSampleIndex=number(enums.MTLCounterDontSample),
    )


class MTLComputePassSampleBufferAttachmentDescriptor(_SampleAttachment):
    __slots__ = ()


class MTLBlitPassSampleBufferAttachmentDescriptor(_SampleAttachment):
    __slots__ = ()


class _SampleAttachments(Allocated):
    """Attachments by index."""

    __slots__ = ("_items", "_kind")

    def __init__(self, kind: type[_SampleAttachment] = _SampleAttachment) -> None:
        self._kind = kind
        self._items: dict[int, _SampleAttachment] = {}

    # MTL: -objectAtIndexedSubscript:
    def objectAtIndexedSubscript_(self, index: int) -> _SampleAttachment:
        return self._items.setdefault(index, self._kind())

    # MTL: -setObject:atIndexedSubscript:
    def setObject_atIndexedSubscript_(self, item: _SampleAttachment, index: int) -> None:
        self._items[index] = item

    __getitem__ = objectAtIndexedSubscript_

    def _samples(self, which: str) -> list[Timestamp]:
        """The commands for the start or the end of a pass."""
        samples = []
        for item in self._items.values():
            buffer, index = item.sampleBuffer(), getattr(item, f"{which}OfEncoderSampleIndex")()
            if buffer is not None and index != enums.MTLCounterDontSample:
                samples.append(buffer._sample(index))
        return samples


class _PassDescriptor(Descriptor):
    __slots__ = ("_attachments",)
    _attachment: type[_SampleAttachment] = _SampleAttachment

    def __init__(self) -> None:
        super().__init__()
        self._attachments = _SampleAttachments(self._attachment)

    # MTL: -sampleBufferAttachments
    def sampleBufferAttachments(self) -> _SampleAttachments:
        return self._attachments


class MTLComputePassDescriptor(_PassDescriptor):
    __slots__ = ()
    properties = table(dispatchType=number(enums.MTLDispatchTypeSerial))
    _attachment = MTLComputePassSampleBufferAttachmentDescriptor

    # MTL: +computePassDescriptor
    @classmethod
    def computePassDescriptor(cls) -> MTLComputePassDescriptor:
        return cls()


class MTLBlitPassDescriptor(_PassDescriptor):
    __slots__ = ()
    _attachment = MTLBlitPassSampleBufferAttachmentDescriptor

    # MTL: +blitPassDescriptor
    @classmethod
    def blitPassDescriptor(cls) -> MTLBlitPassDescriptor:
        return cls()
