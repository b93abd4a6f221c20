"""An ML toolkit for Apple Silicon: tensors on Metal, quantization, model files, language models.

`lbrx` is also an array namespace of the Python array API standard; `docs/reference/array_api.md`
shows what of the standard it has.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lbrx import interrupt as interrupt
from lbrx.version import VERSION

if TYPE_CHECKING:
    from lbrx import video as video
    from lbrx.namespace import *  # noqa: F403
    from lbrx.namespace import __all__ as __all__
    from lbrx.tensors.functions import *  # noqa: F403
    from lbrx.tensors.operation_functions import *  # noqa: F403

__version__ = VERSION
_LOADED_WHEN_USED = {
    "StoredModel": "lbrx.files.stored.stored_model",
    "checkpoint": "lbrx.gradients",
    "custom_vjp": "lbrx.gradients",
    "grad": "lbrx.gradients",
    "stop_gradient": "lbrx.gradients",
    "value_and_grad": "lbrx.gradients",
    "vjp": "lbrx.gradients",
    "vmap": "lbrx.gradients",
    "tree_flatten": "lbrx.trees",
    "tree_map": "lbrx.trees",
    "tree_unflatten": "lbrx.trees",
    "deterministic": "lbrx.kernels",
    "excess_precision": "lbrx.kernels",
    "language_model": "lbrx.models.loading",
    "load": "lbrx.files.stored.load_and_save",
    "merge": "lbrx.merging.run",
    "open_model": "lbrx.files.stored.stored_model",
    "policy": "lbrx.metal.work_policy",
    "profile": "lbrx.scheduler.profiler",
    "save": "lbrx.files.stored.load_and_save",
}
"""The modules of names that need files or Metal, and not the other names."""


class _OtherDistributions:
    """Finds the packages of other distributions that are `lbrx.NAME` too, such as `lbrx.video`, and
    before them what `lbrx` has itself: not folders that an earlier version left behind."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The specification of a module of that name, if it is one of those."""
        if not name.startswith("lbrx.") or name.count(".") > 1:
            return None
        own = PathFinder.find_spec(name, path)
        if own is not None and own.origin is not None:
            return own
        other: ModuleSpec | None = import_module("lbrx.entry_points").spec_of(name)
        return other


# After the hooks of others, which are before it, and before the finder of files.
_PLACE = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
sys.meta_path.insert(_PLACE, _OtherDistributions)


if not TYPE_CHECKING:  # a type checker sees the imports above; this would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what is used: a module, one function, or all other public names at once.

        The command line, and programs that use a part of the package, start sooner.
        """
        if name in _LOADED_WHEN_USED:
            value = getattr(import_module(_LOADED_WHEN_USED[name]), name)
            return globals().setdefault(name, value)
        own = PathFinder.find_spec(f"lbrx.{name}", __path__)  # noqa: F405
        if own is not None and own.origin is not None:  # Python finds empty folders, too
            return import_module(own.name)
        known = vars(import_module("lbrx.namespace"))
        public = {each: known[each] for each in known["__all__"] if each in known}
        globals().update(public, __all__=known["__all__"])
        return globals()[name] if name in globals() else _from_elsewhere(name)


def _from_elsewhere(name: str) -> ModuleType:
    """The package of another distribution that is `lbrx.NAME` too."""
    from lbrx.entry_points import PACKAGES, named

    if name not in named(PACKAGES):
        raise AttributeError(_unknown(name), name=name, obj=sys.modules[__name__])
    return import_module(f"lbrx.{name}")


def _unknown(name: str) -> str:
    from lbrx.extras import DISTRIBUTIONS, without
    from lbrx.tensors.foreign_names import OUR_NAMES

    if name in DISTRIBUTIONS:
        return without(name)
    hint = f": use lbrx.{OUR_NAMES[name]}" if name in OUR_NAMES else ""
    return f"module 'lbrx' has no attribute {name!r}{hint}"


def __dir__() -> list[str]:
    from lbrx.entry_points import PACKAGES, named

    hidden = (
        "Any ModuleSpec ModuleType PathFinder TYPE_CHECKING VERSION import_module interrupt sys"
    )
    known = {*globals(), *sys.modules[__name__].__all__, *named(PACKAGES)}
    return sorted(known.difference([*hidden.split(), "sys"]))
