"""Compiles what is not in the cache: a source to a program, and a kernel to a target's code."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from softmetal.compiler import diagnostics, frontend, host_access, stages, strict
from softmetal.compiler.identity import INCLUDE, fingerprint
from softmetal.compiler.strict import overloads
from softmetal.compiler.target import KernelSource, Target
from softmetal.compiler.tokens import Refusal, Token
from softmetal.errors import CompileError
from softmetal.toolchain import disk_cache, targets
from softmetal.types import CompileOptions, Function, Program


def front(source: str, options: CompileOptions) -> tuple[Program, str, list[Path]]:
    """The program of a source, clang's warnings, and the user's headers in it."""
    text, spaces = source, ""

    def places() -> diagnostics.SourceMap:
        return diagnostics.SourceMap(text, options.file_name, source, options.include_dirs)

    try:
        expanded = text = stages.preprocess(source, options)
        files = stages.included_files(text, options)
        rewritten = frontend.rewrite(text)
        if rewritten.parsed.overloads:
            expanded = text = overloads.renamed(rewritten.parsed)
            rewritten = frontend.rewrite(text)
        is_strict = not strict.is_exempt(rewritten.parsed, options) and options.strict
        if is_strict:
            strict.enforce(rewritten.parsed, options)
        text = rewritten.text
        # Kernels are the same however strictly their source was checked.
        kept = replace(options, strict=False, limits=False, extensions=True)
        program = Program(text, kept, rewritten.functions, rewritten.constants, source)
        with ThreadPoolExecutor(1) as beside:
            if is_strict:
                parsed, limits = rewritten.parsed, options.limits
                judged = beside.submit(strict.address_spaces, program, parsed, limits)
            try:
                warnings = stages.check(program, unit_header(options))
            finally:
                spaces = judged.result() if is_strict else ""
        text = expanded
        _refuse_recursion(program, rewritten.suspects)
        text = rewritten.text
    except Refusal as error:
        raise CompileError(diagnostics.refusal(error, places())) from None
    except CompileError as error:
        told = diagnostics.explain(error.diagnostics, places())
        raise CompileError(strict.joined(told, spaces)) from None
    if spaces:
        raise CompileError(spaces)
    if program.constants:
        warnings = diagnostics.of_the_source(warnings, places())
    told = diagnostics.explain(warnings, places()) if warnings else ""
    text = expanded
    left = (diagnostics.left_out(why, places()) for why in rewritten.parsed.left_out.values())
    return program, "".join(left) + told, files


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


def unit_header(options: CompileOptions, checked: bool = False) -> Path:
    """The precompiled header of every unit with these options."""
    target = targets.host()
    key = disk_cache.key_of(
        "checked" if checked else "",
        fingerprint(),
        str(INCLUDE),
        target.triple,
        target.cpu,
        *stages.language_flags(options),
    )
    folder = disk_cache.default().get(
        "header", key, lambda path: stages.build_header(options, target, checked, path / "unit.pch")
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
