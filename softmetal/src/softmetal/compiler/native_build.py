"""From a kernel's source to a shared object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from softmetal.compiler import building, diagnostics, host_access, instrument, regions, stages
from softmetal.compiler.identity import PACKAGE
from softmetal.compiler.ir import Module
from softmetal.compiler.regions import Outcome
from softmetal.compiler.target import KernelSource
from softmetal.toolchain import targets
from softmetal.types import Function, Mode, Program


def build(source: KernelSource, output: Path, sites_file: Path, fibers: bool) -> None:
    """Write the shared object, and the table of sites if it is checked. With `fibers`, threads that
    meet do not run as loops."""
    target = targets.host()
    module, outcome = optimised(source, fibers)
    stages.lower(module, target, outcome.mode)
    if source.checked:
        instrument.require_checks(module)
        sites = instrument.instrument(module, (PACKAGE, "softmetal_entry"))
        sites_file.write_text(json.dumps(source.columns(sites)))
    compiled = output.with_suffix(".o")
    stages.generate(str(module), target, compiled, outcome.mode)
    stages.link([compiled], output)
    host_access.check_object(output)
    compiled.unlink()


def optimised(source: KernelSource, fibers: bool) -> tuple[Module, Outcome]:
    """The kernel as it will run, not yet vectorised."""
    options, checked = source.program.options, source.checked
    header = building.unit_header(options, checked)

    def ir_of(mode: Mode) -> str:
        end = entry(source.function, mode)
        unit = stages.unit(source.program, source.function, source.constants, end)
        return stages.optimise(unit, options, targets.host(), header, checked)

    # Findings name the threadgroup, which a FLAT kernel does not know.
    wanted = source.function.mode
    mode = Mode.GROUPS if checked and wanted == Mode.FLAT else wanted
    ir = ir_of(mode)
    if mode != Mode.FIBERS and stages.cooperates(ir):
        mode = Mode.FIBERS
        ir = ir_of(mode)
    module = stages.accepted(ir)
    if mode == Mode.FIBERS and not (fibers or checked):
        return module, regions.split(module)
    return module, Outcome(mode)


def outcomes(program: Program) -> Iterator[tuple[str, Outcome]]:
    """How the CPU runs each kernel of a library, by its name; function constants are 0."""
    places = diagnostics.SourceMap(program.text, program.options.file_name, program.source, ())
    for name, function in program.functions.items():
        source = KernelSource(program, function, {}, False, places)
        yield name, optimised(source, fibers=False)[1]


def entry(function: Function, mode: Mode) -> str:
    """What follows a kernel in its unit; see target/entry.h."""
    limit = function.max_total_threads
    return f"SM_INFO({int(mode)}, {limit})\nSM_ENTRY_{mode.name}\nSM_ANCHOR\n"
