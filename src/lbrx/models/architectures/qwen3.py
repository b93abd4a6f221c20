"""Qwen 3: a Llama with norms on the heads of queries and keys."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Model(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        bias = bool(self.config.settings.get("attention_bias"))
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            bias=bias,
            output_bias=bias,
            head_norms=True,
        )
        return PreNormLayer(weights, self.config, attention)
