"""The description of a device."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class DeviceKind(StrEnum):
    """What a kernel is made for."""

    WIDE = "wide"
    """Processors: a thread does a long run, in wide vectors."""
    SIMD = "simd"
    """GPUs: neighbouring threads form simdgroups and take neighbouring elements."""
    TENSOR = "tensor"
    """GPUs whose simdgroups multiply matrices."""

    def suits(self, info: DeviceInfo) -> bool:
        """Whether a device is of this kind."""
        if self is DeviceKind.WIDE:
            return not info.simd_hardware
        return info.simd_hardware and (self is DeviceKind.SIMD or info.simdgroup_matrix)


@dataclass(frozen=True)
class Calibration:
    """Speeds of a device, as `lbrx tune` has measured them."""

    date: str
    bandwidth: float  # bytes per second, read and written by a kernel that copies large arrays
    fp32: float  # operations per second of fused multiply-adds
    fp16: float
    dispatch: float  # seconds from a small kernel to the next one, which needs its result
    encoding: float  # seconds of the host for a small product by MPS
    simd_width: int
    streaming: float | None = None
    """Bytes of a result from which on writing it past the caches is faster; None if never."""
    products: tuple[tuple[str, float], ...] = ()
    """Operations per second of large products, by variant and dtype: ("mps float16", 7e14)."""


@dataclass(frozen=True)
class DeviceInfo:
    """A device's capabilities. None marks what is unknown, such as a CPU's bandwidth."""

    name: str
    chip: str | None  # "M3 Max" if the table has it
    soft: bool  # softmetal, also when a profile names a chip
    simd_hardware: bool  # False selects the serial variants, which give each thread a long loop
    family: int  # n of MTLGPUFamilyApple<n>, 0 on GPUs that are not Apple's
    cores: int | None  # of the GPU, an NVIDIA GPU's multiprocessors; threads of a soft device
    bandwidth: float | None  # bytes per second, by the table of chips or an NVIDIA GPU's clocks
    fp32_peak: float | None  # operations per second, from the same sources
    max_threads: int  # per threadgroup
    threadgroup_memory: int
    max_buffer: int
    working_set: int
    memory_limit: int  # bytes that the pool may allocate
    unified_memory: bool
    simdgroup_matrix: bool
    bfloat: bool
    native_bfloat: bool
    cuda: int | None = None  # the number of the NVIDIA GPU that it is
    cache: int | None = None  # bytes of the last cache
    matrix_peak: float | None = None  # operations per second of products of halves, by the clocks
    like: str | None = None  # the chip whose rates these are, of one that the table lacks
    page: int = mmap.PAGESIZE  # bytes: host memory is shared without a copy in complete pages
    calibration: Calibration | None = None

    def by_kind(self, *, wide: T, simd: T) -> T:
        """What is for processors, or what is for GPUs."""
        return simd if self.simd_hardware else wide

    @property
    def measured_as(self) -> str:
        """The name under which its calibration is kept: a processor's depends on its threads."""
        processor = self.soft and DeviceKind.WIDE.suits(self)
        return f"{self.name}, {self.cores} threads" if processor else self.name

    @property
    def memory_rate(self) -> float | None:
        """Bytes per second: measured, else from the table of chips or the GPU's declared clocks."""
        return self.calibration.bandwidth if self.calibration else self.bandwidth

    @property
    def arithmetic_rate(self) -> float | None:
        """Float32 operations per second, from the same sources."""
        return self.calibration.fp32 if self.calibration else self.fp32_peak

    def streams(self, size: int) -> bool:
        """Whether a CPU should write a result of so many bytes past its caches: as measured, else
        if no cache can hold it."""
        least = self.calibration.streaming if self.calibration else self.cache
        return least is not None and size >= least

    def product_rate(self, variant: str, dtype: str) -> float | None:
        """Operations per second of large matrix products by a variant; None if not measured."""
        measured = self.calibration.products if self.calibration else ()
        return dict(measured).get(f"{variant} {dtype}")
