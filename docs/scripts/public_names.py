"""The public names of the packages, and the page of the reference that each belongs on.

A name is public if its package lists it in `__all__`. In the packages of `BY_MODULE`, which are
documented to their last function, every name is public that a module defines without an underscore.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

BY_MODULE = (
    "lbrx.command_lists",
    "lbrx.graph",
    "lbrx.kernels",
    "lbrx.memory",
    "lbrx.metal",
    "lbrx.planning",
    "lbrx.program",
    "lbrx.scheduler",
)
"""Packages whose modules are documented one by one, beside what the package itself exports."""

EXPORTING = (
    "lbrx.convert",
    "lbrx.files.formats",
    "lbrx.merging",
    "lbrx.models",
    "lbrx.data",
    "lbrx.neural_engine",
    "lbrx.nn",
    "lbrx.optim",
    "lbrx.ops",
    "lbrx.quant",
    "lbrx.arrays.storage",
    "lbrx.train",
    "lbrx_video",
    "softcoreml",
)
"""Packages whose public names are those of `__all__`."""

ELSEWHERE = {
    "lbrx.bench",
    "lbrx.serve",
    "lbrx.cli",
    "lbrx.extension",
    "lbrx.html_report",
    "lbrx.gradients",
    "lbrx.terminal",
    "lbrx.mac_report",
    "lbrx.custom_kernels",
    "lbrx.tensors",
}
"""Programs, whose commands have a page, and the packages whose names are those of `lbrx`."""

SOFTMETAL_OWN = (
    "softmetal",
    "softmetal.checks",
    "softmetal.pytest_plugin",
    "softmetal.errors",
    "softmetal.profiles",
    "softmetal.chips",
    "softmetal.ahead",
)
"""What softmetal adds to Metal."""

BESIDE = {"execution": ["lbrx.tensors.Device"]}
"""Names that belong on a page of the top level, and are not in `lbrx.__all__`."""

TOP_LEVEL = {
    "tensor": ("The Tensor class", ["lbrx.tensors.core"]),
    "creation": (
        "Creating tensors",
        ["lbrx.tensors.creation", "lbrx.tensors.functions.creating", "lbrx.arrays.storage.cpu"],
    ),
    "operations": ("Operations", ["lbrx.tensors.operation_functions"]),
    "functions": ("Functions made of operations", ["lbrx.tensors.functions"]),
    "execution": (
        "Devices, evaluation and kernels",
        [
            "lbrx.device_info",
            "lbrx.kernels",
            "lbrx.scheduler",
            "lbrx.tensors.compilation",
            "lbrx.tensors.evaluation",
            "lbrx.custom_kernels.kernel",
            "lbrx.tensors.placement",
        ],
    ),
    "gradients": ("Gradients", ["lbrx.gradients", "lbrx.trees"]),
    "models": (
        "Models, files and quantization",
        [
            "lbrx.merging",
            "lbrx.models",
            "lbrx.files.stored.load_and_save",
            "lbrx.tensors.quantized",
            "lbrx.files.stored.stored_model",
        ],
    ),
    "errors": ("Errors", ["lbrx.errors"]),
    "types": ("Dtypes and constants", ["lbrx.arrays.dtype", "lbrx.tensors.data_types", ""]),
}
"""Pages of the names in `lbrx.__all__`: title, and the modules that define them."""


@dataclass
class ReferencePage:
    """A page of the Python reference: sections, each a module or a title, with full names."""

    file: str
    title: str
    sections: list[tuple[str, list[str]]] = field(default_factory=list)


def exists(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def defined(module: ModuleType) -> Iterator[str]:
    """The functions and classes that a module defines, in the order of its source. Records and
    function constants of kernels are for shaders, which have their text."""
    for name, value in vars(module).items():
        kept = inspect.isclass(value) or inspect.isroutine(value) or hasattr(value, "__wrapped__")
        for_shaders = getattr(value, "header", "")
        if (
            kept
            and not (name.startswith("_") or for_shaders)
            and value.__module__ == module.__name__
        ):
            yield name


def modules_of(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return sorted(each.name for each in pkgutil.walk_packages(path, f"{package}."))


def exported(package: str) -> list[str]:
    """The names of `__all__` that are not modules."""
    module = importlib.import_module(package)
    names: list[str] = getattr(module, "__all__", [])
    return sorted(n for n in names if not inspect.ismodule(getattr(module, n)))


def top_level_pages() -> list[ReferencePage]:
    """The names of `lbrx.__all__`, which are the ones most programs use."""
    lbrx = importlib.import_module("lbrx")
    places: dict[str, list[str]] = {file: [] for file in TOP_LEVEL}
    for name in sorted(lbrx.__all__, key=str.lower):
        value = getattr(lbrx, name)
        if inspect.ismodule(value):
            continue
        home = (
            "lbrx.arrays.dtype"
            if isinstance(value, lbrx.Dtype)
            else getattr(value, "__module__", "")
        )
        places[_file(home)].append(f"lbrx.{name}")
    pages = [
        ReferencePage(file, title, [("", [*places[file], *BESIDE.get(file, [])])])
        for file, (title, _) in TOP_LEVEL.items()
    ]
    random = importlib.import_module("lbrx.tensors.random")
    names = [f"lbrx.random.{name}" for name in defined(random)]
    return [*pages, ReferencePage("random", "Random numbers", [("lbrx.tensors.random", names)])]


def _file(home: str) -> str:
    fits = ((len(m), file) for file, (_, ms) in TOP_LEVEL.items() for m in ms if home.startswith(m))
    return max(fits)[1]


def package_page(package: str) -> ReferencePage:
    """What a package exports, and, for those of BY_MODULE, what each of its modules defines.

    What `lbrx` itself exports is on the pages of the top level.
    """
    home, lbrx = importlib.import_module(package), importlib.import_module("lbrx")
    top = {id(getattr(lbrx, name)) for name in lbrx.__all__}
    names = [name for name in exported(package) if id(getattr(home, name)) not in top]
    page = ReferencePage(package.replace(".", "_"), package)
    page.sections.append((package, [f"{package}.{name}" for name in names]))
    shown = top | {id(getattr(home, name)) for name in names}
    for module in modules_of(package) if package in BY_MODULE else ():
        found = importlib.import_module(module)
        own = [f"{module}.{n}" for n in defined(found) if id(getattr(found, n)) not in shown]
        if own:
            page.sections.append((module, own))
    return page


def softmetal_pages() -> list[ReferencePage]:
    """softmetal's own names, and the classes and functions that stand in for Apple's."""
    own = ReferencePage("softmetal", "softmetal's own names")
    for module in SOFTMETAL_OWN:
        found = defined(importlib.import_module(module))
        names = [f"{module}.{name}" for name in found if not name.startswith("pytest_")]  # hooks
        own.sections.append((module, names))
    places: dict[str, tuple[str, ...]] = importlib.import_module("softmetal")._PLACES
    api = ReferencePage("softmetal_metal", "Metal's classes and functions")
    for module, names in sorted(places.items()):
        path = f"softmetal.api.{module}"
        api.sections.append((path, [f"{path}.{name}" for name in names]))
    mps = importlib.import_module("softmetal.mps")
    api.sections.append(("softmetal.mps", [f"softmetal.mps.{name}" for name in mps.__all__]))
    return [own, api]


def pages() -> list[ReferencePage]:
    """Every page of the Python reference."""
    packages = map(package_page, sorted(filter(exists, (*BY_MODULE, *EXPORTING))))
    filled = (page for page in packages if any(names for _, names in page.sections))
    return [*top_level_pages(), *filled, *softmetal_pages()]


def missing_packages() -> list[str]:
    """Packages of lbrx that no page is made of."""
    known = {".".join(name.split(".")[:2]) for name in (*BY_MODULE, *EXPORTING, *ELSEWHERE)}
    path = importlib.import_module("lbrx").__path__
    found = (f"lbrx.{each.name}" for each in pkgutil.iter_modules(path) if each.ispkg)
    return sorted(set(found) - known)
