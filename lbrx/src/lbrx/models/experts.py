"""Mixtures of experts: several MLPs, of which a router weights a few for each token."""

from __future__ import annotations

from lbrx import dtype as dt
from lbrx.errors import FormatError
from lbrx.models.config import ModelConfig
from lbrx.models.layers import GatedMLP, Linear, read_gate
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor


class Experts:
    """The weighted sum of the `used` likeliest experts of each token.

    Every expert is computed for every token, and the others get the weight 0: a recorded step has
    no data-dependent work. `normalize` makes the weights of the chosen ones add up to 1.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        count: int,
        *,
        normalize: bool = True,
        size: int | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        self.used = config.integer("num_experts_per_tok", 2)
        if not 0 < self.used <= count:
            raise FormatError(
                f"config.json: num_experts_per_tok: {self.used} of {count} experts: it has to be "
                f"from 1 to {count}"
            )
        self.router = Linear(weights.inside("gate"), count, config.hidden)
        self.normalize = normalize
        inner = weights.inside("experts")
        gate = read_gate(config)
        self.experts = [GatedMLP(inner.inside(i), config, gate, size, names) for i in range(count)]

    def __call__(self, x: Tensor) -> Tensor:
        shares, chosen = self.router(x).astype(dt.float32).softmax().topk(self.used)
        if self.normalize:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        parts = [
            expert(x) * (shares * (chosen == i)).sum(axis=-1, keepdims=True).astype(x.dtype)
            for i, expert in enumerate(self.experts)
        ]
        return sum(parts[1:], start=parts[0])


def count_experts(config: ModelConfig, key: str) -> int:
    """The number of experts that config.json names, under this key or the other of the two that
    versions of transformers write."""
    other = "num_experts" if key == "num_local_experts" else "num_local_experts"
    count = config.integer(key if key in config.settings else other)
    if not count:
        raise FormatError(f"config.json has no {key}: give that of a mixture of experts")
    return count
