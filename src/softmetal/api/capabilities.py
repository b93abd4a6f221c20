"""What a soft device says of itself."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from softmetal.api import enums
from softmetal.api.counters import MTLCounterSet
from softmetal.api.objects import Object
from softmetal.api.structs import MTLSize
from softmetal.executors import Executor
from softmetal.types import MAX_THREADS
from softmetal.validation import MAX_THREADGROUP_MEMORY

# DEVIATION: a soft device says that it has the compute features of these families; it has no
# rendering, textures or ray tracing, which a Mac of the same families would have.
_FAMILIES = frozenset(
    (
        *range(enums.MTLGPUFamilyApple1, enums.MTLGPUFamilyApple8 + 1),
        enums.MTLGPUFamilyMac1,
        enums.MTLGPUFamilyMac2,
        *range(enums.MTLGPUFamilyCommon1, enums.MTLGPUFamilyCommon3 + 1),
        enums.MTLGPUFamilyMetal3,
    )
)


def _processor() -> str:
    """The CPU's name, as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class MTLArchitecture(Object):
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    # MTL: -name
    def name(self) -> str:
        return self._name


class Capabilities(Object):
    """The properties of MTLDevice that never change."""

    __slots__ = ("_executor",)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    # MTL: -name
    def name(self) -> str:
        return f"softmetal {self._executor.name} ({_processor()})"

    # MTL: -registryID
    def registryID(self) -> int:
        return 1

    # MTL: -architecture
    def architecture(self) -> MTLArchitecture:
        return MTLArchitecture(f"softmetal_{self._executor.name}")

    # MTL: -maxThreadsPerThreadgroup
    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(MAX_THREADS, MAX_THREADS, MAX_THREADS)

    # MTL: -maxThreadgroupMemoryLength
    def maxThreadgroupMemoryLength(self) -> int:
        return MAX_THREADGROUP_MEMORY

    # MTL: -maxBufferLength
    def maxBufferLength(self) -> int:
        return _memory_bytes()

    # MTL: -recommendedMaxWorkingSetSize
    def recommendedMaxWorkingSetSize(self) -> int:
        return _memory_bytes() * 3 // 4

    # MTL: -maxTransferRate
    def maxTransferRate(self) -> int:
        return 0

    # MTL: -hasUnifiedMemory
    def hasUnifiedMemory(self) -> bool:
        return True

    # MTL: -isLowPower
    def isLowPower(self) -> bool:
        return False

    # MTL: -isHeadless
    def isHeadless(self) -> bool:
        return True

    # MTL: -isRemovable
    def isRemovable(self) -> bool:
        return False

    # MTL: -location
    def location(self) -> int:
        return enums.MTLDeviceLocationBuiltIn

    # MTL: -locationNumber
    def locationNumber(self) -> int:
        return 0

    # MTL: -peerGroupID
    def peerGroupID(self) -> int:
        return 0

    # MTL: -supportsFamily:
    def supportsFamily_(self, family: int) -> bool:
        return family in _FAMILIES

    # MTL: -argumentBuffersSupport
    def argumentBuffersSupport(self) -> int:
        return enums.MTLArgumentBuffersTier2

    # MTL: -readWriteTextureSupport
    def readWriteTextureSupport(self) -> int:
        return enums.MTLReadWriteTextureTierNone

    # MTL: -supportsDynamicLibraries
    def supportsDynamicLibraries(self) -> bool:
        return False

    # MTL: -supportsFunctionPointers
    def supportsFunctionPointers(self) -> bool:
        return False

    # MTL: -supportsRaytracing
    def supportsRaytracing(self) -> bool:
        return False

    # MTL: -maximumConcurrentCompilationTaskCount
    def maximumConcurrentCompilationTaskCount(self) -> int:
        return os.cpu_count() or 1

    # MTL: -sampleTimestamps:gpuTimestamp:
    def sampleTimestamps_gpuTimestamp_(self, cpu: None, gpu: None) -> tuple[int, int]:
        """Both in nanoseconds: host and device share one clock."""
        now = time.monotonic_ns()
        return now, now

    # MTL: -queryTimestampFrequency
    def queryTimestampFrequency(self) -> int:
        return 1_000_000_000

    # MTL: -counterSets
    def counterSets(self) -> list[MTLCounterSet]:
        return [MTLCounterSet()]

    # MTL: -supportsCounterSampling:
    def supportsCounterSampling_(self, point: int) -> bool:
        return point in (
            enums.MTLCounterSamplingPointAtStageBoundary,
            enums.MTLCounterSamplingPointAtDispatchBoundary,
            enums.MTLCounterSamplingPointAtBlitBoundary,
        )
