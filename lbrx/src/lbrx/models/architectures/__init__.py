"""One module for each model type of config.json, under its name, with the class `Model`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from lbrx.errors import FormatError
from lbrx.models.decoder import Decoder


def known() -> list[str]:
    """The model types that can be run."""
    return sorted(module.name for module in iter_modules(__path__))


def find(model_type: str) -> type[Decoder]:
    """The decoder of a model type."""
    if model_type not in known():
        raise FormatError(
            f"the architecture {model_type!r} is unknown: lbrx runs {', '.join(known())}"
        )
    found: type[Decoder] = import_module(f"{__name__}.{model_type}").Network
    return found
