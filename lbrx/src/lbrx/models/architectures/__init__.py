"""The networks: a module for each `model_type` of config.json, named after it, with a `Network`.

A new architecture is a module in this folder. Other distributions add theirs by entry points.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from lbrx.entry_points import imported, named
from lbrx.errors import FormatError
from lbrx.files.formats.quantized_checkpoints import check_readable
from lbrx.files.stored.stored_model import StoredModel
from lbrx.models.config import model_type_of
from lbrx.models.decoder import Decoder

ENTRY_POINTS = "lbrx.architectures"
_OURS = frozenset(module.name for module in iter_modules(__path__))


def known() -> list[str]:
    """The model types that lbrx runs."""
    return sorted({*_OURS, *named(ENTRY_POINTS)})


def find(model_type: str) -> type[Decoder]:
    """The network of a model type. Only its module is imported.

    Raises FormatError for a model type that lbrx does not run.
    """
    ours = model_type in _OURS
    module = (
        import_module(f"{__name__}.{model_type}") if ours else imported(ENTRY_POINTS, model_type)
    )
    if module is None:
        raise FormatError(
            f"the architecture {model_type!r} is unknown: lbrx runs {', '.join(known())}"
        )
    network: type[Decoder] = module.Network
    return network


def network_of(model: StoredModel) -> type[Decoder]:
    """The network of a stored model, which is not read.

    Raises FormatError for a model type or a quantization that lbrx does not run.
    """
    check_readable(model.files)
    return find(model_type_of(model))
