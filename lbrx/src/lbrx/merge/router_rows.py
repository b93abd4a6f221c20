"""The rows of a router that sends tokens to the experts whose prompts they resemble."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.models.language_model import LanguageModel

Rows = NDArray[np.float32]
"""(layers, experts, hidden)."""
_SMALLEST_NORM = 1e-8


class GateMode(StrEnum):
    """How the rows are found."""

    HIDDEN = "hidden"
    """The mean of the hidden states that enter a layer when the base model reads the prompts."""
    CHEAP_EMBED = "cheap_embed"
    """The sum of the embeddings of the prompts' tokens, the same for all layers."""
    RANDOM = "random"
    """Normal numbers."""
    UNIFORM_RANDOM = "uniform_random"
    """Numbers between -1/sqrt(hidden) and 1/sqrt(hidden)."""

    @property
    def is_random(self) -> bool:
        return self in (GateMode.RANDOM, GateMode.UNIFORM_RANDOM)


@dataclass(frozen=True)
class ExpertPrompts:
    """Texts that an expert is for, and texts that it is not for."""

    positive: tuple[str, ...]
    negative: tuple[str, ...] = ()


def random_rows(mode: GateMode, layers: int, experts: int, hidden: int, seed: int) -> Rows:
    """Rows of a random router. They depend on the seed and the sizes alone."""
    key = hashlib.sha256(f"{seed} {mode} {layers} {experts} {hidden}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
    if mode is GateMode.RANDOM:
        return rng.standard_normal((layers, experts, hidden), np.float32)
    limit = hidden**-0.5
    return rng.uniform(-limit, limit, (layers, experts, hidden)).astype(np.float32)


def prompt_rows(
    mode: GateMode, model: LanguageModel, experts: Sequence[ExpertPrompts], layers: int
) -> Rows:
    """Rows of unit length: the mean over the positive prompts minus that over the negative ones."""

    def mean(prompts: Sequence[str]) -> NDArray[np.float32]:
        found = [_states(mode, model, prompt) for prompt in prompts]
        return np.asarray(np.mean(found, axis=0), np.float32)

    rows = []
    for expert in experts:
        row = mean(expert.positive)
        if expert.negative:
            row = row - mean(expert.negative)
        norms = np.linalg.norm(row, axis=-1, keepdims=True)
        row = row / np.maximum(norms, _SMALLEST_NORM)
        rows.append(np.broadcast_to(row, (layers, row.shape[-1])))
    return np.stack(rows, axis=1)


def _states(mode: GateMode, model: LanguageModel, prompt: str) -> NDArray[np.float32]:
    """What a prompt gives: (layers, hidden), or (1, hidden) where all layers have the same."""
    tokens = model.tokenizer.encode(prompt)
    if not tokens:
        raise FormatError(f"the prompt {prompt!r:.60} has no tokens: write some text")
    if mode is GateMode.CHEAP_EMBED:
        states = model.engine.layer_inputs(tokens, layers=1)
        return np.stack([one.sum(axis=0).numpy() for one in states])
    states = model.engine.layer_inputs(tokens)
    return np.stack([one.mean(axis=0).numpy() for one in states])
