"""The few names of PyObjC's `objc` that Metal programs use."""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from softmetal.api import host
from softmetal.api.memory import Pointer
from softmetal.api.objects import Object

__all__ = [
    "NO",
    "NULL",
    "YES",
    "ProtocolError",
    "autorelease_pool",
    "error",
    "nil",
    "objc_object",
    "protocolNamed",
    "registerMetaDataForSelector",
    "super",
    "varlist",
]

nil = None
NULL = None  # passed for an error that the program ignores; the method still returns a tuple
varlist = Pointer
objc_object = Object
super = builtins.super
YES = True
NO = False


class error(Exception):  # noqa: N801 (PyObjC's name)
    """What PyObjC raises for Objective-C exceptions."""


class ProtocolError(error):
    """A protocol that does not exist."""


@dataclass(frozen=True)
class formal_protocol:  # noqa: N801 (PyObjC's name)
    """A protocol, for `conformsToProtocol_`."""

    __name__: str


PROTOCOLS = frozenset(
    """
    NSObject NSCopying MTLAccelerationStructure MTLBinaryArchive MTLBinding MTLBlitCommandEncoder
    MTLBuffer MTLCaptureScope MTLCommandBuffer MTLCommandEncoder MTLCommandQueue
    MTLComputeCommandEncoder MTLComputePipelineState MTLCounter MTLCounterSampleBuffer MTLCounterSet
    MTLDepthStencilState MTLDevice MTLEvent MTLFence MTLFunction MTLHeap MTLIndirectCommandBuffer
    MTLIndirectComputeCommand MTLLibrary MTLLogState MTLRenderCommandEncoder MTLRenderPipelineState
    MTLResidencySet MTLResource MTLSamplerState MTLSharedEvent MTLTexture
    """.split()
)


def protocolNamed(name: str) -> formal_protocol:
    """The protocol of this name; raises ProtocolError for an unknown one."""
    if name not in PROTOCOLS:
        raise ProtocolError(f"softmetal has no protocol {name!r}: it has those of Metal's compute")
    return formal_protocol(name)


registrations: dict[tuple[str, str], dict[str, Any]] = {}
"""What programs have registered, by class and selector, for `softmetal.bridge`."""


def registerMetaDataForSelector(class_: bytes, selector: bytes, metadata: dict[str, Any]) -> None:
    """Has an effect where calls are judged as PyObjC's bridge does, and on results that are out-
    parameters: otherwise softmetal takes and returns Python objects."""
    registrations[class_.decode(), selector.decode()] = metadata


def returns_argument(selector: str, place: int) -> bool:
    """Whether a program has registered an argument, counted from 0, as one that is returned."""
    metadata = registrations.get(("NSObject", selector), {})
    given = metadata.get("arguments", {}).get(place + 2, {})  # after the object and the selector
    return b"o" in given.get("type_modifier", given.get("type", b"")[:1])


_NOTHING = nullcontext()


def autorelease_pool() -> AbstractContextManager[Any]:
    """Nothing to drain, as Python's references decide lifetimes, except where macOS is played."""
    return host.AutoreleasePool() if host.played() else _NOTHING
