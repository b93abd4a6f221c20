"""What is known of a device, whoever describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """A device's capabilities. None is what nobody has measured: a processor's, for example."""

    name: str
    chip: str | None  # "M3 Max" if the table has it
    soft: bool  # softmetal, whatever chip it says it is
    simd_hardware: bool  # False where one thread is best given a long run: the serial variants
    family: int  # n of MTLGPUFamilyApple<n>, 0 on GPUs that are not Apple's
    cores: int | None  # threads of a soft device
    bandwidth: float | None  # bytes a second, from the table
    fp32_peak: float | None  # operations a second, from the table
    max_threads: int  # in a threadgroup
    threadgroup_memory: int
    max_buffer: int
    working_set: int
    memory_limit: int  # what the pool may hold
    unified_memory: bool
    simdgroup_matrix: bool
    bfloat: bool
    native_bfloat: bool
