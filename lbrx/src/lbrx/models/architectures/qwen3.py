"""Qwen 3: Qwen 2 with norms on the heads of queries and keys, usually without biases."""

from __future__ import annotations

from lbrx.models.architectures import qwen2
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(qwen2.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        return PreNormLayer(weights, self.config, self.make_attention(weights, index))

    def make_attention(self, weights: Weights, index: int) -> Attention:
        bias = bool(self.config.settings.get("attention_bias"))
        return Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            bias=bias,
            head_norms=True,
            window=self.window(index),
        )
