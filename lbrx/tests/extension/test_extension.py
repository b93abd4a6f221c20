"""The page about lbrx.extension has its names, and only the package that it is for imports it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import lbrx.extension

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "extend.md"
MODULES = [f"lbrx.extension.{each.name}" for each in pkgutil.iter_modules(lbrx.extension.__path__)]


def test_the_page_has_every_module():
    assert set(re.findall(r"^\| `(lbrx\.extension\.\w+)`", PAGE.read_text(), re.M)) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_page_has_the_names_of(name):
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", PAGE.read_text(), re.M)
    listed = re.findall(r"`(\w+)`", row)
    assert sorted(listed) == sorted(importlib.import_module(name).__all__)


def test_groups_are_those_of_the_page():
    source = Path(lbrx.extension.__file__).parents[1]
    uses = re.compile(r'(?:Registry|ENTRY_POINTS = |PACKAGES = )[^\n]*"(lbrx\.[a-z_]+)"')
    used = {name for path in source.rglob("*.py") for name in uses.findall(path.read_text())}
    assert used == set(re.findall(r"^\| `(lbrx\.[a-z_]+)` \|", PAGE.read_text(), re.M))
