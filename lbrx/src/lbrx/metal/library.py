"""Shaders of the package: compiled on first use, cached in memory and on disk.

A stem such as `sorting` is one Metal library: `sorting.metal` with the headers that it includes. On
a Mac each kernel is a library of its own, since Apple's compiler takes long for a whole stem.
A `sorting-<digest>.metallib` beside the sources is used instead if the device can load it; the
digest is of the sources, so an outdated file is ignored. Compiled pipelines are kept in one binary
archive per library. Code that `lbrx shaders build --target` wrote into LBRX_SHADERS is used where
it fits the sources and the device.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from lbrx import env
from lbrx.compile_notice import compiling
from lbrx.errors import DeviceError
from lbrx.metal import binding
from lbrx.metal.binding import NSURL, CallError, Metal, autorelease_pool
from lbrx.metal.compile_time import CompileCount, SharedTime
from lbrx.metal.instances import StemParts, split
from lbrx.metal.pipeline_archive import PipelineArchive
from lbrx.metal.reflection import KernelArgument, arguments
from lbrx.metal.shader_files import ShaderFiles, shader_text

KERNELS = Path(__file__).parent.parent / "kernels"
SHADERS = ShaderFiles(KERNELS, installed=True)
ARCHIVE_FORMAT = 1  # part of the archives' file names
CODE_SUFFIX = ".ptx"  # of code for NVIDIA GPUs, made by `lbrx shaders build --target`
LANGUAGE = Metal.MTLLanguageVersion3_1  # the newest of macOS 14; the first that has bfloat

ConstantValue = bool | int | float | np.generic
_TYPES = {
    "bool": "MTLDataTypeBool",
    "int16": "MTLDataTypeShort",
    "uint16": "MTLDataTypeUShort",
    "int32": "MTLDataTypeInt",
    "uint32": "MTLDataTypeUInt",
    "float16": "MTLDataTypeHalf",
    "float32": "MTLDataTypeFloat",
}


@dataclass(frozen=True)
class Pipeline:
    """A compiled kernel."""

    name: str  # of its function
    state: Any  # MTLComputePipelineState
    max_threads: int  # per threadgroup
    simd_width: int
    written: frozenset[int] | None = None  # indices of buffers it may write; None is unknown
    checked: bool = False  # by softmetal's checking modes


def shader_files() -> ShaderFiles:
    """What shaders are read from: LBRX_SHADERS, or the package's if that is not set or holds
    compiled code alone."""
    folder = env.shader_dir()
    return SHADERS if folder is None or _holds_code_alone(folder) else ShaderFiles(folder)


def _holds_code_alone(folder: Path) -> bool:
    return not any(folder.rglob("*.metal")) and any(folder.glob(f"*{CODE_SUFFIX}"))


@dataclass(frozen=True)
class PipelineRequest:
    """The arguments of `Shaders.pipeline`."""

    stem: str
    function: str
    constants: tuple[tuple[int, ConstantValue], ...] = ()
    safe_math: bool = True
    source: str | None = None


class Shaders:
    """The libraries and pipelines of one device. Thread-safe."""

    def __init__(self, device: Any, cache: Path, folder: Path | None = None) -> None:
        self._device = device
        self._cache = cache / "pipelines"
        self._files = shader_files() if folder is None else ShaderFiles(folder)
        self._built = _built_code(device, env.shader_dir() if folder is None else folder)
        self._lock = threading.Lock()
        self._gates: dict[object, threading.Lock] = {}  # one lock per library and pipeline
        self._libraries: dict[tuple[str, str | None, bool], _Library] = {}
        self._pipelines: dict[object, Pipeline] = {}
        self._making = SharedTime()

    @property
    def compiled(self) -> CompileCount:
        """The kernels that were compiled so far, and the time that making pipelines took."""
        with self._lock:
            kernels = sum(library.compiled for library in self._libraries.values())
        return CompileCount(kernels, self._making.seconds)

    def pipeline(
        self,
        stem: str,
        function: str,
        constants: Mapping[int, ConstantValue] | None = None,
        *,
        safe_math: bool = False,
        source: str | None = None,
    ) -> Pipeline:
        """The kernel `function` of a stem; `constants` are its function constants by index.

        A Python int becomes a `uint` constant and a float a `float`: give numpy scalars for other
        types. `safe_math` respects NaN and infinity. `source` is the text of a shader that may
        include the package's headers; the stem is then only its name.
        """
        given = tuple(sorted((constants or {}).items()))
        return self.compiled_for(PipelineRequest(stem, function, given, safe_math, source))

    def compiled_for(self, request: PipelineRequest) -> Pipeline:
        """The pipeline of a request, compiled at the first one."""
        key = _pipeline_key(request)
        found = self._pipelines.get(key)
        if found is not None:
            return found
        with self._gate(key), autorelease_pool():
            if key not in self._pipelines:
                try:
                    with self._making.running():
                        library = self._library(request.stem, request.source, request.safe_math)
                        self._pipelines[key] = library.pipeline(request.function, request.constants)
                except CallError as refusal:
                    raise binding.error_of(refusal, f"{request.stem}.metal: {refusal}") from refusal
            return self._pipelines[key]

    def compile_all(self, requests: Sequence[PipelineRequest]) -> list[Pipeline]:
        """The pipelines of requests; those that are not yet compiled are, side by side."""
        known = self._pipelines
        keys = [_pipeline_key(request) for request in requests]
        missing = {k: each for k, each in zip(keys, requests, strict=True) if k not in known}
        if len(missing) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as workers:
                list(workers.map(self.compiled_for, missing.values()))
        pairs = zip(keys, requests, strict=True)
        return [known[key] if key in known else self.compiled_for(each) for key, each in pairs]

    def compile_for(self, request: PipelineRequest, target: str, output: Path) -> list[Path]:
        """Write a kernel's code for another GPU, without its suffix; returns the files."""
        try:
            library = self._library(request.stem, request.source, request.safe_math)
            function = library.function(request.function, request.constants)
            return binding.compile_for(function, target, output)
        except CallError as refusal:
            raise binding.error_of(refusal, f"{request.stem}.metal: {refusal}") from refusal

    def functions(
        self, stem: str, *, source: str | None = None, safe_math: bool = False
    ) -> list[str]:
        """The kernels of a stem, or of a source of that name."""
        return sorted(map(str, self._library(stem, source, safe_math).library.functionNames()))

    def arguments(
        self, stem: str, function: str, *, source: str | None = None, safe_math: bool = False
    ) -> list[KernelArgument]:
        """The arguments of a kernel."""
        library = self._library(stem, source, safe_math).library
        return arguments(self._device, library.newFunctionWithName_(function))

    def plain_functions(self, stem: str) -> list[str]:
        """The kernels of a stem that have no function constants."""
        library = self._library(stem, None, False).library
        # Metal may refuse a function here whose required constants have no values.
        functions = ((n, library.newFunctionWithName_(n)) for n in self.functions(stem))
        return [n for n, made in functions if made and not made.functionConstantsDictionary()]

    def stems(self) -> list[str]:
        """The names of the shaders, without their ending."""
        return self._files.stems()

    def text(self, stem: str) -> str:
        """The source of a stem with its headers."""
        return shader_text(self._files, f"{stem}.metal")

    def save(self) -> None:
        """Write the archives that have new pipelines."""
        with self._lock:
            libraries = list(self._libraries.values())
        for library in libraries:
            library.archive.save()

    def _gate(self, key: object) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(key, threading.Lock())

    def _library(self, stem: str, source: str | None, safe_math: bool) -> _Library:
        key = (stem, source, safe_math)
        with self._gate(key):
            if key not in self._libraries:
                text = shader_text(self._files, f"{stem}.metal", source)
                pinned = source is None or isinstance(source, OwnSource)
                if source is None and self._files is SHADERS:
                    text = generated(text)
                own = source is None and self._files is SHADERS
                singly = own and binding.compiles_singly()
                made = _Library(
                    *(self._device, self._files, stem, text, safe_math, self._cache, self._built),
                    pinned=pinned,
                    parts=split(text, f"{stem}.metal") if singly else None,
                )
                with self._lock:
                    self._libraries[key] = made
            return self._libraries[key]


