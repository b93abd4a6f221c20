"""Other libraries that compute the same: a module each, imported when it is asked for.

The module `with_<name>` has `load(module, threads, gpu)`, which returns a `Peer`. Its table gives,
for the operations that it has, a function of the peer's own arrays and of the operation's options;
what is not in the table is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from lbrx.bench.timing import Work
from lbrx.errors import LbrxError

Operation = Callable[..., Any]


@dataclass(frozen=True)
class Peer:
    """A library with its way to make arrays, to compute, and to wait for a result."""

    name: str
    version: str
    dtypes: frozenset[str]
    """Floating dtypes that are worth comparing; integers always are."""
    array: Callable[[np.ndarray[Any, Any], str], Any]
    """An array of the peer's with the values of a numpy array, in a dtype by its name."""
    finish: Callable[[Any], object]
    operations: Mapping[str, Operation]

    def work(
        self,
        operation: str,
        inputs: Sequence[np.ndarray[Any, Any]],
        dtype: str,
        options: Mapping[str, Any],
    ) -> Work | None:
        """The operation on these inputs, run to its end; None if the peer has no match."""
        function = self.operations.get(operation)
        if function is None or dtype not in self.dtypes:
            return None
        own = [self.array(x, dtype if x.dtype.kind == "f" else x.dtype.name) for x in inputs]
        return lambda: self.finish(function(*own, **options))


_MODULES = {
    "numpy": "numpy",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "mlx": "mlx.core",
    "llama.cpp": "llama_cpp",
}
NAMES = tuple(_MODULES)


def find(names: Sequence[str], threads: int, gpu: bool = False) -> tuple[list[Peer], list[str]]:
    """The peers that are installed, and the names of those that are not. Those without kernels of
    their own to compare, such as llama.cpp, are in neither list if they are installed. `gpu` says
    whether lbrx runs on a GPU."""
    found, missing = [], []
    for name in names:
        if name not in _MODULES:
            raise LbrxError(f"{name} is not a known peer: give some of {', '.join(NAMES)}")
        if find_spec(_MODULES[name].partition(".")[0]) is None:
            missing.append(name)
        elif name != "llama.cpp":
            made = import_module(f"lbrx.bench.peers.with_{name}")
            found.append(made.load(import_module(_MODULES[name]), threads, gpu))
    return found, missing
