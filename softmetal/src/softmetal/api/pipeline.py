"""MTLComputePipelineState, its descriptor and its reflection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softmetal import registers
from softmetal.api import enums
from softmetal.api.datatypes import data_type
from softmetal.api.objects import (
    Allocated,
    Descriptor,
    Labelled,
    Object,
    anything,
    flag,
    number,
    table,
)
from softmetal.api.structs import MTLResourceID, MTLSize
from softmetal.lifetime import AtDeallocation
from softmetal.types import SIMD_WIDTH, Argument, Artifact
from softmetal.validation import Size3, check_simd_multiple, check_threadgroup

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice


class MTLPipelineBufferDescriptor(Descriptor):
    __slots__ = ()
    properties = table(mutability=number(enums.MTLMutabilityDefault))


class MTLPipelineBufferDescriptorArray(Allocated):
    """A descriptor for each buffer index."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, MTLPipelineBufferDescriptor] = {}

    # MTL: -objectAtIndexedSubscript:
    def objectAtIndexedSubscript_(self, index: int) -> MTLPipelineBufferDescriptor:
        return self._items.setdefault(index, MTLPipelineBufferDescriptor())

    # MTL: -setObject:atIndexedSubscript:
    def setObject_atIndexedSubscript_(self, item: MTLPipelineBufferDescriptor, index: int) -> None:
        self._items[index] = item

    __getitem__ = objectAtIndexedSubscript_


class MTLComputePipelineDescriptor(Descriptor):
    __slots__ = ("_buffers",)
    properties = table(
        label=anything(),
        computeFunction=anything(),
        threadGroupSizeIsMultipleOfThreadExecutionWidth=flag(),
        maxTotalThreadsPerThreadgroup=number(),
        requiredThreadsPerThreadgroup=anything(MTLSize(0, 0, 0)),
        supportIndirectCommandBuffers=flag(),
        binaryArchives=anything(),
        preloadedLibraries=anything([]),
        insertLibraries=anything(),
        linkedFunctions=anything(),
        supportAddingBinaryFunctions=flag(),
        maxCallStackDepth=number(1),
        stageInputDescriptor=anything(),
        shaderValidation=number(enums.MTLShaderValidationDefault),
    )

    def __init__(self) -> None:
        super().__init__()
        self._buffers = MTLPipelineBufferDescriptorArray()

    # MTL: -buffers
    def buffers(self) -> MTLPipelineBufferDescriptorArray:
        return self._buffers

    # MTL: -reset
    def reset(self) -> None:
        self._values = type(self)()._values


class MTLBinding(Object):
    """An argument of a kernel, under the names of MTLBinding and of the older MTLArgument."""

    __slots__ = ("_argument",)

    def __init__(self, argument: Argument) -> None:
        self._argument = argument

    # MTL: -name
    def name(self) -> str:
        return self._argument.name

    # MTL: -type
    def type(self) -> int:
        if self._argument.kind == "buffer":
            return enums.MTLBindingTypeBuffer
        return enums.MTLBindingTypeThreadgroupMemory

    # MTL: -index
    def index(self) -> int:
        return self._argument.index

    # MTL: -access
    def access(self) -> int:
        if self._argument.writable:
            return enums.MTLBindingAccessReadWrite
        return enums.MTLBindingAccessReadOnly

    # MTL: -isUsed
    # DEVIATION: isUsed and isActive are true also for an argument that the kernel never reads.
    def isUsed(self) -> bool:
        return True

    # MTL: -isArgument
    def isArgument(self) -> bool:
        return True

    # MTL: -isActive
    def isActive(self) -> bool:
        return True

    # MTL: -arrayLength
    def arrayLength(self) -> int:
        return 1

    # MTL: -bufferAlignment
    def bufferAlignment(self) -> int:
        return self._argument.alignment

    # MTL: -bufferDataSize
    def bufferDataSize(self) -> int:
        return self._argument.size

    # MTL: -bufferDataType
    # DEVIATION: bufferDataType is MTLDataTypeStruct for a type named by an alias or a template
    # parameter.
    def bufferDataType(self) -> int:
        return data_type(self._argument.type)

    # MTL: -threadgroupMemoryAlignment
    def threadgroupMemoryAlignment(self) -> int:
        return self._argument.alignment

    # MTL: -threadgroupMemoryDataSize
    def threadgroupMemoryDataSize(self) -> int:
        return self._argument.size

    def __repr__(self) -> str:
        a = self._argument
        return f"<MTLBinding {a.kind} {a.index} {a.type} {a.name}>"


