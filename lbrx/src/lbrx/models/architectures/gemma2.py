"""Gemma 2: norms before and after each part, capped scores, every other layer with a window."""

from __future__ import annotations

import math

from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, RMSNorm, gate_of
from lbrx.models.weights import Weights
from lbrx.tensor.core import Tensor

SHIFT = 1.0  # what Gemma's norm weights lack


class SandwichLayer:
    """x + norm(attention(norm(x))), and the same with the feed-forward layer."""

    def __init__(self, weights: Weights, config: ModelConfig, attention: Attention) -> None:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.inside(name), config.hidden, config.norm_eps, SHIFT)

        self.before_attention = norm("input_layernorm")
        self.attention = attention
        self.after_attention = norm("post_attention_layernorm")
        self.before_mlp = norm("pre_feedforward_layernorm")
        gate = gate_of(config, "hidden_activation", "gelu_pytorch_tanh")
        self.mlp = GatedMLP(weights.inside("mlp"), config, gate)
        self.after_mlp = norm("post_feedforward_layernorm")

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = self.before_attention.of_sum(x, added)
        seen = self.after_attention(self.attention(normed, step))
        normed, x = self.before_mlp.of_sum(x, seen)
        return x, self.after_mlp(self.mlp(normed))


class Network(Decoder):
    halves = False
    norm_shift = SHIFT

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * math.sqrt(self.config.hidden)

    def make_layer(self, weights: Weights, index: int) -> SandwichLayer:
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            scale=query_scale(self.config),
            window=self.window(index),
            cap=self.config.real("attn_logit_softcapping"),
        )
        return SandwichLayer(weights, self.config, attention)

    def is_near(self, index: int) -> bool:
        return index % 2 == 0


def query_scale(config: ModelConfig) -> float:
    """Gemma says itself what scores are divided by the root of."""
    return 1 / math.sqrt(config.real("query_pre_attn_scalar", config.head_size))
