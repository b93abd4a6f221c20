"""An ML toolkit for Apple Silicon: tensors on Metal, quantization, model files, language models.

`lbrx` is also an array namespace of the Python array API standard; `docs/reference/array_api.md`
shows what of the standard it has.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lbrx import interrupt as interrupt
from lbrx.version import VERSION

if TYPE_CHECKING:
    from lbrx.namespace import *  # noqa: F403
    from lbrx.namespace import __all__ as __all__
    from lbrx.tensor.functions import *  # noqa: F403
    from lbrx.tensor.operation_functions import *  # noqa: F403

__version__ = VERSION
_LOADED_WHEN_USED = {
    "StoredModel": "lbrx.tensor.stored_model",
    "deterministic": "lbrx.kernels",
    "excess_precision": "lbrx.kernels",
    "language_model": "lbrx.models.loading",
    "load": "lbrx.tensor.files",
    "open_model": "lbrx.tensor.stored_model",
    "profile": "lbrx.scheduler.profiler",
    "save": "lbrx.tensor.files",
}
"""The modules of names that need files or Metal, and not the other names."""


class _Package(ModuleType):
    """`lbrx.tensor` is a function: an import of the package of that name does not replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "tensor" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # a type checker sees the imports above; this would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what is used: a module, one function, or all other public names at once.

        The command line, and programs that use a part of the package, start sooner.
        """
        if name in _LOADED_WHEN_USED:
            value = getattr(import_module(_LOADED_WHEN_USED[name]), name)
            return globals().setdefault(name, value)
        if name != "tensor" and not name.startswith("_"):
            try:
                return import_module(f"lbrx.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"lbrx.{name}":
                    raise
        known = vars(import_module("lbrx.namespace"))
        public = {each: known[each] for each in known["__all__"] if each in known}
        globals().update(public, __all__=known["__all__"])
        if name not in globals():
            raise AttributeError(_unknown(name), name=name, obj=sys.modules[__name__])
        return globals()[name]


def _unknown(name: str) -> str:
    from lbrx.tensor.foreign_names import OUR_NAMES

    hint = f": use lbrx.{OUR_NAMES[name]}" if name in OUR_NAMES else ""
    return f"module 'lbrx' has no attribute {name!r}{hint}"


def __dir__() -> list[str]:
    hidden = {"Any", "ModuleType", "TYPE_CHECKING", "VERSION", "import_module", "interrupt", "sys"}
    return sorted({*globals(), *sys.modules[__name__].__all__} - hidden)
