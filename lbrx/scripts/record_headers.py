"""Write the records and function constants of kernels as MSL, into the folder `records` beside
the module that declares them; --check only compares."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lbrx.command_lists.records import (
    DECLARED,
    Constants,
    Record,
    Scalar,
    constant_of,
    constants_of,
    fields_of,
    struct_of,
)
from lbrx.metal.library import SHADERS
from lbrx.metal.shader_files import RECORDS

PACKAGES = ("lbrx.kernels", "lbrx_video")
_DECLARATION = re.compile(r"^class [^:]*header=", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)

Declaration = type[Record] | type[Constants]


def import_all() -> None:
    """Import every module that declares records. Others may need packages that are optional."""
    for package in PACKAGES:
        folder = Path(importlib.import_module(package).__path__[0])
        for path in sorted(folder.rglob("*.py")):
            if _DECLARATION.search(path.read_text()):
                inside = path.relative_to(folder).with_suffix("")
                importlib.import_module(".".join([package, *inside.parts]))


def headers() -> dict[Path, str]:
    """The text of each header, by its place."""
    import_all()
    by_name: dict[str, list[Declaration]] = {}
    for kind in DECLARED:
        by_name.setdefault(kind.header, []).append(kind)
    return {_place(name, kinds): _text(name, kinds) for name, kinds in sorted(by_name.items())}


def _place(name: str, kinds: Sequence[Declaration]) -> Path:
    """Beside the modules that declare the header."""
    (home,) = {Path(inspect.getfile(kind)).parent for kind in kinds}
    return home / RECORDS / f"{name}.h"


def _text(name: str, kinds: Sequence[Declaration]) -> str:
    modules = dict.fromkeys(kind.__module__.replace(".", "/") for kind in kinds)
    lines = [f"// Written by lbrx/scripts/record_headers.py from {', '.join(modules)}.py."]
    lines += ["#pragma once", "#include <metal_stdlib>"]
    lines += [f'#include "records/{other}.h"' for other in _needed(name, kinds)]
    for kind in kinds:
        lines += ["", *_lines(kind)]
    return "\n".join([*lines, ""])


def _needed(name: str, kinds: Sequence[Declaration]) -> list[str]:
    """Other headers that the declarations use."""
    found: dict[str, None] = {}
    for kind in kinds:
        used = [*kind.__bases__]
        if issubclass(kind, Record):
            used += [f.type for f in fields_of(kind) if not isinstance(f.type, Scalar)]
        found |= dict.fromkeys(getattr(each, "header", name) for each in used)
    found.pop(name, None)
    return list(found)


def _lines(kind: Declaration) -> list[str]:
    comments = dict(_FIELD.findall(inspect.getsource(kind)))
    said = [f"// {line.strip()}" for line in inspect.cleandoc(kind.__doc__ or "").splitlines()]
    if issubclass(kind, Record):
        return [*said, *struct_of(kind, comments)]
    base = kind.__bases__[0]
    inherited = len(constants_of(base)) if issubclass(base, Constants) else 0
    own = constants_of(kind)[inherited:]
    return [*said, *(f"{constant_of(f)}{_after(comments.get(f.name))}" for f in own)]


def _after(comment: str | None) -> str:
    return f"  // {comment}" if comment else ""


def written() -> set[Path]:
    """The headers that are there."""
    return {path for root in SHADERS.roots() for path in root.glob(f"**/{RECORDS}/*.h")}


def main() -> None:
    """Write the headers, or compare them."""
    wanted = headers()
    known = written()
    stale = [path for path, text in wanted.items() if path not in known or path.read_text() != text]
    gone = known - wanted.keys()
    if "--check" in sys.argv:
        if names := sorted(path.stem for path in {*stale, *gone}):
            sys.exit(f"stale: {', '.join(names)}: run lbrx/scripts/record_headers.py")
        return
    for path in gone:
        path.unlink()
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path])


if __name__ == "__main__":
    main()
