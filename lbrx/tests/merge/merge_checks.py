"""Merges on the CPU, which compiles no kernels, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lbrx


def linear(*models: Any, **settings: Any) -> dict[str, Any]:
    """A configuration: models with their weights, as pairs."""
    entries = [{"model": str(m), "parameters": {"weight": w}} for m, w in models]
    return {"merge_method": "linear", "models": entries, **settings}


def stacked(*parts: tuple[Any, int, int], **settings: Any) -> dict[str, Any]:
    """A configuration: layers of models on top of each other, as (model, first, last)."""
    slices = [
        {"sources": [{"model": str(model), "layer_range": [first, last]}]}
        for model, first, last in parts
    ]
    return {"merge_method": "passthrough", "slices": slices, **settings}


def merged(config: Any, out: Path, **options: Any) -> lbrx.StoredModel:
    """The merged model, written and opened again."""
    lbrx.merge(config, out, device="cpu", **options)
    return lbrx.open_model(out)


def mean(a: NDArray[Any], b: NDArray[Any], share: float = 0.5) -> NDArray[np.float64]:
    return share * a.astype(np.float64) + (1 - share) * b.astype(np.float64)
