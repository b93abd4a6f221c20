"""The selectors that lbrx calls, by the version of macOS that introduced them (Apple's headers).

lbrx runs on macOS 14 and later. What is newer is looked for with getattr, and its absence is tested
with SOFTMETAL_MACOS=14.
"""

from __future__ import annotations

OLDEST = (14, 0)  # that lbrx claims

_BY_VERSION = {
    (10, 0): """alloc init localizedDescription fileURLWithPath:""",
    (10, 11): """
        access blitCommandEncoder bufferDataSize bufferDataType commandBuffer commit computeCommandEncoder contents
        copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size: device endEncoding error functionNames index
        maxThreadsPerThreadgroup
        maxTotalThreadsPerThreadgroup name newBufferWithBytesNoCopy:length:options:deallocator:
        newBufferWithLength:options: newCommandQueue
        newComputePipelineStateWithDescriptor:options:completionHandler:
        newComputePipelineStateWithDescriptor:options:reflection:error: newFunctionWithName:
        newLibraryWithSource:options:error: setBuffer:offset:atIndex: setBytes:length:atIndex:
        setComputeFunction: setComputePipelineState: setFastMathEnabled: setLabel:
        setLanguageVersion:
        setThreadgroupMemoryLength:atIndex: status storageMode threadExecutionWidth threadgroupMemoryDataSize
        type waitUntilCompleted""",
    (10, 12): """
        functionConstantsDictionary newFunctionWithName:constantValues:error:
        recommendedMaxWorkingSetSize setConstantValue:type:atIndex:""",
    (10, 13): """
        dispatchThreads:threadsPerThreadgroup:
        encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:
        heapBufferSizeAndAlignWithLength:options:
        initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:
        matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:
        maxThreadgroupMemoryLength newHeapWithDescriptor: newLibraryWithURL:error: registryID
        setSize: setStorageMode: useResources:count:usage: usedSize""",
    (10, 14): """
        computeCommandEncoderWithDispatchType: encodeSignalEvent:value: encodeWaitForEvent:value:
        maxBufferLength memoryBarrierWithScope:
        newIndirectCommandBufferWithDescriptor:maxCommandCount:options: newSharedEvent
        setCommandTypes: setInheritBuffers: setInheritPipelineState: setSignaledValue:
        signaledValue""",
    (10, 15): """
        GPUEndTime GPUStartTime hasUnifiedMemory initWithBuffer:offset:descriptor: resourceOptions
        setHazardTrackingMode: supportsFamily:""",
    (11, 0): """
        addComputePipelineFunctionsWithDescriptor:error:
        concurrentDispatchThreads:threadsPerThreadgroup: executeCommandsInBuffer:withRange:
        indirectComputeCommandAtIndex: newBinaryArchiveWithDescriptor:error: serializeToURL:error:
        setBarrier setBinaryArchives: setKernelBuffer:offset:atIndex: setMaxKernelBufferBindCount:
        setSupportIndirectCommandBuffers: setUrl:""",
    (12, 0): "waitUntilSignaledValue:timeoutMS:",
    (13, 0): "bindings gpuAddress",
    (14, 0): "architecture setMaxKernelThreadgroupMemoryBindCount:",
    (15, 0): """
        addAllocation: addResidencySet: newResidencySetWithDescriptor:error: removeAllocation:
        requestResidency setMathMode:""",
}
SELECTORS = {name: version for version, names in _BY_VERSION.items() for name in names.split()}
# lbrx does without.
NEWER = {
    *("addAllocation:", "addResidencySet:", "newResidencySetWithDescriptor:error:"),
    *("removeAllocation:", "requestResidency", "setMathMode:"),
}
