"""The page of environment variables, from the functions that read them.

Each is read by one function, whose docstring starts with the variable's name.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = ("lbrx.env", "softmetal.env", "lbrx.mac_report.suite")
NAMED = re.compile(r"((?:LBRX|SOFTMETAL|SOFTCOREML)_[A-Z_]+): (.*)", re.DOTALL)
USED = re.compile(r"""environ[^"'\n]*["']((?:LBRX|SOFTMETAL|SOFTCOREML)_[A-Z_]+)["']""")

HEAD = """# Environment variables

An invalid value is an error that names the variable and what it accepts.

| variable | meaning |
|---|---|
"""
TAIL = """
`XDG_CACHE_HOME` moves both caches where `LBRX_CACHE` and `SOFTMETAL_CACHE` do not name a folder.
`TEST_SEED` is the seed of random inputs in this repository's tests.
"""


def variables() -> Iterator[tuple[str, str]]:
    """Names and meanings, in the order of the modules."""
    for name in MODULES:
        for function in vars(importlib.import_module(name)).values():
            text = inspect.getdoc(function) if inspect.isfunction(function) else None
            if text and (found := NAMED.match(text)):
                meaning = " ".join(found[2].split())
                yield found[1], meaning[0].upper() + meaning[1:]


def used() -> set[str]:
    """The variables that any module of the packages reads."""
    sources = (path for path in ROOT.glob("*/src/**/*.py"))
    return {name for path in sources for name in USED.findall(path.read_text("utf-8"))}


def generated() -> dict[str, str]:
    """The text by its place in docs/."""
    rows = sorted(set(variables()))
    table = "".join(f"| `{name}` | {text.replace('|', '/')} |\n" for name, text in rows)
    return {"reference/environment.md": HEAD + table + TAIL}
