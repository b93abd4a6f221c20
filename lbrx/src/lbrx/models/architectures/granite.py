"""Granite 3: Llama with factors for embeddings, scores, what layers add, and logits."""

from __future__ import annotations

from lbrx.models.blocks import Block, Feeding
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention, GatedMLP, read_gate
from lbrx.models.weights import Weights
from lbrx.tensors.core import Tensor


class Network(Decoder):
    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) * self.config.number("embedding_multiplier", 1.0)

    @property
    def output_factor(self) -> float:
        return 1 / self.config.number("logits_scaling", 1.0)

    def make_layer(self, weights: Weights, index: int) -> Block:
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            scale=self.config.number("attention_multiplier", 1.0),
        )
        return Block(
            attention,
            self.make_mlp(weights),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
            scale=self.config.number("residual_multiplier", 1.0),
        )

    def make_mlp(self, weights: Weights) -> Feeding:
        """The MLP of a layer."""
        return GatedMLP(weights.inside("mlp"), self.config, read_gate(self.config))
