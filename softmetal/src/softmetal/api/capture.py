"""MTLCaptureManager and scopes. Captures are not supported: starting one is an error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from softmetal.api import enums
from softmetal.api.foundation import NSError
from softmetal.api.objects import Descriptor, Labelled, Object, anything, number, table

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.queue import MTLCommandQueue

log = logging.getLogger("softmetal")


class MTLCaptureDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        captureObject=anything(),
        destination=number(enums.MTLCaptureDestinationDeveloperTools),
        outputURL=anything(),
    )


class MTLCaptureScope(Labelled):
    __slots__ = ("_device", "_queue")

    def __init__(self, device: MTLDevice, queue: MTLCommandQueue | None) -> None:
        super().__init__()
        self._device = device
        self._queue = queue

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -commandQueue
    def commandQueue(self) -> MTLCommandQueue | None:
        return self._queue

    # MTL: -beginScope
    def beginScope(self) -> None:
        return None

    # MTL: -endScope
    def endScope(self) -> None:
        return None


class MTLCaptureManager(Object):
    """Keeps the default scope; captures nothing."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope: MTLCaptureScope | None = None

    # MTL: +sharedCaptureManager
    @classmethod
    def sharedCaptureManager(cls) -> MTLCaptureManager:
        return _SHARED

    # MTL: -newCaptureScopeWithDevice:
    def newCaptureScopeWithDevice_(self, device: MTLDevice) -> MTLCaptureScope:
        return MTLCaptureScope(device, None)

    # MTL: -newCaptureScopeWithCommandQueue:
    def newCaptureScopeWithCommandQueue_(self, queue: MTLCommandQueue) -> MTLCaptureScope:
        return MTLCaptureScope(queue.device(), queue)

    # MTL: -defaultCaptureScope
    def defaultCaptureScope(self) -> MTLCaptureScope | None:
        return self._scope

    # MTL: -setDefaultCaptureScope:
    def setDefaultCaptureScope_(self, scope: MTLCaptureScope | None) -> None:
        self._scope = scope

    # MTL: -supportsDestination:
    # DEVIATION: captures are not supported: no destination is available, starting a capture
    # reports an error or logs a note, and scopes have no effect.
    def supportsDestination_(self, destination: int) -> bool:
        return False

    # MTL: -isCapturing
    def isCapturing(self) -> bool:
        return False

    # MTL: -startCaptureWithDescriptor:error:
    def startCaptureWithDescriptor_error_(
        self, descriptor: MTLCaptureDescriptor, error: None
    ) -> tuple[bool, NSError]:
        return False, NSError.described(
            enums.MTLCaptureErrorDomain,
            enums.MTLCaptureErrorNotSupported,
            "softmetal cannot capture GPU traces: use its profiler or a Mac with Xcode",
        )

    # MTL: -startCaptureWithDevice:
    def startCaptureWithDevice_(self, device: MTLDevice) -> None:
        log.warning("softmetal cannot capture GPU traces: startCapture does nothing")

    # MTL: -startCaptureWithCommandQueue:
    def startCaptureWithCommandQueue_(self, queue: MTLCommandQueue) -> None:
        self.startCaptureWithDevice_(queue.device())

    # MTL: -startCaptureWithScope:
    def startCaptureWithScope_(self, scope: MTLCaptureScope) -> None:
        self.startCaptureWithDevice_(scope.device())

    # MTL: -stopCapture
    def stopCapture(self) -> None:
        return None


_SHARED = MTLCaptureManager()
