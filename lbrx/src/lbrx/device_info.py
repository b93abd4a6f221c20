"""The description of a device."""

from __future__ import annotations

import mmap
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """A device's capabilities. None marks what is unknown, such as a CPU's bandwidth."""

    name: str
    chip: str | None  # "M3 Max" if the table has it
    soft: bool  # softmetal, also when a profile names a chip
    simd_hardware: bool  # False selects the serial variants, which give each thread a long loop
    family: int  # n of MTLGPUFamilyApple<n>, 0 on GPUs that are not Apple's
    cores: int | None  # of the GPU; threads of a soft device
    bandwidth: float | None  # bytes per second, from the table of chips
    fp32_peak: float | None  # operations per second, from the table of chips
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
    page: int = mmap.PAGESIZE  # bytes: host memory is shared without a copy in complete pages
