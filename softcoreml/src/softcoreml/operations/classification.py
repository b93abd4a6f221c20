"""The last operation of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, define


@define("classify")
def classify(probabilities: Array, classes: Sequence[Any]) -> tuple[Any, dict[Any, float]]:
    """The class of the highest probability, and every class with its own."""
    values = np.asarray(probabilities).reshape(-1)
    names = [one.item() if isinstance(one, np.generic) else one for one in classes]
    if len(names) != values.size or not names:
        raise ModelError(f"classes has {len(names)} entries for {values.size} probabilities")
    scores = {name: float(value) for name, value in zip(names, values, strict=True)}
    return names[int(np.argmax(values))], scores
