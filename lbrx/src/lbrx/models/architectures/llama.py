"""Llama 1 to 3, and models of the same structure: SmolLM2, TinyLlama, Yi."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.models.config import ModelConfig
from lbrx.models.decoder import Decoder
from lbrx.models.kv_cache import ForwardStep
from lbrx.models.layers import Attending, Attention, GatedMLP, RMSNorm, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class PreNormLayer:
    """h = x + attention(norm(x)); h + mlp(norm(h))."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        attention: Attending,
        mlp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        size, eps = config.hidden, config.norm_eps
        self.attention_norm = RMSNorm(weights.inside("input_layernorm"), size, eps)
        self.attention = attention
        self.mlp_norm = RMSNorm(weights.inside("post_attention_layernorm"), size, eps)
        self.mlp = mlp or GatedMLP(weights.inside("mlp"), config, read_gate(config))

    def __call__(self, x: Tensor, added: Tensor | None, step: ForwardStep) -> tuple[Tensor, Tensor]:
        normed, x = self.attention_norm.of_sum(x, added)
        normed, x = self.mlp_norm.of_sum(x, self.attention(normed, step))
        return x, self.mlp(normed)


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        bias = bool(self.config.settings.get("attention_bias"))
        attention = Attention(weights.inside("self_attn"), self.config, index, bias=bias)
        return PreNormLayer(weights, self.config, attention)
