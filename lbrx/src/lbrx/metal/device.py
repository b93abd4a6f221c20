"""The capabilities of a device, from Metal, the system and the table of Apple's chips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from lbrx.compile_notice import compiling
from lbrx.device_info import DeviceInfo
from lbrx.errors import DeviceError
from lbrx.metal import binding, calibration_file
from lbrx.metal.binding import CallError, Metal
from lbrx.process import last_cache, memory_limit

# Apple GPU families
FIRST_SIMDGROUP_MATRIX = 7
FIRST_BFLOAT = 6  # the first for which Metal 3.1 compiles `bfloat`
FIRST_NATIVE_BFLOAT = 9  # earlier ones compute it in float
NEWEST_FAMILY = 16  # above any that exists, so that newer chips are recognised
# Numbers in CUDA's CUdevice_attribute; clocks are in kHz
CLOCK, MULTIPROCESSORS, MEMORY_CLOCK, BUS_BITS, L2_BYTES = 13, 16, 36, 37, 38
CAPABILITY = 75  # the major number
# Float32 multiply-adds of a multiprocessor in a clock, by the major number (CUDA's guide)
NVIDIA_LANES = {7: 64, 8: 128}
NEWEST_LANES = 128
NVIDIA_PRODUCTS = {7: 512, 8: 1024}  # the same for products of halves by its tensor cores
NEWEST_PRODUCTS = 2048


class Chip(Protocol):
    """What the table says of a chip: softmetal.chips.Chip."""

    @property
    def name(self) -> str:
        """As in `M3 Max`."""

    @property
    def family(self) -> int:
        """n of MTLGPUFamilyApple<n>."""

    @property
    def cores(self) -> int:
        """Cores of the GPU."""

    @property
    def fp32_peak(self) -> float:
        """Operations per second."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""

    @property
    def memory(self) -> tuple[int, ...]:
        """GiB that Macs with the chip are sold with, the least first."""

    @property
    def matrix_peak(self) -> float | None:
        """Operations per second of matrix units, if it has them."""

    @property
    def like(self) -> str | None:
        """The chip of the table that a newer one is taken to be like."""


def chips() -> dict[str, Chip]:
    """Apple's chips by name, as `Apple M3 Max` without its first word."""
    table: dict[str, Chip] = binding.chip_table()
    return table


def find_chip(name: str) -> Chip:
    """The chip of a name such as `m4-pro`, `M4 Pro` or `Apple M4 Pro`. Raises DeviceError."""
    wanted = name.lower().replace("-", " ").removeprefix("apple ").strip()
    for known, chip in chips().items():
        if known.lower() == wanted:
            return chip
    every = ", ".join(known.lower().replace(" ", "-") for known in chips())
    raise DeviceError(f"{name!r} is not a chip of the table: give one of {every}")


def chip_of_device(name: str, cores: int | None = None) -> Chip | None:
    """The chip of a device by its name, as `find_chip` finds those of the table; newer ones are
    taken to be like the newest of their kind."""
    chip: Chip | None = binding.chip_of_device(name, cores)
    return chip


def default_device() -> Any:
    """The system's MTLDevice."""
    binding.prepare_compiler()
    try:
        with compiling("the device's runtime"):
            device = Metal.MTLCreateSystemDefaultDevice()
        binding.checking_modes()  # an invalid setting is an error here, not at some later kernel
    except CallError as problem:
        raise binding.error_of(problem, f"no Metal device: {problem}") from problem
    if device is None:
        raise DeviceError("this system has no Metal device: use the device 'cpu'")
    return device


