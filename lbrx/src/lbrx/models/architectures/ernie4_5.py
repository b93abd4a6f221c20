"""ERNIE 4.5: Llama whose RoPE rotates neighbouring features."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(weights.inside("self_attn"), self.config, index, neighbours=True)
        return PreNormLayer(weights, self.config, attention)
