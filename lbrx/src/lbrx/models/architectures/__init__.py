"""The networks: a module for each `model_type` of config.json, named after it, with a `Network`.

A new architecture is a module in this folder and a case in `find`.
"""

from __future__ import annotations

from pkgutil import iter_modules

from lbrx.errors import FormatError
from lbrx.models.decoder import Decoder


def known() -> list[str]:
    """The model types that lbrx runs."""
    return sorted(module.name for module in iter_modules(__path__))


def find(model_type: str) -> type[Decoder]:
    """The network of a model type. Only its module is imported.

    Raises FormatError for a model type that lbrx does not run.
    """
    Network: type[Decoder]
    match model_type:
        case "gemma2":
            from lbrx.models.architectures.gemma2 import Network
        case "gemma3_text":
            from lbrx.models.architectures.gemma3_text import Network
        case "llama":
            from lbrx.models.architectures.llama import Network
        case "mistral":
            from lbrx.models.architectures.mistral import Network
        case "mixtral":
            from lbrx.models.architectures.mixtral import Network
        case "phi3":
            from lbrx.models.architectures.phi3 import Network
        case "qwen2":
            from lbrx.models.architectures.qwen2 import Network
        case "qwen2_moe":
            from lbrx.models.architectures.qwen2_moe import Network
        case "qwen3":
            from lbrx.models.architectures.qwen3 import Network
        case "qwen3_moe":
            from lbrx.models.architectures.qwen3_moe import Network
        case "smollm3":
            from lbrx.models.architectures.smollm3 import Network
        case _:
            raise FormatError(
                f"the architecture {model_type!r} is unknown: lbrx runs {', '.join(known())}"
            )
    return Network
