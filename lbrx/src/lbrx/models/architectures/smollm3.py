"""SmolLM 3: Llama without RoPE in every fourth layer."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        attention = Attention(
            weights.inside("self_attn"),
            self.config,
            index,
            bias=bool(self.config.settings.get("attention_bias")),
            use_rope=self._uses_rope(index),
            window=self.window(index),
        )
        return PreNormLayer(weights, self.config, attention)

    def has_window(self, index: int) -> bool:
        return bool(self.config.settings.get("use_sliding_window")) and not self._uses_rope(index)

    def _uses_rope(self, index: int) -> bool:
        listed = self.config.per_layer("no_rope_layers", index)
        if listed is not None:
            return bool(listed)
        return (index + 1) % (self.config.integer("no_rope_layer_interval") or 4) != 0