def describe(device: Any) -> DeviceInfo:
    """The capabilities of an MTLDevice."""
    name = str(device.name())
    plain_soft = _architecture(device).startswith("softmetal_")
    cores = _cores(device, plain_soft)
    chip = chip_of_device(name, cores)
    family = _family(device)
    working_set = int(device.recommendedMaxWorkingSetSize())
    info = DeviceInfo(
        name=name,
        chip=chip.name if chip else None,
        soft=binding.SOFT,
        simd_hardware=not plain_soft,
        family=family,
        cores=cores or (chip.cores if chip else None),
        bandwidth=chip.bandwidth if chip else _declared_bandwidth(device),
        fp32_peak=chip.fp32_peak if chip else _declared_peak(device, NVIDIA_LANES, NEWEST_LANES),
        max_threads=int(device.maxThreadsPerThreadgroup().width),
        threadgroup_memory=int(device.maxThreadgroupMemoryLength()),
        max_buffer=int(device.maxBufferLength()),
        working_set=working_set,
        memory_limit=min(working_set * 3 // 2, memory_limit() * 19 // 20),
        unified_memory=bool(device.hasUnifiedMemory()),
        simdgroup_matrix=family >= FIRST_SIMDGROUP_MATRIX,
        bfloat=family >= FIRST_BFLOAT,
        native_bfloat=family >= FIRST_NATIVE_BFLOAT,
        cuda=binding.cuda_device(device),
        cache=last_cache() if plain_soft else binding.cuda_attribute(device, L2_BYTES) or None,
        matrix_peak=chip.matrix_peak
        if chip
        else _declared_peak(device, NVIDIA_PRODUCTS, NEWEST_PRODUCTS),
        like=chip.like if chip else None,
        page=binding.page_size(),
    )
    return replace(info, calibration=calibration_file.read(info.measured_as))


def devices() -> list[DeviceInfo]:
    """Every Metal device of the system, the default one first."""
    default = default_device()
    others = [d for d in Metal.MTLCopyAllDevices() if d.registryID() != default.registryID()]
    return [describe(device) for device in (default, *others)]


def _family(device: Any) -> int:
    first = Metal.MTLGPUFamilyApple1
    supported = (n for n in range(NEWEST_FAMILY, 0, -1) if device.supportsFamily_(first + n - 1))
    return next(supported, 0)


def _architecture(device: Any) -> str:
    """Its name; empty before macOS 14, which introduced it."""
    ask = getattr(device, "architecture", None)
    return str(ask().name()) if ask is not None else ""


def _cores(device: Any, plain_soft: bool) -> int | None:
    """As the device or the system counts them; None if neither does."""
    if plain_soft:
        return binding.soft_threads()
    multiprocessors = binding.cuda_attribute(device, MULTIPROCESSORS)
    return multiprocessors if binding.SOFT else _registry_cores()


def _declared_bandwidth(device: Any) -> float | None:
    """Of an NVIDIA GPU, whose memory transfers twice in a clock."""
    clock, bits = (binding.cuda_attribute(device, n) for n in (MEMORY_CLOCK, BUS_BITS))
    return 2e3 * clock * bits / 8 if clock and bits else None


def _declared_peak(device: Any, lanes: Mapping[int, int], newest: int) -> float | None:
    """Operations per second of an NVIDIA GPU, given the multiply-adds of a multiprocessor."""
    attributes = (CLOCK, MULTIPROCESSORS, CAPABILITY)
    clock, cores, major = (binding.cuda_attribute(device, n) for n in attributes)
    if not clock or not cores or major is None:
        return None
    return 2e3 * clock * cores * lanes.get(major, newest)


def _registry_cores() -> int | None:
    """The number of GPU cores in macOS's IORegistry: some chips are sold with fewer cores."""
    import subprocess

    command = ["/usr/sbin/ioreg", "-a", "-r", "-d", "1", "-c", "AGXAccelerator"]
    try:
        output = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return registry_cores(output)


def registry_cores(output: bytes) -> int | None:
    """The number of cores in ioreg's property list, None if it is missing."""
    import plistlib

    try:
        entries = plistlib.loads(output)
    except (plistlib.InvalidFileException, ValueError):
        return None
    counts = (entry.get("gpu-core-count") for entry in entries)
    return next((count for count in counts if isinstance(count, int) and count > 0), None)
