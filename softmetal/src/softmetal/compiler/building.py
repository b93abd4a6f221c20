"""Compiles what is not in the cache: a source to a program, and a kernel to a shared object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from softmetal.compiler import diagnostics, frontend, host_access, instrument, stages
from softmetal.compiler.identity import INCLUDE, PACKAGE, fingerprint
from softmetal.compiler.tokens import Refusal, Token
from softmetal.errors import CompileError
from softmetal.toolchain import disk_cache, targets
from softmetal.types import CompileOptions, Function, Mode, Program


def front(source: str, options: CompileOptions) -> tuple[Program, str, list[Path]]:
    """The program of a source, clang's warnings, and the user's headers in it."""
    text = source

    def places() -> diagnostics.SourceMap:
        return diagnostics.SourceMap(text, options.file_name, source, options.include_dirs)

    try:
        expanded = text = stages.preprocess(source, options)
        files = stages.included_files(text, options)
        rewritten = frontend.rewrite(text)
        text = rewritten.text
        program = Program(text, options, rewritten.functions, rewritten.constants, source)
        warnings = stages.check(program, unit_header(options))
        text = expanded
        _refuse_recursion(program, rewritten.suspects)
        text = rewritten.text
    except Refusal as error:
        raise CompileError(diagnostics.refusal(error, places())) from None
    except CompileError as error:
        raise CompileError(diagnostics.explain(error.diagnostics, places())) from None
    if program.constants:
        warnings = diagnostics.of_the_source(warnings, places())
    return program, diagnostics.explain(warnings, places()) if warnings else "", files


def _refuse_recursion(program: Program, suspects: Mapping[str, Token]) -> None:
    if not suspects:
        return
    found = stages.recursive_functions(program, targets.host(), unit_header(program.options))
    for name, token in suspects.items():
        if name in found:
            raise Refusal(token, f"recursion is not supported in Metal: {name} calls itself")


def check_address_spaces(source: str, options: CompileOptions) -> str:
    """Warnings about pointers that mix device and threadgroup memory; compilation erases both."""
    text = stages.preprocess(source, options)
    kept = frontend.rewrite(text, keep_spaces=True)
    program = Program(kept.text, options, kept.functions, kept.constants)
    places = diagnostics.SourceMap(kept.text, options.file_name, source, options.include_dirs)
    return diagnostics.address_space_warnings(stages.check_spaces(kept.text, program), places)


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
    folder: Path,
) -> None:
    """Write a kernel's shared object into a folder, with its table of sites if it is checked."""
    target, options = targets.host(), program.options
    header = unit_header(options, checked)
    places = diagnostics.SourceMap(
        program.text, options.file_name, program.source, options.include_dirs
    )

    def optimised(mode: Mode) -> str:
        unit = stages.unit(program, function, mode, constants)
        return stages.optimise(unit, options, target, header, checked)

    # Findings name the threadgroup, which a FLAT kernel does not know.
    mode = Mode.GROUPS if checked and function.mode == Mode.FLAT else function.mode
    try:
        ir = optimised(mode)
        if mode != Mode.FIBERS and stages.cooperates(ir):
            ir = optimised(Mode.FIBERS)
        ir = stages.lower(ir, target)
        if checked:
            ir, sites = instrument.instrument(ir, (PACKAGE, "softmetal_entry"))
            mapped = [(s.file, s.line, places.column(s.file, s.line, s.column)) for s in sites]
            (folder / "sites").write_text(json.dumps(mapped))
        stages.generate(ir, target, folder / "kernel.o")
        stages.link([folder / "kernel.o"], folder / "kernel.so")
        host_access.check_object(folder / "kernel.so")
        (folder / "kernel.o").unlink()
    except host_access.UndefinedSymbol as error:
        raise CompileError(diagnostics.undefined(error, program.text, places)) from None
    except CompileError as error:
        raise CompileError(diagnostics.explain(error.diagnostics, places)) from None
