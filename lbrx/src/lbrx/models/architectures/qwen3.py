"""Qwen 3: Qwen 2 with norms on the heads of queries and keys, usually without biases."""

from __future__ import annotations

from lbrx.models.architectures import qwen2
from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(qwen2.Network):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        bias = bool(self.config.settings.get("attention_bias"))
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            bias=bias,
            head_norms=True,
            window=self.window(index),
        )
        return PreNormLayer(weights, self.config, attention)
