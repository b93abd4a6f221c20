"""Mixtures of experts: several MLPs, of which a router chooses a few for each token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.models.config import ModelConfig
from lbrx.models.layers import Gate, GatedMLP, Linear, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import arange, where
from lbrx.tensors.quantized import expert_linears

SMALLEST_SUM = 1e-20  # of the weights of a token's experts, so that no division is by zero


@dataclass(frozen=True)
class Routing:
    """How a router's logits choose experts and weight them."""

    used: int
    """Experts of a token."""
    normalize: bool = True
    """Whether the weights of the chosen ones are made to add up to 1."""
    sigmoid: bool = False
    """Whether scores are the sigmoid of logits, not their softmax."""
    groups: int = 1
    """Groups of neighbouring experts, of which only the best `groups_used` are chosen from."""
    groups_used: int = 1
    best_of_group: int = 1
    """The number of experts whose scores add up to that of their group."""
    scale: float = 1.0
    """Multiplies the weights."""
    tolerance: float = 0.0
    """How much smaller a logit may be to count as near the best, for routers that ask."""


class Router:
    """Chooses the experts of each token.

    A file may have a bias that is added to scores for the choice and not to the weights.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        count: int,
        routing: Routing,
        bias: Tensor | None = None,
    ) -> None:
        self.linear = Linear(weights, count, config.hidden)
        self.routing = routing
        self.count = count
        self.bias = bias

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights in float32 and numbers of experts, (tokens, used) each, from (tokens, hidden)."""
        routing, logits = self.routing, self.linear(x).astype(dt.float32)
        scores = logits.sigmoid() if routing.sigmoid else logits.softmax()
        preferred = scores if self.bias is None else scores + self.bias
        if routing.groups > 1:
            preferred = self._of_best_groups(preferred)
        shares, chosen = preferred.topk(routing.used)
        if self.bias is not None:
            shares = (scores.unsqueeze(1) * self._is(chosen, self.count)).sum(axis=-1)
        if routing.normalize:
            shares = shares / (shares.sum(axis=-1, keepdims=True) + SMALLEST_SUM)
        return shares if routing.scale == 1 else shares * routing.scale, chosen

    def _of_best_groups(self, scores: Tensor) -> Tensor:
        """The scores, with -inf outside of the best groups."""
        routing = self.routing
        grouped = scores.reshape(scores.shape[0], routing.groups, -1)
        best = grouped.topk(routing.best_of_group)[0].sum(axis=-1)
        _, chosen = best.topk(routing.groups_used)
        inside = self._is(chosen, routing.groups).max(axis=1)
        return where(inside.unsqueeze(-1) > 0, grouped, -math.inf).reshape(scores.shape)

    @staticmethod
    def _is(chosen: Tensor, count: int) -> Tensor:
        """1 where a chosen number is that of the last axis: (tokens, used, count)."""
        numbers = arange(count, dtype=chosen.dtype, device=chosen.device)
        return (chosen.unsqueeze(-1) == numbers).astype(dt.float32)


