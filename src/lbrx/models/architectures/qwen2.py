"""Qwen 2 and 2.5: a Llama with biases on queries, keys and values."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Model(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(
            weights.inside("self_attn"), self.config, index, bias=True, window=self._window(index)
        )
        return PreNormLayer(weights, self.config, attention)

    def _window(self, index: int) -> int:
        """Layers from `max_window_layers` on look back through a window, where it is used."""
        settings = self.config.settings
        if not settings.get("use_sliding_window") or index < settings.get("max_window_layers", 28):
            return 0
        return int(settings.get("sliding_window") or 0)
