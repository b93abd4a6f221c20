"""Compiles what is not in the cache: a source to a program, and a kernel to a target's code."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from softmetal.compiler import diagnostics, directives, frontend, host_access, stages, strict
from softmetal.compiler.identity import INCLUDE, fingerprint
from softmetal.compiler.strict import overloads
from softmetal.compiler.target import KernelSource, Target
from softmetal.compiler.tokens import Refusal, Token
from softmetal.errors import CompileError
from softmetal.toolchain import disk_cache, targets
from softmetal.types import CompileOptions, Function, Program

_making = threading.Lock()
_headers: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by key


@dataclass(frozen=True, slots=True)
class _Source:
    """What is compiled; errors name its places, whichever text they were found in."""

    text: str
    options: CompileOptions

    def places(self, found_in: str) -> diagnostics.SourceMap:
        options = self.options
        return diagnostics.SourceMap(found_in, options.file_name, self.text, options.include_dirs)

    @contextmanager
    def explains(self, found_in: str) -> Iterator[None]:
        """Errors in the block are about places in this text."""
        try:
            yield
        except Refusal as error:
            raise CompileError(diagnostics.refusal(error, self.places(found_in))) from None
        except CompileError as error:
            told = diagnostics.explain(error.diagnostics, self.places(found_in))
            raise CompileError(told) from None


def front(source: str, options: CompileOptions) -> tuple[Program, str, list[Path]]:
    """The program of a source, clang's warnings, and the user's headers in it."""
    given = _Source(source, options)
    with given.explains(source):
        expanded = stages.preprocess(source, options)
    with given.explains(expanded):
        files = stages.included_files(expanded, options)
        rewritten = frontend.rewrite(expanded)
        renamed = overloads.renamed(rewritten.parsed) if rewritten.parsed.overloads else expanded
    with given.explains(renamed):
        if renamed != expanded:
            rewritten = frontend.rewrite(renamed)
        is_checked = _is_checked(rewritten, options)
        is_strict = options.strict and not is_checked
        is_strict = is_strict and not strict.is_exempt(rewritten.parsed, options)
        if is_strict:
            strict.enforce(rewritten.parsed, options)
    # Kernels are the same however strictly their source was checked.
    kept = replace(options, strict=False, limits=False, extensions=True)
    program = Program(rewritten.text, kept, rewritten.functions, rewritten.constants, source)
    warnings = "" if is_checked else _check(program, given, rewritten, is_strict, renamed)
    parsed, places = rewritten.parsed, given.places(renamed)
    warned = [diagnostics.left_out(why, places) for why in parsed.left_out.values()]
    warned += [diagnostics.warning(why, places) for why in parsed.ignored]
    return program, "".join(warned) + warnings, files


def _check(
    program: Program, given: _Source, rewritten: frontend.Rewritten, is_strict: bool, expanded: str
) -> str:
    """Warnings of the source as Apple's compiler would have them; raises CompileError."""
    spaces = ""
    with ThreadPoolExecutor(1) as beside:
        if is_strict:
            parsed, limits = rewritten.parsed, given.options.limits
            judged = beside.submit(strict.address_spaces, program, parsed, limits)
        try:
            with given.explains(program.text):
                try:
                    version = stages.standard(given.options)
                    header = unit_header(given.options, version=version)
                    warnings = stages.check(program, header)
                finally:
                    spaces = judged.result() if is_strict else ""
        except CompileError as error:
            raise CompileError(strict.joined(error.diagnostics, spaces)) from None
    with given.explains(expanded):
        _refuse_recursion(program, rewritten.suspects)
    if spaces:
        raise CompileError(spaces)
    if program.constants and warnings:
        warnings = diagnostics.of_the_source(warnings, given.places(program.text))
    return diagnostics.explain(warnings, given.places(program.text)) if warnings else ""


def _is_checked(rewritten: frontend.Rewritten, options: CompileOptions) -> bool:
    """Whether a source says that it was checked before. Errors of its kernels then show when they
    are compiled. `softmetal check`, which asks for limits, and Apple's chips check it anyway."""
    found = directives.find_pragma(rewritten.parsed.syntax, "checked")
    return found is not None and options.extensions and not options.limits


def _refuse_recursion(program: Program, suspects: Mapping[str, Token]) -> None:
    if not suspects:
        return
    found = stages.recursive_functions(program, targets.host(), unit_header(program.options))
    for name, token in suspects.items():
        if name in found:
            raise Refusal(token, f"recursion is not supported in Metal: {name} calls itself")


def check_address_spaces(source: str, options: CompileOptions) -> str:
    """Warnings about address spaces that Apple's compiler would refuse to mix."""
    rewritten = frontend.rewrite(stages.preprocess(source, options))
    if strict.is_exempt(rewritten.parsed, options):
        return ""
    program = Program(rewritten.text, options, rewritten.functions, rewritten.constants, source)
    found = strict.address_spaces(program, rewritten.parsed)
    return found.replace(": error: ", ": warning: address spaces: ")


def unit_header(
    options: CompileOptions, checked: bool = False, version: str = stages.NEWEST_STANDARD
) -> Path:
    """The precompiled header of every unit with these options, in a version of C++."""
    target = targets.host()
    key = disk_cache.key_of(
        "checked" if checked else "",
        fingerprint(),
        str(INCLUDE),
        target.triple,
        target.cpu,
        *stages.language_flags(options, version),
    )
    with _making:
        gate = _headers[key]
    with gate:  # threads that need it at once wait for the first
        folder = disk_cache.default().get(
            "header",
            key,
            lambda path: stages.build_header(options, version, target, checked, path / "unit.pch"),
        )
    return folder / "unit.pch"


def build(
    program: Program,
    function: Function,
    constants: Mapping[int, bytes],
    checked: bool,
    target: Target,
    folder: Path,
) -> None:
    """Write a kernel's code into a folder; errors name the places of the user's source."""
    options = program.options
    places = diagnostics.SourceMap(
        program.text, options.file_name, program.source, options.include_dirs
    )
    try:
        target.build(KernelSource(program, function, constants, checked, places), folder)
    except host_access.UndefinedSymbol as error:
        raise CompileError(diagnostics.undefined(error, program.text, places)) from None
    except CompileError as error:
        raise CompileError(diagnostics.explain(error.diagnostics, places)) from None
