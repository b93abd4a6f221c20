"""SmolLM 3: a Llama in which every fourth layer knows no positions."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Model(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        turns = self._turns(index)
        attention = Attention(weights.inside("self_attn"), self.config, index, turns=turns)
        return PreNormLayer(weights, self.config, attention)

    def _turns(self, index: int) -> bool:
        listed = self.config.settings.get("no_rope_layers")
        if isinstance(listed, list) and len(listed) > index:
            return bool(listed[index])
        interval = int(self.config.settings.get("no_rope_layer_interval") or 4)
        return (index + 1) % interval != 0
