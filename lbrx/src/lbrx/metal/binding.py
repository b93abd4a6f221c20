"""The Metal module of this system: Apple's through PyObjC on a Mac, softmetal elsewhere.

No other module of lbrx imports PyObjC or softmetal.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.errors import DeviceError, LbrxError, SettingError

SOFT = sys.platform != "darwin"
SPACING = 256  # bytes: as parts of heaps and arenas are aligned


def _module(apples: str, ours: str) -> Any:
    return import_module(ours if SOFT else apples)


Metal = _module("Metal", "softmetal")
MPS = _module("MetalPerformanceShaders", "softmetal.mps")
NSURL = _module("Foundation", "softmetal.api.foundation").NSURL
# Command buffers and encoders are autoreleased objects: a thread without a run loop frees them only
# if there is an autorelease pool around their creation.
_objc = _module("objc", "softmetal.api.objc")
autorelease_pool = _objc.autorelease_pool
# Ends with the memory of an object, which the collector's finalisers do not mean; on a Mac too.
AtDeallocation: Any = import_module("softmetal.lifetime").AtDeallocation


# Before a source that lbrx's tests check: softmetal then does not check it again.
CHECKED = "#pragma softmetal checked\n" if SOFT else ""


def _correct_metadata() -> None:
    """Register signatures that PyObjC has wrong, as of 12.2: structures that it declares as
    integers, a block that Metal calls with three arguments where it declares two, and a reflection
    that it takes instead of returning it. All code of the process then gets three values there."""
    nothing, thing, size = ({"type": code} for code in (b"v", b"@", b"{MTLSize=QQQ}"))
    result = {"type": b"^@", "type_modifier": b"o"}
    called_with = {0: {"type": b"^v"}, 1: thing, 2: thing, 3: thing}  # the block itself first
    handler = {"type": b"@?", "callable": {"retval": nothing, "arguments": called_with}}
    corrected: dict[bytes, dict[int, Any]] = {
        b"concurrentDispatchThreads:threadsPerThreadgroup:": {2: size, 3: size},
        b"newComputePipelineStateWithDescriptor:options:completionHandler:": {
            2: thing,
            3: {"type": b"Q"},
            4: handler,
        },
        b"newComputePipelineStateWithDescriptor:options:reflection:error:": {
            2: thing,
            3: {"type": b"Q"},
            4: result,
            5: result,
        },
    }
    for selector, arguments in corrected.items():
        returned = thing if result in arguments.values() else nothing
        metadata = {"required": True, "retval": returned, "arguments": arguments}
        _objc.registerMetaDataForSelector(b"NSObject", selector, metadata)


_correct_metadata()

# The exception of an invalid call: softmetal's validation error, or an Objective-C exception.
CallError: type[Exception] = (
    _module("", "softmetal.errors").SoftmetalError if SOFT else _module("objc", "").error
)
# Of softmetal's settings, which every evaluation asks for.
_checks: Any = _module("", "softmetal.checks") if SOFT else None
_declare_extent: Any = _module("", "softmetal.api.extents").declare_extent if SOFT else None
_soft_env: Any = _module("", "softmetal.env") if SOFT else None


def process_info() -> Any:
    """NSProcessInfo of this process, on a Mac; None elsewhere."""
    return None if SOFT else _module("Foundation", "").NSProcessInfo.processInfo()


def object_address(thing: Any) -> int:
    """The Objective-C object behind one of PyObjC's, on a Mac."""
    address: int = _objc.pyobjc_id(thing)
    return address


def error_of(problem: Exception, text: str) -> LbrxError:
    """The error of lbrx for an exception of Metal's: SettingError if a SOFTMETAL_* variable has an
    invalid value, which its text names, else DeviceError with this text."""
    if SOFT and isinstance(problem, import_module("softmetal.errors").SettingError):
        return SettingError(str(problem))
    return DeviceError(text)


def checking_modes() -> frozenset[str]:
    """The active checking modes of softmetal, which change how a kernel is compiled."""
    modes: frozenset[str] = _setting(_checks.modes) if SOFT else frozenset()
    return modes


def is_checking() -> bool:
    """Whether a checking mode of softmetal is active."""
    return SOFT and _setting(_checks.current) is not None