class Experts:
    """The weighted sum of the experts that a router chooses for each token.

    The matrices of all experts are stacked: one kernel multiplies the rows of all tokens by those
    of the experts that they are sent to, and reads no others.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        count: int,
        *,
        normalize: bool = True,
        routing: Routing | None = None,
        size: int | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        router: str = "gate",
        chooser: type[Router] = Router,
    ) -> None:
        routing = routing or Routing(experts_used(config, count), normalize)
        gate_weights = weights.inside(router)
        self.router = chooser(gate_weights, config, count, routing, router_bias(weights, count))
        inner, wide, hidden = weights.inside("experts"), size or config.intermediate, config.hidden
        gate, up, down = names
        self.inputs = [inner.stack(name, count, wide, hidden) for name in (gate, up)]
        self.output = inner.stack(down, count, hidden, wide)
        self.activation: Gate = read_gate(config)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows)
        inner = self.activation(*expert_linears(rows, chosen, self.inputs))
        (fed,) = expert_linears(inner, chosen, [self.output])
        return weighted_sum(fed, shares).reshape(*x.shape)


_BIASES = ("gate.e_score_correction_bias", "expert_bias", "moe_statics.e_score_correction_bias")


def router_bias(weights: Weights, count: int) -> Tensor | None:
    """What is added to the scores of experts for their choice, under its names beside them."""
    name = next((name for name in _BIASES if name in weights), None)
    if name is None:
        return None
    shape = (1, count) if name.startswith("moe_statics") else (count,)
    return weights.vector(name, *shape).reshape(count).astype(dt.float32)


def weighted_sum(parts: Tensor, shares: Tensor) -> Tensor:
    """The sum over a token's experts, (tokens, used, hidden) to (tokens, hidden), in float32."""
    total = (parts.astype(dt.float32) * shares.unsqueeze(-1)).sum(axis=1)
    return total.astype(parts.dtype)


class SharedExperts:
    """experts(x) + shared(x), the latter times sigmoid(gate(x)) if there is a gate."""

    def __init__(
        self, experts: Callable[[Tensor], Tensor], shared: GatedMLP, gate: Linear | None = None
    ) -> None:
        self.experts = experts
        self.shared = shared
        self.gate = gate

    def __call__(self, x: Tensor) -> Tensor:
        shared = self.shared(x)
        return self.experts(x) + (shared if self.gate is None else shared * self.gate(x).sigmoid())


def grouped_experts(
    config: ModelConfig, weights: Weights, index: int, *, softmax: bool = False
) -> GatedMLP | SharedExperts:
    """The MLP of a layer of DeepSeek's models: an ordinary one in the first layers, then experts
    chosen by group, and one that sees every token. V2 has softmax scores, which it takes as they
    are."""
    gate = read_gate(config)
    if index < config.integer("first_k_dense_replace"):
        return GatedMLP(weights, config, gate)
    count, size = count_experts(config, "n_routed_experts"), config.integer("moe_intermediate_size")
    routing = grouped_routing(config, count, softmax=softmax)
    experts = Experts(weights, config, count, routing=routing, size=size)
    shared_size = size * config.integer("n_shared_experts", 1)
    return SharedExperts(
        experts, GatedMLP(weights.inside("shared_experts"), config, gate, shared_size)
    )


def grouped_routing(config: ModelConfig, count: int, *, softmax: bool = False) -> Routing:
    """How DeepSeek's routers choose."""
    groups, groups_used = config.integer("n_group", 1), config.integer("topk_group", 1)
    if softmax and config.settings.get("topk_method") == "greedy":
        groups = groups_used = 1
    if not 0 < groups_used <= groups or count % groups:
        raise FormatError(
            f"config.json: n_group: {groups} groups of {count} experts, {groups_used} of them "
            "used: they have to divide the experts, and topk_group to be from 1 to n_group"
        )
    return Routing(
        experts_used(config, count),
        normalize=not softmax and config.settings.get("norm_topk_prob", True) is not False,
        sigmoid=not softmax,
        groups=groups,
        groups_used=groups_used,
        best_of_group=1 if softmax else min(2, count // groups),
        scale=config.number("routed_scaling_factor", 1.0),
    )


def experts_used(config: ModelConfig, count: int, default: int = 2) -> int:
    """The number of experts that a token uses."""
    used = config.integer("num_experts_per_tok", default)
    if not 0 < used <= count:
        raise FormatError(
            f"config.json: num_experts_per_tok: {used} of {count} experts: it has to be "
            f"from 1 to {count}"
        )
    return used


def count_experts(config: ModelConfig, key: str) -> int:
    """The number of experts that config.json names, under this key or the one that other versions
    of transformers write."""
    count = config.integer(key if key in config.settings else "num_local_experts")
    if not count:
        raise FormatError(f"config.json has no {key}: give that of a mixture of experts")
    return count
