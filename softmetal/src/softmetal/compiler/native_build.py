"""From a kernel's source to a shared object."""

from __future__ import annotations

import json
from pathlib import Path

from softmetal.compiler import building, host_access, instrument, stages
from softmetal.compiler.identity import PACKAGE
from softmetal.compiler.target import KernelSource
from softmetal.toolchain import targets
from softmetal.types import Function, Mode


def build(source: KernelSource, output: Path, sites_file: Path) -> None:
    """Write the shared object, and the table of sites if it is checked."""
    target, options, checked = targets.host(), source.program.options, source.checked
    header = building.unit_header(options, checked)

    def optimised(mode: Mode) -> str:
        end = entry(source.function, mode)
        unit = stages.unit(source.program, source.function, source.constants, end)
        return stages.optimise(unit, options, target, header, checked)

    # Findings name the threadgroup, which a FLAT kernel does not know.
    wanted = source.function.mode
    mode = Mode.GROUPS if checked and wanted == Mode.FLAT else wanted
    ir = optimised(mode)
    if mode != Mode.FIBERS and stages.cooperates(ir):
        ir = optimised(Mode.FIBERS)
    ir = stages.lower(ir, target)
    if checked:
        ir, sites = instrument.instrument(ir, (PACKAGE, "softmetal_entry"))
        column = source.places.column
        mapped = [(s.file, s.line, column(s.file, s.line, s.column)) for s in sites]
        sites_file.write_text(json.dumps(mapped))
    compiled = output.with_suffix(".o")
    stages.generate(ir, target, compiled)
    stages.link([compiled], output)
    host_access.check_object(output)
    compiled.unlink()


def entry(function: Function, mode: Mode) -> str:
    """What follows a kernel in its unit; see target/entry.h."""
    limit = function.max_total_threads
    return f"SM_INFO({int(mode)}, {limit})\nSM_ENTRY_{mode.name}\nSM_ANCHOR\n"
