"""Mistral: a Llama whose first versions look back through a window."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Model(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        window = int(self.config.settings.get("sliding_window") or 0)
        attention = Attention(weights.inside("self_attn"), self.config, index, window=window)
        return PreNormLayer(weights, self.config, attention)
