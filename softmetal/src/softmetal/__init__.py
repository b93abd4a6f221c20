"""The Metal compute API in software, under the names of PyObjC's `Metal` module.

`install()` lets programs that say `import Metal` find it. Names are loaded when first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from softmetal.errors import SoftmetalError

# Where each public name lives; enumerations come from softmetal.api.enums.
_PLACES = {
    "archive": ("MTLBinaryArchive", "MTLBinaryArchiveDescriptor"),
    "buffer": ("MTLBuffer", "MTLResource"),
    "capture": ("MTLCaptureDescriptor", "MTLCaptureManager", "MTLCaptureScope"),
    "counters": (
        "MTLBlitPassDescriptor",
        "MTLBlitPassSampleBufferAttachmentDescriptor",
        "MTLComputePassDescriptor",
        "MTLComputePassSampleBufferAttachmentDescriptor",
        "MTLCounter",
        "MTLCounterSampleBuffer",
        "MTLCounterSampleBufferDescriptor",
        "MTLCounterSet",
    ),
    "capabilities": ("MTLArchitecture",),
    "device": ("MTLCopyAllDevices", "MTLCreateSystemDefaultDevice", "MTLDevice"),
    "encoder": ("MTLBlitCommandEncoder", "MTLCommandEncoder", "MTLComputeCommandEncoder"),
    "event": (
        "MTLEvent",
        "MTLFence",
        "MTLSharedEvent",
        "MTLSharedEventHandle",
        "MTLSharedEventListener",
    ),
    "heap": ("MTLHeap", "MTLHeapDescriptor"),
    "icb": (
        "MTLIndirectCommandBuffer",
        "MTLIndirectCommandBufferDescriptor",
        "MTLIndirectComputeCommand",
    ),
    "library": (
        "MTLCompileOptions",
        "MTLFunction",
        "MTLFunctionConstant",
        "MTLFunctionConstantValues",
        "MTLFunctionDescriptor",
        "MTLLibrary",
    ),
    "log": ("MTLLogState", "MTLLogStateDescriptor"),
    "pipeline": (
        "MTLBinding",
        "MTLComputePipelineDescriptor",
        "MTLComputePipelineReflection",
        "MTLComputePipelineState",
        "MTLPipelineBufferDescriptor",
        "MTLPipelineBufferDescriptorArray",
    ),
    "queue": (
        "MTLCommandBuffer",
        "MTLCommandBufferDescriptor",
        "MTLCommandQueue",
        "MTLCommandQueueDescriptor",
    ),
    "residency": ("MTLResidencySet", "MTLResidencySetDescriptor"),
    "structs": (
        "MTLIndirectCommandBufferExecutionRange",
        "MTLIndirectCommandBufferExecutionRangeMake",
        "MTLOrigin",
        "MTLOriginMake",
        "MTLRegion",
        "MTLRegionMake1D",
        "MTLRegionMake2D",
        "MTLRegionMake3D",
        "MTLResourceID",
        "MTLSize",
        "MTLSizeAndAlign",
        "MTLSizeMake",
    ),
    # PyObjC's Metal re-exports Foundation.
    "foundation": ("NSData", "NSError", "NSMakeRange", "NSRange", "NSURL"),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}

_STAND_INS = {
    "Metal": "softmetal",
    "MetalPerformanceShaders": "softmetal.mps",
    "Foundation": "softmetal.api.foundation",
    "libdispatch": "softmetal.api.libdispatch",
    "objc": "softmetal.api.objc",
}

__all__ = ["checking", "install", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name == "checking":
        from softmetal.checks import checking as value
    elif name in _HOME:
        value = getattr(import_module(f"softmetal.api.{_HOME[name]}"), name)
    elif name.startswith("MTL"):
        try:
            value = getattr(import_module("softmetal.api.enums"), name)
        except AttributeError:
            raise AttributeError(
                f"softmetal has no {name}: it carries the compute part of Metal"
            ) from None
    else:
        raise AttributeError(f"module 'softmetal' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    enums = import_module("softmetal.api.enums")
    return sorted({*globals(), *_HOME, *(name for name in vars(enums) if name.startswith("MTL"))})


def install(*, force: bool = False) -> None:
    """Put softmetal in the place of PyObjC's Metal, MetalPerformanceShaders, Foundation,
    libdispatch and objc for the imports that follow.

    Refused on macOS, where the real ones are, unless forced.
    """
    if sys.platform == "darwin" and not force:
        raise SoftmetalError(
            "this is a Mac: `import Metal` finds Apple's own. "
            "Call softmetal.install(force=True) to use the software device all the same"
        )
    for name, module in _STAND_INS.items():
        sys.modules[name] = import_module(module)
