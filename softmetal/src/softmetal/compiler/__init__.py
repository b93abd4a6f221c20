"""Compiles MSL to native code: libraries are checked at creation, kernels compiled for pipelines.

With a warm cache only this module runs: `building` and everything below it is imported when
something must be compiled.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

from softmetal import env
from softmetal.compiler import serialization
from softmetal.compiler.identity import fingerprint
from softmetal.compiler.native import NativeTarget
from softmetal.compiler.target import Target
from softmetal.errors import CompileError, SoftmetalError
from softmetal.toolchain import disk_cache
from softmetal.types import (
    MAX_SOURCE,
    Argument,
    Artifact,
    CompileOptions,
    Function,
    Mode,
    Program,
)

if TYPE_CHECKING:
    from softmetal.compiler.argument_members import Member
    from softmetal.compiler.regions import Outcome

__all__ = [
    "artifact_from_bytes",
    "artifact_key",
    "artifact_to_bytes",
    "check",
    "check_address_spaces",
    "compile_kernel",
    "compile_library",
    "expanded",
    "language_version",
    "library_from_bytes",
    "library_to_bytes",
    "link",
    "members_of_buffer",
    "native",
    "outcomes",
    "prepare",
    "program_from_bytes",
    "program_to_bytes",
    "unlinked",
]

MAX_MACRO = 30_000  # characters: the system limits a program's arguments to 128 KiB each
_UNFIT = re.compile("[\0\ud800-\udfff]")

program_to_bytes = serialization.to_bytes
program_from_bytes = serialization.from_bytes
link = serialization.link
unlinked = serialization.unlinked


def library_to_bytes(programs: Sequence[Program]) -> bytes:
    return link([serialization.to_bytes(program) for program in programs])


def library_from_bytes(data: bytes) -> tuple[Program, ...]:
    """The programs in library data; raises CompileError."""
    return tuple(map(serialization.from_bytes, unlinked(data)))


def language_version(text: str) -> int:
    """320 for "3.2" or "metal3.2", as __METAL_VERSION__ has it; raises ValueError."""
    found = re.fullmatch(r"(?:macos-)?(?:metal)?([234])\.([0-9])", text)
    if found is None:
        raise ValueError(f"{text!r} is not a version: give 2.0 to 4.0")
    return int(found[1]) * 100 + int(found[2]) * 10


def compile_library(source: str, options: CompileOptions) -> Program:
    """Check a source and find its kernels; raises CompileError with the user's lines."""
    return check(source, options)[0]


def check(source: str, options: CompileOptions) -> tuple[Program, str]:
    """The program of a source, and clang's warnings."""
    _require_text(source, options)
    store = disk_cache.default()
    key = disk_cache.key_of(fingerprint(), source, repr(options))
    entry = store.find("library", key)
    if entry is not None and (found := _read(entry)) is not None:
        return found
    from softmetal.compiler import building

    program, warnings, files = building.front(source, options)

    def fill(folder: Path) -> None:
        (folder / "program").write_bytes(serialization.to_bytes(program))
        (folder / "warnings").write_text(warnings)
        (folder / "files").write_text(json.dumps({str(f): _digest(f) for f in files}))

    if entry is not None:  # stale
        store.discard("library", key)
    store.insert("library", key, fill)
    return program, warnings


def _require_text(source: str, options: CompileOptions) -> None:
    """Raise CompileError for a source or macro that is too long, or that is not Unicode text."""
    for text in (source, options.file_name, *(part for macro in options.macros for part in macro)):
        if text.isascii() and "\0" not in text:  # many times faster than the search
            continue
        if unfit := _UNFIT.search(text):
            line = text.count("\n", 0, unfit.start()) + 1
            column = unfit.start() - text.rfind("\n", 0, unfit.start())
            place = f"{options.file_name}:{line}:{column}: " if text is source else ""
            what = "a NUL character" if unfit[0] == "\0" else f"a lone surrogate {unfit[0]!a}"
            raise CompileError(f"{place}error: {what} is not text: remove it\n")
    if any(len(name) + len(value) > MAX_MACRO for name, value in options.macros):
        raise CompileError(f"error: a preprocessor macro has more than {MAX_MACRO:,} characters\n")
    if len(source) > MAX_SOURCE:
        raise CompileError(
            f"{options.file_name}:1:1: error: the source has {len(source):,} characters: at most "
            f"{MAX_SOURCE:,} are compiled\n"
        )


def expanded(source: str, options: CompileOptions, flags: Sequence[str] = ()) -> str:
    """A source after preprocessing, with all line markers and the text of Metal's headers."""
    from softmetal.compiler import stages

    return stages.expanded(source, options, flags)


def check_address_spaces(source: str, options: CompileOptions) -> str:
    """Warnings about address spaces that Apple's compiler would refuse to mix."""
    from softmetal.compiler import building

    return building.check_address_spaces(source, options)


