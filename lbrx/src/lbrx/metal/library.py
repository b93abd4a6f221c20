"""Shaders of the package: compiled on first use, cached in memory and on disk.

A stem such as `sorting` is one Metal library: `sorting.metal` with the headers that it includes.
A `sorting-<digest>.metallib` beside the sources is used instead if the device can load it; the
digest is of the sources, so an outdated file is ignored. Compiled pipelines are kept in one binary
archive per library. Code that `lbrx shaders build --target` wrote into LBRX_SHADERS is used where
it fits the sources and the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from lbrx import env
from lbrx.errors import DeviceError
from lbrx.metal import binding
from lbrx.metal.binding import NSURL, CallError, Metal, autorelease_pool
from lbrx.metal.reflection import KernelArgument, arguments

SHADERS = Path(__file__).parent.parent / "shaders"  # of the package
ARCHIVE_FORMAT = 1  # part of the archives' file names
MAX_THREADS, SIMD_WIDTH = 1024, 32  # of pipelines that are only listed
CODE_SUFFIX = ".ptx"  # of code for NVIDIA GPUs, made by `lbrx shaders build --target`
SAVE_EVERY = 32  # new pipelines, so that a killed process loses few

ConstantValue = bool | int | float | np.generic
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
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


def shader_folder() -> Path:
    """The folder that shaders are read from: LBRX_SHADERS, or the package's if that is not set or
    holds compiled code alone."""
    given = env.shader_dir()
    return SHADERS if given is None or _holds_code_alone(given) else given


def _holds_code_alone(folder: Path) -> bool:
    return not any(folder.glob("*.metal")) and any(folder.glob(f"*{CODE_SUFFIX}"))


@dataclass(frozen=True)
class PipelineRequest:
    """The arguments of `Shaders.pipeline`."""

    stem: str
    function: str
    constants: tuple[tuple[int, ConstantValue], ...] = ()
    safe_math: bool = True
    source: str | None = None


_requests: ContextVar[dict[PipelineRequest, None] | None] = ContextVar("requests", default=None)


@contextmanager
def listing_pipelines() -> Iterator[dict[PipelineRequest, None]]:
    """A context within which pipelines that this thread requests are listed and not compiled. The
    queue drops this thread's commands meanwhile."""
    requests: dict[PipelineRequest, None] = {}
    token = _requests.set(requests)
    try:
        yield requests
    finally:
        _requests.reset(token)


def lists_pipelines() -> bool:
    """Whether this thread is within `listing_pipelines`."""
    return _requests.get() is not None


@dataclass(frozen=True)
class CompileCount:
    """How many kernels were compiled, and in how many seconds."""

    kernels: int = 0
    seconds: float = 0.0


class Shaders:
    """The libraries and pipelines of one device. Thread-safe."""

    def __init__(self, device: Any, cache: Path, folder: Path | None = None) -> None:
        self._device = device
        self._cache = cache / "pipelines"
        self._folder = shader_folder() if folder is None else folder
        self._built = _built_code(device, env.shader_dir() if folder is None else folder)
        self._lock = threading.Lock()
        self._gates: dict[object, threading.Lock] = {}  # one lock per library and pipeline
        self._libraries: dict[tuple[str, str | None, bool], _Library] = {}
        self._pipelines: dict[object, Pipeline] = {}
        self._seconds = 0.0  # spent making pipelines

    @property
    def compiled(self) -> CompileCount:
        """The kernels that were compiled so far, and the time that making pipelines took."""
        with self._lock:
            kernels = sum(library.compiled for library in self._libraries.values())
            return CompileCount(kernels, self._seconds)

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
        requests = _requests.get()
        if requests is not None:
            requests[PipelineRequest(stem, function, given, safe_math, source)] = None
            return Pipeline(function, None, MAX_THREADS, SIMD_WIDTH)
        key = (stem, source, function, _typed(given), safe_math, binding.checking_modes())
        found = self._pipelines.get(key)
        if found is not None:
            return found
        with self._gate(key), autorelease_pool():
            if key not in self._pipelines:
                began = time.perf_counter()
                try:
                    library = self._library(stem, source, safe_math)
                    self._pipelines[key] = library.pipeline(function, given)
                except CallError as refusal:
                    raise binding.error_of(refusal, f"{stem}.metal: {refusal}") from refusal
                with self._lock:
                    self._seconds += time.perf_counter() - began
            return self._pipelines[key]

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
        return sorted(path.stem for path in self._folder.glob("*.metal"))

    def text(self, stem: str) -> str:
        """The source of a stem with its headers."""
        return shader_text(self._folder, f"{stem}.metal")

    def save(self) -> None:
        """Write the archives that have new pipelines."""
        with self._lock:
            libraries = list(self._libraries.values())
        for library in libraries:
            library.save()

    def _gate(self, key: object) -> threading.Lock:
        with self._lock:
            return self._gates.setdefault(key, threading.Lock())

    def _library(self, stem: str, source: str | None, safe_math: bool) -> _Library:
        key = (stem, source, safe_math)
        with self._gate(key):
            if key not in self._libraries:
                text = shader_text(self._folder, f"{stem}.metal", source)
                made = _Library(
                    *(self._device, self._folder, stem, text, safe_math, self._cache, self._built)
                )
                with self._lock:
                    self._libraries[key] = made
            return self._libraries[key]


