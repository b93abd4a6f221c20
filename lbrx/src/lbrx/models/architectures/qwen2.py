"""Qwen 2 and 2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        return PreNormLayer(weights, self.config, self.make_attention(weights, index))

    def make_attention(self, weights: Weights, index: int) -> Attention:
        return Attention(
            weights.inside("self_attn"), self.config, index, bias=True, window=self.window(index)
        )

    def has_window(self, index: int) -> bool:
        used = bool(self.config.settings.get("use_sliding_window"))
        return used and index >= self.config.integer("max_window_layers", 28)
