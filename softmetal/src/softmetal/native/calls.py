"""What the native library (library/messages.c) asks Python for: methods, devices, conversions."""

from __future__ import annotations

import atexit
import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import softmetal
from softmetal import checks, env
from softmetal.api import enums, libdispatch
from softmetal.api.buffer import MTLBuffer
from softmetal.api.device import MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice
from softmetal.api.encoder import MTLComputeCommandEncoder
from softmetal.api.foundation import NSURL, NSData, NSError
from softmetal.api.layer import validation_layer
from softmetal.api.objects import Object
from softmetal.api.pipeline import MTLComputePipelineState
from softmetal.errors import CompileError, ValidationError
from softmetal.executors.cpu import CpuExecutor
from softmetal.native import encoding
from softmetal.types import MAX_BUFFERS, Packed
from softmetal.validation import check_scratch, check_threadgroup_total

__all__ = ["NSURL", "NSData", "NSError", "Object"]

# Messages that the native runtime answers itself.
_RUNTIMES = frozenset(
    """
    retain release autorelease retainCount class superclass self hash respondsToSelector:
    isKindOfClass: isMemberOfClass: conformsToProtocol: performSelector: performSelector:withObject:
    dealloc methodForSelector: methodSignatureForSelector: doesNotRecognizeSelector:
    debugDescription instancesRespondToSelector: isSubclassOfClass: load initialize
    allocWithZone: zone .cxx_construct .cxx_destruct
    """.split()
)
_COMPILE = 13  # the type of the requests that MTLCodeGenServiceBuildRequest gets


def class_named(name: str) -> type | None:
    """The class of softmetal's with this name; None if there is none, or only a protocol."""
    try:
        found = getattr(softmetal, name)
    except AttributeError:
        found = vars(import_module("softmetal.api.counters")).get(name)
    return found if isinstance(found, type) and issubclass(found, Object) else None


def resolve(
    name: str, type_: type | None, selector: str, is_class_method: int
) -> tuple[Callable[..., Any], int, str] | None:
    """The function for a message, whether it takes the receiver, and its signature; None if
    softmetal's class `name` has no such method."""
    kind = type_ or class_named(name)
    method = selector.replace(":", "_")
    if kind is None or selector in _RUNTIMES or not hasattr(kind, method):
        return None
    types = encoding.find((base.__name__ for base in kind.__mro__), selector)
    if types is None:
        return None
    function = _replacements().get(selector) or getattr(kind, method)
    return function, int(not is_class_method), encoding.encoded(types, selector)


# ---- methods that differ from PyObjC's ----


@cache
def _replacements() -> dict[str, Callable[..., Any]]:
    pipelines = "newComputePipelineStateWith{}:options:reflection:error:"
    return {
        pipelines.format("Descriptor"): _pipeline_of_descriptor,
        pipelines.format("Function"): _pipeline_of_function,
        "newLibraryWithData:error:": _library_of_data,
        "newDefaultLibrary": _default_library,
        "newDefaultLibraryWithBundle:error:": _default_library_of_bundle,
    }


def _pipeline_of_descriptor(
    device: MTLDevice, descriptor: Any, options: int, reflection: None, error: None
) -> tuple[Any, Any, Any]:
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    state, problem = make(descriptor, options, None, None)
    return state, state.reflection() if state and options else None, problem


def _pipeline_of_function(
    device: MTLDevice, function: Any, options: int, reflection: None, error: None
) -> tuple[Any, Any, Any]:
    make = device.newComputePipelineStateWithFunction_options_reflection_error_
    state, problem = make(function, options, None, None)
    return state, state.reflection() if state and options else None, problem


def _library_of_data(device: MTLDevice, data: bytes, error: None) -> tuple[Any, Any]:
    return device.newLibraryWithData_error_(data.removesuffix(_END), None)


def _default_library(device: MTLDevice) -> Any:
    return _default_library_of_bundle(device, None, None)[0]


def _default_library_of_bundle(device: MTLDevice, bundle: Any, error: None) -> tuple[Any, Any]:
    """The library beside the program, which is its only bundle."""
    folder = os.path.dirname(os.readlink("/proc/self/exe"))
    return device.newLibraryWithFile_error_(os.path.join(folder, "default.metallib"), None)


# ---- functions ----


def _without_debug_layer() -> None:
    """Native programs find Metal as they do on a Mac, where the layer is off unless asked for. Who
    asks for a checking mode wants to know of more, and can turn the layer off as well."""
    env.validate()
    if not env.strict() & {"validation", "no-validation"} and checks.current() is None:
        given = os.environ.get("SOFTMETAL_STRICT")
        os.environ["SOFTMETAL_STRICT"] = ",".join(filter(None, (given, "no-validation")))


def default_device() -> MTLDevice | None:
    _without_debug_layer()
    return MTLCreateSystemDefaultDevice()


def all_devices() -> list[MTLDevice]:
    _without_debug_layer()
    return list(MTLCopyAllDevices())


_END = b"ENDT"  # the last bytes of Apple's libraries, which clients look for


