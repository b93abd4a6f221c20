"""GLM 4.5 to 4.7 (MoE): a part of each head turns; experts by sigmoid scores after some layers."""

from __future__ import annotations

from lbrx.models.architectures.llama import PreNormLayer
from lbrx.models.decoder import Decoder
from lbrx.models.experts import grouped_experts
from lbrx.models.layers import Attention
from lbrx.models.weights import Weights


class Network(Decoder):
    def make_layer(self, weights: Weights, index: int) -> PreNormLayer:
        mlp = grouped_experts(self.config, weights.inside("mlp"), index)
        return PreNormLayer(weights, self.config, self.make_attention(weights, index), mlp)

    def make_attention(self, weights: Weights, index: int) -> Attention:
        norms = bool(self.config.settings.get("use_qk_norm"))
        return Attention(weights.inside("self_attn"), self.config, index, head_norms=norms)
