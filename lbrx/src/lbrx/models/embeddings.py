"""Embeddings of texts: the mean of a decoder's last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from lbrx.models.engine import Engine
from lbrx.models.generation import not_finite
from lbrx.models.memory_plan import CHUNK

Embedding = NDArray[np.float32]


def embedding_steps(
    engine: Engine, tokens: Sequence[int], chunk: int = CHUNK
) -> Generator[None, None, Embedding]:
    """Compute the embedding of a text, a chunk at a time. Others may use the device after each
    chunk, but not the engine's cache."""
    total = np.zeros(engine.network.config.hidden, np.float64)
    for first in range(0, len(tokens), chunk):
        states = engine.final_states(tokens[first : first + chunk], first)
        total += states.sum(axis=0).numpy()
        yield
    length = float(np.linalg.norm(total))
    if not np.isfinite(length):
        raise not_finite(len(tokens))
    return (total / (length or 1.0)).astype(np.float32)