def _setting(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CallError as problem:
        raise error_of(problem, str(problem)) from problem


def declare_extent(encoder: Any, index: int, length: int) -> None:
    """Tell softmetal's checking modes that kernels may access `length` bytes from its offset on of
    the buffer bound at `index`. Apple's Metal is never told."""
    if SOFT:
        _declare_extent(encoder, index, length)


def spacing() -> int:
    """Bytes between neighbours in a heap or an arena: 0, and in softmetal's checking modes so many
    that a kernel which leaves one does not arrive in another of its arguments."""
    return SPACING if is_checking() else 0


def wires_memory() -> bool:
    """Whether memory must be made resident: on a Mac, and where softmetal plays one. In its
    checking modes everything that is resident counts as within a kernel's reach."""
    return not SOFT or (page_size() == 16 << 10 and not is_checking())


def compiles_singly() -> bool:
    """Whether each kernel of a stem is compiled by itself: on a Mac, and where softmetal plays one.
    softmetal checks no kernel of lbrx's before it is used, so that whole stems take no longer."""
    return not SOFT or page_size() == 16 << 10


def prepare_compiler() -> None:
    """Let softmetal begin to build its headers, for safe maths as lbrx's kernels have, if it has
    none."""
    if SOFT:
        options = import_module("softmetal.types").CompileOptions(fast_math=False)
        import_module("softmetal.compiler").prepare(options)


def chip_table() -> Any:
    """Apple's chips by name. softmetal has the table, and is installed on a Mac too."""
    return import_module("softmetal.chips").chips()


def chip_of_device(name: str, cores: int | None = None) -> Any:
    """The chip of a device by its name and GPU cores, extrapolated if it is newer than the table;
    None if it is not Apple's."""
    return import_module("softmetal.chips").chip_of_device(name, cores)


def modelled_gpu() -> Any:
    """A device that runs nothing and has a GPU's features; only softmetal has one."""
    if not SOFT:
        raise DeviceError("code for other GPUs is made where softmetal is the device: on Linux")
    # SOFTMETAL_STRICT=bridge has an effect from the first use of a name of Metal's on.
    assert Metal.MTLCreateSystemDefaultDevice
    return import_module("softmetal.ahead").modelled_gpu()


def compile_for(function: Any, target: str, output: Path) -> list[Path]:
    """Write the code of a kernel of `modelled_gpu` for this architecture."""
    written: list[Path] = import_module("softmetal.ahead").compile_for(function, target, output)
    return written


def built_archive(device: Any, folder: Path) -> Any:
    """An archive of the code that `compile_for` wrote into a folder; None if the device is not an
    NVIDIA GPU. Raises SettingError for a folder that other users can write."""
    if not SOFT:
        return None
    try:
        return import_module("softmetal.ahead").built_archive(device, folder)
    except CallError as problem:
        raise error_of(problem, str(problem)) from problem


def cuda_device(device: Any) -> int | None:
    """The number of the NVIDIA GPU that a device is; None if it is something else."""
    if not SOFT:
        return None
    number: int | None = import_module("softmetal.interop").cuda_device(device)
    return number


def cuda_attribute(device: Any, attribute: int) -> int | None:
    """An attribute of an NVIDIA GPU, by CUDA's number; None of other devices."""
    if not SOFT:
        return None
    value: int | None = import_module("softmetal.interop").cuda_attribute(device, attribute)
    return value


def cuda_stream(queue: Any) -> int:
    """The CUDA stream of a command queue of such a device."""
    stream: int = import_module("softmetal.interop").cuda_stream(queue)
    return stream


def buffer_over(device: Any, address: int, length: int, owner: object) -> Any:
    """A buffer over memory of an NVIDIA GPU that `owner` keeps alive."""
    return import_module("softmetal.interop").buffer_over(device, address, length, owner)


def page_size() -> int:
    """Bytes of a page of host memory, as Metal counts them; softmetal can play macOS's."""
    strict: frozenset[str] = _setting(_soft_env.strict) if SOFT else frozenset()
    return 16 << 10 if "host" in strict else mmap.PAGESIZE


def soft_threads() -> int:
    """The number of threads that a soft device runs kernels on."""
    threads: int = _setting(_soft_env.threads)
    return threads
