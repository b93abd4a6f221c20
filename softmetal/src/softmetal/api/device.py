"""MTLDevice: connects the compiler to an executor, and creates all other objects."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

from softmetal import checks, compiler, env, executors, profiles
from softmetal.api import enums, host, objc
from softmetal.api.archive import (
    MTLBinaryArchive,
    MTLBinaryArchiveDescriptor,
    StoredKernels,
    archive_error,
)
from softmetal.api.arguments import (
    MTLArgumentDescriptor,
    MTLArgumentEncoder,
    described_layout,
)
from softmetal.api.buffer import MTLBuffer, storage_mode
from softmetal.api.capabilities import Capabilities
from softmetal.api.counters import (
    MTLCounterSampleBuffer,
    MTLCounterSampleBufferDescriptor,
)
from softmetal.api.event import MTLEvent, MTLFence, MTLSharedEvent, MTLSharedEventHandle
from softmetal.api.foundation import NSURL, NSError, file_path
from softmetal.api.heap import BUFFER_ALIGNMENT, MTLHeap, MTLHeapDescriptor, align_up
from softmetal.api.icb import (
    MTLIndirectCommandBuffer,
    MTLIndirectCommandBufferDescriptor,
    command_types_supported,
)
from softmetal.api.layer import driver_constants
from softmetal.api.library import MTLCompileOptions, MTLFunction, MTLLibrary, compile_options
from softmetal.api.log import MTLLogState, MTLLogStateDescriptor
from softmetal.api.memory import Arena, Borrowed, Memory, copied_bytes
from softmetal.api.pipeline import (
    MTLComputePipelineDescriptor,
    MTLComputePipelineState,
)
from softmetal.api.queue import MTLCommandQueue, MTLCommandQueueDescriptor
from softmetal.api.residency import MTLResidencySet, MTLResidencySetDescriptor
from softmetal.api.structs import MTLSizeAndAlign
from softmetal.errors import CompileError, ExecutionError, SettingError, ValidationError
from softmetal.executors import Executor
from softmetal.types import Artifact
from softmetal.validation import (
    HEAP_STORAGE,
    MANAGED,
    PRIVATE,
    SHARED,
    check_indirect_size,
    check_length,
    check_max_threads,
    check_range,
    check_storage,
    check_threadgroup_total,
    check_view,
)

ARENA_BYTES = 64 << 10
END_SECONDS = 60.0  # that the end of a process waits for checked work
PipelineOutcome = tuple[MTLComputePipelineState | None, NSError | None]


_executors: dict[str, Executor] = {}


def _executor(name: str) -> Executor:
    """One for each name; another if a fault has ended it."""
    if name not in _executors or _executors[name].lost:
        _executors[name] = _new_executor(name)
    return _executors[name]


def _new_executor(name: str) -> Executor:
    found = executors.find(name)
    if found is None:
        raise SettingError(
            f"SOFTMETAL_DEVICE={name!r} is not a device: give 'cpu', 'discrete', 'cuda:0' or 'null'"
        )
    return found


class MTLDevice(Capabilities):
    """A software device."""

    __slots__ = ("_arenas", "_busy", "_live", "_maximise")

    def __init__(self, executor: Executor, profile: profiles.Profile | None = None) -> None:
        super().__init__(executor, profile)
        self._live: dict[int, int] = {}  # address of each allocation -> its length
        self._arenas: list[Arena] = []  # idle
        self._busy: set[MTLCommandQueue] = set()  # queues with unfinished work
        self._maximise = False
        atexit.register(self._end)

    def __repr__(self) -> str:
        return f"<MTLDevice {self.name()}>"

    def _reap(self) -> None:
        for queue in tuple(self._busy):
            queue._reap()

    def _end(self) -> None:
        """At the end of the process: nobody may have waited for work that was checked."""
        if checks.current() is None:
            self._reap()
            return
        for queue in tuple(self._busy):
            if not queue._end_within(END_SECONDS):
                checks.write("kernels had not ended when the program did: they are not checked")

    def _new_arena(self) -> Arena:
        try:
            arena = self._arenas.pop()
        except IndexError:
            memory = Memory(self._executor, ARENA_BYTES, self._live)
            if self._executor.unified:
                return Arena(memory)
            return Arena(memory, Memory(self._executor, ARENA_BYTES, self._live, private=True))
        arena.clear()
        return arena

    # ---- memory and counters ----

    # MTL: -currentAllocatedSize
    def currentAllocatedSize(self) -> int:
        self._reap()
        return sum(tuple(self._live.values()))

    # MTL: -shouldMaximizeConcurrentCompilation
    def shouldMaximizeConcurrentCompilation(self) -> bool:
        return self._maximise

    # MTL: -setShouldMaximizeConcurrentCompilation:
    def setShouldMaximizeConcurrentCompilation_(self, wanted: bool) -> None:
        self._maximise = bool(wanted)

    # MTL: -newCounterSampleBufferWithDescriptor:error:
    def newCounterSampleBufferWithDescriptor_error_(
        self, descriptor: MTLCounterSampleBufferDescriptor, error: None
    ) -> tuple[MTLCounterSampleBuffer | None, NSError | None]:
        if descriptor.sampleCount() < 1:
            code = enums.MTLCounterSampleBufferErrorInvalid
            text = f"a sample count of {descriptor.sampleCount()}: pass at least 1"
            return None, NSError.described(enums.MTLCounterErrorDomain, code, text)
        return MTLCounterSampleBuffer(self, descriptor), None

    def _allocate(self, length: int, storage: int = SHARED) -> Memory | None:
        """New memory; None where Apple's returns nil because the length is too large."""
        check_length(length)
        self._reap()
        if length > self.maxBufferLength():
            return None
        try:
            return Memory(self._executor, length, self._live, private=storage == PRIVATE)
        except MemoryError:
            return None

    # MTL: -newBufferWithLength:options:
    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer | None:
        check_storage(storage_mode(options), HEAP_STORAGE | {MANAGED}, "a buffer")
        memory = self._allocate(length, storage_mode(options))
        return MTLBuffer(self, memory, length, options) if memory is not None else None

    # MTL: -newBufferWithBytes:length:options:
    def newBufferWithBytes_length_options_(
        self, data: Any, length: int, options: int
    ) -> MTLBuffer | None:
        source = copied_bytes(data, length)
        check_view(length, len(source))
        memory = self._allocate(length)
        if memory is None:
            return None
        memory.write(source)
        return MTLBuffer(self, memory, length, options)

    # MTL: -newBufferWithBytesNoCopy:length:options:deallocator:
    # DEVIATION: memory of any alignment and length is used without a copy; Apple's device accepts
    # whole pages only, and so does SOFTMETAL_STRICT=host.
    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, data: Any, length: int, options: int, deallocator: Callable[..., object] | None
    ) -> MTLBuffer | None:
        check_storage(storage_mode(options), {SHARED, MANAGED}, "a buffer over the host's memory")
        check_length(length)
        memory = Borrowed(self._executor, data, deallocator)
        check_range(0, length, memory.length, "using bytes")
        host.check_pages(memory.host(), length)
        return MTLBuffer(self, memory, length, options)

    # MTL: -newHeapWithDescriptor:
    def newHeapWithDescriptor_(self, descriptor: MTLHeapDescriptor) -> MTLHeap | None:
        check_storage(descriptor.storageMode(), HEAP_STORAGE, "a heap")
        memory = self._allocate(descriptor.size(), descriptor.storageMode())
        return MTLHeap(self, descriptor, memory) if memory is not None else None

    # MTL: -heapBufferSizeAndAlignWithLength:options:
    def heapBufferSizeAndAlignWithLength_options_(
        self, length: int, options: int
    ) -> MTLSizeAndAlign:
        return MTLSizeAndAlign(align_up(length, BUFFER_ALIGNMENT), BUFFER_ALIGNMENT)

    # MTL: -newResidencySetWithDescriptor:error:
    def newResidencySetWithDescriptor_error_(
        self, descriptor: MTLResidencySetDescriptor, error: None
    ) -> tuple[MTLResidencySet, None]:
        return MTLResidencySet(self, descriptor), None

    # ---- synchronisation ----

    # MTL: -newFence
    def newFence(self) -> MTLFence:
        return MTLFence(self)

    # MTL: -newEvent
    def newEvent(self) -> MTLEvent:
        return MTLEvent(self)

    # MTL: -newSharedEvent
    def newSharedEvent(self) -> MTLSharedEvent:
        return MTLSharedEvent(self)

    # MTL: -newSharedEventWithHandle:
    def newSharedEventWithHandle_(self, handle: MTLSharedEventHandle) -> MTLSharedEvent:
        return handle._event

    # ---- work ----

    # MTL: -newCommandQueue
    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue(self, MTLCommandQueueDescriptor())

    # MTL: -newCommandQueueWithMaxCommandBufferCount:
    def newCommandQueueWithMaxCommandBufferCount_(self, count: int) -> MTLCommandQueue:
        descriptor = MTLCommandQueueDescriptor()
        descriptor.setMaxCommandBufferCount_(count)
        return MTLCommandQueue(self, descriptor)

    # MTL: -newCommandQueueWithDescriptor:
    def newCommandQueueWithDescriptor_(
        self, descriptor: MTLCommandQueueDescriptor
    ) -> MTLCommandQueue:
        return MTLCommandQueue(self, descriptor)

    # MTL: -newIndirectCommandBufferWithDescriptor:maxCommandCount:options:
    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, descriptor: MTLIndirectCommandBufferDescriptor, count: int, options: int
    ) -> MTLIndirectCommandBuffer | None:
        check_indirect_size(count, descriptor.maxKernelBufferBindCount())
        host.check_indirect_count(count)
        host.check_indirect_device(self._profile)
        if not command_types_supported(descriptor):
            return None
        return MTLIndirectCommandBuffer(self, descriptor, count, options)

    # MTL: -newLogStateWithDescriptor:error:
    def newLogStateWithDescriptor_error_(
        self, descriptor: MTLLogStateDescriptor, error: None
    ) -> tuple[MTLLogState, None]:
        return MTLLogState(descriptor), None

    # ---- libraries ----

    # MTL: -newLibraryWithSource:options:error:
    def newLibraryWithSource_options_error_(
        self, source: str, options: MTLCompileOptions | None, error: None
    ) -> tuple[MTLLibrary | None, NSError | None]:
        limit = options.maxTotalThreadsPerThreadgroup() if options else 0
        try:
            # An Apple chip has none of softmetal's extensions.
            settings = compile_options(options, "program_source", extensions=not self._profile)
            program = compiler.compile_library(source, settings)
        except CompileError as problem:
            return None, _library_error(enums.MTLLibraryErrorCompileFailure, str(problem))
        return MTLLibrary(self, (program,), limit), None

    # MTL: -newLibraryWithSource:options:completionHandler:
    def newLibraryWithSource_options_completionHandler_(
        self,
        source: str,
        options: MTLCompileOptions | None,
        handler: Callable[[MTLLibrary | None, NSError | None], object],
    ) -> None:
        given = options.copy() if options is not None else None

        def work() -> None:
            handler(*self.newLibraryWithSource_options_error_(source, given, None))

        threading.Thread(target=work).start()

    # MTL: -newLibraryWithData:error:
    # DEVIATION: library data is softmetal's format after Apple's magic `MTLB`; libraries made by
    # Apple's tools contain code for their GPUs and are refused.
    def newLibraryWithData_error_(
        self, data: Any, error: None
    ) -> tuple[MTLLibrary | None, NSError | None]:
        try:
            programs = compiler.library_from_bytes(bytes(data))
        except (CompileError, ValueError, KeyError) as problem:
            text = f"not a library that softmetal can load: {problem}"
            return None, _library_error(enums.MTLLibraryErrorInternal, text)
        return MTLLibrary(self, programs), None

    # MTL: -newLibraryWithURL:error:
    def newLibraryWithURL_error_(
        self, url: NSURL | str | os.PathLike[str], error: None
    ) -> tuple[MTLLibrary | None, NSError | None]:
        try:
            data = file_path(url).read_bytes()
        except OSError as problem:
            return None, _library_error(enums.MTLLibraryErrorFileNotFound, str(problem))
        return self.newLibraryWithData_error_(data, None)

    # MTL: -newLibraryWithFile:error:
    def newLibraryWithFile_error_(
        self, path: str, error: None
    ) -> tuple[MTLLibrary | None, NSError | None]:
        return self.newLibraryWithURL_error_(path, None)

    # MTL: -newDefaultLibrary
    def newDefaultLibrary(self) -> None:
        """None: there is no application bundle with a default library."""

    # MTL: -newDefaultLibraryWithBundle:error:
    def newDefaultLibraryWithBundle_error_(
        self, bundle: object, error: None
    ) -> tuple[None, NSError]:
        text = "softmetal has no default library: use newLibraryWithSource or newLibraryWithURL"
        return None, _library_error(enums.MTLLibraryErrorFileNotFound, text)

    # MTL: -newBinaryArchiveWithDescriptor:error:
    def newBinaryArchiveWithDescriptor_error_(
        self, descriptor: MTLBinaryArchiveDescriptor, error: None
    ) -> tuple[MTLBinaryArchive | None, NSError | None]:
        url = descriptor.url()
        if reason := host.check_archives(self._profile):
            return None, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, reason)
        try:
            stored = StoredKernels(file_path(url)) if url is not None else None
        except (OSError, ValueError) as problem:
            return None, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, str(problem))
        return MTLBinaryArchive(self, stored), None

    # MTL: -newArgumentEncoderWithArguments:
    def newArgumentEncoderWithArguments_(
        self, arguments: list[MTLArgumentDescriptor]
    ) -> MTLArgumentEncoder:
        return MTLArgumentEncoder(self, described_layout(arguments))

    # ---- pipelines ----

    # MTL: -newComputePipelineStateWithFunction:error:
    def newComputePipelineStateWithFunction_error_(
        self, function: MTLFunction, error: None
    ) -> PipelineOutcome:
        descriptor = MTLComputePipelineDescriptor()
        descriptor.setComputeFunction_(function)
        return self._pipeline(descriptor, 0)

    # MTL: -newComputePipelineStateWithFunction:options:reflection:error:
    def newComputePipelineStateWithFunction_options_reflection_error_(
        self, function: MTLFunction, options: int, reflection: None, error: None
    ) -> PipelineOutcome:
        descriptor = MTLComputePipelineDescriptor()
        descriptor.setComputeFunction_(function)
        return self._pipeline(descriptor, options)

    # MTL: -newComputePipelineStateWithDescriptor:options:reflection:error:
    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self,
        descriptor: MTLComputePipelineDescriptor,
        options: int,
        reflection: None,
        error: None,
    ) -> tuple[Any, ...]:
        """The state and an error; between them the reflection for a program that has registered
        `reflection:` as a result, which PyObjC does not."""
        state, problem = self._pipeline(descriptor, options)
        if not objc.returns_argument(_PIPELINE_SELECTOR, 2):
            return state, problem
        wanted = state is not None and options & _REFLECTED
        return state, state.reflection() if wanted and state is not None else None, problem

    # MTL: -newComputePipelineStateWithDescriptor:error:
    def newComputePipelineStateWithDescriptor_error_(
        self, descriptor: MTLComputePipelineDescriptor, error: None
    ) -> PipelineOutcome:
        return self._pipeline(descriptor, 0)

    # MTL: -newComputePipelineStateWithFunction:completionHandler:
    def newComputePipelineStateWithFunction_completionHandler_(
        self, function: MTLFunction, handler: Callable[..., object]
    ) -> None:
        def work() -> None:
            handler(*self.newComputePipelineStateWithFunction_error_(function, None))

        threading.Thread(target=work).start()

    # MTL: -newComputePipelineStateWithFunction:options:completionHandler:
    def newComputePipelineStateWithFunction_options_completionHandler_(
        self, function: MTLFunction, options: int, handler: Callable[..., object]
    ) -> None:
        descriptor = MTLComputePipelineDescriptor()
        descriptor.setComputeFunction_(function)
        self.newComputePipelineStateWithDescriptor_options_completionHandler_(
            descriptor, options, handler
        )

    # MTL: -newComputePipelineStateWithDescriptor:options:completionHandler:
    def newComputePipelineStateWithDescriptor_options_completionHandler_(
        self,
        descriptor: MTLComputePipelineDescriptor,
        options: int,
        handler: Callable[..., object],
    ) -> None:
        given = descriptor.copy()

        def work() -> None:
            state, problem = self._pipeline(given, options)
            handler(state, state.reflection() if state is not None else None, problem)

        threading.Thread(target=work).start()

    def _pipeline(self, descriptor: MTLComputePipelineDescriptor, options: int) -> PipelineOutcome:
        function: MTLFunction | None = descriptor.computeFunction()
        if function is None:
            raise ValidationError(
                "a pipeline needs a function: newFunctionWithName_ returned None?"
            )
        check_max_threads(descriptor.maxTotalThreadsPerThreadgroup())
        try:
            artifact = self._artifact(function, descriptor, options)
            if artifact is None:
                text = f"no archive holds `{function._name}` and the options say not to compile"
                return None, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, text)
            static, limit = artifact.static_threadgroup_memory, self.maxThreadgroupMemoryLength()
            check_threadgroup_total(static, (), artifact.name, limit)
        except (CompileError, ValidationError) as problem:
            return None, _library_error(enums.MTLLibraryErrorCompileFailure, str(problem))
        threads = function._library._max_threads
        try:
            return MTLComputePipelineState(self, artifact, descriptor, threads), None
        except ExecutionError as problem:  # a fault has ended the device
            return None, _library_error(enums.MTLLibraryErrorInternal, str(problem))

    def _artifact(
        self, function: MTLFunction, descriptor: MTLComputePipelineDescriptor, options: int
    ) -> Artifact | None:
        archives: list[MTLBinaryArchive] = descriptor.binaryArchives() or []
        found = next((kernel for a in archives if (kernel := a._find(function)) is not None), None)
        if found is None and options & enums.MTLPipelineOptionFailOnBinaryArchiveMiss:
            return None
        modes = checks.modes()
        if found is not None and not modes:  # kernels in archives are not instrumented
            return found
        program = function._program
        target = self._executor.target
        constants = driver_constants(program, function._constants)
        return compiler.compile_kernel(program, function._name, constants, modes, target)


