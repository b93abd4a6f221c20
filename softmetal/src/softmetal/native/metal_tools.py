"""Stand-ins for `metal`, `metallib` and `xcrun`, with which builds compile kernels ahead.

They write libraries in softmetal's format. Where Apple's `metal` makes code for GPUs, this one
checks the source.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softmetal import compiler
from softmetal.compiler.identity import PACKAGE
from softmetal.errors import CompileError, SoftmetalError
from softmetal.native import building
from softmetal.types import CompileOptions

# Options of `metal` whose value is an argument of its own; the others that it does not know here
# (warnings, optimisation, targets) change nothing.
_WITH_VALUE = frozenset(
    "-o -I -D -U -x -include -isystem -isysroot -target -arch -L -l -MF -MT -MQ -framework "
    "-working-directory --target".split()
)
_FAST = {"-ffast-math": True, "-fno-fast-math": False, "-fmetal-math-mode=fast": True,
         "-fmetal-math-mode=relaxed": True, "-fmetal-math-mode=safe": False}  # fmt: skip
_VERSION = CompileOptions().language_version
_LIBRARY = (".air", ".metallib", ".metalar")
_ENTERED = re.compile(r'^# \d+ "((?:[^"\\\n]|\\.)*)" ([12])', re.MULTILINE)
_MARKER = re.compile(r'^# \d+ ".*\n?', re.MULTILINE)


@dataclass
class _Settings:
    """What the command line of `metal` says."""

    inputs: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    macros: list[tuple[str, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # headers of -include
    output: str = ""
    fast_math: bool = True
    version: int = _VERSION
    flags: set[str] = field(default_factory=set)  # -c -E -P -C -CC -H -w

    def options(self, file: str) -> CompileOptions:
        return CompileOptions(
            fast_math=self.fast_math,
            macros=tuple(self.macros),
            include_dirs=(os.path.dirname(file) or ".", *self.include),
            language_version=self.version,
            file_name=file,
        )


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value, and each input as an option without a name."""
    rest = iter(arguments)
    for each in rest:
        if not each.startswith("-") or each == "-":
            yield "", each
        elif each in _WITH_VALUE:
            yield each, next(rest, "")
        elif each[:2] in ("-I", "-D", "-U", "-L", "-l"):
            yield each[:2], each[2:]
        elif each.startswith("-std="):
            yield "-std", each[5:]
        else:
            yield each, ""


def _settings(arguments: Sequence[str]) -> _Settings:
    found = _Settings()
    for name, value in _split(arguments):
        if not name:
            found.inputs.append(value)
        elif name in ("-I", "-isystem"):
            found.include.append(value)
        elif name == "-D":
            macro, equals, text = value.partition("=")
            found.macros.append((macro, text if equals else "1"))
        elif name == "-include":
            found.before.append(value)
        elif name == "-o":
            found.output = value
        elif name == "-std":
            try:
                found.version = compiler.language_version(value)
            except ValueError as problem:
                raise SoftmetalError(f"-std: {problem}") from None
        elif name in _FAST:
            found.fast_math = _FAST[name]
        else:
            found.flags.add(name)
    if not found.inputs:
        raise SoftmetalError("no input files")
    return found


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as problem:
        raise SoftmetalError(f"cannot read {path}: {problem.strerror}") from None


def _write(path: str, data: bytes) -> None:
    if path in ("", "-"):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        Path(path).write_bytes(data)
    except OSError as problem:
        raise SoftmetalError(f"cannot write {path}: {problem.strerror}") from None


def _source(path: str, settings: _Settings) -> str:
    try:
        text = _read(path).decode()
    except UnicodeDecodeError as problem:
        raise SoftmetalError(f"{path} is not UTF-8: {problem}") from None
    before = "".join(f'#include "{header}"\n' for header in settings.before)
    return f'{before}#line 1 "{path}"\n{text}' if before else text


def _named(path: str) -> str:
    return "<stdin>" if path == "-" else path


