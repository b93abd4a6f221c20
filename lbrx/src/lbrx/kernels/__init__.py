"""The kernel library: a folder for each kernel family, with its host code, headers and shaders.

The folders are the registry: all modules in them are imported with this package.
"""

from importlib import import_module
from pkgutil import walk_packages

from lbrx.kernels.registry import FAMILIES, RUNNERS, deterministic, excess_precision, forced

__all__ = ["FAMILIES", "RUNNERS", "deterministic", "excess_precision", "forced"]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