def outcomes(program: Program) -> Iterator[tuple[str, Outcome]]:
    """How the CPU runs each kernel of a library, by its name; function constants are 0."""
    from softmetal.compiler import native_build

    return native_build.outcomes(program)


def members_of_buffer(program: Program, function: str, buffer: int) -> tuple[str, list[Member]]:
    """The type that a buffer of a kernel holds, and its members; raises ValidationError."""
    from softmetal.compiler.argument_members import members_of

    return members_of(program, function, buffer)


def _digest(file: Path) -> str:
    try:
        return disk_cache.key_of(file.read_bytes()) if file.is_file() else ""
    except (OSError, ValueError):
        return ""


def _read(entry: Path) -> tuple[Program, str] | None:
    """A checked library, unless a header of the user has changed since, or another process that
    made room in the cache has removed the entry between the moment it was found and now."""
    try:
        files = json.loads((entry / "files").read_text())
        if any(_digest(Path(file)) != digest for file, digest in files.items()):
            return None
        program = serialization.from_bytes((entry / "program").read_bytes())
        return program, (entry / "warnings").read_text()
    except FileNotFoundError:
        return None


def prepare(options: CompileOptions) -> None:
    """Begin with the headers that kernels with these options need, on another thread, if the cache
    has none: meanwhile the runtime is built. Raises nothing: what is wrong, a setting or a cache
    that cannot be read, is also wrong for the runtime, which reports it."""

    def build() -> None:
        from softmetal.compiler import building

        with suppress(SoftmetalError, OSError):  # the first kernel tries again, and reports it
            building.unit_header(options)

    with suppress(SoftmetalError, OSError):
        missing = not (disk_cache.default().root / "header").exists()
        if missing and env.device() in ("cpu", "discrete"):
            threading.Thread(target=build, name="softmetal-headers").start()


# ---- kernels ------------------------------------------------------------------------------------


@once
def native() -> NativeTarget:
    """The target that is this machine's processor."""
    return NativeTarget(env.fibers())


def artifact_key(
    program: Program,
    name: str,
    constants: Mapping[int, bytes],
    target: Target,
    checked: bool = False,
) -> str:
    """The key under which a compiled kernel is kept."""
    function = program.functions[name]
    return disk_cache.key_of(
        fingerprint(),
        *target.key,
        *(program.text, repr(program.options), repr(function)),
        *(f"{index}={value.hex()}" for index, value in sorted(constants.items())),
        "checked" if checked else "",
    )


def compile_kernel(
    program: Program,
    name: str,
    constants: Mapping[int, bytes],
    checks: frozenset[str] = frozenset(),
    target: Target | None = None,
) -> Artifact:
    """Generate code for one kernel with its function constants, instrumented if `checks` are on.

    Without a target the code is for this machine's processor.
    """
    target = native() if target is None else target
    function = program.functions.get(name)
    if function is None:
        known = ", ".join(sorted(program.functions)) or "none"
        raise CompileError(f"the library has no kernel '{name}': its kernels are {known}")
    _require_constants(program, function, constants)
    key = artifact_key(program, name, constants, target, bool(checks))
    folder = disk_cache.default().get(
        "kernel", key, lambda path: _build(program, function, constants, bool(checks), target, path)
    )
    return target.describe(function, folder, checks)


def _require_constants(program: Program, function: Function, given: Mapping[int, bytes]) -> None:
    for constant in program.constants:
        needed = constant.required and constant.name in function.constants
        if needed and constant.index not in given:
            raise CompileError(
                f"kernel '{function.name}' uses function constant '{constant.name}' (index "
                f"{constant.index}, {constant.type}), which has no value: set it with "
                "setConstantValue_type_atIndex_"
            )


def _build(
    program: Program,
    function: Function,
    constants: Mapping[int, bytes],
    checked: bool,
    target: Target,
    folder: Path,
) -> None:
    from softmetal.compiler import building

    building.build(program, function, constants, checked, target, folder)


def artifact_to_bytes(artifact: Artifact) -> bytes:
    """A compiled kernel and its description as bytes, for an archive."""
    fields = asdict(artifact)
    for name in ("path", "checks", "check_map"):  # archives contain unchecked code
        del fields[name]
    fields["file"] = artifact.path.name
    return json.dumps(fields).encode() + b"\n" + artifact.path.read_bytes()


def artifact_from_bytes(data: bytes) -> Artifact:
    """The kernel that `artifact_to_bytes` packed; its code goes to the cache."""
    head, _, code = data.partition(b"\n")
    fields = json.loads(head)
    file = Path(fields.pop("file")).name

    def fill(folder: Path) -> None:
        (folder / file).write_bytes(code)

    folder = disk_cache.default().get("kernel", disk_cache.key_of(code), fill)
    arguments = tuple(Argument(**argument) for argument in fields.pop("arguments"))
    mode = Mode(fields.pop("mode"))
    return Artifact(path=folder / file, mode=mode, arguments=arguments, **fields)