def _compiled(path: str, settings: _Settings) -> list[bytes]:
    """The programs of a source, or of a library."""
    if path.endswith(_LIBRARY):
        return compiler.unlinked(_read(path))
    options = settings.options(_named(path))
    program, warnings = compiler.check(_source(path, settings), options)
    if warnings and "-w" not in settings.flags:
        print(warnings.rstrip(), file=sys.stderr)
    return [compiler.program_to_bytes(program)]


def _linked(parts: Sequence[bytes]) -> bytes:
    """One library; a kernel's name may be there once."""
    seen: set[str] = set()
    for part in parts:
        for name in compiler.program_from_bytes(part).functions:
            if name in seen:
                raise SoftmetalError(f"two of the libraries have a kernel `{name}`")
            seen.add(name)
    return compiler.link(parts)


def _preprocessed(path: str, settings: _Settings) -> str:
    """The text of -E. With -H standard error lists the headers as clang does, without Metal's."""
    keep = [flag for flag in ("-C", "-CC") if flag in settings.flags]
    options = settings.options(_named(path))
    text = compiler.expanded(_source(path, settings), options, keep)
    if "-H" in settings.flags:
        depth = 0
        for name, direction in _ENTERED.findall(text):
            depth += 1 if direction == "1" else -1
            if direction == "1" and not name.startswith((str(PACKAGE), "<")):
                print("." * depth, name, file=sys.stderr)
    return _MARKER.sub("", text) if "-P" in settings.flags else text


def metal(arguments: Sequence[str]) -> None:
    """`metal -c FILE -o FILE.air`, `metal FILES -o LIBRARY`, or `metal -E FILE`."""
    if "--version" in arguments:
        print(f"softmetal: Metal {_VERSION // 100}.{_VERSION // 10 % 10}")
        return
    settings = _settings(arguments)
    if "-E" in settings.flags:
        text = "".join(_preprocessed(path, settings) for path in settings.inputs)
        _write(settings.output, text.encode())
        return
    if "-c" in settings.flags and not settings.output:
        for path in settings.inputs:
            _write(f"{Path(path).stem}.air", compiler.link(_compiled(path, settings)))
        return
    parts = [part for path in settings.inputs for part in _compiled(path, settings)]
    _write(settings.output or "default.metallib", _linked(parts))


def metallib(arguments: Sequence[str]) -> None:
    """`metallib FILES -o LIBRARY`."""
    settings = _settings(arguments)
    parts = [part for path in settings.inputs for part in compiler.unlinked(_read(path))]
    _write(settings.output or "default.metallib", _linked(parts))


_SHOWN = {
    "--show-sdk-version": building.MACOS,
    "--show-sdk-build-version": building.MACOS,
    "--show-sdk-path": str(building.INCLUDE),
    "--version": "xcrun of softmetal",
}


def xcrun(arguments: Sequence[str]) -> None:
    """Options of an SDK mean nothing; `-find TOOL` tells a path, and a tool is run."""
    rest, find = list(arguments), False
    while rest and rest[0].startswith("-"):
        option = rest.pop(0).replace("--", "-")
        if option in ("-sdk", "-toolchain"):
            rest[:1] = []
        elif f"-{option}" in _SHOWN:
            print(_SHOWN[f"-{option}"])
            return
        find = find or option in ("-f", "-find")
    if not rest:
        raise SoftmetalError("xcrun: no tool is named")
    path = shutil.which(rest[0], path=f"{building.build()}:{os.environ.get('PATH', '')}")
    if path is None:
        raise SoftmetalError(f"xcrun: softmetal has no tool {rest[0]}")
    if find:
        print(path)
    elif rest[0] in _TOOLS:
        _TOOLS[rest[0]](rest[1:])
    else:
        os.execv(path, [path, *rest[1:]])


_TOOLS: dict[str, Callable[[Sequence[str]], None]] = {
    "metal": metal,
    "metallib": metallib,
    "xcrun": xcrun,
}


def main() -> int:
    """`python -m softmetal.native.metal_tools TOOL ARGUMENTS`."""
    try:
        _TOOLS[sys.argv[1]](sys.argv[2:])
    except CompileError as problem:
        print(problem.diagnostics.rstrip(), file=sys.stderr)
        return 1
    except SoftmetalError as problem:
        print(f"{sys.argv[1]}: error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
