"""`lbrx.tensors.functions` for modules that it imports itself."""

from __future__ import annotations

from typing import Any


class _LateFunctions:
    """Finds each function at its first use. An import within a method would take a microsecond of
    every call."""

    def __getattr__(self, name: str) -> Any:
        from lbrx.tensors import functions

        function = getattr(functions, name)
        setattr(self, name, function)
        return function


functions = _LateFunctions()
