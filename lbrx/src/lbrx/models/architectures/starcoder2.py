"""StarCoder 2: layer norms and an MLP without a gate, with biases."""

from __future__ import annotations

from lbrx.models.blocks import Block, LayerNorm, PlainMLP
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, self.config.hidden, self.config.norm_eps)

    def make_layer(self, weights: Weights, index: int) -> Block:
        attention = Attention(
            weights.inside("self_attn"), self.config, index, window=self.window(index)
        )
        return Block(
            attention,
            PlainMLP(weights.inside("mlp"), self.config, ("c_fc", "c_proj")),
            before_attention=self.make_norm(weights.inside("input_layernorm")),
            before_mlp=self.make_norm(weights.inside("post_attention_layernorm")),
        )

    def has_window(self, index: int) -> bool:
        return True
