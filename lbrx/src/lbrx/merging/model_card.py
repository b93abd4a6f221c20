"""The README.md of a merged model."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.merging.config import MergeConfig
from lbrx.merging.methods import METHODS, Base
from lbrx.merging.parent_models import ParentModel
from lbrx.version import VERSION

_CARD = """---
library_name: transformers
tags:
- merge
---
# {name}

This model was merged from others with lbrx {version}.

## Method

{method}

## Models

{models}

## Configuration

```yaml
{configuration}
```
"""


def model_card(
    config: MergeConfig, models: Sequence[ParentModel], name: str, configuration: str
) -> str:
    """A card with the method, the models and the configuration that made it."""
    method = METHODS[config.method]
    uses_base = config.base_model is not None and method.base is not Base.UNUSED
    base = f" The base model is {config.base_model}." if uses_base else ""
    return card(f"{config.method}: {method.text}.{base}", models, name, configuration)


def card(method: str, models: Sequence[ParentModel], name: str, configuration: str) -> str:
    """A card with sentences about the method."""
    return _CARD.format(
        name=name,
        version=VERSION,
        method=method,
        models="\n".join(f"- {model}" for model in models),
        configuration=configuration.rstrip(),
    )