class OwnSource(str):
    """A source as lbrx's own, in its version of the language."""

    __slots__ = ()


def generated(text: str) -> str:
    """A source as lbrx's own, which its tests check, so that not every first use does. Not for one
    that has text of a user in it."""
    return OwnSource(binding.CHECKED + text)


def digest(source: str, safe_math: bool) -> str:
    """A short hash of a source and its maths mode, for file names."""
    return blake2b(f"{safe_math} {source}".encode(), digest_size=8).hexdigest()


class _Library:
    """The kernels of a stem: an MTLLibrary, or one for each with `parts`, and the archive of their
    pipelines."""

    def __init__(
        self,
        device: Any,
        files: ShaderFiles,
        stem: str,
        source: str,
        safe_math: bool,
        cache: Path,
        built: Any = None,
        pinned: bool = True,
        parts: StemParts | None = None,
    ) -> None:
        self._device = device
        self._built = built  # an archive of code that was compiled elsewhere
        self._source, self._safe_math, self._pinned = source, safe_math, pinned
        self._stem = stem
        self._parts = parts
        self._singles: dict[str, Any] = {}  # libraries of one kernel
        key = digest(source, safe_math)
        self._whole = _prebuilt(device, metallib(files, stem, key))
        if self._whole is not None:
            self._parts = None
        elif parts is None:
            self._whole = self._compiled(source, f"{stem}.metal")
        self._lock = threading.Lock()
        self.archive = PipelineArchive(device, cache / f"{stem}-{key}-{_place(device)}.archive")
        self.compiled = 0  # pipelines that were not in the archive

    def _compiled(self, source: str, what: str) -> Any:
        with compiling(what):
            return _compiled(self._device, self._stem, source, self._safe_math, self._pinned)

    @property
    def library(self) -> Any:
        """The library with all kernels."""
        with self._lock:
            if self._whole is None:
                self._whole = self._compiled(self._source, f"{self._stem}.metal")
            return self._whole

    def _holding(self, name: str) -> Any:
        """A library that has a kernel, if the stem does."""
        if self._parts is None:
            return self.library
        single = name if name in self._parts.instances else ""  # others are no templates
        if single not in self._singles:
            source = self._parts.text_of(single)
            self._singles[single] = self._compiled(source, f"{name} of {self._stem}.metal")
        return self._singles[single]

    def pipeline(self, name: str, constants: tuple[tuple[int, ConstantValue], ...]) -> Pipeline:
        descriptor = Metal.MTLComputePipelineDescriptor.alloc().init()
        descriptor.setComputeFunction_(self.function(name, constants))
        descriptor.setLabel_(name)
        descriptor.setSupportIndirectCommandBuffers_(True)  # replays need it
        state, written = self._state(descriptor, name)
        return Pipeline(
            name,
            state,
            int(state.maxTotalThreadsPerThreadgroup()),
            int(state.threadExecutionWidth()),
            written,
            bool(binding.checking_modes()),
        )

    def function(self, name: str, constants: tuple[tuple[int, ConstantValue], ...]) -> Any:
        library = self._holding(name)
        if not constants:
            function, problem = library.newFunctionWithName_(name), None
        else:
            function, problem = library.newFunctionWithName_constantValues_error_(
                name, _constant_values(constants), None
            )
        if function is None:
            found = sorted(map(str, self.library.functionNames()))
            known = ", ".join(found) or "none: a template is one when it is instantiated"
            reason = _description(problem) if problem is not None else f"it has {known}"
            raise DeviceError(f"no kernel {name} in {self._stem}.metal: {reason}")
        return function

    def _state(self, descriptor: Any, name: str) -> tuple[Any, frozenset[int] | None]:
        """From the archive, else compiled and added to it; with the buffers that it writes."""
        # Kernels instrumented by softmetal's checking modes must not get into archives.
        use_archive = not binding.checking_modes()
        if use_archive:
            archive = self.archive.opened()  # None if the device has no archives
            descriptor.setBinaryArchives_([a for a in (self._built, archive) if a is not None])
            only_archive = Metal.MTLPipelineOptionFailOnBinaryArchiveMiss
            state, reflection, _ = self._make(descriptor, only_archive)
            if state is not None:
                return state, _written(reflection)
        with compiling(f"{name} of {self._stem}.metal"):
            state, reflection, problem = self._make(descriptor, Metal.MTLPipelineOptionNone)
        if state is None:
            raise DeviceError(f"kernel {name} does not compile: {_description(problem)}")
        self.compiled += 1
        if use_archive and archive is not None:
            self.archive.keep(descriptor)
        return state, _written(reflection)

    def _make(self, descriptor: Any, options: int) -> tuple[Any, Any, Any]:
        """The state, its reflection and an error. Before macOS 26 only this call reflects."""
        make = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_
        reflected: int = Metal.MTLPipelineOptionBindingInfo
        state, reflection, problem = make(descriptor, options | reflected, None, None)
        return state, reflection, problem