def compile_request(type_: int, request: bytes) -> tuple[int, bytes]:
    """MTLCodeGenServiceBuildRequest: (0, a header and a library) or (1, the compiler's errors).

    A request is the lengths of a source and of the compiler's arguments, and these two texts.
    """
    if type_ != _COMPILE:
        return 1, f"softmetal knows request {_COMPILE} only, which compiles: not {type_}".encode()
    source_size, arguments_size = struct.unpack_from("<QQ", request)
    source = request[16 : 16 + source_size].rstrip(b"\0").decode()
    arguments = request[16 + source_size :][:arguments_size].rstrip(b"\0").decode()
    options = softmetal.MTLCompileOptions.alloc().init()
    if "-fno-fast-math" in arguments.split():
        options.setFastMathEnabled_(False)
    device = default_device()
    if device is None:
        return 1, b"there is no Metal device"
    found, error = device.newLibraryWithSource_options_error_(source, options, None)
    if found is None:
        return 1, error.localizedDescription().encode() if error else b"not compiled"
    # Words 2 and 3 of the header are lengths of what comes before the library.
    return 0, struct.pack("<8xLL", 16, 0) + bytes(found.libraryDataContents()) + _END


def queue() -> libdispatch.DispatchQueue:
    """The queue on which blocks run that a program wants on a queue of its own."""
    return libdispatch.DispatchQueue("softmetal.native", serial=True)


# ---- errors and the end ----


def explained(problem: BaseException) -> str:
    """An exception as the last line before the process ends."""
    return f"{type(problem).__name__}: {problem}"


def error_of(problem: BaseException) -> NSError:
    domain = enums.MTLLibraryErrorDomain if isinstance(problem, CompileError) else "softmetal"
    return NSError.described(domain, 1, str(problem))


def at_exit() -> None:
    """The interpreter is not ended, as other threads may use it: its handlers run alone."""
    atexit._run_exitfuncs()


# ---- compute encoders, as library/encoder.c keeps them ----

_FACTS = struct.Struct(f"<Q{MAX_BUFFERS}Q{MAX_BUFFERS}Q{MAX_BUFFERS}II{MAX_BUFFERS}B")
_PIPELINE = struct.Struct("<QIIII")
_WANTED = struct.Struct("<QQII")
_WORDS = struct.Struct(f"<{MAX_BUFFERS}Q")
_PLACES = struct.Struct(f"<{MAX_BUFFERS}q")
_SCRATCH = struct.Struct(f"<{MAX_BUFFERS}I")
_UNCHANGED = -2


def encoder_facts(encoder: MTLComputeCommandEncoder) -> bytes:
    """Whether it can encode without Python, and its state."""
    commands = encoder._command_buffer
    executor = commands._queue._executor
    usable = (
        isinstance(executor, CpuExecutor)
        and executor.unified
        and commands._retains
        and not (encoder._ended or commands._played)
        and not validation_layer()
        and checks.current() is None
    )
    lengths = _padded(encoder._threadgroup)
    owned = (owner is not None for owner in _padded(encoder._bound, None))
    state = (*_padded(encoder._addresses), *_padded(encoder._lengths), *lengths)
    return _FACTS.pack(usable, *state, encoder._emptied, *owned)


def _padded(values: Sequence[Any], filler: Any = 0) -> list[Any]:
    return [*values, *[filler] * (MAX_BUFFERS - len(values))]


def buffer_facts(buffer: MTLBuffer) -> bytes:
    return struct.pack("<QQ", buffer._address, buffer._length)


def pipeline_facts(pipeline: MTLComputePipelineState) -> bytes:
    wanted = pipeline._wanted
    counts = (pipeline._buffer_count, pipeline._threadgroup_count, len(wanted))
    head = _PIPELINE.pack(pipeline._kernel, *counts, not pipeline._checked)
    rows = (_WANTED.pack(size, low, index, written) for index, size, low, written in wanted)
    return head + b"".join(rows)


def checks_group(
    pipeline: MTLComputePipelineState, x: int, y: int, z: int, lengths: bytes, emptied: int
) -> bool:
    """Whether threadgroups of this size, with these lengths of memory, are accepted."""
    scratch = struct.unpack(f"<{len(lengths) // 4}I", lengths)
    artifact = pipeline._artifact
    try:
        pipeline._checked_group((x, y, z))
        if scratch:
            check_scratch(artifact.arguments, scratch, artifact.name, emptied)
            static = artifact.static_threadgroup_memory
            check_threadgroup_total(static, scratch, artifact.name, pipeline._memory_limit)
    except ValidationError:
        return False  # the encoder's own method raises it again, and names itself
    return True


def inline_block(encoder: MTLComputeCommandEncoder, size: int) -> int:
    return encoder._command_buffer._inline(bytes(size))


def encoded(
    encoder: MTLComputeCommandEncoder,
    commands: bytes,
    addresses: bytes,
    lengths: bytes,
    changed: bytes,
    scratch: bytes,
    kept: list[Any],
    pipeline: MTLComputePipelineState | None,
    emptied: int,
) -> None:
    """Take over what was encoded without Python."""
    encoder._command_buffer._retained += kept
    if commands:
        encoder._append(Packed(commands))
    encoder._pipeline = pipeline or encoder._pipeline
    encoder._addresses[:] = _WORDS.unpack(addresses)
    encoder._lengths[:] = _WORDS.unpack(lengths)
    encoder._threadgroup[:] = _SCRATCH.unpack(scratch)
    encoder._emptied = emptied
    for index, place in enumerate(_PLACES.unpack(changed)):
        if place != _UNCHANGED:
            encoder._bound[index] = kept[place] if place >= 0 else None
