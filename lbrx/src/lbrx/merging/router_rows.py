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
from lbrx.tensors import Tensor

Rows = NDArray[np.float32]
"""(layers, experts, hidden)."""
_SMALLEST_NORM = 1e-8


class GateMode(StrEnum):
    """How the rows are found."""

    HIDDEN = "hidden"
    """The hidden state of a prompt's last token that enters a layer of the base model."""
    HIDDEN_LAST = "hidden_last"
    """Another name for `hidden`."""
    HIDDEN_AVG = "hidden_avg"
    """The mean of the hidden states of all tokens of a prompt."""
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
    """Rows of unit length: what the positive prompts give minus what the negative ones give."""
    rows = []
    for expert in experts:
        row = _states(mode, model, expert.positive)
        if expert.negative:
            row = row - _states(mode, model, expert.negative)
        rows.append(np.broadcast_to(_unit(row), (layers, row.shape[-1])))
    return np.stack(rows, axis=1)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, _SMALLEST_NORM), np.float32)


def _states(mode: GateMode, model: LanguageModel, prompts: Sequence[str]) -> NDArray[np.float32]:
    """What prompts give: (layers, hidden), or (1, hidden) where all layers have the same."""
    texts = [_tokens(model, prompt) for prompt in prompts]
    if mode is GateMode.CHEAP_EMBED:
        sums = [model.engine.layer_inputs(text, layers=1)[0].sum(axis=0).numpy() for text in texts]
        return _unit(np.sum(sums, axis=0)[None])
    found = [[_of_text(mode, one) for one in model.engine.layer_inputs(text)] for text in texts]
    return np.asarray(np.mean(found, axis=0), np.float32)


def _of_text(mode: GateMode, states: Tensor) -> NDArray[np.float32]:
    chosen = states.mean(axis=0) if mode is GateMode.HIDDEN_AVG else states[-1]
    return chosen.numpy()


def _tokens(model: LanguageModel, prompt: str) -> list[int]:
    """The tokens of a prompt after the token that begins a text."""
    begin = model.tokenizer.special_token("bos_token")
    tokens = model.tokenizer.encode(begin + prompt, special=False)
    if not tokens:
        raise FormatError(f"the prompt {prompt!r:.60} has no tokens: write some text")
    return tokens
