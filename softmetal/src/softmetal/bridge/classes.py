"""The classes whose methods a program calls through the bridge."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

from softmetal import api
from softmetal.api.objects import Object


def bridged_classes() -> list[type[Object]]:
    """Every class of the API and of MetalPerformanceShaders, base classes first."""
    for module in pkgutil.iter_modules(api.__path__):
        import_module(f"{api.__name__}.{module.name}")
    import_module("softmetal.mps")
    return list(dict.fromkeys(_family(Object)))


def _family(owner: type[Object]) -> Iterator[type[Object]]:
    yield owner
    for child in owner.__subclasses__():
        yield from _family(child)
