"""OLMo 2: norms after each part, and over all queries and all keys."""

from __future__ import annotations

from lbrx.models.blocks import Block
from lbrx.models.config import ModelConfig, RopeSettings
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, GatedMLP, RMSNorm, apply_each, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class WideNormAttention(Attention):
    """Attention with one norm over the queries of all heads, and one over the keys."""

    def make_projections(self, weights: Weights, config: ModelConfig, bias: bool) -> None:
        super().make_projections(weights, config, bias)
        sizes = {"q_norm": self.heads * self.size, "k_norm": self.kv_heads * self.size}
        self.wide_norms = [
            RMSNorm(weights.inside(name), size, config.norm_eps) for name, size in sizes.items()
        ]

    def project(self, x: Tensor) -> list[Tensor]:
        queries, keys, values = apply_each(x, self.query, self.key, self.value)
        query_norm, key_norm = self.wide_norms
        every = query_norm(queries), key_norm(keys), values
        return [part.reshape(*x.shape[:2], -1, self.size) for part in every]


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> Block:
        attention = WideNormAttention(
            weights.inside("self_attn"),
            self.config,
            index,
            rope=self.rope(index),
            window=self.window(index),
        )
        return Block(
            attention,
            GatedMLP(weights.inside("mlp"), self.config, read_gate(self.config)),
            after_attention=self.make_norm(weights.inside("post_attention_layernorm")),
            after_mlp=self.make_norm(weights.inside("post_feedforward_layernorm")),
        )

    def rope(self, index: int) -> RopeSettings:
        """The RoPE of a layer."""
        return self.config.rope
