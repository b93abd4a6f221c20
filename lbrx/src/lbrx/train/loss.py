"""The losses of a network's tokens: a forward pass without a cache, in bounded memory."""

from __future__ import annotations

from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.gradients.custom import checkpoint
from lbrx.models.decoder import Decoder, Layer
from lbrx.models.kv_cache import ForwardStep
from lbrx.nn.losses import cross_entropy
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import arange

LOGITS = 1 << 23
"""Logits that are in memory at a time: gradients of larger ones are computed in parts."""


class TrainingStep(ForwardStep):
    """A pass whose tokens attend to each other, and to no cache."""

    def __init__(self, tokens: Tensor) -> None:
        batch, count = tokens.shape
        positions = arange(count, dtype=dt.int32, device=tokens.device)
        self.positions = positions.expand(batch, count)
        self.written = []

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Attend to the keys of this pass up to each query."""
        # What fills up shorter rows comes after them, so that no token sees it.
        return call("attention", queries, keys, values, None, None, sinks, causal=True, **options)

    def attend_rows(
        self, layer: int, queries: Tensor, rows: Tensor, values: int, **options: Any
    ) -> Tensor:
        return self.attend(layer, queries, rows, rows[..., :values], **options)


def token_losses(
    network: Decoder, tokens: Tensor, weights: Tensor, *, checkpoint_layers: bool = False
) -> Tensor:
    """The cross entropies of tokens (batch, n + 1) after the first, times weights (batch, n)."""
    given, targets = tokens[:, :-1], tokens[:, 1:]
    step = TrainingStep(given)
    x, added = network.embed_at(given, step), None
    for layer in network.layers:
        run = _again(layer, step) if checkpoint_layers else layer
        x, added = run(x, added, step)
    normed, _ = network.norm.of_sum(x, added)
    rows = normed.reshape(-1, normed.shape[-1])
    made = _of_rows(network, rows, targets.reshape(-1), weights.reshape(-1))
    return made.reshape(weights.shape)


def first_not_finite(network: Decoder, tokens: Tensor) -> str:
    """The first part of a network whose results for some tokens are not all finite."""
    given = tokens[:, :-1]
    step = TrainingStep(given)
    x, added = network.embed_at(given, step), None
    if not _is_finite(x):
        return "the embedding"
    for i, layer in enumerate(network.layers):
        x, added = layer(x, added, step)
        if not (_is_finite(x) and _is_finite(added)):
            return f"layer {i}"
    return "the output"


def _is_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all().item())


def _again(layer: Layer, step: ForwardStep) -> Any:
    """A layer that is computed again for its gradient."""
    run = checkpoint(lambda x, added: layer(x, added, step))
    return lambda x, added, _: run(x, added)


def _of_rows(network: Decoder, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    def part(rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return cross_entropy(network.logits_of(rows), targets) * weights

    size = max(LOGITS // network.config.vocabulary, 1)
    parts = []
    for start in range(0, rows.shape[0], size):
        some = slice(start, start + size)
        # Logits are not kept for the gradient: each part computes its own again.
        parts.append(checkpoint(part)(rows[some], targets[some], weights[some]))
    return parts[0] if len(parts) == 1 else call("concat", *parts, axis=0)