def _built_code(device: Any, folder: Path | None) -> Any:
    """An archive of the code for this device in a folder; None if there is none."""
    if folder is None or not any(folder.glob(f"*{CODE_SUFFIX}")):
        return None
    return binding.built_archive(device, folder)


def _written(reflection: Any) -> frozenset[int] | None:
    """Indices of the buffers that are not read-only; None if they are not known."""
    if reflection is None:
        return None
    return frozenset(
        int(argument.index())
        for argument in reflection.bindings()
        if argument.type() == Metal.MTLBindingTypeBuffer
        and argument.access() != Metal.MTLBindingAccessReadOnly
    )


def _pipeline_key(request: PipelineRequest) -> tuple[object, ...]:
    """What tells pipelines apart: constants are equal only if their types are."""
    return (
        *(request.stem, request.source, request.function, _typed(request.constants)),
        *(request.safe_math, binding.checking_modes()),
    )


def distinct(requests: Iterable[PipelineRequest]) -> list[PipelineRequest]:
    """The requests, each pipeline once."""
    return list({_pipeline_key(each): each for each in requests}.values())


def _typed(
    constants: tuple[tuple[int, ConstantValue], ...],
) -> tuple[tuple[int, str, ConstantValue], ...]:
    """The constants with their types, because 1, 1.0 and True are equal as dictionary keys."""
    return tuple((index, type(value).__name__, value) for index, value in constants)