def shader_text(
    folder: Path, name: str, text: str | None = None, seen: set[str] | None = None
) -> str:
    """A shader with the headers of its folder inserted, each once: Metal's run-time compiler does
    not search folders. `text` is the shader's source; without it the file is read."""
    seen = set() if seen is None else seen
    if name in seen:
        return ""
    seen.add(name)
    body = _read(folder / name) if text is None else text

    def included(match: re.Match[str]) -> str:
        following = body.count("\n", 0, match.start()) + 2
        inner = shader_text(folder, match[1], None, seen)
        return f'{inner}\n#line {following} "{name}"'

    return f'#line 1 "{name}"\n' + _INCLUDE.sub(included, body)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as problem:
        raise DeviceError(f"the shader {path} cannot be read: {problem}") from problem


def digest(source: str, safe_math: bool) -> str:
    """A short hash of a source and its maths mode, for file names."""
    return blake2b(f"{safe_math} {source}".encode(), digest_size=8).hexdigest()


class _Library:
    """An MTLLibrary and the archive of its pipelines."""

    def __init__(
        self,
        device: Any,
        folder: Path,
        stem: str,
        source: str,
        safe_math: bool,
        cache: Path,
        built: Any = None,
    ) -> None:
        self._device = device
        self._built = built  # an archive of code that was compiled elsewhere
        key = digest(source, safe_math)
        self.library = _prebuilt(device, folder / f"{stem}-{key}.metallib")
        if self.library is None:
            self.library = _compiled(device, stem, source, safe_math)
        self._stem = stem
        self._path = cache / f"{stem}-{key}-{_place(device)}.archive"
        self._lock = threading.Lock()
        self._archive: Any = None
        self._new = 0  # pipelines that are not in the file yet
        self.compiled = 0  # pipelines that were not in the archive

    def pipeline(self, name: str, constants: tuple[tuple[int, ConstantValue], ...]) -> Pipeline:
        descriptor = Metal.MTLComputePipelineDescriptor.alloc().init()
        descriptor.setComputeFunction_(self.function(name, constants))
        descriptor.setLabel_(name)
        descriptor.setSupportIndirectCommandBuffers_(True)  # replays need it
        state = self._state(descriptor, name)
        return Pipeline(
            name,
            state,
            int(state.maxTotalThreadsPerThreadgroup()),
            int(state.threadExecutionWidth()),
            _written(state),
        )

    def function(self, name: str, constants: tuple[tuple[int, ConstantValue], ...]) -> Any:
        if not constants:
            function, problem = self.library.newFunctionWithName_(name), None
        else:
            function, problem = self.library.newFunctionWithName_constantValues_error_(
                name, _constant_values(constants), None
            )
        if function is None:
            found = sorted(map(str, self.library.functionNames()))
            known = ", ".join(found) or "none: a template is one when it is instantiated"
            reason = _description(problem) if problem is not None else f"it has {known}"
            raise DeviceError(f"no kernel {name} in {self._stem}.metal: {reason}")
        return function

    def _state(self, descriptor: Any, name: str) -> Any:
        """From the archive, else compiled and added to it."""
        # Kernels instrumented by softmetal's checking modes must not get into archives.
        use_archive = not binding.checking_modes()
        if use_archive:
            archive = self._opened()
            descriptor.setBinaryArchives_([a for a in (self._built, archive) if a is not None])
            only_archive = Metal.MTLPipelineOptionFailOnBinaryArchiveMiss
            state, _ = self._make(descriptor, only_archive)
            if state is not None:
                return state
        state, problem = self._make(descriptor, Metal.MTLPipelineOptionNone)
        if state is None:
            raise DeviceError(f"kernel {name} does not compile: {_description(problem)}")
        self.compiled += 1
        if use_archive:
            self._add(archive, descriptor)
        return state

    def _make(self, descriptor: Any, options: int) -> tuple[Any, Any]:
        make = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_
        state, problem = make(descriptor, options, None, None)
        return state, problem

    def _opened(self) -> Any:
        """The archive of the file if it can be loaded, else an empty one."""
        with self._lock:
            if self._archive is None and self._path.exists():
                self._archive = self._new_archive(NSURL.fileURLWithPath_(str(self._path)))
            if self._archive is None:
                self._archive = self._new_archive(None)
            return self._archive

    def _new_archive(self, url: Any) -> Any:
        descriptor = Metal.MTLBinaryArchiveDescriptor.alloc().init()
        descriptor.setUrl_(url)
        archive, _ = self._device.newBinaryArchiveWithDescriptor_error_(descriptor, None)
        return archive

    def _add(self, archive: Any, descriptor: Any) -> None:
        with self._lock:
            added, _ = archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)
            self._new += bool(added)
            full = self._new >= SAVE_EVERY
        if full:
            self.save()

    def save(self) -> None:
        """Write the archive to a temporary file and rename it, so that no process sees a part.

        If two processes save at once, the last one wins. If the file cannot be written, the next
        process only has to compile again.
        """
        with self._lock, contextlib.suppress(OSError):
            if not self._new:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._path.parent) as folder:
                aside = Path(folder) / "archive"
                url = NSURL.fileURLWithPath_(str(aside))
                written, _ = self._archive.serializeToURL_error_(url, None)
                if written:
                    os.replace(aside, self._path)
            self._new = 0