class MTLComputePipelineReflection(Object):
    __slots__ = ("_bindings",)

    def __init__(self, artifact: Artifact) -> None:
        self._bindings = [MTLBinding(argument) for argument in artifact.arguments]

    # MTL: -bindings
    def bindings(self) -> list[MTLBinding]:
        return list(self._bindings)

    # MTL: -arguments
    def arguments(self) -> list[MTLBinding]:
        return list(self._bindings)


class MTLComputePipelineState(Labelled):
    """A compiled kernel, loaded."""

    __slots__ = (
        "_artifact",
        "_buffer_count",
        "_checked",
        "_device",
        "_end",
        "_groups",
        "_indirect",
        "_kernel",
        "_max_threads",
        "_memory_limit",
        "_needed",
        "_required",
        "_threadgroup_count",
        "_wanted",
        "_whole_simdgroups",
    )
    _absent = (
        "functionHandleWithFunction_",
        "newComputePipelineStateWithAdditionalBinaryFunctions_error_",
        "newVisibleFunctionTableWithDescriptor_",
        "newIntersectionFunctionTableWithDescriptor_",
        "imageblockMemoryLengthForDimensions_",
    )

    def __init__(
        self,
        device: MTLDevice,
        artifact: Artifact,
        descriptor: MTLComputePipelineDescriptor,
        library_limit: int,
    ) -> None:
        super().__init__()
        self._device = device
        self._artifact = artifact
        self._label = descriptor.label()
        self._indirect = bool(descriptor.supportIndirectCommandBuffers())
        width, height, depth = descriptor.requiredThreadsPerThreadgroup() or (0, 0, 0)
        self._required: Size3 = (width, height, depth)
        self._kernel = device._executor.load(artifact)
        # Encoders and indirect command buffers keep a pipeline until the work that uses it is done.
        self._end = AtDeallocation(device._executor.unload, self._kernel)
        declared = (artifact.max_total_threads, descriptor.maxTotalThreadsPerThreadgroup())
        limits: list[int] = [*declared, library_limit, device._executor.max_threads(self._kernel)]
        # A declared number is what the compiler saves registers for.
        if device._profile is not None and artifact.registers and not any(declared):
            limits.append(registers.most_threads(artifact.registers))
        self._max_threads = min(n for n in limits if n)
        self._memory_limit = device.maxThreadgroupMemoryLength()
        self._whole_simdgroups = bool(descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth())
        buffers = [a for a in artifact.arguments if a.kind == "buffer"]
        self._needed = tuple(a.index for a in buffers)
        # Checked by each dispatch: index, bytes, address bits that must be 0, written or not.
        self._wanted = tuple((a.index, a.size, a.alignment - 1, a.writable) for a in buffers)
        self._buffer_count = max((a.index for a in buffers), default=0) + 1
        scratch = [a.index for a in artifact.arguments if a.kind == "threadgroup"]
        self._threadgroup_count = max(scratch) + 1 if scratch else 0
        self._checked = bool(artifact.checks)
        self._groups: dict[Size3, Size3] = {}  # threadgroup sizes that have been checked

    def _checked_group(self, size: Size3) -> Size3:
        """The same size, after a check for this kernel."""
        group = (int(size[0]), int(size[1]), int(size[2]))
        check_threadgroup(group, self._max_threads, self._artifact.name, self._required)
        if self._whole_simdgroups:
            check_simd_multiple(group, self._artifact.name)
        self._groups[group] = group
        return group

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -maxTotalThreadsPerThreadgroup
    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self._max_threads

    # MTL: -threadExecutionWidth
    def threadExecutionWidth(self) -> int:
        return SIMD_WIDTH

    # MTL: -staticThreadgroupMemoryLength
    def staticThreadgroupMemoryLength(self) -> int:
        return self._artifact.static_threadgroup_memory

    # MTL: -requiredThreadsPerThreadgroup
    def requiredThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(*self._required)

    # MTL: -supportIndirectCommandBuffers
    def supportIndirectCommandBuffers(self) -> bool:
        return self._indirect

    # MTL: -gpuResourceID
    def gpuResourceID(self) -> MTLResourceID:
        return MTLResourceID(self._kernel)

    # MTL: -shaderValidation
    def shaderValidation(self) -> int:
        return enums.MTLShaderValidationDefault

    # MTL: -allocatedSize
    def allocatedSize(self) -> int:
        return 0

    # MTL: -reflection
    def reflection(self) -> MTLComputePipelineReflection:
        return MTLComputePipelineReflection(self._artifact)