def metallib(files: ShaderFiles, stem: str, key: str) -> Path | None:
    """Where the prebuilt library of a source with this digest is; None for one without a file."""
    source = files.find(f"{stem}.metal")
    return None if source is None else source.with_name(f"{stem}-{key}.metallib")


def _prebuilt(device: Any, path: Path | None) -> Any:
    """The prebuilt library, or None if there is none that this device can load."""
    if path is None or not path.exists():
        return None
    library, _ = device.newLibraryWithURL_error_(NSURL.fileURLWithPath_(str(path)), None)
    return library


def compiled_source(
    device: Any, source: str, safe_math: bool, pinned: bool = True
) -> tuple[Any, str]:
    """The library of a source, None if it does not compile, and the compiler's diagnostics. It is
    in lbrx's version of the language if `pinned`, else in the newest that macOS has."""
    options = Metal.MTLCompileOptions.alloc().init()
    if pinned:
        options.setLanguageVersion_(LANGUAGE)
    set_mode = getattr(options, "setMathMode_", None)  # since macOS 15
    if set_mode is None:
        options.setFastMathEnabled_(not safe_math)
    else:
        set_mode(Metal.MTLMathModeSafe if safe_math else Metal.MTLMathModeFast)
    library, problem = device.newLibraryWithSource_options_error_(source, options, None)
    if library is not None and problem is None:
        return library, ""
    return library, _description(problem)


def _compiled(device: Any, stem: str, source: str, safe_math: bool, pinned: bool) -> Any:
    library, text = compiled_source(device, source, safe_math, pinned)
    if library is None:
        raise DeviceError(f"{stem}.metal does not compile:\n{text}")
    return library


def _constant_values(constants: tuple[tuple[int, ConstantValue], ...]) -> Any:
    values = Metal.MTLFunctionConstantValues.alloc().init()
    for index, value in constants:
        scalar = _scalar(value)
        name = _TYPES.get(scalar.dtype.name)
        if name is None:
            raise DeviceError(
                f"function constant {index} of type {scalar.dtype}: pass a 32-bit one"
            )
        data = ctypes.create_string_buffer(scalar.tobytes())
        # PyObjC does not know the length of this argument, so it takes an address.
        values.setConstantValue_type_atIndex_(ctypes.addressof(data), getattr(Metal, name), index)
    return values


def _scalar(value: ConstantValue) -> np.generic:
    if isinstance(value, np.generic):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    return np.uint32(value) if isinstance(value, int) else np.float32(value)


def _place(device: Any) -> str:
    """The device's name as part of a file name: an archive is for one kind of device."""
    name = re.sub(r"[^a-z0-9]+", "-", str(device.name()).lower()).strip("-")
    return f"{name}-{ARCHIVE_FORMAT}"


def _description(error: Any) -> str:
    return str(error.localizedDescription()) if error is not None else "no reason given"