def _built_code(device: Any, folder: Path | None) -> Any:
    """An archive of the code for this device in a folder; None if there is none."""
    if folder is None or not any(folder.glob(f"*{CODE_SUFFIX}")):
        return None
    return binding.built_archive(device, folder)


def _written(state: Any) -> frozenset[int] | None:
    """Indices of the buffers that are not read-only. Pipeline states tell since macOS 26."""
    ask = getattr(state, "reflection", None)
    reflection = ask() if ask is not None else None
    if reflection is None:
        return None
    return frozenset(
        int(argument.index())
        for argument in reflection.bindings()
        if argument.type() == Metal.MTLBindingTypeBuffer
        and argument.access() != Metal.MTLBindingAccessReadOnly
    )


def _typed(
    constants: tuple[tuple[int, ConstantValue], ...],
) -> tuple[tuple[int, str, ConstantValue], ...]:
    """The constants with their types, because 1, 1.0 and True are equal as dictionary keys."""
    return tuple((index, type(value).__name__, value) for index, value in constants)


def _prebuilt(device: Any, path: Path) -> Any:
    """The prebuilt library, or None if there is none that this device can load."""
    if not path.exists():
        return None
    library, _ = device.newLibraryWithURL_error_(NSURL.fileURLWithPath_(str(path)), None)
    return library


def compiled_source(device: Any, source: str, safe_math: bool) -> tuple[Any, str]:
    """The library of a source, None if it does not compile, and the compiler's diagnostics."""
    options = Metal.MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(not safe_math)
    library, problem = device.newLibraryWithSource_options_error_(source, options, None)
    if library is not None and problem is None:
        return library, ""
    return library, _description(problem)


def _compiled(device: Any, stem: str, source: str, safe_math: bool) -> Any:
    library, text = compiled_source(device, source, safe_math)
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
