"""What other distributions add to lbrx: entry points, read when a registry is asked for more than
it has. An import of lbrx reads none.

A distribution names its modules in groups; a registry has the module imported that a group has
under the name it looks for, and the module adds to the registry through `lbrx.extension`:

lbrx.packages              a package that is `lbrx.NAME` too
lbrx.commands              a module with the functions and the SUMMARY of `lbrx NAME`
lbrx.operations            a module that registers the operation
lbrx.kernels               a module that registers the operation's runner and its kernel family
lbrx.shaders               a package in whose folder shaders and headers are
lbrx.formats               a module that registers the file format
lbrx.architecture_tables   a module that registers the names of an architecture
lbrx.architectures         a module with the `Network` of a model type

>>> sorted(entry_points.named("lbrx.commands"))
['video']
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from lbrx.errors import LbrxError
from lbrx.extras import DISTRIBUTIONS, without

PREFIX = "lbrx."  # of the groups' names
PACKAGES = "lbrx.packages"
V = TypeVar("V")


class EntryPoint(NamedTuple):
    """A module that a distribution names."""

    module: str
    distribution: str
    """With its version."""


def named(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, by name."""
    return _installed(tuple(sys.path)).get(group, {})


def imported(group: str, name: str) -> ModuleType | None:
    """The module that an entry point names; None if there is no such entry point."""
    found = named(group).get(name)
    if found is None:
        return None
    try:
        return import_module(found.module)
    except Exception as problem:  # of another's code
        raise LbrxError(
            f"{found.distribution} adds {name} to {group}, and {found.module} cannot be imported: "
            f"{type(problem).__name__}: {problem}: update or uninstall it"
        ) from problem


class Registry(dict[str, V]):
    """Things by name, those of a group of entry points among them: the first look for one imports
    its module. Loops see what is registered; `whole` imports the others before."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group

    def __missing__(self, name: str) -> V:
        if name in self:
            return super().__getitem__(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        return imported(self._group, str(name)) is not None and super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default

    def whole(self) -> Registry[V]:
        """This registry, with all that is installed."""
        for name in named(self._group):
            imported(self._group, name)
        return self


@cache
def _installed(folders: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    """The entry points of the distributions in folders, by group. The standard library's reader
    takes 15 ms for its import and all groups, which is much for each model that is opened."""
    groups: dict[str, dict[str, EntryPoint]] = {}
    for folder in dict.fromkeys(folders):
        for distribution, text in _files(folder):
            for group, name, module in _entries(text):
                point = EntryPoint(module, distribution)
                groups.setdefault(group, {}).setdefault(name, point)
    return groups


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """The distributions in a folder, and their texts of entry points."""
    try:
        names = sorted(os.listdir(folder or os.curdir))
    except OSError:  # sys.path may have folders that do not exist, and archives
        return
    for name in names:
        distribution, dot, _ = name.rpartition(".dist-info")
        if dot:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                    yield distribution.replace("-", " "), file.read()
            except FileNotFoundError:  # most have none
                continue


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Group, name and module of the entry points for lbrx."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif group.startswith(PREFIX) and not line.startswith(("#", ";")):
            name, equals, module = line.partition("=")
            if equals:
                yield group, name.strip(), module.strip()


def spec_of(name: str) -> ModuleSpec | None:
    """How `lbrx.NAME` is imported: as the package of an entry point, one module with two names."""
    first = name.removeprefix(PREFIX).partition(".")[0]
    point = named(PACKAGES).get(first)
    if point is not None:
        return ModuleSpec(name, _SecondName(name, point.module))
    if first in DISTRIBUTIONS:
        raise ModuleNotFoundError(without(first), name=name)
    return None


class _SecondName(Loader):
    """Imports a package by a second name, and then finds what is inside before Python does, which
    would take it for other modules."""

    def __init__(self, name: str, package: str) -> None:
        self._name, self._package = name, package

    def exec_module(self, module: ModuleType) -> None:
        """Put the module in the place of an empty one."""
        name = self._package + module.__name__.removeprefix(self._name)
        sys.modules[module.__name__] = import_module(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """How a module inside is imported."""
        return ModuleSpec(name, self) if name.startswith(f"{self._name}.") else None
