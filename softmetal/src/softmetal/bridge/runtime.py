"""What PyObjC takes from the Objective-C runtime, and since when macOS has it.

PyObjC has no metadata for plain signatures of classes, so these rows are ours, after Apple's
headers. Properties of descriptors are not listed: their types follow from softmetal's own tables.
"""

from __future__ import annotations

ROWS = """\
MTLBinaryArchiveDescriptor setUrl: v @NSURL?
MTLCaptureManager newCaptureScopeWithCommandQueue: @ @MTLCommandQueue
MTLCaptureManager newCaptureScopeWithDevice: @ @MTLDevice
MTLCaptureManager setDefaultCaptureScope: v @MTLCaptureScope?
MTLCaptureManager startCaptureWithCommandQueue: v @MTLCommandQueue
MTLCaptureManager startCaptureWithDescriptor:error: Z @ o^@
MTLCaptureManager startCaptureWithDevice: v @MTLDevice
MTLCaptureManager startCaptureWithScope: v @MTLCaptureScope
MTLCaptureManager supportsDestination: Z q
MTLCompileOptions setPreprocessorMacros: v @dict?
MTLComputePassDescriptor sampleBufferAttachments @
MTLComputePipelineDescriptor setBinaryArchives: v @list?
MTLComputePipelineDescriptor setComputeFunction: v @MTLFunction?
MTLComputePipelineReflection bindings @
MTLComputePipelineReflection arguments @
MTLFunctionConstantValues setConstantValue:type:atIndex: v ^v Q Q
MTLFunctionConstantValues setConstantValue:type:withName: v ^v Q @str
MTLFunctionConstantValues setConstantValues:type:withRange: v ^v Q {_NSRange=QQ}
MTLHeapDescriptor setCpuCacheMode: v Q
MTLHeapDescriptor setHazardTrackingMode: v Q
MTLHeapDescriptor setStorageMode: v Q
MTLPipelineBufferDescriptorArray objectAtIndexedSubscript: @ Q
MTLPipelineBufferDescriptorArray setObject:atIndexedSubscript: v @ Q
MTLSharedEventListener initWithDispatchQueue: @ @
MPSKernel setOptions: v Q
MPSMatrix initWithBuffer:descriptor: @ @MTLBuffer @MPSMatrixDescriptor
MPSMatrix initWithBuffer:offset:descriptor: @ @MTLBuffer Q @MPSMatrixDescriptor
MPSMatrix initWithDevice:descriptor: @ @MTLDevice @MPSMatrixDescriptor
MPSMatrix synchronizeOnCommandBuffer: v @MTLCommandBuffer
MPSMatrixDescriptor matrixDescriptorWithDimensions:columns:rowBytes:dataType: @ Q Q Q I
MPSMatrixDescriptor matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType: @ Q Q Q Q Q I
MPSMatrixDescriptor matrixDescriptorWithRows:columns:rowBytes:dataType: @ Q Q Q I
MPSMatrixDescriptor rowBytesForColumns:dataType: Q Q I
MPSMatrixDescriptor rowBytesFromColumns:dataType: Q Q I
MPSMatrixMultiplication encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix: v @MTLCommandBuffer @MPSMatrix @MPSMatrix @MPSMatrix
MPSMatrixMultiplication initWithDevice:resultRows:resultColumns:interiorColumns: @ @MTLDevice Q Q Q
MPSMatrixMultiplication initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta: @ @MTLDevice Z Z Q Q Q d d
MPSMatrixMultiplication setBatchSize: v Q
MPSMatrixMultiplication setBatchStart: v Q
NSError errorWithDomain:code:userInfo: @ @str q @dict?
NSURL fileURLWithPath: @ @str
NSURL URLWithString: @ @str
"""  # noqa: E501

# Functions that make structures, by the number of their arguments: all are integers.
FUNCTIONS = {
    "MTLIndirectCommandBufferExecutionRangeMake": 2,
    "MTLOriginMake": 3,
    "MTLRegionMake1D": 2,
    "MTLRegionMake2D": 4,
    "MTLRegionMake3D": 6,
    "MTLSizeMake": 3,
    "NSMakeRange": 2,
}

NEWEST = 26
"""The macOS version in which every selector of the tables exists."""

_RESIDENCY = (
    "addResidencySet:",
    "addResidencySets:count:",
    "removeResidencySet:",
    "removeResidencySets:count:",
    "useResidencySet:",
    "useResidencySets:count:",
)
_REQUIRED = ("requiredThreadsPerThreadgroup", "setRequiredThreadsPerThreadgroup:")
# The first major version of macOS with a selector, where Apple's chips have run earlier ones.
SINCE: dict[str, dict[str, int]] = {
    "MTLBuffer": {"gpuAddress": 13},
    "MTLCommandBuffer": dict.fromkeys(_RESIDENCY, 15),
    "MTLCommandBufferDescriptor": dict.fromkeys(("logState", "setLogState:"), 15),
    "MTLCommandQueue": dict.fromkeys(_RESIDENCY, 15),
    "MTLCommandQueueDescriptor": dict.fromkeys(("logState", "setLogState:"), 15),
    "MTLCompileOptions": {
        **dict.fromkeys(("mathMode", "setMathMode:", "enableLogging", "setEnableLogging:"), 15),
        **dict.fromkeys(("mathFloatingPointFunctions", "setMathFloatingPointFunctions:"), 15),
        **dict.fromkeys(_REQUIRED, 26),
    },
    "MTLComputePipelineDescriptor": {
        **dict.fromkeys(("shaderValidation", "setShaderValidation:"), 15),
        **dict.fromkeys(_REQUIRED, 26),
    },
    "MTLComputePipelineReflection": {"bindings": 13},
    "MTLComputePipelineState": {
        **dict.fromkeys(("reflection", *_REQUIRED), 26),
        **dict.fromkeys(("shaderValidation", "allocatedSize"), 15),
    },
    "MTLIndirectCommandBufferDescriptor": dict.fromkeys(
        (
            "maxKernelThreadgroupMemoryBindCount",
            "setMaxKernelThreadgroupMemoryBindCount:",
        ),
        14,
    ),
    "MTLDevice": {
        "architecture": 14,
        "newLogStateWithDescriptor:error:": 15,
        "newResidencySetWithDescriptor:error:": 15,
        "queryTimestampFrequency": 26,
    },
    "MTLSharedEvent": {"waitUntilSignaledValue:timeoutMS:": 12},
    "MTLSharedEventListener": {"sharedListener": 15},
}
SINCE["Capabilities"] = SINCE["MTLDevice"]  # the part of softmetal's device that never changes


def since(owners: tuple[str, ...], selector: str) -> int:
    """The first macOS version with this selector; 11 for all that are as old as Apple's chips."""
    return next((SINCE[o][selector] for o in owners if selector in SINCE.get(o, {})), 11)