_PIPELINE_SELECTOR = "newComputePipelineStateWithDescriptor:options:reflection:error:"
_REFLECTED = enums.MTLPipelineOptionBindingInfo | enums.MTLPipelineOptionBufferTypeInfo


def _library_error(code: int, description: str) -> NSError:
    return NSError.described(enums.MTLLibraryErrorDomain, code, description)


_creating = threading.Lock()


_devices: dict[tuple[str, str], MTLDevice] = {}


def _device(name: str, profile: str) -> MTLDevice:
    executor, known = _executor(name), _devices.get((name, profile))
    if known is None or known._executor is not executor:
        known = _devices[name, profile] = MTLDevice(executor, profiles.find(profile))
    return known


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The device that SOFTMETAL_DEVICE and SOFTMETAL_PROFILE name now: one object for each, and a
    new one after a fault that ended a GPU's."""
    checks.current()  # an invalid setting is an error here, not at some later kernel
    with _creating:
        return _device(env.device(), env.profile())


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The default device, and NVIDIA's GPUs."""
    from softmetal.executors.cuda import gpus

    default = MTLCreateSystemDefaultDevice()
    names = [f"cuda:{index}" for index in range(gpus.count())]
    with _creating:
        return [default, *(_device(name, "") for name in names if name != env.device())]
