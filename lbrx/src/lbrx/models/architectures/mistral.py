"""Mistral: Llama with a sliding attention window in its first versions."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(
            weights.inside("self_attn"), self.config, index, window=self.window(index)
        )
        return PreNormLayer(weights, self.config, attention)

    def has_window(self, index: int) -> bool:
        return True
