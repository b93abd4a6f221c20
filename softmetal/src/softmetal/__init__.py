"""The Metal compute API in software, under the names of PyObjC's `Metal` module.

`install()` makes `import Metal` import this package. Names are loaded at their first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from softmetal.errors import SoftmetalError

# The module that defines each public name; enumerations come from softmetal.api.enums.
_PLACES = {
    "archive": ("MTLBinaryArchive", "MTLBinaryArchiveDescriptor"),
    "arguments": ("MTLArgumentDescriptor", "MTLArgumentEncoder"),
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
    "foundation": (
        "NSArray",
        "NSData",
        "NSDictionary",
        "NSError",
        "NSMakeRange",
        "NSNumber",
        "NSObject",
        "NSRange",
        "NSString",
        "NSURL",
    ),
}
_HOME = {name: module for module, names in _PLACES.items() for name in names}

_STAND_INS = {
    "Metal": "softmetal",
    "MetalPerformanceShaders": "softmetal.mps",
    "Foundation": "softmetal.api.foundation",
    "Cocoa": "softmetal.api.foundation",
    "libdispatch": "softmetal.api.libdispatch",
    "objc": "softmetal.api.objc",
}


def _enumerations() -> list[str]:
    enums = import_module("softmetal.api.enums")
    return sorted(name for name in vars(enums) if name.startswith("MTL"))


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__all__":  # computed when it is asked for: only `import *` needs all constants
        value = ["checking", "declare_extent", "install", *sorted(_HOME), *_enumerations()]
    elif name == "checking":
        from softmetal.checks import checking as value
    elif name == "declare_extent":
        from softmetal.api.extents import declare_extent as value
    elif name in _HOME:
        if "bridge" in import_module("softmetal.env").strict():
            bridge = import_module("softmetal.bridge")
            bridge.install()
            bridge.check_name(name)
            if name in globals():  # one of the functions that the bridge judges
                return globals()[name]
        value = getattr(import_module(f"softmetal.api.{_HOME[name]}"), name)
    elif name.startswith("MPS") and name in (mps := import_module("softmetal.mps")).__all__:
        value = getattr(mps, name)  # PyObjC finds every class of the process in every module
    elif name.startswith("MTL"):
        try:
            value = getattr(import_module("softmetal.api.enums"), name)
        except AttributeError:
            why = import_module("softmetal.api.missing").reason(name)
            raise AttributeError(f"softmetal has no {name}: {why}") from None
    else:
        raise AttributeError(f"module 'softmetal' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), "__all__", "checking", "declare_extent", *_HOME, *_enumerations()})


def install(*, force: bool = False) -> None:
    """Make later imports of Metal, MetalPerformanceShaders, Foundation, Cocoa, libdispatch and objc
    find softmetal instead of PyObjC.

    Raises SoftmetalError on macOS, which has the real modules, unless `force` is true.
    """
    if sys.platform == "darwin" and not force:
        raise SoftmetalError(
            "on macOS `import Metal` finds Apple's module: "
            "call softmetal.install(force=True) to use the software device instead"
        )
    for name, module in _STAND_INS.items():
        sys.modules[name] = import_module(module)
