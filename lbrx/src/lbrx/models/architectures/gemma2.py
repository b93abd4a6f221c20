"""Gemma 2: norms before and after each part, softcapped scores, windows in every other layer."""

from __future__ import annotations

import math

from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder, Layer
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attention, GatedMLP, RMSNorm, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor

NORM_OFFSET = 1.0  # Gemma stores norm weights minus one


class SandwichLayer:
    """h = x + norm(attention(norm(x))); h + norm(mlp(norm(h)))."""

    def __init__(self, weights: Weights, config: ModelConfig, attention: Attention) -> None:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.inside(name), config.hidden, config.norm_eps, NORM_OFFSET)

        self.before_attention = norm("input_layernorm")
        self.attention = attention
        self.after_attention = norm("post_attention_layernorm")
        self.before_mlp = norm("pre_feedforward_layernorm")
        gate = read_gate(config, "hidden_activation", "gelu_pytorch_tanh")
        self.mlp = GatedMLP(weights.inside("mlp"), config, gate)
        self.after_mlp = norm("post_feedforward_layernorm")

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = self.before_attention.of_sum(x, added)
        attended = self.after_attention(self.attention(normed, step))
        normed, x = self.before_mlp.of_sum(x, attended)
        return x, self.after_mlp(self.mlp(normed))


class Network(Decoder):
    supports_float16 = False
    norm_offset = NORM_OFFSET

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * math.sqrt(self.config.hidden)

    def make_layer(self, weights: Weights, index: int) -> Layer:
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            scale=query_scale(self.config),
            window=self.window(index),
            cap=self.config.number("attn_logit_softcapping"),
        )
        return SandwichLayer(weights, self.config, attention)

    def has_window(self, index: int) -> bool:
        return index % 2 == 0


def query_scale(config: ModelConfig) -> float:
    """1 / sqrt(query_pre_attn_scalar), which may differ from the head size."""
    return 1 / math.sqrt(config.number("query_pre_attn_scalar", config.head_size))
