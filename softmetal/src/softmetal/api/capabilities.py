"""Properties that a software device reports."""

from __future__ import annotations

import functools
import os
import platform
import time
import zlib
from pathlib import Path

from softmetal import cgroups
from softmetal.api import enums
from softmetal.api.absent import AbsentFeatures
from softmetal.api.counters import MTLCounterSet
from softmetal.api.objects import Object
from softmetal.api.structs import MTLSize
from softmetal.executors import Executor
from softmetal.profiles import Profile
from softmetal.types import MAX_THREADS
from softmetal.validation import MAX_THREADGROUP_MEMORY

_OWN_FAMILY = 8  # without a profile: the family whose compute features softmetal has


# DEVIATION: a software device reports these families for their compute features; unlike a Mac of
# the same families it has no rendering, textures or ray tracing. It never reports the Metal 4
# family, which every profile's chip has from macOS 26 on.
def _families(newest: int) -> frozenset[int]:
    """Everything up to MTLGPUFamilyApple<newest>, with what each Mac of Apple's own chips has."""
    return frozenset(
        (
            *range(enums.MTLGPUFamilyApple1, enums.MTLGPUFamilyApple1 + newest),
            enums.MTLGPUFamilyMac1,
            enums.MTLGPUFamilyMac2,
            *range(enums.MTLGPUFamilyCommon1, enums.MTLGPUFamilyCommon3 + 1),
            enums.MTLGPUFamilyMetal3,
        )
    )


def _processor() -> str:
    """The CPU's name, as the system has it."""
    lines = _lines(Path("/proc/cpuinfo"))
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@functools.cache
def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the machine's memory, or a lower limit of its cgroup."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroups.memory_limits(root)])


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


class MTLArchitecture(Object):
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    # MTL: -name
    def name(self) -> str:
        return self._name


class Capabilities(AbsentFeatures):
    """The properties of MTLDevice that never change."""

    __slots__ = ("_executor", "_families", "_profile")

    def __init__(self, executor: Executor, profile: Profile | None) -> None:
        self._executor = executor
        self._profile = profile
        self._families = _families(profile.family if profile is not None else _OWN_FAMILY)

    # MTL: -name
    def name(self) -> str:
        if self._profile is not None:
            return self._profile.device_name
        if self._executor.hardware is not None:
            return self._executor.hardware.name
        return f"softmetal {self._executor.name} ({_processor()})"

    # MTL: -registryID
    def registryID(self) -> int:
        return zlib.crc32(self._executor.name.encode()) or 1

    # MTL: -architecture
    def architecture(self) -> MTLArchitecture:
        if self._profile is not None:
            return MTLArchitecture(self._profile.architecture)
        if self._executor.hardware is not None:
            return MTLArchitecture(self._executor.hardware.architecture)
        return MTLArchitecture(f"softmetal_{self._executor.name}")

    # MTL: -maxThreadsPerThreadgroup
    def maxThreadsPerThreadgroup(self) -> MTLSize:
        side = MAX_THREADS if self._profile is None else self._profile.max_threads
        return MTLSize(side, side, side)

    # MTL: -maxThreadgroupMemoryLength
    def maxThreadgroupMemoryLength(self) -> int:
        if self._profile is not None:
            return self._profile.threadgroup_memory
        hardware = self._executor.hardware
        return MAX_THREADGROUP_MEMORY if hardware is None else hardware.threadgroup_memory

    # MTL: -maxBufferLength
    def maxBufferLength(self) -> int:
        return self._memory() if self._profile is None else self._profile.max_buffer

    def _memory(self) -> int:
        hardware = self._executor.hardware
        return memory_bytes() if hardware is None else hardware.memory

    # MTL: -recommendedMaxWorkingSetSize
    def recommendedMaxWorkingSetSize(self) -> int:
        if self._profile is not None:
            return self._profile.working_set
        return self._memory() * 3 // 4

    # MTL: -maxTransferRate
    def maxTransferRate(self) -> int:
        return 0

    # MTL: -hasUnifiedMemory
    def hasUnifiedMemory(self) -> bool:
        return self._executor.unified

    # MTL: -isLowPower
    def isLowPower(self) -> bool:
        return False

    # MTL: -isHeadless
    def isHeadless(self) -> bool:
        return self._profile is None

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

    # MTL: -peerIndex
    def peerIndex(self) -> int:
        return 0

    # MTL: -peerCount
    def peerCount(self) -> int:
        return 0

    # MTL: -supportsFamily:
    def supportsFamily_(self, family: int) -> bool:
        return family in self._families

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
