"""SmolLM 3: a Llama in which every fourth layer knows no positions."""

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
            turns=self._turns(index),
            window=self.window(index),
        )
        return PreNormLayer(weights, self.config, attention)

    def is_near(self, index: int) -> bool:
        return bool(self.config.settings.get("use_sliding_window")) and not self._turns(index)

    def _turns(self, index: int) -> bool:
        listed = self.config.listed("no_rope_layers", index)
        if listed is not None:
            return bool(listed)
        return (index + 1) % (self.config.count("no_rope_layer_interval") or 4) != 0
